r"""Whether log probabilities of groups add up over attributes, or want interactions between them.

A fitted model gives log p(z|x) of the seen groups, which is additive. Two corrections of it are learned from the same
labelled rows, and judged on the same other rows:

.. math:: \text{additive: } \log p(z|x) + \langle \sigma(z), V x \rangle + b_z, \qquad
    \text{saturated: } \log p(z|x) + W_z x + b_z

Both are ridge logistic regressions that begin at the model; each chooses its ridge within the rows it is fitted to. The
saturated one has weights of its own for every group. Whatever is wrong with the model in an additive way (too little
training, too strong a ridge, other group frequencies here than in training) both mend alike, so that their difference
is about interactions alone, as far as these rows can show them.

Does additivity hold, and can the model's probabilities be believed? A look at labelled rows.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from compshift._checks import check_count, check_same_order, check_same_rows
from compshift._errors import InputError
from compshift.core.accuracy import Calibration, calibration
from compshift.core.arrays import BoolArray, FloatArray, IntArray, log_softmax, logmatmulexp
from compshift.core.columns import read_columns
from compshift.crm.base import GroupClassifier, check_group_classifier
from compshift.crm.blocks import one_thread_for_scipy
from compshift.crm.inputs import known_features, row_folds, seed_of
from compshift.crm.problem import softmax_curvature, standardise
from compshift.crm.solver import RiskGradient, Solution, solve
from compshift.estimators.diagnosis import Diagnosis, Difference
from compshift.estimators.logit_adjusted import LogitProblem

RIDGES = (100.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
"""What each correction chooses from, strongest first: at 100 nothing but the biases is corrected."""

INNER_FOLDS = 4
"""The ridge is chosen on one of so many parts of the rows."""

TOL, MAX_ITER = 1e-3, 300
"""Of the fits. Beyond them, likelihoods do not change to speak of."""


class Comparison(NamedTuple):
    """Log-likelihood of each row's own group, (n,) each, by fits that did not have the row."""

    given: FloatArray  # by the model as it is
    additive: FloatArray
    saturated: FloatArray


class Correction(NamedTuple):
    """Correction of known logits; with ``codes`` its weights are sums over attribute values."""

    logits: LogitProblem  # of the groups, without ridge
    codes: FloatArray  # (k, d) one-hot rows σ(z), or the identity
    alpha: float

    @property
    def coarse(self) -> None:
        """There is none."""

    @property
    def curvature(self) -> FloatArray:
        """About that along the weights of each value, or of each group, (d,)."""
        return softmax_curvature(self.frequency @ self.codes, self.logits.spread, self.alpha)

    @property
    def shape(self) -> tuple[int, int]:
        """Of the weights."""
        return self.codes.shape[1], self.logits.features.shape[1]

    @property
    def frequency(self) -> FloatArray:
        """Of the groups, (k,)."""
        return self.logits.frequency

    def evaluate(self, weight: FloatArray, bias: FloatArray) -> RiskGradient:
        """Penalised risk and gradient."""
        value, gradient, bias_gradient = self.logits.evaluate(self.codes @ weight, bias)
        penalty = 0.5 * self.alpha * float(np.vdot(weight, weight))
        return RiskGradient(value + penalty, self.alpha * weight + self.codes.T @ gradient, bias_gradient)


class GroupRows(NamedTuple):
    """Rows with their groups and what the model says of them."""

    features: FloatArray  # (n, p) standardised
    position: IntArray  # (n,) of the k groups
    log_proba: FloatArray  # (n, k)
    spread: float  # of the features, about

    def part(self, rows: IntArray) -> GroupRows:
        """Some of the rows."""
        return self._replace(features=self.features[rows], position=self.position[rows], log_proba=self.log_proba[rows])

    def corrections(self, codes: FloatArray) -> Iterator[Solution]:
        """Corrections at each of ``RIDGES``, every search beginning where the last one ended."""
        n, k = self.log_proba.shape
        frequency = np.bincount(self.position, minlength=k) / n
        logits = LogitProblem(
            self.features, self.position, np.arange(n), self.log_proba, np.full(n, 1 / n), frequency, 0.0, self.spread
        )
        found = None
        for alpha in RIDGES:
            start = None if found is None else found.start
            found = solve(Correction(logits, codes, alpha), tol=TOL, max_iter=MAX_ITER, start=start)
            yield found

    def own_log_proba(self, codes: FloatArray, correction: Solution) -> FloatArray:
        """Corrected log p(z|x) of each row's own group, (n,)."""
        logits = self.log_proba + self.features @ (codes @ correction.weight).T + correction.bias
        return own_entries(log_softmax(logits), self.position)


def own_entries(values: FloatArray, position: IntArray) -> FloatArray:
    """The entry of each row (n, k) at its position (n,)."""
    return np.asarray(values[np.arange(len(values)), position])


def compare(
    X: FloatArray,
    position: IntArray,
    log_proba: FloatArray,
    one_hot: FloatArray,
    n_folds: int,
    random: np.random.Generator,
) -> Comparison:
    """Likelihoods by the model and by both corrections, from ``n_folds`` folds.

    ``log_proba`` (n, k) is the model's, ``position`` (n,) the group of each row, ``one_hot`` (k, D) are the groups'
    codes. Every group has rows in more than two folds.
    """
    features, standard = standardise(X, np.ones(len(X)))
    everything = GroupRows(features, position, log_proba, standard.spread)
    identity = np.eye(len(one_hot))
    fold = row_folds(position, n_folds, random)
    additive, saturated = np.empty(len(X)), np.empty(len(X))
    with one_thread_for_scipy():
        for number in range(n_folds):
            held_out = everything.part(np.flatnonzero(fold == number))
            others = everything.part(np.flatnonzero(fold != number))
            inner = row_folds(others.position, INNER_FOLDS, random) == 0
            for result, codes in ((additive, one_hot), (saturated, identity)):
                ridge = _best_ridge(others, inner, codes)
                correction = next(islice(others.corrections(codes), ridge, None))
                result[fold == number] = held_out.own_log_proba(codes, correction)
    return Comparison(own_entries(log_proba, position), additive, saturated)


def _best_ridge(rows: GroupRows, held_out: BoolArray, codes: FloatArray) -> int:
    """Position of the ridge whose correction, fitted to some rows, suits the held-out ones best.

    The search ends at the first ridge that suits them worse than the one before.
    """
    fitting, judging = rows.part(np.flatnonzero(~held_out)), rows.part(np.flatnonzero(held_out))
    best = -np.inf
    for number, found in enumerate(fitting.corrections(codes)):
        likelihood = float(judging.own_log_proba(codes, found).mean())
        if likelihood <= best:
            return number - 1
        best = likelihood
    return len(RIDGES) - 1


MAX_CELLS = 1 << 26
"""More probabilities (rows times seen groups) than this, half a gigabyte, are not held."""

FEWEST_ROWS = 5
"""A group with fewer rows takes no part in the comparison with a saturated model."""

DRAWS = 400
"""So many samples by chance tell how far frequencies scatter."""


def diagnose(
    clf: GroupClassifier, X: Any, y: Any, attributes: Any = None, *, cv: int = 5, random_state: int = 0
) -> Diagnosis:
    """Whether an additive model is enough for labelled rows, and whether its probabilities can be believed.

    Pass rows that the model was **not** fitted to: on its training rows a model looks better than it is, and nothing
    here can tell. Only rows of groups that training had are looked at, under the training prior and, for CRM, the
    learned biases; a held-out part of the training data is what suits best.

    *Interactions.* Two corrections of the model's log-probabilities are learned from part of the rows and judged on the
    others, in ``cv`` folds: one that adds up over attributes, and a saturated one, with weights of its own for every
    group. Both are linear in X, begin at the model, have a free bias for each group and choose their ridge in the same
    way. What the second gains over the first is for interactions between attributes. It is a statement about linear
    energies and about as many rows as these: weak interactions need more. The standard error is that of independent
    rows and does not count that folds share rows, so three of them are asked for. Groups with fewer than five rows take
    no part.

    *Biases.* ``|B* − B|`` of seen groups, which is 0 at the optimum; effective sample size and Pareto k̂ of each
    group, where the classifier has them.

    *Calibration.* Of each attribute's most probable value: expected calibration error in bins of equal count, against
    the error that would come about by chance if all probabilities were right; it is called off beyond 95 % of those.

    Parameters
    ----------
    clf : CRMClassifier, AdditiveGaussian, AffineExtrapolation or the like
        Fitted. It is not changed.
    X, y, attributes
        Rows as for ``fit``.
    cv : int, default=5
        Number of folds, from 3.
    random_state : int, default=0
        Of the folds, and of what chance would give.

    Examples
    --------
    >>> import numpy as np
    >>> from compshift import CRMClassifier
    >>> rng = np.random.default_rng(0)
    >>> z = np.repeat([[0, 1], [1, 0], [1, 1]], 400, axis=0)
    >>> X = rng.normal(size=z.shape) + 2 * z
    >>> half = rng.random(len(z)) < 0.5
    >>> clf = CRMClassifier(1e-3).fit(X[half], z[half, 0], attributes=z[half, 1])
    >>> diagnosis = diagnose(clf, X[~half], z[~half, 0], attributes=z[~half, 1])
    >>> diagnosis.additive
    True
    >>> print(diagnosis.verdict[:50])
    The additive model fits as well as a saturated one
    """
    check_group_classifier(clf)
    cv = check_count(cv, "cv")
    if cv < 3:
        raise InputError(f"cv is {cv}: pass 3 folds or more")
    random = np.random.default_rng(seed_of(random_state))
    check_same_order({"X": X, "y": y, "attributes": attributes})
    X = known_features(clf, X)
    codes = _codes(clf, y, attributes, len(X))
    seen = np.flatnonzero(clf.seen_)
    if not seen.size:
        raise InputError(
            "none of the groups that clf can predict was seen in training, and additivity is judged on those: "
            "fit with a support that has seen groups"
        )
    position = clf.space_.locate(codes, clf.groups_[seen])
    known = position >= 0
    if not known.any():
        example = clf.space_.label(clf.groups_[seen[0]])
        raise InputError(
            f"none of the {len(X)} rows is of a group that training had, such as {example}: pass labelled rows of seen "
            "groups, which additivity is judged on"
        )
    X, codes, position = X[known], codes[known], position[known]
    if len(X) * len(seen) > MAX_CELLS:
        raise InputError(f"{len(X)} rows of {len(seen)} seen groups are too many to hold: pass a sample of the rows")
    log_proba = _training_log_proba(clf, X, clf.groups_[seen])  # (n, k)
    judged, compared = _compare(clf, X, position, log_proba, cv, random)
    by_group, by_group_error = _by_group(compared, position[judged], len(seen))
    shift, shift_limit = _shift(clf.group_weight_[seen], position, random)

    def spread(values: Any, otherwise: float) -> Any:
        result = np.full(len(clf.groups_), otherwise, dtype=np.asarray(values).dtype)
        result[seen] = values
        return result

    unknown = np.full(len(clf.groups_), np.nan)
    gap = np.full(len(seen), np.nan)
    if hasattr(clf, "learned_bias_"):
        gap = np.abs(clf.bias_ - clf.learned_bias_)[seen]
    return Diagnosis(
        space=clf.space_,
        groups=clf.groups_,
        train_rows=clf.group_weight_,
        rows=spread(np.bincount(position, minlength=len(seen)), 0),
        inside_hull=clf.inside_hull_,
        interaction_by_group=spread(by_group, np.nan),
        interaction_error_by_group=spread(by_group_error, np.nan),
        bias_gap=spread(gap, np.nan),
        effective_sample_size=getattr(clf, "effective_sample_size_", unknown),
        pareto_k=getattr(clf, "pareto_k_", unknown),
        log_likelihood=float(own_entries(log_proba, position).mean()),
        correction=Difference.of(compared.additive, compared.given),
        interaction=Difference.of(compared.saturated, compared.additive),
        calibration=_calibrations(clf, codes, seen, log_proba, random),
        shift=shift,
        shift_limit=shift_limit,
        n_unseen=int(np.count_nonzero(~known)),
    )


def _codes(clf: GroupClassifier, y: Any, attributes: Any, n_rows: int) -> IntArray:
    """Codes (n, m) of the labelled rows, in the classifier's space."""
    if y is None:
        raise InputError("y is None: pass the class of each row")
    targets = read_columns(y, default="y")
    names = [column.name for column in targets]
    nuisances = [] if attributes is None else read_columns(attributes, default="a", taken=names)
    for name, columns in (("y", targets), ("attributes", nuisances)):
        if columns:
            check_same_rows(n_rows, columns[0].codes, name)
    return clf.space_._encode_columns([*targets, *nuisances])


def _training_log_proba(clf: GroupClassifier, X: FloatArray, seen_groups: IntArray) -> FloatArray:
    """Log p(z|x) of the seen groups under the training prior, and with the learned biases if there are any, (n, k)."""
    reader = copy.copy(clf)
    if hasattr(clf, "learned_bias_"):
        reader.set_params(bias="learned")
    reader.set_prior("train")
    return reader._joint(X, reader.space_.locate(seen_groups, reader.groups_))


def _compare(
    clf: GroupClassifier, X: FloatArray, position: IntArray, log_proba: FloatArray, cv: int, random: np.random.Generator
) -> tuple[Any, Comparison]:
    """Which rows are of groups with enough rows, and their likelihoods among those groups."""
    count = np.bincount(position, minlength=log_proba.shape[1])
    enough = np.flatnonzero(count >= FEWEST_ROWS)
    if len(enough) < 2:
        raise InputError(
            f"{len(enough)} of the seen groups have {FEWEST_ROWS} rows or more here: pass rows of at least two such "
            "groups, without which no saturated model can be fitted"
        )
    judged = count[position] >= FEWEST_ROWS
    among = log_softmax(log_proba[judged][:, enough])
    lowest = among[among > -np.inf].min()
    among = np.maximum(among, lowest)  # a group without any probability could not be corrected
    one_hot = clf.space_.one_hot(clf.groups_[np.flatnonzero(clf.seen_)[enough]])
    within = np.searchsorted(enough, position[judged])
    return judged, compare(X[judged], within, among, one_hot, cv, random)


def _by_group(compared: Comparison, position: IntArray, n_groups: int) -> tuple[FloatArray, FloatArray]:
    """Mean gain by interactions and its standard error in each group, (k,) each; NaN without rows."""
    gain = np.full((2, n_groups), np.nan)
    for group in np.unique(position):
        own = position == group
        found = Difference.of(compared.saturated[own], compared.additive[own])
        gain[:, group] = found.mean, found.error
    return gain[0], gain[1]


def _shift(train_weight: FloatArray, position: IntArray, random: np.random.Generator) -> tuple[float, float]:
    """Total variation between the frequencies of groups in training and here, and its 95 % quantile by chance."""
    expected = train_weight / train_weight.sum()  # (k,)
    n = len(position)
    by_chance = 0.5 * np.abs(random.multinomial(n, expected, size=DRAWS) / n - expected).sum(axis=1)
    found = 0.5 * np.abs(np.bincount(position, minlength=len(expected)) / n - expected).sum()
    return float(found), float(np.quantile(by_chance, 0.95))


def _calibrations(
    clf: GroupClassifier, codes: IntArray, seen: IntArray, log_proba: FloatArray, random: np.random.Generator
) -> dict[str, Calibration]:
    """Calibration of each attribute's marginal."""
    results = {}
    for attribute, (name, size) in enumerate(zip(clf.space_.names, clf.space_.cardinalities, strict=True)):
        member = np.where(clf.groups_[seen, attribute][:, None] == np.arange(size), 0.0, -math.inf)
        marginal = np.exp(logmatmulexp(log_proba, member))  # (n, d)
        best = np.argmax(marginal, axis=1)
        confidence = np.minimum(own_entries(marginal, best), 1.0)
        results[name] = calibration(confidence, best == codes[:, attribute], random)
    return results
