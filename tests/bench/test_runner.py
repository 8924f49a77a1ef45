"""Running plans: every job once, failures, workers that die, several runners."""

import errno
import os
import threading
from concurrent.futures import Future
from contextlib import ExitStack

import numpy as np
import pytest

from compshift.bench import runner as runner_module
from compshift.bench.plan import make_plan
from compshift.bench.records import scores
from compshift.bench.results import stored_results
from compshift.bench.runner import Runner
from compshift.bench.sources import SharedData
from compshift.report.tables import to_csv
from tests.bench.small import Inline, birds, run

FEATURES = "b: linear heads on fixed features, 1 scenario, 2 draws."


def test_every_job_runs_once_and_never_again(tmp_path):
    source = birds(tmp_path / "b.npz")
    store, outcome, ran = run(tmp_path / "out", [source], ("erm", "subg"))
    # 6 scenarios; erm 2 draws; subg 2 draws and a second seed
    assert len(ran) == len({job.key for job in ran}) == outcome.new == 6 * (2 + 3)
    table = to_csv(stored_results(store))
    again, outcome, ran = run(tmp_path / "out", [source], ("erm", "subg"))
    assert ran == []
    assert (outcome.new, outcome.known) == (0, 30)
    assert to_csv(stored_results(again)) == table


def test_more_draws_seeds_methods_and_scenarios_extend_stored_results(tmp_path):
    source = birds(tmp_path / "b.npz")
    run(tmp_path / "out", [source], ("subg",), ("water,sea",), seeds=1)
    _, _, ran = run(tmp_path / "out", [source], ("subg", "erm"), ("water,sea", "none"), draws=3, seeds=1)
    assert len(ran) == 1 + 3 + 6  # subg: its third draw; erm on the same scenario; both methods with no group dropped
    store, _, ran = run(tmp_path / "out", [source], ("subg",), ("water,sea",), draws=3, seeds=2)
    assert [job.seed for job in ran] == [1]
    assert stored_results(store).notes == [FEATURES.replace("2 draws", "3 draws")]


def test_the_other_seeds_run_the_chosen_draw(tmp_path):
    store, _, ran = run(tmp_path / "out", [birds(tmp_path / "b.npz")], ("subg",), ("water,sea",), draws=4, seeds=3)
    first = {job.draw: scores(store.read(job.key), "val")["balanced"] for job in ran if job.seed == 0}
    best = max(first.values())
    chosen = next(draw for draw in sorted(first) if first[draw] == best)
    assert [(job.draw, job.seed) for job in ran if job.seed] == [(chosen, 1), (chosen, 2)]
    assert len({round(value, 6) for value in first.values()}) > 1


@pytest.mark.slow
def test_selection_never_sees_test_data(tmp_path):
    """Scrambling the labels of the test rows changes neither the chosen draws nor the validation accuracies."""
    chosen, validation, test = {}, {}, {}
    for name in ("plain", "scrambled"):
        (tmp_path / name).mkdir()
        source = birds(tmp_path / name / "b.npz", scramble_test=name == "scrambled")
        store, _, ran = run(tmp_path / name / "out", [source], ("subg", "erm", "crm"), draws=4, seeds=2)
        chosen[name] = [(job.scenario, job.method.name, job.draw) for job in ran if job.seed == 1]
        records = [store.read(job.key) for job in ran]
        validation[name] = [scores(record, "val") for record in records]
        test[name] = [scores(record)["average"] for record in records]
    assert chosen["plain"] == chosen["scrambled"] != []
    assert validation["plain"] == validation["scrambled"]
    assert np.mean(test["plain"]) > np.mean(test["scrambled"]) + 0.1


def test_a_failing_job_does_not_affect_other_jobs(tmp_path, monkeypatch):
    solve = runner_module.run_job.__globals__["solve_method"]

    def sometimes(method, *arguments, **options):
        if method == "erm":
            raise ZeroDivisionError("no\nluck")
        return solve(method, *arguments, **options)

    source = birds(tmp_path / "b.npz")
    monkeypatch.setitem(runner_module.run_job.__globals__, "solve_method", sometimes)
    store, outcome, _ = run(tmp_path / "out", [source], drops=["water,sea"])
    assert (outcome.new, len(outcome.failures)) == (2, 2)
    failure = next(store.failures())
    assert failure["error"] == "ZeroDivisionError: no luck"
    assert "raise ZeroDivisionError" in failure["traceback"]
    assert any(note.startswith("2 jobs failed: see the logs") for note in stored_results(store).notes)
    monkeypatch.undo()
    store, outcome, ran = run(tmp_path / "out", [source], drops=["water,sea"])
    assert (outcome.new, outcome.known, outcome.failures) == (2, 2, [])
    assert list(store.failures()) == []
    assert {job.method.name for job in ran} == {"erm"}


class Dying(Inline):
    """Executor whose worker dies when it runs a deadly method, together with all other jobs that are running."""

    def __init__(self, deadly):
        super().__init__(slots=2)
        self.deadly, self.open = deadly, []

    def submit(self, function, argument):
        self.submitted.append(argument.job)
        future = Future()
        self.open.append((future, function, argument))
        if len(self.open) == 1:
            threading.Timer(0.05, self._work).start()
        return future

    def _work(self):
        batch, self.open = self.open, []
        died = any(argument.job.method.name == self.deadly for _, _, argument in batch)
        for future, function, argument in batch:
            if died:
                future.set_exception(RuntimeError("the worker is gone"))
            else:
                future.set_result(function(argument))


def test_only_the_job_that_kills_its_worker_fails(tmp_path):
    plan = make_plan([birds(tmp_path / "b.npz")], ["erm", "crm", "lc"], ["each"], draws=1, seeds=1)
    store, executor = plan.store(tmp_path / "out"), Dying("crm")
    outcome = Runner(plan.units, store, executor).run()
    assert outcome.new == 12
    assert len(outcome.failures) == 6
    assert {record["config"]["method"] for record in outcome.failures} == {"crm"}
    assert "its worker died 2 times (RuntimeError: the worker is gone)" in outcome.failures[0]["error"]
    assert sum(job.method.name == "crm" for job in executor.submitted) == 12


def test_two_runners_share_a_folder(tmp_path):
    plan = make_plan([birds(tmp_path / "b.npz")], ["erm", "subg"], ["each"], draws=3, seeds=2)
    executors = [Inline(), Inline()]
    outcomes = {}

    def work(number):
        outcomes[number] = Runner(plan.units, plan.store(tmp_path / "out"), executors[number]).run()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ran = [job.key for executor in executors for job in executor.submitted]
    assert len(ran) == len(set(ran)) == plan.n_jobs == 6 * 7
    for outcome in outcomes.values():
        assert outcome.new + outcome.known == plan.n_jobs


def test_diverged_draws_are_not_chosen(tmp_path, monkeypatch):
    from compshift.bench.trained_methods import DivergedError

    solve = runner_module.run_job.__globals__["solve_method"]
    source = birds(tmp_path / "b.npz")
    alphas = [make_plan([source], ["erm"]).units[0].job(draw, 0).drawn[0]["alpha"] for draw in range(2)]

    def unstable(method, *arguments, alpha, **options):
        if method == "erm" or alpha == alphas[0]:
            raise DivergedError("too steep")
        return solve(method, *arguments, alpha=alpha, **options)

    monkeypatch.setitem(runner_module.run_job.__globals__, "solve_method", unstable)
    store, outcome, ran = run(tmp_path / "out", [source], ("erm", "subg"), ("water,sea",))
    assert outcome.new == 2 + 3
    assert [unit.method.name for unit in outcome.all_diverged] == ["erm"]
    assert [job.draw for job in ran if job.seed == 1] == [1]
    results = stored_results(store)
    assert results.notes == [FEATURES, "ERM on b (water, sea): every draw diverged"]
    assert {key[1] for key in results.main} == {"SUBG"}
    _, _, ran = run(tmp_path / "out", [source], ("erm", "subg"), ("water,sea",))
    assert ran == []  # diverged jobs count as finished


def test_a_run_that_another_process_is_training_is_waited_for(tmp_path):
    """A worker of a killed runner may still be training the job, which is not a failure."""
    pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    from compshift.training.folder import RunFolder

    plan = make_plan([birds(tmp_path / "b.npz")], ["groupdro"], ["water,sea"], draws=1, seeds=1, steps=3)
    store = plan.store(tmp_path / "out")
    (job,) = plan.units[0].first()
    holder = ExitStack()
    holder.enter_context(RunFolder(store.run_path(job.key)).locked())

    class Releasing(Inline):
        def submit(self, function, argument):
            future = super().submit(function, argument)
            holder.close()
            return future

    executor = Releasing()
    outcome = Runner(plan.units, store, executor).run()
    assert (outcome.new, outcome.failures) == (1, [])
    assert len(executor.submitted) == 2
    assert not store.run_path(job.key).exists()


@pytest.mark.parametrize("damage", ["half a checkpoint", "half a description", "an empty result", "no best weights"])
def test_a_damaged_training_run_is_started_again(tmp_path, monkeypatch, damage):
    pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    options = {"methods": ["mixup"], "drops": ["water,sea"], "draws": 1, "seeds": 1, "steps": 4}
    source = birds(tmp_path / "b.npz")
    store, _, (job,) = run(tmp_path / "whole", [source], **options)
    expected = store.read(job.key)["right"]
    folder = tmp_path / "out/runs" / job.key
    with monkeypatch.context() as patch:
        patch.setattr("compshift.training.loop.Run._finish", lambda *_: 1 / 0)
        assert run(tmp_path / "out", [source], **options)[1].failures
    about, last, best = (folder / name for name in ("run.json", "last.safetensors", "best.safetensors"))
    if damage == "half a checkpoint":
        last.write_bytes(last.read_bytes()[:300])
    elif damage == "half a description":
        about.write_text(about.read_text()[:300])
    elif damage == "no best weights":
        best.unlink()
    else:
        (folder / "result.json").write_text("{}")
        os.rename(best, folder / "model.safetensors")
    store, outcome, _ = run(tmp_path / "out", [source], **options)
    assert not outcome.failures
    assert store.read(job.key)["right"] == expected


def test_a_full_disk_fails_a_job_with_a_sentence(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "cannot write: No space left on device", "run.json")

    monkeypatch.setitem(runner_module.run_job.__globals__, "solve_method", full)
    _, outcome, _ = run(tmp_path / "out", [birds(tmp_path / "b.npz")], ("erm",), ("water,sea",), draws=1)
    assert outcome.failures[0]["error"].startswith("'run.json' cannot be written (No space left on device): free some")


def test_a_failed_job_has_a_readable_log(tmp_path, monkeypatch):
    def unlucky(*_, **__):
        raise ZeroDivisionError("no luck")

    source = birds(tmp_path / "b.npz")
    monkeypatch.setitem(runner_module.run_job.__globals__, "solve_method", unlucky)
    store, outcome, _ = run(tmp_path / "out", [source], ("erm",), ("water,sea",), draws=1)
    log = store.failure_path(outcome.failures[0]["key"]).with_suffix(".log")
    assert "ZeroDivisionError: no luck\n" in log.read_text()
    monkeypatch.undo()
    run(tmp_path / "out", [source], ("erm",), ("water,sea",), draws=1)
    assert not log.exists()


class WithDevices(Inline):
    """Executor with devices, which records the device of each job."""

    def __init__(self, devices):
        super().__init__(slots=len(devices))
        self.devices, self.used = tuple(devices), []

    def submit(self, function, argument):
        self.used.append(argument.device)
        return super().submit(function, argument)


def test_every_job_has_a_device_of_its_own(tmp_path):
    plan = make_plan([birds(tmp_path / "birds.npz")], ["erm"], ["none"], draws=5, seeds=1)
    executor = WithDevices(["cuda:0", "cuda:1"])
    runner = Runner(plan.units, plan.store(tmp_path / "out"), executor)
    in_flight = []
    submit = runner._submit

    def watched(*arguments):
        submit(*arguments)
        in_flight.append(sorted(device for *_, device in runner.running.values()))

    runner._submit = watched
    assert not runner.run().failures
    assert set(executor.used) == {"cuda:0", "cuda:1"}
    assert all(len(set(devices)) == len(devices) for devices in in_flight)  # never two jobs on one device
    assert sorted(runner.free_devices) == ["cuda:0", "cuda:1"]


class Sharing(Inline):
    """Executor in this process, which records the files that jobs map."""

    def __init__(self):
        super().__init__()
        self.files, self.warmed_up = [], 0

    def submit(self, function, argument):
        if function is abs:
            self.warmed_up += 1
            return Future()
        self.files.append(argument.shared)
        return super().submit(function, argument)


def test_jobs_on_shared_data_give_the_same_results(tmp_path):
    pytest.importorskip("torch")
    source = birds(tmp_path / "b.npz")
    expected, _, _ = run(tmp_path / "alone", [source], ("crm", "mixup"), ("water,sea", "none"), seeds=1)
    plan = make_plan([source], ("crm", "mixup"), ("water,sea", "none"), draws=2, seeds=1, steps=20)
    store, executor = plan.store(tmp_path / "shared"), Sharing()
    with SharedData() as shared:
        outcome = Runner(plan.units, store, executor, shared=shared).run()
        assert executor.files == [shared.path(source, source.digest())] * outcome.new
    assert executor.warmed_up == 1
    assert outcome.failures == []
    assert to_csv(stored_results(store)) == to_csv(stored_results(expected))
    with SharedData() as shared:  # every job is stored already: neither the workers nor the data are needed
        Runner(plan.units, store, executor, shared=shared).run()
        assert source not in shared
    assert executor.warmed_up == 1
