"""Files and JSON: path checks, atomic writes, locks, and parsing of untrusted JSON."""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import stat
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compshift._errors import CANNOT_WRITE, InputError, reason

if TYPE_CHECKING:
    from filelock import BaseFileLock

ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""Matches an escaped UTF-16 surrogate, paired or not. Two in a row encode one character; a single one is invalid."""

PARQUET = (".parquet", ".pq")
"""File name endings of Parquet files."""

PRODUCTS = (".html", ".htm", ".md", ".tex", ".png", ".svg", ".pdf", ".onnx")
"""Suffixes of output files; they are never read as part of an input folder."""


def ending(path: str | PathLike[str]) -> str:
    """Return the ending of a file name in lower case, including the dot."""
    return Path(path).suffix.lower()


def is_parquet(path: Path) -> bool:
    """Return whether a path has the name of a Parquet file, or is a folder, which may contain shards."""
    return path.is_dir() or ending(path) in PARQUET


def parse_json(text: str | bytes) -> Any:
    """Return the content of a JSON text; invalid or too deeply nested JSON raises a ValueError.

    An unpaired surrogate raises a ValueError too: JSON can escape it, but it cannot be written to a file or terminal.
    """
    try:
        content = json.loads(text)
        if ESCAPED_SURROGATE.search(text if isinstance(text, bytes) else text.encode("utf-8")):
            json.dumps(content, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return content


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; raise a ValueError if the file does not hold a JSON object."""
    content = parse_json(path.read_bytes())
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    return content


def check_path(path: str | PathLike[str]) -> Path:
    """Return a path with ~ expanded, after checking that it is valid and not a pipe, device or socket."""
    if isinstance(path, bytes) or not isinstance(path, str | PathLike) or isinstance(os.fspath(path), bytes):
        raise InputError(f"the path is {path!r}: pass it as text or as a pathlib.Path")
    if not os.fspath(path):
        raise InputError("the path is empty: pass the path of a file or folder, '.' for the current folder")
    found = Path(os.path.expanduser(path))
    try:
        os.lstat(found)
    except ValueError:
        raise InputError(
            f"the path {os.fspath(path)!r} has a character that is not allowed in a path: remove it"
        ) from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InputError(f"the path {os.fspath(path)!r} is too long: choose a shorter one") from None
    return check_ordinary(found)


def check_ordinary(path: Path, *, given_pipes: bool = False) -> Path:
    """Return ``path`` after checking that it is not a pipe, device or socket, because reading one may never end.

    With ``given_pipes``, pipes that this process was started with, such as ``/dev/stdin``, are accepted.
    """
    try:
        mode = path.stat().st_mode
    except OSError:
        return path  # opening it will raise the same error
    given = given_pipes and path.is_relative_to("/dev") and (path.name == "stdin" or path.parent.name == "fd")
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or (given and stat.S_ISFIFO(mode))):
        raise InputError(f"{str(path)!r} is not a regular file but a pipe, device or socket: pass the path of a file")
    return path


def check_target(path: str | PathLike[str], *sources: str | PathLike[str] | None) -> Path:
    """Return an output path with links resolved, after checking that it is writable and not one of the ``sources``.

    Call it before a long computation, so that a bad path raises early.
    """
    path = check_path(path)
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise InputError(f"{str(path)!r} is a symbolic link to itself: choose another path")
    if target.is_dir():
        raise InputError(f"{str(path)!r} is a folder: pass the path of a file to write")
    if not target.parent.is_dir():
        folder = target.parent if path.is_symlink() else path.parent
        raise InputError(f"there is no folder {str(folder)!r} to write {target.name!r} to: create it first")
    if not os.access(target.parent, os.W_OK) or (target.exists() and not os.access(target, os.W_OK)):
        raise InputError(f"{str(path)!r} is not writable: choose another path or change the permissions")
    check_apart(path, *sources)
    for source in _existing(sources):
        if source.is_dir() and target.is_relative_to(source) and _may_be_read(target):
            raise InputError(f"{str(path)!r} is in the folder that is read, {str(source)!r}: choose another path")
    return target


def check_apart(path: str | PathLike[str], *sources: str | PathLike[str] | None) -> None:
    """Check that an output path is not one of the inputs; a source may be None or not exist."""
    for source in _existing(sources):
        if source == Path(os.path.realpath(os.path.expanduser(path))):
            raise InputError(f"{str(path)!r} is the input: choose another path to write to")


def _existing(sources: Iterable[str | PathLike[str] | None]) -> list[Path]:
    """Return the real paths of the sources that exist."""
    found = (Path(os.path.realpath(os.path.expanduser(source))) for source in sources if source is not None)
    return [source for source in found if os.path.exists(source)]


def _may_be_read(target: Path) -> bool:
    """Return whether an output file inside an input folder could be read as an input.

    This holds for existing files and for new .parquet (shard) and .json (record) files, but never for ``PRODUCTS``.
    """
    ending = target.suffix.lower()
    return ending not in PRODUCTS and (target.exists() or ending in (".parquet", ".pq", ".json"))


def check_folder(path: Path, purpose: str) -> None:
    """Check that a path is a folder or does not exist; ``purpose`` says in the message what the folder is for."""
    if path.is_symlink() and not path.exists():
        raise InputError(f"{str(path)!r} is a broken link: remove it, or pass another folder {purpose}")
    if path.exists() and not path.is_dir():
        raise InputError(f"{str(path)!r} is a file: pass a folder {purpose}")


def check_space(folder: Path, needed: int, purpose: str) -> None:
    """Check that the disk of a folder has room for ``needed`` bytes; ``purpose`` says in the message what for."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise InputError(
            f"the disk of {str(folder)!r} has {free / 1e9:.2f} GB free, but {needed / 1e9:.2f} GB are needed "
            f"{purpose}: free some space, or choose another folder"
        )


def try_lock(path: Path, patience: float = 0) -> BaseFileLock | None:
    """Return a lock on a file, or None if another process holds it after ``patience`` seconds.

    The system releases the lock when the process that holds it ends, even by a crash. A file system without locks
    raises an InputError: the alternative, a lock file, would remain after a crash.
    """
    from filelock import FileLock, SoftFileLock, Timeout

    lock = FileLock(path, timeout=patience, thread_local=False)
    found: BaseFileLock | None = lock
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the fallback to a SoftFileLock is handled below
            with suppress(Timeout):
                lock.acquire(timeout=0)
            if not lock.is_locked and not isinstance(lock, SoftFileLock):  # without locks there is nothing to wait for
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
    """Hold a lock during the ``with`` block; yield False if another process holds it after ``patience`` seconds."""
    lock = try_lock(path, patience)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            lock.release()


def _no_locks(path: Path) -> InputError:
    """Return the error for a file system without locks."""
    return InputError(
        f"the file system of {str(path.parent)!r} does not support locks: choose a folder on another file system"
    )


def check_inside(path: Path, root: Path) -> Path:
    """Return ``path`` after checking that no ``..``, absolute path or symbolic link in it leads out of ``root``.

    A pipe, device or socket raises too. The root itself may be a link.
    """
    try:
        resolved = path.resolve()
    except (OSError, ValueError, RuntimeError):  # a cycle of links, a NUL character or a name that is too long
        raise InputError(f"{str(path)!r} is not a valid path: rename the file or remove the link") from None
    if not resolved.is_relative_to(root.resolve()):
        raise InputError(
            f"{str(path)!r} leads out of {str(root)!r}, but only files inside are read: copy the file into it"
        )
    return check_ordinary(path)


def _sync_folder(folder: Path) -> None:
    """Flush a folder to disk, if the system supports it, so that a new file name in it survives a crash."""
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
    # Not derived from the target's name, which may be of maximum length or invalid as text.
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
    """Return an OSError that marks a failed write and names the path that the user passed."""
    return OSError(error.errno or errno.EIO, f"{CANNOT_WRITE}{reason(error)}", str(path))


def append_line(path: Path, line: str) -> None:
    """Append a line to a file and flush it to disk; first add a line break if the last line has none."""
    try:
        with path.open("a+b") as stream:
            end = stream.seek(0, os.SEEK_END)
            incomplete = False
            if end:
                stream.seek(end - 1)
                incomplete = stream.read(1) != b"\n"
            stream.write(b"\n" * incomplete + line.encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise write_error(error, path) from error
