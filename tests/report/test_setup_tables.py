"""Tables of the data sets and of the hyper-parameters: the paper's, and those of a benchmark folder."""

import csv
import io
import json
from dataclasses import dataclass

import numpy as np
import pytest

from compshift import InputError
from compshift.bench.paper import read_table
from compshift.bench.selection import chosen_records
from compshift.report.grid import to_latex, to_markdown
from compshift.report.setup_tables import PAPER_FILES, setup_table
from tests.report.records import Made, write_results
from tests.report.test_tables import tables_of

RANGES = {"learning_rate": {"low": -5.0, "high": -3.0}, "batch_size": {"low": 5.0, "high": 7.0, "base": 2.0}}


@dataclass(frozen=True)
class Tuned(Made):
    """A made-up benchmark whose protocol has ranges."""

    @property
    def protocol(self):
        return {**super().protocol, "ranges": RANGES}


@dataclass(frozen=True)
class Fixed(Made):
    """A made-up benchmark whose protocol has a fixed value instead of a range."""

    @property
    def protocol(self):
        return {**super().protocol, "ranges": {**RANGES, "learning_rate": 0.25}}


def test_a_fixed_value_is_printed_where_a_range_is_usual(tmp_path):
    table = setup_table("hyperparameters", chosen_records(write_results(tmp_path, Fixed())), paper=False)
    assert "0.25" in to_markdown(table.to_grid())


def without_dropped(record):
    """Remove the validation rows of dropped groups, as a real job does."""
    dropped = set(map(tuple, record["config"]["dropped"]))
    keep = [tuple(code) not in dropped for code in record["groups"]]
    val = (np.array(record["rows"]["val"]) * keep).tolist()
    right = {name: (np.array(hits) * keep).tolist() for name, hits in record["right"]["val"].items()}
    return {**record, "rows": {**record["rows"], "val": val}, "right": {**record["right"], "val": right}}


def ours(path, *data):
    return chosen_records(write_results(path, *data, change=without_dropped))


def only(table):
    (found,) = tables_of(to_markdown(table.to_grid())).values()
    return found


@pytest.mark.parametrize("name", ["statistics", "hyperparameters"])
def test_the_papers_table_has_the_printed_numbers(name):
    source = {row["dataset"]: row for row in read_table(PAPER_FILES[name])}
    rows = {row["data set"]: row for row in only(setup_table(name, None, paper=True))}
    assert list(rows) == list(source)
    for label, row in source.items():
        if name == "statistics":
            assert list(rows[label].values())[1:] == list(row.values())[1:]
        else:
            exponents = [f"{row[key]}".replace("-", "−") for key in row if key.endswith(("_low", "_high"))]
            expected = [
                f"{base}^U({a}, {b})" for base, a, b in zip((10, 10, 2), exponents[::2], exponents[1::2], strict=True)
            ]
            assert list(rows[label].values())[1:] == [*expected, row["epochs"]]


def test_statistics_count_the_rows_before_groups_are_dropped(tmp_path):
    made = Made(label="waterbirds", name="waterbirds")
    table = setup_table("statistics", ours(tmp_path, made), paper=True)
    record = made.records()[0]
    (row,) = only(table)
    assert row["classes: ours"] == "3"
    assert row["groups: ours"] == "6"
    assert row["train rows: ours"] == str(sum(record["train_rows"]))
    assert row["val rows: ours"] == str(sum(record["rows"]["val"]))  # each scenario drops another group
    assert row["test rows: ours"] == str(sum(record["rows"]["test"]))
    lines = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert [(line["source"], line["dataset"]) for line in lines] == [("ours", "waterbirds"), ("paper", "waterbirds")]
    assert [line["train_size"] for line in lines] == [row["train rows: ours"], "4795"]


def test_a_group_that_every_scenario_drops_makes_the_count_a_lower_bound(tmp_path):
    made = Made(scenarios={"(duck, sea)": [(0, 1)]})
    table = setup_table("statistics", ours(tmp_path, made), paper=False)
    rows = made.records()[0]["rows"]["val"]
    (row,) = only(table)
    assert row["val rows"] == f"≥ {sum(rows) - rows[1]}"
    assert "at least" in to_markdown(table.to_grid())
    assert r"$\geq$ " in to_latex(table.to_grid())
    assert table.to_csv().splitlines()[1].endswith(",no")


def test_ranges_stand_beside_the_papers_only_for_published_data_sets(tmp_path):
    folder = ours(tmp_path, Tuned(label="waterbirds", name="waterbirds"), Tuned(label="celeba"))
    table = setup_table("hyperparameters", folder, paper=True)
    published, file = only(table)
    assert published["learning rate: ours"] == "10^U(−5, −3)"
    assert published["steps: ours"] == "20"
    assert published["paper"] == "5000"  # the last column of that name
    assert file["batch size: ours"] == "2^U(5, 7)"
    assert file["paper"] == ""  # a file called celeba is not the published data set
    assert "$10^{U(-5, -3)}$" in to_latex(table.to_grid())
    assert "ours,celeba,batch_size,2,5.0,7.0" in table.to_csv()
    assert "paper,celeba" not in table.to_csv()


def test_tables_that_cannot_be_made_say_why(tmp_path):
    store = write_results(tmp_path, Tuned())
    with pytest.raises(InputError, match="the paper's table of statistics has none of birds"):
        setup_table("statistics", chosen_records(store), paper=True)
    for bad in (
        None,
        {"alpha": "3"},
        {"alpha": 10**400},
        {"alpha": {"low": 0}},
        {"alpha": {"low": 0, "high": 10**400}},
    ):
        about = json.loads(store.about.read_text())
        about["data"]["birds"]["protocol"]["ranges"] = bad
        store.about.write_text(json.dumps(about))
        with pytest.raises(InputError, match=r"'ranges' of birds in bench.json is missing or invalid"):
            setup_table("hyperparameters", chosen_records(store), paper=False)
    with pytest.raises(InputError, match="no results to count rows in"):  # the records have another protocol now
        setup_table("statistics", chosen_records(store), paper=False)
