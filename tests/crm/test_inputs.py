"""Checks of training and prediction data: names for values, text, paths, labels, weights and extreme features."""

import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.svm import SVC

from compshift import (
    AdditiveGaussian,
    AffineExtrapolation,
    CRMClassifier,
    CRMClassifierCV,
    GroupSpace,
    InputError,
    LogitAdjustedClassifier,
)
from compshift._errors import an
from compshift.data import FeatureStore
from tests.crm.stores import sightings
from tests.estimators.made_data import make_data

FEATURES = ["a", "b", "c"]
ESTIMATORS = [CRMClassifier(), CRMClassifierCV(), LogitAdjustedClassifier(), AdditiveGaussian()]


@pytest.fixture(scope="module")
def df():
    X, bird, place = sightings(n=200, p=3)
    return pd.DataFrame(X, columns=FEATURES).assign(bird=bird, place=place)


@pytest.fixture(scope="module")
def framed(df):
    return CRMClassifier().fit(df[FEATURES], df["bird"], attributes=df["place"])


@pytest.fixture(scope="module")
def nameless(df):
    """The same classifier, fitted to an array."""
    return CRMClassifier().fit(df[FEATURES].to_numpy(), df["bird"], attributes=df["place"])


def sentence(text):
    """Return a pattern for a one-line message with this text."""
    return rf"^[^\n]*{re.escape(text)}[^\n]*$"


class TestNamesForValues:
    @pytest.mark.parametrize("estimator", ESTIMATORS)
    def test_a_frame_with_labels_among_the_features_raises(self, estimator, df):
        message = (
            "X has values that are not numbers in columns 'bird', 'place' ('owl' is the first): pass targets and "
            "attributes separately, and encode or drop other columns (compshift.table_classifier encodes them; texts "
            "become features by TfidfVectorizer in a pipeline, or by `compshift fit --text`)"
        )
        frame = df.sort_values("bird", key=lambda bird: bird != "owl")
        with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
            estimator.fit(frame, "bird", attributes=["place"])

    @pytest.mark.parametrize("estimator", ESTIMATORS)
    def test_names_of_columns_in_place_of_values_raise(self, estimator, df):
        X, y = df[FEATURES], df["bird"]
        for labels, attributes, text in (
            ("bird", ["place"], "y is the text 'bird': pass the values of the column, as in y=df['bird'] with X=df"),
            (["bird"], None, "y is ['bird'] but X has 200 rows"),
            (y, "place", "as in attributes=df['place'] with X=df[features]; column names are accepted only with a"),
            (y, ["place"], "attributes is ['place'] but X has 200 rows: pass one value per sample or, if these"),
            (y, ("place", "sky"), "the columns, as in attributes=df[['place', 'sky']] with X=df[features]"),
        ):
            with pytest.raises(InputError, match=sentence(text)):
                estimator.fit(X, labels, attributes=attributes)

    def test_short_lists_of_values_are_read_as_values(self, df):
        few = df.groupby(["bird", "place"]).head(1)
        X, bird, place = few[FEATURES], few["bird"].tolist(), few["place"].tolist()
        assert CRMClassifier().fit(X, bird, attributes=place).space_.names == ("y", "a")
        with pytest.raises(InputError, match="attributes has 199 rows but X has 200"):
            CRMClassifier().fit(df[FEATURES], df["bird"], attributes=df["place"].tolist()[:-1])


class TestText:
    def test_text_columns_of_arrays_are_named_by_number(self, df):
        text = "X has values that are not numbers in columns 3, 4 ("
        for X in (df.to_numpy(), df.to_numpy().tolist(), df.to_numpy().astype(str)):
            with pytest.raises(InputError, match=sentence(text)):
                CRMClassifier().fit(X, df["bird"], attributes=df["place"])

    def test_one_text_value_in_a_prediction_raises(self, df, framed, nameless):
        bad = df[FEATURES].astype({"b": object})
        bad.loc[7, "b"] = "n/a"
        message = (
            "X has values that are not numbers in column 'b' ('n/a' is the first): encode or drop these columns as"
        )
        with pytest.raises(InputError, match=sentence(message)):
            framed.predict(bad)
        with pytest.raises(InputError, match=sentence("in column 1 ('n/a' is the first)")):
            nameless.predict(bad.to_numpy())

    def test_a_list_of_texts_raises(self, nameless):
        with pytest.raises(InputError, match=sentence("X holds 'a.jpg', which is not a number: pass a matrix")):
            nameless.predict(["a.jpg", "b.jpg"])

    def test_dates_raise(self, df):
        X = df[FEATURES].assign(seen=pd.Timestamp("2020-02-03"))
        with pytest.raises(InputError, match=sentence("in column 'seen' ('2020-02-03T")):
            CRMClassifier().fit(X, df["bird"])

    def test_numbers_of_any_type_are_read(self, df, framed):
        X = df[FEATURES].astype(np.float64)
        expected = framed.predict(X)
        for kind in (str, "category", "Float64", object):
            np.testing.assert_array_equal(framed.predict(X.astype({"b": kind})), expected)

    def test_messages_of_scikit_learn_are_kept(self, df, framed, nameless):
        with pytest.raises(InputError, match="NaN or infinite"):
            CRMClassifier().fit(df[FEATURES].assign(c=None), df["bird"])
        with pytest.raises(InputError, match="feature names should match"):
            framed.predict(df)
        with pytest.raises(ValueError, match="Reshape your data"):
            nameless.predict([1.0, 2.0, 3.0])
        with pytest.raises(ValueError, match="Complex data not supported"):
            nameless.predict(np.full((2, 3), 1j))


class TestPaths:
    @pytest.mark.parametrize("estimator", ESTIMATORS)
    @pytest.mark.parametrize("path", ["store.parquet", Path("store.parquet")])
    def test_a_path_in_place_of_features_raises(self, estimator, path):
        message = "X is 'store.parquet': pass features as an array or DataFrame or, to a CRMClassifier, compshift.data."
        with pytest.raises(InputError, match=sentence(f"{message}FeatureStore('store.parquet')")):
            estimator.fit(path, "y")

    def test_a_path_to_predict_raises(self, framed):
        with pytest.raises(InputError, match=sentence("X is 'rows.csv': pass features as an array or DataFrame")):
            framed.predict("rows.csv")

    def test_a_missing_store_raises(self, tmp_path):
        message = "nope': pass a .parquet file or a folder of .parquet files"
        for path in (tmp_path / "nope", str(tmp_path / "nope")):
            with pytest.raises(InputError, match=sentence(message)):
                FeatureStore(path)
        with pytest.raises(InputError, match=sentence("the path is 5: pass it as text")):
            FeatureStore(5)


def test_messages_name_types_with_their_article(df):
    with pytest.raises(InputError, match=sentence("space is an ndarray: pass a compshift.GroupSpace")):
        CRMClassifier().fit(df[FEATURES], df["bird"], space=np.zeros(2))
    with pytest.raises(InputError, match=sentence("estimator is an SVC without predict_proba")):
        AffineExtrapolation(SVC()).fit(df[FEATURES], df["bird"], attributes=df["place"])
    for text in ("an AdditiveGaussian", "a str", "an int", "an SVC", "a CRMClassifier", "a GridSearchCV", "a Path"):
        assert an(text.split()[1]) == text


class TestBadInput:
    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_features_that_are_not_finite_raise(self, fitted, bad):
        clf, X, codes = fitted
        spoilt = X.copy()
        spoilt[5, 2] = bad
        with pytest.raises(
            InputError, match=r"X has 1 NaN or infinite .* row 5, column 2: remove those rows or impute"
        ):
            CRMClassifier().fit(spoilt, codes[:, 0], attributes=codes[:, 1])
        with pytest.raises(InputError, match="row 5, column 2"):
            clf.predict(spoilt)

    def test_far_inputs_have_probabilities_that_sum_to_one(self, fitted):
        clf, X, _ = fitted
        far = X * 1e12
        np.testing.assert_allclose(np.exp(clf.group_log_proba(far)).sum(axis=1), 1, atol=1e-9)
        joint = np.exp(clf.group_log_proba(far)).reshape(-1, 2, 3).sum(axis=2)
        np.testing.assert_allclose(joint, clf.predict_proba(far), atol=1e-9)

    def test_constant_features_give_the_prior(self):
        clf = CRMClassifier().fit(np.full((30, 2), 0.1), np.arange(30) % 3)
        assert (clf.coef_ == 0).all()
        np.testing.assert_allclose(clf.predict_proba([[100.0, -100.0]]), 1 / 3)

    def test_huge_features_are_fitted(self, fitted):
        _, X, codes = fitted
        clf = CRMClassifier().fit(X * 1e300, codes[:, 0], attributes=codes[:, 1])
        assert np.isfinite(clf.predict_proba(X * 1e300)).all()

    @pytest.mark.parametrize("name", ["y", "attributes", "sample_weight"])
    def test_different_numbers_of_rows_raise(self, fitted, name):
        _, X, codes = fitted
        columns = {"y": codes[:, 0], "attributes": codes[:, 1], "sample_weight": np.ones(len(X))}
        columns[name] = columns[name][:3]
        with pytest.raises(InputError, match=f"{name} has 3 rows but X has 400: pass one row of {name} per sample"):
            CRMClassifier().fit(X, **columns)

    def test_one_class_raises(self, fitted):
        _, X, codes = fitted
        with pytest.raises(InputError, match=r"target 'y' has only one class \(0\): pass rows of two classes or more"):
            CRMClassifier().fit(X, np.zeros(len(X), dtype=int), attributes=codes[:, 1])

    def test_an_attribute_with_one_value_is_warned_of(self, fitted):
        _, X, codes = fitted
        with pytest.warns(UserWarning, match="attribute 'a' has the single value 'same'") as caught:
            clf = CRMClassifier().fit(X, codes[:, 0], attributes=["same"] * len(X))
        assert caught[0].filename == __file__
        alone = CRMClassifier().fit(X, codes[:, 0])
        np.testing.assert_allclose(clf.predict_proba(X), alone.predict_proba(X), atol=1e-6)

    def test_an_unfitted_classifier_raises(self):
        for call in ("predict", "predict_proba", "predict_group", "explain", "group_log_proba"):
            with pytest.raises(NotFittedError, match=r"not fitted yet\. Call 'fit'"):
                getattr(CRMClassifier(), call)([[0.0]])
        with pytest.raises(NotFittedError):
            CRMClassifier().score([[0.0]], [0])
        with pytest.raises(NotFittedError):
            CRMClassifier().set_prior("train")
        with pytest.raises(NotFittedError):
            CRMClassifier().save("nowhere")

    def test_a_wrong_number_of_features_raises(self, fitted):
        clf, X, _ = fitted
        with pytest.raises(InputError, match=r"X has 3 features, but CRMClassifier is expecting 4 .*pass the columns"):
            clf.predict(X[:, :3])
        named = CRMClassifier().fit(pd.DataFrame(X, columns=list("abcd")), np.arange(len(X)) % 2)
        with pytest.raises(InputError, match=r"(?s)feature names.*Pass the columns used in fit"):
            named.predict(pd.DataFrame(X[:, :3], columns=list("abc")))

    def test_continuous_labels_raise(self, fitted):
        _, X, codes = fitted
        with pytest.raises(InputError, match=r"Unknown label type: target 'y' is continuous .*for example by binning"):
            CRMClassifier().fit(X, X[:, 0])
        with pytest.raises(
            InputError, match=r"attribute 'a' has 400 different values in 400 rows: it looks continuous"
        ):
            CRMClassifier().fit(X, codes[:, 0], attributes=X[:, 0])

    def test_attributes_have_the_limit_of_an_audit(self):
        rng = np.random.default_rng(0)
        charge = np.repeat(np.arange(1001) + 0.25, 4)  # each value repeats, so it is not taken for an identifier
        X, y = rng.normal(size=(len(charge), 2)), np.tile([0, 1], len(charge) // 2)
        message = (
            r"attribute 'a' has 1001 different values: is it an identifier\? Leave it out, group its values, or pass"
        )
        with pytest.raises(InputError, match=message):
            CRMClassifier().fit(X, y, attributes=charge)
        CRMClassifier(tol=1.0, support="observed").fit(X[:4000], y[:4000], attributes=charge[:4000])
        space = GroupSpace(("y", "a"), ((0, 1), tuple(np.unique(charge).tolist())))
        CRMClassifier(tol=1.0, support="observed").fit(X, y, attributes=charge, space=space)

    def test_classes_that_training_lacks_count_as_wrong_in_score(self, fitted):
        clf, X, codes = fitted
        known = clf.score(X, codes[:, 0], sample_weight=codes[:, 0] == 1)
        assert clf.score(X, np.where(codes[:, 0] == 0, 5, 1)) == pytest.approx(known * (codes[:, 0] == 1).mean())
        with pytest.raises(InputError, match="pass both as text or both as numbers"):
            clf.score(X, np.where(codes[:, 0] == 0, "a", "b"))
        with pytest.raises(InputError, match="y has 2 rows but X has 400"):
            clf.score(X, [0, 1])

    @pytest.mark.parametrize(
        ("parameters", "message"),
        [
            ({"alpha": -1}, "alpha is -1: pass a finite number ≥ 0"),
            ({"alpha": "0.1"}, "alpha is '0.1': pass a finite number ≥ 0"),
            ({"alpha": math.nan}, "alpha is nan"),
            ({"tol": 0}, "tol is 0: pass a finite number above 0"),
            ({"max_iter": 0}, "max_iter is 0: pass an integer ≥ 1"),
            ({"max_iter": 1.5}, "max_iter is 1.5"),
            ({"bias": "extrapolate"}, "did you mean 'extrapolated'"),
            ({"bias": "auto"}, "bias 'auto' is not known"),
            ({"anchor": "mean"}, "anchor 'mean' is not known: use one of 'zero', 'gaussian'"),
            ({"cross_fit": 1}, "cross_fit is 1: pass True, False, or a number of folds ≥ 2"),
            ({"cross_fit": "auto"}, "cross_fit is 'auto': pass True, False or a number of folds"),
            ({"cross_fit": -3}, "cross_fit is -3"),
            ({"unseen_offset": "auto"}, "unseen_offset is 'auto': pass a number between ±1e.06 .0 for no offset."),
            ({"unseen_offset": 1e7}, "unseen_offset is 10000000.0"),
        ],
    )
    def test_bad_parameters_raise(self, fitted, parameters, message):
        _, X, codes = fitted
        with pytest.raises(InputError, match=message):
            CRMClassifier(**parameters).fit(X, codes[:, 0], attributes=codes[:, 1])

    @pytest.mark.parametrize(
        ("weight", "message"),
        [
            (-1.0, r"negative \(-1 at row 0\)"),
            (np.nan, "NaN"),
            (0.0, "zero for every row"),
            (1e308, "has values up to 1e[+]308, whose sum overflows"),
        ],
    )
    def test_bad_weights_raise(self, fitted, weight, message):
        _, X, codes = fitted
        with pytest.raises(InputError, match=message):
            CRMClassifier().fit(X, codes[:, 0], sample_weight=np.full(len(X), weight))

    @pytest.mark.parametrize("unit", ["datetime64[s]", "timedelta64[s]"])
    def test_times_as_weights_raise(self, fitted, unit):
        _, X, codes = fitted
        with pytest.raises(InputError, match=rf"sample_weight has type {re.escape(unit)}: pass one number per sample"):
            CRMClassifier().fit(X, codes[:, 0], sample_weight=np.ones(len(X), dtype=int).astype(unit))

    @pytest.mark.parametrize("unit", ["datetime64[s]", "timedelta64[s]"])
    def test_times_as_features_raise(self, fitted, unit):
        clf, X, codes = fitted
        times = X.astype(int).astype(unit)
        with pytest.raises(InputError, match="X has values that are not numbers in columns 0, 1, 2, 3"):
            CRMClassifier().fit(times, codes[:, 0])
        with pytest.raises(InputError, match="X has values that are not numbers in columns 0, 1, 2, 3"):
            clf.predict(times)
        with pytest.raises(
            InputError, match=r"X has values that are not numbers in column 'when' .*encode or drop other columns"
        ):
            CRMClassifier().fit(pd.DataFrame(X).assign(when=times[:, 0]).rename(columns=str), codes[:, 0])

    def test_masked_values_raise(self, fitted):
        clf, X, codes = fitted
        hidden = np.arange(len(X)) == 5
        masked = np.ma.masked_array(X, mask=hidden[:, None] & (np.arange(4) == 2))
        with pytest.raises(InputError, match="X has 1 masked value, the first at row 5: remove those rows or impute"):
            CRMClassifier().fit(masked, codes[:, 0], attributes=codes[:, 1])
        with pytest.raises(InputError, match="X has 1 masked value, the first at row 5"):
            clf.predict(masked)
        weight = np.ma.masked_array(np.ones(len(X)), mask=hidden)
        with pytest.raises(InputError, match="sample_weight has 1 masked value, the first at row 5"):
            CRMClassifier().fit(X, codes[:, 0], sample_weight=weight)
        with pytest.raises(InputError, match=r"attribute 'y' has 1 missing .* at row 5"):
            CRMClassifier().fit(X, np.ma.masked_array(codes[:, 0], mask=hidden))
        with pytest.raises(InputError, match="codes has 1 masked value"):
            clf.group_log_proba(X, np.ma.masked_array([[0, 0]], mask=[[True, False]]))
        nothing = np.ma.masked_array(X)
        np.testing.assert_array_equal(clf.predict_proba(nothing), clf.predict_proba(X))

    def test_a_space_without_a_column_raises(self, fitted):
        _, X, codes = fitted
        with pytest.raises(InputError, match=r"there are 2 columns .* for 1 attributes"):
            CRMClassifier().fit(
                X, codes[:, 0], attributes=codes[:, 1], space=GroupSpace.from_cardinalities([2], names=["y"])
            )


@pytest.mark.parametrize("estimator", [CRMClassifier(), AdditiveGaussian(), LogitAdjustedClassifier()])
def test_tensors_that_require_a_gradient_raise_with_a_remedy(estimator):
    torch = pytest.importorskip("torch")
    X, codes = make_data()
    tensor, weight = torch.tensor(X, requires_grad=True), torch.ones(len(X), requires_grad=True)
    message = (
        r"is a Tensor that NumPy cannot read: pass a NumPy array; convert a tensor with "
        r"\.detach\(\)\.cpu\(\)\.numpy\(\)"
    )
    with pytest.raises(InputError, match=f"X {message}"):
        estimator.fit(tensor, codes[:, 0], attributes=codes[:, 1])
    with pytest.raises(InputError, match=f"sample_weight {message}"):
        estimator.fit(X, codes[:, 0], attributes=codes[:, 1], sample_weight=weight)
    with pytest.raises(InputError, match=f"a table of attribute values {message}"):
        estimator.fit(X, torch.tensor(codes[:, 0] * 1.0, requires_grad=True))
    with pytest.raises(InputError, match=f"X {message}"):
        estimator.fit(X, codes[:, 0], attributes=codes[:, 1]).predict(tensor)


@pytest.mark.filterwarnings("ignore:A column-vector y was passed")
@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow", "narwhals"])
def test_names_of_features_and_attributes_are_kept(library):
    X, codes = make_data((2, 2), missing=())
    columns = {"u": X[:, 0], "v": X[:, 1], "bird": codes[:, 0], "place": codes[:, 1]}
    module = pytest.importorskip(library)
    make = {"pandas": "DataFrame", "polars": "DataFrame", "pyarrow": "table"}
    table = getattr(module, make[library])(columns) if library in make else None
    if library == "narwhals":
        table = module.from_native(pd.DataFrame(columns), eager_only=True)
    part = table.select if library != "pandas" else lambda names: table[names]
    clf = CRMClassifier().fit(part(["u", "v"]), part(["bird"]), attributes=part(["place"]))
    assert clf.feature_names_in_.tolist() == ["u", "v"]
    assert clf.space_.names == ("bird", "place")
    with pytest.raises(InputError, match="Pass the columns used in fit, in the same order"):
        clf.predict(part(["v", "u"]))
