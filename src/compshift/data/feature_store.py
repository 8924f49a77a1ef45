"""Features and labels in Parquet files that are read one block at a time, for data larger than memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from compshift._checks import check_count, check_flag, check_list, check_whole
from compshift._errors import InputError, an, check_name, listing
from compshift._files import check_path
from compshift.core.arrays import BoolArray
from compshift.data.shards import list_matrix, reading, shard_files
from compshift.data.untrusted import check_parquet

ALL = "all"
"""Value of ``split`` that stands for all splits."""


@dataclass(frozen=True)
class FeatureStore:
    """A Parquet file or folder of shards with a list column ``features``, as ``compshift features`` writes it.

    ``CRMClassifier().fit(FeatureStore("birds.features", "train"), "bird", attributes=["place"])`` fits a model to more
    rows than memory holds: columns are named instead of passed. The files must not change meanwhile.

    Parameters
    ----------
    path : str or path
        A .parquet file, or a folder of them.
    split : str, optional
        Value of the column ``split`` whose rows are read; ``"all"`` reads the rows of every split. None reads all rows
        too, and a fit warns if there is such a column.
    memory : int, default=2**30
        Bytes that blocks of features may take while the store is fitted.

    Raises
    ------
    InputError
        If there is nothing at ``path``, or ``memory`` is not a whole number of 1 or more.

    Examples
    --------
    >>> import os, tempfile
    >>> import pandas as pd
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "birds.parquet")
    ...     pd.DataFrame({"features": [[0.0, 1.0], [2.0, 3.0]], "bird": ["duck", "gull"]}).to_parquet(path)
    ...     store = FeatureStore(path)
    ...     store.n_rows, store.n_features, store.columns
    (2, 2, ['features', 'bird'])
    """

    path: str | PathLike[str]
    split: str | None = None
    memory: int = field(default=1 << 30, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "memory", check_count(self.memory, "memory"))
        object.__setattr__(self, "path", check_path(self.path))
        if not Path(self.path).exists():
            raise InputError(f"there is no file or folder {str(self.path)!r}: pass a .parquet file or a folder of them")

    @cached_property
    def files(self) -> list[Path]:
        """The Parquet files, in order."""
        return list(self._states)

    @cached_property
    def _states(self) -> dict[Path, tuple[int, ...]]:
        """The files, each with its state when the store first read it."""
        with reading(self.path):
            found = {file: _state(file) for file in shard_files(Path(self.path))}
            check_parquet(list(found), ["features"], Path(self.path))
        return found

    @contextmanager
    def _reading(self, *files: Path) -> Iterator[None]:
        """Check before and after a block that the files it reads did not change since the store first read them."""
        expected = self._states

        def check() -> None:
            for file in files:
                if _state(file) != expected[file]:
                    raise InputError(
                        f"{str(file)!r} changed while it was read: wait until nothing writes to it, and begin again "
                        "with a new FeatureStore"
                    )

        with reading(files[0] if len(files) == 1 else self.path):
            check()
            try:
                yield
            finally:
                check()  # a change explains why reading failed

    @cached_property
    def columns(self) -> list[str]:
        """Names of all columns."""
        import pyarrow.parquet as pq

        with self._reading(self.files[0]):
            return list(pq.read_schema(self.files[0]).names)

    @cached_property
    def n_features(self) -> int:
        """Length of the feature lists."""
        for file, group, _ in self._row_groups():
            for features in self._batches(1, file, group):
                if not features.shape[1]:
                    raise InputError(f"{str(file)!r}: the lists in column 'features' are empty; numbers are expected")
                return int(features.shape[1])
        raise InputError(f"{str(self.path)!r} has no rows: at least one is needed")

    @cached_property
    def n_rows(self) -> int:
        """Number of rows that are read."""
        import pyarrow.parquet as pq

        if self.kept is not None:
            return int(np.count_nonzero(self.kept))
        with self._reading(*self.files):
            return sum(pq.read_metadata(file).num_rows for file in self.files)

    @cached_property
    def kept(self) -> BoolArray | None:
        """Mask of the stored rows that are read; None if all are."""
        if self.split is None or (isinstance(self.split, str) and self.split == ALL):
            return None
        if not isinstance(self.split, str | int):
            raise InputError(f"split is {an(type(self.split).__name__)}: pass the name of a split, for example 'train'")
        values = self.frame(["split"], every_row=True)["split"]
        mask = np.asarray(values == self.split)
        if not mask.any():
            known = sorted(map(str, values.unique()))
            raise InputError(f"{str(self.path)!r} has no rows of the split {self.split!r}: it has {listing(known)}")
        return mask

    def frame(self, names: Sequence[str], *, every_row: bool = False) -> Any:
        """Read columns, with text as sorted categories, which take a few bytes per row.

        Parameters
        ----------
        names : sequence of str
            Names of the columns.
        every_row : bool, default=False
            Whether to read the rows of other splits as well.

        Returns
        -------
        pandas.DataFrame
            One column per name.

        Raises
        ------
        InputError
            If a column is missing from a shard, or holds lists.
        """
        import pandas as pd
        import pyarrow as pa
        import pyarrow.parquet as pq

        names = check_list(names, "names", "names of columns")
        for name in names:
            check_name("column", name, self.columns)
        names, every_row = list(dict.fromkeys(names)), check_flag(every_row, "every_row")
        with self._reading(*self.files):
            schema = pq.read_schema(self.files[0])
            for name in names:
                if pa.types.is_nested(schema.field(name).type):
                    raise InputError(
                        f"{str(self.path)!r}: the column {name!r} has type {schema.field(name).type}: one value per row"
                    )
            for file in self.files[1:]:
                self._check_columns(names, file)
            text = [name for name in names if pa.types.is_string(schema.field(name).type)]
            check_parquet(self.files, names, Path(self.path))
            table = pq.read_table(self.files, columns=names, read_dictionary=text)
            table.validate(full=True)
            frame: pd.DataFrame = table.to_pandas(ignore_metadata=True)
        for name in text:
            frame[name] = frame[name].cat.reorder_categories(sorted(frame[name].cat.categories))
        return frame if every_row or self.kept is None else frame[self.kept]

    def blocks(self, block_rows: int, rank: int = 0, size: int = 1) -> Iterator[tuple[int, Any]]:
        """Read the features of the rows, in order, one block at a time.

        Parameters
        ----------
        block_rows : int
            Largest number of rows in a block.
        rank, size : int, default=0, 1
            Read only the share of process ``rank`` of ``size`` processes; together the shares cover all rows.

        Yields
        ------
        start : int
            Number of the block's first row.
        features : array (b, p)
            The block.
        """
        check_count(block_rows, "block_rows")
        size = check_count(size, "size")
        if check_whole(rank, "rank") >= size:
            raise InputError(f"rank is {rank} and size {size}: pass a rank below the number of processes")
        start = 0  # position among the rows of the split
        stored = 0  # position among all rows
        for number, (file, group, count) in enumerate(self._row_groups()):
            if number % size == rank:
                begin, first = stored, start
                for features in self._batches(block_rows, file, group):
                    if features.shape[1] != self.n_features:
                        raise InputError(
                            f"{str(file)!r}: the lists in column 'features' have {features.shape[1]} numbers, those "
                            f"before {self.n_features}: all lists must have one length"
                        )
                    end = begin + len(features)
                    own = features if self.kept is None else features[self.kept[begin:end]]
                    if len(own):
                        yield first, own
                    begin, first = end, first + len(own)
            own_count = count if self.kept is None else int(np.count_nonzero(self.kept[stored : stored + count]))
            start, stored = start + own_count, stored + count

    def _row_groups(self) -> Iterator[tuple[Path, int, int]]:
        """Yield the file, the number and the row count of every row group."""
        import pyarrow.parquet as pq

        for file in self.files:
            with self._reading(file):
                about = pq.read_metadata(file)
                counts = [about.row_group(group).num_rows for group in range(about.num_row_groups)]
            for group, count in enumerate(counts):
                yield file, group, count

    def _batches(self, block_rows: int, file: Path, group: int) -> Iterator[Any]:
        """Yield features (b, p) of all stored rows of a row group."""
        import pyarrow.parquet as pq

        with self._reading(file), pq.ParquetFile(file) as source:
            names = source.schema_arrow.names
            if "features" not in names:
                raise InputError(
                    f"{str(file)!r} has no column 'features' (its columns are {listing(names)}): a store has a list of "
                    "numbers there, as pandas writes it from frame.assign(features=list(X))"
                )
            for batch in source.iter_batches(block_rows, row_groups=[group], columns=["features"]):
                yield list_matrix(batch.column(0), file)

    def _check_columns(self, names: Sequence[str], file: Path) -> None:
        """Check that a shard has the named columns, which the first shard has."""
        import pyarrow.parquet as pq

        known = pq.read_schema(file).names
        absent = [name for name in names if name not in known]
        if absent:
            raise InputError(
                f"{str(file)!r} has no column {listing(absent)}, and {self.files[0].name!r} has: all shards need the "
                "same columns"
            )


def _state(file: Path) -> tuple[int, ...]:
    """Return inode, size and time of change of a file; empty if it is gone."""
    try:
        about = file.stat()
    except FileNotFoundError:
        return ()
    return about.st_ino, about.st_size, about.st_mtime_ns
