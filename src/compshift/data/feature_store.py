"""Features and labels in Parquet files that are read a block at a time, never whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from compshift._checks import check_count, check_list
from compshift._errors import InputError, check_name, listing
from compshift._files import check_path
from compshift.core.arrays import BoolArray
from compshift.data.table_files import list_matrix, reading, shard_files
from compshift.data.unpacked_size import check_parquet


@dataclass(frozen=True)
class FeatureStore:
    """A Parquet file or folder of shards with a list column ``features``, such as ``compshift features`` writes.

    Parameters
    ----------
    path : str or path
        A .parquet file, or a folder of them.
    split : str, optional
        The rows of one split alone, if there is a column ``split``.

    Examples
    --------
    ``CRMClassifier().fit(FeatureStore("birds.features"), "bird", attributes=["place"])`` fits a model to more rows than
    memory holds: columns are named instead of passed.
    """

    path: str | PathLike[str]
    split: str | None = None

    def __post_init__(self) -> None:
        if not check_path(self.path).exists():
            raise InputError(f"there is no file or folder {str(self.path)!r}: pass a .parquet file or a folder of them")

    @cached_property
    def files(self) -> list[Path]:
        """The files, in order."""
        with reading(self.path):
            found = shard_files(Path(self.path))
            check_parquet(found, ["features"], Path(self.path))
        return found

    @cached_property
    def columns(self) -> list[str]:
        """Names of all columns."""
        import pyarrow.parquet as pq

        with reading(self.path):
            return list(pq.read_schema(self.files[0]).names)

    @cached_property
    def n_features(self) -> int:
        """Length of the feature lists."""
        for _, features in self.blocks(1):
            return int(features.shape[1])
        raise InputError(f"{str(self.path)!r} has no rows: at least one is needed")

    @cached_property
    def n_rows(self) -> int:
        """Rows of the split, or all."""
        import pyarrow.parquet as pq

        if self.kept is not None:
            return int(np.count_nonzero(self.kept))
        with reading(self.path):
            return sum(pq.read_metadata(file).num_rows for file in self.files)

    @cached_property
    def kept(self) -> BoolArray | None:
        """Which of the stored rows are of the split; None if all are."""
        if self.split is None:
            return None
        values = self.frame(["split"], every_row=True)["split"]
        mask = np.asarray(values == self.split)
        if not mask.any():
            known = sorted(map(str, values.unique()))
            raise InputError(f"{str(self.path)!r} has no rows of the split {self.split!r}: it has {listing(known)}")
        return mask

    def frame(self, names: Sequence[str], *, every_row: bool = False) -> Any:
        """Columns of the rows, text as sorted categories, which take a few bytes a row."""
        import pandas as pd
        import pyarrow as pa
        import pyarrow.parquet as pq

        names = list(dict.fromkeys(check_list(names, "names", "names of columns")))
        for name in names:
            check_name("column", name, self.columns)
        with reading(self.path):
            schema = pq.read_schema(self.files[0])
            text = [name for name in names if pa.types.is_string(schema.field(name).type)]
            check_parquet(self.files, names, Path(self.path))
            table = pq.read_table(self.files, columns=names, read_dictionary=text)
            table.validate(full=True)
            frame: pd.DataFrame = table.to_pandas(ignore_metadata=True)
        for name in text:
            frame[name] = frame[name].cat.reorder_categories(sorted(frame[name].cat.categories))
        return frame if every_row or self.kept is None else frame[self.kept]

    def blocks(self, block_rows: int, rank: int = 0, size: int = 1) -> Iterator[tuple[int, Any]]:
        """Features (b, p) of the rows in order, at most ``block_rows`` at a time, and the number of the first of them.

        Of ``size`` processes, that of each ``rank`` gets row groups of its own; together they get all.
        """
        check_count(block_rows, "block_rows")
        start = 0  # among the rows of the split
        stored = 0  # among all
        for number, (file, group, count) in enumerate(self._row_groups()):
            if number % size == rank:
                begin, first = stored, start
                for features in self._batches(block_rows, file, group):
                    end = begin + len(features)
                    own = features if self.kept is None else features[self.kept[begin:end]]
                    if len(own):
                        yield first, own
                    begin, first = end, first + len(own)
            own_count = count if self.kept is None else int(np.count_nonzero(self.kept[stored : stored + count]))
            start, stored = start + own_count, stored + count

    def _row_groups(self) -> Iterator[tuple[Path, int, int]]:
        """File, number and rows of every row group."""
        import pyarrow.parquet as pq

        for file in self.files:
            with reading(self.path):
                about = pq.read_metadata(file)
                counts = [about.row_group(group).num_rows for group in range(about.num_row_groups)]
            for group, count in enumerate(counts):
                yield file, group, count

    def _batches(self, block_rows: int, file: Path, group: int) -> Iterator[Any]:
        """Features (b, p) of all stored rows of a row group."""
        import pyarrow.parquet as pq

        if "features" not in self.columns:
            raise InputError(
                f"{str(self.path)!r} has no column 'features' (its columns are {listing(self.columns)}): a store has a "
                "list of numbers there, as pandas writes it from frame.assign(features=list(X))"
            )
        with reading(self.path), pq.ParquetFile(file) as source:
            for batch in source.iter_batches(block_rows, row_groups=[group], columns=["features"]):
                yield list_matrix(batch.column(0), file)
