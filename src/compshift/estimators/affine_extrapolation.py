"""GroupCalibration of a classifier of the seen groups, on probabilities of rows that it was not fitted to.

CRM after the fact: any probabilistic classifier of the seen groups, extended to those that they determine.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import has_fit_parameter

from compshift._checks import check_count, check_positive
from compshift._errors import InputError, an, check_name
from compshift.core.affine import (
    WEIGHTS,
    affine_log_posterior,
    affine_weights,
    inverse_temperature,
    log_floored,
    log_loss,
    log_partition,
    value_weights,
)
from compshift.core.arrays import FloatArray, IntArray, log_softmax, row_blocks
from compshift.core.candidates import Candidates
from compshift.core.groups import GroupSpace
from compshift.crm.base import GroupClassifier
from compshift.crm.fit import FitParams, fit_crm
from compshift.crm.inputs import Labelled, check_jobs, random_numbers, row_folds, unchanged_if_refused
from compshift.crm.model import CRMModel
from compshift.estimators.base_probabilities import BaseFits, group_probabilities

CALIBRATIONS = ("additive", "temperature")

TOL, MAX_ITER = 1e-4, 1000
"""Of the additive calibration; beyond them no accuracy changes."""


@dataclass(frozen=True, eq=False)
class GroupCalibration:
    """Turns log probabilities of the base estimator into log p(z|x) of the seen groups, (n, k) each."""

    temperature: float | None = None
    value_weights: FloatArray | None = None  # (D, k)
    model: CRMModel | None = None  # of the evidence per value, with the seen groups as candidates

    def __call__(self, log_proba: FloatArray) -> FloatArray:
        if self.model is None or self.value_weights is None:
            return np.asarray(log_softmax(log_proba / (self.temperature or 1.0)))
        seen = self.model.candidates
        log_score = np.log(seen.seen_weight / seen.seen_weight.sum()) - self.model.learned_bias
        return self.model.joint(log_proba @ self.value_weights.T, log_score)


def calibrate(
    kind: str | None,
    log_proba: FloatArray,
    position: IntArray,
    sample_weight: FloatArray,
    candidates: Candidates,
    alpha: float,
) -> GroupCalibration:
    """Fit the calibration to out-of-fold log probabilities (n, k) and the groups that the rows have."""
    if kind is None:
        return GroupCalibration()
    if kind == "temperature":
        return GroupCalibration(temperature=1 / inverse_temperature(log_proba, position, sample_weight))
    reading = value_weights(candidates.hull)  # (D, k)
    seen = Candidates(candidates.hull, candidates.seen_weight, candidates.seen_groups)
    evidence = log_proba @ reading.T  # (n, D)
    data = Labelled(evidence, position, sample_weight, seen, n_targets=1, one_dimensional=True)
    model = fit_crm(data, FitParams(alpha), tol=TOL, max_iter=MAX_ITER)
    if not model.converged:
        warnings.warn(
            f"the additive calibration stopped after {model.n_iter} iterations at a gradient of {model.gradient:.1e}: "
            f"raise alpha (now {alpha:g})",
            ConvergenceWarning,
            stacklevel=3,
        )
    return GroupCalibration(value_weights=reading, model=model)


def best_floor(floors: list[float], proba: FloatArray, position: IntArray, sample_weight: FloatArray) -> float:
    """The floor at which out-of-fold probabilities (n, k), at their best temperature, fit the rows' groups best."""
    losses = []
    for floor in floors if len(floors) > 1 else []:
        log_proba, _ = log_floored(proba, floor)
        beta = inverse_temperature(log_proba, position, sample_weight)
        losses.append(log_loss(beta * log_proba, position, sample_weight))
    return floors[int(np.argmin(losses))] if losses else floors[0]


FLOORS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
"""What ``floor="auto"`` chooses from."""

MAX_WEIGHTS = 1 << 27
"""More affine weights than this, a gigabyte of them, are not held."""

MUCH_FLOORED = 0.5
"""Share of floored probabilities above which a fit says so."""


class AffineExtrapolation(GroupClassifier):
    r"""Makes any probabilistic classifier predict combinations of attributes that training lacks.

    The base estimator learns to tell the seen groups apart. If energies are additive, the posterior of every group
    inside the affine hull of the seen ones follows from theirs (paper, eq. "test-train-classifier-rel"):

    .. math:: \log q(z'|x) = \log q(z') + \sum_z \alpha_z \log p(z|x)
        - \log \mathbb{E}_x \exp \sum_z \alpha_z \log p(z|x) + \text{const}(x)

    with the affine weights α of z'. It holds for the true p(z|x) only, so that probabilities of training rows come from
    folds that do not have them, are calibrated there, and serve in the expectation.

    It has no ``save``, ``explain`` or ``group_frame``, as ``CRMClassifier`` has; ``joblib.dump`` keeps it.

    Parameters
    ----------
    base_estimator : classifier with ``predict_proba``
        It is cloned and fitted to the number of each row's seen group.
    weights : "minimum-norm", "minimum-variance" or "sparse", default="minimum-norm"
        Which of the combinations that give an unseen group: least Σ α², least Σ α²/n over the rows n of the seen
        groups, or few of them (with two attributes a shortest path). A seen group is always itself. With
        ``calibration="additive"`` all of them give the same.
    calibration : "additive", "temperature" or None, default="additive"
        How out-of-fold probabilities become p(z|x); each is a convex fit. ``"temperature"`` multiplies their logarithms
        by one number. ``"additive"`` takes from them one evidence per attribute value, the additive part of log p(z|x)
        in least squares, and fits CRM to these D numbers: p(z|x) then is additive, as the equation assumes, and an
        error of the base estimator in one group is outvoted by the groups that share its values.
    alpha : float, default=1e-3
        Ridge of the additive calibration, as in ``CRMClassifier``.
    cv : int, default=5
        Number of folds, each with its share of every group.
    floor : float or "auto", default="auto"
        Lower probabilities of the base estimator are raised to this: a weight below 0 would make them infinite.
        ``"auto"`` takes the power of ten, from 1e-2 to 1e-8, with the greatest out-of-fold likelihood at its best
        temperature: high for nearest neighbours, whose zeros mean little, low for boosting.
    prior : "uniform", "hull", "train", array or mapping, default="uniform"
        Probability of each group where the model will be used, as in ``CRMClassifier``.
    support : "hull", "all" or codes of shape (g, m), default="hull"
        The candidate groups: those that can be predicted at all. Groups outside the hull have no affine weights and are
        refused.
    n_jobs : int, optional
        How many of the ``cv + 1`` fits run at once, as in joblib.
    random_state : int, RandomState or None
        Of the folds. The base estimator has its own.

    Attributes
    ----------
    classes_ : array, or a list of one array per target
        The values that ``predict`` returns, sorted.
    space_, targets_ : GroupSpace
        Targets first, then attributes; and the targets alone.
    hull_ : AffineHull
        Of the seen groups.
    groups_ : array (g, m)
        Codes of the candidate groups, in order. The arrays of length g below follow it.
    seen_, inside_hull_ : bool arrays (g,)
        Which candidates training has; all are inside the hull.
    group_weight_ : array (g,)
        Training rows of each candidate, or the sum of their weights.
    affine_weights_ : array (g, k)
        α, on the groups ``hull_.observed``.
    log_partition_ : array (g,)
        Log expectation of each candidate.
    effective_sample_size_ : array (g,)
        How many training samples that expectation effectively rests on.
    log_prior_ : array (g,)
        The prior in force.
    temperature_ : float or None
        What log probabilities are divided by, with ``calibration="temperature"``.
    floor_ : float
        The floor in force.
    floored_ : float
        Share of the out-of-fold probabilities that were below it.
    estimator_ : classifier
        The base estimator, fitted to all rows.

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
        base_estimator: Any,
        *,
        weights: str = "minimum-norm",
        calibration: str | None = "additive",
        alpha: float = 1e-3,
        cv: int = 5,
        floor: float | str = "auto",
        prior: Any = "uniform",
        support: Any = "hull",
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.base_estimator = base_estimator
        self.weights = weights
        self.calibration = calibration
        self.alpha = alpha
        self.cv = cv
        self.floor = floor
        self.prior = prior
        self.support = support
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(
        self, X: Any, y: Any, *, attributes: Any = None, sample_weight: Any = None, space: GroupSpace | None = None
    ) -> Self:
        """Fit the base estimator to the seen groups, calibrate it out of fold, and extend it to every candidate.

        Parameters
        ----------
        X : array or DataFrame (n, p)
            Features, all finite numbers. The base estimator gets a DataFrame with the same columns if this is one.
        y : (n,) or (n, t)
            What is predicted: one target or several. Text, numbers, booleans or pandas categoricals.
        attributes : (n,) or (n, s), optional
            What else varies and must not mislead, known in training only.
        sample_weight : (n,), optional
            Weights of the rows, for the base estimator too, which must take them.
        space : GroupSpace, optional
            Attributes and values, targets first, if there are values that no training row has.
        """
        alpha, cv = self._check_parameters(sample_weight is not None)
        with unchanged_if_refused(self):
            data = self._read(X, y, attributes, sample_weight, space)
            X, position, weight, candidates = data.X, data.position, data.sample_weight, data.candidates
            _check_candidates(candidates)
            floors = self._floors(len(candidates.seen_groups))

            names = getattr(self, "feature_names_in_", None)
            fitting = BaseFits(self.base_estimator, X, position, None if sample_weight is None else weight, names)
            folds = row_folds(position, cv, random_numbers(self.random_state))
            out_of_fold, self.estimator_ = fitting.cross_fit(folds, check_jobs(self.n_jobs))
            self.floor_ = best_floor(floors, out_of_fold, position, weight)
            log_proba, low = log_floored(out_of_fold, self.floor_)
            self.floored_ = float(np.mean(low))
            _warn_of_floor(self.floored_, self.floor_, position)
            if self.floored_ <= MUCH_FLOORED and (candidates.in_seen < 0).any():
                _warn_of_certainty(log_proba, position)
            self._calibration = calibrate(self.calibration, log_proba, position, weight, candidates, alpha)
            self.temperature_ = self._calibration.temperature

            self.affine_weights_ = affine_weights(
                candidates.hull, candidates.groups, self.weights, candidates.seen_weight
            )
            partition = log_partition(self._calibration(log_proba), self.affine_weights_, weight)
            self.log_partition_, self.effective_sample_size_ = partition
            self._adopt_candidates(candidates, data.n_targets, data.one_dimensional)
            return self._use_prior(self.prior)

    def _joint_blocks(self, X: FloatArray) -> Iterator[tuple[slice, FloatArray]]:
        """Log q(z|x) of every candidate (b, g), a block of rows at a time."""
        n_seen = len(self.hull_.observed)
        names = getattr(self, "feature_names_in_", None)
        log_base, _ = log_floored(group_probabilities(self.estimator_, X, n_seen, names), self.floor_)
        log_proba = self._calibration(log_base)  # (n, k)
        log_score = self.log_prior_ - self.log_partition_
        for rows in row_blocks(len(X), len(self.groups_)):
            yield rows, affine_log_posterior(log_proba[rows], self.affine_weights_, log_score)

    def _floors(self, n_seen: int) -> list[float]:
        """The floors to choose from: those below the mean probability."""
        if isinstance(self.floor, str):
            if self.floor != "auto":
                raise InputError(f"floor is {self.floor!r}: pass a number above 0, or 'auto'")
            return [floor for floor in FLOORS if floor * n_seen < 1]
        floor = check_positive(self.floor, "floor")
        if floor * n_seen >= 1:
            raise InputError(f"floor is {floor:g} with {n_seen} seen groups: pass a number far below 1/{n_seen}")
        return [floor]

    def _check_parameters(self, weighted: bool) -> tuple[float, int]:
        """Refuse parameters that no data can be fitted with; ``alpha`` and ``cv`` as numbers."""
        check_name("weights", self.weights, WEIGHTS)
        if self.calibration is not None:
            check_name("calibration", self.calibration, CALIBRATIONS)
        self._check_support()
        base = self.base_estimator
        if isinstance(base, type) or not hasattr(base, "fit"):
            what = f"the class {base.__name__}" if isinstance(base, type) else repr(base)
            raise InputError(f"base_estimator is {what}: pass an instance of a scikit-learn classifier")
        name = type(base).__name__
        if not hasattr(base, "predict_proba"):
            raise InputError(
                f"base_estimator is {an(name)} without predict_proba: pass a classifier that gives probabilities, or "
                "wrap it in sklearn.calibration.CalibratedClassifierCV"
            )
        if weighted and not has_fit_parameter(base, "sample_weight"):
            raise InputError(
                f"sample_weight was passed, but the fit of {name} takes none: leave it out, or pass a base_estimator "
                "that takes it"
            )
        cv = check_count(self.cv, "cv")
        if cv < 2:
            raise InputError(f"cv is {cv}: pass 2 folds or more")
        return check_positive(self.alpha, "alpha", allow_zero=True), cv


def _check_candidates(candidates: Candidates) -> None:
    """Refuse candidates that no combination gives, and more weights than memory holds."""
    outside = candidates.groups[~candidates.inside_hull]
    if len(outside):
        raise InputError(
            f"{len(outside)} of the {len(candidates.groups)} candidate groups lie outside the affine hull of the seen "
            f"ones, {candidates.space.label(outside[0])} for example, and no combination of seen groups gives them: "
            'use support="hull", or collect more combinations'
        )
    n_seen = len(candidates.seen_groups)
    if len(candidates.groups) * n_seen > MAX_WEIGHTS:
        raise InputError(
            f"{len(candidates.groups)} candidate groups have weights on {n_seen} seen ones, too many to hold at once: "
            "pass support=codes with the groups to predict"
        )


def _warn_of_floor(floored: float, floor: float, position: IntArray) -> None:
    """Say so if much of what is extrapolated is the floor."""
    single = int(np.count_nonzero(np.bincount(position) == 1))
    if single:
        warnings.warn(
            f"{single} of the seen groups have a single row, for which there is no out-of-fold probability: it counts "
            f"as floor={floor:g}, and groups that rest on them are uncertain; collect more rows",
            stacklevel=3,
        )
    if floored > MUCH_FLOORED:
        warnings.warn(
            f"{floored:.0%} of the base estimator's probabilities are below floor={floor:g} and were raised to it: "
            "unseen groups rest on that number; use a smoother base_estimator, or another floor",
            stacklevel=3,
        )


def _warn_of_certainty(log_proba: FloatArray, position: IntArray) -> None:
    """Say so if the seen groups are told apart without an error, out of fold."""
    if (log_proba.argmax(axis=1) == position).all():
        warnings.warn(
            "the base estimator tells the seen groups apart without a single error: its probabilities then say little "
            "about where unseen groups begin, which may take rows of seen ones; compare with a CRMClassifier",
            stacklevel=3,
        )
