"""``compshift bench`` and ``compshift tables``, as a user calls them."""

import csv
import io
import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.bench.small import write_birds

COMMAND = [sys.executable, "-m", "compshift"]
SOLVED = ["--features", "--methods", "erm,crm", "--draws", "2", "--seeds", "1", "--jobs", "1"]
GRID = [
    *("gaussian2d", "penguins", "--features", "--methods", "erm,mixup,crm", "--drop", "random:0.3"),
    *("--draws", "2", "--seeds", "2", "--steps", "20"),
]
N_GRID = 2 * (2 + 2 + 3)  # nothing in erm and crm is random

PLUGIN = """
from dataclasses import dataclass
from torch.nn.functional import cross_entropy
from compshift.methods import Method
from compshift.methods.ranges import LogUniform

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


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}


def run(*arguments, cwd, timeout=240):
    return subprocess.run(
        [*COMMAND, *arguments], cwd=cwd, env=environment(), capture_output=True, text=True, timeout=timeout, check=False
    )


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The grid by one process at a time: its folder and its numbers in full precision."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("reference")
    result = run("bench", *GRID, "--jobs", "1", "--json", "-o", "out", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["new"] == N_GRID
    return folder, numbers(folder, "out")


def numbers(cwd, folder):
    return run("tables", folder, "--format", "csv", cwd=cwd).stdout + run("tables", folder, cwd=cwd).stdout


@pytest.mark.parametrize(("backend", "module"), [("loky", "joblib"), ("dask", "distributed"), ("ray", "ray")])
def test_every_engine_gives_the_same_tables(reference, tmp_path, backend, module):
    pytest.importorskip(module)
    result = run("bench", *GRID, "--jobs", "2", "--backend", backend, "--json", "-o", "out", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    outcome = json.loads(result.stdout)
    assert (outcome["new"], outcome["known"], outcome["failed"], outcome["all_diverged"]) == (N_GRID, 0, 0, 0)
    assert numbers(tmp_path, "out") == reference[1]


def test_kill_9_at_three_moments_and_again(reference, tmp_path):
    """What was stored stays as it is, is not run again, and the tables are those of a run without kills."""
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
    """Finished jobs: the name of the file, and when it was written."""
    folder = cwd / "out" / "jobs"
    found = folder.glob("[!.]*.json") if folder.is_dir() else ()
    return {path.name: path.stat().st_mtime_ns for path in found}


def test_workers_end_with_a_runner_that_is_killed(tmp_path):
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
def test_plugins_that_cannot_be_used(tmp_path, call, source, sentence):
    pytest.importorskip("torch")
    write_birds(tmp_path / "birds.npz")
    (tmp_path / "plugin.py").write_text(source)
    result = call("bench", "birds.npz", "--plugin", "plugin.py", "-o", "out", cwd=tmp_path)
    assert (result.returncode, result.out) == (2, "")
    assert sentence in result.err
    assert not (tmp_path / "out").exists()


def test_methods_of_installed_packages(tmp_path, monkeypatch):
    """A package that names its method as an entry point needs no option at all."""
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
    assert "smooth" in run("tables", "out", cwd=tmp_path).stdout


def test_from_a_feature_file_to_tables_without_torch(tmp_path, call):
    write_birds(tmp_path / "birds.npz")
    plan = call(
        "bench", "birds.npz", *SOLVED, "--drop", "each", "--drop", "none", "--dry-run", "-o", "out", cwd=tmp_path
    )
    assert plan.returncode == 0, plan.err
    assert "birds: 7 scenarios × 2 methods, 2 draws, 1 seed, 28 jobs (features)" in plan.out
    assert "28 jobs in all\nabout" in plan.out
    assert not (tmp_path / "out").exists()
    result = call("bench", "birds.npz", *SOLVED, "--drop", "each", "--drop", "none", "-o", "out", cwd=tmp_path)
    assert result.returncode == 0, result.err
    assert "28 new jobs, 0 known; the tables are of everything in out" in result.out
    assert (tmp_path / "out" / "results.parquet").is_file()
    again = call("bench", "birds.npz", *SOLVED, "--drop", "each", "--json", "-o", "out", cwd=tmp_path)
    outcome = json.loads(again.out)
    assert (outcome["new"], outcome["known"]) == (0, 24)
    assert {entry["method"] for entry in outcome["results"] if entry["table"] == "main"} == {"ERM", "CRM"}
    known = call("bench", "birds.npz", *SOLVED, "--dry-run", "--json", "-o", "out", cwd=tmp_path)
    plan = json.loads(known.out)
    assert (plan["jobs"], plan["stored"], plan["seconds"]) == (24, 24, 0.0)
    text = call("tables", "out", cwd=tmp_path).out
    for title in ("Compositional shift", "birds, each scenario: worst group", "Ablations of CRM", "No group dropped"):
        assert f"### {title}\n" in text
    assert "| none dropped |" in text
    assert call("tables", "out", "--format", "latex", "-o", "t.tex", cwd=tmp_path).returncode == 0
    assert (tmp_path / "t.tex").read_text().count(r"\begin{tabular}") == text.count("### ")
    rows = list(csv.DictReader(io.StringIO(call("tables", "out", "--format", "csv", cwd=tmp_path).out)))
    assert {row["table"] for row in rows} == {"main", "standard", "scenarios", "ablations"}


def test_no_group_dropped_has_a_table_of_its_own(tmp_path, call):
    write_birds(tmp_path / "birds.npz")
    result = call("bench", "birds.npz", *SOLVED, "--drop", "none", "-o", "out", cwd=tmp_path)
    assert "No group dropped: birds" in result.out
    assert "balanced" in result.out
    assert "Compositional shift" not in result.out


def test_a_benchmark_that_was_stopped_says_so(tmp_path, call):
    write_birds(tmp_path / "birds.npz")
    assert call("bench", "birds.npz", *SOLVED, "-o", "out", cwd=tmp_path).returncode == 0
    for path in list((tmp_path / "out" / "jobs").iterdir())[:5]:
        path.unlink()
    assert "birds is not finished" in call("tables", "out", "--table", "main", cwd=tmp_path).out


def test_the_papers_tables_alone_and_beside(tmp_path, call):
    alone = call("tables", "--paper", "--table", "ablations", cwd=tmp_path).out
    assert "| waterbirds | CRM | 87.1 (0.7) | **87.8 (0.1)** | **78.7 (1.6)** |" in alone
    write_birds(tmp_path / "birds.npz")
    assert call("bench", "birds.npz", *SOLVED, "-o", "out", cwd=tmp_path).returncode == 0
    result = call("tables", "out", "--paper", cwd=tmp_path)
    assert result.returncode == 2
    assert "the paper has nothing to set beside these results of birds" in result.err


def test_fine_tuning(tmp_path, call):
    """A network is trained for each job; what it needs while it runs is removed, and the record has all predictors."""
    pytest.importorskip("torch")
    options = ["--methods", "erm,crm", "--drop", "3,stripes", "--draws", "1", "--seeds", "1", "--steps", "4"]
    result = call("bench", "digits-backgrounds", *options, "--jobs", "1", "-o", "out", cwd=tmp_path)
    assert result.returncode == 0, result.err
    records = [json.loads(path.read_text()) for path in (tmp_path / "out" / "jobs").glob("*.json")]
    assert {record["config"]["method"]: len(record["right"]["test"]) for record in records} == {"erm": 1, "crm": 4}
    for record in records:
        assert record["config"]["protocol"]["backbone"] == "small-cnn"
        assert set(record["config"]["common"]) == {"learning_rate", "weight_decay", "batch_size"}
        assert sum(record["rows"]["test"]) == 2195
        assert record["detail"]["steps"] == 4
        assert record["versions"]["torch"]
    assert list((tmp_path / "out" / "runs").iterdir()) == []


def test_features_of_a_download_are_computed_once(tmp_path, call):
    pytest.importorskip("transformers")
    from tests.data.trees import waterbirds
    from tests.nn.models import resnet

    resnet(tmp_path / "resnet")
    waterbirds(tmp_path / "root" / "waterbirds", "wilds")  # in a folder of its name below the root
    options = ["--methods", "crm", "--drop", "each", "--draws", "1", "--seeds", "1", "--jobs", "1"]
    arguments = ["bench", "waterbirds", "--features", "--root", "root", "--backbone", "resnet", *options, "-o", "out"]
    result = call(*arguments, cwd=tmp_path)
    assert result.returncode == 0, result.err
    shards = {
        path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "features" / "waterbirds").glob("*.parquet")
    }
    assert shards
    assert "0 new jobs, 4 known" in call(*arguments, cwd=tmp_path).out
    assert {path: path.stat().st_mtime_ns for path in shards} == shards
    beside = call("tables", "out", "--paper", "--table", "scenarios", cwd=tmp_path)
    assert "(landbird, land)" in beside.out, beside.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["waterbird"], "did you mean 'waterbirds'?"),
        (["waterbirds"], "must be downloaded: pass the folder that holds it as root (--root)"),
        (["waterbirds", "--features", "--root", "nowhere"], "there is no folder 'nowhere'"),
        (["birds.npz", "--methods", "crmm"], "method 'crmm' is not known"),
        (["birds.npz", "--methods", "erm,,"], None),
        (["birds.npz", "--methods", ","], "--methods is empty"),
        (["birds.npz", "--draws", "0"], "draws is 0: pass a whole number of 1 or more"),
        (["birds.npz", "--seeds", "0"], "seeds is 0: pass a whole number of 1 or more"),
        (["birds.npz", "--steps", "0"], "steps is 0: pass a whole number of 1 or more"),
        (["birds.npz", "--seed", "-1"], "the seed of the plan is -1"),
        (["birds.npz", "--select", "test"], "selection 'test' is not known"),
        (["birds.npz", "--drop", "moon,sea"], "bird has no value 'moon'"),
        (["birds.npz", "--drop", "random:2"], "the share must be a number between 0 and 1"),
        (["birds.npz", "--strict"], "strict needs a data set whose rows have an origin"),
        (["birds.npz", "--target", "wing"], "attribute 'wing' is not known"),
        (["birds.npz", "--attributes", "wing"], "attribute 'wing' is not known"),
        (["birds.npz", "--shares", "0.5,0.2,0.3"], "the file has splits"),
        (["penguins", "--target", "sex"], "are for feature files: leave them out"),
        (["birds.npz", "--backend", "spark"], "backend 'spark' is not known"),
        (["birds.npz", "--scheduler", "a:1"], "--scheduler is for --backend dask"),
        (["birds.npz", "birds.npz"], "2 data sets are called 'birds'"),
        (["absent.npz"], "there is no file 'absent.npz'"),
        (["table.csv"], "is a table: compute its features first"),
        (["torn.npz"], "cannot be read as .npz"),
        (["birds.npz", "--backbone", "minilm"], "every data set has features of its own"),
        (["birds.npz", "--plugin", "absent.py"], "the plugin 'absent.py' cannot be read"),
        (["birds.npz", "-o", "birds.npz"], "is a file: pass a folder for the results"),
        (["birds.npz", "-o", "."], "holds other files than a benchmark's"),
        (["birds.npz", "-o", "old"], "has benchmark format 0, written by compshift 0.0.1"),
    ],
)
def test_bad_input(tmp_path, call, arguments, sentence):
    if "--plugin" in arguments or "crmm" in arguments:
        pytest.importorskip("torch")
    write_birds(tmp_path / "birds.npz")
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    (tmp_path / "torn.npz").write_bytes((tmp_path / "birds.npz").read_bytes()[:500])
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "bench.json").write_text('{"version": 0, "compshift": "0.0.1"}')
    given = [*arguments]
    for option, value in (("--methods", "erm"), ("-o", "out"), ("--jobs", "1")):
        given += [] if option in arguments else [option, value]
    if sentence is None:
        given.append("--dry-run")
    result = call("bench", *given, cwd=tmp_path)
    if sentence is None:
        assert result.returncode == 0
        return
    assert (result.returncode, result.out) == (2, ""), result.err
    assert sentence in result.err
    assert result.err.startswith("error: ")
    assert len(result.err.splitlines()) == 1


def test_bad_tables(tmp_path, call):
    for arguments, sentence in (
        ([], "pass the folder of a benchmark, or --paper"),
        (["."], "holds no benchmark"),
        ([".", "--format", "html"], "format 'html' is not known"),
        ([".", "--table", "best"], "table 'best' is not known"),
        (["--paper", "-o", "."], "is a folder: pass the path of a file"),
    ):
        result = call("tables", *arguments, cwd=tmp_path)
        assert (result.returncode, result.out) == (2, "")
        assert sentence in result.err


def test_records_are_whole_numbers_of_rows(tmp_path, call):
    """Accuracies are kept as counts, so nothing is lost to rounding."""
    write_birds(tmp_path / "birds.npz")
    call("bench", "birds.npz", *SOLVED, "-o", "out", cwd=tmp_path)
    for path in (tmp_path / "out" / "jobs").glob("*.json"):
        record = json.loads(path.read_text())
        for split, predictors in record["right"].items():
            for right in predictors.values():
                assert all(0 <= hits <= rows for hits, rows in zip(right, record["rows"][split], strict=True))
        assert record["seconds"] > 0
        assert record["config"]["protocol"]["ranges"]["alpha"]["low"] == -4
        assert np.isclose(sum(record["rows"]["test"]), 65)
