"""Plugins in ``compshift bench``: methods from a file and from an installed package."""

import json

import pytest

from tests.bench.small import write_birds
from tests.cli.commands import run

PLUGIN = """
from dataclasses import dataclass
from torch.nn.functional import cross_entropy
from compshift.methods import Method
from compshift.methods.base import LogUniform

@dataclass(frozen=True)
class Smooth(Method):
    smoothing: float = 0.1
    name = "smooth"
    ranges = {"smoothing": LogUniform(-3, -1)}

    def loss(self, model, batch, state, step):
        logits = model(batch.inputs)
        rows = cross_entropy(logits, batch.classes, label_smoothing=self.smoothing, reduction="none")
        return batch.mean(rows), state
"""


@pytest.mark.slow
def test_a_method_from_a_plugin_is_in_the_tables(tmp_path, call):
    pytest.importorskip("torch")
    write_birds(tmp_path / "birds.npz")
    (tmp_path / "smooth.py").write_text(PLUGIN)
    options = ["--drop", "water,sea", "--draws", "2", "--seeds", "2", "--steps", "20", "--jobs", "1"]
    result = call(
        "bench", "birds.npz", "--methods", "erm,crm", "--plugin", "smooth.py", *options, "-o", "out", cwd=tmp_path
    )
    assert result.returncode == 0, result.err
    assert "smooth" in result.out
    table = call("tables", "out", "--table", "main", cwd=tmp_path).out
    assert [line.split("|")[2].strip() for line in table.splitlines() if line.startswith("|")][2:] == [
        "ERM",
        "CRM",
        "smooth",
    ]
    records = [json.loads(path.read_text()) for path in (tmp_path / "out" / "jobs").glob("*.json")]
    drawn = {
        record["config"]["hyperparameters"]["smoothing"] for record in records if record["config"]["method"] == "smooth"
    }
    assert len(drawn) == 2
    assert all(1e-3 <= value <= 1e-1 for value in drawn)
    (tmp_path / "smooth.py").write_text(PLUGIN.replace("0.1", "0.2"))
    result = call("bench", "birds.npz", "--plugin", "smooth.py", *options, "-o", "out", cwd=tmp_path)
    assert result.returncode == 2
    assert "another version of the method 'smooth'" in result.err


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("import nothing_of_that_name", "fails with ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("def broken(:", "fails with SyntaxError"),
        ("x = 1", "defines no method: write a subclass of compshift.methods.Method"),
        (PLUGIN.replace('"smooth"', '"crm"'), "defines 'crm', which exists already"),
        (
            PLUGIN.replace('"smoothing"', '"smoothin"'),
            "hyper-parameter 'smoothin' is not known: use one of 'smoothing'",
        ),
    ],
)
def test_unusable_plugins_raise(tmp_path, call, source, sentence):
    pytest.importorskip("torch")
    write_birds(tmp_path / "birds.npz")
    (tmp_path / "plugin.py").write_text(source)
    result = call("bench", "birds.npz", "--plugin", "plugin.py", "-o", "out", cwd=tmp_path)
    assert (result.returncode, result.out) == (2, "")
    assert sentence in result.err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_methods_of_installed_packages(tmp_path, monkeypatch):
    """A package with an entry point for its method needs no option."""
    pytest.importorskip("torch")
    (tmp_path / "smooth_package.py").write_text(PLUGIN)
    info = tmp_path / "smooth_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: smooth-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[compshift.methods]\nsmooth = smooth_package:Smooth\n")
    write_birds(tmp_path / "birds.npz")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    options = ["--drop", "water,sea", "--draws", "1", "--seeds", "1", "--steps", "10", "--jobs", "1"]
    assert "smoothing=0.1" in run("methods", cwd=tmp_path).stdout
    result = run("bench", "birds.npz", "--methods", "smooth,erm", *options, "-o", "out", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "smooth" in result.stdout
