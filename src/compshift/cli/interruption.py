"""What happens when a command is told to end: it cleans up, says one line, and ends as shells expect."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(SystemExit):
    """Told to end by a signal; the code is the one that shells give."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.words = "interrupted: files are whole, or as they were before"


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn signals into ``Interrupted`` inside; those that are ignored, as under nohup, stay so."""
    owner = os.getpid()

    def stop(number: int, _: FrameType | None) -> None:
        if os.getpid() != owner:  # a fork, which has no line to say
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        raise Interrupted(number)

    before: dict[int, Any] = {}
    try:
        for number in SIGNALS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, stop)
        yield
    finally:
        for changed, handler in before.items():
            signal.signal(changed, handler)


@contextmanager
def resumable() -> Iterator[None]:
    """Say that nothing is lost when the work inside is interrupted."""
    try:
        yield
    except (KeyboardInterrupt, Interrupted) as error:
        stop = error if isinstance(error, Interrupted) else Interrupted(signal.SIGINT)
        stop.words = "interrupted: the same command goes on from here"
        raise stop from None
