"""Every public callable with odd arguments: a right result or one clear sentence, and no argument is changed."""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

import compshift as cs
from tests.hardening import calls
from tests.hardening.calls import BIRD, CODES, ESTIMATORS, PLACE, SEEN, X
from tests.hardening.strategies import random_values
from tests.hardening.verdicts import SEED, SHARE, Tally, differs_from, has_nan, no_probabilities, share

RANDOM_VALUES = 30  # per parameter
SLOW = ("training.train", "features.", "diagnose", "CRMClassifierCV", "AffineExtrapolation")


@pytest.mark.parametrize("name", calls.call_names())
def test_odd_arguments(name: str, tally: Tally) -> None:
    call = calls.make_call(name)

    def use(arguments: Mapping[str, Any]) -> Any:
        return calls.outcome(call.function(**arguments), arguments)

    with strict_numbers():
        expected = use(call.good)
        attempt(tally, name, use, call.good, has_nan)
        for parameter, good in call.good.items():

            def vary(label: str, value: Any, check: Any = has_nan, parameter: str = parameter) -> None:
                attempt(tally, f"{name}, {parameter}: {label}", use, {**call.good, parameter: value}, check)

            for odd in share(calls.odd_values(name, parameter, good)):
                vary(odd.label, odd.value, differs_from(expected) if odd.same else has_nan)
            number = RANDOM_VALUES // (4 if name.startswith(SLOW) else 1)
            examples(number)(given(random_values(good))(lambda value: vary(f"{value!r:.200}", value)))()


def test_no_public_callable_is_forgotten() -> None:
    names = [name for name, _ in calls.public_callables()]
    assert not [known for known in calls.NO_INPUT if not any(calls.re.fullmatch(known, name) for name in names)]


def attempt(tally: Tally, label: str, use: Callable[[Any], Any], arguments: Mapping[str, Any], check: Any) -> None:
    """Count one call, and a failure if it changes an argument."""
    before = _snapshot(arguments)
    tally.attempt(label, lambda: use(arguments), check)
    if _snapshot(arguments) != before:
        tally.fail("wrong result", f"{label}: an argument was changed")


def _snapshot(arguments: Mapping[str, Any]) -> list[bytes]:
    arrays = [value for value in arguments.values() if isinstance(value, np.ndarray)]
    return [array.tobytes() for array in arrays if not array.dtype.hasobject]


@contextlib.contextmanager
def strict_numbers() -> Iterator[None]:
    """Turn NumPy's warnings about overflow and invalid values into errors, and hide all others."""
    with warnings.catch_warnings(action="ignore"):
        warnings.simplefilter("error", RuntimeWarning)
        yield


def examples(number: int) -> Callable[[Any], Any]:
    """Run a property on this many examples, without shrinking: failures are counted, not raised."""
    chosen = settings(
        max_examples=max(1, number // SHARE), deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    return lambda function: seed(SEED)(chosen(function))


def data_sets() -> dict[str, tuple[Any, Any, Any]]:
    """Features, classes and attributes that are odd only together."""
    rng = np.random.default_rng(1)
    many = rng.integers(320, size=(2, 1000))  # 10^5 candidate groups
    singles = [np.flatnonzero((group == CODES).all(axis=1))[0] for group in SEEN]
    return {
        "one sample": (X[:1], BIRD[:1], PLACE[:1]),
        "two samples": (X[:2], BIRD[[0, 20]], PLACE[:2]),
        "one class": (X, np.full(len(X), "a"), PLACE),
        "one group": (X[:5], np.full(5, "a"), np.full(5, "b")),
        "one sample per group": (X[singles], BIRD[singles], PLACE[singles]),
        "attribute equal to the class": (X, BIRD, BIRD),
        "every sample twice": (np.repeat(X, 2, axis=0), np.repeat(BIRD, 2), np.repeat(PLACE, 2)),
        "one sample many times": (np.repeat(X[:1], len(X), axis=0), BIRD, PLACE),
        "separable": (np.eye(3)[CODES[:, 0]], BIRD, PLACE),
        "more features than samples": (rng.normal(size=(len(X), 900)), BIRD, PLACE),
        "10^5 groups": (rng.normal(size=(1000, 3)), *many),
        "twelve attributes": (X, BIRD, rng.integers(2, size=(len(X), 12))),
        "index in another order": (pd.DataFrame(X), BIRD, pd.Series(PLACE)[::-1]),
        "equal attributes": (X, BIRD, np.stack([PLACE, PLACE], axis=1)),
    }


@pytest.mark.parametrize("name", ESTIMATORS)
def test_odd_data_sets(name: str, tally: Tally) -> None:
    sets = data_sets()
    if name in ("CRMClassifierCV", "AffineExtrapolation"):
        del sets["10^5 groups"]  # many fits: minutes
    with strict_numbers():
        for label, (X, y, attributes) in share(sets.items()):
            fit = partial(getattr(cs, name)(**ESTIMATORS[name]).fit, X, y, attributes=attributes)
            tally.attempt(f"{name}, {label}", fit, lambda clf, X=X: probabilities_problem(clf, X))


def probabilities_problem(clf: Any, features: Any) -> str | None:
    """Complain about probabilities of classes or groups that are not finite or do not sum to 1."""
    found = clf.predict_proba(features)
    parts = found if isinstance(found, list) else [found]
    if hasattr(clf, "group_log_proba"):
        parts = [*parts, np.exp(clf.group_log_proba(features))]
    return next((problem for part in parts if (problem := no_probabilities(part, 1e-6))), None)
