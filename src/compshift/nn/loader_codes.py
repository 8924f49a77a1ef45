"""Codes of training rows, from arrays or from the batches of a loader."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from compshift._errors import InputError, an
from compshift.nn.tensors import to_numpy


def all_codes(codes: Any, n_attributes: int) -> Any:
    """Codes of all rows: an array as it is, or the last parts of batches put together."""
    if hasattr(codes, "shape") or (isinstance(codes, list) and not _holds_batches(codes)):
        return codes
    if not isinstance(codes, Iterable):
        raise InputError(f"codes is {codes!r}: pass the codes of all training rows (n, {n_attributes}), or a loader")
    parts = []
    for batch in codes:
        last = to_numpy(_last(batch), "codes")
        array = isinstance(last, np.ndarray)
        if not array or last.dtype.kind not in "iu" or last.shape[1:] != (n_attributes,):
            found = f" but in {last.dtype} {last.shape}" if array else f" but in {an(type(last).__name__)}"
            raise InputError(
                f"a batch does not end in integer codes (b, {n_attributes}){found}: pass batches such as "
                "(inputs, codes)"
            )
        parts.append(last)
    return np.concatenate(parts) if parts else np.zeros((0, 0))


def _holds_batches(codes: list[Any]) -> bool:
    """Whether a list has batches, tensors of codes or tuples that end in one, and not the codes of single rows."""
    return bool(codes) and getattr(_last(codes[0]), "ndim", 0) >= 2


def _last(batch: Any) -> Any:
    """The last part of a batch that has parts."""
    if isinstance(batch, tuple | list):
        return batch[-1] if batch else None
    return batch
