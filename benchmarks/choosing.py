"""CPU time of CRMClassifierCV in plain fits, and how often its choice differs from that of an exhaustive search.

    python benchmarks/choosing.py FEATURES [DRAWS]

Draws are those of unseen_protocol.py, eight alphas are tried, and a plain fit is ``CRMClassifier`` with the chosen
alpha. The exhaustive search fits every fold to a tolerance of 1e-6. Offsets count as different from ``OFFSET`` nats on.
Set OMP_NUM_THREADS=1: idle threads of BLAS spin, which counts as CPU time.
"""

import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from unseen_protocol import feature_sets, real_draw

from compshift import CRMClassifier, CRMClassifierCV
from compshift.crm import held_out

ALPHAS = np.geomspace(1e-3, 3, 8)
OFFSET = 0.05
NAMES = ("pacs", "amazon4")
REPEATS = 3


def main() -> None:
    """Print one row per feature file."""
    warnings.simplefilter("ignore")
    folder, n_draws = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 20
    print(f"{'file':28} {'plain fits, median':>20} {'min to max':>14} {'other alpha or kind':>21} {'other offset':>13}")
    for path in feature_sets(folder):
        if path.name.startswith(NAMES):
            print(row(path, n_draws), flush=True)


def row(path: Path, n_draws: int) -> str:
    """Compare the search with plain fits and with the exhaustive search in every draw of a file."""
    ratios, kinds, offsets = [], 0, 0
    for seed in range(n_draws):
        draw = real_draw(path, seed)
        found, took = fitted(draw, CRMClassifierCV(ALPHAS), 1)
        _, plain = fitted(draw, CRMClassifier(found.alpha_), REPEATS)
        ratios.append(took / plain)
        with exhaustive():
            best = draw.fit(CRMClassifierCV(ALPHAS))
        kinds += kind(found) != kind(best)
        offsets += abs(found.unseen_offset_ - best.unseen_offset_) >= OFFSET
    spread = f"{min(ratios):.1f} to {max(ratios):.1f}"
    differ = f"{kinds} of {n_draws}"
    return f"{path.stem:28} {np.median(ratios):>20.1f} {spread:>14} {differ:>21} {f'{offsets} of {n_draws}':>13}"


def fitted(draw, estimator, repeats: int):
    """Fit a draw; return the estimator and the median CPU seconds."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        draw.fit(estimator)
        seconds.append(time.process_time() - start)
    return estimator, float(np.median(seconds))


def kind(clf: CRMClassifierCV) -> tuple:
    """What was chosen, but for the offset."""
    return clf.alpha_, clf.anchor_, clf.cross_fit_, clf.selected_bias_


@contextmanager
def exhaustive() -> Iterator[None]:
    """Fit folds to a tight tolerance."""
    before = held_out.FOLD_TOL
    held_out.FOLD_TOL = 1e-6
    try:
        yield
    finally:
        held_out.FOLD_TOL = before


if __name__ == "__main__":
    main()
