"""Load training data as the command-line options describe them, and check the path of a model file.

``TableOptions`` holds the options of all commands that read tables. ``load_source`` loads the data for `train` and
`features`: a named data set, a user's table or a feature file. ``compshift.cli.model_inputs`` loads the rows that a
fitted model predicts.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from compshift._errors import InputError, listing, unknown_name
from compshift._files import check_apart, check_target, ending, is_parquet
from compshift.cli.options import names, read_shares, reject_unused
from compshift.data.benchmarks import MODULES, benchmark
from compshift.data.dataset import DEFAULT_BACKBONES, TFIDF
from compshift.data.feature_files import holds_features
from compshift.data.shards import read_manifest
from compshift.data.splits import SPLITS
from compshift.data.table import SPLIT_COLUMN
from compshift.data.table_files import check_columns, column_names
from compshift.data.typed_tables import TABLE_ENDINGS

if TYPE_CHECKING:
    from compshift.core.groups import GroupSpace
    from compshift.data.dataset import GroupedDataset, RawColumns, Samples
    from compshift.data.images import Geometry
    from compshift.features.recipe import Recipe


Embed = Callable[[Path, Any, "Recipe"], tuple[Any, "Recipe"]]
"""Function that computes the features of a data set by a recipe, or reads them from the folder of a cache."""

EmbedTexts = Callable[["RawColumns", Sequence[str], "Recipe"], tuple["RawColumns", "Recipe"]]
"""Function that puts embeddings in place of texts of a raw table, as ``embedded_texts`` does."""

NON_MODEL_ENDINGS = (
    *(".csv", ".tsv", ".txt", ".xls", ".xlsx", ".parquet", ".pq", ".npz", ".npy", ".json", ".jsonl", ".ndjson"),
    *(".html", ".htm", ".md", ".png", ".jpg", ".jpeg", ".svg", ".pdf", ".py", ".ipynb", ".toml", ".yaml"),
    *(".zip", ".gz", ".pkl", ".joblib", ".pt", ".pth"),
)
"""Endings that are rejected for a model file, because they belong to other kinds of files."""


@dataclass(frozen=True)
class TableOptions:
    """Options that say how to read a table, feature file or named data set; each command sets those that it offers."""

    target: str = ""
    attributes: str = ""
    path: str | None = None  # column of image files
    text: str | None = None  # column of texts, or two columns separated by a comma
    columns: str | None = None  # columns of numbers, separated by commas
    root: Path | None = None  # folder of the download or of the image files
    split_column: str | None = None
    shares: str | None = None  # shares of a random split
    seed: int = 0  # seed of the random split
    backbone: str | None = None
    weights: Path | None = None  # checkpoint file of the backbone
    split: str | None = None  # split whose rows are used
    skip_broken: bool = False  # whether to leave out unreadable samples
    energies: str = "linear"  # kind of energies that raw tables are read for, "linear" or "boosted"
    keep: str | None = None  # columns of a raw table that are not features, separated by commas

    @property
    def targets(self) -> list[str]:
        """Attributes to predict."""
        return names(self.target, "--target")

    @property
    def nuisances(self) -> list[str]:
        """Further attributes, known in training only."""
        return names(self.attributes, "--attributes") if self.attributes else []

    def is_feature_file(self, source: str | Path) -> bool:
        """Return whether the source is a feature file: no option names sample columns, and it can hold features."""
        named = self.path is not None or self.text is not None or self.columns is not None
        return not named and ending(source) not in TABLE_ENDINGS

    def is_raw_table(self, source: Path) -> bool:
        """Return whether the source is a raw table, whose columns of any kind become features.

        It is one if no option names sample columns, and it is a table file, or Parquet without columns of computed
        features. With --columns, it is one for boosted energies only, which take the named columns as they are.
        """
        if self.path is not None or self.text is not None:
            return False
        if self.columns is not None:
            return self.energies == "boosted"
        return ending(source) in TABLE_ENDINGS or (
            source.exists() and is_parquet(source) and not holds_features(source)
        )

    @property
    def text_backbone(self) -> str:
        """Backbone for the texts of a raw table, by name or resolved path; empty for components of TF-IDF."""
        if self.backbone is None or self.backbone == TFIDF:
            return ""
        return _resolved(self.backbone)

    def for_pool(self) -> TableOptions:
        """Return the options that also apply to unlabelled rows in another file: --root, if the samples are images."""
        return TableOptions(root=self.root if self.path is not None else None)

    def recipe(self) -> Recipe:
        """Return the recipe that turns the columns named by --path, --text or --columns into features."""
        from compshift.features.recipe import Recipe

        given = {"--path": self.path, "--text": self.text, "--columns": self.columns}
        named = [option for option, value in given.items() if value is not None]
        if len(named) != 1:
            found = f"{' and '.join(named)} cannot be used together" if named else "no option names the table's samples"
            raise InputError(
                f"{found}: name either the column of image paths (--path), the column of texts (--text), or the "
                "columns of numbers (--columns)"
            )
        if self.columns is not None:
            given_network = {"--backbone": self.backbone, "--weights": self.weights}
            reject_unused(given_network, "for --path and --text, not for columns of numbers")
            return Recipe("features", tuple(names(self.columns, "--columns")))
        kind = "images" if self.path is not None else "text"
        columns = (self.path,) if self.path is not None else tuple(names(str(self.text), "--text"))
        name = self.backbone or DEFAULT_BACKBONES[kind]
        if kind == "text" and name == TFIDF:
            reject_unused({"--weights": self.weights}, f"for networks, not for --backbone {TFIDF}")
            if len(columns) > 1:
                raise InputError(f"--backbone {TFIDF} takes one column of texts, but --text names {len(columns)}")
            return Recipe(TFIDF, columns)
        return Recipe(kind, columns, _resolved(name))

    def split_rule(self) -> str | dict[str, float] | None:
        """Return the name of the column of splits, or the shares of a random split, or None if neither is given."""
        if self.split_column is not None and self.shares is not None:
            raise InputError("--split-column and --shares cannot be used together: pass one of them")
        return self.split_column if self.shares is None else read_shares(self.shares)

    def load_table(self, source: str | Path, recipe: Recipe) -> tuple[GroupedDataset, Recipe]:
        """Return the labelled samples of a table, and the recipe with a description of the split added."""
        targets, nuisances, split = self.targets, self.nuisances, self.split_rule()
        data = recipe.load_table(
            source, target=targets, attributes=nuisances, split=split, random_state=self.seed, root=self.root
        )
        return data, recipe.with_split(data, split, self.seed)


def _resolved(backbone: str) -> str:
    """Return the absolute path of a backbone that is a folder; return a name unchanged."""
    return str(Path(backbone).resolve()) if Path(backbone).is_dir() else backbone


@dataclass(frozen=True, eq=False)
class Source:
    """A data set together with the training settings that depend on it."""

    data: GroupedDataset
    inputs: Mapping[str, Any] | None = None  # recipe that turns a table's columns into samples
    geometry: Geometry | None = None  # size and normalisation of images
    max_length: int | None = None  # maximum number of tokens per text
    balanced_classes: bool = False  # whether the protocol samples classes equally often


def load_source(source: str, table: TableOptions) -> Source:
    """Load a named data set, table or feature file as the options describe."""
    if source in MODULES:
        columns = {"--path": table.path, "--text": table.text, "--columns": table.columns, "--target": table.target}
        further = {"--attributes": table.attributes, "--split-column": table.split_column, "--shares": table.shares}
        reject_unused({**columns, **further}, f"for tables and feature files, but {source} is a named data set")
        known = benchmark(source)
        data = known.load(table.root)
        return Source(
            data,
            geometry=known.fitted_geometry(data),
            max_length=known.max_length,
            balanced_classes=known.balanced_classes,
        )
    if not Path(source).exists():
        if Path(source).suffix:
            raise InputError(f"there is no file {source!r}: pass the path of a table or feature file")
        raise unknown_name("data set or table", source, tuple(MODULES))
    if not table.target:
        raise InputError("--target is missing: name the attribute to predict")
    if table.is_feature_file(source):
        from compshift.data.feature_files import load_features

        reject_unused({"--root": table.root, "--split-column": table.split_column}, "for tables")
        shares = read_shares(table.shares) if table.shares else None
        return Source(load_features(source, table.targets, table.nuisances, shares, table.seed))
    data, recipe = table.load_table(source, replace(table, backbone=None).recipe())
    return Source(data, recipe.to_dict())


def load_pool(pool: Path, source: Source, name: str, root: Path | None) -> Samples:
    """Return the samples of a table or feature file without labels; ``name`` is the name or path of ``source``."""
    if name in MODULES:
        raise InputError(f"--unlabelled is for tables and feature files, but {name} is a named data set: leave it out")
    if not pool.exists():
        raise InputError(f"there is no file {str(pool)!r}: pass the path of a table or feature file to --unlabelled")
    if source.inputs is None:
        from compshift.data.feature_files import read_inputs

        return read_inputs(pool)
    from compshift.features.recipe import Recipe

    return Recipe.from_dict(source.inputs).load_samples(pool, root)


def path_of(source: str) -> str | None:
    """Return ``source`` if it is a path, None if it is the name of a data set."""
    return None if source in MODULES else source


def split_part(data: GroupedDataset, split: str | None, default: str) -> tuple[GroupedDataset, str]:
    """Return the rows of a split, and the name of that split.

    If ``split`` is None, use the split ``default`` if the data have it, otherwise all rows.
    """
    if split is None:
        split = default if default in data.splits else "all"
    elif split in SPLITS and data.split is None:
        raise InputError(f"--split is {split!r}, but the data have no splits: leave it out, or pass --split all")
    return data.part(split), split


def feature_origin(source: Path) -> dict[str, Any] | None:
    """Return the network that computed a folder of features: its digest and the name of its backbone; None if unknown.

    The digest covers weights, settings and precision. Model files store this dictionary as ``inputs``.
    """
    manifest = read_manifest(source) if source.is_dir() else None
    if manifest is None:
        return None
    from compshift.features.recipe import portable_backbone

    return {"network": manifest["key"], "backbone": portable_backbone(str(manifest.get("backbone", "")))}


def warn_of_scales(X: Any, columns: Sequence[str], remedy: str = ", or pass a smaller --alpha") -> None:
    """Print a warning if the scales of the columns differ so much that the ridge penalty acts on only some of them."""
    from compshift.crm.features import unequal_scales

    found = unequal_scales(X)
    if found is not None:
        large, small, ratio = found
        typer.echo(
            f"warning: the standard deviation of {columns[large]!r} is {ratio:.0f} times that of {columns[small]!r}, "
            "so the penalty mostly shrinks the weights of the latter: rescale every column to unit standard "
            f"deviation{remedy}",
            err=True,
        )


def warn_of_feature_scales(X: Any) -> None:
    """Warn as ``warn_of_scales`` does of a feature file, unless it is wide, as embeddings are."""
    from compshift.crm.features import MAX_UNNAMED_COLUMNS

    if X.shape[1] <= MAX_UNNAMED_COLUMNS:
        warn_of_scales(X, [f"f{column}" for column in range(X.shape[1])])


def require_torch() -> None:
    """Raise an InputError that says what to install if PyTorch is missing."""
    if importlib.util.find_spec("torch") is None:
        raise InputError(
            "PyTorch is not installed, but this command needs it: pip install 'compshift[weights]' (with networks for "
            "images and texts), 'compshift[hf]' or 'compshift[torch]'"
        )


def check_model_path(output: Path, *sources: str | Path | None) -> None:
    """Check that a model can be written to ``output`` without replacing one of the ``sources``."""
    check_apart(output, *sources)
    suffix = output.suffix.lower()
    proposed = output.with_suffix(".safetensors") if suffix else output
    if suffix == ".onnx":
        raise InputError(
            f"--output is {str(output)!r}, but `compshift fit` does not write ONNX: fit with -o {proposed} first, then "
            f"run `compshift export {proposed} -o {output}`"
        )
    if suffix in NON_MODEL_ENDINGS:
        raise InputError(
            f"--output is {str(output)!r}, but {suffix} is not an ending of model files: pass -o {proposed}"
        )
    check_target(output, *sources)


def cache_beside(output: Path) -> Path:
    """Return the default folder for the features of a model: ``birds.features`` for ``birds.safetensors``."""
    stem = output.stem if output.suffix == ".safetensors" else output.name
    return output.with_name(f"{stem}.features")


def table_features(table: TableOptions, source: Path, cache: Path, embed: Embed) -> tuple[Any, Recipe]:
    """Return the data set of a table with features as samples, and the recipe that made them.

    ``embed`` computes the features of images and texts, or reads them from ``cache`` if they were computed before.
    """
    recipe = table.recipe()
    _check_split(table, source)
    data, recipe = table.load_table(source, recipe)
    check_attribute_sizes(data.space, table.nuisances)
    if recipe.kind == "features":
        warn_of_scales(data.X, recipe.columns)
        return data, recipe
    if recipe.kind == TFIDF:
        return recipe.fitted(data, split_part(data, table.split, "train")[0])
    return embed(cache, data, recipe)


def check_attribute_sizes(space: GroupSpace, nuisances: Sequence[str]) -> None:
    """Check that none of the attributes beside the targets has more values than an audit accepts."""
    from compshift.core.columns import check_value_count

    for name, values in zip(space.names, space.values, strict=True):
        if name in nuisances:
            check_value_count(name, len(values))


def _check_split(table: TableOptions, source: Path) -> None:
    """Check that a table with a column of splits is not split at random."""
    if table.shares is not None and SPLIT_COLUMN in column_names(source):
        raise InputError(
            "--shares cannot be used with a table that has a column 'split': leave out --shares, or rename the column"
        )


def raw_table_features(
    table: TableOptions, source: Path, embed: EmbedTexts | None = None, *, quiet: bool
) -> tuple[GroupedDataset, Recipe]:
    """Return the rows of a raw table with features made of its columns, and the recipe; print which columns are used.

    The columns are those of --columns, or all besides labels, splits and those of --keep. Whether a column holds
    numbers, dates, categories or texts is inferred from the rows that the model is fitted to. ``embed`` is used for
    texts if --backbone names a network.
    """
    from compshift.data.dataset import RawColumns
    from compshift.data.raw_tables import is_typed, raw_names, read_raw_columns
    from compshift.data.table import load_labels
    from compshift.features.recipe import Recipe
    from compshift.features.table_columns import TableColumns, described, language_columns, left_out_sentence

    if not source.exists():
        raise InputError(f"there is no table {str(source)!r}: pass a .csv, .xlsx, .jsonl or .parquet file")
    _check_split(table, source)
    if table.keep is not None and table.columns is not None:
        raise InputError("--keep and --columns cannot be used together: --columns already names all features")
    split = table.split_rule()
    known = raw_names(source)
    others = [*table.targets, *table.nuisances, *([split] if isinstance(split, str) else [])]
    kept = [] if table.keep is None else names(table.keep, "--keep")
    chosen = None if table.columns is None else names(table.columns, "--columns")
    check_columns([*others, *kept, *(chosen or [])], known, source)
    repeated = next((name for name in chosen or [] if name in others or (chosen or []).count(name) > 1), None)
    if repeated is not None:
        raise InputError(f"the column {repeated!r} is used twice: name each column once")
    columns = chosen or [name for name in known if name not in (*others, *kept, SPLIT_COLUMN)]
    if not columns:
        raise InputError(f"{str(source)!r} has no columns besides {listing([*others, *kept])}: add columns of features")
    content, typed = RawColumns(read_raw_columns(source, columns)), is_typed(source)
    data = load_labels(
        source, content, target=table.targets, attributes=table.nuisances, split=split, random_state=table.seed
    )
    recipe = Recipe("table", tuple(columns), backbone=table.text_backbone)
    if recipe.needs_network:
        assert embed is not None
        texts = language_columns(split_part(data, table.split, "train")[0].samples.columns, typed=typed)
        if not texts:
            raise InputError(
                f"--backbone is for columns of texts, but {str(source)!r} has none besides its labels: leave it out, "
                "or name the column of the samples with --text or --path"
            )
        content, recipe = embed(content, texts, recipe)
        data = replace(data, samples=content)
    training = split_part(data, table.split, "train")[0].samples.columns
    found, left_out = TableColumns.fit(training, table.energies, typed=typed, chosen=chosen is not None)
    if not found.columns:
        raise InputError(
            f"no column of {str(source)!r} can be a feature, {left_out_sentence(left_out)}: add columns of numbers, "
            "dates, categories or texts"
        )
    typer.echo(f"features: {described(found)}", err=quiet)
    if left_out:
        remedy = "name the columns to use with --columns, or " if table.energies == "boosted" else ""
        typer.echo(f"left out: {left_out_sentence(left_out)}; {remedy}leave out further columns with --keep", err=quiet)
    recipe = replace(recipe, columns=found.names, table=found)
    return replace(data, samples=found.transform(content.columns)), recipe.with_split(data, split, table.seed)


def embedded_texts(
    embed: Embed, cache: Path, rows: RawColumns, texts: Sequence[str], recipe: Recipe
) -> tuple[RawColumns, Recipe]:
    """Return the columns of a raw table with embeddings in place of texts, computed or read from ``cache``."""
    from compshift.core.groups import GroupSpace
    from compshift.data.dataset import GroupedDataset
    from compshift.features.text_columns import with_embeddings

    used = recipe.of_texts()

    def compute(samples: Samples) -> Any:
        nonlocal used
        space = GroupSpace.from_cardinalities([1], names=["text"])
        data = GroupedDataset(samples, space, np.zeros((len(samples), 1), dtype=np.int64))
        data, used = embed(cache, data, used)
        return data.X

    rows = with_embeddings(rows, texts, compute)
    return rows, replace(recipe, network=used.network, dtype=used.dtype)


def embedded(
    table: TableOptions,
    cache: Path,
    data: Any,
    recipe: Recipe,
    *,
    overwrite: bool,
    quiet: bool,
    machine: Mapping[str, Any],
) -> tuple[Any, Recipe]:
    """Return images or texts with features in place of the samples, computed or read from ``cache``, and the recipe."""
    from compshift.cli.interruption import resumable
    from compshift.report.terminal import print_extraction, progress_bar

    with resumable(), progress_bar("features", len(data), unit="rows") as advance:
        data, recipe, done = recipe.cached(
            data,
            cache,
            skip_broken=table.skip_broken,
            overwrite=overwrite,
            progress=advance,
            weights=table.weights,
            **machine,
        )
    if not quiet:
        print_extraction(done, recipe.backbone, as_json=False)
    elif done.broken:
        typer.echo(f"{len(done.broken)} samples could not be read and were left out", err=True)
    return data, recipe
