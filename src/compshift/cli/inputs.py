"""Training data and model paths of the command line: from the options that describe a table to its samples.

``TableOptions`` is shared by all commands that read tables. ``load_source`` gives the data set that `train` and
`features` work on: a named one, a user's table, or a file of features. What a fitted model is asked about is in
``compshift.cli.model_inputs``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from compshift._errors import InputError, unknown_name
from compshift._files import check_apart, check_target
from compshift.cli.options import names, read_shares, reject_unused
from compshift.data.benchmarks import MODULES, benchmark
from compshift.data.dataset import DEFAULT_BACKBONES
from compshift.data.shards import read_manifest
from compshift.data.splits import SPLITS
from compshift.data.text_tables import TEXT, ending

if TYPE_CHECKING:
    from compshift.data.dataset import GroupedDataset
    from compshift.data.images import Geometry
    from compshift.features.recipe import Recipe


MAX_SCALE_RATIO = 30
"""Ratio of two columns' standard deviations above which a warning is printed."""

OTHER_FILES = (
    *(".csv", ".tsv", ".txt", ".xls", ".xlsx", ".parquet", ".pq", ".npz", ".npy", ".json", ".jsonl"),
    *(".html", ".htm", ".md", ".png", ".jpg", ".jpeg", ".svg", ".pdf", ".py", ".ipynb", ".toml", ".yaml"),
    *(".zip", ".gz", ".pkl", ".joblib", ".pt", ".pth"),
)
"""Endings that a model file may not have: it would be mistaken for another kind of file, or replace one."""


@dataclass(frozen=True)
class TableOptions:
    """How a table, a feature file or a data set becomes features. A command sets the options that it has."""

    target: str = ""
    attributes: str = ""
    path: str | None = None  # column of image files
    text: str | None = None  # column of texts
    features: str | None = None  # columns of numbers
    root: Path | None = None
    split_column: str | None = None
    shares: str | None = None
    seed: int = 0  # of the random split
    backbone: str | None = None
    split: str | None = None  # rows to use
    skip_broken: bool = False

    @property
    def targets(self) -> list[str]:
        """Attributes to predict."""
        return names(self.target, "--target")

    @property
    def nuisances(self) -> list[str]:
        """Further attributes, known in training only."""
        return names(self.attributes, "--attributes") if self.attributes else []

    def is_feature_file(self, source: str | Path) -> bool:
        """Return whether the source is read as a file of features, since no option names columns of samples."""
        return self.path is None and self.text is None and self.features is None and ending(source) not in TEXT

    def recipe(self) -> Recipe:
        """Return how samples and features are made from the columns that --path, --text or --features name."""
        from compshift.features.recipe import Recipe

        given = {"--path": self.path, "--text": self.text, "--features": self.features}
        named = [option for option, value in given.items() if value is not None]
        if len(named) != 1:
            raise InputError(
                f"{' and '.join(named) or 'none of --path, --text and --features'} given: name the column of image "
                "paths (--path), of texts (--text), or the columns of numbers (--features)"
            )
        if self.features is not None:
            if self.backbone is not None:
                raise InputError("--backbone is for --path and --text: columns of numbers are features already")
            return Recipe("features", tuple(names(self.features, "--features")))
        kind = "images" if self.path is not None else "text"
        columns = (self.path,) if self.path is not None else tuple(names(str(self.text), "--text"))
        name = self.backbone or DEFAULT_BACKBONES[kind]
        return Recipe(kind, columns, str(Path(name).resolve()) if Path(name).is_dir() else name)

    def load_table(self, source: str | Path, recipe: Recipe) -> tuple[GroupedDataset, Recipe]:
        """Return the labelled samples of a table, and the recipe with the split that was made."""
        if self.split_column is not None and self.shares is not None:
            raise InputError("--split-column and --shares given: pass one of them")
        targets, nuisances = self.targets, self.nuisances
        split = self.split_column if self.shares is None else read_shares(self.shares)
        data = recipe.load_table(
            source, target=targets, attributes=nuisances, split=split, random_state=self.seed, root=self.root
        )
        return data, recipe.with_split(data, split, self.seed)


@dataclass(frozen=True, eq=False)
class Source:
    """A data set with the settings that its protocol or its table fixes."""

    data: GroupedDataset
    inputs: Mapping[str, Any] | None = None  # recipe by which a table's columns become samples
    geometry: Geometry | None = None  # size and normalisation of images
    max_length: int | None = None  # of texts, in tokens
    balanced_classes: bool = False  # whether the protocol samples classes equally often


def load_source(source: str, table: TableOptions) -> Source:
    """Return the named data set, table or feature file that the options describe."""
    if source in MODULES:
        columns = {"--path": table.path, "--text": table.text, "--features": table.features, "--target": table.target}
        further = {"--attributes": table.attributes, "--split-column": table.split_column, "--shares": table.shares}
        reject_unused({**columns, **further}, "for tables, and the columns of a named data set are known")
        known = benchmark(source)
        return Source(
            known.load(table.root),
            geometry=known.geometry,
            max_length=known.max_length,
            balanced_classes=known.balanced_classes,
        )
    if not Path(source).exists():
        if Path(source).suffix:
            raise InputError(f"there is no file {source!r}: pass the path of a table or feature file")
        raise unknown_name("data set or table", source, tuple(MODULES))
    if not table.target:
        raise InputError("there is no target: name the attribute to predict with --target")
    if table.is_feature_file(source):
        from compshift.data.feature_files import load_features

        reject_unused({"--root": table.root, "--split-column": table.split_column}, "for tables")
        shares = read_shares(table.shares) if table.shares else None
        return Source(load_features(source, table.targets, table.nuisances, shares, table.seed))
    data, recipe = table.load_table(source, replace(table, backbone=None).recipe())
    return Source(data, recipe.to_dict())


def path_of(source: str) -> str | None:
    """Return the path of a source; None for the name of a data set."""
    return None if source in MODULES else source


def split_part(data: GroupedDataset, split: str | None, default: str) -> tuple[GroupedDataset, str]:
    """Return the rows of a split and its name: the given one, or the default if the data have it, else all."""
    if split is None:
        split = default if default in data.splits else "all"
    elif split in SPLITS and data.split is None:
        raise InputError(f"--split is {split!r}, and there are no splits: leave it out, or use 'all'")
    return data.part(split), split


def feature_maker(source: Path) -> dict[str, Any] | None:
    """Return the network that made a folder of features, in the form that a model file keeps; None if unknown."""
    about = read_manifest(source) if source.is_dir() else None
    return None if about is None else {"network": about["key"], "backbone": about.get("backbone", "")}


def warn_of_scales(X: Any, columns: Sequence[str], remedy: str = ", or pass a smaller --alpha") -> None:
    """Print a warning if columns differ so much in scale that the ridge penalty bears on some of them only."""
    spread = X.std(axis=0, dtype="float64")
    if not spread.any():
        return
    spread[spread == 0] = spread.max()  # a constant column has no scale
    small, large = int(spread.argmin()), int(spread.argmax())
    if spread[small] * MAX_SCALE_RATIO < spread[large]:
        typer.echo(
            f"warning: {columns[large]!r} spreads {spread[large] / spread[small]:.0f} times as far as "
            f"{columns[small]!r}, so the penalty weighs on the latter: divide every column by its deviation{remedy}",
            err=True,
        )


def require_torch() -> None:
    """Raise an error with the remedy if PyTorch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise InputError("networks need PyTorch: install compshift[torch], compshift[weights] or compshift[hf]")


def check_model_path(output: Path, *sources: str | Path | None) -> None:
    """Check that a model can be written to a path, and that the path is none of the ``sources``."""
    check_apart(output, *sources)
    suffix = output.suffix.lower()
    fitted = output.with_suffix(".safetensors") if suffix else output
    if suffix == ".onnx":
        raise InputError(
            f"--output is {str(output)!r}, and `compshift fit` writes no ONNX: fit with -o {fitted} first, then run "
            f"`compshift export {fitted} -o {output}`"
        )
    if suffix in OTHER_FILES:
        raise InputError(
            f"--output is {str(output)!r}, which names another kind of file: models are written as .safetensors, as in "
            f"-o {fitted}"
        )
    check_target(output, *sources)


def cache_beside(output: Path) -> Path:
    """Return the folder for features beside a model: ``birds.features`` for ``birds.safetensors``."""
    stem = output.stem if output.suffix == ".safetensors" else output.name
    return output.with_name(f"{stem}.features")
