"""Tests that sentences on biases and convergence claim no more than the numbers show."""

import numpy as np
import pytest

pytest.importorskip("altair")

from compshift.report.trust_section import bias_words, convergence_words


def test_unknown_tails_are_not_called_light():
    sizes, unknown = np.array([40.0, 90.0]), np.full(2, np.nan)
    assert "is not known" in bias_words(sizes, unknown)
    assert "without a heavy tail" in bias_words(sizes, np.array([0.1, -np.inf]))
    assert "without a heavy tail" not in bias_words(sizes, np.array([0.1, np.nan]))


def test_groups_with_few_samples_or_heavy_tails_are_counted():
    sizes, tails = np.array([40.0, 5.0, 90.0]), np.array([0.1, 0.1, 0.9])
    assert "biases of 2 of the 3 extrapolated groups rest on an effective sample size below 30" in bias_words(
        sizes, tails
    )
    assert "bias of the extrapolated group rests on an effective sample size below 30" in bias_words(
        sizes[1:2], tails[1:2]
    )
    assert "biases of all 2 extrapolated groups rest" in bias_words(sizes[1:], tails[1:])


def test_a_bias_gap_is_reported_as_a_failure_to_converge():
    assert convergence_words(1e-7).endswith("at most 1.0e-07, as they should at the optimum.")
    assert "which should be 0: the optimum was not reached" in convergence_words(0.02)
