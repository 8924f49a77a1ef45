"""Runs that resume, converge, diverge, are killed, or run out of disk space."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")

from compshift import InputError
from compshift.methods.erm import ERM
from compshift.methods.registry import make_method
from compshift.training import Settings, TrainedClassifier, train
from compshift.training.loop import DivergenceError
from tests.bench.small import birds
from tests.training.small_runs import QUICK, Interrupt, Wobbly, assert_same, gaussians, weights


@pytest.mark.parametrize("method", ["erm", "groupdro", "lc", "irm", "vrex", "mixup", "crm", "rwg", "crm-resolved"])
def test_an_interrupted_run_resumes_to_the_same_weights(method, tmp_path):
    data = gaussians()
    settings = replace(QUICK, steps=13, optimiser="adamw" if method == "mixup" else "sgd")
    chosen = make_method(method, {"anneal": 6, "penalty": 2} if method in ("irm", "vrex") else {})
    whole = train(data, chosen, "mlp", settings, folder=tmp_path / "whole", device="cpu")
    for after in (2, 4, 7, 13):  # resumed several times
        with pytest.raises(KeyboardInterrupt):
            train(data, chosen, "mlp", settings, folder=tmp_path / "parts", listener=Interrupt(after), device="cpu")
    parts = train(data, chosen, "mlp", settings, folder=tmp_path / "parts", device="cpu")
    assert_same(weights(whole), weights(parts))
    assert (tmp_path / "whole/metrics.jsonl").read_text() == (tmp_path / "parts/metrics.jsonl").read_text()
    assert_same(weights(train(data, chosen, "mlp", settings, folder=tmp_path / "parts", device="cpu")), weights(whole))


def test_dropout_and_batch_statistics_are_resumed(tmp_path):
    data = gaussians()
    data = replace(
        data, split=np.where(data.split == 1, 2, data.split)
    )  # no validation rows: the last weights are kept
    whole = train(data, "crm", Wobbly(), QUICK, folder=tmp_path / "whole", device="cpu")
    state = torch.random.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        train(data, "crm", Wobbly(), QUICK, folder=tmp_path / "parts", listener=Interrupt(6), device="cpu")
    parts = train(data, "crm", Wobbly(), QUICK, folder=tmp_path / "parts", device="cpu")
    assert_same(weights(whole), weights(parts))
    assert torch.equal(torch.random.get_rng_state(), state)  # the caller's random numbers are left alone
    with pytest.raises(InputError, match="'wobbly' is not one of compshift's: pass it"):
        TrainedClassifier.load(tmp_path / "whole")
    loaded = TrainedClassifier.load(tmp_path / "whole", backbone=Wobbly(seed=9))
    np.testing.assert_array_equal(loaded.predict_proba(data.X), whole.predict_proba(data.X))


class Explosive(ERM):
    """ERM with a NaN loss at one step."""

    name = "explosive"

    def loss(self, model, batch, state, step):
        loss, state = super().loss(model, batch, state, step)
        return loss * (math.nan if step == 9 else 1), state


def test_a_nan_loss_stops_the_run_and_keeps_the_checkpoint(tmp_path):
    data = gaussians()
    with pytest.raises(
        DivergenceError, match="the loss is nan at step 10: the checkpoint of step 8 is kept; train again"
    ):
        train(data, Explosive(), "mlp", QUICK, folder=tmp_path, device="cpu")
    from compshift.training.folder import read_tensors

    tensors, about = read_tensors(tmp_path / "last.safetensors")
    assert about["step"] == 8
    assert all(torch.isfinite(tensor).all() for tensor in tensors.values() if tensor.is_floating_point())
    with pytest.raises(DivergenceError, match=r"no longer finite|loss is"):
        train(data, "erm", "mlp", replace(QUICK, learning_rate=1e18), folder=tmp_path / "high", device="cpu")


KILLED = """
import sys
from compshift.training import train, Settings
from tests.training.small_runs import gaussians, Wobbly
settings = Settings(steps=400, batch_size=32, eval_every=20, learning_rate=0.05)
train(gaussians(n=200), "groupdro", Wobbly(), settings, folder=sys.argv[1], device="cpu")
"""


@pytest.mark.slow
def test_kill_9_at_any_moment_changes_nothing(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def begin(folder):
        return subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / folder)], env=environment)

    assert begin("whole").wait() == 0
    rng = np.random.default_rng(0)
    kills = 0
    for _ in range(3):
        run, folder = begin("parts"), tmp_path / "parts"
        seen = len((folder / "metrics.jsonl").read_text().splitlines()) if (folder / "metrics.jsonl").exists() else 0
        deadline = time.monotonic() + 60
        while run.poll() is None and time.monotonic() < deadline:
            log = folder / "metrics.jsonl"
            if log.exists() and len(log.read_text().splitlines()) > seen + 1:
                time.sleep(float(rng.uniform(0, 0.05)))
                run.send_signal(signal.SIGKILL)
                break
            time.sleep(0.002)
        kills += run.wait() == -signal.SIGKILL
    assert begin("parts").wait() == 0
    assert kills >= 2
    first, second = ((tmp_path / folder / "model.safetensors").read_bytes() for folder in ("whole", "parts"))
    assert first == second


FULL_DISK = """
import resource, signal, sys
from dataclasses import replace
from compshift.training import train
from tests.training.small_runs import gaussians, QUICK, Interrupt
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
class Fill(Interrupt):
    def stepped(self, step, loss):
        if step == 6:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    train(gaussians(), "crm", "mlp", QUICK, folder=sys.argv[1], listener=Fill(0), device="cpu")
except OSError as error:
    print("raised:", error)
"""


@pytest.mark.slow
def test_a_full_disk_leaves_the_old_checkpoint(tmp_path):
    data = gaussians()
    whole = train(data, "crm", "mlp", QUICK, folder=tmp_path / "whole", device="cpu")
    script = [sys.executable, "-c", FULL_DISK, str(tmp_path / "run")]
    printed = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    assert "raised:" in printed
    assert "safetensors" in printed
    left = sorted(path.name for path in (tmp_path / "run").glob("[!.]*"))
    assert left == ["best.safetensors", "last.safetensors", "metrics.jsonl", "run.json"]
    resumed = train(data, "crm", "mlp", QUICK, folder=tmp_path / "run", device="cpu")
    assert_same(weights(resumed), weights(whole))


def test_a_folder_with_another_run_raises(tmp_path):
    data = gaussians()
    train(data, "erm", "mlp", QUICK, folder=tmp_path, device="cpu")
    with pytest.raises(
        InputError,
        match=r"differs in 'learning_rate' \(learning_rate was 0\.1 and is now 0\.2\): choose another",
    ):
        train(data, "erm", "mlp", replace(QUICK, learning_rate=0.2), folder=tmp_path, device="cpu")
    with pytest.raises(InputError, match=r"differs in .*'data'"):
        train(gaussians(n=61), "erm", "mlp", QUICK, folder=tmp_path, device="cpu")
    train(data, "groupdro", "mlp", QUICK, folder=tmp_path, overwrite=True, device="cpu")
    assert TrainedClassifier.load(tmp_path).method.name == "groupdro"


FULL = {"optimiser": "sgd", "learning_rate": 0.3, "weight_decay": 0.1, "eval_every": 50}


@pytest.fixture
def data(tmp_path):
    return birds(tmp_path / "birds.npz").load()


def result(folder):
    return json.loads((folder / "result.json").read_text())


def test_a_run_stops_at_the_gradient_tolerance(data, tmp_path):
    n = int((data.split == 0).sum())
    settings = Settings(steps=2000, batch_size=n, tolerance=1e-3, **FULL)
    clf = train(data, "erm", "linear", settings, folder=tmp_path / "run", device="cpu")
    found = result(tmp_path / "run")
    assert 10 < found["steps"] < 1000
    assert 0 < found["gradient"] <= 1e-3
    short = Settings(steps=60, batch_size=n, **FULL)
    train(data, "erm", "linear", short, folder=tmp_path / "b", device="cpu")
    assert result(tmp_path / "b")["gradient"] is None
    # It is near the optimum of the penalised risk: further steps hardly change the weights.
    longer = Settings(steps=2000, batch_size=n, tolerance=1e-6, **FULL)
    best = train(data, "erm", "linear", longer, folder=tmp_path / "c", device="cpu")
    gap = (clf.model.head.weight - best.model.head.weight).detach().abs().max()
    assert float(gap) < 0.02


def test_a_run_does_not_converge_before_the_penalty_has_its_full_weight(data, tmp_path):
    """Before step ``anneal`` the loss is a different function, so reaching its optimum must not stop the run."""
    n = int((data.split == 0).sum())
    method = make_method("vrex", {"penalty": 1.0, "anneal": 400})
    settings = Settings(steps=1000, batch_size=n, tolerance=1e-2, **FULL)
    train(data, method, "linear", settings, folder=tmp_path / "run", device="cpu")
    assert 400 < result(tmp_path / "run")["steps"] < 1000
