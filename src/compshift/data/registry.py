"""Every data set that has a name."""

from __future__ import annotations

import importlib

from compshift._errors import check_name
from compshift.data.benchmarks import Benchmark

MODULES = {
    "waterbirds": "waterbirds",
    "celeba": "celeba",
    "celeba5": "celeba5",
    "metashift": "metashift",
    "multinli": "multinli",
    "civilcomments": "civilcomments",
    "nico++": "nicopp",
    "gaussian2d": "gaussian2d",
    "additive-gaussians": "additive_gaussians",
    "digits-backgrounds": "digits_backgrounds",
    "penguins": "penguins",
}
"""Name → module of compshift.data that holds its ``BENCHMARK``."""

BENCHMARKS = tuple(MODULES)


def benchmark(name: str) -> Benchmark:
    """What is known of a data set: ``.load(root)`` reads it, ``.features()`` gives an embedded one as features.

    >>> data = benchmark("gaussian2d").features()
    >>> data.space.cardinalities, data.splits
    ((2, 2), ('train', 'val', 'test'))
    """
    check_name("data set", name, BENCHMARKS)
    found: Benchmark = importlib.import_module(f"compshift.data.{MODULES[name]}").BENCHMARK
    return found
