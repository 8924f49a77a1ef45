"""``train``: accuracy, selected checkpoints, and errors for bad input."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")

from torch import nn

import compshift as cs
from compshift import GroupSpace, InputError
from compshift.data.dataset import GroupedDataset, Texts
from compshift.methods.registry import METHODS
from compshift.training import Settings, TrainedClassifier, train
from tests.training.small_runs import QUICK, Interrupt, Wobbly, assert_same, gaussians, weights


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


def test_the_final_biases_use_all_training_rows():
    data = gaussians()
    clf = train(data, "crm", "mlp", replace(QUICK, refresh_rows=20), device="cpu")
    found = clf.model.head.bias.clone()
    with torch.no_grad():
        features = clf.model.features({"features": torch.tensor(data.part("train").X, dtype=torch.float32)})
    np.testing.assert_allclose(clf.model.head.extrapolate([features]).bias, found, atol=1e-6)
    assert (clf.model.head.extrapolate([features[:20]]).bias - found).abs().max() > 0.01


def test_the_loop_reaches_the_convex_optimum():
    """On fixed features with a linear head, loss and biases equal those of CRMClassifier."""
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


def test_frozen_batch_statistics_do_not_change():
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


def test_another_seed_gives_another_run():
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
    """With inverted validation labels, the first checkpoint is the best."""
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


def test_another_predictor_can_select_the_checkpoint(tmp_path):
    """The score of the kept checkpoint is that of the named predictor; methods without it use their first one."""
    data = gaussians(drop=None)
    for predictor in ("extrapolated-uniform", "learned-uniform"):
        settings = replace(QUICK, steps=40, eval_every=2, predictor=predictor)
        train(data, "crm", "linear", settings, folder=tmp_path / predictor, device="cpu")
        lines = (tmp_path / predictor / "metrics.jsonl").read_text().splitlines()
        scores = [json.loads(line)["balanced"] for line in lines]
        result = json.loads((tmp_path / predictor / "result.json").read_text())
        assert result["best_step"] == 2 + 2 * int(np.argmax(scores))
        if predictor == "learned-uniform":  # the other bias is computed anew from all rows at the end
            assert result["validation"][predictor]["balanced"] == max(scores)
        assert result["precision"] == "float32"
    train(data, "erm", "linear", replace(QUICK, predictor="learned-uniform"), device="cpu")


def test_without_validation_rows_the_last_weights_are_kept(tmp_path):
    data = gaussians(drop=None)
    train(replace(data, split=None), "crm", "mlp", QUICK, folder=tmp_path, device="cpu")
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["best_step"], result["validation"]) == (12, {})


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
    """With balanced batches, the head uses the frequencies in the batches, and B* of seen groups still equals B."""
    data = gaussians(n=150)
    settings = Settings(
        steps=800, batch_size=256, eval_every=800, learning_rate=0.3, weight_decay=1e-2, balanced_classes=True,
        schedule="linear",
    )  # fmt: skip
    clf = train(data, "crm", "linear", settings, device="cpu")
    weight = clf.model.head.group_weight.numpy().reshape(2, 2).sum(axis=1)
    assert weight[0] == pytest.approx(weight[1])
    assert clf.model.head.bias_gap < 0.1


def test_bad_input_raises_a_clear_error(tmp_path):
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
    with pytest.raises(InputError, match="there are no training rows: put rows into the split 'train'"):
        train(replace(data, split=np.full(len(data), 2)), "crm", "mlp", QUICK)
    with pytest.raises(InputError, match="holds no run"):
        TrainedClassifier.load(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train(data, "erm", "mlp", QUICK, folder=tmp_path, listener=Interrupt(5), device="cpu")
    with pytest.raises(InputError, match="not finished"):
        TrainedClassifier.load(tmp_path)
    clf = train(data, "erm", "mlp", QUICK, folder=tmp_path, device="cpu")
    with pytest.raises(InputError, match=r"the features have shape \(.*, 3\), but the model takes \(n, 5\)"):
        clf.predict(np.zeros((2, 3)))
    with pytest.raises(InputError, match="takes features, but the samples are text"):
        clf.predict(Texts(["a"]))
    with pytest.raises(InputError, match=r"pass its samples"):
        clf.predict(data)
    with pytest.raises(InputError, match="have 1 dimensions"):
        clf.predict(np.zeros(5))
    with pytest.raises(InputError, match="data is a tuple: pass a compshift GroupedDataset"):
        train((data.X, data.codes), "erm", "mlp", QUICK)
    with pytest.raises(InputError, match="settings is a dict"):
        train(data, "erm", "mlp", {"steps": 3})
    with pytest.raises(InputError, match="the backbone is a Sequential: pass a name, or an instance"):
        train(data, "erm", nn.Sequential(), QUICK)
    for extra, sentence in (
        ({"workers": 10**9}, "workers is 1000000000: pass an integer from 0 to 1024"),
        ({"listener": print}, "listener is a builtin_function_or_method: pass a compshift Listener"),
        ({"overwrite": "no"}, "overwrite is 'no': pass True or False"),
        ({"inputs": 3}, "inputs is 3: pass a mapping"),
        ({"inputs": {"image": object()}}, "inputs is .*: pass a mapping"),
        ({"files": 3}, "files is 3: pass a mapping"),
        ({"files": {"../notes.txt": "a"}}, r"files has the name '\.\./notes.txt': pass names without folders"),
        (
            {"files": {"run.json": "a"}},
            "files has the name 'run.json', which the run itself uses: choose another",
        ),
        ({"files": {"notes.txt": b"a"}}, r"files\['notes.txt'\] is a bytes: pass text"),
    ):
        with pytest.raises(InputError, match=sentence):
            train(data, "erm", "mlp", QUICK, folder=tmp_path / "other", **extra)
    with pytest.raises(InputError, match="patience is 2, but there are no validation rows"):
        train(replace(data, split=None), "erm", "mlp", replace(QUICK, patience=2))
    with pytest.raises(InputError, match="has no prior over groups"):
        clf.set_prior("train")
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(InputError, match="damaged"):
        TrainedClassifier.load(tmp_path)


def test_the_middle_ridge_is_used_if_nothing_can_be_held_out():
    codes = np.array([[0, 0], [1, 1], [2, 0], [3, 1]])  # one row per group, none inside the hull of the others
    data = GroupedDataset(np.eye(4), GroupSpace.from_cardinalities([4, 2]), codes)
    with pytest.warns(cs.ExtrapolationWarning, match="determine"):
        clf = train(data, "crm-resolved", "linear", replace(QUICK, batch_size=4), device="cpu")
    assert np.isfinite(clf.predict_proba(data.X)).all()
