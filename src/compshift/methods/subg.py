"""Subsampling of groups (Idrissi et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass

from compshift.core.arrays import FloatArray
from compshift.methods.erm import ERM
from compshift.methods.method import Sampling


@dataclass(frozen=True)
class SUBG(ERM):
    """Cross-entropy on as many rows of every training group as the smallest one has."""

    name = "subg"
    summary = "groups cut to the size of the smallest"

    def sampling(self, counts: FloatArray) -> Sampling:
        """Some rows of large groups."""
        return Sampling(limit=int(counts.min()))
