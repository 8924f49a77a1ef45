"""Balancing groups by reweighted sampling or by subsampling (Idrissi et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass

from compshift.core.arrays import FloatArray
from compshift.methods.erm import ERM
from compshift.methods.sampling import Sampling


@dataclass(frozen=True)
class RWG(ERM):
    """Cross-entropy on batches in which all training groups are equally likely."""

    name = "rwg"
    summary = "all groups drawn equally often"

    def sampling(self, counts: FloatArray) -> Sampling:
        """Draw all groups equally often."""
        return Sampling.balanced(counts)


@dataclass(frozen=True)
class SUBG(ERM):
    """Cross-entropy on a subsample in which every training group has the size of the smallest one."""

    name = "subg"
    summary = "groups subsampled to the size of the smallest"

    def sampling(self, counts: FloatArray) -> Sampling:
        """Use as many rows of every group as the smallest group has."""
        return Sampling.subsampled(counts)
