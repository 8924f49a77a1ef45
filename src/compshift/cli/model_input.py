"""What a model is asked about: a feature file, or a table like the one that it was fitted to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from compshift._errors import InputError
from compshift.core.arrays import IntArray
from compshift.data.table_files import PARQUET, TEXT, column_names

if TYPE_CHECKING:
    from compshift.data.dataset import GroupedDataset
    from compshift.estimators.crm import CRMClassifier
    from compshift.features.recipe import Recipe


def table_recipe(clf: CRMClassifier, source: Path) -> Recipe | None:
    """How the columns of a table become features, or None if ``source`` holds features itself."""
    if source.suffix == ".npz" or not source.exists() or (source.suffix not in TEXT and not _is_parquet(source)):
        return None
    if clf.inputs_ is None:
        if source.suffix in TEXT:
            raise InputError(
                f"the model was fitted to a feature file and {source.name!r} is a table: pass features, as .npz or "
                ".parquet"
            )
        return None
    from compshift.features.recipe import Recipe

    recipe = Recipe.from_dict(clf.inputs_)
    columns = column_names(source)
    holds_features = recipe.kind != "features" and "features" in columns and recipe.columns[0] not in columns
    return None if holds_features else recipe


def _is_parquet(source: Path) -> bool:
    return source.is_dir() or source.suffix in PARQUET


def embed_rows(recipe: Recipe, samples: Any, *, skip_broken: bool) -> tuple[Any, IntArray]:
    """Features of samples and the rows that have them, with a progress bar and a line for each that is left out."""
    import typer

    from compshift.report.terminal import progress_bar

    with progress_bar("features", len(samples), unit="rows") as advance:
        X, rows, broken = recipe.embed(samples, skip_broken=skip_broken, progress=advance)
    for sentence in broken:
        typer.echo(f"left out: {sentence}", err=True)
    return X, rows


def labelled_rows(
    clf: CRMClassifier, source: Path, *, root: Path | None, split: str | None, skip_broken: bool
) -> tuple[GroupedDataset, str]:
    """Features with the model's attributes, of one split; test where there is one and none is named."""
    from dataclasses import replace

    recipe = table_recipe(clf, source)
    if recipe is None:
        from compshift.data.feature_files import read_features

        data = read_features(source, clf.space_.names)
    else:
        targets = list(clf.targets_.names)
        nuisances = [name for name in clf.space_.names if name not in targets]
        data = recipe.load_table(source, target=targets, attributes=nuisances, root=root)
    chosen = split or ("test" if "test" in data.splits else "all")
    data = data.part(chosen)
    if recipe is not None:
        X, rows = embed_rows(recipe, data.samples, skip_broken=skip_broken)
        data = replace(data.rows(rows), samples=X)
    return data, chosen
