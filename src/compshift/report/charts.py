"""Vega-Lite specifications of the charts on report pages: accuracy, pairs of attributes, and trust.

Group and method names appear in the specifications only as data values, never as field names or expressions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from compshift.report.page import Chart

# Colours are variables of page.css, which defines each of them for light and for dark mode.

SEEN_COLOUR = "var(--seen)"
"""Colour of seen groups."""

UNSEEN_COLOUR = "var(--marked)"
"""Colour of unseen groups."""

WORST_COLOUR = "var(--bad)"
"""Colour of each method's worst scenario and of the limits in the trust charts."""

CELL_HEIGHT = 22
"""Height of a heat map's cell, in pixels."""

MAX_LABEL_WIDTH = 190
"""Maximum width of an axis label, in pixels. Longer labels end in an ellipsis; the tooltip shows the full text."""

PAIR_STATES = {
    "all groups seen": "var(--seen)",
    "some groups seen, all determined": "var(--gained)",
    "no group seen, all determined": "var(--inside)",
    "not all groups determined": "var(--outside)",
}
"""Colour of a cell in a pair panel by its state: whether all groups with its two values are seen or, if not, whether
all of them are inside the affine hull."""

Rows = Sequence[Mapping[str, Any]]
"""Data rows of a chart; each maps field names to values."""


def _inline(rows: Rows) -> Any:
    """Return rows as data embedded in the chart's specification."""
    import altair as alt

    return alt.InlineData(values=[dict(row) for row in rows])


def _name_axis(**options: Any) -> Any:
    """Return an axis that labels every name, even if labels overlap."""
    import altair as alt

    return alt.Axis(
        **{"labelLimit": MAX_LABEL_WIDTH, "ticks": False, "domain": False, "labelOverlap": False, **options}
    )


def _page_wide(height: int) -> dict[str, Any]:
    """Return the size properties of a chart that fills the width of the page."""
    import altair as alt

    return {
        "width": "container",
        "height": height,
        "autosize": alt.AutoSizeParams(type="fit-x", contains="padding"),
    }


def _accuracy_text_colour() -> Any:
    """Return a text colour that is legible on a cell's blue, which darkens with accuracy."""
    import altair as alt

    return alt.condition(alt.datum.accuracy > 0.55, alt.value("white"), alt.value("#0b2a3c"))


def _percent_axis() -> Any:
    """Return an axis with ticks from 0 to 100 %."""
    import altair as alt

    return alt.Axis(format="%", values=[0, 0.2, 0.4, 0.6, 0.8, 1])


def _tooltips(**titles: str) -> list[Any]:
    """Return a tooltip of the given fields (keywords) and their titles; accuracies and confidences are in percent."""
    import altair as alt

    shares = {"accuracy", "lower", "upper", "expected", "confidence", "share"}
    numbers = {"ess": ",.0f", "k": ".2f", "n": ","}
    return [
        alt.Tooltip(f"{name}:Q", title=title, format=".1%" if name in shares else numbers[name])
        if name in shares or name in numbers
        else alt.Tooltip(f"{name}:N", title=title)
        for name, title in titles.items()
    ]


def _diagonal() -> Any:
    """Return the dashed diagonal, on which both axes have the same value."""
    import altair as alt

    return (
        alt.Chart(_inline([{"x": 0, "y": 0}, {"x": 1, "y": 1}]))
        .mark_line(strokeDash=[4, 4], color="currentColor", opacity=0.4)
        .encode(x="x:Q", y="y:Q")
    )


def heat_map(rows: Rows, groups: Sequence[str], methods: Sequence[str], caption: str) -> Chart:
    """Draw accuracy as a heat map of groups and methods; ▾ marks each method's worst group.

    Each row has ``group``, ``method``, ``accuracy``, its interval ``lower`` to ``upper``, and ``n`` test rows. The
    flags ``worst`` and ``unseen`` are absent where they are false.
    """
    import altair as alt

    chart = alt.Chart(_inline(rows)).transform_calculate(state=alt.expr.if_(alt.datum.unseen, "unseen", "seen"))
    base = chart.encode(
        x=alt.X("method:N", sort=list(methods), axis=_name_axis(orient="top", labelAngle=-40), title=None),
        y=alt.Y("group:N", sort=list(groups), axis=_name_axis(), title=None),
        tooltip=_tooltips(
            group="group",
            state="in training",
            method="method",
            accuracy="accuracy",
            lower="lower bound",
            upper="upper bound",
            n="rows",
        ),
    )
    cells = base.mark_rect(stroke=None).encode(
        color=alt.Color("accuracy:Q", scale=alt.Scale(domain=[0, 1], scheme="blues"), legend=None)
    )
    mark = alt.expr.if_(alt.datum.worst, " ▾", "")
    texts = (
        base.transform_calculate(label=alt.expr.format(100 * alt.datum.accuracy, ".0f") + mark)
        .mark_text(fontSize=12)
        .encode(text="label:N", color=_accuracy_text_colour())
    )
    chart = (cells + texts).properties(width=alt.Step(54), height=alt.Step(CELL_HEIGHT))
    return Chart(chart.to_dict(), caption)


def accuracy_maps(
    rows: Rows,
    names: Sequence[str],
    orders: Sequence[Sequence[str]],
    methods: Sequence[str],
    caption: str,
    mark_unseen: bool,
) -> Chart:
    """Draw accuracy on the grid of two attributes; if there are several methods, a menu selects one.

    With ``mark_unseen``, ∘ marks unseen groups. Rows are like those of ``heat_map``, but have the group's two values
    as ``first`` and ``second`` instead of ``group``.
    """
    import altair as alt

    wide, tall = len(orders[1]) <= 16, len(orders[0]) <= 30
    base = (
        alt.Chart(_inline(rows))
        .transform_filter("datum.method == method")
        .transform_calculate(
            group="'(' + datum.first + ', ' + datum.second + ')'",
            state=alt.expr.if_(alt.datum.unseen, "unseen", "seen"),
        )
        .encode(
            x=alt.X("second:N", sort=list(orders[1]), axis=_name_axis(orient="top", labelAngle=-40), title=names[1]),
            y=alt.Y("first:N", sort=list(orders[0]), axis=_name_axis(), title=names[0]),
            tooltip=_tooltips(
                group="group",
                state="in training",
                accuracy="accuracy",
                lower="lower bound",
                upper="upper bound",
                n="rows",
            ),
        )
    )
    cells = base.mark_rect().encode(
        color=alt.Color(
            "accuracy:Q",
            scale=alt.Scale(domain=[0, 1], scheme="blues"),
            legend=alt.Legend(format="%", title="accuracy"),
        )
    )
    mark = alt.expr.if_(alt.datum.worst, " ▾", "")
    mark = alt.expr.if_(alt.datum.unseen, " ∘", "") + mark if mark_unseen else mark
    number = alt.expr.format(100 * alt.datum.accuracy, ".0f") if wide else ""
    texts = (
        base.transform_calculate(label=number + mark)
        .mark_text(fontSize=11 if tall else 9)
        .encode(text="label:N", color=_accuracy_text_colour())
    )
    menu = (
        alt.param(name="method", bind=alt.binding_select(options=list(methods), name="method "), value=methods[-1])
        if len(methods) > 1
        else alt.param(name="method", value=methods[0])
    )
    chart = (cells + texts).add_params(menu)
    chart = chart.properties(width=alt.Step(44 if wide else 15), height=alt.Step(CELL_HEIGHT if tall else 14))
    return Chart(chart.to_dict(), caption)


def seen_unseen_bars(rows: Rows, methods: Sequence[str], caption: str) -> Chart:
    """Draw two bars per method: its mean accuracy on seen and on unseen groups.

    Each row has ``method``, ``state`` ("seen" or "unseen"), ``accuracy`` and ``n``, the number of groups averaged.
    """
    import altair as alt

    states = ["seen", "unseen"]
    base = alt.Chart(_inline(rows)).encode(
        y=alt.Y("method:N", sort=list(methods), axis=_name_axis(), title=None),
        yOffset=alt.YOffset("state:N", sort=states),
        x=alt.X("accuracy:Q", scale=alt.Scale(domain=[0, 1]), axis=_percent_axis(), title="mean accuracy"),
        tooltip=_tooltips(method="method", state="groups", accuracy="mean accuracy", n="number of groups"),
    )
    bars = base.mark_bar().encode(
        color=alt.Color(
            "state:N",
            scale=alt.Scale(domain=states, range=[SEEN_COLOUR, UNSEEN_COLOUR]),
            legend=alt.Legend(title=None, orient="top"),
        )
    )
    texts = base.mark_text(align="left", dx=3, fontSize=11, color="currentColor").encode(
        text=alt.Text("accuracy:Q", format=".0%")
    )
    chart = (bars + texts).properties(**_page_wide(40 * len(methods)))
    return Chart(chart.to_dict(), caption, wide=True)


def scenario_dots(rows: Rows, methods: Sequence[str], caption: str) -> Chart:
    """Draw each method's worst-group accuracy: a tick per scenario, and a labelled dot at the worst scenario.

    Each row has ``method``, ``scenario``, ``accuracy`` (of the worst group) and ``lowest``, true for the scenario to
    label.
    """
    import altair as alt

    base = alt.Chart(_inline(rows)).encode(
        x=alt.X("accuracy:Q", scale=alt.Scale(domain=[0, 1]), axis=_percent_axis(), title="worst-group accuracy"),
        y=alt.Y("method:N", sort=list(methods), axis=_name_axis(grid=True, offset=8), title=None),
        tooltip=_tooltips(method="method", scenario="training without", accuracy="worst-group accuracy"),
    )
    ticks = base.mark_tick(thickness=2, height=14, color=SEEN_COLOUR, opacity=0.7)
    lowest = base.transform_filter(alt.datum.lowest)
    points = lowest.mark_point(filled=True, size=80, color=WORST_COLOUR, opacity=1)
    names = lowest.mark_text(align="left", dx=6, dy=-13, fontSize=11, color="currentColor", limit=260).encode(
        text="scenario:N"
    )
    chart = (ticks + points + names).properties(**_page_wide(40 * len(methods)))
    return Chart(chart.to_dict(), caption, wide=True)


def short_count(count: float) -> str:
    """Abbreviate counts from 10,000 on, as in ``12k`` or ``1.5M``; round smaller ones to two decimals."""
    for unit, name in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= max(unit * 0.9995, 9999.5):
            return f"{count / unit:.2g}{name}" if count < 9.95 * unit else f"{count / unit:.0f}{name}"
    return "<0.01" if 0 < count < 0.01 else f"{round(count, 2):g}"


def pair_panel(rows: Rows, names: tuple[str, str], orders: Sequence[Sequence[str]], caption: str) -> Chart:
    """Draw the grid of two attributes; a cell stands for all groups that have its two values.

    Each row is a cell: its values ``first`` and ``second``, its ``state`` (a key of ``PAIR_STATES``), its number of
    rows ``n`` and their abbreviation ``shown``, and its numbers of ``groups``, of ``seen`` groups, and of groups
    ``inside`` the hull.
    """
    import altair as alt

    base = alt.Chart(_inline(rows)).encode(
        x=alt.X("second:N", sort=list(orders[1]), axis=_name_axis(orient="top", labelAngle=-40), title=names[1]),
        y=alt.Y("first:N", sort=list(orders[0]), axis=_name_axis(), title=names[0]),
        tooltip=_tooltips(  # attribute names stay out of tooltips: Vega-Lite makes expressions of their titles
            first="vertical axis",
            second="horizontal axis",
            n="rows",
            groups="groups",
            seen="groups seen",
            inside="groups determined",
        ),
    )
    cells = base.mark_rect(stroke="var(--paper)", strokeWidth=2).encode(
        color=alt.Color(
            "state:N",
            scale=alt.Scale(domain=list(PAIR_STATES), range=list(PAIR_STATES.values())),
            legend=alt.Legend(title=None, orient="bottom", columns=1, labelLimit=240),
        )
    )
    complete = alt.datum.state == next(iter(PAIR_STATES))
    texts = (
        base.transform_filter(alt.datum.n > 0)
        .mark_text(fontSize=11)
        .encode(
            text="shown:N",
            color=alt.condition(complete, alt.value("var(--seen-ink)"), alt.value("var(--gained-ink)")),
        )
    )
    chart = (cells + texts).properties(width=alt.Step(38), height=alt.Step(CELL_HEIGHT))
    return Chart(chart.to_dict(), caption)


def expected_and_actual(rows: Rows, caption: str) -> Chart:
    """Draw a dot per unseen group at its expected accuracy (x) and its actual accuracy (y), with both intervals.

    Each row has ``group``, ``n`` test rows, ``expected`` with ``expected_lower`` and ``expected_upper``, and the actual
    ``accuracy`` with ``lower`` and ``upper``.
    """
    import altair as alt

    share = alt.Scale(domain=[0, 1])
    base = alt.Chart(_inline(rows)).encode(
        tooltip=_tooltips(group="group", expected="expected", accuracy="actual", n="rows")
    )
    x = alt.X("expected:Q", scale=share, axis=_percent_axis(), title="expected accuracy")
    y = alt.Y("accuracy:Q", scale=share, axis=_percent_axis(), title="actual accuracy")
    horizontal = base.mark_rule(opacity=0.5, color=UNSEEN_COLOUR).encode(
        x=alt.X("expected_lower:Q", scale=share), x2="expected_upper:Q", y=y
    )
    vertical = base.mark_rule(opacity=0.5, color=UNSEEN_COLOUR).encode(
        x=x, y=alt.Y("lower:Q", scale=share), y2="upper:Q"
    )
    points = base.mark_point(filled=True, size=60, color=UNSEEN_COLOUR, opacity=1).encode(x=x, y=y)
    return Chart((_diagonal() + horizontal + vertical + points).properties(width=300, height=300).to_dict(), caption)


def trust_dots(rows: Rows, groups: Sequence[str], field: str, title: str, limit: float, caption: str) -> Chart:
    """Draw one diagnostic of each group's bias as a dot, with a dashed line at ``limit``.

    ``field`` is "ess" (effective sample size, uncertain below the limit, on a logarithmic axis) or "k" (Pareto k̂,
    uncertain above the limit). Each row has ``group``, ``state`` ("seen" or "unseen"), ``ess`` and ``k``.
    """
    import altair as alt

    scale = alt.Scale(type="log") if field == "ess" else alt.Scale(zero=False)
    x = alt.X(f"{field}:Q", scale=scale, axis=alt.Axis(tickCount=4), title=title)
    points = (
        alt.Chart(_inline(rows))
        .mark_point(filled=True, size=70, opacity=1)
        .encode(
            x=x,
            y=alt.Y("group:N", sort=list(groups), axis=_name_axis(grid=True), title=None),
            color=alt.Color(
                "state:N", scale=alt.Scale(domain=["seen", "unseen"], range=[SEEN_COLOUR, UNSEEN_COLOUR]), legend=None
            ),
            tooltip=_tooltips(group="group", state="in training", ess="ESS", k="Pareto k̂"),
        )
    )
    rule = alt.Chart(_inline([{field: limit}])).mark_rule(strokeDash=[5, 4], color=WORST_COLOUR).encode(x=x)
    return Chart((rule + points).properties(width=280, height=alt.Step(18)).to_dict(), caption)


def calibration_curves(rows: Rows, caption: str) -> Chart:
    """Draw accuracy against confidence, one curve for seen and one for unseen groups.

    Each row is a bin of predictions: ``state`` ("seen" or "unseen"), mean ``confidence``, ``accuracy`` with its
    interval ``lower`` to ``upper``, and ``n``, the number of predictions.
    """
    import altair as alt

    share = alt.Scale(domain=[0, 1])
    base = alt.Chart(_inline(rows)).encode(
        x=alt.X("confidence:Q", scale=share, axis=_percent_axis(), title="confidence"),
        color=alt.Color(
            "state:N",
            scale=alt.Scale(domain=["seen", "unseen"], range=[SEEN_COLOUR, UNSEEN_COLOUR]),
            legend=alt.Legend(title="groups", orient="top"),
        ),
        tooltip=_tooltips(
            state="groups",
            confidence="mean confidence",
            accuracy="accuracy",
            lower="lower bound",
            upper="upper bound",
            n="rows",
        ),
    )
    intervals = base.mark_rule().encode(y=alt.Y("lower:Q", scale=share, title="accuracy"), y2="upper:Q")
    y = alt.Y("accuracy:Q", scale=share, axis=_percent_axis(), title="accuracy")
    lines = base.mark_line(point={"filled": True, "size": 50, "opacity": 1}).encode(y=y)
    return Chart((_diagonal() + intervals + lines).properties(width=300, height=300).to_dict(), caption)


def interval_dots(
    rows: Rows, groups: Sequence[str], states: Mapping[str, str], title: str, caption: str, *, one_line: bool = False
) -> Chart:
    """Draw a share with its interval for each group, as a dot and a line.

    Each row has ``group``, ``state`` (a key of ``states``, which gives its colour), ``share``, ``lower`` and ``upper``.
    A group with several states has a line for each, unless ``one_line``.
    """
    import altair as alt

    several = len(rows) > len(groups) and not one_line
    x = alt.X("share:Q", scale=alt.Scale(domainMin=0), axis=alt.Axis(format="%", tickCount=5), title=title)
    base = alt.Chart(_inline(rows)).encode(
        y=alt.Y("group:N", sort=list(groups), axis=_name_axis(grid=True), title=None),
        color=alt.Color(
            "state:N",
            scale=alt.Scale(domain=list(states), range=list(states.values())),
            legend=alt.Legend(title=None, orient="top", labelLimit=240),
        ),
        tooltip=_tooltips(group="group", state="state", share=title, lower="lower bound", upper="upper bound"),
    )
    if several:
        base = base.encode(yOffset=alt.YOffset("state:N", sort=list(states), scale=alt.Scale(paddingOuter=0.3)))
    lines = base.mark_rule(strokeWidth=2, opacity=0.6).encode(x=alt.X("lower:Q", title=title), x2="upper:Q")
    points = base.mark_point(filled=True, size=60, opacity=1).encode(x=x)
    return Chart((lines + points).properties(width=300, height=alt.Step(14 if several else 18)).to_dict(), caption)


def round_lines(rows: Rows, caption: str) -> Chart:
    """Draw accuracy by the round of EM, one line for held-out groups and one for the other groups.

    Each row has ``round``, ``state`` ("unseen" for held-out groups, "seen" for the others) and ``accuracy``.
    """
    import altair as alt

    chart = (
        alt.Chart(_inline(rows))
        .mark_line(point={"filled": True, "size": 50, "opacity": 1})
        .encode(
            x=alt.X("round:Q", axis=alt.Axis(tickMinStep=1, format="d"), title="round (0: without unlabelled rows)"),
            y=alt.Y("accuracy:Q", scale=alt.Scale(zero=False), axis=alt.Axis(format="%"), title="mean accuracy"),
            color=alt.Color(
                "state:N",
                scale=alt.Scale(domain=["seen", "unseen"], range=[SEEN_COLOUR, UNSEEN_COLOUR]),
                legend=alt.Legend(
                    title=None, orient="top", labelExpr="datum.label == 'seen' ? 'other groups' : 'held-out groups'"
                ),
            ),
            tooltip=_tooltips(round="round", accuracy="mean accuracy"),
        )
    )
    return Chart(chart.properties(width=300, height=240).to_dict(), caption)
