"""Trained classifiers: predictors, priors, targets, samples, and custom methods."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")

import compshift as cs
from compshift import GroupSpace, InputError
from compshift.methods.erm import ERM
from compshift.methods.registry import METHODS, make_method
from compshift.training import TrainedClassifier, train
from tests.training.small_runs import QUICK, assert_same, gaussians, weights


def test_predictors_differ_by_bias_and_prior():
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


def test_the_prior_of_a_trained_model_can_be_set():
    data = gaussians()
    clf = train(data, "crm", "linear", QUICK, device="cpu")
    before = clf.predict_proba(data.X)
    certain = {("land", "forest"): 0.999, ("water", "sea"): 0.001}
    after = clf.set_prior(certain).predict_proba(data.X)
    assert (after[:, 0] >= before[:, 0] - 1e-9).mean() > 0.95
    assert after[:, 0].mean() > before[:, 0].mean() + 0.1


def test_the_target_need_not_be_the_first_attribute():
    data = gaussians(drop=None)
    clf = train(replace(data, targets=("place",)), "crm", "linear", replace(QUICK, steps=40), device="cpu")
    assert clf.space_.names == ("place", "bird")
    assert np.mean(clf.predict(data.X) == data.columns(["place"])["place"]) > 0.7
    with pytest.raises(InputError, match="training predicts one attribute"):
        train(replace(data, targets=("place", "bird")), "crm", "linear", QUICK, device="cpu")


def test_methods_train_without_attributes():
    data = gaussians(drop=None)
    alone = replace(data, space=GroupSpace(("bird",), (("land", "water"),)), codes=data.codes[:, :1])
    for method in ("erm", "irm", "crm", "crm-resolved", "sla"):
        clf = train(alone, method, "linear", QUICK, device="cpu")
        assert np.mean(clf.predict(data.X) == data.columns(["bird"])["bird"]) > 0.7


class Plain(ERM):
    """Custom method that is not a dataclass."""

    name = "plain"


def test_a_custom_method_trains_and_loads(tmp_path, monkeypatch):
    data = gaussians()
    clf = train(data, Plain, "mlp", QUICK, folder=tmp_path, device="cpu")
    assert_same(weights(clf), weights(train(data, "erm", "mlp", QUICK, device="cpu")))
    with pytest.raises(InputError, match=r"method 'plain', which is not registered: pass it as method"):
        TrainedClassifier.load(tmp_path)
    assert_same(weights(TrainedClassifier.load(tmp_path, method=Plain())), weights(clf))
    monkeypatch.setitem(METHODS, "plain", Plain)
    assert repr(cs.load(tmp_path)) == "<TrainedClassifier: plain, mlp, bird × place (2 × 2)>"


def test_samples_are_converted_or_raise():
    from pathlib import Path

    pd = pytest.importorskip("pandas")
    from compshift.data.dataset import ImageFiles, Texts
    from compshift.training.batches import readable_samples

    texts = Texts(["a", "b"])
    assert readable_samples(texts, "text") is texts

    for paths in (["a.png", "b.png"], pd.Series(["a.png", "b.png"]), np.array(["a.png", "b.png"]), [Path("a.png")] * 2):
        assert isinstance(readable_samples(paths, "images"), ImageFiles)
    for kind in ("images", "text"):
        with pytest.raises(InputError, match=r"samples is the single value 'a.png': pass a list"):
            readable_samples("a.png", kind)
        with pytest.raises(InputError, match=f"takes {kind}, but the samples are a DataFrame: pass a list of"):
            readable_samples(pd.DataFrame({"x": ["a.png"]}), kind)
    with pytest.raises(InputError, match=r"^the column 'bird' .*: pass columns of numbers") as error:
        readable_samples(pd.DataFrame({"x": [1.0] * 50, "bird": ["a"] * 50}), "features")
    assert "[50 rows" not in str(error.value)
    table = pa.table({"x": [1.0, 2.0], "y": [3.0, 4.0]})
    assert readable_samples(table, "features").tolist() == [[1.0, 3.0], [2.0, 4.0]]
    with pytest.raises(InputError, match=r"^the column 'x' .*: pass columns of numbers"):
        readable_samples(pa.table({"x": ["a"]}), "features")


@pytest.mark.parametrize("method", ["crm", "erm"])
def test_a_network_that_was_trained_without_a_folder_is_saved_to_one(method, tmp_path):
    data = gaussians()
    clf = train(data, method, "mlp", QUICK, device="cpu")
    if method == "crm":
        clf.set_prior([0.1, 0.2, 0.3, 0.4])
    cs.save(clf, tmp_path / "model")
    loaded = cs.load(tmp_path / "model")
    np.testing.assert_allclose(loaded.predict_proba(data.X), clf.predict_proba(data.X), rtol=1e-12)
    before = (tmp_path / "model/model.safetensors").read_bytes()
    with pytest.raises(InputError, match="holds a run or a model: choose another folder"):
        clf.save(tmp_path / "model")
    with pytest.raises(InputError, match="holds a run that differs in"):
        train(data, method, "mlp", QUICK, folder=tmp_path / "model", device="cpu")
    assert (tmp_path / "model/model.safetensors").read_bytes() == before
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file: pass a folder for the model"):
        clf.save(tmp_path / "file")


@pytest.mark.parametrize("prior", [{"a": 1}, [[1], [1, 2]], ["x"] * 4, [0.5, 0.5], [-1, 1, 1, 1]])
def test_a_damaged_prior_is_one_sentence(prior, tmp_path):
    train(gaussians(), "crm", "linear", QUICK, device="cpu").save(tmp_path / "model")
    path = tmp_path / "model/run.json"
    about = json.loads(path.read_text())
    about["model"]["prior"] = prior
    path.write_text(json.dumps(about))
    with pytest.raises(InputError):
        cs.load(tmp_path / "model")
