"""Features from the columns of a raw table: numbers, booleans, dates, categories and texts, with missing values.

``TableColumns.fit`` determines the kind of each column from training rows, and ``transform`` makes features (n, p) of
any table with the same columns:

===========  =====================================================  ====================================================
column       features for boosted energies                          features for linear energies
===========  =====================================================  ====================================================
number       the number; NaN if it is missing                       standardised; the median if it is missing
boolean      1 or 0; NaN if it is missing                           as a number
date         year, month, day of the week, days since 1970          each of them as a number
category     the number of its level; NaN if it is missing or new   1 for its level and 0 for the others; rare and new
                                                                    levels share one feature
text         components of TF-IDF; 0 if it is missing               each of them as a number
text, with   outputs of the backbone; NaN if it is missing          each of them as a number
a backbone
===========  =====================================================  ====================================================

A column of text is a "category", unless its values differ in most rows. Then it is a "text" if it looks like language
(see ``features/text_columns.py``), and is left out otherwise, as ids, names and urls are.

A model file contains the columns as plain JSON, which ``from_dict`` checks because it is not trusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from compshift._checks import MAX_FEATURE
from compshift._errors import InputError, check_name, shown
from compshift.core.arrays import FloatArray
from compshift.crm.linear_columns import MAX_LEVELS, number_statistics
from compshift.crm.mixed_features import MAX_CATEGORIES
from compshift.data.raw_tables import as_booleans, as_numbers, as_text, as_times, column_kind
from compshift.features.text_columns import TextComponents, TextEmbedding, is_language, text_from_dict

TABLE_ENERGIES = ("linear", "boosted")
"""Kinds of energies that features are made for."""

DATE_PARTS = ("year", "month", "day of the week", "days since 1970")
"""Names of the numbers that a date becomes."""

PARTS = {"number": 1, "boolean": 1, "date": len(DATE_PARTS), "category": 0, "text": 0}
"""How many numbers a value becomes, by kind; for a text it is its ``n_components`` instead."""

NEAR_UNIQUE = 0.5
"""Maximum number of distinct values of a column of categories, as a share of its rows; named columns may have more."""

TOO_MANY_VALUES = "text that differs in most rows"
"""Reason why a column of text that is not language does not become features."""


@dataclass(frozen=True)
class TableColumn:
    """How one column of a table becomes features.

    For linear energies, ``median``, ``mean`` and ``scale`` have one entry for each number that a value becomes; for
    boosted energies they are empty.
    """

    name: str
    kind: str  # one of PARTS
    levels: tuple[str, ...] = ()  # levels of a category, the most frequent first
    rare: bool = False  # whether training rows have further levels, which share a feature
    median: tuple[float, ...] = ()
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    text: TextComponents | TextEmbedding | None = None  # for a column of the kind "text"
    missing: str = ""  # level that a missing value of a category counts as, if any

    @classmethod
    def fit(cls, name: str, kind: str, column: Any, *, linear: bool) -> TableColumn:
        """Determine the levels, or the statistics, of a column from its training values."""
        if kind == "category":
            import pandas as pd

            counts = pd.Series(as_text(column)).value_counts()
            levels = sorted(counts.index, key=lambda level: (-counts[level], level))
            if len(levels) > MAX_CATEGORIES and not linear:
                raise InputError(
                    f"the column {name!r} has {len(levels)} categories, but at most {MAX_CATEGORIES} are accepted: "
                    "leave it out, or group its values"
                )
            limit = MAX_LEVELS if linear else MAX_CATEGORIES
            return cls(name, kind, tuple(levels[:limit]), rare=len(levels) > limit)
        embedded = kind == "text" and isinstance(column, np.ndarray)
        text = TextEmbedding(column.shape[1]) if embedded else TextComponents.fit(column) if kind == "text" else None
        found = cls(name, kind, text=text)
        if not linear:
            return found
        parts = found._parts(column).T
        median, mean, scale = zip(*(number_statistics(part[~np.isnan(part)]) for part in parts), strict=True)
        return replace(found, median=median, mean=mean, scale=scale)

    def transform(self, column: Any, *, linear: bool) -> FloatArray:
        """Return the features (n, q) of a column (n,)."""
        if self.kind == "category":
            return self._one_hot(column) if linear else self._codes(column)[:, None]
        parts = self._parts(column)
        if not linear:
            return parts
        filled = np.where(np.isnan(parts), self.median, parts)
        return np.asarray((filled - self.mean) / self.scale)

    def _parts(self, column: Any) -> FloatArray:
        """Return the numbers (n, parts) that the values of a column other than a category become; NaN if missing."""
        if self.text is not None:
            return self.text.transform(column)
        if self.kind == "number":
            return as_numbers(column, self.name)[:, None]
        if self.kind == "boolean":
            return as_booleans(column, self.name)[:, None]
        times = as_times(column, self.name)
        parts = (times.dt.year, times.dt.month, times.dt.day_of_week)
        since = times.to_numpy(dtype="datetime64[us]")  # nanoseconds cannot hold years such as 9999
        days = np.where(np.isnat(since), np.nan, since.astype(np.int64) / 86_400e6)
        return np.column_stack([*(part.to_numpy(dtype=np.float64, na_value=np.nan) for part in parts), days])

    @property
    def _n_parts(self) -> int:
        """How many numbers a value of this column becomes."""
        return PARTS[self.kind] if self.text is None else self.text.n_components

    def _codes(self, column: Any) -> FloatArray:
        """Return the position of each value among the levels, (n,); NaN if the value is missing or not a level."""
        number: dict[str | None, float] = {level: float(index) for index, level in enumerate(self.levels)}
        number[None] = number.get(self.missing, np.nan)  # ``as_text`` returns None for a missing value
        return np.array([number.get(text, np.nan) for text in as_text(column, self.levels)])

    def _one_hot(self, column: Any) -> FloatArray:
        """Return a feature per level and, if there are rare levels, one for all others; all 0 for a missing value."""
        import pandas as pd

        codes = self._codes(column)
        features = np.asarray(codes[:, None] == np.arange(len(self.levels)), dtype=np.float64)  # (n, levels)
        if not self.rare:
            return features
        other = np.isnan(codes) & pd.notna(column).to_numpy()
        return np.asarray(np.column_stack([features, other]))

    def feature_names(self, *, linear: bool) -> list[str]:
        """Return the names of the features that the column becomes."""
        if self.kind == "date":
            return [f"{self.name} ({part})" for part in DATE_PARTS]
        if self.kind == "text":
            return [f"{self.name} (text {number})" for number in range(1, self._n_parts + 1)]
        if self.kind == "category" and linear:
            return [
                *(f"{self.name}={level}" for level in self.levels),
                *([f"{self.name} (other)"] if self.rare else []),
            ]
        return [self.name]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that are set, as JSON values."""
        fields = asdict(replace(self, text=None)) | {"text": None if self.text is None else self.text.to_dict()}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in fields.items() if value}

    @classmethod
    def from_dict(cls, content: Any, *, linear: bool) -> TableColumn:
        """Check a result of ``to_dict``, and return its column."""
        if not isinstance(content, Mapping):
            raise InputError(f"a column is {shown(content)}, but must be a mapping")
        lists = {key: content[key] for key in ("levels", "median", "mean", "scale") if key in content}
        for key, values in lists.items():
            if not isinstance(values, list | tuple):
                raise InputError(f"{key} is {shown(values)}, but must be a list")
        text = text_from_dict(content["text"]) if "text" in content else None
        column = cls(**{**content, **{key: tuple(values) for key, values in lists.items()}, "text": text})
        column._check(linear=linear)
        return column

    def _check(self, *, linear: bool) -> None:
        """Check the types and values of all fields."""
        if not isinstance(self.name, str):
            raise InputError(f"the name {shown(self.name)} of a column is not text")
        check_name(f"the kind of {self.name!r}", self.kind, tuple(PARTS))
        if not isinstance(self.rare, bool):
            raise InputError(f"rare is {shown(self.rare)}, but must be true or false")
        text = all(isinstance(level, str) for level in self.levels)
        if not text or len(set(self.levels)) < len(self.levels) or len(self.levels) > MAX_CATEGORIES:
            raise InputError(f"the levels of {self.name!r} must be at most {MAX_CATEGORIES} different texts")
        if self.missing and self.missing not in self.levels:
            raise InputError(f"missing values of {self.name!r} count as {shown(self.missing)}, which is not a level")
        if bool(self.levels) != (self.kind == "category"):
            raise InputError(f"{self.name!r} is a {self.kind} with {len(self.levels)} levels")
        if (self.text is not None) != (self.kind == "text"):
            raise InputError(f"{self.name!r} is a {self.kind} {'without' if self.text is None else 'with'} terms")
        n_parts = self._n_parts if linear else 0
        for key in ("median", "mean", "scale"):
            values = getattr(self, key)
            if len(values) != n_parts or not all(
                type(value) in (int, float) and abs(value) <= MAX_FEATURE for value in values
            ):
                raise InputError(f"{key} of {self.name!r} must have {n_parts} finite numbers")
        if not all(value > 0 for value in self.scale):
            raise InputError(f"a scale of {self.name!r} is not positive")


@dataclass(frozen=True)
class TableColumns:
    """How the columns of a table become features for linear or boosted energies."""

    energies: str
    columns: tuple[TableColumn, ...]

    @classmethod
    def fit(
        cls, table: Mapping[str, Any], energies: str, *, typed: bool, chosen: bool = False
    ) -> tuple[TableColumns, dict[str, str]]:
        """Return the columns that become features, and for each other column the reason why it does not.

        A column of text whose values differ in most rows is a "text" if it is language. If it is not, it is left out,
        unless the user has ``chosen`` the columns by name: then it is a category. ``typed`` is False if text may stand
        for numbers or dates, as in a text file. Embeddings (n, k) may stand in place of texts.
        """
        found, left_out = [], {}
        for name, column in table.items():
            kind, reason = ("text", None) if isinstance(column, np.ndarray) else _kind_of(column, typed=typed)
            if reason == TOO_MANY_VALUES and chosen:
                reason = None
            if reason is not None and chosen:
                raise InputError(f"the column {name!r} has {reason}, so it cannot be a feature: leave it out")
            if kind is None or reason is not None:
                left_out[name] = str(reason)
            else:
                found.append(TableColumn.fit(name, kind, column, linear=energies == "linear"))
        return cls(energies, tuple(found)), left_out

    @property
    def embedded(self) -> list[str]:
        """Names of the columns of texts whose features are the outputs of a backbone."""
        return [column.name for column in self.columns if isinstance(column.text, TextEmbedding)]

    @property
    def linear(self) -> bool:
        """Whether the features are for linear energies."""
        return self.energies == "linear"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def feature_names(self) -> list[str]:
        """Names of the features, (p,)."""
        return [name for column in self.columns for name in column.feature_names(linear=self.linear)]

    @property
    def categorical(self) -> list[int]:
        """Indices of the categorical features, whose values are numbers of levels; empty for linear energies."""
        kinds = [column.kind for column in self.columns for _ in column.feature_names(linear=self.linear)]
        return [] if self.linear else [index for index, kind in enumerate(kinds) if kind == "category"]

    def transform(self, table: Mapping[str, Any]) -> FloatArray:
        """Return the features (n, p) of a table that has these columns."""
        return np.column_stack([column.transform(table[column.name], linear=self.linear) for column in self.columns])

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {"energies": self.energies, "columns": [column.to_dict() for column in self.columns]}

    @classmethod
    def from_dict(cls, content: Any) -> TableColumns:
        """Return the columns that ``to_dict`` described. The content is checked, because it comes from a file."""
        if not isinstance(content, Mapping) or set(content) != {"energies", "columns"}:
            raise InputError("table must have energies and columns")
        check_name("energies", content["energies"], TABLE_ENERGIES)
        if not isinstance(content["columns"], list | tuple) or not content["columns"]:
            raise InputError("the columns of table must be a list of one or more")
        linear = content["energies"] == "linear"
        columns = tuple(TableColumn.from_dict(column, linear=linear) for column in content["columns"])
        return cls(content["energies"], columns)


def language_columns(table: Mapping[str, Any], *, typed: bool) -> list[str]:
    """Return the names of the columns of the kind "text"; ``typed`` is as in ``TableColumns.fit``."""
    return [name for name, column in table.items() if _kind_of(column, typed=typed)[0] == "text"]


def _kind_of(column: Any, *, typed: bool) -> tuple[str | None, str | None]:
    """Return the kind of a column, and the reason why it does not become features, if any."""
    kind = column_kind(column, typed=typed)
    if kind is None:
        return None, "no values" if column.isna().all() else "neither numbers, text, booleans nor dates"
    if kind != "category" or not _is_near_unique(column):
        return kind, None
    return ("text", None) if is_language(column) else (kind, TOO_MANY_VALUES)


def _is_near_unique(column: Any) -> bool:
    """Return whether the distinct values are more than ``NEAR_UNIQUE`` of the rows, or than ``MAX_CATEGORIES``."""
    distinct = column.nunique()
    return bool(distinct > max(NEAR_UNIQUE * len(column), 1) or distinct > MAX_CATEGORIES)


def described(columns: TableColumns, limit: int = 8) -> str:
    """Return a description of the columns by kind, such as ``2 numbers (age, income), 1 category (job)``."""
    plural = {"number": "numbers", "boolean": "booleans", "date": "dates", "category": "categories", "text": "texts"}
    parts = []
    for kind, many in plural.items():
        found = [column.name for column in columns.columns if column.kind == kind]
        if found:
            more = f" and {len(found) - limit} more" if len(found) > limit else ""
            parts.append(f"{len(found)} {kind if len(found) == 1 else many} ({', '.join(found[:limit])}{more})")
    return ", ".join(parts)


def left_out_sentence(reasons: Mapping[str, str]) -> str:
    """Return a text that lists the columns that do not become features, grouped by reason."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        by_reason.setdefault(reason, []).append(name)
    return "; ".join(f"{_quoted(found)} ({reason})" for reason, found in by_reason.items())


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names)
