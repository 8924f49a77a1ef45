import os
import signal

import pytest

from compshift.cli.interruption import Interrupted, interruptible, resumable
from tests.bench.small import write_birds


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_a_command_with_one_line(call, tmp_path, monkeypatch, sent, code):
    write_birds(tmp_path / "birds.npz")
    (tmp_path / "m.safetensors").write_text("old")
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda *paths: (os.kill(os.getpid(), sent), replace(*paths)))
    before = signal.getsignal(sent)
    result = call("fit", "birds.npz", "--target", "bird", "-o", "m.safetensors", cwd=tmp_path)
    assert (result.returncode, result.err) == (code, "interrupted: files are whole, or as they were before\n")
    assert (tmp_path / "m.safetensors").read_text() == "old"
    assert signal.getsignal(sent) is before


def test_work_that_can_be_taken_up_says_so():
    with pytest.raises(Interrupted) as stop, interruptible(), resumable():
        os.kill(os.getpid(), signal.SIGTERM)
    assert stop.value.words == "interrupted: the same command goes on from here"
    assert stop.value.code == 143


def test_a_full_standard_output_is_told_of(tmp_path):
    import subprocess

    from tests.cli.commands import COMMAND, environment

    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [*COMMAND, "datasets", "list"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=environment(),
        )
    assert (result.returncode, result.stderr) == (
        2,
        "error: No space left on device: free some space, and run the same command again\n",
    )
