"""Which linear algebra library may use how many threads."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from threadpoolctl import ThreadpoolController


class _Limit:
    """A limit of one thread on some libraries, for as long as anybody in this process wants it."""

    def __init__(self, concerns: Callable[[Path], bool]) -> None:
        self._concerns = concerns
        self._lock = threading.Lock()
        self._holders = 0
        self._allowed = 1
        self._limit: Any = None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    @contextmanager
    def held(self) -> Iterator[int]:
        """Hold the limit; how many threads the libraries were allowed without it."""
        taken = False
        try:
            with self._lock:
                if self._holders == 0:
                    self._set()
                self._holders += 1
                taken = True
            yield self._allowed
        finally:
            if taken:
                with self._lock:
                    self._holders -= 1
                    if self._holders == 0:
                        self._limit.restore_original_limits()

    def _forget(self) -> None:
        """Lift the limit in a child process: the threads that hold it are not there."""
        self._lock = threading.Lock()
        if self._holders:
            self._holders = 0
            self._limit.restore_original_limits()

    def _set(self) -> None:
        libraries = _controller().info()
        paths = [library["filepath"] for library in libraries if library["user_api"] == "blas"]
        ours = [path for path in paths if self._concerns(Path(path))]
        counts = [library["num_threads"] for library in libraries if library["filepath"] in ours]
        self._allowed = max(counts, default=os.cpu_count() or 1)  # a library that is not known keeps its threads
        self._limit = _controller().select(filepath=ours).limit(limits=1)


@cache
def _controller() -> ThreadpoolController:
    """The libraries that are loaded. NumPy's and SciPy's are, before anything is computed."""
    return ThreadpoolController()


def _of_scipy(path: Path) -> bool:
    return "scipy.libs" in path.parts


_scipy, _numpy = _Limit(_of_scipy), _Limit(lambda path: not _of_scipy(path))


@contextmanager
def one_thread_for_scipy() -> Iterator[None]:
    """Keep SciPy's linear algebra to one thread.

    The wheels of NumPy and SciPy each bring a BLAS with a pool of threads that spin while they wait. In an optimiser
    the two take turns, and SciPy's idle threads slow NumPy's matrix products down two to four times; what SciPy itself
    computes there are short vectors. The limit holds for the whole process, so that of several fits at once the first
    sets it and the last lifts it.
    """
    with _scipy.held():
        yield


@contextmanager
def one_thread_for_numpy() -> Iterator[int]:
    """Keep NumPy's linear algebra to one thread, while blocks of rows are spread over threads; how many there may be.

    Threads of ours also take the exponentials and sums between matrix products, which those of BLAS leave to one. Where
    NumPy and SciPy share a library, as in conda, the limit is on both.
    """
    with _numpy.held() as allowed:
        yield allowed
