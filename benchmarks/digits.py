"""How hard digits-backgrounds is: ERM on its features when each group is dropped, and when training is balanced."""

from collections.abc import Iterator

import numpy as np
from measure import Row
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from compshift.data.dataset import GroupedDataset
from compshift.data.digits_backgrounds import RandomConvolutions, load_digits_backgrounds
from compshift.data.shift import scenarios
from compshift.metrics import group_report

ALPHA = 1e-2


def rows() -> Iterator[Row]:
    """Worst groups over all fifty scenarios, and the ceiling."""
    worst = []
    data = load_digits_backgrounds()
    X = RandomConvolutions()(data.samples.pixels)
    for scenario in scenarios(data, "each"):
        kept = data.space.locate(data.codes, scenario.dropped) < 0
        worst.append(_worst_group(data, X, (data.split == 0) & kept))
    low, middle, high = np.quantile(worst, [0, 0.5, 1])
    yield Row(
        "digits-backgrounds: worst group of ERM with one of 50 groups dropped",
        "0.5",
        f"{low:.3f} to {high:.3f}, median {middle:.3f}",
        "below 0.5",
        high < 0.5,
    )
    balanced = load_digits_backgrounds(balanced=True)
    ceiling = _worst_group(balanced, RandomConvolutions()(balanced.samples.pixels), balanced.split == 0)
    yield Row("the same, trained on all groups in balance", "0.85", f"{ceiling:.3f}", "0.85", ceiling >= 0.85)


def _worst_group(data: GroupedDataset, X: np.ndarray, train: np.ndarray) -> float:
    """Worst group on test of logistic regression fitted to some rows."""
    penalty = LogisticRegression(C=1 / (ALPHA * train.sum()), max_iter=1000)
    model = make_pipeline(StandardScaler(), penalty).fit(X[train], data.codes[train, 0])
    test = data.split == 2
    return group_report(data.codes[test, 0], model.predict(X[test]), data.codes[test, 1]).worst
