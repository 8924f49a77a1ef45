"""What every benchmark is made of: a thing, what it is held against, and the ratio of the two in one run."""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Row:
    """A line of the table. ``target`` is in words; ``met`` says whether the figure reaches it, ``why`` if not."""

    what: str
    against: str
    figure: str
    target: str
    met: bool
    why: str = ""


def seconds(work: Callable[[], Any], repeat: int = 5) -> float:
    """Least time of some work, after one run that is not counted."""
    return seconds_in_turns([work], repeat)[0]


def seconds_in_turns(works: Sequence[Callable[[], Any]], repeat: int = 5) -> list[float]:
    """Least time of each of several works, after one run that is not counted.

    They take turns, so that whatever else the machine does at a time is a burden to all of them. The least is what the
    work itself takes: other programs, and on a shared host other machines, only ever add to it, and they add more to
    works that wait for their slowest thread.
    """
    times: list[list[float]] = [[] for _ in works]
    for number in range(repeat + 1):
        for work, own in zip(works, times, strict=True):
            start = time.perf_counter()
            work()
            if number:
                own.append(time.perf_counter() - start)
    return [min(own) for own in times]


def process(*arguments: str) -> Callable[[], None]:
    """A fresh Python process, as some work."""

    def work() -> None:
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)

    return work


def peak_megabytes() -> float:
    """The largest resident size of this process so far. (``ru_maxrss`` would count its parent's.)"""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
