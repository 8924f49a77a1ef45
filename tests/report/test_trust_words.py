"""What is said of biases claims no more than is known."""

import numpy as np
import pytest

pytest.importorskip("altair")

from compshift.report.trust_section import bias_words


def test_tails_that_nobody_looked_at_are_not_called_light():
    sizes, unknown = np.array([40.0, 90.0]), np.full(2, np.nan)
    assert "is not known" in bias_words(sizes, unknown)
    assert "without a heavy tail" in bias_words(sizes, np.array([0.1, -np.inf]))
    assert "without a heavy tail" not in bias_words(sizes, np.array([0.1, np.nan]))


def test_few_samples_and_heavy_tails_are_counted():
    sizes, tails = np.array([40.0, 5.0, 90.0]), np.array([0.1, 0.1, 0.9])
    assert "2 of the 3 extrapolated groups: below 30" in bias_words(sizes, tails)
    assert "of the extrapolated group: below 30" in bias_words(sizes[1:2], tails[1:2])
