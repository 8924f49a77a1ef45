"""Missing attributes in every form that can hold them, and input that raises."""

import math

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from compshift import (
    AdditiveGaussian,
    AffineExtrapolation,
    CombinationKFold,
    CRMClassifier,
    CRMClassifierCV,
    GroupSpace,
    InputError,
    LogitAdjustedClassifier,
)
from tests.estimators.made_data import hide, make_data


def missing_forms():
    """Yield the attributes ("a", None, "b", "a", …) and (0, 1, None, …) in every form that can hold them."""
    text = ["a", None, "b", "a", "b", "a", "b", "b"]
    number = [0, 1, None, 0, 1, 1, 0, 1]
    as_nan = [math.nan if value is None else value for value in number]
    text_nan = [math.nan if value is None else value for value in text]
    pairs = list(zip(text, number, strict=True))
    yield "nested list", pairs
    yield "nested list with NaN", list(zip(text_nan, as_nan, strict=True))
    yield "object array", np.array(pairs, dtype=object)
    yield "mapping of lists", {"a1": text, "a2": number}
    yield "mapping of lists with NaN", {"a1": text_nan, "a2": as_nan}
    yield "frame", pd.DataFrame({"a1": text, "a2": number})
    yield "frame with NA", pd.DataFrame({"a1": pd.array(text, dtype="string"), "a2": pd.array(number, dtype="Int64")})
    yield "categoricals", pd.DataFrame({"a1": pd.Categorical(text), "a2": pd.Categorical(number)})
    yield "objects with NA", pd.DataFrame({"a1": text, "a2": [pd.NA if v is None else v for v in number]}, dtype=object)
    hidden = np.array([[value is None for value in pair] for pair in pairs])
    below = [("a" if a is None else a, 0 if b is None else b) for a, b in pairs]
    yield "masked array", np.ma.masked_array(np.array(below, dtype=object), mask=hidden)
    yield "mapping of arrays", {"a1": np.array(text, dtype=object), "a2": np.array(as_nan)}


class TestInput:
    @pytest.mark.parametrize("table", [pytest.param(table, id=name) for name, table in missing_forms()])
    def test_every_form_gives_the_same_fit(self, table):
        X = np.random.default_rng(0).normal(size=(8, 2))
        y = [0, 0, 1, 1, 0, 1, 0, 1]
        clf = CRMClassifier(1.0, prior="train").fit(X, y, attributes=table)
        assert clf.n_missing_ == 2
        assert clf.space_.values == ((0, 1), ("a", "b"), (0, 1))
        assert all(type(value) is int for value in clf.space_.values[2])
        expected = CRMClassifier(1.0, prior="train").fit(X, y, attributes=next(missing_forms())[1])
        assert (clf.coef_ == expected.coef_).all()

    def test_whole_numbers_among_floats_are_read_as_such(self):
        X, codes = make_data()
        table = hide(codes, 0.5)
        space = GroupSpace.from_cardinalities([2, 3], ["y", "a"])
        one = CRMClassifier(prior="hull").fit(X, codes[:, 0], attributes=table[:, 0])
        assert one.space_ == space
        other = CRMClassifier(prior="hull").fit(
            X, codes[:, 0], attributes=pd.Series(table[:, 0], name="a"), space=space
        )
        assert (one.coef_ == other.coef_).all()

    def test_fractions_stay_fractions(self):
        X, codes = make_data()
        table = hide(codes, 0.5)[:, 0] / 2
        assert CRMClassifier(prior="hull").fit(X, codes[:, 0], attributes=table).space_.values[1] == (0.0, 0.5, 1.0)

    def test_samples_without_weight_are_left_out(self):
        X, codes = make_data()
        table = hide(codes, 0.5)
        X, y = np.concatenate([X, X[:1]]), np.append(codes[:, 0], 5)
        clf = CRMClassifier(prior="hull").fit(
            X, y, attributes=np.concatenate([table, [[np.nan]]]), sample_weight=np.append(np.ones(400), 0)
        )
        assert clf.n_missing_ == np.isnan(table).sum()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"y": [0, 0, None, 1, 1, 1]}, r"attribute 'y' has 1 missing \(NaN\) value, the first at row 2"),
            ({"attributes": [None] * 6}, "every row has a missing value among the attributes 'a'"),
            (
                {"attributes": [(0, None)] * 3 + [(None, 1)] * 3},
                "every row has a missing value among the attributes 'a1', 'a2', .* pass some complete rows, or leave",
            ),
            (
                {"attributes": ["s", "t", "s", None, None, None]},
                "3 rows with missing attributes have y=1, which no complete row has: complete one such row, or leave",
            ),
            ({"attributes": ["s", 1, None, "t", "s", "t"]}, "mixes text and numbers"),
            ({"attributes": [0.0, np.inf, np.nan, 0.0, 1.0, 1.0]}, "infinite"),
            (
                {"cross_fit": True},
                "cross_fit=True cannot be used if attributes are missing in some rows: use cross_fit=False",
            ),
        ],
    )
    def test_bad_input_raises_with_a_remedy(self, change, message):
        X = np.random.default_rng(0).normal(size=(6, 2))
        given = {"y": [0, 0, 0, 1, 1, 1], "attributes": ["s", "t", None, "t", "s", "t"]} | change
        clf = CRMClassifier(cross_fit=given.pop("cross_fit", False))
        with pytest.raises(InputError, match=message):
            clf.fit(X, given["y"], attributes=given["attributes"])

    def test_cross_fitting_raises_before_the_search_begins(self, monkeypatch):
        X, codes = make_data()
        monkeypatch.setattr("compshift.crm.cv.choose", pytest.fail)
        with pytest.raises(InputError, match="cross_fit='auto' cannot be used if attributes are missing in some rows"):
            CRMClassifierCV(cross_fit="auto").fit(X, codes[:, 0], attributes=hide(codes, 0.3))

    def test_an_attribute_whose_known_values_hardly_repeat_raises(self):
        X = np.random.default_rng(0).normal(size=(100, 2))
        table = np.where(np.arange(100) < 12, np.arange(100.0), np.nan)
        with pytest.raises(InputError, match="12 different values in 12 rows"):
            CRMClassifier().fit(X, np.arange(100) % 2, attributes=table)

    @pytest.mark.parametrize(
        "estimator",
        [AdditiveGaussian(), AffineExtrapolation(LogisticRegression()), LogitAdjustedClassifier("sla")],
        ids=str,
    )
    def test_other_estimators_raise_on_missing_values(self, estimator):
        X, codes = make_data()
        table = codes[:, 1].astype(float)
        table[3] = np.nan
        with pytest.raises(InputError, match=r"attribute 'a' has 1 missing \(NaN\) value, the first at row 3"):
            estimator.fit(X, codes[:, 0], attributes=table)

    def test_folds_raise_on_missing_values(self):
        with pytest.raises(InputError, match="1 missing"):
            list(CombinationKFold().split(None, [0, 1, 0, 1], ["a", "b", "b", None]))
