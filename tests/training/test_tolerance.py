"""Training that stops at a gradient, and full batches of features that are scaled once."""

import copy
import io
import json
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")

from compshift.methods.registry import make_method
from compshift.nn.networks import FeatureBackbone
from compshift.training import Settings, train
from compshift.training.optimiser import largest_gradient, make_optimiser
from tests.bench.small import birds

FULL = {"optimiser": "sgd", "learning_rate": 0.3, "weight_decay": 0.1, "eval_every": 50}


@pytest.fixture
def data(tmp_path):
    return birds(tmp_path / "birds.npz").load()


def result(folder):
    return json.loads((folder / "result.json").read_text())


def test_a_run_stops_where_the_gradient_is_small(data, tmp_path):
    n = int((data.split == 0).sum())
    settings = Settings(steps=2000, batch_size=n, tolerance=1e-3, **FULL)
    clf = train(data, "erm", "linear", settings, folder=tmp_path / "run", device="cpu")
    found = result(tmp_path / "run")
    assert 10 < found["steps"] < 1000
    assert 0 < found["gradient"] <= 1e-3
    short = Settings(steps=60, batch_size=n, **FULL)
    train(data, "erm", "linear", short, folder=tmp_path / "b", device="cpu")
    assert result(tmp_path / "b")["gradient"] is None
    # It is the optimum of the penalised risk: no step changes anything to speak of.
    longer = Settings(steps=2000, batch_size=n, tolerance=1e-6, **FULL)
    best = train(data, "erm", "linear", longer, folder=tmp_path / "c", device="cpu")
    gap = (clf.model.head.weight - best.model.head.weight).detach().abs().max()
    assert float(gap) < 0.02


def test_a_penalty_that_is_still_to_come_is_waited_for(data, tmp_path):
    """Before the switch the loss is another function, and its optimum no reason to stop."""
    n = int((data.split == 0).sum())
    method = make_method("vrex", {"penalty": 1.0, "anneal": 400})
    settings = Settings(steps=1000, batch_size=n, tolerance=1e-2, **FULL)
    train(data, method, "linear", settings, folder=tmp_path / "run", device="cpu")
    assert 400 < result(tmp_path / "run")["steps"] < 1000


def test_the_gradient_has_the_penalty_in_it():
    model = torch.nn.Linear(3, 2)
    settings = Settings(optimiser="sgd", learning_rate=0.1, weight_decay=0.5).resolved("features", pretrained=False)
    optimiser = make_optimiser(model, settings)
    (model(torch.ones(4, 3)) ** 2).sum().backward()
    expected = max(
        float((model.weight.grad + 0.5 * model.weight.detach()).abs().max()), float(model.bias.grad.abs().max())
    )
    assert largest_gradient(optimiser) == pytest.approx(expected)


def test_numbers_of_numpy_are_numbers():
    settings = Settings(steps=np.int64(5), learning_rate=np.float32(0.5), seed=np.int64(3))
    assert json.loads(json.dumps(settings.to_dict()))["learning_rate"] == 0.5


def test_scaled_features_are_kept_only_while_they_are_right():
    backbone = FeatureBackbone("linear", 3)
    X = torch.arange(12.0).reshape(4, 3)
    backbone.set_scale(X.numpy())

    def expected(x):
        return (x - backbone.mean) / backbone.scale

    assert backbone(X) is backbone(X)  # computed once
    torch.testing.assert_close(backbone(X), expected(X))
    X[0, 0] = 100.0  # in place
    torch.testing.assert_close(backbone(X), expected(X))
    backbone.set_scale(X.numpy())
    torch.testing.assert_close(backbone(X), expected(X))
    other = X.clone()
    other[1] = 0
    torch.testing.assert_close(backbone(other), expected(other))
    with torch.no_grad():
        backbone(X)
    leaf = X.clone().requires_grad_()
    for _ in range(2):
        backbone(leaf).sum().backward()
    assert leaf.grad is not None
    with torch.inference_mode():
        made = torch.ones(2, 3)
        torch.testing.assert_close(backbone(made), expected(made))
        backbone(X)
    head = torch.nn.Linear(3, 1)
    head(backbone(X)).sum().backward()
    large = torch.zeros(10_000, 3)
    backbone(large)
    assert len(pickle.dumps(backbone)) < 10_000
    buffer = io.BytesIO()
    torch.save(backbone.state_dict(), buffer)
    assert len(buffer.getvalue()) < 10_000
    torch.testing.assert_close(copy.deepcopy(backbone)(X), expected(X))
