"""Job for one or more processes: trains methods whose loss depends on the whole batch, and extrapolates a bias.

python -m tests.training.job FOLDER
torchrun --nproc-per-node 2 -m tests.training.job FOLDER
"""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from compshift.methods.registry import make_method
from compshift.nn.processes import current_processes
from compshift.training import Settings, train
from tests.nn.heads import noisy_case
from tests.training.small_runs import Wobbly, gaussians

METHODS = ("erm", "groupdro", "vrex", "irm", "crm", "lc", "crm-resolved")
SETTINGS = Settings(steps=20, batch_size=33, eval_every=10, learning_rate=0.05, freeze_batchnorm=True, refresh_rows=50)


def main(folder):
    data = gaussians()
    for name in METHODS:
        method = make_method(name, {"anneal": 10, "penalty": 2} if name in ("irm", "vrex") else {})
        train(data, method, Wobbly(dropout=0.0), SETTINGS, folder=folder / name, device="cpu")
    processes = current_processes()
    backbone, head, X = noisy_case()
    result = head.extrapolate(X[processes.share(len(X))].split(5), backbone, processes=processes)
    if processes.rank == 0:
        torch.save(tuple(result), folder / "bias.pt")
        (folder / "size").write_text(str(processes.size))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
