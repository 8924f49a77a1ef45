"""How much memory a packed file may ask for: a few kilobytes can unpack to more than any machine has."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from compshift._errors import InputError

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
    """Refuse Parquet files whose named columns would fill the memory, as far as their footers tell."""
    import pyarrow.parquet as pq

    unpacked = sum(_column_bytes(pq.read_metadata(file), columns) for file in files)
    packed = sum(file.stat().st_size for file in files)
    check_unpacked(unpacked, packed, path, "write it without dictionaries and compression if it is right")


def _column_bytes(footer: Any, columns: Collection[str]) -> int:
    """Bytes of the named columns in memory: eight for every entry, or what the footer says if that is more."""
    total = 0
    for group in range(footer.num_row_groups):
        chunks = footer.row_group(group)
        for number in range(chunks.num_columns):
            chunk = chunks.column(number)
            if chunk.path_in_schema.split(".")[0] in columns:
                total += max(8 * chunk.num_values, chunk.total_uncompressed_size)
    return total
