"""Collective operations over the processes of a distributed job; with a single process they do nothing."""

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
        """Return the sum over processes of arrays of equal shape. Gradients flow through it to every process."""
        return values

    def gather(self, value: Any) -> list[Any]:
        """Return the values that all processes pass, in order of rank; arrays may differ in length."""
        return [value]

    def share(self, n_rows: int) -> slice:
        """Return this process's share of ``n_rows`` rows; the shares of all processes cover the rows in order."""
        return slice(n_rows * self.rank // self.size, n_rows * (self.rank + 1) // self.size)


ALONE = Collective()
"""The collective of a job with a single process."""


def check_processes(processes: Any) -> None:
    """Check that an argument is a collective."""
    if not isinstance(processes, Collective):
        raise InputError(f"processes is {processes!r}: pass what current_processes() gives, or leave it out")
