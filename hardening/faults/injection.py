"""Faults inside a process: it dies, or the system refuses, at the n-th moment at which it changes a file."""

import errno
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod")
TAKE_SPACE = ("open", "os.mkdir", "fsync", "os.rename")
"""Events that a full disk refuses."""

Act = Callable[[int, str, Any], None]


def watch(act: Act) -> Callable[[], int]:
    """Call ``act(number, event, subject)`` before every event that changes a file here; how many there were."""
    here = os.getcwd()
    seen = 0

    def count(event: str, subject: Any) -> None:
        nonlocal seen
        seen += 1
        act(seen, event, subject)

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if not isinstance(flags, int) or not flags & WRITING:
                return
        elif event in CHANGES:
            path = arguments[0]
        else:
            return
        if isinstance(path, (str, bytes, os.PathLike)):
            text = os.fsdecode(path)
            if not os.path.isabs(text) or text.startswith(here):
                count(event, text)

    synchronise = os.fsync

    def fsync(handle: Any) -> None:
        count("fsync", handle)
        synchronise(handle)

    os.fsync = fsync
    sys.addaudithook(hear)
    return lambda: seen


def counting() -> Callable[[], int]:
    """Do nothing but count."""
    return watch(lambda *_: None)


def kill_before(number: int, *, torn: bool = False) -> Callable[[], Any]:
    """Die before an event; with ``torn``, what is about to be made safe is on disk by half."""

    def act(seen: int, event: str, subject: Any) -> None:
        if seen == number:
            if torn and event == "fsync":
                path = f"/proc/self/fd/{subject}"
                if os.path.isfile(path):
                    os.truncate(path, _half(Path(os.readlink(path))))
            os.kill(os.getpid(), signal.SIGKILL)

    return lambda: watch(act)


def die_after(seconds: float) -> Callable[[], Any]:
    """Die at a moment that has nothing to do with files, be it in the middle of native code."""

    def act() -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # as final as SIGKILL: nothing is run any more
        signal.setitimer(signal.ITIMER_REAL, seconds)

    return act


def _half(path: Path) -> int:
    """Bytes of a file once half of what was written last is lost; the earlier lines of a log are safe already."""
    content = path.read_bytes()
    start = content[:-1].rfind(b"\n") + 1 if path.suffix == ".jsonl" else 0
    return (start + len(content)) // 2


def refuse_from(number: int, code: int, *, also_removal: bool = False) -> Callable[[], Any]:
    """From an event on, whatever takes space is refused with an error of the system."""

    def act(seen: int, event: str, subject: Any) -> None:
        if seen >= number and (event in TAKE_SPACE or also_removal):
            raise OSError(code, os.strerror(code), subject if isinstance(subject, str) else None)

    return lambda: watch(act)


def no_file_beyond(size: int, *, deadly: bool) -> Callable[[], Any]:
    """The system lets no file grow beyond some bytes: the process is killed in the middle of a write, or told."""

    def act() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL if deadly else signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return act


def no_rights() -> Any:
    """Be a user without rights, as far as that is possible."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)


FULL, BROKEN, READ_ONLY = errno.ENOSPC, errno.EIO, errno.EROFS
