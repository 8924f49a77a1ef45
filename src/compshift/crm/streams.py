"""Training samples that are summed block by block instead of as one array: feature stores and Dask collections.

Labels are read once. The features of a store are read from disk block by block in every pass; under torchrun each
process reads some of the rows. The partitions of a Dask collection are kept by its workers, which sum over them, or in
the memory of this process if there is no cluster. Both implement ``blocks.SummableRows``, the sums over blocks that
``fit.fit_streamed`` needs.
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
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.candidates import Candidates
from compshift.core.groups import GroupSpace
from compshift.crm.blocks import Block, Merge, Part, ProcessRows, SummableRows, T, one_thread_for_numpy
from compshift.crm.inputs import is_dask, read_labels
from compshift.data.feature_store import FeatureStore
from compshift.distributed import ALONE, Collective

MIN_BLOCK_ROWS = 64
"""Smallest number of samples per block of a feature store."""

MAX_BLOCK_ROWS = 1 << 16
"""Largest number of samples per block of a feature store."""


class StreamedSamples(NamedTuple):
    """Training samples that can be summed over, and the candidate groups."""

    rows: SummableRows
    candidates: Candidates
    n_targets: int
    one_dimensional: bool  # whether y is a single target, so that predictions are (n,)


def read_streamed(
    X: Any, y: Any, attributes: Any, sample_weight: Any, space: GroupSpace | None, support: Any
) -> StreamedSamples:
    """Read the labels of a FeatureStore or a Dask collection, and prepare sums over its samples."""
    read = _read_store if isinstance(X, FeatureStore) else _read_dask
    return read(X, y, attributes, sample_weight, space, support)


def _read_store(
    store: FeatureStore, y: Any, attributes: Any, sample_weight: Any, space: GroupSpace | None, support: Any
) -> StreamedSamples:
    """Read the label columns of a store. ``y`` and ``attributes`` are each a column name or a list of column names."""
    targets, nuisances = _column_names(y, "y"), [] if attributes is None else _column_names(attributes, "attributes")
    if store.split is None and "split" in store.columns and "split" not in (*targets, *nuisances):
        warnings.warn(
            f"{str(store.path)!r} has a column 'split', but rows of all splits are used for the fit: pass "
            "FeatureStore(…, split='train') to fit only the training split, or split='all' to use all splits",
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
    seen_groups, kept_position = labels.space.distinct(labels.codes)
    position = np.full(len(frame), -1, dtype=np.int64)
    position[keep] = kept_position
    seen_weight = np.bincount(kept_position, weights=weight[keep]).astype(np.float64)
    candidates = Candidates.of(labels.space, seen_groups, seen_weight, support)
    processes = _processes()
    with one_thread_for_numpy() as n_threads:
        bytes_per_row = 40 * store.n_features + 80 * (candidates.table.width + candidates.space.width)
        block_rows = store.memory // ((n_threads + 2) * bytes_per_row)
    blocks = StoreBlocks(store, position, weight, int(np.clip(block_rows, MIN_BLOCK_ROWS, MAX_BLOCK_ROWS)), processes)
    rows = ProcessRows(blocks, store.n_features, n_threads, processes)
    return StreamedSamples(rows, candidates, len(targets), one_dimensional)


@dataclass(frozen=True, eq=False)
class StoreBlocks:
    """Blocks of the rows of a store that this process reads, without samples of weight 0."""

    store: FeatureStore
    position: IntArray  # (n,) index of each sample's seen group; −1 for samples of weight 0
    weight: FloatArray  # (n,)
    block_rows: int
    processes: Collective

    def __iter__(self) -> Iterator[Block]:
        for start, features in self.store.blocks(self.block_rows, self.processes.rank, self.processes.size):
            rows = slice(start, start + len(features))
            position, weight = self.position[rows], self.weight[rows]
            keep = position >= 0
            if keep.all():
                yield Block(features, position, weight)
            else:
                yield Block(features[keep], position[keep], weight[keep])


def _processes() -> Collective:
    """Return the processes of torch.distributed, or ``ALONE`` if it is not in use."""
    if "torch" not in sys.modules:
        return ALONE
    from compshift.nn.processes import current_processes

    return current_processes()


def _column_names(names: Any, parameter: str) -> list[str]:
    """Check a column name or a list of column names of a store, and return a list."""
    found = [names] if isinstance(names, str) else names
    if not isinstance(found, list | tuple) or not len(found) or not all(isinstance(name, str) for name in found):
        given = repr(names) if isinstance(names, list | tuple) and len(names) < 5 else an(type(names).__name__)
        raise InputError(f"{parameter} is {given}: with a FeatureStore, pass a column name or a list of column names")
    return list(found)


def _dask() -> Any:
    """Import Dask; the return type Any hides its untyped functions from the type checker."""
    import dask

    return dask


@dataclass(frozen=True, eq=False)
class DaskRows:
    """Samples as delayed blocks, in the memory of a Dask cluster's workers or, without a cluster, of this process."""

    blocks: list[Any]  # delayed ``Block``s
    n_features: int

    def total(self, part: Part[T], merge: Merge[T], *arguments: Any) -> T:
        """Merge ``part(block, *arguments)`` over all blocks, in order, each computed on its block's worker."""
        dask = _dask()
        shared = dask.delayed(arguments, traverse=False)
        contributions: list[T] = dask.compute(*(dask.delayed(_apply)(part, block, shared) for block in self.blocks))
        return reduce(merge, contributions)


def _apply(part: Callable[..., T], block: Block, arguments: tuple[Any, ...]) -> T:
    """Call ``part`` with a block and the unpacked arguments, on a Dask worker."""
    return part(block, *arguments)


def _read_dask(
    X: Any, y: Any, attributes: Any, sample_weight: Any, space: GroupSpace | None, support: Any
) -> StreamedSamples:
    """Find the groups in one pass over the labels, then persist every partition as a ``Block``."""
    dask = _dask()
    features, labels = _partitions(X, "X"), _partitions(y, "y")
    nuisances = [None] * len(labels) if attributes is None else _partitions(attributes, "attributes")
    weights = [None] * len(labels) if sample_weight is None else _partitions(sample_weight, "sample_weight")
    for name, parts in (("y", labels), ("attributes", nuisances), ("sample_weight", weights)):
        if len(parts) != len(features):
            raise InputError(f"{name} has {len(parts)} partitions but X has {len(features)}: repartition {name} like X")
    examples = dask.compute(*(dask.delayed(_distinct_labels)(*parts) for parts in zip(labels, nuisances, strict=True)))
    targets = _joined([target for target, _ in examples])
    others = None if attributes is None else _joined([nuisance for _, nuisance in examples])
    found = read_labels(targets, others, space, np.ones(len(targets), dtype=np.bool_), stacklevel=5)
    partitions = list(zip(features, labels, nuisances, weights, strict=True))
    blocks = [dask.delayed(_block)(*parts, found.space) for parts in partitions]
    orders = [dask.delayed(_index_digests)(*parts) for parts in partitions]
    kept = dask.persist(*blocks, *orders)  # in one call, so that partitions are read once
    blocks = list(kept[: len(blocks)])
    _check_order(dask.compute(*kept[len(blocks) :]))
    counted = dask.compute(*(dask.delayed(_group_weights)(block) for block in blocks))
    index = np.unique(np.concatenate([block_index for block_index, _ in counted]))
    weight = np.zeros(len(index))
    for block_index, block_weight in counted:
        np.add.at(weight, np.searchsorted(index, block_index), block_weight)
    candidates = Candidates.of(found.space, found.space.codes(index), weight, support)
    blocks = list(dask.persist(*(dask.delayed(_with_positions)(block, index) for block in blocks)))
    return StreamedSamples(DaskRows(blocks, int(X.shape[1])), candidates, found.n_targets, found.one_dimensional)


def _partitions(values: Any, name: str) -> list[Any]:
    """Return the delayed partitions of a Dask collection, each with all columns."""
    if not is_dask(values):
        raise InputError(
            f"X is a Dask collection but {name} is {an(type(values).__name__)}: pass {name} as a Dask collection too"
        )
    if hasattr(values, "chunks"):
        whole = values if values.ndim == 1 else values.rechunk({1: -1})
        return list(whole.to_delayed().ravel())
    return list(values.to_delayed())


def _distinct_labels(y: Any, attributes: Any) -> tuple[Any, Any]:
    """Return one row of ``y`` and of ``attributes`` for each distinct label combination of a partition."""
    import pandas as pd

    if attributes is not None and len(attributes) != len(y):
        raise InputError(
            f"a partition of attributes has {len(attributes)} rows but the same partition of y has {len(y)}: "
            "repartition attributes like y"
        )
    columns = [*_columns(y), *([] if attributes is None else _columns(attributes))]
    first = np.flatnonzero(~pd.DataFrame(dict(enumerate(columns))).duplicated().to_numpy())
    return _rows(y, first), None if attributes is None else _rows(attributes, first)


def _rows(values: Any, rows: IntArray) -> Any:
    """Select rows of a pandas object or an array by position."""
    return values.iloc[rows] if hasattr(values, "iloc") else values[rows]


def _joined(parts: list[Any]) -> Any:
    """Concatenate frames, series or arrays."""
    import pandas as pd

    return pd.concat(parts, ignore_index=True) if hasattr(parts[0], "iloc") else np.concatenate(parts)


def _block(X: Any, y: Any, attributes: Any, sample_weight: Any, space: GroupSpace) -> Block:
    """Convert a partition to a ``Block``, without samples of weight 0.

    Its ``position`` holds flat group indices, which ``_with_positions`` replaces later.
    """
    for name, values in (("y", y), ("attributes", attributes)):
        if values is not None:
            check_same_rows(len(X), values, name)
    columns = [*_columns(y), *([] if attributes is None else _columns(attributes))]
    table = dict(zip(space.names, columns, strict=True))
    weight = check_sample_weight(sample_weight, len(X))
    keep = weight > 0
    features = np.asarray(X)
    return Block(features[keep], space.index(space.encode(table))[keep], weight[keep])


def _columns(values: Any) -> list[Any]:
    """Return the columns of a table, each with its dtype, or of an array."""
    if hasattr(values, "columns"):
        return [values[name].to_numpy() for name in values.columns]
    array = np.asarray(values)
    return list(array.reshape(len(array), -1).T)


def _index_digests(X: Any, y: Any, attributes: Any, sample_weight: Any) -> dict[str, tuple[bool, int]]:
    """Return, for each pandas argument, whether its index equals that of X, and a digest of its index.

    The arguments are one partition of each collection. The digest does not depend on the order of the rows.
    """
    import pandas as pd

    parts = {"X": X, "y": y, "attributes": attributes, "sample_weight": sample_weight}
    indexes = {name: part.index for name, part in parts.items() if hasattr(part, "index") and hasattr(part, "iloc")}
    return {
        name: (index.equals(indexes.get("X", index)), int(pd.util.hash_array(index.to_numpy()).sum()))
        for name, index in indexes.items()
    }


def _check_order(partitions: Sequence[dict[str, tuple[bool, int]]]) -> None:
    """Check that no collection has the same index labels as X in a different order."""
    totals = {
        name: (all(part[name][0] for part in partitions), sum(part[name][1] for part in partitions) % 2**64)
        for name in partitions[0]
    }
    for name, (equal, digest) in totals.items():
        if not equal and digest == totals["X"][1]:
            raise InputError(
                f"{name} has the index labels of X in a different order, but rows are matched by position: pass "
                "columns of one Dask DataFrame, or reset both indexes"
            )


def _group_weights(block: Block) -> tuple[IntArray, FloatArray]:
    """Return the flat indices of the groups in a block, and the total weight of each."""
    index, position = np.unique(block.position, return_inverse=True)
    return index, np.bincount(position.reshape(-1), weights=block.weight).astype(np.float64)


def _with_positions(block: Block, index: IntArray) -> Block:
    """Replace flat group indices by positions among the seen groups."""
    return block._replace(position=np.searchsorted(index, block.position))
