"""What every benchmark is made of: a thing, what it is held against, and the ratio of the two in one run."""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One line of the table. ``target`` is in words; ``met`` says whether the figure reaches it."""

    what: str
    against: str
    figure: str
    target: str
    met: bool


def seconds(work: Callable[[], Any], repeat: int = 5) -> float:
    """Median time of some work, after one run that is not counted."""
    work()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def process_seconds(*arguments: str, repeat: int = 7) -> float:
    """Median wall time of a fresh Python process."""

    def work() -> None:
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)

    return seconds(work, repeat)
