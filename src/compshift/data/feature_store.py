"""Read features and labels from Parquet files one block at a time, for data larger than memory."""

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
"""Value of ``split`` that selects the rows of every split."""


@dataclass(frozen=True)
class FeatureStore:
    """A Parquet file or a folder of shards with a list column ``features``, as written by ``compshift features``.

    ``CRMClassifier().fit(FeatureStore("birds.features", "train"), "bird", attributes=["place"])`` fits a model to more
    rows than fit in memory: labels are passed as column names instead of arrays. The files must not change while the
    store is in use.

    Parameters
    ----------
    path : str or path
        A .parquet file, or a folder of .parquet files.
    split : str, optional
        Split to read, a value of the column ``split``; ``"all"`` reads every split. None also reads all rows, but
        fitting warns if there is a column ``split``.
    memory : int, default=2**30
        Memory in bytes that blocks of features may take while a model is fitted.

    Raises
    ------
    InputError
        If ``path`` does not exist, or ``memory`` is not an integer ≥ 1.

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
            raise InputError(
                f"there is no file or folder {str(self.path)!r}: pass a .parquet file or a folder of .parquet files"
            )

    @cached_property
    def files(self) -> list[Path]:
        """Paths of the Parquet files, in order."""
        return list(self._states)

    @cached_property
    def _states(self) -> dict[Path, tuple[int, ...]]:
        """Paths of the Parquet files, each with its ``_state`` when the store first read it."""
        with reading(self.path):
            found = {file: _state(file) for file in shard_files(Path(self.path))}
            check_parquet(list(found), ["features"], Path(self.path))
        return found

    @contextmanager
    def _reading(self, *files: Path) -> Iterator[None]:
        """Check on entry and on exit that the files did not change since the store first read them."""
        expected = self._states

        def check() -> None:
            for file in files:
                if _state(file) != expected[file]:
                    raise InputError(
                        f"{str(file)!r} changed while it was read: wait until no process writes to it, and start "
                        "again with a new FeatureStore"
                    )

        with reading(files[0] if len(files) == 1 else self.path):
            check()
            try:
                yield
            finally:
                check()  # also if reading failed: the change explains the failure

    @cached_property
    def columns(self) -> list[str]:
        """Names of all columns."""
        import pyarrow.parquet as pq

        with self._reading(self.files[0]):
            return list(pq.read_schema(self.files[0]).names)

    @cached_property
    def n_features(self) -> int:
        """Number of features per row."""
        for file, group, _ in self._row_groups():
            for features in self._batches(1, file, group):
                if not features.shape[1]:
                    raise InputError(
                        f"{str(file)!r}: the lists in column 'features' are empty: each must contain numbers"
                    )
                return int(features.shape[1])
        raise InputError(f"{str(self.path)!r} has no rows: at least one is needed")

    @cached_property
    def n_rows(self) -> int:
        """Number of rows of the selected split."""
        import pyarrow.parquet as pq

        if self.kept is not None:
            return int(np.count_nonzero(self.kept))
        with self._reading(*self.files):
            return sum(pq.read_metadata(file).num_rows for file in self.files)

    @cached_property
    def kept(self) -> BoolArray | None:
        """Mask of the stored rows that belong to the selected split; None if all rows are selected."""
        if self.split is None or (isinstance(self.split, str) and self.split == ALL):
            return None
        if not isinstance(self.split, str | int):
            raise InputError(f"split is {an(type(self.split).__name__)}: pass the name of a split, for example 'train'")
        values = self.frame(["split"], every_row=True)["split"]
        mask = np.asarray(values == self.split)
        if not mask.any():
            known = sorted(map(str, values.unique()))
            raise InputError(f"{str(self.path)!r} has no rows of the split {self.split!r}: use one of {listing(known)}")
        return mask

    def frame(self, names: Sequence[str], *, every_row: bool = False) -> Any:
        """Read columns; text is returned as sorted categories, to save memory.

        Parameters
        ----------
        names : sequence of str
            Names of the columns.
        every_row : bool, default=False
            Whether to read the rows of all splits.

        Returns
        -------
        pandas.DataFrame
            One column per name.

        Raises
        ------
        InputError
            If a column is missing from a shard or contains lists.
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
                        f"{str(self.path)!r}: the column {name!r} has type {schema.field(name).type}: it needs one "
                        "value per row"
                    )
            for file in self.files[1:]:
                self._check_columns(names, file)
            text = [name for name in names if pa.types.is_string(schema.field(name).type)]
            check_parquet(self.files, names, Path(self.path))
            table = pq.read_table(self.files, columns=names, read_dictionary=text, page_checksum_verification=True)
            table.validate(full=True)
            frame: pd.DataFrame = table.to_pandas(ignore_metadata=True)
        for name in text:
            frame[name] = frame[name].cat.reorder_categories(sorted(frame[name].cat.categories))
        return frame if every_row or self.kept is None else frame[self.kept]

    def blocks(self, block_rows: int, rank: int = 0, size: int = 1) -> Iterator[tuple[int, Any]]:
        """Read the features one block at a time, in row order.

        Parameters
        ----------
        block_rows : int
            Maximum number of rows in a block.
        rank, size : int, default=0, 1
            Number of this process and number of processes. Each of the processes 0 to ``size`` − 1 reads different
            rows; together they read all rows.

        Yields
        ------
        start : int
            Row number of the block's first row, counted among the rows of the selected split.
        features : array (b, p)
            Features of the block.
        """
        check_count(block_rows, "block_rows")
        size = check_count(size, "size")
        if check_whole(rank, "rank") >= size:
            raise InputError(f"rank is {rank} but size is {size}: pass a rank below size, the number of processes")
        start = 0  # position among the rows of the selected split
        stored = 0  # position among all stored rows
        for number, (file, group, count) in enumerate(self._row_groups()):
            if number % size == rank:
                begin, first = stored, start
                for features in self._batches(block_rows, file, group):
                    if features.shape[1] != self.n_features:
                        raise InputError(
                            f"{str(file)!r}: the lists in column 'features' have {features.shape[1]} numbers but "
                            f"earlier lists have {self.n_features}: all lists must have the same length"
                        )
                    end = begin + len(features)
                    selected = features if self.kept is None else features[self.kept[begin:end]]
                    if len(selected):
                        yield first, selected
                    begin, first = end, first + len(selected)
            n_selected = count if self.kept is None else int(np.count_nonzero(self.kept[stored : stored + count]))
            start, stored = start + n_selected, stored + count

    def _row_groups(self) -> Iterator[tuple[Path, int, int]]:
        """Yield the file, the number within the file and the row count of every row group."""
        import pyarrow.parquet as pq

        for file in self.files:
            with self._reading(file):
                metadata = pq.read_metadata(file)
                counts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
            for group, count in enumerate(counts):
                yield file, group, count

    def _batches(self, block_rows: int, file: Path, group: int) -> Iterator[Any]:
        """Yield the features (b, p) of all stored rows of one row group, in batches."""
        import pyarrow.parquet as pq

        with self._reading(file), pq.ParquetFile(file, page_checksum_verification=True) as source:
            names = source.schema_arrow.names
            if "features" not in names:
                raise InputError(
                    f"{str(file)!r} has no column 'features' (its columns are {listing(names)}): write lists of "
                    "numbers to it, for example with pandas' frame.assign(features=list(X))"
                )
            for batch in source.iter_batches(block_rows, row_groups=[group], columns=["features"]):
                yield list_matrix(batch.column(0), file)

    def _check_columns(self, names: Sequence[str], file: Path) -> None:
        """Check that a shard has the named columns, which the first shard is known to have."""
        import pyarrow.parquet as pq

        known = pq.read_schema(file).names
        absent = [name for name in names if name not in known]
        if absent:
            raise InputError(
                f"{str(file)!r} has no column {listing(absent)} but {self.files[0].name!r} does: all shards need the "
                "same columns"
            )


def _state(file: Path) -> tuple[int, ...]:
    """Return the inode, size and modification time of a file; empty if the file does not exist."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns
