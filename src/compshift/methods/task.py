"""What is to be learnt: a class, in groups of class and attributes, some of which training has."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from compshift._checks import check_codes
from compshift._errors import InputError
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.groups import GroupSpace


@dataclass(frozen=True, eq=False)
class Task:
    """Groups that training has, and how often batches show each.

    Several attributes count as one for methods that know of one: each combination that training has is a value.
    """

    space: GroupSpace  # the class first, then attributes
    seen: IntArray  # (k, m) in order of their codes
    weight: FloatArray  # (k,) rows of each seen group, as the sampler draws them; they add up to the rows of training
    counts: FloatArray  # (k,) rows of each seen group as they are

    def __post_init__(self) -> None:
        check_codes(self.seen, self.space.cardinalities, "seen")
        if not self.weight.shape == self.counts.shape == (len(self.seen),):
            raise InputError(f"there are {len(self.seen)} groups, and weights or counts of another number")
        present = np.unique(self.seen[:, 0])
        if len(present) < self.n_classes:
            absent = next(code for code in range(self.n_classes) if code not in present)
            raise InputError(
                f"{self.space.names[0]} {self.space.values[0][absent]!r} has no training rows: nothing can be learnt "
                "of it; add rows, or leave it out of the data"
            )
        if self.n_classes < 2:
            raise InputError(f"{self.space.names[0]} has one value only: there is nothing to classify")

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return self.space.cardinalities[0]

    @property
    def n_groups(self) -> int:
        """Number of groups that training has."""
        return len(self.seen)

    @property
    def class_of(self) -> IntArray:
        """Class of each seen group, (k,)."""
        return self.seen[:, 0]

    @cached_property
    def attribute_of(self) -> IntArray:
        """Which of the attribute combinations that occur each seen group has, (k,); 0 if there are no attributes."""
        if self.seen.shape[1] == 1:
            return np.zeros(self.n_groups, dtype=np.int64)
        names, values = self.space.names[1:], self.space.values[1:]
        return GroupSpace(names, values).distinct(self.seen[:, 1:])[1]

    @property
    def n_attributes(self) -> int:
        """Number of attribute combinations that occur."""
        return int(self.attribute_of.max()) + 1

    def class_by_attribute(self) -> FloatArray:
        """Rows of each class and attribute combination, (c, a); 0 where training has none."""
        table = np.zeros((self.n_classes, self.n_attributes))
        table[self.class_of, self.attribute_of] = self.weight
        return table
