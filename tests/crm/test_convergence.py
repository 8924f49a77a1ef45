"""When a fit of CRM is at its optimum, and what it tells on the way."""

import logging

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from compshift import CRMClassifier, GroupSpace
from tests.estimators.made_data import make_data


class TestConvergence:
    def test_not_converged_is_told_with_the_remedy(self, fitted):
        _, X, codes = fitted
        with pytest.warns(ConvergenceWarning, match="after 2 iterations .*raise max_iter") as caught:
            clf = CRMClassifier(max_iter=2).fit(X, codes[:, 0], attributes=codes[:, 1])
        assert caught[0].filename == __file__
        assert not clf.converged_
        assert clf.n_iter_ == 2
        assert clf.bias_gap_ > 1e-5

    def test_verbose_logs_every_iteration(self, fitted, caplog):
        _, X, codes = fitted
        clf = CRMClassifier(verbose=True).fit(X, codes[:, 0], attributes=codes[:, 1])
        messages = [record for record in caplog.records if record.message.startswith("iteration")]
        assert len(messages) == clf.n_iter_
        caplog.clear()
        CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1])
        assert not caplog.records

    def test_verbose_reaches_standard_error_without_logging_set_up(self, fitted, capfd, monkeypatch):
        _, X, codes = fitted
        monkeypatch.setattr(logging.getLogger("compshift"), "propagate", False)
        CRMClassifier(verbose=1).fit(X, codes[:, 0], attributes=codes[:, 1])
        assert "iteration 1: risk" in capfd.readouterr().err
        assert not logging.getLogger("compshift").handlers

    @pytest.mark.parametrize("alpha", [1e-6, 1e-4])
    def test_converged_means_that_the_optimum_is_near(self, alpha):
        """On separable data with a weak penalty the gradient is small long before the optimum is reached."""
        rng = np.random.default_rng(186)
        codes = np.array([(0, 0), (0, 1), (1, 1), (1, 2)])[rng.integers(0, 4, size=30)]
        X = rng.normal(size=(30, 40)) + GroupSpace.from_cardinalities([2, 3]).one_hot(codes) @ rng.normal(size=(5, 40))
        new = rng.normal(size=(200, 40))
        loose, tight = (
            CRMClassifier(alpha=alpha, tol=tol).fit(X, codes[:, 0], attributes=codes[:, 1]) for tol in (1e-6, 1e-9)
        )
        assert loose.converged_
        assert tight.converged_
        np.testing.assert_allclose(loose.predict_proba(new), tight.predict_proba(new), atol=1e-3)
        np.testing.assert_allclose(loose.bias_, tight.bias_, atol=5e-3)

    def test_newton_steps_finish_what_rounding_stops(self):
        X, codes = make_data(n=1500)
        clf = CRMClassifier(alpha=0.1, tol=1e-12).fit(X, codes[:, 0], attributes=codes[:, 1])
        assert clf.converged_
        assert clf.bias_gap_ < 1e-12

    def test_separable_data_stay_finite(self):
        X = np.array([[-5.0], [-4.0], [4.0], [5.0]] * 10)
        clf = CRMClassifier(alpha=1e-8, max_iter=5000).fit(X, (X[:, 0] > 0).astype(int))
        assert np.isfinite(clf.coef_).all()
        assert np.isfinite(clf.predict_log_proba(X * 1e6)).all()
        assert clf.score(X, X[:, 0] > 0) == 1
