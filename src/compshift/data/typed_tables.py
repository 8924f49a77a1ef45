"""Read tables whose files record the type of each value: JSON lines and the first sheet of an Excel workbook."""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from datetime import time
from functools import lru_cache
from pathlib import Path
from time import time_ns
from typing import Any

from compshift._errors import InputError, shown
from compshift._files import ending, parse_json
from compshift.data.text_tables import MAX_BLOCK_BYTES, MAX_COLUMNS, TEXT, with_large_rows
from compshift.data.untrusted import check_unpacked

JSON_LINES = (".jsonl", ".ndjson")
"""File name endings of tables with one JSON object per line."""

EXCEL = ".xlsx"
"""File name ending of Excel workbooks."""

TABLE_ENDINGS = (*TEXT, *JSON_LINES, EXCEL)
"""File name endings of all tables besides Parquet."""

CLOCK_RESOLUTION = 2_000_000_000
"""Upper limit on the resolution of the times of files, in nanoseconds; FAT has the coarsest."""

MAX_DEPTH = 20
"""Maximum depth of nested values in a line of JSON; Arrow's parser overflows its stack on very deep nesting."""

MIXED = re.compile(r"Column\(/(.*)\) changed from (\w+) to (\w+)")
"""Matches Arrow's message about a column of JSON lines with values of two kinds."""


def read_typed(path: Path) -> Any:
    """Read all columns of a table of JSON lines or of an Excel workbook as an Arrow table.

    Tables are cached, but not those that have just been written: a further change within the resolution of the file
    system's clock would not be noticed.
    """
    status = path.stat()
    version = (status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
    is_new = time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) < CLOCK_RESOLUTION
    return (_read.__wrapped__ if is_new else _read)(path, *version)


@lru_cache(maxsize=2)  # a command reads a file several times: its names, its labels, its features
def _read(path: Path, size: int, *version: int) -> Any:  # noqa: ARG001 - part of the cache's key
    return _read_excel(path, size) if ending(path) == EXCEL else _read_json_lines(path, size)


def _read_json_lines(path: Path, size: int) -> Any:
    """Read a table of JSON lines: absent keys are missing values, and texts in ISO 8601 are dates."""
    import pyarrow as pa
    import pyarrow.json as pa_json

    _check_json_lines(path, size)
    try:
        return with_large_rows(path, pa_json.ReadOptions, lambda reads: pa_json.read_json(path, read_options=reads))
    except pa.ArrowInvalid as error:
        found = MIXED.search(str(error))
        if found is None:
            raise
        raise InputError(
            f"{str(path)!r}: the column {found[1]!r} has values of two kinds, {found[2]} and {found[3]}: write all of "
            "them as one kind, or null where a value is missing"
        ) from None


def _check_json_lines(path: Path, size: int) -> None:
    """Check that every line is a JSON object nested at most ``MAX_DEPTH`` deep, and that the size is plausible."""
    names: set[str] = set()
    n_rows = 0
    for number, line in _lines(path):
        try:
            content = parse_json(line.decode("utf-8-sig"))
        except UnicodeDecodeError:
            raise InputError(f"{str(path)!r} is not UTF-8 text (line {number}): save it as UTF-8") from None
        except ValueError:
            content = None
        if not isinstance(content, dict) or _is_deeper(content, MAX_DEPTH):
            raise InputError(
                f"{str(path)!r}: line {number} is {shown(line.decode())}, not a JSON object: write one object with the "
                'names and values of a row per line, such as {"age": 31, "job": "cook"}'
            )
        names.update(content)
        n_rows += 1
        if len(names) > MAX_COLUMNS:
            raise InputError(f"{str(path)!r} has more than {MAX_COLUMNS:,} columns: save it as Parquet")
    if not n_rows:
        raise InputError(f"{str(path)!r} has no rows: pass a table with at least one row")
    check_unpacked(8 * n_rows * len(names), size, path, "if its content is correct, save it as Parquet")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file that are not blank, and their numbers from 1."""
    with path.open("rb") as stream:
        number = 0
        while line := stream.readline(MAX_BLOCK_BYTES + 1):
            number += 1
            if len(line) > MAX_BLOCK_BYTES:
                raise InputError(f"{str(path)!r}: line {number} has more than {MAX_BLOCK_BYTES >> 20} MB: shorten it")
            if line.strip():
                yield number, line


def _is_deeper(value: Any, depth: int) -> bool:
    """Return whether values are nested in more than ``depth`` lists and objects."""
    if not isinstance(value, dict | list):
        return False
    parts = value.values() if isinstance(value, dict) else value
    return depth == 0 or any(_is_deeper(part, depth - 1) for part in parts)


def _read_excel(path: Path, size: int) -> Any:
    """Read the first sheet of an Excel workbook, whose first row has the names of the columns."""
    try:
        import openpyxl
    except ModuleNotFoundError:
        raise InputError(
            f"{path.name!r} needs openpyxl: run pip install 'compshift[excel]', or save the table as CSV"
        ) from None
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        check_unpacked(unpacked, size, path, "if its content is correct, save it as CSV")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about styles and other things that are not read
            book = openpyxl.load_workbook(path, read_only=True, data_only=True)
            try:
                sheet = book.worksheets[0]
                sheet.reset_dimensions()  # rows would be padded to the declared width, which may be wrong
                return _sheet_table(sheet.iter_rows(values_only=True), path, size)
            finally:
                book.close()
    except InputError:
        raise
    except Exception as error:  # a damaged workbook can raise almost anything
        if isinstance(error, OSError) and error.errno:
            raise  # an error of the operating system, not of the file
        raise InputError(
            f"{str(path)!r} cannot be read as an Excel workbook: it is damaged, protected by a password or of another "
            "kind; save it again as .xlsx, or as CSV"
        ) from None


def _sheet_table(rows: Iterable[Sequence[Any]], path: Path, size: int) -> Any:
    """Return the rows of a sheet as an Arrow table; blank rows at its start and end are left out."""
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    missing = {None, *pa_csv.ConvertOptions().null_values}
    header: list[Any] = []
    content: list[list[Any]] = []
    n_filled = 0
    for row in rows:
        values = [value.strip() if isinstance(value, str) else value for value in row]
        values = [None if isinstance(value, str) and value in missing else value for value in values]
        blank = all(value is None for value in values)
        if not header:
            header = [] if blank else values
            continue
        content.append(values)
        check_unpacked(8 * len(content) * len(header), size, path, "if its content is correct, save it as CSV")
        n_filled = n_filled if blank else len(content)
    width = max(map(len, (header, *content[:n_filled])))
    columns = {}
    for index in range(width):
        values = [row[index] if index < len(row) else None for row in content[:n_filled]]
        name = header[index] if index < len(header) else None
        if name is None and any(value is not None for value in values):
            raise InputError(f"{str(path)!r}: column {index + 1} has values but no name: write one into the first row")
        if name is not None and str(name) in columns:
            raise InputError(f"{path.name!r} has several columns named {str(name)!r}: rename all but one")
        if name is not None:
            columns[str(name)] = _arrow_column(values)
    return pa.table(columns)


def _arrow_column(values: Sequence[Any]) -> Any:
    """Return cells as an Arrow array; cells of several kinds, such as numbers and text, become text."""
    import pyarrow as pa

    kinds = {type(value) for value in values if value is not None}
    if (len(kinds) < 2 or kinds == {int, float}) and time not in kinds:
        try:
            return pa.array(values, pa.float64() if float in kinds else None)
        except (pa.ArrowException, OverflowError):  # integers of more than 64 bits
            pass
    return pa.array([None if value is None else _text(value) for value in values], pa.string())


def _text(value: Any) -> str:
    """Return a cell as text, with dates and times in ISO 8601."""
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
