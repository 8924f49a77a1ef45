"""Feature files: embeddings with their attributes, as ``.npz`` or Parquet.

An ``.npz`` file has ``X`` (n, p), ``Z`` (n, m) integer codes, ``attribute_names`` (m,), and optionally ``value_names``
(a JSON string, ``{name: [values]}``; by default the values are the codes) and ``split`` (n,). A Parquet file, or a
folder of Parquet shards, has the attribute columns, an optional ``split`` column, and the features as one list column
``features`` or as columns ``f0``, ``f1``, … A split is 0, 1, 2 or train, val, test. Files to predict on need only
features.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from compshift._checks import MAX_TABLE_GROUPS, check_codes, check_finite, check_list, check_same_rows
from compshift._errors import InputError, check_name, listing
from compshift._files import check_path, ending, is_parquet, parse_json, replacing
from compshift.core.arrays import IntArray
from compshift.core.groups import GroupSpace
from compshift.data.dataset import GroupedDataset, check_dataset
from compshift.data.shards import list_matrix, reading, shard_files
from compshift.data.splits import check_split, split_rows, stratified_split
from compshift.data.table_files import check_columns, check_values, column_names, read_table
from compshift.data.untrusted import check_parquet, read_arrays

FEATURE_COLUMN = re.compile(r"f(0|[1-9]\d*)")
"""Matches the name of a numbered feature column (f0, f1, …)."""

NPZ_KEYS = ("X", "Z", "attribute_names", "value_names", "split")
"""Names of the arrays that are read from an ``.npz`` file."""


class _Contents(NamedTuple):
    """Contents of a feature file; ``space`` and ``codes`` are None if no attributes were requested."""

    X: Any  # (n, p)
    space: GroupSpace | None
    codes: IntArray | None  # (n, m)
    split: IntArray | None  # (n,)


def read_features(path: str | PathLike[str], attributes: Sequence[str]) -> GroupedDataset:
    """Read a feature file with the named attributes.

    Parameters
    ----------
    path : str or path
        A .npz file, a .parquet file or a folder of Parquet shards.
    attributes : sequence of str
        Names of one or more attributes, in the order of the result; the first is the target.

    Returns
    -------
    GroupedDataset
        The rows of the file, with splits if it has them.

    Raises
    ------
    InputError
        If the file cannot be read, lacks an attribute, or would unpack to far more memory than its size justifies.

    Examples
    --------
    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "birds.npz")
    ...     np.savez(path, X=np.eye(2), Z=[[0, 1], [1, 0]], attribute_names=["bird", "place"])
    ...     read_features(path, ["bird", "place"])
    <GroupedDataset: 2 rows of features, bird × place (2 × 2)>
    """
    X, space, codes, split = _read(path, attributes)
    if space is None or codes is None:
        raise InputError("attributes is empty: name at least one attribute")
    return GroupedDataset(X, space, codes, split)


def load_features(
    path: str | PathLike[str],
    targets: Sequence[str] = (),
    attributes: Sequence[str] | None = None,
    shares: Mapping[str, float] | None = None,
    random_state: int = 0,
) -> GroupedDataset:
    """Read a feature file with its targets and attributes.

    If ``targets`` is empty, the file's first attribute is the target; if ``attributes`` is None, all others are
    attributes. ``shares`` splits the rows of each group at random; the file must not have splits.
    """
    known = [] if targets and attributes is not None else file_attributes(path)
    targets = list(targets) or known[:1]
    if not targets:
        raise InputError(
            f"{str(path)!r} has no attributes: write them as the arrays 'Z' and 'attribute_names' of an .npz file, or "
            "as columns of a Parquet file"
        )
    if attributes is None:
        attributes = [name for name in known if name not in targets]
    names = [*targets, *attributes]
    found = replace(read_features(path, names), targets=tuple(targets))
    if shares is None:
        return found
    if found.split is not None:
        raise InputError(f"shares cannot be used with {str(path)!r}, which already has splits: leave shares out")
    return replace(found, split=stratified_split(found.space, found.codes, shares, random_state))


def file_attributes(path: str | PathLike[str]) -> list[str]:
    """Return the names of the attributes in a feature file, in file order."""
    source = check_path(path)
    if is_parquet(source):
        others = [name for name in column_names(source) if name not in ("row", "split", "features")]
        return [name for name in others if not FEATURE_COLUMN.fullmatch(name)]
    arrays, _ = read_arrays(source, ("attribute_names",))
    return [str(name) for name in np.atleast_1d(arrays.get("attribute_names", np.array([], dtype=str)))]


def holds_features(path: Path) -> bool:
    """Return whether a Parquet file or folder has a column ``features`` or columns ``f0``, ``f1``, …"""
    return any(name == "features" or FEATURE_COLUMN.fullmatch(name) for name in column_names(path))


def read_labels(
    path: str | PathLike[str], attributes: Sequence[str], split: str | None = None
) -> tuple[GroupSpace, IntArray]:
    """Read the named attributes of an ``.npz`` file, or of one of its splits, without its features.

    Returns the space of the attributes and the codes (n, m).
    """
    contents = _read_npz(Path(path), attributes, features=False)
    if contents.space is None or contents.codes is None:
        raise InputError("attributes is empty: name at least one attribute")
    codes = contents.codes
    if split is not None:
        if contents.split is None:
            raise InputError(f"{str(path)!r} has no splits: pass split=None")
        codes = codes[split_rows(check_split(contents.split, len(codes)), split)]
    return contents.space, codes


def read_inputs(path: str | PathLike[str], split: str = "all") -> Any:
    """Read the features (n, p) of one split, or of all rows; the file needs no attributes."""
    contents = _read(path, ())
    codes = None if contents.split is None else check_split(contents.split, len(contents.X))
    return contents.X[split_rows(codes, split)]


def read_attributes(path: Path, names: Sequence[str], split: str = "all") -> dict[str, Any]:
    """Read attributes of one split, or of all rows, of a feature file or table; missing values are None or NaN."""
    if ending(path) == ".npz":
        space, codes = read_labels(path, names, None if split == "all" else split)
        return dict(space.frame(codes).items())
    has_split = split != "all" and "split" in column_names(path)
    table = read_table(path, [*names, *(["split"] if has_split else [])], labels=names)
    splits = check_split(table.column("split").to_pylist(), len(table)) if has_split else None
    rows = split_rows(splits, split)
    return {name: table.column(name).to_pandas().to_numpy()[rows] for name in names}


def write_features(path: str | PathLike[str], data: GroupedDataset) -> None:
    """Write a data set of features atomically as an ``.npz`` file that ``read_features`` and all commands can read.

    Parameters
    ----------
    path : str or path
        File to write; its name must end in ``.npz``.
    data : GroupedDataset
        Data set whose samples are features.

    Raises
    ------
    InputError
        If ``data`` contains images or text, or ``path`` does not end in ``.npz`` or cannot be written.

    Examples
    --------
    >>> import os, tempfile
    >>> space = GroupSpace.from_cardinalities([2], names=["bird"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "birds.npz")
    ...     write_features(path, GroupedDataset(np.eye(2), space, [[0], [1]]))
    ...     read_features(path, ["bird"]).codes
    array([[0],
           [1]])
    """
    names, values = check_dataset(data).space.names, data.space.values
    arrays = {
        "X": data.X,
        "Z": data.codes,
        "attribute_names": np.array(names),
        "value_names": np.array(json.dumps(dict(zip(names, map(list, values), strict=True)))),
        **({} if data.split is None else {"split": data.split}),
    }
    if ending(check_path(path)) != ".npz":
        raise InputError(f"{Path(path).name!r} has the ending {Path(path).suffix!r}: pass a name that ends in .npz")
    with replacing(path) as temporary:
        np.savez_compressed(temporary, allow_pickle=False, **arrays)


def _read(path: str | PathLike[str], attributes: Sequence[str]) -> _Contents:
    """Read the features and the named attributes of an ``.npz`` or Parquet file."""
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
    """Read the named attributes of an ``.npz`` file and, unless ``features`` is False, its features."""
    arrays, found = read_arrays(path, NPZ_KEYS if features else NPZ_KEYS[1:])
    if "X" not in arrays and features:
        raise InputError(
            f"{str(path)!r} has no array 'X' but {listing(found) or 'no arrays'}: write the features as array 'X'"
        )
    X, split = _feature_matrix(arrays["X"], path) if features else None, arrays.get("split")
    if not attributes:
        return _Contents(X, None, None, split)
    absent = [key for key in ("Z", "attribute_names") if key not in arrays]
    if absent:
        raise InputError(
            f"{str(path)!r} has no array {listing(absent)}: write the codes as 'Z' and the names as 'attribute_names'"
        )
    names = [str(name) for name in np.atleast_1d(arrays["attribute_names"])]
    Z = arrays["Z"]
    if Z.dtype.kind not in "iu" or Z.ndim != 2 or Z.shape[1] != len(names):
        raise InputError(
            f"{str(path)!r}: Z has type {Z.dtype} and shape {Z.shape}; it must have one integer per row for each "
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
    """Return the values of every attribute, parsed from the JSON text; if there is no text, the integers 0, 1, …"""
    if encoded is None:
        largest = int(Z.max(initial=0))
        if largest >= MAX_TABLE_GROUPS:
            raise InputError(
                f"{str(path)!r}: Z has the code {largest} but there are no value_names: number values from 0, "
                "without gaps"
            )
        return [tuple(range(int(column.max(initial=0)) + 1)) for column in Z.T]
    try:
        table = parse_json(str(encoded))
        lists = [table[name] for name in names]
        if not all(isinstance(values, list) for values in lists):
            raise TypeError("the values of an attribute are not a list")
        return [tuple(values) for values in lists]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{str(path)!r}: value_names must be a JSON object with a list of values for each attribute ({error!r})"
        ) from None


def _read_parquet(path: Path, attributes: Sequence[str]) -> _Contents:
    """Read the features and the named attributes of a Parquet file or a folder of shards."""
    import pyarrow.parquet as pq

    with reading(path):
        files = shard_files(path)
        schema = pq.read_schema(files[0])
        columns = schema.names
        check_columns(attributes, columns, files[0])
        numbered = sorted((column for column in columns if FEATURE_COLUMN.fullmatch(column)), key=_feature_number)
        feature_columns = ["features"] if "features" in columns else numbered
        if not feature_columns:
            raise InputError(
                f"{str(path)!r} has no features (its columns are {listing(columns)}): write them as a list column "
                "'features' or as columns 'f0', 'f1', …, or read other columns as a table, with features=[names]"
            )
        check_columns(feature_columns, columns, files[0])
        wanted = [*feature_columns, *attributes, *(["split"] if "split" in columns else [])]
        check_parquet(files, wanted, path)
        for name in attributes:
            check_values(name, schema.field(name).type, path)
        table = pq.read_table(files, columns=list(dict.fromkeys(wanted)), page_checksum_verification=True)
        table.validate(full=True)
        split = np.asarray(table.column("split").to_pylist()) if "split" in columns else None
        if feature_columns == ["features"]:
            X = list_matrix(table.column("features").combine_chunks(), path)
        else:
            if list(map(_feature_number, numbered)) != list(range(len(numbered))):
                raise InputError(
                    f"{str(path)!r}: the feature columns must be numbered f0 to f{len(numbered) - 1} without gaps"
                )
            X = np.column_stack([table.column(column).to_numpy() for column in numbered])
        frame = table.select(list(attributes)).to_pandas(ignore_metadata=True)
    X = _feature_matrix(X, path)
    if not attributes:
        return _Contents(X, None, None, split)
    space = GroupSpace.from_table(frame)
    return _Contents(X, space, space.encode(frame), split)


def _feature_number(column: str) -> float:
    """Return the number in the name of a feature column, or infinity if it has too many digits."""
    return int(column[1:]) if len(column) < 20 else float("inf")


def _feature_matrix(X: Any, path: Path) -> Any:
    """Check that X is a matrix of finite numbers with at least one row and one column; return it as floats."""
    if X.ndim == 2 and not len(X):
        raise InputError(f"{str(path)!r} has no rows: at least one is needed")
    if X.ndim != 2 or 0 in X.shape or X.dtype.kind not in "fiub":
        raise InputError(
            f"{str(path)!r}: the features have type {X.dtype} and shape {X.shape}; write a matrix of numbers with "
            "one row per sample"
        )
    check_finite(X, f"{str(path)!r}")
    return X if X.dtype.kind == "f" else X.astype(np.float64)
