"""Arrays out of ``.npz`` files that anybody may have written.

Feature files: embeddings with their attributes, as ``.npz`` or Parquet.

An ``.npz`` file has ``X`` (n, p), ``Z`` (n, m) integer codes, ``attribute_names`` (m,), ``value_names`` (a JSON string,
``{name: [values]}``) and optionally ``split`` (n,). A Parquet file, or a folder of Parquet shards, has the attribute
columns, an optional ``split`` column, and the features as one list column ``features`` or as columns ``f0``, ``f1``, …
A split is 0, 1, 2 or train, val, test. Files to predict on may hold features alone.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from compshift._checks import MAX_TABLE_GROUPS, check_codes, check_finite, check_list, check_same_rows
from compshift._errors import InputError, check_name, listing
from compshift._files import check_ordinary, check_path, parse_json, replacing
from compshift.core.arrays import IntArray
from compshift.core.groups import GroupSpace
from compshift.data.dataset import GroupedDataset, check_dataset, check_split, split_rows
from compshift.data.parquet_footer import check_parquet, check_unpacked
from compshift.data.shift import stratified_split
from compshift.data.table_files import (
    check_columns,
    check_values,
    column_names,
    is_parquet,
    list_matrix,
    reading,
    shard_files,
)
from compshift.data.text_tables import ending


def read_arrays(path: Path, wanted: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Those of the wanted arrays that the file has, and the names of all that it has.

    The members that are measured are the ones that are read, each to the size that it was measured by and no further.
    """
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
    except Exception as error:  # damaged archives make their readers fail in every way there is
        if isinstance(error, OSError) and error.errno:
            raise  # the system's, not the file's
        raise InputError(
            f"{str(path)!r} cannot be read as .npz: it is damaged, another kind of file, or holds Python objects; "
            "write arrays of numbers and text with numpy.savez"
        ) from None


def _read_array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Any:
    """The array of a member. What runs on beyond the member's size is never unpacked."""
    with archive.open(entry) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


FEATURE_COLUMN = re.compile(r"f(0|[1-9]\d*)")
NPZ_KEYS = ("X", "Z", "attribute_names", "value_names", "split")


class _Contents(NamedTuple):
    """What was read: features, the attributes that were asked for (None if none was), and the split if there is one."""

    X: Any  # (n, p)
    space: GroupSpace | None
    codes: IntArray | None  # (n, m)
    split: IntArray | None  # (n,)


def read_features(path: str | PathLike[str], attributes: Sequence[str]) -> GroupedDataset:
    """The rows of a feature file with the named attributes, in that order.

    Parameters
    ----------
    path : str or path
        A .npz file, a .parquet file or a folder of Parquet shards.
    attributes : names
        At least one; the first is the target.

    Returns
    -------
    GroupedDataset
        With splits, if the file has them.
    """
    X, space, codes, split = _read(path, attributes)
    if space is None or codes is None:
        raise InputError("no attribute was asked for: name at least one")
    return GroupedDataset(X, space, codes, split)


def load_features(
    path: str | PathLike[str],
    targets: Sequence[str] = (),
    attributes: Sequence[str] | None = None,
    shares: Mapping[str, float] | None = None,
    random_state: int = 0,
) -> GroupedDataset:
    """A feature file as a data set that knows what is predicted.

    Without names, the file's first attribute is the target and all others are attributes. ``shares`` split a file that
    has no splits, at random within groups.
    """
    known = [] if targets and attributes is not None else file_attributes(path)
    targets = list(targets) or known[:1]
    if not targets:
        raise InputError(
            f"{str(path)!r} has no attributes: an .npz file has them as arrays 'Z' and 'attribute_names', Parquet as "
            "columns"
        )
    if attributes is None:
        attributes = [name for name in known if name not in targets]
    names = [*targets, *attributes]
    found = replace(read_features(path, names), targets=tuple(targets))
    if shares is None:
        return found
    if found.split is not None:
        raise InputError(f"shares were given, and the file has splits: leave them out ({str(path)!r})")
    return replace(found, split=stratified_split(found.space, found.codes, shares, random_state))


def file_attributes(path: str | PathLike[str]) -> list[str]:
    """Names of the attributes that a feature file has, in its order."""
    source = check_path(path)
    if is_parquet(source):
        plain = [name for name in column_names(source) if name not in ("row", "split", "features")]
        return [name for name in plain if not FEATURE_COLUMN.fullmatch(name)]
    arrays, _ = read_arrays(source, ("attribute_names",))
    return [str(name) for name in np.atleast_1d(arrays.get("attribute_names", np.array([], dtype=str)))]


def read_labels(
    path: str | PathLike[str], attributes: Sequence[str], split: str | None = None
) -> tuple[GroupSpace, IntArray]:
    """The named attributes of a feature file, as a space and codes (n, m), without reading its features."""
    contents = _read_npz(Path(path), attributes, features=False)
    if contents.space is None or contents.codes is None:
        raise InputError("no attribute was asked for: name at least one")
    codes = contents.codes
    if split is not None:
        if contents.split is None:
            raise InputError(f"{str(path)!r} has no splits: leave out --split")
        codes = codes[split_rows(check_split(contents.split, len(codes)), split)]
    return contents.space, codes


def read_inputs(path: str | PathLike[str], split: str = "all") -> Any:
    """The features alone, (n, p), of one split or of all rows; the file needs no attributes."""
    contents = _read(path, ())
    codes = None if contents.split is None else check_split(contents.split, len(contents.X))
    return contents.X[split_rows(codes, split)]


def write_features(path: str | PathLike[str], data: GroupedDataset) -> None:
    """Write a data set of features as .npz, whole or not at all; ``read_features`` and every command read it."""
    names, values = check_dataset(data).space.names, data.space.values
    arrays = {
        "X": data.X,
        "Z": data.codes,
        "attribute_names": np.array(names),
        "value_names": np.array(json.dumps(dict(zip(names, map(list, values), strict=True)))),
        **({} if data.split is None else {"split": data.split}),
    }
    if ending(check_path(path)) != ".npz":
        raise InputError(f"{Path(path).name!r} has the ending {Path(path).suffix!r}: feature files are written as .npz")
    with replacing(path) as temporary:
        np.savez_compressed(temporary, allow_pickle=False, **arrays)


def _read(path: str | PathLike[str], attributes: Sequence[str]) -> _Contents:
    attributes = check_list(attributes, "attributes", "names of attributes")
    source = check_path(path)
    if not source.exists():
        raise InputError(
            f"there is no file or folder {str(path)!r}: pass a .npz file, a .parquet file or a folder of shards"
        )
    if is_parquet(source):
        return _read_parquet(source, attributes)
    if ending(source) == ".npz":
        return _read_npz(source, attributes)
    raise InputError(f"{source.name!r} has the ending {source.suffix!r}: feature files end in .npz or .parquet")


def _read_npz(path: Path, attributes: Sequence[str], *, features: bool = True) -> _Contents:
    arrays, found = read_arrays(path, NPZ_KEYS if features else NPZ_KEYS[1:])
    if "X" not in arrays and features:
        raise InputError(
            f"{str(path)!r} has no array 'X' (it has {listing(found)}): features are expected under that name"
        )
    X, split = _feature_matrix(arrays["X"], path) if features else None, arrays.get("split")
    if not attributes:
        return _Contents(X, None, None, split)
    absent = [key for key in ("Z", "attribute_names") if key not in arrays]
    if absent:
        raise InputError(f"{str(path)!r} has no array {listing(absent)}: codes and attribute names are expected there")
    names = [str(name) for name in np.atleast_1d(arrays["attribute_names"])]
    Z = arrays["Z"]
    if Z.dtype.kind not in "iu" or Z.ndim != 2 or Z.shape[1] != len(names):
        raise InputError(
            f"{str(path)!r}: Z has type {Z.dtype} and shape {Z.shape}; it must hold one whole number per row for each "
            f"of the {len(names)} attribute_names"
        )
    if X is not None:
        check_same_rows(len(X), Z, "Z")
    for name in attributes:
        check_name("attribute", name, names)
    order = [names.index(name) for name in attributes]
    values = _value_names(arrays.get("value_names"), names, Z, path)
    space = GroupSpace(tuple(attributes), tuple(values[position] for position in order))
    return _Contents(X, space, check_codes(Z[:, order], space.cardinalities, "Z"), split)


def _value_names(encoded: Any, names: list[str], Z: IntArray, path: Path) -> list[tuple[Any, ...]]:
    """Values of every attribute, from the JSON text, or 0, 1, … where there is none."""
    if encoded is None:
        largest = int(Z.max(initial=0))
        if largest >= MAX_TABLE_GROUPS:
            raise InputError(
                f"{str(path)!r}: Z has the code {largest}, and no value_names: codes should run from 0 without gaps"
            )
        return [tuple(range(int(column.max(initial=0)) + 1)) for column in Z.T]
    try:
        table = parse_json(str(encoded))
        lists = [table[name] for name in names]
        if not all(isinstance(values, list) for values in lists):
            raise TypeError("a value is no list")
        return [tuple(values) for values in lists]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{str(path)!r}: value_names is not a JSON object with a list for each attribute ({error!r})"
        ) from None


def _read_parquet(path: Path, attributes: Sequence[str]) -> _Contents:
    import pyarrow.parquet as pq

    with reading(path):
        source = shard_files(path)
        schema = pq.read_schema(source[0])
        columns = schema.names
        check_columns(attributes, columns, source[0])
        numbered = sorted((column for column in columns if FEATURE_COLUMN.fullmatch(column)), key=_feature_number)
        feature_columns = ["features"] if "features" in columns else numbered
        if not feature_columns:
            raise InputError(
                f"{str(path)!r} has no features (its columns are {listing(columns)}): a list column 'features' or "
                "columns 'f0', 'f1', … are expected; other columns of numbers are named with --features"
            )
        check_columns(feature_columns, columns, source[0])
        wanted = [*feature_columns, *attributes, *(["split"] if "split" in columns else [])]
        check_parquet(source, wanted, path)
        for name in attributes:
            check_values(name, schema.field(name).type, path)
        table = pq.read_table(source, columns=list(dict.fromkeys(wanted)))
        table.validate(full=True)
        split = np.asarray(table.column("split").to_pylist()) if "split" in columns else None
        if feature_columns == ["features"]:
            X = list_matrix(table.column("features").combine_chunks(), path)
        else:
            if list(map(_feature_number, numbered)) != list(range(len(numbered))):
                raise InputError(
                    f"{str(path)!r}: the feature columns are not numbered f0 to f{len(numbered) - 1} without gaps"
                )
            X = np.column_stack([table.column(column).to_numpy() for column in numbered])
        frame = table.select(list(attributes)).to_pandas(ignore_metadata=True)
    X = _feature_matrix(X, path)
    if not attributes:
        return _Contents(X, None, None, split)
    space = GroupSpace.from_table(frame)
    return _Contents(X, space, space.encode(frame), split)


def _feature_number(column: str) -> float:
    """The number in the name of a feature column; one with thousands of digits is no number at all."""
    return int(column[1:]) if len(column) < 20 else float("inf")


def _feature_matrix(X: Any, path: Path) -> Any:
    """X as a floating matrix with at least one row and one column."""
    if X.ndim == 2 and not len(X):
        raise InputError(f"{str(path)!r} has no rows: at least one is needed")
    if X.ndim != 2 or 0 in X.shape or X.dtype.kind not in "fiub":
        raise InputError(
            f"{str(path)!r}: the features have type {X.dtype} and shape {X.shape}; a matrix of numbers with one row "
            "per sample is expected"
        )
    check_finite(X, f"{str(path)!r}")
    return X if X.dtype.kind == "f" else X.astype(np.float64)
