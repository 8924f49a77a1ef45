"""Charts of what is known of groups with more than two attributes, as Vega-Lite."""

from __future__ import annotations

from collections.abc import Sequence

from compshift.report.chart_parts import CELL_HEIGHT, Rows, inline, name_axis, tooltips
from compshift.report.page import Chart

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
