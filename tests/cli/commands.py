"""Run a command in its own process."""

import os
import subprocess
import sys

import pytest

EXTRAS = {"report": "altair", "export": "onnx", "features": "torch", "train": "accelerate", "bench": "torch"}
"""Packages that commands need beyond the base install."""

COMMAND = [sys.executable, "-m", "compshift"]


def skip_without_extra(command):
    """Skip a test of a command that the base install does not run."""
    if command in EXTRAS:
        pytest.importorskip(EXTRAS[command])


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}


def run(*arguments, cwd, timeout=240):
    return subprocess.run(
        [*COMMAND, *arguments], cwd=cwd, env=environment(), capture_output=True, text=True, timeout=timeout, check=False
    )
