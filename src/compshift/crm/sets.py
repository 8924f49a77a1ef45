r"""Prediction sets: the classes that cannot be excluded, with one threshold per group, also for groups never seen.

The score of class y for a sample x is −log q̂(y|x), under the current prior; if attributes of the sample are known, the
prior is restricted to the groups that agree, and only these groups count. A group z of class y speaks against the
class, at the level 1 − coverage, if the score of x is unusually high among samples of z,

.. math:: p_z(x) = \frac{\sum_i \omega_i w_i(z) \, 1[s_y(x_i) \ge s_y(x)] + \bar\omega w_x(z)}
    {\sum_i \omega_i w_i(z) + \bar\omega w_x(z)} \le 1 - \text{coverage}.

The x_i are training samples with out-of-fold energies, and ω are their sample weights. If z was seen and has enough
samples, w_i(z) is 1 for its samples and 0 for others, w_x(z) is 1, and ω̄ is the mean weight of its samples. Otherwise
w_i(z) and w_x(z) are importance weights of the form used in B*, exp(−⟨σ(z), E(x)⟩ − c(x)), with a temperature and
biases that are fitted to the out-of-fold energies, and ω̄ is the mean weight of all samples (``core.conformal``,
docs/maths.md). A class is in the set unless all of its groups speak against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn.utils.validation import check_is_fitted

from compshift._checks import check_fraction
from compshift._errors import InputError
from compshift.core.arrays import BLOCK_CELLS, BoolArray, FloatArray, IntArray, logsumexp, row_blocks, safe_log
from compshift.core.conformal import Ranks, effective_sample_size
from compshift.core.energy import GroupTable, group_energies, log_evidence
from compshift.core.groups import GroupSpace
from compshift.core.posterior import marginal_log_posterior
from compshift.crm.known import predict_known
from compshift.crm.model import CRMModel, OutOfFold

if TYPE_CHECKING:
    import pandas as pd

    from compshift.crm.fitted import FittedCRM

MIN_OWN_SAMPLES = 30
"""Smallest effective number of samples of a seen group at which its threshold is computed from these samples alone.
With fewer, it is computed from importance-weighted samples of all groups."""


@dataclass(frozen=True, eq=False)
class PredictionSets:
    """Sets of classes of one target, one set per sample; ``CRMClassifier.predict_set`` returns them.

    ``sets[i]`` is the array of classes of sample i, ``len(sets)`` is the number of samples. A set can be empty: then
    every class is unusually improbable for the sample. Within each group, the set contains the true class with a
    probability of about ``coverage``, or more if other groups of the class are harder.

    The coverage is approximate. For seen groups it relies on out-of-fold energies being like the energies of new
    samples. For unseen groups it relies on importance weights from energies that were never fitted to these groups: see
    ``effective_sample_size``, and docs/unseen.md for coverage on real data.

    Parameters
    ----------
    classes : array (c,)
        The classes of the target.
    contains : bool array (n, c)
        Whether each set contains each class.
    p_values : array (n, c)
        Largest p-value of the class over its groups; 1 if one of its groups has too few samples to exclude anything,
        and 0 if no group of the class can occur. ``contains`` is ``p_values > 1 - coverage``.
    coverage : float
        The requested coverage.
    space : GroupSpace
        All attributes and their values.
    groups : array (q, m)
        Codes of the groups that can occur: those inside the affine hull with a positive probability under the prior,
        and in agreement with the known attributes of at least one sample.
    seen : bool array (q,)
        Whether each of the groups was seen.
    effective_sample_size : array (q,)
        Effective number of samples from which the threshold of each group is computed: its own samples, or
        importance-weighted samples of all groups.
    needed_sample_size : float
        ``1 / (1 - coverage)``. A group with fewer effective samples excludes nothing, because even the highest of so
        few scores has a p-value above ``1 - coverage``.

    Examples
    --------
    >>> import numpy as np
    >>> from compshift import CRMClassifier
    >>> rng = np.random.default_rng(0)
    >>> z = np.repeat([[0, 1], [1, 0], [1, 1]], 500, axis=0)
    >>> X = rng.normal(size=z.shape) + 2 * z
    >>> clf = CRMClassifier(cross_fit=True).fit(X, z[:, 0], attributes=z[:, 1])
    >>> sets = clf.predict_set([[-1.0, 0.0], [1.0, 0.0], [3.0, 0.0]])
    >>> list(sets)
    [array([0]), array([0, 1]), array([1])]
    """

    classes: Any
    contains: BoolArray
    p_values: FloatArray
    coverage: float
    space: GroupSpace
    groups: IntArray
    seen: BoolArray
    effective_sample_size: FloatArray
    needed_sample_size: float

    @property
    def sizes(self) -> IntArray:
        """Number of classes in each set, (n,)."""
        return np.asarray(self.contains.sum(axis=1))

    def group_frame(self) -> pd.DataFrame:
        """Return a table of the groups that can occur, and the evidence behind the threshold of each.

        Returns
        -------
        DataFrame
            One row per group: its attribute values, whether it was ``seen``, the ``effective_sample_size`` behind its
            threshold, and whether that is ``enough`` to exclude anything.
        """
        return self.space.frame(
            self.groups,
            seen=self.seen,
            effective_sample_size=self.effective_sample_size,
            enough=self.effective_sample_size >= self.needed_sample_size,
        )

    def __len__(self) -> int:
        return len(self.contains)

    def __getitem__(self, row: int) -> Any:
        return self.classes[self.contains[row]]

    def __repr__(self) -> str:
        few = int((self.effective_sample_size < self.needed_sample_size).sum())
        return (
            f"PredictionSets({len(self)} samples, coverage {self.coverage:g}, mean size {self.sizes.mean():.3g} of "
            f"{len(self.classes)} classes, {few} of {len(self.groups)} groups with too few samples)"
        )


def prediction_sets(
    clf: FittedCRM, X: Any, coverage: Any, attributes: Any = None
) -> PredictionSets | list[PredictionSets]:
    """Return the sets of the target, or a list of the sets of every target; see ``CRMClassifier.predict_set``."""
    check_is_fitted(clf)
    coverage = check_fraction(coverage, "coverage")
    out_of_fold = _out_of_fold(clf)
    level = round(1 - coverage, 12)  # without the rounding, 1 − 0.9 is below 0.1
    sizes = np.full(len(clf.groups_), np.nan)  # (g,) NaN for a group that cannot occur

    def class_p_values(part: FittedCRM, rows: FloatArray) -> list[FloatArray]:
        asked = _possible_groups(part, known=part is not clf)
        found = group_p_values(
            part._model,
            out_of_fold,
            rows,
            part._log_score(),
            part.groups_[asked],
            part._candidates.in_seen[asked],
            1 / level,
            len(part.targets_.names),
        )
        sizes[asked] = found.effective_sample_size  # the same for all rows: it does not depend on the prior
        return found.p_values

    found = predict_known(clf, X, attributes, class_p_values)
    asked = ~np.isnan(sizes)
    sets = [
        PredictionSets(
            classes=np.array(values),
            contains=p_values > level,
            p_values=p_values,
            coverage=coverage,
            space=clf.space_,
            groups=clf.groups_[asked],
            seen=clf.seen_[asked],
            effective_sample_size=sizes[asked],
            needed_sample_size=1 / level,
        )
        for values, p_values in zip(clf.targets_.values, found, strict=True)
    ]
    return sets[0] if clf._one_dimensional else sets


def _out_of_fold(clf: FittedCRM) -> OutOfFold:
    """Return the out-of-fold energies that prediction sets need; raise if the fit has none."""
    known = clf._model.out_of_fold
    if known is None:
        raise InputError(
            "predict_set needs out-of-fold energies, which this model does not have: fit a CRMClassifierCV, or a "
            "CRMClassifier with cross_fit=True (on the command line: --alpha auto, or --cross-fit), to samples in "
            "memory, none with missing attributes"
        )
    return known


def _possible_groups(clf: FittedCRM, *, known: bool) -> BoolArray:
    """Return whether each candidate can occur: it is inside the affine hull and has a positive probability, (g,)."""
    asked = clf.inside_hull_ & (clf.log_prior_ > -np.inf)
    if asked.any():
        return asked
    if known:
        outside = clf.space_.label(clf.groups_[np.argmax(clf.log_prior_ > -np.inf)])
        raise InputError(
            f"the groups that agree with the known attributes of a row, {outside} for example, are all outside the "
            "affine hull of the seen groups, and predict_set can tell nothing about them: leave these attributes "
            "missing (None)"
        )
    raise InputError(
        "the current prior gives no group inside the affine hull of the seen groups a positive probability, and "
        "predict_set can tell nothing about other groups: use set_prior with another prior"
    )


class ClassPValues(NamedTuple):
    """p-values of the classes of every target, and the evidence behind them."""

    p_values: list[FloatArray]  # (n, c) for each target: the largest p-value over the groups of the class
    effective_sample_size: FloatArray  # (q,) behind the p-values of each group


def group_p_values(
    model: CRMModel,
    known: OutOfFold,
    X: FloatArray,
    log_score: FloatArray,
    groups: IntArray,
    in_seen: IntArray,
    needed: float,
    n_targets: int,
) -> ClassPValues:
    """Return the p-value of every class for new samples (n, p): the largest of those of its groups among (q, m).

    ``log_score`` (g,) is log q(z) − B(z) of the candidates, ``in_seen`` (q,) the position of the groups among the seen
    groups, −1 for an unseen group. A group with an effective sample size below ``needed`` has a p-value of 1. Only one
    group's weights are in memory at a time.
    """
    ranks = [
        Ranks.of(-_marginal(model, known.energies, log_score, target), -new)
        for target, new in enumerate(model.marginals(X, log_score, range(n_targets)))
    ]
    log_sample = safe_log(known.weight)  # (r,)
    samples = ImportanceWeights.of(model, known, known.energies, log_sample)
    new_samples = ImportanceWeights.of(model, known, model.energies(X), log_mean(known.weight))
    p_values = [np.zeros(rank.n_below.shape) for rank in ranks]
    sizes = np.zeros(len(groups))
    for number, (code, position) in enumerate(zip(groups, in_seen, strict=True)):
        own = known.position == position  # none if the group is unseen
        log_weight, new_log_weight = np.where(own, log_sample, -np.inf), log_mean(known.weight[own])
        if effective_sample_size(log_weight) < MIN_OWN_SAMPLES:
            log_weight, new_log_weight = samples.log_weight(code), new_samples.log_weight(code)
        sizes[number] = effective_sample_size(log_weight)
        for target, (rank, result) in enumerate(zip(ranks, p_values, strict=True)):
            column = result[:, code[target]]
            if sizes[number] < needed:
                column[:] = 1.0
            else:
                np.maximum(column, rank.p_values(code[target], log_weight, new_log_weight), out=column)
    return ClassPValues(p_values, sizes)


def log_mean(weight: FloatArray) -> FloatArray:
    """Return the logarithm of the mean of some weights as a scalar array; −inf if there are none."""
    return np.asarray(safe_log(np.asarray(weight.sum() / max(len(weight), 1))))


def _marginal(model: CRMModel, energies: FloatArray, log_score: FloatArray, target: int) -> FloatArray:
    """Return log q̂(y|x) of one target from the energies (r, D), (r, c)."""
    table = model.candidates.table
    blocks = row_blocks(len(energies), table.width, 2 * BLOCK_CELLS)
    return np.concatenate([marginal_log_posterior(energies[rows], table, log_score, target) for rows in blocks])


class ImportanceWeights(NamedTuple):
    """Samples and what is needed to weight them as samples of any group."""

    space: GroupSpace
    energies: FloatArray  # (n, D) times the temperature
    log_share: FloatArray  # (n,) log ω − c(x)

    @classmethod
    def of(cls, model: CRMModel, known: OutOfFold, energies: FloatArray, log_sample: Any) -> ImportanceWeights:
        """Compute c(x) of samples with the model's ``energies`` (n, D); ``log_sample`` is log ω, (n,) or a number."""
        candidates = model.candidates
        energies = known.temperature * energies
        seen = GroupTable.of(candidates.space, candidates.seen_groups)
        log_score = safe_log(candidates.seen_weight / candidates.seen_weight.sum()) - known.bias  # (k,)
        blocks = row_blocks(len(energies), seen.width + energies.shape[1])
        evidence = np.concatenate([log_evidence(energies[rows], seen, log_score) for rows in blocks])
        return cls(candidates.space, energies, log_sample - evidence)

    def log_weight(self, code: IntArray) -> FloatArray:
        """Return log ω − ⟨σ(z), E(x)⟩ − c(x) of every sample for the group z = ``code`` (m,), (n,)."""
        return self.log_weights(code[None])[:, 0]

    def log_weights(self, codes: IntArray) -> FloatArray:
        """Return ``log_weight`` of every sample for each of the groups ``codes`` (q, m), (n, q)."""
        return np.asarray(self.log_share[:, None] - group_energies(self.energies, self.space, codes))


def log_density_ratios(
    model: CRMModel, known: OutOfFold, energies: FloatArray, groups: IntArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return log p(x|z) − log p(x) of labelled and of new samples, and the log importance weights behind them.

    p(x) is the density of the labelled samples. The ratios are those of the samples of ``known`` (r, g), all with a
    weight above 0, and of new samples with ``energies`` (n, g); the weights (r, g) are those of the labelled ones.
    """
    log_sample = np.log(known.weight)
    log_weight = ImportanceWeights.of(model, known, known.energies, log_sample).log_weights(groups)
    new = ImportanceWeights.of(model, known, energies, 0.0).log_weights(groups)
    bias = logsumexp(log_weight, axis=0) - np.log(known.weight.sum())  # (g,)
    return log_weight - log_sample[:, None] - bias, new - bias, log_weight
