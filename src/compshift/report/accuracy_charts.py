"""Charts of accuracy, as Vega-Lite: by group, method and scenario."""

from __future__ import annotations

from collections.abc import Sequence

from compshift.report.chart_parts import (
    CELL_HEIGHT,
    SEEN,
    UNSEEN,
    WORST,
    Rows,
    inline,
    name_axis,
    on_blue,
    page_wide,
    percent_axis,
    percent_legend,
    tooltips,
)
from compshift.report.page import Chart

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
