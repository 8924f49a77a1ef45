"""Sums over rows, a block at a time: in several threads, in several processes, and of more rows than memory holds."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, reduce
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from compshift.core.arrays import FloatArray, IntArray
from compshift.distributed.collective import ALONE, Collective
from compshift.estimators.threads import one_thread_for_numpy

T = TypeVar("T")
Part = Callable[..., T]
"""What one block contributes: a function of a module, so that other processes can be asked for it."""

Merge = Callable[[T, T], T]

BLOCK_ROWS = 5120
"""Most rows of a block in memory: so many that threads seldom wait for each other, or for Python's lock."""

WORTH_THREADS = 1024
"""Fewer rows are one block."""

COARSE_CELLS = 1 << 18
"""From so many numbers on, single precision is worth a copy of them."""


class Block(NamedTuple):
    """Some rows, as they are stored."""

    features: Any  # (b, p) of any floating type
    position: IntArray  # (b,) seen group of each
    weight: FloatArray  # (b,) above 0


class Sums(NamedTuple):
    """Arrays that add up entry by entry."""

    arrays: tuple[Any, ...]

    @staticmethod
    def add(one: Sums, other: Sums) -> Sums:
        """The sums over the rows of both."""
        return Sums(tuple(left + right for left, right in zip(one.arrays, other.arrays, strict=True)))


class RowSums(Protocol):
    """Rows that can be summed over."""

    @property
    def n_features(self) -> int:
        """Columns."""

    def total(self, part: Part[T], merge: Merge[T], *arguments: Any) -> T:
        """``part(block, *arguments)`` of every block, merged in the blocks' order."""


@dataclass(frozen=True, eq=False)
class ArrayRows:
    """Rows in memory, in blocks that do not depend on the number of threads, so that sums do not either."""

    features: FloatArray  # (n, p) or, if they are coarse, float32
    position: IntArray  # (n,)
    weight: FloatArray  # (n,)

    @property
    def coarse(self) -> ArrayRows | None:
        """A copy in single precision; None if there are so few that nothing is gained."""
        if self.features.size < COARSE_CELLS:
            return None
        return replace(self, features=self.features.astype(np.float32))

    @property
    def n_features(self) -> int:
        """Columns."""
        return int(self.features.shape[1])

    def total(self, part: Part[T], merge: Merge[T], *arguments: Any) -> T:
        """``part(block, *arguments)`` of every block, merged in order."""

        def own(rows: slice) -> T:
            block = Block(self.features[rows], self.position[rows], self.weight[rows])
            return part(block, *arguments)

        return reduce(merge, over_blocks(own, len(self.features)))


class Blocks(Protocol):
    """Rows of this process, block by block, each time they are asked for."""

    @property
    def n_features(self) -> int:
        """Columns."""

    def __iter__(self) -> Iterator[Block]:
        """The blocks, always the same ones in the same order."""


@dataclass(frozen=True, eq=False)
class LocalRows:
    """Blocks of this process, in so many threads, and those of the other processes of its job."""

    blocks: Blocks
    n_threads: int = 1
    processes: Collective = ALONE

    @property
    def n_features(self) -> int:
        """Columns."""
        return self.blocks.n_features

    def total(self, part: Part[T], merge: Merge[T], *arguments: Any) -> T:
        """``part(block, *arguments)`` of every block, merged in order of process and block."""
        found: list[T] = self.processes.gather(reduce(merge, in_threads(part, self.blocks, arguments, self.n_threads)))
        return reduce(merge, found)


def over_blocks(part: Callable[[slice], T], n_rows: int, fewest_rows: int = 0) -> Iterator[T]:
    """What each block of rows in memory contributes, in order; ``fewest_rows`` if that is worth as many.

    Nothing is done before it is asked for, so that sums can be merged as they come.
    """
    pairs = -(-n_rows // (2 * max(BLOCK_ROWS, fewest_rows)))  # an even number of blocks is shared by two threads
    n_blocks = 2 * pairs if n_rows >= WORTH_THREADS else 1
    blocks = [slice(n_rows * i // n_blocks, n_rows * (i + 1) // n_blocks) for i in range(n_blocks)]  # of one length
    if n_blocks == 1:
        yield part(*blocks)
        return
    with one_thread_for_numpy() as n_threads:
        yield from in_threads(part, blocks, (), n_threads)


def in_threads(part: Part[T], blocks: Iterable[Any], arguments: tuple[Any, ...], n_threads: int) -> Iterator[T]:
    """What each block contributes, in order. No more blocks are drawn than threads work on, and one that waits."""
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
    """Threads that are kept, because a search asks for them hundreds of times."""
    return ThreadPoolExecutor(n_threads, thread_name_prefix="compshift")


if hasattr(os, "register_at_fork"):  # a child process has the pool but not its threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
