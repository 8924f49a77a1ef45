"""Energies that Gaussians with additive means and one covariance have: where a ridge may pull instead of to zero."""

import numpy as np

from compshift._errors import InputError
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.energy import GroupTable
from compshift.estimators.gaussian_fit import fit_shared
from compshift.estimators.solver import Start


def gaussian_energies(features: FloatArray, position: IntArray, sample_weight: FloatArray, seen: GroupTable) -> Start:
    r"""Weights (D, p) and biases (k,) of the energies of x | z ~ N(μ_z, C), μ_z = Σ_i μ_{i, z_i}.

    .. math:: \log p(x|z) = \langle \sigma(z), M C^{-1} x \rangle - \tfrac12 \mu_z^\top C^{-1} \mu_z + \ldots

    They are 0 if nothing varies within groups.

    ``sample_weight`` (n,) sums to 1.
    """
    try:
        model, _ = fit_shared(features, position, sample_weight * len(features), seen.space, seen.codes, None)
    except InputError:
        return Start(np.zeros((seen.space.width, features.shape[1])), np.zeros(len(seen.codes)))
    weight = np.asarray(-np.linalg.solve(model.covariance, model.value_means.T).T)
    codes = seen.space.one_hot(seen.codes)  # (k, D)
    return Start(weight, -0.5 * np.einsum("kp,kp->k", codes @ weight, codes @ model.value_means))
