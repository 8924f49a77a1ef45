"""Watch what reading a file does: programs started, names looked up for pickles, files opened elsewhere, memory, time.

Files that Python opens are seen by an audit hook. Libraries in C open files past it, so the system itself (inotify)
watches the secrets that attacks lead to, as far as it offers that.
"""

import ctypes
import os
import signal
import struct
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hardening.tally import Tally

EXECUTIONS = frozenset(
    {"os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile", "subprocess.Popen", "pickle.find_class"}
)
LISTINGS = frozenset({"open", "os.listdir", "os.scandir"})
MOST_MEMORY = 512 << 20
"""Bytes by which one read may raise the memory of the process. Every file here has a few MB, but for one."""

LONGEST_READ = 20
"""Seconds."""

IN_ACCESS, IN_OPEN, IN_NONBLOCK = 0x1, 0x20, 0x800
SYSTEM = ("/proc/", "/sys/", "/dev/", "/usr/", "/lib", "/etc/")
"""Where libraries look for hardware, time zones and themselves."""


class TooSlowError(BaseException):
    """A read took too long; nothing in the package catches this."""


class Sandbox:
    """A folder for files that are read, and one outside of it that nothing may read."""

    def __init__(self, folder: Path) -> None:
        self.inside = folder / "inside"
        self.outside = folder / "outside"
        for path in (self.inside, self.outside):
            path.mkdir()
        self.marker = folder / "executed"
        self._allowed = tuple(
            os.path.realpath(path)
            for path in (self.inside, sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), *sys.path)
            if path
        )
        self._events: list[tuple[str, str]] = []
        self._active = False
        self._watch = _watch(self.outside)
        sys.addaudithook(self._hear)
        signal.signal(signal.SIGALRM, _too_slow)

    def attempt(
        self, tally: Tally, label: str, call: Callable[[], Any], check: Callable[[Any], str | None] | None = None
    ) -> Any:
        """One attempt, that must start nothing, read nothing outside, and stay within memory and time."""
        self._events.clear()
        before = _reset_peak()
        n_failures = len(tally.failures)
        result = None
        try:
            signal.alarm(LONGEST_READ)
            self._active = True
            result = tally.attempt(label, call, check)
        except TooSlowError:
            tally.fail("internal error", f"{label}: more than {LONGEST_READ} s")
        finally:
            self._active = False
            signal.alarm(0)
        if len(tally.failures) > n_failures:
            return result
        found = self._violation(_peak() - before)
        if found is not None:  # the attempt does not count as answered or refused
            if result is None:
                tally.refused -= 1
            else:
                tally.answered -= 1
            tally.fail(found[0], f"{label}: {found[1]}")  # type: ignore[arg-type]
        return result

    def forget(self) -> None:
        """Pass over what was opened outside so far: the making of an attack opens its own secrets."""
        while self._touched():
            pass

    def _violation(self, memory: int) -> tuple[str, str] | None:
        if self.marker.exists():
            self.marker.unlink()
            return "execution", "the payload ran"
        for kind, what in self._events:
            return kind, what
        touched = self._touched()
        if touched:
            return "read outside", f"{touched} was opened"
        if memory > MOST_MEMORY:
            return "memory", f"{memory >> 20} MB more"
        return None

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._active:
            return
        if event in EXECUTIONS:
            self._events.append(("execution", f"{event} {arguments!r:.200}"))
        elif event in LISTINGS and isinstance(arguments[0], str | bytes | os.PathLike):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            if not path.startswith(SYSTEM) and not any(
                path == root or path.startswith(f"{root}/") for root in self._allowed
            ):
                self._events.append(("read outside", path))

    def _touched(self) -> str:
        """The file outside that was opened or read since the last look; nothing if none was."""
        if self._watch < 0:
            return ""
        try:
            content = os.read(self._watch, 1 << 16)
        except BlockingIOError:
            return ""
        _, _, _, length = struct.unpack_from("iIII", content)
        return content[16 : 16 + length].rstrip(b"\0").decode() or str(self.outside)


@contextmanager
def sandbox() -> Iterator[Sandbox]:
    """A sandbox in a temporary folder, which is also where everything else goes meanwhile."""
    with tempfile.TemporaryDirectory(prefix="compshift-files-") as folder:
        yield Sandbox(Path(folder).resolve())


def _too_slow(*_: Any) -> None:
    raise TooSlowError


def _watch(folder: Path) -> int:
    """A descriptor that tells of files opened in a folder, −1 where the system has no such thing."""
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "inotify_init1"):
        return -1
    descriptor: int = library.inotify_init1(IN_NONBLOCK)
    library.inotify_add_watch(descriptor, os.fsencode(folder), IN_ACCESS | IN_OPEN)
    return descriptor


def _reset_peak() -> int:
    """Forget the largest memory so far (Linux); the memory now."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return 1 << 62  # not to be measured here
    return _peak()


def _peak() -> int:
    """Largest resident memory of the process since the last reset, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0
