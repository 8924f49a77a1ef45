"""Rows of a data set as the tensors that a backbone takes, on its device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from compshift._errors import InputError
from compshift.core.arrays import FloatArray, IntArray
from compshift.data.samples import ImageFiles, Samples
from compshift.features.batches import Batch, Batches, sample_lengths
from compshift.features.embedder import batch_rows, reading_context, reading_workers
from compshift.nn.backbones import Backbone


@dataclass(frozen=True, eq=False)
class Reader:
    """Reads samples for a backbone. Image files are read ahead by worker processes."""

    samples: Samples
    backbone: Backbone
    device: torch.device
    workers: int | None = None

    def read(self, batches: Iterable[IntArray]) -> Iterator[tuple[IntArray, dict[str, Tensor]]]:
        """The rows and inputs of each batch in turn; a sample that cannot be read is an error that names it."""
        on_disk = isinstance(self.samples, ImageFiles)
        workers = reading_workers(self.samples, self.workers if on_disk or self.workers is not None else 0)
        source = Batches(self.samples, self.backbone, digests=False)
        found: Iterable[Batch] = map(source.__getitem__, batches)
        if isinstance(self.samples, np.ndarray) and not workers:
            found = _features(self.samples, batches)
        elif workers:
            found = DataLoader(
                source,
                batch_size=None,
                sampler=batches,
                num_workers=workers,
                multiprocessing_context=reading_context(),
            )
        for batch in found:
            if batch.broken:
                raise InputError(f"{batch.broken[0][1]}: mend it, or remove its row")
            inputs = {name: tensor.to(self.device) for name, tensor in batch.inputs.items()}
            yield batch.rows, inputs

    def in_order(self, rows: IntArray, batch_size: int) -> Iterator[tuple[IntArray, dict[str, Tensor]]]:
        """Every row once, samples of like length together."""
        return self.read(batch_rows(rows, sample_lengths(self.samples), batch_size))


def _features(X: FloatArray, batches: Iterable[IntArray]) -> Iterator[Batch]:
    """Rows of X (n, p); those that are asked for again at once are there already."""
    last: Batch | None = None
    for rows in batches:
        if last is None or not np.array_equal(last.rows, rows):
            found = X.take(rows, axis=0).astype(np.float32, copy=False)  # half the time of X[rows]
            last = Batch(rows, {"features": torch.from_numpy(found)}, [], [])
        yield last
