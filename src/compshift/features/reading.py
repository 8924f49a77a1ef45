"""Read batches of samples as input tensors of a backbone; worker processes can read them in advance."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from compshift._errors import InputError
from compshift.core.arrays import IntArray
from compshift.data.dataset import ImageArrays, ImageFiles, Samples, Texts, Tokens
from compshift.data.images import BrokenImageError, decode_image, read_bytes
from compshift.nn.backbones import Backbone
from compshift.nn.pairs import check_pairs, separate_tokens

MAX_WORKERS = 4
"""Maximum number of worker processes by default; a caller may choose more."""


@dataclass(frozen=True)
class InputBatch:
    """Inputs of the backbone for some rows, without the samples that could not be read."""

    rows: IntArray  # (b,) rows that were read
    inputs: dict[str, Tensor]  # arguments of ``Backbone.prepare``; images are (b, height, width, 3)
    digests: list[bytes]  # content digest of each requested row, read or not
    broken: list[tuple[int, str]]  # each row that could not be read, with the reason


class Batches(Dataset[InputBatch]):
    """Dataset of batches: the index is an array of row numbers, the item is the batch of these rows.

    An image that cannot be read is listed in ``InputBatch.broken``. It raises no error, which would end the worker
    process.
    """

    def __init__(self, samples: Samples, backbone: Backbone, *, digests: bool = True) -> None:
        self.samples = samples
        self._digests = digests
        self._preprocessing = getattr(backbone, "preprocessing", None)
        # Only tokenising needs the backbone. Others are left out, so that their weights are not sent to workers.
        self._backbone = backbone if backbone.kind == "text" else None
        self._separate = getattr(backbone, "pairs", "joint") == "separate"
        check_pairs(samples, backbone)
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
            tokens = self.samples[rows]
            tokeniser: Any = getattr(self._backbone, "tokeniser", None)
            inputs = separate_tokens(tokens, tokeniser) if self._separate else _token_inputs(tokens)
            return InputBatch(rows, inputs, digests, [])
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
    """Return the digest of each sample's content; a file that cannot be read counts as empty."""
    return [hashlib.sha256(_content(samples, row)).digest() for row in rows.tolist()]


def _content(samples: Samples, row: int) -> bytes:
    """Return the content of one sample as bytes."""
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
    """Return the approximate length of each text, so that texts of similar length can share a batch; 0 if not text."""
    if isinstance(samples, Tokens):
        return np.asarray(samples.mask.sum(axis=1, dtype=np.int64))
    if isinstance(samples, Texts):
        second = np.zeros(len(samples), dtype=np.int64)
        if samples.second is not None:
            second = np.array([len(text) for text in samples.second], dtype=np.int64)
        return np.array([len(text) for text in samples.first], dtype=np.int64) + second
    return np.zeros(len(samples), dtype=np.int64)


def _token_inputs(tokens: Tokens) -> dict[str, Tensor]:
    """Return token ids, attention mask and segment ids, cut to the longest text of the batch."""
    length = max(1, int(np.flatnonzero(tokens.mask.any(axis=0)).max(initial=0)) + 1)
    arrays = {"input_ids": tokens.ids, "attention_mask": tokens.mask, "token_type_ids": tokens.segments}
    return {name: torch.from_numpy(array[:, :length].astype(np.int64)) for name, array in arrays.items()}


def _check_vocabulary(tokens: Tokens, backbone: Any) -> None:
    """Check that stored token ids belong to the backbone's vocabulary."""
    largest, first = int(tokens.ids.max(initial=0)), backbone.tokeniser.cls_token_id
    remedy = f"use a backbone with the vocabulary of {tokens.vocabulary}, or the raw texts"
    if largest >= backbone.vocabulary_size:
        raise InputError(
            f"the token ids were made for {tokens.vocabulary} and go up to {largest}, but the vocabulary of "
            f"{backbone.name!r} has {backbone.vocabulary_size} tokens: {remedy}"
        )
    if (tokens.ids[:, 0] != first).any():
        raise InputError(
            f"the token ids were made for {tokens.vocabulary}, but {backbone.name!r} has another vocabulary: its texts "
            f"start with the id {first}, but some of these do not; {remedy}"
        )


def reading_workers(samples: Samples, wanted: int | None) -> int:
    """Return the number of worker processes that read samples in advance.

    Daemonic processes, such as Dask workers, may not start processes, so there the number is 0. Otherwise it is
    ``wanted``. If that is None, it is the number of cores minus one for images, but at least 1 and at most
    ``MAX_WORKERS``, and 0 for other samples.
    """
    if multiprocessing.current_process().daemon:
        return 0
    if wanted is not None:
        return wanted
    return min(MAX_WORKERS, max(1, (os.cpu_count() or 1) - 1)) if isinstance(samples, ImageFiles | ImageArrays) else 0


def reading_context() -> str | None:
    """Return the start method of the worker processes that read samples; None is the platform's default.

    In a process that loky started, the default would be "loky", which only loky itself can use, so it is "fork" there.
    """
    return "fork" if multiprocessing.get_start_method(allow_none=True) == "loky" else None


def batch_rows(rows: IntArray, lengths: IntArray, batch_size: int) -> list[IntArray]:
    """Split rows into batches of samples of similar length."""
    order = rows[np.argsort(lengths[rows], kind="stable")]
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
