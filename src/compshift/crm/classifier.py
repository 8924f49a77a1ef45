"""Compositional Risk Minimization on fixed features, as a scikit-learn classifier."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from compshift._checks import check_count, check_positive
from compshift._errors import InputError, check_name, unknown_name
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.groups import GroupSpace
from compshift.crm import io
from compshift.crm.base import GroupClassifier
from compshift.crm.fit import ANCHORS, FitParams, Setting, check_cross_fit, check_offset, fit_crm, fit_streamed
from compshift.crm.inputs import LabelledSamples, is_streamed, prediction_features, restored_on_error, visible_log
from compshift.crm.model import BIASES, CRMModel
from compshift.crm.partial import fit_partial
from compshift.crm.streams import read_streamed

if TYPE_CHECKING:
    import pandas as pd

KIND = "CRMClassifier"
"""Kind of model, as model files name it."""


class CRMClassifier(GroupClassifier):
    r"""Classifier that keeps working on combinations of attributes that training lacks.

    One linear energy per attribute value is fitted to the seen groups, together with their training prior and one bias
    each (a convex problem, solved to ``tol``). The bias of every other group is then computed from the training
    samples, and predictions are made under any prior over groups. ``CRMClassifierCV`` chooses the settings.

    Parameters
    ----------
    alpha : float, default=1e-2
        Strength of the ridge, ``alpha/2 · mean(x_centred²) · ‖W‖²``, added to the mean negative log-likelihood. It has
        no unit: scaling all features, or repeating all samples, changes nothing.
    prior : "uniform", "hull", "train", array or mapping, default="uniform"
        Probability of each group where the model will be used. ``"uniform"``: the same for every candidate;
        ``"hull"``: the same for every candidate inside the affine hull of the seen groups; ``"train"``: as in training;
        an array of shape ``space_.cardinalities`` or ``(space_.n_groups,)``; or a mapping or Series from tuples of
        values to probabilities, where groups that are not listed have probability 0 and named levels of a Series are
        matched to the attributes. ``set_prior`` changes it without another fit.
    bias : "extrapolated", "cumulant", "shrunk" or "learned", default="extrapolated"
        How the bias of a group is computed. ``"extrapolated"``: B*, an importance-weighted mean over the training
        samples. ``"cumulant"``: from the seen groups by two moments of the energies, which is exact for Gaussians and
        has far less variance where B* rests on a few samples; at least B* minus three of its standard errors.
        ``"shrunk"``: B* shrunk towards ``"cumulant"`` where its effective sample size is low. ``"learned"`` (for
        ablations): the fitted bias of the seen groups and 0 for the others. All are available after a fit:
        ``set_params(bias=...)`` switches without another.
    anchor : "zero" or "gaussian", default="zero"
        Weights that the ridge pulls to: zero, or those of Gaussians with additive means and one covariance. The latter
        needs less data if the data are roughly Gaussian.
    cross_fit : bool or int, default=False
        Whether biases, and a temperature of the energies, are estimated on out-of-fold energies; a number is the number
        of folds, and True means 5. It helps where energies overfit.
    unseen_offset : float, default=0.0
        Nats added to the log-probability of every group that training lacks, before normalising.
    support : "all", "hull", "observed", or codes of shape (g, m), default="all"
        The candidate groups: those that can be predicted at all. With more combinations than a table can hold (a few
        million), list the codes of the groups to predict.
    tol : float, default=1e-6
        Largest gradient entry at which the fit counts as converged, per standardised weight (times 1e-2 / alpha, if
        alpha is below 1e-2) and per bias relative to its group's frequency. The learned and the extrapolated bias of
        seen groups then agree to ``tol``.
    max_iter : int, default=1000
        Largest number of iterations of L-BFGS.
    verbose : bool or int, default=False
        Whether to log every iteration, to the logger ``compshift`` (or to standard error if logging is not set up).

    Attributes
    ----------
    classes_ : array, or a list of one array per target
        The values that ``predict`` returns, sorted.
    space_ : GroupSpace
        All attributes and their values: targets first, then the others.
    targets_ : GroupSpace
        The targets and their classes.
    hull_ : AffineHull
        Affine hull of the seen groups.
    groups_ : array (g, m)
        Codes of the candidate groups. The arrays of length g below are in the same order.
    seen_, inside_hull_ : bool arrays (g,)
        Which candidates occur in training, and which lie inside the affine hull of those that do.
    group_weight_ : array (g,)
        Training samples of each candidate, or the sum of their weights; expected counts if attributes were missing.
    bias_ : array (g,)
        Extrapolated bias B*.
    learned_bias_ : array (g,)
        Fitted bias B of the seen groups, with mean 0 over the training samples; 0 for the others.
    effective_sample_size_ : array (g,)
        Effective sample size of B*, ``(Σ ω w)² / Σ (ω w)²`` with sample weights ω and importance weights w.
    cumulant_bias_ : array (g,)
        The bias by two moments of the energies, at least ``bias_ - 3 / sqrt(effective_sample_size_)``.
    pareto_k_ : array (g,)
        Pareto tail index k̂ of the importance weights in B*: above 0.7 do not trust the mean, whatever its effective
        sample size. NaN with fewer than 25 samples, with more than 20 million samples × groups, and for streamed data.
    temperature_ : float
        Factor by which cross-fitting multiplied the energies; 1 without it.
    bias_gap_ : float
        Largest ``|B* − B|`` over the seen groups. It is 0 at the optimum.
    log_prior_ : array (g,)
        Log prior that predictions use.
    coef_ : array (D, p)
        Energies are ``coef_ @ (x − feature_mean_)``: one row per attribute value, low where the value is likely.
    feature_mean_ : array (p,)
        Weighted mean of the training features.
    converged_ : bool
        Whether the gradient fell below ``tol`` and, if attributes were missing, the groups' frequencies converged.
    n_iter_ : int
        Iterations of the optimiser.
    n_missing_ : int
        Training samples with a missing attribute; not stored in a model file.
    inputs_ : mapping or None
        How the columns of a table become features, if the model was saved with this description; see ``save``.

    References
    ----------
    Mahajan, Pezeshki, Arnal, Mitliagkas, Ahuja, Vincent. *Compositional Risk Minimization*. ICML 2025.

    Examples
    --------
    Four Gaussians at the corners of a square; the corner (0, 0) is missing from training.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> z = np.repeat([[0, 1], [1, 0], [1, 1]], 500, axis=0)
    >>> X = rng.normal(size=z.shape) + 4 * z
    >>> clf = CRMClassifier().fit(X, z[:, 0], attributes=z[:, 1])
    >>> clf.predict_group([[0.0, 0.0], [4.0, 4.0]])
    array([[0, 0],
           [1, 1]])
    """

    def __init__(
        self,
        alpha: float = 1e-2,
        *,
        prior: Any = "uniform",
        bias: str = "extrapolated",
        anchor: str = "zero",
        cross_fit: bool | int = False,
        unseen_offset: float = 0.0,
        support: Any = "all",
        tol: float = 1e-6,
        max_iter: int = 1000,
        verbose: bool | int = False,
    ) -> None:
        self.alpha = alpha
        self.prior = prior
        self.bias = bias
        self.anchor = anchor
        self.cross_fit = cross_fit
        self.unseen_offset = unseen_offset
        self.support = support
        self.tol = tol
        self.max_iter = max_iter
        self.verbose = verbose

    def fit(
        self, X: Any, y: Any, *, attributes: Any = None, sample_weight: Any = None, space: GroupSpace | None = None
    ) -> Self:
        """Fit the energies, and compute the bias of every candidate group.

        Parameters
        ----------
        X : array, DataFrame (n, p), FeatureStore, or Dask array or DataFrame
            Features, all finite numbers. Those of a ``compshift.data.FeatureStore`` are read in blocks, once per
            evaluation of the risk, and under torchrun each process reads a share; y and attributes are then names of
            its columns. Those of a Dask collection stay with its workers; y and attributes are then collections too, in
            partitions of the same rows.
        y : (n,) or (n, t)
            What is predicted: one target or several. Text, numbers, booleans or pandas categoricals.
        attributes : (n,) or (n, s), optional
            Further attributes, known in training only. Values may be missing (None, NaN, NA, masked): such a sample
            counts for the seen groups that agree with its known attributes, each by its posterior probability. Seen
            groups are those of complete samples. This assumes that values are missing at random: whether one is missing
            may depend on the features, the target and the known attributes, not on the missing value itself.
        sample_weight : (n,), optional
            Weights of the samples; a weight of 2 gives the same model as the sample twice, except that effective sample
            sizes count it once.
        space : GroupSpace, optional
            Attributes and values, targets first, if there are values that no training sample has.

        Returns
        -------
        self

        Raises
        ------
        InputError
            If a parameter or the data cannot be used; the message says what to change.
        """
        setting, tol, max_iter = self._check_parameters()
        data: Any
        with restored_on_error(self), visible_log(self.verbose):
            if is_streamed(X):
                data = read_streamed(X, y, attributes, sample_weight, space, self.support)
                data.candidates.log_prior(self.prior)  # an unusable prior is reported before the fit, not after it
                model = fit_streamed(data.rows, data.candidates, setting.params, tol=tol, max_iter=max_iter)
                self.n_features_in_, self.n_missing_ = len(model.feature_mean), 0
                if hasattr(self, "feature_names_in_"):  # of an earlier fit
                    del self.feature_names_in_
            else:
                data = self._read(X, y, attributes, sample_weight, space, missing=True)
                self._check_incomplete(data)
                fit_rows = fit_crm if data.incomplete is None else fit_partial
                model = fit_rows(data, setting.params, tol=tol, max_iter=max_iter)
                self.n_missing_ = 0 if data.incomplete is None else len(data.incomplete.X)
            self._adopt(model, setting, data.n_targets, data.one_dimensional)
            self._warn_unless_converged(tol, max_iter)
            return self._use_prior(self.prior)

    def _check_parameters(self) -> tuple[Setting, float, int]:
        """Check the parameters that do not depend on data; return the setting, ``tol`` and ``max_iter``."""
        alpha = check_positive(self.alpha, "alpha", allow_zero=True)
        for name, value, known in (("bias", self.bias, BIASES), ("anchor", self.anchor, ANCHORS)):
            if not isinstance(value, str) or value not in known:
                raise unknown_name(name, value, known)
        self._check_support()
        params = FitParams(alpha, self.anchor, check_cross_fit(self.cross_fit))
        setting = Setting(params, self.bias, check_offset(self.unseen_offset))
        return setting, check_positive(self.tol, "tol"), check_count(self.max_iter, "max_iter")

    def _check_incomplete(self, data: LabelledSamples) -> None:
        """Raise if attributes are missing and cross-fitting is asked for, before anything is fitted."""
        if data.incomplete is not None and self.cross_fit:
            raise InputError(
                f"cross_fit is {self.cross_fit!r} and attributes are missing in some rows: use cross_fit=False, or "
                "leave those rows out"
            )

    def _warn_unless_converged(self, tol: float, max_iter: int) -> None:
        """Warn if the optimiser stopped early; called by ``fit`` directly, at whose caller the warning points."""
        model = self._model
        if not model.converged:
            warnings.warn(
                f"the fit stopped after {model.n_iter} iterations at a gradient of {model.gradient:.1e} (tol {tol:g}), "
                f"and biases of seen groups are off by up to {model.bias_gap:.1e}: "
                + (
                    f"raise max_iter (now {max_iter}), raise alpha, or loosen tol"
                    if model.n_iter >= max_iter
                    else "rounding allows no further step; raise alpha or loosen tol"
                ),
                ConvergenceWarning,
                stacklevel=3,
            )

    def _adopt(self, model: CRMModel, setting: Setting, n_targets: int, one_dimensional: bool) -> None:
        """Set the fitted attributes from a model that was fitted or read from a file."""
        self._adopt_candidates(model.candidates, n_targets, one_dimensional)
        self._model = model
        self._fit_log_prior = model.candidates.log_prior(self.prior)
        (self.alpha_, self.anchor_, self.cross_fit_), self.selected_bias_, self.unseen_offset_ = setting
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

    @classmethod
    def _from_model(cls, model: CRMModel, *, prior: Any = "uniform", n_targets: int = 1) -> Self:
        """Wrap a model that was fitted elsewhere, such as a trained head, without a warning about the hull."""
        clf = cls(prior=prior)
        setting = Setting(FitParams(clf.alpha), clf.bias)
        clf._adopt(model, setting, n_targets, one_dimensional=n_targets == 1)
        clf.n_features_in_ = len(model.feature_mean)
        clf._outside_announced = True
        return clf._use_prior(prior)

    def explain(self, X: Any) -> pd.DataFrame:
        """Return the most probable group of each sample, and how far it can be trusted.

        Parameters
        ----------
        X : array or DataFrame (n, p)
            Features.

        Returns
        -------
        DataFrame
            Per sample: the values of its most probable group, its ``probability``, whether it was ``seen`` in training,
            whether it is ``inside_hull``, and the ``effective_sample_size`` of its bias. Keeps the index of ``X``.
        """
        best, log_proba = self._best_group(prediction_features(self, X))
        frame = self.space_.frame(
            self.groups_[best],
            probability=np.exp(log_proba),
            seen=self.seen_[best],
            inside_hull=self.inside_hull_[best],
            effective_sample_size=self.effective_sample_size_[best],
        )
        return frame.set_axis(X.index) if hasattr(X, "index") and hasattr(X, "columns") else frame

    def group_frame(self) -> pd.DataFrame:
        """Return a table of the candidate groups.

        Returns
        -------
        DataFrame
            Per group: its values, ``train_rows``, ``inside_hull``, ``bias``, ``learned_bias`` (NaN if unseen),
            ``effective_sample_size`` and ``prior``.
        """
        check_is_fitted(self)
        return self.space_.frame(
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
        """Expected accuracy on each unseen group inside the hull, estimated by ``CRMClassifierCV``.

        It holds under the prior of the fit, and is not available while ``set_prior`` has another in force.
        """
        check_is_fitted(self)
        expected = self._model.expected
        if expected is None:
            raise AttributeError("expected_group_accuracy_ is there after a fit of CRMClassifierCV only")
        if not _same_prior(self.log_prior_, self._fit_log_prior):
            raise AttributeError("expected_group_accuracy_ is there under the prior of the fit only: set_prior to it")
        known = ~np.isnan(expected[:, 0])
        accuracy, lower, upper = expected[known].T
        return self.space_.frame(self.groups_[known], accuracy=accuracy, lower=lower, upper=upper)

    def save(self, path: str | PathLike[str], *, inputs: Mapping[str, Any] | None = None) -> None:
        """Write the fitted model as a safetensors file; ``compshift.load`` reads it.

        Parameters
        ----------
        path : str or path
            File to write, whole or not at all.
        inputs : mapping, optional
            Stored with the model and returned as ``inputs_``: the command line notes here how the columns of a table
            become features.
        """
        check_is_fitted(self)
        if inputs is not None and not isinstance(inputs, Mapping):
            raise InputError(f"inputs is {inputs!r}: pass a mapping, or leave it out")
        names = getattr(self, "feature_names_in_", None)
        parameter_log_prior = self._model.candidates.log_prior(self.prior)
        same_prior = _same_prior(parameter_log_prior, self._fit_log_prior)  # expected accuracies hold under this prior
        saved = io.Saved(
            parameters=self._plain_parameters(),
            model=self._model if same_prior else replace(self._model, expected=None),
            log_prior=self.log_prior_,
            parameter_log_prior=parameter_log_prior,
            n_targets=len(self.targets_.names),
            one_dimensional=self._one_dimensional,
            feature_names=None if names is None else [str(name) for name in names],
            inputs=self.inputs_ if inputs is None else inputs,
        )
        header, arrays = io.to_file(saved)
        try:
            CRMClassifier._from_file(header, arrays)
        except InputError as error:
            raise InputError(f"the model cannot be saved, since nobody could load it: {error}") from None
        io.write(path, KIND, header, arrays)

    def _plain_parameters(self) -> dict[str, Any]:
        """Constructor parameters of the ``CRMClassifier`` with the same settings, as plain Python values."""
        bias, offset = self._bias_and_offset()
        return {
            "alpha": self.alpha_,
            "prior": self.prior,
            "bias": bias,
            "anchor": self.anchor_,
            "cross_fit": self.cross_fit_ or False,
            "unseen_offset": offset,
            "support": self.support,
            "tol": check_positive(self.tol, "tol"),
            "max_iter": check_count(self.max_iter, "max_iter"),
            "verbose": bool(self.verbose),
        }

    @classmethod
    def _from_file(cls, header: dict[str, Any], arrays: dict[str, Any]) -> Self:
        """Restore the classifier that ``save`` wrote."""
        saved = io.from_file(header, arrays)
        clf = cls(**saved.parameters)
        setting, _, _ = clf._check_parameters()
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
        """Log q(z) − B(z) of each candidate, (g,), with the offset of unseen groups (paper, eq. "hatq")."""
        bias, offset = self._bias_and_offset()
        return self.log_prior_ + offset * ~self.seen_ - self._model.bias_of(bias)

    def _bias_and_offset(self) -> tuple[str, float]:
        """Kind of bias and offset of unseen groups that predictions use; parameters set after the fit count."""
        check_name("bias", self.bias, BIASES)
        return self.bias, check_offset(self.unseen_offset)


def _same_prior(log_prior: FloatArray, other: FloatArray) -> bool:
    """Whether two priors are equal up to rounding."""
    return bool(np.allclose(np.exp(log_prior), np.exp(other), atol=1e-9))
