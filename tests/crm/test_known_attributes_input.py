"""Known attributes that cannot be used end in one sentence."""

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

from compshift import CRMClassifier, InputError
from tests.estimators.made_data import make_data

BIRDS, PLACES, DEVICES = ["duck", "gull"], ["lake", "sea", "wood"], [1, 2]
PREDICTIONS = ("predict", "predict_proba", "predict_log_proba", "predict_group", "group_log_proba")
METHODS = (*PREDICTIONS, "explain", "predict_set")


@pytest.fixture(scope="module")
def data():
    X, codes = make_data((2, 3, 2), n=600, missing=(0, 7))
    columns = zip(("bird", "place", "device"), (BIRDS, PLACES, DEVICES), codes.T, strict=True)
    return X, pd.DataFrame({name: np.array(values)[column] for name, values, column in columns})


@pytest.fixture(scope="module")
def crm(data):
    X, frame = data
    return CRMClassifier(cross_fit=True).fit(X, frame["bird"], attributes=frame[["place", "device"]])


@pytest.mark.parametrize(
    ("attributes", "sentence"),
    [
        ({"place": ["lake", "moon", None]}, r"^attribute 'place' is 'moon' in row 1, a value that training lacks: "
         r"known values are 'lake', 'sea', 'wood'; leave the value missing \(None, or an empty cell\) in rows "
         "where it is new$"),
        ({"device": ["1", None, "2"]}, r"^attribute 'device' is '1' in row 0, .* known values are 1, 2;"),
        ({"place": ["lake"] * 3, "bird": BIRDS + BIRDS[:1]}, r"^'bird' is a target, which the model predicts: as "
         r"known attributes pass only 'place', 'device'$"),
        ({"plaice": ["lake"] * 3}, r"^attribute 'plaice' is not known: use one of 'place', 'device'; did you mean "
         r"'place'\?$"),
        (pd.Series([1, 2, 1], name="lens"), "^attribute 'lens' is not known: use one of 'place', 'device'"),
        (pd.Series(BIRDS + BIRDS[:1], name="bird"), "^'bird' is a target"),
        (["lake", "sea", "wood", "lake"][:3], "^attributes has 1 column without names, but the model has 2 "
         r"attributes \('place', 'device'\): pass a column for each of them, in this order, or a DataFrame with "
         "some of them$"),
        ([("lake", 1, 3)] * 3, "^attributes has 3 columns without names, but the model has 2 attributes"),
        ([("lake", 1)] * 4, "^attributes has 4 rows but X has 3: pass one row of attributes per sample$"),
        ({}, "^attributes has no columns: pass some of 'place', 'device', or leave attributes out$"),
        ("place", "^attributes is the text 'place': pass the values"),
        (["place", "device"], r"^attributes is \['place', 'device'\] but X has 3 rows"),
        (3, "0 dimensions instead of 1 or 2"),
        ({"place": [["lake"]] * 3}, "'place' holds .*-dimensional values|'place' holds"),
        ({"place": ["lake", 1, None]}, "mixes text and numbers"),
        ({"device": [1.0, np.inf, 2.0]}, "infinite value"),
        ({"place": ["lake"] * 3, "device": [1]}, "equal length"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("error")
def test_bad_attributes_raise_a_sentence(crm, attributes, sentence):
    for method in METHODS:
        with pytest.raises(InputError, match=sentence):
            getattr(crm, method)(np.zeros((3, 4)), attributes=attributes)


def test_columns_of_the_same_name(crm):
    twice = pd.DataFrame([["lake", "sea"]], columns=["place", "place"])
    with pytest.raises(InputError, match="attribute names repeat"):
        crm.predict(np.zeros((1, 4)), attributes=twice)


def test_rows_in_another_order(crm, data):
    X, table = data[0], data[1][["place", "device"]]
    with pytest.raises(InputError, match="attributes has the index labels of X in another order"):
        crm.predict(pd.DataFrame(X), attributes=table[::-1])


def test_a_combination_of_probability_0(data):
    X, frame = data
    gone = (frame["place"] == "sea") & (frame["device"] == 2)
    clf = CRMClassifier(prior="train").fit(X[~gone], frame["bird"][~gone], attributes=frame[~gone].iloc[:, 1:])
    known = {"device": [1, 2], "place": ["sea", "sea"]}
    with pytest.raises(
        InputError,
        match=r"^row 1 has place='sea', device=2, which has probability 0 under the current prior: leave one of "
        r"its attributes missing \(None\), or use set_prior with a prior that includes it$",
    ):
        clf.predict(X[:2], attributes=known)
    assert clf.set_prior("uniform").predict(X[:2], attributes=known).shape == (2,)


def test_a_combination_that_is_no_candidate(data):
    X, frame = data
    gone = (frame["place"] == "sea") & (frame["device"] == 2)
    clf = CRMClassifier(support="observed")
    clf.fit(X[~gone], frame["bird"][~gone], attributes=frame[~gone].iloc[:, 1:])
    with pytest.raises(InputError, match=r"^row 0 has place='sea', device=2, which no candidate group has: .*support"):
        clf.predict(X[:2], attributes={"device": [2, 1], "place": ["sea", "sea"]})


def test_a_model_without_attributes(data):
    X, frame = data
    clf = CRMClassifier().fit(X, frame["bird"])
    with pytest.raises(InputError, match="no attributes besides its target 'bird', so none can be known: leave attr"):
        clf.predict(X, attributes=frame["place"])


def test_a_model_that_is_not_fitted():
    for method in METHODS:
        with pytest.raises(NotFittedError):
            getattr(CRMClassifier(), method)(np.zeros((1, 2)), attributes=[1])


def test_attributes_must_be_named(crm, data):
    X, table = data[0], data[1][["place", "device"]]
    with pytest.raises(TypeError):
        crm.predict(X, table)
    with pytest.raises(TypeError):
        crm.score(X, ["duck"] * len(X), None, table)
