"""Saving: whatever can be saved can be loaded, and nothing else is written."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

import compshift
from compshift import CRMClassifier, CRMClassifierCV, InputError
from tests.estimators.made_data import make_data


@pytest.fixture
def fitted():
    X, codes = make_data()
    return X, CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"max_iter": 0}, "max_iter is 0: pass a whole number of 1 or more"),
        ({"tol": "x"}, "tol is 'x': pass a finite number above 0"),
        ({"bias": "foo"}, "bias 'foo' is not known"),
        ({"support": "foo"}, "support 'foo' is not known"),
        ({"unseen_offset": 1e9}, "unseen_offset is"),
    ],
)
def test_parameters_that_nobody_could_load(fitted, tmp_path, parameters, message):
    _, clf = fitted
    with pytest.raises(InputError, match=message):
        clf.set_params(**parameters).save(tmp_path / "m")
    assert not list(tmp_path.iterdir())


def nested(depth):
    found = {}
    for _ in range(depth):
        found = {"a": found}
    return found


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (nested(100_000), "nested too deeply"),
        ({"a": "b\udcff"}, "ends in half a character; leave it out"),
        ({"a": {1, 2}}, "use text, numbers or booleans"),
    ],
)
def test_inputs_that_are_no_json(fitted, tmp_path, inputs, message):
    _, clf = fitted
    with pytest.raises(InputError, match=message):
        clf.save(tmp_path / "m", inputs=inputs)
    assert not list(tmp_path.iterdir())


def test_classes_that_are_no_text(tmp_path):
    X, codes = make_data()
    clf = CRMClassifier().fit(X, np.array(["a", "b\udcff"], dtype=object)[codes[:, 0]], attributes=codes[:, 1])
    with pytest.raises(InputError, match="ends in half a character"):
        clf.save(tmp_path / "m")


def test_numbers_of_other_types_are_saved_as_numbers(tmp_path):
    X, codes = make_data()
    clf = CRMClassifier(alpha=Fraction(1, 50), tol=Decimal("0.001"), unseen_offset=Fraction(1, 2), verbose=np.int64(0))
    clf.fit(X, codes[:, 0], attributes=codes[:, 1]).save(tmp_path / "m")
    loaded = compshift.load(tmp_path / "m")
    assert (loaded.alpha, loaded.tol, loaded.unseen_offset) == (0.02, 0.001, 0.5)
    np.testing.assert_array_equal(loaded.predict_proba(X), clf.predict_proba(X))


def test_what_was_chosen_is_saved(tmp_path):
    X, codes = make_data()
    clf = CRMClassifierCV([1e-3, 1e-1]).fit(X, codes[:, 0], attributes=codes[:, 1])
    clf.save(tmp_path / "m")
    np.testing.assert_array_equal(compshift.load(tmp_path / "m").predict_proba(X), clf.predict_proba(X))


def test_columns_in_inputs_are_names_of_features(fitted, tmp_path):
    """The command line notes there which columns of a table were fitted to."""
    pd = pytest.importorskip("pandas")
    X, clf = fitted
    columns = ["a", "b", "c", "d"]
    clf.save(tmp_path / "m", inputs={"kind": "features", "columns": columns})
    loaded = compshift.load(tmp_path / "m")
    assert loaded.feature_names_in_.tolist() == columns
    frame = pd.DataFrame(X, columns=columns)
    np.testing.assert_array_equal(loaded.predict(frame), clf.predict(X))
    with pytest.raises(InputError, match="in the same order"):
        loaded.predict(frame[columns[::-1]])


@pytest.mark.parametrize("inputs", [{"kind": "images", "columns": list("abcd")}, {"kind": "features"}, {"a": 1}])
def test_other_inputs_name_no_features(fitted, tmp_path, inputs):
    _, clf = fitted
    clf.save(tmp_path / "m", inputs=inputs)
    assert not hasattr(compshift.load(tmp_path / "m"), "feature_names_in_")
