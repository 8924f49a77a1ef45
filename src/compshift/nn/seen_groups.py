"""The groups that training has, laid out for the sums of step 1 on one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compshift._checks import check_codes, check_same_rows
from compshift._errors import InputError
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.candidates import Candidates
from compshift.core.energy import GroupTable
from compshift.core.groups import GroupSpace
from compshift.core.hull import AffineHull
from compshift.nn.tensors import row_tensor, to_numpy

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64)

MAX_LOOKUP = 1 << 22
"""Spaces with more groups than this are searched, not looked up."""


@dataclass(frozen=True, eq=False)
class SeenGroups:
    """Training groups among the candidates."""

    candidates: Candidates
    table: GroupTable  # of the k training groups
    index: Tensor  # (k,) their positions among the candidates
    log_frequency: Tensor  # (k,) log p̂, in 64 bits on the CPU, since some devices have no more than 32
    lookup: Tensor | None  # (n_groups,) flat index → position among the training groups, −1 if it is none
    device: torch.device

    @classmethod
    def of(cls, space: GroupSpace, groups: IntArray, weight: FloatArray, device: torch.device) -> SeenGroups:
        """Those of the candidate ``groups`` (g, m) whose ``weight`` (g,) is above 0."""
        (index,) = np.nonzero(weight > 0)
        seen = groups[index]
        lookup = None
        if space.n_groups <= MAX_LOOKUP:
            flat = np.full(space.n_groups, -1, dtype=np.int64)
            flat[space.index(seen)] = np.arange(len(seen))
            lookup = torch.as_tensor(flat, device=device)
        frequency = weight[index] / weight[index].sum()
        return cls(
            candidates=Candidates(AffineHull(space, seen), weight[index], groups),
            table=GroupTable.of(space, seen),
            index=torch.as_tensor(index, device=device),
            log_frequency=torch.as_tensor(np.log(frequency)),
            lookup=lookup,
            device=device,
        )

    def locate(self, codes: Any, n_rows: int) -> Tensor:
        """Position (n,) among the training groups of each row's codes (n, m); any other group is refused."""
        codes = row_tensor(codes, "codes", "pass one row of integers per sample", self.device)
        check_same_rows(n_rows, codes, "codes", "features")
        space = self.candidates.space
        sizes = space.cardinalities
        if codes.ndim != 2 or codes.shape[1] != len(sizes) or codes.dtype not in INTEGERS:
            check_codes(to_numpy(codes, "codes"), sizes)
        codes = codes.to(torch.int64)
        if self.lookup is None:
            found = torch.as_tensor(space.locate(check_codes(codes.cpu().numpy(), sizes), self.table.codes))
            position = found.to(self.device)
        else:
            limits = torch.tensor(sizes, device=self.device)
            valid = ((codes >= 0) & (codes < limits)).all(dim=1)
            flat = (codes * torch.as_tensor(_strides(sizes), device=self.device)).sum(dim=1)
            position = torch.where(valid, self.lookup[flat.clamp(0, len(self.lookup) - 1)], -1)
        if bool((position < 0).any()):
            row = int((position < 0).nonzero()[0])
            own = check_codes(codes[row].cpu().numpy(), sizes)[0]
            raise InputError(
                f"row {row} belongs to the group {space.label(own)}, which training does not have: leave it out, or "
                "call set_train_groups with the codes of all training rows"
            )
        return position


def _strides(cardinalities: tuple[int, ...]) -> IntArray:
    """Steps of the flat index, the last attribute's being 1."""
    return np.cumprod((1, *cardinalities[:0:-1]))[::-1].copy()
