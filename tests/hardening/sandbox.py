"""A watch over single reads: programs started, pickles unpacked, files opened elsewhere, memory and time.

An audit hook sees the files that Python opens. Libraries in C open files without it, so inotify watches the secrets
that attacks lead to, where the system has it.
"""

import ctypes
import os
import struct
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.hardening.verdicts import Check, Kind, Tally, TimeoutReached, time_limit

EXECUTIONS = frozenset(
    {"os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile", "subprocess.Popen", "pickle.find_class"}
)
LISTINGS = frozenset({"open", "os.listdir", "os.scandir"})
SYSTEM = ("/proc/", "/sys/", "/dev/", "/usr/", "/lib", "/etc/")  # libraries look for hardware and time zones there
MAX_MEMORY = 512 << 20  # bytes that one read may add; nearly all files here have a few MB at most
MAX_SECONDS = 20
IN_ACCESS, IN_OPEN, IN_NONBLOCK = 0x1, 0x20, 0x800


class Sandbox:
    """A folder for files that are read, and one outside of it that nothing may read."""

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
        self._events.clear()
        before, single = _reset_peak(), Tally(tally.part, tally.unit)
        try:
            with time_limit(MAX_SECONDS):
                self._active = True
                single.attempt(label, call, check)
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
        if self._watch < 0:
            return ""
        try:
            content = os.read(self._watch, 1 << 16)
        except BlockingIOError:
            return ""
        length = struct.unpack_from("iIII", content)[3]
        return content[16 : 16 + length].rstrip(b"\0").decode() or str(self.outside)


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
    """Return the largest resident memory since the last reset, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0
