"""Load the rows that a model predicts or is evaluated on, and the unlabelled rows that a fit may use.

They are in a feature file, a table or a named data set. A model file contains the recipe of its features (columns and
backbone), so the same columns of another table can be turned into features. Missing columns and, in an evaluation,
missing labels raise an error before anything is computed.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import typer

from compshift._errors import InputError, listing, unknown_name
from compshift._files import ending, is_parquet
from compshift.cli.inputs import TableOptions, feature_origin, require_torch, split_part
from compshift.cli.options import names, read_prior, reject_unused
from compshift.core.arrays import IntArray
from compshift.core.groups import GroupSpace
from compshift.crm.known import as_model_values, check_known_names, known_codes
from compshift.data.benchmarks import MODULES, benchmark
from compshift.data.dataset import GroupedDataset, in_space
from compshift.data.feature_files import (
    FEATURE_COLUMN,
    file_attributes,
    read_attributes,
    read_features,
    read_inputs,
)
from compshift.data.splits import check_split, split_rows
from compshift.data.table_files import column_names, is_table, read_kept
from compshift.features.recipe import Recipe
from compshift.training.load import LoadedModel, backbone_path, load_model_parts


@dataclass(frozen=True, eq=False)
class UnlabelledRows:
    """Features of the r readable rows of an input."""

    X: Any  # (r, p)
    n_rows: int  # number of rows of the input, readable or not
    position: IntArray  # (r,) row numbers of the readable rows
    images: tuple[str, Any] | None = None  # output column for the image files: its name and its values
    known: dict[str, Any] | None = None  # values (r,) of the attributes that are known in use, None where missing
    kept: Any = None  # DataFrame of columns of the input, one row for each of its rows, readable or not


def load_model(path: Path, prior: str | None) -> LoadedModel:
    """Load a model file or the folder of a training run, and set its prior unless ``prior`` is None."""
    if path.is_dir():
        require_torch()
    loaded = load_model_parts(path)
    if loaded.network is None:
        # Columns are read by name and passed to the model as an array in the right order.
        warnings.filterwarnings("ignore", "X does not have valid feature names")
    if prior is not None:
        if not hasattr(loaded.clf, "set_prior"):
            raise InputError(f"--prior is for models of groups, but {str(path)!r} predicts only classes: leave it out")
        loaded.clf.set_prior(read_prior(prior, loaded.clf.space_))
    return loaded


def known_names(model: LoadedModel, text: str | None) -> list[str]:
    """Parse --known into names of the model's attributes; return [] if the option is not set."""
    if text is None:
        return []
    if not hasattr(model.clf, "group_log_proba"):
        raise InputError(
            f"--known is for models of groups, but {str(model.path)!r} predicts only classes: leave it out"
        )
    given = names(text, "--known")
    if len(set(given)) < len(given):
        raise InputError(f"--known is {text!r}: name each attribute once")
    check_known_names(model.clf, given)
    return given


def kept_names(model: LoadedModel, text: str | None) -> list[str]:
    """Parse --keep into column names and check that predictions have no such columns; return [] if it is not set."""
    if text is None:
        return []
    given = names(text, "--keep")
    if len(set(given)) < len(given):
        raise InputError(f"--keep is {text!r}: name each column once")
    predicted = [name for name in given if name in model.clf.targets_.names]
    if predicted:
        raise InputError(
            f"--keep names {listing(predicted)}, which the predictions have as well: rename the column in the input, "
            "or leave it out of --keep"
        )
    return given


def unlabelled_rows(
    model: LoadedModel, source: str, options: TableOptions, known: Sequence[str] = (), keep: Sequence[str] = ()
) -> UnlabelledRows:
    """Return features of every row of the input, or of one split if it is a feature file or named data set.

    ``known`` names attributes whose values are read, too, and ``keep`` columns that are passed on unchanged.
    """
    _check_exists(source)
    check_backbone_options(model, options)
    recipe, split, is_named = None, options.split or "all", source in MODULES
    if is_named:
        data = benchmark(source).load(options.root).part(split)
        samples, columns = data.samples, list(data.space.names)
    else:
        samples, recipe = _file_samples(model, Path(source), options)
        columns = _label_columns(Path(source)) if known or keep else []
    values, kept = None, None
    _check_columns(source, keep, columns, "--keep")
    if keep:
        kept = data.columns(keep) if is_named else _kept_columns(Path(source), keep, split)
    if known:
        _check_columns(source, known, columns, "--known")
        values = data.columns(known) if is_named else read_attributes(Path(source), known, split)
        values = as_model_values(model.clf, values)
        known_codes(model.clf, values, len(samples))  # raises before features are computed
    X, position = samples, np.arange(len(samples))
    if is_named or recipe is not None or model.network is not None:
        X, position = _embed(model, recipe, samples, options)
    images = None
    if recipe is not None and recipe.kind == "images":
        images = (f"{recipe.columns[0]} (image)", samples.names)
    if values is not None:
        values = {name: column[position] for name, column in values.items()}
    return UnlabelledRows(X, len(samples), position, images, values, kept)


def _kept_columns(source: Path, keep: Sequence[str], split: str) -> Any:
    """Return columns of a table or feature file, for one split or all rows, as a DataFrame.

    A column of a text file becomes numbers only if printing them gives the same texts, so 007 stays a text.
    """
    import pandas as pd

    if ending(source) == ".npz":
        return pd.DataFrame(read_attributes(source, keep, split))
    frame = read_kept(source, keep).to_pandas()
    if split == "all" or "split" not in column_names(source):
        return frame
    splits = check_split(read_kept(source, ["split"]).column("split").to_pylist(), len(frame))
    return frame[split_rows(splits, split)].reset_index(drop=True)


def _check_columns(source: str, given: Sequence[str], columns: Sequence[str], option: str) -> None:
    """Check that an input has the columns that an option names."""
    absent = [name for name in given if name not in columns]
    if absent:
        plural, them = ("s", "them") if len(absent) > 1 else ("", "it")
        raise InputError(
            f"{source!r} lacks the column{plural} {listing(absent)}, which {option} names: add {them}, or leave {them} "
            f"out of {option} (the columns are {listing(columns)})"
        )


def pool_rows(source: Path, output: Path, inputs: Any, options: TableOptions) -> tuple[GroupedDataset, Recipe | None]:
    """Return the rows of a pool for a fit, and the recipe that computes their features; None if they are features.

    ``inputs`` describe how the features of the labelled rows are made, as the model file ``output`` will store it. In
    place of labels, which data sets and shards of features require, the rows have one attribute with a single value.
    """
    if not source.exists():
        raise InputError(f"there is no file or folder {str(source)!r}: check the path of --unlabelled")
    try:
        samples, recipe = _file_samples(LoadedModel(output, None, inputs=inputs), source, options)
    except InputError as error:  # the labelled rows may have the same columns: say which file is meant
        raise error if source.name in str(error) else InputError(f"{str(source)!r}: {error}") from None
    space = GroupSpace.from_cardinalities([1], names=["unlabelled"])
    data = GroupedDataset(samples, space, np.zeros((len(samples), 1), dtype=np.int64))
    return data, recipe if recipe is not None and recipe.needs_network else None


def _file_samples(model: LoadedModel, source: Path, options: TableOptions) -> tuple[Any, Recipe | None]:
    """Return the samples of every row of a table, or of one split of a feature file, and the recipe of a table."""
    recipe = _table_recipe(model, source, options.backbone)
    if recipe is None:
        _reject_sample_options(str(source), options)
        return read_inputs(source, options.split or "all"), None
    if options.split is not None:
        raise InputError("--split is for feature files and named data sets, not for tables: leave it out")
    return recipe.load_samples(source, options.root), recipe


def labelled_rows(
    model: LoadedModel, source: str, options: TableOptions, default: str = "test"
) -> tuple[GroupedDataset, str]:
    """Return the features and attributes of one split, and the name of that split.

    If ``options.split`` is None, use the split ``default`` if there is one, otherwise all rows.
    """
    space = model.clf.space_
    recipe = None
    _check_exists(source)
    check_backbone_options(model, options)
    if source in MODULES:
        data = benchmark(source).load(options.root)
    else:
        recipe = _table_recipe(model, Path(source), options.backbone)
        _check_labels(Path(source), space.names)
        if recipe is None:
            _reject_sample_options(source, options)
            data = read_features(Path(source), space.names)
        else:
            targets = list(model.clf.targets_.names)
            nuisances = [name for name in space.names if name not in targets]
            data = recipe.load_with_same_split(Path(source), target=targets, attributes=nuisances, root=options.root)
            if "shares" in (recipe.split or {}) and data.split is None:
                typer.echo(
                    f"warning: the model was fitted to a random split of a table, but {source!r} has other rows or "
                    "labels than that table: if the two overlap, the score includes rows that the model was fitted to",
                    err=True,
                )
    data, chosen = split_part(data, options.split, default)
    if recipe is not None or model.network is not None:
        X, rows = _embed(model, recipe, data.samples, options)
        data = replace(data.rows(rows), samples=X)
    return in_space(data, space), chosen


def _table_recipe(model: LoadedModel, source: Path, backbone: str | None) -> Recipe | None:
    """Return the recipe that turns a table's columns into features; None if ``source`` is a feature file.

    ``backbone`` is the value of --backbone; None for the backbone that the model file names.
    """
    if not source.exists() or not is_table(source):
        return None
    if model.inputs is None or "kind" not in model.inputs:
        _check_same_network(model, source)
        if not is_parquet(source):
            if model.network is None:
                origin, remedy = "fitted to unnamed features", "fit to named columns (with --columns or a DataFrame)"
            else:
                origin, remedy = "trained on a feature file or a named data set", "pass the name of the data set"
            raise InputError(
                f"the model was {origin}, but {source.name!r} is a table: pass features (.npz or .parquet), or {remedy}"
            )
        return None
    recipe = Recipe.from_dict(model.inputs)
    columns = column_names(source)
    if is_parquet(source) and recipe.columns[0] not in columns and _holds_features(columns, recipe):
        _check_same_network(model, source)
        return None
    _check_samples(source, columns, recipe.columns)
    return replace(recipe, backbone=backbone_path(model.path, recipe.backbone) if backbone is None else backbone)


def _reject_sample_options(source: str, options: TableOptions) -> None:
    """Raise an InputError for options about images and texts if the source is a feature file."""
    given = {"--root": options.root, "--skip-broken": options.skip_broken, "--backbone": options.backbone}
    reject_unused(given, f"for images and texts, but {source!r} is a feature file")


def check_backbone_options(model: LoadedModel, options: TableOptions) -> None:
    """Check that --backbone and --weights are used only with models whose recipe contains a backbone."""
    given = {"--backbone": options.backbone, "--weights": options.weights}
    if model.network is not None:
        reject_unused(given, "for models of `compshift fit`, and a training run contains its backbone")
    elif "kind" not in (model.inputs or {}) or not Recipe.from_dict(model.inputs).needs_network:
        reject_unused(given, "for models of images and texts, but this model takes features")


def _holds_features(columns: list[str], recipe: Recipe) -> bool:
    """Return whether a file holds features: a column ``features``, or ``f0``, ``f1``, … and no column of the recipe."""
    numbered = any(FEATURE_COLUMN.fullmatch(name) for name in columns)
    return "features" in columns or (numbered and not set(columns) & set(recipe.columns))


def _check_same_network(model: LoadedModel, source: Path) -> None:
    """Check that the network that computed a folder of features also computed the model's training features."""
    expected, found = model.inputs or {}, feature_origin(source)
    if found is not None and expected.get("network") and expected["network"] != found["network"]:
        raise InputError(
            f"the features in {str(source)!r} were computed by another network ({found['backbone']!r}) than the "
            f"features that the model was fitted to ({expected.get('backbone')!r}): compute them with the latter"
        )


def _embed(model: LoadedModel, recipe: Recipe | None, samples: Any, options: TableOptions) -> tuple[Any, IntArray]:
    """Return features (r, p) of the readable samples, and their row numbers (r,).

    Print a progress bar, the first unreadable samples and their number.
    """
    from compshift.report.terminal import progress_bar

    embedder = model.network if model.network is not None else recipe
    own = {"weights": options.weights} if model.network is None else {}
    if embedder is None:
        raise InputError(
            "only the folder of a training run can predict a named data set, but the model is a file: pass a table or "
            "feature file with the columns that the model was fitted to"
        )
    with progress_bar("features", len(samples), unit="rows") as advance:
        X, rows, broken = embedder.embed(samples, skip_broken=options.skip_broken, progress=advance, **own)
    for sentence in broken[:10]:
        typer.echo(f"left out: {sentence}", err=True)
    if broken:
        typer.echo(f"{len(broken)} of {len(samples)} samples could not be read and were left out", err=True)
    if not len(rows):
        raise InputError(f"none of the {len(samples)} samples could be read: check the paths of the files")
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
            f"{str(source)!r} lacks the column{'s' * (len(absent) > 1)} {listing(absent)}, which the model needs: add "
            f"{'them' if len(absent) > 1 else 'it'}, or pass another table (the columns are {listing(columns)})"
        )


def _label_columns(source: Path) -> list[str]:
    """Return the names of a table's columns, or of the attributes of an ``.npz`` file."""
    return file_attributes(source) if ending(source) == ".npz" else column_names(source)


def _check_labels(source: Path, needed: Sequence[str]) -> None:
    """Check that a file has all attributes of the model, which an evaluation needs as labels."""
    if not is_table(source) and ending(source) != ".npz":
        return  # reading the file will raise an error about its format
    found = _label_columns(source)
    absent = [name for name in needed if name not in found]
    if absent:
        raise InputError(
            f"{str(source)!r} lacks the label{'s' * (len(absent) > 1)} {listing(absent)}, which an evaluation needs: "
            f"add {'them' if len(absent) > 1 else 'it'}, or use `compshift predict`, which needs no labels"
        )
