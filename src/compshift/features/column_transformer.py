"""Write fitted steps of scikit-learn as a recipe: imputers, scalers, encoders, tables of them by column, and TF-IDF.

A model file contains no code, so a pipeline can be saved only if its steps do what the ``TableColumns`` or the
``TextTerms`` of a recipe can do. ``recipe_of`` returns that recipe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from compshift.data.dataset import TFIDF
from compshift.features.recipe import Recipe
from compshift.features.table_classifier import TableFeatures
from compshift.features.table_columns import TableColumn, TableColumns
from compshift.features.text_columns import TextTerms


def recipe_of(steps: Sequence[tuple[str, Any]]) -> Recipe | None:
    """Return a recipe that does the same as fitted steps before a classifier; None if there is no such recipe."""
    if len(steps) != 1:
        return None
    step = steps[0][1]
    if isinstance(step, TableFeatures):
        return step._recipe()
    if isinstance(step, TfidfVectorizer):
        return _of_words(step)
    names = [str(name) for name in getattr(step, "feature_names_in_", ())]
    columns = _of_columns(step, names) if isinstance(step, ColumnTransformer) else _columns_of(step, names)
    if not columns or len({column.name for column in columns}) < len(columns):
        return None
    return Recipe("table", tuple(column.name for column in columns), table=TableColumns("linear", tuple(columns)))


def _of_words(step: TfidfVectorizer) -> Recipe | None:
    """Return the recipe of a vectorizer with the default tokens and weights; texts are the column "text" of a table."""
    fitted = ("vocabulary", "min_df", "max_df", "max_features", "smooth_idf", "stop_words", "dtype")
    default = type(step)().get_params()
    if any(value != default[name] for name, value in step.get_params().items() if name not in fitted):
        return None
    return Recipe(TFIDF, ("text",), terms=TextTerms.of(step))


def _of_columns(step: ColumnTransformer, names: list[str]) -> list[TableColumn] | None:
    """Return the columns of a transformer of single columns, in the order of its output; None if one is not known."""
    if step.transformer_weights:
        return None
    columns: list[TableColumn] = []
    for label, part, chosen in step.transformers_:
        if part == "drop" or label not in step.output_indices_ or isinstance(chosen, slice):
            continue
        # fitted transformers name columns by position or by name
        chosen_names = [name if isinstance(name, str) else names[name] for name in np.atleast_1d(chosen).tolist()]
        found = _columns_of(part, chosen_names)
        if found is None:
            return None
        columns += found
    return columns


def _columns_of(step: Any, names: list[str]) -> list[TableColumn] | None:
    """Return how a fitted step turns the columns ``names`` into features; None if a recipe cannot do that."""
    if isinstance(step, Pipeline):
        *first, last = (part for _, part in step.steps if part not in (None, "passthrough"))
        if not first:
            return _columns_of(last, names)
        found = _columns_of(last, names)
        filling = _filling(first[0], names) if isinstance(first[0], SimpleImputer) and len(first) == 1 else None
        if filling is None or found is None or not isinstance(last, StandardScaler | OneHotEncoder):
            return None
        return _filled(found, filling)
    if isinstance(step, SimpleImputer):
        filling = _filling(step, names)
        return None if filling is None else _filled([_number(name, 0.0, 1.0) for name in names], filling)
    if isinstance(step, StandardScaler):
        scale = np.ones(len(names)) if step.scale_ is None else step.scale_
        mean = step.mean_ if step.with_mean else np.zeros(len(names))
        return [_number(*column) for column in zip(names, mean, scale, strict=True)]
    if isinstance(step, OneHotEncoder):
        return _categories(step, names)
    return None


def _filling(step: SimpleImputer, names: list[str]) -> list[Any] | None:
    """Return the value that an imputer puts where one is missing, for each column; None if it does more than that."""
    if step.add_indicator or not pd.isna(step.missing_values):
        return None
    filling = np.asarray(step.statistics_).tolist()
    return None if len(filling) != len(names) or pd.isna(filling).any() else filling


def _filled(columns: list[TableColumn], filling: list[Any]) -> list[TableColumn] | None:
    """Return the columns with these values where one is missing; None if a value does not suit its column."""
    filled = []
    for column, value in zip(columns, filling, strict=True):
        number = isinstance(value, int | float)
        if (column.kind == "number") != number or (column.levels and value not in column.levels):
            return None
        filled.append(replace(column, median=(float(value),)) if number else replace(column, missing=value))
    return filled


def _number(name: str, mean: float, scale: float) -> TableColumn:
    """Return a column of numbers; a missing one counts as the mean."""
    return TableColumn(name, "number", median=(float(mean),), mean=(float(mean),), scale=(float(scale),))


def _categories(step: OneHotEncoder, names: list[str]) -> list[TableColumn] | None:
    """Return the columns of categories that an encoder turns into zeros and ones.

    Categories must be text or whole numbers, and new ones must be ignored; a missing value must not be a category.
    """
    plain = step.drop is None and step.min_frequency is None and step.max_categories is None
    if not plain or step.handle_unknown != "ignore":
        return None
    levels = [[value.item() if isinstance(value, np.generic) else value for value in one] for one in step.categories_]
    if not all(type(value) in (str, int) for one in levels for value in one):
        return None
    return [
        TableColumn(name, "category", levels=tuple(str(value) for value in one))
        for name, one in zip(names, levels, strict=True)
    ]
