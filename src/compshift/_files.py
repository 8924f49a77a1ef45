"""Files and JSON: checks of paths, atomic writes, locks, and JSON from files that anybody may have written."""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import stat
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compshift._errors import CANNOT_WRITE, InputError, reason

if TYPE_CHECKING:
    from filelock import BaseFileLock

LONE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""Matches an escaped UTF-16 surrogate, half of a character; two in a row make a whole one."""

PRODUCTS = (".html", ".htm", ".md", ".tex", ".png", ".svg", ".pdf", ".onnx")
"""Endings of output files that are never read as part of an input folder."""


def parse_json(text: str | bytes) -> Any:
    """Return the content of a JSON text; any fault, including deep nesting, raises a ValueError.

    Unpaired surrogates raise one too: JSON can escape them, but they cannot be written to a file or terminal.
    """
    try:
        content = json.loads(text)
        if LONE_SURROGATE.search(text if isinstance(text, bytes) else text.encode("utf-8")):
            json.dumps(content, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return content


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; raise a ValueError if it holds anything else."""
    content = parse_json(path.read_bytes())
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    return content


def check_path(path: str | PathLike[str]) -> Path:
    """Return a path with ~ expanded, after checking that the system accepts it and no pipe or device is there."""
    if isinstance(path, bytes) or not isinstance(path, str | PathLike) or isinstance(os.fspath(path), bytes):
        raise InputError(f"the path is {path!r}: pass it as text or as a pathlib.Path")
    if not os.fspath(path):
        raise InputError("the path is empty: pass the path of a file or folder, '.' for the one you are in")
    found = Path(os.path.expanduser(path))
    try:
        os.lstat(found)
    except ValueError:
        raise InputError(f"the path {os.fspath(path)!r} has a character that paths cannot have: leave it out") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InputError(f"the path {os.fspath(path)!r} is too long: choose a shorter one") from None
    return check_ordinary(found)


def check_ordinary(path: Path, *, given_pipes: bool = False) -> Path:
    """Return ``path`` after checking that it is not a pipe, device or socket, which may never begin or end.

    With ``given_pipes``, a pipe that this process was started with, like ``/dev/stdin``, is accepted.
    """
    try:
        mode = path.stat().st_mode
    except OSError:
        return path  # opening it will raise the same error
    given = given_pipes and path.is_relative_to("/dev") and (path.name == "stdin" or path.parent.name == "fd")
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or (given and stat.S_ISFIFO(mode))):
        raise InputError(f"{str(path)!r} is no ordinary file but a pipe, device or socket: pass the path of a file")
    return path


def check_target(path: str | PathLike[str], *sources: str | PathLike[str] | None) -> Path:
    """Return the file that ``path`` leads to, after checking that it can be written and is none of the ``sources``.

    Called before a computation, it saves work that would be lost.
    """
    path = check_path(path)
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise InputError(f"{str(path)!r} is a link that leads to itself: choose another path")
    if target.is_dir():
        raise InputError(f"{str(path)!r} is a folder: pass the path of a file to write")
    if not target.parent.is_dir():
        folder = target.parent if path.is_symlink() else path.parent
        raise InputError(f"there is no folder {str(folder)!r} to write {target.name!r} to: create it first")
    if not os.access(target.parent, os.W_OK) or (target.exists() and not os.access(target, os.W_OK)):
        raise InputError(f"{str(path)!r} may not be written to: choose another path or change the permissions")
    check_apart(path, *sources)
    for source in _existing(sources):
        if source.is_dir() and target.is_relative_to(source) and _may_be_read(target):
            raise InputError(f"{str(path)!r} is in the folder that is read, {str(source)!r}: choose another path")
    return target


def check_apart(path: str | PathLike[str], *sources: str | PathLike[str] | None) -> None:
    """Check that ``path`` is none of the inputs; sources may be None or not exist."""
    for source in _existing(sources):
        if source == Path(os.path.realpath(os.path.expanduser(path))):
            raise InputError(f"{str(path)!r} is the input: choose another path to write to")


def _existing(sources: Iterable[str | PathLike[str] | None]) -> list[Path]:
    """Return the real paths of the sources that exist."""
    found = (Path(os.path.realpath(os.path.expanduser(source))) for source in sources if source is not None)
    return [source for source in found if source.exists()]


def _may_be_read(target: Path) -> bool:
    """Return whether a file to be written into an input folder may be read as part of it.

    Existing files may, except ``PRODUCTS``; so may a new .parquet file, as a shard, and a new .json file, as a record.
    """
    ending = target.suffix.lower()
    return ending not in PRODUCTS and (target.exists() or ending in (".parquet", ".pq", ".json"))


def check_folder(path: Path, purpose: str) -> None:
    """Check that a path is a folder or free; ``purpose`` says in the error what the folder is for."""
    if path.is_symlink() and not path.exists():
        raise InputError(f"{str(path)!r} is a link to nothing: remove it, or pass another folder {purpose}")
    if path.exists() and not path.is_dir():
        raise InputError(f"{str(path)!r} is a file: pass a folder {purpose}")


def try_lock(path: Path, patience: float = 0) -> BaseFileLock | None:
    """Return a lock on a file, or None if another process holds it after ``patience`` seconds.

    The system releases the lock when its holder ends, even by a crash. A file system without locks raises an
    InputError, because lock files in their place would outlive a crash.
    """
    from filelock import FileLock, SoftFileLock, Timeout

    lock = FileLock(path, timeout=patience, thread_local=False)
    found: BaseFileLock | None = lock
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about falling back to a SoftFileLock, which is handled below
            lock.acquire()
    except Timeout:
        found = None
    except NotImplementedError:
        raise _no_locks(path) from None
    except OSError as error:
        raise (_no_locks(path) if error.errno == errno.ENOSYS else error) from None
    if isinstance(lock, SoftFileLock):
        lock.release()
        raise _no_locks(path)
    return found


@contextmanager
def locked(path: Path, patience: float = 0) -> Iterator[bool]:
    """Hold a lock during the block, which receives whether the lock was free."""
    lock = try_lock(path, patience)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            lock.release()


def _no_locks(path: Path) -> InputError:
    """Return the error for a file system without locks."""
    return InputError(f"the file system of {str(path.parent)!r} has no locks: choose a folder on another one")


def check_inside(path: Path, root: Path) -> Path:
    """Return ``path`` after checking that no ``..``, absolute name or symbolic link in it leads out of ``root``.

    It may not lead to a pipe or device either. The root itself may be a link.
    """
    try:
        led_to = path.resolve()
    except (OSError, ValueError, RuntimeError):  # a cycle of links, a NUL character or a name that is too long
        raise InputError(f"{str(path)!r} cannot be a file: the system does not accept this path") from None
    if not led_to.is_relative_to(root.resolve()):
        raise InputError(
            f"{str(path)!r} leads out of {str(root)!r}, and nothing outside of it is read: put a copy of the file there"
        )
    return check_ordinary(path)


def _sync_folder(folder: Path) -> None:
    """Flush a folder to disk, so that a new name in it survives a crash, if the system supports that."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def replacing(path: str | PathLike[str]) -> Iterator[Path]:
    """Write a file atomically: the block writes to a temporary path, which replaces ``path`` if the block succeeds.

    If the block raises, ``path`` is unchanged.
    """
    target = check_target(path)
    # Not derived from the target's name, which may have the maximal length or not be valid text.
    temporary = target.with_name(f".{secrets.token_hex(8)}.tmp{target.suffix if target.suffix.isascii() else ''}")
    try:
        yield temporary
        with open(temporary, "rb") as stream:
            os.fsync(stream.fileno())
        os.replace(temporary, target)
        _sync_folder(target.parent)
    except OSError as error:
        raise write_error(error, path) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_error(error: OSError, path: str | PathLike[str]) -> OSError:
    """Return an OSError from writing with the path that the user passed."""
    return OSError(error.errno or errno.EIO, f"{CANNOT_WRITE}{reason(error)}", str(path))


def append_line(path: Path, line: str) -> None:
    """Append a line to a file and flush it to disk; if the last line has no end, end it first."""
    try:
        with path.open("a+b") as stream:
            end = stream.seek(0, os.SEEK_END)
            torn = False
            if end:
                stream.seek(end - 1)
                torn = stream.read(1) != b"\n"
            stream.write(b"\n" * torn + line.encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise write_error(error, path) from error
