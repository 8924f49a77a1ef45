r"""Why a group was predicted: the terms of the log-odds between it and a rival group.

With s(z) = log q(z) − B(z), the log-odds of the most probable group z against a rival z' are a sum of one term per
attribute, one for the bias and one for the prior,

.. math::

    \log \frac{\hat q(z|x)}{\hat q(z'|x)} = \sum_i \left(E_i(x, z'_i) - E_i(x, z_i)\right)
    + \left(B(z') - B(z)\right) + \log \frac{q(z)}{q(z')}

and the term of an attribute with linear energies is a sum of one contribution per feature,
:math:`\sum_j (W_{z'_i j} - W_{z_i j}) (x_j - \bar x_j)`. Nothing is approximated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from compshift._checks import check_count
from compshift._errors import InputError, listing, shown
from compshift.core.arrays import BoolArray, FloatArray, IntArray, row_blocks
from compshift.core.columns import plain_value
from compshift.core.groups import GroupSpace
from compshift.core.posterior import group_log_posterior
from compshift.core.sparse import Features, SparseRows
from compshift.crm.known import predict_known
from compshift.crm.linear_columns import LinearColumns
from compshift.crm.model import CRMModel

if TYPE_CHECKING:
    import pandas as pd

    from compshift.crm.fitted import FittedCRM

MAX_SHOWN = 3
"""Maximum number of samples that the text of an explanation shows."""

MAX_DENSE_CELLS = 1 << 26
"""Largest number of sparse features (samples × features) that are made dense to compute their contributions."""

SHOWN_FEATURES = 3
"""Number of features that the text of an explanation shows for each attribute."""


@dataclass(frozen=True, eq=False)
class Explanation:
    """Most probable groups of samples, and the terms of their log-odds against rival groups; ``explain`` returns it.

    All terms are in nats. Positive ones speak for the predicted group, negative ones for its rival. Each row of
    ``energies`` plus ``bias`` plus ``prior`` is ``log_odds``. ``str(explanation)`` shows the first samples.

    Parameters
    ----------
    space : GroupSpace
        The targets and the attributes, with their values.
    groups : array (n, m)
        Codes of the most probable group of each sample.
    rivals : array (n, m)
        Codes of the rival groups; −1 if no group with another class has a positive probability.
    probability : array (n,)
        Probability of the most probable group.
    seen : array (n,)
        Whether the group was seen in training.
    inside_hull : array (n,)
        Whether the group is inside the affine hull.
    effective_sample_size : array (n,)
        Effective sample size behind the bias of the group.
    energies : array (n, m)
        Energy of the rival's value minus energy of the group's value, of each attribute; 0 if both are the same. NaN,
        as in ``bias`` and ``prior``, if there is no rival.
    bias : array (n,)
        Bias of the rival minus bias of the group, and the unseen offset, if there is one.
    prior : array (n,)
        Difference of the log priors; infinite if the rival has probability 0.
    feature_names : sequence of str (p,)
        Names of the features: x0, x1, … if the classifier was fitted to an array.
    """

    space: GroupSpace
    groups: IntArray
    rivals: IntArray
    probability: FloatArray
    seen: BoolArray
    inside_hull: BoolArray
    effective_sample_size: FloatArray
    energies: FloatArray
    bias: FloatArray
    prior: FloatArray
    feature_names: Sequence[str]
    _model: CRMModel
    _X: Features  # (n, p) checked features
    _categories: Sequence[tuple[Any, ...] | None] | None  # values of categorical columns, which X has as numbers
    _index: Any  # row labels (n,), or None

    @property
    def log_odds(self) -> FloatArray:
        """Log-odds of the most probable group against its rival, (n,); NaN if there is no rival."""
        return np.asarray(self.energies.sum(axis=1) + self.bias + self.prior)

    def __len__(self) -> int:
        return len(self.groups)

    def to_frame(self) -> pd.DataFrame:
        """Return the explanation as a table.

        Returns
        -------
        DataFrame
            One row per sample: the attribute values of its most probable group, the group's ``probability``, whether it
            was ``seen`` in training, whether it is ``inside_hull``, and the ``effective_sample_size`` of its bias; then
            the values of the rival group (``rival bird``), the ``log_odds``, and their terms (``energy bird``, …,
            ``bias``, ``prior``). The index is that of ``X`` if ``X`` was a DataFrame.
        """
        names = self.space.names
        rivals = {f"rival {name}": self._rival_values(number) for number, name in enumerate(names)}
        energies = {f"energy {name}": self.energies[:, number] for number, name in enumerate(names)}
        frame = self.space.frame(
            self.groups,
            probability=self.probability,
            seen=self.seen,
            inside_hull=self.inside_hull,
            effective_sample_size=self.effective_sample_size,
            **rivals,
            log_odds=self.log_odds,
            **energies,
            bias=self.bias,
            prior=self.prior,
        )
        return frame if self._index is None else frame.set_axis(self._index)

    def to_records(self) -> list[dict[str, Any]]:
        """Return the explanation as numbers, text and lists that JSON can hold.

        Returns
        -------
        list of dict
            For each sample its ``group``, ``probability``, ``seen``, ``inside_hull``, ``effective_sample_size``,
            ``rival``, ``log_odds``, ``energies`` by attribute, ``bias``, ``prior`` and ``main_features``. None stands
            for numbers that are unknown or infinite, and for the rival or the features if there are none.
        """

        def listed(values: Any) -> list[float | None]:
            return [float(value) if np.isfinite(value) else None for value in values]

        def labels(codes: IntArray) -> list[dict[str, Any] | None]:
            return [
                None
                if code[0] < 0
                else {
                    name: plain_value(values[position])
                    for name, values, position in zip(self.space.names, self.space.values, code, strict=True)
                }
                for code in codes
            ]

        features = self.main_features()
        columns: dict[str, Sequence[Any]] = {
            "group": labels(self.groups),
            "probability": listed(self.probability),
            "seen": self.seen.tolist(),
            "inside_hull": self.inside_hull.tolist(),
            "effective_sample_size": listed(self.effective_sample_size),
            "rival": labels(self.rivals),
            "log_odds": listed(self.log_odds),
            "energies": [dict(zip(self.space.names, listed(row), strict=True)) for row in self.energies],
            "bias": listed(self.bias),
            "prior": listed(self.prior),
            "main_features": [None] * len(self) if features is None else features,
        }
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def features(self, top: int | None = 5) -> pd.DataFrame:
        """Return how much each feature contributes to the energy terms; linear energies only.

        Parameters
        ----------
        top : int or None, default=5
            Number of features per sample and attribute, those with the largest absolute contributions. None returns
            all: their contributions then add up to the attribute's column of ``energies``.

        Returns
        -------
        DataFrame
            Columns ``attribute``, ``feature``, ``value`` (as in ``X``) and ``contribution``, the difference of the
            weights times the centred feature. An attribute in which a group and its rival agree has no rows. The index
            has the sample.

        Raises
        ------
        InputError
            If the energies are sums of trees: a model file keeps no sample counts of their nodes, from which
            contributions of features would follow.
        """
        import pandas as pd

        n_features = self._X.shape[1]
        n_shown = n_features if top is None else min(check_count(top, "top"), n_features)
        parts = []
        for attribute, name in enumerate(self.space.names):
            rows = np.flatnonzero((self.rivals[:, attribute] >= 0) & (self.energies[:, attribute] != 0))
            found = self._contributions(attribute, rows)  # (r, p)
            order = np.argsort(-np.abs(found), axis=1, kind="stable")[:, :n_shown]
            columns = {
                "attribute": name,
                "feature": np.array(self.feature_names, dtype=object)[order].ravel(),
                "value": self._values(rows, order),
                "contribution": np.take_along_axis(found, order, axis=1).ravel(),
            }
            parts.append(pd.DataFrame(columns, index=np.repeat(rows, n_shown)))
        frame = pd.concat(parts).sort_index(kind="stable")
        return frame if self._index is None else frame.set_axis(self._index[frame.index])

    def main_features(self, top: int = SHOWN_FEATURES) -> list[str] | None:
        """Return the features that matter most to the log-odds of each sample, as text.

        Parameters
        ----------
        top : int, default=3
            Number of features.

        Returns
        -------
        list of str, or None
            One text per sample, such as ``"x3 +1.20, x7 −0.41"``, with the contributions of the features to all energy
            terms together; None if the energies are not linear.
        """
        if not self._is_linear:
            return None
        found: list[str] = []
        for block in row_blocks(len(self), self._X.shape[1], MAX_DENSE_CELLS // 8):
            rows = np.arange(len(self))[block]
            total = sum(self._contributions(attribute, rows) for attribute in range(len(self.space.names)))
            found += [_listed(self.feature_names, row, check_count(top, "top")) for row in np.asarray(total)]
        return found

    def __str__(self) -> str:
        lines = [f"{len(self)} prediction{'s' * (len(self) != 1)}, with the terms of the log-odds in nats"]
        for row in range(min(len(self), MAX_SHOWN)):
            lines += ["", *self._row_lines(row)]
        if len(self) > MAX_SHOWN:
            lines += ["", f"… and {len(self) - MAX_SHOWN} more: to_frame() has all of them"]
        return "\n".join(lines)

    __repr__ = __str__

    def _row_lines(self, row: int) -> list[str]:
        """Return the lines of text that explain one sample."""
        label = row if self._index is None else self._index[row]
        head = f"row {label}: {self.space.label(self.groups[row])}, probability {self.probability[row]:.3f}"
        if self.rivals[row, 0] < 0:
            return [head, "  no group with another class has a positive probability"]
        head += f", log-odds {_signed(self.log_odds[row])} against {self.space.label(self.rivals[row])}"
        state = "seen in training" if self.seen[row] else "not seen in training"
        state += "" if self.inside_hull[row] else ", outside the hull"
        terms = [
            (name, self._contrast(row, number), self.energies[row, number], self._row_features(row, number))
            for number, name in enumerate(self.space.names)
        ]
        terms += [("bias", "", self.bias[row], ""), ("prior", "", self.prior[row], "")]
        widths = [max(len(name) for name, *_ in terms), max(len(contrast) for _, contrast, *_ in terms)]
        lines = [head, f"  {state}; the bias rests on {self.effective_sample_size[row]:.0f} samples"]
        for name, contrast, value, features in terms:
            line = f"  {name:{widths[0]}}  {contrast:{widths[1]}}  {_signed(value):>8}  {features}"
            lines.append(line.rstrip())
        return lines

    def _contrast(self, row: int, attribute: int) -> str:
        values = self.space.values[attribute]
        own, other = self.groups[row, attribute], self.rivals[row, attribute]
        return f"both {values[own]}" if own == other else f"{values[own]}, not {values[other]}"

    def _row_features(self, row: int, attribute: int) -> str:
        if not self._is_linear or self.groups[row, attribute] == self.rivals[row, attribute]:
            return ""
        (found,) = self._contributions(attribute, np.array([row]))
        return _listed(self.feature_names, found, SHOWN_FEATURES)

    def _rival_values(self, attribute: int) -> Any:
        """Return the rival's value of an attribute, (n,); None where there is no rival."""
        values, codes = self.space.values[attribute], self.rivals[:, attribute]
        found = np.array(values)[codes]
        if (codes < 0).any():
            found = found.astype(object)
            found[codes < 0] = None
        return found

    @property
    def _is_linear(self) -> bool:
        return isinstance(self._model.basis, LinearColumns | None)

    def _contributions(self, attribute: int, rows: IntArray) -> FloatArray:
        """Return the contribution of each feature to the energy term of an attribute, (r, p); 0 without a rival."""
        if not self._is_linear:
            raise InputError(
                "the energies are sums of trees, of which contributions of features are not computed, because a model "
                "keeps no sample counts of their nodes: use to_frame() for the term of each attribute, or fit "
                "energies='linear'"
            )
        model, start = self._model, self.space.offsets[attribute]
        own, other = self.groups[rows, attribute], self.rivals[rows, attribute]
        other = np.where(other < 0, own, other)
        centred = model.energy_features(self._dense(rows)) - model.feature_mean  # (r, q)
        found = (model.coef[start + other] - model.coef[start + own]) * centred  # (r, q)
        if not isinstance(model.basis, LinearColumns):
            return np.asarray(found)
        totals = np.zeros((self._X.shape[1], len(rows)))
        np.add.at(totals, model.basis.column, found.T)
        return np.asarray(totals.T)

    def _dense(self, rows: IntArray) -> FloatArray:
        """Return the features of some samples, (r, p), as a dense array."""
        if not isinstance(self._X, SparseRows):
            return np.asarray(self._X[rows])
        if len(rows) * self._X.shape[1] > MAX_DENSE_CELLS:
            raise InputError(
                f"contributions of {self._X.shape[1]} sparse features in {len(rows)} samples do not fit into memory: "
                "explain fewer samples, or use to_frame() for the term of each attribute"
            )
        return np.asarray(self._X[rows].matrix.toarray())

    def _values(self, rows: IntArray, order: IntArray) -> Any:
        """Return the values, in X, of the features (r, k) listed in ``order``, for the samples ``rows``, (r · k,)."""
        values = np.take_along_axis(self._dense(rows), order, axis=1)
        found = values if self._categories is None else values.astype(object)
        for column, categories in enumerate(self._categories or ()):
            if categories is not None:
                known = (order == column) & ~np.isnan(values)
                found[known] = [categories[int(code)] for code in values[known]]
        return found.ravel()


def explain(clf: FittedCRM, X: Any, attributes: Any, rival: Any) -> Explanation:
    """Explain the most probable group of each sample, against the rival that ``FittedCRM.explain`` describes."""
    check_is_fitted(clf)
    fixed = None if isinstance(rival, str) else _position(clf, rival)
    if fixed is None and rival not in ("class", "group"):
        raise InputError(
            f"rival is {rival!r}: pass 'class' (the most probable group with another class), 'group' (the second most "
            "probable group) or the attribute values of one group"
        )
    kind = np.arange(len(clf.groups_))
    if rival == "class" and fixed is None:
        _, kind = clf.targets_.distinct(clf.groups_[:, : len(clf.targets_.names)])

    def contrast(part: FittedCRM, rows: FloatArray) -> tuple[Any, ...]:
        return *_contrast(part, rows, kind, fixed), rows

    best, log_proba, second, energies, prior, features = predict_known(clf, X, attributes, contrast)
    groups, missing = clf.groups_, second < 0
    kind_of_bias, offset = clf._bias_and_offset()
    score = offset * ~clf.seen_ - clf._model.bias_of(kind_of_bias)  # (g,)
    names = getattr(clf, "feature_names_in_", [f"x{number}" for number in range(features.shape[1])])
    columns = getattr(clf, "_columns", None)
    return Explanation(
        space=clf.space_,
        groups=groups[best],
        rivals=np.where(missing[:, None], -1, groups[second]),
        probability=np.exp(log_proba),
        seen=clf.seen_[best],
        inside_hull=clf.inside_hull_[best],
        effective_sample_size=clf._model.effective_sample_size[best],
        energies=energies,
        bias=np.where(missing, np.nan, score[best] - score[second]),
        prior=prior,
        _model=clf._model,
        _X=features,
        feature_names=[str(name) for name in names],
        _categories=None if columns is None else columns.categories,
        _index=X.index if hasattr(X, "iloc") and hasattr(X, "columns") else None,
    )


def _contrast(clf: FittedCRM, X: FloatArray, kind: IntArray, fixed: int | None) -> tuple[Any, ...]:
    """Return the position of the best group of each sample, its log q(z|x), and the position of its rival, (n,) each.

    Two more arrays are the terms of the energies (n, m) and of the prior (n,). The rival is the candidate at ``fixed``
    or, if that is None, the most probable one whose entry in ``kind`` (g,) differs from that of the best group; −1 if
    there is none.
    """
    model, log_score = clf._model, clf._log_score()
    n, m = len(X), len(clf.space_.names)
    best, second = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    log_proba, terms, prior = np.empty(n), np.empty((n, m)), np.empty(n)

    def fill(rows: slice, energies: FloatArray) -> None:
        posterior = group_log_posterior(energies, model.candidates.table, log_score)  # (b, g)
        every, top = np.arange(len(posterior)), posterior.argmax(axis=1)
        best[rows], log_proba[rows] = top, posterior[every, top]
        rival = np.full(len(top), fixed)
        if fixed is None:
            rest = np.where(kind == kind[top][:, None], -np.inf, posterior)
            rival = rest.argmax(axis=1)
            rival = np.where(rest[every, rival] == -np.inf, -1, rival)
        second[rows] = rival
        columns = clf.groups_ + clf.space_.offsets  # (g, m) columns of the energies
        difference = energies[every[:, None], columns[rival]] - energies[every[:, None], columns[top]]
        terms[rows] = np.where(rival[:, None] < 0, np.nan, difference)
        prior[rows] = np.where(rival < 0, np.nan, clf.log_prior_[top] - clf.log_prior_[rival])

    model._fill_blocks(X, 2 * len(clf.groups_), fill)
    return best, log_proba, second, terms, prior


def _position(clf: FittedCRM, values: Any) -> int:
    """Return the position among the candidates of a group given by its attribute values."""
    if not isinstance(values, Sequence | np.ndarray) or len(values) != len(clf.space_.names):
        raise InputError(
            f"rival is {shown(values)}: pass 'class', 'group' or one value for each of {listing(clf.space_.names)}"
        )
    code = clf.space_._encode_keys([tuple(values)], "rival")
    position = int(clf.space_.locate(code, clf.groups_)[0])
    if position < 0:
        raise InputError(f"rival is {clf.space_.label(code[0])}, which is not a candidate: pass one of clf.groups_")
    return position


def _listed(names: Sequence[str], contributions: FloatArray, top: int) -> str:
    """Return the features with the largest absolute contributions as text."""
    order = np.argsort(-np.abs(contributions), kind="stable")[:top]
    return ", ".join(f"{names[column]} {_signed(contributions[column])}" for column in order if contributions[column])


def _signed(value: float) -> str:
    """Format a number with its sign and two decimals."""
    return f"{value:+.2f}".replace("-", "−").replace("−0.00", "0.00").replace("+0.00", "0.00")
