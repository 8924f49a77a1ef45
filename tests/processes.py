"""Jobs of two processes under torchrun."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

LOOPBACK = {} if sys.platform != "linux" else {"GLOO_SOCKET_IFNAME": "lo"}
"""Makes the processes connect over the loopback interface; by default they look up the name of the machine."""

LAUNCH = ("-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2")


def torchrun(*arguments, cwd=ROOT):
    """Run a script, or ``-m`` and a module, in two processes; fail with their errors; return the result.

    There is no time limit, because a loaded machine may take minutes to import PyTorch three times.
    """
    environment = {**os.environ, **LOOPBACK, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *LAUNCH, *map(str, arguments)]
    result = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"torchrun exited with {result.returncode}:\n{result.stderr[-5000:]}"
    return result
