"""Choose draws by validation accuracy, and count planned jobs that are missing."""

from compshift.bench.selection import choose_draw, chosen_records, describe_selection, selection_rule, unfinished_units
from tests.bench.test_records import RECORD
from tests.report.records import Made, write_results


def _validated(*right):
    return {
        draw: {**RECORD, "right": {**RECORD["right"], "val": {"first": [value, 2, 0, 0]}}}
        for draw, value in enumerate(right)
    }


def test_the_best_draw_on_validation_is_chosen():
    assert choose_draw(_validated(0, 2, 1), "balanced") == 1
    assert choose_draw(_validated(1, 2, 2), "balanced") == 1  # the first of equals
    records = _validated(0, 2, 1)
    records[1] = {"status": "diverged"}
    assert choose_draw(records, "worst") == 2
    assert choose_draw({0: {"status": "diverged"}}, "worst") is None
    assert choose_draw({}, "worst") is None
    lone = {3: {**RECORD, "right": {"test": RECORD["right"]["test"]}, "rows": {"test": RECORD["rows"]["test"]}}}
    assert choose_draw(lone, "balanced") == 3  # without validation rows


def test_the_metric_decides_which_draw_is_chosen():
    first = {**RECORD, "right": {**RECORD["right"], "val": {"first": [1, 1, 0, 0]}}}
    second = {**RECORD, "rows": {**RECORD["rows"], "val": [8, 2, 0, 0]}}
    second["right"] = {**RECORD["right"], "val": {"first": [3, 2, 0, 0]}}
    assert choose_draw({0: first, 1: second}, "balanced") == 1  # .5 against .6875
    assert choose_draw({0: first, 1: second}, "worst") == 0  # .5 against .375


def test_methods_without_a_rule_for_combinations_are_selected_by_balanced_validation_accuracy():
    assert selection_rule({"select": "combinations"}) == ("balanced", None)
    assert selection_rule({"select": "worst"}) == ("worst", None)
    assert describe_selection({"select": "worst"}) == "selected by worst validation accuracy"
    assert "by balanced validation accuracy" in describe_selection({"select": "combinations"})


def lacking(path, **without):
    """Return the unfinished units of a folder from which the records of LC that match ``without`` are missing."""
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


def test_a_finished_folder_lacks_no_job(tmp_path):
    assert lacking(tmp_path / "whole", draw=9) == []


def test_missing_seeds_and_draws_are_counted(tmp_path):
    assert lacking(tmp_path / "seed", seed=2) == [("lc", 3, 4)]
    assert lacking(tmp_path / "draw", draw=1) == [("lc", 3, 4)]


def test_a_method_without_records_lacks_all_jobs(tmp_path):
    assert lacking(tmp_path / "none") == [("lc", 0, 4)]
