"""Unpack untrusted archives (zip, tar, tar.gz): only below the target folder, with limits on sizes and numbers."""

from __future__ import annotations

import gzip
import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, cast

from compshift._errors import InputError, reason, shown
from compshift._files import check_space, write_error
from compshift.data.untrusted import ALWAYS_ALLOWED_BYTES, MAX_UNPACK_RATIO, check_unpacked

MAX_ENTRIES = 2_000_000
"""Maximum number of files and folders in an archive; the largest published one has about 200,000."""

MAX_GAP_BYTES = 1 << 20
"""Maximum number of bytes of headers and padding between the contents of two files in a tar archive."""

COPIED_BYTES = 1 << 20
"""Maximum number of bytes that are copied at once."""

BLOCK = 512
"""Size in bytes of the blocks of a tar archive."""

REMEDY = "take it from another address"
"""Remedy that ends the error message about an implausible size."""

Progress = Callable[[int, int | None], None]
"""Called with the number of bytes received or unpacked and the total number of bytes, or None if it is unknown."""


def unpack(archive: Path, folder: Path, progress: Progress = lambda _done, _total: None) -> int:
    """Unpack an archive into a folder and return the number of files.

    Only regular files and folders are written, with the default permissions. An InputError is raised for an entry that
    leads out of the folder, a link, a device, an implausible size, and a damaged or truncated archive; its message has
    no remedy, which the caller adds. Files that were written before the error remain.
    """
    with archive.open("rb") as stream:
        head = stream.read(BLOCK)
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        read = _unpack_zip
    elif head.startswith(b"\x1f\x8b") or head[257:262] == b"ustar":
        read = _unpack_tar
    else:
        raise InputError(f"{archive.name} is not a zip, tar or tar.gz archive (it begins with {head[:16]!r})")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        count = read(archive, folder, progress)
    except InputError:
        raise
    except Exception as error:  # a damaged archive can raise almost anything
        if isinstance(error, OSError) and error.errno:
            raise  # an error of the operating system, not of the archive
        raise InputError(f"{archive.name} is damaged or incomplete ({reason(error)})") from None
    if not count:
        raise InputError(f"{archive.name} is an archive without files")
    return count


def _place(name: str, folder: Path, archive: Path) -> Path:
    """Return the path below ``folder`` for an entry; raise an InputError if the name could lead out of the folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or path.parts[:1] == ("~",):
        raise InputError(
            f"{archive.name} has the entry {shown(name)}, which may lead out of the folder that it is unpacked in"
        )
    return folder / path


def _check_entry(name: str, allowed: bool, number: int, archive: Path) -> None:
    """Check that the kind of an entry is ``allowed``, and that its ``number`` is below ``MAX_ENTRIES``."""
    if not allowed:
        raise InputError(
            f"{archive.name} has the entry {shown(name)}, which is a link, a device or encrypted, but only plain "
            "files and folders are unpacked"
        )
    if number >= MAX_ENTRIES:
        raise InputError(f"{archive.name} has more than {MAX_ENTRIES:,} entries")


@contextmanager
def _writing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing, and create its folder if necessary; a failed write raises an OSError with its path."""
    try:
        try:
            stream = open(path, "wb")  # noqa: SIM115
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            stream = open(path, "wb")  # noqa: SIM115
        with stream:
            yield stream
    except OSError as error:
        raise (write_error(error, path) if error.errno else error) from error


def _unpack_zip(archive: Path, folder: Path, progress: Progress) -> int:
    """Unpack a zip archive; zipfile verifies the checksum of every file."""
    count = done = 0
    size = archive.stat().st_size
    with zipfile.ZipFile(archive) as source:
        entries = source.infolist()
        unpacked = sum(entry.file_size for entry in entries)
        check_unpacked(unpacked, size, archive, REMEDY)
        check_space(folder, unpacked, f"to unpack {archive.name}")
        for number, entry in enumerate(entries):
            kind = stat.S_IFMT(entry.external_attr >> 16)
            allowed = kind in (0, stat.S_IFREG, stat.S_IFDIR) and not entry.flag_bits & 1
            _check_entry(entry.filename, allowed, number, archive)
            path = _place(entry.filename, folder, archive)
            if entry.is_dir():
                path.mkdir(parents=True, exist_ok=True)
                continue
            with source.open(entry) as content, _writing(path) as stream:
                shutil.copyfileobj(content, stream, COPIED_BYTES)
            count += 1
            done += entry.compress_size
            progress(done, size)
    return count


class _Bounded:
    """A stream that raises an InputError if more bytes are read from it than ``allow`` permitted."""

    def __init__(self, raw: IO[bytes], archive: Path) -> None:
        self._raw, self._archive = raw, archive
        self._allowed = 0
        self._used = 0
        self._limit = max(ALWAYS_ALLOWED_BYTES, MAX_UNPACK_RATIO * archive.stat().st_size)

    def allow(self, size: int) -> None:
        """Permit reading ``size`` bytes from the current position on, instead of what was permitted before."""
        self._allowed = self._used + size

    def read(self, size: int) -> bytes:
        """Read at most ``size`` bytes; raise an InputError if that exceeds a limit."""
        content = self._raw.read(size)
        self._used += len(content)
        if self._used > self._limit:
            check_unpacked(self._used, self._archive.stat().st_size, self._archive, REMEDY)
        if self._used > self._allowed:
            raise InputError(
                f"{self._archive.name} has more than {MAX_GAP_BYTES:,} bytes between two files: it is damaged or "
                "designed to exhaust memory"
            )
        return content


def _unpack_tar(archive: Path, folder: Path, progress: Progress) -> int:
    """Unpack a tar archive, compressed by gzip or not, and check that its end is not missing."""
    count = 0
    size = archive.stat().st_size
    with archive.open("rb") as packed:
        compressed = packed.read(2) == b"\x1f\x8b"
        packed.seek(0)
        check_space(folder, size, f"to unpack {archive.name}")
        raw = cast(IO[bytes], gzip.GzipFile(fileobj=packed)) if compressed else packed
        source = _Bounded(raw, archive)
        source.allow(MAX_GAP_BYTES)
        with tarfile.open(fileobj=cast(IO[bytes], source), mode="r|", bufsize=20 * BLOCK) as entries:
            for number, entry in enumerate(entries):
                _check_entry(entry.name, entry.isdir() or (entry.isreg() and not entry.issparse()), number, archive)
                path = _place(entry.name, folder, archive)
                if entry.isdir():
                    path.mkdir(parents=True, exist_ok=True)
                else:
                    source.allow(entry.size + MAX_GAP_BYTES)
                    content = entries.extractfile(entry)
                    assert content is not None  # extractfile returns None for links and devices only
                    with _writing(path) as stream:
                        shutil.copyfileobj(content, stream, COPIED_BYTES)
                        if stream.tell() != entry.size:
                            raise InputError(f"{archive.name} ends within {shown(entry.name)}")
                    count += 1
                entries.members = []  # type: ignore[attr-defined] # otherwise tarfile keeps every entry
                source.allow(MAX_GAP_BYTES)
                progress(packed.tell(), size)
        while source.read(COPIED_BYTES):  # gzip verifies its checksum when the end is read
            pass
        if not compressed:
            packed.seek(-2 * BLOCK, os.SEEK_END)
            if packed.read().strip(b"\0"):
                raise InputError(f"{archive.name} is incomplete: its end is missing")
    return count
