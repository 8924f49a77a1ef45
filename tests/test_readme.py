"""Check the README: its examples run, and its commands, links and figures are right."""

import re
from pathlib import Path

import pytest

from tests import markdown_blocks

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
NUMBERS = (ROOT / "docs" / "numbers.md").read_text()


@pytest.mark.filterwarnings("default")
def test_examples(tmp_path, monkeypatch):
    """The Python example reaches the accuracies in the text, and the audit prints what is shown."""
    counts = [("landbird", "land", 3500), ("landbird", "water", 1000), ("waterbird", "water", 2500)]
    rows = [f"{bird},{place}\n" * count for bird, place, count in counts]
    (tmp_path / "birds.csv").write_text("bird,place\n" + "".join(rows))
    monkeypatch.chdir(tmp_path)
    languages = [block.language for block in markdown_blocks.blocks(README)]
    assert "python" in languages
    assert "console" in languages

    names = markdown_blocks.run_page(ROOT / "README.md")

    from sklearn.linear_model import LogisticRegression

    group_report = names["cs"].metrics.group_report
    crm = group_report(names["bird_new"], names["clf"].predict(names["X_new"]), names["place_new"])
    assert re.search(r"worst group +0\.76\d\d +\(waterbird, land\)", str(crm))
    assert "CRM gets 0.76 of that group right" in README
    erm = LogisticRegression().fit(names["X"], names["bird"]).predict(names["X_new"])
    report = group_report(names["bird_new"], erm, names["place_new"])
    assert f"`LogisticRegression` gets {report.worst:.2f}." in README


def test_shown_output_is_compared():
    """The console block has an output on the page, so running the page compares the two."""
    (console,) = [block for block in markdown_blocks.blocks(README) if block.language == "console"]
    assert console.output is not None


def test_commands_and_links_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make (\w+)", README):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
    for path in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", README):
        assert (ROOT / path).exists(), path


def test_results_are_those_of_the_full_table():
    """Each row of the README's table is a column of the table in docs/numbers.md."""
    table = [
        [cell.strip() for cell in line.strip("| ").split("|")]
        for line in NUMBERS.partition("<!-- digits -->")[2].strip().splitlines()[:6]
    ]
    heading, _, average, _, worst, dropped = table
    for number, method in enumerate(heading[1:9], 1):
        assert f"| {method} | {average[number]} | {worst[number]} | {dropped[number]} |" in README


def test_table_is_what_the_demo_prints():
    from compshift.studies.gaussian2d import run_gaussian2d

    study = run_gaussian2d()
    rows = {
        "(−1, −1), never seen": 0,
        "(−1, +1)": 1,
        "(+1, −1)": 2,
        "(+1, +1)": 3,
    }
    for label, position in rows.items():
        figures = " | ".join(f"{report.accuracy[position]:.3f}" for report in study.classes.values())
        assert f"| {label} | {figures} |" in NUMBERS
    worst = " | ".join(f"{report.worst:.3f}" for report in study.classes.values())
    assert f"| worst group | {worst} |" in NUMBERS
