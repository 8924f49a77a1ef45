"""Functions of the core with energies from ±1e4 to ±1e8."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import compshift as cs
from compshift.core.arrays import log_softmax, logmatmulexp, logsumexp
from compshift.core.bias import pareto_k

Attempt = tuple[str, Callable[[], Any], Callable[[Any], str | None]]


def core_attempts() -> Iterator[Attempt]:
    """Each function at each size of energies, beside a sum in long doubles."""
    rng = np.random.default_rng(0)
    for size in (1.0, 1e4, 1e8, 1e300):
        a, b = rng.normal(size=(5, 7)) * size, rng.normal(size=(7, 3)) * size
        yield f"logmatmulexp at {size:g}", lambda a=a, b=b: logmatmulexp(a, b), _near(_product(a, b))
        yield f"logsumexp at {size:g}", lambda a=a: logsumexp(a, 1), _near(_sum(a))
        yield f"log_softmax at {size:g}", lambda a=a: log_softmax(a), _near(a - _sum(a)[:, None])
        hole = a.copy()
        hole[2], hole[:, 1] = -np.inf, -np.inf
        yield f"logmatmulexp with -inf at {size:g}", lambda h=hole, b=b: logmatmulexp(h, b), _near(_product(hole, b))
        yield f"logsumexp with -inf at {size:g}", lambda h=hole: logsumexp(h, 1), _near(_sum(hole))
        weights = rng.normal(size=(200, 4)) * size
        yield f"pareto_k at {size:g}", lambda w=weights: pareto_k(w), _no_nan
    for size in (1e4, 1e8):
        for name, energies in {
            "rows": rng.normal(size=(30, 4)) * size,
            "one side": np.abs(rng.normal(size=(30, 4))) * size,
            "far side": -np.abs(rng.normal(size=(30, 4))) * size,
        }.items():
            yield f"a head of energies {size:g} ({name})", lambda e=energies: _head_of(e), _probabilities
    yield "extrapolate_additive at 1e300", _additive, _near(np.array([3e300]))


def _additive() -> Any:
    space = cs.GroupSpace.from_cardinalities([2, 2])
    return cs.extrapolate_additive([[0, 0], [0, 1], [1, 1]], np.array([1e300, 1e300, 3e300]), [[1, 0]], space)


def _head_of(energies: Any) -> Any:
    """Probabilities of a head whose energies are the features themselves, in 64 bits."""
    import torch

    head = cs.nn.AdditiveEnergyHead(4, [2, 2]).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
        first, second = (parameter for parameter in head.parameters() if parameter.shape == (2, 4))
        first.copy_(torch.eye(4, dtype=torch.float64)[:2])
        second.copy_(torch.eye(4, dtype=torch.float64)[2:])
    features = torch.as_tensor(energies)
    codes = torch.as_tensor(np.array([[0, 0], [0, 1], [1, 1]])[np.arange(30) % 3])
    head.set_train_groups(codes)
    found = head.extrapolate([features])
    if not torch.isfinite(torch.as_tensor(np.asarray(found.bias))).all():
        return np.array([[np.nan]])
    head.loss(features, codes).backward()
    return head.log_prob(features).exp().detach().numpy()


def _sum(values: Any) -> Any:
    peak = values.max(axis=1, keepdims=True)
    peak = np.where(np.isfinite(peak), peak, 0)
    with np.errstate(divide="ignore", under="ignore"):
        return (np.log(np.exp((values - peak).astype(np.longdouble)).sum(axis=1)) + peak[:, 0]).astype(np.float64)


def _product(a: Any, b: Any) -> Any:
    return np.stack([_sum(a + b[:, column]) for column in range(b.shape[1])], axis=1)


def _near(expected: Any) -> Callable[[Any], str | None]:
    def check(found: Any) -> str | None:
        array = np.asarray(found, dtype=np.float64)
        if np.allclose(array, expected, rtol=1e-12, atol=1e-9):
            return None
        return f"off by {np.nanmax(np.abs(array - expected)):.3g}, {int(np.isnan(array).sum())} NaN"

    return check


def _no_nan(values: Any) -> str | None:
    return "NaN" if np.isnan(np.asarray(values, dtype=np.float64)).any() else None


def _probabilities(values: Any) -> str | None:
    array = np.asarray(values, dtype=np.float64).reshape(len(values), -1)
    return None if np.isfinite(array).all() and np.allclose(array.sum(axis=1), 1) else "no probabilities"
