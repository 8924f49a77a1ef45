"""State of a CRM head: its training groups on one device, and biases that stay consistent with its weights.

The biases belong to particular weights and particular groups. Copying, moving, casting or loading a head must keep them
together, because predictions with mismatched biases would be wrong without any error.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from compshift._checks import check_codes, check_same_rows, check_sample_weight
from compshift._errors import InputError, an
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.candidates import Candidates
from compshift.core.energy import GroupTable
from compshift.core.groups import GroupSpace
from compshift.core.hull import AffineHull
from compshift.nn.tensors import moved_buffer, row_tensor, to_numpy

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64)
"""Data types accepted for codes."""

MAX_LOOKUP = 1 << 22
"""Maximum number of attribute combinations for which ``SeenGroups.lookup`` is built; with more, codes are searched."""

DAMAGED_STATE = "training has diverged, or the loaded state is damaged; train or load the head again"
"""Cause and remedy that end the error messages about a head whose state is not finite."""


@dataclass(frozen=True, eq=False)
class SeenGroups:
    """The k training groups of a head, prepared for the sums of step 1 on one device."""

    candidates: Candidates
    table: GroupTable  # table of the k training groups
    index: Tensor  # (k,) positions of the training groups among the candidates
    log_frequency: Tensor  # (k,) log p̂ in 64 bits, on the CPU because some devices have only 32-bit floats
    lookup: Tensor | None  # (n_groups,) flat group index → position among the training groups; −1 if unseen
    device: torch.device

    @classmethod
    def of(cls, space: GroupSpace, groups: IntArray, weight: FloatArray, device: torch.device) -> SeenGroups:
        """Prepare the training groups: the candidate ``groups`` (g, m) whose ``weight`` (g,) is above 0."""
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
        """Return the position (n,) of each row's group among the training groups; raise if it is not one of them."""
        codes = row_tensor(codes, "codes", "pass one row of integers per sample", self.device)
        check_same_rows(n_rows, codes, "codes", "features")
        space = self.candidates.space
        sizes = space.cardinalities
        if codes.ndim != 2 or codes.shape[1] != len(sizes) or codes.dtype not in INTEGERS:
            check_codes(to_numpy(codes, "codes"), sizes)
        codes = codes.to(torch.int64)
        if self.lookup is None:
            located = torch.as_tensor(space.locate(check_codes(codes.cpu().numpy(), sizes), self.table.codes))
            position = located.to(self.device)
        else:
            limits = torch.tensor(sizes, device=self.device)
            valid = ((codes >= 0) & (codes < limits)).all(dim=1)
            flat = (codes * torch.as_tensor(_strides(sizes), device=self.device)).sum(dim=1)
            position = torch.where(valid, self.lookup[flat.clamp(0, len(self.lookup) - 1)], -1)
        if bool((position < 0).any()):
            row = int((position < 0).nonzero()[0])
            code = check_codes(codes[row].cpu().numpy(), sizes)[0]
            raise InputError(
                f"row {row} belongs to the group {space.label(code)}, which is not a training group: leave the row "
                "out, or call set_train_groups with the codes of all training rows"
            )
        return position


def _strides(cardinalities: tuple[int, ...]) -> IntArray:
    """Return the stride of each attribute in the flat group index; the last attribute has stride 1."""
    return np.cumprod((1, *cardinalities[:0:-1]))[::-1].copy()


def _all_codes(codes: Any, n_attributes: int) -> Any:
    """Return the codes of all training rows: an array unchanged, or the last parts of all batches, concatenated."""
    if hasattr(codes, "shape") or (isinstance(codes, list) and not _holds_batches(codes)):
        return codes
    if not isinstance(codes, Iterable):
        raise InputError(f"codes is {codes!r}: pass the codes of all training rows (n, {n_attributes}), or a loader")
    parts = []
    for batch in codes:
        last = to_numpy(_last_part(batch), "codes")
        is_array = isinstance(last, np.ndarray)
        if not is_array or last.dtype.kind not in "iu" or last.shape[1:] != (n_attributes,):
            found = f"{last.dtype} {last.shape}" if is_array else an(type(last).__name__)
            raise InputError(
                f"a batch does not end in integer codes (b, {n_attributes}) but in {found}: pass batches such as "
                "(inputs, codes)"
            )
        parts.append(last)
    return np.concatenate(parts) if parts else np.zeros((0, 0))


def _holds_batches(codes: list[Any]) -> bool:
    """Return whether a list contains batches (arrays of codes, or tuples that end in one) and not codes of rows."""
    return bool(codes) and getattr(_last_part(codes[0]), "ndim", 0) >= 2


def _last_part(batch: Any) -> Any:
    """Return the last part of a tuple or list, and any other batch unchanged."""
    if isinstance(batch, tuple | list):
        return batch[-1] if batch else None
    return batch


class BiasAge:
    """Detects whether a head's weights have changed since its biases were computed.

    PyTorch counts the in-place changes of every parameter. Code that replaces parameters by equal ones, as copying or
    moving a head does, must call ``carry``. If parameters are replaced in another way, for example by pruning, changes
    are not detected.
    """

    def __init__(self) -> None:
        self._versions: dict[int, int] | None = None

    def start(self, module: nn.Module) -> None:
        """Record that the biases belong to the current weights."""
        self._versions = _versions(module)

    def outdated(self, module: nn.Module) -> bool:
        """Return whether weights are known to have changed since ``start``."""
        now = _versions(module)
        return self._versions is not None and self._versions.keys() == now.keys() and self._versions != now

    def carry(self, module: nn.Module, *, outdated: bool) -> None:
        """Adopt the new parameters of a module after they replaced equal ones; ``outdated`` is the state before."""
        if self._versions is not None:
            self._versions = dict.fromkeys(_versions(module), -1) if outdated else _versions(module)


def _versions(module: nn.Module) -> dict[int, int]:
    """Return each parameter's version counter, by id; −2 for those made in inference mode, which have no counter."""
    return {id(part): -2 if part.is_inference() else part._version for part in module.parameters()}


class HeadState(nn.Module):
    """Base class of the head: a module whose group biases stay consistent when it is copied, moved or loaded."""

    space: GroupSpace
    groups: IntArray  # (g, m)
    learned_bias: nn.Parameter  # (g,)
    group_weight: Tensor  # (g,)
    bias: Tensor  # (g,)
    effective_sample_size: Tensor  # (g,)
    mean_energy: Tensor  # (D,)

    def __init__(self) -> None:
        super().__init__()
        self._seen: SeenGroups | None = None
        self._age = BiasAge()
        self.register_load_state_dict_post_hook(_state_loaded)  # type: ignore[no-untyped-call]

    def set_train_groups(self, codes: Any, counts: Any = None) -> None:
        """Set the training groups and the number of rows of each.

        With a balancing sampler, the counts must be those of the rows that it draws. If a loader drops its last batch,
        the rows of that batch are not counted.

        Parameters
        ----------
        codes : array or tensor (q, m), or iterable of batches
            With ``counts``, the codes of the groups. Without ``counts``, the codes of all training rows, or batches
            whose last part is the codes, for example a DataLoader.
        counts : array (q,), optional
            Number of rows of each group.

        Raises
        ------
        InputError
            If there are no codes, or a training group is not among the candidate groups.
        """
        codes = to_numpy(codes, "codes")
        if counts is None:
            codes = _all_codes(codes, len(self.space.names))
        codes = check_codes(codes, self.space.cardinalities)
        if not len(codes):
            raise InputError("codes is empty: pass the codes of the training rows")
        weight = check_sample_weight(to_numpy(counts, "counts"), len(codes), "counts")
        position = self.space.locate(codes, self.groups)
        if (position < 0).any():
            outside = self.space.label(codes[int(np.argmax(position < 0))])
            raise InputError(f"the training group {outside} is not among the candidate groups: add it to groups")
        total = np.bincount(position, weights=weight, minlength=len(self.groups))
        self.group_weight.copy_(torch.as_tensor(total))
        for result in (self.bias, self.effective_sample_size, self.mean_energy):
            result.fill_(math.nan)  # the old values belong to the previous training groups
        self._seen = None

    @property
    def seen(self) -> SeenGroups:
        """Training groups, prepared for the sums of step 1 on the head's device."""
        device = self.learned_bias.device
        if self._seen is None or self._seen.device != device:
            weight = to_numpy(self.group_weight, "group_weight")
            if not weight.any():
                raise InputError("the head has no training groups: call set_train_groups first")
            if not math.isfinite(weight.sum()) or weight.min() < 0:
                raise InputError(f"group_weight is negative, NaN or infinite: {DAMAGED_STATE}")
            self._seen = SeenGroups.of(self.space, self.groups, weight, device)
        return self._seen

    @property
    def candidates(self) -> Candidates:
        """Candidate groups, with the training counts and the affine hull of the training groups."""
        return self.seen.candidates

    def get_extra_state(self) -> Tensor:
        """Return a digest of the candidate groups; it is stored in the state dict to detect states of other groups.

        Returns
        -------
        tensor
            One 64-bit integer.
        """
        about = repr((self.space.cardinalities, self.groups.shape)).encode() + self.groups.tobytes()
        return torch.tensor(int.from_bytes(hashlib.sha256(about).digest()[:8], signed=True))

    def set_extra_state(self, state: Any) -> None:
        """Check that a loaded state belongs to the same candidate groups.

        Parameters
        ----------
        state : tensor
            Digest from the state dict.

        Raises
        ------
        InputError
            If the state belongs to other candidate groups.
        """
        if isinstance(state, Tensor) and not state.is_meta and not bool(state.cpu() == self.get_extra_state()):
            raise InputError(
                "the state belongs to a head with other groups, so its biases would be assigned to the wrong groups: "
                "load it into a head with the same cardinalities and groups"
            )

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *arguments: Any) -> None:
        state_dict.setdefault(f"{prefix}_extra_state", self.get_extra_state())  # states of older releases lack it
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_outdated": self._age.outdated(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        outdated = state.pop("_outdated")
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._age.carry(self, outdated=outdated)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Move or cast the head, but keep its buffers in 64 bits on devices that have 64-bit floats."""
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
    """Record, after a state dict was loaded, that the loaded biases belong to the loaded weights."""
    head._seen = None
    head._age.start(head)
