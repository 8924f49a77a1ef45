"""What a model is asked about: a feature file, a table like the one that it was made from, or a named data set."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from compshift._errors import InputError
from compshift.cli.needed_columns import check_labels, check_samples, check_there
from compshift.cli.options import chosen_part, read_prior
from compshift.cli.own_table import require_torch
from compshift.core.arrays import IntArray
from compshift.data.registry import MODULES, benchmark
from compshift.data.table_files import column_names, is_parquet, read_manifest
from compshift.data.text_tables import TEXT, ending
from compshift.data.written_values import in_space

if TYPE_CHECKING:
    from compshift.data.dataset import GroupedDataset
    from compshift.features.recipe import Recipe


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
    from compshift.estimators.load import load

    if path.is_dir():
        require_torch()
        from compshift.features.embedder import chosen_device
        from compshift.training.trained import TrainedClassifier

        found: Any = TrainedClassifier.load(path, chosen_device("auto"))
    else:
        found = load(path)
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
