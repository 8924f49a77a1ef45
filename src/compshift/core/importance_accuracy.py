"""What a model itself expects to get right on a group, seen or not."""

from __future__ import annotations

import numpy as np

from compshift.core.arrays import FloatArray, IntArray, row_blocks
from compshift.core.energy import group_energies
from compshift.core.groups import GroupSpace
from compshift.core.logspace import logsumexp, safe_log


def importance_accuracy(
    space: GroupSpace,
    groups: IntArray,
    energies: FloatArray,
    log_evidence: FloatArray,
    sample_weight: FloatArray,
    log_marginals: list[FloatArray],
) -> FloatArray:
    r"""Mean probability of the right targets on each of the groups (g, m), over training samples weighted to be it.

    .. math:: a(z) = \frac{\sum_x \omega_x w_x(z) \, \hat q(y_z | x)}{\sum_x \omega_x w_x(z)}, \qquad
        w_x(z) = \exp(-\langle \sigma(z), E(x) \rangle - c(x))

    The weights are those of B*, by which p(x) becomes the model's p(x|z). ``energies`` (n, D), ``log_evidence`` (n,)
    and ``log_marginals``, log q̂ of each target's values (n, d_i), are those of the training samples. It is the model's
    own opinion: right if the model is, and comparable between groups where it is not.
    """
    n = len(energies)
    log_sample = safe_log(sample_weight) - log_evidence  # (n,)
    result = np.empty(len(groups))
    for part in row_blocks(len(groups), n):
        codes = groups[part]
        log_weight = log_sample[:, None] - group_energies(energies, space, codes)  # (n, q)
        log_right = sum(marginal[:, codes[:, target]] for target, marginal in enumerate(log_marginals))
        result[part] = np.exp(logsumexp(log_weight + log_right, axis=0) - logsumexp(log_weight, axis=0))
    return result
