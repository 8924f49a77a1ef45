"""Every public callable with odd arguments: a right result or one clear sentence, and no argument is changed."""

import contextlib
import copy
import importlib
import inspect
import math
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from matplotlib import pyplot
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score

import compshift as cs
from compshift.data.dataset import ImageArrays
from tests.hardening import strategies as odd
from tests.hardening.strategies import Odd
from tests.hardening.verdicts import SEED, SHARE, Tally, differs_from, has_nan, share
from tests.public_api import PACKAGES

BIRDS, PLACES = np.array(["duck", "gull", "owl"]), np.array(["lake", "sea", "wood"])
SEEN = np.array([(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 0), (2, 2)])
MISSING = np.array([(0, 2), (2, 1)])
CODES = SEEN[np.arange(84) % len(SEEN)]
BIRD, PLACE = BIRDS[CODES[:, 0]], PLACES[CODES[:, 1]]
ONES = np.ones(len(CODES))
_rng = np.random.default_rng(0)
_moves = _rng.normal(size=(2, 3, 4))
X = (_rng.normal(size=(84, 4)) + _moves[0, CODES[:, 0]] + _moves[1, CODES[:, 1]]).astype("f4").astype("f8")
SPACE = cs.GroupSpace.from_table(np.stack([BIRD, PLACE], axis=1), names=["bird", "place"])
FRAME = pd.DataFrame({"bird": BIRD, "place": PLACE, "f0": X[:, 0], "f1": X[:, 1]}).assign(
    split=["train", "val", "test"] * 28
)
DATA = cs.data.load_table(FRAME, target="bird", attributes="place", features=["f0", "f1"], split="split")
WIDE = cs.data.load_table(
    {"bird": BIRD, "place": PLACE}, target="bird", attributes="place", features=X, split={"train": 0.7, "val": 0.3}
)
ESTIMATORS: dict[str, dict[str, Any]] = {  # with parameters that make a fit quick
    "CRMClassifier": {"max_iter": 100, "cross_fit": 2},
    "CRMClassifierCV": {
        "alphas": [0.1], "cv": cs.CombinationKFold(2), "bias": "extrapolated", "anchor": "zero", "unseen_offset": 0.0,
        "max_iter": 100,
    },
    "CRMBoostingClassifier": {"max_iter": 3, "min_samples_leaf": 2, "n_folds": 2, "n_jobs": 1},
    "LogitAdjustedClassifier": {"max_iter": 100},
    "AdditiveGaussian": {},
    "AffineExtrapolation": {"estimator": LogisticRegression(), "cv": 2, "random_state": 0},
}  # fmt: skip
ROWS = {"X": X, "y": BIRD, "attributes": PLACE, "sample_weight": ONES}
NO_INPUT = {
    r"methods.Method(\..+)?|nn.Backbone(\..+)?|.*\.extra_repr": "written by users, called by the training loop",
    r".*\.set_\w+_request": "scikit-learn's",
    r"GroupSpace.(encode_columns|encode_keys|frame_with|frequencies|from_columns|match|columns_of)": "internal",
    r".*\.(from_model|check_parameters|get_n_splits|group_folds|class_first|rows)": "called with checked values",
    r".*\.(get_extra_state|set_extra_state)": "called by PyTorch",
    r".*\.(last_features|last_weights|centred_learned_bias|log_score|embed|rate|resolved)": "part of another call",
    r"CombinationKFold|data.Scenario|features.Extraction|metrics.GroupReport(\..*)?": "returned by other calls",
    r"Comparison(\..*)?": "returned by compare",
    r"metrics.GroupMetric(\..*)?": "returned by group_metric",
    r"metrics.\w+Display(\..*)?": "made by the plot_… methods; tests/metrics/test_displays.py tries bad input",
    r"hub\..*|.*\.(from_pretrained|push_to_hub)": "calls a server; tests/test_hub.py tries bad input",
    r"mlflow\..*": "calls MLflow; tests/test_mlflow.py tries bad input",
    r"training.TrainedClassifier|ExtrapolationWarning|InputError": "not constructed by users",
}
"""Public names that take no input of a user's own, and why."""


@cache
def folder() -> Path:
    """A folder with one good file of each kind that the calls read."""
    path = Path(tempfile.mkdtemp())
    FRAME.to_csv(path / "birds.csv", index=False)
    pd.DataFrame({"features": list(X), "bird": BIRD, "place": PLACE}).to_parquet(path / "birds.parquet")
    cs.data.write_features(path / "birds.npz", DATA)
    receiver("CRMClassifier").save(path / "model.safetensors")
    cs.training.train(**training(), folder=path / "run", device="cpu")
    return path


def training() -> dict[str, Any]:
    """Arguments of a short training run."""
    settings = cs.training.Settings(steps=2, batch_size=8)
    return {"data": WIDE, "method": "crm", "backbone": "linear", "settings": settings}


@cache
def receiver(name: str) -> Any:
    """An object of a public class, whose methods are called."""
    if name in ESTIMATORS:
        return getattr(cs, name)(**ESTIMATORS[name]).fit(**ROWS)
    if name == "nn.AdditiveEnergyHead":
        head = cs.nn.AdditiveEnergyHead(4, [3, 3]).double()
        head.set_train_groups(torch.tensor(CODES))
        head.extrapolate([torch.tensor(X)])
        return head.eval()
    return {
        "GroupSpace": lambda: SPACE,
        "AffineHull": lambda: cs.AffineHull(SPACE, SEEN[:5]),
        "CombinationKFold": lambda: cs.CombinationKFold(3),
        "data.GroupedDataset": lambda: DATA,
        "data.FeatureStore": lambda: cs.data.FeatureStore(folder() / "birds.parquet"),
        "data.Scenario": lambda: cs.data.scenarios(DATA, SEEN[:1])[0],
        "features.Embedder": lambda: embedder(),
        "TableFeatures": lambda: cs.TableFeatures().fit(FRAME),
        "training.Settings": lambda: cs.training.Settings(),
        "training.TrainedClassifier": lambda: cs.training.train(**training(), device="cpu"),
    }[name]()


@cache
def embedder() -> Any:
    """An embedder of images."""
    backbone = cs.nn.load_backbone("efficientnet-lite0", "images")
    return cs.features.Embedder(backbone, device="cpu", batch_size=2, num_workers=0)


def images() -> Any:
    """Two images."""
    pixels = ImageArrays(np.zeros((2, 8, 8, 3), dtype=np.uint8))
    return cs.data.GroupedDataset(pixels, cs.GroupSpace.from_cardinalities([2]), np.array([[0], [1]]))


def usual() -> dict[str, Any]:
    """Good arguments by the names of parameters."""
    made = Path(tempfile.mkdtemp())
    return {
        **ROWS, "codes": SEEN, "code": MISSING[0], "index": [0, 3], "among": SEEN, "space": SPACE, "prior": "uniform",
        "names": ["bird"], "observed_codes": SEEN, "query_codes": MISSING, "values": np.ones(7), "table": FRAME,
        "target": "bird", "features": ["f0", "f1"], "dataset": DATA, "groups": SEEN[:1], "cardinalities": [3, 3],
        "y_true": BIRD, "y_pred": BIRD[::-1].copy(), "confidence": 0.9, "rounds": 2, "in_features": 4, "name": "crm",
        "data": DATA, "path": folder() / "birds.npz", "n": 3, "coef": np.zeros((6, 4)), "feature_mean": np.zeros(4),
        "learned_bias": np.zeros(7), "clf": receiver("CRMClassifier"), "model": receiver("CRMClassifier"),
        "samples": X, "content": {"steps": 3}, "block_rows": 50, "batches": [torch.tensor(X)], "folder": made / "new",
        "estimator": LogisticRegression(), "device": "cpu", "kind": "images",
        "backbone": None,
    }  # fmt: skip


def special() -> dict[str, dict[str, Any]]:
    """Good arguments of single callables, where they differ from the usual ones."""
    tensor, table, made = torch.tensor(X), {"table": BIRD}, Path(tempfile.mkdtemp())
    log_prob = np.full((len(X), SPACE.n_groups), -np.log(SPACE.n_groups))
    network: dict[str, Any] = {"features": tensor, "codes": torch.tensor(CODES), "prior": None}
    found: dict[str, dict[str, Any]] = {
        "GroupSpace": {"names": ("a",), "values": (("b", "c"),)},
        "GroupSpace.from_table": {**table, "names": ["a"]},
        "GroupSpace.encode": {"table": np.stack([BIRD, PLACE], axis=1)},
        "GroupSpace.from_cardinalities": {"cardinalities": [2, 3], "names": ["a", "b"]},
        "AffineHull.plan": {"cost": None, "target": None, "forbidden": None, "candidates": None},
        "data.GroupedDataset": {"samples": DATA.X, "codes": DATA.codes, "space": DATA.space, "split": DATA.split},
        "data.GroupedDataset.part": {"name": "train"},
        "data.benchmark": {"name": "penguins"},
        "data.read_features": {"attributes": ["bird", "place"]},
        "data.load_table": {"attributes": "place", "path": None, "features": ["f0", "f1"]},
        "data.load_samples": {"path": None, "features": ["f0", "f1"]},
        "AffineHull.certificate": {"code": np.array([2, 1])},
        "data.write_features": {"path": made / "new.npz"},
        "data.FeatureStore": {"path": folder() / "birds.parquet", "split": None},
        "metrics.group_report": {"group_log_proba": log_prob, "space": None, "prior": None},
        "nn.AdditiveEnergyHead": {"cardinalities": [3, 3], "groups": None},
        "nn.AdditiveEnergyHead.set_train_groups": {"codes": SEEN, "counts": np.ones(7)},
        "nn.load_backbone": {"name": "efficientnet-lite0"},
        "features.Embedder": {"backbone": embedder().backbone, "batch_size": 2, "num_workers": 0},
        "features.extract_features": {"data": images(), "embedder": embedder(), "shard_rows": 2, "overwrite": True},
        "training.train": {**training(), "folder": None},
        "training.TrainedClassifier.load": {"folder": folder() / "run"},
        "load": {"path": folder() / "model.safetensors"},
        "metrics.group_metric": {"metric": accuracy_score, "by": None, "space": None, "n_resamples": 5},
        "save": {"estimator": receiver("CRMClassifier"), "path": made / "model.safetensors"},
        "export_onnx": {"path": made / "model.onnx"},
        "diagnose": {"cv": 3},
        "compare": {"methods": ["logistic"], "n_splits": 2, "n_jobs": None},
        "table_classifier": {"energies": "linear"},
        **{f"TableFeatures.{name}": {"X": FRAME} for name in ("fit", "fit_transform")},
        "TableFeatures.transform": {"X": FRAME},
        "TableFeatures.get_feature_names_out": {"input_features": list(FRAME)},
        "AdditiveGaussian.sample": {"codes": SEEN[0], "random_state": 0, "groups": None},
        "AdditiveGaussian.log_density": {"groups": None},
        "CombinationKFold.split": {"groups": None},
        **{f"nn.AdditiveEnergyHead.{name}": network for name in ("loss", "log_prob", "marginal_log_prob", "forward")},
        **{f"{name}.save": {"path": made / "m.safetensors"} for name in ESTIMATORS},
    }  # fmt: skip
    return {**found, **ESTIMATORS}


def public_callables() -> Iterator[tuple[str, Any]]:
    """Names and values of public functions and classes, and of the classes' public methods."""
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in sorted(module.__all__):
            value, full = getattr(module, name), f"{package}.{name}".removeprefix("compshift.")
            if callable(value):
                yield full, value
            if inspect.isclass(value):
                own = [base for base in value.__mro__ if base.__module__.startswith("compshift")]
                for member in sorted({member for base in own for member in vars(base) if not member.startswith("_")}):
                    if callable(getattr(value, member, None)):
                        yield f"{full}.{member}", None


def call_names() -> list[str]:
    """Names of all calls: public callables, and the methods that ``make_method`` makes."""
    names = [name for name, _ in public_callables() if not any(re.fullmatch(known, name) for known in NO_INPUT)]
    return [*names, *(f"methods.make_method, {method}" for method in cs.methods.METHODS)]


def make_call(name: str) -> tuple[Callable[..., Any], Mapping[str, Any]]:
    """Return a callable with good arguments for all of its parameters."""
    if ", " in name:
        kind = name.rpartition(", ")[2]
        return lambda **given: cs.methods.make_method(kind, given), cs.methods.make_method(kind).hyperparameters()
    value = dict(public_callables())[name]
    function = value or (lambda *a, **k: getattr(copy.deepcopy(receiver(owner)), method)(*a, **k))
    owner, _, method = name.rpartition(".")
    known, own = usual(), special().get(name, {})
    good = {}
    for parameter in inspect.signature(value or getattr(receiver(owner), method)).parameters.values():
        if parameter.kind.name.startswith("VAR") or parameter.name in ("progress", "verbose"):
            continue
        required = parameter.default is parameter.empty
        if parameter.name in own:
            good[parameter.name] = own[parameter.name]
        elif required or parameter.name in (*ROWS, "codes", "space", "rounds", "confidence", "device"):
            good[parameter.name] = known[parameter.name]  # a KeyError here: add a good argument above
        else:
            good[parameter.name] = parameter.default
    return function, good


def fitted_pipeline(pipe: Any) -> Any:
    """A pipeline of ``table_classifier``, fitted quickly."""
    pipe.set_params(**{f"classifier__{name}": value for name, value in ESTIMATORS["CRMClassifierCV"].items()})
    return pipe.fit(FRAME, BIRD, classifier__attributes=PLACE)


def outcome(result: Any, arguments: Mapping[str, Any]) -> Any:
    """Use a result as a caller would, and return what can be compared: arrays, numbers or texts."""
    rows = arguments.get("X", X)
    kind = type(result).__name__
    if kind in ESTIMATORS:
        return (result if hasattr(result, "classes_") else result.fit(**ROWS)).predict_proba(rows)
    uses: dict[str, Callable[[], Any]] = {
        "GroupSpace": lambda: [result.n_groups, result.width], "AffineHull": lambda: result.rank,
        "GroupedDataset": lambda: result.codes, "FeatureStore": lambda: [len(result.files), result.n_rows],
        "TrainedClassifier": lambda: result.predict_proba(X), "AdditiveEnergyHead": lambda: result.learned_bias,
        "GroupReport": lambda: [result.average, result.worst, str(result), result.to_dict(), result.to_frame()],
        "Embedder": lambda: result.about() and 1, "Extraction": lambda: result.rows, "generator": lambda: list(result),
        "Diagnosis": lambda: str(result), "Pipeline": lambda: fitted_pipeline(result).predict_proba(FRAME),
        "TableFeatures": lambda: (result if hasattr(result, "columns_") else result.fit(FRAME)).transform(FRAME),
    }  # fmt: skip
    for attribute in ("log_prior", "dropped"):
        if hasattr(result, attribute):
            return getattr(result, attribute)
    return uses.get(kind, lambda: result)()


def odd_values(call: str, name: str, good: Any) -> list[Odd]:
    """Odd values of a parameter: by its name, or else by the type of its good value."""
    names = {
        "target",
        "attributes",
        "features",
        "path",
        "text",
        "names",
        "y",
    }
    if call in ("data.load_table", "data.load_samples") and name in names:
        matrices = odd.unequal(odd.matrix(X)) if name == "features" else []
        return [*odd.SCALARS, *matrices]
    group, other = (("duck", "lake"), ("duck", "moon")) if "nn." not in call else ((0, 0), (9, 9))
    groups = odd.unequal(odd.codes(MISSING)) + odd.SCALARS
    by_name: dict[str, Callable[[], list[Odd]]] = {
        "prior": lambda: odd.priors(9, group, other),
        "cost": lambda: [*odd.unequal(odd.priors(9, group, other)), *odd.NUMBERS],
        **dict.fromkeys(("target", "forbidden", "candidates", "support"), lambda: groups),
        "groups": lambda: odd.unequal(odd.codes(SEEN)),
        "drop": lambda: [*odd.DROPS, *odd.unequal(odd.codes(SEEN[:1]))],
        "split": lambda: odd.SPLITS + (odd.unequal(odd.weights(ONES)) if "Grouped" in call else []),
        "origin": lambda: odd.unequal(odd.weights(ONES)),
        "samples": lambda: odd.unequal([*odd.matrix(X), *odd.labels(BIRD)]),
        "batches": lambda: odd.batches(odd.tensors(torch.tensor(X))),
        "files": lambda: [*odd.SCALARS, *odd.odd({"../a": "b"}, {"a": b"b"})],
        **dict.fromkeys(("path", "folder", "root"), lambda: odd.PATHS),
        **dict.fromkeys(("in_features", "cardinalities", "hidden"), lambda: [*odd.SIZES, *odd.TEXTS]),
        **dict.fromkeys(("n_jobs", "workers"), lambda: [*odd.COUNTS, *odd.odd(10**9)]),
        "random_state": lambda: odd.SEEDS,
        "space": lambda: odd.odd("abc", 3, [2, 2], {}, object()),
        "tol": lambda: [value for value in odd.NUMBERS if "5e-324" not in value.label],  # it would iterate for minutes
        "backbone": lambda: [*odd.SCALARS, *odd.odd(torch.nn.Linear(7, 4).double())],
    }  # fmt: skip
    if name in by_name:
        return by_name[name]()
    if isinstance(good, np.ndarray) and good.dtype.kind == "U":
        return odd.labels(good) if good.ndim == 1 else odd.unequal(odd.labels(BIRD))
    by_type: tuple[tuple[Any, Callable[[], list[Odd]]], ...] = (
        (pd.DataFrame, partial(odd.frames, good)),
        (bool, lambda: odd.SCALARS),
        (int, lambda: [*odd.COUNTS, *odd.SCALARS]),
        (float, lambda: odd.NUMBERS),
    )
    for kind, values in by_type:
        if isinstance(good, kind):
            return values()
    if isinstance(good, torch.Tensor):
        if not good.is_floating_point():
            return odd.unequal(odd.codes(CODES))
        predicts = name == "features" and "log_prob" in call  # NaN is legal where PyTorch's modules take it
        return [*odd.tensors(good), *(odd.odd(*(good * v for v in (math.nan, math.inf, 1e308))) if predicts else [])]
    if isinstance(good, np.ndarray) and good.dtype.kind == "i":
        return odd.codes(good)
    if isinstance(good, np.ndarray):
        if good.ndim == 2:
            return odd.matrix(good) if good.any() else odd.unequal(odd.matrix(good))
        return odd.weights(good) if good.any() else odd.unequal(odd.weights(good + 1))
    return [*odd.SCALARS, *odd.NUMBERS]


RANDOM_VALUES = 30  # per parameter
SLOW = (
    *("training.train", "features.", "diagnose", "compare", "table_classifier"),
    *("CRMClassifierCV", "CRMBoosting", "AffineExtrapolation"),
)


@pytest.mark.parametrize("name", call_names())
def test_odd_arguments(name: str, tally: Tally) -> None:
    function, good_arguments = make_call(name)

    def use(arguments: Mapping[str, Any]) -> Any:
        try:
            return outcome(function(**arguments), arguments)
        finally:
            if name.rpartition(".")[2].startswith("plot_"):
                pyplot.close("all")

    with strict_numbers():
        expected = use(good_arguments)
        attempt(tally, name, use, good_arguments, has_nan)
        for parameter, good in good_arguments.items():

            def vary(label: str, value: Any, check: Any = has_nan, parameter: str = parameter) -> None:
                attempt(tally, f"{name}, {parameter}: {label}", use, {**good_arguments, parameter: value}, check)

            for value in share(odd_values(name, parameter, good)):
                vary(value.label, value.value, differs_from(expected) if value.same else has_nan)
            number = RANDOM_VALUES // (4 if name.startswith(SLOW) else 1)
            chosen = settings(
                max_examples=max(1, number // SHARE), deadline=None, database=None, phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )  # fmt: skip
            seed(SEED)(chosen(given(odd.random_values(good))(lambda value: vary(f"{value!r:.200}", value))))()


def test_no_public_callable_is_forgotten() -> None:
    names = [name for name, _ in public_callables()]
    assert not [known for known in NO_INPUT if not any(re.fullmatch(known, name) for name in names)]


def attempt(tally: Tally, label: str, use: Callable[[Any], Any], arguments: Mapping[str, Any], check: Any) -> None:
    """Count one call, and a failure if it changes an argument."""
    arrays = [value for value in arguments.values() if isinstance(value, np.ndarray) and not value.dtype.hasobject]
    before = [array.tobytes() for array in arrays]
    tally.attempt(label, lambda: use(arguments), check)
    if [array.tobytes() for array in arrays] != before:
        tally.fail("wrong result", f"{label}: an argument was changed")


@contextlib.contextmanager
def strict_numbers() -> Iterator[None]:
    """Turn NumPy's warnings about overflow and invalid values into errors, and hide all others."""
    with warnings.catch_warnings(action="ignore"):
        warnings.simplefilter("error", RuntimeWarning)
        yield
