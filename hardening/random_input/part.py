"""Hypothesis drives the public API from random input: a right result or one clear sentence, whatever comes in."""

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

import compshift as cs
from hardening.chance import SEED
from hardening.random_input.strategies import ODD, labels, matrices, parameter
from hardening.tally import Tally

EXAMPLES = {"fits": 800, "spaces": 1000, "hulls": 1000, "reports": 1000}


def run() -> list[Tally]:
    """Each property on its number of examples."""
    tallies = []
    for name, drive in (("fits", fits), ("spaces", spaces), ("hulls", hulls), ("reports", reports)):
        tally = Tally(f"random input: {name}", "inputs")
        drive(tally)
        tallies.append(tally)
    return tallies


def _examples(name: str) -> Callable[[Any], Any]:
    """So many examples, the same in every run of the same seed."""
    quiet = settings(
        max_examples=EXAMPLES[name],
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    return lambda function: seed(SEED)(quiet(function))


def _attempt(tally: Tally, label: str, call: Callable[[], Any]) -> Any:
    """An attempt in which NumPy's warnings of numbers that went astray count as errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", RuntimeWarning)
        return tally.attempt(label[:300], call)


def fits(tally: Tally) -> None:
    """Estimators of all kinds, fitted to random rows and asked everything."""
    quick = {"max_iter": parameter(1, 30), "tol": parameter(1e-3, 1e-6)}
    kinds: dict[str, dict[str, Any]] = {
        "CRMClassifier": {
            **quick, "alpha": parameter(1e-3, 1.0, 0.0, 1e-30), "prior": parameter("uniform", "hull", "train"),
            "bias": parameter("extrapolated", "learned", "cumulant", "shrunk"), "anchor": parameter("zero", "gaussian"),
            "cross_fit": parameter(False, True, 2), "support": parameter("all", "hull"),
            "unseen_offset": parameter(0.0, 1.0),
        },
        "LogitAdjustedClassifier": {**quick, "adjustment": parameter("none", "lc", "sla"), "tau": parameter(1.0, 0.0)},
        "AdditiveGaussian": {**quick, "covariance": parameter("shared", "per-value")},
        "AffineExtrapolation": {"estimator": parameter(LogisticRegression(max_iter=20)), "cv": parameter(2)},
    }  # fmt: skip

    @_examples("fits")
    @given(st.data())
    def drive(data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(kinds)))
        n = data.draw(st.integers(4, 25))
        odd = data.draw(st.sampled_from(["nothing", "nothing", "X", "y", "attributes", "sample_weight", "options"]))
        chosen = data.draw(st.sets(st.sampled_from(sorted(kinds[name])), min_size=odd == "options", max_size=2))
        options = {key: data.draw(kinds[name][key][odd == "options"]) for key in sorted(chosen)}
        if name == "AffineExtrapolation":
            options.setdefault("estimator", LogisticRegression(max_iter=20))
        X, y = data.draw(matrices(n, odd=odd == "X")), data.draw(labels(n, odd=odd == "y"))
        more: dict[str, Any] = {"attributes": data.draw(labels(n, odd=odd == "attributes"))}
        if odd == "sample_weight" or data.draw(st.booleans()):
            rows = st.lists(st.floats(0, 3), min_size=n, max_size=n)
            more["sample_weight"] = data.draw(ODD if odd == "sample_weight" else rows)
        label = f"{name}({options}).fit(X={X!r}, y={y!r}, {more})"
        clf = _attempt(tally, label, lambda: getattr(cs, name)(**options).fit(X, y, **more))
        if clf is not None:
            _attempt(tally, f"then predict_proba: {label}", lambda: _sound(clf, X))
            other = data.draw(matrices(3, odd=True))
            _attempt(tally, f"then predict_proba({other!r}): {label}", lambda: _probabilities(clf, other))

    drive()


def _sound(clf: Any, X: Any) -> None:
    """What a fitted classifier says of its own rows is sound, and the same once it was saved."""
    _probabilities(clf, X)
    predicted = np.asarray(clf.predict(X))
    assert len(predicted) == len(X)
    for method in ("explain", "predict_group", "group_log_proba"):
        if hasattr(clf, method):
            getattr(clf, method)(X)
    if hasattr(clf, "save"):
        clf.group_frame()
        with tempfile.TemporaryDirectory() as folder:
            clf.save(Path(folder) / "m.safetensors")
            assert np.array_equal(np.asarray(cs.load(Path(folder) / "m.safetensors").predict(X)), predicted)


def _probabilities(clf: Any, X: Any) -> None:
    """Probabilities, those of groups too, are finite and sum to 1."""
    found = clf.predict_proba(X)
    parts = found if isinstance(found, list) else [found]
    if hasattr(clf, "group_log_proba"):
        parts = [*parts, np.exp(clf.group_log_proba(X))]
    for part in parts:
        assert np.isfinite(part).all(), "probabilities that are not finite"
        assert np.allclose(part.sum(axis=1), 1, rtol=0, atol=1e-9), "probabilities that do not sum to 1"


def spaces(tally: Tally) -> None:
    """Tables of values to codes and back."""
    pairs = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.sampled_from([0, 1, 2])), min_size=1, max_size=5)
    good = st.one_of(pairs, labels(6))
    bad = st.one_of(ODD, labels(6, odd=True), st.lists(st.tuples(ODD, ODD), max_size=4))

    @_examples("spaces")
    @given(st.data())
    def drive(data: st.DataObject) -> None:
        odd = data.draw(st.sampled_from(["nothing", "nothing", "table", "names"]))
        table = data.draw(bad if odd == "table" else good)
        names = data.draw(ODD) if odd == "names" else None

        def round_trip() -> None:
            space = cs.GroupSpace.from_table(table, names=names)
            codes = space.encode(table)
            assert (space.codes(space.index(codes)) == codes).all()
            assert (space.one_hot(codes).sum(axis=1) == len(space.names)).all()
            assert (space.encode(space.frame(codes)) == codes).all()

        _attempt(tally, f"GroupSpace.from_table({table!r}, names={names!r})", round_trip)

    drive()


def hulls(tally: Tally) -> None:
    """Membership, weights, certificates and plans of random groups."""

    @_examples("hulls")
    @given(st.data())
    def drive(data: st.DataObject) -> None:
        odd = data.draw(st.sampled_from(["nothing", "nothing", "sizes", "observed", "query", "plan"]))
        usual = st.one_of(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.just([7] * 30))
        sizes = data.draw(ODD if odd == "sizes" else usual)
        observed = data.draw(ODD if odd == "observed" else _codes(sizes))
        query = data.draw(ODD if odd == "query" else _codes(sizes))
        arguments = st.sampled_from(["cost", "target", "forbidden", "candidates"])
        options = data.draw(st.dictionaries(arguments, ODD, max_size=1)) if odd == "plan" else {}

        def ask() -> None:
            hull = cs.AffineHull(cs.GroupSpace.from_cardinalities(sizes), observed)
            inside = hull.contains(query)
            for code, known in zip(np.atleast_2d(query), inside, strict=False):
                _explained(hull, code, known)
            planned = hull.plan(**options)
            if not options:
                assert cs.AffineHull(hull.space, np.concatenate([hull.observed, planned])).is_complete

        _attempt(tally, f"AffineHull({sizes!r}, {observed!r}), {query!r}, plan({options})", ask)

    drive()


def _codes(sizes: Any) -> st.SearchStrategy[Any]:
    """Codes of groups, most of them within the sizes."""
    if not isinstance(sizes, list) or not all(isinstance(size, int) and size > 0 for size in sizes):
        return ODD
    return st.lists(st.tuples(*(st.integers(0, size - 1) for size in sizes)), max_size=6)


def _explained(hull: Any, code: Any, inside: Any) -> None:
    """Weights that give the code, or a certificate that tells it from every seen one."""
    hull.explain(code)
    row = hull.space.one_hot(code)[0]
    seen = hull.space.one_hot(hull.observed)
    if inside:
        assert np.allclose(hull.weights(code).astype(float) @ seen, row)
    else:
        vector = hull.certificate(code).astype(float)
        assert not np.any(seen @ vector)
        assert row @ vector != 0


def reports(tally: Tally) -> None:
    """Accuracy by group."""

    @_examples("reports")
    @given(st.data())
    def drive(data: st.DataObject) -> None:
        n = data.draw(st.integers(1, 8))
        odd = data.draw(st.integers(0, 5))
        given_rows = [data.draw(labels(n, odd=odd == part)) for part in range(3)]

        def report() -> None:
            found = cs.metrics.group_report(*given_rows)
            assert 0 <= found.worst <= found.balanced <= 1
            assert found.worst <= found.average <= 1
            found.to_dict(), found.to_frame(), str(found)

        _attempt(tally, f"group_report(*{given_rows!r})", report)

    drive()
