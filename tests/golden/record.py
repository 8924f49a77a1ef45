"""The recorded file: one .npz with an array for every name of every case."""

import warnings
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from tests.golden.cases import CASES, NEEDS

FILE = Path(__file__).parent / "golden.npz"


def compute(name):
    """Compute the arrays of a case, in one thread, so that sums are the same on any number of cores."""
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        if "torch" in NEEDS.get(name, ()):
            import torch

            before = torch.get_num_threads()
            torch.set_num_threads(1)
            try:
                found = CASES[name]()
            finally:
                torch.set_num_threads(before)
        else:
            found = CASES[name]()
    return {key: np.array(value) for key, value in found.items()}


def read():
    """Return the recorded arrays of every case."""
    recorded = {}
    with np.load(FILE) as stream:
        for path in stream.files:
            name, key = path.split("/", 1)
            recorded.setdefault(name, {})[key] = stream[path]
    return recorded


def write(path=FILE):
    """Compute and write every case."""
    arrays = {f"{name}/{key}": value for name in CASES for key, value in compute(name).items()}
    np.savez_compressed(path, **arrays)
