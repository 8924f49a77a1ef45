"""Read text tables (CSV and TSV) with Arrow: separators, encoding, missing values and the types of labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from compshift._errors import InputError
from compshift._files import ending

TEXT = {".csv": ",", ".tsv": "\t", ".txt": ","}
"""Column separator of text tables, by file name ending."""

SEPARATORS = {";": "semicolons", "\t": "tabs", ",": "commas"}
"""Separators that a header line is searched for if the expected one is absent, with their names in messages."""

MAX_COLUMNS = 30_000
"""Maximum number of columns of a text table, because Arrow allocates ten kilobytes for each."""

MAX_HEADER_BYTES = 1 << 24
"""Maximum number of bytes read of the header line."""

MAX_BLOCK_BYTES = 1 << 24
"""Maximum size of the blocks that Arrow parses, in bytes; a row cannot be longer than two blocks."""


def text_columns(path: Path) -> list[str]:
    """Return the column names of a text table."""
    import pyarrow.csv as pa_csv

    options = _parse_options(path)
    _check_header(path, options.delimiter)
    with with_large_rows(path, pa_csv.ReadOptions, lambda reads: pa_csv.open_csv(path, reads, options)) as reader:
        return list(reader.schema.names)


def read_text(path: Path, columns: Sequence[str], free_text: Collection[str], labels: Collection[str]) -> Any:
    """Read the named columns of a text table; see ``read_table`` for ``free_text`` and ``labels``."""
    import pyarrow as pa

    others = [name for name in columns if name not in free_text]
    as_text = dict.fromkeys(labels, pa.string())
    parts = [
        *([_read(path, others, strings_can_be_null=True, column_types=as_text)] if others else []),
        *([_read(path, free_text, column_types=dict.fromkeys(free_text, pa.string()))] if free_text else []),
    ]
    found = {name: part.column(name) for part in parts for name in part.column_names}
    return pa.table({name: _infer_type(column) if name in labels else column for name, column in found.items()})


def read_strings(path: Path, columns: Sequence[str]) -> Any:
    """Read the named columns of a text table as text; empty entries and words like NA are missing values."""
    import pyarrow as pa

    return _read(path, columns, strings_can_be_null=True, column_types=dict.fromkeys(columns, pa.string()))


def read_unchanged(path: Path, columns: Sequence[str]) -> Any:
    """Read the named columns of a text table so that writing them gives the same texts; no entry becomes missing.

    Columns become numbers only if printing these gives the same texts.
    """
    import pyarrow as pa

    table = _read(path, columns, column_types=dict.fromkeys(columns, pa.string()))
    return pa.table({name: _infer_number(table.column(name)) for name in columns})


def find_missing_words(path: Path, columns: Sequence[str]) -> list[str]:
    """Return the words, for example NA, that occur in the named columns of a text table and are read as missing."""
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    if ending(path) not in TEXT:
        return []
    words = set(pa_csv.ConvertOptions().null_values) - {""}
    table = _read(path, columns, column_types=dict.fromkeys(columns, pa.string()))
    return sorted(words & {word for column in table.columns for word in column.unique().to_pylist()})


def encoding_error(path: Path) -> InputError:
    """Return the error for a file that is not UTF-8, with the number of the first line that is not."""
    where = ""
    if path.is_file() and ending(path) in TEXT:
        with path.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                try:
                    line.decode("utf-8")
                except UnicodeDecodeError:
                    where = f" (line {number})"
                    break
    return InputError(f"{str(path)!r} is not UTF-8 text{where}: save it as UTF-8")


def _check_header(path: Path, delimiter: str) -> None:
    """Check the encoding, the number of columns and the separator of the header line."""
    with path.open("rb") as stream:
        header = stream.readline(MAX_HEADER_BYTES)
    try:
        header.decode("utf-8")
    except UnicodeDecodeError:
        raise encoding_error(path) from None
    count = header.count(delimiter.encode()) + 1
    if count > MAX_COLUMNS:
        raise InputError(
            f"{str(path)!r} has {count:,} columns: a text table may have at most {MAX_COLUMNS:,}; save it as Parquet"
        )
    found = next((separator for separator in SEPARATORS if separator.encode() in header), None)
    if count == 1 and found is not None:
        rename = " or rename it to .tsv" if found == "\t" else ""
        raise InputError(
            f"{str(path)!r} seems to be separated by {SEPARATORS[found]}, not by {SEPARATORS[delimiter]}: save it with "
            f"{SEPARATORS[delimiter]}{rename}, and with decimal points"
        )


def _read(path: Path, columns: Collection[str], **convert: Any) -> Any:
    """Read the named columns; ``convert`` is passed to ``pyarrow.csv.ConvertOptions``."""
    import pyarrow.csv as pa_csv

    options = pa_csv.ConvertOptions(include_columns=list(columns), **convert)
    return with_large_rows(
        path,
        pa_csv.ReadOptions,
        lambda reads: pa_csv.read_csv(
            path, read_options=reads, parse_options=_parse_options(path), convert_options=options
        ),
    )


def with_large_rows(path: Path, options: Callable[..., Any], read: Callable[[Any], Any]) -> Any:
    """Call ``read`` with Arrow's default block size and, if a row is longer than a block, again with a larger size.

    ``options`` is Arrow's class of read options for the format of the file.
    """
    import pyarrow as pa

    try:
        return read(options())
    except pa.ArrowInvalid as error:
        if "block" not in str(error):
            raise
    try:
        return read(options(block_size=min(path.stat().st_size + 1, MAX_BLOCK_BYTES)))
    except pa.ArrowInvalid as error:
        if "straddl" not in str(error):
            raise
        raise InputError(
            f"{str(path)!r} has a row of more than {MAX_BLOCK_BYTES >> 20} MB: look for a quote that is not closed, or "
            "save the table as Parquet"
        ) from None


def _parse_options(path: Path) -> Any:
    """Return Arrow's parse options, with the separator that belongs to the file name ending."""
    import pyarrow.csv as pa_csv

    return pa_csv.ParseOptions(delimiter=TEXT.get(ending(path), ","), newlines_in_values=True)


def _infer_type(column: Any) -> Any:
    """Convert a text column to integers or floats if printing them gives the same texts, or true/false to booleans."""
    import pyarrow.compute as pc

    values = [value for value in pc.unique(column).to_pylist() if value is not None]
    if values and all(value.lower() in ("true", "false") for value in values):
        return pc.equal(pc.utf8_lower(column), "true")
    return _infer_number(column)


def _infer_number(column: Any) -> Any:
    """Convert a text column to integers or floats if printing them gives the same texts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = [value for value in pc.unique(column).to_pylist() if value is not None]
    if all(_is_integer(value) for value in values):
        return column.cast(pa.int64())
    return column.cast(pa.float64()) if all(_is_decimal(value) for value in values) else column


def _is_integer(text: str) -> bool:
    """Return whether a text is a 64-bit integer in the form in which Python prints it."""
    try:
        return len(text) < 21 and str(int(text)) == text and abs(int(text)) < 2**63
    except ValueError:
        return False


def _is_decimal(text: str) -> bool:
    """Return whether a text is a finite float in the form in which Python prints it."""
    try:
        return math.isfinite(float(text)) and repr(float(text)) == text
    except ValueError:
        return False
