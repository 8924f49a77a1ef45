"""Rows that a fitted model is asked about: a feature file, a table with the model's columns, or a named data set.

A model file keeps the recipe of its features (columns and backbone), so a table like the one that it was fitted to can
be read again. Missing columns and labels are reported before anything is computed.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from compshift._errors import InputError, listing, unknown_name
from compshift.cli.inputs import TableOptions, feature_maker, require_torch, split_part
from compshift.cli.options import read_prior
from compshift.core.arrays import IntArray
from compshift.data.benchmarks import MODULES, benchmark
from compshift.data.dataset import in_space
from compshift.data.feature_files import FEATURE_COLUMN, file_attributes, read_features, read_inputs
from compshift.data.shards import is_parquet
from compshift.data.table_files import column_names
from compshift.data.text_tables import TEXT, ending
from compshift.features.recipe import Recipe
from compshift.training.load import load

if TYPE_CHECKING:
    from compshift.data.dataset import GroupedDataset

MAX_BROKEN_LISTED = 10
"""Largest number of unreadable samples that are listed one by one; the others are counted."""


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A fitted classifier and, if it was fine-tuned, the network that makes its features."""

    clf: Any  # fitted classifier of features
    network: Any = None  # TrainedClassifier
    inputs: Any = None  # recipe by which the columns of a table become features


@dataclass(frozen=True, eq=False)
class UnlabelledRows:
    """Features to predict from."""

    X: Any  # (r, p)
    n_rows: int  # rows of the input, readable or not
    position: IntArray  # (r,) rows that have features
    images: tuple[str, Any] | None = None  # heading and names of image files


def load_model(path: Path, prior: str | None) -> LoadedModel:
    """Load a model file or the folder of a training run, and set its prior if one is given."""
    if path.is_dir():
        require_torch()
        from compshift.features.embedder import chosen_device

        network = load(path, chosen_device("auto"))
        loaded = LoadedModel(network.head_, network, network.inputs_)
    else:
        clf = load(path)
        loaded = LoadedModel(clf, None, _table_inputs(clf))
        # Columns are read by name and passed to the model as an array in the right order.
        warnings.filterwarnings("ignore", "X does not have valid feature names")
    if prior is not None:
        if not hasattr(loaded.clf, "set_prior"):
            raise InputError(f"--prior is for models of groups, and {str(path)!r} predicts classes alone: leave it out")
        loaded.clf.set_prior(read_prior(prior, loaded.clf.space_))
    return loaded


def _table_inputs(clf: Any) -> Any:
    """Return the recipe in the model file or, if there is none, one that reads the features by their names."""
    names = getattr(clf, "feature_names_in_", None)
    if names is not None and "kind" not in (clf.inputs_ or {}):
        return {"kind": "features", "columns": [str(name) for name in names]}
    return clf.inputs_


def unlabelled_rows(model: LoadedModel, source: str, options: TableOptions) -> UnlabelledRows:
    """Return features of every row of the input, or of one split of a feature file or data set."""
    _check_exists(source)
    _check_moved_backbone(model, options.backbone)
    split, skip_broken = options.split, options.skip_broken
    if source in MODULES:
        samples = benchmark(source).load(options.root).part(split or "all").samples
        X, position = _embed(model, None, samples, skip_broken)
        return UnlabelledRows(X, len(samples), position)
    recipe = _table_recipe(model, Path(source), options.backbone)
    if recipe is None:
        X = read_inputs(Path(source), split or "all")
        if model.network is not None:
            X, _ = _embed(model, None, X, skip_broken)
        return UnlabelledRows(X, len(X), np.arange(len(X)))
    if split is not None:
        raise InputError("--split is for feature files and data sets: every row of a table is predicted")
    samples = recipe.load_samples(Path(source), options.root)
    X, position = _embed(model, recipe, samples, skip_broken)
    images = (f"{recipe.columns[0]} (image)", samples.names) if recipe.kind == "images" else None
    return UnlabelledRows(X, len(samples), position, images)


def labelled_rows(model: LoadedModel, source: str, options: TableOptions) -> tuple[GroupedDataset, str]:
    """Return features and the model's attributes of one split, and its name; by default test if there is one."""
    space = model.clf.space_
    recipe = None
    _check_exists(source)
    _check_moved_backbone(model, options.backbone)
    if source in MODULES:
        data = benchmark(source).load(options.root)
    else:
        recipe = _table_recipe(model, Path(source), options.backbone)
        _check_labels(Path(source), space.names)
        if recipe is None:
            data = read_features(Path(source), space.names)
        else:
            targets = list(model.clf.targets_.names)
            nuisances = [name for name in space.names if name not in targets]
            data = recipe.load_with_same_split(Path(source), target=targets, attributes=nuisances, root=options.root)
            if "shares" in (recipe.split or {}) and data.split is None:
                typer.echo(
                    f"warning: the model was fitted to a part of a table that was split at random, and {source!r} has "
                    "other rows or labels than that table: if it is another version of it, rows that the model was "
                    "fitted to are among those that are scored",
                    err=True,
                )
    data, chosen = split_part(data, options.split, "test")
    if recipe is not None or model.network is not None:
        X, rows = _embed(model, recipe, data.samples, options.skip_broken)
        data = replace(data.rows(rows), samples=X)
    return in_space(data, space), chosen


def _table_recipe(model: LoadedModel, source: Path, backbone: str | None) -> Recipe | None:
    """Return the recipe by which a table's columns become features; None if ``source`` holds features itself.

    ``backbone`` is the new folder of the model's backbone, if that was moved.
    """
    if not source.exists() or (ending(source) not in TEXT and not is_parquet(source)):
        return None
    if model.inputs is None or "kind" not in model.inputs:
        _check_same_network(model, source)
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
    recipe = Recipe.from_dict(model.inputs)
    columns = column_names(source)
    if is_parquet(source) and recipe.columns[0] not in columns and _holds_features(columns, recipe):
        _check_same_network(model, source)
        return None
    _check_samples(source, columns, recipe.columns)
    return recipe if backbone is None else replace(recipe, backbone=backbone)


def _check_moved_backbone(model: LoadedModel, backbone: str | None) -> None:
    """Check that --backbone is given only for models that keep the name of a backbone."""
    if backbone is None:
        return
    if model.network is not None:
        raise InputError("--backbone is for fitted models: a trained folder has its own; leave it out")
    if (model.inputs or {}).get("kind") not in ("images", "text"):
        raise InputError("--backbone is for models of images and texts, and this one takes features: leave it out")


def _holds_features(columns: list[str], recipe: Recipe) -> bool:
    """Return whether these are the columns of a feature file (``features``, or numbered ones) and not the recipe's."""
    numbered = any(FEATURE_COLUMN.fullmatch(name) for name in columns)
    return "features" in columns or (numbered and not set(columns) & set(recipe.columns))


def _check_same_network(model: LoadedModel, source: Path) -> None:
    """Check that a folder of features was made by the network that made the model's training features."""
    mine, theirs = model.inputs or {}, feature_maker(source)
    if theirs is not None and mine.get("network") and mine["network"] != theirs["network"]:
        raise InputError(
            f"the features in {str(source)!r} are of another network ({theirs['backbone']!r}) than those that the "
            f"model was fitted to ({mine.get('backbone')!r}): compute them with that one"
        )


def _embed(model: LoadedModel, recipe: Recipe | None, samples: Any, skip_broken: bool) -> tuple[Any, IntArray]:
    """Return features of samples and the rows that have them; print a progress bar and a line per unreadable sample."""
    from compshift.report.terminal import progress_bar

    maker = model.network if model.network is not None else recipe
    if maker is None:
        raise InputError("the model takes features: pass a feature file, as `compshift features` writes it")
    with progress_bar("features", len(samples), unit="rows") as advance:
        X, rows, broken = maker.embed(samples, skip_broken=skip_broken, progress=advance)
    for sentence in broken[:MAX_BROKEN_LISTED]:
        typer.echo(f"left out: {sentence}", err=True)
    if broken:
        typer.echo(f"{len(broken)} of {len(samples)} samples cannot be read and are left out", err=True)
    if not len(rows):
        raise InputError(f"not one of the {len(samples)} samples could be read")
    return X, rows


def _check_exists(source: str) -> None:
    """Check that a source is a file, a folder or the name of a data set."""
    if source in MODULES or Path(source).exists():
        return
    if Path(source).suffix or "/" in source:
        raise InputError(f"there is no file or folder {source!r}: check its path")
    raise unknown_name("file or data set", source, tuple(MODULES))


def _check_samples(source: Path, columns: Sequence[str], needed: Sequence[str]) -> None:
    """Check that a table has the columns that a model computes its features from."""
    absent = [name for name in needed if name not in columns]
    if absent:
        raise InputError(
            f"{str(source)!r} lacks the column{'s' * (len(absent) > 1)} {listing(absent)}, which the model needs: its "
            f"columns are {listing(columns)}"
        )


def _check_labels(source: Path, needed: Sequence[str]) -> None:
    """Check that a file has the labels that an evaluation needs."""
    table = ending(source) in TEXT or is_parquet(source)
    if not table and ending(source) != ".npz":
        return  # the reader raises an error of its own
    found = column_names(source) if table else file_attributes(source)
    absent = [name for name in needed if name not in found]
    if absent:
        raise InputError(
            f"{str(source)!r} lacks the label{'s' * (len(absent) > 1)} {listing(absent)}, without which nothing can be "
            f"scored: add {'them' if len(absent) > 1 else 'it'}, or use `compshift predict`, which needs none"
        )
