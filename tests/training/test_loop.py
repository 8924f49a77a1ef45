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

from torch import nn  # noqa: E402

import compshift as cs  # noqa: E402
from compshift import GroupSpace, InputError  # noqa: E402
from compshift.data.dataset import GroupedDataset  # noqa: E402
from compshift.methods.erm import ERM  # noqa: E402
from compshift.methods.registry import METHODS, make_method  # noqa: E402
from compshift.nn.backbones import Backbone  # noqa: E402
from compshift.training import Settings, TrainedClassifier, train  # noqa: E402
from compshift.training.progress import Listener  # noqa: E402
from compshift.training.run import DivergenceError  # noqa: E402

QUICK = Settings(steps=12, batch_size=16, eval_every=4, learning_rate=0.1, seed=3)


def gaussians(n=60, seed=0, drop=(1, 0)):
    """Two attributes that each move the features; one group is in val and test only if it is not dropped."""
    rng = np.random.default_rng(seed)
    codes = np.repeat([[0, 0], [0, 1], [1, 0], [1, 1]], [3 * n, n, n, 2 * n], axis=0)
    X = rng.normal(size=(len(codes), 5)) + codes[:, :1] * [2, 0, 1, 0, 0] + codes[:, 1:] * [0, 2, 1, 0, 0]
    split = rng.integers(0, 3, size=len(codes))
    space = GroupSpace(("bird", "place"), (("land", "water"), ("forest", "sea")))
    data = GroupedDataset(X, space, codes, split)
    if drop is not None:
        (scenario,) = cs.data.scenarios(data, [drop])
        data = scenario.apply(data)
    return data


class Interrupt(Listener):
    """Stops a run after some steps."""

    def __init__(self, after):
        self.after = after

    def stepped(self, step, loss):  # noqa: ARG002
        if step == self.after:
            raise KeyboardInterrupt


def weights(clf):
    return {name: tensor.clone() for name, tensor in clf.model.state_dict().items()}


def assert_same(first, second, tolerance=0.0):
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_allclose(first[name], second[name], atol=tolerance, rtol=tolerance, err_msg=name)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_trains_saves_and_predicts(method, tmp_path):
    data = gaussians()
    clf = train(data, method, "mlp", QUICK, folder=tmp_path / "run", device="cpu")
    test = data.part("test")
    assert np.mean(clf.predict(test.X) == test.columns(["bird"])["bird"]) > 0.7
    again = TrainedClassifier.load(tmp_path / "run")
    np.testing.assert_array_equal(again.predict_proba(test.X), clf.predict_proba(test.X))
    assert again.predict_proba(test.X).shape == (len(test), 2)
    assert list(again.classes_) == ["land", "water"]
    result = json.loads((tmp_path / "run/result.json").read_text())
    names = ["extrapolated-uniform", "extrapolated-empirical", "learned-uniform", "learned-empirical"]
    assert list(result["validation"]) == (names if method.startswith("crm") else ["default"])
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [4, 8, 12]
    best = max(lines, key=lambda line: line["balanced"])
    assert result["best_step"] == best["step"]
    assert not (tmp_path / "run/last.safetensors").exists()


def test_the_four_predictors_differ_as_they_should():
    data = gaussians()
    clf = train(data, "crm", "mlp", replace(QUICK, steps=60, eval_every=60), device="cpu")
    prior = np.array([[0.97, 0.01], [0.01, 0.01]])
    predictors = make_method("crm").predictors(clf.model, prior)
    X = torch.tensor(data.X[:50], dtype=torch.float32)
    with torch.no_grad():
        found = {name: predict(clf.model.features({"features": X})).exp() for name, predict in predictors.items()}
    assert all(torch.allclose(part.sum(dim=1), torch.ones(50)) for part in found.values())
    assert (found["extrapolated-empirical"][:, 0] >= found["extrapolated-uniform"][:, 0]).all()
    assert (found["extrapolated-empirical"] - found["extrapolated-uniform"]).abs().max() > 0.1
    assert not torch.allclose(found["learned-uniform"], found["extrapolated-uniform"])
    np.testing.assert_allclose(found["extrapolated-uniform"], clf.predict_proba(data.X[:50]), atol=1e-5)


def test_the_final_biases_rest_on_all_training_rows():
    data = gaussians()
    clf = train(data, "crm", "mlp", replace(QUICK, refresh_rows=20), device="cpu")
    found = clf.model.head.bias.clone()
    with torch.no_grad():
        features = clf.model.features({"features": torch.tensor(data.part("train").X, dtype=torch.float32)})
    np.testing.assert_allclose(clf.model.head.extrapolate([features]).bias, found, atol=1e-6)
    assert (clf.model.head.extrapolate([features[:20]]).bias - found).abs().max() > 0.01


def test_the_loop_reaches_the_convex_optimum():
    """Fixed features, a linear head: the loss and the biases are those of the estimator."""
    data = gaussians(n=150)
    alpha, part = 1e-2, data.part("train")
    clf = cs.CRMClassifier(alpha=alpha).fit(part.X, part.codes[:, 0], attributes=part.codes[:, 1])
    settings = Settings(
        steps=1500, batch_size=len(part), eval_every=1500, learning_rate=0.5, weight_decay=alpha, schedule="linear"
    )
    found = train(
        replace(data, split=np.where(data.split == 1, 2, data.split)), "crm", "linear", settings, device="cpu"
    )
    head, X = found.model.head, found.model.backbone(torch.tensor(part.X, dtype=torch.float32))
    position = clf.space_.locate(part.codes, clf.hull_.observed)
    energies = clf._model.energies(part.X)
    logits = np.stack(
        [
            np.log(np.mean(position == which))
            - clf.learned_bias_[clf.seen_][which]
            - energies[:, code[0]]
            - energies[:, 2 + code[1]]
            for which, code in enumerate(clf.hull_.observed)
        ],
        axis=1,
    )
    optimum = np.mean(np.logaddexp.reduce(logits, axis=1) - logits[np.arange(len(part)), position])
    with torch.no_grad():
        reached = head.loss(X, part.codes).item()
    assert reached == pytest.approx(optimum, abs=1e-3)
    # Features are centred in both, so that biases can be compared up to a constant.
    gap = head.bias.numpy() - clf.bias_
    assert np.abs(gap - gap.mean()).max() < 0.05
    assert head.bias_gap < 0.05


@pytest.mark.parametrize("method", ["erm", "groupdro", "lc", "irm", "vrex", "mixup", "crm", "rwg", "crm-resolved"])
def test_an_interrupted_run_goes_on_to_the_same_weights(method, tmp_path):
    data = gaussians()
    settings = replace(QUICK, steps=13, optimiser="adamw" if method == "mixup" else "sgd")
    chosen = make_method(method, {"anneal": 6, "penalty": 2} if method in ("irm", "vrex") else {})
    whole = train(data, chosen, "mlp", settings, folder=tmp_path / "whole", device="cpu")
    for after in (2, 4, 7, 13):  # the folder is taken up again and again
        with pytest.raises(KeyboardInterrupt):
            train(data, chosen, "mlp", settings, folder=tmp_path / "parts", listener=Interrupt(after), device="cpu")
    parts = train(data, chosen, "mlp", settings, folder=tmp_path / "parts", device="cpu")
    assert_same(weights(whole), weights(parts))
    assert (tmp_path / "whole/metrics.jsonl").read_text() == (tmp_path / "parts/metrics.jsonl").read_text()
    assert_same(weights(train(data, chosen, "mlp", settings, folder=tmp_path / "parts", device="cpu")), weights(whole))


class Wobbly(Backbone):
    """Dropout and BatchNorm, of a user's own making."""

    name, kind, pretrained, out_features = "wobbly", "features", False, 6

    def __init__(self, seed=0, dropout=0.5):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.layers = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(dropout))

    def forward(self, features):
        return self.layers(features)

    def settings(self):
        return {}


def test_dropout_and_batch_statistics_resume_too(tmp_path):
    data = gaussians()
    data = replace(data, split=np.where(data.split == 1, 2, data.split))  # so that the last weights are kept
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


def test_frozen_batch_statistics_stay():
    backbone = Wobbly()
    before = backbone.layers[1].running_mean.clone()
    train(gaussians(), "erm", backbone, replace(QUICK, freeze_batchnorm=True), device="cpu")
    assert torch.equal(backbone.layers[1].running_mean, before)
    train(gaussians(), "erm", backbone, QUICK, device="cpu")
    assert not torch.equal(backbone.layers[1].running_mean, before)


def test_reduced_precision_learns_the_same():
    data = gaussians()
    settings = replace(QUICK, steps=60, eval_every=60)
    for method in ("erm", "groupdro", "crm"):
        full, reduced = (
            train(data, method, "mlp", replace(settings, precision=precision), device="cpu")
            for precision in ("float32", "bfloat16")
        )
        assert np.mean(full.predict(data.X) == reduced.predict(data.X)) > 0.97
        assert not np.array_equal(full.predict_proba(data.X), reduced.predict_proba(data.X))


def test_another_seed_is_another_run():
    data = gaussians()
    first, same, other = (
        weights(train(data, "erm", "mlp", replace(QUICK, seed=seed), device="cpu")) for seed in (3, 3, 4)
    )
    assert_same(first, same)
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_test_rows_have_no_influence():
    data = gaussians()
    rng = np.random.default_rng(0)
    test = data.split == 2
    codes = data.codes.copy()
    codes[test] = codes[rng.permutation(np.flatnonzero(test))]
    X = np.where(test[:, None], 1e3, data.X)
    scrambled = replace(data, samples=X, codes=codes)
    for method in ("crm", "crm-resolved", "dfr", "groupdro"):
        assert_same(
            weights(train(data, method, "mlp", QUICK, device="cpu")),
            weights(train(scrambled, method, "mlp", QUICK, device="cpu")),
        )


def test_the_checkpoint_that_is_best_on_validation_is_kept(tmp_path):
    """Validation whose labels are turned round is best at the start, before anything is learnt."""
    data = gaussians(drop=None)
    codes = data.codes.copy()
    codes[data.split == 1, 0] = 1 - codes[data.split == 1, 0]
    turned = replace(data, codes=codes)
    settings = replace(QUICK, steps=40, eval_every=1, learning_rate=0.02)
    train(turned, "erm", "linear", settings, folder=tmp_path / "run", device="cpu")
    scores = [json.loads(line)["balanced"] for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["best_step"] == 1 + int(np.argmax(scores))
    assert result["best_step"] < 40
    assert result["validation"]["default"]["balanced"] == max(scores)
    train(turned, "erm", "linear", replace(settings, patience=3), folder=tmp_path / "short", device="cpu")
    short = json.loads((tmp_path / "short/result.json").read_text())
    assert short["steps"] == short["best_step"] + 3


def test_without_validation_rows_the_last_weights_are_kept(tmp_path):
    data = gaussians(drop=None)
    train(replace(data, split=None), "crm", "mlp", QUICK, folder=tmp_path, device="cpu")
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["best_step"], result["validation"]) == (12, {})


def test_a_target_that_is_not_the_first_attribute():
    data = gaussians(drop=None)
    clf = train(replace(data, targets=("place",)), "crm", "linear", replace(QUICK, steps=40), device="cpu")
    assert clf.space_.names == ("place", "bird")
    assert np.mean(clf.predict(data.X) == data.columns(["place"])["place"]) > 0.7
    with pytest.raises(InputError, match="training predicts one attribute"):
        train(replace(data, targets=("place", "bird")), "crm", "linear", QUICK, device="cpu")


def test_one_attribute_alone():
    data = gaussians(drop=None)
    alone = replace(data, space=GroupSpace(("bird",), (("land", "water"),)), codes=data.codes[:, :1])
    for method in ("erm", "irm", "crm", "crm-resolved", "sla"):
        clf = train(alone, method, "linear", QUICK, device="cpu")
        assert np.mean(clf.predict(data.X) == data.columns(["bird"])["bird"]) > 0.7


class Plain(ERM):
    """A method of a user's own, not even a dataclass."""

    name = "plain"


def test_a_method_of_ones_own(tmp_path, monkeypatch):
    data = gaussians()
    clf = train(data, Plain, "mlp", QUICK, folder=tmp_path, device="cpu")
    assert_same(weights(clf), weights(train(data, "erm", "mlp", QUICK, device="cpu")))
    with pytest.raises(InputError, match=r"method 'plain', which is not one of compshift's: pass it, as method="):
        TrainedClassifier.load(tmp_path)
    assert_same(weights(TrainedClassifier.load(tmp_path, method=Plain())), weights(clf))
    monkeypatch.setitem(METHODS, "plain", Plain)
    assert repr(cs.load(tmp_path)) == "<TrainedClassifier: plain, mlp, bird × place (2 × 2)>"


def test_priors_of_a_trained_model():
    data = gaussians()
    clf = train(data, "crm", "linear", QUICK, device="cpu")
    before = clf.predict_proba(data.X)
    certain = {("land", "forest"): 0.999, ("water", "sea"): 0.001}
    assert (clf.set_prior(certain).predict_proba(data.X)[:, 0] >= before[:, 0] - 1e-9).mean() > 0.95


class Explosive(ERM):
    """NaN at one step."""

    name = "explosive"

    def loss(self, model, batch, state, step):
        loss, state = super().loss(model, batch, state, step)
        return loss * (math.nan if step == 9 else 1), state


def test_a_nan_loss_stops_the_run_and_keeps_the_checkpoint(tmp_path):
    data = gaussians()
    with pytest.raises(
        DivergenceError, match="the loss is nan at step 10: the checkpoint of step 8 is kept; start again"
    ):
        train(data, Explosive(), "mlp", QUICK, folder=tmp_path, device="cpu")
    from compshift.training.checkpoint import read_tensors

    tensors, about = read_tensors(tmp_path / "last.safetensors")
    assert about["step"] == 8
    assert all(torch.isfinite(tensor).all() for tensor in tensors.values() if tensor.is_floating_point())
    with pytest.raises(DivergenceError, match=r"no longer finite|loss is"):
        train(data, "erm", "mlp", replace(QUICK, learning_rate=1e30), folder=tmp_path / "high", device="cpu")


def test_gradient_clipping_bounds_a_step():
    data = gaussians()
    settings = Settings(steps=1, batch_size=16, eval_every=1, learning_rate=1.0, momentum=0.0, weight_decay=0.0)
    start = weights(train(data, "erm", "linear", replace(settings, learning_rate=1e-20), device="cpu"))
    for clip, bound in ((1e-3, 1.01e-3), (0.0, math.inf)):
        end = weights(train(data, "erm", "linear", replace(settings, clip=clip), device="cpu"))
        moved = math.sqrt(sum(((end[name] - start[name]) ** 2).sum().item() for name in ("head.weight", "head.bias")))
        assert 1e-4 < moved < bound
    assert moved > 0.01


def test_balanced_classes_are_sampled_and_known_to_crm():
    """With batches in balance the head's frequencies are those of the batches, and B* of seen groups is still B."""
    data = gaussians(n=150)
    settings = Settings(
        steps=800, batch_size=256, eval_every=800, learning_rate=0.3, weight_decay=1e-2, balanced_classes=True,
        schedule="linear",
    )  # fmt: skip
    clf = train(data, "crm", "linear", settings, device="cpu")
    weight = clf.model.head.group_weight.numpy().reshape(2, 2).sum(axis=1)
    assert weight[0] == pytest.approx(weight[1])
    assert clf.model.head.bias_gap < 0.1


KILLED = """
import sys
from compshift.training import train, Settings
from tests.training.test_loop import gaussians, Wobbly
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
from tests.training.test_loop import gaussians, QUICK, Interrupt
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
class Fill(Interrupt):
    def stepped(self, step, loss):
        if step == 6:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    train(gaussians(), "crm", "mlp", QUICK, folder=sys.argv[1], listener=Fill(0), device="cpu")
except OSError as error:
    print("refused:", error)
"""


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path):
    data = gaussians()
    whole = train(data, "crm", "mlp", QUICK, folder=tmp_path / "whole", device="cpu")
    script = [sys.executable, "-c", FULL_DISK, str(tmp_path / "run")]
    printed = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    assert "refused:" in printed
    assert "safetensors" in printed
    left = sorted(path.name for path in (tmp_path / "run").glob("[!.]*"))
    assert left == ["best.safetensors", "last.safetensors", "metrics.jsonl", "run.json"]
    resumed = train(data, "crm", "mlp", QUICK, folder=tmp_path / "run", device="cpu")
    assert_same(weights(resumed), weights(whole))


def test_a_folder_with_another_run_is_refused(tmp_path):
    data = gaussians()
    train(data, "erm", "mlp", QUICK, folder=tmp_path, device="cpu")
    with pytest.raises(
        InputError, match=r"differs in 'learning_rate' \(learning_rate: 0\.1 there, 0\.2 now\): choose another folder"
    ):
        train(data, "erm", "mlp", replace(QUICK, learning_rate=0.2), folder=tmp_path, device="cpu")
    with pytest.raises(InputError, match=r"differs in .*'data'"):
        train(gaussians(n=61), "erm", "mlp", QUICK, folder=tmp_path, device="cpu")
    train(data, "groupdro", "mlp", QUICK, folder=tmp_path, overwrite=True, device="cpu")
    assert TrainedClassifier.load(tmp_path).method.name == "groupdro"


def test_bad_input_gets_a_sentence(tmp_path):
    data = gaussians()
    with pytest.raises(InputError, match="method 'crn' is not known"):
        train(data, "crn", "mlp", QUICK)
    with pytest.raises(InputError, match="backbone of features 'resnet' is not known: use one of 'linear', 'mlp'"):
        train(data, "crm", "resnet", QUICK)
    with pytest.raises(InputError, match="device 'tpu' is not known"):
        train(data, "crm", "mlp", QUICK, device="tpu")
    land = data.rows(data.codes[:, 0] == 0)
    with pytest.raises(InputError, match="bird 'water' has no training rows"):
        train(land, "crm", "mlp", QUICK, device="cpu")
    with pytest.raises(InputError, match="no training rows: the split 'train' is empty"):
        train(replace(data, split=np.full(len(data), 2)), "crm", "mlp", QUICK)
    with pytest.raises(InputError, match="holds no run"):
        TrainedClassifier.load(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train(data, "erm", "mlp", QUICK, folder=tmp_path, listener=Interrupt(5), device="cpu")
    with pytest.raises(InputError, match="not finished"):
        TrainedClassifier.load(tmp_path)
    clf = train(data, "erm", "mlp", QUICK, folder=tmp_path, device="cpu")
    with pytest.raises(InputError, match="there are 3 features, and the model was trained on 5"):
        clf.predict(np.zeros((2, 3)))
    with pytest.raises(InputError, match="takes features, and the samples are text"):
        clf.predict(cs.data.samples.Texts(["a"]))
    with pytest.raises(InputError, match=r"pass its samples"):
        clf.predict(data)
    with pytest.raises(InputError, match="have 1 dimensions"):
        clf.predict(np.zeros(5))
    with pytest.raises(InputError, match="data is a tuple: pass a compshift GroupedDataset"):
        train((data.X, data.codes), "erm", "mlp", QUICK)
    with pytest.raises(InputError, match="settings is a dict"):
        train(data, "erm", "mlp", {"steps": 3})
    with pytest.raises(InputError, match="the backbone is a Sequential: pass a subclass"):
        train(data, "erm", nn.Sequential(), QUICK)
    with pytest.raises(InputError, match="no validation rows to be patient with"):
        train(replace(data, split=None), "erm", "mlp", replace(QUICK, patience=2))
    with pytest.raises(InputError, match="knows no prior"):
        clf.set_prior("train")
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(InputError, match="damaged"):
        TrainedClassifier.load(tmp_path)
