"""The two steps of CRM on rows that are read again and again instead of being held (paper, Algorithm 1).

Every quantity is a sum over rows: the mean and the scale of the features, the risk and its gradient, the sums of B*,
the moments of the energies. What is not, the tails of B*'s weights, is left out. A search takes as many passes over the
rows as it evaluates the risk.

Fitting a feature store: labels are held, features are read block by block, as often as the search needs them.

Fitting rows of a Dask collection where they are: workers sum over their partitions, this process takes the steps.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from compshift._checks import check_same_rows, check_sample_weight
from compshift._errors import InputError, an
from compshift.core.arrays import FloatArray, IntArray, row_blocks
from compshift.core.bias import (
    BiasSums,
    EnergyMoments,
    cumulant_bias,
    extrapolated_bias,
    merge_sums,
    no_lower_than_samples,
    sums_over,
)
from compshift.core.candidates import Candidates
from compshift.core.energy import GroupTable, linear_energies, log_evidence
from compshift.core.groups import GroupSpace
from compshift.crm.blocks import (
    Block,
    LocalRows,
    Merge,
    Part,
    RowSums,
    Standard,
    Sums,
    T,
    one_thread_for_numpy,
    standard_of,
)
from compshift.crm.fit import FitParams, StepOneProblem
from compshift.crm.inputs import read_labels
from compshift.crm.model import CRMModel
from compshift.crm.solver import Solution, solve
from compshift.data.feature_store import FeatureStore
from compshift.distributed import ALONE, Collective


def fit_streamed(rows: RowSums, candidates: Candidates, recipe: FitParams, *, tol: float, max_iter: int) -> CRMModel:
    """Solve step 1 on the seen groups, then compute the bias of every candidate."""
    if recipe.anchor != "zero" or recipe.cross_fit:
        raise InputError(
            "rows that are streamed are fitted with anchor='zero' and cross_fit=False: the others need all rows at once"
        )
    standard = standard_of(rows)
    seen = GroupTable.of(candidates.space, candidates.seen_groups)
    total = float(candidates.seen_weight.sum())
    frequency = candidates.seen_weight / total
    problem = StepOneProblem(
        rows, seen, frequency, recipe.alpha, standard=standard, total_weight=total, spread=standard.spread
    )
    solution = solve(problem, tol=tol, max_iter=max_iter)
    return _step_two(rows, standard, seen, candidates, solution)


def _step_two(
    rows: RowSums, standard: Standard, seen: GroupTable, candidates: Candidates, solution: Solution
) -> CRMModel:
    """Bias of every candidate, in two further passes."""
    weight = solution.weight
    log_score = np.log(candidates.seen_weight / candidates.seen_weight.sum()) - solution.bias
    in_candidates = candidates.space.locate(candidates.seen_groups, candidates.groups)  # (k,)
    tables = (candidates.table,) if (in_candidates >= 0).all() else (candidates.table, seen)
    sums = rows.total(_bias_sums, _merge_all, standard, seen, weight, log_score, tables)
    found, *own = (extrapolated_bias(table, part) for table, part in zip(tables, sums, strict=True))
    seen_bias = own[0].bias if own else found.bias[in_candidates]
    moments = _moments(rows, standard, candidates.seen_weight, weight)
    by_moments = cumulant_bias(candidates.space, candidates.groups, candidates.seen_groups, solution.bias, moments)
    return CRMModel(
        candidates=candidates,
        coef=weight / standard.scale,
        feature_mean=standard.mean,
        bias=found.bias,
        learned_bias=np.where(candidates.in_seen >= 0, solution.bias[candidates.in_seen], 0.0),
        cumulant_bias=no_lower_than_samples(by_moments, found),
        effective_sample_size=found.effective_sample_size,
        pareto_k=np.full(len(candidates.groups), np.nan),
        temperature=1.0,
        bias_gap=float(np.abs(seen_bias - solution.bias).max()),
        gradient=solution.gradient,
        n_iter=solution.n_iter,
        converged=solution.converged,
    )


def _bias_sums(
    block: Block,
    standard: Standard,
    seen: GroupTable,
    weight: FloatArray,
    log_score: FloatArray,
    tables: tuple[GroupTable, ...],
) -> tuple[BiasSums, ...]:
    """Sums of B* over the rows of a block, for each of the tables."""
    energies = linear_energies(standard.of(block.features), weight)
    evidence = np.empty(len(energies))
    for part in row_blocks(len(energies), seen.width + energies.shape[1]):
        evidence[part] = log_evidence(energies[part], seen, log_score)
    return tuple(sums_over(table, energies, evidence, block.weight) for table in tables)


def _merge_all(one: tuple[BiasSums, ...], other: tuple[BiasSums, ...]) -> tuple[BiasSums, ...]:
    return tuple(merge_sums(left, right) for left, right in zip(one, other, strict=True))


def _moments(rows: RowSums, standard: Standard, seen_weight: FloatArray, weight: FloatArray) -> EnergyMoments:
    """Mean energies of each seen group, and the covariance about them, pooled."""
    sums, squares = rows.total(_energy_sums, Sums.add, standard, weight, len(seen_weight)).arrays
    mean = sums / seen_weight[:, None]  # (k, D)
    between = (mean * seen_weight[:, None]).T @ mean
    return EnergyMoments(mean, (squares - between) / seen_weight.sum())


def _energy_sums(block: Block, standard: Standard, weight: FloatArray, n_seen: int) -> Sums:
    """Sums of the energies by group (k, D), and of their products (D, D)."""
    energies = linear_energies(standard.of(block.features), weight)
    weighted = energies * block.weight[:, None]
    by_group = np.stack([np.bincount(block.position, weights=column, minlength=n_seen) for column in weighted.T])
    return Sums((by_group.T, weighted.T @ energies))


MEMORY = 1 << 30
"""Bytes that blocks of features may take, unless told otherwise."""

FEWEST_ROWS, MOST_ROWS = 64, 1 << 16
"""Of a block."""


class StoredLabels(NamedTuple):
    """Groups of the rows of a store."""

    position: IntArray  # (n,) seen group of each row; −1 for rows without weight
    weight: FloatArray  # (n,)
    candidates: Candidates
    n_targets: int
    one_dimensional: bool


@dataclass(frozen=True, eq=False)
class StoreBlocks:
    """The rows of a store that fall to this process."""

    store: FeatureStore
    labels: StoredLabels
    block_rows: int
    processes: Collective

    @property
    def n_features(self) -> int:
        """Columns."""
        return self.store.n_features

    def __iter__(self) -> Iterator[Block]:
        """The blocks, rows without weight left out."""
        for start, features in self.store.blocks(self.block_rows, self.processes.rank, self.processes.size):
            rows = slice(start, start + len(features))
            position, weight = self.labels.position[rows], self.labels.weight[rows]
            keep = position >= 0
            yield (
                Block(features, position, weight) if keep.all() else Block(features[keep], position[keep], weight[keep])
            )


def read_store_labels(
    store: FeatureStore, y: Any, attributes: Any, sample_weight: Any, space: GroupSpace | None, support: Any
) -> StoredLabels:
    """Targets and attributes are names of columns: one, or a list of them."""
    targets, nuisances = _names(y, "y"), [] if attributes is None else _names(attributes, "attributes")
    if store.split is None and "split" in store.columns and "split" not in (*targets, *nuisances):
        warnings.warn(
            f"{str(store.path)!r} has a column 'split', and rows of every split are fitted: pass "
            "FeatureStore(…, split='train') for those of training alone, or split='all' if all are meant",
            stacklevel=4,
        )
    frame = store.frame([*targets, *nuisances])
    weight = check_sample_weight(sample_weight, len(frame))
    keep = weight > 0
    one_dimensional = isinstance(y, str)
    labels = read_labels(
        frame[targets[0]] if one_dimensional else frame[targets],
        frame[nuisances] if nuisances else None,
        space,
        keep,
        stacklevel=5,
    )
    seen_groups, own = labels.space.distinct(labels.codes)
    position = np.full(len(frame), -1, dtype=np.int64)
    position[keep] = own
    seen_weight = np.bincount(own, weights=weight[keep]).astype(np.float64)
    candidates = Candidates.of(labels.space, seen_groups, seen_weight, support)
    return StoredLabels(position, weight, candidates, len(targets), one_dimensional)


def fit_store(
    store: FeatureStore, labels: StoredLabels, recipe: FitParams, memory: int, *, tol: float, max_iter: int
) -> CRMModel:
    """Fit the rows of a store; under torchrun, each process reads its share of them."""
    per_row = 40 * store.n_features + 80 * (labels.candidates.table.width + labels.candidates.space.width)
    processes = _processes()
    with one_thread_for_numpy() as n_threads:
        block_rows = int(np.clip(memory // ((n_threads + 2) * per_row), FEWEST_ROWS, MOST_ROWS))
        rows = LocalRows(StoreBlocks(store, labels, block_rows, processes), n_threads, processes)
        return fit_streamed(rows, labels.candidates, recipe, tol=tol, max_iter=max_iter)


def _processes() -> Collective:
    """Those of torch.distributed, if that is in use."""
    if "torch" not in sys.modules:
        return ALONE
    from compshift.nn.processes import current_processes

    return current_processes()


def _names(names: Any, what: str) -> list[str]:
    """Names of columns."""
    found = [names] if isinstance(names, str) else names
    if not isinstance(found, list | tuple) or not len(found) or not all(isinstance(name, str) for name in found):
        given = repr(names) if isinstance(names, list | tuple) and len(names) < 5 else an(type(names).__name__)
        raise InputError(f"{what} is {given}: with a FeatureStore, pass the name of a column, or a list of names")
    return list(found)


def is_dask(values: Any) -> bool:
    """Whether values are a Dask collection; Dask is not imported to find out."""
    return type(values).__module__.split(".")[0] == "dask"


@dataclass(frozen=True, eq=False)
class DaskRows:
    """Blocks in the memory of a cluster's workers, or of this process if there is no cluster."""

    blocks: list[Any]  # of Block, each where it was computed
    n_features: int

    def total(self, part: Part[T], merge: Merge[T], *arguments: Any) -> T:
        """``part(block, *arguments)`` of every block, computed where the block is and merged in order."""
        dask = _dask()
        shared = dask.delayed(arguments, traverse=False)
        found: list[T] = dask.compute(*(dask.delayed(_applied)(part, block, shared) for block in self.blocks))
        return reduce(merge, found)


def _applied(part: Callable[..., T], block: Block, arguments: tuple[Any, ...]) -> T:
    return part(block, *arguments)


def _dask() -> Any:
    """The library, whose functions have no types."""
    import dask

    return dask


class DaskData(NamedTuple):
    """Rows to sum over, and their groups."""

    rows: DaskRows
    candidates: Candidates
    n_targets: int
    one_dimensional: bool


def read_dask(X: Any, y: Any, attributes: Any, sample_weight: Any, space: GroupSpace | None, support: Any) -> DaskData:
    """Find the groups in one pass over the labels, then have every partition ready as a block."""
    dask = _dask()
    features, labels = _partitions(X, "X"), _partitions(y, "y")
    nuisances = [None] * len(labels) if attributes is None else _partitions(attributes, "attributes")
    weights = [None] * len(labels) if sample_weight is None else _partitions(sample_weight, "sample_weight")
    for name, parts in (("y", labels), ("attributes", nuisances), ("sample_weight", weights)):
        if len(parts) != len(features):
            raise InputError(
                f"{name} has {len(parts)} partitions and X {len(features)}: repartition one like the other"
            )
    examples = dask.compute(*(dask.delayed(_examples)(*parts) for parts in zip(labels, nuisances, strict=True)))
    targets = _joined([target for target, _ in examples])
    further = None if attributes is None else _joined([nuisance for _, nuisance in examples])
    found = read_labels(targets, further, space, np.ones(len(targets), dtype=np.bool_), stacklevel=5)
    partitions = list(zip(features, labels, nuisances, weights, strict=True))
    blocks = [dask.delayed(_block)(*parts, found.space) for parts in partitions]
    indexes = [dask.delayed(_indexes)(*parts) for parts in partitions]
    kept = dask.persist(*blocks, *indexes)  # in one go: partitions are read once
    blocks = list(kept[: len(blocks)])
    _check_order(dask.compute(*kept[len(blocks) :]))
    counted = dask.compute(*(dask.delayed(_counts)(block) for block in blocks))
    index = np.unique(np.concatenate([own for own, _ in counted]))
    weight = np.zeros(len(index))
    for own, total in counted:
        np.add.at(weight, np.searchsorted(index, own), total)
    candidates = Candidates.of(found.space, found.space.codes(index), weight, support)
    blocks = list(dask.persist(*(dask.delayed(_positioned)(block, index) for block in blocks)))
    rows = DaskRows(blocks, int(X.shape[1]))
    return DaskData(rows, candidates, found.n_targets, found.one_dimensional)


def _partitions(values: Any, name: str) -> list[Any]:
    """Partitions of rows, still to be computed."""
    if not is_dask(values):
        raise InputError(
            f"X is a Dask collection and {name} {an(type(values).__name__)}: pass a Dask collection for both"
        )
    if hasattr(values, "chunks"):
        whole = values if values.ndim == 1 else values.rechunk({1: -1})
        return list(whole.to_delayed().ravel())
    return list(values.to_delayed())


def _examples(y: Any, attributes: Any) -> tuple[Any, Any]:
    """The different labels of a partition, as few rows of what was passed."""
    import pandas as pd

    if attributes is not None and len(attributes) != len(y):
        raise InputError(
            f"a partition of attributes has {len(attributes)} rows and that of y {len(y)}: repartition one like the "
            "other"
        )
    columns = [*_columns(y), *([] if attributes is None else _columns(attributes))]
    first = np.flatnonzero(~pd.DataFrame(dict(enumerate(columns))).duplicated().to_numpy())
    return _rows(y, first), None if attributes is None else _rows(attributes, first)


def _rows(values: Any, rows: IntArray) -> Any:
    return values.iloc[rows] if hasattr(values, "iloc") else values[rows]


def _joined(parts: list[Any]) -> Any:
    """Parts of one kind, one below the other."""
    import pandas as pd

    return pd.concat(parts, ignore_index=True) if hasattr(parts[0], "iloc") else np.concatenate(parts)


def _block(X: Any, y: Any, attributes: Any, sample_weight: Any, space: GroupSpace) -> Block:
    """A partition whose ``position`` are flat indices of groups; rows without weight are left out."""
    for name, values in (("y", y), ("attributes", attributes)):
        if values is not None:
            check_same_rows(len(X), values, name)
    columns = [*_columns(y), *([] if attributes is None else _columns(attributes))]
    table = dict(zip(space.names, columns, strict=True))
    weight = check_sample_weight(sample_weight, len(X))
    keep = weight > 0
    features = np.asarray(X)
    return Block(features[keep], space.index(space.encode(table))[keep], weight[keep])


def _indexes(X: Any, y: Any, attributes: Any, sample_weight: Any) -> dict[str, tuple[bool, int]]:
    """Of each pandas part of a partition: whether it has the index of X, and a sum of digests of its labels."""
    import pandas as pd

    parts = {"X": X, "y": y, "attributes": attributes, "sample_weight": sample_weight}
    indexes = {name: part.index for name, part in parts.items() if hasattr(part, "index") and hasattr(part, "iloc")}
    return {
        name: (index.equals(indexes.get("X", index)), int(pd.util.hash_array(index.to_numpy()).sum()))
        for name, index in indexes.items()
    }


def _check_order(partitions: Sequence[dict[str, tuple[bool, int]]]) -> None:
    """Refuse collections whose indexes have, over all partitions, the same labels in another order."""
    totals = {
        name: (all(part[name][0] for part in partitions), sum(part[name][1] for part in partitions) % 2**64)
        for name in partitions[0]
    }
    for name, (equal, labels) in totals.items():
        if not equal and labels == totals["X"][1]:
            raise InputError(
                f"{name} has the index of X in another order, and rows are taken by position: pass columns of one "
                "Dask DataFrame, or reset both indexes"
            )


def _columns(values: Any) -> list[Any]:
    """Single columns of a table or array, each of its own type."""
    if hasattr(values, "columns"):
        return [values[name].to_numpy() for name in values.columns]
    array = np.asarray(values)
    return list(array.reshape(len(array), -1).T)


def _counts(block: Block) -> tuple[IntArray, FloatArray]:
    """Groups of a block and their weight."""
    own, position = np.unique(block.position, return_inverse=True)
    return own, np.bincount(position.reshape(-1), weights=block.weight).astype(np.float64)


def _positioned(block: Block, index: IntArray) -> Block:
    """With positions among the seen groups in place of flat indices."""
    return block._replace(position=np.searchsorted(index, block.position))
