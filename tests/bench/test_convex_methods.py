"""Methods that a convex solver fits to features."""

import subprocess
import sys

import numpy as np

import compshift as cs
from compshift.bench.jobs import Work, run_job
from compshift.bench.plan import make_plan
from compshift.bench.sources import file_source
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
