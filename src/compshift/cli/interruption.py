"""Signal handling: an interrupted command cleans up, prints one line, and exits with 128 + the signal's number."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupted(SystemExit):
    """Raised when a signal stops the command; the exit code is 128 + the signal's number."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.message = "interrupted: no file was left half-written"


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise ``Interrupted`` if SIGINT or SIGTERM arrives inside the block; ignored signals (as under nohup) stay so."""
    owner = os.getpid()

    def stop(number: int, _: FrameType | None) -> None:
        if os.getpid() != owner:  # a forked process exits without a message
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        raise Interrupted(number)

    before: dict[int, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, stop)
        yield
    finally:
        for changed, handler in before.items():
            signal.signal(changed, handler)


@contextmanager
def resumable() -> Iterator[None]:
    """If the block is interrupted, tell the user to run the same command again to continue."""
    try:
        yield
    except (KeyboardInterrupt, Interrupted) as error:
        stop = error if isinstance(error, Interrupted) else Interrupted(signal.SIGINT)
        stop.message = "interrupted: run the same command again to continue"
        raise stop from None
