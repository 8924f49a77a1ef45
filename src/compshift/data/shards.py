"""Find and check Parquet data on disk: a file, or a folder of shards with or without a manifest.

``compshift features`` writes a folder of numbered shards with a manifest that states their number; a folder with
missing shards is rejected. Other folders of Parquet files are read in the order of their names.
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
from compshift.data.text_tables import encoding_error

MANIFEST = "_features.json"
"""File name of the manifest in a folder of feature shards. Parquet readers skip names that begin with ``_``."""

SHARD = "part-{:05d}.parquet"
"""Pattern of the file names of feature shards, formatted with the number of the shard."""

SHARD_METADATA = b"compshift"
"""Name of an entry in the schema metadata of a feature shard: a JSON object with the same ``key`` as the manifest.

The key is a digest of the backbone's settings, weights and precision: shards of another backbone have another key.
"""

MAX_SHARDS = 100_000
"""Maximum number of shards in a folder, because their file names have five digits."""


@contextmanager
def reading(path: str | PathLike[str], kind: str = "Parquet") -> Iterator[None]:
    """Turn exceptions that a damaged file causes inside the block into an InputError that names the file.

    ``kind`` says in the message what the file was read as.
    """
    import pyarrow as pa

    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, MemoryError, pa.ArrowException) as error:
        if "invalid UTF8" in str(error):
            raise encoding_error(Path(path)) from None
        system = isinstance(error, OSError) and error.errno
        explanation = "" if system else f" as {kind}: it is damaged or of another kind"
        raise InputError(f"{str(path)!r} cannot be read{explanation} ({reason(error)})") from None


def check_readable(path: Path) -> None:
    """Check that Arrow can open a path: that it is valid UTF-8, and not a pipe or device."""
    check_ordinary(path)
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(f"{str(path)!r} is not valid UTF-8, so Arrow cannot open it: rename it") from None


def shard_files(path: Path) -> list[Path]:
    """Return the path of a Parquet file in a list, or the paths of the shards of a folder, in order.

    If the folder has a manifest, all its shards must exist and have the key of the manifest.
    """
    check_readable(path)
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.glob("*.parquet") if not file.name.startswith("."))
    for file in files:
        check_inside(file, path)
    manifest = read_manifest(path)
    if manifest is not None:
        numbered = {SHARD.format(number) for number in range(min(manifest["shards"], MAX_SHARDS))}
        key = manifest["key"]
        complete = [file for file in files if file.name in numbered and shard_about(file).get("key") == key]
        if len(complete) < manifest["shards"]:
            raise InputError(
                f"{str(path)!r} has {len(complete)} of {manifest['shards']} shards: run the same `compshift features` "
                "command again to finish it"
            )
        return complete
    if not files:
        raise InputError(
            f"the folder {str(path)!r} contains no .parquet file: pass a folder of .parquet files, or one file"
        )
    return files


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of a folder of features, or None if there is no manifest."""
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
    """Return the metadata of a feature shard; empty if the file is missing, damaged or not a feature shard."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_schema(path).metadata or {}
        content = parse_json(metadata.get(SHARD_METADATA, b"{}"))
    except (OSError, ValueError, pa.ArrowException):
        return {}
    return content if isinstance(content, dict) else {}


def list_matrix(array: Any, path: Path) -> Any:
    """Convert an Arrow array of equally long lists to a matrix, without copying where possible."""
    import pyarrow as pa

    if not hasattr(array, "value_lengths"):
        raise InputError(
            f"{str(path)!r}: the column 'features' has type {array.type}: it must contain lists of numbers"
        )
    kind = array.type.value_type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise InputError(
            f"{str(path)!r}: the lists in column 'features' have entries of type {kind}: they must contain numbers"
        )
    lengths = np.unique(array.value_lengths().to_numpy(zero_copy_only=False))
    if array.null_count or len(lengths) > 1:
        raise InputError(
            f"{str(path)!r}: the lists in column 'features' are missing or differ in length: every row needs a list of "
            "the same length"
        )
    return array.flatten().to_numpy(zero_copy_only=False).reshape(len(array), int(lengths[0]) if len(lengths) else 0)
