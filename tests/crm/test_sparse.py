"""Fits to sparse features, against fits to the same features as a dense array."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline

from compshift import (
    AdditiveGaussian,
    CRMBoostingClassifier,
    CRMClassifier,
    CRMClassifierCV,
    InputError,
    LogitAdjustedClassifier,
    diagnose,
    infer_attributes,
)

GROUPS = np.array([(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)])
UNSEEN = (1, 2)


def words(n, seed=0, groups=GROUPS):
    """Return counts of 40 words (n, 40), mostly zero, and the groups (n, 2) that they depend on."""
    rng = np.random.default_rng(seed)
    z = groups[rng.integers(len(groups), size=n)]
    X = (rng.random((n, 40)) < 0.05).astype(float)
    X[:, :2] += (rng.random((n, 2)) < 0.5) * (z[:, :1] == [0, 1])
    X[:, 2:5] += (rng.random((n, 3)) < 0.5) * (z[:, 1:] == [0, 1, 2])
    return X, z


X, Z = words(1200)  # more than fit into one block
Y, A = Z.T
NEW, NEW_Z = words(300, 1, np.vstack([GROUPS, UNSEEN]))


def same(dense, of_sparse, tol=1e-8):
    for name in ("coef_", "bias_", "learned_bias_", "cumulant_bias_", "effective_sample_size_"):
        np.testing.assert_allclose(getattr(of_sparse, name), getattr(dense, name), atol=tol, rtol=tol)
    np.testing.assert_allclose(of_sparse.predict_proba(sparse.csr_matrix(NEW)), dense.predict_proba(NEW), atol=tol)


@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.csr_array, sparse.coo_array, sparse.csc_matrix])
def test_every_format_gives_the_model_of_the_dense_features(kind):
    dense = CRMClassifier(tol=1e-10).fit(X, Y, attributes=A)
    of_sparse = CRMClassifier(tol=1e-10).fit(kind(X), Y, attributes=A)
    same(dense, of_sparse)
    np.testing.assert_allclose(of_sparse.predict_proba(NEW), dense.predict_proba(NEW), atol=1e-8)
    np.testing.assert_allclose(dense.predict_proba(kind(NEW)), dense.predict_proba(NEW), atol=1e-12)


@pytest.mark.parametrize(
    "parameters",
    [{"cross_fit": True}, {"feature_transform": "unit_length"}, {"feature_transform": "signed_root"}, {"alpha": 0.5}],
    ids=str,
)
def test_parameters_give_the_model_of_the_dense_features(parameters):
    weight = np.random.default_rng(0).random(len(X)) * (np.arange(len(X)) % 9 > 0)
    dense, of_sparse = (
        CRMClassifier(tol=1e-10, **parameters).fit(features, Y, attributes=A, sample_weight=weight)
        for features in (X, sparse.csr_matrix(X))
    )
    same(dense, of_sparse)


def test_known_and_missing_attributes():
    missing = np.where(np.arange(len(A)) % 5, A, np.nan)
    dense, of_sparse = (
        CRMClassifier(tol=1e-8).fit(features, Y, attributes=missing) for features in (X, sparse.csr_matrix(X))
    )
    same(dense, of_sparse)
    known = np.where(np.arange(len(NEW)) % 2, NEW_Z[:, 1], np.nan)
    found = of_sparse.predict_proba(sparse.csr_matrix(NEW), attributes=known)
    np.testing.assert_allclose(found, dense.predict_proba(NEW, attributes=known), atol=1e-8)


def test_unlabelled_samples():
    dense, of_sparse = (
        CRMClassifier(tol=1e-10).fit(kind(X), Y, attributes=A, unlabelled=kind(NEW))
        for kind in (np.asarray, sparse.csr_matrix)
    )
    assert of_sparse.n_rounds_ == dense.n_rounds_ > 0
    same(dense, of_sparse)


def test_settings_are_chosen_alike():
    options = {"alphas": [0.01, 0.1], "anchor": "zero", "tol": 1e-10}
    dense = CRMClassifierCV(**options).fit(X, Y, attributes=A, unlabelled=NEW)
    of_sparse = CRMClassifierCV(**options | {"anchor": "auto"}).fit(
        sparse.csr_matrix(X), Y, attributes=A, unlabelled=sparse.csr_matrix(NEW)
    )
    assert of_sparse.unlabelled_decision_.reason == dense.unlabelled_decision_.reason
    same(dense, of_sparse)
    np.testing.assert_allclose(
        of_sparse.expected_group_accuracy_["accuracy"], dense.expected_group_accuracy_["accuracy"]
    )
    sets = of_sparse.predict_set(sparse.csr_matrix(NEW)).p_values
    np.testing.assert_allclose(sets, dense.predict_set(NEW).p_values, atol=1e-8)
    assert len(of_sparse.explain(sparse.csr_matrix(NEW))) == len(NEW)
    reports = [
        diagnose(clf, kind(NEW), *NEW_Z.T) for clf, kind in ((dense, np.asarray), (of_sparse, sparse.csr_matrix))
    ]
    assert reports[1].log_likelihood == pytest.approx(reports[0].log_likelihood, abs=1e-8)


def test_logit_adjustment():
    dense, of_sparse = (
        LogitAdjustedClassifier(tol=1e-10).fit(features, Y, attributes=A) for features in (X, sparse.csr_matrix(X))
    )
    np.testing.assert_allclose(of_sparse.coef_, dense.coef_, atol=1e-8)
    np.testing.assert_allclose(of_sparse.decision_function(sparse.csr_matrix(NEW)), dense.decision_function(NEW))


def test_a_pipeline_of_texts():
    texts = [" ".join(f"w{word}" for word in np.flatnonzero(row)) for row in X]
    new = [" ".join(f"w{word}" for word in np.flatnonzero(row)) for row in NEW]
    pipe = make_pipeline(TfidfVectorizer(), CRMClassifier()).fit(texts, Y, crmclassifier__attributes=A)
    vectors = pipe[0].transform(texts)
    dense = CRMClassifier().fit(vectors.toarray(), Y, attributes=A)
    np.testing.assert_allclose(
        pipe.predict_proba(new), dense.predict_proba(pipe[0].transform(new).toarray()), atol=1e-5
    )
    assert pipe.score(new, NEW_Z[:, 0]) > 0.7


def test_features_are_never_made_dense(monkeypatch):
    for kind in (sparse.csr_array, sparse.csr_matrix):
        for name in ("toarray", "todense"):
            monkeypatch.setattr(kind, name, lambda *_: pytest.fail("the features were made dense"))
    wide = sparse.random_array((1500, 5000), density=0.002, format="csr", random_state=np.random.default_rng(0))
    clf = CRMClassifier().fit(wide, np.arange(1500) % 2, attributes=np.arange(1500) % 3)
    assert clf.predict(wide).shape == (1500,)


@pytest.mark.parametrize(
    ("fit", "message"),
    [
        (lambda S: CRMClassifier(anchor="gaussian").fit(S, Y, attributes=A), "anchor='gaussian' needs the covariance"),
        (lambda S: CRMClassifierCV(anchor="gaussian").fit(S, Y, attributes=A), "anchor='gaussian' needs the covaria"),
        (lambda S: AdditiveGaussian().fit(S, Y, attributes=A), "X is sparse, but dense features are needed here"),
        (lambda S: infer_attributes(S, Y), "X is sparse, but dense features are needed here: reduce X to a few hun"),
        (lambda S: CRMClassifier().fit(S, Y, attributes=A, unlabelled=S[:, :3]), "unlabelled cannot be read as sparse"),
        (lambda S: CRMClassifier().fit(S, Y, attributes=A).predict(S[:, :3]), "expecting 40 features as input"),
    ],
)
def test_what_needs_dense_features_says_so(fit, message):
    with pytest.raises(InputError, match=message):
        fit(sparse.csr_matrix(X))


def test_trees_need_dense_features():
    pytest.importorskip("lightgbm")
    with pytest.raises(InputError, match="X is sparse, but dense features are needed"):
        CRMBoostingClassifier().fit(sparse.csr_matrix(X), Y, attributes=A)


def test_bad_entries_are_named_by_row_and_column():
    values = X.copy()
    values[7, 3] = np.nan
    with pytest.raises(InputError, match=r"X has 1 NaN or infinite \(inf\) value, the first at row 7, column 3"):
        CRMClassifier().fit(sparse.csr_matrix(values), Y, attributes=A)
    values[7, 3] = 1e303
    with pytest.raises(InputError, match="sums of values above 1e"):
        CRMClassifier().fit(sparse.csr_matrix(values), Y, attributes=A)
