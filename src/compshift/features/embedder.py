"""A backbone at work: samples in, features out, batch by batch."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
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
from compshift.data.samples import KINDS, ImageArrays, ImageFiles, Samples
from compshift.features.batches import Batch, Batches, sample_lengths
from compshift.nn.backbones import Backbone

DTYPES = ("auto", "float32", "bfloat16")
MAX_WORKERS = 4
"""Of worker processes, where their number is not given."""


@dataclass(frozen=True, eq=False)
class Embedded:
    """Features of some rows, without those whose sample could not be read."""

    rows: IntArray  # (n,)
    features: np.ndarray[Any, np.dtype[np.float32]]  # (n, p)
    digests: list[bytes]  # of every row that was asked for, in order
    broken: list[str]  # one sentence for every sample that was left out


class Embedder:
    """A backbone on a device, ready to embed samples.

    Parameters
    ----------
    backbone : Backbone
        As ``compshift.nn.load_backbone`` gives it.
    device : "auto", "cpu" or "cuda"
        "auto" is CUDA where there is a device.
    dtype : "auto", "float32" or "bfloat16"
        "auto" is bfloat16 on a CUDA device that has it, and float32 elsewhere.
    batch_size : int, default=32
        Samples in one forward pass.
    num_workers : int, optional
        Processes that read samples ahead.
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
                f"backbone is {an(type(backbone).__name__)}: pass one, as compshift.nn.load_backbone gives"
            )
        self.device = chosen_device(device)
        self.dtype = chosen_precision(dtype, self.device)
        self.backbone = backbone.to(self.device).eval()
        self.batch_size = check_count(batch_size, "batch_size")
        self.num_workers = None if num_workers is None else check_whole(num_workers, "num_workers", MAX_READERS)
        self.forward_seconds = 0.0

    def about(self) -> dict[str, Any]:
        """The network: its name, and everything that decides about its features."""
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
        """Features of each group of rows in turn, from one stream of batches that never straddle two groups.

        A sample that cannot be read is an error, unless ``skip_broken`` leaves it out. ``progress`` is called with the
        number of rows that were done.
        """
        kind = KINDS.get(type(samples), "features")
        if kind != self.backbone.kind:
            raise InputError(
                f"the backbone {self.backbone.name!r} takes {self.backbone.kind}, and the samples are {kind}"
            )
        lengths = sample_lengths(samples)
        plan = [batch_rows(rows, lengths, self.batch_size) for rows in groups]
        stream = self._stream(samples, [rows for batches in plan for rows in batches])
        for rows, batches in zip(groups, plan, strict=True):
            position = {row: number for number, row in enumerate(rows.tolist())}
            features = np.zeros((len(rows), self.backbone.out_features), dtype=np.float32)
            digests = [b""] * len(rows)
            reasons: dict[int, str] = {}
            for wanted in batches:
                batch = next(stream)
                if batch.broken and not skip_broken:
                    raise InputError(
                        f"{batch.broken[0][1]}: mend it, remove it, or leave out what cannot be read (--skip-broken, "
                        "in Python skip_broken=True)"
                    )
                reasons |= dict(batch.broken)
                for row, digest in zip(wanted.tolist(), batch.digests, strict=True):
                    digests[position[row]] = digest
                if len(batch.rows):
                    features[[position[row] for row in batch.rows.tolist()]] = self._forward(batch.inputs)
                progress(len(wanted))
            kept = np.array([row not in reasons for row in rows.tolist()], dtype=np.bool_)
            yield Embedded(rows[kept], features[kept], digests, [reasons[row] for row in sorted(reasons)])

    def _stream(self, samples: Samples, rows: list[IntArray]) -> Iterator[Batch]:
        """Batches in order; images are read ahead by worker processes."""
        workers = reading_workers(samples, self.num_workers)
        batches = Batches(samples, self.backbone)
        workers = min(workers, len(rows))
        context = reading_context() if workers else None
        return iter(
            DataLoader(batches, batch_size=None, sampler=rows, num_workers=workers, multiprocessing_context=context)
        )

    def _features(self, prepared: dict[str, Tensor]) -> Tensor:
        """What the backbone makes of a batch."""
        try:
            found: Tensor = self.backbone(**prepared)
        except (InputError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # anyone's network, which can fail in every way there is
            raise InputError(
                f"the backbone {self.backbone.name!r} failed on a batch ({type(error).__name__}: {reason(error)}): its "
                "settings are damaged, or it takes other samples; get it again, or choose another"
            ) from error
        return found

    @torch.inference_mode()
    def _forward(self, inputs: dict[str, Tensor]) -> Any:
        """Features (b, p) of a batch, in 32 bits."""
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
                f"the backbone {self.backbone.name!r} makes features that are not finite: its weights or settings are "
                "damaged, or need more than the precision in use; get it again, or try dtype='float32'"
            )
        return features


def reading_workers(samples: Samples, wanted: int | None) -> int:
    """Processes that read ahead: as many as wanted, or for image files all cores but one, four at most.

    None where processes may not have children of their own, as in a worker of Dask.
    """
    if multiprocessing.current_process().daemon:
        return 0
    if wanted is not None:
        return wanted
    return min(MAX_WORKERS, max(1, (os.cpu_count() or 1) - 1)) if isinstance(samples, ImageFiles | ImageArrays) else 0


def reading_context() -> str | None:
    """How readers are started: as usual, but for workers of loky, whose own way is not for others."""
    return "fork" if multiprocessing.get_start_method(allow_none=True) == "loky" else None


def batch_rows(rows: IntArray, lengths: IntArray, batch_size: int) -> list[IntArray]:
    """Rows in batches, with samples of like length together."""
    order = rows[np.argsort(lengths[rows], kind="stable")]
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def chosen_device(name: str) -> torch.device:
    if isinstance(name, str) and name == "auto":
        mps = torch.backends.mps.is_available()
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if mps else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        raise InputError(f"the device {name!r} cannot be used ({str(error).splitlines()[0]}): pass cpu") from None
    return device


def chosen_precision(name: str, device: torch.device) -> torch.dtype:
    check_name("dtype", name, DTYPES)
    if name == "auto":
        able = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if able else torch.float32
    return torch.bfloat16 if name == "bfloat16" else torch.float32
