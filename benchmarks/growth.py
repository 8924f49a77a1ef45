"""How the time of one iteration grows: with rows, with features, and with groups.

Timed are one evaluation of step 1, the risk and its gradient that every iteration of a fit asks for once, and B*, which
is computed once after it. The times are drawn to out/growth_of_cost.png.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from measure import Row, seconds_in_turns

from compshift import GroupSpace
from compshift.core.bias import rows_worth_merging
from compshift.core.candidates import Candidates
from compshift.crm.blocks import ArrayRows
from compshift.crm.fit import FitParams, StandardisedRows, StepTwoSums, step_two_sums
from compshift.studies.figure_file import save_figure, write_numbers

FIGURE = Path("out/growth_of_cost.png")
TARGET = 2.2
REPEAT = 21
STEP_ONE, B_STAR = "an evaluation of step 1", "B*"
COLOURS = {STEP_ONE: "#0072b2", B_STAR: "#d55e00"}


class Size(NamedTuple):
    """Of a problem; half of its groups are seen."""

    n: int = 20_000
    p: int = 64
    cardinalities: tuple[int, ...] = (30, 6)

    @property
    def n_groups(self) -> int:
        """All combinations."""
        return int(np.prod(self.cardinalities))


class Axis(NamedTuple):
    """What doubles, from problem to problem."""

    symbol: str
    title: str
    of: Callable[[Size], int]
    sizes: list[Size]
    works: tuple[str, ...] = (STEP_ONE, B_STAR)

    @property
    def values(self) -> list[int]:
        """What doubles, in each problem."""
        return [self.of(size) for size in self.sizes]


GRIDS = ((10, 10), (10, 20), (20, 20), (20, 40), (40, 40))
BINARY = tuple((2,) * m for m in range(7, 12))
N_FOR_GROUPS = 40_000
"""Rows enough that B* has a block for each thread, however few groups there are."""

AXES = (
    Axis("n", "rows", lambda size: size.n, [Size(n=10_000 << i) for i in range(5)]),
    Axis("p", "features", lambda size: size.p, [Size(p=64 << i) for i in range(5)], (STEP_ONE,)),
    Axis("g", "groups of two attributes", lambda size: size.n_groups, [Size(N_FOR_GROUPS, 64, grid) for grid in GRIDS]),
    Axis(
        "g",
        "groups of binary attributes",
        lambda size: size.n_groups,
        [Size(N_FOR_GROUPS, 64, grid) for grid in BINARY],
    ),
)


class Curve(NamedTuple):
    """Seconds of a work at each problem of an axis."""

    axis: Axis
    work: str
    seconds: list[float]

    @property
    def ratios(self) -> list[float]:
        """Of neighbours, each of which is twice the one before."""
        return [after / before for before, after in pairwise(self.seconds)]

    @property
    def mean_ratio(self) -> float:
        """By the slope of a line through all points, logarithm against logarithm."""
        return float(2 ** np.polyfit(np.log(self.axis.values), np.log(self.seconds), 1)[0])


def rows() -> Iterator[Row]:
    """The largest and the mean ratio of times, along each axis."""
    curves = []
    for axis in AXES:
        for curve in _curves(axis):
            yield _row(curve)
            curves.append(curve)
    FIGURE.parent.mkdir(exist_ok=True)
    _draw(curves)
    numbers = [
        {"axis": curve.axis.title, "size": size, "work": curve.work, "seconds": taken}
        for curve in curves
        for size, taken in zip(curve.axis.values, curve.seconds, strict=True)
    ]
    write_numbers(numbers, FIGURE.with_suffix(".csv"))


def _row(curve: Curve) -> Row:
    axis, largest = curve.axis, max(curve.ratios)
    at = curve.ratios.index(largest)
    before, after = (f"{axis.values[i]} {axis.title}: {1000 * curve.seconds[i]:.1f} ms" for i in (at, at + 1))
    return Row(
        f"time of {curve.work}, {axis.symbol} = {axis.values[0]} … {axis.values[-1]} {axis.title}",
        f"{axis.symbol} × 2",
        f"×{largest:.2f} at most, ×{curve.mean_ratio:.2f} on average",
        f"×{TARGET}",
        largest <= TARGET,
        f"{before}, {after}; {os.getloadavg()[0]:.1f} threads at work on {os.cpu_count()} cores",
    )


def _curves(axis: Axis) -> list[Curve]:
    """Times along an axis; problems take turns."""
    problems = [_works(size) for size in axis.sizes]
    return [Curve(axis, work, seconds_in_turns([made[work] for made in problems], REPEAT)) for work in axis.works]


def _works(size: Size) -> dict[str, Callable[[], Any]]:
    """What is timed, on additive means in unit noise, at random weights."""
    rng = np.random.default_rng(0)
    space = GroupSpace.from_cardinalities(size.cardinalities)
    seen = space.codes(np.sort(rng.choice(space.n_groups, space.n_groups // 2, replace=False)))
    position = np.concatenate([np.arange(len(seen)), rng.integers(len(seen), size=size.n - len(seen))])
    means = space.one_hot(seen) @ rng.normal(size=(space.width, size.p)) * 0.3  # (k, p)
    X = means[position] + rng.normal(size=(size.n, size.p))
    candidates = Candidates.of(space, seen, np.bincount(position).astype(np.float64), "all")
    training = StandardisedRows.of(X, position, np.ones(size.n), candidates)
    problem = training.problem(FitParams(alpha=1e-2))
    weight, bias = rng.normal(size=problem.shape) / np.sqrt(size.p), np.zeros(len(seen))
    energies = training.features @ weight.T  # (n, D)
    rows = ArrayRows(energies, position, training.weight, rows_worth_merging(candidates.table))

    def b_star() -> None:
        log_score = np.log(training.frequency) - bias
        rows.total(step_two_sums, StepTwoSums.merge, None, training.seen, log_score, (candidates.table,))

    return {STEP_ONE: lambda: problem.evaluate(weight, bias), B_STAR: b_star}


def _draw(curves: list[Curve]) -> None:
    """A panel for each of n, p and g: milliseconds against size, with what growth in proportion would be."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, LogLocator, NullLocator, StrMethodFormatter

    figure = Figure(figsize=(9.4, 3.7), layout="constrained")
    panels = dict(zip("npg", figure.subplots(1, 3, sharey=True), strict=True))
    for curve in curves:
        panel, values = panels[curve.axis.symbol], curve.axis.values
        times = 1000 * np.array(curve.seconds)
        binary = curve.axis is AXES[-1]
        label = f"{curve.work}, binary attributes" if binary else curve.work
        style = "s--" if binary else "o-"
        panel.plot(values, times, style, ms=4, color=COLOURS[curve.work], mfc="white" if binary else None, label=label)
    for axis in AXES[:3]:
        panel = panels[axis.symbol]
        ends = np.array([axis.values[0], axis.values[-1]])
        start = next(1000 * curve.seconds[0] for curve in curves if curve.axis is axis)
        panel.plot(ends, start * ends / ends[0], ":", color="#555555", zorder=1, label="in proportion (slope 1)")
        panel.set(xscale="log", yscale="log", xlabel=f"{axis.title.split(' of ')[0]} ${axis.symbol}$")
        panel.xaxis.set_major_locator(FixedLocator(axis.values))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:g}k" if x >= 10_000 else f"{x:g}")
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        panel.yaxis.set_minor_locator(NullLocator())
        panel.grid(alpha=0.25)
    size, grouped = Size(), AXES[-1].sizes[0]
    groups = " × ".join(map(str, size.cardinalities))
    titles = (
        f"$p = {size.p}$, {groups} groups",
        f"$n = {size.n}$, {groups} groups",
        f"$n = {grouped.n}$, $p = {grouped.p}$",
    )
    for panel, title in zip(panels.values(), titles, strict=True):
        panel.set_title(title, fontsize=11)
    panels["n"].set_ylabel("milliseconds")
    save_figure(figure, FIGURE, legend=panels["g"].get_legend_handles_labels())
