"""Interrupted, told to end, or with nobody who reads: a command ends promptly with one line, and nothing is lost."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

from hardening.faults.injection import watch
from hardening.faults.scenes import numbers
from hardening.faults.verdicts import REFERENCES, Failure, Fault, Verdict, half_written, lost, put_old, same_end, unlike

PART = "signals"
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


def signal_faults() -> list[Fault]:
    """Signals at changes of files, and pipes that are closed."""
    faults = []
    for name, reference in unlike():
        for sent in CODES:
            for number in numbers(reference.events, 4 if reference.scene.resumes else 1):
                label = f"{name}, {sent.name} at change {number} of {reference.events}"
                faults.append(Fault(PART, label, partial(signalled, name, sent, number)))
        faults.append(Fault(PART, f"{name}, nobody reads what it prints", partial(unread, name)))
    return faults


def signalled(name: str, sent: signal.Signals, number: int, cwd: Path) -> Verdict:
    """One signal, and the same command again."""
    reference = REFERENCES[name]
    old = not reference.scene.resumes
    if old:
        put_old(reference, cwd)

    def act(seen: int, *_: Any) -> None:
        if seen == number:
            os.kill(os.getpid(), sent)

    ended = reference.scene.run(cwd, lambda: watch(act))
    said = [line for line in ended.err.strip().splitlines() if not line.startswith("warning: ")]
    if "Traceback" in ended.err or "Exception ignored" in ended.err or ended.code is None:
        return Failure("internal error", f"{ended.code}: {ended.err.strip()[-300:]}")
    if ended.code != CODES[sent] or len(said) != 1:
        return Failure("unclear sentence", f"exit code {ended.code}, {len(said)} lines: {ended.err.strip()[-300:]}")
    found = half_written(reference, cwd, old=old)
    return lost(found) if found else same_end(reference, cwd, sent.name)


def unread(name: str, cwd: Path) -> Verdict:
    """Standard output is a pipe that nobody holds any more, as after ``| head``."""
    reference = REFERENCES[name]

    def inject() -> None:
        read, write = os.pipe()
        os.close(read)
        os.dup2(write, 1)

    ended = reference.scene.run(cwd, inject)
    if ended.code or ended.code is None or (ended.err.strip().replace("warning: ", "") and "rror" in ended.err):
        return Failure("internal error", f"{ended.code}: {ended.err.strip()[-300:]}")
    found = half_written(reference, cwd, old=False)
    return lost(found) if found else same_end(reference, cwd, "unread")
