"""Verdict on one attempt (right result, one clear sentence, or a failure), counts of many, and a sandbox for reads."""

import ctypes
import os
import random
import re
import signal
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
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
EXECUTIONS = frozenset(
    {"os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile", "subprocess.Popen", "pickle.find_class"}
)
LISTINGS = frozenset({"open", "os.listdir", "os.scandir"})
SYSTEM = ("/proc/", "/sys/", "/dev/", "/usr/", "/lib", "/etc/")  # libraries look for hardware and time zones there
MAX_MEMORY = 512 << 20  # bytes that one read may add; nearly all files here have a few MB at most
MAX_SECONDS = 20
IN_ACCESS, IN_OPEN, IN_NONBLOCK = 0x1, 0x20, 0x800
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
    """Raise ``TimeoutReached`` in the main thread after some seconds of computing, or ten times as many of waiting."""

    def stop(*_: Any) -> None:
        raise TimeoutReached

    before = {number: signal.signal(number, stop) for number in (signal.SIGALRM, signal.SIGPROF)}
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.alarm(10 * seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


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


class Sandbox:
    """A folder for files that are read, and one outside of it that nothing may read.

    An audit hook sees the files that Python opens. Libraries in C open files without it, so inotify watches the secrets
    that attacks lead to, where the system has it.
    """

    def __init__(self, folder: Path) -> None:
        self.inside, self.outside, self.marker = folder / "inside", folder / "outside", folder / "executed"
        self.inside.mkdir()
        self.outside.mkdir()
        allowed = (self.inside, sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), *sys.path)
        self._allowed = tuple(os.path.realpath(path) for path in allowed if path)
        self._events: list[tuple[Kind, str]] = []
        self._active = False
        self._watch = _watch(self.outside)
        sys.addaudithook(self._hear)

    def attempt(self, tally: Tally, label: str, call: Callable[[], Any], check: Check = lambda _: None) -> None:
        """Count one read, which may start nothing, read nothing outside, and must stay within memory and time."""
        with self.watching(tally, label) as single:
            single.attempt(label, call, check)

    @contextmanager
    def watching(self, tally: Tally, label: str) -> Iterator[Tally]:
        """Count what the block counts in the tally it gets, or a failure if the block breaks out of the sandbox."""
        self._events.clear()
        before, single = _reset_peak(), Tally(tally.part, tally.unit)
        try:
            with time_limit(MAX_SECONDS):
                self._active = True
                yield single
        except TimeoutReached:
            single.fail("internal error", f"{label}: more than {MAX_SECONDS} s")
        finally:
            self._active = False
        violation = self._violation(_peak() - before)
        if violation and not single.failures:
            single = Tally(tally.part, tally.unit, failures=[(violation[0], f"{label}: {violation[1]}")])
        tally.add(single)

    def forget(self) -> None:
        """Ignore what was opened outside so far: preparing an attack opens its secrets."""
        while self._touched():
            pass

    def _violation(self, memory: int) -> tuple[Kind, str] | None:
        if self.marker.exists():
            self.marker.unlink()
            return "execution", "the payload ran"
        if self._events:
            return self._events[0]
        if touched := self._touched():
            return "read outside", f"{touched} was opened"
        return ("memory overrun", f"{memory >> 20} MB more") if memory > MAX_MEMORY else None

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._active:
            return
        if event in EXECUTIONS:
            self._events.append(("execution", f"{event} {arguments!r:.200}"))
        elif event in LISTINGS and isinstance(arguments[0], str | bytes | os.PathLike):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            known = any(path == root or path.startswith(f"{root}/") for root in self._allowed)
            if not known and not path.startswith(SYSTEM):
                self._events.append(("read outside", path))

    def _touched(self) -> str:
        """Return the file outside that was opened since the last call, or an empty text."""
        try:
            content = os.read(self._watch, 1 << 16) if self._watch >= 0 else b""
        except BlockingIOError:
            content = b""
        return content[16:].split(b"\0")[0].decode() or str(self.outside) if content else ""


def _watch(folder: Path) -> int:
    """Return a descriptor that reports files opened in a folder, or -1 where the system has no inotify."""
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "inotify_init1"):
        return -1
    descriptor: int = library.inotify_init1(IN_NONBLOCK)
    library.inotify_add_watch(descriptor, os.fsencode(folder), IN_ACCESS | IN_OPEN)
    return descriptor


def _reset_peak() -> int:
    """Reset the peak memory of the process (Linux) and return the memory now."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return 1 << 62  # it cannot be measured here
    return _peak()


def _peak() -> int:
    """Return the largest resident memory since the last reset, in bytes; 0 where it is not known."""
    status = Path("/proc/self/status")
    found = re.search(r"VmHWM:\s*(\d+)", status.read_text()) if status.exists() else None
    return int(found[1]) << 10 if found else 0
