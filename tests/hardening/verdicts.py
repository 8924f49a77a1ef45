"""Verdict on one attempt (right result, one clear sentence, or a failure), and counts of many."""

import os
import random
import re
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import pandas as pd
from sklearn.exceptions import NotFittedError

from compshift import InputError

Kind = Literal[
    "internal error", "lost result", "execution", "read outside", "memory overrun", "wrong result", "unclear sentence"
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)
Check = Callable[[Any], str | None]
Item = TypeVar("Item")

SHARE = int(os.environ.get("HARDENING_SHARE", "1"))
SEED = int(os.environ.get("HARDENING_SEED", "0"))
MAX_SENTENCE = 820  # characters
SCIKIT_LEARN = "The feature names should match"  # scikit-learn's own message has several lines


def share(items: Iterable[Item]) -> list[Item]:
    """Return every ``SHARE``-th item, starting at ``SEED``; small collections keep at least one."""
    kept = list(items)
    return kept[SEED % min(SHARE, len(kept)) :: SHARE] if kept else []


def generator(name: str) -> random.Random:
    """Return a random generator seeded by ``SEED`` and a name."""
    return random.Random(f"{SEED} {name}")


class TimeoutReached(BaseException):
    """Raised by ``time_limit``; nothing in the package catches it."""


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise ``TimeoutReached`` in the main thread after some seconds."""

    def stop(*_: Any) -> None:
        raise TimeoutReached

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@dataclass
class Tally:
    """Counts of the attempts of one test."""

    part: str
    unit: str  # inputs, files or faults
    accepted: int = 0
    rejected: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)

    @property
    def tried(self) -> int:
        """Number of attempts."""
        return self.accepted + self.rejected + len(self.failures)

    def add(self, other: "Tally") -> None:
        """Add the counts of another tally."""
        self.accepted += other.accepted
        self.rejected += other.rejected
        self.failures += other.failures

    def fail(self, kind: Kind, description: str) -> None:
        """Count a failure."""
        self.failures.append((kind, description))

    def attempt(self, label: str, call: Callable[[], Any], check: Check = lambda _: None) -> Any:
        """Call and count; return the result, or None if the call raised.

        A result is right if ``check`` returns None. An error is fine if callers are told to expect its class and its
        message is one clear sentence.
        """
        try:
            result = call()
            complaint = check(result)
        except Exception as error:
            problem = unclear(str(error))
            if not isinstance(error, InputError | NotFittedError | OSError):
                self.fail("internal error", f"{label}: {_location(error)}")
            elif problem:
                self.fail("unclear sentence", f"{label}: {problem}: {error}")
            else:
                self.rejected += 1
            return None
        if complaint is None:
            self.accepted += 1
        else:
            self.fail("wrong result", f"{label}: {complaint}")
        return result


def unclear(message: str) -> str | None:
    """Return why a message is not one clear sentence, or None if it is."""
    if not message.strip():
        return "empty message"
    if "\n" in message.strip() and not message.startswith(SCIKIT_LEARN):
        return "more than one line"
    if len(message) > MAX_SENTENCE:
        return f"{len(message)} characters"
    if "Traceback (most recent call last)" in message or re.search(r"\bat 0x[0-9a-f]{6,}", message):
        return "internals are shown"
    return None


def _location(error: BaseException) -> str:
    """Return the error with the last line of compshift in its traceback."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "compshift/" in frame.filename]
    where = f" at {frames[-1].filename.rpartition('compshift/')[2]}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}: {' '.join(str(error).split())[:200]}"


def arrays_in(result: Any) -> list[Any]:
    """Return the arrays that a result consists of; frames are left out because their columns may hold NaN."""
    if isinstance(result, list | tuple):
        return [array for part in result for array in arrays_in(part)]
    if hasattr(result, "detach"):
        return [result.detach().numpy()]
    return [np.asarray(result)] if isinstance(result, np.ndarray | float | int | np.generic | pd.Series) else []


def has_nan(result: Any) -> str | None:
    """Complain about NaN in a result."""
    shapes = [array.shape for array in arrays_in(result) if array.dtype.kind == "f" and np.isnan(array).any()]
    return f"NaN in a result of shape {shapes[0]}" if shapes else None


def differs_from(expected: Any) -> Check:
    """Return a check that a result equals another one up to rounding."""

    def check(result: Any) -> str | None:
        found, wanted = arrays_in(result), arrays_in(expected)
        if [a.shape for a in found] != [a.shape for a in wanted]:
            return f"shapes {[a.shape for a in found]}, expected {[a.shape for a in wanted]}"
        for a, b in zip(found, wanted, strict=True):
            if not (np.allclose(a, b, rtol=1e-6, atol=1e-7) if a.dtype.kind in "fc" else np.all(a == b)):
                return "not the result for the same values in a plain array"
        return None

    return check


def no_probabilities(values: Any, tolerance: float = 1e-5) -> str | None:
    """Complain about rows that are not probabilities."""
    array = np.asarray(values, dtype=np.float64)
    if not np.isfinite(array).all():
        return f"{int((~np.isfinite(array)).sum())} of {array.size} numbers are not finite"
    sums = array.sum(axis=-1)
    return None if np.abs(sums - 1).max(initial=0) < tolerance else f"probabilities sum to {sums.min()} … {sums.max()}"
