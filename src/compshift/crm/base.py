"""What every classifier over groups shares: candidates, priors, and predictions from log q(z|x)."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from compshift._checks import check_codes, check_same_order, check_sample_weight
from compshift._errors import ExtrapolationWarning, InputError, an, unknown_name
from compshift.core.arrays import ColumnSets, FloatArray, IntArray, row_blocks
from compshift.core.candidates import SUPPORTS, Candidates
from compshift.core.columns import named_columns
from compshift.core.groups import GroupSpace
from compshift.core.posterior import Pattern, known_patterns
from compshift.crm.inputs import accuracy, known_features, read_labels, training_features
from compshift.crm.streams import is_dask
from compshift.data.feature_store import FeatureStore

if TYPE_CHECKING:
    from compshift.estimators.prior_estimate import EstimatedPrior


class Incomplete(NamedTuple):
    """Training rows of which some attributes are missing."""

    X: FloatArray  # (i, p)
    sample_weight: FloatArray  # (i,) all above 0
    patterns: tuple[Pattern, ...]


class Labelled(NamedTuple):
    """Training rows as arrays, and what is asked of them."""

    X: FloatArray  # (n, p)
    position: IntArray  # (n,) seen group
    sample_weight: FloatArray  # (n,) all above 0
    candidates: Candidates
    n_targets: int
    one_dimensional: bool  # whether there is one target, so that predictions are (n,)
    incomplete: Incomplete | None = None  # further rows, if there are any with missing attributes


def check_group_classifier(clf: Any) -> None:
    """Refuse what is not a fitted classifier over groups."""
    if not isinstance(clf, GroupClassifier):
        raise InputError(
            f"clf is {an(type(clf).__name__)}: pass a fitted classifier over groups, for example a CRMClassifier"
        )
    check_is_fitted(clf)


class GroupClassifier(ClassifierMixin, BaseEstimator):
    """Classifier of one or several targets by the probabilities of groups, under any prior."""

    prior: Any
    support: Any

    def _check_support(self) -> None:
        if isinstance(self.support, str) and self.support not in SUPPORTS:
            raise unknown_name("support", self.support, SUPPORTS)

    def _takes_missing(self) -> bool:
        """Whether attributes may be missing in some rows."""
        return False

    def _check_incomplete(self) -> None:
        """Refuse parameters that cannot be used where attributes are missing; called if some are."""

    def _read(self, X: Any, y: Any, attributes: Any, sample_weight: Any, space: GroupSpace | None) -> Labelled:
        """Training data, checked; called by ``fit`` itself, which warnings point past."""
        if y is None:
            raise InputError(
                f"{type(self).__name__} requires y to be passed, but the target y is None: pass the class of each row"
            )
        if isinstance(X, FeatureStore) or is_dask(X):
            raise InputError(
                f"{type(self).__name__} needs all rows in memory: fit a CRMClassifier to {an(type(X).__name__)}, or "
                "pass an array of a sample of its rows"
            )
        check_same_order({"X": X, "y": y, "attributes": attributes, "sample_weight": sample_weight})
        X = training_features(self, X)
        weight = check_sample_weight(sample_weight, len(X))
        keep = weight > 0
        labels = read_labels(y, attributes, space, keep, stacklevel=4, missing=self._takes_missing())
        if not keep.all():
            X, weight = X[keep], weight[keep]
        complete = (labels.codes >= 0).all(axis=1)
        seen_groups, position = labels.space.distinct(labels.codes[complete])
        incomplete = None
        if not complete.all():
            self._check_incomplete()
            patterns = known_patterns(labels.space, seen_groups, labels.codes[~complete])
            incomplete = Incomplete(X[~complete], weight[~complete], patterns)
            X, weight = X[complete], weight[complete]
        seen_weight = np.bincount(position, weights=weight).astype(np.float64)  # (k,)
        candidates = Candidates.of(labels.space, seen_groups, seen_weight, self.support)
        candidates.log_prior(self.prior)  # a prior that cannot be used is refused before the work, not after
        return Labelled(X, position, weight, candidates, labels.n_targets, labels.one_dimensional, incomplete)

    def _adopt_candidates(self, candidates: Candidates, n_targets: int, one_dimensional: bool) -> None:
        """Take over which groups there are."""
        space = candidates.space
        self._candidates = candidates
        self._one_dimensional = one_dimensional
        self._outside_announced = False
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
        """Predict under another prior from now on, without another fit.

        ``prior`` is as in the constructor, or what ``estimate_prior`` returned.
        """
        check_is_fitted(self)
        return self._use_prior(prior)

    def estimate_prior(
        self, X: Any, *, sample_weight: Any = None, concentration: float = 2.0, confidence: float = 0.9
    ) -> EstimatedPrior:
        """How frequent each group is among unlabelled inputs, with intervals; ``set_prior`` takes the result.

        Never a default: where groups were about as frequent as the prior in force says, the noise in the estimate cost
        more than it gained. The parameters are those of ``compshift.estimators.prior_estimate.estimate_prior``.
        """
        from compshift.estimators.prior_estimate import estimate_prior

        return estimate_prior(self, X, sample_weight=sample_weight, concentration=concentration, confidence=confidence)

    def _use_prior(self, prior: Any) -> Self:
        """Set the prior, and say once if it counts on groups outside the hull; called by public methods themselves."""
        self.log_prior_ = self._usable_log_prior(prior)
        outside = int(np.count_nonzero(~self.inside_hull_ & (self.log_prior_ > -np.inf)))
        if outside and not self._outside_announced:
            self._outside_announced = True
            warnings.warn(
                f"{outside} of the {len(self.groups_)} candidate groups lie outside the affine hull of the seen ones: "
                'the training data do not determine their probabilities; use prior="hull" to leave them out, or '
                "collect more combinations",
                ExtrapolationWarning,
                stacklevel=3,
            )
        return self

    def _usable_log_prior(self, prior: Any) -> FloatArray:
        """Log prior of the candidates, (g,)."""
        return self._candidates.log_prior(prior)

    def predict(self, X: Any) -> Any:
        """Most probable value of each target, (n,) or (n, t)."""
        marginals = self._target_marginals(known_features(self, X))
        codes = np.stack([np.argmax(part, axis=1) for part in marginals], axis=1)
        predicted = self.targets_.decode(codes)
        return predicted[:, 0] if self._one_dimensional else predicted

    def predict_proba(self, X: Any) -> Any:
        """Probability of each value of the target, (n, c); a list of such arrays if y had two dimensions."""
        parts = [np.exp(part, out=part) for part in self._target_marginals(known_features(self, X))]
        return parts[0] if self._one_dimensional else parts

    def predict_log_proba(self, X: Any) -> Any:
        """Logarithm of ``predict_proba``, exact where the probability is too small for a float."""
        parts = self._target_marginals(known_features(self, X))
        return parts[0] if self._one_dimensional else parts

    def group_log_proba(self, X: Any, codes: Any = None) -> FloatArray:
        """Log q(z|x) of every candidate group in the order of ``groups_``, (n, g), or of the listed groups, (n, q).

        A listed group that is no candidate has probability 0, hence −inf.
        """
        X = known_features(self, X)
        if codes is None:
            return self._joint(X)
        codes = check_codes(codes, self.space_.cardinalities)
        return self._joint(X, self.space_.locate(codes, self.groups_))

    def predict_group(self, X: Any) -> Any:
        """Most probable group, as the value of each target and attribute, (n, m)."""
        best, _ = self._best_group(known_features(self, X))
        return self.space_.decode(self.groups_[best])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy; with several targets, the share of rows on which every target is right.

        A row of a class that training lacked is wrong.
        """
        check_is_fitted(self)
        check_same_order({"X": X, "y": y, "sample_weight": sample_weight})
        names = self.targets_.names
        return accuracy(named_columns(y, names), named_columns(self.predict(X), names), sample_weight)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _target_marginals(self, X: FloatArray) -> list[FloatArray]:
        """Log q(z_i|x) of each target, (n, d_i) each."""
        results = [np.empty((len(X), size)) for size in self.targets_.cardinalities]
        sets = [
            ColumnSets.of(codes, size) for codes, size in zip(self.groups_.T, self.targets_.cardinalities, strict=False)
        ]
        for rows, joint in self._joint_blocks(X):
            for result, own in zip(results, sets, strict=True):
                result[rows] = own.logsumexp(joint)
        return results

    def _joint(self, X: FloatArray, position: IntArray | None = None) -> FloatArray:
        """Log q(z|x) of the candidates (n, g), or of those at ``position`` (n, q), −1 standing for any other group."""
        if position is None:
            position = np.arange(len(self.groups_))
        result = np.empty((len(X), len(position)))
        for rows, joint in self._joint_blocks(X):
            result[rows] = np.where(position < 0, -np.inf, joint[:, position])
        return result

    def _best_group(self, X: FloatArray) -> tuple[IntArray, FloatArray]:
        """Position of the most probable candidate and its log q(z|x), (n,) each."""
        best, log_proba = np.empty(len(X), dtype=np.int64), np.empty(len(X))
        for rows, joint in self._joint_blocks(X):
            best[rows], log_proba[rows] = np.argmax(joint, axis=1), np.max(joint, axis=1)
        return best, log_proba

    def _joint_blocks(self, X: FloatArray) -> Any:
        """Blocks of rows with log q(z|x) of every candidate."""
        for rows in row_blocks(len(X), X.shape[1] + len(self.groups_)):
            yield rows, self._log_joint(X[rows])

    def _log_joint(self, X: FloatArray) -> FloatArray:
        """Log q(z|x) of every candidate for a block of rows, (n, g). A subclass has this, or the three above."""
        raise NotImplementedError
