"""Logistic regression whose logits are offset by known amounts, as something to minimise.

ERM, LC and sLA on fixed features, as a scikit-learn classifier: convex, solved to its optimum, without PyTorch.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from compshift._checks import check_count, check_positive, check_reach, check_same_order, check_sample_weight
from compshift._errors import InputError, check_name
from compshift.core.arrays import FloatArray, IntArray, log_softmax, logsumexp
from compshift.core.candidates import adjustment_offset, correction_offset
from compshift.core.columns import read_columns
from compshift.core.groups import GroupSpace
from compshift.crm.inputs import (
    Labels,
    accuracy,
    known_features,
    read_labels,
    training_features,
    unchanged_if_refused,
    visible_log,
)
from compshift.crm.problem import softmax_curvature, standardise
from compshift.crm.solver import RiskGradient, solve


class LogitProblem(NamedTuple):
    r"""Logits are features · weightᵀ + bias + offset of the row's attribute.

    .. math:: \sum_x \omega_x \left(\log \sum_y e^{z_y(x)} - z_{y_x}(x)\right) + \tfrac\alpha2 \lVert W \rVert^2
    """

    features: FloatArray  # (n, p) standardised
    classes: IntArray  # (n,)
    attribute: IntArray  # (n,)
    offset: FloatArray  # (a, c)
    sample_weight: FloatArray  # (n,) summing to 1
    frequency: FloatArray  # (c,) of the classes
    alpha: float
    spread: float = 1.0  # of the features, about

    @property
    def coarse(self) -> None:
        """There is none."""

    @property
    def curvature(self) -> FloatArray:
        """About that along the weights of each class, (c,)."""
        return softmax_curvature(self.frequency, self.spread, self.alpha)

    @property
    def shape(self) -> tuple[int, int]:
        """Of the weights."""
        return len(self.frequency), self.features.shape[1]

    def evaluate(self, weight: FloatArray, bias: FloatArray) -> RiskGradient:
        """Penalised risk and gradient."""
        logits = self.features @ weight.T + bias + self.offset[self.attribute]  # (n, c)
        log_total = logsumexp(logits, axis=1)  # (n,)
        rows = np.arange(len(logits))
        risk = float(self.sample_weight @ (log_total - logits[rows, self.classes]))
        gradient = np.exp(logits - log_total[:, None])  # (n, c)
        gradient[rows, self.classes] -= 1
        gradient *= self.sample_weight[:, None]
        value = risk + 0.5 * self.alpha * float(np.vdot(weight, weight))
        return RiskGradient(value, self.alpha * weight + gradient.T @ self.features, gradient.sum(axis=0))


ADJUSTMENTS = ("none", "lc", "sla")


MOST = 1e12
"""Of parameters; with more the data would not matter."""


class LogitAdjustedClassifier(ClassifierMixin, BaseEstimator):
    """Logistic regression whose logits are adjusted, in training only, for how class and attributes occur together.

    The baselines of CRM: ``"none"`` is empirical risk minimisation, ``"lc"`` adds ``log(p̂(y, a) + ε)`` (Liu et al.,
    2022), ``"sla"`` adds ``τ log p̂(y | a)`` with smoothed counts (Tsirigotis et al., 2024). Several attributes count as
    one, each combination that occurs being a value. With the attribute known, ``log p̂(a)`` cancels, so that LC and sLA
    differ only in combinations that training lacks.

    Parameters
    ----------
    adjustment : "none", "lc" or "sla", default="sla"
    alpha : float, default=1e-2
        Strength of the ridge penalty, free of the features' unit, as in ``CRMClassifier``.
    epsilon : float, default=1e-8
        Of LC.
    tau : float, default=1.0
        Of sLA.
    smoothing : float, default=1.0
        Of sLA: what is added to every count.
    tol : float, default=1e-6
        Largest gradient entry at which the fit counts as converged, as in ``CRMClassifier``.
    max_iter : int, default=1000
    verbose : bool or int, default=False

    Attributes
    ----------
    classes_ : array (c,)
    coef_ : array (c, p)
        Logits are ``X @ coef_.T + intercept_``.
    intercept_ : array (c,)
    converged_ : bool
    n_iter_ : int

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> z = np.repeat([[0, 0], [0, 1], [1, 0], [1, 1]], [400, 20, 20, 400], axis=0)
    >>> X = rng.normal(size=z.shape) + 2 * z
    >>> rare = z[:, 0] != z[:, 1]
    >>> for adjustment in ("none", "lc", "sla"):
    ...     clf = LogitAdjustedClassifier(adjustment).fit(X, z[:, 0], attributes=z[:, 1])
    ...     print(adjustment, round(clf.score(X[rare], z[rare, 0]), 2))
    none 0.55
    lc 0.93
    sla 0.93
    """

    def __init__(
        self,
        adjustment: str = "sla",
        *,
        alpha: float = 1e-2,
        epsilon: float = 1e-8,
        tau: float = 1.0,
        smoothing: float = 1.0,
        tol: float = 1e-6,
        max_iter: int = 1000,
        verbose: bool | int = False,
    ) -> None:
        self.adjustment = adjustment
        self.alpha = alpha
        self.epsilon = epsilon
        self.tau = tau
        self.smoothing = smoothing
        self.tol = tol
        self.max_iter = max_iter
        self.verbose = verbose

    def fit(self, X: Any, y: Any, *, attributes: Any = None, sample_weight: Any = None) -> Self:
        """Fit the logits; ``attributes`` (n,) or (n, s) are known in training only, and not needed without adjustment.

        ``sample_weight`` enters the risk and the frequencies alike: a weight of 2 is the row twice.
        """
        check_name("adjustment", self.adjustment, ADJUSTMENTS)
        alpha = check_positive(self.alpha, "alpha", allow_zero=True)
        tol, max_iter = check_positive(self.tol, "tol"), check_count(self.max_iter, "max_iter")
        if y is None:
            raise InputError(
                "LogitAdjustedClassifier requires y to be passed, but the target y is None: pass the class of each row"
            )
        check_same_order({"X": X, "y": y, "attributes": attributes, "sample_weight": sample_weight})
        with unchanged_if_refused(self), visible_log(self.verbose):
            X = training_features(self, X)
            weight = check_sample_weight(sample_weight, len(X))
            keep = weight > 0
            labels = read_labels(y, attributes, None, keep)
            if labels.n_targets != 1:
                raise InputError(f"y has {labels.n_targets} columns: pass one target, (n,)")
            X, weight = X[keep], weight[keep]
            attribute = _attribute_of(labels)
            counts = np.zeros((labels.space.cardinalities[0], int(attribute.max()) + 1))
            np.add.at(counts, (labels.codes[:, 0], attribute), weight)
            features, standard = standardise(X, weight)
            total = weight.sum()
            problem = LogitProblem(
                features=features,
                classes=labels.codes[:, 0],
                attribute=attribute,
                offset=self._offset(counts).T,
                sample_weight=weight / total,
                frequency=counts.sum(axis=1) / total,
                alpha=alpha,
                spread=standard.spread,
            )
            solution = solve(problem, tol=tol, max_iter=max_iter)
            if not solution.converged:
                warnings.warn(
                    f"the fit stopped after {solution.n_iter} iterations at a gradient of {solution.gradient:.1e} (tol "
                    f"{tol:g}): raise max_iter (now {max_iter}) or alpha, or loosen tol",
                    ConvergenceWarning,
                    stacklevel=2,
                )
            self.coef_ = solution.weight / standard.scale
            self.intercept_ = solution.bias - self.coef_ @ standard.mean
            self.classes_ = np.array(labels.space.values[0])
            self.converged_ = solution.converged
            self.n_iter_ = solution.n_iter
            return self

    def _offset(self, counts: FloatArray) -> FloatArray:
        """Offset (c, a) of the chosen adjustment."""
        if self.adjustment == "lc":
            return correction_offset(counts, check_positive(self.epsilon, "epsilon", most=MOST))
        if self.adjustment == "sla":
            tau = check_positive(self.tau, "tau", allow_zero=True, most=MOST)
            return adjustment_offset(counts, tau, check_positive(self.smoothing, "smoothing", most=MOST))
        return np.zeros_like(counts)

    def decision_function(self, X: Any) -> FloatArray:
        """Logits, (n, c); with two classes their difference, (n,)."""
        logits = self._logits(X)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def predict(self, X: Any) -> Any:
        """Most probable class, (n,)."""
        best = np.argmax(self._logits(X), axis=1)
        return self.classes_[best]

    def predict_proba(self, X: Any) -> FloatArray:
        """Probability of each class, (n, c), as if class and attributes were independent, if adjusted."""
        return np.exp(self.predict_log_proba(X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy; a row of a class that training lacked is wrong."""
        check_is_fitted(self)
        check_same_order({"X": X, "y": y, "sample_weight": sample_weight})
        return accuracy(read_columns(y, default="y"), read_columns(self.predict(X), default="y"), sample_weight)

    def predict_log_proba(self, X: Any) -> FloatArray:
        """Logarithm of ``predict_proba``."""
        logits = self._logits(X)
        return np.asarray(log_softmax(logits))

    def _logits(self, X: Any) -> FloatArray:
        X = known_features(self, X)
        with np.errstate(over="ignore", invalid="ignore"):  # told of in the next line
            return np.asarray(check_reach(X @ self.coef_.T + self.intercept_, "logits"))


def _attribute_of(labels: Labels) -> Any:
    """Which of the attribute combinations that occur each row has, (n,); 0 if there are no attributes."""
    if labels.codes.shape[1] == 1:
        return np.zeros(len(labels.codes), dtype=np.int64)
    others = GroupSpace(labels.space.names[1:], labels.space.values[1:])
    return others.distinct(labels.codes[:, 1:])[1]
