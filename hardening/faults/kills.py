"""kill −9 at every moment at which a command changes a file, in the middle of writes, and at random ones."""

import signal
from functools import partial
from pathlib import Path

from hardening.chance import chance
from hardening.faults.injection import die_after, kill_before, no_file_beyond
from hardening.faults.scenes import numbers
from hardening.faults.verdicts import REFERENCES, Failure, Fault, Verdict, half_written, lost, put_old, same_end

MOST = {"bench": 24, "train": 20, "features": 16, "figure": 4}
SHARES = (0.01, 0.5, 0.9)
"""Sizes beyond which a write is fatal, as shares of the largest file."""

RANDOM = {"bench": 12, "train": 12, "features": 12}
"""Kills at random moments; two of any other command."""


def kill_faults() -> list[Fault]:
    """Kills before events, kills that leave half a file, kills within writes."""
    faults = []
    for name, reference in REFERENCES.items():
        for number in numbers(reference.events, MOST.get(name, 25)):
            torn = number % 2 == 0 or reference.events < 12
            label = f"{name}, kill −9 before change {number} of {reference.events}"
            faults.append(
                Fault("kill −9", label, partial(killed, name, number=number, torn=torn, old=bool(number % 2)))
            )
        for size in sorted(
            {int(share * reference.largest) for share in SHARES[:: 1 if reference.scene.resumes else 2]}
        ):
            label = f"{name}, kill −9 in a write beyond {size} bytes"
            faults.append(Fault("kill −9", label, partial(killed, name, size=size)))
        moments = chance(name)
        for _ in range(RANDOM.get(name, 2)):
            share = moments.random()
            label = f"{name}, killed after {share:.0%} of its time"
            faults.append(Fault("kill −9", label, partial(killed_at_random, name, share)))
    return faults


def killed_at_random(name: str, share: float, cwd: Path) -> Verdict:
    """A kill at a share of the time that the command takes, unless it was quicker, and the same command again."""
    reference = REFERENCES[name]
    ended = reference.scene.run(cwd, die_after(max(share * reference.seconds, 0.001)))
    if ended.code not in (0, -signal.SIGALRM):
        return Failure(
            "internal error", f"it should have died or finished, and ended with {ended.code}: {ended.err[-300:]}"
        )
    found = half_written(reference, cwd, old=False)
    return lost(found) if found else same_end(reference, cwd, "killed at random")


def killed(
    name: str, cwd: Path, *, number: int = 0, torn: bool = False, size: int | None = None, old: bool = False
) -> Verdict:
    """One kill, and the same command again."""
    reference = REFERENCES[name]
    old = old and not reference.scene.resumes
    if old:
        put_old(reference, cwd)
    inject = kill_before(number, torn=torn) if size is None else no_file_beyond(size, deadly=True)
    ended = reference.scene.run(cwd, inject)
    if ended.code is None or ended.code >= 0:
        return Failure("internal error", f"it should have died, and ended with {ended.code}: {ended.err[-300:]}")
    found = half_written(reference, cwd, old=old)
    return lost(found) if found else same_end(reference, cwd, "killed")
