"""The paper's figures of the two-dimensional example: decision regions side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compshift.report.figure_file import check_figure_path, save_figure

if TYPE_CHECKING:
    from compshift.bench.gaussian2d import Gaussian2DStudy

COLOURS = ("#cc79a7", "#0072b2", "#e69f00", "#009e73")  # Okabe and Ito, told apart with any colour vision
REACH = 3.6
STEPS = 361


def draw_gaussian2d(study: Gaussian2DStudy, path: Path) -> None:
    """Regions of CRM under the train prior, of CRM under the uniform prior, and of ERM's two classifiers."""
    check_figure_path(path)
    from matplotlib.figure import Figure

    axis = np.linspace(-REACH, REACH, STEPS)
    grid = np.stack([part.ravel() for part in np.meshgrid(axis, axis)], axis=1)
    panels = (
        ("CRM, train prior", study.crm_train_prior.predict_group(grid)),
        ("CRM, uniform prior", study.crm.predict_group(grid)),
        ("ERM, one classifier per attribute", study.erm_group(grid)),
    )
    figure = Figure(figsize=(7.8, 3.1), layout="constrained")
    for panel, (title, predicted) in zip(figure.subplots(1, 3, sharey=True), panels, strict=True):
        _draw_panel(panel, study, axis, predicted)
        panel.set_title(title, fontsize=10)
    save_figure(figure, path)


def _draw_panel(panel: Any, study: Gaussian2DStudy, axis: Any, predicted: Any) -> None:
    """One panel: regions, training points, and a circle of one standard deviation for each group."""
    space = study.crm.space_
    region = space.index(space.encode(predicted)).reshape(STEPS, STEPS)
    panel.contourf(axis, axis, region, levels=np.arange(-0.5, 4), colors=COLOURS, alpha=0.28)
    train = study.data.part("train")
    shown = slice(None, None, max(1, len(train) // 600))
    colours = np.array(COLOURS)[space.index(train.codes[shown])]
    panel.scatter(*train.X[shown].T, s=5, c=colours, linewidths=0, alpha=0.75)
    angle = np.linspace(0, 2 * np.pi, 200)
    for position, (first, second) in enumerate(space.decode(study.crm.groups_)):
        seen = study.crm.seen_[position]
        panel.plot(
            first + np.cos(angle), second + np.sin(angle), color=COLOURS[position], lw=2, ls="-" if seen else "--"
        )
        panel.annotate(
            f"({first:+d}, {second:+d})" + ("" if seen else "\nnever seen"),
            (first * 2.55, second * 2.95),
            ha="center",
            va="center",
            fontsize=8,
            bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.7},
        )
    panel.set(
        xlim=(-REACH, REACH), ylim=(-REACH, REACH), aspect="equal", xlabel="$x_1$", xticks=[-2, 0, 2], yticks=[-2, 0, 2]
    )
    if panel.get_subplotspec().is_first_col():
        panel.set_ylabel("$x_2$")
