"""Numerical faults with every estimator: finite, right where the answer is known, and reported."""

import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small matrices, many fits

import numpy as np

from hardening.numerics.core import core_attempts
from hardening.numerics.estimators import MAKERS, Answer, fit, further
from hardening.numerics.faults import Fault, make_faults
from hardening.share import some
from hardening.tally import Tally

TOLERANCE = 2e-3
"""By which probabilities may differ where they should be the same; the fits stop at a gradient of 1e-6."""

BY_BASE = {"features times 2^996", "features times 2^-996", "a constant of 1e300", "an outlier of 1e300"}
"""Beyond what scikit-learn's StandardScaler can square: nothing that builds on it can answer."""

SLOW = {
    "CRM, gaussian anchor",
    "Gaussian, shared",
    "Gaussian, per value",
    "CRM, tiny ridge",
    "CRM, cross-fitted",
    "CRM CV",
    "CRM, auto bias",
    "CRM, auto anchor",
    "CRM, offset chosen",
}
WIDE = 1000
"""With more features than this, estimators that fit many times are left out."""

UNLIKE = {
    **dict.fromkeys(("weights of 1e300", "weights of 1e-300"), ("sla", "Gaussian")),  # which take weights for counts
    "duplicated features": ("affine", "Gaussian", "CV", "auto", "gaussian", "chosen"),
    "constant features too": ("affine", "Gaussian", "CV", "auto", "gaussian", "chosen"),
}
"""Whose penalty is not a ridge, or is chosen: they need not give the same for features that say nothing new."""


def run() -> Iterator[Tally]:
    """Fits, everything else that is done with data, and the functions of the core."""
    faults = make_faults()
    fits = Tally("numerics: fits", "inputs")
    others = Tally("numerics: other uses", "inputs")
    for label, fault in some(faults.items()):
        wide = fault.X.shape[1] > WIDE
        for name in MAKERS:
            if not (wide and name in SLOW) and not (label in BY_BASE and "affine" in name):
                fits.attempt(f"{label}, {name}", lambda f=fault, n=name: fit(n, f), _check(label, fault, name))
        for name, call in further(fault):
            if not (wide and name == "diagnose"):
                others.attempt(f"{label}, {name}", call, unlike_probabilities)
    core = Tally("numerics: core", "inputs")
    for label, call, check in core_attempts():
        core.attempt(label, call, check)
    yield from (fits, others, core)


def _check(label: str, fault: Fault, name: str) -> Callable[[Answer], str | None]:
    """What is wrong with an answer."""

    def check(answer: Answer) -> str | None:
        found = unlike_probabilities(answer.probabilities)
        if found is None and answer.groups is not None:
            found = unlike_probabilities(answer.groups)
        return found or _unlike_known(label, fault, name, answer) or _unreported(answer)

    return check


def unlike_probabilities(values: Any) -> str | None:
    """Whether rows of numbers are no probabilities."""
    array = np.asarray(values, dtype=np.float64)
    if not np.isfinite(array).all():
        return f"{int((~np.isfinite(array)).sum())} of {array.size} numbers are not finite"
    if array.ndim == 2 and np.abs(array.sum(axis=1) - 1).max() > 1e-5:
        return f"probabilities sum to {array.sum(axis=1).min():.6g} to {array.sum(axis=1).max():.6g}"
    return None


def _unlike_known(label: str, fault: Fault, name: str, answer: Answer) -> str | None:
    """How far the answer is from the one that is known."""
    if fault.known == "indifferent" and np.ptp(answer.probabilities, axis=0).max() > 1e-9:
        return f"rows that are all alike are predicted differently, by {np.ptp(answer.probabilities, axis=0).max():.2g}"
    if fault.known == "accurate":
        right = float((answer.clf.predict(fault.queries) == fault.y[:40]).mean())
        return None if right > 0.97 else f"{right:.2f} of separable rows are predicted right"
    if fault.known != "same" or any(word in name for word in UNLIKE.get(label, ())):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = fit(name, fault, fault.like, 1 / fault.ridge).probabilities
    gap = float(np.abs(answer.probabilities - expected).max())
    return None if gap < TOLERANCE else f"probabilities are off by {gap:.2g}"


def _unreported(answer: Answer) -> str | None:
    """Whether something went wrong without a word."""
    if getattr(answer.clf, "converged_", True) is False and not any("Convergence" in text for text in answer.warned):
        return "not converged, and no warning"
    internal = [text for text in answer.warned if text.startswith("RuntimeWarning")]
    return f"a warning from the inside: {internal[0][:150]}" if internal else None
