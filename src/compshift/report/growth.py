"""The study of varying group sizes as a picture and a table of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from compshift.bench.growth import Outcome
from compshift.report.figure_file import check_figure_path, save_figure

COLOURS = {"accuracy": "#0072b2", "bayes": "#d55e00", "inside": "#009e73"}


def draw_growth(outcomes: Sequence[Outcome], path: Path) -> None:
    """One panel per setting: accuracy on z1 against the share of groups kept, with Bayes and the hull's share."""
    check_figure_path(path)
    from matplotlib.figure import Figure

    settings = sorted({(outcome.job.attributes, outcome.job.values) for outcome in outcomes})
    columns = min(3, len(settings))
    rows = -(-len(settings) // columns)
    figure = Figure(figsize=(2.2 * columns + 0.4, 2.3 * rows + 0.7), layout="constrained")
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False).ravel()
    for panel in panels[len(settings) :]:
        panel.set_axis_off()
    for panel, (m, d) in zip(panels, settings, strict=False):
        chosen = [outcome for outcome in outcomes if (outcome.job.attributes, outcome.job.values) == (m, d)]
        shares = sorted({outcome.job.share for outcome in chosen})
        at = [[outcome for outcome in chosen if outcome.job.share == share] for share in shares]
        percent = [100 * share for share in shares]
        means = [np.mean([outcome.accuracy for outcome in part]) for part in at]
        errors = [_standard_error([outcome.accuracy for outcome in part]) for part in at]
        inside = [np.mean([outcome.share_inside for outcome in part]) for part in at]
        bayes = float(np.mean([outcome.bayes for outcome in chosen]))
        panel.axhline(bayes, ls="--", color=COLOURS["bayes"], label="Bayes")
        panel.plot(percent, inside, "d:", ms=4, color=COLOURS["inside"], label="share of groups inside the hull")
        panel.errorbar(percent, means, errors, fmt="o-", ms=4, color=COLOURS["accuracy"], label="CRM, all groups")
        panel.set(title=f"$m = {m}$, $d = {d}$", xlabel="groups kept (%)", xlim=(0, 104), ylim=(0, 1.04))
        panel.grid(alpha=0.25)
    panels[0].set_ylabel("accuracy on $z_1$")
    save_figure(figure, path, legend=panels[0].get_legend_handles_labels(), columns=min(3, columns))


def _standard_error(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
