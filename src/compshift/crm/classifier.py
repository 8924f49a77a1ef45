"""Compositional Risk Minimization on fixed features, as a scikit-learn classifier."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, Self

from sklearn.utils.validation import check_is_fitted

from compshift._checks import check_count, check_positive
from compshift._errors import InputError, unknown_name
from compshift.core.groups import GroupSpace
from compshift.core.sparse import SparseRows
from compshift.crm import io
from compshift.crm.features import warn_of_unequal_scales
from compshift.crm.fit import ANCHORS, FitParams, Setting, check_cross_fit, check_offset, fit_crm, fit_streamed
from compshift.crm.fitted import FittedCRM
from compshift.crm.inputs import LabelledSamples, is_streamed, restored_on_error, visible_log
from compshift.crm.missing_attributes import fit_incomplete
from compshift.crm.model import BIASES, CRMModel, warn_of_unreliable_biases, warn_unless_converged
from compshift.crm.problem import TRANSFORMS, transformed, transformed_samples
from compshift.crm.streams import read_streamed
from compshift.crm.unlabelled import fit_unlabelled, read_pool, record_pool

if TYPE_CHECKING:
    import pandas as pd


class CRMClassifier(FittedCRM):
    r"""Classifier for combinations of attributes that may be absent from the training data.

    One linear energy per attribute value and one bias per seen group are fitted to the seen groups under their training
    prior (a convex problem if no attribute is missing, solved to ``tol``). The bias of every group, seen or not, is
    then computed from the training samples, and predictions can be made under any prior over groups.
    ``CRMClassifierCV`` chooses the settings.

    Parameters
    ----------
    alpha : float, default=1e-2
        Strength of the ridge, ``alpha/2 · mean(x_centred²) · ‖W‖²``, added to the mean negative log-likelihood. It is
        dimensionless: scaling all features by one factor, or repeating all samples, does not change the predictions.
    prior : "uniform", "hull", "train", array or mapping, default="uniform"
        Probability of each group in the population in which the model will be used. ``"uniform"``: the same for every
        candidate; ``"hull"``: the same for every candidate inside the affine hull of the seen groups; ``"train"``: as
        in training; an array of shape ``space_.cardinalities`` or ``(space_.n_groups,)``; or a mapping or Series from
        tuples of values to probabilities, where groups that are not listed have probability 0 and named levels of a
        Series are matched to the attributes. A mapping or Series from single values is a prior over the classes of the
        (first) target, and lists all of them: the candidates of a class inside the hull share its probability equally,
        or all of its candidates if none is inside. ``set_prior`` changes it without refitting.
    bias : "extrapolated", "cumulant", "shrunk" or "learned", default="extrapolated"
        How the bias of a group is computed. ``"extrapolated"``: B*, an importance-weighted mean over the training
        samples. ``"cumulant"``: extrapolated from the seen groups by the first two moments of the energies, which is
        exact for Gaussians and has far less variance than B* if B* depends on few samples; never lower than B* minus
        three of its standard errors. ``"shrunk"``: B* shrunk towards ``"cumulant"`` if the effective sample size of B*
        is low. ``"learned"`` (for ablations): the fitted bias of seen groups and 0 for unseen groups. Every fit
        computes all of them: ``set_params(bias=...)`` switches without refitting.
    anchor : "zero" or "gaussian", default="zero"
        Weights that the ridge pulls towards: zero, or the weights of a Gaussian model with additive means and one
        shared covariance. ``"gaussian"`` needs fewer samples if the features are roughly Gaussian within groups.
    cross_fit : bool or int, default=False
        Whether to estimate the biases, and a temperature of the energies, on out-of-fold energies. An integer is the
        number of folds; True means 5. It helps if the energies overfit, and ``predict_set`` needs it.
    unseen_offset : float, default=0.0
        Number of nats added to the log-probability of every unseen group before normalising.
    feature_transform : "none", "signed_root" or "unit_length", default="none"
        Transform of each row of features, applied first in ``fit`` and in predictions. ``"signed_root"``: the square
        root of the absolute value, with the sign of the feature. ``"unit_length"``: rows are divided by their
        Euclidean length; a row of zeros stays zero. Streamed data need ``"none"``.
    support : "all", "hull", "observed", or codes of shape (g, m), default="all"
        Candidate groups; no other group is ever predicted. If there are more combinations than a table can hold (a few
        million), pass the codes of the groups to predict.
    tol : float, default=1e-6
        The fit has converged if no scaled gradient entry exceeds ``tol``. Entries of weights of the standardised
        features are multiplied by 1e-2 / alpha (at most by 1e6) if alpha is below 1e-2 and not 0; entries of biases are
        divided by their group's frequency. After convergence the learned and the extrapolated bias of each seen group
        agree to ``tol``.
    max_iter : int, default=1000
        Maximum number of iterations of the optimiser.
    verbose : bool or int, default=False
        Whether to log every iteration to the logger ``compshift``, or to standard error if logging is not configured.

    Attributes
    ----------
    classes_ : array, or a list of one array per target
        The values that ``predict`` returns, sorted.
    space_ : GroupSpace
        All attributes and their values: the targets first, then the other attributes.
    targets_ : GroupSpace
        The targets and their classes.
    hull_ : AffineHull
        Affine hull of the seen groups.
    groups_ : array (g, m)
        Codes of the candidate groups. The arrays of length g below are in the same order.
    seen_, inside_hull_ : bool arrays (g,)
        Whether each candidate occurs in the training data, and whether it lies inside the affine hull of the seen
        groups.
    group_weight_ : array (g,)
        Number of training samples of each candidate, or the sum of their weights; an expected count if attributes are
        missing.
    bias_ : array (g,)
        Extrapolated bias B*.
    learned_bias_ : array (g,)
        Fitted bias B of the seen groups, with mean 0 over the training samples; 0 for unseen groups.
    effective_sample_size_ : array (g,)
        Effective sample size of B*, ``(Σ ω w)² / Σ (ω w)²`` with sample weights ω and importance weights w.
    cumulant_bias_ : array (g,)
        Bias from two moments of the energies, never lower than ``bias_ - 3 / sqrt(effective_sample_size_)``.
    pareto_k_ : array (g,)
        Pareto tail index k̂ of the importance weights in B*. If it is above 0.7, B* is unreliable even if its effective
        sample size is large. NaN with fewer than 25 samples, with more than 20 million samples × groups, and for
        streamed data.
    temperature_ : float
        Factor by which cross-fitting multiplied the energies; 1 without it.
    bias_gap_ : float
        Largest ``|B* − B|`` over the seen groups; 0 at the exact optimum.
    log_prior_ : array (g,)
        Current log prior, used by all predictions.
    coef_ : array (D, p)
        Weights of the energies ``coef_ @ (x − feature_mean_)``: one row per attribute value. A low energy makes its
        value likely. Here x is the transformed sample.
    feature_mean_ : array (p,)
        Weighted mean of the training features, after ``feature_transform``.
    feature_transform_ : str
        The transform of the fit.
    converged_ : bool
        Whether the scaled gradient fell to ``tol`` and, if attributes are missing, the group frequencies converged.
    n_iter_ : int
        Number of iterations of the optimiser.
    n_missing_ : int
        Number of training samples with a missing attribute; not stored in a model file.
    n_rounds_ : int
        Number of EM rounds on unlabelled samples; 0 if there were none or they were not used.
    unlabelled_decision_ : PoolDecision or None
        Whether the unlabelled samples were used, and why; None without them. ``unlabelled_prior_`` is a table of the
        groups among them.
    inputs_ : mapping or None
        Description of how the columns of a table become features; None unless the model file contains one, see
        ``save``.

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

    _any_library = True

    def __init__(
        self,
        alpha: float = 1e-2,
        *,
        prior: Any = "uniform",
        bias: str = "extrapolated",
        anchor: str = "zero",
        cross_fit: bool | int = False,
        unseen_offset: float = 0.0,
        feature_transform: str = "none",
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
        self.feature_transform = feature_transform
        self.support = support
        self.tol = tol
        self.max_iter = max_iter
        self.verbose = verbose

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        attributes: Any = None,
        sample_weight: Any = None,
        space: GroupSpace | None = None,
        unlabelled: Any = None,
    ) -> Self:
        """Fit the energies and compute the bias of every candidate group.

        Parameters
        ----------
        X : array, sparse matrix, DataFrame (n, p), FeatureStore, or Dask array or DataFrame
            Features, all finite numbers, in a NumPy array, a tensor, a sparse matrix of SciPy, which is never made
            dense, or a table of pandas, Polars or Arrow. With scikit-learn's ``array_api_dispatch``, passes over a
            tensor, in ``fit`` and in predictions, are computed by its library on its device. A
            ``compshift.data.FeatureStore`` is read in blocks, once per evaluation of the risk; under torchrun each
            process reads some of its rows. ``y`` and ``attributes`` are then column names of the store. The partitions
            of a Dask collection stay with its workers; ``y``, ``attributes`` and ``sample_weight`` must then be Dask
            collections with the same rows in each partition.
        y : (n,) or (n, t)
            Classes to predict: one target or several. Text, numbers, booleans or categories, in an array or a table.
        attributes : (n,) or (n, s), optional
            Further attributes, known only in training. Values may be missing (None, NaN, NA, masked): an incomplete
            sample counts for every seen group that agrees with its known attributes, in proportion to the group's
            posterior probability. Only groups of complete samples are seen groups. Values are assumed to be missing at
            random: whether a value is missing may depend on the features, the targets and the known attributes, but not
            on the missing value itself.
        sample_weight : (n,), optional
            Weights of the samples. A weight of 2 gives the same model as repeating the sample, except that effective
            sample sizes, and the shrinkage of the covariance for ``anchor="gaussian"``, count it once.
        space : GroupSpace, optional
            Attributes, targets first, and their values; needed only if some values are absent from the training data.
        unlabelled : array or DataFrame (N, p), optional
            Features of unlabelled samples from the population in which the model will be used. Energies and biases are
            then fitted to both kinds of sample, by EM over the groups inside the affine hull (docs/maths.md). This
            helps if unseen groups occur among them and harms otherwise; ``CRMClassifierCV`` finds out. Not available
            for streamed data, with missing attributes, or with ``cross_fit``.

        Returns
        -------
        self

        Raises
        ------
        InputError
            If a parameter or the data are invalid; the message says what to change.
        """
        tol, max_iter = self._check_parameters()
        setting = self._setting()
        data: Any
        with restored_on_error(self), visible_log(self.verbose):
            if is_streamed(X):
                pool = None if unlabelled is None else read_pool(self, unlabelled, streamed=True)
                data = read_streamed(X, y, attributes, sample_weight, space, self.support)
                data.candidates.log_prior(self.prior)  # report an unusable prior before the fit, not after it
                model = fit_streamed(data.rows, data.candidates, setting.params, tol=tol, max_iter=max_iter)
                self.n_features_in_, self.n_missing_ = len(model.feature_mean), 0
                if hasattr(self, "feature_names_in_"):  # left by an earlier fit
                    del self.feature_names_in_
            else:
                in_library = unlabelled is None and self.anchor == "zero" and not self.cross_fit
                data = self._read(X, y, attributes, sample_weight, space, missing=True, any_library=in_library)
                self._check_data(data)
                warn_of_unequal_scales(self, data.X)
                data = transformed_samples(data, setting.params.feature_transform)
                incomplete = data.incomplete is not None
                pool = None if unlabelled is None else read_pool(self, unlabelled, incomplete=incomplete)
                if pool is not None:
                    others = transformed(pool, setting.params.feature_transform)
                    model = fit_unlabelled(data, others, setting.params, tol=tol, max_iter=max_iter)
                else:
                    fit_rows = fit_crm if data.incomplete is None else fit_incomplete
                    model = fit_rows(data, setting.params, tol=tol, max_iter=max_iter)
                self.n_missing_ = 0 if data.incomplete is None else len(data.incomplete.X)
            model = model.with_transform(setting.params.feature_transform)
            self._adopt(model, setting, data.n_targets, data.one_dimensional)
            warn_unless_converged(model, tol, max_iter)
            warn_of_unreliable_biases(model, setting.params.alpha, setting.bias, self._fit_log_prior)
            self._use_prior(self.prior)
            if pool is not None:
                self._model = record_pool(self, model, pool)
            self._follow(X)
            return self

    def _check_parameters(self) -> tuple[float, int]:
        """Check the parameters that do not depend on the data; return ``tol`` and ``max_iter``."""
        self._check_support()
        self._setting()
        return check_positive(self.tol, "tol"), check_count(self.max_iter, "max_iter")

    def _setting(self) -> Setting:
        """Check the parameters of the fit and of predictions, and return them."""
        alpha = check_positive(self.alpha, "alpha", allow_zero=True)
        names = (
            ("bias", self.bias, BIASES),
            ("anchor", self.anchor, ANCHORS),
            ("feature_transform", self.feature_transform, TRANSFORMS),
        )
        for name, value, known in names:
            if not isinstance(value, str) or value not in known:
                raise unknown_name(name, value, known)
        params = FitParams(alpha, self.anchor, check_cross_fit(self.cross_fit), self.feature_transform)
        return Setting(params, self.bias, check_offset(self.unseen_offset))

    def _check_data(self, data: LabelledSamples) -> None:
        """Check the parameters against the data: missing attributes and sparse features exclude some of them."""
        if isinstance(data.X, SparseRows) and self.anchor == "gaussian":
            raise InputError(
                "anchor='gaussian' needs the covariance of all features, which are too many if X is sparse: use "
                "anchor='zero', or reduce X to a few hundred columns, for example with TruncatedSVD"
            )
        if data.incomplete is not None and self.cross_fit:
            raise InputError(
                f"cross_fit={self.cross_fit!r} cannot be used if attributes are missing in some rows: use "
                "cross_fit=False, or leave out the rows with missing attributes"
            )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _adopt(self, model: CRMModel, setting: Setting, n_targets: int, one_dimensional: bool) -> None:
        super()._adopt(model, setting, n_targets, one_dimensional)
        self.alpha_, self.anchor_, self.cross_fit_, _ = setting.params
        self.feature_transform_ = model.feature_transform
        self.coef_ = model.coef
        self.feature_mean_ = model.feature_mean
        self.n_rounds_ = 0 if model.pool is None else model.pool.n_rounds
        self.unlabelled_decision_ = None if model.pool is None else model.pool.decision

    @property
    def unlabelled_prior_(self) -> pd.DataFrame:
        """Estimated frequency of each group inside the affine hull among the unlabelled samples of the fit.

        The columns are the attribute values, whether the group was ``seen`` in training, its ``probability`` with the
        ends ``lower`` and ``upper`` of a 90 % interval, and ``effective_rows``, the number of labelled samples with the
        same information.
        """
        check_is_fitted(self)
        frequency = None if self._model.pool is None else self._model.pool.frequency
        if frequency is None:
            raise AttributeError(
                "unlabelled_prior_ was not estimated: pass unlabelled samples to fit (with thousands of candidate "
                "groups it is not estimated even then)"
            )
        known = self.inside_hull_
        names = ("probability", "lower", "upper", "effective_rows")
        values = dict(zip(names, frequency[known].T, strict=True))
        return self.space_.frame(self.groups_[known], seen=self.seen_[known], **values)

    def without_unlabelled(self) -> Self:
        """Return the classifier as fitted to the labelled samples alone.

        Returns
        -------
        CRMClassifier or CRMClassifierCV
            A copy with the same settings and the same current prior; a plain copy if the fit used no unlabelled
            samples.
        """
        check_is_fitted(self)
        clf, use = copy(self), self._model.pool
        if use is not None and use.plain is not None:
            params = FitParams(self.alpha_, self.anchor_, self.cross_fit_, self.feature_transform_)
            setting = Setting(params, self.selected_bias_, self.unseen_offset_)
            clf._adopt(use.plain, setting, len(self.targets_.names), self._one_dimensional)
            clf.inputs_, clf._warned_outside_hull = self.inputs_, self._warned_outside_hull
        return clf

    @classmethod
    def _from_model(cls, model: CRMModel, *, prior: Any = "uniform", n_targets: int = 1) -> Self:
        """Wrap a model fitted elsewhere, such as a trained head, without a warning about groups outside the hull."""
        clf = cls(prior=prior)
        setting = Setting(FitParams(clf.alpha), clf.bias)
        clf._adopt(model, setting, n_targets, one_dimensional=n_targets == 1)
        clf.n_features_in_ = len(model.feature_mean)
        clf._warned_outside_hull = True
        return clf._use_prior(prior)

    def _file_class(self) -> type[FittedCRM]:
        return CRMClassifier

    def _stored_parameters(self) -> dict[str, Any]:
        """Return the constructor parameters of a ``CRMClassifier`` with the chosen settings, for a model file."""
        bias, offset = self._bias_and_offset()
        return {
            "alpha": self.alpha_,
            "prior": self.prior,
            "bias": bias,
            "anchor": self.anchor_,
            "cross_fit": self.cross_fit_ or False,
            "unseen_offset": offset,
            "feature_transform": self.feature_transform_,
            "support": self.support,
            "tol": check_positive(self.tol, "tol"),
            "max_iter": check_count(self.max_iter, "max_iter"),
            "verbose": bool(self.verbose),
        }

    @classmethod
    def _from_file(cls, header: dict[str, Any], arrays: dict[str, Any]) -> Self:
        """Restore a classifier from the header and the arrays of a model file."""
        state = io.unpack(header, arrays)
        clf = cls(**state.parameters)
        clf._check_parameters()
        clf._adopt(state.model, clf._setting(), state.n_targets, state.one_dimensional)
        clf._restore(state, len(state.model.feature_mean))
        return clf
