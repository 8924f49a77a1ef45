"""Comparison: the result of ``compare``, as a table and as sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from compshift.core.arrays import BoolArray, FloatArray, IntArray
from compshift.crm.selection import mean_and_error

if TYPE_CHECKING:
    import pandas as pd

MIN_WORST_GROUP_ROWS = 10
"""Smallest number of rows of a group that counts for the worst group; smaller groups are often the worst by chance."""

STATED_ERRORS = 2.0
"""Number of standard errors above which a difference counts as clear."""

KNOWN = "-known"
"""Suffix of the name of a CRM method that is given the true attributes of the samples that it predicts."""

TRAIN_PRIOR = "-train-prior"
"""Suffix of the name of a CRM method under the training prior; only the sentences, not the table, report it."""

TITLES = {
    "logistic": "logistic regression",
    "logistic-balanced": "group-balanced logistic regression",
    "boosting": "gradient boosting",
    "boosting-attributes": "gradient boosting with known attributes",
    "lc": "LC",
    "sla": "sLA",
    "crm": "CRM",
    "crm-boosting": "boosted CRM",
}
"""Names of the methods in words."""

HEADINGS = {
    "average": "average",
    "balanced": "groups",
    "worst": "worst",
    "unseen": "unseen",
    "unseen_error": "±",
    "seen": "seen",
    "worst_unseen": "worst unseen",
    "seconds": "seconds",
}
"""Headings of the printed table, by column of ``frame``."""


class MethodOutcome(NamedTuple):
    """Correctness of a method's predictions, on test rows and on rows of held-out groups."""

    test: BoolArray  # (n,) for test rows
    held_out: FloatArray  # (n,) for training rows, by the fit without their group: 1 or 0; NaN if there is none
    stayed: FloatArray  # (n,) for test rows: share of right predictions by fits that keep their group; NaN without any
    seconds: float  # time of the fit to all training rows
    n_unconverged: int  # number of fits that did not converge


@dataclass(frozen=True, eq=False)
class Comparison:
    """Accuracy of several methods on the same rows; the result of ``compare``.

    ``str(comparison)`` is the table, in percent, followed by the sentences.

    Parameters
    ----------
    frame : DataFrame
        One row per method. ``average``: share of correct test rows; ``balanced``: mean over the groups among the test
        rows; ``worst``: lowest accuracy of a group with at least 10 test rows; ``unseen``: mean over groups, each
        predicted while it is held out from training, and ``unseen_error``, its standard error over groups; ``seen``:
        mean over groups of test rows, in the same fits, while their group stays in training; ``worst_unseen``: lowest
        accuracy of a held-out group with at least 10 rows; ``seconds``: time of the fit. NaN where no group counts.
    sentences : tuple of str
        Which method does best on held-out groups, the price of a uniform prior over groups, and caveats about the
        numbers. A difference is stated if it exceeds two standard errors.

    Examples
    --------
    >>> import pandas as pd
    >>> row = dict(average=0.9, balanced=0.8, worst=0.7, unseen=0.6, unseen_error=0.1, seen=0.8)
    >>> frame = pd.DataFrame([row], index=["crm"]).assign(worst_unseen=0.5, seconds=1.0)
    >>> print(Comparison(frame, ("A sentence.",)))
         average  groups  worst  unseen    ±  seen  worst unseen  seconds
    CRM     90.0    80.0   70.0    60.0 10.0  80.0          50.0      1.0
    <BLANKLINE>
    A sentence.
    """

    frame: pd.DataFrame
    sentences: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as numbers, text and lists that JSON can hold.

        Returns
        -------
        dict
            ``methods``, a list with the columns of ``frame`` for each method, and ``sentences``. None stands for NaN.
        """
        table = self.frame.astype(object).where(self.frame.notna(), None)
        methods = [{"method": name, **row} for name, row in zip(table.index, table.to_dict("records"), strict=True)]
        return {"methods": methods, "sentences": list(self.sentences)}

    def __str__(self) -> str:
        shown = self.frame.rename(index=title, columns=HEADINGS)
        percent = [heading for heading in HEADINGS.values() if heading != "seconds"]
        shown[percent] *= 100
        table = shown.to_string(float_format="{:.1f}".format, na_rep="–")
        return "\n\n".join([table, "\n".join(self.sentences)])

    def _repr_html_(self) -> str:
        return str(self.frame._repr_html_())


def title(name: str) -> str:
    """Return the name of a method in words."""
    return f"{TITLES[name.removesuffix(KNOWN)]}{' with known attributes' * name.endswith(KNOWN)}"


def summarise(
    outcomes: Mapping[str, MethodOutcome],
    test_group: IntArray,
    group: IntArray,
    *,
    n_fits: int,
    n_new: int,
    left_out: bool,
) -> Comparison:
    """Return the table of the methods and the sentences.

    ``test_group`` (n,) and ``group`` (n,) number the groups of the test and the training rows. ``n_fits`` is the number
    of fits of each method, ``n_new`` the number of groups that only the test rows have, ``left_out`` whether boosted
    CRM is left out because LightGBM is not installed.
    """
    import pandas as pd

    methods = {name: outcome for name, outcome in outcomes.items() if not name.endswith(TRAIN_PRIOR)}
    rows = {name: _row(outcome, test_group, group) for name, outcome in methods.items()}
    sentences = [
        *_on_held_out(methods, group),
        *_price(outcomes, test_group, group),
        *_notes(methods, test_group, n_fits=n_fits, n_new=n_new, left_out=left_out),
    ]
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=list(HEADINGS))
    return Comparison(frame, tuple(sentences))


def _row(outcome: MethodOutcome, test_group: IntArray, group: IntArray) -> list[float]:
    """Return the entries of a method's row, in the order of ``HEADINGS``."""
    by_group, unseen = _by_group(outcome.test, test_group), _by_group(outcome.held_out, group)
    seen = _by_group(outcome.stayed, test_group)
    mean, error = mean_and_error(unseen)
    if np.isnan(unseen).all():
        mean = math.nan
    return [
        float(outcome.test.mean()),
        float(by_group.mean()),
        _worst(outcome.test, test_group)[0],
        mean,
        error if math.isfinite(error) else math.nan,
        float(seen[~np.isnan(seen)].mean()) if not np.isnan(seen).all() else math.nan,
        _worst(outcome.held_out, group)[0],
        outcome.seconds,
    ]


def _by_group(correct: BoolArray | FloatArray, group: IntArray) -> FloatArray:
    """Return the accuracy of each group, (k,), from rows that are correct (1) or not (0); NaN if a row is NaN."""
    return np.bincount(group, weights=correct) / np.bincount(group)


def _worst(correct: BoolArray | FloatArray, group: IntArray) -> tuple[float, float]:
    """Return the lowest accuracy of a group with enough rows and its standard error; NaN if there is no such group."""
    count, accuracy = np.bincount(group), _by_group(correct, group)
    accuracy[count < MIN_WORST_GROUP_ROWS] = np.nan
    if np.isnan(accuracy).all():
        return math.nan, math.nan
    position = int(np.nanargmin(accuracy))
    share = (accuracy[position] * count[position] + 1) / (count[position] + 2)  # never 0 or 1, so the error is not 0
    return float(accuracy[position]), math.sqrt(share * (1 - share) / count[position])


def _on_held_out(methods: Mapping[str, MethodOutcome], group: IntArray) -> Iterator[str]:
    """Say which method does best on held-out groups."""
    accuracy = {name: _by_group(outcome.held_out, group) for name, outcome in methods.items()}
    unseen = {name: float(np.nanmean(values)) for name, values in accuracy.items() if not np.isnan(values).all()}
    if not unseen:
        return
    best = max(unseen, key=lambda name: unseen[name])
    n_groups = int(np.count_nonzero(~np.isnan(accuracy[best])))
    where = f"On {n_groups} held-out combination{'s' * (n_groups > 1)}"
    reached = f"{100 * unseen[best]:.1f} %" + " as the mean over groups" * (n_groups > 1)
    close = [name for name in unseen if name != best and _verdict(accuracy[best] - accuracy[name]) == 0]
    if len(unseen) == 1:
        yield f"{where}, {title(best)} reaches {reached}."
    elif len(close) == len(unseen) - 1:
        highest = f"{title(best)} has the highest accuracy, {reached}"
        yield f"{where}, there is no clear difference between the methods; {highest}."
    else:
        unclear = f"; there is no clear difference from {' and '.join(title(name) for name in close)}" if close else ""
        yield f"{where}, {title(best)} does best: {reached}{unclear}."


def _price(outcomes: Mapping[str, MethodOutcome], test_group: IntArray, group: IntArray) -> Iterator[str]:
    """Say what CRM with its uniform prior loses and gains on the test rows, and what the prior itself costs."""

    def rank(name: str) -> float:
        """Return the accuracy on held-out groups, or on test rows if no group can be held out."""
        outcome = outcomes[name]
        unseen = _by_group(outcome.held_out, group)
        return float(outcome.test.mean() if np.isnan(unseen).all() else np.nanmean(unseen))

    present = [name for name in ("crm", "crm-boosting") if name in outcomes]
    if not present:
        return
    name = max(present, key=rank)
    crm, own = outcomes[name], title(name)
    other = next((other for other in ("boosting", "logistic", "logistic-balanced") if other in outcomes), None)
    if other is not None:
        changes = {"of average accuracy": _points(crm.test, outcomes[other].test)}
        (worst, error), (other_worst, other_error) = (_worst(part.test, test_group) for part in (crm, outcomes[other]))
        if not math.isnan(worst):
            clear = abs(worst - other_worst) > STATED_ERRORS * math.hypot(error, other_error)
            changes["in the worst group"] = 100 * (worst - other_worst) * clear
        yield f"Against {title(other)}, {own} with a uniform prior over groups {_changed(changes)}."
    points = _points(crm.test, outcomes[name + TRAIN_PRIOR].test)
    effect = (
        f"{'costs' if points < 0 else 'gains'} {own} {abs(points):.1f} points of"
        if points
        else "makes no clear difference to"
    )
    trained = 100 * outcomes[name + TRAIN_PRIOR].test.mean()
    yield (
        f"The uniform prior itself {effect} average accuracy: under the training prior, {own} reaches {trained:.1f} %."
    )


def _changed(changes: Mapping[str, float]) -> str:
    """Return gains and losses, in points, as the end of a sentence; 0 stands for a difference that is not clear."""
    parts = [
        f"{'gains' if points > 0 else 'loses'} {abs(points):.1f} points {what}"
        for what, points in changes.items()
        if points
    ]
    unclear = " or ".join(f"in {what.split(' ', 1)[1]}" for what, points in changes.items() if not points)
    return " and ".join([*parts, *([f"shows no clear difference {unclear}"] if unclear else [])])


def _points(one: BoolArray, other: BoolArray) -> float:
    """Return by how many points the first is more accurate on the same rows; 0 unless the difference is clear."""
    difference = one.astype(np.float64) - other
    return 100 * float(difference.mean()) * abs(_verdict(difference))


def _verdict(difference: FloatArray) -> int:
    """Return the sign of the mean of paired differences; 0 if it is not clear."""
    mean, error = mean_and_error(difference)
    return int(np.sign(mean)) if abs(mean) > STATED_ERRORS * error else 0


def _notes(
    methods: Mapping[str, MethodOutcome], test_group: IntArray, *, n_fits: int, n_new: int, left_out: bool
) -> Iterator[str]:
    """Return caveats: what the table lacks, and which fits did not converge."""
    if n_fits == 1:
        yield (
            "No group can be held out, because none lies inside the affine hull of the others, so there is no accuracy "
            "on unseen combinations."
        )
    if n_new:
        yield f"{n_new} of the groups among the test rows {'is' if n_new == 1 else 'are'} absent from training."
    few = int(np.count_nonzero(np.bincount(test_group) < MIN_WORST_GROUP_ROWS))
    if few:
        yield (
            f"{few} group{'s' * (few > 1)} with fewer than {MIN_WORST_GROUP_ROWS} test rows "
            f"{'do' if few > 1 else 'does'} not count for the worst group."
        )
    for name, outcome in methods.items():
        if outcome.n_unconverged and not name.endswith(KNOWN):
            yield f"{outcome.n_unconverged} of the {n_fits} fits of {title(name)} did not converge."
    if left_out:
        yield "Boosted CRM is left out, because LightGBM is not installed: run pip install 'compshift[boosting]'."
