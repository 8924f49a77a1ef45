"""Measure files that anybody may have written, before any memory is taken or any code is run.

A few kilobytes can ask for more memory than a machine has: a compressed archive (``.npz``), a Parquet file whose column
repeats one value, a pickle that announces a long string. Each reader here compares the sizes that a file declares with
the size it has on disk, and raises an error if they cannot belong together. ``.npz`` arrays are read without pickle.
"""

from __future__ import annotations

import mmap
import os
import pickletools
import re
import zipfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from compshift._errors import InputError
from compshift._files import check_ordinary

ALWAYS_ALLOWED_BYTES = 256 << 20
"""Unpacked size in bytes that is allowed for every file, however small it is on disk."""

MAX_UNPACK_RATIO = 200
"""Largest ratio of unpacked size to size on disk; real data has about 10."""


def check_unpacked(unpacked: int, packed: int, path: Path, remedy: str) -> None:
    """Check that the unpacked size of a file, in bytes, is plausible for its size on disk."""
    if unpacked > max(ALWAYS_ALLOWED_BYTES, MAX_UNPACK_RATIO * packed):
        raise InputError(
            f"{str(path)!r} has {packed:,} bytes and would unpack to {unpacked:,}, more than {MAX_UNPACK_RATIO} times "
            f"as much: it is damaged or made to fill the memory; {remedy}"
        )


# .npz archives


def read_arrays(path: Path, wanted: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the wanted arrays that an ``.npz`` file has, and the names of all arrays in it."""
    try:
        with check_ordinary(path).open("rb") as stream, zipfile.ZipFile(stream) as archive:
            members: dict[str, zipfile.ZipInfo] = {}
            for entry in archive.infolist():
                name = entry.filename.removesuffix(".npy")
                if name in members:
                    raise InputError(f"{str(path)!r} has two arrays {name!r}: write it again, with one of each name")
                members[name] = entry
            chosen = {name: members[name] for name in wanted if name in members}
            check_unpacked(
                sum(entry.file_size for entry in chosen.values()),
                path.stat().st_size,
                path,
                "write it with numpy.savez, not compressed, if it is right",
            )
            return {name: _read_array(archive, entry) for name, entry in chosen.items()}, list(members)
    except InputError:
        raise
    except Exception as error:  # a damaged archive can raise almost anything
        if isinstance(error, OSError) and error.errno:
            raise  # the system failed, not the file
        raise InputError(
            f"{str(path)!r} cannot be read as .npz: it is damaged, another kind of file, or holds Python objects; "
            "write arrays of numbers and text with numpy.savez"
        ) from None


def _read_array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Any:
    """Return the array of one member; zipfile unpacks no more bytes than the entry declares."""
    with archive.open(entry) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


# Parquet footers, in Thrift's compact protocol. pyarrow reads the same numbers, but some damaged footers make it abort
# the whole process.

PARQUET_MAGIC = b"PAR1"
ROW_GROUPS, COLUMNS, COLUMN_METADATA = 4, 1, 3
"""Field ids in parquet.thrift: row groups of a file, columns of a row group, metadata of a column."""

PATH_IN_SCHEMA, N_VALUES, UNCOMPRESSED_SIZE = 3, 5, 6
"""Field ids of a column's metadata in parquet.thrift."""

MAX_DEPTH = 20
"""Deepest nesting of structures in a footer; deeper ones raise an error."""

T_STOP, T_TRUE, T_FALSE, T_BYTE, T_DOUBLE, T_BINARY, T_LIST, T_SET, T_STRUCT = 0, 1, 2, 3, 7, 8, 9, 10, 12
T_INTEGERS = (4, 5, 6)
"""Type codes of Thrift's compact protocol; the integers have 16, 32 and 64 bits."""


class ColumnChunk(NamedTuple):
    """Sizes of one column in one row group of a Parquet file."""

    name: str  # of the top-level column
    n_values: int
    unpacked: int  # bytes of its pages without compression


def check_parquet(files: Sequence[Path], columns: Collection[str], path: Path) -> None:
    """Check by their footers that some columns of Parquet files, the shards of ``path``, are plausible in size.

    A value counts for at least 8 bytes: a page that repeats one value is tiny on disk and not in memory.
    """
    chunks = [chunk for file in files for chunk in column_chunks(file) if chunk.name in columns]
    unpacked = sum(max(8 * chunk.n_values, chunk.unpacked) for chunk in chunks)
    packed = sum(file.stat().st_size for file in files)
    check_unpacked(unpacked, packed, path, "write it without dictionaries and compression if it is right")


def column_chunks(path: Path) -> Iterator[ColumnChunk]:
    """Yield the sizes of every column of every row group; raise a ValueError if the footer cannot be read."""
    with path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        if size < 12:
            raise ValueError("it is too short")
        stream.seek(size - 8)
        tail = stream.read(8)
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != PARQUET_MAGIC or length > size - 8:
            raise ValueError("it has no footer")
        stream.seek(size - 8 - length)
        content = stream.read(length)
    try:
        for group in _ThriftReader(content).struct()[ROW_GROUPS]:
            for column in group[COLUMNS]:
                about = column[COLUMN_METADATA]
                n_values, unpacked = int(about[N_VALUES]), int(about[UNCOMPRESSED_SIZE])
                yield ColumnChunk(about[PATH_IN_SCHEMA][0].decode(), max(n_values, 0), max(unpacked, 0))
    except (LookupError, TypeError, AttributeError):
        raise ValueError("its footer is damaged") from None


class _ThriftReader:
    """Reader of values in Thrift's compact protocol, one after the other."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._position = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Return the fields of a structure by their ids."""
        if depth > MAX_DEPTH:
            raise ValueError("its footer is nested too deeply")
        found: dict[int, Any] = {}
        number = 0
        while (header := self._byte()) & 15 != T_STOP:
            number = number + (header >> 4) if header >> 4 else self._integer()
            kind = header & 15
            found[number] = kind == T_TRUE if kind in (T_TRUE, T_FALSE) else self._value(kind, depth)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if kind in T_INTEGERS:
            return self._integer()
        if kind == T_BINARY:
            return self._take(self._varint())
        if kind == T_STRUCT:
            return self.struct(depth + 1)
        if kind in (T_LIST, T_SET):
            header = self._byte()
            size = header >> 4 if header >> 4 < 15 else self._varint()
            if size > len(self._content) - self._position:
                raise ValueError("its footer is cut off")
            return [self._value(header & 15, depth + 1) for _ in range(size)]
        if kind == T_DOUBLE:
            return self._take(8)
        if kind in (T_TRUE, T_FALSE, T_BYTE):
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
        return (value >> 1) ^ -(value & 1)  # zigzag encoding


# Pickles. An unpickler allocates whatever length an opcode announces, and a memo as long as the largest index in it:
# thirteen bytes are enough to take many gigabytes. In a pickle that a program wrote, no string is longer than the rest
# of the file and the memo has fewer entries than the file has bytes.

OP_STOP, OP_LONG_BINPUT, OP_PUT = ord("."), ord("r"), ord("p")
NOT_SKIPPED = ("EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "READONLY_BUFFER", "LONG_BINPUT", "PUT", "STOP")
"""Names of the opcodes that ``pickle_end`` rejects or looks at one by one."""

LENGTH_BYTES = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
"""Number of bytes that state the length of an opcode's argument."""


def _opcode_tables() -> tuple[re.Pattern[bytes], dict[int, int]]:
    """Return a pattern for runs of harmless opcodes, and the opcodes with a counted argument and their length bytes."""
    fixed: dict[int, bytes] = {}
    lines: dict[int, bytes] = {}
    counted = {}
    for opcode in pickletools.opcodes:
        code, argument = ord(opcode.code), opcode.arg
        if opcode.name in NOT_SKIPPED:
            continue
        size = 0 if argument is None else argument.n
        if size >= 0:
            fixed[size] = fixed.get(size, b"") + bytes([code])
        elif size == pickletools.UP_TO_NEWLINE:
            number = 2 if argument is not None and "pair" in argument.name else 1
            lines[number] = lines.get(number, b"") + bytes([code])
        else:
            counted[code] = LENGTH_BYTES[size]
    parts = [b"[%s].{%d}" % (re.escape(codes), size) for size, codes in fixed.items()]
    parts += [b"[%s](?:[^\n]*\n){%d}" % (re.escape(codes), number) for number, codes in lines.items()]
    return re.compile(b"(?:%s)*+" % b"|".join(parts), re.DOTALL), counted


HARMLESS_RUN, COUNTED_OPCODES = _opcode_tables()


def pickle_end(content: bytes | mmap.mmap, start: int = 0) -> int:
    """Return the position after the pickle that begins at ``start``, without building any of its objects.

    Raise a ValueError if the pickle is cut off or would take more memory than its size justifies.
    """
    size = len(content)
    position = start
    while True:
        run = HARMLESS_RUN.match(content, position)
        position = position if run is None else run.end()
        if position >= size:
            raise ValueError("it is cut off")
        code = content[position]
        position += 1
        if code == OP_STOP:
            return position
        if code in COUNTED_OPCODES:
            width = COUNTED_OPCODES[code]
            position += width + int.from_bytes(content[position : position + width], "little")
        elif code == OP_LONG_BINPUT:
            _check_memo_index(int.from_bytes(content[position : position + 4], "little"), size)
            position += 4
        elif code == OP_PUT:
            end = content.find(b"\n", position, position + 20)
            _check_memo_index(int(content[position:end]) if end >= 0 else size, size)
            position = end + 1
        else:
            raise ValueError(f"it has the opcode {code}, which no feature cache needs")


def _check_memo_index(index: int, size: int) -> None:
    """Check that the memo of a pickle of ``size`` bytes is no longer than the pickle."""
    if not 0 <= index < size:
        raise ValueError(f"it has {size} bytes and a memo of {index + 1} entries: it was made to fill the memory")
