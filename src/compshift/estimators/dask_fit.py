"""Fitting rows of a Dask collection where they are: workers sum over their partitions, this process takes the steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from compshift._checks import check_same_rows, check_sample_weight
from compshift._errors import InputError, an
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.candidates import Candidates
from compshift.core.groups import GroupSpace
from compshift.estimators.inputs import read_labels
from compshift.estimators.row_sums import Block, Merge, Part, T


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
