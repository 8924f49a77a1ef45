"""``Embedder``: computes the features of samples by a backbone on a device, batch by batch."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from compshift._checks import MAX_READERS, check_count, check_whole
from compshift._errors import InputError, an, check_name, reason
from compshift.core.arrays import IntArray
from compshift.data.dataset import KINDS, Samples
from compshift.features.reading import (
    Batches,
    InputBatch,
    batch_rows,
    reading_context,
    reading_workers,
    sample_lengths,
)
from compshift.nn.backbones import Backbone


@dataclass(frozen=True, eq=False)
class Embedded:
    """Features of one block of rows, without the samples that could not be read."""

    rows: IntArray  # (n,) rows that have features
    features: np.ndarray[Any, np.dtype[np.float32]]  # (n, p)
    digests: list[bytes]  # content digest of every requested row, in order
    broken: list[str]  # one sentence for every sample that was left out


class Embedder:
    """A backbone on a device, ready to compute the features of samples.

    Parameters
    ----------
    backbone : Backbone
        The network, as ``compshift.nn.load_backbone`` returns. It is moved to the device and put into eval mode.
    device : {"auto", "cpu", "cuda"} or str, default="auto"
        Device to compute on. "auto" is a GPU if there is one, else the CPU.
    dtype : {"auto", "float32", "bfloat16"}, default="auto"
        Precision of the forward pass. "auto" is bfloat16 on a CUDA device that supports it, and float32 elsewhere.
    batch_size : int, default=32
        Number of samples in one forward pass.
    num_workers : int, optional
        Number of worker processes that read samples in advance. Default: for images, the number of cores minus one, but
        at least 1 and at most 4; for other samples, 0.

    Raises
    ------
    InputError
        If a parameter or the device cannot be used.

    Examples
    --------
    >>> from compshift.nn.networks import fresh_backbone
    >>> embedder = Embedder(fresh_backbone("linear", in_features=2), device="cpu")
    >>> (result,) = embedder.embed(np.eye(2, dtype=np.float32), [np.arange(2)])
    >>> result.features
    array([[1., 0.],
           [0., 1.]], dtype=float32)
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        device: str = "auto",
        dtype: str = "auto",
        batch_size: int = 32,
        num_workers: int | None = None,
    ) -> None:
        if not isinstance(backbone, Backbone):
            raise InputError(
                f"backbone is {an(type(backbone).__name__)}: pass a Backbone, as compshift.nn.load_backbone returns"
            )
        self.device = chosen_device(device)
        self.dtype = chosen_precision(dtype, self.device)
        self.backbone = backbone.to(self.device).eval()
        self.batch_size = check_count(batch_size, "batch_size")
        self.num_workers = None if num_workers is None else check_whole(num_workers, "num_workers", MAX_READERS)
        self.forward_seconds = 0.0

    def about(self) -> dict[str, Any]:
        """Return everything besides the samples that determines the features.

        Returns
        -------
        dict
            Name and settings of the backbone, digest of its weights, and precision of the forward pass.
        """
        return {
            "backbone": self.backbone.name,
            "settings": self.backbone.settings(),
            "weights": self.backbone.fingerprint(),
            "dtype": str(self.dtype).removeprefix("torch."),
        }

    def embed(
        self,
        samples: Samples,
        groups: Sequence[IntArray],
        *,
        skip_broken: bool = False,
        progress: Callable[[int], None] = lambda _: None,
    ) -> Iterator[Embedded]:
        """Compute the features of blocks of rows, one block at a time.

        Parameters
        ----------
        samples : Samples
            Images, texts or features: the kind of samples that the backbone takes.
        groups : sequence of array
            Blocks of row numbers. A batch never spans two blocks.
        skip_broken : bool, default=False
            Leave out samples that cannot be read, instead of raising.
        progress : callable, optional
            Called with the number of rows done since the last call.

        Yields
        ------
        Embedded
            ``rows``, ``features``, ``digests`` and ``broken`` of each block.

        Raises
        ------
        InputError
            If the backbone takes another kind of samples, a sample cannot be read, or the backbone fails.
        """
        kind = KINDS.get(type(samples), "features")
        if kind != self.backbone.kind:
            raise InputError(
                f"the backbone {self.backbone.name!r} takes {self.backbone.kind}, but the samples are {kind}: choose a "
                f"backbone for {kind}"
            )
        lengths = sample_lengths(samples)
        plan = [batch_rows(rows, lengths, self.batch_size) for rows in groups]
        stream = self._stream(samples, [rows for batches in plan for rows in batches])
        for rows, batches in zip(groups, plan, strict=True):
            position = {row: i for i, row in enumerate(rows.tolist())}
            features = np.zeros((len(rows), self.backbone.out_features), dtype=np.float32)
            digests = [b""] * len(rows)
            reasons: dict[int, str] = {}
            for wanted in batches:
                batch = next(stream)
                if batch.broken and not skip_broken:
                    raise InputError(
                        f"{batch.broken[0][1]}: repair it, remove it, or leave out samples that cannot be read, with "
                        "skip_broken=True"
                    )
                reasons |= dict(batch.broken)
                for row, digest in zip(wanted.tolist(), batch.digests, strict=True):
                    digests[position[row]] = digest
                if len(batch.rows):
                    features[[position[row] for row in batch.rows.tolist()]] = self._forward(batch.inputs)
                progress(len(wanted))
            kept = np.array([row not in reasons for row in rows.tolist()], dtype=np.bool_)
            yield Embedded(rows[kept], features[kept], digests, [reasons[row] for row in sorted(reasons)])

    def _stream(self, samples: Samples, rows: list[IntArray]) -> Iterator[InputBatch]:
        """Return an iterator over the batches, in order; worker processes read them in advance."""
        batches = Batches(samples, self.backbone)
        workers = min(reading_workers(samples, self.num_workers), len(rows))
        context = reading_context() if workers else None
        return iter(
            DataLoader(batches, batch_size=None, sampler=rows, num_workers=workers, multiprocessing_context=context)
        )

    def _features(self, prepared: dict[str, Tensor]) -> Tensor:
        """Return the output of the backbone; raise its errors again as an InputError that names the backbone."""
        try:
            features: Tensor = self.backbone(**prepared)
        except (InputError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # a network written by the user may raise anything
            raise InputError(
                f"the backbone {self.backbone.name!r} failed on a batch ({type(error).__name__}: {reason(error)}): its "
                "files may be damaged, or it may expect other inputs; download it again, or choose another backbone"
            ) from error
        return features

    @torch.inference_mode()
    def _forward(self, inputs: dict[str, Tensor]) -> Any:
        """Return the features (b, p) of a batch in float32."""
        moved = {name: tensor.to(self.device, non_blocking=True) for name, tensor in inputs.items()}
        reduced = self.dtype != torch.float32
        context = torch.autocast(self.device.type, self.dtype) if reduced else contextlib.nullcontext()
        prepared = self.backbone.prepare(moved)
        start = time.perf_counter()
        with context:
            features = self._features(prepared).float().cpu().numpy()
        self.forward_seconds += time.perf_counter() - start
        if not np.isfinite(features).all():
            raise InputError(
                f"the backbone {self.backbone.name!r} makes features that are not finite: its weights may be damaged, "
                f"or {str(self.dtype).removeprefix('torch.')} may be too imprecise for it; download it again, or try "
                "dtype='float32'"
            )
        return features


def chosen_device(name: str) -> torch.device:
    """Return the device with this name and check that it can be used; "auto" is a GPU if there is one, else the CPU."""
    if isinstance(name, str) and name == "auto":
        mps = torch.backends.mps.is_available()
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if mps else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        raise InputError(f"the device {name!r} cannot be used ({str(error).splitlines()[0]}): choose cpu") from None
    return device


def chosen_precision(name: str, device: torch.device) -> torch.dtype:
    """Return the data type with this name; "auto" is bfloat16 on a CUDA device that supports it, else float32."""
    check_name("dtype", name, ("auto", "float32", "bfloat16"))
    if name == "auto":
        supported = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if supported else torch.float32
    return torch.bfloat16 if name == "bfloat16" else torch.float32
