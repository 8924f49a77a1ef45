"""Planning: scenarios, methods, and invalid plans."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from compshift import ExtrapolationWarning, InputError
from compshift.bench.convex_methods import CONVEX_METHODS
from compshift.bench.plan import BenchPlan, choose_methods, make_plan, scenario_name
from compshift.bench.protocol import Protocol
from compshift.bench.results import stored_results
from compshift.bench.sources import DataSource, file_source, named_source
from tests.bench.small import birds, run, write_birds
from tests.data import trees


def test_scenarios(tmp_path):
    source = birds(tmp_path / "birds.npz")

    def dropped(*drops):
        return [unit.dropped for unit in make_plan([source], ["erm"], drops).units]

    assert len(dropped("each")) == 6
    assert dropped("none", "water,sand") == [(), ((1, 2),)]
    assert dropped("land,0;water,2") == [((0, 0), (1, 2))]
    assert len(dropped("random:0.34")[0]) == 2
    assert len(dropped("water,sand", "each", "water,2")) == 6  # the same groups are one scenario
    gaussians = DataSource("gaussian2d", "gaussian2d")
    with pytest.warns(
        ExtrapolationWarning, match=r"1 of the scenarios of 'each' are left out; without \(-1, 1\), the cl"
    ):
        assert len(make_plan([gaussians], ["erm"], ["each"]).units) == 2
    with pytest.raises(InputError, match=r"gaussian2d: without \(-1, 1\), the class -1 has no training rows"):
        make_plan([gaussians], ["erm"], ["0,1"])


def test_the_same_groups_are_the_same_job_however_they_were_chosen(tmp_path):
    source = birds(tmp_path / "birds.npz")
    (drawn,) = make_plan([source], ["erm"], ["random:0.34"]).units
    values = source.load().space.values
    text = ";".join(",".join(values[column][code] for column, code in enumerate(group)) for group in drawn.dropped)
    (named,) = make_plan([source], ["erm"], [text]).units
    assert named.job(0, 0).key == drawn.job(0, 0).key
    assert make_plan([source], ["erm"], ["random:0.340"]).units[0].job(0, 0).key == drawn.job(0, 0).key
    many = source.load().space.codes(np.arange(6))
    assert scenario_name(source.load().space, many).startswith("(land, forest) (land, sea) and 4 more, ")
    assert scenario_name(source.load().space, many[:5]) != scenario_name(source.load().space, many[1:])


@pytest.mark.parametrize(
    ("options", "changes"), [({"draws": 3}, {"draws": "3"}), ({"seeds": 2}, {"seeds": 2}), ({}, {"scenarios": "none"})]
)
def test_a_job_is_the_same_however_many_others_are_asked_for(tmp_path, options, changes):
    source = birds(tmp_path / "birds.npz")
    (plain,) = make_plan([source], ["erm"], ["none"]).units
    (named,) = make_plan([source], ["erm"], ["none"], **options).units
    (changed,) = make_plan([source], ["erm"], None if "scenarios" in changes else ["none"], changes=changes).units
    assert changed == named
    assert changed.job(0, 0).key == plain.job(0, 0).key


def test_changed_scenarios_do_not_make_a_data_set_a_single_scenario(tmp_path):
    source = birds(tmp_path / "birds.npz")
    assert len(make_plan([source], ["erm"], ["each"], changes={"scenarios": "none"}).units) == 6


def test_a_scenario_that_leaves_no_validation_rows(tmp_path):
    archive = dict(np.load(write_birds(tmp_path / "birds.npz")))
    lone = (archive["Z"] == [0, 0]).all(axis=1)
    archive["split"] = np.where((archive["split"] == 1) & ~lone, 0, archive["split"])
    np.savez(tmp_path / "lone.npz", **archive)
    source = file_source(str(tmp_path / "lone.npz"), None, None, None, 0)
    with pytest.warns(
        ExtrapolationWarning, match=r"without \(land, forest\), there are no val rows, which are needed to"
    ):
        assert len(make_plan([source], ["erm"], ["each"]).units) == 5
    with pytest.raises(InputError, match="there are no val rows, which are needed to choose among 2 draws"):
        make_plan([source], ["erm"], ["land,forest"], draws=2)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"draws": 0}, "draws is 0"),
        ({"seeds": 0}, "seeds is 0"),
        ({"changes": {"draws": "0"}}, "draws is 0"),
        ({"changes": {"seeds": "few"}}, "seeds is 'few': pass an integer"),
        ({"drops": None, "changes": {"scenarios": ""}}, "nothing to run"),
        ({"methods": []}, "nothing to run"),
        ({"select": "test"}, "selection 'test' is not known"),
        ({"plan_seed": -1}, "seed of the plan is -1"),
        ({"drops": []}, "nothing to run"),
        ({"drops": ["land"]}, "birds: drop is 'land': name one value of each attribute"),
        ({"drops": ["land,moon"]}, "place has no value 'moon'"),
        ({"steps": 0}, "steps is 0"),
    ],
)
def test_bad_options_raise(tmp_path, options, sentence):
    with pytest.raises(InputError, match=sentence):
        make_plan([birds(tmp_path / "birds.npz")], **{"methods": ["erm"], "drops": ["each"], **options})


def test_unusable_data_raise(tmp_path):
    source = birds(tmp_path / "birds.npz")
    with pytest.raises(InputError, match="2 data sets are called 'birds'"):
        make_plan([source, source], ["erm"])
    archive = dict(np.load(tmp_path / "birds.npz"))
    np.savez(tmp_path / "two.npz", **{**archive, "split": np.where(archive["split"] == 1, 0, archive["split"])})
    two = replace(source, path=str(tmp_path / "two.npz"))
    with pytest.raises(InputError, match=r"without \(land, forest\), there are no val rows, which are needed to cho"):
        make_plan([two], ["erm"])
    assert make_plan([two], ["erm"], draws=1).units
    archive.pop("split")
    np.savez(tmp_path / "whole.npz", **archive)
    whole = replace(source, path=str(tmp_path / "whole.npz"))
    with pytest.raises(InputError, match="needs train and test rows: split the file"):
        make_plan([whole], ["erm"])
    shared = replace(whole, shares=(("train", 0.6), ("val", 0.2), ("test", 0.2)))
    assert shared.load().splits == ("train", "val", "test")


def test_crm_has_one_job_and_needs_no_validation_rows_if_combinations_choose_its_ridge(tmp_path):
    source = birds(tmp_path / "birds.npz")
    plan = make_plan([source], ["crm", "erm", "subg"], ["water,sea"], draws=3, seeds=2, select="combinations")
    assert [(unit.method.name, unit.draws, unit.n_jobs) for unit in plan.units] == [
        ("crm", 1, 1),
        ("erm", 3, 3),
        ("subg", 3, 4),
    ]
    (job,) = plan.units[0].first()
    assert job.config()["common"] == {}
    assert list(plan.units[1].job(0, 0).config()["common"]) == ["alpha"]
    archive = dict(np.load(tmp_path / "birds.npz"))
    np.savez(tmp_path / "two.npz", **{**archive, "split": np.where(archive["split"] == 1, 0, archive["split"])})
    two = replace(source, path=str(tmp_path / "two.npz"))
    with pytest.raises(InputError, match="there are no val rows"):
        make_plan([two], ["crm", "erm"], select="combinations")
    store, outcome, ran = run(tmp_path / "out", [two], ["crm"], ["water,sea"], select="combinations")
    assert (len(ran), outcome.failures) == (1, [])
    assert set(stored_results(store).main) == {("birds", "CRM")}


def test_the_choice_of_a_ridge_is_in_the_estimate(tmp_path, monkeypatch):
    monkeypatch.setattr("compshift.bench.timing._time", lambda _: 0.01)
    source = birds(tmp_path / "birds.npz")
    drawn, chosen = (
        make_plan([source], ["crm"], ["water,sea"], draws=1, select=select).estimate_seconds(None)
        for select in ("balanced", "combinations")
    )
    assert chosen > 1.5 * drawn


def test_convex_methods_on_features_are_chosen_without_importing_torch(monkeypatch):
    pytest.importorskip("torch")
    expected = choose_methods([*CONVEX_METHODS, "groupdro"], tuning=False)[:-1]
    monkeypatch.setitem(sys.modules, "compshift.methods.registry", None)  # its import raises
    assert choose_methods(CONVEX_METHODS, tuning=False) == expected
    with pytest.raises(ImportError):
        choose_methods(CONVEX_METHODS, tuning=True)


def test_methods_without_torch(monkeypatch):
    monkeypatch.setattr("compshift.bench.plan.find_spec", lambda _: None)

    def chosen(*names, tuning=False):
        return [method.name for method in choose_methods(names, tuning=tuning)]

    assert chosen("crm", "erm", "crm") == ["crm", "erm"]
    assert chosen("all") == ["erm", "lc", "sla", "crm", "rwg", "subg"]
    with pytest.raises(InputError, match="groupdro, irm, vrex, mixup must be trained, but PyTorch is not installed"):
        chosen("paper")
    with pytest.raises(InputError, match="erm must be trained"):
        chosen("erm", tuning=True)
    with pytest.raises(InputError, match="method 'foo' is not known"):
        chosen("foo")


def test_default_numbers_of_jobs_and_threads(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    plan = make_plan([birds(tmp_path / "birds.npz")], ["erm"], ["none"], draws=1)
    assert plan.workers(None, None, remote=False) == (8, 1)
    assert plan.workers(3, 2, remote=True) == (3, 2)
    (unit,) = plan.units
    tuning = replace(unit.data, protocol=Protocol("fine-tuning", 10, {}))
    plan = BenchPlan([replace(unit, data=tuning)], ())
    assert plan.workers(None, None, remote=False) == (1, 8)
    assert plan.workers(4, None, remote=False) == (4, 2)
    assert plan.workers(None, None, remote=True) == (1, 1)


def test_finished_jobs_are_not_in_the_estimate(tmp_path):
    source = birds(tmp_path / "birds.npz")
    plan = make_plan([source], ["erm", "crm"], ["water,sea"], draws=2, seeds=2, steps=20)
    assert plan.finished_jobs(None) == [0, 0]
    assert plan.estimate_seconds(None) > 0
    store, _, _ = run(tmp_path / "out", [source], ("erm", "crm"), ("water,sea",))
    assert plan.finished_jobs(store) == [2, 2]
    assert plan.estimate_seconds(store) == 0


def test_nicopp_is_one_scenario_unless_every_group_is_asked_for(tmp_path):
    pytest.importorskip("torch")
    trees.nicopp_whole(tmp_path)
    source = named_source("nico++", tmp_path, features=False)
    plan = make_plan([source])
    assert (plan.n_jobs, {unit.scenario for unit in plan.units}) == (56, {"none"})
    sentence = (
        r"its published result is a single scenario, 'none', but 'each' would drop 337 groups in turn \(18872 jobs\)"
    )
    with pytest.raises(InputError, match=sentence):
        make_plan([source], drops=["each"])
    with pytest.raises(InputError, match=sentence):
        make_plan([source], changes={"scenarios": "each"})
    assert make_plan([source], ["erm"], ["each"], yes=True).n_jobs == 337 * 7
    both = make_plan([source], ["erm"], protocol="paper")
    assert [unit.scenario for unit in both.units] == ["none", "standard"]
    assert len({unit.job(0, 0).key for unit in both.units}) == 2


def test_validation_of_the_standard_scenario_has_every_group(tmp_path):
    """The groups that train lacks are in the validation of "standard" and not in that of "none"."""
    archive = dict(np.load(write_birds(tmp_path / "birds.npz")))
    kept = ~((archive["Z"] == [1, 2]).all(axis=1) & (archive["split"] == 0))
    cut = {name: archive[name][kept] for name in ("X", "Z", "split")}
    np.savez(tmp_path / "cut.npz", **{**archive, **cut})
    source = file_source(str(tmp_path / "cut.npz"), None, None, None, 0)
    store, outcome, _ = run(tmp_path / "out", [source], ["erm"], ["none", "standard"])
    assert not outcome.failures
    rows = {record["config"]["scenario"]: record["rows"]["val"] for record in store.records()}
    assert (rows["none"][5], rows["standard"][5] > 0) == (0, True)
    assert rows["none"][:5] == rows["standard"][:5]
    results = stored_results(store)
    assert set(results.main) == set(results.standard) == {("cut", "ERM")}
    whole = make_plan([birds(tmp_path / "birds.npz")], ["erm"], ["none", "standard"])
    assert [unit.scenario for unit in whole.units] == ["none"]  # where train has every group, both are the same
