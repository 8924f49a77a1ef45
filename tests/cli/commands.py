"""A command in a process of its own."""

import os
import subprocess
import sys

COMMAND = [sys.executable, "-m", "compshift"]


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}


def run(*arguments, cwd, timeout=240):
    return subprocess.run(
        [*COMMAND, *arguments], cwd=cwd, env=environment(), capture_output=True, text=True, timeout=timeout, check=False
    )
