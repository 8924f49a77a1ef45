"""A clock that jumps and goes backwards, and files from the future: what is finished must not depend on time."""

import os
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from hardening.faults.injection import kill_before
from hardening.faults.verdicts import REFERENCES, Failure, Fault, Verdict, half_written, lost, same_end, unlike

PART = "clock"
YEAR = 365 * 86400
JUMPS = {"a year back": -YEAR, "to 1970": -(10**10), "twenty years on": 20 * YEAR}


def clock_faults() -> list[Fault]:
    """Jumps between a kill and the next run, and clocks that run backwards all the time."""
    faults = []
    for name in ("bench", "train", "features"):
        for what, seconds in JUMPS.items():
            faults.append(Fault(PART, f"{name}, clock jumps {what} after a kill", partial(jumped, name, seconds)))
            faults.append(Fault(PART, f"{name}, files' times move {what}", partial(moved, name, seconds)))
    return faults + [Fault(PART, f"{name}, clock runs backwards", partial(backwards, name)) for name, _ in unlike()]


def jumped(name: str, seconds: int, cwd: Path) -> Verdict:
    """The first half before the jump, the second after it."""
    return _interrupted(name, cwd, lambda: clock(seconds))


def moved(name: str, seconds: int, cwd: Path) -> Verdict:
    """Half-finished work whose files say that they are of another time, the newest the oldest."""
    return _interrupted(name, cwd, None, seconds)


def _interrupted(name: str, cwd: Path, inject: Any, shift: int = 0) -> Verdict:
    reference = REFERENCES[name]
    reference.scene.run(cwd, kill_before(2 * reference.events // 3))
    if shift:
        moment = max(0, time.time() + shift)
        for number, path in enumerate(sorted(cwd.rglob("*"))):
            os.utime(path, (moment - number, moment - number))
    return same_end(reference, cwd, "interrupted", inject)


def backwards(name: str, cwd: Path) -> Verdict:
    """Every look at the clock is an hour before the last one."""
    reference = REFERENCES[name]
    ended = reference.scene.run(cwd, lambda: clock(0, -3600))
    if ended.code != 0:
        return Failure("internal error", ended.err[-300:])
    found = half_written(reference, cwd, old=False)
    return lost(found) if found else same_end(reference, cwd, "run by a clock that runs backwards")


def clock(shift: float, step: float = 0.0) -> None:
    """Have this process see another time, which moves by ``step`` with every look."""
    now = time.time
    looks = 0

    def shown() -> float:
        nonlocal looks
        looks += 1
        return max(1.0, now() + shift + step * looks)

    time.time = shown
    time.time_ns = lambda: int(shown() * 1e9)

    class Shifted(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.fromtimestamp(0, tz or UTC) + timedelta(seconds=shown())

    from compshift.bench import jobs as job
    from compshift.report import page as made_with

    job.datetime = made_with.datetime = Shifted
