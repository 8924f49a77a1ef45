from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compshift import ExtrapolationWarning, InputError
from compshift.bench.jobs import Job, PlannedData, PlannedMethod, seed_for
from compshift.bench.plan import choose_methods, make_plan, scenario_name
from compshift.bench.protocol import Protocol, feature_protocol, tuning_protocol
from compshift.bench.sources import DataSource, data_digest, file_source, named_source
from compshift.data import benchmark
from compshift.methods.sampling import LogUniform
from tests.bench.small import birds, write_birds
from tests.data.trees import waterbirds

PENALTY = {"penalty": LogUniform(-1, 5), "anneal": LogUniform(0, 4, whole=True, steps=10_000)}


@given(st.integers(0, 50), st.integers(0, 5))
def test_a_draw_is_a_function_of_its_number_and_the_seed_of_the_plan(number, plan_seed):
    protocol = tuning_protocol("waterbirds", "images", fresh=False, plan_seed=plan_seed)
    common, own = protocol.draw(number, PENALTY)
    assert protocol.draw(number, {})[0] == common  # whatever else is drawn
    assert protocol.draw(number, PENALTY) == (common, own)
    rng = np.random.default_rng([plan_seed, number])
    expected = [10 ** rng.uniform(-5, -3), 10 ** rng.uniform(-6, -3), int(2 ** rng.uniform(5, 7))]
    assert list(common.values()) == expected
    assert own == {"penalty": 10 ** rng.uniform(-1, 5), "anneal": max(1, int(10 ** rng.uniform(0, 4)))}
    assert protocol.draw(number + 1, {})[0] != common


def test_ranges_are_the_papers():
    text = tuning_protocol("civilcomments", "text", fresh=False)
    assert text.ranges["learning_rate"] == LogUniform(-6, -4)
    assert text.ranges["batch_size"] == LogUniform(4, 6, base=2, whole=True)
    assert (text.steps, tuning_protocol("celeba5", "images", fresh=False).steps) == (10_000, 10_000)
    assert tuning_protocol("waterbirds", "images", fresh=False, steps=7).steps == 7
    assert tuning_protocol(None, "images", fresh=False).ranges["learning_rate"] == LogUniform(-5, -3)
    assert feature_protocol().ranges == {"alpha": LogUniform(-4, 0)}


def test_anneal_moves_with_the_length_of_a_run():
    """The paper's range is for the paper's lengths; a run of another length has it in proportion."""
    steps = 500
    for number in range(20):
        full, same, *scaled = (
            protocol.draw(number, PENALTY)[1]["anneal"]
            for protocol in (
                Protocol("fine-tuning", 10_000, {}),
                Protocol("fine-tuning", 5000, {}),
                Protocol("fine-tuning", steps, {}),
                Protocol("features", steps, {}),
            )
        )
        assert full == same
        for found in scaled:
            assert found == pytest.approx(full * steps / 10_000, abs=1.05)
            assert 1 <= found <= steps


@pytest.fixture
def job(tmp_path):
    return make_plan([birds(tmp_path / "birds.npz")], ["crm"], ["each"]).units[0].job(1, 0)


def test_a_job_is_named_by_everything_that_decides_about_it(job):
    moved = replace(job.data.source, path="elsewhere/birds.npz", root="/other")
    assert replace(job, data=replace(job.data, source=moved)).key == job.key
    changes = [
        {"draw": 2},
        {"seed": 1},
        {"scenario": "other"},
        {"dropped": ((1, 1),)},
        {"method": PlannedMethod("erm", {})},
        {"method": PlannedMethod("crm", {}, code="another version")},
        {"data": replace(job.data, digest="other rows")},
        {"data": replace(job.data, protocol=replace(job.data.protocol, steps=7))},
        {"data": replace(job.data, protocol=replace(job.data.protocol, select="worst"))},
        {"data": replace(job.data, protocol=replace(job.data.protocol, plan_seed=1))},
    ]
    keys = {replace(job, **change).key for change in changes}
    assert len(keys | {job.key}) == len(changes) + 1


def test_names_of_jobs_do_not_change():
    """Results that people have must be found again by later versions."""
    gaussians = DataSource("gaussian2d", "gaussian2d")
    data = PlannedData(gaussians, "digest", Protocol("features", 600, {}))
    assert Job(data, "(1, 1)", ((1, 1),), PlannedMethod("crm", {}), 0, 0).key == "00cc1bdcb441df3cdba3"
    assert seed_for("a", (1, 2), 3) == 64540634479953811


def test_seeds_of_runs_depend_on_names_alone(job):
    assert job.run_seed == seed_for("birds", job.scenario, "crm", 1, 0)
    assert job.run_seed != replace(job, seed=1).run_seed
    assert 0 <= job.run_seed < 2**63


def test_the_second_stage_repeats_the_chosen_draw(tmp_path):
    units = make_plan([birds(tmp_path / "birds.npz")], ["erm", "subg"], ["each", "none"], draws=3, seeds=4).units
    assert len(units) == 2 * 7
    solved, random = units[:2]
    assert [(job.draw, job.seed) for job in solved.first()] == [(0, 0), (1, 0), (2, 0)]
    assert solved.second(2) == []  # nothing in it is random
    assert [(job.draw, job.seed) for job in random.second(2)] == [(2, 1), (2, 2), (2, 3)]
    assert (solved.n_jobs, random.n_jobs) == (3, 6)


def test_data_are_told_apart_by_content(tmp_path):
    first, again = birds(tmp_path / "a.npz"), birds(tmp_path / "b.npz")
    other = birds(tmp_path / "c.npz", seed=1)
    assert first.digest() == again.digest() != other.digest()
    data = first.load()
    for changed in (
        replace(data, samples=data.samples + 1e-9),
        replace(data, codes=data.codes[::-1].copy()),
        replace(data, split=(data.split + 1) % 3),
    ):
        assert data_digest(changed) != first.digest()
    embedded = DataSource("gaussian2d", "gaussian2d")
    shifted = replace(embedded.load(), samples=embedded.load().samples + 1e-9)  # another machine's rounding
    assert data_digest(shifted, samples=False) == embedded.digest()


def test_the_class_comes_first(tmp_path):
    source = replace(birds(tmp_path / "birds.npz"), target="place")
    assert source.load().space.names == ("place", "bird")
    assert make_plan([source], ["erm"], ["sand,land"]).units[0].dropped == ((2, 0),)


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
        ExtrapolationWarning, match=r"1 of the scenarios of each are left out; without \(-1, 1\), the cl"
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


def test_a_scenario_that_leaves_no_validation_rows(tmp_path):
    archive = dict(np.load(write_birds(tmp_path / "birds.npz")))
    lone = (archive["Z"] == [0, 0]).all(axis=1)
    archive["split"] = np.where((archive["split"] == 1) & ~lone, 0, archive["split"])
    np.savez(tmp_path / "lone.npz", **archive)
    source = file_source(str(tmp_path / "lone.npz"), None, None, None, 0)
    with pytest.warns(ExtrapolationWarning, match=r"without \(land, forest\), there are no val rows to choose among 5"):
        assert len(make_plan([source], ["erm"], ["each"]).units) == 5
    with pytest.raises(InputError, match="there are no val rows to choose among 2 draws by"):
        make_plan([source], ["erm"], ["land,forest"], draws=2)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"draws": 0}, "draws is 0"),
        ({"seeds": 0}, "seeds is 0"),
        ({"select": "test"}, "selection 'test' is not known"),
        ({"plan_seed": -1}, "seed of the plan is -1"),
        ({"drops": []}, "nothing to run"),
        ({"drops": ["land"]}, "birds: drop is 'land': name one value of each attribute"),
        ({"drops": ["land,moon"]}, "place has no value 'moon'"),
        ({"steps": 0}, "steps is 0"),
    ],
)
def test_bad_plans(tmp_path, options, sentence):
    with pytest.raises(InputError, match=sentence):
        make_plan([birds(tmp_path / "birds.npz")], ["erm"], options.pop("drops", ["each"]), **options)


def test_data_that_cannot_be_used(tmp_path):
    source = birds(tmp_path / "birds.npz")
    with pytest.raises(InputError, match="2 data sets are called 'birds'"):
        make_plan([source, source], ["erm"])
    archive = dict(np.load(tmp_path / "birds.npz"))
    np.savez(tmp_path / "two.npz", **{**archive, "split": np.where(archive["split"] == 1, 0, archive["split"])})
    two = replace(source, path=str(tmp_path / "two.npz"))
    with pytest.raises(InputError, match=r"without \(land, forest\), there are no val rows to choose among 5 draws"):
        make_plan([two], ["erm"])
    assert make_plan([two], ["erm"], draws=1).units
    archive.pop("split")
    np.savez(tmp_path / "whole.npz", **archive)
    whole = replace(source, path=str(tmp_path / "whole.npz"))
    with pytest.raises(InputError, match="needs train and test rows; split a file"):
        make_plan([whole], ["erm"])
    shared = replace(whole, shares=(("train", 0.6), ("val", 0.2), ("test", 0.2)))
    assert shared.load().splits == ("train", "val", "test")


def test_digits_are_planned_without_computing_features():
    source = DataSource("digits-backgrounds", "digits-backgrounds")
    assert source.labels().kind == "images"
    assert benchmark("digits-backgrounds").embedded


def test_methods_without_torch(monkeypatch):
    monkeypatch.setattr("compshift.bench.plan.find_spec", lambda _: None)

    def chosen(*names, tuning=False):
        return [method.name for method in choose_methods(names, tuning=tuning)]

    assert chosen("crm", "erm", "crm") == ["crm", "erm"]
    assert chosen("all") == ["erm", "lc", "sla", "crm", "rwg", "subg"]
    with pytest.raises(InputError, match="groupdro, irm, vrex, mixup must be trained, and PyTorch is not installed"):
        chosen("paper")
    with pytest.raises(InputError, match="erm must be trained"):
        chosen("erm", tuning=True)
    with pytest.raises(InputError, match="method 'foo' is not known"):
        chosen("foo")


def test_a_download_is_found_below_a_root_with_others(tmp_path):
    """In the root or in a folder of its name; what is wrong with a broken one is said."""
    waterbirds(tmp_path / "waterbirds", "wilds")
    assert named_source("waterbirds", tmp_path, features=True).root == str(tmp_path / "waterbirds")
    assert named_source("waterbirds", tmp_path / "waterbirds", features=True).root == str(tmp_path / "waterbirds")
    with pytest.raises(InputError, match="celeba was not found below"):
        named_source("celeba", tmp_path, features=True)
    waterbirds(tmp_path, "wilds")
    table = next(tmp_path.glob("waterbirds_v1.0/metadata.csv"))
    table.write_text(table.read_text().replace(",1,", ",7,", 1))
    for folder in tmp_path.glob("waterbirds/*"):
        folder.rename(folder.with_name("moved"))
    with pytest.raises(InputError, match=r"metadata\.csv"):
        named_source("waterbirds", tmp_path, features=True)
