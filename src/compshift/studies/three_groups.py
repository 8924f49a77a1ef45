"""The paper's smallest example: of two attributes with two values each, three seen groups determine the fourth.

The one-hot code of the unseen group is the sum of those of its two neighbours, less that of the opposite group (paper,
lemma "lemma1"). Energies are additive, so the same equation holds for them. The figure shows the energies of the
Gaussians of ``Gaussian2D``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from compshift.core.hull import AffineHull
from compshift.data.gaussians import GAUSSIAN2D_MISSING, GAUSSIAN2D_SPACE, Gaussian2D
from compshift.studies.figure_file import check_figure_path, new_figure, save_figure
from compshift.studies.gaussian2d import GROUP_COLOURS, PLOT_RADIUS

ENERGY_STEPS = 121
"""Grid points per axis at which energies are computed."""

SAMPLE_POINT = (-1.0, -1.0)
"""Input x at which the numbers of the figure give energies: the mean of the unseen group."""

THREE_GROUPS_CAPTION = (
    "Extrapolation from three groups to the fourth. Left: the seen groups (full colour) and the unseen one (hatched)."
    " Right, above: its one-hot code is the sum of the codes of its two neighbours, less that of the opposite group. "
    "Right, below: energies add up over the attributes, so they obey the same equation at every x. Shown are the "
    "energies of four Gaussians with means (z1, z2); dark is low, dots mark the means."
)


def three_groups() -> list[dict[str, Any]]:
    """Return the four groups: weight in the affine combination (0 for the unseen one), one-hot code, and energy.

    The energy is −log p(x|z) at ``SAMPLE_POINT``.
    """
    space = GAUSSIAN2D_SPACE
    every = space.codes(np.arange(4))
    missing = space.encode(np.array([GAUSSIAN2D_MISSING]))[0]
    hull = AffineHull(space, every[~(every == missing).all(axis=1)])
    weights = {tuple(code): int(weight) for code, weight in zip(hull.observed, hull.weights(missing), strict=True)}
    energies = -Gaussian2D().log_density(np.array([SAMPLE_POINT]))[0]
    return [
        {
            "z1": int(z1),
            "z2": int(z2),
            "seen": tuple(code) in weights,
            "weight": weights.get(tuple(code), 0),
            "code": " ".join(map(str, one_hot.astype(int))),
            "energy": float(energy),
        }
        for code, (z1, z2), one_hot, energy in zip(
            every, space.decode(every), space.one_hot(every), energies, strict=True
        )
    ]


def draw_three_groups(groups: list[dict[str, Any]], path: Path, *, caption: bool = True) -> None:
    """Draw the grid of groups, and the affine combination of their one-hot codes and of their energies."""
    check_figure_path(path)
    figure = new_figure(7.8, 3.5, THREE_GROUPS_CAPTION if caption else None)
    left, right = figure.subfigures(1, 2, width_ratios=[1, 2.3])
    _draw_grid(left.subplots(), groups)
    order = sorted((n for n in range(4) if groups[n]["seen"]), key=lambda n: -groups[n]["weight"])
    order.append(next(n for n in range(4) if not groups[n]["seen"]))
    panels = right.subplots(2, 4, height_ratios=[1.15, 1])
    axis = np.linspace(-PLOT_RADIUS, PLOT_RADIUS, ENERGY_STEPS)
    grid = np.stack([part.ravel() for part in np.meshgrid(axis, axis)], axis=1)
    energies = -Gaussian2D().log_density(grid)  # (n, 4)
    signs = ("", "+", "−", "=")
    for column, number in enumerate(order):
        group = groups[number]
        code, energy = panels[:, column]
        _draw_code(code, group, GROUP_COLOURS[number], f"({group['z1']:+d}, {group['z2']:+d})".replace("-", "−"))
        image = energies[:, number].reshape(ENERGY_STEPS, ENERGY_STEPS)
        energy.contourf(axis, axis, image, levels=np.linspace(0, energies.max(), 14), cmap="Greys_r")
        energy.plot(group["z1"], group["z2"], "o", ms=6, color=GROUP_COLOURS[number], mec="white")
        energy.set(aspect="equal", xticks=[], yticks=[])
        for panel in (code, energy):
            panel.text(-0.2, 0.5, signs[column], transform=panel.transAxes, ha="center", va="center", fontsize=15)
    for row, name in ((1, "$z_1$"), (3, "$z_2$")):
        panels[0, 0].text(-0.45, row, name, ha="center", va="center", fontsize=9)
    panels[0, 0].set_ylabel("one-hot code\n", fontsize=9)
    panels[1, 0].set_ylabel("energy $E(x, z)$\n", fontsize=9)
    save_figure(figure, path)


def _draw_grid(panel: Any, groups: list[dict[str, Any]]) -> None:
    """Draw the four groups as cells, with z1 to the right and z2 upwards as in the plane of the Gaussians."""
    from matplotlib.patches import Rectangle

    for group, colour in zip(groups, GROUP_COLOURS, strict=True):
        z1, z2, seen = group["z1"], group["z2"], group["seen"]
        panel.add_patch(
            Rectangle(
                (z1 - 1, z2 - 1),
                2,
                2,
                facecolor=colour,
                edgecolor="white",
                lw=2,
                alpha=1 if seen else 0.4,
                hatch=None if seen else "///",
            )
        )
        label = "seen" if seen else "never seen"
        panel.text(z1, z2, label, ha="center", va="center", fontsize=9, color="white" if seen else "black")
    panel.set(xlim=(-2, 2), ylim=(-2, 2), aspect="equal", xlabel="$z_1$", ylabel="$z_2$")
    panel.set(xticks=[-1, 1], xticklabels=["−1", "+1"], yticks=[-1, 1], yticklabels=["−1", "+1"])
    panel.tick_params(length=0)
    for side in panel.spines.values():
        side.set_visible(False)


def _draw_code(panel: Any, group: dict[str, Any], colour: str, title: str) -> None:
    """Draw a one-hot code as a column of four cells; ones are filled."""
    from matplotlib.patches import Rectangle

    bits = group["code"].split()
    for row, bit in enumerate(bits):
        face = colour if bit == "1" else "#f0f0f0"
        panel.add_patch(
            Rectangle((0, row), 1, 1, facecolor=face, edgecolor="white", lw=1.5, alpha=1 if group["seen"] else 0.6)
        )
        dark = bit == "1" and group["seen"]
        panel.text(0.5, row + 0.5, bit, ha="center", va="center", fontsize=9, color="white" if dark else "black")
    panel.plot([-0.2, 1.2], [2, 2], color="#555555", lw=1.5)  # between the blocks of z1 and z2
    panel.set(xlim=(-0.6, 1.6), ylim=(4, 0), xticks=[], yticks=[], aspect="equal")
    panel.set_title(title, fontsize=10)
    for side in panel.spines.values():
        side.set_visible(False)
