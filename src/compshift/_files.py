"""Files that are written whole or not at all, and files that must not lead elsewhere."""

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


def check_inside(path: Path, root: Path) -> Path:
    """``path``, once it is known that no ``..``, absolute name or symbolic link in it leads out of ``root``.

    The root itself may be a link: whoever named it meant what it leads to.
    """
    try:
        led_to = path.resolve()
    except (OSError, ValueError, RuntimeError):  # a circle of links, a name with NUL or too long to be one
        raise InputError(f"{str(path)!r} cannot be a file: it is no path that the system knows") from None
    if not led_to.is_relative_to(root.resolve()):
        raise InputError(
            f"{str(path)!r} leads out of {str(root)!r}, and nothing outside of it is read: put a copy of the file there"
        )
    return path


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
    temporary = target.with_name(f".{target.stem}.{secrets.token_hex(4)}.tmp{target.suffix}")
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
