"""Keys, seeds and stages of jobs."""

from dataclasses import replace

import pytest

from compshift.bench.jobs import Job, PlannedData, PlannedMethod, seed_for
from compshift.bench.plan import make_plan
from compshift.bench.protocol import Protocol
from compshift.bench.sources import DataSource
from tests.bench.small import birds


@pytest.fixture
def job(tmp_path):
    return make_plan([birds(tmp_path / "birds.npz")], ["crm"], ["each"]).units[0].job(1, 0)


def test_the_key_depends_on_everything_that_determines_the_result(job):
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


def test_keys_and_seeds_stay_the_same_in_later_versions():
    """Later versions must find the stored results of earlier versions."""
    gaussians = DataSource("gaussian2d", "gaussian2d")
    data = PlannedData(gaussians, "digest", Protocol("features", 600, {}))
    assert Job(data, "(1, 1)", ((1, 1),), PlannedMethod("crm", {}), 0, 0).key == "00cc1bdcb441df3cdba3"
    assert seed_for("a", (1, 2), 3) == 64540634479953811


def test_seeds_of_runs_depend_only_on_names(job):
    assert job.run_seed == seed_for("birds", job.scenario, "crm", 1, 0)
    assert job.run_seed != replace(job, seed=1).run_seed
    assert 0 <= job.run_seed < 2**63


def test_the_second_stage_repeats_the_chosen_draw(tmp_path):
    units = make_plan([birds(tmp_path / "birds.npz")], ["erm", "subg"], ["each", "none"], draws=3, seeds=4).units
    assert len(units) == 2 * 7
    solved, random = units[:2]
    assert [(job.draw, job.seed) for job in solved.first()] == [(0, 0), (1, 0), (2, 0)]
    assert solved.second(2) == []  # the method is deterministic
    assert [(job.draw, job.seed) for job in random.second(2)] == [(2, 1), (2, 2), (2, 3)]
    assert (solved.n_jobs, random.n_jobs) == (3, 6)
