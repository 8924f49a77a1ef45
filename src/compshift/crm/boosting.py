"""Compositional Risk Minimization with gradient-boosted trees, as a scikit-learn classifier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from compshift._checks import check_count, check_fraction, check_positive
from compshift._errors import InputError, check_name
from compshift._progress import CallbackSupportMixin, reported_to_callbacks
from compshift.core.arrays import FloatArray
from compshift.core.groups import GroupSpace
from compshift.crm import io
from compshift.crm.boosted_energies import BoostingParams
from compshift.crm.fit import FitParams, Setting, check_offset
from compshift.crm.fitted import FittedCRM
from compshift.crm.inputs import check_jobs, restored_on_error, seed_of, visible_log
from compshift.crm.linear_columns import LinearColumns, TreesAndColumns
from compshift.crm.mixed_features import MixedColumns, mixed_features
from compshift.crm.model import BIASES, warn_of_unreliable_biases
from compshift.crm.table_energies import ENERGIES, TableFit, fit_table
from compshift.crm.trees import Trees, import_lightgbm

MAX_LEARNING_RATE = 10
"""Largest accepted ``learning_rate``: far larger values make the energies overflow."""

MAX_LEAVES = 100_000
"""Largest number of leaves of a tree that LightGBM can grow, rounded down."""


class CRMBoostingClassifier(CallbackSupportMixin, FittedCRM):
    r"""Classifier for tables with combinations of attributes that may be absent from the training data.

    As ``CRMClassifier``, but the energy of each attribute value is a sum of gradient-boosted trees (LightGBM), not a
    linear function: it suits tables of numbers and categories, with or without missing values, and needs no scaling.
    The sum over attributes, the biases and the predictions under any prior are the same. Needs
    ``compshift[boosting]``.

    Each of ``n_folds`` folds leaves out some seen groups and a part of the samples of every other group. The held-out
    groups and samples choose the number of rounds; the biases, and a temperature of the energies, are fitted to the
    energies of the held-out samples, because trees fit their own training samples too closely.

    Parameters
    ----------
    energies : "boosted", "linear" or "auto", default="boosted"
        Kind of energies. ``"boosted"``: trees. ``"linear"``: linear functions of the standardised numbers and of
        indicators of frequent categories and of missing values, with a ridge chosen on held-out groups and samples; it
        does not need LightGBM. ``"auto"``: the sum of both, each multiplied by a factor that is fitted to held-out
        samples; a kind that makes the fit to them worse is left out.
    max_iter : int, default=100
        Maximum number of rounds of boosting. A round adds one tree per attribute value, and a single one for an
        attribute with two values.
    early_stopping : bool, default=True
        Whether to choose the number of rounds, up to ``max_iter``, by the accuracy on held-out groups and samples.
    learning_rate : float, default=0.2
        Factor by which the leaves of each tree are multiplied, at most 10.
    max_leaf_nodes : int, default=15
        Maximum number of leaves of a tree.
    min_samples_leaf : int, default=20
        Minimum number of samples in a leaf.
    l2_regularization : float, default=1.0
        Ridge on the values of the leaves.
    categorical_features : "from_dtype" or list of columns, default="from_dtype"
        Columns of categories, by name or index, besides columns of text, categories or booleans.
    prior : "uniform", "hull", "train", array or mapping, default="uniform"
        Probability of each group in the population in which the model will be used, as in ``CRMClassifier``.
    bias : "extrapolated", "cumulant", "shrunk" or "learned", default="extrapolated"
        How the bias of a group is computed, as in ``CRMClassifier``.
    unseen_offset : float, default=0.0
        Number of nats added to the log-probability of every unseen group before normalising.
    support : "all", "hull", "observed", or codes of shape (g, m), default="all"
        Candidate groups; no other group is ever predicted.
    n_folds : int, default=3
        Number of folds.
    confidence : float, default=0.9
        Coverage of the intervals of ``expected_group_accuracy_``.
    random_state : int, RandomState or None, default=0
        Seed of the folds and of LightGBM.
    n_jobs : int or None, default=None
        Number of threads of LightGBM; None and −1 mean all cores.
    verbose : bool or int, default=False
        Whether to log progress to the logger ``compshift``, or to standard error if logging is not configured.

    Attributes
    ----------
    classes_, space_, targets_, hull_, groups_, seen_, inside_hull_, group_weight_ : as in ``CRMClassifier``
        Classes, attributes and candidate groups.
    bias_, learned_bias_, cumulant_bias_, effective_sample_size_, pareto_k_, log_prior_ : arrays (g,)
        Biases of the candidates, how reliable they are, and the current prior, as in ``CRMClassifier``.
    energies_ : "boosted", "linear" or "both"
        Kind of energies that is used.
    temperature_ : float
        Factor by which the energies are multiplied.
    n_iter_ : int
        Number of rounds of boosting, or of iterations of the linear fit.
    cv_results_ : dict of arrays
        For each setting that was tried (``energies``, ``n_iter`` and ``alpha``): the mean accuracy over held-out groups
        (``mean_test_score``; NaN if no group can be held out), its standard error over groups (``std_test_score``), and
        the mean over held-out samples of the other groups (``mean_seen_score``).
    best_index_ : int
        Index of the setting that is used.
    feature_importances_ : array (p,)
        Number of splits on each feature; for linear energies, the Euclidean norm of its coefficients.

    Examples
    --------
    Four Gaussians at the corners of a square; the corner (0, 0) is missing from training.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> z = np.repeat([[0, 1], [1, 0], [1, 1]], 500, axis=0)
    >>> X = rng.normal(size=z.shape) + 4 * z
    >>> clf = CRMBoostingClassifier(max_iter=20).fit(X, z[:, 0], attributes=z[:, 1])  # doctest: +SKIP
    >>> clf.predict_group([[0.0, 0.0], [4.0, 4.0]])  # doctest: +SKIP
    array([[0, 0],
           [1, 1]])
    """

    def __init__(
        self,
        *,
        energies: str = "boosted",
        max_iter: int = 100,
        early_stopping: bool = True,
        learning_rate: float = 0.2,
        max_leaf_nodes: int = 15,
        min_samples_leaf: int = 20,
        l2_regularization: float = 1.0,
        categorical_features: Any = "from_dtype",
        prior: Any = "uniform",
        bias: str = "extrapolated",
        unseen_offset: float = 0.0,
        support: Any = "all",
        n_folds: int = 3,
        confidence: float = 0.9,
        random_state: Any = 0,
        n_jobs: int | None = None,
        verbose: bool | int = False,
    ) -> None:
        self.energies = energies
        self.max_iter = max_iter
        self.early_stopping = early_stopping
        self.learning_rate = learning_rate
        self.max_leaf_nodes = max_leaf_nodes
        self.min_samples_leaf = min_samples_leaf
        self.l2_regularization = l2_regularization
        self.categorical_features = categorical_features
        self.prior = prior
        self.bias = bias
        self.unseen_offset = unseen_offset
        self.support = support
        self.n_folds = n_folds
        self.confidence = confidence
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        attributes: Any = None,
        sample_weight: Any = None,
        space: GroupSpace | None = None,
    ) -> Self:
        """Fit the trees and compute the bias of every candidate group.

        Parameters
        ----------
        X : array or DataFrame (n, p)
            Features: numbers, which may be missing (NaN), and, in a DataFrame, columns of text, categories or booleans.
        y : (n,) or (n, t)
            Classes to predict: one target or several.
        attributes : (n,) or (n, s), optional
            Further attributes of the training samples.
        sample_weight : (n,), optional
            Weights of the samples.
        space : GroupSpace, optional
            Attributes, targets first, and their values; needed only if some values are absent from the training data.

        Returns
        -------
        self

        Raises
        ------
        InputError
            If a parameter or the data are invalid, or LightGBM is not installed; the message says what to change.
        """
        params, n_folds = self._check_parameters()
        if self.energies != "linear":
            import_lightgbm()
        with reported_to_callbacks(self), restored_on_error(self), visible_log(self.verbose):
            self._columns: MixedColumns | None = None
            data = self._read(X, y, attributes, sample_weight, space)
            assert self._columns is not None
            if len(data.candidates.seen_groups) < 2:
                raise InputError("all samples belong to one group: pass samples of at least two groups")
            found = fit_table(
                data,
                self._columns.categorical,
                self.energies,
                params,
                max_rounds=check_count(self.max_iter, "max_iter"),
                early_stopping=bool(self.early_stopping),
                n_folds=n_folds,
                prior=self.prior,
                confidence=check_fraction(self.confidence, "confidence"),
            )
            self._adopt(found.model, self._setting(), data.n_targets, data.one_dimensional)
            self.cv_results_ = _cv_results(found)
            self.best_index_ = found.best
            warn_of_unreliable_biases(found.model, None, self.bias, self._fit_log_prior)
            return self._use_prior(self.prior)

    def _check_parameters(self) -> tuple[BoostingParams, int]:
        """Check the parameters that do not depend on the data; return those of the trees, and the number of folds."""
        self._check_support()
        self._setting()
        check_name("energies", self.energies, ENERGIES)
        n_folds, n_leaves = check_count(self.n_folds, "n_folds"), check_count(self.max_leaf_nodes, "max_leaf_nodes")
        if n_folds < 2:
            raise InputError(f"n_folds is {n_folds}: pass a number of folds ≥ 2")
        if not 2 <= n_leaves <= MAX_LEAVES:
            raise InputError(f"max_leaf_nodes is {n_leaves}: pass an integer from 2 to {MAX_LEAVES}")
        if not isinstance(self.early_stopping, bool | np.bool_):
            raise InputError(f"early_stopping is {self.early_stopping!r}: pass True or False")
        check_count(self.max_iter, "max_iter")
        check_fraction(self.confidence, "confidence")
        jobs = check_jobs(self.n_jobs)
        rate = check_positive(self.learning_rate, "learning_rate")
        if rate > MAX_LEARNING_RATE:
            raise InputError(
                f"learning_rate is {rate:g}: pass a number above 0 and at most {MAX_LEARNING_RATE}, such as 0.2"
            )
        params = BoostingParams(
            rate,
            n_leaves,
            check_count(self.min_samples_leaf, "min_samples_leaf"),
            check_positive(self.l2_regularization, "l2_regularization", allow_zero=True),
            seed_of(self.random_state),
            0 if jobs is None or jobs < 0 else jobs,
        )
        return params, n_folds

    def _setting(self) -> Setting:
        """Check the parameters of predictions, and return them."""
        check_name("bias", self.bias, BIASES)
        return Setting(FitParams(0.0), self.bias, check_offset(self.unseen_offset))

    def _check_features(self, X: Any, *, fitted: bool) -> FloatArray:
        """Read features of mixed kinds; ``crm.features.feature_matrix`` calls this method if an estimator has it."""
        features, columns = mixed_features(self, X, self._columns if fitted else None, self.categorical_features)
        if not fitted:
            self._columns = columns
        return features

    @property
    def energies_(self) -> str:
        """Kind of energies that is used: "boosted", "linear" or "both"."""
        check_is_fitted(self)
        return {Trees: "boosted", LinearColumns: "linear", TreesAndColumns: "both"}[type(self._model.basis)]

    @property
    def feature_importances_(self) -> FloatArray:
        """Number of splits on each feature, (p,); for linear energies, the Euclidean norm of its coefficients.

        If both kinds of energies are used: the mean of the two, each divided by its sum.
        """
        check_is_fitted(self)
        basis, coef = self._model.basis, self._model.coef
        found = []
        for part in basis if isinstance(basis, TreesAndColumns) else (basis,):
            if isinstance(part, Trees):
                found.append(np.bincount(part.feature, minlength=part.n_features).astype(np.float64))
            elif part is not None:
                squares = np.square(coef[:, -len(part.column) :]).sum(axis=0)
                found.append(np.sqrt(np.bincount(part.column, squares, minlength=part.n_features)))
        return found[0] if len(found) == 1 else np.mean([one / (one.sum() or 1.0) for one in found], axis=0)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        return tags

    def _file_class(self) -> type[FittedCRM]:
        return CRMBoostingClassifier

    def _packed(self, inputs: Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the header and the arrays of a model file."""
        header, arrays = super()._packed(inputs)
        assert self._columns is not None
        header["categories"] = [None if values is None else list(values) for values in self._columns.categories]
        return header, arrays

    def _stored_parameters(self) -> dict[str, Any]:
        """Return the constructor parameters that a model file keeps."""
        bias, offset = self._bias_and_offset()
        names = (*STORED_PARAMETERS, *io.ADDED_TABLE_PARAMETERS)
        kept = {name: value for name, value in self.get_params(deep=False).items() if name in names}
        return kept | {"bias": bias, "unseen_offset": offset, "verbose": bool(self.verbose)}

    @classmethod
    def _from_file(cls, header: dict[str, Any], arrays: dict[str, Any]) -> Self:
        """Restore a classifier from the header and the arrays of a model file."""
        state = io.unpack(header, arrays, STORED_PARAMETERS)
        basis = state.model.basis
        if basis is None:
            raise InputError("the model file has neither trees nor columns of linear energies: save the model again")
        clf = cls(**state.parameters)
        clf._check_parameters()
        clf._columns = MixedColumns(_checked_categories(header, basis.n_features))
        clf._adopt(state.model, clf._setting(), state.n_targets, state.one_dimensional)
        clf._restore(state, basis.n_features)
        return clf


STORED_PARAMETERS = (
    *("max_iter", "early_stopping", "learning_rate", "max_leaf_nodes", "min_samples_leaf", "l2_regularization"),
    *("prior", "bias", "unseen_offset", "support", "n_folds", "verbose"),
)
"""Constructor parameters in every model file; newer files also have those of ``io.ADDED_TABLE_PARAMETERS``."""


SETTING_COLUMNS = ("energies", "n_iter", "alpha")
"""Columns of ``cv_results_`` that identify a setting."""


def _checked_categories(header: Mapping[str, Any], n_features: int) -> tuple[tuple[Any, ...] | None, ...]:
    """Check the categories of each column in the header of a model file."""
    stored = header.get("categories")
    valid = isinstance(stored, list) and len(stored) == n_features
    if not valid or not all(
        values is None
        or (isinstance(values, list) and all(isinstance(value, str | int | float | bool) for value in values))
        for values in stored  # type: ignore[union-attr]
    ):
        raise InputError("categories must have a list of values or null for each feature: save the model again")
    assert stored is not None
    return tuple(None if values is None else tuple(values) for values in stored)


def _cv_results(found: TableFit) -> dict[str, Any]:
    """Return accuracies for each setting, in the layout of scikit-learn's ``cv_results_``."""

    def means(values: FloatArray) -> tuple[FloatArray, FloatArray]:
        known = values[:, ~np.isnan(values).any(axis=0)]
        if not known.shape[1]:
            return np.full(len(values), np.nan), np.full(len(values), np.nan)
        error = (
            known.std(axis=1, ddof=1) / np.sqrt(known.shape[1]) if known.shape[1] > 1 else np.full(len(known), np.nan)
        )
        return known.mean(axis=1), error

    (unseen, error), (seen, _) = means(found.unseen), means(found.seen)
    return {
        **{name: np.array([getattr(setting, name) for setting in found.settings]) for name in SETTING_COLUMNS},
        "mean_test_score": unseen,
        "std_test_score": error,
        "mean_seen_score": seen,
    }
