"""Examples do what they say."""

import ast
import importlib
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
GALLERY = sorted((EXAMPLES / "gallery").glob("*.py"))


@pytest.mark.parametrize("path", GALLERY, ids=lambda path: path.stem)
def test_the_gallery(path, tmp_path, monkeypatch):
    """Each runs as it stands, its own checks hold, nothing warns, and it draws one figure."""
    for package in re.findall(r"^(?:from|import) (\w+)", path.read_text(), flags=re.MULTILINE):
        pytest.importorskip(package)
    import matplotlib

    matplotlib.use("agg")
    plt = importlib.import_module("matplotlib.pyplot")
    figures = []
    monkeypatch.setattr(plt, "show", lambda: figures.append(plt.gcf()))
    monkeypatch.chdir(tmp_path)
    try:
        runpy.run_path(str(path))
    finally:
        plt.close("all")
    assert len(figures) == 1
    assert not list(tmp_path.iterdir())


def test_the_gallery_is_listed():
    """The page that leads to the examples names each of them, and each has a title and claims that it checks."""
    listed = re.findall(r":doc:`(\w+)`", (EXAMPLES / "gallery" / "GALLERY_HEADER.rst").read_text())
    assert sorted(listed) == [path.stem for path in GALLERY]
    for path in GALLERY:
        tree = ast.parse(path.read_text())
        title, underline = (ast.get_docstring(tree) or "").splitlines()[:2]
        assert underline == "=" * len(title), path.name
        assert any(isinstance(node, ast.Assert) for node in ast.walk(tree)), path.name


@pytest.mark.slow
def test_a_benchmark_through_submitit(tmp_path):
    """On this machine instead of SLURM: the same code starts the workers."""
    pytest.importorskip("submitit")
    pytest.importorskip("distributed")
    bench = ["penguins", "--methods", "erm,crm", "--drop", "none", "--draws", "2", "--json", "-o", "out"]
    result = subprocess.run(
        [
            sys.executable,
            EXAMPLES / "slurm_bench.py",
            "--workers",
            "1",
            "--cpus",
            "1",
            "--cluster",
            "local",
            "--",
            *bench,
        ],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    outcome = json.loads(result.stdout)
    assert (outcome["new"], outcome["failed"]) == (4, 0)
    assert list((tmp_path / "slurm-logs").iterdir())
