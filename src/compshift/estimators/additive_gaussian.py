"""AdditiveGaussian: a Gaussian density for every group, seen or unseen, and the classifier they imply.

The code that fits them is in ``compshift.crm.gaussian``, the densities in ``compshift.core.gaussian``.
"""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from compshift._checks import check_codes, check_count, check_finite, check_no_overflow, check_numbers, check_positive
from compshift._errors import ExtrapolationWarning, InputError, check_name, listing
from compshift.core.arrays import FloatArray, IntArray, log_softmax, logsumexp, row_blocks
from compshift.core.bias import MAX_PAIRS, EnergyMoments, cumulant_bias
from compshift.core.candidates import Candidates
from compshift.core.gaussian import Gaussians, PerValueGaussians, SharedGaussians
from compshift.core.groups import GroupSpace
from compshift.crm.base import GroupClassifier
from compshift.crm.features import prediction_features
from compshift.crm.gaussian import MAX_EXTENT, fit_per_value, fit_shared, standardise_columns
from compshift.crm.inputs import random_numbers, restored_on_error

MAX_PRECISION_CELLS = 1 << 28
"""Largest number of entries in the precision matrices of all groups together: 2 GB."""


class AdditiveGaussian(GroupClassifier):
    r"""Classifier with a Gaussian density for every group, seen or unseen.

    The energy of a group is the sum of the energies of its values, ``log p(x|z) = −½ x'Λx + η'x − log Z`` with sums Λ
    and η over the values. The densities of the seen groups therefore determine the density of every group inside their
    affine hull (Mahajan et al., 2025, Theorem 1 and label "test-train-cond-density-rel" in docs/maths.md). Unlike in
    ``CRMClassifier``, the partition function has a closed form, but features must be roughly Gaussian within groups.

    Parameters
    ----------
    covariance : "shared" or "per-value", default="shared"
        ``"shared"``: one covariance for all groups, and means that are sums over the attributes. This is linear
        discriminant analysis for combinations, solved in closed form. ``"per-value"``: one precision matrix for each
        attribute value; the precision of a group is the sum over its values. This is a convex problem in about
        ``D p²/2`` parameters.
    shrinkage : "auto" or float from 0 to 1, default="auto"
        Shrinkage of the shared covariance towards the identity, after each feature is divided by its standard deviation
        within groups, so that the units of X do not matter. ``"auto"`` uses Ledoit and Wolf's estimate. Unless
        ``shrinkage`` is 0, features may be constant within groups; their variance is then taken as 1/n of that over all
        rows.
    penalty : "auto" or float above 0, default="auto"
        For ``"per-value"``: strength of the penalty that pulls the fit towards the shared solution. It is added to the
        mean negative log-likelihood, in units of the curvature of that likelihood at the shared solution. ``"auto"`` is
        p/n, which corresponds to p additional rows of each value. Raise it if unseen groups have no density.
    prior : "uniform", "hull", "train", array or mapping, default="uniform"
        Probability of each group where the model will be used, as in ``CRMClassifier``. ``"uniform"``, ``"hull"`` and
        ``"train"`` give groups without a density probability 0.
    support : "all", "hull", "observed", or codes of shape (g, m), default="all"
        Candidate groups, the only ones that can be predicted.
    tol : float, default=1e-6
        For ``"per-value"``: largest gradient entry at which the fit counts as converged, with features whitened by the
        shared covariance.
    max_iter : int, default=500
        For ``"per-value"``: maximum number of Newton steps.

    Attributes
    ----------
    classes_ : array, or a list of one array per target
        The values that ``predict`` returns, sorted.
    space_, targets_ : GroupSpace
        All attributes, targets first; and the targets alone.
    hull_ : AffineHull
        Affine hull of the seen groups.
    groups_ : array (g, m)
        Codes of the candidate groups, sorted. The arrays of length g below have the same order.
    seen_, inside_hull_ : bool arrays (g,)
        Whether each candidate was seen in training, and whether it is inside the hull.
    proper_ : bool array (g,)
        Whether each candidate has a density. An unseen group has none if its precision is not positive definite.
    group_weight_ : array (g,)
        Number of training rows of each candidate, or the sum of their weights.
    log_prior_ : array (g,)
        Current log prior of each candidate.
    means_ : array (g, p)
        Mean of each candidate; NaN for a candidate without a density.
    covariance_ : array (p, p)
        The shared covariance; with ``"per-value"``, that of the solution towards which the penalty pulls the fit.
    precisions_ : array (g, p, p)
        Precision of each candidate, with ``"per-value"`` only.
    shrinkage_ : float
        Shrinkage of the shared covariance.
    converged_ : bool
        Whether the fit converged; always True with ``"shared"``.
    n_iter_ : int
        Number of Newton steps; 1 with ``"shared"``.

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
    >>> model = AdditiveGaussian().fit(X, z[:, 0], attributes=z[:, 1])
    >>> model.predict_group([[0.0, 0.0], [4.0, 4.0]])
    array([[0, 0],
           [1, 1]])
    >>> model.sample(1000, [0, 0], random_state=0).mean(axis=0).round(1) + 0.0
    array([0., 0.])
    >>> model.outlier_score([[0.0, 0.0], [10.0, -10.0]]).round(0)
    array([ 3., 72.])
    """

    def __init__(
        self,
        covariance: str = "shared",
        *,
        shrinkage: Any = "auto",
        penalty: Any = "auto",
        prior: Any = "uniform",
        support: Any = "all",
        tol: float = 1e-6,
        max_iter: int = 500,
    ) -> None:
        self.covariance = covariance
        self.shrinkage = shrinkage
        self.penalty = penalty
        self.prior = prior
        self.support = support
        self.tol = tol
        self.max_iter = max_iter

    def fit(
        self, X: Any, y: Any, *, attributes: Any = None, sample_weight: Any = None, space: GroupSpace | None = None
    ) -> Self:
        """Fit the densities of the seen groups, and compute the density of every candidate from them.

        Parameters
        ----------
        X : array or DataFrame (n, p)
            Features, all finite numbers.
        y : array (n,) or (n, t)
            One target or several: text, numbers, booleans or pandas categoricals.
        attributes : array (n,) or (n, s), optional
            Nuisance attributes, needed in training only.
        sample_weight : array (n,), optional
            Weights of the rows; a weight of 2 gives the same model as the row twice. Only the ratios of the weights
            matter, except that "auto" parameters take their sum as the number of rows.
        space : GroupSpace, optional
            All attributes and their values, targets first. Needed if some values are absent from the training rows.

        Returns
        -------
        AdditiveGaussian
            The fitted classifier itself.

        Raises
        ------
        InputError
            If the data cannot be read, the covariance within groups is singular, or the precision matrices would not
            fit into memory.
        """
        shrinkage, penalty, tol, max_iter = self._check_parameters()
        with restored_on_error(self):
            data = self._read(X, y, attributes, sample_weight, space)
            X, position, weight, candidates = data.X, data.position, data.sample_weight, data.candidates
            if self.covariance == "per-value":
                _check_size(candidates, X.shape[1])
            features, self._centre, self._scale, rounding = standardise_columns(X, weight)
            shared, self.shrinkage_ = fit_shared(
                features, position, weight, candidates.space, candidates.seen_groups, shrinkage, rounding
            )
            self._model: SharedGaussians | PerValueGaussians = shared
            self.converged_, self.n_iter_ = True, 1
            if self.covariance == "per-value":
                penalty = X.shape[1] / float(weight.sum()) if penalty is None else penalty
                solution = fit_per_value(features, position, weight, candidates, shared, penalty, tol, max_iter)
                self._model, self.converged_, self.n_iter_ = solution.model, solution.converged, solution.n_iter
                if not solution.converged:
                    warnings.warn(
                        f"the fit stopped after {solution.n_iter} steps at a gradient of {solution.gradient:.1e} (tol "
                        f"{tol:g}): raise max_iter (now {max_iter}) or penalty, or loosen tol",
                        ConvergenceWarning,
                        stacklevel=2,
                    )
            self._adopt_candidates(candidates, data.n_targets, data.one_dimensional)
            self._adopt_densities(shared)
            if not self.proper_.all():
                warnings.warn(
                    f"{int((~self.proper_).sum())} of the {len(self.groups_)} candidate groups have no density, "
                    f"because their precision is not positive definite, so their prior is set to 0: "
                    f"{self._labels(~self.proper_)}; raise penalty, or use covariance='shared'",
                    ExtrapolationWarning,
                    stacklevel=2,
                )
            return self._use_prior(self.prior)

    def _check_parameters(self) -> tuple[float | None, float | None, float, int]:
        """Check the parameters that do not depend on the data, and return them; None stands for "auto"."""
        check_name("covariance", self.covariance, ("shared", "per-value"))
        self._check_support()
        shrinkage = penalty = None
        if not _is_auto(self.shrinkage, "shrinkage", "from 0 to 1"):
            shrinkage = check_positive(self.shrinkage, "shrinkage", allow_zero=True)
            if shrinkage > 1:
                raise InputError(f"shrinkage is {self.shrinkage!r}: pass 'auto', or a number from 0 to 1")
        if not _is_auto(self.penalty, "penalty", "above 0"):
            penalty = check_positive(self.penalty, "penalty")
        return shrinkage, penalty, check_positive(self.tol, "tol"), check_count(self.max_iter, "max_iter")

    def _adopt_densities(self, shared: SharedGaussians) -> None:
        """Set the attributes that describe the densities, in the units of X."""
        self._gaussians = self._model.groups(self.groups_)
        self.proper_ = self._gaussians.proper
        self.means_ = self._centre + self._scale * self._gaussians.means
        squares = np.outer(self._scale, self._scale)
        self.covariance_ = squares * shared.covariance
        if isinstance(self._model, PerValueGaussians):
            self.precisions_ = self._model.precisions(self.groups_) / squares
        elif hasattr(self, "precisions_"):  # from an earlier fit
            del self.precisions_

    def _usable_log_prior(self, prior: Any) -> FloatArray:
        """Return the log prior of the candidates, (g,), −inf for groups without a density."""
        log_prior = self._candidates.log_prior(prior)
        lacking = ~self.proper_ & (log_prior > -np.inf)
        if lacking.any():
            if not isinstance(prior, str):
                raise InputError(
                    f"prior is above 0 for groups that have no density, {self._labels(lacking)}: set it to 0 where "
                    "proper_ is False"
                )
            log_prior = np.where(lacking, -np.inf, log_prior)
            if not (log_prior > -np.inf).any():
                raise InputError(
                    f"prior={prior!r} cannot be used, because none of its groups has a density: raise penalty"
                )
            log_prior = log_prior - logsumexp(log_prior, axis=0)
        return log_prior

    def log_density(self, X: Any, codes: Any = None, *, groups: Any = None) -> FloatArray:
        """Return log p(x|z) of every candidate group, or of the groups passed, in the units of X.

        It is NaN for a group without a density. For a group outside the affine hull it is a number, but the training
        data do not determine it.

        Parameters
        ----------
        X : array or DataFrame (n, p)
            Features.
        codes : array (m,) or (q, m), optional
            Integer codes of one group or several.
        groups : tuple, or list of tuples, optional
            One group or several by their values, instead of ``codes``.

        Returns
        -------
        array (n, g) or (n, q)
            Log densities, in the order of ``groups_`` or of the groups passed.

        Raises
        ------
        InputError
            If both ``codes`` and ``groups`` are passed, or a group has values that the model does not know.
        """
        X = prediction_features(self, X)
        every = codes is None and groups is None
        return self._log_densities(X, self._gaussians if every else self._model.groups(self._requested(codes, groups)))

    def outlier_score(self, X: Any) -> FloatArray:
        """Return a score that is high if no group, seen or unseen, explains a sample: −log Σ_z q(z) p(x|z).

        Parameters
        ----------
        X : array or DataFrame (n, p)
            Features.

        Returns
        -------
        array (n,)
            Negative log density of each sample under the current prior.
        """
        X = prediction_features(self, X)
        result = np.empty(len(X))
        for rows in row_blocks(len(X), X.shape[1] + len(self.groups_)):
            result[rows] = -logsumexp(self._weighted(self._log_densities(X[rows], self._gaussians)), axis=1)
        return result

    def sample(self, n: int, codes: Any = None, random_state: Any = None, *, groups: Any = None) -> FloatArray:
        """Draw samples of one group or of several, passed as ``codes`` or as ``groups``.

        Parameters
        ----------
        n : int
            Number of samples of each group.
        codes : array (m,) or (q, m), optional
            Integer codes of one group or several.
        random_state : int, RandomState or None, default=None
            Seed of the random numbers.
        groups : tuple, or list of tuples, optional
            One group or several by their values, instead of ``codes``.

        Returns
        -------
        array (n, p) or (q, n, p)
            Samples of a single group, or of each of q groups.

        Raises
        ------
        InputError
            If neither or both of ``codes`` and ``groups`` are passed, or a group has no density.
        """
        check_is_fitted(self)
        n = check_count(n, "n")
        requested = self._requested(codes, groups)
        gaussians = self._model.groups(requested)
        if not gaussians.proper.all():
            lacking = listing(self.space_.label(code) for code in requested[~gaussians.proper])
            raise InputError(f"some of the groups passed have no density, {lacking}: leave them out")
        noise = random_numbers(random_state).standard_normal((len(gaussians.means), n, len(self._centre)))
        samples = self._centre + self._scale * gaussians.sample(noise)
        single = np.ndim(codes) == 1 if groups is None else isinstance(groups, tuple)
        return samples[0] if single else samples

    def extrapolated_bias(self, coef: Any, feature_mean: Any, learned_bias: Any) -> FloatArray:
        """Return the bias of each candidate, for energies ``coef @ (x − feature_mean)``, under the fitted Gaussians.

        This is an independent check of ``CRMClassifier.bias_``, which is a mean over training rows. Here the Gaussians
        of the seen groups, with their covariances averaged, give the log-partition in closed form
        (``compshift.core.bias``). A seen group keeps its learned bias.

        Parameters
        ----------
        coef : array (D, p)
            Weights of the energies, as ``CRMClassifier.coef_``.
        feature_mean : array (p,)
            Mean that is subtracted from the features, as ``CRMClassifier.feature_mean_``.
        learned_bias : array (k,)
            Learned bias of the seen groups ``hull_.observed``, as ``clf.learned_bias_[clf.seen_]``.

        Returns
        -------
        array (g,)
            Bias of each candidate.

        Raises
        ------
        InputError
            If an array has the wrong shape, or there are more than 50 million pairs of a candidate and a seen group.
        """
        check_is_fitted(self)
        size, seen = len(self._centre), self._candidates.seen_groups
        coef = _check_array(coef, "coef", (self.space_.width, size))
        feature_mean = _check_array(feature_mean, "feature_mean", (size,))
        learned_bias = _check_array(learned_bias, "learned_bias", (len(seen),))
        gaussians = self._model.groups(seen)
        means = self._centre - feature_mean + self._scale * gaussians.means  # (k, p)
        covariances = np.outer(self._scale, self._scale) * gaussians.covariances()
        weight = self._candidates.seen_weight if len(covariances) > 1 else np.ones(1)
        pooled = np.average(covariances, axis=0, weights=weight)  # (p, p)
        moments = EnergyMoments(means @ coef.T, coef @ pooled @ coef.T)
        bias = cumulant_bias(self.space_, self.groups_, seen, learned_bias, moments)
        if np.isnan(bias).any():
            raise InputError(
                f"the bias of {len(self.groups_)} candidate groups from {len(seen)} seen ones needs more than "
                f"{MAX_PAIRS:,} pairs of a candidate and a seen group: list fewer groups in support"
            )
        return bias

    def _requested(self, codes: Any, groups: Any) -> IntArray:
        """Return the codes (q, m) of the groups that the caller passed by codes or by values."""
        if (codes is None) == (groups is None):
            passed = "neither codes nor groups is" if codes is None else "both codes and groups are"
            raise InputError(f"{passed} passed: pass codes, or groups as a tuple of values or a list of such tuples")
        if groups is None:
            requested: IntArray = check_codes(codes, self.space_.cardinalities)
        elif isinstance(groups, (tuple, list)):
            keys = [groups] if isinstance(groups, tuple) else groups
            requested = self.space_._encode_keys(keys, "groups") if keys else np.empty((0, 0), dtype=np.int64)
        else:
            raise InputError(f"groups is {groups!r}: pass a tuple of values, or a list of such tuples")
        if not len(requested):
            raise InputError("the list of groups is empty: pass at least one group")
        return requested

    def _log_densities(self, X: FloatArray, gaussians: Gaussians) -> FloatArray:
        """Return the log densities in the units of X, (n, q)."""
        result = np.empty((len(X), len(gaussians.means)))
        for rows in row_blocks(len(X), X.shape[1] + result.shape[1]):
            result[rows] = gaussians.log_density(self._standardise(X[rows]))
        return np.asarray(result - np.log(self._scale).sum())

    def _standardise(self, X: FloatArray) -> FloatArray:
        """Return the features in the units of the model: centred and divided by their scale."""
        with np.errstate(over="ignore"):  # check_no_overflow reports it
            standard = (X - self._centre) / self._scale
            check_no_overflow(np.abs(standard).max(initial=0.0) ** 3, "densities")
        return np.asarray(standard)

    def _weighted(self, logs: FloatArray) -> FloatArray:
        """Add log q(z) to log densities (n, g). Where q(z) is 0 the result is −inf, even if the log density is NaN."""
        return np.where(self.log_prior_ > -np.inf, self.log_prior_ + logs, -np.inf)

    def _block_log_posterior(self, X: FloatArray) -> FloatArray:
        return np.asarray(log_softmax(self._weighted(self._gaussians.log_posterior_terms(self._standardise(X)))))

    def _labels(self, chosen: Any) -> str:
        return listing(self.space_.label(code) for code in self.groups_[chosen])


def _check_size(candidates: Candidates, n_features: int) -> None:
    """Check that the precision matrices of all groups fit into memory."""
    count = max(len(candidates.groups), len(candidates.seen_groups), candidates.space.width)
    if count * n_features**2 > MAX_PRECISION_CELLS:
        raise InputError(
            f"covariance='per-value' needs {count} matrices of {n_features} × {n_features}, which would take more "
            "than 2 GB: reduce the features, for example by PCA, list fewer groups in support, or use "
            "covariance='shared'"
        )


def _is_auto(value: Any, name: str, accepted: str) -> bool:
    """Return whether the value is "auto"; raise if it is any other text, naming the ``accepted`` numbers."""
    if not isinstance(value, str):
        return False
    if value != "auto":
        raise InputError(f"{name} is {value!r}: pass 'auto', or a number {accepted}")
    return True


def _check_array(values: Any, name: str, shape: tuple[int, ...]) -> FloatArray:
    """Check that an array has this shape and holds finite numbers up to ``MAX_EXTENT``."""
    array = check_numbers(values, name, f"pass an array of numbers of shape {shape}")
    if array.shape != shape:
        raise InputError(f"{name} has shape {array.shape}: pass an array of shape {shape}")
    check_finite(array, name)
    if np.abs(array).max(initial=0.0) > MAX_EXTENT:
        raise InputError(f"{name} has numbers up to {np.abs(array).max():.3g}: pass numbers up to {MAX_EXTENT:g}")
    return np.asarray(array)
