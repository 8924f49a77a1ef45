"""``Recipe``: how columns of a table become features, by a backbone if they hold images or texts."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compshift._checks import check_count
from compshift._errors import InputError, check_name, shown
from compshift.core.arrays import IntArray
from compshift.data.dataset import GroupedDataset, Samples
from compshift.data.feature_files import read_features
from compshift.data.splits import stratified_split
from compshift.data.table import load_samples, load_table

if TYPE_CHECKING:
    from compshift.features.embedder import Embedder
    from compshift.features.extract import Extraction

KEYWORDS = {"features": "features", "images": "path", "text": "text"}
"""Kind of samples → parameter of ``load_table`` that names their columns."""

MOST_COLUMNS = {"images": 1, "text": 2}
"""Largest number of columns of each kind; features may have any number."""


@dataclass(frozen=True)
class Recipe:
    """Columns and backbone from which features are made; stored with a fitted model, so that it can predict tables."""

    kind: str  # "features", "images" or "text"
    columns: tuple[str, ...]
    backbone: str = ""
    pooling: str = "auto"
    max_length: int | None = None
    dtype: str = "auto"
    network: str = ""  # digest of the backbone's weights and settings, once it has been used
    split: Mapping[str, Any] | None = None  # how the table was split: a column, or shares, seed and a label digest

    def to_dict(self) -> dict[str, Any]:
        """Fields as values that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Recipe:
        """Recipe from ``to_dict``'s result, which is checked because it comes from a file."""
        try:
            recipe = cls(**{**content, "columns": tuple(content["columns"])})
            recipe._check()
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"the model does not say how its features were made ({error}): fit it again, or save it without inputs"
            ) from None
        return recipe

    def _check(self) -> None:
        """Check the types of all fields."""
        check_name("the kind", self.kind, tuple(KEYWORDS))
        if not all(isinstance(name, str) for name in self.columns) or len(set(self.columns)) < len(self.columns):
            raise InputError(f"columns is {shown(list(self.columns))}")
        most = MOST_COLUMNS.get(self.kind, len(self.columns))
        if not 1 <= len(self.columns) <= most:
            raise InputError(f"it names {len(self.columns)} columns of {self.kind}")
        for name in ("backbone", "pooling", "dtype", "network"):
            if not isinstance(getattr(self, name), str):
                raise InputError(f"{name} is {shown(getattr(self, name))}")
        if self.max_length is not None:
            check_count(self.max_length, "max_length")
        if self.split is not None and not _is_split(self.split):
            raise InputError(f"split is {shown(self.split)}")

    def load_table(self, table: Any, **options: Any) -> GroupedDataset:
        """Read a labelled table with the recipe's columns as samples."""
        return load_table(table, **self._columns(), **options)

    def load_again(self, table: Any, **options: Any) -> GroupedDataset:
        """Read a labelled table, and split it as the table that the model was fitted to.

        A split column is used if the table has it. A random split is drawn again only if the labels are the same.
        """
        split = self.split or {}
        if "column" in split:
            with contextlib.suppress(InputError):
                return self.load_table(table, **options, split=split["column"])
        data = self.load_table(table, **options)
        if "shares" in split and data.split is None and _label_digest(data) == split["labels"]:
            return replace(data, split=stratified_split(data.space, data.codes, split["shares"], split["seed"]))
        return data

    def with_split(self, data: GroupedDataset, split: str | Mapping[str, float] | None, seed: int) -> Recipe:
        """Copy of the recipe that records how the table was split."""
        if isinstance(split, str):
            return replace(self, split={"column": split})
        if split is None:
            return self
        return replace(self, split={"shares": dict(split), "seed": seed, "labels": _label_digest(data)})

    def load_samples(self, table: Any, root: str | PathLike[str] | None = None) -> Samples:
        """Read the samples of a table, which needs no labels."""
        return load_samples(table, **self._columns(), root=root)

    def embedder(self, **options: Any) -> Embedder:
        """Load the backbone into an ``Embedder``; raise if its weights differ from those the model was fitted with."""
        if self.kind == "features":
            raise InputError("columns of numbers need no backbone")
        try:
            from compshift.features.embedder import Embedder
        except ModuleNotFoundError as error:
            raise InputError(f"images and texts need {error.name}: install compshift[torch]") from None
        from compshift.features.extract import network_key
        from compshift.nn.backbones import load_backbone

        backbone = load_backbone(self.backbone, self.kind, pooling=self.pooling, max_length=self.max_length)
        embedder = Embedder(backbone, dtype=self.dtype, **options)
        if self.network and network_key(embedder.about()) != self.network:
            raise InputError(
                f"the backbone {self.backbone!r} has other weights or settings than the one that the model was fitted "
                "with: install or name that one"
            )
        return embedder

    def embed(
        self,
        samples: Samples,
        *,
        skip_broken: bool = False,
        progress: Callable[[int], None] = lambda _: None,
        **options: Any,
    ) -> tuple[Any, IntArray, list[str]]:
        """Features (n, p) of the samples, their rows, and one sentence for every sample that was left out."""
        rows = np.arange(len(samples))
        if self.kind == "features":
            return samples, rows, []
        (result,) = self.embedder(**options).embed(samples, [rows], skip_broken=skip_broken, progress=progress)
        if not len(result.rows):
            raise InputError(f"not one of the {len(rows)} samples could be read; the first: {result.broken[0]}")
        return result.features, result.rows, result.broken

    def cached(
        self,
        data: GroupedDataset,
        folder: Path,
        *,
        skip_broken: bool = False,
        overwrite: bool = False,
        progress: Callable[[int], None] = lambda _: None,
        **options: Any,
    ) -> tuple[GroupedDataset, Recipe, Extraction]:
        """Replace images or texts by features, which are computed once and stored in ``folder``."""
        embedder = self.embedder(**options)
        from compshift.features.extract import extract_features, network_key

        found = extract_features(
            data, embedder, folder, skip_broken=skip_broken, overwrite=overwrite, progress=progress
        )
        features = replace(read_features(folder, data.space.names), targets=data.targets)
        about = embedder.about()
        return features, replace(self, network=network_key(about), dtype=about["dtype"]), found

    def _columns(self) -> dict[str, Any]:
        """Keyword arguments of ``load_table`` that name the columns."""
        columns = self.columns[0] if self.kind == "images" else list(self.columns)
        return {KEYWORDS[self.kind]: columns}


def _is_split(split: Any) -> bool:
    """Whether a value has the form that ``with_split`` records."""
    if not isinstance(split, Mapping):
        return False
    if set(split) == {"column"}:
        return isinstance(split["column"], str)
    return (
        set(split) == {"shares", "seed", "labels"}
        and isinstance(split["shares"], Mapping)
        and type(split["seed"]) is int
        and split["seed"] >= 0
        and isinstance(split["labels"], str)
    )


def _label_digest(data: GroupedDataset) -> str:
    """Digest of all labels, which shows whether a table is the one that was split."""
    digest = hashlib.sha256(repr((data.space.names, data.space.values)).encode())
    digest.update(np.ascontiguousarray(data.codes).tobytes())
    return digest.hexdigest()
