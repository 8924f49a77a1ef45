"""Charts of how far a model can be trusted, as Vega-Lite."""

from __future__ import annotations

from collections.abc import Sequence

from compshift.report.chart_parts import SEEN, UNSEEN, WORST, Rows, diagonal, inline, name_axis, percent_axis, tooltips
from compshift.report.page import Chart


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
