"""Charts of the pages, as Vega-Lite specifications: accuracy, pairs of attributes, and trust.

Group and method names appear in the specifications only as data values, never as field names or expressions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from compshift.report.page import Chart

SEEN_COLOUR, UNSEEN_COLOUR, WORST_COLOUR = "var(--seen)", "var(--marked)", "var(--bad)"
"""Colours of seen and unseen groups and of worst cases; variables of ``page.css``, which knows light and dark."""

CELL_WIDTH, CELL_HEIGHT = 54, 22
"""Size of a heat map's cells, in pixels."""

MAX_LABEL_WIDTH = 190
"""Largest width of an axis label, in pixels; longer ones end in an ellipsis, and the tooltip shows them in full."""

PAIR_STATES = {
    "has rows, all determined": "var(--seen)",
    "has rows, not all determined": "var(--gained)",
    "no rows, all determined": "var(--inside)",
    "no rows, not all determined": "var(--outside)",
}
"""States of the groups that share a pair of values, and their colours."""

Rows = Sequence[Mapping[str, Any]]


def _inline(rows: Rows) -> Any:
    """Return rows as the inline data of a chart."""
    import altair as alt

    return alt.InlineData(values=[dict(row) for row in rows])


def _name_axis(**options: Any) -> Any:
    """Return an axis of names, all of them shown."""
    import altair as alt

    return alt.Axis(
        **{"labelLimit": MAX_LABEL_WIDTH, "ticks": False, "domain": False, "labelOverlap": False, **options}
    )


def _page_wide(height: int) -> dict[str, Any]:
    """Return the properties of a chart that is as wide as the page."""
    import altair as alt

    return {
        "width": "container",
        "height": height,
        "autosize": alt.AutoSizeParams(type="fit-x", contains="padding"),
    }


def _on_blue() -> Any:
    """Return a text colour that is legible on the blue of a cell's accuracy."""
    import altair as alt

    return alt.condition(alt.datum.accuracy > 0.55, alt.value("white"), alt.value("#0b2a3c"))


def _percent_axis() -> Any:
    """Return an axis of accuracies, 0 to 100 %."""
    import altair as alt

    return alt.Axis(format="%", values=[0, 0.2, 0.4, 0.6, 0.8, 1])


def _tooltips(**titles: str) -> list[Any]:
    """Return tooltips of the given fields under the given titles, with accuracies in percent."""
    import altair as alt

    shares = {"accuracy", "lower", "upper", "expected", "confidence"}
    numbers = {"ess": ",.0f", "k": ".2f", "n": ","}
    return [
        alt.Tooltip(f"{name}:Q", title=title, format=".1%" if name in shares else numbers[name])
        if name in shares or name in numbers
        else alt.Tooltip(f"{name}:N", title=title)
        for name, title in titles.items()
    ]


def _diagonal() -> Any:
    """Return the dashed line on which both axes agree."""
    import altair as alt

    return (
        alt.Chart(_inline([{"x": 0, "y": 0}, {"x": 1, "y": 1}]))
        .mark_line(strokeDash=[4, 4], color="currentColor", opacity=0.4)
        .encode(x="x:Q", y="y:Q")
    )


def heat_map(rows: Rows, groups: Sequence[str], methods: Sequence[str], caption: str) -> Chart:
    """Draw the accuracy of each group by each method; ▾ marks each method's worst group.

    A row has ``group``, ``method``, ``accuracy``, ``lower``, ``upper`` and ``n``, and ``worst`` and ``unseen`` where
    they are true.
    """
    import altair as alt

    known = alt.Chart(_inline(rows)).transform_calculate(state=alt.expr.if_(alt.datum.unseen, "unseen", "seen"))
    base = known.encode(
        x=alt.X("method:N", sort=list(methods), axis=_name_axis(orient="top", labelAngle=-40), title=None),
        y=alt.Y("group:N", sort=list(groups), axis=_name_axis(), title=None),
        tooltip=_tooltips(
            group="group", state="in training", method="method", accuracy="accuracy", lower="from", upper="to", n="rows"
        ),
    )
    cells = base.mark_rect(stroke=None).encode(
        color=alt.Color("accuracy:Q", scale=alt.Scale(domain=[0, 1], scheme="blues"), legend=None)
    )
    label = alt.expr.if_(alt.datum.worst, " ▾", "")
    texts = (
        base.transform_calculate(label=alt.expr.format(100 * alt.datum.accuracy, ".0f") + label)
        .mark_text(fontSize=12)
        .encode(
            text="label:N",
            color=_on_blue(),
        )
    )
    chart = (cells + texts).properties(width=alt.Step(CELL_WIDTH), height=alt.Step(CELL_HEIGHT))
    return Chart(chart.to_dict(), caption)


def accuracy_maps(
    rows: Rows,
    names: Sequence[str],
    orders: Sequence[Sequence[str]],
    methods: Sequence[str],
    caption: str,
    mark_unseen: bool,
) -> Chart:
    """Draw accuracy on the grid of two attributes; with several methods, a menu selects one.

    ∘ marks unseen groups if ``mark_unseen``. Rows are those of ``heat_map``, with the two values as ``first`` and
    ``second`` instead of ``group``.
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
                group="group", state="in training", accuracy="accuracy", lower="from", upper="to", n="rows"
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
        .encode(text="label:N", color=_on_blue())
    )
    chosen = (
        alt.param(name="method", bind=alt.binding_select(options=list(methods), name="method "), value=methods[-1])
        if len(methods) > 1
        else alt.param(name="method", value=methods[0])
    )
    chart = (cells + texts).add_params(chosen)
    chart = chart.properties(width=alt.Step(44 if wide else 15), height=alt.Step(CELL_HEIGHT if tall else 14))
    return Chart(chart.to_dict(), caption)


def seen_unseen_bars(rows: Rows, methods: Sequence[str], caption: str) -> Chart:
    """Draw two bars per method. A row has ``method``, ``state`` (seen or unseen), ``accuracy`` and ``n`` groups."""
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
    """Draw a tick per scenario, and a labelled dot at each method's worst scenario.

    A row has ``method``, ``scenario``, ``accuracy`` (of the worst group) and ``lowest``, true for the worst scenario.
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
    """Return a count in at most five characters: ``12k``, ``1.5M``."""
    for unit, name in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= max(unit * 0.9995, 9999.5):
            return f"{count / unit:.2g}{name}" if count < 9.95 * unit else f"{count / unit:.0f}{name}"
    return "<0.01" if 0 < count < 0.01 else f"{round(count, 2):g}"


def pair_panel(rows: Rows, names: tuple[str, str], orders: Sequence[Sequence[str]], caption: str) -> Chart:
    """Draw the grid of two attributes; a cell stands for all groups that have its two values.

    A row has ``first``, ``second``, ``state`` (of ``PAIR_STATES``), ``n`` rows and the text ``shown`` for them, the
    number of ``groups``, and how many of these are ``seen`` and ``inside`` the hull.
    """
    import altair as alt

    base = alt.Chart(_inline(rows)).encode(
        x=alt.X("second:N", sort=list(orders[1]), axis=_name_axis(orient="top", labelAngle=-40), title=names[1]),
        y=alt.Y("first:N", sort=list(orders[0]), axis=_name_axis(), title=names[0]),
        tooltip=_tooltips(first="down", second="across", n="rows", groups="groups", seen="seen", inside="determined"),
    )
    cells = base.mark_rect(stroke="var(--paper)", strokeWidth=2).encode(
        color=alt.Color(
            "state:N",
            scale=alt.Scale(domain=list(PAIR_STATES), range=list(PAIR_STATES.values())),
            legend=alt.Legend(title=None, orient="bottom", columns=1, labelLimit=220),
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
    """Draw expected against actual accuracy of unseen groups, both with intervals."""
    import altair as alt

    share = alt.Scale(domain=[0, 1])
    base = alt.Chart(_inline(rows)).encode(
        tooltip=_tooltips(group="group", expected="expected", accuracy="actual", n="rows")
    )
    x = alt.X("expected:Q", scale=share, axis=_percent_axis(), title="expected accuracy")
    y = alt.Y("accuracy:Q", scale=share, axis=_percent_axis(), title="actual accuracy")
    across = base.mark_rule(opacity=0.5, color=UNSEEN_COLOUR).encode(
        x=alt.X("expected_lower:Q", scale=share), x2="expected_upper:Q", y=y
    )
    upright = base.mark_rule(opacity=0.5, color=UNSEEN_COLOUR).encode(
        x=x, y=alt.Y("lower:Q", scale=share), y2="upper:Q"
    )
    points = base.mark_point(filled=True, size=60, color=UNSEEN_COLOUR, opacity=1).encode(x=x, y=y)
    return Chart((_diagonal() + across + upright + points).properties(width=300, height=300).to_dict(), caption)


def trust_dots(rows: Rows, groups: Sequence[str], field: str, title: str, limit: float, caption: str) -> Chart:
    """Draw a dot per group, and a line at the ``limit`` of trust. The axis of the field ``ess`` is logarithmic."""
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
    """Draw accuracy against confidence in bins, for rows of seen and of unseen groups."""
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
            state="groups", confidence="mean confidence", accuracy="accuracy", lower="from", upper="to", n="rows"
        ),
    )
    bars = base.mark_rule().encode(y=alt.Y("lower:Q", scale=share, title="accuracy"), y2="upper:Q")
    y = alt.Y("accuracy:Q", scale=share, axis=_percent_axis(), title="accuracy")
    lines = base.mark_line(point={"filled": True, "size": 50, "opacity": 1}).encode(y=y)
    return Chart((_diagonal() + bars + lines).properties(width=300, height=300).to_dict(), caption)
