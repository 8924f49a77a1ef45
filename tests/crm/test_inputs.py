"""What a user reads who passes names for values, paths for arrays, arguments in the wrong order, and the like."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.svm import SVC

from compshift import (
    AdditiveGaussian,
    AffineExtrapolation,
    AffineHull,
    CRMClassifier,
    CRMClassifierCV,
    GroupSpace,
    InputError,
    LogitAdjustedClassifier,
)
from compshift._errors import an
from compshift.data import FeatureStore
from tests.crm.stores import sightings

FEATURES = ["a", "b", "c"]
ESTIMATORS = [CRMClassifier(), CRMClassifierCV(), LogitAdjustedClassifier(), AdditiveGaussian()]


@pytest.fixture(scope="module")
def df():
    X, bird, place = sightings(n=200, p=3)
    return pd.DataFrame(X, columns=FEATURES).assign(bird=bird, place=place)


@pytest.fixture(scope="module")
def fitted(df):
    return CRMClassifier().fit(df[FEATURES], df["bird"], attributes=df["place"])


@pytest.fixture(scope="module")
def nameless(df):
    """The same, fitted to an array."""
    return CRMClassifier().fit(df[FEATURES].to_numpy(), df["bird"], attributes=df["place"])


def sentence(text):
    """A pattern for a message that has this text, all on one line."""
    return rf"^[^\n]*{re.escape(text)}[^\n]*$"


class TestNamesForValues:
    @pytest.mark.parametrize("estimator", ESTIMATORS)
    def test_a_frame_with_all_columns(self, estimator, df):
        message = (
            "X has values that are not numbers in columns 'bird', 'place' ('owl' is the first): encode them as numbers "
            "or drop them, as in X=df[features]; targets and attributes go beside X as values, as in y=df['bird']"
        )
        frame = df.sort_values("bird", key=lambda bird: bird != "owl")
        with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
            estimator.fit(frame, "bird", attributes=["place"])

    @pytest.mark.parametrize("estimator", ESTIMATORS)
    def test_names_of_columns(self, estimator, df):
        X, y = df[FEATURES], df["bird"]
        for labels, attributes, text in (
            ("bird", ["place"], "y is the text 'bird': pass the values of the column, as in y=df['bird'], beside X=df"),
            (["bird"], None, "y is ['bird'] but X has 200 rows"),
            (y, "place", "as in attributes=df['place'], beside X=df[features]; names alone are for a FeatureStore"),
            (y, ["place"], "attributes is ['place'] but X has 200 rows: pass one value per sample or, if these"),
            (y, ("place", "sky"), "the columns, as in attributes=df[['place', 'sky']], beside X=df[features]"),
        ):
            with pytest.raises(InputError, match=sentence(text)):
                estimator.fit(X, labels, attributes=attributes)

    def test_values_in_lists_stay_values(self, df):
        few = df.groupby(["bird", "place"]).head(1)
        X, bird, place = few[FEATURES], few["bird"].tolist(), few["place"].tolist()
        assert CRMClassifier().fit(X, bird, attributes=place).space_.names == ("y", "a")
        with pytest.raises(InputError, match="attributes has 199 rows but X has 200"):
            CRMClassifier().fit(df[FEATURES], df["bird"], attributes=df["place"].tolist()[:-1])


class TestText:
    def test_columns_of_arrays_are_counted(self, df):
        text = "X has values that are not numbers in columns 3, 4 ("
        for X in (df.to_numpy(), df.to_numpy().tolist(), df.to_numpy().astype(str)):
            with pytest.raises(InputError, match=sentence(text)):
                CRMClassifier().fit(X, df["bird"], attributes=df["place"])

    def test_one_value_in_a_prediction(self, df, fitted, nameless):
        bad = df[FEATURES].astype({"b": object})
        bad.loc[7, "b"] = "n/a"
        message = "X has values that are not numbers in column 'b' ('n/a' is the first): encode or drop them, as for"
        with pytest.raises(InputError, match=sentence(message)):
            fitted.predict(bad)
        with pytest.raises(InputError, match=sentence("in column 1 ('n/a' is the first)")):
            nameless.predict(bad.to_numpy())

    def test_one_dimension(self, nameless):
        with pytest.raises(InputError, match=sentence("X holds 'a.jpg', which is not a number: pass a matrix")):
            nameless.predict(["a.jpg", "b.jpg"])

    def test_times(self, df):
        X = df[FEATURES].assign(seen=pd.Timestamp("2020-02-03"))
        with pytest.raises(InputError, match=sentence("in column 'seen' ('2020-02-03T")):
            CRMClassifier().fit(X, df["bird"])

    def test_what_can_be_read_as_numbers_is(self, df, fitted):
        X = df[FEATURES].astype(np.float64)
        expected = fitted.predict(X)
        for kind in (str, "category", "Float64", object):
            np.testing.assert_array_equal(fitted.predict(X.astype({"b": kind})), expected)

    def test_other_mistakes_keep_their_message(self, df, fitted, nameless):
        with pytest.raises(InputError, match="NaN or infinite"):
            CRMClassifier().fit(df[FEATURES].assign(c=None), df["bird"])
        with pytest.raises(InputError, match="feature names should match"):
            fitted.predict(df)
        with pytest.raises(ValueError, match="Reshape your data"):
            nameless.predict([1.0, 2.0, 3.0])
        with pytest.raises(ValueError, match="Complex data not supported"):
            nameless.predict(np.full((2, 3), 1j))


class TestPaths:
    @pytest.mark.parametrize("estimator", ESTIMATORS)
    @pytest.mark.parametrize("path", ["store.parquet", Path("store.parquet")])
    def test_in_place_of_features(self, estimator, path):
        message = "X is 'store.parquet': pass features as an array or DataFrame or, to a CRMClassifier, compshift.data."
        with pytest.raises(InputError, match=sentence(f"{message}FeatureStore('store.parquet')")):
            estimator.fit(path, "y")

    def test_to_predict(self, fitted):
        with pytest.raises(InputError, match=sentence("X is 'rows.csv': pass features as an array or DataFrame")):
            fitted.predict("rows.csv")

    def test_a_store_that_is_not_there(self, tmp_path):
        message = "nope': pass a .parquet file or a folder of them"
        for path in (tmp_path / "nope", str(tmp_path / "nope")):
            with pytest.raises(InputError, match=sentence(message)):
                FeatureStore(path)
        with pytest.raises(InputError, match=sentence("the path is 5: pass it as text")):
            FeatureStore(5)


def test_no_ridge_among_those_to_choose_from():
    for alphas in ([0, 1], [1.0, 0.0], (0,)):
        with pytest.raises(InputError, match=sentence("alphas has 0: without a ridge the weights have no optimum")):
            CRMClassifierCV(alphas=alphas).check_parameters()
    assert CRMClassifierCV(alphas=[1, 1e-9]).check_parameters()[0].alphas == (1e-9, 1.0)


class TestArticles:
    @pytest.mark.parametrize(
        "text",
        [
            "an AdditiveGaussian",
            "a str",
            "an int",
            "an ndarray",
            "an SVC",
            "a CRMClassifier",
            "a GridSearchCV",
            "a Path",
        ],
    )
    def test_an(self, text):
        assert an(text.split()[1]) == text

    def test_in_messages(self, df):
        with pytest.raises(InputError, match=sentence("space is an ndarray: pass a compshift.GroupSpace")):
            CRMClassifier().fit(df[FEATURES], df["bird"], space=np.zeros(2))
        with pytest.raises(InputError, match=sentence("estimator is an SVC without predict_proba")):
            AffineExtrapolation(SVC()).fit(df[FEATURES], df["bird"], attributes=df["place"])


class TestHull:
    def test_complete(self, fitted):
        assert repr(fitted.hull_) == "<AffineHull: 5 of 6 groups seen, all inside, rank 4 of 4>"

    @pytest.mark.parametrize("cardinalities", [[4, 4], [4, 4, 1], [2, 3, 2]])
    def test_groups_inside_are_counted(self, cardinalities):
        space = GroupSpace.from_cardinalities(cardinalities)
        hull = AffineHull(space, space.codes(np.array([0, 1, 5])))
        inside = int(hull.contains(space.codes(np.arange(space.n_groups))).sum())
        assert repr(hull) == (
            f"<AffineHull: 3 of {space.n_groups} groups seen, {inside} inside, rank {hull.rank} of {hull.full_rank}>"
        )

    def test_more_groups_than_can_be_counted(self):
        space = GroupSpace.from_cardinalities([6] * 12)
        hull = AffineHull(space, np.zeros((1, 12), dtype=int))
        assert repr(hull) == "<AffineHull: 1 of 2.18e+09 groups seen, rank 1 of 61>"
