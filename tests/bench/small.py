"""A small data set, and an executor that runs jobs in this process."""

from concurrent.futures import Future
from pathlib import Path

import numpy as np

from compshift.bench.plan import make_plan
from compshift.bench.runner import Runner
from compshift.bench.sources import file_source

GROUPS = [(y, a) for y in range(2) for a in range(3)]


def write_birds(path: Path, *, scramble_test=False, seed=0) -> Path:
    """Write a feature file with 2 × 3 groups, each in every split; both attributes shift the features."""
    rng = np.random.default_rng(seed)
    codes = np.repeat(GROUPS, [60, 20, 15, 10, 40, 50], axis=0)
    X = rng.normal(size=(len(codes), 4)) + 1.5 * codes @ rng.normal(size=(2, 4))
    split = np.arange(len(codes)) % 3
    if scramble_test:
        test = np.flatnonzero(split == 2)
        codes[test] = codes[rng.permutation(test)]
    values = '{"bird": ["land", "water"], "place": ["forest", "sea", "sand"]}'
    np.savez(path, X=X, Z=codes, split=split, attribute_names=["bird", "place"], value_names=values)
    return path


def birds(path: Path, **options):
    """Write the feature file, and return it as a source."""
    return file_source(str(write_birds(path, **options)), None, None, None, 0)


class Inline:
    """Executor that runs each job immediately, in this process."""

    devices = ()

    def __init__(self, slots=1):
        self.slots = slots
        self.submitted = []

    def submit(self, function, argument):
        if hasattr(argument, "job"):  # workers are also started, by a call without a job
            self.submitted.append(argument.job)
        future = Future()
        future.set_result(function(argument))
        return future


def run(folder: Path, sources, methods=("erm", "crm"), drops=("each",), **options):
    """Run a whole plan in this process; return its store, its outcome and the jobs that were run."""
    plan = make_plan(sources, methods, drops, **{"draws": 2, "seeds": 2, "steps": 20, **options})
    store, executor = plan.store(folder), Inline()
    outcome = Runner(plan.units, store, executor, plugins=plan.plugins).run()
    return store, outcome, executor.submitted
