"""Energies that Gaussians with additive means and one covariance have: where a ridge may pull instead of to zero."""

import numpy as np

from compshift._errors import InputError
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.energy import GroupTable
from compshift.estimators.gaussian_fit import fit_shared


def gaussian_energies(
    features: FloatArray, position: IntArray, sample_weight: FloatArray, seen: GroupTable
) -> FloatArray:
    r"""Weights (D, p) of the linear energies of x | z ~ N(Σ_i μ_{i, z_i}, C); 0 if nothing varies within groups.

    .. math:: -\log p(x|z) = -\langle \sigma(z), M C^{-1} x \rangle + \ldots

    ``sample_weight`` (n,) sums to 1.
    """
    try:
        model, _ = fit_shared(features, position, sample_weight * len(features), seen.space, seen.codes, None)
    except InputError:
        return np.zeros((seen.space.width, features.shape[1]))
    return np.asarray(-np.linalg.solve(model.covariance, model.value_means.T).T)
