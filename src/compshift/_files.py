"""JSON out of files that anybody may have written.

Files that are written whole or not at all, that must not lead elsewhere, and locks that end with their holder.
"""

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

HALF = re.compile(rb"\\u[dD][89a-fA-F]")
"""A half of a character, as text has it; two make a whole one."""


def parse_json(text: str | bytes) -> Any:
    """What a JSON text holds. All that can be wrong with one is a ValueError, too deep a nesting included.

    So are halves of characters, which JSON can write and no file or terminal takes.
    """
    try:
        content = json.loads(text)
        if HALF.search(text if isinstance(text, bytes) else text.encode("utf-8")):
            json.dumps(content, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return content


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; a ValueError if it holds anything else."""
    content = parse_json(path.read_bytes())
    if not isinstance(content, dict):
        raise ValueError("it holds no JSON object")
    return content


PRODUCTS = (".html", ".htm", ".md", ".tex", ".png", ".svg", ".pdf", ".onnx")
"""Endings of files that are written for people and other programs, and that no folder is read for."""


def check_path(path: str | PathLike[str]) -> Path:
    """A path that the system can take, whether or not anything is there; ~ is the user's home, as in a shell."""
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
    """``path``, unless a pipe, device or socket is there: reading one may never begin, or never end.

    What is read once, from its beginning to its end, may come by a pipe that this process was started with.
    """
    try:
        mode = path.stat().st_mode
    except OSError:
        return path  # whoever opens it is told why
    given = given_pipes and path.is_relative_to("/dev") and (path.name == "stdin" or path.parent.name == "fd")
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or (given and stat.S_ISFIFO(mode))):
        raise InputError(f"{str(path)!r} is no ordinary file but a pipe, device or socket: pass the path of a file")
    return path


def check_target(path: str | PathLike[str], *sources: str | PathLike[str] | None) -> Path:
    """The file that ``path`` leads to, once it is known that it can be written and is none of the ``sources``.

    Called early, it saves work that would be lost.
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
    """Refuse to write to a file or folder that is read too; sources that were not given are None, or do not exist."""
    for source in _existing(sources):
        if source == Path(os.path.realpath(os.path.expanduser(path))):
            raise InputError(f"{str(path)!r} is the input: choose another path to write to")


def _existing(sources: Iterable[str | PathLike[str] | None]) -> list[Path]:
    """Where the sources are that exist."""
    found = (Path(os.path.realpath(os.path.expanduser(source))) for source in sources if source is not None)
    return [source for source in found if source.exists()]


def _may_be_read(target: Path) -> bool:
    """Whether a file in a folder that is read may be a part of it: no page or picture, but what is there or would be.

    A new .parquet would be a shard from then on, and a new .json a record.
    """
    ending = target.suffix.lower()
    return ending not in PRODUCTS and (target.exists() or ending in (".parquet", ".pq", ".json"))


def check_folder(path: Path, purpose: str) -> None:
    """Refuse a path that is taken by something else than a folder; ``purpose`` says what the folder is for."""
    if path.is_symlink() and not path.exists():
        raise InputError(f"{str(path)!r} is a link to nothing: remove it, or pass another folder {purpose}")
    if path.exists() and not path.is_dir():
        raise InputError(f"{str(path)!r} is a file: pass a folder {purpose}")


def try_lock(path: Path, patience: float = 0) -> BaseFileLock | None:
    """A lock, or None while another process has it. The system lifts it when its holder ends, however that comes.

    A file system that knows no such locks is refused: marks in its place would outlive those who set them.
    """
    from filelock import FileLock, SoftFileLock, Timeout

    lock = FileLock(path, timeout=patience, thread_local=False)
    found: BaseFileLock | None = lock
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the mark that it sets instead, which is taken back below
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
    """Whether the block has the lock to itself."""
    lock = try_lock(path, patience)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            lock.release()


def _no_locks(path: Path) -> InputError:
    return InputError(f"the file system of {str(path.parent)!r} has no locks: choose a folder on another one")


def check_inside(path: Path, root: Path) -> Path:
    """``path``, once it is known that no ``..``, absolute name or symbolic link in it leads out of ``root``.

    Nor may it lead to a pipe or device. The root itself may be a link: whoever named it meant what it leads to.
    """
    try:
        led_to = path.resolve()
    except (OSError, ValueError, RuntimeError):  # a circle of links, a name with NUL or too long to be one
        raise InputError(f"{str(path)!r} cannot be a file: it is no path that the system knows") from None
    if not led_to.is_relative_to(root.resolve()):
        raise InputError(
            f"{str(path)!r} leads out of {str(root)!r}, and nothing outside of it is read: put a copy of the file there"
        )
    return check_ordinary(path)


def _sync_folder(folder: Path) -> None:
    """Have the new name on disk too, where the system offers that."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def replacing(path: str | PathLike[str]) -> Iterator[Path]:
    """A temporary path beside ``path`` to write to; it takes the place of ``path`` once the block has succeeded.

    Until then, and if the block fails, what was at ``path`` stays as it was.
    """
    target = check_target(path)
    # A name of its own: that of the target may be as long as names can be, or no text, which some writers need.
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
    """The error with the path that the user knows."""
    return OSError(error.errno or errno.EIO, f"{CANNOT_WRITE}{reason(error)}", str(path))


def append_line(path: Path, line: str) -> None:
    """Add a line to a file, on disk before this returns. One that was torn before is ended first."""
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
