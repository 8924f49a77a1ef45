"""The paper's protocol: its methods, its printed tables, and the ranges that hyper-parameters are drawn from.

Source: Mahajan, Pezeshki, Arnal, Mitliagkas, Ahuja, Vincent, *Compositional Risk Minimization*, ICML 2025. The tables
are transcribed, not corrected or recomputed: accuracies are percentages, ``_se`` their standard errors over three
seeds. ``docs/researchers.md`` lists the numbers that contradict each other.
"""

from __future__ import annotations

import csv
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from typing import Any

import numpy as np

from compshift._checks import check_count
from compshift._errors import InputError, unknown_name
from compshift.methods.sampling import LogUniform

PAPER_METHODS = {
    "erm": "ERM",
    "groupdro": "GroupDRO",
    "lc": "LC",
    "sla": "sLA",
    "irm": "IRM",
    "vrex": "VREx",
    "mixup": "Mixup",
    "crm": "CRM",
}
"""The paper's eight methods in its order, with the names it prints."""

FURTHER_METHODS = {"rwg": "RWG", "subg": "SUBG", "dfr": "DFR", "crm-resolved": "CRM resolved"}
"""Methods of this package that the paper's main table lacks, with the names that tables print."""

VARIANTS = {
    "extrapolated-uniform": "CRM",
    "extrapolated-empirical": "B* + Emp Prior",
    "learned-uniform": "B_hat + Unf Prior",
    "learned-empirical": "B_hat + Emp Prior",
}
"""CRM's predictors, with the names of the paper's ablation."""

PAPER_TABLES = (
    "ablations",
    "celeba_multi_attribute",
    "dataset_statistics",
    "hyperparameters",
    "main_results",
    "scenarios",
    "standard_subpopulation",
)
"""Names of the transcribed tables, one CSV file each in ``paper_tables``."""

SELECTIONS = ("balanced", "worst", "average")
"""Validation accuracies that can choose a draw."""

MODES = ("features", "fine-tuning")
"""Linear heads on frozen features, or training of a whole network."""

FEATURE_STEPS = 600
"""Largest number of full-batch steps for methods that are trained on features."""

FEATURE_TOLERANCE = 1e-3
"""Largest gradient entry at which training on features stops early."""

SOLVER_TOLERANCE = 1e-4
"""Largest gradient entry at which a convex fit has converged."""

FRESH_STEPS = 1000
"""Steps of a network that starts from random weights."""

PAPER_STEPS = (5000, 10_000)
"""Lengths of the paper's runs."""

RIDGE_RANGES = {"alpha": LogUniform(-4, 0)}
FRESH_RANGES = {
    "learning_rate": LogUniform(-2.5, -1),
    "weight_decay": LogUniform(-6, -2),
    "batch_size": LogUniform(5, 7, base=2, whole=True),
}


def read_table(name: str) -> list[dict[str, str]]:
    """Return the rows of one of the paper's tables, as printed."""
    if name not in PAPER_TABLES:
        raise unknown_name("table", name, PAPER_TABLES)
    text = files("compshift.bench").joinpath("paper_tables", f"{name}.csv").read_text()
    return list(csv.DictReader(text.splitlines()))


def printed(method: str) -> str:
    """Return the name that tables print for a method; a plugin's method keeps its own."""
    return {**PAPER_METHODS, **FURTHER_METHODS}.get(method, method)


@dataclass(frozen=True)
class Protocol:
    """How every method is run on a data set. Results under different protocols are never mixed."""

    mode: str
    steps: int
    ranges: dict[str, LogUniform] = field(hash=False)  # hyper-parameters that all methods share
    select: str = "balanced"  # validation accuracy that chooses a draw and a checkpoint
    plan_seed: int = 0
    backbone: str | None = None  # network to fine-tune
    balanced_classes: bool = False  # sample classes equally often
    strict: bool = False  # also drop rows of other groups that show the same sample as a dropped one
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
        """Return the hyper-parameters of a draw: those that all methods share, and the method's own.

        They depend on the plan's seed and the number of the draw alone, so all methods get the same shared values.
        """
        rng = np.random.default_rng([self.plan_seed, number])
        common = {name: values.draw(rng) for name, values in self.ranges.items()}
        scaled = self.mode == "features" or self.steps not in PAPER_STEPS  # the paper's ranges fit its own lengths
        steps = self.steps if scaled else None
        return common, {name: values.draw(rng, steps) for name, values in own.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return the protocol as JSON can hold it."""
        return asdict(self)


def feature_protocol(*, steps: int | None = None, **choices: Any) -> Protocol:
    """Return the protocol on features: linear heads with a ridge penalty of random strength."""
    return Protocol("features", FEATURE_STEPS if steps is None else steps, RIDGE_RANGES, **choices)


def tuning_protocol(
    dataset: str | None, kind: str, *, fresh: bool, steps: int | None = None, **choices: Any
) -> Protocol:
    """Return the protocol of fine-tuning, with the paper's ranges for the data set or for another of the same kind.

    The ranges of pretrained networks are too small for random weights, so ``fresh`` networks have ranges of their own.
    """
    if fresh:
        return Protocol("fine-tuning", FRESH_STEPS if steps is None else steps, FRESH_RANGES, **choices)
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
