"""Folders of runs that somebody else may have written."""

import json

import pytest

from compshift import InputError
from tests.training.small_runs import QUICK, gaussians

torch = pytest.importorskip("torch")
import compshift as cs
from compshift.training.folder import read_tensors, write_tensors


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    cs.training.train(gaussians(), "erm", "mlp", QUICK, folder=folder, device="cpu")
    return folder


@pytest.fixture
def run(trained, tmp_path):
    import shutil

    return shutil.copytree(trained, tmp_path / "run")


def test_networks_that_are_larger_than_their_weights(run):
    about = json.loads((run / "run.json").read_text())
    about["model"]["backbone"] |= {"in_features": 10**7, "widths": [10**7]}
    (run / "run.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match="the described network has 100,000,010,000,000 weights"):
        cs.load(run)


def test_weights_that_were_changed(run):
    tensors, about = read_tensors(run / "model.safetensors")
    content = bytearray((run / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (run / "model.safetensors").write_bytes(content)
    with pytest.raises(InputError, match="its checksum differs"):
        cs.load(run)
    broken = {name: tensor * float("nan") for name, tensor in tensors.items()}
    write_tensors(run / "model.safetensors", broken, about)
    with pytest.raises(InputError, match="are not finite"):
        cs.load(run)


@pytest.mark.parametrize("name", ["run.json", "model.safetensors"])
def test_links(run, tmp_path, name):
    (run / name).rename(tmp_path / "secret")
    (run / name).symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match="leads out of"):
        cs.load(run)


def test_a_run_that_is_nested_too_deeply(run):
    (run / "run.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match="nested too deeply"):
        cs.load(run)
