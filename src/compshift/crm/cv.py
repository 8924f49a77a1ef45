"""CRMClassifier with its settings chosen on held-out combinations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
from sklearn.metrics import get_scorer
from sklearn.model_selection import check_cv

from compshift._checks import check_count, check_fraction, check_positive
from compshift._errors import InputError, check_name
from compshift._progress import CallbackSupportMixin, reported_to_callbacks
from compshift.core.arrays import IntArray
from compshift.core.folds import combination_folds
from compshift.core.groups import GroupSpace
from compshift.core.sparse import SparseRows
from compshift.crm.classifier import CRMClassifier
from compshift.crm.combination_kfold import CombinationKFold
from compshift.crm.expected import EXPECTED_TOL, expected_accuracy, with_gain
from compshift.crm.features import warn_of_unequal_scales
from compshift.crm.fit import (
    ANCHORS,
    CROSS_FIT_FOLDS,
    Setting,
    StandardisedRows,
    check_cross_fit,
    check_offset,
    fit_crm,
    step_one,
    warm_start,
    with_out_of_fold,
)
from compshift.crm.held_out import Scorer
from compshift.crm.inputs import LabelledSamples, check_jobs, restored_on_error, seed_of, visible_log
from compshift.crm.missing_attributes import fit_incomplete
from compshift.crm.model import BIASES, CRMModel, warn_of_unreliable_biases, warn_unless_converged
from compshift.crm.pool_decision import decide_on_pool
from compshift.crm.problem import TRANSFORMS, transformed, transformed_samples
from compshift.crm.selection import SearchSpace, bias_reliability, choose, cv_results
from compshift.crm.unlabelled import fit_unlabelled, pool_out_of_fold, read_pool, record_pool

AUTO = "auto"
"""Value of a parameter that asks for its choice by cross-validation."""


class CRMClassifierCV(CallbackSupportMixin, CRMClassifier):
    """``CRMClassifier`` with its settings chosen by accuracy on held-out combinations.

    Accuracy on seen groups says little about unseen groups: seen groups usually prefer the weakest ridge, whereas
    unseen groups need a ridge ten or a hundred times stronger. So each fold holds out whole groups that lie inside the
    affine hull of the remaining groups, and every alpha is fitted to the remaining groups, warm-started from the fits
    before it. The fewer groups can be held out, the closer alpha stays to a typical value, which follows from the
    numbers of features and samples: p / 2n, at most 0.3. If no group can be held out, as with three of 2 × 2 groups,
    alpha is this value. The chosen setting is then fitted to all samples.

    Parameters
    ----------
    alphas : sequence of floats, optional
        Strengths of the ridge to choose from, all above 0. By default seven alphas from a thirtieth to thirty times
        the typical one; if the best alpha is the smallest or the largest, further ones beyond it are tried.
    cv : int, splitter, iterable or None, default=None
        Folds. An integer, or None for 5, makes a ``CombinationKFold`` seeded by ``random_state``. A scikit-learn
        splitter receives the combination of each sample as ``groups``; an iterable yields indices of training and test
        samples. Each split must hold out at least one whole group, and no group may be held out twice.
    scoring : str or callable, default="accuracy"
        Score on the held-out groups by which alpha is chosen. ``"accuracy"``: mean accuracy over groups; ``"worst"``:
        10 % quantile of the accuracy over groups; in both, a class of which no group can be held out counts by held-out
        samples of its groups. The name of another scikit-learn scorer or a callable ``scorer(estimator, X, y)``: mean
        score over folds.
    confidence : float, default=0.9
        Coverage of the intervals of ``expected_group_accuracy_``.
    prior : "uniform", "hull", "train", array or mapping, default="uniform"
        As in ``CRMClassifier``. Settings are chosen under the same prior, except that ``"hull"`` replaces ``"train"``,
        which would give held-out groups probability 0.
    bias : "auto", "extrapolated", "cumulant", "shrunk" or "learned", default="auto"
        As in ``CRMClassifier``; ``"auto"`` chooses among ``"extrapolated"``, ``"shrunk"`` and ``"cumulant"``. The
        search starts from the plain setting: bias ``"extrapolated"``, anchor ``"zero"``, no cross-fitting. Another
        setting replaces it only if its accuracy is higher by more than two standard errors on held-out groups or on
        held-out samples of seen groups, and not lower on either. Other anchors and cross-fitting are tried only at
        alphas near the best alpha of the plain setting.
    anchor : "auto", "zero" or "gaussian", default="auto"
        As in ``CRMClassifier``; ``"auto"`` chooses between the two by the rule described under ``bias``.
    cross_fit : bool, int or "auto", default=False
        As in ``CRMClassifier``; ``"auto"`` chooses between False and 5 folds by the rule described under ``bias``.
        ``predict_set`` works with any value.
    unseen_offset : float or "auto", default="auto"
        As in ``CRMClassifier``. ``"auto"``: a quarter of the offset at which groups are predicted equally well when
        they are held out and when they are seen, under the prior ``"hull"``.
    feature_transform : "none", "signed_root", "unit_length" or "auto", default="none"
        As in ``CRMClassifier``. ``"auto"`` chooses among the three, by the rule described under ``bias``, after all
        other settings, which are chosen for ``"none"``.
    use_unlabelled : "auto" or "always", default="auto"
        Whether to use the samples passed to ``fit`` as ``unlabelled``. ``"auto"``: only if unseen groups occur among
        them and they raise the accuracy on held-out groups by more than one standard error, without lowering the mean
        over all groups. If no group can be held out, they are not used.
    support : "all", "hull", "observed", or codes of shape (g, m), default="all"
        As in ``CRMClassifier``.
    tol : float, default=1e-6
        As in ``CRMClassifier``, for the final fit.
    max_iter : int, default=1000
        As in ``CRMClassifier``, for every fit.
    n_jobs : int or None, default=None
        Number of processes, with the meaning it has in joblib: None for 1, −1 for all cores.
    random_state : int, RandomState or None, default=0
        Seed that decides which groups share a fold, and which samples of the other groups are held out.
    verbose : bool or int, default=False
        As in ``CRMClassifier``.

    Attributes
    ----------
    alpha_, anchor_, cross_fit_, selected_bias_, unseen_offset_, feature_transform_
        The chosen settings.
    cv_results_ : dict of arrays
        Cross-validation results, one entry per setting (scikit-learn's layout).

        - ``params``: list of dicts; ``param_alpha``, ``param_anchor``, ``param_cross_fit``, ``param_feature_transform``
          and ``param_bias`` hold the same values as arrays.
        - ``mean_test_score``: the score by which alpha is chosen (the 10 % quantile for ``scoring="worst"``);
          ``std_test_score``: its standard deviation over groups, or over folds if ``scoring`` is another scorer;
          ``rank_test_score``: rank by ``mean_test_score``, 1 for the best.
        - ``criterion``: what the choice of alpha minimises: the squared number of standard errors by which
          ``mean_test_score`` is behind the best, plus the squared number of powers of ten between alpha and the typical
          one. Without held-out groups it is the second term alone.
        - ``effective_sample_size``, ``pareto_k``: the lowest effective sample size and the highest Pareto k̂ of B* among
          the unseen groups that the prior gives weight to, in a fit to all samples. They decide nothing, but show at
          which alphas B* can be relied on. NaN for other anchors, cross-fits and transforms than the first.
        - ``unseen_accuracy``: mean accuracy over held-out groups; ``seen_accuracy``: mean accuracy over groups on
          held-out samples while their group stays in training. Both are measured with an offset of 0.
        - ``group_accuracy``, of shape (settings, k): accuracy on each seen group when it is held out; NaN if it never
          is.
    expected_group_accuracy_ : DataFrame
        One row per unseen group inside the affine hull: its attribute values, the expected ``accuracy``, and the ends
        ``lower`` and ``upper`` of the interval. Estimated by holding out seen groups, one at a time if there are at
        most 30 seen groups.
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
        alphas: Sequence[float] | None = None,
        *,
        cv: Any = None,
        scoring: str | Scorer = "accuracy",
        confidence: float = 0.9,
        prior: Any = "uniform",
        bias: str = AUTO,
        anchor: str = AUTO,
        cross_fit: bool | int | str = False,
        unseen_offset: float | str = AUTO,
        feature_transform: str = "none",
        use_unlabelled: str = AUTO,
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
        self.feature_transform = feature_transform
        self.use_unlabelled = use_unlabelled
        self.support = support
        self.tol = tol
        self.max_iter = max_iter
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        attributes: Any = None,
        sample_weight: Any = None,
        space: GroupSpace | None = None,
        unlabelled: Any = None,
    ) -> Self:
        """Choose the settings on held-out combinations, then fit all samples.

        Parameters
        ----------
        X : array, sparse matrix or DataFrame (n, p)
            Features, all finite numbers, as in ``CRMClassifier.fit``; sparse ones exclude the Gaussian anchor.
        y, attributes, sample_weight, space
            As in ``CRMClassifier.fit``.
        unlabelled : array or DataFrame (N, p), optional
            Features of unlabelled samples from the population in which the model will be used, as in
            ``CRMClassifier.fit``. They are used only if this helps on held-out combinations, see ``use_unlabelled``.

        Returns
        -------
        self

        Raises
        ------
        InputError
            If a parameter or the data are invalid; the message says what to change.
        """
        tol, max_iter = self._check_parameters()
        seed, n_jobs = seed_of(self.random_state), check_jobs(self.n_jobs)
        scoring = check_scoring(self.scoring)
        with reported_to_callbacks(self), restored_on_error(self), visible_log(self.verbose):
            raw = self._read(X, y, attributes, sample_weight, space, missing=True)
            self._check_data(raw)
            warn_of_unequal_scales(self, raw.X)
            incomplete = raw.incomplete is not None
            pool = None if unlabelled is None else read_pool(self, unlabelled, incomplete=incomplete)
            fold = self._group_folds(raw, seed)
            search = self._search_space()
            if isinstance(raw.X, SparseRows):
                search = search._replace(anchors=("zero",))
            choice = choose(raw, search, fold, self.prior, scoring, max_iter=max_iter, seed=seed, n_jobs=n_jobs)
            setting, transform = choice.setting, choice.setting.params.feature_transform
            data = transformed_samples(raw, transform)
            if pool is not None:
                others, decide = transformed(pool, transform), None
                if self.use_unlabelled == AUTO:
                    decide = partial(
                        decide_on_pool,
                        data,
                        others,
                        setting,
                        fold,
                        self.prior,
                        max_iter=max_iter,
                        seed=seed,
                        n_jobs=n_jobs,
                    )
                model = fit_unlabelled(data, others, setting.params, decide, tol=tol, max_iter=max_iter)
            else:
                fit_rows = fit_crm if data.incomplete is None else fit_incomplete
                model = fit_rows(data, setting.params, tol=tol, max_iter=max_iter)
            model = self._completed(data, setting, model, max_iter=max_iter, seed=seed, n_jobs=n_jobs)
            if model.pool is not None and model.pool.n_rounds:
                model = pool_out_of_fold(model, data, others, setting.params, max_iter=max_iter)
            model = model.with_transform(transform)
            self.n_missing_ = 0 if data.incomplete is None else len(data.incomplete.X)
            self._adopt(model, setting, data.n_targets, data.one_dimensional)
            warn_unless_converged(model, tol, max_iter)
            warn_of_unreliable_biases(model, setting.params.alpha, setting.bias, self._fit_log_prior)
            self.n_splits_ = int(fold.max()) + 1
            self.cv_results_ = cv_results(choice, bias_reliability(raw, choice.scores.settings, self.prior, max_iter))
            self._use_prior(self.prior)
            if pool is not None:
                self._model = record_pool(self, model, pool)
            self._follow(X)
            return self

    def _check_parameters(self) -> tuple[float, int]:
        """Check the parameters that do not depend on the data; return ``tol`` and ``max_iter``."""
        check_scoring(self.scoring)
        check_fraction(self.confidence, "confidence")
        check_jobs(self.n_jobs)
        check_name("use_unlabelled", self.use_unlabelled, (AUTO, "always"))
        self._check_support()
        if isinstance(self.cv, str | bool | float) or not (
            self.cv is None or isinstance(self.cv, int) or hasattr(self.cv, "split") or hasattr(self.cv, "__iter__")
        ):
            raise InputError(
                f"cv is {self.cv!r}: pass a number of folds, a splitter such as CombinationKFold, or a list of "
                "(training indices, test indices) pairs"
            )
        self._search_space()
        return check_positive(self.tol, "tol"), check_count(self.max_iter, "max_iter")

    def _search_space(self) -> SearchSpace:
        """Check the parameters that accept ``"auto"`` or several values, and return the settings to choose from."""
        alphas: tuple[float, ...] = ()
        if self.alphas is not None:
            if isinstance(self.alphas, str) or not np.ndim(self.alphas) == 1 or not len(self.alphas):
                raise InputError(
                    f"alphas is {self.alphas!r}: pass a non-empty list of positive numbers, or None for the default"
                )
            alphas = tuple(sorted({check_positive(alpha, "alpha", allow_zero=True) for alpha in self.alphas}))
            if alphas[0] == 0:
                raise InputError(
                    "alphas contains 0: without a ridge the weights diverge if the features separate the groups, and "
                    "scores on held-out groups become meaningless; pass numbers above 0, such as 1e-4"
                )
        check_name("bias", self.bias, (*BIASES, AUTO))
        check_name("anchor", self.anchor, (*ANCHORS, AUTO))
        check_name("feature_transform", self.feature_transform, (*TRANSFORMS, AUTO))
        if isinstance(self.cross_fit, str) and self.cross_fit != AUTO:
            raise InputError(f"cross_fit is {self.cross_fit!r}: pass True, False, a number of folds, or 'auto'")
        return SearchSpace(
            alphas,
            ANCHORS if self.anchor == AUTO else (self.anchor,),
            (0, CROSS_FIT_FOLDS) if isinstance(self.cross_fit, str) else (check_cross_fit(self.cross_fit),),
            ("extrapolated", "shrunk", "cumulant") if self.bias == AUTO else (self.bias,),
            None if _is_auto(self.unseen_offset) else check_offset(self.unseen_offset, auto=True),
            TRANSFORMS if self.feature_transform == AUTO else (self.feature_transform,),
        )

    def _group_folds(self, data: LabelledSamples, seed: int) -> IntArray:
        """Return the fold of each seen group, (k,); −1 for groups that are never held out."""
        space, groups = data.candidates.space, data.candidates.seen_groups
        if self.cv is None or isinstance(self.cv, int | CombinationKFold):
            splitter = self.cv
            if not isinstance(splitter, CombinationKFold):
                splitter = CombinationKFold(5 if self.cv is None else self.cv, random_state=seed)
            n_splits, splitter_seed = splitter._check()
            return combination_folds(space, groups, n_splits, np.random.default_rng(splitter_seed))
        fold = np.full(len(groups), -1, dtype=np.int64)
        for number, (train, test) in enumerate(self._splits(data)):
            held = np.setdiff1d(data.position[test], data.position[train])
            if not held.size:
                raise InputError(
                    f"split {number} of cv holds out no whole group: use CombinationKFold, or splits whose test sets "
                    "contain all samples of at least one combination"
                )
            if (fold[held] >= 0).any():
                raise InputError(
                    f"cv holds out {space.label(groups[held[fold[held] >= 0][0]])} in two splits: hold out each "
                    "combination in one split only"
                )
            fold[held] = number
        if fold.max(initial=-1) < 0:
            raise InputError("cv has no splits: pass at least one (training indices, test indices) pair")
        return fold

    def _splits(self, data: LabelledSamples) -> Iterator[tuple[IntArray, IntArray]]:
        """Yield the training and test samples of each split as indices into ``data``.

        ``cv`` is a splitter or an iterable of splits here.
        """
        place = np.arange(len(data.X))
        if not hasattr(self.cv, "split") and data.place is not None:
            place = data.place  # an iterable indexes the rows passed to ``fit``, of which ``data`` may hold only some
        try:
            y = data.candidates.seen_groups[data.position, 0]
            for train, test in check_cv(self.cv).split(data.X, y, data.position):
                train_place, test_place = place[np.asarray(train)], place[np.asarray(test)]
                if train_place.ndim != 1 or test_place.ndim != 1:
                    raise ValueError("indices must have one dimension")
                yield train_place[train_place >= 0], test_place[test_place >= 0]
        except (ValueError, TypeError, IndexError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"cv yields splits that cannot be used ({error}): pass (training indices, test indices) pairs"
            ) from None

    def _completed(
        self, data: LabelledSamples, setting: Setting, model: CRMModel, *, max_iter: int, seed: int, n_jobs: int | None
    ) -> CRMModel:
        """Return the model with out-of-fold energies and the expected accuracy on unseen groups.

        If the fit used unlabelled samples, both are computed for the fit without them. The expected accuracy of the
        model is then that of the fit without them plus their gain on held-out groups; its out-of-fold energies are
        those of ``pool_out_of_fold``.
        """
        use = model.pool
        if use is not None and use.plain is not None:
            plain = self._completed(data, setting, use.plain, max_iter=max_iter, seed=seed, n_jobs=n_jobs)
            assert plain.expected is not None
            found = with_gain(plain.expected, use.decision.gain, use.decision.gain_error, float(self.confidence))
            return replace(model, expected=found, pool=replace(use, plain=plain))
        model = with_out_of_fold(model, data, setting.params, max_iter=max_iter)
        rows = StandardisedRows.of(data.X, data.position, data.sample_weight, data.candidates)
        start = warm_start(model, rows.standard)
        fitted = step_one(rows, setting.params, tol=EXPECTED_TOL, max_iter=max_iter, start=start)
        expected = expected_accuracy(
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
        return replace(model, expected=expected)

    def _bias_and_offset(self) -> tuple[str, float]:
        """Return the kind of bias and the unseen offset used by predictions.

        If a parameter is ``"auto"``, the value chosen by the fit is used; otherwise the parameter itself is used, also
        if it was set after the fit.
        """
        check_name("bias", self.bias, (*BIASES, AUTO))
        bias = self.selected_bias_ if self.bias == AUTO else self.bias
        if _is_auto(self.unseen_offset):
            return bias, self.unseen_offset_
        return bias, check_offset(self.unseen_offset, auto=True)


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == AUTO


def check_scoring(scoring: Any) -> str | Scorer:
    """Check ``scoring``; replace the name of a scikit-learn scorer, other than ``"accuracy"``, by the scorer."""
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
