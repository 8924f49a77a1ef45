"""Check the sizes that untrusted files declare, before allocating memory for them or running any code.

A file of a few kilobytes can ask for more memory than a machine has: a compressed archive (``.npz``), a Parquet file
with one value repeated many times, a pickle that declares a long string. The functions here compare the declared sizes
with the size of the file on disk and raise an error if they are implausible. ``.npz`` arrays are read without pickle.
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
"""Unpacked size in bytes that every file may have, even if it is small on disk."""

MAX_UNPACK_RATIO = 200
"""Maximum ratio of unpacked size to size on disk; real data has a ratio of about 10."""


def check_unpacked(unpacked: int, packed: int, path: Path, remedy: str) -> None:
    """Check that the unpacked size of a file, in bytes, is plausible for its size on disk."""
    if unpacked > max(ALWAYS_ALLOWED_BYTES, MAX_UNPACK_RATIO * packed):
        raise InputError(
            f"{str(path)!r} has {packed:,} bytes but would unpack to {unpacked:,}, more than {MAX_UNPACK_RATIO} times "
            f"as much: it is damaged or designed to exhaust memory; {remedy}"
        )


# .npz archives


def read_arrays(path: Path, wanted: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Read the wanted arrays that an ``.npz`` file has; also return the names of all its arrays."""
    try:
        with check_ordinary(path).open("rb") as stream, zipfile.ZipFile(stream) as archive:
            members: dict[str, zipfile.ZipInfo] = {}
            for entry in archive.infolist():
                name = entry.filename.removesuffix(".npy")
                if name in members:
                    raise InputError(f"{str(path)!r} has two arrays named {name!r}: write it again with unique names")
                members[name] = entry
            chosen = {name: members[name] for name in wanted if name in members}
            check_unpacked(
                sum(entry.file_size for entry in chosen.values()),
                path.stat().st_size,
                path,
                "if its content is correct, write it uncompressed with numpy.savez",
            )
            return {name: _read_array(archive, entry) for name, entry in chosen.items()}, list(members)
    except InputError:
        raise
    except Exception as error:  # a damaged archive can raise almost anything
        if isinstance(error, OSError) and error.errno:
            raise  # an error of the operating system, not of the file
        raise InputError(
            f"{str(path)!r} cannot be read as .npz: it is damaged, another kind of file, or contains Python objects; "
            "write arrays of numbers and text with numpy.savez"
        ) from None


def _read_array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Any:
    """Read one array; zipfile unpacks no more bytes than the entry declares."""
    with archive.open(entry) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


# Parquet footers, in Thrift's compact protocol. pyarrow reads the same numbers, but some damaged footers make it abort
# the whole process.

# Field ids in parquet.thrift.
ROW_GROUPS = 4  # of FileMetaData
GROUP_COLUMNS = 1  # of RowGroup
COLUMN_METADATA = 3  # of ColumnChunk
PATH_IN_SCHEMA, N_VALUES, UNCOMPRESSED_SIZE = 3, 5, 6  # of ColumnMetaData

# Type codes of Thrift's compact protocol.
T_STOP, T_TRUE, T_FALSE, T_BYTE, T_DOUBLE, T_BINARY, T_LIST, T_SET, T_STRUCT = 0, 1, 2, 3, 7, 8, 9, 10, 12
T_INTEGERS = (4, 5, 6)  # of 16, 32 and 64 bits

MAX_FOOTER_DEPTH = 20
"""Largest accepted depth of structures and lists inside one another in a Parquet footer."""


class ColumnChunk(NamedTuple):
    """Sizes of one column in one row group of a Parquet file."""

    name: str  # name of the top-level column
    n_values: int
    unpacked: int  # uncompressed size of its pages, in bytes


def check_parquet(files: Sequence[Path], columns: Collection[str], path: Path) -> None:
    """Check in the footers of ``files``, the shards of ``path``, that the named columns have a plausible size.

    A value counts for at least 8 bytes, because a page that repeats one value is small on disk but not in memory.
    """
    chunks = [chunk for file in files for chunk in column_chunks(file) if chunk.name in columns]
    unpacked = sum(max(8 * chunk.n_values, chunk.unpacked) for chunk in chunks)
    packed = sum(file.stat().st_size for file in files)
    check_unpacked(unpacked, packed, path, "if its content is correct, write it without dictionaries and compression")


def column_chunks(path: Path) -> Iterator[ColumnChunk]:
    """Yield the sizes of every column in every row group; raise a ValueError if the footer cannot be read."""
    with path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        if size < 12:
            raise ValueError("it is too short")
        stream.seek(size - 8)
        tail = stream.read(8)
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != b"PAR1" or length > size - 8:
            raise ValueError("it has no footer")
        stream.seek(size - 8 - length)
        content = stream.read(length)
    try:
        for group in _ThriftReader(content).struct()[ROW_GROUPS]:
            for column in group[GROUP_COLUMNS]:
                metadata = column[COLUMN_METADATA]
                n_values, unpacked = int(metadata[N_VALUES]), int(metadata[UNCOMPRESSED_SIZE])
                yield ColumnChunk(metadata[PATH_IN_SCHEMA][0].decode(), max(n_values, 0), max(unpacked, 0))
    except (LookupError, TypeError, AttributeError):
        raise ValueError("its footer is damaged") from None


class _ThriftReader:
    """Sequential reader of values in Thrift's compact protocol."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._position = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Read a structure and return its fields by id."""
        found: dict[int, Any] = {}
        number = 0
        while (header := self._byte()) & 15 != T_STOP:
            number = number + (header >> 4) if header >> 4 else self._integer()
            kind = header & 15
            found[number] = kind == T_TRUE if kind in (T_TRUE, T_FALSE) else self._value(kind, depth)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if depth > MAX_FOOTER_DEPTH:
            raise ValueError("its footer is nested too deeply")
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


# Pickles. An unpickler allocates any length that an opcode declares, and a memo as long as the largest index in it, so
# a pickle of thirteen bytes can take many gigabytes. In a valid pickle, no string is longer than the rest of the file,
# and the memo has fewer entries than the file has bytes.

OP_STOP, OP_LONG_BINPUT, OP_PUT = ord("."), ord("r"), ord("p")
INSPECTED_OPCODES = ("EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "READONLY_BUFFER", "LONG_BINPUT", "PUT", "STOP")
"""Names of the opcodes that ``pickle_end`` rejects or handles individually."""

LENGTH_BYTES = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
"""Width in bytes of the length field of an opcode's argument."""


def _opcode_tables() -> tuple[re.Pattern[bytes], dict[int, int]]:
    """Return a pattern for runs of harmless opcodes, and the width of the length field of opcodes that have one."""
    fixed: dict[int, bytes] = {}
    lines: dict[int, bytes] = {}
    counted = {}
    for opcode in pickletools.opcodes:
        code, argument = ord(opcode.code), opcode.arg
        if opcode.name in INSPECTED_OPCODES:
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
    """Return the position after the pickle that begins at ``start``, without creating any of its objects.

    Raise a ValueError if the pickle is truncated or would take more memory than is plausible for its size.
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
    """Check that the memo of a pickle has no more entries than the pickle has bytes."""
    if not 0 <= index < size:
        raise ValueError(f"it has {size} bytes but a memo of {index + 1} entries, which is designed to exhaust memory")
