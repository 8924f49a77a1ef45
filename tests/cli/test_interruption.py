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
    usual = signal.default_int_handler if sent == signal.SIGINT else signal.SIG_DFL
    surrounding = signal.signal(sent, usual)  # the test itself may run under nohup, which ignores signals
    try:
        result = call("fit", "birds.npz", "--target", "bird", "-o", "m.safetensors", cwd=tmp_path)
        assert signal.getsignal(sent) is usual
    finally:
        signal.signal(sent, surrounding)
    assert (result.returncode, result.err) == (code, "interrupted: no file was left half-written\n")
    assert (tmp_path / "m.safetensors").read_text() == "old"


def test_resumable_work_says_so_when_interrupted():
    with pytest.raises(Interrupted) as stop, interruptible(), resumable():
        os.kill(os.getpid(), signal.SIGTERM)
    assert stop.value.message == "interrupted: run the same command again to continue"
    assert stop.value.code == 143


def test_a_full_disk_behind_standard_output_is_an_error(tmp_path):
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


@pytest.mark.parametrize("how", ["unread", "both closed"])
def test_a_closed_pipe_is_not_an_error(tmp_path, how):
    import subprocess

    from tests.cli.commands import COMMAND, environment

    write_birds(tmp_path / "birds.npz")
    read, unread = os.pipe()
    os.close(read)

    def close():
        os.close(1)
        if "both" in how:
            os.close(2)

    result = subprocess.run(
        [*COMMAND, "fit", "birds.npz", "--target", "bird", "-o", "m.safetensors"],
        stdout=unread,
        stderr=unread if "both" in how else subprocess.PIPE,
        preexec_fn=close if "closed" in how else None,
        text=True,
        cwd=tmp_path,
        env=environment(),
    )
    os.close(unread)
    assert (result.returncode, result.stderr or "") == (0, "")
    assert (tmp_path / "m.safetensors").stat().st_size > 0


def test_the_exit_code_reports_failures_though_the_pipe_is_closed(tmp_path):
    import subprocess

    from tests.cli.commands import COMMAND, environment

    read, unread = os.pipe()
    os.close(read)
    ended = subprocess.run(
        [*COMMAND, "audit", "nothing.csv", "--attributes", "a"],
        stdout=unread,
        stderr=unread,
        cwd=tmp_path,
        env=environment(),
    )
    os.close(unread)
    assert ended.returncode == 2


def test_standard_output_in_memory(monkeypatch):
    """A program may call the command with a standard output in memory."""
    import io
    import sys

    from compshift.cli.main import main

    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "argv", ["compshift", "datasets", "list"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    assert b"penguins" in stream.buffer.getvalue()
