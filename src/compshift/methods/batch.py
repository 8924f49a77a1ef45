"""A batch as a method sees it, and averages over the whole of it, wherever its parts are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from compshift.distributed.collective import ALONE, Collective
from compshift.methods.task import Task


@dataclass(frozen=True, eq=False)
class Batch:
    """The part of a step's batch that falls to one process."""

    inputs: dict[str, Tensor]
    group: Tensor  # (b,) position of each row's group among the seen ones
    task: Task
    rng: np.random.Generator  # of this step and process
    processes: Collective = ALONE

    @property
    def codes(self) -> Tensor:
        """Codes (b, m) of each row."""
        return self._of_group(self.task.seen)

    @property
    def classes(self) -> Tensor:
        """Class of each row, (b,)."""
        return self._of_group(self.task.class_of)

    @property
    def attributes(self) -> Tensor:
        """Attribute combination of each row, (b,)."""
        return self._of_group(self.task.attribute_of)

    def mean(self, values: Tensor) -> Tensor:
        """Mean of one value per row, over the rows of all processes."""
        return self.mean_of(values.sum())

    def mean_of(self, total: Tensor) -> Tensor:
        """Mean over the rows of all processes, from the sum over this one's."""
        if self.processes.size == 1:  # a short step notices two more tensors
            return total / len(self.group)
        both = self.processes.sum(torch.stack([total, total.new_tensor(float(len(self.group)))]))
        mean: Tensor = both[0] / both[1]
        return mean

    def means_by(self, values: Tensor, index: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Mean of the values of each index from 0 to ``size``, over all processes, and the number of its rows.

        An index without rows has mean 0.
        """
        sums = values.new_zeros(2, size)
        sums = sums.index_add(1, index, torch.stack([values, torch.ones_like(values)]))
        total, count = self.processes.sum(sums)
        return total / count.clamp_min(1), count.detach()

    def rank_within(self, index: Tensor, size: int) -> Tensor:
        """How many earlier rows of the whole batch have the same index, (b,); earlier processes come first."""
        one_hot = torch.nn.functional.one_hot(index, size)  # (b, size)
        before = (one_hot.cumsum(dim=0) - one_hot).gather(1, index[:, None])[:, 0]
        counts = self.processes.gather(one_hot.sum(dim=0).cpu().numpy())
        earlier = sum(counts[: self.processes.rank], start=np.zeros(size, dtype=np.int64))
        return before + torch.as_tensor(earlier, device=index.device)[index]

    def _of_group(self, values: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Tensor:
        return torch.as_tensor(values, device=self.group.device)[self.group]
