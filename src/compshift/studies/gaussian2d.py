"""The paper's two-dimensional example: ERM, CRM with learned or extrapolated biases, and the Bayes classifier.

There are four Gaussian groups, one of them absent from the training data. ``run_gaussian2d`` scores every method on all
four; ``draw_gaussian2d`` draws the regions in which CRM and ERM predict each group, ``draw_marginals`` those in which
they predict each value of a single attribute.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from compshift._checks import check_count
from compshift.core.arrays import FloatArray, IntArray
from compshift.crm.classifier import CRMClassifier
from compshift.data.dataset import GroupedDataset
from compshift.data.gaussians import Gaussian2D
from compshift.metrics import GroupReport, group_report
from compshift.studies.figure_file import check_figure_path, new_figure, save_figure

ALPHA = 1e-4
"""Ridge strength of CRM; two features and thousands of rows need hardly any penalty."""

GROUP_COLOURS = ("#cc79a7", "#0072b2", "#e69f00", "#009e73")
"""Colours of the four groups, from Okabe and Ito's palette for all kinds of colour vision."""

VALUE_COLOURS = ("#bdbdbd", "#ffffff")
"""Colours of the regions of an attribute's two values, −1 and 1; points keep the colours of their groups."""

BAYES_COLOUR = "#d55e00"
"""Colour of the Bayes classifier, the same as in ``studies.growth``."""

GROUPS_CAPTION = (
    "Four Gaussian groups, one of which (dashed) is absent from training. Under the train prior, CRM never predicts "
    "it. Under the uniform prior, CRM predicts it where it is, close to the Bayes classifier, whose boundaries are "
    "the two axes. The boundaries of ERM's two classifiers fit the three seen groups and cut through the unseen one. "
    "Circles have a radius of one standard deviation."
)
MARGINALS_CAPTION = (
    "Prediction of one attribute at a time: ERM trains a classifier of it; CRM sums the probabilities of its groups "
    "under the uniform prior. In training, which lacks the group (−1, −1), the value −1 of one attribute always comes"
    " with the value 1 of the other. So ERM's boundaries tilt and cut through the unseen group; CRM's do not."
)

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
    second: dict[str, GroupReport]  # by method, for predicting z2
    groups: dict[str, GroupReport]  # by method, for predicting (z1, z2)

    @property
    def tasks(self) -> dict[str, dict[str, GroupReport]]:
        """Reports by method for predicting z1 and for predicting the group."""
        return {"z1": self.classes, "group": self.groups}

    @property
    def marginal_tasks(self) -> dict[str, dict[str, GroupReport]]:
        """Reports by method for predicting z1 and for predicting z2."""
        return {"z1": self.classes, "z2": self.second}

    def numbers(self, tasks: Mapping[str, Mapping[str, GroupReport]]) -> list[dict[str, Any]]:
        """Return the accuracy of each method on each group, for each task, as rows of a table."""
        groups = self.crm.space_.decode(self.crm.groups_).tolist()
        return [
            {
                "predicting": task,
                "method": method,
                "z1": z1,
                "z2": z2,
                "seen": bool(seen),
                "accuracy": float(report.accuracy[row]),
                "rows": int(report.count[row]),
            }
            for task, reports in tasks.items()
            for method, report in reports.items()
            for (z1, z2), seen, row in zip(groups, self.crm.seen_, self.rows_of(report), strict=True)
        ]

    def rows_of(self, report: GroupReport) -> IntArray:
        """Return the position of each of CRM's groups in a report, whose first attribute may be z1 or z2."""
        columns = [report.space.names.index(name) for name in self.crm.space_.names]
        return np.argsort(self.crm.space_.index(report.groups[:, columns]))

    def erm_group(self, X: FloatArray) -> Any:
        """Return the attribute values (n, 2) that ERM's two classifiers predict."""
        return np.stack([model.predict(X) for model in self.erm], axis=1)

    def crm_marginals(self, X: FloatArray) -> FloatArray:
        """Return CRM's probabilities (n, 2) of the value 1 of each attribute, summed over the other attribute."""
        return _marginals(self.crm, X)


def _marginals(crm: CRMClassifier, X: FloatArray) -> FloatArray:
    """Return the probability (n, 2) of the value 1 of each attribute."""
    return np.asarray(np.exp(crm.group_log_proba(X)) @ (crm.groups_ == 1))


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
    second = {
        "ERM": erm[1].predict(test.X),
        "CRM (B̂)": np.where(_marginals(learned, test.X)[:, 1] > 0.5, 1, -1),
        "CRM (B*)": np.where(_marginals(crm, test.X)[:, 1] > 0.5, 1, -1),
        "Bayes": bayes[:, 1],
    }
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
        second={name: group_report(z_test["z2"], predicted, z_test["z1"]) for name, predicted in second.items()},
        groups={name: group_report(z_test, predicted) for name, predicted in groups.items()},
    )


def draw_gaussian2d(study: Gaussian2DStudy, path: Path, *, caption: bool = True) -> None:
    """Draw the decision regions of CRM under the train prior and the uniform prior, and of ERM's two classifiers."""
    check_figure_path(path)
    axis, grid = _plot_grid()
    panels = (
        ("CRM, train prior", study.crm_train_prior.predict_group(grid)),
        ("CRM, uniform prior", study.crm.predict_group(grid)),
        ("ERM, one classifier per attribute", study.erm_group(grid)),
    )
    figure = new_figure(7.8, 3.1, GROUPS_CAPTION if caption else None)
    space = study.crm.space_
    for panel, (title, predicted) in zip(figure.subplots(1, 3, sharey=True), panels, strict=True):
        region = space.index(space.encode(predicted)).reshape(GRID_STEPS, GRID_STEPS)
        panel.contourf(axis, axis, region, levels=np.arange(-0.5, 4), colors=GROUP_COLOURS, alpha=0.28)
        _draw_groups(panel, study)
        panel.set_title(title, fontsize=10)
    save_figure(figure, path)


def draw_marginals(study: Gaussian2DStudy, path: Path, *, caption: bool = True) -> None:
    """Draw the regions in which ERM (left) and CRM (right) predict each value of z1 (above) and of z2 (below)."""
    check_figure_path(path)
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    axis, grid = _plot_grid()
    erm = np.stack([model.predict_proba(grid)[:, 1] for model in study.erm], axis=1)
    figure = new_figure(5.6, 5.9, MARGINALS_CAPTION if caption else None)
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    for column, (method, probability) in enumerate((("ERM", erm), ("CRM, uniform prior", study.crm_marginals(grid)))):
        for attribute in (0, 1):
            panel = panels[attribute, column]
            one = probability[:, attribute].reshape(GRID_STEPS, GRID_STEPS)
            panel.contourf(axis, axis, one, levels=[-1, 0.5, 2], colors=VALUE_COLOURS, alpha=0.6)
            panel.contour(axis, axis, one, levels=[0.5], colors="black", linewidths=1.5)
            (panel.axvline if attribute == 0 else panel.axhline)(0, ls="--", lw=1.5, color=BAYES_COLOUR)
            _draw_groups(panel, study)
            panel.set_title(f"{method}: $z_{attribute + 1}$", fontsize=10)
    handles = [
        Patch(facecolor=VALUE_COLOURS[0], alpha=0.6, label="predicts −1"),
        Patch(facecolor=VALUE_COLOURS[1], edgecolor="#999999", label="predicts 1"),
        Line2D([], [], ls="--", lw=1.5, color=BAYES_COLOUR, label="boundary of the Bayes classifier"),
    ]
    save_figure(figure, path, legend=(handles, [handle.get_label() for handle in handles]))


def _plot_grid() -> tuple[FloatArray, FloatArray]:
    """Return the coordinates (GRID_STEPS,) of an axis of the figure, and all points (GRID_STEPS², 2) of its grid."""
    axis = np.linspace(-PLOT_RADIUS, PLOT_RADIUS, GRID_STEPS)
    return axis, np.stack([part.ravel() for part in np.meshgrid(axis, axis)], axis=1)


def _draw_groups(panel: Any, study: Gaussian2DStudy) -> None:
    """Draw the training points, and a labelled circle of one standard deviation around each group."""
    space = study.crm.space_
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
            f"({first:+d}, {second:+d})".replace("-", "−") + ("" if seen else "\nnever seen"),
            (first * 2.45, second * 2.95),
            ha="center",
            va="center",
            fontsize=8,
            bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.7},
        )
    panel.set(
        xlim=(-PLOT_RADIUS, PLOT_RADIUS),
        ylim=(-PLOT_RADIUS, PLOT_RADIUS),
        aspect="equal",
        xticks=[-2, 0, 2],
        yticks=[-2, 0, 2],
    )
    if panel.get_subplotspec().is_last_row():
        panel.set_xlabel("$x_1$")
    if panel.get_subplotspec().is_first_col():
        panel.set_ylabel("$x_2$")
