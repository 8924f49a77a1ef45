"""The share of rows that a classifier is right on, as its ``score``."""

from typing import Any

import numpy as np

from compshift._checks import check_same_rows, check_sample_weight
from compshift.core.columns import Column
from compshift.metrics.group import right_rows


def accuracy(true: list[Column], predicted: list[Column], sample_weight: Any) -> float:
    """Weighted share of rows on which every target is predicted as it is."""
    check_same_rows(len(predicted[0].codes), true[0].codes, "y")
    right = right_rows(true, predicted)
    return float(np.average(right, weights=check_sample_weight(sample_weight, len(right))))
