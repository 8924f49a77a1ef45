"""CRMClassifierCV(feature_transform="auto"), beside each transform, on features as their files have them.

``unseen_groups.py --parts transforms`` prints the table. Principal components would be transformed otherwise than
features, so none are taken, and nothing is standardised.
"""

import time
from contextlib import ExitStack
from unittest.mock import patch

import numpy as np
from unseen_protocol import Draw

from compshift import CRMClassifier, CRMClassifierCV
from compshift.crm.problem import TRANSFORMS

ALPHAS = (1e-2, 1e-1, 1.0)

COLUMNS = ["transform", "worst group", "unseen groups", "seen groups", "worst less none", "unseen less none"]
COLUMNS += ["seen less none"]


def measure(draw: Draw) -> dict[str, list]:
    """Accuracy on the worst group, the unseen and the seen groups with each transform, and which one was chosen.

    The transforms are compared at the settings that are chosen for "none", as the choice compares them. Estimates that
    decide nothing (expected accuracy, tail indices) are left out to save time.
    """
    clf = _fit(draw, "auto")
    found = {"auto": _accuracies(draw, clf), "chosen": clf.feature_transform_}
    if clf.feature_transform_ != "none":
        clf = _fit(draw, "none")
    settings = {"anchor": clf.anchor_, "bias": clf.selected_bias_, "unseen_offset": clf.unseen_offset_}
    for name in TRANSFORMS:
        fixed = CRMClassifier(clf.alpha_, prior="hull", tol=1e-4, feature_transform=name, **settings)
        found[name] = _accuracies(draw, draw.fit(fixed))
    return found


def _fit(draw: Draw, transform: str) -> CRMClassifierCV:
    """Choose settings and fit, without the estimates that follow."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(CRMClassifierCV, "_completed", lambda *given, **_: given[3]))
        stack.enter_context(
            patch("compshift.crm.cv.bias_reliability", lambda _, settings, *__: np.full((len(settings), 2), np.nan))
        )
        return draw.fit(CRMClassifierCV(ALPHAS, prior="hull", feature_transform=transform, tol=1e-4))


def _accuracies(draw: Draw, clf: CRMClassifier) -> list[float]:
    accuracy = draw.accuracy(clf.predict(draw.X_test))
    return [float(accuracy.min()), float(accuracy[draw.unseen].mean()), float(accuracy[~draw.unseen].mean())]


def seconds(draw: Draw) -> dict[str, float]:
    """Seconds of a whole fit, without and with the choice of the transform."""
    found = {}
    for transform in ("none", "auto"):
        start = time.perf_counter()
        draw.fit(CRMClassifierCV(ALPHAS, prior="hull", feature_transform=transform, tol=1e-4))
        found[transform] = time.perf_counter() - start
    return found


def table_rows(found: list[dict[str, list]], mean) -> list[list[str]]:
    """Means over draws, and paired differences."""
    taken = [values["chosen"] for values in found]
    rows = []
    for name in (*TRANSFORMS, "auto"):
        values, plain = (np.array([values[key] for values in found]) for key in (name, "none"))
        label = name
        if name == "auto":
            label += f" ({', '.join(f'{taken.count(other)} {other}' for other in TRANSFORMS if other in taken)})"
        rows.append([label, *map(mean, values.T), *map(mean, (values - plain).T)])
    return rows
