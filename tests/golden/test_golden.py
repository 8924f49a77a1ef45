"""Small fits and runs give the recorded numbers. ``GOLDEN_TOL`` sets another tolerance than 1e-5."""

import os

import numpy as np
import pytest

from tests.golden.cases import CASES, NEEDS
from tests.golden.record import compute, read

TOLERANCE = float(os.environ.get("GOLDEN_TOL", "1e-5"))

EXACT = 1e-8
"""At a stricter tolerance iterations are compared exactly; elsewhere a search may take one more or one less."""


@pytest.fixture(scope="module")
def recorded():
    return read()


def test_every_case_is_recorded(recorded):
    assert set(recorded) == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_case(name, recorded):
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package)
    found, expected = compute(name), recorded[name]
    assert set(found) == set(expected)
    for key, value in expected.items():
        assert found[key].shape == value.shape, key
        if value.dtype.kind == "U":
            assert found[key].tolist() == value.tolist(), key
        elif key.endswith("n_iter") and TOLERANCE > EXACT:
            np.testing.assert_allclose(found[key], value, rtol=0.2, atol=2, err_msg=key)
        else:
            np.testing.assert_allclose(
                found[key].astype(float), value.astype(float), rtol=TOLERANCE, atol=TOLERANCE, err_msg=key
            )
