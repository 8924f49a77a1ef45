"""The unlabelled pool of a benchmark: test rows that CRM may use without their labels.

``--unlabelled test`` gives all test rows to CRM as a pool, and scores the same rows: a transductive result.
``--unlabelled SHARE`` sets a random share of the test rows apart as the pool, and scores only the others, for every
method. Either way CRM with the pool is a method of its own, ``POOL_METHOD``, beside CRM without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from compshift._checks import check_fraction
from compshift._errors import InputError
from compshift.bench.paper import POOL_METHOD, printed
from compshift.bench.records import Record
from compshift.core.arrays import FloatArray
from compshift.data.dataset import GroupedDataset

ALL_TEST_ROWS = "test"
"""Value of ``unlabelled`` for which the pool is all test rows."""


def pool_share(unlabelled: Any) -> float | None:
    """Check ``unlabelled``, and return the share of the test rows to set apart as the pool; None for "test"."""
    if unlabelled == ALL_TEST_ROWS:
        return None
    try:
        return check_fraction(float(unlabelled), "unlabelled")
    except (TypeError, ValueError):
        raise InputError(
            f"unlabelled is {unlabelled!r}: pass 'test' for all test rows, or a share of them between 0 and 1"
        ) from None


def set_apart(test: GroupedDataset, share: float, seed: int) -> tuple[GroupedDataset, FloatArray]:
    """Draw the pool from the test rows; return the remaining rows, and the features (N, p) of the pool.

    Rows are drawn whatever their labels are. If there are two rows or more, the pool has at least one, and one remains.
    """
    n_pool = min(max(round(share * len(test)), 1), len(test) - 1)
    order = np.random.default_rng(seed).permutation(len(test))
    return test.rows(np.sort(order[n_pool:])), test.X[np.sort(order[:n_pool])]


def pool_notes(data: str, share: float | None, scenarios: Sequence[Mapping[int, Record]]) -> list[str]:
    """Return sentences about the pool of a data set's results; an empty list if there was none.

    ``share`` is the share of the test rows that was set apart as the pool; None if the pool was all test rows.
    ``scenarios`` has one mapping per scenario, from seeds to the record of ``POOL_METHOD`` with the selected settings.
    """
    notes = []
    if share is not None:
        notes.append(
            f"{data}: a random {100 * share:g}% of the test rows, drawn anew for each seed, is set apart as an "
            "unlabelled pool; every method is scored on the other test rows only."
        )
    fits = [record["detail"]["pool"] for records in scenarios for record in records.values()]
    if fits:
        used = sum(bool(fit["used"]) for fit in fits)
        count = f"in {used} of {len(fits)} fits, and is plain CRM in the others" if 0 < used < len(fits) else ""
        count = count or ("in every fit" if used else "in no fit, so this is plain CRM")
        where = "which are not scored" if share is not None else "on which it is scored too (transductive)"
        notes.append(
            f"{data}: {printed(POOL_METHOD)} may also use test rows without their labels, {where}. Held-out "
            f"combinations of the training rows decide whether it does: it did {count}."
        )
    return notes
