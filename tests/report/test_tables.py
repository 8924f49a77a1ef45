"""Tables show the paper's printed numbers, and ours beside them."""

import csv
import io
import re

import pytest

from compshift.bench.paper import read_table
from compshift.bench.results import Results, Score, paper_results
from compshift.report.grid import Cell, Grid, to_latex, to_markdown, to_rich
from compshift.report.tables import _best, make_tables, shown, to_csv

METRICS = {"average": "average_acc", "balanced": "balanced_acc", "worst group": "worst_group_acc"}


def printed(row, column):
    """Return a number as the paper prints it, from the text of the CSV."""
    return f"{row[column]} ({row[column + '_se']})"


def tables_of(text):
    """Return Markdown tables by title as lists of dictionaries, with empty keys filled from the row above."""
    found = {}
    for part in text.split("### ")[1:]:
        lines = part.splitlines()
        rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines if line.startswith("|")]
        names, body = rows[0], rows[2:]
        last = [""] * len(names)
        table = []
        for row in body:
            clean = [re.sub(r"\\(.)", r"\1", cell.replace("**", "").replace(" ▾", "")) for cell in row]
            clean[0] = clean[0] or last[0]
            last = clean
            table.append(dict(zip(names, clean, strict=True)))
        found[lines[0]] = table
    return found


@pytest.fixture(scope="module")
def tables():
    return tables_of("\n".join(to_markdown(grid) for grid in make_tables(paper_results())))


def test_the_main_table_has_the_printed_numbers(tables):
    rows = {(row["data set"], row["method"]): row for row in tables["Compositional shift"]}
    source = [
        *read_table("main_results"),
        *({"dataset": "celeba5", **row} for row in read_table("celeba_multi_attribute")),
    ]
    assert len(rows) == len(source) == 56
    for row in source:
        own = rows[row["dataset"], row["method"]]
        for heading, column in METRICS.items():
            assert own[heading] == printed(row, column)
        assert own["none dropped"] == printed(row, "worst_group_acc_no_groups_dropped")


def test_scenario_tables_have_the_printed_numbers(tables):
    source = read_table("scenarios")
    assert len(source) == 272
    for row in source:
        for heading, column in METRICS.items():
            table = tables[f"{row['dataset']}, each scenario: {heading}"]
            (own,) = [line for line in table if line["dropped"] == f"({row['dropped_y']}, {row['dropped_a']})"]
            assert own[row["method"]] == printed(row, column)


def test_ablation_and_standard_tables_have_the_printed_numbers(tables):
    for title, name, key, count in (
        ("Ablations of CRM", "ablations", "variant", 24),
        ("No group dropped", "standard_subpopulation", "method", 48),
    ):
        rows = {(row["data set"], row[key]): row for row in tables[title]}
        source = read_table(name)
        assert len(source) == count
        for row in source:
            for heading, column in METRICS.items():
                assert rows[row["dataset"], row[key]][heading] == printed(row, column)


def test_each_methods_worst_scenario_is_marked():
    """Check the scenarios that the paper highlights, and a tie, of which the paper highlights none."""
    (grid,) = [grid for grid in make_tables(paper_results()) if grid.title == "metashift, each scenario: worst group"]
    marked = {
        method: [row[0].text for row in grid.rows if row[position].marked]
        for position, method in enumerate(grid.headings)
        if position
    }
    assert marked["VREx"] == ["(0, 1)", "(1, 0)"]
    for method, found in marked.items():
        values = {row[0].text: float(row[grid.headings.index(method)].text.split()[0]) for row in grid.rows}
        assert found == [name for name, value in values.items() if value == min(values.values())]


def test_the_main_table_is_the_mean_of_the_scenarios_with_known_exceptions():
    """Check that only the differences above 0.15 that the docs list occur."""
    main = {(row["dataset"], row["method"]): row for row in read_table("main_results")}
    cells: dict = {}
    for row in read_table("scenarios"):
        for column in METRICS.values():
            cells.setdefault((row["dataset"], row["method"], column), []).append(float(row[column]))
    different = {
        key for key, values in cells.items() if abs(sum(values) / len(values) - float(main[key[:2]][key[2]])) > 0.15
    }
    assert len(cells) == 120
    assert different == {
        ("multinli", "ERM", "average_acc"),
        ("multinli", "ERM", "balanced_acc"),
        ("multinli", "ERM", "worst_group_acc"),
        ("multinli", "CRM", "worst_group_acc"),
    }


def _ours():
    ours = Results()
    ours.main["waterbirds", "CRM"] = {"worst": Score(80.7, 0.5, 3), "unseen": Score(70.0, 1.0, 3)}
    ours.main["penguins", "CRM"] = {"worst": Score(10.0, 0.5, 3)}
    ours.standard["waterbirds", "CRM"] = {"worst": Score(86.0)}
    ours.scenarios["waterbirds", ((0, 1),), "CRM"] = {"worst": Score(73.0, 0.0, 3)}
    ours.labels["waterbirds", ((0, 1),)] = "(landbird, water)"
    ours.named = {"waterbirds", "penguins"}
    ours.notes = ["half of it is missing"]
    return ours


def test_our_numbers_stand_beside_the_papers():
    found = tables_of("\n".join(to_markdown(grid) for grid in make_tables(_ours(), paper_results())))
    assert "Compositional shift, beside the paper" not in found  # one scenario is not the paper's four
    ours = _ours()
    for code in ((0, 0), (1, 0), (1, 1)):
        ours.scenarios["waterbirds", (code,), "CRM"] = {"worst": Score(70.0, 0.0, 3)}
    grid = make_tables(ours, paper_results())[0]
    assert "half of it is missing" in grid.notes
    (main,) = tables_of(to_markdown(grid))["Compositional shift, beside the paper"]
    assert list(main.values()) == ["waterbirds", "CRM", "80.7 (0.5)", "78.7 (1.0)", f"{2 / 1.25**0.5:+.1f}"]
    ours.named = set()  # "waterbirds" is now a file of that name, not the published data set
    assert make_tables(ours, paper_results()) == []
    (standard,) = found["No group dropped, beside the paper"]
    assert standard["worst group: ours"] == "86.0"
    (scenario,) = found["Each scenario, beside the paper"]
    assert scenario["dropped"] == "(landbird, water)"
    (row,) = [
        row
        for row in read_table("scenarios")
        if (row["dataset"], row["dropped_y"], row["dropped_a"], row["method"]) == ("waterbirds", "0", "1", "CRM")
    ]
    assert scenario["paper"] == printed(row, "worst_group_acc")


def test_csv_has_every_number_in_full_precision():
    rows = list(csv.DictReader(io.StringIO(to_csv(_ours(), paper_results()))))
    ours = [row for row in rows if row["source"] == "ours"]
    assert ours[-1]["codes"] == "(0, 1)"
    assert [(row["table"], row["dataset"], row["dropped"], row["metric"]) for row in ours] == [
        ("main", "waterbirds", "", "worst"),
        ("main", "waterbirds", "", "unseen"),
        ("main", "penguins", "", "worst"),
        ("standard", "waterbirds", "", "worst"),
        ("scenarios", "waterbirds", "(landbird, water)", "worst"),
    ]
    assert ours[3]["standard_error"] == ""
    paper = [row for row in rows if row["source"] == "paper"]
    assert {row["dataset"] for row in paper} == {"waterbirds"}  # the only data set that both have
    alone = list(csv.DictReader(io.StringIO(to_csv(Results(), paper_results()))))
    assert {row["source"] for row in alone} == {"paper"}
    assert len(alone) == 3 * (48 + 8 + 24 + 272 + 48) + 8  # celeba5 has one number without a drop
    assert {row["complete"] for row in ours} == {"yes"}
    only = list(csv.DictReader(io.StringIO(to_csv(_ours(), None, "standard"))))
    assert [row["mean"] for row in only] == ["86.0"]


def test_scores_are_shown_with_their_standard_error():
    assert shown(Score(78.66, 0.96)) == "78.7 (1.0)"
    assert shown(Score(5.0)) == "5.0"
    assert shown(None) == shown(Score(float("nan"))) == ""


def test_names_from_users_are_escaped():
    grid = Grid("main", "a_b & <c>", ["data|set", "x"], 1)
    grid.add([r"50% {of} a|b_*c* [red]"], [Cell("1", best=True, marked=True)])
    markdown = to_markdown(grid)
    assert r"50% {of} a\|b\_\*c\* [red]" in markdown
    assert "**1** ▾" in markdown
    assert r"data\|set" in markdown
    latex = to_latex(grid)
    assert r"50\% \{of\} a|b\_*c* [red]" in latex
    assert r"\textbf{1} $\blacktriangledown$" in latex
    assert r"a\_b \& <c>" in latex
    from rich.console import Console

    console = Console(width=80, record=True, file=io.StringIO())
    console.print(to_rich(grid))
    assert "[red]" in console.export_text()


def test_codes_of_metashift_match_the_papers():
    """The paper codes cat and indoor as 1: dropping the small group (cat, outdoor) does not change ERM's average."""
    paper = paper_results()
    space = benchmark_space("metashift")
    cat_outdoor = tuple(space.encode([("cat", "outdoor")])[0].tolist())
    assert paper.labels["metashift", (cat_outdoor,)] == "(1, 0)"
    dropped = paper.scenarios["metashift", (cat_outdoor,), "ERM"]
    standard = paper.standard["metashift", "ERM"]
    assert dropped["average"].mean == standard["average"].mean
    assert dropped["worst"].mean < standard["worst"].mean - 10


def benchmark_space(name):
    from compshift.data import metashift

    assert name == "metashift"
    return metashift.SPACE


def test_the_highest_accuracy_of_a_column_is_in_bold():
    scores = [Score(70.04, None, 1), Score(90.0, None, 1), None, Score(float("nan"), None, 1)]
    assert _best(scores) == 90.0
