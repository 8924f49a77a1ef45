"""The groups that training has, laid out for the sums of step 1 on one device.

Whether the biases of a head still belong to its weights.

What copies, moves, casts and loaded states do to a head: its biases go with its weights and its groups.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from compshift._checks import check_codes, check_same_rows
from compshift._errors import InputError
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.candidates import Candidates
from compshift.core.energy import GroupTable
from compshift.core.groups import GroupSpace
from compshift.core.hull import AffineHull
from compshift.nn.tensors import moved_buffer, row_tensor, to_numpy

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


class BiasAge:
    """The versions of the weights that biases were computed for; numbers that grow whenever a weight is changed.

    Whatever makes other parameters of the same weights (a copy, a move, a loaded state) has to say so by ``carry``.
    Parameters that were exchanged otherwise, as by pruning, are not judged.
    """

    def __init__(self) -> None:
        self._versions: dict[int, int] | None = None

    def start(self, module: nn.Module) -> None:
        """Biases belong to the weights as they are."""
        self._versions = _versions(module)

    def outdated(self, module: nn.Module) -> bool:
        """Whether weights have changed since, as far as can be told."""
        now = _versions(module)
        return self._versions is not None and self._versions.keys() == now.keys() and self._versions != now

    def carry(self, module: nn.Module, *, outdated: bool) -> None:
        """Go on with other parameters, whose biases were up to date or not."""
        if self._versions is not None:
            self._versions = dict.fromkeys(_versions(module), -1) if outdated else _versions(module)


def _versions(module: nn.Module) -> dict[int, int]:
    """Versions by parameter; those made in inference mode have none."""
    return {id(part): -2 if part.is_inference() else part._version for part in module.parameters()}


class HeadState(nn.Module):
    """A module with biases of groups in its state."""

    space: GroupSpace
    groups: IntArray  # (g, m)

    def __init__(self) -> None:
        super().__init__()
        self._seen: SeenGroups | None = None
        self._age = BiasAge()
        self.register_load_state_dict_post_hook(_state_loaded)  # type: ignore[no-untyped-call]

    def get_extra_state(self) -> Tensor:
        """A digest of the groups that biases and weights of groups belong to: one number, kept with the state."""
        about = repr((self.space.cardinalities, self.groups.shape)).encode() + self.groups.tobytes()
        return torch.tensor(int.from_bytes(hashlib.sha256(about).digest()[:8], signed=True))

    def set_extra_state(self, state: Any) -> None:
        """Refuse a state of other groups."""
        if isinstance(state, Tensor) and not state.is_meta and not bool(state.cpu() == self.get_extra_state()):
            raise InputError(
                "the state is that of a head of other groups, whose biases would be taken for those of its own: load "
                "it into a head of the same cardinalities and groups="
            )

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *arguments: Any) -> None:
        state_dict.setdefault(f"{prefix}_extra_state", self.get_extra_state())  # which earlier states have not
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_outdated": self._age.outdated(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        outdated = state.pop("_outdated")
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._age.carry(self, outdated=outdated)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Move and cast, but leave the buffers their 64 bits wherever the device has them."""
        buffers, self._buffers = self._buffers, {}
        outdated = self._age.outdated(self)
        try:
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
            moved = {name: moved_buffer(buffer, fn) for name, buffer in buffers.items() if buffer is not None}
        except BaseException:
            self._buffers = buffers
            raise
        self._buffers.update(moved)
        self._seen = None
        self._age.carry(self, outdated=outdated)
        return self


def _state_loaded(head: HeadState, _: Any) -> None:
    """Biases and weights that were loaded belong together."""
    head._seen = None
    head._age.start(head)
