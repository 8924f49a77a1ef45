"""Methods that a convex solver fits to features."""

import subprocess
import sys

import numpy as np

import compshift as cs
from compshift.bench.convex_methods import solve_method
from compshift.bench.jobs import Work, run_job
from compshift.bench.plan import make_plan
from compshift.bench.sources import file_source
from compshift.crm.ridge import typical_alpha
from compshift.methods.sampling import Sampling


def test_crm_predictors_match_the_classifier_set_up_by_hand(tmp_path):
    """Compare the correct rows of the four predictors with a classifier set up by hand; all four differ here."""
    rng = np.random.default_rng(0)
    codes = np.repeat([[0, 0], [0, 1], [1, 1], [1, 0]], [600, 100, 400, 100], axis=0)
    X = rng.normal(size=(len(codes), 5)) + codes[:, :1] * [1, 2, 0, 1, 0] + codes[:, 1:] * [2, 1, 1, 0, 0]
    np.savez(tmp_path / "b.npz", X=X, Z=codes, split=np.arange(len(codes)) % 3, attribute_names=["bird", "place"])
    source = file_source(str(tmp_path / "b.npz"), None, None, None, 0)
    job = make_plan([source], ["crm"], ["1,0"]).units[0].job(2, 0)
    record = run_job(Work(job, threads=1))
    data = source.load()
    train, test = data.part("train"), data.part("test")
    kept = ~(train.codes == [1, 0]).all(axis=1)
    frequency = np.bincount(data.space.index(test.codes)).reshape(2, 2) / len(test)
    clf = cs.CRMClassifier(alpha=job.drawn[0]["alpha"], tol=1e-4)
    clf.fit(train.X[kept], train.codes[kept, 0], attributes=train.codes[kept, 1])
    found = record["right"]["test"]
    for bias in ("extrapolated", "learned"):
        for name, prior in (("uniform", "uniform"), ("empirical", frequency)):
            predicted = clf.set_params(bias=bias).set_prior(prior).predict(test.X)
            right = np.bincount(data.space.index(test.codes), weights=predicted == test.codes[:, 0], minlength=4)
            assert found[f"{bias}-{name}"] == right.tolist()
    assert len({tuple(right) for right in found.values()}) == 4


def test_planning_and_convex_jobs_load_no_torch():
    """Benchmarks on features run in the base install, and their workers start without torch."""
    modules = ("plan", "jobs", "runner", "executors", "results", "convex_methods")
    script = f"import {', '.join(f'compshift.bench.{name}' for name in modules)}, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_subsampling_keeps_equally_many_rows_of_every_group():
    group = np.repeat([0, 1, 2], [5, 3, 8])
    sampling = Sampling.subsampled(np.bincount(group))
    rows = sampling.rows(group, np.random.default_rng(0))
    assert np.bincount(group[rows]).tolist() == [3, 3, 3]
    assert rows.tolist() == sorted(set(rows.tolist()))
    balanced = Sampling.balanced(np.bincount(group))
    assert balanced.rows(group, np.random.default_rng(0)).tolist() == list(range(16))
    np.testing.assert_allclose(balanced.weight * np.bincount(group), 1)


def _faint():
    """Return rows of 3 × 3 groups that differ in faint features only, so that the typical ridge is too strong."""
    rng = np.random.default_rng(1)
    codes = np.repeat([[y, a] for y in range(3) for a in range(3)], 60, axis=0)
    X = rng.normal(size=(len(codes), 12))
    X[:, :2] = 0.1 * (X[:, :2] + 3 * codes)
    return X, codes


def _chosen(path, codes, drop, X):
    """Run CRM with a ridge chosen by combinations; return the job, its record and its training rows."""
    np.savez(path, X=X, Z=codes, split=np.arange(len(codes)) % 3, attribute_names=["bird", "place"])
    source = file_source(str(path), None, None, None, 0)
    (job,) = make_plan([source], ["crm"], [drop], select="combinations").units[0].first()
    record = run_job(Work(job, threads=1))
    assert record["status"] == "done", record
    train = source.load().part("train")
    kept = np.array([",".join(map(str, code)) != drop for code in train.codes.tolist()])
    return job, record, train.X[kept], train.codes[kept]


def test_combinations_choose_the_ridge_of_crm_as_its_cross_validation_does(tmp_path):
    """The choice is that of ``CRMClassifierCV`` on the training rows, and the record is that of a fit at this alpha."""
    X, codes = _faint()
    job, record, X_train, train = _chosen(tmp_path / "b.npz", codes, "2,2", X)
    clf = cs.CRMClassifierCV(cv=10, prior="hull", bias="extrapolated", anchor="zero", unseen_offset=0.0)
    clf.fit(X_train, train[:, 0], attributes=train[:, 1])
    assert clf.n_splits_ > 1
    assert record["detail"]["alpha"] == clf.alpha_ < 0.2 * typical_alpha(12, np.ones(len(train)))
    assert "alpha" not in record["config"]["common"]
    space = job.data.source.load().space
    fixed = solve_method("crm", X_train, train, space, alpha=clf.alpha_, tol=1e-4, seed=0)
    test = job.data.source.load().part("test")
    predicted = fixed.predictors(space.frequencies(test.codes))["extrapolated-uniform"](test.X)
    assert sum(record["right"]["test"]["extrapolated-uniform"]) == (predicted == test.codes[:, 0]).sum()


def test_without_combinations_to_hold_out_the_ridge_of_crm_is_the_typical_one(tmp_path):
    rng = np.random.default_rng(0)
    codes = np.repeat([[0, 0], [0, 1], [1, 1], [1, 0]], [60, 30, 40, 20], axis=0)
    X = rng.normal(size=(len(codes), 5)) + codes[:, :1] * 2.0
    _, record, X_train, _ = _chosen(tmp_path / "b.npz", codes, "1,0", X)
    assert record["detail"]["alpha"] == typical_alpha(5, np.ones(len(X_train)))


def test_the_chosen_ridge_depends_on_training_rows_alone(tmp_path):
    X, codes = _faint()
    _, plain, _, _ = _chosen(tmp_path / "plain.npz", codes, "2,2", X)
    in_train = np.arange(len(X)) % 3 == 0
    X = np.where(in_train[:, None], X, np.random.default_rng(2).normal(size=X.shape))
    _, other, _, _ = _chosen(tmp_path / "other.npz", codes, "2,2", X)
    assert plain["detail"]["alpha"] == other["detail"]["alpha"]
    assert plain["right"]["test"] != other["right"]["test"]
