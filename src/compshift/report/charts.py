"""What the charts of pages are made of. Names of groups and methods are values in them, never names of fields.

Charts of accuracy, as Vega-Lite: by group, method and scenario.

Charts of what is known of groups with more than two attributes, as Vega-Lite.

Charts of how far a model can be trusted, as Vega-Lite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from compshift.report.page import Chart

SEEN, UNSEEN, WORST = "var(--seen)", "var(--marked)", "var(--bad)"
CELL_HEIGHT = 22
LONGEST_LABEL = 190
"""Pixels; longer labels end in an ellipsis, and the tooltip has them whole."""

Rows = Sequence[Mapping[str, Any]]


def inline(rows: Rows) -> Any:
    import altair as alt

    return alt.InlineData(values=[dict(row) for row in rows])


def name_axis(**options: Any) -> Any:
    import altair as alt

    return alt.Axis(**{"labelLimit": LONGEST_LABEL, "ticks": False, "domain": False, "labelOverlap": False, **options})


def page_wide(height: int) -> dict[str, Any]:
    import altair as alt

    return {
        "width": "container",
        "height": height,
        "autosize": alt.AutoSizeParams(type="fit-x", contains="padding"),
    }


def on_blue() -> Any:
    """A colour of text that can be read on the colour of its accuracy."""
    import altair as alt

    return alt.condition(alt.datum.accuracy > 0.55, alt.value("white"), alt.value("#0b2a3c"))


def percent_axis() -> Any:
    import altair as alt

    return alt.Axis(format="%", values=[0, 0.2, 0.4, 0.6, 0.8, 1])


def percent_legend() -> Any:
    import altair as alt

    return alt.Legend(format="%", title="accuracy")


def tooltips(**titles: str) -> list[Any]:
    """Fields with the names that people read; shares in percent."""
    import altair as alt

    shares = {"accuracy", "lower", "upper", "expected", "confidence"}
    numbers = {"ess": ",.0f", "k": ".2f", "n": ","}
    return [
        alt.Tooltip(f"{name}:Q", title=title, format=".1%" if name in shares else numbers[name])
        if name in shares or name in numbers
        else alt.Tooltip(f"{name}:N", title=title)
        for name, title in titles.items()
    ]


def diagonal() -> Any:
    import altair as alt

    return (
        alt.Chart(inline([{"x": 0, "y": 0}, {"x": 1, "y": 1}]))
        .mark_line(strokeDash=[4, 4], color="currentColor", opacity=0.4)
        .encode(x="x:Q", y="y:Q")
    )


CELL_WIDTH = 54


def heat_map(rows: Rows, groups: Sequence[str], methods: Sequence[str], caption: str) -> Chart:
    """Accuracy of each group by each method; each method's worst group has a ▾.

    A row has ``group``, ``method``, ``accuracy``, ``lower``, ``upper``, ``n``, and ``worst`` and ``unseen`` if they are
    true.
    """
    import altair as alt

    known = alt.Chart(inline(rows)).transform_calculate(state=alt.expr.if_(alt.datum.unseen, "unseen", "seen"))
    base = known.encode(
        x=alt.X("method:N", sort=list(methods), axis=name_axis(orient="top", labelAngle=-40), title=None),
        y=alt.Y("group:N", sort=list(groups), axis=name_axis(), title=None),
        tooltip=tooltips(
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
            color=on_blue(),
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
    """Accuracy on the grid of two attributes, of the method that is chosen if there are several.

    Unseen groups have a ∘ if they are to be told from others. A row has ``first`` and ``second``, its values, instead
    of ``group``, and else what rows of ``heat_map`` have.
    """
    import altair as alt

    wide, tall = len(orders[1]) <= 16, len(orders[0]) <= 30
    base = (
        alt.Chart(inline(rows))
        .transform_filter("datum.method == method")
        .transform_calculate(
            group="'(' + datum.first + ', ' + datum.second + ')'",
            state=alt.expr.if_(alt.datum.unseen, "unseen", "seen"),
        )
        .encode(
            x=alt.X("second:N", sort=list(orders[1]), axis=name_axis(orient="top", labelAngle=-40), title=names[1]),
            y=alt.Y("first:N", sort=list(orders[0]), axis=name_axis(), title=names[0]),
            tooltip=tooltips(
                group="group", state="in training", accuracy="accuracy", lower="from", upper="to", n="rows"
            ),
        )
    )
    cells = base.mark_rect().encode(
        color=alt.Color("accuracy:Q", scale=alt.Scale(domain=[0, 1], scheme="blues"), legend=percent_legend())
    )
    mark = alt.expr.if_(alt.datum.worst, " ▾", "")
    mark = alt.expr.if_(alt.datum.unseen, " ∘", "") + mark if mark_unseen else mark
    number = alt.expr.format(100 * alt.datum.accuracy, ".0f") if wide else ""
    texts = (
        base.transform_calculate(label=number + mark)
        .mark_text(fontSize=11 if tall else 9)
        .encode(text="label:N", color=on_blue())
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
    """Two bars for each method. A row has ``method``, ``state`` (seen or unseen), ``accuracy`` and ``n`` groups."""
    import altair as alt

    states = ["seen", "unseen"]
    base = alt.Chart(inline(rows)).encode(
        y=alt.Y("method:N", sort=list(methods), axis=name_axis(), title=None),
        yOffset=alt.YOffset("state:N", sort=states),
        x=alt.X("accuracy:Q", scale=alt.Scale(domain=[0, 1]), axis=percent_axis(), title="mean accuracy"),
        tooltip=tooltips(method="method", state="groups", accuracy="mean accuracy", n="number of groups"),
    )
    bars = base.mark_bar().encode(
        color=alt.Color(
            "state:N",
            scale=alt.Scale(domain=states, range=[SEEN, UNSEEN]),
            legend=alt.Legend(title=None, orient="top"),
        )
    )
    texts = base.mark_text(align="left", dx=3, fontSize=11, color="currentColor").encode(
        text=alt.Text("accuracy:Q", format=".0%")
    )
    chart = (bars + texts).properties(**page_wide(40 * len(methods)))
    return Chart(chart.to_dict(), caption, wide=True)


def scenario_dots(rows: Rows, methods: Sequence[str], caption: str) -> Chart:
    """A tick for each scenario, and a dot with a name at each method's worst.

    A row has ``method``, ``scenario``, ``accuracy`` (of the worst group) and ``lowest``.
    """
    import altair as alt

    base = alt.Chart(inline(rows)).encode(
        x=alt.X("accuracy:Q", scale=alt.Scale(domain=[0, 1]), axis=percent_axis(), title="worst-group accuracy"),
        y=alt.Y("method:N", sort=list(methods), axis=name_axis(grid=True, offset=8), title=None),
        tooltip=tooltips(method="method", scenario="training without", accuracy="worst-group accuracy"),
    )
    ticks = base.mark_tick(thickness=2, height=14, color=SEEN, opacity=0.7)
    lowest = base.transform_filter(alt.datum.lowest)
    points = lowest.mark_point(filled=True, size=80, color=WORST, opacity=1)
    names = lowest.mark_text(align="left", dx=6, dy=-13, fontSize=11, color="currentColor", limit=260).encode(
        text="scenario:N"
    )
    chart = (ticks + points + names).properties(**page_wide(40 * len(methods)))
    return Chart(chart.to_dict(), caption, wide=True)


PAIR_STATES = {
    "has rows, all determined": "var(--seen)",
    "has rows, not all determined": "var(--gained)",
    "no rows, all determined": "var(--inside)",
    "no rows, not all determined": "var(--outside)",
}
"""What may be known of the groups that share two values."""


def short_count(count: float) -> str:
    """A count in five characters at most."""
    for unit, name in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= max(unit * 0.9995, 9999.5):
            return f"{count / unit:.2g}{name}" if count < 9.95 * unit else f"{count / unit:.0f}{name}"
    return "<0.01" if 0 < count < 0.01 else f"{round(count, 2):g}"


def pair_panel(rows: Rows, names: tuple[str, str], orders: Sequence[Sequence[str]], caption: str) -> Chart:
    """What is known of the groups with each pair of values of two attributes.

    A row has ``first``, ``second``, ``state``, ``n`` rows, which are ``shown`` so, and how many of its ``groups`` are
    ``seen`` and ``inside``.
    """
    import altair as alt

    base = alt.Chart(inline(rows)).encode(
        x=alt.X("second:N", sort=list(orders[1]), axis=name_axis(orient="top", labelAngle=-40), title=names[1]),
        y=alt.Y("first:N", sort=list(orders[0]), axis=name_axis(), title=names[0]),
        tooltip=tooltips(first="down", second="across", n="rows", groups="groups", seen="seen", inside="determined"),
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
    """What the fit expected of unseen groups against what they got, both with their intervals."""
    import altair as alt

    share = alt.Scale(domain=[0, 1])
    base = alt.Chart(inline(rows)).encode(
        tooltip=tooltips(group="group", expected="expected", accuracy="actual", n="rows")
    )
    x = alt.X("expected:Q", scale=share, axis=percent_axis(), title="expected accuracy")
    y = alt.Y("accuracy:Q", scale=share, axis=percent_axis(), title="actual accuracy")
    across = base.mark_rule(opacity=0.5, color=UNSEEN).encode(
        x=alt.X("expected_lower:Q", scale=share), x2="expected_upper:Q", y=y
    )
    upright = base.mark_rule(opacity=0.5, color=UNSEEN).encode(x=x, y=alt.Y("lower:Q", scale=share), y2="upper:Q")
    points = base.mark_point(filled=True, size=60, color=UNSEEN, opacity=1).encode(x=x, y=y)
    return Chart((diagonal() + across + upright + points).properties(width=300, height=300).to_dict(), caption)


def trust_dots(rows: Rows, groups: Sequence[str], field: str, title: str, limit: float, caption: str) -> Chart:
    """A dot for each group, and a line where trust ends. The ESS is on a logarithmic axis."""
    import altair as alt

    scale = alt.Scale(type="log") if field == "ess" else alt.Scale(zero=False)
    x = alt.X(f"{field}:Q", scale=scale, axis=alt.Axis(tickCount=4), title=title)
    points = (
        alt.Chart(inline(rows))
        .mark_point(filled=True, size=70, opacity=1)
        .encode(
            x=x,
            y=alt.Y("group:N", sort=list(groups), axis=name_axis(grid=True), title=None),
            color=alt.Color("state:N", scale=alt.Scale(domain=["seen", "unseen"], range=[SEEN, UNSEEN]), legend=None),
            tooltip=tooltips(group="group", state="in training", ess="ESS", k="Pareto k̂"),
        )
    )
    rule = alt.Chart(inline([{field: limit}])).mark_rule(strokeDash=[5, 4], color=WORST).encode(x=x)
    return Chart((rule + points).properties(width=280, height=alt.Step(18)).to_dict(), caption)


def calibration_curves(rows: Rows, caption: str) -> Chart:
    """Accuracy against confidence in bins, for rows of seen and of unseen groups."""
    import altair as alt

    share = alt.Scale(domain=[0, 1])
    base = alt.Chart(inline(rows)).encode(
        x=alt.X("confidence:Q", scale=share, axis=percent_axis(), title="confidence"),
        color=alt.Color(
            "state:N",
            scale=alt.Scale(domain=["seen", "unseen"], range=[SEEN, UNSEEN]),
            legend=alt.Legend(title="groups", orient="top"),
        ),
        tooltip=tooltips(
            state="groups", confidence="mean confidence", accuracy="accuracy", lower="from", upper="to", n="rows"
        ),
    )
    bars = base.mark_rule().encode(y=alt.Y("lower:Q", scale=share, title="accuracy"), y2="upper:Q")
    y = alt.Y("accuracy:Q", scale=share, axis=percent_axis(), title="accuracy")
    lines = base.mark_line(point={"filled": True, "size": 50, "opacity": 1}).encode(y=y)
    return Chart((diagonal() + bars + lines).properties(width=300, height=300).to_dict(), caption)
