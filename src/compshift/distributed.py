"""Collective operations over the processes of a distributed job; the base class here serves a single process."""

from __future__ import annotations

from typing import Any

from compshift._errors import InputError


class Collective:
    """Collective operations of a single process; subclasses implement them for several.

    Every process must make the same calls in the same order.
    """

    rank = 0
    size = 1

    def sum(self, values: Any) -> Any:
        """Return the sum of the ``values`` that all processes pass, of equal shape; gradients flow to every process."""
        return values

    def gather(self, value: Any) -> list[Any]:
        """Return the values that all processes pass, as a list in order of rank; arrays may differ in length."""
        return [value]

    def share(self, n_rows: int) -> slice:
        """Return this process's slice of ``n_rows`` rows; the slices of all ranks, in order, cover the rows."""
        return slice(n_rows * self.rank // self.size, n_rows * (self.rank + 1) // self.size)


ALONE = Collective()
"""Collective operations of a job with a single process."""


def check_processes(processes: Any) -> None:
    """Check that the argument ``processes`` is a ``Collective``."""
    if not isinstance(processes, Collective):
        raise InputError(f"processes is {processes!r}: pass the result of current_processes(), or leave it out")
