"""Samples as the tensors that a backbone takes, a batch at a time, with a digest of what was read."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from compshift._errors import InputError
from compshift.core.arrays import IntArray
from compshift.data.images import BrokenImageError, decode_image, read_bytes
from compshift.data.samples import ImageArrays, ImageFiles, Samples, Texts, Tokens
from compshift.nn.backbones import Backbone


@dataclass(frozen=True)
class Batch:
    """Some rows, ready for the backbone; rows that could not be read are left out and named."""

    rows: IntArray  # (b,) rows that were read
    inputs: dict[str, Tensor]  # arguments of the backbone; images still have 8-bit channels last
    digests: list[bytes]  # of each row asked for, broken or not
    broken: list[tuple[int, str]]  # row and reason


class Batches(Dataset[Batch]):
    """Batches by their rows. It is indexed in worker processes, so errors travel as data."""

    def __init__(self, samples: Samples, backbone: Backbone, *, digests: bool = True) -> None:
        self.samples = samples
        self._digests = digests
        self._preprocessing = getattr(backbone, "preprocessing", None)
        self._backbone = backbone if backbone.kind == "text" else None  # weights are not sent to workers
        if isinstance(samples, Tokens):
            _check_vocabulary(samples, backbone)

    def __getitem__(self, rows: IntArray) -> Batch:
        if isinstance(self.samples, ImageFiles | ImageArrays):
            return self._images(self.samples, rows)
        digests = sample_digests(self.samples, rows) if self._digests else []
        if isinstance(self.samples, np.ndarray):
            return Batch(
                rows, {"features": torch.from_numpy(self.samples[rows].astype(np.float32, copy=False))}, digests, []
            )
        if isinstance(self.samples, Tokens):
            return Batch(rows, _token_inputs(self.samples[rows]), digests, [])
        assert isinstance(self.samples, Texts)
        assert self._backbone is not None
        return Batch(rows, self._backbone.tokenise(self.samples[rows]), digests, [])  # type: ignore[operator]

    def _images(self, samples: ImageFiles | ImageArrays, rows: IntArray) -> Batch:
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
        return Batch(np.array(kept, dtype=np.int64), inputs, digests, broken)


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
