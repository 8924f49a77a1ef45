"""Training batches: the split of a data set, the sampling of rows, and reading rows and new samples as tensors.

``TrainingData`` holds the training and validation rows, ``Sampler`` draws the rows of every step's batch, and
``Reader`` turns rows into tensors. The rows of a batch depend on the seed and the step alone, so a run can resume at
any step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from compshift._checks import check_finite, check_float32, check_numbers
from compshift._errors import InputError, an, listing
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.columns import as_pandas
from compshift.data.dataset import KINDS, GroupedDataset, ImageArrays, ImageFiles, Samples, Texts
from compshift.features.reading import (
    Batches,
    InputBatch,
    batch_rows,
    reading_context,
    reading_workers,
    sample_digests,
    sample_lengths,
)
from compshift.methods.base import Method, Task
from compshift.methods.sampling import Sampling
from compshift.nn.backbones import Backbone
from compshift.training.settings import Settings

_MATRIX = "pass a matrix of numbers, one row per sample"
"""Remedy that ends the error messages about features."""

SHUFFLE_STREAM = 0
"""Number of the random stream that shuffles epochs. Stream 3 is ``REFRESH_STREAM`` of the module ``evaluation``."""

DRAW_STREAM = 1
"""Number of the random stream that draws rows by weight."""

SUBSAMPLE_STREAM = 2
"""Number of the random stream that subsamples groups."""


@dataclass(frozen=True, eq=False)
class Sampler:
    """Draws batches of training rows: in shuffled epochs over all rows or, with weights, with replacement."""

    rows: IntArray  # (n,) positions among the training rows
    row_weight: FloatArray | None  # (n,) relative frequency of each row; None: shuffled epochs
    batch_size: int
    seed: int

    @classmethod
    def of(cls, group: IntArray, sampling: Sampling, batch_size: int, seed: int) -> Sampler:
        """Make a sampler of the training rows; ``group`` (n,) is the group of each row."""
        rows = sampling.rows(group, np.random.default_rng([seed, SUBSAMPLE_STREAM]))
        weight = None if sampling.weight is None else sampling.weight[group[rows]]
        return cls(rows, weight, batch_size, seed)

    def batch(self, step: int) -> IntArray:
        """Return the rows of one step's batch, which the processes then share."""
        if self.row_weight is not None:
            draw = np.random.default_rng([self.seed, DRAW_STREAM, step]).random(self.batch_size)
            return self.rows[np.searchsorted(self._cumulative, draw, side="right")]
        n = len(self.rows)
        if self.batch_size == n:
            return self.rows[_shuffled(n, self.seed, 0)]  # always in this order: the loss may depend on the order
        parts, position, end = [], step * self.batch_size, (step + 1) * self.batch_size
        while position < end:
            epoch, first = divmod(position, n)
            parts.append(_shuffled(n, self.seed, epoch)[first : first + end - position])
            position += len(parts[-1])
        chosen: IntArray = self.rows[np.concatenate(parts)]
        return chosen

    def group_weight(self, group: IntArray, n_groups: int) -> FloatArray:
        """Return the expected frequency (k,) of each group in batches, scaled to sum to the number of training rows."""
        weight = np.bincount(group[self.rows], weights=self.row_weight, minlength=n_groups).astype(np.float64)
        return np.asarray(weight * len(group) / weight.sum())

    @cached_property
    def _cumulative(self) -> FloatArray:
        assert self.row_weight is not None
        total = np.cumsum(self.row_weight)
        return np.asarray(total[:-1] / total[-1])


@lru_cache(maxsize=4)
def _shuffled(n: int, seed: int, epoch: int) -> IntArray:
    """Return the order of n rows in one epoch."""
    return np.random.default_rng([seed, SHUFFLE_STREAM, epoch]).permutation(n)


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Training and validation rows of one data set, whose first attribute is the class."""

    data: GroupedDataset
    train: IntArray  # (n,) training rows of ``data``
    validation: IntArray  # (v,) validation rows of ``data``
    seen: IntArray  # (k, m) codes of the training groups
    group: IntArray  # (n,) position of each training row's group in ``seen``

    @classmethod
    def of(cls, data: GroupedDataset) -> TrainingData:
        """Take the training and validation rows of a data set; without splits, every row is a training row."""
        data = data.class_first()
        split = np.zeros(len(data), dtype=np.int64) if data.split is None else data.split
        train, validation = np.flatnonzero(split == 0), np.flatnonzero(split == 1)
        if not len(train):
            raise InputError("there are no training rows: put rows into the split 'train'")
        seen, group = data.space.distinct(data.codes[train])
        return cls(data, train, validation, seen, group)

    @cached_property
    def group_of_row(self) -> IntArray:
        """Position in ``seen`` of the group of each row of ``data``; −1 for rows outside the training split."""
        position = np.full(len(self.data), -1)
        position[self.train] = self.group
        return position

    def digest(self) -> str:
        """Return a digest of samples, labels and splits, which identifies the data set of a run.

        Only the names and sizes of image files are hashed, because reading all of them would take too long.
        """
        content = hashlib.sha256(repr((self.data.kind, self.data.space.names, self.data.space.values)).encode())
        for array in (self.data.codes, self.train, self.validation):
            content.update(np.ascontiguousarray(array).tobytes())
        _add_samples(content, self.data.samples, np.concatenate([self.train, self.validation]))
        return content.hexdigest()

    def sampler(self, method: Method, settings: Settings) -> Sampler:
        """Make the sampler of a method's batches."""
        counts = np.bincount(self.group).astype(np.float64)
        sampling = method.sampling(counts)
        if settings.balanced_classes and sampling.weight is None and sampling.limit is None:
            rows_of_class = np.bincount(self.seen[:, 0], weights=counts)
            sampling = Sampling(weight=1 / rows_of_class[self.seen[:, 0]])
        return Sampler.of(self.group, sampling, settings.batch_size, settings.seed)

    def task(self, sampler: Sampler) -> Task:
        """Make the task; its ``weight`` is how often the sampler's batches contain each group."""
        counts = np.bincount(self.group).astype(np.float64)
        return Task(self.data.space, self.seen, sampler.group_weight(self.group, len(self.seen)), counts)


def samples_digest(samples: Samples) -> str:
    """Return a digest of unlabelled samples; of image files, it covers only names and sizes."""
    content = hashlib.sha256()
    _add_samples(content, samples, np.arange(len(samples)))
    return content.hexdigest()


def _add_samples(content: Any, samples: Samples, rows: IntArray) -> None:
    """Add samples to a digest: the names and sizes of all image files, or the content of the given rows."""
    if isinstance(samples, ImageFiles):
        for row, name in enumerate(samples.names):
            path = samples.path(row)
            content.update(f"{name} {path.stat().st_size if path.exists() else -1}\n".encode(errors="replace"))
    else:
        for digest in sample_digests(samples, rows):
            content.update(digest)


@dataclass(frozen=True, eq=False)
class Reader:
    """Reads samples as input tensors of a backbone; worker processes read image files in advance."""

    samples: Samples
    backbone: Backbone
    device: torch.device
    workers: int | None = None  # number of worker processes; None: a default for image files, else 0

    def read(self, batches: Iterable[IntArray]) -> Iterator[tuple[IntArray, dict[str, Tensor]]]:
        """Yield the rows and inputs of each batch; raise an error that names the first sample that cannot be read."""
        on_disk = isinstance(self.samples, ImageFiles)
        workers = reading_workers(self.samples, self.workers if on_disk or self.workers is not None else 0)
        source = Batches(self.samples, self.backbone, digests=False)
        loaded: Iterable[InputBatch] = map(source.__getitem__, batches)
        if isinstance(self.samples, np.ndarray) and not workers:
            loaded = _features(self.samples, batches)
        elif workers:
            loaded = DataLoader(
                source,
                batch_size=None,
                sampler=batches,
                num_workers=workers,
                multiprocessing_context=reading_context(),
            )
        for batch in loaded:
            if batch.broken:
                raise InputError(f"{batch.broken[0][1]}: fix the sample, or remove its row")
            inputs = {name: tensor.to(self.device) for name, tensor in batch.inputs.items()}
            yield batch.rows, inputs

    def in_order(self, rows: IntArray, batch_size: int) -> Iterator[tuple[IntArray, dict[str, Tensor]]]:
        """Yield every row once, in batches of samples of similar length."""
        return self.read(batch_rows(rows, sample_lengths(self.samples), batch_size))


def _features(X: FloatArray, batches: Iterable[IntArray]) -> Iterator[InputBatch]:
    """Yield the batches of X (n, p) with the given rows; reuse the previous batch if its rows are the same."""
    last: InputBatch | None = None
    for rows in batches:
        if last is None or not np.array_equal(last.rows, rows):
            features = X.take(rows, axis=0).astype(np.float32, copy=False)  # twice as fast as X[rows]
            last = InputBatch(rows, {"features": torch.from_numpy(features)}, [], [])
        yield last


def readable_samples(samples: Samples, kind: str, columns: Sequence[str] | None = None) -> Samples:
    """Convert lists of paths or texts, arrays of pixels and tables to samples of the backbone's kind.

    A DataFrame must have the ``columns`` that the model was trained on, in the same order.
    """
    if isinstance(samples, GroupedDataset):
        raise InputError("samples is a GroupedDataset: pass its samples, data.samples")
    if kind == "features":
        return _matrix(samples, columns)
    if isinstance(samples, str | PathLike):
        raise InputError(f"samples is the single value {fspath(samples)!r}: pass a list, with one entry per sample")
    listed = samples.tolist() if getattr(samples, "ndim", 0) == 1 and hasattr(samples, "tolist") else samples
    named = isinstance(listed, list | tuple) and all(isinstance(sample, str | PathLike) for sample in listed)
    if kind == "images" and named:
        return ImageFiles(Path(), np.array([fspath(sample) for sample in listed], dtype=object))
    if kind == "images" and isinstance(samples, np.ndarray) and samples.dtype == np.uint8:
        return ImageArrays(samples)
    if kind == "text" and named:
        return Texts(np.array(listed, dtype=object))
    if KINDS.get(type(samples)) != kind:
        accepted = {"images": "paths, or an 8-bit array (n, height, width, 3)", "text": "texts"}
        given = KINDS.get(type(samples), an(type(samples).__name__))
        raise InputError(f"the model takes {kind}, but the samples are {given}: pass a list of {accepted[kind]}")
    return samples


def _matrix(samples: Any, columns: Sequence[str] | None) -> Any:
    """Convert features to a 32-bit matrix, after checking its columns and that its values are finite."""
    if type(samples) in KINDS:
        raise InputError(f"the model takes features, but the samples are {KINDS[type(samples)]}: {_MATRIX}")
    samples = as_pandas(samples, "samples")
    names = [str(name) for name in samples.columns] if hasattr(samples, "columns") else None
    if names is not None and columns is not None and names != list(columns):
        order = "in another order" if sorted(names) == sorted(columns) else f"{listing(names, 4)}"
        raise InputError(
            f"the samples have columns {order}, but the model was trained on {listing(columns)}: pass these columns, "
            "in this order"
        )
    X = samples if getattr(samples, "dtype", None) == np.float32 else _as_numbers(samples)
    if X.ndim != 2:
        raise InputError(f"the features have {X.ndim} dimensions: pass one row per sample")
    check_finite(X)
    check_float32(X)
    return np.asarray(X, dtype=np.float32)


def _as_numbers(samples: Any) -> Any:
    """Convert to 64-bit numbers; raise an error that names the first column that is not numeric."""
    for name in getattr(samples, "columns", ()):
        check_numbers(samples[name], f"the column {str(name)!r}", "pass columns of numbers")
    return check_numbers(samples, "features", _MATRIX)
