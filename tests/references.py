"""The paper's equations, written out as loops over samples, groups and attributes. Slow, and easy to check by eye."""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest


def log_sum_exp(values: Sequence[float]) -> float:
    """log Σ exp(v)."""
    finite = [value for value in values if value > -math.inf]
    if not finite:
        return -math.inf
    top = max(finite)
    return top + math.log(math.fsum(math.exp(value - top) for value in finite))


def group_energy(energies: Sequence[float], cardinalities: Sequence[int], code: Sequence[int]) -> float:
    """⟨σ(z), E(x)⟩ of one sample and one group."""
    total, offset = 0.0, 0
    for cardinality, value in zip(cardinalities, code, strict=True):
        total += energies[offset + value]
        offset += cardinality
    return total


def log_evidence(energies, cardinalities, seen, log_score):
    """c(x) of one sample."""
    return log_sum_exp(
        [score - group_energy(energies, cardinalities, z) for z, score in zip(seen, log_score, strict=True)]
    )


def step_one_log_probability(energies, cardinalities, seen, log_score, which):
    """log p̃(z|x) of one sample and one seen group."""
    logit = log_score[which] - group_energy(energies, cardinalities, seen[which])
    return logit - log_evidence(energies, cardinalities, seen, log_score)


def extrapolated_bias(energies, cardinalities, seen, log_score, group, weights):
    """B*(z) and the effective sample size of one group."""
    logs = []
    for row, weight in zip(energies, weights, strict=True):
        c = log_evidence(row, cardinalities, seen, log_score)
        logs.append(math.log(weight) - group_energy(row, cardinalities, group) - c)
    bias = log_sum_exp(logs) - math.log(math.fsum(weights))
    return bias, math.exp(2 * log_sum_exp(logs) - log_sum_exp([2 * value for value in logs]))


def group_log_posterior(energies, cardinalities, groups, log_score):
    """log q̂(z|x) of one sample, for every candidate group."""
    logits = [score - group_energy(energies, cardinalities, z) for z, score in zip(groups, log_score, strict=True)]
    total = log_sum_exp(logits)
    return [logit - total for logit in logits]


def marginal_log_posterior(energies, cardinalities, groups, log_score, attribute):
    """log q̂(z_i|x) of one sample, for every value of attribute i."""
    joint = group_log_posterior(energies, cardinalities, groups, log_score)
    return [
        log_sum_exp([value for value, z in zip(joint, groups, strict=True) if z[attribute] == wanted])
        for wanted in range(cardinalities[attribute])
    ]


def weighted_p_value(scores, log_weights, score, log_weight):
    """p-value of one new score among known scores with weights."""
    top = max(*log_weights, log_weight)
    weights = [math.exp(value - top) for value in log_weights]
    own = math.exp(log_weight - top)
    above = math.fsum(weight for weight, known in zip(weights, scores, strict=True) if known >= score)
    return (above + own) / (math.fsum(weights) + own)


def one_hot(cardinalities, code):
    """σ(z) as a list of whole numbers."""
    row = []
    for cardinality, value in zip(cardinalities, code, strict=True):
        row += [int(position == value) for position in range(cardinality)]
    return row


def rational_rank(rows):
    """Rank by Gaussian elimination in fractions."""
    rows = [[Fraction(value) for value in row] for row in rows]
    rank = 0
    for column in range(len(rows[0]) if rows else 0):
        pivot = next((r for r in range(rank, len(rows)) if rows[r][column]), None)
        if pivot is None:
            continue
        rows[rank], rows[pivot] = rows[pivot], rows[rank]
        for r in range(rank + 1, len(rows)):
            factor = rows[r][column] / rows[rank][column]
            if factor:
                rows[r] = [a - factor * b for a, b in zip(rows[r], rows[rank], strict=True)]
        rank += 1
    return rank


def in_hull(cardinalities, seen, code):
    """Whether σ(z) leaves the rank of the seen codes unchanged."""
    rows = [one_hot(cardinalities, z) for z in seen]
    return rational_rank(rows) == rational_rank([*rows, one_hot(cardinalities, code)])


def random_problem(rng: np.random.Generator, cardinalities: Sequence[int], n: int = 30, spread: float = 3.0):
    """Energies, a random subset of groups as seen, the seen group of each sample, scores and weights."""
    from compshift import GroupSpace

    space = GroupSpace.from_cardinalities(cardinalities)
    k = max(2, int(0.6 * space.n_groups))
    seen = space.codes(np.sort(rng.choice(space.n_groups, size=k, replace=False)))
    return {
        "space": space,
        "energies": rng.normal(size=(n, space.width)) * spread,
        "seen": seen,
        "position": rng.integers(0, k, size=n),
        "log_score": rng.normal(size=k),
        "weight": rng.uniform(0.5, 2.0, size=n),
    }


def convert(library, *arrays):
    """Return arrays as those of "numpy" or "torch"; skip the test if torch is not installed."""
    if library == "numpy":
        return arrays
    torch = pytest.importorskip("torch")
    return tuple(torch.tensor(array) for array in arrays)


def same_kind(result, library):
    """Check that a result is an array of this library and return it as a NumPy array."""
    assert type(result).__module__.split(".")[0] == library
    return np.asarray(result)


def every_group(space):
    """Return the codes of all groups of a space."""
    return space.codes(np.arange(space.n_groups))
