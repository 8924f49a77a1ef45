"""Samples as the tensors that a backbone takes, a batch at a time, with a digest of what was read.

A backbone at work: samples in, features out, batch by batch.
"""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from compshift._checks import MAX_READERS, check_count, check_whole
from compshift._errors import InputError, an, check_name, reason
from compshift.core.arrays import IntArray
from compshift.data.dataset import KINDS, ImageArrays, ImageFiles, Samples, Texts, Tokens
from compshift.data.images import BrokenImageError, decode_image, read_bytes
from compshift.nn.backbones import Backbone


@dataclass(frozen=True)
class InputBatch:
    """Some rows, ready for the backbone; rows that could not be read are left out and named."""

    rows: IntArray  # (b,) rows that were read
    inputs: dict[str, Tensor]  # arguments of the backbone; images still have 8-bit channels last
    digests: list[bytes]  # of each row asked for, broken or not
    broken: list[tuple[int, str]]  # row and reason


class Batches(Dataset[InputBatch]):
    """Batches by their rows. It is indexed in worker processes, so errors travel as data."""

    def __init__(self, samples: Samples, backbone: Backbone, *, digests: bool = True) -> None:
        self.samples = samples
        self._digests = digests
        self._preprocessing = getattr(backbone, "preprocessing", None)
        self._backbone = backbone if backbone.kind == "text" else None  # weights are not sent to workers
        if isinstance(samples, Tokens):
            _check_vocabulary(samples, backbone)

    def __getitem__(self, rows: IntArray) -> InputBatch:
        if isinstance(self.samples, ImageFiles | ImageArrays):
            return self._images(self.samples, rows)
        digests = sample_digests(self.samples, rows) if self._digests else []
        if isinstance(self.samples, np.ndarray):
            return InputBatch(
                rows, {"features": torch.from_numpy(self.samples[rows].astype(np.float32, copy=False))}, digests, []
            )
        if isinstance(self.samples, Tokens):
            return InputBatch(rows, _token_inputs(self.samples[rows]), digests, [])
        assert isinstance(self.samples, Texts)
        assert self._backbone is not None
        return InputBatch(rows, self._backbone.tokenise(self.samples[rows]), digests, [])  # type: ignore[operator]

    def _images(self, samples: ImageFiles | ImageArrays, rows: IntArray) -> InputBatch:
        from PIL import Image

        assert self._preprocessing is not None
        pixels, kept, digests, broken = [], [], [], []
        for row in rows.tolist():
            try:
                if isinstance(samples, ImageArrays):
                    content = samples.pixels[row].tobytes() if self._digests else b""
                    image = Image.fromarray(samples.pixels[row])
                else:
                    content = b""
                    content = read_bytes(samples.path(row))
                    image = decode_image(content, samples.path(row))
            except BrokenImageError as error:
                broken.append((row, str(error)))
            else:
                pixels.append(self._preprocessing.pixels(image))
                kept.append(row)
            if self._digests:
                digests.append(hashlib.sha256(content).digest())
        inputs = {"pixel_values": torch.from_numpy(np.stack(pixels))} if pixels else {}
        return InputBatch(np.array(kept, dtype=np.int64), inputs, digests, broken)


def sample_digests(samples: Samples, rows: IntArray) -> list[bytes]:
    """A digest of each sample's content; of a file that cannot be read, that of nothing."""
    return [hashlib.sha256(_content(samples, row)).digest() for row in rows.tolist()]


def _content(samples: Samples, row: int) -> bytes:
    if isinstance(samples, ImageFiles):
        try:
            return read_bytes(samples.path(row))
        except BrokenImageError:
            return b""
    if isinstance(samples, ImageArrays):
        return bytes(samples.pixels[row].tobytes())
    if isinstance(samples, Texts):
        texts = [samples.first[row]] if samples.second is None else [samples.first[row], samples.second[row]]
        return bytes("\0".join(texts).encode(errors="surrogatepass"))
    if isinstance(samples, Tokens):
        return b"".join(array[row].tobytes() for array in (samples.ids, samples.mask, samples.segments))
    return bytes(np.ascontiguousarray(samples[row]).tobytes())


def sample_lengths(samples: Samples) -> IntArray:
    """Roughly how long each sample is, so that texts of one length can share a batch; 0 for images."""
    if isinstance(samples, Tokens):
        return np.asarray(samples.mask.sum(axis=1, dtype=np.int64))
    if isinstance(samples, Texts):
        second = np.zeros(len(samples), dtype=np.int64)
        if samples.second is not None:
            second = np.array([len(text) for text in samples.second], dtype=np.int64)
        return np.array([len(text) for text in samples.first], dtype=np.int64) + second
    return np.zeros(len(samples), dtype=np.int64)


def _token_inputs(tokens: Tokens) -> dict[str, Tensor]:
    """Ids, mask and segments, cut at the longest text of the batch."""
    length = max(1, int(np.flatnonzero(tokens.mask.any(axis=0)).max(initial=0)) + 1)
    arrays = {"input_ids": tokens.ids, "attention_mask": tokens.mask, "token_type_ids": tokens.segments}
    return {name: torch.from_numpy(array[:, :length].astype(np.int64)) for name, array in arrays.items()}


def _check_vocabulary(tokens: Tokens, backbone: Any) -> None:
    top = int(tokens.ids.max(initial=0))
    first = backbone.tokeniser.cls_token_id
    if top >= backbone.vocabulary_size or (tokens.ids[:, 0] != first).any():
        raise InputError(
            f"the token ids were made for {tokens.vocabulary} and run to {top}, and {backbone.name!r} knows "
            f"{backbone.vocabulary_size}: use {tokens.vocabulary}, or the raw texts"
        )


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

    def _stream(self, samples: Samples, rows: list[IntArray]) -> Iterator[InputBatch]:
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
    except (RuntimeError, AssertionError, TypeError) as error:
        raise InputError(f"the device {name!r} cannot be used ({str(error).splitlines()[0]}): pass cpu") from None
    return device


def chosen_precision(name: str, device: torch.device) -> torch.dtype:
    check_name("dtype", name, DTYPES)
    if name == "auto":
        able = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if able else torch.float32
    return torch.bfloat16 if name == "bfloat16" else torch.float32
