"""Tables on disk: CSV, TSV, a Parquet file or a folder of Parquet shards, as Arrow tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from compshift._errors import InputError, reason, unknown_name
from compshift._files import check_inside
from compshift._json import parse_json, read_json_object
from compshift.data.unpacked_size import check_parquet

MOST_COLUMNS, LONGEST_HEADER = 30_000, 1 << 24
MANIFEST = "_features.json"
"""File in a folder of feature shards that tells what made them; readers of Parquet folders pass over names with _."""

SHARD = "part-{:05d}.parquet"
SHARD_METADATA = b"compshift"
"""Name of a feature shard, and the key in its schema under which it tells what it was made from."""

MOST_SHARDS = 100_000
"""As many as their names have numbers for."""

PARQUET = (".parquet", ".pq")
TEXT = {".csv": ",", ".tsv": "\t", ".txt": ","}
"""Endings of text tables, and what separates their columns."""


def read_table(
    path: Path, columns: Sequence[str], *, free_text: Collection[str] = (), labels: Collection[str] = ()
) -> Any:
    """The named columns of a table, with at least one row.

    In a CSV file, empty entries and words such as NA are missing values, but not in ``free_text`` columns. ``labels``
    are numbers only if nothing is lost by that: 01 and 1 are two values.
    """
    import pyarrow as pa

    if not path.exists():
        raise InputError(f"there is no file or folder {str(path)!r}: pass a .csv, .parquet or .npz file, or a folder")
    with reading(path, "a table"):
        table = _read(path, columns, free_text, labels)
        table.validate(full=True)
    if not len(table):
        raise InputError(f"{str(path)!r} has no rows: at least one is needed")
    found = pa.table({name: _plain(table.column(name)) for name in columns})
    for name in columns:
        if pa.types.is_nested(found.column(name).type):
            raise InputError(
                f"{str(path)!r}: the column {name!r} has type {found.column(name).type}: one value per row"
            )
    return found


def column_names(path: Path) -> list[str]:
    """The names of a table's columns."""
    import pyarrow.csv as pa_csv
    import pyarrow.parquet as pq

    check_readable_name(path)
    with reading(path, "a table"):
        if path.is_dir() or path.suffix in PARQUET:
            return list(pq.read_schema(shard_files(path)[0]).names)
        options = _parse_options(path)
        _check_width(path, options.delimiter)
        with pa_csv.open_csv(path, parse_options=options) as reader:
            return list(reader.schema.names)


def _check_width(path: Path, delimiter: str) -> None:
    """Refuse so many columns that their buffers alone would fill memory, ten kilobytes each."""
    with path.open("rb") as stream:
        count = stream.readline(LONGEST_HEADER).count(delimiter.encode()) + 1
    if count > MOST_COLUMNS:
        raise InputError(
            f"{str(path)!r} has {count:,} columns: of a text at most {MOST_COLUMNS:,} are read; Parquet takes more"
        )


def check_columns(wanted: Sequence[str], known: Sequence[str], path: Path) -> None:
    """Refuse columns that a table has not, or has more than once."""
    for name in wanted:
        if name not in known:
            raise unknown_name("column", name, known)
        if known.count(name) > 1:
            raise InputError(f"{path.name!r} has {known.count(name)} columns named {name!r}: rename all but one")


@contextmanager
def reading(path: str | PathLike[str], kind: str = "Parquet") -> Iterator[None]:
    """Turn what a damaged file raises into one sentence."""
    import pyarrow as pa

    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, MemoryError, pa.ArrowException) as error:
        ours = "" if isinstance(error, OSError) and error.errno else f" as {kind}: it is damaged or of another kind"
        raise InputError(f"{str(path)!r} cannot be read{ours} ({reason(error)})") from None


def _read(path: Path, columns: Sequence[str], free_text: Collection[str], labels: Collection[str]) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not (path.is_dir() or path.suffix in PARQUET or path.suffix in TEXT):
        raise InputError(f"{path.name!r} has the ending {path.suffix!r}: tables end in .csv, .tsv, .parquet or .npz")
    check_columns(columns, column_names(path), path)
    if path.is_dir() or path.suffix in PARQUET:
        files = shard_files(path)
        check_parquet(files, columns, path)
        return pq.read_table(files, columns=list(columns))
    others = [name for name in columns if name not in free_text]
    as_text = dict.fromkeys(labels, pa.string())
    parts = [
        *([_read_text(path, others, strings_can_be_null=True, column_types=as_text)] if others else []),
        *([_read_text(path, free_text, column_types=dict.fromkeys(free_text, pa.string()))] if free_text else []),
    ]
    found = {name: part.column(name) for part in parts for name in part.column_names}
    return pa.table({name: _typed(column) if name in labels else column for name, column in found.items()})


def _typed(column: Any) -> Any:
    """A column of text as numbers or booleans, if each of its texts is the one way to write its value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = [value for value in pc.unique(column).to_pylist() if value is not None]
    if values and all(value.lower() in ("true", "false") for value in values):
        return pc.equal(pc.utf8_lower(column), "true")
    try:
        if all(str(int(value)) == value and abs(int(value)) < 2**63 for value in values):
            return column.cast(pa.int64())
        if all(repr(float(value)) == value for value in values):
            return column.cast(pa.float64())
    except ValueError:
        pass
    return column


def _read_text(path: Path, columns: Collection[str], **convert: Any) -> Any:
    import pyarrow.csv as pa_csv

    options = pa_csv.ConvertOptions(include_columns=list(columns), **convert)
    return pa_csv.read_csv(path, parse_options=_parse_options(path), convert_options=options)


def check_readable_name(path: Path) -> None:
    """Refuse a path that is no text, which Arrow cannot open."""
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(f"{str(path)!r} has bytes that are not UTF-8, and cannot be opened: rename it") from None


def shard_files(path: Path) -> list[Path]:
    """A Parquet file, or the shards of a folder in order.

    A folder of features must be whole: the shards that its manifest counts, all of them made by the same network.
    """
    check_readable_name(path)
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.glob("*.parquet") if not file.name.startswith("."))
    for file in files:
        check_inside(file, path)
    about = read_manifest(path)
    if about is not None:
        numbered = {SHARD.format(number) for number in range(min(about["shards"], MOST_SHARDS))}
        expected = [file for file in files if file.name in numbered and shard_about(file).get("key") == about["key"]]
        if len(expected) < about["shards"]:
            raise InputError(
                f"{str(path)!r} has {len(expected)} of {about['shards']} shards: run the same `compshift features` "
                "again to finish it"
            )
        return expected
    if not files:
        raise InputError(f"the folder {str(path)!r} holds no .parquet file: pass a folder of shards, or a file")
    return files


def list_matrix(array: Any, path: Path) -> Any:
    """An Arrow array of lists, all of one length, as a matrix, without a copy where that can be."""
    import numpy as np
    import pyarrow as pa

    if not hasattr(array, "value_lengths"):
        raise InputError(f"{str(path)!r}: the column 'features' has type {array.type}; a list of numbers is expected")
    kind = array.type.value_type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise InputError(f"{str(path)!r}: the lists in column 'features' are of {kind}; numbers are expected")
    lengths = np.unique(array.value_lengths().to_numpy(zero_copy_only=False))
    if array.null_count or len(lengths) > 1:
        raise InputError(f"{str(path)!r}: the lists in column 'features' are missing or differ in length")
    return array.flatten().to_numpy(zero_copy_only=False).reshape(len(array), int(lengths[0]) if len(lengths) else 0)


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """What the manifest of a folder of features says; None if the folder has none."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        content = read_json_object(check_inside(path, folder))
    except InputError:
        raise
    except ValueError:
        content = {}
    if type(content.get("shards")) is not int or content["shards"] < 1 or not isinstance(content.get("key"), str):
        raise InputError(f"{str(path)!r} is damaged: compute the features again with --overwrite")
    return content


def shard_about(path: Path) -> dict[str, Any]:
    """What a feature shard says of itself; nothing if it is missing, damaged or another kind of file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_schema(path).metadata or {}
        content = parse_json(metadata.get(SHARD_METADATA, b"{}"))
    except (OSError, ValueError, pa.ArrowException):
        return {}
    return content if isinstance(content, dict) else {}


def _parse_options(path: Path) -> Any:
    import pyarrow.csv as pa_csv

    return pa_csv.ParseOptions(delimiter=TEXT.get(path.suffix, ","), newlines_in_values=True)


def _plain(column: Any) -> Any:
    """A column without dictionary encoding."""
    import pyarrow as pa

    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
