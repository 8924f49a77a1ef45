"""Reweighted sampling of groups (Idrissi et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass

from compshift.core.arrays import FloatArray
from compshift.methods.erm import ERM
from compshift.methods.method import Sampling


@dataclass(frozen=True)
class RWG(ERM):
    """Cross-entropy on batches in which every training group is as likely as another."""

    name = "rwg"
    summary = "groups drawn in balance"

    def sampling(self, counts: FloatArray) -> Sampling:
        """Rows of small groups more often."""
        return Sampling(weight=1 / counts)
