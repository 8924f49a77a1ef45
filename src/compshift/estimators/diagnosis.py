"""What a look at labelled rows says about a fitted model: numbers, and sentences that claim no more than they do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from compshift.core.accuracy import Calibration
from compshift.core.arrays import BoolArray, FloatArray, IntArray
from compshift.core.groups import GroupSpace
from compshift.crm.model import ENOUGH_SAMPLES

if TYPE_CHECKING:
    import pandas as pd

HEAVY_TAIL = 0.7
"""Above this Pareto k̂ a mean of weights is not to be trusted."""

NOTICEABLE = 0.01
"""Nats per row; and a bias gap. Less is said to be slight, or not at all."""

CERTAIN = 3.0
"""Standard errors that a difference must have to be spoken of as one: that folds share rows is not counted in them."""

HINT = 2.0
"""Standard errors from which on a difference is neither claimed nor denied."""

LISTED = 5
"""At most so many groups are named in a sentence."""


@dataclass(frozen=True)
class Difference:
    """Mean difference of log-likelihoods per row, in nats, with its standard error over the rows."""

    mean: float
    error: float
    n_rows: int

    @classmethod
    def of(cls, better: FloatArray, worse: FloatArray) -> Difference:
        """Of two likelihoods of the same rows, (n,) each."""
        difference = better - worse
        error = float(difference.std(ddof=1)) / math.sqrt(len(difference)) if len(difference) > 1 else math.nan
        return cls(float(difference.mean()), error, len(difference))

    @property
    def certain(self) -> bool:
        """Whether it is more than three standard errors from 0."""
        return abs(self.mean) > CERTAIN * self.error

    def __str__(self) -> str:
        return f"{abs(self.mean):.3f} ± {self.error:.3f} nats per row"


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """How well an additive model suits labelled rows. Arrays follow ``groups``, the model's candidates."""

    space: GroupSpace
    groups: IntArray  # (g, m)
    train_rows: FloatArray  # (g,) rows in training, or the sum of their weights
    rows: IntArray  # (g,) rows looked at; 0 for groups that training lacks
    inside_hull: BoolArray  # (g,)
    interaction_by_group: FloatArray  # (g,) mean gain in nats by interactions; NaN for groups left out
    interaction_error_by_group: FloatArray  # (g,)
    bias_gap: FloatArray  # (g,) |B* − B| of seen groups, else NaN
    effective_sample_size: FloatArray  # (g,) NaN if the model has none
    pareto_k: FloatArray  # (g,) NaN if unknown
    log_likelihood: float  # of the model itself, mean log p(z|x) per row under the training prior
    correction: Difference  # gain by an additive correction of the model
    interaction: Difference  # further gain if the correction need not be additive
    calibration: Mapping[str, Calibration]  # of each attribute
    shift: float  # total variation between the groups' frequencies in training and here
    shift_limit: float  # what chance gives in one of twenty samples of this size
    n_unseen: int  # rows left out because training lacks their group

    @property
    def n_rows(self) -> int:
        """Rows of seen groups."""
        return int(self.rows.sum())

    @property
    def additive(self) -> bool:
        """False if interactions are found, with a gain above three standard errors and above 0.01 nats per row."""
        return not (self.interaction.certain and self.interaction.mean > NOTICEABLE)

    @property
    def few_samples(self) -> BoolArray:
        """Groups inside the hull whose bias rests on few samples, or on weights with a heavy tail, (g,)."""
        few = (self.effective_sample_size < ENOUGH_SAMPLES) | (self.pareto_k > HEAVY_TAIL)
        return np.asarray(few & self.inside_hull)

    @property
    def verdict(self) -> str:
        """A few sentences for people."""
        return " ".join([self.additivity_verdict, *self._on_biases(), *self._on_calibration()])

    @property
    def additivity_verdict(self) -> str:
        """Those on whether energies add up."""
        return " ".join(self._on_additivity())

    def _on_additivity(self) -> Iterator[str]:
        gain = self.interaction
        if gain.certain and gain.mean > 0:
            how = "worse" if gain.mean > NOTICEABLE else "slightly worse"
            yield f"The additive model fits {how} than a saturated one, by {gain}."
            yield from self._on_interactions()
        elif gain.certain:
            yield f"The additive model fits better than a saturated one, by {gain}."
        elif gain.mean > max(HINT * gain.error, NOTICEABLE):
            yield (
                f"A saturated model fits better than the additive one by {gain}, which hints at interactions but does "
                "not establish them: look at more rows."
            )
        else:
            favour = "of the saturated one" if gain.mean > 0 else "of the additive one"
            yield (
                f"The additive model fits as well as a saturated one, within the noise ({gain} in favour {favour}); an "
                f"interaction too weak to be learned from {gain.n_rows} rows would not show."
            )
        if self.correction.certain and self.correction.mean > NOTICEABLE:
            yield (
                f"An additive correction learned from these rows improves the model by {self.correction}: its alpha, "
                "its training rows or the frequencies of groups do not suit them."
            )

    def _on_interactions(self) -> Iterator[str]:
        """Which groups gain by interactions beyond doubt."""
        with np.errstate(invalid="ignore"):
            certain = self.interaction_by_group > CERTAIN * self.interaction_error_by_group
        if certain.any():
            order = np.argsort(-np.where(certain, self.interaction_by_group, -np.inf), kind="stable")
            named = [
                f"{self.space.label(self.groups[group])} ({self.interaction_by_group[group]:.2f})"
                for group in order[: min(LISTED, int(certain.sum()))]
            ]
            yield f"It is worst in {', '.join(named)}."

    def _on_biases(self) -> Iterator[str]:
        chosen = np.flatnonzero(self.few_samples)
        if len(chosen):
            order = chosen[np.argsort(self.effective_sample_size[chosen], kind="stable")]
            named = [
                f"{self.space.label(self.groups[group])} ({self.effective_sample_size[group]:.3g}"
                + (f", k̂ {self.pareto_k[group]:.2f})" if self.pareto_k[group] > HEAVY_TAIL else ")")
                for group in order[:LISTED]
            ]
            more = f" and {len(order) - LISTED} more" if len(order) > LISTED else ""
            yield (
                f"The extrapolated biases of {len(order)} of {len(self.groups)} groups rest on few samples or a heavy "
                f"tail (effective samples): {', '.join(named)}{more}."
            )
        outside = int(np.count_nonzero(~self.inside_hull))
        if outside:
            yield f"Nothing here speaks for the {outside} candidate groups outside the hull."
        if np.nanmax(self.bias_gap, initial=0.0) > NOTICEABLE:
            yield (
                f"Learned and extrapolated biases of seen groups differ by up to {np.nanmax(self.bias_gap):.2g}, which "
                "should be 0: the fit had not converged."
            )

    def _on_calibration(self) -> Iterator[str]:
        fine = [name for name, part in self.calibration.items() if not part.off]
        for name, part in self.calibration.items():
            if not part.off:
                continue
            how, confidence = "miscalibrated", part.accuracy + part.overconfidence
            if abs(part.overconfidence) > HINT * part.overconfidence_error:
                how = "overconfident" if part.overconfidence > 0 else "underconfident"
            yield (
                f"Probabilities of {name} are {how}: mean confidence {confidence:.3f}, accuracy {part.accuracy:.3f}, "
                f"calibration error {part.error:.3f} where chance gives {part.noise:.3f}."
            )
        if fine:
            yield f"Probabilities of {', '.join(fine)} are calibrated as far as {self.n_rows} rows show."
        if len(fine) < len(self.calibration) and self.shift > self.shift_limit:
            yield (
                f"Groups are not as frequent here as in training (they differ by {self.shift:.1%}), which by itself "
                "puts probabilities under the training prior off."
            )

    def to_frame(self) -> pd.DataFrame:
        """One row per candidate group: rows in training and here, gain by interactions, bias gap, ESS, k̂."""
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
        """Everything as numbers, text and lists, for JSON; None for what is unknown."""
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

    def __str__(self) -> str:
        table: str = self.to_frame().to_string(index=False, na_rep="", float_format=lambda value: f"{value:.3g}")
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
        return "\n".join([*lines, "", table])
