"""The classifiers with scikit-learn's tools."""

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.metrics import make_scorer
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from compshift import CRMClassifier
from compshift.metrics import worst_group_accuracy
from tests.estimators.made_data import make_data


@parametrize_with_checks([CRMClassifier()])
@pytest.mark.filterwarnings("ignore::compshift.ExtrapolationWarning")
def test_scikit_learns_common_checks_pass(estimator, check):
    check(estimator)


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def test_attributes_reach_the_classifier_of_a_pipeline():
    X, codes = make_data()
    direct = CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1])
    pipeline = make_pipeline(StandardScaler(with_std=False), CRMClassifier())
    pipeline.fit(X, codes[:, 0], crmclassifier__attributes=codes[:, 1])
    np.testing.assert_allclose(pipeline.predict_proba(X), direct.predict_proba(X), atol=1e-6)


@pytest.mark.usefixtures("routing")
def test_cross_val_score_routes_attributes():
    X, codes = make_data(n=300)
    clf = CRMClassifier().set_fit_request(attributes=True)
    scores = cross_val_score(clf, X, codes[:, 0], cv=3, params={"attributes": codes[:, 1]})
    assert scores.shape == (3,)
    without = cross_val_score(CRMClassifier(), X, codes[:, 0], cv=3)
    assert not np.array_equal(scores, without)


@pytest.mark.usefixtures("routing")
def test_grid_search_scores_by_worst_group():
    X, codes = make_data(n=300)
    routed = []

    def worst(y_true, y_pred, attributes):
        routed.append(attributes)
        return worst_group_accuracy(y_true, y_pred, attributes)

    scorer = make_scorer(worst).set_score_request(attributes=True)
    pipeline = Pipeline(
        [("scale", StandardScaler()), ("crm", CRMClassifier().set_fit_request(attributes=True, sample_weight=False))]
    )
    search = GridSearchCV(pipeline, {"crm__alpha": [1e-3, 1e-1, 10.0]}, scoring=scorer, cv=3)
    search.fit(X, codes[:, 0], attributes=codes[:, 1])
    assert set(search.cv_results_["param_crm__alpha"]) == {1e-3, 1e-1, 10.0}
    assert search.best_estimator_["crm"].space_.names == ("y", "a")
    assert np.array_equal(np.concatenate(routed[:3]), codes[np.concatenate(list(folds(codes)))][:, 1])


def folds(codes):
    """Return the test samples of the three folds of the search above."""
    return (test for _, test in StratifiedKFold(3).split(codes, codes[:, 0]))


def test_a_clone_has_the_same_parameters():
    clf = CRMClassifier(alpha=0.3, prior="hull", support=[[0, 1]], bias="learned", tol=1e-3, max_iter=7, verbose=1)
    copy = clone(clf)
    assert copy.get_params() == clf.get_params()
    assert "alpha=0.3" in repr(copy)
