"""Load a user's own table as a data set: image paths, texts or columns of numbers, with attribute columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from compshift._checks import (
    as_array,
    check_finite,
    check_list,
    check_numbers,
    check_same_order,
    check_same_rows,
    check_unmasked,
)
from compshift._errors import InputError, an, check_name, listing, shown
from compshift._files import check_path
from compshift.core.columns import as_mapping, column_values, missing_values, read_columns
from compshift.core.groups import GroupSpace
from compshift.data.dataset import PROBED_IMAGES, GroupedDataset, ImageFiles, Samples, Texts
from compshift.data.splits import check_split, stratified_split
from compshift.data.table_files import column_names, read_table
from compshift.data.text_tables import find_missing_words

SPLIT_COLUMN = "split"
"""Default name of the column with the splits."""

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
"""Matches a number in a table; stricter than ``float``, which also accepts 1_500."""


def load_table(
    table: Any,
    *,
    target: str | Sequence[str],
    attributes: str | Sequence[str] = (),
    path: str | None = None,
    text: str | Sequence[str] | None = None,
    features: Any = None,
    split: str | Mapping[str, float] | None = None,
    root: str | PathLike[str] | None = None,
    random_state: int = 0,
) -> GroupedDataset:
    """Read a table as a data set of images, texts or features.

    Parameters
    ----------
    table : str, path, DataFrame or mapping
        A file of CSV, TSV, Excel (.xlsx), JSON lines (.jsonl) or Parquet, a folder of Parquet shards, a DataFrame or a
        mapping of columns.
    target : str or sequence of str
        Column or columns to predict.
    attributes : str or sequence of str, optional
        Other columns that define the groups.
    path : str, optional
        Column with file names of images below ``root``. Pass exactly one of ``path``, ``text`` and ``features``.
    text : str or sequence of str, optional
        Column with texts, or two columns for pairs of texts.
    features : str, sequence of str or array (n, p), optional
        Names of columns of numbers, or a matrix.
    split : str or mapping, optional
        Column that contains train, val, test or 0, 1, 2; or shares, for example ``{"train": 0.7, "test": 0.3}``, for a
        random split of every group. By default, the column ``split`` if there is one.
    root : str or path, optional
        Folder that image paths are relative to; an image outside it raises an InputError. By default, paths are
        relative to the folder of the table, or to the current folder if the table is in memory, and may lead out of it.
    random_state : int, default=0
        Seed of the random split.

    Returns
    -------
    GroupedDataset
        Samples with their groups.

    Raises
    ------
    InputError
        If the table cannot be read, or a column is missing, used twice or holds other values than expected.

    Examples
    --------
    >>> table = {"bird": ["duck", "gull"], "place": ["lake", "sea"], "length": [1.0, 2.0]}
    >>> load_table(table, target="bird", attributes="place", features=["length"])
    <GroupedDataset: 2 rows of features, bird × place (2 × 2)>
    """
    source = _Source(table)
    return _grouped(
        source,
        lambda labels: _read(source, labels, path, text, features, root),
        target,
        attributes,
        split,
        random_state,
    )


def load_labels(
    table: Any,
    samples: Samples,
    *,
    target: str | Sequence[str],
    attributes: str | Sequence[str] = (),
    split: str | Mapping[str, float] | None = None,
    random_state: int = 0,
) -> GroupedDataset:
    """Read the labels and splits of a table as ``load_table`` does, and return them with ``samples`` already read."""
    source = _Source(table)
    return _grouped(
        source, lambda labels: (samples, source.read(labels, [], labels)), target, attributes, split, random_state
    )


def _grouped(
    source: _Source,
    read: Callable[[list[str]], tuple[Samples, dict[str, Any]]],
    target: str | Sequence[str],
    attributes: str | Sequence[str],
    split: str | Mapping[str, float] | None,
    random_state: int,
) -> GroupedDataset:
    """Return a table's rows with their groups and splits; ``read`` reads the samples and the named columns."""
    targets, nuisances = _names(target), _names(attributes)
    if not targets:
        raise InputError("target is empty: pass the name of the column to predict")
    if not isinstance(split, str | Mapping | None):
        raise InputError(
            f'split is {shown(split)}: pass the name of a column, or shares such as {{"train": 0.7, "test": 0.3}}'
        )
    split_column = split if isinstance(split, str) else None
    if split is None and SPLIT_COLUMN in source.names and SPLIT_COLUMN not in (*targets, *nuisances):
        split_column = SPLIT_COLUMN
    splits = [split_column] if split_column is not None else []
    samples, columns = read([*targets, *nuisances, *splits])
    source.check_complete({name: columns[name] for name in (*targets, *nuisances)})
    labels = read_columns({name: columns[name] for name in (*targets, *nuisances)})
    space = GroupSpace._from_columns(labels)
    codes = space._encode_columns(labels)
    check_same_rows(len(codes), samples, "features", "the table")
    row_split = None
    if split_column is not None:
        try:
            row_split = check_split(columns[split_column], len(codes))
        except InputError as error:
            raise InputError(f"the column {split_column!r} does not hold splits: {error}") from None
    if isinstance(split, Mapping):
        row_split = stratified_split(space, codes, split, random_state)
    return GroupedDataset(samples, space, codes, row_split, tuple(targets), source=source.label)


def load_samples(
    table: Any,
    *,
    path: str | None = None,
    text: str | Sequence[str] | None = None,
    features: Any = None,
    root: str | PathLike[str] | None = None,
) -> Samples:
    """Read only the samples of a table; it needs no label columns.

    Parameters
    ----------
    table : str, path, DataFrame or mapping
        A file of CSV, TSV, Excel (.xlsx), JSON lines (.jsonl) or Parquet, a folder of Parquet shards, a DataFrame or a
        mapping of columns.
    path : str, optional
        Column with file names of images below ``root``. Pass exactly one of ``path``, ``text`` and ``features``.
    text : str or sequence of str, optional
        Column with texts, or two columns for pairs of texts.
    features : str, sequence of str or array (n, p), optional
        Names of columns of numbers, or a matrix.
    root : str or path, optional
        Folder that image paths are relative to; an image outside it raises an InputError. By default, paths are
        relative to the folder of the table, or to the current folder if the table is in memory, and may lead out of it.

    Returns
    -------
    array (n, p), ImageFiles or Texts
        The samples, as ``load_table`` reads them.

    Raises
    ------
    InputError
        If the table cannot be read, or a column is missing, used twice or holds other values than expected.

    Examples
    --------
    >>> load_samples({"length": [1.0, 2.0], "width": [3.0, 4.0]}, features=["length", "width"])
    array([[1., 3.],
           [2., 4.]])
    """
    return _read(_Source(table), [], path, text, features, root)[0]


def _read(
    source: _Source,
    labels: list[str],
    path: str | None,
    text: str | Sequence[str] | None,
    features: Any,
    root: str | PathLike[str] | None,
) -> tuple[Samples, dict[str, Any]]:
    """Read the samples and the label columns of a table."""
    given = [name for name, value in (("path", path), ("text", text), ("features", features)) if value is not None]
    if len(given) != 1:
        raise InputError(f"{' and '.join(given) or 'no samples'} given: pass exactly one of path, text and features")
    texts = [] if text is None else _names(text)
    paths = [] if path is None else [path]
    numbers = _names(features) if isinstance(features, str | list | tuple) else []
    columns = source.read([*labels, *paths, *texts, *numbers], [*paths, *texts], labels)
    source.check_order(features)
    if path is not None:
        return _images(columns[path], source.folder, None if root is None else Path(root), path), columns
    if text is None:
        return _matrix({name: columns[name] for name in numbers} if numbers else features), columns
    if len(texts) > 2:
        raise InputError(f"text names {len(texts)} columns ({listing(texts)}): pass one, or two for pairs of texts")
    return Texts(*(columns[name] for name in texts)), columns


class _Source:
    """A table on disk or in memory, read by column; image paths in it are relative to ``folder``."""

    def __init__(self, table: Any) -> None:
        self._table = table = as_mapping(table)
        self._path = check_path(table) if isinstance(table, str | PathLike) else None
        self._keys = _keys(table) if self._path is None else []
        self.label = "memory" if self._path is None else str(self._path)
        self.folder = Path() if self._path is None else self._path if self._path.is_dir() else self._path.parent
        if self._path is not None and not self._path.exists():
            raise InputError(
                f"there is no table {str(self._path)!r}: pass a .csv, .xlsx, .jsonl or .parquet file, or a folder"
            )
        self.names = column_names(self._path) if self._path is not None else [str(key) for key in self._keys]

    def read(self, columns: Sequence[str], free_text: Sequence[str], labels: Sequence[str]) -> dict[str, Any]:
        """Read the named columns; see ``read_table`` for ``free_text`` and ``labels``."""
        if len(set(columns)) < len(columns):
            repeated = next(name for name in columns if columns.count(name) > 1)
            raise InputError(f"the column {repeated!r} is used twice: name each column once")
        for name in columns:
            check_name("column", name, self.names)
            if self.names.count(name) > 1:
                raise InputError(f"the table has {self.names.count(name)} columns named {name!r}: rename all but one")
        if self._path is None:
            chosen = {name: self._table[self._keys[self.names.index(name)]] for name in columns}
            check_same_order(chosen)
            for name, values in chosen.items():
                check_unmasked(values, f"the column {name!r}")
            return {
                name: as_array(values, name) if isinstance(values, list | tuple) else column_values(values)[0]
                for name, values in chosen.items()
            }
        table = read_table(self._path, columns, free_text=free_text, labels=labels)
        return {name: table.column(name).to_pandas().to_numpy() for name in columns}

    def check_order(self, features: Any) -> None:
        """Check that features passed as a DataFrame do not have the table's index labels in another order."""
        if self._path is None:
            check_same_order({"table": self._table, "features": features})

    def check_complete(self, labels: Mapping[str, Any]) -> None:
        """Raise an InputError if a label is missing because a word like NA was read as a missing value."""
        for name, values in labels.items():
            missing = missing_values(values)
            words = find_missing_words(self._path, [name]) if self._path is not None and missing.any() else []
            if words:
                count = int(missing.sum())
                raise InputError(
                    f"attribute {name!r} has {count} missing value{'s' * (count > 1)}, the first at row "
                    f"{int(np.argmax(missing))}, where {listing(words)} is read as missing: remove those rows or, if "
                    "it is a value, write another word"
                )


def _keys(table: Any) -> list[Any]:
    """Return the column keys of a table in memory, which may be numbers."""
    if isinstance(table, Mapping):
        return list(table)
    if hasattr(table, "columns") and hasattr(table, "__getitem__"):
        return list(table.columns)
    raise InputError(f"the table is {an(type(table).__name__)}: pass a path, a DataFrame or a mapping of columns")


def _names(given: str | Sequence[str]) -> list[str]:
    """Return a name, or a sequence of names, as a list."""
    return [given] if isinstance(given, str) else [str(name) for name in check_list(given, "a column", "names")]


def _images(names: Any, folder: Path, root: Path | None, column: str) -> ImageFiles:
    """Return the image files of a column; raise an InputError if none of the first ``PROBED_IMAGES`` exists.

    If ``root`` is None, the table may name any file; otherwise only files below ``root``.
    """
    files = ImageFiles(folder if root is None else root, names, root)
    empty = np.flatnonzero(files.names == "")
    if len(empty):
        raise InputError(f"the column {column!r} is empty at row {empty[0]}: every row needs the path of an image")
    if not any(files.path(row).exists() for row in range(min(len(files), PROBED_IMAGES))):
        raise InputError(
            f"there is no image {str(files.path(0))!r} (column {column!r}, row 0): pass as root the folder "
            "that the paths are relative to"
        )
    return files


def _first_non_number(values: Any) -> object:
    """Return the first value that is not a number; if all are numbers, a text with the type of the values."""
    for value in np.ravel(values):
        if isinstance(value, str) and not NUMBER.fullmatch(value.strip(" \t")):
            return value
        try:
            float(value)
        except (TypeError, ValueError):
            return str(value)
    return f"values of type {values.dtype}"


def _matrix(features: Any) -> Any:
    """Check columns of numbers, or a matrix, and return them as a matrix of finite floats."""
    check_unmasked(features, "features")
    if isinstance(features, Mapping):
        features = {name: as_array(values, f"the feature column {name!r}") for name, values in features.items()}
        if not features:
            raise InputError("features has no columns: name at least one column")
        for name, values in features.items():
            if values.dtype.kind not in "fiub":
                raise InputError(
                    f"the feature column {name!r} has {shown(_first_non_number(values))}: it must contain only "
                    "numbers, with a decimal point"
                )
            if np.isnan(values.astype(np.float64)).any():
                row = int(np.argmax(np.isnan(values.astype(np.float64))))
                raise InputError(
                    f"the feature column {name!r} has a missing value at row {row}: remove those rows or impute them"
                )
        first, *others = features
        for name in others:
            check_same_rows(len(features[first]), features[name], f"the feature column {name!r}", repr(first))
        X = np.column_stack([values.astype(np.float64) for values in features.values()])
    else:
        X = (
            as_array(features, "features")
            if hasattr(features, "dtype")
            else check_numbers(features, "features", "pass a matrix of numbers, or names of columns")
        )
        if X.ndim != 2 or X.dtype.kind not in "fiub":
            raise InputError(f"features has type {X.dtype} and shape {X.shape}: pass a matrix of numbers")
        X = X if X.dtype.kind == "f" else X.astype(np.float64)
    check_finite(X, "features")
    return X
