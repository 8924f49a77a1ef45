"""Files that are written whole or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

from compshift._errors import InputError


def check_target(path: str | PathLike[str]) -> Path:
    """Refuse a path that no file can be written to; called early, it saves work that would be lost."""
    target = Path(path)
    if target.is_dir():
        raise InputError(f"{str(target)!r} is a folder: pass the path of a file to write")
    if not target.parent.is_dir():
        raise InputError(f"there is no folder {str(target.parent)!r} to write {target.name!r} to: create it first")
    if not os.access(target.parent, os.W_OK):
        raise InputError(f"the folder {str(target.parent)!r} may not be written to: choose another or change its mode")
    return target


@contextmanager
def replacing(path: str | PathLike[str]) -> Iterator[Path]:
    """A temporary path beside ``path`` to write to; it takes the place of ``path`` once the block has succeeded.

    Until then, and if the block fails, what was at ``path`` stays as it was.
    """
    target = check_target(path)
    temporary = target.with_name(f".{target.stem}.{secrets.token_hex(4)}.tmp{target.suffix}")
    try:
        yield temporary
        with open(temporary, "rb") as stream:
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
