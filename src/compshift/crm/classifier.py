"""What every fitted CRM classifier can do, however its energies were found.

What the CRM classifiers share on the way from data to a fitted model.

Compositional Risk Minimization on fixed features, as a scikit-learn classifier.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from compshift._checks import check_count, check_finite_number, check_positive
from compshift._errors import InputError, an, check_name
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.groups import GroupSpace
from compshift.crm import io as model_file
from compshift.crm.base import GroupClassifier, Labelled
from compshift.crm.combination_kfold import CombinationKFold
from compshift.crm.fit import ANCHORS, PARTS, FitParams, check_parts, fit_crm
from compshift.crm.inputs import known_features, seed_of, unchanged_if_refused, visible_log
from compshift.crm.io import Saved, from_file, to_file
from compshift.crm.model import BIASES, CRMModel
from compshift.crm.partial import fit_partial
from compshift.crm.selection import AUTO, Options, Setting, choose
from compshift.crm.streams import MEMORY, fit_store, fit_streamed, is_dask, read_dask, read_store_labels
from compshift.data.feature_store import FeatureStore

if TYPE_CHECKING:
    import pandas as pd

    from compshift.crm.selection import Options

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
        frame = self.space_.frame(
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
        return self.space_.frame(self.groups_[known], accuracy=accuracy, lower=lower, upper=upper)

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


TRIED = ("extrapolated", "shrunk", "cumulant")
"""The biases among which ``"auto"`` chooses."""


class CRMFitter(FittedCRM):
    """Reading the data, checking the parameters, fitting one setting. Its parameters are those of its subclasses."""

    bias: str
    anchor: str
    cross_fit: bool | int | str
    tol: float
    max_iter: int

    def _check_options(self, alphas: tuple[float, ...]) -> tuple[Options, float, int]:
        """Refuse parameters that no data can be fitted with; what there is to choose, ``tol`` and ``max_iter``."""
        check_name("bias", self.bias, (*BIASES, AUTO))
        check_name("anchor", self.anchor, (*ANCHORS, AUTO))
        self._check_support()
        if isinstance(self.cross_fit, str) and self.cross_fit != AUTO:
            raise InputError(f"cross_fit is {self.cross_fit!r}: pass True, False, a number of parts, or 'auto'")
        offset = self.unseen_offset
        options = Options(
            alphas,
            ANCHORS if self.anchor == AUTO else (self.anchor,),
            (0, PARTS) if isinstance(self.cross_fit, str) else (check_parts(self.cross_fit),),
            TRIED if self.bias == AUTO else (self.bias,),
            None if isinstance(offset, str) and offset == AUTO else check_offset(offset),
        )
        return options, check_positive(self.tol, "tol"), check_count(self.max_iter, "max_iter")

    def _takes_missing(self) -> bool:
        return True

    def _check_incomplete(self) -> None:
        if isinstance(self.cross_fit, str) or check_parts(self.cross_fit):
            raise InputError(
                f"cross_fit is {self.cross_fit!r} and attributes are missing in some rows: "
                "use cross_fit=False, or leave those rows out"
            )

    def _fit_setting(self, data: Labelled, setting: Setting, tol: float, max_iter: int) -> None:
        """Fit all rows, and take the result over."""
        X, position, weight, candidates = data.X, data.position, data.sample_weight, data.candidates
        if data.incomplete is None:
            model = fit_crm(X, position, weight, candidates, setting.recipe, tol=tol, max_iter=max_iter)
        else:
            model = fit_partial(
                X, position, weight, data.incomplete, candidates, setting.recipe, tol=tol, max_iter=max_iter
            )
        self.n_missing_ = 0 if data.incomplete is None else len(data.incomplete.X)
        self._take(model, setting, data.n_targets, data.one_dimensional, tol, max_iter)

    def _take(
        self, model: CRMModel, setting: Setting, n_targets: int, one_dimensional: bool, tol: float, max_iter: int
    ) -> None:
        """Take a fitted model over, and say so if the search stopped early."""
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
                stacklevel=4,
            )
        self._adopt(model, setting, n_targets, one_dimensional)


class CRMClassifier(CRMFitter):
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
        values to probabilities, in which absent groups have none; if the levels of a Series have names, they are those
        of the attributes. ``set_prior`` changes it without another fit.
    bias : "extrapolated", "cumulant", "shrunk", "learned" or "auto", default="extrapolated"
        How the bias of a group comes about. ``"extrapolated"``: B*, an importance-weighted mean over the training
        inputs. ``"cumulant"``: from the seen groups by two moments of the energies, which is exact for Gaussians and
        has far less variance where B* rests on a few samples; no lower than the samples allow, which is B* less three
        of its standard errors. ``"shrunk"``: B* drawn to the latter where its effective
        sample size is low. ``"learned"`` (for ablations): the fitted bias of the seen groups and 0 for the others.
        ``"auto"``: whichever of the first three does best on seen groups that are held out. All are there after a
        fit: ``set_params(bias=...)`` switches without another.
    anchor : "zero", "gaussian" or "auto", default="zero"
        What the ridge pulls the weights to: zero, or the energies of Gaussians with additive means and one covariance.
        The latter needs less data, if the data are like that.
    cross_fit : bool, int or "auto", default=False
        Whether biases, and a temperature of the energies, are estimated on energies that were fitted to other rows (in
        so many parts; True means 5). It helps where energies overfit.
    unseen_offset : float or "auto", default=0.0
        Nats by which groups that training lacks are favoured over the others, beyond what prior and bias say.
        ``"auto"``: chosen on seen groups that are held out, as by ``CRMClassifierCV``.
    support : "all", "hull", "observed", codes of shape (g, m), or ("observed", codes), default="all"
        The candidate groups: those that can be predicted at all. With more combinations than a table can hold (a few
        million) list them: ``("observed", codes)`` are the seen groups and those listed.
    tol : float, default=1e-6
        Largest gradient entry at which the fit counts as converged, per standardised weight (times 1e-2 / alpha, if
        alpha is below 1e-2) and per bias relative to its group's frequency. The learned and the extrapolated bias of
        seen groups then agree to ``tol``.
    max_iter : int, default=1000
        Most iterations of L-BFGS.
    memory : int, default=2**30
        Bytes that blocks of a ``FeatureStore`` may take. Labels are held beside, 110 bytes a row or so.
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
        Training rows of each candidate, or the sum of their weights; expected ones, if attributes were missing.
    bias_ : array (g,)
        Extrapolated bias B*.
    learned_bias_ : array (g,)
        Fitted bias B of the seen groups, with mean 0 over the training rows; 0 for the others.
    effective_sample_size_ : array (g,)
        How many training samples the bias of each candidate effectively rests on,
        ``(Σ ω w)² / Σ (ω w)²`` over the samples' weights ω in the data and w in the bias.
    cumulant_bias_ : array (g,)
        The bias by two moments of the energies, no lower than ``bias_ - 3 / sqrt(effective_sample_size_)``.
    pareto_k_ : array (g,)
        Tail index k̂ of the samples' weights in B*: above 0.7 the mean is not to be trusted, whatever its effective
        sample size. NaN of fewer than 25 rows, of more than 20 million rows × groups, and of streamed rows.
    temperature_ : float
        By which cross-fitting multiplied the energies; 1 without it.
    bias_gap_ : float
        Largest ``|B* − B|`` over the seen groups. It is 0 at the optimum.
    log_prior_ : array (g,)
        The prior in force.
    coef_ : array (D, p)
        Energies are ``coef_ @ (x − feature_mean_)``: one row per attribute value, low where the value is likely.
    feature_mean_ : array (p,)
    converged_ : bool
        If attributes were missing, also that the frequencies of the groups had settled.
    n_iter_ : int
    n_missing_ : int
        Training rows with a missing attribute. It is not kept in a file.
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
        anchor: str = "zero",
        cross_fit: bool | int | str = False,
        unseen_offset: float | str = 0.0,
        support: Any = "all",
        tol: float = 1e-6,
        max_iter: int = 1000,
        memory: int = MEMORY,
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
        self.memory = memory
        self.verbose = verbose

    def fit(
        self, X: Any, y: Any, *, attributes: Any = None, sample_weight: Any = None, space: GroupSpace | None = None
    ) -> Self:
        """Fit the energies, and compute the bias of every candidate group.

        Parameters
        ----------
        X : array, DataFrame (n, p), FeatureStore, or Dask array or DataFrame
            Features, all finite numbers. Those of a ``compshift.data.FeatureStore`` are read in blocks, as often as the
            search needs them, and under torchrun each process reads a share; y and attributes are then names of its
            columns. Those of a Dask collection stay with its workers; y and attributes are then collections too, in
            partitions of the same rows.
        y : (n,) or (n, t)
            What is predicted: one target or several. Text, numbers, booleans or pandas categoricals.
        attributes : (n,) or (n, s), optional
            What else varies and must not mislead, known in training only. Values may be missing (None, NaN, NA,
            masked): such a row counts for the seen groups that agree with what is known of it, each by its probability.
            Seen groups are those of complete rows. This assumes that values are missing at random: whether one is
            missing may depend on the features, the target and the known attributes, not on the missing value itself.
        sample_weight : (n,), optional
            Weights of the rows; a weight of 2 gives the same model as the row twice. Only the effective sample sizes
            differ: they count a row once, whatever its weight.
        space : GroupSpace, optional
            Attributes and values, targets first, if there are values that no training row has.
        """
        options, tol, max_iter = self.check_parameters()
        with unchanged_if_refused(self), visible_log(self.verbose):
            if isinstance(X, FeatureStore) or is_dask(X):
                return self._fit_streamed(X, y, attributes, sample_weight, space, options)
            data = self._read(X, y, attributes, sample_weight, space)
            if options.single:
                setting = options.first
            else:
                seed = seed_of(0)  # the folds of CRMClassifierCV
                splitter = CombinationKFold(random_state=seed)
                fold = splitter.group_folds(data.candidates.space, data.candidates.seen_groups)
                chosen = choose(data, options, fold, self.prior, None, max_iter=max_iter, seed=seed, n_jobs=None)
                setting = chosen.setting
            self._fit_setting(data, setting, tol, max_iter)
            return self._use_prior(self.prior)

    def _fit_streamed(
        self, X: Any, y: Any, attributes: Any, sample_weight: Any, space: GroupSpace | None, options: Options
    ) -> Self:
        """Fit rows that are not held here: of a store, or of a Dask collection."""
        if not options.single:
            raise InputError(
                f"rows of {an(type(X).__name__)} are fitted with settings that are given: choose bias and the others "
                "on rows that fit in memory, then pass what was chosen"
            )
        tol, max_iter = check_positive(self.tol, "tol"), check_count(self.max_iter, "max_iter")
        memory = check_count(self.memory, "memory")
        data: Any
        if isinstance(X, FeatureStore):
            data = read_store_labels(X, y, attributes, sample_weight, space, self.support)
            data.candidates.log_prior(self.prior)  # one that cannot be used is refused before the work
            model = fit_store(X, data, options.first.recipe, memory, tol=tol, max_iter=max_iter)
        else:
            data = read_dask(X, y, attributes, sample_weight, space, self.support)
            data.candidates.log_prior(self.prior)
            model = fit_streamed(data.rows, data.candidates, options.first.recipe, tol=tol, max_iter=max_iter)
        self.n_features_in_, self.n_missing_ = len(model.feature_mean), 0
        if hasattr(self, "feature_names_in_"):  # of an earlier fit
            del self.feature_names_in_
        self._take(model, options.first, data.n_targets, data.one_dimensional, tol, max_iter)
        return self._use_prior(self.prior)

    @classmethod
    def from_model(cls, model: CRMModel, *, prior: Any = "uniform") -> Self:
        """A classifier of one target around energies and biases that were found elsewhere, as by a trained head."""
        clf = cls(prior=prior)
        clf._adopt(model, Setting(FitParams(clf.alpha), clf.bias), n_targets=1, one_dimensional=True)
        clf.n_features_in_ = len(model.feature_mean)
        clf._outside_announced = True
        return clf._use_prior(prior)

    def check_parameters(self) -> tuple[Options, float, int]:
        """Refuse parameters that no data can be fitted with; what there is to choose, ``tol`` and ``max_iter``."""
        alpha = check_positive(self.alpha, "alpha", allow_zero=True)
        return self._check_options((alpha,))
