"""Training on two processes gives the results of one process."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")

from compshift.training.folder import read_tensors
from tests.processes import torchrun
from tests.training.job import METHODS, main


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    alone, shared = tmp_path_factory.mktemp("alone"), tmp_path_factory.mktemp("shared")
    main(alone)
    torchrun("-m", "tests.training.job", shared)
    assert (shared / "size").read_text() == "2"
    return alone, shared


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_two_processes_reach_the_weights_of_one(folders, method):
    (first, _), (second, _) = (read_tensors(folder / method / "model.safetensors") for folder in folders)
    for name, tensor in first.items():
        tolerance = 1e-3 if name.startswith(("head.effective", "head.bias")) else 1e-5
        np.testing.assert_allclose(second[name], tensor, atol=tolerance, rtol=tolerance, err_msg=name)
    lines = [(folder / method / "metrics.jsonl").read_text().splitlines() for folder in folders]
    for one, two in zip(*lines, strict=True):
        one, two = json.loads(one), json.loads(two)
        assert one.keys() == two.keys()
        for key in ("step", "average", "balanced", "worst", "best"):
            assert one[key] == two[key]
        assert one["loss"] == pytest.approx(two["loss"], abs=1e-5)


@pytest.mark.slow
def test_the_bias_of_two_processes_equals_that_of_one(folders):
    first, second = (torch.load(folder / "bias.pt", weights_only=True) for folder in folders)
    np.testing.assert_allclose(second[0], first[0], atol=1e-6)
    np.testing.assert_allclose(second[1], first[1], rtol=1e-6)
