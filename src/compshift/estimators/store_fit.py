"""Fitting a feature store: labels are held, features are read block by block, as often as the search needs them."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from compshift._checks import check_sample_weight
from compshift._errors import InputError, an
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.candidates import Candidates
from compshift.core.groups import GroupSpace
from compshift.data.feature_store import FeatureStore
from compshift.distributed.collective import ALONE, Collective
from compshift.estimators.crm_fit import Recipe
from compshift.estimators.crm_model import CRMModel
from compshift.estimators.inputs import read_labels
from compshift.estimators.row_sums import Block, LocalRows
from compshift.estimators.streamed_fit import fit_streamed
from compshift.estimators.threads import one_thread_for_numpy

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
    store: FeatureStore, labels: StoredLabels, recipe: Recipe, memory: int, *, tol: float, max_iter: int
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
    from compshift.distributed.torch_processes import current_processes

    return current_processes()


def _names(names: Any, what: str) -> list[str]:
    """Names of columns."""
    found = [names] if isinstance(names, str) else names
    if not isinstance(found, list | tuple) or not len(found) or not all(isinstance(name, str) for name in found):
        given = repr(names) if isinstance(names, list | tuple) and len(names) < 5 else an(type(names).__name__)
        raise InputError(f"{what} is {given}: with a FeatureStore, pass the name of a column, or a list of names")
    return list(found)
