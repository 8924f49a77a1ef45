"""What every fitted CRM classifier can do, however its energies were found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from compshift._checks import check_finite_number
from compshift._errors import InputError, check_name
from compshift.core.arrays import FloatArray, IntArray
from compshift.estimators import model_file
from compshift.estimators.combination_scores import Setting
from compshift.estimators.crm_file import Saved, from_file, to_file
from compshift.estimators.crm_model import BIASES, CRMModel
from compshift.estimators.group_classifier import GroupClassifier
from compshift.estimators.inputs import known_features

if TYPE_CHECKING:
    import pandas as pd

    from compshift.estimators.choice import Options

KIND = "CRMClassifier"
MAX_OFFSET = 1e6


class FittedCRM(GroupClassifier):
    """Predictions under any prior, from the energies and biases that ``fit`` left."""

    bias: str
    unseen_offset: float | str
    verbose: bool | int

    def _adopt(self, model: CRMModel, setting: Setting, n_targets: int, one_dimensional: bool) -> None:
        """Take over what was fitted, or read from a file."""
        self._adopt_candidates(model.candidates, n_targets, one_dimensional)
        self._model = model
        self._fit_log_prior = model.candidates.log_prior(self.prior)
        (self.alpha_, self.anchor_, self.cross_fit_), self.chosen_bias_, self.unseen_offset_ = setting
        self.bias_ = model.bias
        self.learned_bias_ = model.learned_bias
        self.cumulant_bias_ = model.cumulant_bias
        self.effective_sample_size_ = model.effective_sample_size
        self.pareto_k_ = model.pareto_k
        self.temperature_ = model.temperature
        self.bias_gap_ = model.bias_gap
        self.coef_ = model.coef
        self.feature_mean_ = model.feature_mean
        self.converged_ = model.converged
        self.n_iter_ = model.n_iter
        self.inputs_: Mapping[str, Any] | None = None

    def explain(self, X: Any) -> pd.DataFrame:
        """Per row: the most probable group and its probability; was it seen, is it inside the hull; ESS of its bias."""
        best, log_proba = self._best_group(known_features(self, X))
        frame = self.space_.frame_with(
            self.groups_[best],
            probability=np.exp(log_proba),
            seen=self.seen_[best],
            inside_hull=self.inside_hull_[best],
            effective_sample_size=self.effective_sample_size_[best],
        )
        return frame.set_axis(X.index) if hasattr(X, "index") and hasattr(X, "columns") else frame

    def group_frame(self) -> pd.DataFrame:
        """Per candidate group: training rows, whether it is inside the hull, its biases, ESS and prior."""
        check_is_fitted(self)
        return self.space_.frame_with(
            self.groups_,
            train_rows=self.group_weight_,
            inside_hull=self.inside_hull_,
            bias=self.bias_,
            learned_bias=np.where(self.seen_, self.learned_bias_, np.nan),
            effective_sample_size=self.effective_sample_size_,
            prior=np.exp(self.log_prior_),
        )

    @property
    def expected_group_accuracy_(self) -> pd.DataFrame:
        """Accuracy to expect on each group that training lacks and the seen ones determine, if it was estimated.

        It is that under the prior of the fit, and not there while ``set_prior`` has put another in force.
        """
        check_is_fitted(self)
        expected = self._model.expected
        if expected is None:
            raise AttributeError("expected_group_accuracy_ is there after a fit of CRMClassifierCV only")
        if not _same_prior(self.log_prior_, self._fit_log_prior):
            raise AttributeError("expected_group_accuracy_ is there under the prior of the fit only: set_prior to it")
        known = ~np.isnan(expected[:, 0])
        accuracy, lower, upper = expected[known].T
        return self.space_.frame_with(self.groups_[known], accuracy=accuracy, lower=lower, upper=upper)

    def save(self, path: str | PathLike[str], *, inputs: Mapping[str, Any] | None = None) -> None:
        """Write the fitted model as a safetensors file; ``compshift.load`` reads it.

        ``inputs`` is kept with it and comes back as ``inputs_``: the command line notes there how a table's columns
        become features.
        """
        check_is_fitted(self)
        if inputs is not None and not isinstance(inputs, Mapping):
            raise InputError(f"inputs is {inputs!r}: pass a mapping, or leave it out")
        names = getattr(self, "feature_names_in_", None)
        parameter_log_prior = self._model.candidates.log_prior(self.prior)
        known = _same_prior(parameter_log_prior, self._fit_log_prior)  # what is expected is that under the fit's prior
        saved = Saved(
            parameters=self._plain_parameters(),
            model=self._model if known else replace(self._model, expected=None),
            log_prior=self.log_prior_,
            parameter_log_prior=parameter_log_prior,
            n_targets=len(self.targets_.names),
            one_dimensional=self._one_dimensional,
            feature_names=None if names is None else [str(name) for name in names],
            inputs=self.inputs_ if inputs is None else inputs,
        )
        header, arrays = to_file(saved)
        try:
            from_file(header, arrays)
        except InputError as error:
            raise InputError(f"the model cannot be saved, since nobody could load it: {error}") from None
        model_file.write(path, KIND, header, arrays)

    def check_parameters(self) -> tuple[Options, float, int]:
        """Refuse parameters that no data can be fitted with; what there is to choose, ``tol`` and ``max_iter``."""
        raise NotImplementedError

    def _plain_parameters(self) -> dict[str, Any]:
        """Parameters of the ``CRMClassifier`` that has what was chosen, numbers as Python's own."""
        parameters: dict[str, Any] = self.get_params(deep=False)
        options, tol, max_iter = self.check_parameters()
        return parameters | {
            "alpha": self.alpha_,
            "anchor": self.anchor_,
            "cross_fit": self.cross_fit_ or False,
            "bias": self.chosen_bias_ if self.bias == "auto" else self.bias,
            "unseen_offset": self.unseen_offset_ if options.offset is None else options.offset,
            "tol": tol,
            "max_iter": max_iter,
            "verbose": bool(self.verbose),
        }

    @classmethod
    def _from_file(cls, header: dict[str, Any], arrays: dict[str, Any]) -> Self:
        """The classifier that ``save`` wrote."""
        saved = from_file(header, arrays)
        clf = cls(**saved.parameters)
        options, _, _ = clf.check_parameters()
        if not options.single:
            raise InputError("one of its parameters is 'auto', and a saved model has what was chosen: save it again")
        setting = options.first
        clf._adopt(saved.model, setting, saved.n_targets, saved.one_dimensional)
        clf.log_prior_ = saved.log_prior
        clf.inputs_ = saved.inputs
        clf._outside_announced = bool((~clf.inside_hull_ & (clf.log_prior_ > -np.inf)).any())
        clf.n_features_in_ = len(saved.model.feature_mean)
        if saved.feature_names is not None:
            clf.feature_names_in_ = np.array(saved.feature_names, dtype=object)
        return clf

    def _target_marginals(self, X: FloatArray) -> list[FloatArray]:
        return self._model.marginals(X, self._log_score(), range(len(self.targets_.names)))

    def _joint(self, X: FloatArray, position: IntArray | None = None) -> FloatArray:
        return self._model.joint(X, self._log_score(), position)

    def _best_group(self, X: FloatArray) -> tuple[IntArray, FloatArray]:
        return self._model.best_group(X, self._log_score())

    def _log_score(self) -> FloatArray:
        """Log q(z) − B(z) of each candidate, (g,), with the offset of those that training lacks."""
        kind = self.chosen_bias_ if self.bias == "auto" else self.bias
        check_name("bias", kind, BIASES)
        offset = self.unseen_offset_ if isinstance(self.unseen_offset, str) else check_offset(self.unseen_offset)
        return self.log_prior_ + offset * ~self.seen_ - self._model.bias_of(kind)


def check_offset(offset: Any) -> float:
    """Nats, so many that they can decide anything, and so few that log-probabilities keep their digits."""
    expected = f"pass a number between ±{MAX_OFFSET:g} (0 for none), or 'auto'"
    number = check_finite_number(offset, "unseen_offset", expected)
    if abs(number) > MAX_OFFSET:
        raise InputError(f"unseen_offset is {offset!r}: {expected}")
    return number


def _same_prior(log_prior: FloatArray, other: FloatArray) -> bool:
    """Whether two priors are the same but for rounding."""
    return bool(np.allclose(np.exp(log_prior), np.exp(other), atol=1e-9))
