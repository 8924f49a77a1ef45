"""What copies, moves, casts and loaded states do to a head: its biases go with its weights and its groups."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, nn

from compshift._errors import InputError
from compshift.core.arrays import IntArray
from compshift.core.groups import GroupSpace
from compshift.nn.bias_age import BiasAge
from compshift.nn.precision import moved_buffer
from compshift.nn.seen_groups import SeenGroups


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
