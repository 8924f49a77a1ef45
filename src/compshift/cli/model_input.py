"""What a model is asked about: a feature file, or a table like the one that it was fitted to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compshift._errors import InputError
from compshift.cli.options import chosen_part
from compshift.core.arrays import IntArray
from compshift.data.table_files import PARQUET, TEXT, column_names, read_manifest

if TYPE_CHECKING:
    from compshift.data.dataset import GroupedDataset
    from compshift.estimators.crm import CRMClassifier
    from compshift.features.recipe import Recipe


MAX_SENTENCES = 10
"""More broken samples than this are counted only."""


def table_recipe(clf: CRMClassifier, source: Path, backbone: str | None = None) -> Recipe | None:
    """How the columns of a table become features, or None if ``source`` holds features itself.

    ``backbone`` tells where the backbone lies now; it must be the one that the model was fitted with.
    """
    if source.suffix == ".npz" or not source.exists() or (source.suffix not in TEXT and not _is_parquet(source)):
        return None
    if clf.inputs_ is None or "kind" not in clf.inputs_:
        _check_network(clf, source)
        if source.suffix in TEXT:
            raise InputError(
                f"the model was fitted to a feature file and {source.name!r} is a table: pass features, as .npz or "
                ".parquet"
            )
        return None
    from compshift.features.recipe import Recipe

    recipe = Recipe.from_dict(clf.inputs_)
    columns = column_names(source)
    if recipe.kind != "features" and "features" in columns and recipe.columns[0] not in columns:
        _check_network(clf, source)
        return None
    return recipe if backbone is None else replace(recipe, backbone=backbone)


def made_by(source: Path) -> dict[str, Any] | None:
    """The network that made a folder of features, as a model remembers it."""
    about = read_manifest(source) if source.is_dir() else None
    return None if about is None else {"network": about["key"], "backbone": about.get("backbone", "")}


def _check_network(clf: CRMClassifier, source: Path) -> None:
    """Refuse a folder of features that another network made than those that the model was fitted to."""
    mine, theirs = clf.inputs_ or {}, made_by(source)
    if theirs is not None and mine.get("network") and mine["network"] != theirs["network"]:
        raise InputError(
            f"the features in {str(source)!r} are of another network ({theirs['backbone']!r}) than those that the "
            f"model was fitted to ({mine.get('backbone')!r}): compute them with that one"
        )


def _is_parquet(source: Path) -> bool:
    return source.is_dir() or source.suffix in PARQUET


def embed_rows(recipe: Recipe, samples: Any, *, skip_broken: bool) -> tuple[Any, IntArray]:
    """Features of samples and the rows that have them, with a progress bar and a line for each that is left out."""
    import typer

    from compshift.report.terminal import progress_bar

    with progress_bar("features", len(samples), unit="rows") as advance:
        X, rows, broken = recipe.embed(samples, skip_broken=skip_broken, progress=advance)
    for sentence in broken[:MAX_SENTENCES]:
        typer.echo(f"left out: {sentence}", err=True)
    if broken:
        typer.echo(f"{len(broken)} of {len(samples)} samples cannot be read and are left out", err=True)
    return X, rows


def labelled_rows(
    clf: CRMClassifier,
    source: Path,
    *,
    root: Path | None,
    split: str | None,
    skip_broken: bool,
    backbone: str | None,
) -> tuple[GroupedDataset, str]:
    """Features with the model's attributes, of one split; test where there is one and none is named."""
    recipe = table_recipe(clf, source, backbone)
    if recipe is None:
        from compshift.data.feature_files import read_features

        data = read_features(source, clf.space_.names)
    else:
        targets = list(clf.targets_.names)
        nuisances = [name for name in clf.space_.names if name not in targets]
        data = recipe.load_again(source, target=targets, attributes=nuisances, root=root)
    data, chosen = chosen_part(data, split, "test")
    if recipe is not None:
        X, rows = embed_rows(recipe, data.samples, skip_broken=skip_broken)
        data = replace(data.rows(rows), samples=X)
    return data, chosen
