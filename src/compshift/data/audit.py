"""Which combinations a table lacks, which of them can be extrapolated, and what to collect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from compshift.core.arrays import IntArray
from compshift.core.groups import GroupSpace
from compshift.core.hull import MAX_COUNTED, AffineHull, Coverage
from compshift.core.plan import Plan
from compshift.data.group_counts import GroupCounts

SMALL_GROUP = 30
"""Fewer rows than this are flagged."""


@dataclass(frozen=True, eq=False)
class Audit:
    """A table's groups, their hull, and what would complete it."""

    counts: GroupCounts
    hull: AffineHull
    coverage: Coverage
    plan: Plan

    @property
    def space(self) -> GroupSpace:
        """Attributes and their values."""
        return self.counts.space

    @property
    def extrapolable(self) -> IntArray | None:
        """Unseen groups inside the hull; None if there are too many groups to list."""
        return self.hull.missing(inside=True) if self.space.n_groups <= MAX_COUNTED else None

    @property
    def out_of_reach(self) -> IntArray | None:
        """Unseen groups outside the hull; None if there are too many groups to list."""
        return self.hull.missing(inside=False) if self.space.n_groups <= MAX_COUNTED else None

    @property
    def small(self) -> IntArray:
        """Positions of the seen groups with fewer than ``SMALL_GROUP`` rows, the smallest first."""
        order = np.argsort(self.counts.count, kind="stable")
        return order[self.counts.count[order] < SMALL_GROUP]

    def to_dict(self) -> dict[str, Any]:
        """Everything as numbers, text and lists, for JSON; long lists of groups are left to the library."""
        decode = self.space.decode
        inside, outside = self.extrapolable, self.out_of_reach
        seen = [
            {"group": group, "count": float(count)}
            for group, count in zip(decode(self.counts.groups).tolist(), self.counts.count, strict=True)
        ]
        return {
            "attributes": {
                name: list(values) for name, values in zip(self.space.names, self.space.values, strict=True)
            },
            "rows": self.counts.n_rows,
            "rows_left_out": self.counts.n_dropped,
            "missing_values": self.counts.missing,
            "groups": self.space.n_groups,
            "rank": self.hull.rank,
            "full_rank": self.hull.full_rank,
            "complete": self.hull.is_complete,
            "coverage": float(self.coverage),
            "coverage_method": self.coverage.method,
            "coverage_interval": [self.coverage.lower, self.coverage.upper],
            "seen": seen,
            "extrapolable": None if inside is None else decode(inside).tolist(),
            "out_of_reach": None if outside is None else decode(outside).tolist(),
            "small": decode(self.counts.groups[self.small]).tolist(),
            "plan": decode(np.asarray(self.plan)).tolist(),
        }


def audit_groups(counts: GroupCounts) -> Audit:
    """Audit the groups of a table."""
    hull = AffineHull(counts.space, counts.groups)
    return Audit(counts, hull, hull.coverage(), hull.plan())
