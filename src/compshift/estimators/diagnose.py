"""Does additivity hold, and can the model's probabilities be believed? A look at labelled rows."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np

from compshift._checks import check_count, check_same_order, check_same_rows
from compshift._errors import InputError
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.calibration_error import Calibration, calibration
from compshift.core.columns import read_columns
from compshift.core.logspace import log_softmax, logmatmulexp
from compshift.estimators.additivity import Comparison, compare, own_entries
from compshift.estimators.diagnosis import Diagnosis, Difference
from compshift.estimators.group_classifier import GroupClassifier, check_group_classifier
from compshift.estimators.inputs import known_features
from compshift.estimators.randomness import seed_of

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
    return clf.space_.encode_columns([*targets, *nuisances])


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
