"""A page is one file that loads nothing, runs only its own scripts, and shows all data as text."""

import base64
import hashlib
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from compshift._errors import InputError
from compshift.core.groups import GroupSpace
from compshift.data.audit import GroupCounts, audit_groups
from compshift.metrics import group_report
from compshift.metrics.evaluation import Evaluation
from compshift.report.accuracy_section import GroupAccuracy, accuracy_blocks
from compshift.report.bench_page import bench_page
from compshift.report.grid import Cell, Grid
from compshift.report.model_page import table_page
from compshift.report.page import (
    Card,
    Chart,
    Charts,
    Explorer,
    Facts,
    Heading,
    Numbers,
    Page,
    Section,
    Words,
    check_report_packages,
    content_policy,
    json_island,
    render_page,
)
from compshift.report.pool_section import _accuracy_words
from tests.report.records import Made, write_results

NASTY = (
    "<script>alert(1)</script>",
    "</script><b>bold</b>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "<!-- <script>",
    "two\nlines & \u2028 more",
    "{{ 7 * 7 }}{% raw %}",
)
LOADED = {"src", "href", "srcset", "data", "action", "formaction", "poster", "background", "xlink:href", "style"}
VOID = {"meta", "link", "br", "img", "input", "hr"}


class ReadPage(HTMLParser):
    """Parse a page into its elements, scripts, JSON islands, styles and text."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.scripts, self.islands, self.styles, self.texts, self._open = [], [], [], [], [], []
        self.feed(text)
        self.close()
        assert self._open == [], "elements are left open"

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "script":
            (self.islands if dict(attrs).get("type") == "application/json" else self.scripts).append("")
        elif tag == "style":
            self.styles.append("")

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        last = self._open[-1] if self._open else ""
        if last == "script":
            kind = self.elements[-1][1].get("type")
            (self.islands if kind == "application/json" else self.scripts)[-1] += data
        elif last == "style":
            self.styles[-1] += data
        else:
            self.texts.append((last, data))

    @property
    def tags(self):
        return [tag for tag, _ in self.elements]

    def text(self, tag=None):
        """Return all text outside scripts and styles, or only that of elements named ``tag``."""
        return "".join(data for last, data in self.texts if tag in (None, last))

    @property
    def policy(self):
        (policy,) = [attributes["content"] for _, attributes in self.elements if "http-equiv" in attributes]
        return {part.split()[0]: part.split()[1:] for part in policy.split("; ")}


def assert_safe(text, n_scripts, n_islands):
    """Assert that a page has only its own scripts, allowed by its policy, loads nothing, and has no event handlers."""
    page = ReadPage(text)
    assert len(page.scripts) == n_scripts
    assert len(page.islands) == n_islands
    assert page.tags.count("script") == n_scripts + n_islands
    assert {"img", "iframe", "object", "embed", "base", "form", "b"} & set(page.tags) <= {"b"}
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in page.scripts]
    assert page.policy["script-src"] == ([f"'sha256-{value}'" for value in hashes] or ["'none'"])
    assert page.policy["default-src"] == ["'none'"]
    for _, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on")]
        for name in LOADED & set(attributes):
            assert re.match(r"#|data:,?", attributes[name]), (name, attributes[name])
    assert not re.search(r"url\(|@import", "".join(page.styles))
    for island in page.islands:
        json.loads(island)
    return page


def every_block(text, chart):
    """Return a page with every kind of block and ``text`` everywhere."""
    grid = Grid("main", text, [text, text], 1, notes=[text])
    grid.add([text], [Cell(text, best=True, marked=True)])
    data = {"names": [text], "values": [[text]], "scenarios": [{"label": text}]}
    blocks = [
        Words([text]),
        Words([text], soft=True),
        Heading(text),
        Numbers(grid),
        Numbers(grid, folded=True),
        Facts([(text, text), ("command", text)]),
        Explorer(data, [text]),
        Charts([Chart({"title": text, **chart}, text, wide=True)]),
    ]
    return Page(text, text, [text], [Section(text, blocks)], [Card(text, text)], [text])


@pytest.mark.parametrize("text", NASTY)
def test_data_cannot_end_the_element_of_a_json_island(text):
    content = {"a": [text, {text: 1}], "b": None, "number": 0.1, "sign": "é−×"}
    island = json_island(content)
    assert json.loads(island) == content
    assert "<" not in island
    assert "é−×" in island


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_an_island_rejects_nan_and_infinity(number):
    with pytest.raises(ValueError, match="JSON compliant"):
        json_island({"a": [1.0, number]})


def test_the_policy_identifies_scripts_by_their_hashes():
    one = "'sha256-" + base64.b64encode(hashlib.sha256(b"f(\xc3\xa9)").digest()).decode() + "'"
    assert f"script-src {one};" in content_policy(["f(é)"])
    assert content_policy(["f(é)", "g()"]).count("'sha256-") == 2
    assert "script-src 'none';" in content_policy([])
    for policy in (content_policy([]), content_policy(["f()"])):
        assert policy.startswith("default-src 'none';")
        assert "unsafe-eval" not in policy
        assert "http" not in policy
        assert "script-src 'unsafe-inline'" not in policy


@pytest.mark.parametrize("text", NASTY)
def test_every_block_escapes_its_text(text):
    pytest.importorskip("altair")
    html = render_page(every_block(text, {"mark": "bar"}))
    page = assert_safe(html, 4, 2)
    for tag in ("title", "h1", "h2", "h3", "p", "td", "th", "summary", "dt", "dd", "code", "figcaption", "b", "span"):
        assert text in page.text(tag), tag
    assert page.tags.count("b") == 3  # the card's, and the best cell of two tables
    assert page.text("b") == text * 3
    assert [attributes for _, attributes in page.elements if attributes.get("aria-label") == text]
    assert [json.loads(island) for island in page.islands] == [
        {"names": [text], "values": [[text]], "scenarios": [{"label": text}]},
        {"title": text, "mark": "bar"},
    ]


def test_a_page_has_only_the_scripts_that_it_needs():
    pytest.importorskip("altair")
    words = Section("a", [Words(["b"])])
    explorer = Section("c", [Explorer({}, [])])
    charts = Section("d", [Charts([Chart({}, "e"), Chart({}, "f")])])
    for sections, n_scripts, n_islands in (
        ([words], 0, 0),
        ([words, explorer], 2, 1),
        ([charts], 3, 2),
        ([explorer, words, charts], 4, 3),
    ):
        page = assert_safe(render_page(Page("t", "table", [], sections)), n_scripts, n_islands)
        assert any("vegaEmbed" in script for script in page.scripts) == (charts in sections)
        assert any("class Explorer" in script for script in page.scripts) == (explorer in sections)
        links = [attributes["href"] for tag, attributes in page.elements if tag == "a"]
        parts = [f"#{attributes['id']}" for tag, attributes in page.elements if tag == "section"]
        assert links == parts
        assert len(parts) == len(sections)


def test_tables_and_words_on_a_page():
    pytest.importorskip("altair")
    grid = Grid("main", "A title", ["key", "one", "two"], 1, sections=[1, 2])
    grid.add(["x"], [Cell("1", best=True), Cell("2", marked=True)])
    grid.add(["y"], [Cell("3"), Cell("", best=True)])
    html = render_page(Page("t", "k", [], [Section("s", [Numbers(grid), Numbers(replace(grid, title=""))])]))
    page = ReadPage(html)
    assert page.text("h3") == "A title"
    assert page.text("b") == "11"  # empty cells are not bold
    assert page.text("td") == "x2 ▾y3" * 2
    lines = [attributes for tag, attributes in page.elements if tag == "tr"]
    assert [line.get("class") for line in lines] == [None, "section", None] * 2  # no line after the last
    folded = ReadPage(render_page(Page("t", "k", [], [Section("s", [Numbers(grid, folded=True)])])))
    assert (folded.text("summary"), folded.text("h3")) == ("A title", "")


def test_a_page_on_a_table_of_nasty_values():
    """Check names and values of three attributes in sentences, tables, the grid and charts."""
    pytest.importorskip("altair")
    values = (NASTY[:3], NASTY[3:6], NASTY[1:4])
    space = GroupSpace((NASTY[0], NASTY[2], NASTY[6]), values)
    groups = np.array([code for code in np.ndindex(3, 3, 3) if sum(code) < 3])
    count = np.arange(len(groups)) + 1.0
    counts = GroupCounts(space, groups, count, float(count.sum()), 2, {NASTY[0]: 2})
    page = assert_safe(render_page(table_page(audit_groups(counts), NASTY[1])), 4, 1 + 3)
    assert page.text("h1") == page.text("title") == NASTY[1]
    for text in {*values[0], *values[1], *values[2], *space.names}:
        assert text in page.text()
    data = json.loads(page.islands[0])
    assert (tuple(data["names"]), tuple(map(tuple, data["values"]))) == (space.names, values)


def test_a_page_on_a_benchmark_of_nasty_names(tmp_path):
    pytest.importorskip("altair")
    made = Made(
        label=NASTY[0],
        names=(NASTY[1], NASTY[2]),
        values=(NASTY[:3], NASTY[3:5]),
        methods=("erm", "crm", NASTY[2]),
        scenarios={NASTY[4]: [(0, 1)], NASTY[2]: [(1, 0)]},
    )
    folder = write_results(tmp_path / "<i>results", made).path
    html = render_page(bench_page(folder))
    page = ReadPage(html)
    n_charts = page.tags.count("figure")
    assert n_charts > 3
    assert_safe(html, 4, 1 + n_charts)
    assert page.text("h1") == "<i>results"
    assert NASTY[0] in page.text("p")
    assert NASTY[2] in page.text("td")
    assert NASTY[4] in page.text("td")
    specs = [json.loads(island) for island in page.islands[1:]]
    assert all(
        spec["$schema"].startswith("https://vega.github.io/schema/vega-lite/") for spec in specs
    )  # only an identifier: it is not loaded
    names = {row["method"] for spec in specs for row in rows_of(spec) if "method" in row}
    assert names == {"ERM", "CRM", NASTY[2]}


@pytest.mark.parametrize(
    ("select", "words"),
    [
        ("worst", "birds: features, selected by worst validation accuracy"),
        ("combinations", "birds: features, CRM's ridge is chosen by held-out combinations of the training rows"),
    ],
)
def test_a_page_says_how_hyper_parameters_were_chosen(tmp_path, select, words):
    pytest.importorskip("altair")
    settings = {"mode": "features", "select": select, "backbone": None, "steps": 20}
    write_results(tmp_path / "out", Made(settings=settings))
    (facts,) = [block for block in bench_page(tmp_path / "out").sections[-1].blocks if isinstance(block, Facts)]
    assert dict(facts.pairs)["protocol"].startswith(words)


def test_unseen_groups_come_first_in_a_heat_map():
    pytest.importorskip("altair")
    space = GroupSpace.from_cardinalities([2, 2])
    groups, unseen = space.codes(np.arange(4)), np.array([False, True, False, True])
    accuracy = np.array([[0.9, 0.8, 0.7, 0.6], [0.9, np.nan, 0.7, 0.6]])
    results = GroupAccuracy(space, groups, unseen, np.full(4, 10), ("one", "other"), accuracy, 0.9)
    (block,) = accuracy_blocks(results, "Accuracy.")
    cells = block.charts[0].spec["layer"][0]
    assert cells["encoding"]["y"]["sort"] == ["(0, 1)", "(1, 1)", "(0, 0)", "(1, 0)"]


def test_groups_without_rows_do_not_count_in_the_accuracy_with_unlabelled_rows():
    pytest.importorskip("altair")
    space = GroupSpace.from_cardinalities([2, 2], names=["y", "a"])
    y, a = [0, 0, 1, 1], [0, 1, 1, 1]  # no row of (1, 0)
    plain, report = (group_report(y, predicted, a, space=space) for predicted in ([0, 1, 1, 0], [0, 0, 1, 0]))
    nothing = np.full(4, np.nan)
    evaluation = Evaluation(report, ("1 rows",) * 4, nothing, np.full((4, 3), np.nan), plain)
    (words,) = _accuracy_words(evaluation, np.array([False, True, True, False]))
    assert words == (
        "With the unlabelled rows, accuracy changes from 0.0% to 100.0% on unseen groups on average, from 75.0% to "
        "75.0% on seen groups on average, from 0.0% to 50.0% on the worst group."
    )


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setattr("compshift.report.page.find_spec", lambda name: None if name != "jinja2" else object())
    with pytest.raises(InputError, match=r"needs altair and vl_convert: pip install 'compshift\[report\]'"):
        check_report_packages()
    monkeypatch.setattr("compshift.report.page.find_spec", lambda _: object())
    check_report_packages()


def rows_of(spec):
    """Return the data rows of all layers of a chart."""
    return [row for rows in spec["datasets"].values() for row in rows]
