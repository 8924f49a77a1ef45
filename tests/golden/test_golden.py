"""Small fits and runs give the recorded numbers. ``GOLDEN_TOL`` sets another tolerance than 1e-5."""

import os
import re

import numpy as np
import pytest

from tests.golden.cases import CASES, NEEDS
from tests.golden.record import compute, read

TOLERANCE = float(os.environ.get("GOLDEN_TOL", "1e-5"))

EXACT = 1e-8
"""At a stricter tolerance iterations are compared exactly; elsewhere a search may take one more or one less."""


NUMBER = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?")


def compare_texts(found, expected, key):
    """Compare texts word for word, but the decimal numbers in them by their values."""
    assert [NUMBER.sub("#", text) for text in found] == [NUMBER.sub("#", text) for text in expected], key
    numbers, recorded = (np.array(NUMBER.findall("\n".join(texts)), dtype=float) for texts in (found, expected))
    np.testing.assert_allclose(numbers, recorded, rtol=TOLERANCE, atol=TOLERANCE, err_msg=key)


@pytest.fixture(scope="module")
def recorded():
    return read()


def test_every_case_is_recorded(recorded):
    assert set(recorded) == set(CASES)


def test_texts_are_compared_by_words_and_numbers():
    compare_texts(["a,88.3,x"], ["a,88.30000001,x"], "csv")
    for other in ("b,88.3,x", "a,88.4,x", "a,88.3,8.1"):
        with pytest.raises(AssertionError):
            compare_texts(["a,88.3,x"], [other], "csv")


@pytest.mark.parametrize("name", CASES)
def test_case(name, recorded):
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package)
    found, expected = compute(name), recorded[name]
    assert set(found) == set(expected)
    for key, value in expected.items():
        assert found[key].shape == value.shape, key
        if value.dtype.kind == "U":
            compare_texts(found[key].ravel().tolist(), value.ravel().tolist(), key)
        elif key.endswith("n_iter") and TOLERANCE > EXACT:
            np.testing.assert_allclose(found[key], value, rtol=0.2, atol=2, err_msg=key)
        else:
            np.testing.assert_allclose(
                found[key].astype(float), value.astype(float), rtol=TOLERANCE, atol=TOLERANCE, err_msg=key
            )
