"""The same benchmark on every backend and after kills gives the same tables, and leaves no worker running."""

import json
import os
import random
import signal
import subprocess
import time

import pytest

from tests.cli.commands import COMMAND, environment, run

GRID = [
    *("gaussian2d", "penguins", "--features", "--methods", "erm,mixup,crm", "--drop", "random:0.3"),
    *("--draws", "2", "--seeds", "2", "--steps", "20"),
]
N_GRID = 2 * (2 + 2 + 3)  # 2 data sets; erm and crm are deterministic and have one seed


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The benchmark run by a single process: its folder, and its numbers in full precision."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("reference")
    result = run("bench", *GRID, "--jobs", "1", "--json", "-o", "out", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["new"] == N_GRID
    return folder, numbers(folder, "out")


def numbers(cwd, folder):
    return run("tables", folder, "--format", "csv", cwd=cwd).stdout + run("tables", folder, cwd=cwd).stdout


@pytest.mark.parametrize(
    ("backend", "module"),
    [
        ("loky", "joblib"),
        ("dask", "distributed"),
        ("ray", "ray"),
    ],
)
@pytest.mark.slow
def test_every_backend_gives_the_same_tables(reference, tmp_path, backend, module):
    pytest.importorskip(module)
    result = run("bench", *GRID, "--jobs", "2", "--backend", backend, "--json", "-o", "out", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    outcome = json.loads(result.stdout)
    assert (outcome["new"], outcome["known"], outcome["failed"], outcome["all_diverged"]) == (N_GRID, 0, 0, 0)
    assert numbers(tmp_path, "out") == reference[1]


@pytest.mark.slow
def test_kill_9_at_three_moments_loses_no_result(reference, tmp_path):
    """Stored results are kept and not run again, and the tables equal those of a run without kills."""
    rng = random.Random(0)
    stored: dict = {}
    for moment in sorted(rng.sample(range(1, N_GRID - 2), 3)):
        with subprocess.Popen(
            [*COMMAND, "bench", *GRID, "--jobs", "2", "--json", "-o", "out"],
            cwd=tmp_path,
            env=environment(),
            start_new_session=True,
            stderr=subprocess.DEVNULL,
        ) as process:
            limit = time.monotonic() + 120
            while len(jobs(tmp_path)) < moment and process.poll() is None and time.monotonic() < limit:
                time.sleep(0.02)
            os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        now = jobs(tmp_path)
        assert {name: now[name] for name in stored} == stored
        stored = now
    result = run("bench", *GRID, "--jobs", "2", "--json", "-o", "out", cwd=tmp_path)
    outcome = json.loads(result.stdout)
    assert (outcome["new"], outcome["known"]) == (N_GRID - len(stored), len(stored))
    assert 3 <= len(stored) < N_GRID
    now = jobs(tmp_path)
    assert {name: now[name] for name in stored} == stored
    assert len(now) == N_GRID
    assert numbers(tmp_path, "out") == reference[1]


def jobs(cwd):
    """Return the finished jobs: file name and time of writing."""
    folder = cwd / "out" / "jobs"
    found = folder.glob("[!.]*.json") if folder.is_dir() else ()
    return {path.name: path.stat().st_mtime_ns for path in found}


@pytest.mark.slow
def test_workers_end_when_their_runner_is_killed(tmp_path):
    pytest.importorskip("torch")
    with subprocess.Popen(
        [*COMMAND, "bench", *GRID, "--jobs", "2", "-o", "out"],
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.DEVNULL,
    ) as process:
        limit = time.monotonic() + 120
        while not jobs(tmp_path) and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.02)
        workers = children(process.pid)
        assert workers
        process.kill()
    limit = time.monotonic() + 30
    while any(alive(worker) for worker in workers) and time.monotonic() < limit:
        time.sleep(0.2)
    assert not any(alive(worker) for worker in workers)


def children(pid):
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as stream:
                    parent = int(stream.read().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError, ValueError):
                continue
            if parent == pid:
                found.append(int(name))
    return found


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stream:
            return stream.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
