r"""Which linear algebra library may use how many threads.

Sums over rows, a block at a time: in several threads, in several processes, and of more rows than memory holds.

About how curved a risk is along the weights: what sets the unit in which a search takes them.

The Hessian of a softmax in the weights of one value, of share f, is about :math:`f (1 - f)\, C` with the features'
second moments C. A search that takes biases in units of curvature 1 wants weights in such units too. Directions differ,
though, and those that tell groups apart need not be the ones that vary most; so weights are taken in a unit halfway
between that of the mean direction and that of the leading ones. On embeddings of images, whose leading directions have
two hundred times the mean variance, a search takes two thirds of the steps; elsewhere a third less to a fifth more.

Features without a unit: centred, and divided by one common scale.
"""

from __future__ import annotations

import math
import os
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, reduce
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

from compshift._checks import MAX_FEATURE, check_finite, check_sums
from compshift._errors import InputError
from compshift.core.arrays import FloatArray, IntArray
from compshift.distributed import ALONE, Collective


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


PROBES = 16
"""Directions along which second moments are looked at: the spread need be known to a factor of two only."""


def softmax_curvature(share: FloatArray, spread: float, alpha: float) -> FloatArray:
    """Along the weights of values with these shares (d,) of the rows, with the penalty's own, (d,); at least 1.

    That the spread counts twice, and the root of it all, is by measurement: on embeddings and on Gaussians.
    """
    return np.sqrt(np.maximum(2 * spread * share * (1 - share) + alpha, 1.0))


@cache
def probes(n_features: int) -> FloatArray:
    """Random directions, always the same, at right angles to each other and of length √p: (p, q)."""
    found = np.random.default_rng(0).normal(size=(n_features, min(PROBES, n_features)))
    return np.asarray(np.linalg.qr(found).Q) * math.sqrt(n_features)


def spread_of(products: FloatArray) -> float:
    r"""Mean variance of the principal directions of standardised features, each counted by its variance.

    .. math:: \frac{\sum_j \lambda_j^2}{\sum_j \lambda_j} = \frac{\lVert C \rVert_F^2}{p}, \qquad
        \lVert C \rVert_F^2 = E\, \lVert C r \rVert^2

    ``products`` (p, q) are the C r of the probes r. It is 1 if all directions are alike, else more.
    """
    return max(1.0, float(np.square(products).mean()))


ROUNDING = 16 * float(np.finfo(np.float64).eps)
"""Features that differ by less than this, relative to their size, do not differ."""


MAX_SCALES = 1e6
"""Ratio of two features' extents from which a warning is given."""

SMALLEST = 1e-303
"""Weights of features that spread by less would be too large to hold."""


class Standard(NamedTuple):
    """What makes features standardised ones: (x − mean) / scale."""

    mean: FloatArray  # (p,)
    scale: float
    constant: bool = False  # whether all rows are alike, so that nothing but rounding is left
    spread: float = 1.0  # of the standardised features, about

    def of(self, features: Any) -> FloatArray:
        """Rows (b, p) with this taken out."""
        result: FloatArray = np.subtract(features, self.mean, dtype=np.float64)
        result /= np.inf if self.constant else self.scale
        return result


def standardise(X: FloatArray, sample_weight: FloatArray) -> tuple[FloatArray, Standard]:
    """Centred features of mean square 1, and what was taken out."""
    standard = standard_of(ArrayRows(X, np.zeros(len(X), dtype=np.int64), sample_weight))
    result = np.empty_like(X)

    def fill(rows: slice) -> None:
        result[rows] = standard.of(X[rows])

    list(over_blocks(fill, len(X)))
    return result, standard


def standard_of(rows: RowSums) -> Standard:
    """Mean and root mean square of the features, in two passes."""
    with np.errstate(over="ignore", invalid="ignore"):
        total, weighted, largest = rows.total(_first_sums, _add_and_max).arrays
        mean = weighted / total
    if not np.isfinite(mean).all():
        raise InputError(
            f"features up to {float(largest):.3g} times their sample_weight are too large to add up: divide the "
            "weights by their mean, or the features"
        )
    unit = float(largest) or 1.0  # in which squares of very large or very small features stay representable
    correction, squares, products, extents = rows.total(_second_sums, _add_and_max, mean, unit).arrays
    mean = mean + correction / total  # the first mean's rounding, which a large offset makes felt
    if float(extents.max()) <= ROUNDING * float(largest):
        return Standard(mean, 1.0, constant=True)
    _warn_of_scales(mean, extents)
    variance = float(squares) / (float(total) * rows.n_features)
    scale = unit * math.sqrt(variance)
    if scale < SMALLEST:
        raise InputError(
            f"the features spread by {scale:.3g}, too little for numbers of 64 bits to keep their digits: multiply "
            "them, for example by 1e300"
        )
    return Standard(mean, scale, spread=spread_of(products / (total * variance)))


def _first_sums(block: Block) -> Sums:
    """Weight, weighted sum of the features, and their largest entry."""
    features = np.asarray(block.features, dtype=np.float64)
    largest = _largest(features)
    if not largest <= MAX_FEATURE:
        check_finite(features)
        check_sums(features)
    with np.errstate(over="ignore", invalid="ignore"):  # by the weights, which is told of once all are added
        weighted = block.weight @ features
    return Sums((np.asarray(block.weight.sum()), weighted, np.asarray(largest)))


def _second_sums(block: Block, mean: FloatArray, unit: float) -> Sums:
    """Weighted sums of the centred features, of their squares and products in some unit, and their extents."""
    centred = np.subtract(block.features, mean, dtype=np.float64)
    correction = block.weight @ centred
    extents = np.stack([centred.max(axis=0, initial=-np.inf), -centred.min(axis=0, initial=np.inf)])  # (2, p)
    centred /= unit
    squares = block.weight @ np.einsum("ij,ij->i", centred, centred)
    along = centred @ probes(centred.shape[1])  # (b, q)
    products = centred.T @ (block.weight[:, None] * along)  # (p, q)
    return Sums((correction, np.asarray(squares), products, extents))


def _warn_of_scales(mean: FloatArray, extents: FloatArray) -> None:
    """Say so when some features are so large that the ridge, which is common to all, leaves others without effect.

    ``extents`` (2, p) tell how far they go up and down; of a constant one, both are the rounding of its mean.
    """
    extent = extents.max(axis=0)
    varies = extents.sum(axis=0) > ROUNDING * (np.abs(mean) + extent)
    if not varies.any():
        return
    small, large = (int(pick(np.where(varies, extent, fill))) for pick, fill in ((np.argmin, np.inf), (np.argmax, 0.0)))
    if extent[small] < extent[large] / MAX_SCALES:
        warnings.warn(
            f"feature {large} extends to {extent[large]:.2g} from its mean, feature {small} to {extent[small]:.2g}: "
            "the ridge leaves the latter without effect; divide each by its standard deviation, and look for outliers",
            stacklevel=2,
        )


def _largest(values: FloatArray) -> float:
    """The largest absolute value; 0 of none."""
    return max(float(values.max(initial=0.0)), -float(values.min(initial=0.0)))


def _add_and_max(one: Sums, other: Sums) -> Sums:
    """All added but the last, of which the larger is kept."""
    return Sums((*Sums.add(one, other).arrays[:-1], np.maximum(one.arrays[-1], other.arrays[-1])))
