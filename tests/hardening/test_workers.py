"""Workers, schedulers and runners of real benchmarks that die: jobs are repeated, recorded as failed, or kept."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.bench.small import write_birds
from tests.hardening.scenes import Ended, Scene, require, try_fault
from tests.hardening.verdicts import Tally, share

UNIT = "faults"
BENCH = "bench birds.npz --methods erm,mixup --drop water,sea --draws 2 --seeds 1 --steps 4 --features --json"
SLOW = """
import time
from dataclasses import dataclass
from compshift.methods.erm import ERM

@dataclass(frozen=True)
class Slow(ERM):
    name = "slow"
    ranges = {}

    def loss(self, model, batch, state, step):
        time.sleep(0.1)
        return super().loss(model, batch, state, step)
"""
CASES: dict[str, tuple[Any, ...]] = {
    "a Ray worker is killed": ("ray", "ray::"),
    "a Dask worker is killed": ("dask", "multiprocessing.spawn"),
    "a loky worker is killed": ("loky", "loky"),
    "Ctrl-C in the terminal": (signal.SIGINT,),
    "SIGTERM to the runner": (signal.SIGTERM,),
}
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """A benchmark with a method that takes its time, undisturbed."""
    home = tmp_path_factory.mktemp("workers")
    scene = Scene("bench", f"{BENCH} --plugin {home}/own.py", "bench", resumes=True)
    scene.arguments[1] = str(write_birds(home / "birds.npz"))
    (home / "own.py").write_text(SLOW)
    scene.measure(home / "undisturbed")
    assert scene.jobs >= 6
    return scene


@pytest.mark.parametrize("label", share(CASES))
def test_deaths(label: str, reference: Scene, tally: Tally) -> None:
    arguments = CASES[label]
    try_fault(tally, label, _killed_worker if len(arguments) == 2 else _ended, reference, *arguments)


def _killed_worker(reference: Scene, backend: str, mark: str, cwd: Path) -> None:
    """The killed worker's job is run again, and no other is lost."""
    with _bench(reference, cwd, "--backend", backend, "--jobs", "2") as process:
        found = lambda: [child for child in _children(process) if mark in _command(child)]  # noqa: E731
        require(_wait_for(lambda: _begun(cwd) and found()), "there was no worker to kill", "internal error")
        time.sleep(0.3)
        found()[-1].kill()
        ended = _end(process, cwd)
    require(ended.code == 0, f"it ended with {ended.code}: {ended.err.strip()[-400:]}")
    told = json.loads(ended.out[ended.out.index("{") :])
    require((told["new"], told["failed"]) == (reference.jobs, 0), f"{reference.jobs} jobs, but it reports {told}")
    reference.check_same_end(cwd)


def _ended(reference: Scene, sent: signal.Signals, cwd: Path) -> None:
    """The whole process group (Ctrl-C) or the runner alone is ended: no worker stays, and nothing is lost."""
    with _bench(reference, cwd, "--jobs", "2") as process:
        _wait_for(lambda: _begun(cwd))
        children = _children(process)
        (os.killpg if sent == signal.SIGINT else os.kill)(process.pid, sent)
        ended = _end(process, cwd, 60)
    text = f"exit code {ended.code}: {ended.err.strip()[-400:]}"
    gone = _wait_for(lambda: not any(map(_command, children)), 30)
    require(ended.code is not None and gone, f"{text}; workers left: {[*map(_command, children)]}", "internal error")
    one_line = ended.code == 128 + sent and len(ended.err.strip().splitlines()) == 1
    require(one_line, text, "unclear sentence")
    reference.check_same_end(cwd)


@contextmanager
def _bench(reference: Scene, cwd: Path, *options: str) -> Iterator[Any]:
    """Start a benchmark with a further method, in a process group of its own."""
    command = [sys.executable, "-m", "compshift", *reference.arguments, *options]
    with (cwd / "out.txt").open("w") as out, (cwd / "err.txt").open("w") as err:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=ENVIRONMENT,
            stdout=out,
            stderr=err,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs of a shell ignore it
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _end(process: Any, cwd: Path, timeout: float = 300.0) -> Ended:
    try:
        code = process.wait(timeout)
    except subprocess.TimeoutExpired:
        code = None
    return Ended(code, (cwd / "out.txt").read_text(), (cwd / "err.txt").read_text())


def _begun(cwd: Path) -> bool:
    """Return whether a training run has started."""
    return any((cwd / "bench/runs").glob("*/run.json"))


def _wait_for(condition: Callable[[], Any], timeout: float = 180.0) -> Any:
    limit = time.monotonic() + timeout
    while time.monotonic() < limit:
        if found := condition():
            return found
        time.sleep(0.05)
    return None


def _children(process: Any) -> list[psutil.Process]:
    """Return the descendants of a process, oldest first."""
    return sorted(psutil.Process(process.pid).children(recursive=True), key=lambda child: child.pid)


def _command(process: psutil.Process) -> str:
    """Return the command line of a process; empty if it is gone."""
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""
