import os
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from compshift.cli.main import main
from compshift.data import archives, download, untrusted
from tests.cli.customers import BOOSTED, LABELS, customers
from tests.cli.fetching import MARKER, NAME, tar
from tests.data import trees
from tests.data.http_site import running_site


@pytest.fixture
def call(monkeypatch, capfd):
    """Run a command in this process, which saves importing everything again."""

    def invoke(*arguments, cwd):
        monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", ["compshift", *arguments])
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # so that it is put back
        capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        return SimpleNamespace(returncode=stop.value.code, **capfd.readouterr()._asdict())

    return invoke


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The files of a small data set, by their names in the archive; one cannot be compressed."""
    folder = tmp_path_factory.mktemp("tree")
    trees.civilcomments(folder, "authors")
    noise = np.random.default_rng(0).bytes(400_000)
    return {MARKER: (folder / NAME / MARKER).read_bytes(), "notes/noise.bin": noise}


@pytest.fixture(scope="module")
def archive(files):
    return tar(files)


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(download, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(download, "PROGRESS_BYTES", 10_000)
    for module in (untrusted, archives):
        monkeypatch.setattr(module, "ALWAYS_ALLOWED_BYTES", 4 << 20)
    monkeypatch.setattr(os, "sync", lambda: None)  # which waits for all disks
    with running_site() as found:
        yield found


@pytest.fixture
def folder(tmp_path):
    customers().to_csv(tmp_path / "t.csv", index=False)
    return tmp_path


@pytest.fixture(params=["boosted", "linear"])
def fitted(request, call, folder):
    """A folder with a table and a model of it."""
    if request.param == "boosted":
        pytest.importorskip("lightgbm")
    options = BOOSTED if request.param == "boosted" else LABELS
    result = call("fit", "t.csv", *options, "-o", "m.safetensors", cwd=folder)
    assert (result.returncode, result.err) == (0, ""), result.err
    return SimpleNamespace(folder=folder, energies=request.param, out=result.out)
