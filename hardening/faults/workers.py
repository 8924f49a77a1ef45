"""Workers that die under loky, Dask and Ray, a scheduler that dies, jobs that kill their workers, and a whole group of
processes that is told to end. Real commands in processes of their own.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from hardening.faults.forked import Ended, run_forked
from hardening.faults.scenes import benchmark_records
from hardening.faults.verdicts import REFERENCES, Failure, Fault, Verdict, differing, lost, one_sentence

PART = "workers"
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
PATIENCE = 100.0


def worker_faults() -> list[Fault]:
    """One scenario for each engine and each way to die."""
    calls: dict[str, Callable[[Path], Verdict]] = {
        "ray, a worker is killed": partial(killed_worker, "ray", "ray::"),
        "dask, a worker is killed": partial(killed_worker, "dask", "multiprocessing.spawn"),
        "dask, the scheduler is killed": killed_scheduler,
        "loky, a worker is killed": partial(killed_worker, "loky", "loky"),
        "loky, a job crashes its worker each time": partial(bad_job, DEADLY, "its worker died 2 times"),
        "loky, a job is out of memory each time": partial(bad_job, HUNGRY, "MemoryError: no more memory"),
        "loky, Ctrl-C in the terminal": partial(ended, signal.SIGINT),
        "loky, SIGTERM to the runner": partial(ended, signal.SIGTERM),
        "loky, kill −9 of the runner": partial(ended, signal.SIGKILL),
    }
    return [Fault(PART, label, call) for label, call in calls.items()]


def killed_worker(backend: str, mark: str, cwd: Path) -> Verdict:
    """Kill a worker while it has a job: the job is run again, and no other is lost."""
    with _bench(cwd, SLOW, "--backend", backend, "--jobs", "2") as process:
        workers = _wait_for(lambda: [pid for pid in _below(process.pid) if mark in _command(pid)] and _begun(cwd))
        if workers:
            time.sleep(0.3)
            victims = [pid for pid in _below(process.pid) if mark in _command(pid)]
            os.kill(victims[-1], signal.SIGKILL)
        told = _end(process, cwd)
    if not workers:
        return Failure("internal error", f"there was no worker to kill: {told.err[-300:]}")
    if told.code != 0:
        return lost(f"it ended with {told.code}: {told.err.strip()[-400:]}")
    return _complete(cwd, told, failed=0)


def killed_scheduler(cwd: Path) -> Verdict:
    """The scheduler of a cluster is gone for good: one sentence, and another engine finishes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": cwd, "env": _environment()}

    scheduler = subprocess.Popen(
        [*_module("dask_scheduler"), "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"], **quiet
    )
    worker = subprocess.Popen([*_module("dask_worker"), address, "--nthreads", "1", "--no-dashboard"], **quiet)

    try:
        _wait_for(lambda: _listens(port))
        with _bench(cwd, SLOW, "--backend", "dask", "--scheduler", address, "--timeout", "8") as process:
            begun = _wait_for(lambda: _begun(cwd))
            scheduler.kill()
            told = _end(process, cwd)
    finally:
        for one in (worker, scheduler):
            one.kill()
            one.wait()
    if not begun:
        return Failure("internal error", f"nothing was begun: {told.err[-300:]}")
    failure = one_sentence(told)
    if failure:
        return failure
    verdict = _again(cwd, SLOW)
    return "refused" if verdict == "answered" else verdict


def bad_job(plugin: str, words: str, cwd: Path) -> Verdict:
    """A method that cannot be run is recorded as failed, once for each job; all others finish."""
    with _bench(cwd, plugin, "--jobs", "2") as process:
        told = _end(process, cwd)
    if told.code != 1 or "Traceback" in told.err:
        return Failure("internal error", f"{told.code}: {told.err[-300:]}")
    failures = [json.loads(path.read_text()) for path in (cwd / "bench/failures").glob("[!.]*.json")]
    if len(failures) != 2 or not all(words in failure["error"] for failure in failures):
        return lost(f"failures are {[failure['error'] for failure in failures]}")
    return _complete(cwd, told, failed=2)


def ended(sent: signal.Signals, cwd: Path) -> Verdict:
    """The whole group as Ctrl-C does, or the runner alone: no worker stays, and nothing is lost."""
    with _bench(cwd, SLOW, "--jobs", "2") as process:
        _wait_for(lambda: _begun(cwd))
        below = _below(process.pid)
        (os.killpg if sent == signal.SIGINT else os.kill)(process.pid, sent)
        told = _end(process, cwd, 20)
    if told.code is None:
        return Failure("internal error", f"it did not end within 20 s of {sent.name}")
    if not _wait_for(lambda: not any(_command(pid) for pid in below), 5):
        return Failure("internal error", f"workers stayed: {[_command(pid)[:60] for pid in below if _command(pid)]}")
    said = told.err.strip().splitlines()
    if sent != signal.SIGKILL and (told.code != 128 + sent or len(said) != 1):
        return Failure("unclear sentence", f"exit code {told.code}, {len(said)} lines: {told.err.strip()[-400:]}")
    return _again(cwd, SLOW)


def _arguments(cwd: Path, plugin: str) -> list[str]:
    (cwd / "own.py").write_text(plugin)
    reference = REFERENCES["bench"].scene.arguments
    return [*reference, "--draws", "2", "--seeds", "1", "--plugin", "own.py"]


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}


def _module(name: str) -> list[str]:
    return [sys.executable, "-c", f"from distributed.cli.{name} import main; main()"]


@contextmanager
def _bench(cwd: Path, plugin: str, *options: str) -> Iterator[Any]:
    """A benchmark in a process group of its own."""
    command = [sys.executable, "-m", "compshift", *_arguments(cwd, plugin), *options]
    with (cwd / "out.txt").open("w") as out, (cwd / "err.txt").open("w") as err:
        process = subprocess.Popen(command, cwd=cwd, env=_environment(), stdout=out, stderr=err, start_new_session=True)
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _end(process: Any, cwd: Path, patience: float = PATIENCE) -> Ended:
    try:
        code = process.wait(patience)
    except subprocess.TimeoutExpired:
        code = None
    return Ended(code, (cwd / "out.txt").read_text(), (cwd / "err.txt").read_text())


def _begun(cwd: Path) -> bool:
    """Whether a training run has started."""
    return any((cwd / "bench/runs").glob("*/run.json"))


def _complete(cwd: Path, told: Ended, failed: int) -> Verdict:
    """All jobs are there once, as of a run without faults, but for those of a bad method."""
    found = benchmark_records(cwd)
    records = [name for name in found if name.startswith("jobs/")]
    said = told.told
    if (said["new"], said["failed"]) != (len(records), failed):
        return lost(f"there are {len(records)} records, and it told of {said['new']} new, {said['failed']} failed")
    wanted = {name: content for name, content in REFERENCES["bench"].found.items() if name in found and "jobs/" in name}
    difference = differing(wanted, {name: found[name] for name in wanted})
    if difference or len(wanted) < 4:
        return lost(f"{len(wanted)} known jobs, differing in {difference}")
    return "answered"


def _again(cwd: Path, plugin: str) -> Verdict:
    """The same jobs in this process: what was finished is kept, and all are there in the end."""
    before = len(list((cwd / "bench/jobs").glob("[!.]*.json")))
    again = run_forked(_arguments(cwd, plugin), cwd)
    if again.code != 0:
        return lost(f"the same command ended with {again.code}: {again.err[-300:]}")
    told = again.told
    if told["known"] != before or told["failed"]:
        return lost(f"{before} jobs were finished, and it told of {told['known']}; {told['failed']} failed")
    return "answered"


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _wait_for(condition: Callable[[], Any], patience: float = 60.0) -> Any:
    limit = time.monotonic() + patience
    while time.monotonic() < limit:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    return None


def _below(pid: int) -> list[int]:
    """Processes that a process started, and those that they started."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path(f"/proc/{name}/stat").read_text()
            except OSError:
                continue
            parents[int(name)] = int(stat.rpartition(")")[2].split()[1])
    found, new = [], [pid]
    while new:
        new = [child for child, parent in parents.items() if parent in new]
        found += new
    return sorted(found)


def _command(pid: int) -> str:
    """Its command line; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
