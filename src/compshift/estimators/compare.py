"""compare: score CRM and the classifiers that one would use instead on the same test rows and held-out combinations."""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.parallel import delayed
from threadpoolctl import threadpool_limits

from compshift._checks import check_count, check_flag, check_fraction, check_list, check_same_order, check_same_rows
from compshift._errors import InputError, an, check_name, listing
from compshift._progress import in_parallel
from compshift.core.arrays import BoolArray, FloatArray, IntArray
from compshift.core.columns import read_columns
from compshift.core.folds import combination_folds
from compshift.core.groups import GroupSpace
from compshift.crm.boosting import CRMBoostingClassifier
from compshift.crm.cv import CRMClassifierCV
from compshift.crm.inputs import check_jobs, is_streamed, read_labels, seed_of
from compshift.crm.mixed_features import mixed_features
from compshift.crm.ridge import default_alphas, typical_alpha
from compshift.crm.trees import import_lightgbm
from compshift.data.splits import TEST, TRAIN, stratified_split
from compshift.estimators.comparison import KNOWN, TRAIN_PRIOR, Comparison, MethodOutcome, summarise
from compshift.estimators.logit_adjusted import LogitAdjustedClassifier

MAX_SCALED = 1e140
"""Largest absolute number that scikit-learn's ``StandardScaler`` can square and sum over rows."""

MAX_ONE_HOT = 100
"""Largest number of one-hot columns of a categorical feature; the rarest categories share one."""

MAX_BOOSTING_CATEGORIES = 255
"""Largest number of categories that scikit-learn's boosting accepts; a feature with more is read as a number."""

RIDGE_FOLDS = 5
"""Number of folds of held-out groups on which LC and sLA choose their ridge."""


class _Rows(NamedTuple):
    """Labelled samples as numbers."""

    features: FloatArray  # (n, p) NaN where a value is missing; categories are numbered
    codes: IntArray  # (n, m) the class, then the attributes

    def take(self, chosen: BoolArray) -> _Rows:
        return _Rows(self.features[chosen], self.codes[chosen])


class _Setup(NamedTuple):
    """Settings that are the same for every fit of a comparison."""

    space: GroupSpace
    categories: tuple[int, ...]  # (p,) number of categories of each feature; 0 for a column of numbers
    seed: int
    known: bool  # whether to score CRM with known attributes, too


class _Scored(NamedTuple):
    """One fit of one method, scored on other rows."""

    correct: dict[str, list[BoolArray]]  # by method or variant of CRM: (n,) for each set of rows
    seconds: float
    converged: bool


class _Reader(BaseEstimator):
    """Estimator that remembers the names and the number of the columns of X."""


def compare(
    X: Any,
    y: Any,
    *,
    attributes: Any,
    X_test: Any = None,
    y_test: Any = None,
    attributes_test: Any = None,
    methods: Sequence[str] | None = None,
    known: bool = False,
    test_size: float = 0.3,
    n_splits: int = 5,
    random_state: Any = 0,
    n_jobs: int | None = None,
) -> Comparison:
    """Fit CRM and the classifiers that one would use instead to the same rows, and compare their accuracy.

    Every method is fitted to the training rows and scored on the test rows. It is then fitted once more per fold of
    held-out combinations: each fold removes some groups from the training rows, and the method predicts the rows of
    these groups, and the test rows of the groups that stayed: a method can gain on the former by losing on the latter.
    All methods get the same rows. Only groups inside the affine hull of the others can be held out.

    =======================  ==========================================================================================
    ``logistic``             scikit-learn's logistic regression
    ``logistic-balanced``    the same, with weights by which all groups count equally
    ``boosting``             scikit-learn's ``HistGradientBoostingClassifier``
    ``boosting-attributes``  the same, with the true attributes as further features, which must be known in use
    ``lc``, ``sla``          ``LogitAdjustedClassifier``, its ridge chosen on held-out groups of its training rows
    ``crm``                  ``CRMClassifierCV``, which chooses its settings in the same way
    ``crm-boosting``         ``CRMBoostingClassifier``; needs ``compshift[boosting]``
    =======================  ==========================================================================================

    Parameters that are not named here have their defaults. Logistic regression, LC, sLA and CRM get numbers only:
    medians replace missing values, columns are standardised and categories one-hot encoded, all fitted to the training
    rows. Gradient boosting and boosted CRM take missing values and categories as they are. Warnings of the fits are
    not shown; a fit that did not converge is reported in the result.

    Parameters
    ----------
    X : array or DataFrame (n, p)
        Features: numbers, which may be missing (NaN), and, in a DataFrame, columns of text, categories or booleans.
    y : array (n,)
        Classes to predict.
    attributes : array (n,) or (n, s), DataFrame or mapping
        Further attributes of the samples, which define the groups together with ``y``.
    X_test, y_test, attributes_test : as X, y and attributes, optional
        Test rows; pass all three or none. By default a part of the rows of every group is set aside.
    methods : sequence of str, optional
        Names from the table above. By default all of them, without ``crm-boosting`` if LightGBM is not installed.
    known : bool, default=False
        Whether the table also has rows for the CRM methods with the true attributes of the samples that they predict.
    test_size : float, default=0.3
        Share of the rows of every group to set aside if no test rows are passed.
    n_splits : int, default=5
        Number of folds of held-out groups, as in ``CombinationKFold``.
    random_state : int, RandomState or None, default=0
        Seed of the split, of the folds and of the methods.
    n_jobs : int or None, default=None
        Number of processes for the fits: None for 1, −1 for all cores. Each fit runs on one core.

    Returns
    -------
    Comparison
        The table, as ``frame``, and what it says in a few sentences.

    Raises
    ------
    InputError
        If the data or parameters are invalid; the message says what to change.

    Examples
    --------
    Rows of two classes at two places, mostly at their own place.

    >>> import numpy as np
    >>> import compshift as cs
    >>> rng = np.random.default_rng(0)
    >>> z = np.repeat([[0, 0], [0, 1], [1, 0], [1, 1]], [400, 40, 40, 400], axis=0)
    >>> X = rng.normal(size=z.shape) + 2 * z
    >>> found = cs.compare(X, z[:, 0], attributes=z[:, 1], methods=["logistic", "sla"])
    >>> found.frame[["average", "worst", "unseen"]].round(2)
              average  worst  unseen
    logistic     0.90   0.58    0.39
    sla          0.83   0.77    0.81
    """
    if attributes is None:
        raise InputError("attributes is None: pass the attributes that define the groups together with y")
    chosen, n_splits = _check_methods(methods), check_count(n_splits, "n_splits")
    if n_splits < 2:
        raise InputError(f"n_splits is {n_splits}: pass an integer ≥ 2")
    n_jobs, known, seed = check_jobs(n_jobs), check_flag(known, "known"), seed_of(random_state)
    test_size = check_fraction(test_size, "test_size")
    given = {"X_test": X_test, "y_test": y_test, "attributes_test": attributes_test}
    absent = [name for name, value in given.items() if value is None]
    if 0 < len(absent) < len(given):
        raise InputError(
            f"{' and '.join(absent)} {'is' if len(absent) == 1 else 'are'} missing: pass X_test, y_test and "
            "attributes_test, or none of them"
        )

    reader = _Reader()
    features, columns = _read_features(reader, X, None, "X")
    check_same_order({"X": X, "y": y, "attributes": attributes})
    labels = read_labels(y, attributes, None, np.ones(len(features), dtype=np.bool_))
    if labels.n_targets > 1:
        raise InputError(f"y has {labels.n_targets} columns: pass one target, and the others as attributes")
    train = _Rows(features, labels.codes)
    if absent:
        split = stratified_split(labels.space, train.codes, {"train": 1 - test_size, "test": test_size}, seed)
        if not (split == TEST).any():
            raise InputError(
                f"every group has so few rows that test_size {test_size:g} leaves none to test on: pass more rows, a "
                "larger test_size, or test rows"
            )
        train, test = train.take(split == TRAIN), train.take(split == TEST)
    else:
        check_same_order({"X_test": X_test, "y_test": y_test, "attributes_test": attributes_test})
        test_features, _ = _read_features(reader, X_test, columns, "X_test")
        test = _Rows(test_features, _test_codes(labels.space, y_test, attributes_test, len(test_features)))
    if np.isnan(train.features).all():
        raise InputError("X has no values in the training rows: all of its columns are empty; pass columns with values")
    sizes = tuple(0 if values is None else len(values) for values in columns.categories)
    return _compared(chosen, train, test, _Setup(labels.space, sizes, seed, known), n_splits, n_jobs, methods is None)


def _check_methods(methods: Sequence[str] | None) -> list[str]:
    """Return the names of the methods, in the order of ``COMPARED_METHODS``."""
    if methods is None:
        return [
            name for name in COMPARED_METHODS if name != BOOSTED or importlib.util.find_spec("lightgbm") is not None
        ]
    names = check_list(methods, "methods", f"names among {listing(COMPARED_METHODS)}")
    for name in names:
        check_name("method", name, tuple(COMPARED_METHODS))
    if not names:
        raise InputError(f"methods is empty: pass names among {listing(COMPARED_METHODS)}")
    if BOOSTED in names:
        import_lightgbm()
    return [name for name in COMPARED_METHODS if name in names]


def _read_features(reader: _Reader, X: Any, columns: Any, name: str) -> Any:
    """Return features (n, p) as numbers, and how their columns were read."""
    if is_streamed(X):
        raise InputError(
            f"{name} is {an(type(X).__name__)}, but all samples are needed in memory: pass some of its rows as an array"
        )
    features, columns = mixed_features(reader, X, columns)
    largest = float(np.nanmax(np.abs(features), initial=0.0))
    if largest > MAX_SCALED:
        raise InputError(
            f"{name} contains a number of size {largest:.1e}, whose square overflows in scikit-learn's scaler: divide "
            f"the column, so that it stays below {MAX_SCALED:g}"
        )
    return features, columns


def _test_codes(space: GroupSpace, y: Any, attributes: Any, n_rows: int) -> IntArray:
    """Return the codes (n, m) of test rows, whose values must occur in training."""
    targets = read_columns(y, default="y")
    nuisances = read_columns(attributes, default="a", taken=[column.name for column in targets])
    for name, columns in (("y_test", targets), ("attributes_test", nuisances)):
        check_same_rows(n_rows, columns[0].codes, name, "X_test")
    return space._encode_columns([*targets, *nuisances])


def _compared(
    names: Sequence[str],
    train: _Rows,
    test: _Rows,
    setup: _Setup,
    n_splits: int,
    n_jobs: int | None,
    default: bool,
) -> Comparison:
    """Fit and score every method on the test rows and on each fold of held-out groups, and collect the results."""
    seen, group = setup.space.distinct(train.codes)
    # (k,) fold in which each seen group is held out; −1 for groups that never are
    group_fold = combination_folds(setup.space, seen, n_splits, np.random.default_rng(setup.seed))
    fold, place = group_fold[group], setup.space.locate(test.codes, seen)  # (n,) each; −1: absent from training
    stays = [(place >= 0) & (group_fold[place] != number) for number in range(int(fold.max()) + 1)]
    parts = [(train, [test])]
    for number, rows in enumerate(stays):
        parts.append((train.take(fold != number), [train.take(fold == number), test.take(rows)]))
    tasks = [(name, *part) for name in names for part in parts]
    scored = in_parallel("methods and folds", [delayed(_score)(*task, setup) for task in tasks], n_jobs)
    present, test_group = setup.space.distinct(test.codes)
    outcomes = {}
    for start in range(0, len(scored), len(parts)):
        first, *others = scored[start : start + len(parts)]
        unconverged = sum(not result.converged for result in (first, *others))
        for variant, (correct,) in first.correct.items():
            held_out, stayed = np.full(len(group), np.nan), np.zeros(len(correct))
            for number, result in enumerate(others):
                held_out[fold == number], right = result.correct[variant]
                stayed[stays[number]] += right
            times = np.sum(stays, axis=0, dtype=np.float64) if stays else np.zeros(len(correct))
            stayed /= np.where(times > 0, times, np.nan)
            outcomes[variant] = MethodOutcome(correct, held_out, stayed, first.seconds, unconverged)
    n_new = int(np.count_nonzero(setup.space.locate(present, seen) < 0))
    left_out = default and BOOSTED not in names
    return summarise(outcomes, test_group, group, n_fits=len(parts), n_new=n_new, left_out=left_out)


def _score(name: str, train: _Rows, tests: Sequence[_Rows], setup: _Setup) -> _Scored:
    """Fit one method to ``train`` and score it on each of ``tests``."""
    correct: dict[str, list[BoolArray]] = {}
    with threadpool_limits(1), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        started = time.perf_counter()
        prepare, clf = COMPARED_METHODS[name](train, setup)
        seconds = time.perf_counter() - started
        variants: dict[str, Callable[[FloatArray, _Rows], Any]] = {name: lambda features, _: clf.predict(features)}
        if name.startswith("crm"):
            trained = copy(clf).set_prior("train")
            variants[name + TRAIN_PRIOR] = lambda features, _: trained.predict(features)
            if setup.known:
                variants[name + KNOWN] = lambda features, rows: clf.predict(features, attributes=rows.codes[:, 1:])
        for rows in tests:
            features = prepare(rows) if len(rows.codes) else None
            for variant, predict in variants.items():
                right = np.zeros(0, dtype=np.bool_) if features is None else predict(features, rows) == rows.codes[:, 0]
                correct.setdefault(variant, []).append(np.asarray(right))
    return _Scored(correct, seconds, not any(issubclass(entry.category, ConvergenceWarning) for entry in caught))


_Fitted = tuple[Callable[[_Rows], FloatArray], Any]
"""Function that turns rows into the features of a fitted classifier, and this classifier."""


def _complete(train: _Rows, setup: _Setup) -> tuple[Callable[[_Rows], FloatArray], FloatArray]:
    """Return a function that turns features into complete, standardised numbers, and those of the training rows."""
    numbers = [column for column, size in enumerate(setup.categories) if not size]
    categorical = [column for column, size in enumerate(setup.categories) if size]
    one_hot = OneHotEncoder(handle_unknown="infrequent_if_exist", max_categories=MAX_ONE_HOT, sparse_output=False)
    scaled = make_pipeline(SimpleImputer(strategy="median", keep_empty_features=True), StandardScaler())
    transform = ColumnTransformer([("numbers", scaled, numbers), ("categories", one_hot, categorical)])
    features = np.asarray(transform.fit_transform(train.features))
    return lambda rows: np.asarray(transform.transform(rows.features)), features


def _fit_logistic(train: _Rows, setup: _Setup, *, balanced: bool) -> _Fitted:
    """Fit logistic regression; ``balanced`` gives every group the same total weight."""
    prepare, features = _complete(train, setup)
    _, group = setup.space.distinct(train.codes)
    weight = 1 / np.bincount(group)[group] if balanced else np.ones(len(group))
    weight *= len(weight) / weight.sum()
    return prepare, LogisticRegression(max_iter=1000).fit(features, train.codes[:, 0], sample_weight=weight)


def _fit_boosting(train: _Rows, setup: _Setup, *, attributes: bool) -> _Fitted:
    """Fit gradient boosting; with ``attributes``, the true attributes are further features."""
    kept = ~np.isnan(train.features).all(axis=0)  # scikit-learn's boosting fails on a column without any value
    sizes = [*np.compress(kept, setup.categories), *(setup.space.cardinalities[1:] if attributes else ())]
    categorical = [column for column, size in enumerate(sizes) if 0 < size <= MAX_BOOSTING_CATEGORIES]

    def prepare(rows: _Rows) -> FloatArray:
        if not sizes:  # a fold can lack the only rows with values
            return np.zeros((len(rows.codes), 1))
        return np.column_stack([rows.features[:, kept], *([rows.codes[:, 1:]] if attributes else [])])

    clf = HistGradientBoostingClassifier(categorical_features=categorical or None, random_state=setup.seed)
    return prepare, clf.fit(prepare(train), train.codes[:, 0])


def _fit_adjusted(train: _Rows, setup: _Setup, *, adjustment: str) -> _Fitted:
    """Fit LC or sLA with the ridge that is most accurate on held-out groups of the training rows.

    If no group can be held out, the ridge is the typical one of ``compshift.crm.ridge``. Of equally accurate ridges,
    the one nearest to the typical one is used.
    """
    prepare, features = _complete(train, setup)
    seen, group = setup.space.distinct(train.codes)
    fold = combination_folds(setup.space, seen, RIDGE_FOLDS, np.random.default_rng(setup.seed))[group]
    typical = typical_alpha(features.shape[1], np.ones(len(features)))

    def fitted(alpha: float, rows: BoolArray) -> Any:
        codes, clf = train.codes[rows], LogitAdjustedClassifier(adjustment, alpha=alpha)
        return clf.fit(features[rows], codes[:, 0], attributes=codes[:, 1:])

    def accuracy(alpha: float) -> float:
        correct = np.zeros(len(group))
        for number in range(int(fold.max()) + 1):
            held = fold == number
            correct[held] = fitted(alpha, ~held).predict(features[held]) == train.codes[held, 0]
        held_out = np.bincount(group, weights=correct)[np.unique(group[fold >= 0])]
        return float((held_out / np.bincount(group)[np.unique(group[fold >= 0])]).mean())

    alpha = typical
    if (fold >= 0).any():
        alpha = max(default_alphas(typical), key=lambda alpha: (accuracy(alpha), -abs(np.log(alpha / typical))))
    return prepare, fitted(alpha, np.ones(len(group), dtype=np.bool_))


def _fit_crm(train: _Rows, setup: _Setup) -> _Fitted:
    """Fit CRM with settings chosen on held-out groups of the training rows."""
    prepare, features = _complete(train, setup)
    clf = CRMClassifierCV(random_state=setup.seed)
    return prepare, clf.fit(features, train.codes[:, 0], attributes=train.codes[:, 1:])


def _fit_boosted_crm(train: _Rows, setup: _Setup) -> _Fitted:
    """Fit CRM with boosted energies."""
    categorical = [column for column, size in enumerate(setup.categories) if size]
    clf = CRMBoostingClassifier(categorical_features=categorical or "from_dtype", random_state=setup.seed, n_jobs=1)
    clf.fit(train.features, train.codes[:, 0], attributes=train.codes[:, 1:])
    return lambda rows: rows.features, clf


BOOSTED = "crm-boosting"
"""Name of the method that needs LightGBM."""

COMPARED_METHODS: dict[str, Callable[[_Rows, _Setup], _Fitted]] = {
    "logistic": partial(_fit_logistic, balanced=False),
    "logistic-balanced": partial(_fit_logistic, balanced=True),
    "boosting": partial(_fit_boosting, attributes=False),
    "boosting-attributes": partial(_fit_boosting, attributes=True),
    "lc": partial(_fit_adjusted, adjustment="lc"),
    "sla": partial(_fit_adjusted, adjustment="sla"),
    "crm": _fit_crm,
    BOOSTED: _fit_boosted_crm,
}
"""Function that fits each method, by name; ``comparison.TITLES`` has their names in words."""
