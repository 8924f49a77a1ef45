"""LogitAdjustedClassifier: the baselines ERM, LC and sLA on fixed features, as a convex problem without PyTorch.

``LogitProblem`` is that problem, a ridge logistic regression with known offsets. ``infer_attributes`` and the test for
interactions in ``diagnose`` use it too.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from compshift._checks import check_count, check_no_overflow, check_positive, check_same_order, check_sample_weight
from compshift._errors import InputError, check_name
from compshift.core.arrays import FloatArray, IntArray, log_softmax, logsumexp
from compshift.core.candidates import adjustment_offset, correction_offset
from compshift.core.columns import read_columns
from compshift.core.groups import GroupSpace
from compshift.core.sparse import Features
from compshift.crm.features import prediction_features, training_features
from compshift.crm.inputs import Labels, accuracy, read_labels, restored_on_error, visible_log
from compshift.crm.problem import softmax_curvature, standardise
from compshift.crm.solver import RiskGradient, solve

MAX_ADJUSTMENT = 1e12
"""Largest ``epsilon``, ``tau`` and ``smoothing``; with larger ones the data would have no influence."""


class LogitProblem(NamedTuple):
    r"""Ridge logistic regression with known offsets, a ``Problem`` for ``compshift.crm.solver.solve``.

    .. math:: \sum_x \omega_x \left(\log \sum_y e^{z_y(x)} - z_{y_x}(x)\right) + \tfrac\alpha2 \lVert W \rVert^2

    The logits are z(x) = U W x + b + offset of the row's attribute. U are ``codes``, by default the identity.
    """

    features: Features  # (n, p) standardised
    classes: IntArray  # (n,)
    attribute: IntArray  # (n,) index of each row's attribute combination, a row of ``offset``
    offset: FloatArray  # (a, c) known offset of each class's logit, by attribute combination
    sample_weight: FloatArray  # (n,) summing to 1
    frequency: FloatArray  # (c,) share of each class
    alpha: float
    spread: float = 1.0  # unevenness of the features' variance over directions, see ``Standard.spread``
    codes: FloatArray | None = None  # (c, d) if the weights of a class are sums of d shared weight vectors

    @property
    def single_precision(self) -> None:
        """Always None: this problem has no single-precision version."""

    @property
    def curvature(self) -> FloatArray:
        """Approximate curvature along each row of the weights, (d,)."""
        frequency = self.frequency if self.codes is None else self.frequency @ self.codes
        return softmax_curvature(frequency, self.spread, self.alpha)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the weight matrix, (d, p); d is the number of classes c without ``codes``."""
        return (self.offset if self.codes is None else self.codes).shape[1], self.features.shape[1]

    def evaluate(self, weight: FloatArray, bias: FloatArray) -> RiskGradient:
        """Return the penalised risk and its gradient."""
        class_weight = weight if self.codes is None else self.codes @ weight  # (c, p)
        logits = self.features @ class_weight.T + bias + self.offset[self.attribute]  # (n, c)
        log_total = logsumexp(logits, axis=1)  # (n,)
        rows = np.arange(len(logits))
        risk = float(self.sample_weight @ (log_total - logits[rows, self.classes]))
        residual = np.exp(logits - log_total[:, None])  # (n, c)
        residual[rows, self.classes] -= 1
        residual *= self.sample_weight[:, None]
        gradient = residual.T @ self.features  # (c, p)
        if self.codes is not None:
            gradient = self.codes.T @ gradient  # (d, p)
        value = risk + 0.5 * self.alpha * float(np.vdot(weight, weight))
        return RiskGradient(value, self.alpha * weight + gradient, residual.sum(axis=0))


class LogitAdjustedClassifier(ClassifierMixin, BaseEstimator):
    """Logistic regression whose logits are adjusted in training for how often class and attributes occur together.

    Its variants are baselines for CRM: ``"none"`` is empirical risk minimisation, ``"lc"`` adds ``log(p̂(y, a) + ε)``
    (Liu et al., 2022), ``"sla"`` adds ``τ log p̂(y | a)`` with smoothed counts (Tsirigotis et al., 2024). Several
    attributes count as one whose values are the combinations that occur. Given the attribute, ``log p̂(a)`` cancels, so
    LC and sLA with τ = 1 differ only by ε and the smoothing, which matter most for combinations absent from the
    training data. Predictions use the features alone: attributes that are known in use would not change them.

    Parameters
    ----------
    adjustment : "none", "lc" or "sla", default="sla"
        Adjustment that is added to the logits in training.
    alpha : float, default=1e-2
        Strength of the ridge penalty, independent of the units of the features, as in ``CRMClassifier``.
    epsilon : float, default=1e-8
        ε of LC.
    tau : float, default=1.0
        τ of sLA.
    smoothing : float, default=1.0
        Number that sLA adds to the count of every combination of class and attributes.
    tol : float, default=1e-6
        Largest gradient entry at which the fit counts as converged, as in ``CRMClassifier``.
    max_iter : int, default=1000
        Maximum number of iterations.
    verbose : bool or int, default=False
        Whether to log progress.

    Attributes
    ----------
    classes_ : array (c,)
        The classes, sorted.
    coef_ : array (c, p)
        Weights; logits are ``X @ coef_.T + intercept_``.
    intercept_ : array (c,)
        Intercepts of the logits.
    converged_ : bool
        Whether the fit converged.
    n_iter_ : int
        Number of iterations.

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
        """Fit the logits.

        Parameters
        ----------
        X : array, sparse matrix or DataFrame (n, p)
            Features, all finite numbers.
        y : array (n,)
            Class of each row.
        attributes : array (n,) or (n, s), optional
            Nuisance attributes, needed in training only; ``adjustment="none"`` ignores them.
        sample_weight : array (n,), optional
            Weights of the rows, in the risk and in the frequencies; a weight of 2 gives the same fit as the row twice.

        Returns
        -------
        LogitAdjustedClassifier
            The fitted classifier itself.

        Raises
        ------
        InputError
            If a parameter or the data cannot be used.
        """
        check_name("adjustment", self.adjustment, ("none", "lc", "sla"))
        alpha = check_positive(self.alpha, "alpha", allow_zero=True)
        tol, max_iter = check_positive(self.tol, "tol"), check_count(self.max_iter, "max_iter")
        if y is None:
            raise InputError(
                "LogitAdjustedClassifier requires y to be passed, but the target y is None: pass the class of each row"
            )
        check_same_order({"X": X, "y": y, "attributes": attributes, "sample_weight": sample_weight})
        with restored_on_error(self), visible_log(self.verbose):
            X = training_features(self, X)
            weight = check_sample_weight(sample_weight, len(X))
            keep = weight > 0
            labels = read_labels(y, attributes, None, keep)
            if labels.n_targets != 1:
                raise InputError(f"y has {labels.n_targets} columns: pass one target, (n,)")
            X, weight = X[keep], weight[keep]
            attribute = _combination_index(labels)
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
        """Return the offset (c, a) of the chosen adjustment."""
        if self.adjustment == "lc":
            return correction_offset(counts, check_positive(self.epsilon, "epsilon", most=MAX_ADJUSTMENT))
        if self.adjustment == "sla":
            tau = check_positive(self.tau, "tau", allow_zero=True, most=MAX_ADJUSTMENT)
            return adjustment_offset(counts, tau, check_positive(self.smoothing, "smoothing", most=MAX_ADJUSTMENT))
        return np.zeros_like(counts)

    def decision_function(self, X: Any) -> FloatArray:
        """Return the logits.

        Parameters
        ----------
        X : array or DataFrame (n, p)
            Features.

        Returns
        -------
        array (n, c), or (n,)
            Logits of the classes; with two classes, that of the second minus that of the first.
        """
        logits = self._logits(X)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def predict(self, X: Any) -> Any:
        """Return the most probable class.

        Parameters
        ----------
        X : array or DataFrame (n, p)
            Features.

        Returns
        -------
        array (n,)
            One of ``classes_`` for each row.
        """
        best = np.argmax(self._logits(X), axis=1)
        return self.classes_[best]

    def predict_proba(self, X: Any) -> FloatArray:
        """Return the probability of each class.

        With ``"lc"``, and with ``"sla"`` and τ = 1, these are the probabilities if all classes were equally frequent
        within every combination of attributes, apart from the effect of ε and of smoothing.

        Parameters
        ----------
        X : array or DataFrame (n, p)
            Features.

        Returns
        -------
        array (n, c)
            Probabilities in the order of ``classes_``.
        """
        return np.exp(self.predict_log_proba(X))

    def predict_log_proba(self, X: Any) -> FloatArray:
        """Return the logarithm of ``predict_proba``.

        Parameters
        ----------
        X : array or DataFrame (n, p)
            Features.

        Returns
        -------
        array (n, c)
            Log-probabilities in the order of ``classes_``.
        """
        logits = self._logits(X)
        return np.asarray(log_softmax(logits))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy. A row whose class was not seen in training counts as wrong.

        Parameters
        ----------
        X : array or DataFrame (n, p)
            Features.
        y : array (n,)
            True classes.
        sample_weight : array (n,), optional
            Weights of the rows.

        Returns
        -------
        float
            Weighted share of correct predictions.
        """
        check_is_fitted(self)
        check_same_order({"X": X, "y": y, "sample_weight": sample_weight})
        return accuracy(read_columns(y, default="y"), read_columns(self.predict(X), default="y"), sample_weight)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _logits(self, X: Any) -> FloatArray:
        X = prediction_features(self, X)
        with np.errstate(over="ignore", invalid="ignore"):  # check_no_overflow reports it
            return np.asarray(check_no_overflow(X @ self.coef_.T + self.intercept_, "logits"))


def _combination_index(labels: Labels) -> IntArray:
    """Return the index of each row's combination of the attributes other than the class, (n,); 0 if there are none."""
    if labels.codes.shape[1] == 1:
        return np.zeros(len(labels.codes), dtype=np.int64)
    others = GroupSpace(labels.space.names[1:], labels.space.values[1:])
    return others.distinct(labels.codes[:, 1:])[1]
