"""What is missing is counted by what was planned, whatever else a folder has."""

from compshift.bench.selection import chosen_records, unfinished_units
from tests.report.records import Made, write_results


def lacking(path, **without):
    """Of a folder without some records of LC."""
    made = Made(methods=("erm", "lc"), scenarios={"(duck, sea)": [(0, 1)]}, draws=2, seeds=3)

    def change(record):
        config = record["config"]
        gone = config["method"] == "lc" and all(config[name] == value for name, value in without.items())
        best = 1.0 if config["draw"] == 0 else 0.0  # the first draw is chosen
        rows = record["rows"]["val"]
        right = {name: [int(best * n) for n in rows] for name in record["right"]["val"]}
        return None if gone else {**record, "right": {**record["right"], "val": right}}

    chosen = chosen_records(write_results(path, made, change=change))
    return [(item.method, item.finished, item.planned) for item in unfinished_units(chosen.about, chosen.units)]


def test_a_finished_folder_lacks_nothing(tmp_path):
    assert lacking(tmp_path / "whole", draw=9) == []


def test_seeds_and_draws_that_are_missing_are_counted(tmp_path):
    assert lacking(tmp_path / "seed", seed=2) == [("lc", 3, 4)]
    assert lacking(tmp_path / "draw", draw=1) == [("lc", 3, 4)]


def test_a_method_that_has_nothing_lacks_everything(tmp_path):
    assert lacking(tmp_path / "none") == [("lc", 0, 4)]
