"""The paper's two-dimensional example: ERM, CRM with learned or extrapolated biases, and the Bayes classifier.

There are four Gaussian groups, one of them absent from the training data. ``run_gaussian2d`` scores every method on all
four; ``draw_gaussian2d`` draws the decision regions of CRM and ERM side by side.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from compshift._checks import check_count
from compshift.core.arrays import FloatArray
from compshift.crm.classifier import CRMClassifier
from compshift.data.dataset import GroupedDataset
from compshift.data.gaussians import Gaussian2D
from compshift.metrics import GroupReport, group_report
from compshift.studies.figure_file import check_figure_path, save_figure

ALPHA = 1e-4
"""Ridge strength of CRM; two features and thousands of rows need hardly any penalty."""

GROUP_COLOURS = ("#cc79a7", "#0072b2", "#e69f00", "#009e73")
"""Colours of the four groups, from Okabe and Ito's palette for all kinds of colour vision."""

PLOT_RADIUS = 3.6
"""Largest absolute coordinate in the figure."""

GRID_STEPS = 361
"""Grid points per axis at which decision regions are computed."""


@dataclass(frozen=True, eq=False)
class Gaussian2DStudy:
    """Data, fitted models, and group reports of every method."""

    data: GroupedDataset
    crm: CRMClassifier
    crm_train_prior: CRMClassifier  # the same fit with the prior "train"
    erm: tuple[Any, Any]  # one binary classifier per attribute
    classes: dict[str, GroupReport]  # by method, for predicting z1
    groups: dict[str, GroupReport]  # by method, for predicting (z1, z2)

    def numbers(self) -> list[dict[str, Any]]:
        """Return the accuracy of each method on each group, for both tasks, as rows of a table."""
        return [
            {
                "predicting": task,
                "method": method,
                **dict(zip(("z1", "z2"), group, strict=True)),
                "seen": bool(seen),
                "accuracy": float(accuracy),
                "rows": int(count),
            }
            for task, reports in (("z1", self.classes), ("group", self.groups))
            for method, report in reports.items()
            for group, seen, accuracy, count in zip(
                report.space.decode(report.groups).tolist(), self.crm.seen_, report.accuracy, report.count, strict=True
            )
        ]

    def erm_group(self, X: FloatArray) -> Any:
        """Return the attribute values (n, 2) that ERM's two classifiers predict."""
        return np.stack([model.predict(X) for model in self.erm], axis=1)


def run_gaussian2d(n_train: int = 3000, n_test: int = 4000, random_state: int = 0) -> Gaussian2DStudy:
    """Fit every method to the three seen groups and score it on all four."""
    source = Gaussian2D(random_state)
    data = source.sample(check_count(n_train, "samples"), n_test)
    train, test = data.part("train"), data.part("test")
    z_train, z_test = train.columns(["z1", "z2"]), test.columns(["z1", "z2"])

    crm = CRMClassifier(alpha=ALPHA).fit(train.X, z_train["z1"], attributes=z_train["z2"])
    learned = copy(crm).set_params(bias="learned")
    erm = tuple(LogisticRegression().fit(train.X, z_train[name]) for name in ("z1", "z2"))
    erm_joint = LogisticRegression().fit(train.X, train.space.index(train.codes))
    bayes = source.bayes_group(test.X)
    classes = {
        "ERM": erm[0].predict(test.X),
        "CRM (B̂)": learned.predict(test.X),
        "CRM (B*)": crm.predict(test.X),
        "Bayes": bayes[:, 0],
    }
    groups = {
        "ERM": test.space.decode(test.space.codes(erm_joint.predict(test.X))),
        "CRM (B̂)": learned.predict_group(test.X),
        "CRM (B*)": crm.predict_group(test.X),
        "Bayes": bayes,
    }
    return Gaussian2DStudy(
        data=data,
        crm=crm,
        crm_train_prior=copy(crm).set_prior("train"),
        erm=erm,
        classes={name: group_report(z_test["z1"], predicted, z_test["z2"]) for name, predicted in classes.items()},
        groups={name: group_report(z_test, predicted) for name, predicted in groups.items()},
    )


def draw_gaussian2d(study: Gaussian2DStudy, path: Path) -> None:
    """Draw the decision regions of CRM under the train prior and the uniform prior, and of ERM's two classifiers."""
    check_figure_path(path)
    from matplotlib.figure import Figure

    axis = np.linspace(-PLOT_RADIUS, PLOT_RADIUS, GRID_STEPS)
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
    """Draw the decision regions, the training points, and a circle of one standard deviation around each group."""
    space = study.crm.space_
    region = space.index(space.encode(predicted)).reshape(GRID_STEPS, GRID_STEPS)
    panel.contourf(axis, axis, region, levels=np.arange(-0.5, 4), colors=GROUP_COLOURS, alpha=0.28)
    train = study.data.part("train")
    shown = slice(None, None, max(1, len(train) // 600))
    colours = np.array(GROUP_COLOURS)[space.index(train.codes[shown])]
    panel.scatter(*train.X[shown].T, s=5, c=colours, linewidths=0, alpha=0.75)
    angle = np.linspace(0, 2 * np.pi, 200)
    for position, (first, second) in enumerate(space.decode(study.crm.groups_)):
        seen = study.crm.seen_[position]
        panel.plot(
            first + np.cos(angle), second + np.sin(angle), color=GROUP_COLOURS[position], lw=2, ls="-" if seen else "--"
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
        xlim=(-PLOT_RADIUS, PLOT_RADIUS),
        ylim=(-PLOT_RADIUS, PLOT_RADIUS),
        aspect="equal",
        xlabel="$x_1$",
        xticks=[-2, 0, 2],
        yticks=[-2, 0, 2],
    )
    if panel.get_subplotspec().is_first_col():
        panel.set_ylabel("$x_2$")
