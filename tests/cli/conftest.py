import sys
import warnings
from types import SimpleNamespace

import pytest

from compshift.cli.main import main


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
