"""The paper's protocol: its methods, its printed tables, and the ranges from which hyper-parameters are drawn.

Source: Mahajan, Pezeshki, Arnal, Mitliagkas, Ahuja, Vincent, *Compositional Risk Minimization*, ICML 2025. The tables
are transcribed as printed, without corrections: accuracies are percentages, and columns that end in ``_se`` are their
standard errors over three seeds. ``docs/researchers.md`` lists printed numbers that contradict each other.
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
"""The paper's eight methods in the paper's order, with the names in its tables."""

FURTHER_METHODS = {"rwg": "RWG", "subg": "SUBG", "dfr": "DFR", "crm-resolved": "CRM resolved"}
"""Methods of this package that are absent from the paper's main table, with their names in tables."""

VARIANTS = {
    "extrapolated-uniform": "CRM",
    "extrapolated-empirical": "B* + Emp Prior",
    "learned-uniform": "B_hat + Unf Prior",
    "learned-empirical": "B_hat + Emp Prior",
}
"""CRM's predictors, with their names in the paper's ablation table."""

PAPER_TABLES = (
    "ablations",
    "celeba_multi_attribute",
    "dataset_statistics",
    "hyperparameters",
    "main_results",
    "scenarios",
    "standard_subpopulation",
)
"""Names of the transcribed tables; each is a CSV file in ``paper_tables``."""

SELECTIONS = ("balanced", "worst", "average")
"""Validation accuracies by which a draw can be chosen."""

MODES = ("features", "fine-tuning")
"""Modes of a benchmark: fit linear heads on frozen features, or train a whole network."""

FEATURE_STEPS = 600
"""Default maximum number of full-batch steps for methods that are trained on features."""

FRESH_STEPS = 1000
"""Default number of steps for a network that starts from random weights."""

RIDGE_RANGES = {"alpha": LogUniform(-4, 0)}
"""Range of the ridge penalty on features."""

FRESH_RANGES = {
    "learning_rate": LogUniform(-2.5, -1),
    "weight_decay": LogUniform(-6, -2),
    "batch_size": LogUniform(5, 7, base=2, whole=True),
}
"""Ranges for networks that start from random weights."""


def read_table(name: str) -> list[dict[str, str]]:
    """Return the rows of one of the paper's tables, as printed."""
    if name not in PAPER_TABLES:
        raise unknown_name("table", name, PAPER_TABLES)
    text = files("compshift.bench").joinpath("paper_tables", f"{name}.csv").read_text()
    return list(csv.DictReader(text.splitlines()))


def printed(method: str) -> str:
    """Return the name of a method in tables; methods of plugins are printed under their own name."""
    return {**PAPER_METHODS, **FURTHER_METHODS}.get(method, method)


@dataclass(frozen=True)
class Protocol:
    """Settings that are the same for all methods on a data set; tables never mix results of different protocols."""

    mode: str  # one of MODES
    steps: int  # maximum number of steps in a training run
    ranges: dict[str, LogUniform] = field(hash=False)  # ranges of the hyper-parameters shared by all methods
    select: str = "balanced"  # validation accuracy that chooses a draw and a checkpoint
    plan_seed: int = 0  # seed of the hyper-parameter draws
    backbone: str | None = None  # network to fine-tune
    balanced_classes: bool = False  # whether classes are sampled equally often
    strict: bool = False  # whether rows of other groups that contain the same sample as a dropped row are dropped too
    tolerance: float = 1e-3  # for early stopping of training on features
    solver_tolerance: float = 1e-4  # for convergence of convex fits

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise unknown_name("mode", self.mode, MODES)
        if self.select not in SELECTIONS:
            raise unknown_name("selection", self.select, SELECTIONS)
        check_count(self.steps, "steps")
        if self.plan_seed < 0:
            raise InputError(f"the seed of the plan is {self.plan_seed}: pass an integer ≥ 0")

    def draw(self, number: int, own: dict[str, LogUniform]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the hyper-parameters of a draw: those shared by all methods, and those of one method.

        ``own`` are the ranges of the latter. The shared values depend only on the plan's seed and the number of the
        draw, so they are the same for all methods.
        """
        rng = np.random.default_rng([self.plan_seed, number])
        common = {name: values.draw(rng) for name, values in self.ranges.items()}
        # the paper's ranges suit the paper's numbers of steps
        scaled = self.mode == "features" or self.steps not in (5000, 10_000)
        steps = self.steps if scaled else None
        return common, {name: values.draw(rng, steps) for name, values in own.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return the protocol as a dictionary that JSON can represent."""
        return asdict(self)


def feature_protocol(*, steps: int | None = None, **choices: Any) -> Protocol:
    """Return the protocol for features: linear heads with a ridge penalty whose strength is drawn at random."""
    return Protocol("features", FEATURE_STEPS if steps is None else steps, RIDGE_RANGES, **choices)


def tuning_protocol(
    dataset: str | None, kind: str, *, fresh: bool, steps: int | None = None, **choices: Any
) -> Protocol:
    """Return the protocol for fine-tuning, with the paper's ranges for the data set.

    Data sets that are not in the paper use the paper's ranges for Waterbirds (images) or MultiNLI (text). ``fresh``
    networks, which start from random weights, need larger learning rates and use ``FRESH_RANGES``.
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
