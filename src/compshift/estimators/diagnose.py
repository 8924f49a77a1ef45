"""diagnose: check on labelled rows whether additivity holds and whether a model's probabilities are calibrated."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline

from compshift._checks import check_count, check_same_order, check_same_rows
from compshift._errors import InputError
from compshift.core.accuracy import Calibration, calibration
from compshift.core.arrays import BoolArray, FloatArray, IntArray, log_softmax, logmatmulexp, to_numpy
from compshift.core.columns import read_columns
from compshift.crm.base import GroupClassifier, check_group_classifier
from compshift.crm.features import prediction_features
from compshift.crm.fitted import FittedCRM
from compshift.crm.inputs import seed_of
from compshift.crm.pipelines import as_classifier_and_features
from compshift.estimators.diagnosis import Diagnosis, Difference
from compshift.estimators.interactions import CorrectionLikelihoods, compare_corrections, entries_at

MAX_DIAGNOSED_CELLS = 1 << 26
"""Largest number of probabilities (rows times seen groups) that ``diagnose`` holds: half a gigabyte."""

MIN_COMPARED_ROWS = 5
"""Smallest number of rows of a group in the comparison with a saturated model; smaller groups are left out."""


def diagnose(
    clf: GroupClassifier | Pipeline, X: Any, y: Any, attributes: Any = None, *, cv: int = 5, random_state: int = 0
) -> Diagnosis:
    """Check on labelled rows whether an additive model suffices and whether its probabilities are calibrated.

    Pass rows that the model was **not** fitted to, ideally a held-out part of the training data: on its own training
    rows a model looks better than it is, and this function cannot notice that. It uses only rows of groups that were
    seen in training, under the training prior and, for CRM, with the learned biases.

    *Interactions.* Two corrections of the model's log-probabilities are fitted to part of the rows and compared on the
    others, in ``cv`` folds: an additive one, and a saturated one with separate weights for every group. Both are linear
    in X (for boosted energies, in the outputs of the trees), start from the model, have a free bias for each group and
    choose their ridge in the same way. The gain of the second over the first is evidence for interactions between
    attributes. This is a statement about linear energies and about this number of rows; weak interactions need more
    rows. The standard error treats rows as independent and ignores that folds share training rows, so a gain counts
    only beyond three standard errors. Groups with fewer than five rows are left out.

    *Biases.* ``|B* − B|``, the gap between extrapolated and learned biases of seen groups, which is 0 at the optimum;
    effective sample size and Pareto k̂ of each group, if the classifier has them.

    *Calibration.* Expected calibration error of each attribute's most probable value, in bins of equal count, compared
    with the error that chance gives if all probabilities are right. Above the 95 % quantile of the latter,
    probabilities are reported as miscalibrated.

    Parameters
    ----------
    clf : CRMClassifier, AdditiveGaussian, AffineExtrapolation or another classifier over groups, or a Pipeline
        The fitted model, or a pipeline that ends in one; it is not changed.
    X : array or DataFrame (n, p)
        Features of labelled rows; for a pipeline, what its first step takes.
    y : array (n,) or (n, t)
        Targets of the rows, as for ``fit``.
    attributes : array (n,) or (n, s), optional
        Nuisance attributes of the rows, as for ``fit``.
    cv : int, default=5
        Number of folds, at least 3.
    random_state : int, default=0
        Seed of the folds and of the simulated chance variation.

    Returns
    -------
    Diagnosis
        The numbers, by group and in total, and a ``verdict`` in a few sentences.

    Raises
    ------
    InputError
        If the data cannot be read, or fewer than two seen groups have five rows.

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
    check_same_order({"X": X, "y": y, "attributes": attributes})
    clf, X = as_classifier_and_features(clf, X)
    check_group_classifier(clf)
    cv = check_count(cv, "cv")
    if cv < 3:
        raise InputError(f"cv is {cv}: pass 3 folds or more")
    random = np.random.default_rng(seed_of(random_state))
    X = prediction_features(clf, X)
    codes = _codes(clf, y, attributes, len(X))
    seen = np.flatnonzero(clf.seen_)
    if not seen.size:
        raise InputError(
            "none of the groups that clf can predict was seen in training, but additivity is tested on seen groups: "
            "fit with a support that includes some"
        )
    position = clf.space_.locate(codes, clf.groups_[seen])
    known = position >= 0
    if not known.any():
        example = clf.space_.label(clf.groups_[seen[0]])
        raise InputError(
            f"none of the {len(X)} rows belongs to a group seen in training, such as {example}: pass labelled rows of "
            "seen groups, because additivity is tested on those"
        )
    X, codes, position = X[known], codes[known], position[known]
    if len(X) * len(seen) > MAX_DIAGNOSED_CELLS:
        raise InputError(f"{len(X)} rows of {len(seen)} seen groups are too many to hold in memory: pass fewer rows")
    log_proba = _training_log_proba(clf, X, clf.groups_[seen])  # (n, k)
    used, compared = _compare(clf, X, position, log_proba, cv, random)
    by_group, by_group_error = _by_group(compared, position[used], len(seen))
    shift, shift_limit = _shift(clf.group_weight_[seen], position, random)

    def by_candidate(values: Any, fill: float) -> Any:
        """Return an array over the candidates (g,): these values for the seen groups (k,), ``fill`` for the others."""
        result = np.full(len(clf.groups_), fill, dtype=np.asarray(values).dtype)
        result[seen] = values
        return result

    unknown = np.full(len(clf.groups_), np.nan)
    gap = np.full(len(seen), np.nan)
    if hasattr(clf, "learned_bias_"):
        gap = np.abs(to_numpy(clf.bias_) - to_numpy(clf.learned_bias_))[seen]
    return Diagnosis(
        space=clf.space_,
        groups=clf.groups_,
        train_rows=clf.group_weight_,
        rows=by_candidate(np.bincount(position, minlength=len(seen)), 0),
        inside_hull=clf.inside_hull_,
        interaction_by_group=by_candidate(by_group, np.nan),
        interaction_error_by_group=by_candidate(by_group_error, np.nan),
        bias_gap=by_candidate(gap, np.nan),
        effective_sample_size=to_numpy(getattr(clf, "effective_sample_size_", unknown)),
        pareto_k=to_numpy(getattr(clf, "pareto_k_", unknown)),
        log_likelihood=float(entries_at(log_proba, position).mean()),
        correction=Difference.of(compared.additive, compared.uncorrected),
        interaction=Difference.of(compared.saturated, compared.additive),
        calibration=_calibrations(clf, codes, seen, log_proba, random),
        shift=shift,
        shift_limit=shift_limit,
        n_unseen=int(np.count_nonzero(~known)),
    )


def _codes(clf: GroupClassifier, y: Any, attributes: Any, n_rows: int) -> IntArray:
    """Return the codes (n, m) of the labelled rows in the classifier's space."""
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
    """Return log p(z|x) of the seen groups, (n, k), under the training prior and, for CRM, with learned biases."""
    reader = copy.copy(clf)
    if hasattr(clf, "learned_bias_"):
        reader.set_params(bias="learned")
    reader.set_prior("train")
    return reader._group_log_posterior(X, reader.space_.locate(seen_groups, reader.groups_))


def _compare(
    clf: GroupClassifier, X: FloatArray, position: IntArray, log_proba: FloatArray, cv: int, random: np.random.Generator
) -> tuple[BoolArray, CorrectionLikelihoods]:
    """Return a mask (n,) of the rows whose groups have enough rows, and the comparison on these rows and groups."""
    count = np.bincount(position, minlength=log_proba.shape[1])
    enough = np.flatnonzero(count >= MIN_COMPARED_ROWS)
    if len(enough) < 2:
        raise InputError(
            f"{len(enough)} of the seen groups have {MIN_COMPARED_ROWS} rows or more in X, but the comparison with a "
            "saturated model needs two: pass more rows"
        )
    used = count[position] >= MIN_COMPARED_ROWS
    among = log_softmax(log_proba[used][:, enough])
    lowest = among[among > -np.inf].min()
    among = np.maximum(among, lowest)  # finite, because no correction can raise a probability of 0
    one_hot = clf.space_.one_hot(clf.groups_[np.flatnonzero(clf.seen_)[enough]])
    within = np.searchsorted(enough, position[used])
    return used, compare_corrections(_linear_features(clf, X[used]), within, among, one_hot, cv, random)


def _linear_features(clf: GroupClassifier, X: FloatArray) -> FloatArray:
    """Return the features that energies are linear in: for boosted energies the outputs of the trees, otherwise X."""
    basis = clf._model.basis if isinstance(clf, FittedCRM) else None
    return X if basis is None else basis.scores(X)


def _by_group(compared: CorrectionLikelihoods, position: IntArray, n_groups: int) -> tuple[FloatArray, FloatArray]:
    """Return each group's mean gain by interactions and its standard error, (k,) each; NaN for groups without rows."""
    gain = np.full((2, n_groups), np.nan)
    for group in np.unique(position):
        member = position == group
        difference = Difference.of(compared.saturated[member], compared.additive[member])
        gain[:, group] = difference.mean, difference.error
    return gain[0], gain[1]


def _shift(train_weight: FloatArray, position: IntArray, random: np.random.Generator) -> tuple[float, float]:
    """Return the total variation distance of the group frequencies from training, and its 95 % quantile by chance."""
    expected = train_weight / train_weight.sum()  # (k,)
    n = len(position)
    by_chance = 0.5 * np.abs(random.multinomial(n, expected, size=400) / n - expected).sum(axis=1)
    distance = 0.5 * np.abs(np.bincount(position, minlength=len(expected)) / n - expected).sum()
    return float(distance), float(np.quantile(by_chance, 0.95))


def _calibrations(
    clf: GroupClassifier, codes: IntArray, seen: IntArray, log_proba: FloatArray, random: np.random.Generator
) -> dict[str, Calibration]:
    """Return the calibration of each attribute's most probable value."""
    results = {}
    for attribute, (name, size) in enumerate(zip(clf.space_.names, clf.space_.cardinalities, strict=True)):
        member = np.where(clf.groups_[seen, attribute][:, None] == np.arange(size), 0.0, -math.inf)
        marginal = np.exp(logmatmulexp(log_proba, member))  # (n, d)
        best = np.argmax(marginal, axis=1)
        confidence = np.minimum(entries_at(marginal, best), 1.0)
        results[name] = calibration(confidence, best == codes[:, attribute], random)
    return results
