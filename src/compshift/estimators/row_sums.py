"""Sums over rows, a block at a time: in several threads, in several processes, and of more rows than memory holds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple, Protocol, TypeVar

from compshift.core.arrays import FloatArray, IntArray, row_blocks
from compshift.distributed.collective import ALONE, Collective
from compshift.estimators.threads import one_thread_for_numpy

T = TypeVar("T")
Part = Callable[..., T]
"""What one block contributes: a function of a module, so that other processes can be asked for it."""

Merge = Callable[[T, T], T]

CELLS = 1 << 19
"""How many numbers a block of rows in memory holds, so that the sums of blocks are few beside the rows."""


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

    features: FloatArray  # (n, p)
    position: IntArray  # (n,)
    weight: FloatArray  # (n,)

    @property
    def n_features(self) -> int:
        """Columns."""
        return int(self.features.shape[1])

    def total(self, part: Part[T], merge: Merge[T], *arguments: Any) -> T:
        """``part(block, *arguments)`` of every block, merged in order."""
        slices = list(row_blocks(len(self.features), self.n_features, CELLS))
        blocks = (Block(self.features[rows], self.position[rows], self.weight[rows]) for rows in slices)
        if len(slices) == 1:
            return part(*blocks, *arguments)
        with one_thread_for_numpy() as n_threads:
            return reduce(merge, in_threads(part, blocks, arguments, n_threads))


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


def in_threads(part: Part[T], blocks: Iterable[Any], arguments: tuple[Any, ...], n_threads: int) -> Iterator[T]:
    """What each block contributes, in order. No more blocks are drawn than threads work on, and one that waits."""
    if n_threads == 1:
        for block in blocks:
            yield part(block, *arguments)
        return
    with ThreadPoolExecutor(n_threads) as pool:
        waiting: deque[Future[T]] = deque()
        for block in blocks:
            if len(waiting) > n_threads:
                yield waiting.popleft().result()
            waiting.append(pool.submit(part, block, *arguments))
        while waiting:
            yield waiting.popleft().result()
