"""Compositional Risk Minimization on fixed features, as a scikit-learn classifier."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from compshift._checks import check_codes, check_count, check_positive, check_same_rows, check_sample_weight
from compshift._errors import ExtrapolationWarning, InputError, unknown_name
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.candidates import SUPPORTS, Candidates
from compshift.core.groups import GroupSpace
from compshift.estimators import model_file
from compshift.estimators.crm_file import Saved, from_file, to_file
from compshift.estimators.crm_model import CRMModel, fit_crm
from compshift.estimators.inputs import known_features, read_labels, training_features
from compshift.estimators.progress import visible_log

if TYPE_CHECKING:
    import pandas as pd

BIASES = ("extrapolated", "learned")
KIND = "CRMClassifier"


class CRMClassifier(ClassifierMixin, BaseEstimator):
    r"""Classifier that keeps working on combinations of attributes that training lacks.

    One linear energy per attribute value is fitted to the seen groups together with their training prior and one bias
    each (a convex problem, solved to ``tol``). The bias of every other group is then computed from the training inputs,
    and predictions are made under any prior over groups.

    Parameters
    ----------
    alpha : float, default=1e-2
        Strength of the ridge penalty, ``alpha/2 · mean(x_centred²) · ‖W‖²`` beside the mean negative log-likelihood. It
        has no unit: scaling all features, or repeating all rows, changes nothing.
    prior : "uniform", "hull", "train", array or mapping, default="uniform"
        Probability of each group where the model will be used. ``"uniform"``: the same for every candidate;
        ``"hull"``: the same for every candidate inside the affine hull of the seen groups; ``"train"``: as in training;
        an array of shape ``space_.cardinalities`` or ``(space_.n_groups,)``; or a mapping or Series from tuples of
        values to probabilities, in which absent groups have none. ``set_prior`` changes it without another fit.
    bias : "extrapolated" or "learned", default="extrapolated"
        B*, computed for every group, or (for ablations) the fitted bias of the seen groups and 0 for the others. Both
        are there after a fit: ``set_params(bias=...)`` switches without another.
    support : "all", "hull" or codes of shape (g, m), default="all"
        The candidate groups: those that can be predicted at all.
    tol : float, default=1e-6
        Largest gradient entry at which the fit counts as converged, per standardised weight (times 1e-2 / alpha, if
        alpha is below 1e-2) and per bias relative to its group's frequency. The learned and the extrapolated bias of
        seen groups then agree to ``tol``.
    max_iter : int, default=1000
        Most iterations of L-BFGS.
    verbose : bool or int, default=False
        Whether to log every iteration, to the logger ``compshift`` (or to standard error if logging is not set up).

    Attributes
    ----------
    classes_ : array, or a list of one array per target
        The values that ``predict`` returns, sorted.
    space_ : GroupSpace
        Targets first, then attributes.
    targets_ : GroupSpace
        The targets alone.
    hull_ : AffineHull
        Of the seen groups.
    groups_ : array (g, m)
        Codes of the candidate groups, in order. The arrays of length g below follow it.
    seen_, inside_hull_ : bool arrays (g,)
        Which candidates training has, and which the seen ones determine.
    group_weight_ : array (g,)
        Training rows of each candidate, or the sum of their weights.
    bias_ : array (g,)
        Extrapolated bias B*.
    learned_bias_ : array (g,)
        Fitted bias B of the seen groups, with mean 0 over the training rows; 0 for the others.
    effective_sample_size_ : array (g,)
        How many training samples the bias of each candidate effectively rests on,
        ``(Σ ω w)² / Σ (ω w)²`` over the samples' weights ω in the data and w in the bias.
    bias_gap_ : float
        Largest ``|B* − B|`` over the seen groups. It is 0 at the optimum.
    log_prior_ : array (g,)
        The prior in force.
    coef_ : array (D, p)
        Energies are ``coef_ @ (x − feature_mean_)``: one row per attribute value, low where the value is likely.
    feature_mean_ : array (p,)
    converged_ : bool
    n_iter_ : int
    inputs_ : mapping or None
        How the columns of a table become features, if the model was saved with it; see ``save``.

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
        support: Any = "all",
        tol: float = 1e-6,
        max_iter: int = 1000,
        verbose: bool | int = False,
    ) -> None:
        self.alpha = alpha
        self.prior = prior
        self.bias = bias
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
        X : array or DataFrame (n, p)
            Features, all finite numbers.
        y : (n,) or (n, t)
            What is predicted: one target or several. Text, numbers, booleans or pandas categoricals.
        attributes : (n,) or (n, s), optional
            What else varies and must not mislead, known in training only.
        sample_weight : (n,), optional
            Weights of the rows; a weight of 2 gives the same model as the row twice. Only the effective sample sizes
            differ: they count a row once, whatever its weight.
        space : GroupSpace, optional
            Attributes and values, targets first, if there are values that no training row has.
        """
        alpha, tol, max_iter = self.check_parameters()
        if y is None:
            raise InputError(
                "CRMClassifier requires y to be passed, but the target y is None: pass the class of each row"
            )
        X = training_features(self, X)
        weight = check_sample_weight(sample_weight, len(X))
        keep = weight > 0
        labels = read_labels(y, attributes, space, keep)
        if not keep.all():
            X, weight = X[keep], weight[keep]
        seen_groups, position = labels.space.distinct(labels.codes)
        seen_weight = np.bincount(position, weights=weight).astype(np.float64)  # (k,)
        candidates = Candidates.of(labels.space, seen_groups, seen_weight, self.support)
        candidates.log_prior(self.prior)  # a prior that cannot be used is refused before the work, not after
        with visible_log(self.verbose):
            model = fit_crm(X, position, weight, candidates, alpha=alpha, tol=tol, max_iter=max_iter)
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
                stacklevel=2,
            )
        self._adopt(model, labels.n_targets, labels.one_dimensional)
        return self._use_prior(self.prior)

    @classmethod
    def from_model(cls, model: CRMModel, *, prior: Any = "uniform") -> Self:
        """A classifier of one target around energies and biases that were found elsewhere, as by a trained head."""
        clf = cls(prior=prior)
        clf._adopt(model, n_targets=1, one_dimensional=True)
        clf.n_features_in_ = len(model.feature_mean)
        clf._outside_announced = True
        return clf._use_prior(prior)

    def check_parameters(self) -> tuple[float, float, int]:
        """Refuse parameters that no data can be fitted with; ``alpha``, ``tol`` and ``max_iter`` as numbers."""
        if self.bias not in BIASES:
            raise unknown_name("bias", self.bias, BIASES)
        if isinstance(self.support, str) and self.support not in SUPPORTS:
            raise unknown_name("support", self.support, SUPPORTS)
        alpha = check_positive(self.alpha, "alpha", allow_zero=True)
        return alpha, check_positive(self.tol, "tol"), check_count(self.max_iter, "max_iter")

    def _adopt(self, model: CRMModel, n_targets: int, one_dimensional: bool) -> None:
        """Take over what was fitted, or read from a file."""
        candidates, space = model.candidates, model.candidates.space
        self._model = model
        self.targets_ = GroupSpace(space.names[:n_targets], space.values[:n_targets])
        self._one_dimensional = one_dimensional
        self._outside_announced = False
        self.space_ = space
        self.hull_ = candidates.hull
        self.groups_ = candidates.groups
        self.seen_ = candidates.in_seen >= 0
        self.inside_hull_ = candidates.inside_hull
        self.group_weight_ = candidates.weight
        self.bias_ = model.bias
        self.learned_bias_ = model.learned_bias
        self.effective_sample_size_ = model.effective_sample_size
        self.bias_gap_ = model.bias_gap
        self.coef_ = model.coef
        self.feature_mean_ = model.feature_mean
        self.converged_ = model.converged
        self.n_iter_ = model.n_iter
        self.inputs_: Mapping[str, Any] | None = None
        classes = [np.array(values) for values in self.targets_.values]
        self.classes_ = classes[0] if one_dimensional else classes

    def set_prior(self, prior: Any) -> Self:
        """Predict under another prior from now on, without another fit; ``prior`` is as in the constructor."""
        check_is_fitted(self)
        return self._use_prior(prior)

    def _use_prior(self, prior: Any) -> Self:
        """Set the prior, and say once if it counts on groups outside the hull."""
        self.log_prior_ = self._model.candidates.log_prior(prior)
        outside = int(np.count_nonzero(~self.inside_hull_ & (self.log_prior_ > -np.inf)))
        if outside and not self._outside_announced:
            self._outside_announced = True
            warnings.warn(
                f"{outside} of the {len(self.groups_)} candidate groups lie outside the affine hull of the seen ones: "
                'the training data do not determine their probabilities; use prior="hull" to leave them out, or '
                "collect more combinations",
                ExtrapolationWarning,
                stacklevel=3,
            )
        return self

    def predict(self, X: Any) -> Any:
        """Most probable value of each target, (n,) or (n, t)."""
        codes = np.stack([np.argmax(part, axis=1) for part in self._marginals(X)], axis=1)
        predicted = self.targets_.decode(codes)
        return predicted[:, 0] if self._one_dimensional else predicted

    def predict_proba(self, X: Any) -> Any:
        """Probability of each value of the target, (n, c); a list of such arrays if y had two dimensions."""
        parts = [np.exp(part) for part in self._marginals(X)]
        return parts[0] if self._one_dimensional else parts

    def predict_log_proba(self, X: Any) -> Any:
        """Logarithm of ``predict_proba``, exact where the probability is too small for a float."""
        parts = self._marginals(X)
        return parts[0] if self._one_dimensional else parts

    def group_log_proba(self, X: Any, codes: Any = None) -> FloatArray:
        """Log q(z|x) of every candidate group in the order of ``groups_``, (n, g), or of the listed groups, (n, q).

        A listed group that is no candidate has probability 0, hence −inf.
        """
        X = known_features(self, X)
        if codes is None:
            return self._model.joint(X, self._log_score())
        codes = check_codes(codes, self.space_.cardinalities)
        return self._model.joint(X, self._log_score(), self.space_.locate(codes, self.groups_))

    def predict_group(self, X: Any) -> Any:
        """Most probable group, as the value of each target and attribute, (n, m)."""
        best, _ = self._best_group(X)
        return self.space_.decode(self.groups_[best])

    def explain(self, X: Any) -> pd.DataFrame:
        """Per row: the most probable group and its probability; was it seen, is it inside the hull; ESS of its bias."""
        best, log_proba = self._best_group(X)
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

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy; with several targets, the share of rows on which every target is right."""
        check_is_fitted(self)
        predicted = self.targets_.encode(self.predict(X))
        true = self.targets_.encode(y)
        check_same_rows(len(predicted), true, "y")
        weight = check_sample_weight(sample_weight, len(true))
        return float(np.average((true == predicted).all(axis=1), weights=weight))

    def save(self, path: str | PathLike[str], *, inputs: Mapping[str, Any] | None = None) -> None:
        """Write the fitted model as a safetensors file; ``compshift.load`` reads it.

        ``inputs`` is kept with it and comes back as ``inputs_``: the command line notes there how a table's columns
        become features.
        """
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", None)
        saved = Saved(
            parameters=self.get_params(deep=False),
            model=self._model,
            log_prior=self.log_prior_,
            parameter_log_prior=self._model.candidates.log_prior(self.prior),
            n_targets=len(self.targets_.names),
            one_dimensional=self._one_dimensional,
            feature_names=None if names is None else [str(name) for name in names],
            inputs=self.inputs_ if inputs is None else inputs,
        )
        model_file.write(path, KIND, *to_file(saved))

    @classmethod
    def _from_file(cls, header: dict[str, Any], arrays: dict[str, Any]) -> Self:
        """The classifier that ``save`` wrote."""
        saved = from_file(header, arrays)
        clf = cls(**saved.parameters)
        clf._adopt(saved.model, saved.n_targets, saved.one_dimensional)
        clf.log_prior_ = saved.log_prior
        clf.inputs_ = saved.inputs
        clf._outside_announced = bool((~clf.inside_hull_ & (clf.log_prior_ > -np.inf)).any())
        clf.n_features_in_ = len(saved.model.feature_mean)
        if saved.feature_names is not None:
            clf.feature_names_in_ = np.array(saved.feature_names, dtype=object)
        return clf

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _marginals(self, X: Any) -> list[FloatArray]:
        X = known_features(self, X)
        return self._model.marginals(X, self._log_score(), range(len(self.targets_.names)))

    def _best_group(self, X: Any) -> tuple[IntArray, FloatArray]:
        X = known_features(self, X)
        return self._model.best_group(X, self._log_score())

    def _log_score(self) -> FloatArray:
        """Log q(z) − B(z) of each candidate, (g,)."""
        if self.bias not in BIASES:
            raise unknown_name("bias", self.bias, BIASES)
        return self.log_prior_ - (self.bias_ if self.bias == "extrapolated" else self.learned_bias_)
