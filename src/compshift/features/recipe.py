"""How the columns of a user's table become features: numbers as they are, images and texts through a backbone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compshift._errors import InputError
from compshift.core.arrays import IntArray
from compshift.data.dataset import GroupedDataset
from compshift.data.feature_files import read_features
from compshift.data.samples import Samples
from compshift.data.table import load_samples, load_table

if TYPE_CHECKING:
    from compshift.features.embedder import Embedder
    from compshift.features.extract import Extraction

KEYWORDS = {"features": "features", "images": "path", "text": "text"}
"""Kind of samples → keyword of ``load_table`` that names their columns."""


@dataclass(frozen=True)
class Recipe:
    """Columns and backbone. A fitted model keeps it, so that it can predict from a table of the same kind."""

    kind: str  # "features", "images" or "text"
    columns: tuple[str, ...]
    backbone: str = ""
    pooling: str = "auto"
    max_length: int | None = None
    weights: str = ""  # digest of the backbone's weights, once it was used

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Recipe:
        """What ``to_dict`` gave."""
        return cls(**{**content, "columns": tuple(content["columns"])})

    def load_table(self, table: Any, **options: Any) -> GroupedDataset:
        """A labelled table with this recipe's columns as samples."""
        return load_table(table, **self._columns(), **options)

    def load_samples(self, table: Any, root: str | PathLike[str] | None = None) -> Samples:
        """The samples of a table that may lack labels."""
        return load_samples(table, **self._columns(), root=root)

    def embedder(self, **options: Any) -> Embedder:
        """The backbone, ready to embed; one with other weights than before is refused."""
        if self.kind == "features":
            raise InputError("columns of numbers need no backbone")
        try:
            from compshift.features.embedder import Embedder
        except ModuleNotFoundError as error:
            raise InputError(f"images and texts need {error.name}: install compshift[torch]") from None
        from compshift.nn.backbones import load_backbone

        backbone = load_backbone(self.backbone, self.kind, pooling=self.pooling, max_length=self.max_length)
        if self.weights and backbone.fingerprint() != self.weights:
            raise InputError(
                f"the backbone {self.backbone!r} has other weights than the one that the model was fitted with: "
                "install or name that one"
            )
        return Embedder(backbone, **options)

    def embed(
        self,
        samples: Samples,
        *,
        skip_broken: bool = False,
        progress: Callable[[int], None] = lambda _: None,
        **options: Any,
    ) -> tuple[Any, IntArray, list[str]]:
        """Features (n, p) of the samples, the rows that have them, and a sentence for every one that has not."""
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
        progress: Callable[[int], None] = lambda _: None,
        **options: Any,
    ) -> tuple[GroupedDataset, Recipe, Extraction]:
        """The data set with features in place of images or texts, computed once and kept in ``folder``."""
        from compshift.features.extract import extract_features

        embedder = self.embedder(**options)
        found = extract_features(data, embedder, folder, skip_broken=skip_broken, progress=progress)
        features = replace(read_features(folder, data.space.names), targets=data.targets)
        return features, replace(self, weights=embedder.backbone.fingerprint()), found

    def _columns(self) -> dict[str, Any]:
        columns = self.columns[0] if self.kind == "images" else list(self.columns)
        return {KEYWORDS[self.kind]: columns}
