"""An audit in sentences."""

from __future__ import annotations

from typing import Any

import numpy as np

from compshift._errors import listing
from compshift.data.audit import SMALL_GROUP, Audit

MAX_LISTED = 12
"""So many groups are named in a list."""


def rows_words(audit: Audit) -> list[str]:
    """What there is."""
    counts = audit.counts
    sizes = " × ".join(str(size) for size in audit.space.cardinalities)
    lines = [f"{plain_number(counts.n_rows)} rows in {len(counts.groups)} of {audit.space.n_groups} groups ({sizes})"]
    if counts.n_dropped:
        parts = ", ".join(f"{name}: {plain_number(number)}" for name, number in counts.missing.items())
        if counts.missing_words:
            parts += f"; {listing(counts.missing_words)} is read as missing"
        lines.append(f"{plain_number(counts.n_dropped)} rows were left out because an attribute is missing ({parts})")
    return lines


def coverage_words(audit: Audit) -> list[str]:
    """How much follows from what there is."""
    hull, coverage = audit.hull, audit.coverage
    interval = f", 95 % interval {coverage.lower:.2%} to {coverage.upper:.2%}" if coverage.method == "estimate" else ""
    lines = [f"rank {hull.rank} of {hull.full_rank}; {float(coverage):.2%} of all groups are determined{interval}"]
    inside, outside = audit.extrapolable, audit.out_of_reach
    if inside is not None and outside is not None:
        lines.append(f"unseen groups: {len(inside)} can be extrapolated, {len(outside)} out of reach")
        if len(audit.space.names) != 2:
            lines += [f"can be extrapolated: {group_names(audit, inside)}"] if len(inside) else []
            lines += [f"out of reach: {group_names(audit, outside)}"] if len(outside) else []
    return lines


def small_words(audit: Audit) -> list[str]:
    """Which groups have few rows, if any."""
    if not len(audit.small):
        return []
    named = group_names(audit, audit.counts.groups[audit.small], audit.counts.count[audit.small])
    return [f"fewer than {SMALL_GROUP} rows: {named}"]


def plan_words(audit: Audit) -> list[str]:
    """What to collect."""
    if audit.hull.is_complete:
        return ["nothing needs to be collected: every combination is determined by the seen ones"]
    noun = "this group" if len(audit.plan) == 1 else f"these {len(audit.plan)} groups, the fewest that will do"
    return [f"to determine every combination, collect {noun}: {group_names(audit, np.asarray(audit.plan))}"]


def group_names(audit: Audit, codes: Any, counts: Any = None) -> str:
    """Groups by name, and their rows where given; long lists are cut."""
    labels = [audit.space.label(code) for code in codes[:MAX_LISTED]]
    if counts is not None:
        labels = [f"{label} {plain_number(count)}" for label, count in zip(labels, counts, strict=False)]
    more = len(codes) - len(labels)
    return ", ".join(labels) + (f" and {more} more" if more > 0 else "")


def plain_number(count: float) -> str:
    """A count without decimals it does not have."""
    return f"{count:.0f}" if float(count).is_integer() else f"{count:g}"
