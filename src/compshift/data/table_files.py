"""Read tables on disk as Arrow tables: CSV, TSV, JSON lines, Excel, a Parquet file or a folder of Parquet shards."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from compshift._errors import InputError, unknown_name
from compshift._files import ending, is_parquet
from compshift.data.shards import check_readable, reading, shard_files
from compshift.data.text_tables import TEXT, read_strings, read_text, read_unchanged, text_columns
from compshift.data.typed_tables import TABLE_ENDINGS, read_typed
from compshift.data.untrusted import check_parquet


def read_table(
    path: Path, columns: Sequence[str], *, free_text: Collection[str] = (), labels: Collection[str] = ()
) -> Any:
    """Read the named columns of a table, which must have at least one row.

    In a CSV or TSV file, empty entries and words like NA are missing values, except in ``free_text`` columns. A column
    in ``labels`` is converted to numbers only if printing the numbers gives the same texts, so that 01 and 1 stay
    distinct.
    """
    found = _read(path, columns, lambda: read_text(path, columns, free_text, labels))
    for name in columns:
        check_values(name, found.column(name).type, path)
    return found


def read_raw(path: Path, columns: Sequence[str]) -> Any:
    """Read the named columns of a table, whatever their types; the columns of a text file are read as text."""
    return _read(path, columns, lambda: read_strings(path, columns))


def read_kept(path: Path, columns: Sequence[str]) -> Any:
    """Read the named columns of a table to copy them to another file; those of a text file are written as they were."""
    return _read(path, columns, lambda: read_unchanged(path, columns))


def _read(path: Path, columns: Sequence[str], read_text_file: Callable[[], Any]) -> Any:
    """Read the named columns of a table, with ``read_text_file`` if it is a text file; check that there are rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.exists():
        raise InputError(f"there is no file or folder {str(path)!r}: pass a .csv, .parquet or .npz file, or a folder")
    with reading(path, "a table"):
        known = column_names(path)
        check_columns(columns, known, path)
        if is_parquet(path):
            check_columns(known, known, path)  # Arrow cannot read a file with duplicate column names
            files = shard_files(path)
            check_parquet(files, columns, path)
            table = pq.read_table(files, columns=list(columns))
        else:
            table = read_text_file() if ending(path) in TEXT else read_typed(path).select(list(columns))
        table.validate(full=True)
    if not len(table):
        raise InputError(f"{str(path)!r} has no rows: pass a table with at least one row")
    return pa.table({name: _plain(table.column(name)) for name in columns})


def column_names(path: Path) -> list[str]:
    """Return the names of a table's columns."""
    import pyarrow.parquet as pq

    check_readable(path)
    check_table_ending(path)
    with reading(path, "a table"):
        if is_parquet(path):
            return list(pq.read_schema(shard_files(path)[0]).names)
        return text_columns(path) if ending(path) in TEXT else list(read_typed(path).column_names)


def check_table_ending(path: Path) -> None:
    """Check that a path is a folder or has the file name ending of a table."""
    if ending(path) == ".npz":
        raise InputError(
            f"{path.name!r} contains arrays, not a table with columns: do not name columns of samples, or pass a "
            ".csv, .xlsx, .jsonl or .parquet file"
        )
    if not is_table(path):
        raise InputError(
            f"{path.name!r} has the ending {path.suffix!r}: pass a .csv, .tsv, .xlsx, .jsonl, .parquet or .npz file"
        )


def is_table(path: Path) -> bool:
    """Return whether a path is a folder or has the file name ending of a table."""
    return is_parquet(path) or ending(path) in TABLE_ENDINGS


def check_columns(wanted: Sequence[str], known: Sequence[str], path: Path) -> None:
    """Check that a table has each wanted column exactly once."""
    for name in wanted:
        if name not in known:
            raise unknown_name("column", name, known)
        if known.count(name) > 1:
            raise InputError(f"{path.name!r} has {known.count(name)} columns named {name!r}: rename all but one")


def check_values(name: str, kind: Any, path: Path) -> None:
    """Check that the Arrow type of a column is text, a number or a boolean, not a list, date or bytes."""
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_nested(kind):
        raise InputError(f"{str(path)!r}: the column {name!r} has type {kind}: it needs one value per row")
    text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    if not (text or number or types.is_null(kind)):
        raise InputError(
            f"{str(path)!r}: the column {name!r} has type {kind}: values must be text, numbers or booleans; convert "
            "it, for example to text"
        )


def _plain(column: Any) -> Any:
    """Convert dictionary-encoded and string-view columns to plain ones, because some Arrow functions reject them."""
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    kind = pa.string() if pa.types.is_string_view(kind) else kind
    return column if kind == column.type else column.cast(kind)
