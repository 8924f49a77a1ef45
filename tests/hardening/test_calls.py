"""Every public callable with odd arguments: a right result or one clear sentence, and no argument is changed."""

import contextlib
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

import compshift as cs
from tests.hardening import calls
from tests.hardening.calls import BIRD, CODES, ESTIMATORS, PLACE, SEEN, X
from tests.hardening.strategies import ANYTHING, FLOATS, objects, random_values
from tests.hardening.verdicts import SEED, SHARE, Tally, differs_from, has_nan, no_probabilities, share

RANDOM_VALUES = 12  # per parameter
SLOW = ("training.train", "features.", "diagnose", "CRMClassifierCV", "AffineExtrapolation")


@pytest.mark.parametrize("name", calls.call_names())
def test_odd_arguments(name: str, tally: Tally) -> None:
    call = calls.make_call(name)

    def use(arguments: Mapping[str, Any]) -> Any:
        return calls.outcome(call.function(**arguments), arguments)

    with strict_numbers():
        before = _snapshot(call.good)
        expected = use(call.good)
        assert has_nan(expected) is None
        if _snapshot(call.good) != before:
            tally.fail("wrong result", f"{name}: an argument was changed")
        for parameter, good in call.good.items():
            for odd in share(calls.odd_values(name, parameter, good)):
                check = differs_from(expected) if odd.same else has_nan
                attempt(tally, f"{name}, {parameter}: {odd.label}", use, {**call.good, parameter: odd.value}, check)

            if parameter.startswith("entry"):
                continue  # part of a state that was valid before
            odd_examples(RANDOM_VALUES // (4 if name.startswith(SLOW) else 1), random_values(good))(
                lambda value, parameter=parameter: attempt(
                    tally, f"{name}, {parameter}: {value!r:.200}", use, {**call.good, parameter: value}, has_nan
                )
            )


def test_no_public_callable_is_forgotten() -> None:
    names = [name for name, _ in calls.public_callables()]
    assert not [known for known in calls.NO_INPUT if not any(calls.re.fullmatch(known, name) for name in names)]


def attempt(tally: Tally, label: str, use: Callable[[Any], Any], arguments: Mapping[str, Any], check: Any) -> None:
    """Count one call, and a failure if it changes an argument."""
    before = _snapshot(arguments)
    tally.attempt(label, lambda: use(arguments), check)
    if _snapshot(arguments) != before:
        tally.fail("wrong result", f"{label}: the argument was changed")


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


def odd_examples(number: int, values: st.SearchStrategy[Any]) -> Callable[[Callable[[Any], None]], None]:
    """Return a function that calls another one with this many random values."""

    def drive(function: Callable[[Any], None]) -> None:
        examples(number)(given(values)(lambda value: function(value)))()

    return drive


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
        for label, (features, y, attributes) in share(sets.items()):
            clf = getattr(cs, name)(**ESTIMATORS[name])
            tally.attempt(
                f"{name}, {label}",
                lambda clf=clf, data=(features, y, attributes): clf.fit(*data[:2], attributes=data[2]),
                lambda clf, features=features: probabilities_problem(clf, features),
            )


def probabilities_problem(clf: Any, features: Any) -> str | None:
    """Complain about probabilities of classes or groups that are not finite or do not sum to 1."""
    found = clf.predict_proba(features)
    parts = found if isinstance(found, list) else [found]
    if hasattr(clf, "group_log_proba"):
        parts = [*parts, np.exp(clf.group_log_proba(features))]
    return next((problem for part in parts if (problem := no_probabilities(part, 1e-6))), None)


VALUES: list[list[Any]] = [["a", "b"], ["a", "b", "c"], [0, 1], [0, 1, 2], [True, False], ["a", "b", "c", "d"]]
ODD_VALUES: list[list[Any]] = [
    *([0.0, 1.0, 0.5], ["a"], ["a", None], ["a", 1], [1, float("nan")], [2**70, 1], [b"a", b"b"], [(1, 2), (3,)])
]
OPTIONS: dict[str, dict[str, list[Any]]] = {
    "CRMClassifier": {
        "max_iter": [1, 30], "tol": [1e-3, 1e-6], "alpha": [1e-3, 1.0, 0.0, 1e-30], "cross_fit": [False, True, 2],
        "prior": ["uniform", "hull", "train"], "bias": ["extrapolated", "learned", "cumulant", "shrunk"],
        "anchor": ["zero", "gaussian"], "support": ["all", "hull"], "unseen_offset": [0.0, 1.0],
    },
    "LogitAdjustedClassifier": {"max_iter": [1, 30], "adjustment": ["none", "lc", "sla"], "tau": [1.0, 0.0]},
    "AdditiveGaussian": {"max_iter": [1, 30], "covariance": ["shared", "per-value"]},
    "AffineExtrapolation": {"cv": [2]},
}  # fmt: skip


@st.composite
def features(draw: st.DrawFn, n: int, *, odd: bool = False) -> Any:
    """Features of n samples; odd ones may be anything."""
    if odd and draw(st.booleans()):
        return draw(ANYTHING)
    shape = (draw(st.integers(0, n + 1)) if odd else n, draw(st.sampled_from([0, 1, 2, 40] if odd else [1, 2, 3, 5])))
    cells = st.lists(FLOATS if odd else st.floats(-3, 3), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1])
    found = np.array(draw(cells), dtype=float).reshape(shape)
    kind = draw(st.sampled_from(["f8", "f8", "f4", "f2", "i4", "u1", "?", "O", "frame", "lists"]))
    with np.errstate(all="ignore"):
        if kind == "frame":
            return pd.DataFrame(found, columns=[f"f{j}" for j in range(shape[1])])
        return found.tolist() if kind == "lists" else found.astype(kind)


@st.composite
def labels(draw: st.DrawFn, n: int, *, odd: bool = False) -> Any:
    """Labels of n samples in some container; odd ones may be anything."""
    if odd and draw(st.booleans()):
        return draw(ANYTHING)
    size = draw(st.integers(0, n + 1)) if odd else n
    values = st.sampled_from(draw(st.sampled_from(ODD_VALUES if odd else VALUES)))
    found = draw(st.lists(values, min_size=size, max_size=size))
    form = draw(st.sampled_from(["list", "texts", "series", "objects", "column", "categorical"]))
    array = objects(found)
    if form == "categorical":
        with contextlib.suppress(TypeError, ValueError):
            return pd.Categorical(found)
    forms: dict[str, Any] = {
        "column": [[value] for value in found],
        "texts": np.array([str(value) for value in found]),
        "objects": array,
    }
    forms["series"] = pd.Series(found, dtype=object, name=draw(st.sampled_from([None, "y", "a", 3])))
    return forms.get(form, found)


@pytest.mark.parametrize("name", OPTIONS)
def test_random_fits(name: str, tally: Tally) -> None:
    @examples(200)
    @given(st.data())
    def drive(data: st.DataObject) -> None:
        n = data.draw(st.integers(4, 25))
        odd = data.draw(st.sampled_from(["nothing", "nothing", "X", "y", "attributes", "sample_weight", "options"]))
        keys = st.sets(st.sampled_from(sorted(OPTIONS[name])), min_size=odd == "options", max_size=2)
        values = {key: ANYTHING if odd == "options" else st.sampled_from(OPTIONS[name][key]) for key in OPTIONS[name]}
        options = {key: data.draw(values[key]) for key in sorted(data.draw(keys))}
        if name == "AffineExtrapolation":
            options |= {"estimator": LogisticRegression(max_iter=20)}
        X, y = data.draw(features(n, odd=odd == "X")), data.draw(labels(n, odd=odd == "y"))
        more: dict[str, Any] = {"attributes": data.draw(labels(n, odd=odd == "attributes"))}
        if odd == "sample_weight" or data.draw(st.booleans()):
            weights = st.lists(st.floats(0, 3), min_size=n, max_size=n)
            more["sample_weight"] = data.draw(ANYTHING if odd == "sample_weight" else weights)
        label = f"{name}({options}).fit(X={X!r}, y={y!r}, {more})"[:300]
        with strict_numbers():
            clf = tally.attempt(label, lambda: getattr(cs, name)(**options).fit(X, y, **more))
            if clf is not None:
                tally.attempt(f"queries: {label}", lambda: _query(clf, X))
                other = data.draw(features(3, odd=True))
                tally.attempt(f"{other!r}: {label}", lambda: clf, lambda c: probabilities_problem(c, other))

    drive()


def _query(clf: Any, X: Any) -> None:
    """Ask a fitted classifier everything; a saved copy must predict the same."""
    assert probabilities_problem(clf, X) is None
    predicted = np.asarray(clf.predict(X))
    for method in ("explain", "predict_group", "group_log_proba"):
        if hasattr(clf, method):
            getattr(clf, method)(X)
    if hasattr(clf, "save"):
        clf.group_frame()
        with tempfile.TemporaryDirectory() as folder:
            clf.save(Path(folder) / "m.safetensors")
            assert np.array_equal(np.asarray(cs.load(Path(folder) / "m.safetensors").predict(X)), predicted)


def test_random_tables(tally: Tally) -> None:
    pairs = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.sampled_from([0, 1, 2])), min_size=1, max_size=5)
    tables = pairs | labels(6) | ANYTHING | labels(6, odd=True) | st.lists(st.tuples(ANYTHING, ANYTHING), max_size=4)

    @examples(1000)
    @given(tables, st.none() | st.none() | ANYTHING)
    def drive(table: Any, names: Any) -> None:
        def round_trip() -> None:
            space = cs.GroupSpace.from_table(table, names=names)
            codes = space.encode(table)
            assert (space.codes(space.index(codes)) == codes).all()
            assert (space.one_hot(codes).sum(axis=1) == len(space.names)).all()
            assert (space.encode(space.frame(codes)) == codes).all()

        with strict_numbers():
            tally.attempt(f"GroupSpace.from_table({table!r:.200}, names={names!r:.50})", round_trip)

    drive()


def test_random_hulls(tally: Tally) -> None:
    @examples(1000)
    @given(st.data())
    def drive(data: st.DataObject) -> None:
        odd = data.draw(st.sampled_from(["nothing", "nothing", "sizes", "observed", "query", "plan"]))
        usual = st.lists(st.integers(1, 4), min_size=1, max_size=4) | st.just([7] * 30)
        sizes = data.draw(ANYTHING if odd == "sizes" else usual)
        good = isinstance(sizes, list) and all(type(size) is int and size > 0 for size in sizes)
        rows = st.lists(st.tuples(*(st.integers(0, size - 1) for size in sizes)), max_size=6) if good else ANYTHING
        observed, query = (data.draw(ANYTHING if odd == part else rows) for part in ("observed", "query"))
        arguments = st.sampled_from(["cost", "target", "forbidden", "candidates"])
        options = data.draw(st.dictionaries(arguments, ANYTHING, max_size=1)) if odd == "plan" else {}

        def ask() -> None:
            hull = cs.AffineHull(cs.GroupSpace.from_cardinalities(sizes), observed)
            seen = hull.space.one_hot(hull.observed)
            for code, inside in zip(np.atleast_2d(query), hull.contains(query), strict=False):
                hull.explain(code)
                row = hull.space.one_hot(code)[0]
                if inside:
                    assert np.allclose(hull.weights(code).astype(float) @ seen, row)
                else:
                    vector = hull.certificate(code).astype(float)
                    assert not np.any(seen @ vector)
                    assert row @ vector != 0
            planned = hull.plan(**options)
            if not options:
                assert cs.AffineHull(hull.space, np.concatenate([hull.observed, planned])).is_complete

        with strict_numbers():
            tally.attempt(f"AffineHull({sizes!r:.80}, {observed!r:.80}), {query!r:.80}, plan({options!r:.80})", ask)

    drive()


def test_random_reports(tally: Tally) -> None:
    @examples(1000)
    @given(st.data())
    def drive(data: st.DataObject) -> None:
        n, odd = data.draw(st.integers(1, 8)), data.draw(st.integers(0, 5))
        columns = [data.draw(labels(n, odd=odd == part)) for part in range(3)]

        def report() -> None:
            found = cs.metrics.group_report(*columns)
            assert 0 <= found.worst <= found.balanced <= 1
            assert found.worst <= found.average <= 1
            found.to_dict(), found.to_frame(), str(found)

        with strict_numbers():
            tally.attempt(f"group_report(*{columns!r:.250})", report)

    drive()
