"""Workers, schedulers and runners of real benchmarks that die: jobs are repeated, recorded as failed, or kept."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.bench.small import write_birds
from tests.hardening.scenes import (
    BrokenCommandError,
    Ended,
    Forked,
    LostError,
    Scene,
    UnclearError,
    check_equal,
    check_sentence,
    try_fault,
)
from tests.hardening.verdicts import Tally, share

UNIT = "faults"
BENCH = "bench birds.npz --methods erm,mixup --drop water,sea --draws 2 --seeds 1 --steps 4 --features --json"
SLOW = """
import os, signal, time
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
DEADLY = SLOW.replace("time.sleep(0.1)", "os.kill(os.getpid(), signal.SIGSEGV)")
HUNGRY = SLOW.replace("time.sleep(0.1)", "raise MemoryError('no more memory')")
QUIET: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """The same benchmark without the slow method, undisturbed."""
    scene, home = Scene("bench", BENCH, "bench", resumes=True), tmp_path_factory.mktemp("workers")
    write_birds(home / "birds.npz")
    scene.arguments[1] = str(home / "birds.npz")
    scene.measure(home / "undisturbed")
    return scene


@pytest.mark.parametrize("case", share(range(9)))
def test_deaths(case: int, reference: Scene, tally: Tally) -> None:
    cases: list[tuple[str, Callable[..., Any], Any]] = [
        ("a Ray worker is killed", _killed_worker, ("ray", "ray::")),
        ("a Dask worker is killed", _killed_worker, ("dask", "multiprocessing.spawn")),
        ("the Dask scheduler is killed", _killed_scheduler, ()),
        ("a loky worker is killed", _killed_worker, ("loky", "loky")),
        ("a job crashes its worker each time", _bad_job, (DEADLY, "its worker died 2 times")),
        ("a job is out of memory each time", _bad_job, (HUNGRY, "MemoryError: no more memory")),
        ("Ctrl-C in the terminal", _ended, (signal.SIGINT,)),
        ("SIGTERM to the runner", _ended, (signal.SIGTERM,)),
        ("kill -9 of the runner", _ended, (signal.SIGKILL,)),
    ]
    label, call, arguments = cases[case]
    try_fault(tally, label, call, reference, *arguments)


def _killed_worker(reference: Scene, backend: str, mark: str, cwd: Path) -> None:
    """The killed worker's job is run again, and no other is lost."""
    with _bench(reference, cwd, SLOW, "--backend", backend, "--jobs", "2") as process:
        if not _wait_for(lambda: _begun(cwd) and [pid for pid in _below(process.pid) if mark in _command(pid)]):
            raise BrokenCommandError("there was no worker to kill")
        time.sleep(0.3)
        os.kill([pid for pid in _below(process.pid) if mark in _command(pid)][-1], signal.SIGKILL)
        ended = _end(process, cwd)
    if ended.code != 0:
        raise LostError(f"it ended with {ended.code}: {ended.err.strip()[-400:]}")
    _check_complete(reference, cwd, ended, failed=0)


def _killed_scheduler(reference: Scene, cwd: Path) -> bool:
    """One sentence, and another engine finishes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    module = [sys.executable, "-c", "from distributed.cli.dask_{} import main; main()", "--no-dashboard"]
    commands = [[word.format(kind) for word in module] for kind in ("scheduler", "worker")]
    commands[0] += ["--host", "127.0.0.1", "--port", port]
    commands[1] += [f"tcp://127.0.0.1:{port}", "--nthreads", "1"]
    servers = [subprocess.Popen(command, cwd=cwd, env=ENVIRONMENT, **QUIET) for command in commands]
    options = ["--backend", "dask", "--scheduler", f"tcp://127.0.0.1:{port}", "--timeout", "8"]
    try:
        _wait_for(lambda: socket.socket().connect_ex(("127.0.0.1", int(port))) == 0)
        with _bench(reference, cwd, SLOW, *options) as process:
            if not _wait_for(lambda: _begun(cwd)):
                raise BrokenCommandError("nothing was begun")
            servers[0].kill()
            ended = _end(process, cwd)
    finally:
        for server in servers:
            server.kill()
            server.wait()
    check_sentence(ended)
    _check_again(reference, cwd)
    return True


def _bad_job(reference: Scene, plugin: str, words: str, cwd: Path) -> None:
    """A method that cannot run is recorded as failed, once for each job; all others finish."""
    with _bench(reference, cwd, plugin, "--jobs", "2") as process:
        ended = _end(process, cwd)
    if ended.code != 1 or "Traceback" in ended.err:
        raise BrokenCommandError(f"{ended.code}: {ended.err[-300:]}")
    failures = [json.loads(path.read_text())["error"] for path in (cwd / "bench/failures").glob("[!.]*.json")]
    if len(failures) != 2 or not all(words in failure for failure in failures):
        raise LostError(f"failures are {failures}")
    _check_complete(reference, cwd, ended, failed=2)


def _ended(reference: Scene, sent: signal.Signals, cwd: Path) -> None:
    """The whole process group (Ctrl-C) or the runner alone is ended: no worker stays, and nothing is lost."""
    with _bench(reference, cwd, SLOW, "--jobs", "2") as process:
        _wait_for(lambda: _begun(cwd))
        below = _below(process.pid)
        (os.killpg if sent == signal.SIGINT else os.kill)(process.pid, sent)
        ended = _end(process, cwd, 20)
    if ended.code is None or not _wait_for(lambda: not any(map(_command, below)), 5):
        raise BrokenCommandError(f"it ended with {ended.code}; workers left: {[_command(pid)[:60] for pid in below]}")
    lines = ended.err.strip().splitlines()
    if sent != signal.SIGKILL and (ended.code != 128 + sent or len(lines) != 1):
        raise UnclearError(f"exit code {ended.code}, {len(lines)} lines: {ended.err.strip()[-400:]}")
    _check_again(reference, cwd)


@contextmanager
def _bench(reference: Scene, cwd: Path, plugin: str, *options: str) -> Iterator[Any]:
    """Start a benchmark with a further method, in a process group of its own."""
    (cwd / "own.py").write_text(plugin)
    command = [sys.executable, "-m", "compshift", *reference.arguments, "--plugin", "own.py", *options]
    with (cwd / "out.txt").open("w") as out, (cwd / "err.txt").open("w") as err:
        process = subprocess.Popen(command, cwd=cwd, env=ENVIRONMENT, stdout=out, stderr=err, start_new_session=True)
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _end(process: Any, cwd: Path, timeout: float = 100.0) -> Ended:
    try:
        code = process.wait(timeout)
    except subprocess.TimeoutExpired:
        code = None
    return Ended(code, (cwd / "out.txt").read_text(), (cwd / "err.txt").read_text())


def _begun(cwd: Path) -> bool:
    """Return whether a training run has started."""
    return any((cwd / "bench/runs").glob("*/run.json"))


def _check_complete(reference: Scene, cwd: Path, ended: Ended, failed: int) -> None:
    """Check that all jobs are there once, with the results of an undisturbed run."""
    state, told = reference.state(cwd), json.loads(ended.out[ended.out.index("{") :])
    records = [name for name in state if name.startswith("jobs/")]
    if (told["new"], told["failed"]) != (len(records), failed):
        raise LostError(f"there are {len(records)} records, but it reports {told['new']} new, {told['failed']} failed")
    wanted = {name: content for name, content in reference.found.items() if name.startswith("jobs/")}
    if len(wanted) < 4:
        raise BrokenCommandError(f"only {len(wanted)} known jobs")
    check_equal(wanted, {name: state.get(name) for name in wanted})


def _check_again(reference: Scene, cwd: Path) -> None:
    """Run the same jobs in this process: what was finished is kept, and all are there in the end."""
    before = len(reference.parts(cwd))
    again = Forked([*reference.arguments, "--plugin", "own.py"], cwd).end()
    told = json.loads(again.out[again.out.index("{") :]) if again.code == 0 else {}
    if told.get("known") != before or told.get("failed"):
        raise LostError(f"{before} jobs were finished, then: {again.code}, {told}, {again.err[-300:]}")


def _wait_for(condition: Callable[[], Any], timeout: float = 60.0) -> Any:
    limit = time.monotonic() + timeout
    while time.monotonic() < limit:
        if found := condition():
            return found
        time.sleep(0.05)
    return None


def _below(pid: int) -> list[int]:
    """Return the descendants of a process."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found, new = [], [pid]
    while new:
        new = [child for child, parent in parents.items() if parent in new]
        found += new
    return sorted(found)


def _command(pid: int) -> str:
    """Return the command line of a process; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
