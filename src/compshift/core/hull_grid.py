"""Grids of the groups inside and outside of an affine hull, as notebooks show them."""

from __future__ import annotations

import itertools
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from compshift._html import LEGEND, grid_html

if TYPE_CHECKING:
    from compshift.core.hull import AffineHull

MAX_VALUES = 40
"""Maximum number of rows and of columns of a grid; further values are left out."""

MAX_GRIDS = 8
"""Maximum number of grids, one for each combination of the attributes that are not their axes."""


def hull_html(hull: AffineHull) -> str:
    """Return the hull's description, and grids of the two attributes with the most values, as HTML."""
    space = hull.space
    sizes = np.array(space.cardinalities)
    order = np.argsort(-sizes, kind="stable")[:2]
    axes, others = np.sort(order), [number for number in range(len(sizes)) if number not in order]
    values = [[str(value) for value in own[:MAX_VALUES]] for own in (space.values[axis] for axis in axes)]
    names = [space.names[axis] for axis in axes]
    if len(axes) == 1:
        values.append([""])
    shape = len(values[0]), len(values[1])
    grids, n_grids = [], int(np.prod(sizes[others]))
    for fixed in itertools.islice(itertools.product(*(range(sizes[number]) for number in others)), MAX_GRIDS):
        codes = np.empty((shape[0] * shape[1], len(sizes)), dtype=np.int64)
        codes[:, others] = fixed
        for axis, index in zip(axes, np.indices(shape).reshape(2, -1), strict=False):
            codes[:, axis] = index
        seen, inside = space.locate(codes, hull.observed) >= 0, hull.contains(codes)
        states = np.select([seen, inside], ["seen", "inside"], "outside").reshape(shape)
        title = ", ".join(
            f"{space.names[at]} {space.values[at][value]}" for at, value in zip(others, fixed, strict=True)
        )
        grids.append(grid_html(names, values[0], values[1], states.tolist(), title))
    notes = [LEGEND]
    if max(sizes[axes]) > MAX_VALUES:
        notes.append(f"the first {MAX_VALUES} values of an attribute are shown")
    if n_grids > MAX_GRIDS:
        notes.append(f"the first {MAX_GRIDS} of {n_grids} grids are shown")
    place = "display:flex;flex-wrap:wrap;gap:1em;align-items:flex-start"
    return (
        f"<div><p><code>{escape(repr(hull))}</code></p>"
        f'<div style="{place}">{"".join(grids)}</div><p>{"; ".join(notes)}</p></div>'
    )
