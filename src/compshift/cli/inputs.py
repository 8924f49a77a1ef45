"""What a model needs of a file that it is asked about, before the file is read.

The options that say which columns of a user's table are what.

What a command works on: a named data set, a user's table, or a file of features.

What a model is asked about: a feature file, a table like the one that it was made from, or a named data set.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from compshift._errors import InputError, listing, unknown_name
from compshift.cli.options import chosen_part, names, read_prior
from compshift.core.arrays import IntArray
from compshift.data.benchmarks import MODULES, benchmark
from compshift.data.dataset import in_space
from compshift.data.shards import is_parquet, read_manifest
from compshift.data.table_files import column_names
from compshift.data.text_tables import TEXT, ending

if TYPE_CHECKING:
    from compshift.data.dataset import GroupedDataset
    from compshift.data.images import Geometry
    from compshift.features.recipe import Recipe


def check_there(source: str) -> None:
    """Refuse what is neither a file or folder nor the name of a data set."""
    from compshift.data.benchmarks import MODULES

    if source in MODULES or Path(source).exists():
        return
    if Path(source).suffix or "/" in source:
        raise InputError(f"there is no file or folder {source!r}: check its path")
    raise unknown_name("file or data set", source, tuple(MODULES))


def check_samples(source: Path, columns: Sequence[str], needed: Sequence[str]) -> None:
    """Refuse a table that lacks the columns that a model computes its features from."""
    absent = [name for name in needed if name not in columns]
    if absent:
        raise InputError(
            f"{str(source)!r} lacks the column{'s' * (len(absent) > 1)} {listing(absent)}, which the model needs: its "
            f"columns are {listing(columns)}"
        )


def check_labels(source: Path, needed: Sequence[str]) -> None:
    """Refuse a file that lacks labels."""
    from compshift.data.feature_files import file_attributes
    from compshift.data.shards import is_parquet
    from compshift.data.table_files import column_names
    from compshift.data.text_tables import TEXT, ending

    table = ending(source) in TEXT or is_parquet(source)
    if not table and ending(source) != ".npz":
        return  # which readers refuse
    found = column_names(source) if table else file_attributes(source)
    absent = [name for name in needed if name not in found]
    if absent:
        raise InputError(
            f"{str(source)!r} lacks the label{'s' * (len(absent) > 1)} {listing(absent)}, without which nothing can be "
            f"scored: add {'them' if len(absent) > 1 else 'it'}, or use `compshift predict`, which needs none"
        )


MAX_SCALES = 30
"""Ratio of two columns' standard deviations from which a warning is given."""

DEFAULT_BACKBONES = {"images": "efficientnet-lite0", "text": "minilm"}


def samples_recipe(path: str | None, text: str | None, columns: str | None, backbone: str | None) -> Recipe:
    """The recipe that --path, --text or --features, and --backbone ask for."""
    from compshift.features.recipe import Recipe

    given = {"--path": path, "--text": text, "--features": columns}
    named = [option for option, value in given.items() if value is not None]
    if len(named) != 1:
        raise InputError(
            f"{' and '.join(named) or 'none of --path, --text and --features'} given: name the column of image paths "
            "(--path), of texts (--text), or the columns of numbers (--features)"
        )
    if columns is not None:
        if backbone is not None:
            raise InputError("--backbone is for --path and --text: columns of numbers are features already")
        return Recipe("features", tuple(names(columns, "--features")))
    kind = "images" if path is not None else "text"
    chosen = (path,) if path is not None else tuple(names(str(text), "--text"))
    name = backbone or DEFAULT_BACKBONES[kind]
    return Recipe(kind, chosen, str(Path(name).resolve()) if Path(name).is_dir() else name)


def table_options(
    target: str, attributes: str, split_column: str | None, shares: str | None, seed: int
) -> dict[str, Any]:
    """Keyword arguments of ``load_table`` from the options."""
    if split_column is not None and shares is not None:
        raise InputError("--split-column and --shares given: pass one of them")
    return {
        "target": names(target, "--target"),
        "attributes": names(attributes, "--attributes") if attributes else [],
        "split": split_column if shares is None else read_shares(shares),
        "random_state": seed,
    }


def read_shares(text: str) -> dict[str, float]:
    from compshift.data.splits import SPLITS

    parts = [part.strip() for part in text.split(",")]
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) not in (2, 3):
        raise InputError(f"--shares is {text!r}: pass the shares of train, val and test, as in 0.7,0.1,0.2")
    return dict(zip(SPLITS if len(numbers) == 3 else (SPLITS[0], SPLITS[2]), numbers, strict=True))


def refuse(options: dict[str, Any], why: str) -> None:
    """Refuse options that would have no effect."""
    given = [name for name, value in options.items() if value]
    if given:
        verb, object_ = ("is", "it") if len(given) == 1 else ("are", "them")
        raise InputError(f"{' and '.join(given)} {verb} {why}: leave {object_} out")


def warn_of_scales(X: Any, columns: Sequence[str], remedy: str = ", or pass a smaller --alpha") -> None:
    """Say so when columns of numbers differ so much in scale that the penalty sees only some of them."""
    spread = X.std(axis=0, dtype="float64")
    if not spread.any():
        return
    spread[spread == 0] = spread.max()  # a column that says nothing has no scale
    small, large = int(spread.argmin()), int(spread.argmax())
    if spread[small] * MAX_SCALES < spread[large]:
        typer.echo(
            f"warning: {columns[large]!r} spreads {spread[large] / spread[small]:.0f} times as far as "
            f"{columns[small]!r}, so the penalty weighs on the latter: divide every column by its deviation{remedy}",
            err=True,
        )


def require_torch() -> None:
    """Networks need PyTorch."""
    if importlib.util.find_spec("torch") is None:
        raise InputError("networks need PyTorch: install compshift[torch], compshift[weights] or compshift[hf]")


@dataclass(frozen=True, eq=False)
class Source:
    """A data set, and what is known of it."""

    data: GroupedDataset
    inputs: Mapping[str, Any] | None = None  # how the columns of a table become samples
    geometry: Geometry | None = None  # of images
    max_length: int | None = None  # of texts
    balanced_classes: bool = False  # whether the protocol samples classes in balance


def unnamed(source: str) -> str | None:
    """The path of a source that is no data set's name."""
    from compshift.data.benchmarks import MODULES

    return None if source in MODULES else source


def load_source(
    source: str,
    *,
    root: Path | None = None,
    path: str | None = None,
    text: str | None = None,
    features: str | None = None,
    target: str = "",
    attributes: str = "",
    split_column: str | None = None,
    shares: str | None = None,
    seed: int = 0,
) -> Source:
    """The data set that the options describe."""
    from compshift.data.benchmarks import MODULES, benchmark
    from compshift.data.text_tables import TEXT, ending

    if source in MODULES:
        columns = {"--path": path, "--text": text, "--features": features, "--target": target}
        further = {"--attributes": attributes, "--split-column": split_column, "--shares": shares}
        refuse({**columns, **further}, "for tables, and the columns of a named data set are known")
        known = benchmark(source)
        return Source(
            known.load(root),
            geometry=known.geometry,
            max_length=known.max_length,
            balanced_classes=known.balanced_classes,
        )
    if not Path(source).exists():
        if Path(source).suffix:
            raise InputError(f"there is no file {source!r}: pass the path of a table or feature file")
        raise unknown_name("data set or table", source, tuple(MODULES))
    if not target:
        raise InputError("nothing says what is to be predicted: name an attribute with --target")
    if path is None and text is None and features is None and ending(source) not in TEXT:
        from compshift.data.feature_files import load_features

        refuse({"--root": root, "--split-column": split_column}, "for tables")
        nuisances = names(attributes, "--attributes") if attributes else []
        targets = names(target, "--target")
        return Source(load_features(source, targets, nuisances, read_shares(shares) if shares else None, seed))
    recipe = samples_recipe(path, text, features, None)
    options = table_options(target, attributes, split_column, shares, seed)
    data = recipe.load_table(source, **options, root=root)
    return Source(data, recipe.with_split(data, options["split"], seed).to_dict())


MAX_SENTENCES = 10
"""More broken samples than this are counted only."""


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A classifier of features and, if it was fine-tuned, the network that makes them."""

    clf: Any  # a fitted classifier
    network: Any = None  # a TrainedClassifier
    inputs: Any = None  # how the columns of a table become samples


@dataclass(frozen=True, eq=False)
class Rows:
    """Features to predict from."""

    X: Any
    n_rows: int  # rows of the input
    position: IntArray  # those that have features
    images: tuple[str, Any] | None = None  # heading and names of images


def load_model(path: Path, prior: str | None) -> LoadedModel:
    """A model file, or the folder of a training run, under the prior that was asked for."""
    from compshift.training.load import load_file

    if path.is_dir():
        require_torch()
        from compshift.features.embedder import chosen_device
        from compshift.training.classifier import TrainedClassifier

        found: Any = TrainedClassifier.load(path, chosen_device("auto"))
    else:
        found = load_file(path)
    if path.is_dir():
        loaded = LoadedModel(found.head_, found, found.inputs_)
    else:
        loaded = LoadedModel(found, None, _table_inputs(found))
        # Columns are read by name, and reach the model as arrays in its order.
        warnings.filterwarnings("ignore", "X does not have valid feature names")
    if prior is not None:
        if not hasattr(loaded.clf, "set_prior"):
            raise InputError(f"--prior is for models of groups, and {str(path)!r} predicts classes alone: leave it out")
        loaded.clf.set_prior(read_prior(prior, loaded.clf.space_))
    return loaded


def _table_inputs(clf: Any) -> Any:
    """How the columns of a table become features: as the file says or, if it says nothing, by the features' names."""
    names = getattr(clf, "feature_names_in_", None)
    if names is not None and "kind" not in (clf.inputs_ or {}):
        return {"kind": "features", "columns": [str(name) for name in names]}
    return clf.inputs_


def unlabelled_rows(
    model: LoadedModel,
    source: str,
    *,
    root: Path | None,
    split: str | None,
    skip_broken: bool,
    backbone: str | None,
) -> Rows:
    """Features of every row of the input, or of one split of a feature file or data set."""
    import numpy as np

    check_there(source)
    _check_moved(model, backbone)
    if source in MODULES:
        samples = benchmark(source).load(root).part(split or "all").samples
        X, position = _embed(model, None, samples, skip_broken)
        return Rows(X, len(samples), position)
    recipe = table_recipe(model, Path(source), backbone)
    if recipe is None:
        from compshift.data.feature_files import read_inputs

        X = read_inputs(Path(source), split or "all")
        if model.network is not None:
            X, _ = _embed(model, None, X, skip_broken)
        return Rows(X, len(X), np.arange(len(X)))
    if split is not None:
        raise InputError("--split is for feature files and data sets: every row of a table is predicted")
    samples = recipe.load_samples(Path(source), root)
    X, position = _embed(model, recipe, samples, skip_broken)
    images = (f"{recipe.columns[0]} (image)", samples.names) if recipe.kind == "images" else None
    return Rows(X, len(samples), position, images)


def labelled_rows(
    model: LoadedModel,
    source: str,
    *,
    root: Path | None,
    split: str | None,
    skip_broken: bool,
    backbone: str | None,
) -> tuple[GroupedDataset, str]:
    """Features with the model's attributes, of one split; test where there is one and none is named."""
    space = model.clf.space_
    recipe = None
    check_there(source)
    _check_moved(model, backbone)
    if source in MODULES:
        data = benchmark(source).load(root)
    else:
        recipe = table_recipe(model, Path(source), backbone)
        check_labels(Path(source), space.names)
        if recipe is None:
            from compshift.data.feature_files import read_features

            data = read_features(Path(source), space.names)
        else:
            targets = list(model.clf.targets_.names)
            nuisances = [name for name in space.names if name not in targets]
            data = recipe.load_again(Path(source), target=targets, attributes=nuisances, root=root)
            if "shares" in (recipe.split or {}) and data.split is None:
                typer.echo(
                    f"warning: the model was fitted to a part of a table that was split at random, and {source!r} has "
                    "other rows or labels than that table: if it is another version of it, rows that the model was "
                    "fitted to are among those that are scored",
                    err=True,
                )
    data, chosen = chosen_part(data, split, "test")
    if recipe is not None or model.network is not None:
        X, rows = _embed(model, recipe, data.samples, skip_broken)
        data = replace(data.rows(rows), samples=X)
    return in_space(data, space), chosen


def table_recipe(model: LoadedModel, source: Path, backbone: str | None = None) -> Recipe | None:
    """How the columns of a table become samples, or None if ``source`` holds features itself.

    ``backbone`` tells where the backbone lies now; it must be the one that the model was fitted with.
    """
    if not source.exists() or (ending(source) not in TEXT and not is_parquet(source)):
        return None
    if model.inputs is None or "kind" not in model.inputs:
        _check_network(model, source)
        if ending(source) in TEXT:
            made = "fitted to features without names" if model.network is None else "trained on features or a data set"
            raise InputError(
                f"the model was {made}, and {source.name!r} is a table: pass features, as .npz or .parquet"
                + (
                    ", or fit to columns with names, by --features or a DataFrame"
                    if model.network is None
                    else ", or the data set's name"
                )
            )
        return None
    from compshift.features.recipe import Recipe

    recipe = Recipe.from_dict(model.inputs)
    columns = column_names(source)
    if is_parquet(source) and recipe.columns[0] not in columns and _holds_features(columns, recipe):
        _check_network(model, source)
        return None
    check_samples(source, columns, recipe.columns)
    return recipe if backbone is None else replace(recipe, backbone=backbone)


def _check_moved(model: LoadedModel, backbone: str | None) -> None:
    """Refuse to be told where the backbone of a model lies that has none, or that has its own."""
    if backbone is None:
        return
    if model.network is not None:
        raise InputError("--backbone is for fitted models: a trained folder has its own; leave it out")
    if (model.inputs or {}).get("kind") not in ("images", "text"):
        raise InputError("--backbone is for models of images and texts, and this one takes features: leave it out")


def _holds_features(columns: list[str], recipe: Recipe) -> bool:
    """Whether a table with these columns is a feature file, whose features have numbers; none has both of a model."""
    from compshift.data.feature_files import FEATURE_COLUMN

    numbered = any(FEATURE_COLUMN.fullmatch(name) for name in columns)
    return "features" in columns or (numbered and not set(columns) & set(recipe.columns))


def made_by(source: Path) -> dict[str, Any] | None:
    """The network that made a folder of features, as a model remembers it."""
    about = read_manifest(source) if source.is_dir() else None
    return None if about is None else {"network": about["key"], "backbone": about.get("backbone", "")}


def _check_network(model: LoadedModel, source: Path) -> None:
    """Refuse a folder of features that another network made than those that the model was fitted to."""
    mine, theirs = model.inputs or {}, made_by(source)
    if theirs is not None and mine.get("network") and mine["network"] != theirs["network"]:
        raise InputError(
            f"the features in {str(source)!r} are of another network ({theirs['backbone']!r}) than those that the "
            f"model was fitted to ({mine.get('backbone')!r}): compute them with that one"
        )


def _embed(model: LoadedModel, recipe: Recipe | None, samples: Any, skip_broken: bool) -> tuple[Any, IntArray]:
    """Features of samples and the rows that have them, with a progress bar and a line for each that is left out."""
    from compshift.report.terminal import progress_bar

    maker = model.network if model.network is not None else recipe
    if maker is None:
        raise InputError("the model takes features: pass a feature file, as `compshift features` writes it")
    with progress_bar("features", len(samples), unit="rows") as advance:
        X, rows, broken = maker.embed(samples, skip_broken=skip_broken, progress=advance)
    for sentence in broken[:MAX_SENTENCES]:
        typer.echo(f"left out: {sentence}", err=True)
    if broken:
        typer.echo(f"{len(broken)} of {len(samples)} samples cannot be read and are left out", err=True)
    if not len(rows):
        raise InputError(f"not one of the {len(samples)} samples could be read")
    return X, rows
