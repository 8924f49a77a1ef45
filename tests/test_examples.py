"""Examples do what they say."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


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
