"""AffineExtrapolation: CRM for any probabilistic classifier of the seen groups, without changing its training."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
from sklearn.utils import get_tags
from sklearn.utils.validation import has_fit_parameter, validate_data

from compshift._checks import (
    changed_names_error,
    check_count,
    check_flag,
    check_positive,
    check_unmasked,
    unreadable_error,
)
from compshift._errors import InputError, InputTypeError, an, check_name
from compshift._progress import CallbackSupportMixin, reported_to_callbacks
from compshift.core.affine import WEIGHTS, affine_log_posterior, affine_weights, log_floored, log_partition
from compshift.core.arrays import FloatArray, IntArray, row_blocks
from compshift.core.candidates import Candidates
from compshift.core.columns import as_pandas
from compshift.core.folds import row_folds
from compshift.core.groups import GroupSpace
from compshift.crm.base import GroupClassifier
from compshift.crm.inputs import check_jobs, random_numbers, restored_on_error
from compshift.estimators.group_probabilities import CALIBRATIONS, GroupFits, best_floor, calibrate, group_probabilities

FLOORS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
"""Floors that ``floor="auto"`` chooses from."""

MAX_AFFINE_WEIGHTS = 1 << 27
"""Largest number of affine weights (candidate groups times seen groups) that a fit holds: one gigabyte."""

MAX_FLOORED_IN_ROW = 0.5
"""A row counts as floored if more than this share of its probabilities is below the floor."""

MAX_FLOORED_ROWS = 0.5
"""If more than this share of the rows counts as floored, a fit assumes that predictions of unseen groups depend on the
floor more than on the estimator."""

MAX_LOSS = 0.2
"""Largest loss of accuracy by extrapolating, on held-out rows of seen groups, with which a fit still extrapolates.

With few rows, groups with additive energies can lose 0.1 and still be extrapolated well.
"""

MAX_FLOORED_LOSS = 0.05
"""Limit that replaces ``MAX_LOSS`` if more than ``MAX_FLOORED_ROWS`` of the rows count as floored."""

FALL_BACK_ERRORS = 2.0
"""A fit stops extrapolating only if the loss also exceeds this many of its standard errors."""

WARN_FLOORED_SHARE = 0.5
"""A fit warns if more than this share of the probabilities is below the floor."""


class AffineExtrapolation(CallbackSupportMixin, GroupClassifier):
    r"""Extend any probabilistic classifier to combinations of attributes that are absent from the training data.

    The estimator learns to predict the seen groups. If energies are additive, the posteriors of the seen groups
    determine that of every group inside their affine hull (paper, label "test-train-classifier-rel" in docs/maths.md):

    .. math:: \log q(z'|x) = \log q(z') + \sum_z \alpha_z \log p(z|x)
        - \log \mathbb{E}_x \exp \sum_z \alpha_z \log p(z|x) + \text{const}(x)

    with the affine weights α of z'. The equation holds only for the true p(z|x). Therefore the probabilities of the
    training rows are predicted out of fold and calibrated, and the expectation is taken over these rows.

    The fit falls back to the estimator itself, with a warning, if extrapolating makes predictions for held-out rows of
    seen groups clearly less accurate: by more than 20 points, as happens if the estimator's probabilities are far from
    additive, so that calibration makes them worse; or by more than 5 points if most probabilities are below ``floor``
    in more than half of the rows, so that the floor decides about unseen groups. Then ``extrapolates_`` is False,
    predictions are the estimator's p(z|x) of the seen groups, reweighted from the training frequencies to the prior,
    and unseen groups have probability 0. Only a prior that excludes all seen groups still gives them probability.

    Unlike ``CRMClassifier`` it has no ``save``, ``explain`` or ``group_frame``; store it with ``joblib.dump``.

    Parameters
    ----------
    estimator : classifier with ``predict_proba``
        The classifier to extend. Clones of it are fitted to predict the seen group of each row, as an integer.
    weights : "minimum-norm", "minimum-variance" or "sparse", default="minimum-norm"
        Which affine combination of the seen groups represents an unseen group: the one with the least Σ α², the one
        with the least Σ α²/n, where n is the number of rows of each seen group, or one with few nonzero weights (with
        two attributes, a shortest path). A seen group represents itself. With ``calibration="additive"`` all three give
        the same predictions.
    calibration : "additive", "temperature" or None, default="additive"
        How to calibrate the probabilities; both methods are convex fits to the out-of-fold probabilities.
        ``"temperature"`` divides the log-probabilities by one number. ``"additive"`` computes the evidence for each
        attribute value (the additive function that is closest to log p(z|x), by least squares) and fits CRM to these D
        numbers. Then p(z|x) is additive, as the equation assumes, and the estimator's errors average out over the
        groups that share a value.
    alpha : float, default=1e-3
        Ridge strength of the additive calibration, as in ``CRMClassifier``.
    cv : int, default=5
        Number of folds, stratified by group.
    floor : float or "auto", default="auto"
        Smallest probability: lower ones are raised to it, because a probability of 0 with a negative weight would give
        infinity. ``"auto"`` chooses the power of ten from 1e-2 to 1e-8 with the highest out-of-fold likelihood at its
        best temperature. That floor is high for nearest neighbours, whose zeros mean little, and low for boosting.
    prior : "uniform", "hull", "train", array or mapping, default="uniform"
        Probability of each group where the model will be used, as in ``CRMClassifier``.
    support : "hull", "all", "observed", or codes of shape (g, m), default="hull"
        Candidate groups, the only ones that can be predicted. All must lie inside the affine hull, because other
        groups have no affine weights.
    ensemble : bool, default=False
        Whether to predict with the clones of the folds, whose probabilities are averaged, as in scikit-learn's
        ``CalibratedClassifierCV``. This saves the fit to all rows, but predictions take ``cv`` times as long.
    n_jobs : int, optional
        Number of the ``cv + 1`` fits (``cv`` with ``ensemble``) that run in parallel, as in joblib.
    random_state : int, RandomState or None, default=None
        Seed of the folds. The random state of the estimator is not changed.

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
        Whether each candidate was seen in training, and whether it is inside the hull (always True here).
    group_weight_ : array (g,)
        Number of training rows of each candidate, or the sum of their weights.
    affine_weights_ : array (g, k)
        Affine weights α of each candidate on the seen groups ``hull_.observed``.
    log_partition_ : array (g,)
        Logarithm of the expectation in the equation above, for each candidate.
    effective_sample_size_ : array (g,)
        Effective sample size of that expectation.
    log_prior_ : array (g,)
        Current log prior of each candidate.
    temperature_ : float or None
        Temperature by which log-probabilities are divided; None unless ``calibration="temperature"``.
    floor_ : float
        The floor that was passed or chosen.
    floored_ : float
        Share of the out-of-fold probabilities that were below the floor.
    extrapolates_ : bool
        Whether unseen groups are predicted; False after the fallback that is described above.
    estimators_ : list of classifiers
        The fitted estimators, whose probabilities predictions average: one fitted to all rows or, with ``ensemble``,
        one per fold.
    estimator_ : classifier
        The estimator, fitted to all rows; not available with ``ensemble``.

    References
    ----------
    Mahajan, Pezeshki, Arnal, Mitliagkas, Ahuja, Vincent. *Compositional Risk Minimization*. ICML 2025.

    Examples
    --------
    Four Gaussians at the corners of a square; the corner (0, 0) is missing from training.

    >>> import numpy as np
    >>> from sklearn.naive_bayes import GaussianNB
    >>> rng = np.random.default_rng(0)
    >>> z = np.repeat([[0, 1], [1, 0], [1, 1]], 500, axis=0)
    >>> X = rng.normal(size=z.shape) + 3 * z
    >>> clf = AffineExtrapolation(GaussianNB(), random_state=0).fit(X, z[:, 0], attributes=z[:, 1])
    >>> clf.predict_group([[0.0, 0.0], [3.0, 3.0]])
    array([[0, 0],
           [1, 1]])
    """

    def __init__(
        self,
        estimator: Any,
        *,
        weights: str = "minimum-norm",
        calibration: str | None = "additive",
        alpha: float = 1e-3,
        cv: int = 5,
        floor: float | str = "auto",
        prior: Any = "uniform",
        support: Any = "hull",
        ensemble: bool = False,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.weights = weights
        self.calibration = calibration
        self.alpha = alpha
        self.cv = cv
        self.floor = floor
        self.prior = prior
        self.support = support
        self.ensemble = ensemble
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(
        self, X: Any, y: Any, *, attributes: Any = None, sample_weight: Any = None, space: GroupSpace | None = None
    ) -> Self:
        """Fit the estimator to the seen groups, calibrate it out of fold, and extend it to every candidate.

        Parameters
        ----------
        X : array or DataFrame (n, p)
            Features, which the estimator gets as they are: missing values, categories and texts are up to it.
        y : array (n,) or (n, t)
            One target or several: text, numbers, booleans or pandas categoricals.
        attributes : array (n,) or (n, s), optional
            Nuisance attributes, needed in training only.
        sample_weight : array (n,), optional
            Weights of the rows. The ``fit`` of the estimator must accept them too.
        space : GroupSpace, optional
            All attributes and their values, targets first. Needed if some values are absent from the training rows.

        Returns
        -------
        AffineExtrapolation
            The fitted classifier itself.

        Raises
        ------
        InputError
            If the data cannot be read, a candidate group lies outside the hull, or the estimator fails or predicts
            something other than probabilities.
        """
        alpha, cv = self._check_parameters(sample_weight is not None)
        with reported_to_callbacks(self), restored_on_error(self):
            data = self._read(X, y, attributes, sample_weight, space)
            X, position, weight, candidates = data.X, data.position, data.sample_weight, data.candidates
            _check_candidates(candidates)
            floors = self._floors(len(candidates.seen_groups))

            fits = GroupFits(self.estimator, X, position, None if sample_weight is None else weight)
            folds = row_folds(position, cv, random_numbers(self.random_state))
            n_jobs, ensemble = check_jobs(self.n_jobs), check_flag(self.ensemble, "ensemble")
            out_of_fold, self.estimators_ = fits.cross_fit(folds, n_jobs, ensemble=ensemble)
            self.floor_ = best_floor(floors, out_of_fold, position, weight)
            log_proba, low = log_floored(out_of_fold, self.floor_)
            self.floored_ = float(np.mean(low))
            _warn_about_floor(self.floored_, self.floor_, position)
            if self.floored_ <= WARN_FLOORED_SHARE and (candidates.in_seen < 0).any():
                _warn_if_separable(log_proba, position)
            self._calibration = calibrate(self.calibration, log_proba, position, weight, candidates, alpha)
            self.temperature_ = self._calibration.temperature

            self.affine_weights_ = affine_weights(
                candidates.hull, candidates.groups, self.weights, candidates.seen_weight
            )
            partition = log_partition(self._calibration(log_proba), self.affine_weights_, weight)
            self.log_partition_, self.effective_sample_size_ = partition
            self._adopt_candidates(candidates, data.n_targets, data.one_dimensional)
            self.extrapolates_ = True
            self._use_prior(self.prior)
            if not self.seen_.all():
                floored = float(np.mean(low.mean(axis=1) > MAX_FLOORED_IN_ROW)) > MAX_FLOORED_ROWS
                self._fall_back_if_better(log_proba, candidates.seen_groups[position], weight, floored=floored)
            return self

    @property
    def estimator_(self) -> Any:
        """The estimator, fitted to all rows."""
        if len(self.estimators_) > 1:
            raise AttributeError("with ensemble=True no estimator is fitted to all rows: use estimators_")
        return self.estimators_[0]

    def _log_posterior_blocks(self, X: Any) -> Iterator[tuple[slice, FloatArray]]:
        """Yield blocks of rows with log q(z|x) of every candidate, (b, g)."""
        proba = group_probabilities(self.estimators_, X, len(self.hull_.observed))
        yield from self._blocks_from(log_floored(proba, self.floor_)[0], self.extrapolates_)

    def _blocks_from(
        self, log_base: FloatArray, extrapolate: bool, *, seen_only: bool = False
    ) -> Iterator[tuple[slice, FloatArray]]:
        """Yield blocks of rows with log q(z|x), (b, g), from the estimator's log-probabilities (n, k) of seen groups.

        With ``seen_only``, seen groups have their calibrated probabilities, and unseen groups 0. Without
        ``extrapolate``, seen groups have p(z|x) q(z) / p(z), normalised, and unseen groups 0.
        """
        place = self._candidates.in_seen  # (g,)
        seen = place >= 0
        if extrapolate or not (self.log_prior_[seen] > -np.inf).any():
            log_proba, weights = self._calibration(log_base), self.affine_weights_
            log_score = self.log_prior_ - self.log_partition_
            log_score = np.where(seen, log_score, -np.inf) if seen_only else log_score
        else:
            log_proba, weights = log_base, (place[:, None] == np.arange(log_base.shape[1])).astype(np.float64)  # (g, k)
            log_score = np.where(seen, self.log_prior_ - np.log(np.where(seen, self.group_weight_, 1.0)), -np.inf)
        for rows in row_blocks(len(log_base), len(self.groups_)):
            yield rows, affine_log_posterior(log_proba[rows], weights, log_score)

    def _fall_back_if_better(
        self, log_base: FloatArray, codes: IntArray, sample_weight: FloatArray, *, floored: bool
    ) -> None:
        """Stop extrapolating, with a warning, if the training rows are predicted clearly more accurately without it.

        ``log_base`` (n, k) are out-of-fold log-probabilities of the rows, ``codes`` (n, m) their groups. Because no row
        is of an unseen group, unseen groups have probability 0 in this comparison, unless the floor decides about them
        (``floored``).
        """
        seen = self._candidates.in_seen >= 0
        if not (self.log_prior_[seen] > -np.inf).any():
            return
        sizes = self.targets_.cardinalities
        members = [column[:, None] == np.arange(size) for column, size in zip(self.groups_.T, sizes, strict=False)]
        right = {True: np.ones(len(codes)), False: np.ones(len(codes))}
        for extrapolate, correct in right.items():
            for rows, log_posterior in self._blocks_from(log_base, extrapolate, seen_only=not floored):
                for number, of_value in enumerate(members):  # (g, c)
                    correct[rows] *= (np.exp(log_posterior) @ of_value).argmax(axis=1) == codes[rows, number]
        gain = right[False] - right[True]  # (n,)
        mean = float(np.average(gain, weights=sample_weight))
        error = float(np.sqrt(np.average((gain - mean) ** 2, weights=sample_weight) / len(gain)))
        if mean > max(MAX_FLOORED_LOSS if floored else MAX_LOSS, FALL_BACK_ERRORS * error):
            reason = f"most probabilities are below floor={self.floor_:g}" if floored else "they are far from additive"
            self.extrapolates_ = False
            accuracy = {key: float(np.average(values, weights=sample_weight)) for key, values in right.items()}
            warnings.warn(
                f"the estimator's probabilities cannot be extrapolated, because {reason}: held-out rows of seen groups "
                f"would be predicted with an accuracy of {accuracy[True]:.0%} instead of {accuracy[False]:.0%}, so "
                "unseen groups are not predicted (extrapolates_ is False); use calibration='temperature', an estimator "
                "with smoother probabilities, or a CRMClassifier",
                stacklevel=3,
            )

    def _check_features(self, X: Any, *, fitted: bool) -> Any:
        """Check the number of rows and the names of features; return X, with short floats as float64."""
        X = as_pandas(X)
        check_unmasked(X, "X")
        is_frame = hasattr(X, "columns")
        checks: dict[str, Any] = (
            {"skip_check_array": True} if is_frame else {"dtype": None, "ensure_all_finite": False, "copy": False}
        )
        try:
            checked = validate_data(self, X, reset=not fitted, **checks)
        except (TypeError, ValueError) as error:
            if (changed := changed_names_error(error, fitted=fitted)) is not None:
                raise changed from None
            kind = InputTypeError if isinstance(error, TypeError) else InputError
            cure = "pass the columns used in fit, in the same order" if fitted else "pass one row per sample"
            raise kind(f"{error}: {cure}") from None
        except RuntimeError:
            raise unreadable_error(X, "X") from None
        if is_frame and not len(X):
            raise InputError("X has 0 sample(s), but a minimum of 1 is required: pass one row per sample")
        single = not is_frame and getattr(checked, "dtype", None) in (np.float16, np.float32)
        # so that rounding in the estimator does not depend on the precision of X
        return checked.astype(np.float64) if single else checked

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if hasattr(self.estimator, "__sklearn_tags__"):
            tags.input_tags.allow_nan = get_tags(self.estimator).input_tags.allow_nan
        return tags

    def _floors(self, n_seen: int) -> list[float]:
        """Return the floors to choose from; all are below 1/k, the mean probability of k seen groups."""
        if isinstance(self.floor, str):
            if self.floor != "auto":
                raise InputError(f"floor is {self.floor!r}: pass a number above 0, or 'auto'")
            return [floor for floor in FLOORS if floor * n_seen < 1]
        floor = check_positive(self.floor, "floor")
        if floor * n_seen >= 1:
            raise InputError(
                f"floor is {floor:g}, but must be below 1/{n_seen} with {n_seen} seen groups: pass, for example, 1e-4"
            )
        return [floor]

    def _check_parameters(self, weighted: bool) -> tuple[float, int]:
        """Check the parameters that do not depend on the data; return ``alpha`` and ``cv``."""
        check_name("weights", self.weights, WEIGHTS)
        if self.calibration is not None:
            check_name("calibration", self.calibration, CALIBRATIONS)
        self._check_support()
        if isinstance(self.estimator, type) or not hasattr(self.estimator, "fit"):
            given = f"the class {self.estimator.__name__}" if isinstance(self.estimator, type) else repr(self.estimator)
            raise InputError(f"estimator is {given}: pass an instance of a scikit-learn classifier")
        name = type(self.estimator).__name__
        if not hasattr(self.estimator, "predict_proba"):
            raise InputError(
                f"estimator is {an(name)} without predict_proba: pass a classifier that gives probabilities, or "
                "wrap it in sklearn.calibration.CalibratedClassifierCV"
            )
        if weighted and not has_fit_parameter(self.estimator, "sample_weight"):
            raise InputError(
                f"sample_weight was passed, but the fit of {name} does not accept it: leave it out, or pass an "
                "estimator that accepts it"
            )
        cv = check_count(self.cv, "cv")
        if cv < 2:
            raise InputError(f"cv is {cv}: pass 2 folds or more")
        return check_positive(self.alpha, "alpha", allow_zero=True), cv


def _check_candidates(candidates: Candidates) -> None:
    """Check that every candidate is inside the hull, and that the affine weights of all fit into memory."""
    outside = candidates.groups[~candidates.inside_hull]
    if len(outside):
        raise InputError(
            f"{len(outside)} of the {len(candidates.groups)} candidate groups lie outside the affine hull of the seen "
            f"ones, {candidates.space.label(outside[0])} for example, so they cannot be extrapolated: use "
            'support="hull", or collect rows of more groups'
        )
    n_seen = len(candidates.seen_groups)
    if len(candidates.groups) * n_seen > MAX_AFFINE_WEIGHTS:
        raise InputError(
            f"{len(candidates.groups)} candidate groups with weights on {n_seen} seen ones are too many to hold in "
            "memory: pass the codes of fewer groups as support"
        )


def _warn_about_floor(floored: float, floor: float, position: IntArray) -> None:
    """Warn if extrapolation depends largely on the floor."""
    single = int(np.count_nonzero(np.bincount(position) == 1))
    if single:
        warnings.warn(
            f"{single} of the seen groups have a single row, which is predicted by a fit without that group: its "
            f"probability counts as floor={floor:g}, and groups extrapolated from it are uncertain; collect more rows",
            stacklevel=3,
        )
    if floored > WARN_FLOORED_SHARE:
        warnings.warn(
            f"{floored:.0%} of the estimator's probabilities are below floor={floor:g} and were raised to it: "
            "predictions of unseen groups depend on the floor; use an estimator with smoother probabilities, or pass "
            "another floor",
            stacklevel=3,
        )


def _warn_if_separable(log_proba: FloatArray, position: IntArray) -> None:
    """Warn if every row's group is predicted correctly out of fold."""
    if (log_proba.argmax(axis=1) == position).all():
        warnings.warn(
            "the estimator distinguishes the seen groups without a single error: its probabilities then say little "
            "about where unseen groups begin, and rows of seen groups may be predicted as unseen ones; compare with "
            "a CRMClassifier",
            stacklevel=3,
        )
