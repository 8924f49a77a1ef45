"""CRMClassifier with its settings chosen on held-out combinations."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from scipy.stats import rankdata
from sklearn.metrics import get_scorer
from sklearn.model_selection import check_cv

from compshift._checks import check_count, check_fraction, check_positive
from compshift._errors import InputError, check_name
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.candidates import Candidates
from compshift.core.folds import combination_folds
from compshift.core.groups import GroupSpace
from compshift.crm.classifier import CRMClassifier
from compshift.crm.combination_kfold import CombinationKFold
from compshift.crm.expected import EXPECTED_TOL, expected_accuracy
from compshift.crm.fit import (
    ANCHORS,
    CROSS_FIT_FOLDS,
    FitParams,
    Setting,
    StandardisedRows,
    check_cross_fit,
    check_offset,
    fit_crm,
    step_one,
)
from compshift.crm.inputs import LabelledSamples, check_jobs, restored_on_error, seed_of, visible_log
from compshift.crm.model import BIASES, CRMModel
from compshift.crm.partial import fit_partial
from compshift.crm.selection import Choice, Scorer, SearchSpace, balanced_points, choose, combination_scores
from compshift.crm.solver import Start

AUTO = "auto"
"""Value of a parameter that is to be chosen."""

ALPHAS = (1e-3, 3e-3, 1e-2, 2e-2, 5e-2, 1e-1, 3e-1, 1.0)
"""Ridges that are tried unless others are given."""

AUTO_BIASES = ("extrapolated", "shrunk", "cumulant")
"""Kinds of bias that ``bias="auto"`` chooses among."""

N_SPLITS = 5
"""Number of folds of groups, unless another is given."""

RESOLVE_SPLITS = 10
"""Number of folds of groups in ``choose_alpha``."""

FIT_CODES_TOL = 1e-4
"""Tolerance of ``fit_codes``; a tighter one does not change accuracies."""


class CRMClassifierCV(CRMClassifier):
    """``CRMClassifier`` with its settings chosen by accuracy on combinations that were held out.

    Accuracy on seen groups says little about unseen ones: seen ones usually prefer the weakest ridge, unseen ones need
    one ten or a hundred times stronger. So whole groups are held out that lie inside the hull of the others, every
    alpha is fitted without them (each fit warm-started from the previous one), and the best one is fitted to all
    samples.

    Parameters
    ----------
    alphas : sequence of floats, default=(0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.3, 1.0)
        Ridges to choose from, all above 0.
    cv : int, splitter, iterable or None, default=None
        Folds. A number, or None for 5, makes a ``CombinationKFold`` seeded by ``random_state``. A scikit-learn splitter
        is given the combination of each sample as ``groups``; an iterable yields indices of training and test samples.
        Each split must hold out at least one whole group, and no group may be held out twice.
    scoring : str or callable, default="accuracy"
        Score that chooses alpha, on the held-out groups: ``"accuracy"``, its mean over groups; ``"worst"``, its 10 %
        quantile over groups; the name of another scikit-learn scorer, or a callable ``scorer(estimator, X, y)``, whose
        scores are averaged over folds.
    confidence : float, default=0.9
        Coverage of the intervals of ``expected_group_accuracy_``.
    prior : "uniform", "hull", "train", array or mapping, default="uniform"
        As in ``CRMClassifier``. With ``"train"``, which gives held-out groups probability 0, settings are chosen under
        ``"hull"``.
    bias : "auto", "extrapolated", "cumulant", "shrunk" or "learned", default="auto"
        As in ``CRMClassifier``; ``"auto"`` chooses among the first three of those. An alternative to the plain setting
        (``"extrapolated"``, ``"zero"``, no cross-fitting) is taken if it is better by two standard errors on held-out
        groups, or on held-out samples of seen groups, and not worse on the other. It is tried around the plain
        setting's alpha.
    anchor : "auto", "zero" or "gaussian", default="auto"
        As in ``CRMClassifier``; ``"auto"`` chooses, as for ``bias``.
    cross_fit : bool, int or "auto", default=False
        As in ``CRMClassifier``; ``"auto"`` chooses between False and 5 folds, as for ``bias``.
    unseen_offset : float or "auto", default="auto"
        As in ``CRMClassifier``. ``"auto"``: a quarter of the offset that would make groups as accurate when they are
        held out as when they are seen, all groups in the hull being equally likely.
    support : "all", "hull", "observed", or codes of shape (g, m), default="all"
        As in ``CRMClassifier``.
    tol : float, default=1e-6
        As in ``CRMClassifier``, for the final fit.
    max_iter : int, default=1000
        As in ``CRMClassifier``, for every fit.
    n_jobs : int or None, default=None
        Number of processes, as joblib counts them.
    random_state : int, RandomState or None, default=0
        Decides which groups share a fold, and which samples of the other groups are held out.
    verbose : bool or int, default=False
        As in ``CRMClassifier``.

    Attributes
    ----------
    alpha_, anchor_, cross_fit_, selected_bias_, unseen_offset_
        The settings that were chosen.
    cv_results_ : dict of arrays
        Cross-validation results, one entry per setting (scikit-learn's layout): ``params``, a list of dicts, and its
        columns ``param_alpha``, ``param_anchor``, ``param_cross_fit`` and ``param_bias``; ``mean_test_score``, by which
        alpha was chosen (for ``scoring="worst"`` the quantile); ``std_test_score`` over held-out groups or, for other
        scorers, over folds; ``rank_test_score``; ``unseen_accuracy`` and ``seen_accuracy``, means over held-out groups
        and over the groups that stayed, without any offset; ``group_accuracy`` (settings, k), of each seen group when
        it was held out, NaN if it never was.
    expected_group_accuracy_ : DataFrame
        Per unseen group inside the hull: its values, the ``accuracy`` to expect, and the ends of its interval,
        ``lower`` and ``upper``. Estimated from seen groups that were held out, one by one where there are not too many.
    n_splits_ : int
        Number of folds.
    classes_, space_, hull_, groups_, bias_ and others
        As in ``CRMClassifier``.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> z = np.repeat([[0, 1], [1, 0], [1, 1], [0, 2], [1, 2], [2, 0], [2, 1]], 60, axis=0)
    >>> X = rng.normal(size=(len(z), 20))
    >>> X[:, :2] += 3 * z
    >>> clf = CRMClassifierCV(alphas=[1e-3, 1e-1]).fit(X, z[:, 0], attributes=z[:, 1])
    >>> clf.n_splits_, clf.alpha_
    (5, 0.1)
    """

    def __init__(
        self,
        alphas: Sequence[float] = ALPHAS,
        *,
        cv: Any = None,
        scoring: str | Scorer = "accuracy",
        confidence: float = 0.9,
        prior: Any = "uniform",
        bias: str = AUTO,
        anchor: str = AUTO,
        cross_fit: bool | int | str = False,
        unseen_offset: float | str = AUTO,
        support: Any = "all",
        tol: float = 1e-6,
        max_iter: int = 1000,
        n_jobs: int | None = None,
        random_state: Any = 0,
        verbose: bool | int = False,
    ) -> None:
        self.alphas = alphas
        self.cv = cv
        self.scoring = scoring
        self.confidence = confidence
        self.prior = prior
        self.bias = bias
        self.anchor = anchor
        self.cross_fit = cross_fit  # type: ignore[assignment]
        self.unseen_offset = unseen_offset  # type: ignore[assignment]
        self.support = support
        self.tol = tol
        self.max_iter = max_iter
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self, X: Any, y: Any, *, attributes: Any = None, sample_weight: Any = None, space: GroupSpace | None = None
    ) -> Self:
        """Choose the settings on held-out combinations, then fit all samples.

        Parameters
        ----------
        X : array or DataFrame (n, p)
            Features, all finite numbers.
        y, attributes, sample_weight, space
            As in ``CRMClassifier.fit``.

        Returns
        -------
        self

        Raises
        ------
        InputError
            If a parameter or the data cannot be used, or no group can be held out; the message says what to change.
        """
        _, tol, max_iter = self._check_parameters()
        seed, n_jobs = seed_of(self.random_state), check_jobs(self.n_jobs)
        scoring = check_scoring(self.scoring)
        with restored_on_error(self), visible_log(self.verbose):
            data = self._read(X, y, attributes, sample_weight, space, missing=True)
            self._check_incomplete(data)
            fold = self._group_folds(data, seed)
            search = self._search_space()
            choice = choose(data, search, fold, self.prior, scoring, max_iter=max_iter, seed=seed, n_jobs=n_jobs)
            setting = choice.setting
            fit_rows = fit_crm if data.incomplete is None else fit_partial
            model = fit_rows(data, setting.params, tol=tol, max_iter=max_iter)
            expected = self._expected_accuracy(data, setting, model, max_iter=max_iter, seed=seed, n_jobs=n_jobs)
            self.n_missing_ = 0 if data.incomplete is None else len(data.incomplete.X)
            self._adopt(replace(model, expected=expected), setting, data.n_targets, data.one_dimensional)
            self._warn_unless_converged(tol, max_iter)
            self.n_splits_ = int(fold.max()) + 1
            self.cv_results_ = _cv_results(choice)
            return self._use_prior(self.prior)

    def _check_parameters(self) -> tuple[Setting, float, int]:
        """Check the parameters that do not depend on data; return the first setting, ``tol`` and ``max_iter``."""
        check_scoring(self.scoring)
        check_fraction(self.confidence, "confidence")
        check_jobs(self.n_jobs)
        self._check_support()
        if isinstance(self.cv, str | bool | float) or not (
            self.cv is None or isinstance(self.cv, int) or hasattr(self.cv, "split") or hasattr(self.cv, "__iter__")
        ):
            raise InputError(
                f"cv is {self.cv!r}: pass a number of folds, a splitter such as CombinationKFold, or splits"
            )
        return self._search_space().first, check_positive(self.tol, "tol"), check_count(self.max_iter, "max_iter")

    def _search_space(self) -> SearchSpace:
        """Check the parameters that can be chosen, and return their values to choose from."""
        if isinstance(self.alphas, str) or not np.ndim(self.alphas) == 1 or not len(self.alphas):
            raise InputError(f"alphas is {self.alphas!r}: pass a list of positive numbers")
        alphas = tuple(sorted({check_positive(alpha, "alpha", allow_zero=True) for alpha in self.alphas}))
        if alphas[0] == 0:
            raise InputError(
                "alphas has 0: without a ridge the weights have no optimum where features separate groups, and scores "
                "on held-out groups say nothing; pass numbers above 0, such as 1e-4"
            )
        check_name("bias", self.bias, (*BIASES, AUTO))
        check_name("anchor", self.anchor, (*ANCHORS, AUTO))
        if isinstance(self.cross_fit, str) and self.cross_fit != AUTO:
            raise InputError(f"cross_fit is {self.cross_fit!r}: pass True, False, a number of folds, or 'auto'")
        return SearchSpace(
            alphas,
            ANCHORS if self.anchor == AUTO else (self.anchor,),
            (0, CROSS_FIT_FOLDS) if isinstance(self.cross_fit, str) else (check_cross_fit(self.cross_fit),),
            AUTO_BIASES if self.bias == AUTO else (self.bias,),
            None if _is_auto(self.unseen_offset) else check_offset(self.unseen_offset, auto=True),
        )

    def _group_folds(self, data: LabelledSamples, seed: int) -> IntArray:
        """Fold of each seen group, (k,); −1 for groups that are never held out."""
        space, groups = data.candidates.space, data.candidates.seen_groups
        if self.cv is None or isinstance(self.cv, int):
            splitter = CombinationKFold(N_SPLITS if self.cv is None else self.cv, random_state=seed)
            return splitter.group_folds(space, groups)
        if isinstance(self.cv, CombinationKFold):
            return self.cv.group_folds(space, groups)
        fold = np.full(len(groups), -1, dtype=np.int64)
        for number, (train, test) in enumerate(self._splits(data)):
            held = np.setdiff1d(data.position[test], data.position[train])
            if not held.size:
                raise InputError(
                    f"split {number} of cv holds out no whole group: use CombinationKFold, or splits by combination"
                )
            if (fold[held] >= 0).any():
                raise InputError(
                    f"cv holds out {space.label(groups[held[fold[held] >= 0][0]])} twice: hold it out once"
                )
            fold[held] = number
        if fold.max(initial=-1) < 0:
            raise InputError("cv has no splits: pass at least one pair of training and test samples")
        return fold

    def _splits(self, data: LabelledSamples) -> Iterator[tuple[IntArray, IntArray]]:
        """Yield the training and test samples of each split of a splitter or an iterable, as indices into ``data``."""
        place = np.arange(len(data.X))
        if not hasattr(self.cv, "split") and data.place is not None:
            place = data.place  # listed splits count the rows that ``fit`` was given, some of which may be left out
        try:
            y = data.candidates.seen_groups[data.position, 0]
            for train, test in check_cv(self.cv).split(data.X, y, data.position):
                first, second = place[np.asarray(train)], place[np.asarray(test)]
                yield first[first >= 0], second[second >= 0]
        except (ValueError, TypeError, IndexError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"cv gives splits that cannot be used ({error}): pass pairs of indices of training and test samples"
            ) from None

    def _expected_accuracy(
        self, data: LabelledSamples, setting: Setting, model: CRMModel, *, max_iter: int, seed: int, n_jobs: int | None
    ) -> FloatArray:
        """Expected accuracy on unseen groups, and its interval, (g, 3)."""
        rows = StandardisedRows.of(data.X, data.position, data.sample_weight, data.candidates)
        own = data.candidates.space.locate(data.candidates.seen_groups, data.candidates.groups)
        start = Start(
            model.coef * rows.standard.scale / model.temperature, np.where(own >= 0, model.learned_bias[own], 0.0)
        )
        fitted = step_one(rows, setting.params, tol=EXPECTED_TOL, max_iter=max_iter, start=start)
        return expected_accuracy(
            data,
            setting,
            rows,
            fitted,
            model,
            self.prior,
            float(self.confidence),
            max_iter=max_iter,
            seed=seed,
            n_jobs=n_jobs,
        )

    def _bias_and_offset(self) -> tuple[str, float]:
        """Kind of bias and offset of unseen groups that predictions use: those chosen, unless set to another."""
        check_name("bias", self.bias, (*BIASES, AUTO))
        bias = self.selected_bias_ if self.bias == AUTO else self.bias
        if _is_auto(self.unseen_offset):
            return bias, self.unseen_offset_
        return bias, check_offset(self.unseen_offset, auto=True)


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == AUTO


def check_scoring(scoring: Any) -> str | Scorer:
    """Return ``"accuracy"`` and ``"worst"`` as they are, the scorer of another name, or the callable itself."""
    if callable(scoring):
        return scoring  # type: ignore[no-any-return]
    if isinstance(scoring, str) and scoring in ("accuracy", "worst"):
        return scoring
    try:
        if isinstance(scoring, str):
            return get_scorer(scoring)  # type: ignore[no-any-return]
    except ValueError:
        pass
    raise InputError(
        f"scoring is {scoring!r}: pass 'accuracy', 'worst', the name of a scikit-learn scorer, or a callable "
        "scorer(estimator, X, y)"
    )


def _cv_results(choice: Choice) -> dict[str, Any]:
    """Cross-validation results, one entry per setting (scikit-learn's ``cv_results_`` layout)."""
    scores = choice.scores
    params = [{**setting.params._asdict(), "bias": setting.bias} for setting in scores.settings]
    return {
        **{f"param_{name}": np.array([own[name] for own in params]) for name in params[0]},
        "params": params,
        "mean_test_score": choice.points,
        "std_test_score": scores.test_scores.std(axis=1),
        "rank_test_score": rankdata(-choice.points, method="min").astype(np.int32),
        "unseen_accuracy": _known_means(scores.unseen),
        "seen_accuracy": _known_means(scores.seen),
        "group_accuracy": scores.unseen,
    }


def _known_means(values: FloatArray) -> FloatArray:
    """Mean of each row over the entries that are not NaN, (n,); NaN for a row without any."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):  # 0 / 0 is NaN, as intended
        return np.asarray(np.where(known, values, 0.0).sum(axis=1) / known.sum(axis=1))


def choose_alpha(
    X: FloatArray, codes: IntArray, space: GroupSpace, alphas: Sequence[float], rng: np.random.Generator
) -> float:
    """Return the alpha with the best lower accuracy of two: on held-out groups, and on held-out samples of the others.

    Where no group can be held out samples alone decide; where no sample can be either, the middle alpha is returned.
    """
    groups, position = space.distinct(codes)
    candidates = Candidates.of(space, groups, np.bincount(position).astype(np.float64), "all")
    data = LabelledSamples(X, position, np.ones(len(X)), candidates, n_targets=1, one_dimensional=True)
    fold = combination_folds(space, groups, RESOLVE_SPLITS, rng)
    path = [FitParams(alpha) for alpha in alphas]
    seed = int(rng.integers(2**31))
    scores = combination_scores(data, fold, path, ["extrapolated"], "hull", max_iter=1000, seed=seed)
    if np.isnan(scores.unseen).all() and np.isnan(scores.seen).all():
        return sorted(alphas)[len(alphas) // 2]
    return scores.settings[int(np.argmax(balanced_points(scores)))].params.alpha


def fit_codes(
    X: FloatArray,
    codes: IntArray,
    space: GroupSpace,
    alpha: float,
    sample_weight: FloatArray | None = None,
    tol: float = FIT_CODES_TOL,
    prior: str = "hull",
) -> CRMClassifier:
    """Fit a classifier of the first attribute to samples with codes (n, m), without warnings."""
    plain = GroupSpace.from_cardinalities(space.cardinalities)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an attribute may have one value left, when few groups are kept
        return CRMClassifier(alpha=alpha, prior=prior, tol=tol).fit(
            X,
            codes[:, 0],
            attributes=codes[:, 1:] if codes.shape[1] > 1 else None,
            sample_weight=sample_weight,
            space=GroupSpace(("y", *plain.names[1:]), plain.values),
        )
