"""Methods that all classifiers with a fitted ``CRMModel`` share: predict, predict sets, explain, list groups, save."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from array_api_compat import device
from sklearn.utils.validation import check_is_fitted

from compshift._errors import InputError, check_name
from compshift._hub_methods import HubMethods
from compshift.core.arrays import FloatArray, IntArray, namespace
from compshift.crm import io
from compshift.crm.base import GroupClassifier
from compshift.crm.explanation import Explanation, explain
from compshift.crm.features import is_dispatched
from compshift.crm.fit import Setting, check_offset
from compshift.crm.model import BIASES, CRMModel, same_prior
from compshift.crm.sets import PredictionSets, prediction_sets
from compshift.metrics.coverage_display import CoverageDisplay
from compshift.metrics.displays import GroupDisplay, ReliabilityDisplay

if TYPE_CHECKING:
    import pandas as pd


ARRAYS_LIKE_X = (
    "coef_",
    "feature_mean_",
    "bias_",
    "learned_bias_",
    "cumulant_bias_",
    "effective_sample_size_",
    "pareto_k_",
)
"""Fitted attributes with numbers computed from X. Arrays that describe groups or priors are always of NumPy."""


class FittedCRM(HubMethods, GroupClassifier):
    """Base class of classifiers whose fit produces a ``CRMModel``; ``_adopt`` sets their fitted attributes from it."""

    bias: str
    unseen_offset: float

    def _adopt(self, model: CRMModel, setting: Setting, n_targets: int, one_dimensional: bool) -> None:
        """Set the fitted attributes from a model, fitted or read from a file."""
        self._adopt_candidates(model.candidates, n_targets, one_dimensional)
        self._model = model
        self._fit_log_prior: FloatArray = model.candidates.log_prior(self.prior)
        _, self.selected_bias_, self.unseen_offset_ = setting
        self.bias_ = model.bias
        self.learned_bias_ = model.learned_bias
        self.cumulant_bias_ = model.cumulant_bias
        self.effective_sample_size_ = model.effective_sample_size
        self.pareto_k_ = model.pareto_k
        self.temperature_ = model.temperature
        self.bias_gap_ = model.bias_gap
        self.converged_ = model.converged
        self.n_iter_ = model.n_iter
        self.inputs_: Mapping[str, Any] | None = None

    def _follow(self, X: Any) -> None:
        """Convert the numbers that a fit computed from X to its library, device and precision, as scikit-learn does.

        Predictions do not use these attributes but the model, so that they can be computed on any device.
        """
        if not is_dispatched(X):
            return
        xp = namespace(X)
        dtype = xp.float32 if X.dtype == xp.float32 else xp.float64
        for name in ARRAYS_LIKE_X:
            if hasattr(self, name):
                setattr(self, name, xp.asarray(getattr(self, name), dtype=dtype, device=device(X)))

    def save(self, path: str | PathLike[str], *, inputs: Mapping[str, Any] | None = None) -> None:
        """Write the fitted model as a safetensors file; ``compshift.load`` reads it.

        Parameters
        ----------
        path : str or path
            File to write. It is written atomically.
        inputs : mapping, optional
            Description of how the columns of a table become features, stored with the model and restored as
            ``inputs_``. The command line passes it.
        """
        check_is_fitted(self)
        if inputs is not None and not isinstance(inputs, Mapping):
            raise InputError(f"inputs is {inputs!r}: pass a mapping or None")
        header, arrays = self._packed(inputs)
        kind = self._file_class()
        try:
            kind._from_file(header, arrays)
        except InputError as error:
            raise InputError(f"the model cannot be saved because the file could not be loaded again: {error}") from None
        io.write(path, kind.__name__, header, arrays)

    def _packed(self, inputs: Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the header and the arrays of a model file."""
        return io.pack(io.classifier_state(self, inputs))

    def _file_class(self) -> type[FittedCRM]:
        """Return the class of the classifier that a model file restores."""
        raise NotImplementedError

    @classmethod
    def _from_file(cls, header: dict[str, Any], arrays: dict[str, Any]) -> Self:
        """Restore a classifier from the header and the arrays of a model file."""
        raise NotImplementedError

    def _restore(self, state: io.ClassifierState, n_features: int) -> None:
        """Set the fitted attributes that are not part of the model from the contents of a model file."""
        self.log_prior_ = state.log_prior
        self.inputs_ = state.inputs
        self._warned_outside_hull = bool((~self.inside_hull_ & (self.log_prior_ > -np.inf)).any())
        self.n_features_in_ = n_features
        if state.feature_names is not None:
            self.feature_names_in_ = np.array(state.feature_names, dtype=object)

    def explain(self, X: Any, *, attributes: Any = None, rival: Any = "class") -> Explanation:
        """Explain the most probable group of each sample: how reliable it is, and what it owes its probability to.

        The log-odds of the group against a rival are a sum of the terms of every attribute's energy, the bias and the
        prior; linear energies also say how much each feature contributes.

        Parameters
        ----------
        X : array or DataFrame (n, p)
            Features.
        attributes : array (n,) or (n, s), DataFrame or mapping, optional
            Known attributes of the samples, with None or NaN where a value is unknown. An array has a column for each
            attribute of the model that is not a target; a DataFrame or mapping may have only some of them. By default,
            all are unknown.
        rival : "class", "group" or sequence of values, default="class"
            Group to compare with: the most probable group with another class, the second most probable group, or the
            group with these attribute values, targets first.

        Returns
        -------
        Explanation
            Groups, rivals and the terms of their log-odds. ``to_frame()`` is a table with a row per sample,
            ``features()`` one with the contributions of features, and ``print`` shows the first samples.
        """
        return explain(self, X, attributes, rival)

    def predict_set(
        self, X: Any, coverage: float = 0.9, *, attributes: Any = None
    ) -> PredictionSets | list[PredictionSets]:
        """Return the classes that cannot be excluded for each sample, also for samples of groups never seen.

        This needs out-of-fold energies, which a ``CRMClassifier`` has only with ``cross_fit``.

        Parameters
        ----------
        X : array or DataFrame (n, p)
            Features.
        coverage : float, default=0.9
            Approximate probability, within every group, that the set contains the true class.
        attributes : array (n,) or (n, s), DataFrame or mapping, optional
            Known attributes of the samples, with None or NaN where a value is unknown. An array has a column for each
            attribute of the model that is not a target; a DataFrame or mapping may have only some of them. By default,
            all are unknown.

        Returns
        -------
        PredictionSets, or a list of them
            One set per sample, and the evidence behind the sets; a list of one ``PredictionSets`` per target if there
            are several.
        """
        return prediction_sets(self, X, coverage, attributes)

    def plot_coverage(self, *, ax: Any = None) -> CoverageDisplay:
        """Draw which groups are seen, can be extrapolated or are out of reach.

        Parameters
        ----------
        ax : Axes, optional
            Axes to draw on; by default those of a new figure.

        Returns
        -------
        CoverageDisplay
            The display, with ``ax_`` and ``figure_``.
        """
        return CoverageDisplay.from_estimator(self, ax=ax)

    def plot_groups(self, X: Any, y: Any, *, attributes: Any = None, ax: Any = None, **options: Any) -> GroupDisplay:
        """Draw the accuracy of each group on labelled samples, measured and expected, or another metric.

        Parameters
        ----------
        X : array or DataFrame (n, p)
            Features.
        y : array (n,) or (n, t)
            True classes.
        attributes : array (n,) or (n, s), DataFrame or mapping, optional
            True attributes. They are not used for predictions.
        ax : Axes, optional
            Axes to draw on; by default those of a new figure.
        **options
            Further arguments of ``metrics.GroupDisplay.from_estimator``, such as ``metric``.

        Returns
        -------
        GroupDisplay
            The display, with ``ax_`` and ``figure_``.
        """
        return GroupDisplay.from_estimator(self, X, y, attributes=attributes, ax=ax, **options)

    def plot_reliability(self, *, ax: Any = None) -> ReliabilityDisplay:
        """Draw how much evidence the bias of each unseen group rests on.

        Parameters
        ----------
        ax : Axes, optional
            Axes whose place the two charts share; by default those of a new figure.

        Returns
        -------
        ReliabilityDisplay
            The display, with ``ax_`` and ``figure_``.
        """
        return ReliabilityDisplay.from_estimator(self, ax=ax)

    def group_frame(self) -> pd.DataFrame:
        """Return a table of the candidate groups.

        Returns
        -------
        DataFrame
            One row per group: its attribute values, ``train_rows`` (number or total weight of its training samples),
            ``inside_hull``, ``bias``, ``learned_bias`` (NaN if unseen), ``effective_sample_size`` and ``prior``.
        """
        check_is_fitted(self)
        return self.space_.frame(
            self.groups_,
            train_rows=self.group_weight_,
            inside_hull=self.inside_hull_,
            bias=self._model.bias,
            learned_bias=np.where(self.seen_, self._model.learned_bias, np.nan),
            effective_sample_size=self._model.effective_sample_size,
            prior=np.exp(self.log_prior_),
        )

    @property
    def expected_group_accuracy_(self) -> pd.DataFrame:
        """Expected accuracy on each unseen group inside the affine hull, estimated on held-out groups.

        The estimate is valid only for the prior used in ``fit``; it is not available while another prior is set.
        """
        check_is_fitted(self)
        expected = self._model.expected
        if expected is None:
            raise AttributeError(
                "expected_group_accuracy_ was not estimated: fit a CRMClassifierCV, or a CRMBoostingClassifier with "
                "early_stopping, to samples of which some group can be held out"
            )
        if not same_prior(self.log_prior_, self._fit_log_prior):
            raise AttributeError(
                "expected_group_accuracy_ is valid only for the prior used in fit, but the current prior differs: pass "
                "the prior of the fit to set_prior"
            )
        known = ~np.isnan(expected[:, 0])
        accuracy, lower, upper = expected[known].T
        return self.space_.frame(self.groups_[known], accuracy=accuracy, lower=lower, upper=upper)

    def _target_marginals(self, X: FloatArray) -> list[FloatArray]:
        return self._model.marginals(X, self._log_score(), range(len(self.targets_.names)))

    def _group_log_posterior(self, X: FloatArray, position: IntArray | None = None) -> FloatArray:
        return self._model.log_posterior(X, self._log_score(), position)

    def _best_group(self, X: FloatArray) -> tuple[IntArray, FloatArray]:
        return self._model.best_group(X, self._log_score())

    def _log_score(self) -> FloatArray:
        """Return log q(z) − B(z) of each candidate, (g,), plus the unseen offset; paper, label "hatq".

        Here the prior enters all predictions.
        """
        bias, offset = self._bias_and_offset()
        return self.log_prior_ + offset * ~self.seen_ - self._model.bias_of(bias)

    def _bias_and_offset(self) -> tuple[str, float]:
        """Return the current kind of bias and unseen offset; ``set_params`` changes them after a fit."""
        check_name("bias", self.bias, BIASES)
        return self.bias, check_offset(self.unseen_offset)
