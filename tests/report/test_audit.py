"""Grids of groups with three attributes or more: a missing group is not drawn as seen."""

import numpy as np
import pytest

from compshift import GroupSpace
from compshift.data.audit import GroupCounts, audit_groups
from compshift.metrics import coverage_display
from compshift.report import audit as report_audit


def made_audit(sizes, n_missing, counts=None):
    """Return the audit of all groups but the last ones."""
    space = GroupSpace.from_cardinalities(sizes)
    groups = space.codes(np.arange(space.n_groups - n_missing))
    count = np.full(len(groups), 50.0) if counts is None else counts
    return audit_groups(GroupCounts(space, groups, count, float(count.sum()), 0, {}))


@pytest.fixture
def draw(monkeypatch, tmp_path):
    """Draw an audit and return the figure."""
    pytest.importorskip("matplotlib")
    figures = []
    monkeypatch.setattr(report_audit, "save_figure", lambda figure, *_, **__: figures.append(figure))

    def run(audit):
        report_audit.draw_hull(audit, tmp_path / "p.png")
        return figures[-1]

    return run


def fills(figure):
    """Return the number of cells with each colour."""
    from matplotlib.colors import to_hex

    colours = [to_hex(patch.get_facecolor()) for panel in figure.axes for patch in panel.patches]
    return {colour: colours.count(colour) for colour in colours}


def test_the_missing_group_of_three_attributes_is_visible(draw):
    figure = draw(made_audit((2, 2, 2), 1))
    assert fills(figure) == {coverage_display.SEEN_FILL: 7, coverage_display.INSIDE_FILL: 1}
    assert [panel.get_title() for panel in figure.axes] == ["z3 = 0", "z3 = 1"]


def test_the_attribute_with_the_most_values_is_an_axis(draw):
    figure = draw(made_audit((2, 3, 4), 1))
    assert [panel.get_title() for panel in figure.axes] == ["z2 = 0", "z2 = 1", "z2 = 2"]
    assert sum(fills(figure).values()) == 24


def test_too_many_panels_are_cut_with_a_sentence(draw):
    counts = np.arange(199.0) + 1
    figure = draw(made_audit((2, 5, 4, 5), 1, counts))
    shown = [panel for panel in figure.axes if panel.get_title()]
    assert len(shown) == min(coverage_display.MAX_PANELS, 20)
    figure = draw(made_audit((2, 5, 5, 6), 1, np.arange(299.0) + 1))
    assert len([panel for panel in figure.axes if panel.get_title()]) == coverage_display.MAX_PANELS
    words = "24 of the 25 combinations of z2 × z3, those with the most rows"
    assert figure.get_suptitle() == words


def test_a_pair_of_values_with_a_missing_group_does_not_look_complete():
    pytest.importorskip("altair")
    from compshift.report.coverage_section import coverage_section
    from compshift.report.page import Charts

    section = coverage_section(made_audit((2, 2, 2), 1))
    (charts,) = [block for block in section.blocks if isinstance(block, Charts)]
    for chart in charts.charts:
        (rows,) = chart.spec["datasets"].values() if "datasets" in chart.spec else ([],)
        assert [row["state"] for row in rows] == ["all groups seen"] * 3 + ["some groups seen, all determined"]
