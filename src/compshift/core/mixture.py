"""The likelihood of a prior over groups, given what each input says of them."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from compshift.core.arrays import FloatArray
from compshift.core.logspace import logsumexp


class Mixture(NamedTuple):
    """Likelihood ratios, each row divided by its largest, so that exponentials neither overflow nor vanish together."""

    ratio: FloatArray  # (n, g) from 0 to 1
    log_scale: FloatArray  # (n,)
    weight: FloatArray  # (n,)
    pseudo: float  # a − 1

    @classmethod
    def of(cls, log_ratio: FloatArray, sample_weight: FloatArray, concentration: float) -> Mixture:
        """Of log ratios (n, g), with a finite one in every row."""
        log_scale = log_ratio.max(axis=1)
        return cls(np.exp(log_ratio - log_scale[:, None]), log_scale, sample_weight, concentration - 1)

    @property
    def total(self) -> float:
        """Rows and pseudo-rows."""
        return float(self.weight.sum() + self.ratio.shape[1] * self.pseudo)

    def log_likelihood(self, log_prior: FloatArray) -> float:
        """Σ ω log Σ π exp(l)."""
        return float(self.weight @ (np.log(self.ratio @ np.exp(log_prior)) + self.log_scale))

    def objective(self, log_prior: FloatArray) -> float:
        """The objective F."""
        penalty = self.pseudo * float(log_prior.sum()) if self.pseudo > 0 else 0.0
        return self.log_likelihood(log_prior) + penalty

    def log_growth(self, log_prior: FloatArray) -> FloatArray:
        """Logarithm of what an EM step multiplies each probability by, (g,): the slope of F by that of Σ π, per row.

        Its largest entry d bounds what F may gain: F is concave, so it gains at most total · (e^d − 1).
        """
        share = self.weight / (self.ratio @ np.exp(log_prior))  # (n,)
        slope = share @ self.ratio  # (g,)
        if self.pseudo > 0:
            slope = slope + self.pseudo * np.exp(-log_prior)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(slope) - math.log(self.total))

    def em_step(self, log_prior: FloatArray) -> FloatArray:
        """The next prior, (g,)."""
        return normalised(log_prior + self.log_growth(log_prior))


def normalised(log_prior: FloatArray) -> FloatArray:
    """With probabilities that sum to 1."""
    return np.asarray(log_prior - logsumexp(log_prior, axis=0))
