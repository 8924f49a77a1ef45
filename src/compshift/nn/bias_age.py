"""Whether the biases of a head still belong to its weights."""

from __future__ import annotations

from torch import nn


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
