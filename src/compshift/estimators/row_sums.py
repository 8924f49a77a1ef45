"""Sums over rows that are never in memory together: in blocks, in several threads, in several processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple, Protocol, TypeVar

from compshift.core.arrays import FloatArray, IntArray
from compshift.distributed.collective import ALONE, Collective

T = TypeVar("T")
Part = Callable[..., T]
"""What one block contributes: a function of a module, so that other processes can be asked for it."""

Merge = Callable[[T, T], T]


class Block(NamedTuple):
    """Some rows, as they are stored."""

    features: Any  # (b, p) of any floating type
    position: IntArray  # (b,) seen group of each
    weight: FloatArray  # (b,) above 0


class RowSums(Protocol):
    """Rows that can be summed over."""

    @property
    def n_features(self) -> int:
        """Columns."""

    def total(self, part: Part[T], merge: Merge[T], *arguments: Any) -> T:
        """``part(block, *arguments)`` of every block, merged in the blocks' order."""


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
        found: list[T] = self.processes.gather(reduce(merge, self._parts(part, arguments)))
        return reduce(merge, found)

    def _parts(self, part: Part[T], arguments: tuple[Any, ...]) -> Iterator[T]:
        """What each block contributes. No more blocks are in memory than threads work on, and one that waits."""
        if self.n_threads == 1:
            for block in self.blocks:
                yield part(block, *arguments)
            return
        with ThreadPoolExecutor(self.n_threads) as pool:
            waiting: deque[Future[T]] = deque()
            for block in self.blocks:
                if len(waiting) > self.n_threads:
                    yield waiting.popleft().result()
                waiting.append(pool.submit(part, block, *arguments))
            while waiting:
                yield waiting.popleft().result()
