"""estimate_prior: estimate how frequent each group is among unlabelled inputs, with a fitted classifier over groups."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.pipeline import Pipeline

from compshift._checks import check_fraction, check_positive, check_same_order, check_sample_weight
from compshift._errors import InputError
from compshift._html import TableResult
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.groups import GroupSpace
from compshift.core.prior_em import confused_pairs, estimate_log_prior
from compshift.crm.base import GroupClassifier, check_group_classifier
from compshift.crm.features import prediction_features
from compshift.crm.pipelines import as_classifier_and_features

if TYPE_CHECKING:
    import pandas as pd

MAX_PRIOR_CELLS = 1 << 27
"""Largest number of probabilities (rows times groups) that are held in memory: one gigabyte."""

MAX_PRIOR_GROUPS = 2000
"""Largest number of groups; it bounds the information matrix to invert, with one row and one column per group."""

MAX_TOTAL_WEIGHT = 1e100
"""Largest total of the sample weights; with larger ones the sums of the EM steps overflow."""

MAX_CONCENTRATION = 1e12
"""Largest concentration of the Dirichlet prior; with a larger one the data would have no influence."""

CONFUSED_BELOW = 0.1
"""Separability (0 to 1, see ``core.prior_em.separability``) below which two groups are reported as confused."""


@dataclass(frozen=True, eq=False, repr=False)
class EstimatedPrior(TableResult):
    """Estimated prior over a classifier's candidate groups; ``clf.set_prior(estimate)`` uses it.

    The intervals account only for the random sampling of inputs. They assume that the classifier's probabilities are
    right; if they are not, the estimate is wrong, and the intervals do not show it. With the true densities, 90 %
    intervals contain nine of ten frequencies; on embeddings of real images and texts they contained 39 to 82 % of them,
    least with a strong ridge (docs/unseen.md).
    """

    space: GroupSpace
    groups: IntArray  # (g, m) codes of the candidates
    log_prior: FloatArray  # (g,) −inf for groups whose prior was 0 in the classifier
    lower: FloatArray  # (g,) lower end of each probability's interval
    upper: FloatArray  # (g,) upper end
    effective_rows: FloatArray  # (g,) number of labelled rows that would be as informative; NaN if the prior is 0
    confused: IntArray  # (q, 2) positions of pairs of groups that the inputs hardly distinguish, worst first
    confidence: float
    concentration: float
    log_likelihood: float  # log-likelihood of the inputs minus that under the uniform prior over the same groups
    gap: float  # upper bound on how far the objective is below its maximum, in nats
    n_iter: int
    converged: bool

    def as_mapping(self) -> dict[tuple[Hashable, ...], float]:
        """Return the probability of each group by its values.

        Returns
        -------
        dict
            Probability by tuple of values; groups of probability 0 are left out.
        """
        return {
            tuple(values[position] for values, position in zip(self.space.values, code, strict=True)): float(value)
            for code, value in zip(self.groups, np.exp(self.log_prior), strict=True)
            if value > 0
        }

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per candidate group.

        Returns
        -------
        DataFrame
            Values, probability, interval and effective rows of each group.
        """
        return self.space.frame(
            self.groups,
            probability=np.exp(self.log_prior),
            lower=self.lower,
            upper=self.upper,
            effective_rows=self.effective_rows,
        )

    def _summary(self) -> str:
        how = "" if self.converged else ", not converged"
        return f"estimated frequencies of {len(self.groups)} groups, with {self.confidence:.0%} intervals{how}"


def estimate_prior(
    clf: GroupClassifier | Pipeline,
    X: Any,
    *,
    sample_weight: Any = None,
    concentration: float = 2.0,
    confidence: float = 0.9,
) -> EstimatedPrior:
    r"""Estimate the frequency of each group among unlabelled inputs by EM (Saerens, Latinne, Decaestecker, 2002).

    The estimate maximises the likelihood of the inputs times the density of a Dirichlet prior. Only groups with a
    nonzero probability under the classifier's current prior are considered; that probability itself does not matter.

    **Predictions never use an estimated prior by default.** With balanced test groups, it lowered the worst-group
    accuracy in our measurements: noise in the estimate, and errors of the classifier that it amplifies, harm single
    groups. Use it to learn about inputs in the wild. Use it for predictions only if the prior is known to be far from
    uniform, the average accuracy is what counts, and the intervals are narrow.

    Parameters
    ----------
    clf : CRMClassifier, AdditiveGaussian, AffineExtrapolation or another classifier over groups, or a Pipeline
        The fitted model, or a pipeline that ends in one.
    X : array or DataFrame (n, p)
        Unlabelled inputs from the population that the model is used on; for a pipeline, what its first step takes.
    sample_weight : array (n,), optional
        Weights of the rows; a weight of 2 gives the same estimate and intervals as the row twice.
    concentration : float, default=2.0
        Concentration of the Dirichlet prior, 1 or more: ``concentration − 1`` pseudo-rows of each group pull towards
        the uniform prior. 1 is maximum likelihood, which often gives a group probability 0.
    confidence : float, default=0.9
        Confidence level of the intervals. They generalise Wilson's interval, from a count to the information in the
        inputs, and equal it where groups are distinguished with certainty. They stay within [0, 1] and, unlike
        bootstrap intervals, do not shrink to a point at 0 for an absent group.

    Returns
    -------
    EstimatedPrior
        The estimate, its intervals, and pairs of groups that the inputs hardly distinguish.

    Raises
    ------
    InputError
        If a parameter or the data cannot be used, or there are too many rows and groups.

    Examples
    --------
    >>> import numpy as np
    >>> from compshift import CRMClassifier
    >>> rng = np.random.default_rng(0)
    >>> z = np.repeat([[0, 1], [1, 0], [1, 1]], 500, axis=0)
    >>> clf = CRMClassifier().fit(rng.normal(size=z.shape) + 4 * z, z[:, 0], attributes=z[:, 1])
    >>> mostly_unseen = np.repeat([[0, 0], [1, 1]], [900, 100], axis=0)
    >>> estimate = estimate_prior(clf, rng.normal(size=mostly_unseen.shape) + 4 * mostly_unseen)
    >>> np.exp(estimate.log_prior).round(1)
    array([0.9, 0. , 0. , 0.1])
    >>> clf = clf.set_prior(estimate)
    """
    check_same_order({"X": X, "sample_weight": sample_weight})
    clf, X = as_classifier_and_features(clf, X)
    check_group_classifier(clf)
    concentration = check_positive(concentration, "concentration", most=MAX_CONCENTRATION)
    if concentration < 1:
        raise InputError(f"concentration is {concentration:g}: pass 1 for maximum likelihood, or more")
    confidence = check_fraction(confidence, "confidence")
    X = prediction_features(clf, X)
    weight = check_sample_weight(sample_weight, len(X))
    if weight.sum() > MAX_TOTAL_WEIGHT:
        raise InputError(f"sample_weight adds up to {weight.sum():g}, but a weight counts rows: divide it by its mean")
    X, weight = X[weight > 0], weight[weight > 0]
    chosen = np.flatnonzero(clf.log_prior_ > -np.inf)
    _check_size(len(X), len(chosen))
    log_ratio = _log_ratios(clf, X, chosen)
    estimate = estimate_log_prior(log_ratio, weight, concentration=concentration, confidence=confidence)

    def by_candidate(values: FloatArray, fill: float) -> FloatArray:
        """Return an array over the candidates (g,) with these values for the chosen groups, and ``fill`` elsewhere."""
        result = np.full(len(clf.groups_), fill)
        result[chosen] = values
        return result

    pairs = confused_pairs(estimate.separability, CONFUSED_BELOW)
    uniform = float(weight @ np.logaddexp.reduce(log_ratio - np.log(len(chosen)), axis=1))
    result = EstimatedPrior(
        space=clf.space_,
        groups=clf.groups_,
        log_prior=by_candidate(estimate.log_prior, -np.inf),
        lower=by_candidate(estimate.lower, 0.0),
        upper=by_candidate(estimate.upper, 0.0),
        effective_rows=by_candidate(estimate.effective_rows, np.nan),
        confused=chosen[pairs],
        confidence=confidence,
        concentration=concentration,
        log_likelihood=estimate.log_likelihood - uniform,
        gap=estimate.gap,
        n_iter=estimate.n_iter,
        converged=estimate.converged,
    )
    _warn(result)
    return result


def _check_size(n_rows: int, n_groups: int) -> None:
    """Check that the probabilities and the information matrix fit into memory."""
    if n_groups > MAX_PRIOR_GROUPS or n_rows * n_groups > MAX_PRIOR_CELLS:
        raise InputError(
            f"a prior over {n_groups} groups from {n_rows} rows is too large to estimate (at most {MAX_PRIOR_GROUPS} "
            f"groups, and {MAX_PRIOR_CELLS} rows × groups): set the prior of some groups to 0 by set_prior, or pass "
            "fewer rows"
        )


def _log_ratios(clf: GroupClassifier, X: FloatArray, chosen: IntArray) -> FloatArray:
    """Return log q(z|x) − log q(z) of the chosen candidates, (n, g)."""
    log_ratio = clf._group_log_posterior(X, chosen) - clf.log_prior_[chosen]
    bad = np.isnan(log_ratio).any(axis=1) | ~(log_ratio > -np.inf).any(axis=1)
    if bad.any():
        raise InputError(
            f"the classifier gives NaN, or probability 0 for every group, at row {int(np.argmax(bad))} of X (and in "
            f"{int(bad.sum())} rows in total): leave those rows out"
        )
    return log_ratio


def _warn(estimate: EstimatedPrior) -> None:
    """Warn if the inputs hardly distinguish some groups, or if the estimate has not converged."""
    if len(estimate.confused):
        left, right = (estimate.space.label(estimate.groups[position]) for position in estimate.confused[0])
        more = f", and {len(estimate.confused) - 1} further pairs" if len(estimate.confused) > 1 else ""
        warnings.warn(
            f"the inputs hardly distinguish {left} from {right}{more}: the sum of their frequencies is estimated, but "
            "the split comes mostly from the Dirichlet prior; see the intervals, or set the prior of one of them to 0",
            stacklevel=_level_outside(),
        )
    if not estimate.converged:
        warnings.warn(
            f"the estimate stopped after {estimate.n_iter} iterations, up to {estimate.gap:.1e} nats from its "
            "maximum: raise concentration",
            stacklevel=_level_outside(),
        )


def _level_outside() -> int:
    """Return the ``stacklevel`` with which a warning names the code that called the library, by function or method."""
    library, level = __name__.partition(".")[0], 0
    frame = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == library:
        frame, level = frame.f_back, level + 1
    return level
