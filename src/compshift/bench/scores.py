"""What a record says about a predictor: the accuracies that tables show."""

from __future__ import annotations

from typing import Any

import numpy as np

METRICS = ("average", "weighted", "balanced", "worst")
"""Share of right rows; the same with groups as frequent as in training; mean over groups; lowest of a group."""


def group_accuracy(record: dict[str, Any], split: str, predictor: str) -> tuple[Any, Any]:
    """Accuracy (g,) of each group, NaN without rows, and its rows (g,)."""
    rows = np.array(record["rows"][split], dtype=np.float64)
    right = np.array(record["right"][split][predictor], dtype=np.float64)
    return right / np.where(rows > 0, rows, np.nan), rows


def scores(record: dict[str, Any], split: str = "test", predictor: str | None = None) -> dict[str, float]:
    """Every metric of a predictor, by default of the one that is reported.

    ``weighted`` has groups weighted by their rows in training before any group was dropped.
    """
    accuracy, rows = group_accuracy(record, split, predictor or reported(record))
    held = rows > 0
    train = np.array(record["train_rows"], dtype=np.float64)[held]
    return {
        "average": float(accuracy[held] @ rows[held] / rows.sum()),
        "weighted": float(accuracy[held] @ train / train.sum()) if train.any() else float("nan"),
        "balanced": float(accuracy[held].mean()),
        "worst": float(accuracy[held].min()),
    }


def dropped_accuracy(record: dict[str, Any], predictor: str | None = None) -> float:
    """Share of right rows among the test rows of groups that training lacked; NaN if there are none."""
    rows = np.array(record["rows"]["test"], dtype=np.float64)
    right = np.array(record["right"]["test"][predictor or reported(record)], dtype=np.float64)
    unseen = (np.array(record["seen_rows"]) == 0) & (rows > 0)
    return float(right[unseen].sum() / rows[unseen].sum()) if unseen.any() else float("nan")


def reported(record: dict[str, Any]) -> str:
    """The predictor that is selected and reported: the first."""
    return str(next(iter(record["right"]["test"])))


def n_unseen(record: dict[str, Any]) -> int:
    """How many groups test has and training lacked."""
    return int(((np.array(record["seen_rows"]) == 0) & (np.array(record["rows"]["test"]) > 0)).sum())
