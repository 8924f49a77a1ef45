"""Sums over blocks of samples: the one operation that every fit is made of.

A fit asks its samples for ``total(part, merge, …)``: ``part`` computes what one block contributes, ``merge`` adds two
contributions. Here the samples are in memory (``ArrayRows``) or arrive as a sequence of blocks, in one process or
several (``ProcessRows``); ``streams`` adds feature stores and Dask collections. Blocks are spread over our own threads;
BLAS is limited to one thread meanwhile.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, reduce
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

from compshift.core.arrays import FloatArray, IntArray
from compshift.distributed import ALONE, Collective

T = TypeVar("T")
Part = Callable[..., T]
"""Contribution of one block: a module-level function, so that other processes can run it."""

Merge = Callable[[T, T], T]

BLOCK_ROWS = 5120
"""Target number of samples per block in memory: large enough that threads seldom wait for Python's lock."""

MIN_THREADED_ROWS = 1024
"""Fewer samples than this form a single block."""

MIN_SINGLE_PRECISION_CELLS = 1 << 18
"""Smallest feature matrix, in elements, for which a float32 copy saves time."""


class Block(NamedTuple):
    """Consecutive samples, as they are stored."""

    features: Any  # (b, p) of any floating type
    position: Any  # (b,) index of each sample's seen group; None where it is not needed
    weight: Any  # (b,) above 0; None where every sample weighs 1


class Sums(NamedTuple):
    """Arrays that are added element by element."""

    arrays: tuple[Any, ...]

    @staticmethod
    def add(one: Sums, other: Sums) -> Sums:
        """Add the sums of two sets of samples."""
        return Sums(tuple(left + right for left, right in zip(one.arrays, other.arrays, strict=True)))


class SummableRows(Protocol):
    """Samples that can be summed over."""

    @property
    def n_features(self) -> int:
        """Number of features."""

    def total(self, part: Part[T], merge: Merge[T], *arguments: Any) -> T:
        """Merge ``part(block, *arguments)`` over all blocks, in order."""


@dataclass(frozen=True, eq=False)
class ArrayRows:
    """Samples in memory. Blocks do not depend on the number of threads, so neither do the sums."""

    features: FloatArray  # (n, p); float32 in a single_precision copy
    position: IntArray  # (n,)
    weight: FloatArray  # (n,)
    block_rows: int = 0  # smallest number of samples that is worth a block, where merging is costly

    @property
    def single_precision(self) -> ArrayRows | None:
        """A float32 copy, or None where the matrix is too small to gain from one."""
        if self.features.size < MIN_SINGLE_PRECISION_CELLS:
            return None
        return replace(self, features=self.features.astype(np.float32))

    @property
    def n_features(self) -> int:
        """Number of features."""
        return int(self.features.shape[1])

    def total(self, part: Part[T], merge: Merge[T], *arguments: Any) -> T:
        """Merge ``part(block, *arguments)`` over all blocks, in order."""
        if len(self.features) < MIN_THREADED_ROWS:
            return part(Block(self.features, self.position, self.weight), *arguments)

        def contribution(rows: slice) -> T:
            return part(Block(self.features[rows], self.position[rows], self.weight[rows]), *arguments)

        return reduce(merge, over_blocks(contribution, len(self.features), self.block_rows))


@dataclass(frozen=True, eq=False)
class ProcessRows:
    """Blocks of this process, and those of the other processes of its job."""

    blocks: Iterable[Block]  # the same blocks in the same order each time they are iterated over
    n_features: int
    n_threads: int = 1
    processes: Collective = ALONE

    def total(self, part: Part[T], merge: Merge[T], *arguments: Any) -> T:
        """Merge ``part(block, *arguments)`` over all blocks, in order of process and block."""
        with one_thread_for_numpy() if self.n_threads > 1 else nullcontext():
            own = reduce(merge, in_threads(part, self.blocks, arguments, self.n_threads))
        found: list[T] = self.processes.gather(own)
        return reduce(merge, found)


def over_blocks(part: Callable[[slice], T], n_rows: int, block_rows: int = 0) -> Iterator[T]:
    """Yield ``part(rows)`` for consecutive slices of the samples in memory, in order.

    Slices have ``BLOCK_ROWS`` samples or, where that is more, ``block_rows``. Nothing is computed before it is asked
    for, so that contributions can be merged as they come.
    """
    if n_rows < MIN_THREADED_ROWS:
        yield part(slice(0, n_rows))
        return
    pairs = -(-n_rows // (2 * max(BLOCK_ROWS, block_rows)))  # an even number of blocks is shared evenly by two threads
    n_blocks = 2 * pairs
    blocks = [slice(n_rows * i // n_blocks, n_rows * (i + 1) // n_blocks) for i in range(n_blocks)]
    with one_thread_for_numpy() as n_threads:
        yield from in_threads(part, blocks, (), n_threads)


def in_threads(part: Part[T], blocks: Iterable[Any], arguments: tuple[Any, ...], n_threads: int) -> Iterator[T]:
    """Yield ``part(block, *arguments)`` for each block, in order.

    At most ``n_threads + 1`` blocks are drawn ahead, so that blocks may be read from disk as they are needed.
    """
    if n_threads == 1:
        for block in blocks:
            yield part(block, *arguments)
        return
    pool = _pool(n_threads)
    waiting: deque[Future[T]] = deque()
    try:
        for block in blocks:
            if len(waiting) > n_threads:
                yield waiting.popleft().result()
            waiting.append(pool.submit(part, block, *arguments))
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


@cache
def _pool(n_threads: int) -> ThreadPoolExecutor:
    """Thread pool, kept because a search uses it hundreds of times."""
    return ThreadPoolExecutor(n_threads, thread_name_prefix="compshift")


if hasattr(os, "register_at_fork"):  # a forked child inherits the pool without its threads
    os.register_at_fork(after_in_child=_pool.cache_clear)


class _ThreadLimit:
    """Limit of one thread on some BLAS libraries, held while at least one fit of this process wants it."""

    def __init__(self, concerns: Callable[[Path], bool]) -> None:
        self._concerns = concerns
        self._lock = threading.Lock()
        self._holders = 0
        self._allowed = 1
        self._limit: Any = None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._release_in_child)

    @contextmanager
    def held(self) -> Iterator[int]:
        """Hold the limit; yield the number of threads that the libraries had without it."""
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

    def _release_in_child(self) -> None:
        """Lift the limit in a forked child, which does not have the threads that hold it."""
        self._lock = threading.Lock()
        if self._holders:
            self._holders = 0
            self._limit.restore_original_limits()

    def _set(self) -> None:
        libraries = _controller().info()
        paths = [library["filepath"] for library in libraries if library["user_api"] == "blas"]
        ours = [path for path in paths if self._concerns(Path(path))]
        counts = [library["num_threads"] for library in libraries if library["filepath"] in ours]
        self._allowed = max(counts, default=os.cpu_count() or 1)  # an unknown library keeps its threads
        self._limit = _controller().select(filepath=ours).limit(limits=1)


@cache
def _controller() -> ThreadpoolController:
    """Controller of the BLAS libraries; NumPy's and SciPy's are loaded before anything is computed."""
    return ThreadpoolController()


def _of_scipy(path: Path) -> bool:
    return "scipy.libs" in path.parts


_scipy, _numpy = _ThreadLimit(_of_scipy), _ThreadLimit(lambda path: not _of_scipy(path))


@contextmanager
def one_thread_for_scipy() -> Iterator[None]:
    """Limit SciPy's BLAS to one thread.

    The wheels of NumPy and SciPy each bring a BLAS whose idle threads spin. In an optimiser the two take turns, and
    SciPy's idle threads slow NumPy's matrix products down two to four times, while SciPy itself only handles short
    vectors there. The limit is process-wide: the first of several concurrent fits sets it and the last lifts it.
    """
    with _scipy.held():
        yield


@contextmanager
def one_thread_for_numpy() -> Iterator[int]:
    """Limit NumPy's BLAS to one thread while blocks are spread over our threads; yield how many those may be.

    Our threads also share the exponentials and sums between matrix products, which BLAS leaves to one thread. Where
    NumPy and SciPy share a library, as in conda, the limit applies to both.
    """
    with _numpy.held() as allowed:
        yield allowed
