"""Parquet on disk: one file, or a folder of shards, with or without a manifest.

``compshift features`` writes a folder of numbered shards with a manifest that counts them; such a folder is read only
if it is complete. Other folders of Parquet files are read in the order of their names.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from compshift._errors import InputError, reason
from compshift._files import check_inside, check_ordinary, parse_json, read_json_object
from compshift.data.text_tables import ending, not_unicode

PARQUET = (".parquet", ".pq")
"""File name endings of Parquet files."""

MANIFEST = "_features.json"
"""Manifest in a folder of feature shards. Readers of Parquet folders skip names that begin with ``_``."""

SHARD = "part-{:05d}.parquet"
"""File name of a feature shard, by its number."""

SHARD_METADATA = b"compshift"
"""Key in the schema metadata of a feature shard; its value is JSON with the ``key`` of the manifest."""

MAX_SHARDS = 100_000
"""Largest number of shards in a folder: their file names have five digits."""


def is_parquet(path: Path) -> bool:
    """Return whether a path is a Parquet file by its name, or a folder, which may hold shards."""
    return path.is_dir() or ending(path) in PARQUET


@contextmanager
def reading(path: str | PathLike[str], kind: str = "Parquet") -> Iterator[None]:
    """Turn whatever a damaged file raises inside the block into an InputError of one sentence."""
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


def check_readable(path: Path) -> None:
    """Check that Arrow can open a path: its name is UTF-8, and no pipe or device is there."""
    check_ordinary(path)
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(f"{str(path)!r} has bytes that are not UTF-8, and cannot be opened: rename it") from None


def shard_files(path: Path) -> list[Path]:
    """Return a Parquet file, or the shards of a folder in order.

    With a manifest, all shards that it counts must be there, each written with the manifest's key.
    """
    check_readable(path)
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.glob("*.parquet") if not file.name.startswith("."))
    for file in files:
        check_inside(file, path)
    about = read_manifest(path)
    if about is not None:
        numbered = {SHARD.format(number) for number in range(min(about["shards"], MAX_SHARDS))}
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


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of a folder of features, or None if it has none."""
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
        raise InputError(f"{str(path)!r} is damaged: compute the features again with overwrite=True")
    return content


def shard_about(path: Path) -> dict[str, Any]:
    """Return the metadata of a feature shard; empty if the file is missing, damaged or of another kind."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_schema(path).metadata or {}
        content = parse_json(metadata.get(SHARD_METADATA, b"{}"))
    except (OSError, ValueError, pa.ArrowException):
        return {}
    return content if isinstance(content, dict) else {}


def list_matrix(array: Any, path: Path) -> Any:
    """Return an Arrow array of lists of equal length as a matrix, without a copy where possible."""
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
