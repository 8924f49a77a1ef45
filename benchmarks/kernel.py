"""The matrix-product form of B* against the tensor with one number per sample and group, in float32.

    python benchmarks/kernel.py ROWS FIRST SECOND ours|tensor

prints how much memory one way takes beyond its inputs, which ``rows`` asks in processes of their own.
"""

import math
import subprocess
import sys
from collections.abc import Iterator
from functools import reduce
from pathlib import Path

import numpy as np
from measure import Row, peak_megabytes, seconds_in_turns

from compshift import GroupSpace
from compshift.core.bias import BiasSums, extrapolated_bias, merge_sums, rows_worth_merging, sums_over
from compshift.core.energy import GroupTable, log_evidence
from compshift.crm.blocks import over_blocks

CASES = ((64_800, 30, 30, 40.0, 40.0), (62_700, 60, 6, 15.0, None))
"""Samples, values of the two attributes, how many times faster it should be, and how many megabytes it may take."""


def rows() -> Iterator[Row]:
    """Time of B* and its effective sample size against that of B* alone by the tensor, and the memory of both."""
    for case in CASES:
        yield from _case(*case)


def _case(n: int, first: int, second: int, faster: float, megabytes: float | None) -> Iterator[Row]:
    table, energies, evidence = problem(n, first, second)

    def ours() -> np.ndarray:
        return bias_of(table, energies, evidence)

    by_sample = np.ascontiguousarray(energies)  # as torch would have them
    theirs, own = seconds_in_turns([lambda: tensor(by_sample, evidence, first), ours], 25)
    ratio = theirs / own
    name = f"B*, {first} × {second} groups, n = {n}"
    against, why = f"n×{first}×{second} tensor in torch", "two threads do less than twice the work of one"
    yield Row(name, against, f"{ratio:.0f}× faster", f"{faster:.0f}×", ratio > faster, why)
    difference = float(np.abs(ours() - _in_double(table, energies, evidence)).max())
    yield Row("the same: largest error", "float64", f"{difference:.0e}", "1e-5", difference < 1e-5)
    if megabytes is not None:
        extra, their_extra = (_memory(n, first, second, way) for way in ("ours", "tensor"))
        figures = f"{their_extra:.0f} MB", f"{extra:.0f} MB", f"{megabytes:.0f} MB"
        yield Row("the same: extra memory", *figures, extra < megabytes)


def problem(n: int, first: int, second: int) -> tuple[GroupTable, np.ndarray, np.ndarray]:
    """Random energies, in memory as a fit has them, with their evidence under a uniform prior."""
    space = GroupSpace.from_cardinalities([first, second])
    table = GroupTable.of(space, space.codes(np.arange(space.n_groups)))
    energies = (np.random.default_rng(0).normal(size=(first + second, n)) * 3).astype(np.float32).T
    log_score = np.full(space.n_groups, -math.log(space.n_groups), dtype=np.float32)
    return table, energies, log_evidence(energies, table, log_score)


def bias_of(table: GroupTable, energies: np.ndarray, evidence: np.ndarray) -> np.ndarray:
    """B* as a fit computes it."""
    weight = np.ones(len(energies), dtype=energies.dtype)

    def of_rows(rows: slice) -> BiasSums:
        return sums_over(table, energies[rows], evidence[rows], weight[rows])

    sums = reduce(merge_sums, over_blocks(of_rows, len(energies), rows_worth_merging(table)))
    return extrapolated_bias(table, sums).bias


def tensor(energies: np.ndarray, evidence: np.ndarray, first: int) -> np.ndarray:
    """B* by materialising every weight."""
    import torch

    values, log_total = torch.from_numpy(energies), torch.from_numpy(evidence)
    logits = -(values[:, :first, None] + values[:, None, first:]) - log_total[:, None, None]
    return torch.log(torch.exp(logits).mean(dim=0)).ravel().numpy()


def _in_double(table: GroupTable, energies: np.ndarray, evidence: np.ndarray) -> np.ndarray:
    return bias_of(table, energies.astype(np.float64), evidence.astype(np.float64))


def _memory(n: int, first: int, second: int, way: str) -> float:
    """Megabytes that a fresh process needs beyond its inputs."""
    command = [sys.executable, __file__, *map(str, (n, first, second)), way]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Print the growth of the largest resident size."""
    n, first, second = map(int, sys.argv[1:4])
    table, energies, evidence = problem(n, first, second)
    small = problem(100, first, second)
    tensor(*small[1:], first)  # libraries are loaded before the measurement
    bias_of(*small)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = peak_megabytes()
    if sys.argv[4] == "ours":
        bias_of(table, energies, evidence)
    else:
        tensor(energies, evidence, first)
    print(peak_megabytes() - before)


if __name__ == "__main__":
    main()
