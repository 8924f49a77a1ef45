"""Audit a table: count its groups, find unseen groups inside and outside the affine hull, plan what to collect."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from compshift._errors import InputError, listing
from compshift._files import ending
from compshift.core.arrays import BoolArray, FloatArray, IntArray
from compshift.core.columns import MAX_VALUES, check_value_count, hardly_repeats
from compshift.core.groups import GroupSpace
from compshift.core.hull import MAX_ENUMERATED, AffineHull, Coverage
from compshift.core.plan import Plan
from compshift.data.feature_files import read_labels
from compshift.data.splits import check_split, split_rows
from compshift.data.table_files import read_table
from compshift.data.text_tables import find_missing_words

SMALL_GROUP = 30
"""Number of rows below which a group is listed as small."""


@dataclass(frozen=True, eq=False)
class GroupCounts:
    """Number of rows of every group that occurs in a table."""

    space: GroupSpace
    groups: IntArray  # (k, m)
    count: FloatArray  # (k,) number of rows, or the sum of the count column
    n_rows: float  # total of ``count``
    n_dropped: float  # number of rows (or sum of counts) left out because an attribute is missing
    missing: dict[str, float]  # attribute → number of rows (or sum of counts) in which it is missing
    missing_words: Sequence[str] = ()  # words in the table that were read as missing values, for example NA


def read_group_counts(
    path: str | PathLike[str],
    attributes: Sequence[str],
    *,
    count: str | None = None,
    max_values: int | None = None,
    split: str | None = None,
) -> GroupCounts:
    """Count the rows of each group in a table: a table file, a folder of Parquet shards, or an ``.npz`` file.

    If ``count`` names a column, its entries are summed instead of counting rows. If ``split`` is given, only rows of
    that split are counted. Rows in which an attribute is missing are left out, and their number is reported. An
    attribute with more than ``max_values`` values (default: ``MAX_VALUES``) raises an InputError. If ``max_values`` is
    not given, an attribute that looks continuous raises an InputError too.
    """
    source = Path(path)
    split = None if split == "all" else split
    if ending(source) == ".npz" and source.exists():
        if count is not None:
            raise InputError(
                "count cannot be used with an .npz file: leave it out, or pass a .csv, .xlsx, .jsonl or .parquet file"
            )
        space, codes = read_labels(source, attributes, split)
        groups, position = space.distinct(codes)
        counts = np.bincount(position).astype(np.float64)
        return _check_value_counts(GroupCounts(space, groups, counts, float(len(codes)), 0, {}), max_values)
    return _check_value_counts(_count_table(source, list(attributes), count, split), max_values)


def _count_table(source: Path, attributes: list[str], count: str | None, split: str | None) -> GroupCounts:
    """Count the rows of each group in a table that is not an ``.npz`` file; see ``read_group_counts``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = [*attributes, *([count] if count is not None else [])]
    if len(set(wanted)) < len(wanted):
        raise InputError(f"a column is named twice in {listing(wanted)}: name each column once")
    table = read_table(source, [*wanted, *(["split"] if split is not None else [])], labels=attributes)
    if split is not None:
        codes = check_split(np.asarray(table.column("split").to_pylist()), len(table))
        table = table.select(wanted).filter(pa.array(split_rows(codes, split)))
    is_missing = {name: pc.is_null(table.column(name), nan_is_null=True).to_numpy() for name in attributes}
    drop = np.logical_or.reduce(list(is_missing.values()))
    if drop.all():
        raise InputError(
            f"every row of {str(source)!r} has a missing attribute: fill in the values, or leave out an attribute"
        )
    sizes = np.ones(len(table)) if count is None else _read_counts(table.column(count), count, drop)
    dropped = float(sizes[drop].sum())
    missing = {name: float(sizes[flags].sum()) for name, flags in is_missing.items() if flags.any()}
    table = table.filter(pa.array(~drop))
    if count is None:
        grouped = table.group_by(attributes).aggregate([([], "count_all")])
        totals = grouped.column("count_all").to_numpy().astype(np.float64)
    else:
        table = table.set_column(table.column_names.index(count), count, pa.array(sizes[~drop]))  # float64
        grouped = table.group_by(attributes).aggregate([(count, "sum")])
        totals = np.asarray(grouped.column(f"{count}_sum").to_numpy(zero_copy_only=False), dtype=np.float64)
        if not np.isfinite(totals).all():
            raise InputError(f"the count column {count!r} is too large to add up: divide it by its mean first")
        if not totals.any():
            raise InputError(f"the count column {count!r} contains only zeros: name a column with positive counts")
    seen = totals > 0
    rows = {name: np.asarray(grouped.column(name).to_pylist(), dtype=object) for name in attributes}
    space = GroupSpace.from_table(rows)
    codes = space.encode(rows)[seen]
    groups, position = space.distinct(codes)
    counts = np.bincount(position, weights=totals[seen]).astype(np.float64)
    words = find_missing_words(source, list(missing)) if missing else []
    return GroupCounts(space, groups, counts, float(counts.sum()), dropped, missing, words)


def _read_counts(column: Any, name: str, drop: BoolArray) -> FloatArray:
    """Return the entries of the count column as floats, and 0 for a missing entry in a row that is dropped."""
    import pyarrow as pa

    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise InputError(f"the count column {name!r} has type {column.type}: it must contain numbers")
    entries = column.to_numpy().astype(np.float64)
    entries = np.where(drop & np.isnan(entries), 0.0, entries)
    wrong = ~(np.isfinite(entries) & (entries >= 0))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            f"the count column {name!r} has missing, infinite or negative entries, the first ({entries[row]:g}) "
            f"at row {row}: counts must be finite numbers ≥ 0"
        )
    return np.asarray(entries)


def _check_value_counts(counts: GroupCounts, max_values: int | None) -> GroupCounts:
    """Check the number of values of every attribute; if ``max_values`` is None, also reject continuous attributes."""
    limit = MAX_VALUES if max_values is None else max_values
    for name, values in zip(counts.space.names, counts.space.values, strict=True):
        check_value_count(name, len(values), f"raise max_values (now {limit})", limit)
        if max_values is None and hardly_repeats(len(values), counts.n_rows):
            found = f"attribute {name!r} has {len(values)} different values in {counts.n_rows:g} rows"
            if any(isinstance(value, float) and not value.is_integer() for value in values):
                raise InputError(
                    f"{found}: it looks continuous; bin it, leave it out, or pass max_values={len(values)} if its "
                    "values are categories"
                )
            warnings.warn(f"{found}: if it is an identifier, leave it out", stacklevel=4)
    return counts


@dataclass(frozen=True, eq=False)
class Audit:
    """Result of an audit: counts of the seen groups, their affine hull, and a plan of groups to collect."""

    counts: GroupCounts
    hull: AffineHull
    coverage: Coverage
    plan: Plan

    @property
    def space(self) -> GroupSpace:
        """Attributes of the table and their values."""
        return self.counts.space

    @property
    def extrapolable(self) -> IntArray | None:
        """Codes of the unseen groups inside the affine hull; None if there are too many groups to list."""
        return self.hull.missing(inside=True) if self.space.n_groups <= MAX_ENUMERATED else None

    @property
    def out_of_reach(self) -> IntArray | None:
        """Codes of the unseen groups outside the affine hull; None if there are too many groups to list."""
        return self.hull.missing(inside=False) if self.space.n_groups <= MAX_ENUMERATED else None

    @property
    def small(self) -> IntArray:
        """Positions in ``counts.groups`` of the groups with fewer than ``SMALL_GROUP`` rows, smallest first."""
        order = np.argsort(self.counts.count, kind="stable")
        return order[self.counts.count[order] < SMALL_GROUP]

    def to_dict(self) -> dict[str, Any]:
        """Return the audit as JSON values; the lists of unseen groups are None if there are too many groups."""
        decode = self.space.decode
        inside, outside = self.extrapolable, self.out_of_reach
        seen = [
            {"group": group, "count": float(count)}
            for group, count in zip(decode(self.counts.groups).tolist(), self.counts.count, strict=True)
        ]
        return {
            "attributes": {
                name: list(values) for name, values in zip(self.space.names, self.space.values, strict=True)
            },
            "rows": self.counts.n_rows,
            "rows_left_out": self.counts.n_dropped,
            "missing_values": self.counts.missing,
            "groups": self.space.n_groups,
            "rank": self.hull.rank,
            "full_rank": self.hull.full_rank,
            "complete": self.hull.is_complete,
            "coverage": float(self.coverage),
            "coverage_method": self.coverage.method,
            "coverage_interval": [self.coverage.lower, self.coverage.upper],
            "seen": seen,
            "extrapolable": None if inside is None else decode(inside).tolist(),
            "out_of_reach": None if outside is None else decode(outside).tolist(),
            "small": decode(self.counts.groups[self.small]).tolist(),
            "plan": decode(np.asarray(self.plan)).tolist(),
        }


def audit_groups(counts: GroupCounts) -> Audit:
    """Compute the affine hull, its coverage, and a plan of groups to collect that completes the hull."""
    hull = AffineHull(counts.space, counts.groups)
    return Audit(counts, hull, hull.coverage(), hull.plan())
