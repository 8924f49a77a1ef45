"""Tests of pages in a real browser; they are skipped if Chromium is not installed."""

import csv
import io
import time

import numpy as np
import pandas as pd
import pytest

from compshift import AffineHull, CRMClassifier, GroupSpace
from compshift.data.audit import GroupCounts, audit_groups
from compshift.data.dataset import GroupedDataset
from tests.report.browser import Browser
from tests.report.records import Made, write_results

pytest.importorskip("altair")

from compshift.report.bench_page import bench_page
from compshift.report.model_page import model_page, table_page
from compshift.report.page import render_page

EVIL = "<script>alert(1)</script>"
WATERBIRDS = GroupSpace(("bird", "place"), (("landbird", "waterbird"), ("land", "water")))


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.driver.quit()


def table_file(folder, space, groups, counts=None):
    """Write the page of a table with these seen groups, and return its path."""
    groups = space.distinct(np.asarray(groups))[0]
    count = np.full(len(groups), 7.0) if counts is None else np.asarray(counts, dtype=np.float64)
    audit = audit_groups(GroupCounts(space, groups, count, float(count.sum()), 0, {}))
    path = folder / "page.html"
    path.write_text(render_page(table_page(audit, "a table")), encoding="utf-8")
    return path


def cell(*code):
    return f'.cell[data-code="{",".join(map(str, code))}"]'


def test_marking_two_cells_of_waterbirds_grows_the_hull(browser, tmp_path):
    browser.open(table_file(tmp_path, WATERBIRDS, [[0, 0]], [3498]))
    assert browser.text(".determined") == "1 of 4 groups determined"
    assert browser.text(".share") == "25%"
    assert browser.text(".remaining").startswith("At least 2 more groups must be collected")
    browser.click(cell(0, 1))
    assert browser.text(".determined") == "2 of 4 groups determined"
    assert browser.text(".remaining").startswith("At least 1 more group must be collected")
    browser.click(cell(1, 1))
    assert browser.text(".determined") == "4 of 4 groups determined"
    assert browser.text(".share") == "100%"
    assert browser.text(".rank") == "rank 3 of 3"
    assert browser.text(cell(1, 0)) == "+"
    assert browser.text(".remaining") == "Every combination is determined."
    browser.click(cell(0, 1))  # unmark it
    assert browser.text(".determined") == "2 of 4 groups determined"
    assert browser.logs() == []


def test_the_marked_groups_are_copied_as_csv(browser, tmp_path):
    space = GroupSpace(('a "quoted", name', "b"), (("x", "y, z", 'say "so"'), ("1", "2")))
    path = table_file(tmp_path, space, [[0, 0]])
    browser.open(path)
    browser.click(cell(1, 0))
    browser.click(cell(2, 1))
    browser.click(".copy")
    time.sleep(0.2)
    assert browser.text(".detail") == "2 groups copied as CSV"
    browser.run(
        "const box = document.createElement('textarea'); box.id = 'paste'; document.body.append(box); box.focus();"
    )
    from selenium.webdriver.common.keys import Keys

    browser.driver.find_element("id", "paste").send_keys(Keys.CONTROL, "v")
    pasted = browser.run("return document.getElementById('paste').value")
    expected = [['a "quoted", name', "b"], ["y, z", "1"], ['say "so"', "2"]]
    assert list(csv.reader(io.StringIO(pasted))) == expected
    assert browser.run("return document.querySelector('.csv').value") == pasted


def test_a_value_that_looks_like_a_script_is_text(browser, tmp_path):
    space = GroupSpace((EVIL, 'b"><img src=x onerror=alert(2)>'), ((EVIL, "</script>"), ("a", "<!--<script>")))
    browser.open(table_file(tmp_path, space, [[0, 0], [1, 1]]))
    assert browser.texts("tbody th") == [EVIL, "</script>"]
    assert EVIL in browser.text(".corner")
    assert browser.run("return document.querySelectorAll('img').length") == 0
    browser.click(cell(0, 1))
    assert EVIL in browser.text(".marked-list")
    assert browser.logs() == []
    from selenium.common.exceptions import NoAlertPresentException

    with pytest.raises(NoAlertPresentException):
        _ = browser.driver.switch_to.alert.text


@pytest.mark.parametrize("sizes", [(5,), (4, 6), (2, 3, 4), (2, 2, 2, 3)])
def test_the_hull_in_the_page_agrees_with_affine_hull(browser, tmp_path, sizes):
    """Compare coverage, rank, cell states and plan length after each randomly marked group."""
    rng = np.random.default_rng(sum(sizes))
    space = GroupSpace.from_cardinalities(sizes)
    seen = space.codes(rng.choice(space.n_groups, 2, replace=False))
    browser.open(table_file(tmp_path, space, seen))
    marked = []
    for _ in range(4):
        shown = browser.run("return [...document.querySelectorAll('.cell[data-code]')].map((c) => c.dataset.code)")
        codes = np.array([[int(value) for value in code.split(",")] for code in shown])
        hull = AffineHull(space, [*seen.tolist(), *marked])
        coverage = hull.coverage()
        assert browser.text(".determined") == f"{coverage.n_inside} of {space.n_groups} groups determined"
        assert browser.text(".rank") == f"rank {hull.rank} of {hull.full_rank}"
        states = browser.run("return [...document.querySelectorAll('.cell[data-code]')].map((c) => c.classList[1])")
        np.testing.assert_array_equal(np.array(states) != "outside", hull.contains(codes))
        lacking = browser.text(".remaining")
        assert lacking.startswith(f"At least {len(hull.plan())} more" if len(hull.plan()) else "Every combination")
        outside = codes[~hull.contains(codes)]
        if not len(outside):
            break
        marked.append(outside[rng.integers(len(outside))].tolist())
        browser.click(cell(*marked[-1]))
    if browser.run("return !document.querySelector('.complete').disabled"):
        browser.click(".complete")
    assert browser.text(".share") == "100%"
    listed = browser.run("return document.querySelector('.csv').value").strip().splitlines()[1:]
    added = space.encode(
        np.array([[int(value) for value in line.split(",")] for line in listed]).reshape(-1, len(sizes))
    )
    assert AffineHull(space, [*seen.tolist(), *added.tolist()]).is_complete
    assert browser.logs() == []


@pytest.mark.parametrize("width", [1280, 390])
def test_details_of_a_group_do_not_move_the_grid(browser, tmp_path, width):
    """The pointer would be on another group than the one that is described."""
    space = GroupSpace(
        ("bird", "place"), (("duck", "gull", "heron", "owl", "wren"), ("farm", "lake", "marsh", "sea", "town", "wood"))
    )
    seen = [[0, 1], [0, 2], [1, 1], [1, 3], [1, 4], [2, 1], [2, 2], [3, 0], [3, 4], [3, 5], [4, 5]]
    browser.open(table_file(tmp_path, space, seen), width=width)
    tops = browser.run("""
        return [...document.querySelectorAll("table .cell")].map((cell) => {
          cell.dispatchEvent(new MouseEvent("mouseenter"));
          return document.querySelector("table").getBoundingClientRect().top + window.scrollY;
        });
    """)
    assert len(tops) == 30
    assert max(tops) - min(tops) < 1
    seen.remove([3, 4])
    browser.open(table_file(tmp_path, space, seen), width=width)
    top = "return document.querySelector('table').getBoundingClientRect().top + window.scrollY"
    before = browser.run(top)
    browser.click(cell(3, 4))
    assert browser.text(".share") == "100%"
    assert abs(browser.run(top) - before) < 1


def test_the_grid_can_be_used_by_keyboard(browser, tmp_path):
    from selenium.webdriver.common.keys import Keys

    browser.open(table_file(tmp_path, WATERBIRDS, [[0, 0], [1, 1]]))
    browser.run("document.querySelector('.cell[tabindex=\"0\"]').focus()")
    assert browser.run("return document.querySelectorAll('table .cell[tabindex=\"0\"]').length") == 1
    browser.press(Keys.ARROW_RIGHT)
    assert "(landbird, water): unseen, out of reach" in browser.text(".detail")
    browser.press(Keys.ENTER)
    assert browser.text(".share") == "100%"
    assert browser.run("return document.activeElement.dataset.code") == "0,1"
    assert browser.run("return document.activeElement.getAttribute('aria-pressed')") == "true"
    browser.press(Keys.ARROW_DOWN, Keys.HOME)
    assert browser.text(".detail").startswith("(waterbird, land): unseen, could be extrapolated")
    assert "(waterbird, water) − (landbird, water) + (landbird, land)" in browser.text(".detail")
    browser.press(Keys.ARROW_UP, Keys.SPACE)  # a seen group cannot be marked
    assert browser.texts(".marked-list li") == ["(landbird, water) ✕"]


def test_many_values_are_shown_in_windows(browser, tmp_path):
    space = GroupSpace.from_cardinalities([1000, 3])
    groups = space.codes(np.arange(0, 3000, 7))
    browser.open(table_file(tmp_path, space, groups, np.arange(len(groups)) + 1))
    assert len(browser.texts("tbody th")) == 60
    assert "shows 60 at a time" in browser.text(".explorer .notes")
    last = browser.texts(".choices option")[-1]
    assert last == "961–1000 of 1000"
    browser.run(
        "const list = document.querySelector('.choices select'); list.selectedIndex = list.options.length - 1;"
        "list.dispatchEvent(new Event('change'))"
    )
    assert len(browser.texts("tbody th")) == 40


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_fits_a_phone_in_both_schemes(browser, tmp_path, scheme):
    space = GroupSpace(
        ("a rather long name of an attribute", "b", "c"),
        (tuple(f"value number {i} of many" for i in range(9)), tuple("abcdef"), ("x", "y")),
    )
    browser.open(table_file(tmp_path, space, space.codes(np.arange(0, 108, 7))), width=390, scheme=scheme)
    assert browser.run("return document.documentElement.scrollWidth") == 390
    background = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 28)"}[scheme]
    drawn = browser.run("return document.querySelectorAll('figure.drawn svg .mark-rect path').length")
    assert drawn >= 9 * 6 + 9 * 2 + 6 * 2
    assert browser.logs() == []
    assert [url for url in browser.requests() if not url.startswith("data:")] == [
        (tmp_path / "page.html").resolve().as_uri()
    ]


def select(browser, number, index):
    """Choose an option of one of the menus above the grid."""
    browser.run(
        "const list = document.querySelectorAll('.choices select')[arguments[0]]; list.focus();"
        "list.selectedIndex = arguments[1]; list.dispatchEvent(new Event('change'))",
        number,
        index,
    )


def test_a_scenario_stays_when_axes_change(browser, tmp_path):
    made = Made(
        names=("bird", "place", "light"),
        values=(("duck", "gull"), ("lake", "sea"), ("day", "night")),
        scenarios={"(duck, sea, day)": [(0, 1, 0)], "(gull, lake, day)": [(1, 0, 0)]},
    )
    path = tmp_path / "bench.html"
    path.write_text(render_page(bench_page(write_results(tmp_path / "results", made).path)), encoding="utf-8")
    browser.open(path)
    select(browser, 0, 1)
    select(browser, 1, 2)  # down: light
    assert browser.run("return document.querySelector('.choices select').value") == "1"
    assert browser.run("return [...document.querySelectorAll('.choices select')].indexOf(document.activeElement)") == 1
    for bird, expected in ((0, [False, False, False, False]), (1, [True, False, False, False])):
        cells = [browser.text(cell(bird, place, light)) == "+" for light in range(2) for place in range(2)]
        assert cells == expected
    assert browser.logs() == []


def test_the_grid_gets_the_focus_of_a_button_that_disappears(browser, tmp_path):
    """Check buttons that are removed with their mark, and buttons that become disabled."""
    from selenium.webdriver.common.keys import Keys

    browser.open(table_file(tmp_path, WATERBIRDS, [[0, 0], [1, 1]]))
    for selector in (".complete", ".marked-list button", ".complete", ".clear"):
        browser.run("document.querySelector(arguments[0]).focus()", selector)
        browser.press(Keys.ENTER)
        assert browser.run("return document.activeElement.closest('table') !== null"), selector
    assert browser.texts(".marked-list li") == []


def test_counts_of_any_size_fit_their_cells(browser, tmp_path):
    space = GroupSpace.from_cardinalities([6, 2, 2])
    counts = [150_000_000, 2_000_000_000, 0.001, 0.9, 12_345, 370_350]
    browser.open(table_file(tmp_path, space, [[i, 0, 0] for i in range(6)], counts))
    assert browser.texts(".slice:first-of-type tbody tr td:first-of-type .cell")[:2] == ["150M", "2B"]
    assert browser.texts(".slice:first-of-type tbody tr td:first-of-type .cell")[2:] == [
        "<0.01",
        "0.9",
        "12.3K",
        "370K",
    ]
    drawn = browser.texts("figure:first-of-type svg .mark-text.role-mark text")
    assert sorted(drawn) == sorted(["150M", "2B", "<0.01", "0.9", "12k", "370k"])


def test_every_group_of_three_attributes_has_its_own_cell(browser, tmp_path):
    """The missing group has the value of b that the largest group does not have, so one grid would hide it."""
    space = GroupSpace(("y", "a", "b"), ((0, 1), (0, 1), (0, 1)))
    browser.open(table_file(tmp_path, space, space.codes(np.arange(7)), [50, 50, 50, 50, 50, 50, 90]))
    shown = browser.run("return [...document.querySelectorAll('.cell[data-code]')].map((c) => c.dataset.code)")
    assert len(set(shown)) == len(shown) == 8
    assert browser.texts(".slice p") == ["b = 0", "b = 1"]
    assert (browser.text(cell(1, 1, 1)), browser.text(cell(1, 1, 0))) == ("+", "90")
    assert browser.run("return document.querySelectorAll('.choices select').length") == 2
    browser.run("document.querySelector('.cell[data-code=\"1,1,0\"]').focus()")
    from selenium.webdriver.common.keys import Keys

    browser.press(Keys.ARROW_DOWN)  # from the last row of a grid into the first of the next
    assert browser.run("return document.activeElement.dataset.code") == "0,1,1"
    assert browser.logs() == []


def test_too_many_grids_leave_one_with_menus(browser, tmp_path):
    space = GroupSpace.from_cardinalities([2, 2, 5, 5])
    browser.open(table_file(tmp_path, space, [[0, 0, 0, 0], [1, 1, 1, 1]]))
    assert browser.texts(".slice p") == ["z3 = 0, z4 = 0 (one of 25 grids: choose another one above)"]
    assert browser.run("return document.querySelectorAll('.choices select').length") == 4
    assert browser.logs() == []


def test_no_seen_group_is_shown_as_unseen_when_the_grid_is_cut(browser, tmp_path):
    space = GroupSpace.from_cardinalities([30, 30, 30])
    groups = space.codes(np.arange(space.n_groups))
    browser.open(table_file(tmp_path, space, groups, np.arange(len(groups)) + 1))
    states = browser.run("return [...document.querySelectorAll('.cell[data-code]')].map((c) => c.classList[1])")
    assert set(states) == {"seen"}
    assert browser.text(".determined") == "27,000 of 27,000 groups determined"
    assert "27,000 seen groups: the grid has only the 27 values" in browser.text(".explorer .notes")
    assert browser.run("return document.querySelectorAll('.choices select')[2].options.length") == 27
    select(browser, 2, 0)
    states = browser.run("return [...document.querySelectorAll('.cell[data-code]')].map((c) => c.classList[1])")
    assert set(states) == {"seen"}


def assert_drawn(browser, path):
    """Assert that every chart has marks, nothing was logged, and only the page was loaded."""
    figures = browser.run(
        "return [...document.querySelectorAll('figure.chart')].map((figure) => "
        "figure.querySelectorAll('svg .role-mark path, svg .role-mark text, svg .role-mark line').length)"
    )
    assert figures
    assert min(figures) > 0
    assert browser.logs() == []
    assert [url for url in browser.requests() if not url.startswith("data:")] == [path.resolve().as_uri()]
    return figures


@pytest.mark.parametrize("width", [1280, 390])
def test_a_page_on_a_benchmark(browser, tmp_path, width):
    """Check that charts are drawn and that the menu above the grid changes the scenario."""
    made = Made(methods=("erm", "lc", "crm", EVIL), draws=2, seeds=2)
    path = tmp_path / "bench.html"
    path.write_text(render_page(bench_page(write_results(tmp_path / "results", made).path)), encoding="utf-8")
    browser.open(path, width=width)
    assert_drawn(browser, path)
    assert browser.run("return document.documentElement.scrollWidth") == width
    assert browser.texts("figure svg text").count(EVIL) >= 2  # a method's name is text in charts, too
    assert browser.text(cell(0, 1)) == "+"
    assert browser.text(cell(2, 0)).isdigit()
    browser.run(
        "const list = document.querySelector('.choices select'); list.selectedIndex = 1;"
        "list.dispatchEvent(new Event('change'))"
    )
    assert browser.text(cell(0, 1)).isdigit()
    assert browser.text(cell(2, 0)) == "+"
    assert browser.logs() == []


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_a_page_on_a_model(browser, tmp_path, scheme, width):
    rng = np.random.default_rng(0)
    group = np.tile(np.arange(4), 100)
    codes = WATERBIRDS.codes(group)
    X = rng.normal(size=(4, 5))[codes + WATERBIRDS.offsets].sum(axis=1) + rng.normal(size=(400, 5))
    values = WATERBIRDS.decode(codes)
    seen = group != 2
    labels = pd.Series(values[seen, 0], name="bird"), pd.DataFrame({"place": values[seen, 1]})
    clf = CRMClassifier(alpha=1e-2).fit(X[seen], labels[0], attributes=labels[1])
    path = tmp_path / "model.html"
    page = model_page(clf, "a model", GroupedDataset(X, WATERBIRDS, codes), "all", "rows")
    path.write_text(render_page(page), encoding="utf-8")
    browser.open(path, scheme=scheme, width=width)
    assert len(assert_drawn(browser, path)) == 5  # bars, map, sample sizes, tails, calibration
    excess = browser.run(
        "return [...document.querySelectorAll('.drawing')].map((place) => place.scrollWidth - place.clientWidth)"
    )
    assert excess == [0] * 5  # nothing is cut off
    assert "100%" in browser.text(".share")
    assert browser.run("return document.querySelectorAll('details table tbody tr').length") >= 4


def test_a_page_can_be_printed(browser, tmp_path):
    browser.open(table_file(tmp_path, WATERBIRDS, [[0, 0], [1, 1]]), scheme="dark")
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    hidden = browser.run("return ['nav', '.actions'].map((s) => getComputedStyle(document.querySelector(s)).display)")
    assert hidden == ["none", "none"]
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    pdf = browser.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"]
    assert len(pdf) > 10_000


def test_a_grid_wider_than_a_phone_is_faded_until_its_end(browser, tmp_path):
    space = GroupSpace.from_cardinalities([3, 20])
    page = table_file(tmp_path, space, space.codes(np.arange(50)))
    grid = "const grid = document.querySelector('.grid');"
    browser.open(page, width=390)
    assert browser.run(f"{grid} return grid.classList.contains('more')")
    browser.run(f"{grid} grid.scrollLeft = grid.scrollWidth")
    deadline = time.monotonic() + 10
    while browser.run(f"{grid} return grid.classList.contains('more')"):
        assert time.monotonic() < deadline, "the edge stays faded at the end"
    browser.open(page, width=1600)
    assert not browser.run(f"{grid} return grid.classList.contains('more')")
