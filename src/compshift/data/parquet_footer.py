"""How many entries the columns of a Parquet file have, read from its footer (Thrift's compact protocol).

pyarrow reads the same numbers, but ends the whole process if some of a damaged footer's others do not fit.

How much memory a packed file may ask for: a few kilobytes can unpack to more than any machine has.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from compshift._errors import InputError

MAGIC = b"PAR1"
ROW_GROUPS, COLUMNS, ABOUT = 4, 1, 3
PATH, N_VALUES, UNPACKED = 3, 5, 6
"""Numbers of the fields, in Parquet's definition, of the file, a row group, a column of it, and what that says."""

DEEPEST = 20
STOP, TRUE, FALSE, BYTE, DOUBLE, BINARY, LIST, SET, STRUCT = 0, 1, 2, 3, 7, 8, 9, 10, 12
INTEGERS = (4, 5, 6)


class Chunk(NamedTuple):
    """A column of a row group."""

    name: str  # of the column that it is, or is a part of
    n_values: int
    unpacked: int  # bytes of its pages without compression


def column_chunks(path: Path) -> Iterator[Chunk]:
    """All columns of all row groups; a ValueError if the footer cannot be read."""
    with path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        if size < 12:
            raise ValueError("it is too short")
        stream.seek(size - 8)
        tail = stream.read(8)
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != MAGIC or length > size - 8:
            raise ValueError("it has no footer")
        stream.seek(size - 8 - length)
        content = stream.read(length)
    try:
        for group in _Reader(content).struct()[ROW_GROUPS]:
            for column in group[COLUMNS]:
                about = column[ABOUT]
                n_values, unpacked = int(about[N_VALUES]), int(about[UNPACKED])
                yield Chunk(about[PATH][0].decode(), max(n_values, 0), max(unpacked, 0))
    except (LookupError, TypeError, AttributeError):
        raise ValueError("its footer is damaged") from None


class _Reader:
    """Values one after the other."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._position = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """The fields of a structure, by number."""
        if depth > DEEPEST:
            raise ValueError("its footer is nested too deeply")
        found: dict[int, Any] = {}
        number = 0
        while (header := self._byte()) & 15 != STOP:
            number = number + (header >> 4) if header >> 4 else self._integer()
            kind = header & 15
            found[number] = kind == TRUE if kind in (TRUE, FALSE) else self._value(kind, depth)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if kind in INTEGERS:
            return self._integer()
        if kind == BINARY:
            return self._take(self._varint())
        if kind == STRUCT:
            return self.struct(depth + 1)
        if kind in (LIST, SET):
            header = self._byte()
            size = header >> 4 if header >> 4 < 15 else self._varint()
            if size > len(self._content) - self._position:
                raise ValueError("its footer is cut off")
            return [self._value(header & 15, depth + 1) for _ in range(size)]
        if kind == DOUBLE:
            return self._take(8)
        if kind in (TRUE, FALSE, BYTE):
            return self._byte()
        raise ValueError("its footer is damaged")

    def _byte(self) -> int:
        self._position += 1
        return self._content[self._position - 1]

    def _take(self, size: int) -> bytes:
        self._position += size
        return self._content[self._position - size : self._position]

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("its footer is damaged")

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)


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
