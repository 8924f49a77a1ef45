"""Tables on disk: CSV, TSV, a Parquet file or a folder of Parquet shards, as Arrow tables.

Values of a file, matched by what was written with those that a model knows.

What type a column of text has is guessed from the file alone: where training wrote 1, 2 and 3b, a test file that has 1
and 2 only seems to hold numbers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from compshift._errors import InputError, listing, reason, unknown_name
from compshift._files import check_inside, check_ordinary, parse_json, read_json_object
from compshift.core.columns import Column
from compshift.core.groups import GroupSpace
from compshift.data.dataset import GroupedDataset
from compshift.data.parquet_footer import check_parquet
from compshift.data.text_tables import TEXT, ending, not_unicode, read_text, text_columns

MANIFEST = "_features.json"
"""File in a folder of feature shards that tells what made them; readers of Parquet folders pass over names with _."""

SHARD = "part-{:05d}.parquet"
SHARD_METADATA = b"compshift"
"""Name of a feature shard, and the key in its schema under which it tells what it was made from."""

MOST_SHARDS = 100_000
"""As many as their names have numbers for."""

PARQUET = (".parquet", ".pq")


def is_parquet(path: Path) -> bool:
    """Whether this is a Parquet file, or a folder that may hold shards."""
    return path.is_dir() or ending(path) in PARQUET


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
        check_values(name, found.column(name).type, path)
    return found


def check_values(name: str, kind: Any, path: Path) -> None:
    """Refuse a column whose values are lists, or dates and others that are neither text nor numbers nor booleans."""
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_nested(kind):
        raise InputError(f"{str(path)!r}: the column {name!r} has type {kind}: one value per row")
    text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    if not (text or number or types.is_null(kind)):
        raise InputError(
            f"{str(path)!r}: the column {name!r} has type {kind}: values must be text, numbers or booleans; convert "
            "it, for example to text"
        )


def column_names(path: Path) -> list[str]:
    """The names of a table's columns."""
    import pyarrow.parquet as pq

    check_readable(path)
    check_table_ending(path)
    with reading(path, "a table"):
        if is_parquet(path):
            return list(pq.read_schema(shard_files(path)[0]).names)
        return text_columns(path)


def check_table_ending(path: Path) -> None:
    """Refuse a file that is no table by its name."""
    if ending(path) == ".npz":
        raise InputError(
            f"{path.name!r} holds arrays, not a table with columns: leave out --features, --path and --text, or pass a "
            ".csv, .tsv or .parquet file"
        )
    if not (is_parquet(path) or ending(path) in TEXT):
        raise InputError(f"{path.name!r} has the ending {path.suffix!r}: tables end in .csv, .tsv, .parquet or .npz")


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
        if "invalid UTF8" in str(error):
            raise not_unicode(Path(path)) from None
        ours = "" if isinstance(error, OSError) and error.errno else f" as {kind}: it is damaged or of another kind"
        raise InputError(f"{str(path)!r} cannot be read{ours} ({reason(error)})") from None


def _read(path: Path, columns: Sequence[str], free_text: Collection[str], labels: Collection[str]) -> Any:
    import pyarrow.parquet as pq

    known = column_names(path)
    check_columns(columns, known, path)
    if is_parquet(path):
        check_columns(known, known, path)  # Arrow reads none of a file with two of one name
        files = shard_files(path)
        check_parquet(files, columns, path)
        return pq.read_table(files, columns=list(columns))
    return read_text(path, columns, free_text, labels)


def check_readable(path: Path) -> None:
    """Refuse a path that is no text, which Arrow cannot open, and a pipe, at which it waits without end."""
    check_ordinary(path)
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(f"{str(path)!r} has bytes that are not UTF-8, and cannot be opened: rename it") from None


def shard_files(path: Path) -> list[Path]:
    """A Parquet file, or the shards of a folder in order.

    A folder of features must be whole: the shards that its manifest counts, all of them made by the same network.
    """
    check_readable(path)
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
    if not check_ordinary(path).is_file():
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


def _plain(column: Any) -> Any:
    """A column without dictionary encoding, its text in the form that all of Arrow's functions take."""
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    kind = pa.string() if pa.types.is_string_view(kind) else kind
    return column if kind == column.type else column.cast(kind)


DECIMAL = re.compile(r"-?(0|[1-9]\d*)\.\d+")


def in_space(data: GroupedDataset, space: GroupSpace) -> GroupedDataset:
    """The rows with the attributes and values of ``space``; a value that it does not know is refused."""
    columns = []
    for name, known in zip(space.names, space.values, strict=True):
        if name not in data.space.names:
            raise InputError(
                f"the rows have no attribute {name!r}, which the model has: their attributes are "
                f"{listing(data.space.names)}"
            )
        position = data.space.names.index(name)
        used, codes = np.unique(data.codes[:, position], return_inverse=True)
        own = data.space.values[position]
        columns.append(Column(name, tuple(as_known(own[code], known) for code in used), codes.reshape(-1), named=True))
    targets = tuple(name for name in data.targets if name in space.names)
    return replace(data, space=space, codes=space._encode_columns(columns), targets=targets)


def as_known(value: Hashable, known: Collection[Hashable]) -> Hashable:
    """The one known value that is written like ``value``, as 1 like ``"1"`` and ``1.0``; itself if there is none.

    Values that are told apart stay apart: of ``"1"`` and ``"1.0"`` each is itself, and ``"01"`` is another still.
    """
    if value in known:
        return value
    if str(value) in known:
        return str(value)
    alike = [other for other in known if _writing(other) == _writing(value)]
    return alike[0] if len(alike) == 1 else value


def _writing(value: Hashable) -> str:
    """What a value looks like in a file, without zeros at its end and without capitals of true and false."""
    text = str(value)
    if text.lower() in ("true", "false"):
        return text.lower()
    return text.rstrip("0").rstrip(".") if DECIMAL.fullmatch(text) else text
