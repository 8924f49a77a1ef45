"""Classifiers of tables: ``TableFeatures`` turns columns into features, and ``table_classifier`` adds a classifier.

A fitted ``TableFeatures`` contains the same ``TableColumns`` as the recipe that `compshift fit TABLE` writes. Both
therefore make the same features of a table, and their model files have the same form.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.pipeline import Pipeline
from sklearn.utils._set_output import _get_output_config
from sklearn.utils.validation import check_is_fitted

from compshift._checks import check_same_order
from compshift._errors import InputError, an, check_name, listing, shown, unknown_name
from compshift._progress import steps
from compshift.core.columns import as_pandas, frame_like
from compshift.crm.boosting import CRMBoostingClassifier
from compshift.crm.cv import CRMClassifierCV
from compshift.data.dataset import TFIDF, RawColumns
from compshift.data.raw_tables import as_times, column_kind
from compshift.features.recipe import Recipe
from compshift.features.table_columns import TABLE_ENERGIES, TableColumns, language_columns, left_out_sentence


def table_classifier(
    energies: str = "auto", *, columns: Sequence[str] | None = None, text: str = TFIDF, **parameters: Any
) -> Pipeline:
    """Make a pipeline for tables with columns of numbers, text, booleans and dates, in which values may be missing.

    Its steps are ``features``, a ``TableFeatures``, and ``classifier``. Pass the attributes of training rows with
    ``pipe.fit(table, y, classifier__attributes=a)``, and attributes that are known in use with ``pipe.predict(table,
    attributes=a)``. ``compshift.save`` writes the fitted pipeline as a model file, which ``compshift.load`` and the
    command line read.

    Parameters
    ----------
    energies : "auto", "boosted" or "linear", default="auto"
        Energies of the classifier. "linear" makes a ``CRMClassifierCV``, "boosted" a ``CRMBoostingClassifier``, and
        "auto" a ``CRMBoostingClassifier`` that adds boosted and linear energies. "boosted" and "auto" need
        ``compshift[boosting]``.
    columns : list of str, optional
        Names of the columns to make features of. Default: all columns that can be features, see ``TableFeatures``.
    text : str, default="tfidf"
        How columns of texts become features: "tfidf", or a backbone such as "minilm", see ``TableFeatures``.
    **parameters
        Parameters of the classifier.

    Returns
    -------
    Pipeline
        The pipeline, not yet fitted.

    Raises
    ------
    InputError
        If ``energies`` or the name of a parameter is not known.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"beak": [1.0, None, 4.2, 4.0] * 20, "colour": ["grey", "white", "grey", "brown"] * 20})
    >>> bird, place = ["gull", "gull", "duck", "duck"] * 20, ["sea", "sea", "sea", "lake"] * 20
    >>> pipe = table_classifier("linear").fit(table, bird, classifier__attributes=place)
    >>> pipe.predict(pd.DataFrame({"colour": ["white", None], "beak": [1.1, 4.1]}))
    array(['gull', 'duck'], dtype='<U4')
    """
    check_name("energies", energies, ("auto", *TABLE_ENERGIES))
    kind: Any = CRMClassifierCV if energies == "linear" else CRMBoostingClassifier
    if energies == "auto":
        parameters["energies"] = "auto"
    known = kind().get_params()
    for name in parameters:
        if name not in known:
            raise unknown_name(f"the parameter of {kind.__name__}", name, tuple(known))
    features = TableFeatures("linear" if energies == "linear" else "boosted", columns=columns, text=text)
    return Pipeline([("features", features), ("classifier", kind(**parameters))])


class TableFeatures(TransformerMixin, BaseEstimator):
    """Transformer from columns of numbers, text, booleans and dates to features; values may be missing.

    For linear energies, missing numbers are replaced by the median, numbers are standardised, and each category becomes
    a feature that is 0 or 1. For boosted energies, missing values stay missing, and a column of categories becomes one
    categorical feature, which trees can split by category. A date becomes its year, month, day of the week and days
    since 1970; so does a column of text in which all values are dates such as ``2024-05-31``. Columns that cannot be
    features, such as ids and columns without values, are left out with a warning.

    Texts such as remarks become components of their TF-IDF, which counts words, or the outputs of a backbone, which
    also relates words that training lacks to those that it has.

    Parameters
    ----------
    energies : "linear" or "boosted", default="linear"
        Energies of the classifier that the features are for.
    columns : list of str, optional
        Names of the columns to make features of; a column that cannot be a feature raises an InputError. Default: all
        columns that can be features.
    text : str, default="tfidf"
        How columns of texts become features: "tfidf", or the name of a backbone for texts, as
        ``compshift.nn.load_backbone`` takes it: "minilm", a folder or a model of the Hugging Face hub. A backbone needs
        ``compshift[weights]`` or ``compshift[hf]``. A text that is missing counts as a missing number there.

    Attributes
    ----------
    columns_ : dict of str
        Kind of each column that is used, by name: "number", "boolean", "date", "category" or "text".
    left_out_ : dict of str
        Reason why a column is not used, by name.
    feature_names_in_ : array of str
        Names of the columns of the training table.
    n_features_in_ : int
        Number of columns of the training table.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"age": [20.0, None, 50.0, 50.0], "job": ["cook", "smith", None, "cook"]})
    >>> TableFeatures().fit_transform(table).round(2)
        age  job=cook  job=smith
    0 -1.41       1.0        0.0
    1  0.71       0.0        1.0
    2  0.71       0.0        0.0
    3  0.71       1.0        0.0
    """

    def __init__(self, energies: str = "linear", *, columns: Sequence[str] | None = None, text: str = TFIDF) -> None:
        self.energies = energies
        self.columns = columns
        self.text = text

    def fit(self, X: Any, y: Any = None) -> Self:
        """Determine the kind of each column, and its categories, median and scale, from training rows.

        Parameters
        ----------
        X : DataFrame of pandas or Polars, Arrow table, or mapping of columns
            Columns of the training rows, without the labels.
        y : optional
            Classes of the rows; only used to check that they are not a column of ``X`` too.

        Returns
        -------
        self

        Raises
        ------
        InputError
            If the table cannot be read, none of its columns can be a feature, or the backbone cannot be loaded.
        """
        self._fit(X, y)
        return self

    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """Fit to training rows, and make features of them; texts are embedded once.

        Parameters
        ----------
        X, y
            As in ``fit``.

        Returns
        -------
        DataFrame (n, p)
            Features, as ``transform`` returns them.
        """
        rows, index = self._fit(X, y)
        return self._features(X, rows, index)

    def _fit(self, X: Any, y: Any) -> tuple[RawColumns, Any]:
        """Set the fitted attributes; return the columns, with embeddings in place of texts, and the rows' index."""
        check_name("energies", self.energies, TABLE_ENERGIES)
        if not isinstance(self.text, str) or not self.text:
            raise InputError(f"text is {shown(self.text)}: pass {TFIDF!r}, or the name of a backbone such as 'minilm'")
        frame = _as_frame(X)
        check_same_order({"X": X, "y": y})
        names = list(frame.columns) if self.columns is None else _checked_names(self.columns, list(frame.columns))
        content = {name: _with_dates(frame[name].reset_index(drop=True), name) for name in names}
        _check_no_target(content, y)
        chosen = self.columns is not None
        rows, recipe = RawColumns(content), Recipe("table", tuple(names))
        texts = [] if self.text == TFIDF else language_columns(content, typed=True)
        if texts:
            folder = Path(self.text)
            recipe = replace(recipe, backbone=str(folder.resolve()) if folder.is_dir() else self.text)
            rows, recipe = _embedded(rows, texts, recipe)
        table, left_out = TableColumns.fit(rows.columns, self.energies, typed=True, chosen=chosen)
        if not table.columns:
            raise InputError(
                f"no column of X can be a feature, {left_out_sentence(left_out)}: add columns of numbers, dates or "
                "categories"
            )
        repeated = [name for name in table.feature_names if table.feature_names.count(name) > 1]
        if repeated:
            raise InputError(f"two columns of X make features of the name {repeated[0]!r}: rename one of the columns")
        self._adopt(replace(recipe, columns=table.names, table=table), left_out, list(frame.columns))
        if left_out:
            warnings.warn(
                f"not used as features: {left_out_sentence(left_out)}; drop these columns from X, or name those to use "
                "with columns=[…]",
                stacklevel=3,
            )
        return rows, frame.index

    def _adopt(self, recipe: Recipe, left_out: Mapping[str, str], names: Sequence[str]) -> None:
        """Set the fitted attributes."""
        assert recipe.table is not None
        self._fitted_recipe, self._table = recipe, recipe.table
        table = recipe.table
        self.columns_ = {column.name: column.kind for column in table.columns}
        self.left_out_ = dict(left_out)
        self.feature_names_in_ = np.array(names, dtype=object)
        self.n_features_in_ = len(names)

    def transform(self, X: Any) -> Any:
        """Make features of the rows of a table.

        Parameters
        ----------
        X : DataFrame of pandas or Polars, Arrow table, or mapping of columns
            Rows with the columns in ``columns_``, in any order; other columns are ignored.

        Returns
        -------
        DataFrame (n, p)
            Features as numbers. For linear energies, a frame of the library of ``X``; for boosted energies, a pandas
            DataFrame, in which categorical features have the type ``category``, and a category's number is its position
            in the order of frequency in training. A pandas DataFrame has the index of ``X``.

        Raises
        ------
        InputError
            If a column is missing, or a value does not fit its column.
        """
        check_is_fitted(self)
        frame = _as_frame(X)
        absent = [name for name in self.columns_ if name not in frame.columns]
        if absent:
            plural, them = ("s", "them") if len(absent) > 1 else ("", "it")
            raise InputError(
                f"X lacks the column{plural} {listing(absent)}, from which the features are made: add {them} (X has "
                f"the columns {listing(frame.columns)})"
            )
        rows = RawColumns({name: frame[name].reset_index(drop=True) for name in self.columns_})
        if self._table.embedded:
            rows, _ = _embedded(rows, self._table.embedded, self._fitted_recipe)
        return self._features(X, rows, frame.index)

    def _features(self, X: Any, rows: RawColumns, index: Any) -> Any:
        """Return the features of the table ``X``; ``rows`` are its columns, with embeddings in place of texts."""
        import pandas as pd

        features = self._table.transform(rows.columns)
        names = self._table.feature_names
        result = pd.DataFrame(features, columns=names, index=index)
        library = _get_output_config("transform", self)["dense"]
        if self.energies == "linear":
            return frame_like(result, X) if library == "default" else result
        if self._table.categorical and library == "polars":
            raise InputError(
                "set_output(transform='polars') is for energies='linear': for boosted energies, categories are "
                "numbers, which no type of Polars can hold; use set_output(transform='pandas')"
            )
        n_levels = {column.name: len(column.levels) for column in self._table.columns}
        for column in self._table.categorical:
            levels = np.arange(n_levels[names[column]], dtype=np.float64)
            result.isetitem(column, pd.Categorical(features[:, column], categories=levels))
        return result

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Return the names of the features.

        Parameters
        ----------
        input_features : list of str, optional
            Names of the columns of the training table; an error is raised if they differ from ``feature_names_in_``.

        Returns
        -------
        array of str (p,)
            Names of the features, such as ``job=cook`` and ``since (year)``.
        """
        check_is_fitted(self)
        if input_features is not None and _as_list(input_features) != list(self.feature_names_in_):
            raise InputError(
                f"input_features is not equal to feature_names_in_: pass None or {listing(self.feature_names_in_)}"
            )
        return np.array(self._table.feature_names, dtype=object)

    def _recipe(self) -> Recipe:
        """Return the recipe that a model file stores for these features."""
        check_is_fitted(self)
        return self._fitted_recipe

    @classmethod
    def _from_recipe(cls, recipe: Recipe) -> Self:
        """Return the fitted transformer of a recipe of the kind "table"."""
        assert recipe.table is not None
        features = cls(recipe.table.energies, text=recipe.backbone or TFIDF)
        features._adopt(replace(recipe, split=None), {}, recipe.columns)
        return features

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        return tags


def _embedded(rows: RawColumns, texts: Sequence[str], recipe: Recipe) -> tuple[RawColumns, Recipe]:
    """Return columns with embeddings in place of ``texts``, and the recipe with the digest of the backbone."""
    with steps("rows with texts", len(rows)) as advance:

        def progress(count: int) -> None:
            for _ in range(count):
                advance()

        return recipe.embed_texts(rows, texts, progress=progress)


def _as_frame(X: Any) -> Any:
    """Convert a table to a pandas DataFrame with distinct texts as column names, and check that it is not empty."""
    import pandas as pd

    table = as_pandas(X)
    if isinstance(table, Mapping):
        try:
            table = pd.DataFrame({name: getattr(column, "array", column) for name, column in table.items()})
        except (TypeError, ValueError) as error:
            raise InputError(f"X cannot be read as a table ({error}): pass columns of equal length") from None
    if not isinstance(table, pd.DataFrame):
        raise InputError(
            f"X is {an(type(X).__name__)}, but columns are read by name: pass a table, for example a pandas DataFrame"
        )
    names = [str(name) for name in table.columns]
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise InputError(f"X has several columns of the name {repeated!r}: rename all but one")
    if not len(table) or not names:
        raise InputError(f"X has {len(table)} rows and {len(names)} columns: pass at least one of each")
    return table.set_axis(names, axis=1)


def _checked_names(columns: Any, known: Sequence[str]) -> list[str]:
    """Check that ``columns`` names different columns of the table, and return it as a list."""
    names = [str(name) for name in _as_list(columns) or []]
    if not names:
        raise InputError(
            f"columns is {shown(columns)}: pass a list of names, or None for all columns that can be features"
        )
    for name in names:
        if name not in known:
            raise unknown_name("column", name, known)
        if names.count(name) > 1:
            raise InputError(f"columns has {name!r} twice: name each column once")
    return names


def _as_list(names: Any) -> list[Any] | None:
    """Return a list, tuple, array or pandas index as a list; None for text, mappings and values without a length."""
    if not isinstance(names, str | Mapping) and np.iterable(names) and hasattr(names, "__len__"):
        return list(names)
    return None


def _with_dates(column: Any, name: str) -> Any:
    """Return a column of text as times if all of its values are dates; otherwise unchanged."""
    from pandas.api import types

    is_text = types.infer_dtype(column, skipna=True) == "string"
    return as_times(column, name) if is_text and column_kind(column, typed=False) == "date" else column


def _check_no_target(content: Mapping[str, Any], y: Any) -> None:
    """Check that no column has both the name and the values of a target, which would leak it into the features."""
    y = as_pandas(y, "y")
    single = {y.name: y} if hasattr(y, "name") else {}
    targets = {name: y[name] for name in y} if isinstance(y, Mapping) or hasattr(y, "columns") else single
    for name, values in targets.items():
        column = content.get(str(name))
        if column is not None and np.array_equal(column.to_numpy(dtype=object), np.asarray(values, dtype=object)):
            raise InputError(f"X contains the target {name!r} as a column: drop it from X")
