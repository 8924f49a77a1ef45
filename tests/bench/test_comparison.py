"""Our numbers stand beside the paper's only if they may be compared."""

import dataclasses

import pytest

from compshift.bench.protocol import named_protocol
from compshift.bench.results import paper_results, stored_results
from compshift.data.benchmarks import benchmark
from compshift.report.grid import to_markdown
from compshift.report.tables import make_tables, to_csv
from tests.report.records import Made, write_results

EACH = {f"({y}, {a})": [(y, a)] for y in range(2) for a in range(2)}
NONE = {"none": []}
WATERBIRDS = Made(
    label="waterbirds",
    name="waterbirds",
    names=("bird", "place"),
    values=(("landbird", "waterbird"), ("land", "water")),
    methods=("erm", "crm"),
    scenarios=EACH | NONE,
    draws=5,
    seeds=3,
    counts=dict(benchmark("waterbirds").published),
)


def _protocol(name="paper", **changes):
    return named_protocol(name, kind="images", dataset="waterbirds", changes=changes).to_dict()


def _results(path, **fields):
    made = dataclasses.replace(WATERBIRDS, **{"settings": _protocol(), **fields})
    return stored_results(write_results(path, made, change=_choose_first))


def _choose_first(record):
    """Let validation choose draw 0, which is the one that has every seed."""
    if record["config"]["draw"]:
        record["right"]["val"] = {name: [0] * len(right) for name, right in record["right"]["val"].items()}
    return record


def _text(results):
    return "\n".join(to_markdown(grid) for grid in make_tables(results, paper_results()))


@pytest.mark.parametrize("name", ["paper", "authors"])
def test_runs_of_the_papers_protocol_stand_beside_the_paper(tmp_path, name):
    results = _results(tmp_path, settings=_protocol(name))
    assert results.differences == {"waterbirds": []}
    grids = make_tables(results, paper_results())
    assert [grid.name for grid in grids] == ["main", "ablations", "standard", "scenarios"]
    assert all("difference / s.e." in grid.headings for grid in grids)
    assert "not the same protocol" not in _text(results)


def test_settings_that_the_paper_does_not_state_may_differ(tmp_path):
    changed = _results(tmp_path, settings=_protocol("paper", schedule="linear", decay="matrices", precision="bfloat16"))
    assert changed.differences == {"waterbirds": []}
    assert "protocol paper with another decay, precision, schedule" in _text(changed)


def test_a_copy_with_67_images_is_never_set_beside_the_paper(tmp_path):
    few = {"train": (50, 3, 2, 12), "val": (4, 4, 2, 2), "test": (9, 9, 3, 3)}
    results = _results(tmp_path, counts=few)
    assert results.differences["waterbirds"] == [
        "train has 67 rows, the published data set 4795",
        "val has 12 rows, the published data set 1199",
        "test has 24 rows, the published data set 5794",
    ]
    _check_apart(results)


def test_another_network_is_never_set_beside_the_paper(tmp_path):
    own = _results(tmp_path / "own", settings=_protocol("compshift"))
    assert own.differences["waterbirds"] == [
        "the network efficientnet-lite0, where the paper has torchvision's ResNet-50"
    ]
    _check_apart(own)
    hub = _results(tmp_path / "hub", settings=_protocol("paper", backbone="microsoft/resnet-50"))
    assert hub.differences["waterbirds"] == [
        "the network microsoft/resnet-50, where the paper has torchvision's ResNet-50"
    ]


def test_a_single_scenario_is_never_set_beside_a_mean_over_scenarios(tmp_path):
    results = _results(tmp_path, scenarios={"(0, 1)": [(0, 1)]})
    grids = make_tables(results, paper_results())
    assert [grid.name for grid in grids] == ["scenarios"]
    assert "our means are over 1 scenario and the paper's over 4, not the same ones" in _text(results)


def test_a_method_that_lacks_scenarios_is_not_set_beside_the_papers_mean(tmp_path):
    made = dataclasses.replace(WATERBIRDS, settings=_protocol())

    def one_scenario_of_crm(record):
        config = record["config"]
        return None if config["method"] == "crm" and config["dropped"] != [[0, 0]] else _choose_first(record)

    results = stored_results(write_results(tmp_path, made, change=one_scenario_of_crm))
    grids = {grid.name: grid for grid in make_tables(results, paper_results())}
    assert [row[1].text for row in grids["main"].rows] == ["ERM"]
    assert "ablations" not in grids


def test_a_copy_without_a_whole_group_is_not_whole(tmp_path):
    counts = {split: (*rows[:2], 0, rows[3]) for split, rows in WATERBIRDS.counts.items()}
    assert len(_results(tmp_path / "all", counts=counts).differences["waterbirds"]) == 2  # train and test
    val = {**WATERBIRDS.counts, "val": (*WATERBIRDS.counts["val"][:2], 0, 0)}
    assert _results(tmp_path / "val", counts=val).differences["waterbirds"][0].startswith("val has ")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"draws": 2}, "2 draws, where the paper has 5"),
        ({"draws": 6}, "6 draws, where the paper has 5"),
        ({"settings": {**_protocol(), "weights": "sha256 01"}}, "weights sha256 01, where the paper has published"),
        ({"settings": {**_protocol(), "strict": True}}, "strict True, where the paper has False"),
        ({"seeds": 1}, "1 seed, where the paper has 3"),
        ({"settings": _protocol(steps=100)}, "steps 100, where the paper has 5000"),
        ({"settings": _protocol(select="worst")}, "select worst, where the paper has balanced"),
        ({"settings": _protocol(optimiser="adamw")}, "optimiser adamw, where the paper has sgd"),
        ({"settings": _protocol(learning_rate="10^U(-2, -1)")}, "other ranges of hyper-parameters"),
        (
            {"settings": named_protocol(kind="features").to_dict()},
            "linear heads on frozen features, where the paper fine-tunes torchvision's ResNet-50",
        ),
    ],
)
def test_every_difference_is_named(tmp_path, fields, reason):
    results = _results(tmp_path, **fields)
    assert reason in results.differences["waterbirds"]
    _check_apart(results)


def _check_apart(results):
    """Check that the paper's numbers have a column of their own, with the reasons and without differences."""
    for grid in make_tables(results, paper_results()):
        assert "paper (not the same protocol)" in grid.headings
        assert "difference / s.e." not in grid.headings
        assert any(note.startswith("waterbirds, not the same protocol: ") for note in grid.notes)
    assert to_csv(results, paper_results()).count(results.differences["waterbirds"][0]) > 10


def test_a_table_with_fine_tuned_and_frozen_results_says_which_is_which(tmp_path):
    frozen = Made(label="pacs", mode="features")
    results = stored_results(write_results(tmp_path, dataclasses.replace(WATERBIRDS, settings=_protocol()), frozen))
    text = "\n".join(to_markdown(grid) for grid in make_tables(results))
    assert "| waterbirds (fine-tuned) |" in text
    assert "| pacs (frozen features) |" in text


NICO = Made(
    label="nico++",
    name="nico++",
    names=("object", "context"),
    values=(("bear", "car", "dog"), ("dim", "rock")),
    scenarios={"none": [], "standard": [()]},
    counts={"train": (9, 9, 9, 9, 9, 0), "val": (3,) * 6, "test": (6,) * 6},
)


def _nico(record):
    if record["config"]["scenario"] == "none":  # validation is trimmed to the groups of training
        record["rows"]["val"][5] = 0
        for right in record["right"]["val"].values():
            right[5] = 0
    return record


def test_nicopp_without_dropped_groups_is_compositional_and_its_standard_result_is_not(tmp_path):
    results = stored_results(write_results(tmp_path, NICO, change=_nico))
    assert set(results.main) == set(results.standard) == {("nico++", "ERM"), ("nico++", "CRM")}
    assert results.main != results.standard
    assert set(results.scenarios) == {("nico++", (), "ERM"), ("nico++", (), "CRM")}
    assert results.lacking == {"nico++": 1}
    (standard,) = [grid for grid in make_tables(results) if grid.name == "standard"]
    assert standard.notes[1].startswith("nico++: its training split lacks 1 tested groups")
    assert not results.partial
