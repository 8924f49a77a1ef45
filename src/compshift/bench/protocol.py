"""The paper's printed numbers.

Source: Mahajan, Pezeshki, Arnal, Mitliagkas, Ahuja, Vincent, *Compositional Risk Minimization*, ICML 2025; transcribed
from its tables, nothing corrected or recomputed. Accuracies are percentages, ``_se`` their standard errors over three
seeds. What does not fit together in them is listed in ``docs/researchers.md``.

How the methods are run on a data set: the same for all of them.
"""

from __future__ import annotations

import csv
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from typing import Any

import numpy as np

from compshift._checks import check_count
from compshift._errors import InputError, unknown_name
from compshift.methods.base import LogUniform

TABLES = (
    "ablations",
    "celeba_multi_attribute",
    "dataset_statistics",
    "hyperparameters",
    "main_results",
    "scenarios",
    "standard_subpopulation",
)


def read_table(name: str) -> list[dict[str, str]]:
    """The rows of one of the paper's tables, as printed."""
    if name not in TABLES:
        raise unknown_name("table", name, TABLES)
    text = files("compshift.bench").joinpath("paper_tables", f"{name}.csv").read_text()
    return list(csv.DictReader(text.splitlines()))


SELECTIONS = ("balanced", "worst", "average")
"""Validation accuracies that can choose a draw."""

MODES = ("features", "fine-tuning")

FEATURE_STEPS = 600
"""Full-batch steps of methods that cannot be solved, on features, at most."""

FEATURE_TOLERANCE = 1e-3
"""Largest entry of the gradient at which those stop."""

SOLVER_TOLERANCE = 1e-4
"""Largest entry of the gradient at which a fit that is solved has converged."""

FRESH_STEPS = 1000
"""Of networks that start from random weights."""

PAPER_STEPS = (5000, 10_000)

RIDGE = {"alpha": LogUniform(-4, 0)}
FRESH = {
    "learning_rate": LogUniform(-2.5, -1),
    "weight_decay": LogUniform(-6, -2),
    "batch_size": LogUniform(5, 7, base=2, whole=True),
}


@dataclass(frozen=True)
class Protocol:
    """Mode, length of a run and ranges. Results under one protocol are not mixed with those under another."""

    mode: str
    steps: int
    ranges: dict[str, LogUniform] = field(hash=False)  # of what every method needs
    select: str = "balanced"  # the validation accuracy that chooses a draw, and a checkpoint
    plan_seed: int = 0
    backbone: str | None = None  # of fine-tuning
    balanced_classes: bool = False  # whether batches have all classes equally often
    strict: bool = False  # whether rows that show the same as a dropped one go too
    tolerance: float = FEATURE_TOLERANCE
    solver_tolerance: float = SOLVER_TOLERANCE

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise unknown_name("mode", self.mode, MODES)
        if self.select not in SELECTIONS:
            raise unknown_name("selection", self.select, SELECTIONS)
        check_count(self.steps, "steps")
        if self.plan_seed < 0:
            raise InputError(f"the seed of the plan is {self.plan_seed}: pass a whole number of 0 or more")

    def draw(self, number: int, own: dict[str, LogUniform]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Draw ``number``: what every method gets alike, and the method's own hyper-parameters.

        It depends on the seed of the plan and its number alone, whatever else was drawn or run.
        """
        rng = np.random.default_rng([self.plan_seed, number])
        common = {name: spread.draw(rng) for name, spread in self.ranges.items()}
        scaled = self.mode == "features" or self.steps not in PAPER_STEPS  # the paper's ranges are for its own lengths
        steps = self.steps if scaled else None
        return common, {name: spread.draw(rng, steps) for name, spread in own.items()}

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def feature_protocol(*, steps: int | None = None, **choices: Any) -> Protocol:
    """On features: a ridge penalty of random strength."""
    return Protocol("features", FEATURE_STEPS if steps is None else steps, RIDGE, **choices)


def tuning_protocol(
    dataset: str | None, kind: str, *, fresh: bool, steps: int | None = None, **choices: Any
) -> Protocol:
    """Fine-tuning, with the paper's ranges: those of its data set, or of one whose samples are of the same kind.

    The ranges of pretrained networks would leave one that starts from random weights where it is, so ``fresh`` ones
    have others.
    """
    if fresh:
        return Protocol("fine-tuning", FRESH_STEPS if steps is None else steps, FRESH, **choices)
    rows = {row["dataset"]: row for row in read_table("hyperparameters")}
    alike = {"images": "waterbirds", "text": "multinli"}
    row = rows.get("celeba" if dataset == "celeba5" else str(dataset)) or rows[alike[kind]]
    ranges = {
        "learning_rate": LogUniform(float(row["lr_log10_low"]), float(row["lr_log10_high"])),
        "weight_decay": LogUniform(float(row["weight_decay_log10_low"]), float(row["weight_decay_log10_high"])),
        "batch_size": LogUniform(
            float(row["batch_size_log2_low"]), float(row["batch_size_log2_high"]), base=2, whole=True
        ),
    }
    return Protocol("fine-tuning", int(row["epochs"]) if steps is None else steps, ranges, **choices)
