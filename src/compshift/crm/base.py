"""Base class of all classifiers over groups: candidates, priors, and predictions from log q(z|x)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from compshift._checks import check_codes, check_same_order
from compshift._errors import ExtrapolationWarning, InputError, an, unknown_name
from compshift.core.arrays import (
    ColumnSets,
    FloatArray,
    IntArray,
    exp_less,
    index_like,
    is_other_library,
    namespace,
    row_blocks,
    to_numpy,
)
from compshift.core.candidates import SUPPORTS, Candidates
from compshift.core.columns import named_columns
from compshift.core.groups import GroupSpace
from compshift.crm.features import labels_in_numpy
from compshift.crm.inputs import LabelledSamples, accuracy, is_streamed, read_training
from compshift.crm.known import predict_known

if TYPE_CHECKING:
    from compshift.estimators.prior_estimate import EstimatedPrior

_UNKNOWN: Mapping[str, bool] = MappingProxyType({"attributes": False})
"""Default metadata request of the prediction methods: scikit-learn routes no ``attributes`` to them."""


def check_group_classifier(clf: Any) -> None:
    """Check that ``clf`` is a fitted classifier over groups."""
    if not isinstance(clf, GroupClassifier):
        raise InputError(
            f"clf is {an(type(clf).__name__)}: pass a fitted classifier over groups, for example a CRMClassifier"
        )
    check_is_fitted(clf)


def _numbers_like(values: Any, reference: Any) -> Any:
    """Return labels in the library and on the device of ``reference``; text stays in NumPy, as in scikit-learn."""
    if not is_other_library(reference) or values.dtype.kind not in "biuf":
        return values
    return index_like(values, reference)


class GroupClassifier(ClassifierMixin, BaseEstimator):
    """Base class: predict one or several targets from the probabilities of groups, under any prior over groups.

    The ``fit`` of a subclass calls ``_adopt_candidates`` and ``_use_prior``. A subclass also implements
    ``_block_log_posterior``, or overrides ``_log_posterior_blocks``, or overrides all of ``_target_marginals``,
    ``_group_log_posterior`` and ``_best_group``.
    """

    # The attributes of new samples are usually unknown: scikit-learn routes them to predictions only on request.
    __metadata_request__predict = _UNKNOWN
    __metadata_request__predict_proba = _UNKNOWN
    __metadata_request__predict_log_proba = _UNKNOWN
    __metadata_request__score = _UNKNOWN

    prior: Any
    support: Any
    _any_library = False  # whether predictions are computed in the library of X if scikit-learn dispatches on it

    def _check_support(self) -> None:
        if isinstance(self.support, str) and self.support not in SUPPORTS:
            raise unknown_name("support", self.support, SUPPORTS)

    def _read(
        self,
        X: Any,
        y: Any,
        attributes: Any,
        sample_weight: Any,
        space: GroupSpace | None,
        *,
        missing: bool = False,
        any_library: bool = False,
    ) -> LabelledSamples:
        """Check and read training data. Call only from ``fit``: the ``stacklevel`` of warnings assumes that depth."""
        if y is None:
            raise InputError(
                f"{type(self).__name__} requires y to be passed, but the target y is None: pass a class for each row"
            )
        if is_streamed(X):
            raise InputError(
                f"{type(self).__name__} needs all samples in memory, but X is {an(type(X).__name__)}: use a "
                "CRMClassifier, which reads it in blocks, or pass some of its rows as an array"
            )
        data = read_training(
            self, X, y, attributes, sample_weight, space, self.support, missing=missing, any_library=any_library
        )
        data.candidates.log_prior(self.prior)  # report an unusable prior before the fit, not after it
        return data

    def _adopt_candidates(self, candidates: Candidates, n_targets: int, one_dimensional: bool) -> None:
        """Set the fitted attributes that describe the groups."""
        space = candidates.space
        self._candidates = candidates
        self._one_dimensional = one_dimensional
        self._warned_outside_hull = False
        self.space_ = space
        self.targets_ = GroupSpace(space.names[:n_targets], space.values[:n_targets])
        self.hull_ = candidates.hull
        self.groups_ = candidates.groups
        self.seen_ = candidates.in_seen >= 0
        self.inside_hull_ = candidates.inside_hull
        self.group_weight_ = candidates.weight
        classes = [np.array(values) for values in self.targets_.values]
        self.classes_ = classes[0] if one_dimensional else classes

    def set_prior(self, prior: Any) -> Self:
        """Use another prior for all later predictions, without refitting.

        Parameters
        ----------
        prior : "uniform", "hull", "train", array, mapping or EstimatedPrior
            As in the constructor, for example a mapping from groups or from classes to probabilities, or the result of
            ``estimate_prior``.

        Returns
        -------
        self
        """
        check_is_fitted(self)
        return self._use_prior(prior)

    def estimate_prior(
        self, X: Any, *, sample_weight: Any = None, concentration: float = 2.0, confidence: float = 0.9
    ) -> EstimatedPrior:
        """Estimate the frequency of each group among unlabelled samples, with intervals.

        This is never done by default: if the current prior is already close to the true frequencies, the noise in the
        estimate does more harm than good.

        Parameters
        ----------
        X : array or DataFrame (n, p)
            Features of unlabelled samples from the population in which the model will be used.
        sample_weight : (n,), optional
            Weights of the samples.
        concentration : float, default=2.0
            Concentration of the Dirichlet prior on the frequencies, at least 1: it adds ``concentration − 1``
            pseudo-samples to each group.
        confidence : float, default=0.9
            Coverage of the intervals: the probability that an interval contains the group's frequency.

        Returns
        -------
        EstimatedPrior
            Frequencies with intervals; pass it to ``set_prior`` to use it.
        """
        from compshift.estimators.prior_estimate import estimate_prior

        return estimate_prior(self, X, sample_weight=sample_weight, concentration=concentration, confidence=confidence)

    def _use_prior(self, prior: Any) -> Self:
        """Set the prior, and warn once if it gives groups outside the affine hull a positive probability.

        Call only from public methods: ``stacklevel`` of the warning assumes that depth.
        """
        self.log_prior_ = self._usable_log_prior(prior)
        outside = int(np.count_nonzero(~self.inside_hull_ & (self.log_prior_ > -np.inf)))
        if outside and not self._warned_outside_hull:
            self._warned_outside_hull = True
            warnings.warn(
                f"{outside} of the {len(self.groups_)} candidate groups lie outside the affine hull of the seen "
                'groups: the training data do not determine their probabilities; use prior="hull" to give them '
                "probability 0, or collect samples of more combinations",
                ExtrapolationWarning,
                stacklevel=3,
            )
        return self

    def _usable_log_prior(self, prior: Any) -> FloatArray:
        """Return the log prior of the candidates, (g,). A subclass may raise for a prior that it cannot use."""
        return self._candidates.log_prior(prior)

    def predict(self, X: Any, *, attributes: Any = None) -> Any:
        """Predict the most probable value of each target.

        Parameters
        ----------
        X : array or DataFrame (n, p)
            Features.
        attributes : array (n,) or (n, s), DataFrame or mapping, optional
            Known attributes of the samples, with None or NaN where a value is unknown. An array has a column for each
            attribute of the model that is not a target; a DataFrame or mapping may have only some of them. By default,
            all are unknown.

        Returns
        -------
        array (n,) or (n, t)
            Predicted classes; two-dimensional if ``fit`` was given a ``y`` with several targets.
        """
        marginals = self._known_marginals(X, attributes)
        codes = np.stack([to_numpy(namespace(part).argmax(part, axis=1)) for part in marginals], axis=1)
        predicted = _numbers_like(self.targets_.decode(codes), marginals[0])
        return predicted[:, 0] if self._one_dimensional else predicted

    def predict_proba(self, X: Any, *, attributes: Any = None) -> Any:
        """Return the probability of each class under the current prior.

        Parameters
        ----------
        X : array or DataFrame (n, p)
            Features.
        attributes : array (n,) or (n, s), DataFrame or mapping, optional
            Known attributes of the samples, with None or NaN where a value is unknown. An array has a column for each
            attribute of the model that is not a target; a DataFrame or mapping may have only some of them. By default,
            all are unknown.

        Returns
        -------
        array (n, c), or a list of such arrays
            One column per entry of ``classes_``; a list of one array per target if there are several targets.
        """
        parts = [exp_less(part, 0.0) for part in self._known_marginals(X, attributes)]
        return parts[0] if self._one_dimensional else parts

    def predict_log_proba(self, X: Any, *, attributes: Any = None) -> Any:
        """Return the logarithm of ``predict_proba``, accurate even if a probability underflows to 0.

        Parameters
        ----------
        X : array or DataFrame (n, p)
            Features.
        attributes : array (n,) or (n, s), DataFrame or mapping, optional
            Known attributes of the samples, with None or NaN where a value is unknown. An array has a column for each
            attribute of the model that is not a target; a DataFrame or mapping may have only some of them. By default,
            all are unknown.

        Returns
        -------
        array (n, c), or a list of such arrays
            Log-probabilities in the layout of ``predict_proba``.
        """
        parts = self._known_marginals(X, attributes)
        return parts[0] if self._one_dimensional else parts

    def group_log_proba(self, X: Any, codes: Any = None, *, attributes: Any = None) -> FloatArray:
        """Return log q(z|x) of every candidate group, or of the groups in ``codes``.

        Parameters
        ----------
        X : array or DataFrame (n, p)
            Features.
        codes : int array (q, m), optional
            Codes of the groups, as returned by ``space_.encode``.
        attributes : array (n,) or (n, s), DataFrame or mapping, optional
            Known attributes of the samples, with None or NaN where a value is unknown. An array has a column for each
            attribute of the model that is not a target; a DataFrame or mapping may have only some of them. By default,
            all are unknown.

        Returns
        -------
        array (n, g) or (n, q)
            One column per row of ``groups_`` or of ``codes``; −inf for a row of ``codes`` that is not a candidate.
        """
        check_is_fitted(self)
        position: IntArray | None = None
        if codes is not None:
            codes = check_codes(codes, self.space_.cardinalities)
            position = self.space_.locate(codes, self.groups_)
        (found,) = predict_known(
            self,
            X,
            attributes,
            lambda clf, rows: [clf._group_log_posterior(rows, position)],
            any_library=self._any_library,
        )
        return found  # type: ignore[no-any-return]

    def predict_group(self, X: Any, *, attributes: Any = None) -> Any:
        """Predict the most probable group.

        Parameters
        ----------
        X : array or DataFrame (n, p)
            Features.
        attributes : array (n,) or (n, s), DataFrame or mapping, optional
            Known attributes of the samples, with None or NaN where a value is unknown. An array has a column for each
            attribute of the model that is not a target; a DataFrame or mapping may have only some of them. By default,
            all are unknown.

        Returns
        -------
        array (n, m)
            Value of each target and attribute.
        """
        best, _ = predict_known(
            self, X, attributes, lambda clf, rows: clf._best_group(rows), any_library=self._any_library
        )
        return _numbers_like(self.space_.decode(self.groups_[to_numpy(best)]), best)

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, attributes: Any = None) -> float:
        """Return the accuracy; with several targets, the share of samples with all targets predicted correctly.

        Parameters
        ----------
        X : array or DataFrame (n, p)
            Features.
        y : (n,) or (n, t)
            True classes. A sample whose class is absent from the training data counts as wrong.
        sample_weight : (n,), optional
            Weights of the samples.
        attributes : array (n,) or (n, s), DataFrame or mapping, optional
            Known attributes of the samples, with None or NaN where a value is unknown. An array has a column for each
            attribute of the model that is not a target; a DataFrame or mapping may have only some of them. By default,
            all are unknown.

        Returns
        -------
        float
            Weighted share of correctly predicted samples.
        """
        check_is_fitted(self)
        check_same_order({"X": X, "y": y, "sample_weight": sample_weight})
        names, predicted = self.targets_.names, self.predict(X, attributes=attributes)
        predicted, y, sample_weight = labels_in_numpy(
            X, {"prediction": predicted, "y": y, "sample_weight": sample_weight}
        )
        return accuracy(named_columns(y, names), named_columns(predicted, names), sample_weight)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _known_marginals(self, X: Any, attributes: Any) -> list[FloatArray]:
        """Check features and known attributes, and return log q(z_i|x) of each target, (n, d_i) each."""
        return predict_known(
            self, X, attributes, lambda clf, rows: clf._target_marginals(rows), any_library=self._any_library
        )

    def _target_marginals(self, X: FloatArray) -> list[FloatArray]:
        """Return log q(z_i|x) of each target, (n, d_i) each."""
        results = [np.empty((len(X), size)) for size in self.targets_.cardinalities]
        sets = [
            ColumnSets.of(codes, size) for codes, size in zip(self.groups_.T, self.targets_.cardinalities, strict=False)
        ]
        for rows, log_posterior in self._log_posterior_blocks(X):
            for result, columns in zip(results, sets, strict=True):
                result[rows] = columns.logsumexp(log_posterior)
        return results

    def _group_log_posterior(self, X: FloatArray, position: IntArray | None = None) -> FloatArray:
        """Return log q(z|x) of every candidate (n, g), or of the candidates at ``position`` (n, q).

        A position of −1 marks a group that is not a candidate and gives −inf.
        """
        if position is None:
            position = np.arange(len(self.groups_))
        result = np.empty((len(X), len(position)))
        for rows, log_posterior in self._log_posterior_blocks(X):
            result[rows] = np.where(position < 0, -np.inf, log_posterior[:, position])
        return result

    def _best_group(self, X: FloatArray) -> tuple[IntArray, FloatArray]:
        """Return the position of the most probable candidate of each sample and its log q(z|x), (n,) each."""
        best, log_proba = np.empty(len(X), dtype=np.int64), np.empty(len(X))
        for rows, log_posterior in self._log_posterior_blocks(X):
            best[rows], log_proba[rows] = np.argmax(log_posterior, axis=1), np.max(log_posterior, axis=1)
        return best, log_proba

    def _log_posterior_blocks(self, X: FloatArray) -> Iterator[tuple[slice, FloatArray]]:
        """Yield slices of the samples, each with log q(z|x) of every candidate for these samples."""
        for rows in row_blocks(len(X), X.shape[1] + len(self.groups_)):
            yield rows, self._block_log_posterior(X[rows])

    def _block_log_posterior(self, X: FloatArray) -> FloatArray:
        """Return log q(z|x) of every candidate for a block of samples, (b, g)."""
        raise NotImplementedError
