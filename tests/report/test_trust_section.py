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


class TestAccuracyDecides:
    """Sentences of trust follow measured accuracy, else expected accuracy, else the evidence behind the biases."""

    many, light = np.array([2071.0, 3000.0]), np.array([0.1, 0.1])
    few, heavy = np.array([2.0, 3.0]), np.array([0.9, 1.2])

    def test_measured_groups_are_not_distrusted_for_their_biases(self):
        words = bias_words(self.few, self.heavy, measured=np.array([0.946, 0.95]))
        assert "Do not rely" not in words
        assert "On labelled rows, the accuracy on these groups is 94.8% on average and 94.6% on the worst" in words

    def test_an_expected_accuracy_stands_beside_much_evidence(self):
        words = bias_words(self.many, self.light, expected=np.array([0.34, 0.34]))
        assert "2071" not in words
        assert "The expected accuracy on these groups is 34.0% on average and 34.0% on the worst" in words
        assert "says nothing about accuracy" in words

    def test_a_measurement_overrides_an_expectation(self):
        words = bias_words(self.many, self.light, np.array([0.9, np.nan]), np.array([0.3, 0.4]))
        assert "On labelled rows, the accuracy on 1 of these 2 groups is 90.0%" in words
        assert "The expected accuracy on 1 of these 2 groups is 40.0%" in words

    def test_groups_without_any_accuracy_are_judged_by_their_biases(self):
        words = bias_words(self.few, self.heavy, np.array([0.9, np.nan]))
        assert "Do not rely on the other one without labelled rows to check it." in words
        assert "Do not rely" not in bias_words(np.array([2.0, 90.0]), self.light, np.array([0.9, np.nan]))
        assert bias_words(self.few, self.heavy).endswith(
            "Do not rely on the extrapolation without labelled rows to check it."
        )


def test_the_trust_line_of_a_fit_follows_the_expected_accuracy(capsys, tmp_path):
    from compshift import CRMClassifier, CRMClassifierCV
    from compshift.report.terminal import print_fit
    from tests.estimators.made_data import make_data

    X, codes = make_data((3, 3), n=300)
    plain = CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1])
    print_fit(plain, 300, tmp_path / "m", as_json=False)
    assert "trust: the smallest effective sample size" in capsys.readouterr().out
    chosen = CRMClassifierCV(alphas=[0.01]).fit(X, codes[:, 0], attributes=codes[:, 1])
    print_fit(chosen, 300, tmp_path / "m", as_json=False)
    out = capsys.readouterr().out
    assert "trust: expected accuracy on 1 unseen group: " in out
    assert "trust: the smallest effective sample size" not in out
    assert "biases: the smallest effective sample size" in out
