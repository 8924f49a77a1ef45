"""How fast the hull of random groups grows, against the paper's bounds.

Groups are drawn uniformly with replacement until every combination is inside the hull. The paper bounds the number of
draws that suffice with probability 1 − 1/c by 2c(md + d·log d) (theorem "thm4"), 2cd(m + 1 + ln d) (its appendix) and,
for two attributes, 8cd·log d; no fewer than m(d − 1) + 1 groups can do, and for two attributes 2d − 1 well-chosen ones
do.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from compshift._checks import check_count
from compshift.core.groups import GroupSpace
from compshift.core.span import Span

SETTINGS = ((2, (2, 5, 10, 20, 30, 40, 50)), (3, (2, 5, 10, 20)), (5, (2, 5, 10)), (9, (2, 5)))
"""Numbers of attributes, and for each the numbers of values that are tried."""

CONFIDENCE = 10
"""The paper's c: bounds and quantile are for a probability of 1 − 1/c."""


@dataclass(frozen=True)
class Growth:
    """Draws until the hull is complete, over repeated trials of one setting."""

    attributes: int
    values: int
    groups: int
    least: int  # m(d − 1) + 1: no plan needs fewer
    mean: float
    standard_error: float
    quantile: float  # draws that were enough in 1 − 1/c of the trials
    bound: float  # 2c(md + d log d)
    appendix_bound: float  # 2cd(m + 1 + ln d)
    two_attribute_bound: float | None  # 8cd log d, if m = 2

    def to_dict(self) -> dict[str, Any]:
        """The numbers by name."""
        return asdict(self)


def run_hull_growth(trials: int = 100, random_state: int = 0) -> list[Growth]:
    """Simulate every setting."""
    check_count(trials, "trials")
    return [
        hull_growth(m, d, trials, np.random.default_rng([random_state, m, d])) for m, sizes in SETTINGS for d in sizes
    ]


def hull_growth(m: int, d: int, trials: int, rng: np.random.Generator) -> Growth:
    """Draws that complete the hull of m attributes with d values each."""
    draws = np.array([draws_to_complete(m, d, rng) for _ in range(trials)], dtype=np.float64)
    c = CONFIDENCE
    return Growth(
        attributes=m,
        values=d,
        groups=d**m,
        least=m * (d - 1) + 1,
        mean=float(draws.mean()),
        standard_error=float(draws.std(ddof=1) / math.sqrt(trials)) if trials > 1 else math.nan,
        quantile=float(np.quantile(draws, 1 - 1 / c, method="higher")),
        bound=2 * c * (m * d + d * math.log(d)),
        appendix_bound=2 * c * d * (m + 1 + math.log(d)),
        two_attribute_bound=8 * c * d * math.log(d) if m == 2 else None,
    )


def draws_to_complete(m: int, d: int, rng: np.random.Generator) -> int:
    """Number of groups drawn, with replacement, when the last combination comes inside the hull."""
    space = GroupSpace.from_cardinalities([d] * m)
    span, full_rank = Span(space.width), m * (d - 1) + 1
    drawn = 0
    while True:
        block = rng.integers(0, d, size=(64, m)) + space.offsets
        added = span.add_all(block, limit=full_rank)
        if span.rank == full_rank:
            return drawn + added[-1] + 1
        drawn += len(block)


def staircase(d: int) -> Any:
    """The paper's deterministic construction for two attributes: 2d − 1 groups, (2d − 1, 2), that determine all d²."""
    steps = [(k // 2 + k % 2, k // 2) for k in range(2 * d - 1)]
    return np.array(steps, dtype=np.int64)
