"""Choosing the ridge by accuracy on combinations that were held out, not on those that were fitted.

CRMClassifier with its ridge chosen on combinations that were held out.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from compshift._checks import check_fraction, check_positive
from compshift._errors import InputError
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.candidates import Candidates
from compshift.core.folds import combination_folds
from compshift.core.groups import GroupSpace
from compshift.crm.base import Labelled
from compshift.crm.classifier import CRMClassifier, CRMFitter
from compshift.crm.combination_kfold import CombinationKFold
from compshift.crm.expected import EXPECTED_TOL, expected_accuracy
from compshift.crm.fit import FitParams, StandardisedRows, step_one
from compshift.crm.inputs import check_jobs, seed_of, unchanged_if_refused, visible_log
from compshift.crm.selection import Choice, Options, Setting, balanced_points, check_scoring, choose, combination_scores
from compshift.crm.solver import Start

RESOLVE_TOL = 1e-4
"""Of a fit: beyond it no accuracy changes."""

N_SPLITS = 10
"""Folds of groups."""


def choose_alpha(
    X: FloatArray, codes: IntArray, space: GroupSpace, alphas: Sequence[float], rng: np.random.Generator
) -> float:
    """The alpha whose worse accuracy, on held-out groups or on held-out rows of the others, is best.

    Where no group can be held out, rows alone decide; where no row can be either, it is the middle one.
    """
    groups, position = space.distinct(codes)
    candidates = Candidates.of(space, groups, np.bincount(position).astype(np.float64), "all")
    data = Labelled(X, position, np.ones(len(X)), candidates, n_targets=1, one_dimensional=True)
    fold = combination_folds(space, groups, N_SPLITS, rng)
    recipes = [FitParams(alpha) for alpha in alphas]
    seed = int(rng.integers(2**31))
    scores = combination_scores(data, fold, recipes, ["extrapolated"], "hull", max_iter=1000, seed=seed)
    if np.isnan(scores.unseen).all() and np.isnan(scores.seen).all():
        return sorted(alphas)[len(alphas) // 2]
    return scores.settings[int(np.argmax(balanced_points(scores)))].recipe.alpha


def fit_codes(
    X: FloatArray,
    codes: IntArray,
    space: GroupSpace,
    alpha: float,
    sample_weight: FloatArray | None = None,
    tol: float = RESOLVE_TOL,
    prior: str = "hull",
) -> CRMClassifier:
    """A classifier of the first attribute, fitted to codes (n, m); usually it counts on groups inside the hull."""
    plain = GroupSpace.from_cardinalities(space.cardinalities)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # attributes with one value left, when few groups are kept
        return CRMClassifier(alpha=alpha, prior=prior, tol=tol).fit(
            X,
            codes[:, 0],
            attributes=codes[:, 1:] if codes.shape[1] > 1 else None,
            sample_weight=sample_weight,
            space=GroupSpace(("y", *plain.names[1:]), plain.values),
        )


ALPHAS = (1e-3, 3e-3, 1e-2, 2e-2, 5e-2, 1e-1, 3e-1, 1.0)
"""Ridges that are tried unless others are given."""


class CRMClassifierCV(CRMFitter):
    """``CRMClassifier`` whose ``alpha`` is chosen by accuracy on combinations that were held out.

    Accuracy on groups that training has says little about others: there the weakest ridge usually wins, on unseen
    groups one ten or a hundred times stronger. So whole groups are held out that the others determine, every
    alpha is fitted without them (each fit starting where the last ended), and the best one is fitted again to all rows.

    Parameters
    ----------
    alphas : sequence of floats, default=(0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.3, 1.0)
        Ridges to choose from, all above 0.
    cv : int, CombinationKFold or None, default=None
        Folds of groups; a number stands for ``CombinationKFold(number)`` with a seed from ``random_state``, None for 5.
    scoring : "mean", "worst" or float, default="mean"
        What alpha is chosen by: the mean accuracy over held-out groups, or a quantile of it (``"worst"`` means 0.1).
    confidence : float, default=0.8
        Of the intervals of ``expected_group_accuracy_``.
    prior, support, tol, max_iter, verbose
        As in ``CRMClassifier``. With ``prior="train"``, which gives held-out groups no chance, alpha is chosen under
        ``"hull"``.
    bias, anchor, cross_fit
        As in ``CRMClassifier``, and each may be ``"auto"``. An alternative to the plain way (``"extrapolated"``,
        ``"zero"``, False) is taken if it is better by two standard errors on held-out groups, or on held-out rows of
        seen ones, and not worse on the other. It is tried at the plain way's alpha and about it.
    unseen_offset : float or "auto", default="auto"
        As in ``CRMClassifier``. ``"auto"``: a quarter of what would make groups as accurate when they are held out as
        when they are seen, all groups in the hull being as likely.
    n_jobs : int or None, default=None
        Processes, as joblib counts them.
    random_state : int, RandomState or None, default=0
        Which groups share a fold, and which rows of the others are held out.

    Attributes
    ----------
    alpha_, anchor_, cross_fit_, chosen_bias_, unseen_offset_
        What was chosen.
    cv_results_ : dict of arrays
        Per setting: ``alpha``, ``anchor``, ``cross_fit``, ``bias``; ``points``, which alpha was chosen by;
        ``unseen_accuracy`` and ``seen_accuracy``, means over held-out groups and over the groups that stayed (without
        any offset);
        ``group_accuracy`` (settings, k), of each seen group when it was held out, NaN if it never was.
    expected_group_accuracy_ : DataFrame
        Per group that training lacks and the seen ones determine: its values, the ``accuracy`` to expect on it, and
        the ends of its interval, ``lower`` and ``upper``. From seen groups that were held out, one by one where there
        are not too many; see ``compshift.crm.expected``.
    n_splits_ : int
        Folds there were.
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
        scoring: str | float = "mean",
        confidence: float = 0.8,
        prior: Any = "uniform",
        bias: str = "auto",
        anchor: str = "auto",
        cross_fit: bool | int | str = False,
        unseen_offset: float | str = "auto",
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
        self.cross_fit = cross_fit
        self.unseen_offset = unseen_offset
        self.support = support
        self.tol = tol
        self.max_iter = max_iter
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self, X: Any, y: Any, *, attributes: Any = None, sample_weight: Any = None, space: GroupSpace | None = None
    ) -> Self:
        """Choose by held-out combinations, then fit all rows; the parameters are as in ``CRMClassifier.fit``."""
        options, tol, max_iter = self.check_parameters()
        with unchanged_if_refused(self), visible_log(self.verbose):
            data = self._read(X, y, attributes, sample_weight, space)
            seed = seed_of(self.random_state)
            fold = self._splitter(seed).group_folds(data.candidates.space, data.candidates.seen_groups)
            choice = choose(
                data,
                options,
                fold,
                self.prior,
                check_scoring(self.scoring),
                max_iter=max_iter,
                seed=seed,
                n_jobs=check_jobs(self.n_jobs),
            )
            self._fit_setting(data, choice.setting, tol, max_iter)
            self._expect(data, choice.setting, max_iter, seed)
            self.n_splits_ = int(fold.max()) + 1
            self.cv_results_ = _results(choice)
            return self._use_prior(self.prior)

    def _expect(self, data: Labelled, setting: Setting, max_iter: int, seed: int) -> None:
        """Predict the accuracy on groups that training lacks."""
        rows = StandardisedRows.of(data.X, data.position, data.sample_weight, data.candidates)
        own = data.candidates.space.locate(data.candidates.seen_groups, self.groups_)
        start = Start(
            self.coef_ * rows.standard.scale / self.temperature_, np.where(own >= 0, self.learned_bias_[own], 0.0)
        )
        fitted = step_one(rows, setting.recipe, tol=EXPECTED_TOL, max_iter=max_iter, start=start)
        expected = expected_accuracy(
            data,
            setting,
            rows,
            fitted,
            self._model,
            self.prior,
            float(self.confidence),
            max_iter=max_iter,
            seed=seed,
            n_jobs=check_jobs(self.n_jobs),
        )
        self._model = replace(self._model, expected=expected)

    def check_parameters(self) -> tuple[Options, float, int]:
        """Refuse parameters that no data can be fitted with; what there is to choose, ``tol`` and ``max_iter``."""
        check_scoring(self.scoring)
        check_fraction(self.confidence, "confidence")
        check_jobs(self.n_jobs)
        self._splitter()
        if isinstance(self.alphas, str) or not np.ndim(self.alphas) == 1 or not len(self.alphas):
            raise InputError(f"alphas is {self.alphas!r}: pass a list of positive numbers")
        alphas = tuple(sorted({check_positive(alpha, "alpha", allow_zero=True) for alpha in self.alphas}))
        if alphas[0] == 0:
            raise InputError(
                "alphas has 0: without a ridge the weights have no optimum where features tell groups apart, and what "
                "held-out groups score says nothing; pass numbers above 0, such as 1e-4"
            )
        return self._check_options(alphas)

    def _splitter(self, seed: int = 0) -> CombinationKFold:
        if isinstance(self.cv, CombinationKFold):
            return self.cv
        if self.cv is None or (isinstance(self.cv, int) and not isinstance(self.cv, bool)):
            return CombinationKFold(5 if self.cv is None else self.cv, random_state=seed)
        raise InputError(f"cv is {self.cv!r}: pass a number of folds, or a CombinationKFold")


def _results(choice: Choice) -> dict[str, Any]:
    """What each setting scored, as columns."""
    settings, scores = choice.scores.settings, choice.scores
    return {
        "alpha": np.array([setting.recipe.alpha for setting in settings]),
        "anchor": np.array([setting.recipe.anchor for setting in settings]),
        "cross_fit": np.array([setting.recipe.cross_fit for setting in settings]),
        "bias": np.array([setting.bias for setting in settings]),
        "points": choice.points,
        "unseen_accuracy": _known_means(scores.unseen),
        "seen_accuracy": _known_means(scores.seen),
        "group_accuracy": scores.unseen,
    }


def _known_means(values: FloatArray) -> FloatArray:
    """Mean of each row's numbers, (n,); NaN for a row that has none."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):  # 0 / 0 is NaN, as it should be
        return np.asarray(np.where(known, values, 0.0).sum(axis=1) / known.sum(axis=1))
