"""A data set as training sees it: the class first, training rows in their groups, validation rows apart."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from compshift._errors import InputError
from compshift.core.arrays import IntArray
from compshift.data.dataset import GroupedDataset
from compshift.data.samples import ImageFiles
from compshift.features.batches import sample_digests
from compshift.methods.method import Method, Sampling
from compshift.methods.task import Task
from compshift.training.sampling import Sampler
from compshift.training.settings import Settings


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Training and validation rows of one data set."""

    data: GroupedDataset  # the class first
    train: IntArray  # (n,) row numbers
    validation: IntArray  # (v,)
    seen: IntArray  # (k, m) groups that training has
    group: IntArray  # (n,) which of them each training row belongs to

    @classmethod
    def of(cls, data: GroupedDataset) -> TrainingData:
        """The splits of a data set; without splits every row is a training row."""
        data = data.class_first()
        split = np.zeros(len(data), dtype=np.int64) if data.split is None else data.split
        train, validation = np.flatnonzero(split == 0), np.flatnonzero(split == 1)
        if not len(train):
            raise InputError("there are no training rows: the split 'train' is empty")
        seen, group = data.space.distinct(data.codes[train])
        return cls(data, train, validation, seen, group)

    @cached_property
    def group_of_row(self) -> IntArray:
        """The same for every row of the data set; −1 for rows of other splits."""
        found = np.full(len(self.data), -1)
        found[self.train] = self.group
        return found

    def digest(self) -> str:
        """A digest of samples, labels and splits, which tells one data set from another.

        Of image files, names and sizes must do: reading them all would take as long as a good part of the training.
        """
        content = hashlib.sha256(repr((self.data.kind, self.data.space.names, self.data.space.values)).encode())
        for array in (self.data.codes, self.train, self.validation):
            content.update(np.ascontiguousarray(array).tobytes())
        samples = self.data.samples
        if isinstance(samples, ImageFiles):
            for row, name in enumerate(samples.names):
                path = samples.path(row)
                content.update(f"{name} {path.stat().st_size if path.exists() else -1}\n".encode(errors="replace"))
        else:
            for digest in sample_digests(samples, np.concatenate([self.train, self.validation])):
                content.update(digest)
        return content.hexdigest()

    def sampler(self, method: Method, settings: Settings) -> Sampler:
        """How the method's batches are drawn."""
        counts = np.bincount(self.group).astype(np.float64)
        sampling = method.sampling(counts)
        if settings.balanced_classes and sampling.weight is None and sampling.limit is None:
            rows_of_class = np.bincount(self.seen[:, 0], weights=counts)
            sampling = Sampling(weight=1 / rows_of_class[self.seen[:, 0]])
        return Sampler.of(self.group, sampling, settings.batch_size, settings.seed)

    def task(self, sampler: Sampler) -> Task:
        """What is to be learnt, with the groups as often as batches show them."""
        counts = np.bincount(self.group).astype(np.float64)
        return Task(self.data.space, self.seen, sampler.group_weight(self.group, len(self.seen)), counts)
