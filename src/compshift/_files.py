"""Files that are written whole or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

from compshift._errors import InputError


def check_target(path: str | PathLike[str], *sources: str | PathLike[str]) -> Path:
    """The file that ``path`` leads to, once it is known that it can be written and is none of the ``sources``.

    Called early, it saves work that would be lost.
    """
    target = Path(path).resolve()
    if target.is_dir():
        raise InputError(f"{str(path)!r} is a folder: pass the path of a file to write")
    if target.exists() and not target.is_file():
        raise InputError(f"{str(path)!r} is no ordinary file: pass the path of one")
    if not target.parent.is_dir():
        raise InputError(f"there is no folder {str(Path(path).parent)!r} to write {target.name!r} to: create it first")
    if not os.access(target.parent, os.W_OK) or (target.exists() and not os.access(target, os.W_OK)):
        raise InputError(f"{str(path)!r} may not be written to: choose another path or change the permissions")
    for source in sources:
        if Path(source).resolve() == target:
            raise InputError(f"{str(path)!r} is the input: choose another path to write to")
    return target


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
        raise OSError(error.errno, f"cannot write: {error.strerror}", str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)
