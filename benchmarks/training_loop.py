"""A step of the training loop on features, its reading included, against the bare step of the same head.

The bare step has its batches ready, as scaled tensors: loss, gradient, optimiser, and nothing else. The two take turns
of some steps each within one run, so that whatever else the machine does slows both. Start-up, evaluation and
checkpoints of the loop come before the first or after the last step, and are not in its time.
"""

import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from measure import Row
from torch.nn.functional import cross_entropy

from compshift import GroupSpace
from compshift.data.dataset import GroupedDataset
from compshift.methods.registry import make_method
from compshift.training import Settings, train
from compshift.training.batches import TrainingData
from compshift.training.optimiser import make_optimiser
from compshift.training.progress import Listener

ROWS, FEATURES, CARDINALITIES = 20_000, 256, (30, 6)
BATCH_SIZE, TURN, TURNS = 256, 50, 60
TARGET = 1.3


def rows() -> Iterator[Row]:
    """The loop over the bare step, for CRM's head and for a plain one, whose step is so short that any call shows."""
    data = _data()
    shape = " × ".join(map(str, CARDINALITIES))
    for method, head in (("crm", "AdditiveEnergyHead and its loss"), ("erm", "linear head and cross-entropy")):
        turns = _Turns(_bare(data, method))
        train(data, method, "linear", _settings(), device="cpu", listener=turns)
        ratio, low, high = np.quantile(np.divide(turns.loop, turns.bare), [0.5, 0.25, 0.75])
        loop, bare = (1e6 * statistics.median(times) / TURN for times in (turns.loop, turns.bare))
        yield Row(
            f"training loop on features, {method}, bs {BATCH_SIZE}, p = {FEATURES}, {shape} groups: a step",
            f"{head}: forward, backward, step ({bare:.0f} µs)",
            f"{ratio:.2f}× ({loop:.0f} µs; half of the turns {low:.2f} to {high:.2f})",
            f"{TARGET}×",
            bool(ratio <= TARGET),
            ""
            if ratio <= TARGET
            else f"{ratio / TARGET - 1:.0%} over it: drawing, gathering and scaling rows, the seeds of the step and "
            f"the mean over processes add {loop - bare:.0f} µs, however short the head's own step is",
        )


def _data() -> GroupedDataset:
    """Additive means in unit noise, every row a training row."""
    rng = np.random.default_rng(0)
    space = GroupSpace.from_cardinalities(CARDINALITIES)
    codes = space.codes(rng.integers(space.n_groups, size=ROWS))
    X = space.one_hot(codes) @ rng.normal(size=(space.width, FEATURES)) * 0.35 + rng.normal(size=(ROWS, FEATURES))
    return GroupedDataset(X.astype(np.float32), space, codes)


def _settings() -> Settings:
    steps = TURN * (TURNS + 1)
    settings = Settings(steps=steps, batch_size=BATCH_SIZE, eval_every=steps)
    return settings.resolved("features", pretrained=False)


class _Turns(Listener):
    """Makes bare steps whenever the loop has made as many; times both, but for the first turn."""

    def __init__(self, bare_step: Callable[[int], None]) -> None:
        self.bare_step = bare_step
        self.loop: list[float] = []
        self.bare: list[float] = []
        self.start = 0.0

    def stepped(self, step: int, loss: float) -> None:  # noqa: ARG002 - what a listener is told
        if step % TURN:
            return
        middle = time.perf_counter()
        for number in range(step - TURN, step):
            self.bare_step(number)
        end = time.perf_counter()
        if step > TURN:
            self.loop.append(middle - self.start)
            self.bare.append(end - middle)
        self.start = end


def _bare(data: GroupedDataset, method: str) -> Callable[[int], None]:
    """A step on one of the batches of the first pass, which are there already."""
    settings, parts, chosen = _settings(), TrainingData.of(data), make_method(method)
    sampler = parts.sampler(chosen, settings)
    head = chosen.head(FEATURES, parts.task(sampler))
    optimiser = make_optimiser(head, settings)
    X, codes = torch.from_numpy(data.X), torch.from_numpy(data.codes)
    X = (X - X.mean(dim=0)) / X.std()
    index = [torch.from_numpy(sampler.batch(step)) for step in range(ROWS // BATCH_SIZE)]
    batches = [(X[rows], codes[rows] if method == "crm" else codes[rows, 0]) for rows in index]

    def step(number: int) -> None:
        features, labels = batches[number % len(batches)]
        loss = head.loss(features, labels) if method == "crm" else cross_entropy(head(features), labels)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()

    return step
