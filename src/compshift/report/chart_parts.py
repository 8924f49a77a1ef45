"""What the charts of pages are made of. Names of groups and methods are values in them, never names of fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
