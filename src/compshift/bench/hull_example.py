"""The paper's illustration of the hull: a 6 × 6 grid whose seen groups form two components ("A Closer Look")."""

from __future__ import annotations

from typing import Any

import numpy as np

from compshift.core.groups import GroupSpace
from compshift.core.hull import AffineHull

SEEN = ((0, 0), (0, 2), (1, 0), (2, 1), (2, 2), (3, 3), (3, 4), (4, 4), (4, 5), (5, 5))
"""A path through three rows and columns each; the paper's own picture has other cells, and shows the same."""


def hull_example() -> list[dict[str, Any]]:
    """Every cell of the grid: is it seen, does it follow and from which component, or is it out of reach (0)?"""
    space = GroupSpace(("z1", "z2"), (tuple(range(1, 7)), tuple(range(1, 7))))
    hull = AffineHull(space, np.array(SEEN))
    component = np.zeros(space.cardinalities, dtype=np.int64)
    for number, (left, right) in enumerate(hull.components(), 1):
        component[np.ix_(left, right)] = number
    return [
        {
            "z1": left + 1,
            "z2": right + 1,
            "state": "seen" if (left, right) in SEEN else "extrapolable" if component[left, right] else "out of reach",
            "component": int(component[left, right]),
            "witness": hull.explain(np.array((left, right)))
            if component[left, right] and (left, right) not in SEEN
            else "",
        }
        for left, right in np.ndindex(space.cardinalities)
    ]
