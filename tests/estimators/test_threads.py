from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from threadpoolctl import threadpool_info, threadpool_limits

from compshift.estimators.threads import one_thread_for_scipy


def scipy_threads():
    return [library["num_threads"] for library in threadpool_info() if "scipy.libs" in Path(library["filepath"]).parts]


def test_limit_holds_inside_and_is_lifted_after_the_last():
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
