"""The operations in which all processes of a job take part. Alone, they cost nothing."""

from __future__ import annotations

from typing import Any

from compshift._errors import InputError
from compshift.core.bias import BiasSums, merge_sums


class Collective:
    """One process that shares its job with nobody; subclasses bring others in.

    Every process must make the same calls in the same order.
    """

    rank = 0
    size = 1

    def sum(self, values: Any) -> Any:
        """Sum over processes of an array of one shape. Gradients flow through it to every process."""
        return values

    def gather(self, value: Any) -> list[Any]:
        """What each process passes, in order of rank; arrays may differ in length."""
        return [value]

    def share(self, n_rows: int) -> slice:
        """The rows of a list of ``n_rows`` that fall to this process; together the shares cover the list in order."""
        return slice(n_rows * self.rank // self.size, n_rows * (self.rank + 1) // self.size)


ALONE = Collective()


def check_processes(processes: Any) -> None:
    """Refuse anything but a collective."""
    if not isinstance(processes, Collective):
        raise InputError(f"processes is {processes!r}: pass what current_processes() gives, or leave it out")


def merge_everywhere(sums: BiasSums, processes: Collective) -> BiasSums:
    """The sums over the samples of all processes, merged in the same order, hence to the same bits, on each."""
    first, *others = processes.gather(sums)
    for other in others:
        first = merge_sums(first, other)
    return BiasSums(*first)
