"""Sums over blocks of samples, in threads, and the limits on the threads of BLAS."""

import multiprocessing
import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import compshift.crm.blocks as blocks
from compshift import CRMClassifier, GroupSpace
from compshift.core.energy import GroupTable
from compshift.crm.blocks import ArrayRows, Block, ProcessRows, Sums, one_thread_for_numpy, one_thread_for_scipy
from compshift.crm.problem import block_risk, standard_of, standardise
from tests.estimators.made_data import hide, make_data


def scipy_threads():
    return [library["num_threads"] for library in threadpool_info() if "scipy.libs" in Path(library["filepath"]).parts]


def numpy_threads():
    return [library["num_threads"] for library in threadpool_info() if "numpy.libs" in Path(library["filepath"]).parts]


def test_the_limit_is_lifted_when_its_last_holder_leaves():
    with threadpool_limits(2, user_api="blas"):
        before = scipy_threads()
        with one_thread_for_scipy():
            assert set(scipy_threads()) <= {1}
            with one_thread_for_scipy():
                assert set(scipy_threads()) <= {1}
            assert set(scipy_threads()) <= {1}
        assert scipy_threads() == before


def test_many_fits_at_once_leave_no_limit_behind():
    def work(_):
        with one_thread_for_scipy():
            return sum(range(10_000))

    with threadpool_limits(2, user_api="blas"):
        before = scipy_threads()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(64)))
        assert scipy_threads() == before


def test_the_limit_on_numpy_yields_the_number_of_threads_allowed_without_it():
    with threadpool_limits(2, user_api="blas"):
        before = numpy_threads()
        with one_thread_for_scipy(), one_thread_for_numpy() as outer, one_thread_for_numpy() as inner:
            assert outer == inner == max(before, default=1)
            assert set(numpy_threads()) <= {1}
        assert numpy_threads() == before
        with one_thread_for_numpy():
            with one_thread_for_scipy():
                pass
            assert set(numpy_threads()) <= {1}
        assert numpy_threads() == before


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of about 30 samples, in double and in single precision."""
    monkeypatch.setattr(blocks, "BLOCK_ROWS", 30)
    monkeypatch.setattr(blocks, "MIN_THREADED_ROWS", 1)
    monkeypatch.setattr(blocks, "MIN_SINGLE_PRECISION_CELLS", 1)


@pytest.mark.usefixtures("small_blocks")
def test_sums_over_blocks_equal_one_sum_with_any_number_of_threads():
    X, codes = make_data((3, 3), n=300)
    space = GroupSpace.from_cardinalities([3, 3])
    groups, position = space.distinct(codes)
    table, rng = GroupTable.of(space, groups), np.random.default_rng(0)
    weight, log_score = rng.normal(size=(6, X.shape[1])), rng.normal(size=len(groups))
    rows = ArrayRows(X, position, rng.random(300))
    found = []
    for count in (1, 2):
        with threadpool_limits(count, user_api="blas"):
            found.append(rows.total(block_risk, Sums.add, table, weight, log_score))
    whole = block_risk(Block(X, position, rows.weight), table, weight, log_score)
    for one, two, expected in zip(found[0].arrays, found[1].arrays, whole.arrays, strict=True):
        np.testing.assert_array_equal(one, two)
        np.testing.assert_allclose(one, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_a_fit_in_several_threads_equals_that_in_one(missing):
    X, codes = make_data((3, 3), n=300)
    attributes = hide(codes, missing)
    fits = []
    for count in (1, 2):
        with threadpool_limits(count, user_api="blas"):
            fits.append(CRMClassifier(prior="hull", cross_fit=not missing).fit(X, codes[:, 0], attributes=attributes))
    np.testing.assert_allclose(fits[0].coef_, fits[1].coef_, atol=1e-9)
    np.testing.assert_allclose(fits[0].bias_, fits[1].bias_, atol=1e-9)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.usefixtures("small_blocks")
def test_a_forked_process_has_threads_of_its_own():
    X, codes = make_data((3, 3), n=300)
    with threadpool_limits(2, user_api="blas"):
        clf = CRMClassifier(prior="hull").fit(X, codes[:, 0], attributes=codes[:, 1])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the test forks a process with threads on purpose
            with multiprocessing.get_context("fork").Pool(1) as pool:
                found = pool.apply_async(clf.predict_proba, (X,)).get(timeout=60)
    np.testing.assert_array_equal(found, clf.predict_proba(X))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_limit_held_at_a_fork_is_lifted_in_the_child():
    with threadpool_limits(2, user_api="blas"):
        before = numpy_threads()
        with one_thread_for_numpy(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            with multiprocessing.get_context("fork").Pool(1) as pool:
                assert pool.apply_async(numpy_threads).get(timeout=60) == before
            assert set(numpy_threads()) <= {1}


def test_a_limit_that_cannot_be_set_is_not_counted(monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    with threadpool_limits(2, user_api="blas"):
        before = numpy_threads()
        with monkeypatch.context() as patch:
            patch.setattr("compshift.crm.blocks._ThreadLimit._set", interrupted)
            with pytest.raises(KeyboardInterrupt), one_thread_for_numpy():
                pass
        with one_thread_for_numpy():
            assert set(numpy_threads()) <= {1}
        assert numpy_threads() == before


class ArrayBlocks:
    """Blocks of an array, each of ``step`` samples."""

    def __init__(self, X, step):
        self.X, self.step = X, step

    def __iter__(self):
        for start in range(0, len(self.X), self.step):
            part = self.X[start : start + self.step]
            yield Block(part, np.zeros(len(part), dtype=np.int64), np.ones(len(part)))


def first_row(block, factor):
    return [factor * float(block.features[0, 0])]


def joined(one, other):
    return one + other


class TestLocalRows:
    @pytest.mark.parametrize("threads", [1, 2, 5])
    def test_contributions_are_merged_in_order(self, threads):
        X = np.arange(100.0)[:, None]
        found = ProcessRows(ArrayBlocks(X, 7), 1, threads).total(first_row, joined, 2.0)
        assert found == [2.0 * start for start in range(0, 100, 7)]

    def test_an_error_in_a_block_is_raised(self):
        with pytest.raises(ZeroDivisionError):
            ProcessRows(ArrayBlocks(np.ones((10, 1)), 3), 1, 2).total(lambda block: 1 / 0 * len(block), joined)

    @pytest.mark.parametrize(("offset", "scale"), [(0.0, 1.0), (1e8, 1.0), (3.0, 1e-150), (0.0, 1e150)])
    def test_centre_and_scale_equal_those_of_samples_in_memory(self, offset, scale):
        X = (np.random.default_rng(0).normal(size=(500, 3)) + offset) * scale
        found = standard_of(ProcessRows(ArrayBlocks(X, 64), 3))
        _, expected = standardise(X, np.ones(500))
        np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-12, atol=1e-12 * scale)
        assert found.scale == pytest.approx(expected.scale, rel=1e-9)
        assert found.spread == pytest.approx(expected.spread, rel=1e-6)
