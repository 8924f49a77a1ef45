"""Which planned results a folder lacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from compshift.bench.chosen import Key, Scenario
from compshift.bench.selection import choose_draw
from compshift.bench.solved import DETERMINISTIC
from compshift.bench.store import Record

Units = Mapping[Key, Mapping[tuple[int, int], Record]]
"""Records by draw and seed."""


@dataclass(frozen=True)
class Lacking:
    """A scenario and method of a data set that lacks draws or seeds."""

    data: str
    dropped: Scenario
    method: str  # as records name it
    finished: int  # jobs
    planned: int


def lacking_results(about: Mapping[str, Any], units: Units) -> list[Lacking]:
    """Everything that is planned and not there, in the order of the plans."""
    found = []
    for label, plan in about["plans"].items():
        protocol = about["data"][label]["protocol"]
        for codes, method, draws, seeds in plan:
            dropped = tuple(sorted(map(tuple, codes)))
            records = units.get((label, dropped, method), {})
            repeated = 1 if protocol["mode"] == "features" and method in DETERMINISTIC else seeds
            planned = _planned(records, draws, repeated, protocol["select"])
            finished = len(planned & set(records))
            if finished < len(planned):
                found.append(Lacking(label, dropped, method, finished, len(planned)))
    return found


def lacking_words(about: Mapping[str, Any], lacking: list[Lacking]) -> list[str]:
    """A sentence for every data set that is not finished."""
    notes = []
    for label, plan in about["plans"].items():
        count = sum(item.data == label for item in lacking)
        if count:
            notes.append(
                f"{label} is not finished: {count} of {len(plan)} pairs of scenario and method lack draws or seeds."
            )
    return notes


def _planned(found: Mapping[tuple[int, int], Record], draws: int, seeds: int, metric: str) -> set[tuple[int, int]]:
    """Draws and seeds of a unit: all draws at the first seed, then the chosen one at the others.

    Before all draws are there, the first stands for the chosen one. If every draw diverged there is none.
    """
    first = {(draw, 0) for draw in range(draws)}
    chosen: int | None = 0
    if first <= set(found):
        chosen = choose_draw({draw: record for (draw, seed), record in found.items() if seed == 0}, metric)
    return first if chosen is None else first | {(chosen, seed) for seed in range(seeds)}
