"""Signals: a command that is stopped cleans up, prints one line, and ends with the exit code that shells expect."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(SystemExit):
    """Raised when a signal stops the command; the exit code is 128 + the signal's number."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.message = "interrupted: files are whole, or as they were before"


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise ``Interrupted`` when a signal arrives inside; signals that are ignored, as under nohup, stay ignored."""
    owner = os.getpid()

    def stop(number: int, _: FrameType | None) -> None:
        if os.getpid() != owner:  # a forked process ends silently
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        raise Interrupted(number)

    before: dict[int, Any] = {}
    try:
        for number in STOP_SIGNALS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, stop)
        yield
    finally:
        for changed, handler in before.items():
            signal.signal(changed, handler)


@contextmanager
def resumable() -> Iterator[None]:
    """Tell the user, if the work inside is interrupted, that the same command continues it."""
    try:
        yield
    except (KeyboardInterrupt, Interrupted) as error:
        stop = error if isinstance(error, Interrupted) else Interrupted(signal.SIGINT)
        stop.message = "interrupted: the same command goes on from here"
        raise stop from None
