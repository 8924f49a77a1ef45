"""Backbones that start from random weights."""

import copy
import io
import pickle

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")

from compshift.nn.networks import FeatureBackbone


def test_cached_scaled_features_follow_every_change():
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
