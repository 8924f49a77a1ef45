"""Diagnosis: the result of ``diagnose``, as numbers and as sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from compshift._html import TableResult
from compshift.core.accuracy import Calibration
from compshift.core.arrays import BoolArray, FloatArray, IntArray
from compshift.core.bias import ENOUGH_SAMPLES, HEAVY_TAIL
from compshift.core.groups import GroupSpace

if TYPE_CHECKING:
    import pandas as pd

SLIGHT = 0.01
"""Largest gain, in nats per row, that the verdict calls slight; also the largest bias gap that it does not mention."""

CERTAIN_ERRORS = 3.0
"""Number of standard errors above which a difference is stated as a fact; more than 2, because folds share rows."""

HINT_ERRORS = 2.0
"""Number of standard errors above which a difference is called a hint, or its direction is stated."""

MAX_SENTENCE_GROUPS = 5
"""Largest number of groups that a sentence names."""


@dataclass(frozen=True)
class Difference:
    """Mean difference of two log-likelihoods per row, in nats, with its standard error.

    Attributes
    ----------
    mean : float
        Mean difference.
    error : float
        Standard error of the mean over the rows; NaN for a single row.
    n_rows : int
        Number of rows.
    """

    mean: float
    error: float
    n_rows: int

    @classmethod
    def of(cls, better: FloatArray, worse: FloatArray) -> Difference:
        """Compute the difference of two log-likelihoods of the same rows, (n,) each."""
        difference = better - worse
        error = float(difference.std(ddof=1)) / math.sqrt(len(difference)) if len(difference) > 1 else math.nan
        return cls(float(difference.mean()), error, len(difference))

    @property
    def certain(self) -> bool:
        """Whether the mean is more than three standard errors from 0."""
        return abs(self.mean) > CERTAIN_ERRORS * self.error

    def __str__(self) -> str:
        return f"{abs(self.mean):.3f} ± {self.error:.3f} nats per row"


@dataclass(frozen=True, eq=False, repr=False)
class Diagnosis(TableResult):
    """How well an additive model fits labelled rows. Arrays have the order of ``groups``, the candidate groups."""

    space: GroupSpace
    groups: IntArray  # (g, m)
    train_rows: FloatArray  # (g,) rows in training, or the sum of their weights
    rows: IntArray  # (g,) rows used; 0 for unseen groups
    inside_hull: BoolArray  # (g,)
    interaction_by_group: FloatArray  # (g,) mean gain by interactions, in nats per row; NaN for groups left out
    interaction_error_by_group: FloatArray  # (g,) standard error of that gain
    bias_gap: FloatArray  # (g,) |B* − B| of seen groups; NaN for unseen groups
    effective_sample_size: FloatArray  # (g,) NaN if the classifier has none
    pareto_k: FloatArray  # (g,) NaN if the classifier has none
    log_likelihood: float  # mean log p(z|x) of the model per row, under the training prior
    correction: Difference  # gain by an additive correction of the model
    interaction: Difference  # further gain by a saturated correction
    calibration: Mapping[str, Calibration]  # by attribute name
    shift: float  # total variation distance between the group frequencies in training and in these rows
    shift_limit: float  # 95 % quantile of that distance by chance
    n_unseen: int  # rows left out because their group was not seen in training

    @property
    def n_rows(self) -> int:
        """Number of rows that were used: those of seen groups."""
        return int(self.rows.sum())

    @property
    def additive(self) -> bool:
        """Whether no interactions were found: their gain is at most 0.01 nats per row or three standard errors."""
        return not (self.interaction.certain and self.interaction.mean > SLIGHT)

    @property
    def few_samples(self) -> BoolArray:
        """Whether the bias of each group inside the hull rests on few samples or on heavy-tailed weights, (g,)."""
        few = (self.effective_sample_size < ENOUGH_SAMPLES) | (self.pareto_k > HEAVY_TAIL)
        return np.asarray(few & self.inside_hull)

    @property
    def verdict(self) -> str:
        """Summary in a few sentences."""
        return " ".join([self.additivity_verdict, *self._bias_sentences(), *self._calibration_sentences()])

    @property
    def additivity_verdict(self) -> str:
        """The part of the verdict that concerns additivity."""
        return " ".join(self._additivity_sentences())

    def _additivity_sentences(self) -> Iterator[str]:
        gain = self.interaction
        if gain.certain and gain.mean > 0:
            how = "worse" if gain.mean > SLIGHT else "slightly worse"
            yield f"The additive model fits {how} than a saturated one, by {gain}."
            yield from self._interaction_sentences()
        elif gain.certain:
            yield f"The additive model fits better than a saturated one, by {gain}."
        elif gain.mean > max(HINT_ERRORS * gain.error, SLIGHT):
            yield (
                f"A saturated model fits better than the additive one by {gain}, which hints at interactions but does "
                "not establish them: pass more rows."
            )
        else:
            favour = "of the saturated one" if gain.mean > 0 else "of the additive one"
            yield (
                f"The additive model fits as well as a saturated one, within the noise ({gain} in favour {favour}); an "
                f"interaction too weak to be learned from {gain.n_rows} rows would not show."
            )
        if self.correction.certain and self.correction.mean > SLIGHT:
            yield (
                f"An additive correction learned from these rows improves the model by {self.correction}: the "
                "alpha, the training rows or the group frequencies of the model do not fit these rows."
            )

    def _interaction_sentences(self) -> Iterator[str]:
        """Name the groups in which interactions gain more than the noise, the largest gains first."""
        with np.errstate(invalid="ignore"):
            certain = self.interaction_by_group > CERTAIN_ERRORS * self.interaction_error_by_group
        if certain.any():
            order = np.argsort(-np.where(certain, self.interaction_by_group, -np.inf), kind="stable")
            named = [
                f"{self.space.label(self.groups[group])} ({self.interaction_by_group[group]:.2f})"
                for group in order[: min(MAX_SENTENCE_GROUPS, int(certain.sum()))]
            ]
            yield f"It is worst in {', '.join(named)}."

    def _bias_sentences(self) -> Iterator[str]:
        chosen = np.flatnonzero(self.few_samples)
        if len(chosen):
            order = chosen[np.argsort(self.effective_sample_size[chosen], kind="stable")]
            named = [
                f"{self.space.label(self.groups[group])} ({self.effective_sample_size[group]:.3g}"
                + (f", k̂ {self.pareto_k[group]:.2f})" if self.pareto_k[group] > HEAVY_TAIL else ")")
                for group in order[:MAX_SENTENCE_GROUPS]
            ]
            more = f" and {len(order) - MAX_SENTENCE_GROUPS} more" if len(order) > MAX_SENTENCE_GROUPS else ""
            yield (
                f"The extrapolated biases of {len(order)} of {len(self.groups)} groups rest on few samples or a heavy "
                f"tail (with effective sample sizes): {', '.join(named)}{more}."
            )
        outside = int(np.count_nonzero(~self.inside_hull))
        if outside:
            yield f"These rows say nothing about the {outside} candidate groups outside the hull."
        if np.nanmax(self.bias_gap, initial=0.0) > SLIGHT:
            yield (
                f"Learned and extrapolated biases of seen groups differ by up to {np.nanmax(self.bias_gap):.2g}, which "
                "should be 0: the fit has not converged."
            )

    def _calibration_sentences(self) -> Iterator[str]:
        fine = [name for name, part in self.calibration.items() if not part.off]
        for name, part in self.calibration.items():
            if not part.off:
                continue
            how, confidence = "miscalibrated", part.accuracy + part.overconfidence
            if abs(part.overconfidence) > HINT_ERRORS * part.overconfidence_error:
                how = "overconfident" if part.overconfidence > 0 else "underconfident"
            yield (
                f"Probabilities of {name} are {how}: mean confidence {confidence:.3f}, accuracy {part.accuracy:.3f}, "
                f"calibration error {part.error:.3f} where chance gives {part.noise:.3f}."
            )
        if fine:
            yield f"Probabilities of {', '.join(fine)} are calibrated as far as {self.n_rows} rows show."
        if len(fine) < len(self.calibration) and self.shift > self.shift_limit:
            yield (
                f"Groups are not as frequent here as in training (the frequencies differ by {self.shift:.1%}), which "
                "alone makes probabilities under the training prior miscalibrated."
            )

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per candidate group.

        Returns
        -------
        DataFrame
            Rows in training and in the diagnosis, gain by interactions, bias gap, effective sample size and Pareto k̂.
        """
        return self.space.frame(
            self.groups,
            train_rows=self.train_rows,
            rows=self.rows,
            inside_hull=self.inside_hull,
            interaction=self.interaction_by_group,
            interaction_error=self.interaction_error_by_group,
            bias_gap=self.bias_gap,
            effective_sample_size=self.effective_sample_size,
            pareto_k=self.pareto_k,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all results as numbers, text and lists that can be written as JSON.

        Returns
        -------
        dict
            Results by name; None stands for unknown numbers.
        """
        frame = self.to_frame().replace([np.inf, -np.inf], np.nan).astype(object)
        return {
            "verdict": self.verdict,
            "additive": self.additive,
            "n_rows": self.n_rows,
            "n_unseen": self.n_unseen,
            "log_likelihood": self.log_likelihood,
            "correction": {"mean": self.correction.mean, "error": self.correction.error},
            "interaction": {"mean": self.interaction.mean, "error": self.interaction.error},
            "calibration": {name: part._asdict() | {"off": part.off} for name, part in self.calibration.items()},
            "shift": self.shift,
            "shift_limit": self.shift_limit,
            "groups": frame.where(frame.notna(), None).to_dict("records"),
        }

    def _summary(self) -> str:
        lines = [
            self.verdict.replace(". ", ".\n"),
            "",
            f"rows                 {self.n_rows}" + (f", and {self.n_unseen} of unseen groups" * (self.n_unseen > 0)),
            f"log-likelihood       {self.log_likelihood:.4f} nats per row",
            f"  additive correction {self.correction.mean:+.4f} ± {self.correction.error:.4f}",
            f"  interactions        {self.interaction.mean:+.4f} ± {self.interaction.error:.4f}",
        ]
        lines += [
            f"calibration error    {part.error:.4f} of {name} (chance {part.noise:.4f}, at most {part.noise_limit:.4f})"
            for name, part in self.calibration.items()
        ]
        return "\n".join(lines)
