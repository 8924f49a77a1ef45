"""Transforms of features, which a model applies to each row before anything else, in its fit and in predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from compshift.core.arrays import FloatArray

if TYPE_CHECKING:
    from compshift.crm.inputs import LabelledSamples

TRANSFORMS = ("none", "signed_root", "unit_length")
"""Names of the transforms. ``CRMClassifierCV`` keeps the first unless another is clearly better."""


def signed_root(X: FloatArray) -> FloatArray:
    r"""Return the signed square root of features (n, p): :math:`x \mapsto \mathrm{sign}(x) \sqrt{|x|}`."""
    return np.asarray(np.sign(X) * np.sqrt(np.abs(X)))


def unit_length(X: FloatArray) -> FloatArray:
    r"""Return features (n, p) with rows of length 1: :math:`x \mapsto x / \lVert x \rVert_2`; rows of zeros stay zero.

    Rows are first divided by their largest absolute value, so that squares neither overflow nor underflow.
    """
    largest = np.abs(X).max(axis=1, keepdims=True)  # (n, 1)
    scaled = X / np.where(largest > 0, largest, 1.0)
    length = np.sqrt(np.einsum("ij,ij->i", scaled, scaled))[:, None]  # (n, 1), at least 1 unless the row is zero
    return np.asarray(scaled / np.where(length > 0, length, 1.0))


def transformed(X: FloatArray, transform: str) -> FloatArray:
    """Return features (n, p) after one of ``TRANSFORMS``; ``X`` itself for ``"none"``."""
    if transform == "none":
        return X
    return signed_root(X) if transform == "signed_root" else unit_length(X)


def transformed_samples(data: LabelledSamples, transform: str) -> LabelledSamples:
    """Return training samples, complete and incomplete ones, with transformed features."""
    if transform == "none":
        return data
    incomplete = data.incomplete
    if incomplete is not None:
        incomplete = incomplete._replace(X=transformed(incomplete.X, transform))
    return data._replace(X=transformed(data.X, transform), incomplete=incomplete)
