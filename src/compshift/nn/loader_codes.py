"""Codes of training rows, from arrays or from the batches of a loader."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from compshift._errors import InputError


def all_codes(codes: Any) -> Any:
    """Codes of all rows: an array as it is, or the last parts of batches put together."""
    if hasattr(codes, "shape") or (isinstance(codes, list) and not _holds_batches(codes)):
        return codes
    parts = []
    for batch in codes:
        last = to_numpy(batch[-1] if isinstance(batch, tuple | list) else batch)
        if getattr(last, "ndim", 0) != 2 or last.dtype.kind not in "iu":
            raise InputError("a batch does not end in integer codes (b, m): pass batches such as (inputs, codes)")
        parts.append(last)
    return np.concatenate(parts) if parts else np.zeros((0, 0))


def _holds_batches(codes: list[Any]) -> bool:
    """Whether a list has batches, tensors of codes or tuples that end in one, and not the codes of single rows."""
    last = codes[0][-1] if codes and isinstance(codes[0], tuple | list) else codes[0] if codes else None
    return getattr(last, "ndim", 0) == 2


def to_numpy(values: Any) -> Any:
    """A tensor as an array; anything else as it is."""
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else values
