"""Sums over blocks of samples, the basic operation of every fit.

A fit calls ``total(part, merge, …)`` of its samples: ``part`` computes the contribution of one block, and ``merge``
adds two contributions. In this module the samples are in memory (``ArrayRows``) or are read as a sequence of blocks by
one or several processes (``ProcessRows``); ``streams`` adds feature stores and Dask collections. Blocks are processed
in a pool of threads, while BLAS is limited to one thread.
"""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, cached_property, reduce
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

from compshift.core.arrays import FloatArray, IntArray, index_like, is_other_library, like, namespace
from compshift.core.sparse import Features
from compshift.distributed import ALONE, Collective

T = TypeVar("T")
Part = Callable[..., T]
"""Function that computes the contribution of one block. For Dask workers it must be defined at module level."""

Merge = Callable[[T, T], T]
"""Function that adds two contributions."""

BLOCK_ROWS = 5120
"""Target number of samples per block in memory: large enough that threads rarely wait for Python's global interpreter
lock."""

MIN_THREADED_ROWS = 1024
"""Number of samples below which all samples form a single block, processed without threads."""

MIN_SINGLE_PRECISION_CELLS = 1 << 18
"""Smallest number of elements of a feature matrix for which a float32 copy saves time."""


class Block(NamedTuple):
    """Features, groups and weights of consecutive samples."""

    features: Features  # (b, p) of any floating-point type
    position: Any  # (b,) index of each sample's seen group, or (b, D) expected codes; None if not needed
    weight: Any  # (b,) above 0; None if every sample has weight 1


class Sums(NamedTuple):
    """Tuple of arrays that are summed over samples."""

    arrays: tuple[Any, ...]

    @staticmethod
    def add(one: Sums, other: Sums) -> Sums:
        """Add the sums of two sets of samples, array by array."""
        return Sums(tuple(left + right for left, right in zip(one.arrays, other.arrays, strict=True)))


class SummableRows(Protocol):
    """Protocol of samples that can be summed over in blocks."""

    @property
    def n_features(self) -> int:
        """Number of features."""

    def total(self, part: Part[T], merge: Merge[T], *arguments: Any) -> T:
        """Merge ``part(block, *arguments)`` over all blocks, in order."""


@dataclass(frozen=True, eq=False)
class ArrayRows:
    """Samples in memory. The blocks, and so the rounding of the sums, do not depend on the number of threads."""

    features: Features  # (n, p); float32 in the single-precision copy
    position: IntArray | FloatArray  # (n,) index of each sample's seen group, or (n, D) expected codes
    weight: FloatArray  # (n,)
    block_rows: int = 0  # target samples per block, if above BLOCK_ROWS: large if merging contributions is expensive

    @cached_property
    def single_precision(self) -> ArrayRows | None:
        """Copy with float32 features, or None if the matrix is too small for it to save time.

        It is cached, because several fits may use the same samples one after the other.
        """
        if is_other_library(self.features):
            xp, size = namespace(self.features), math.prod(self.features.shape)
            single = None if size < MIN_SINGLE_PRECISION_CELLS else xp.astype(self.features, xp.float32)
        else:
            small = self.features.size < MIN_SINGLE_PRECISION_CELLS
            single = None if small else self.features.astype(np.float32)
        return None if single is None else replace(self, features=single)

    @cached_property
    def _whole(self) -> Block:
        """All samples; positions and weights have the library and the device of the features."""
        if not is_other_library(self.features):
            return Block(self.features, self.position, self.weight)
        position: Any = self.position
        return Block(self.features, index_like(position, self.features), like(self.weight, self.features))

    @property
    def n_features(self) -> int:
        """Number of features."""
        return int(self.features.shape[1])

    def total(self, part: Part[T], merge: Merge[T], *arguments: Any) -> T:
        """Merge ``part(block, *arguments)`` over all blocks, in order.

        Samples of another library than NumPy form a single block, because the library has threads of its own.
        """
        if len(self.features) < MIN_THREADED_ROWS or is_other_library(self.features):
            return part(self._whole, *arguments)

        def contribution(rows: slice) -> T:
            return part(Block(self.features[rows], self.position[rows], self.weight[rows]), *arguments)

        return reduce(merge, over_blocks(contribution, len(self.features), self.block_rows))


@dataclass(frozen=True, eq=False)
class ProcessRows:
    """Samples read as blocks by this process, and by the other processes of a distributed job."""

    blocks: Iterable[Block]  # blocks of this process, the same in every iteration
    n_features: int
    n_threads: int = 1
    processes: Collective = ALONE

    def total(self, part: Part[T], merge: Merge[T], *arguments: Any) -> T:
        """Merge ``part(block, *arguments)`` over all blocks, in order of process and block."""
        with one_thread_for_numpy() if self.n_threads > 1 else nullcontext():
            of_process = reduce(merge, in_threads(part, self.blocks, arguments, self.n_threads))
        of_all_processes: list[T] = self.processes.gather(of_process)
        return reduce(merge, of_all_processes)


def over_blocks(part: Callable[[slice], T], n_rows: int, block_rows: int = 0) -> Iterator[T]:
    """Yield ``part(rows)`` for consecutive slices of ``n_rows`` samples, in order.

    A slice has at most ``BLOCK_ROWS`` or ``block_rows`` samples, whichever is larger. Only a few results exist at a
    time, so that the caller can merge each one as soon as it is yielded.
    """
    if n_rows < MIN_THREADED_ROWS:
        yield part(slice(0, n_rows))
        return
    pairs = -(-n_rows // (2 * max(BLOCK_ROWS, block_rows)))  # two threads share an even number of blocks equally
    n_blocks = 2 * pairs
    blocks = [slice(n_rows * i // n_blocks, n_rows * (i + 1) // n_blocks) for i in range(n_blocks)]
    with one_thread_for_numpy() as n_threads:
        yield from in_threads(part, blocks, (), n_threads)


def in_threads(part: Part[T], blocks: Iterable[Any], arguments: tuple[Any, ...], n_threads: int) -> Iterator[T]:
    """Yield ``part(block, *arguments)`` for each block, in order.

    At most ``n_threads + 1`` blocks are in progress at a time, so that blocks can be read from disk on demand.
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
    """Return a thread pool, cached because a fit uses it hundreds of times."""
    return ThreadPoolExecutor(n_threads, thread_name_prefix="compshift")


if hasattr(os, "register_at_fork"):  # a forked child process inherits the pool object without its threads
    os.register_at_fork(after_in_child=_pool.cache_clear)


class _ThreadLimit:
    """Limit of one thread on some BLAS libraries, in effect while at least one fit of this process holds it."""

    def __init__(self, applies_to: Callable[[Path], bool]) -> None:
        self._applies_to = applies_to
        self._lock = threading.Lock()
        self._holders = 0
        self._allowed = 1
        self._libraries: list[Any] | None = None  # found only once: looking them up takes longer than a small block
        self._before: list[int] = []
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._release_in_child)

    @contextmanager
    def held(self) -> Iterator[int]:
        """Hold the limit; yield the number of threads that the libraries use without it."""
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
                        self._set_threads(self._before)

    def _release_in_child(self) -> None:
        """Lift the limit in a forked child process, where the threads that hold it do not exist."""
        self._lock = threading.Lock()
        if self._holders:
            self._holders = 0
            self._set_threads(self._before)

    def _set(self) -> None:
        """Record the current number of threads of the libraries, and limit them to one."""
        if self._libraries is None:
            known = _controller().select(user_api="blas").lib_controllers
            self._libraries = [library for library in known if self._applies_to(Path(library.filepath))]
        self._before = [int(library.num_threads) for library in self._libraries]
        # threadpoolctl lists no library if it does not know the BLAS, which then cannot be limited
        self._allowed = max(self._before) if self._before else os.cpu_count() or 1
        self._set_threads([1] * len(self._before))

    def _set_threads(self, counts: list[int]) -> None:
        """Set the number of threads of each library, where it differs."""
        for library, count, before in zip(self._libraries or (), counts, self._before, strict=True):
            if before > 1:
                library.set_num_threads(count)


@cache
def _controller() -> ThreadpoolController:
    """Return the controller of the BLAS libraries. It can be cached: NumPy and SciPy load their libraries on import."""
    return ThreadpoolController()


def _of_scipy(path: Path) -> bool:
    """Return whether a library belongs to the wheel of SciPy."""
    return "scipy.libs" in path.parts


_scipy, _numpy = _ThreadLimit(_of_scipy), _ThreadLimit(lambda path: not _of_scipy(path))


@contextmanager
def one_thread_for_scipy() -> Iterator[None]:
    """Limit SciPy's BLAS to one thread.

    The wheels of NumPy and SciPy each contain a BLAS whose idle threads spin. An optimiser uses the two in turn, and
    SciPy's idle threads make NumPy's matrix products two to four times slower, although SciPy's own products in an
    optimiser involve only short vectors. The limit is process-wide: the first of several concurrent fits sets it and
    the last lifts it.
    """
    with _scipy.held():
        yield


@contextmanager
def one_thread_for_numpy() -> Iterator[int]:
    """Limit NumPy's BLAS to one thread while a thread pool processes blocks; yield the number of threads for the pool.

    The pool is faster than a threaded BLAS because it also parallelises the exponentials and sums between the matrix
    products. If NumPy and SciPy share a BLAS library, as in conda, the limit applies to both.
    """
    with _numpy.held() as allowed:
        yield allowed
