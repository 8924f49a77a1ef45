"""How much memory a packed file may ask for: a few kilobytes can unpack to more than any machine has."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from compshift._errors import InputError
from compshift.data.parquet_footer import column_chunks

ALWAYS = 256 << 20
"""Bytes that any file may unpack to."""

MOST_TIMES = 200
"""A file may unpack to this many times its size; numbers and labels of real data are packed ten times or so."""


def check_unpacked(unpacked: int, packed: int, path: Path, remedy: str) -> None:
    """Refuse a file that would take far more memory than room on disk, before any of it is taken."""
    if unpacked > max(ALWAYS, MOST_TIMES * packed):
        raise InputError(
            f"{str(path)!r} has {packed:,} bytes and would unpack to {unpacked:,}, more than {MOST_TIMES} times as "
            f"much: it is damaged or made to fill the memory; {remedy}"
        )


def check_parquet(files: Sequence[Path], columns: Collection[str], path: Path) -> None:
    """Refuse Parquet files whose named columns would fill the memory, as far as their footers tell.

    An entry takes eight bytes or so in memory, however small its pages are: many equal ones are stored as one.
    """
    chunks = [chunk for file in files for chunk in column_chunks(file) if chunk.name in columns]
    unpacked = sum(max(8 * chunk.n_values, chunk.unpacked) for chunk in chunks)
    packed = sum(file.stat().st_size for file in files)
    check_unpacked(unpacked, packed, path, "write it without dictionaries and compression if it is right")
