"""The same data as NumPy arrays, torch tensors and tables of pandas, Polars and Arrow give the same model."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.linear_model import LogisticRegression

from compshift import (
    AdditiveGaussian,
    AffineExtrapolation,
    CRMBoostingClassifier,
    CRMClassifier,
    CRMClassifierCV,
    InputError,
    LogitAdjustedClassifier,
    diagnose,
    metrics,
    table_classifier,
)

pl = pytest.importorskip("polars")

GROUPS = np.array([(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)])
RNG = np.random.default_rng(0)
CODES = GROUPS[RNG.integers(5, size=300)]
NUMBERS = RNG.normal(size=(300, 3)) + 2 * CODES[:, [0, 1, 1]] * [1, 1, -1]
WEIGHT = RNG.random(300) + 0.5
NAMES = ["f0", "f1", "f2"]


def tensors(values):
    return pytest.importorskip("torch").tensor(values)


AS_FRAME = {
    "numpy": np.asarray,
    "torch": tensors,
    "pandas": lambda values: pd.DataFrame(values, columns=NAMES),
    "polars": lambda values: pl.DataFrame(values, schema=NAMES),
    "arrow": lambda values: pa.table(dict(zip(NAMES, values.T, strict=True))),
}
AS_COLUMN = {
    "numpy": np.asarray,
    "torch": tensors,
    "pandas": pd.Series,
    "polars": lambda values: pl.Series("z", values),
    "arrow": pa.array,
}
AS_ATTRIBUTES = {
    "numpy": np.asarray,
    "torch": tensors,
    "pandas": lambda values: pd.DataFrame({"place": values}),
    "polars": lambda values: pl.DataFrame({"place": values}),
    "arrow": lambda values: pa.table({"place": values}),
}
ESTIMATORS = {
    "crm": CRMClassifier(),
    "cv": CRMClassifierCV(alphas=[0.01, 0.1], anchor="zero", bias="extrapolated"),
    "boosting": CRMBoostingClassifier(max_iter=5, n_jobs=1),
    "affine": AffineExtrapolation(LogisticRegression(), cv=2, calibration=None, floor=1e-4, random_state=0),
    "logit": LogitAdjustedClassifier(),
    "gaussian": AdditiveGaussian(),
}


@pytest.fixture(params=["torch", "pandas", "polars", "arrow"])
def kind(request):
    return request.param


def data(kind):
    labels = (
        CODES.T
        if kind == "torch"
        else (np.array(["duck", "gull"])[CODES[:, 0]], np.array(["bay", "moor", "sea"])[CODES[:, 1]])
    )
    X, weight = AS_FRAME[kind](NUMBERS), AS_COLUMN[kind](WEIGHT)
    return X, AS_COLUMN[kind](labels[0]), AS_ATTRIBUTES[kind](labels[1]), weight


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_library_gives_the_same_model(name, kind):
    if name == "boosting":
        pytest.importorskip("lightgbm")
    found = []
    for library in ("numpy", kind):
        X, y, attributes, weight = data(library)
        clf = ESTIMATORS[name].fit(X, y, attributes=attributes, sample_weight=weight)
        found.append((clf.predict_proba(X), clf.score(X, y, weight)))
    np.testing.assert_allclose(found[1][0], found[0][0], atol=1e-12)
    assert found[1][1] == pytest.approx(found[0][1])


def test_pools_known_attributes_and_reports(kind):
    found = []
    for library in ("numpy", kind):
        X, y, attributes, _ = data(library)
        pool = AS_FRAME[library](NUMBERS[::2] + 0.1)
        clf = CRMClassifier().fit(X, y, attributes=attributes, unlabelled=pool)
        report = metrics.group_report(y, clf.predict(X), attributes)
        fitted = diagnose(clf, X, y, attributes).log_likelihood
        found.append(
            (clf.predict_proba(X, attributes=attributes), clf.estimate_prior(pool).log_prior, report.worst, fitted)
        )
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-10)


MIXED = {
    "size": [2.5 if row % 11 else None for row in range(300)],
    "count": [int(value) if row % 7 else None for row, value in enumerate(CODES[:, 1] * 2 + RNG.integers(0, 2, 300))],
    "colour": [["red", "blue"][value] if row % 5 else None for row, value in enumerate(CODES[:, 0])],
    "level": [["low", "mid", "high"][value] if row % 13 else None for row, value in enumerate(RNG.integers(0, 3, 300))],
    "ringed": [bool(value) if row % 3 else None for row, value in enumerate(RNG.integers(0, 2, 300))],
}
LEVELS = ["low", "mid", "high"]
TABLES = {
    "objects": lambda: pd.DataFrame(MIXED),
    "pandas": lambda: pd.DataFrame(MIXED).assign(
        count=pd.array(MIXED["count"], dtype="Int64"),
        colour=pd.array(MIXED["colour"], dtype="string"),
        level=pd.Categorical(MIXED["level"], categories=LEVELS),
        ringed=pd.array(MIXED["ringed"], dtype="boolean"),
    ),
    "polars": lambda: pl.DataFrame(MIXED).with_columns(
        pl.col("level").cast(pl.Enum(LEVELS)), pl.col("colour").cast(pl.Categorical)
    ),
    "arrow": lambda: pa.table(MIXED | {"level": pa.array(MIXED["level"]).dictionary_encode()}),
}


@pytest.mark.parametrize("energies", ["linear", "boosted"])
@pytest.mark.parametrize("library", ["pandas", "polars", "arrow"])
def test_categories_and_missing_values_of_every_library(energies, library):
    if energies == "boosted":
        pytest.importorskip("lightgbm")
    options = {"linear": {"alphas": [0.1]}, "boosted": {"max_iter": 5, "n_jobs": 1}}[energies]
    y, attributes = CODES.T
    found = []
    for kind in ("objects", library):
        table = TABLES[kind]()
        pipe = table_classifier(energies, **options).fit(table, y, classifier__attributes=attributes)
        found.append(pipe.predict_proba(table))
    np.testing.assert_allclose(found[1], found[0], atol=1e-10)


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("argument", ["X", "y", "attributes", "sample_weight"])
def test_lazy_frames_raise(name, argument):
    X, y, attributes, weight = data("polars")
    arguments = {"X": X, "y": y.to_frame(), "attributes": attributes, "sample_weight": weight.to_frame()}
    arguments[argument] = arguments[argument].lazy()
    if argument != "sample_weight":
        del arguments["sample_weight"]
    with pytest.raises(
        InputError, match=rf"^{argument} is a LazyFrame, which has no rows .*: call \.collect\(\) first$"
    ):
        ESTIMATORS[name].fit(**arguments)


def test_lazy_pools_and_tables_raise():
    X, y, attributes, _ = data("polars")
    with pytest.raises(InputError, match=r"^unlabelled is a LazyFrame"):
        CRMClassifier().fit(X, y, attributes=attributes, unlabelled=X.lazy())
    with pytest.raises(InputError, match=r"^X is a LazyFrame"):
        table_classifier("linear").fit(X.lazy(), y, classifier__attributes=attributes)
