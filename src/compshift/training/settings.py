"""Everything about a training run that is not the data, the method or the backbone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from compshift._checks import MAX_FACTOR, check_count, check_flag, check_positive, check_whole
from compshift._errors import InputError, check_name, unknown_name

OPTIMISERS = ("auto", "sgd", "adamw")
SCHEDULES = ("auto", "constant", "linear")
METRICS = ("balanced", "worst", "average")
MAX_BATCH = 1 << 24
"""Samples that are drawn at a time, at most."""

PRECISIONS = ("auto", "float32", "bfloat16", "float16")
CHOICES = {"optimiser": OPTIMISERS, "schedule": SCHEDULES, "metric": METRICS, "precision": PRECISIONS}

LEARNING_RATES = {"sgd": 1e-3, "adamw": 2e-5}
"""For pretrained backbones."""

FRESH_LEARNING_RATE = {"sgd": 0.05, "adamw": 1e-3}
"""For networks that start from random weights, and for heads alone."""

WARM_UP = 0.1
"""Share of the steps over which a linear schedule rises."""


@dataclass(frozen=True)
class Settings:
    """Settings of the loop. What is ``"auto"`` or None is filled in for the backbone by ``resolved``.

    The paper's protocol: stochastic gradients with momentum for images, AdamW with a rising and then falling rate for
    texts, one rate for backbone and head, weight decay on weight matrices only, the checkpoint of the best balanced
    validation accuracy.
    """

    steps: int = 1000
    batch_size: int = 64  # over all processes
    optimiser: str = "auto"
    learning_rate: float | None = None
    weight_decay: float = 1e-4
    momentum: float = 0.9  # of stochastic gradients
    schedule: str = "auto"  # of the learning rate: constant, or linear warm-up and decay to 0
    warmup: int | None = None  # steps
    clip: float = 0.0  # largest norm of the gradient; 0: any
    tolerance: float = 0.0  # largest entry of a batch's gradient, decay included, at which training stops; 0: never
    eval_every: int = 100  # steps between evaluations, which are also what a kill can cost
    metric: str = "balanced"  # of validation, that decides which checkpoint is kept
    patience: int = 0  # evaluations without a better one after which training stops; 0: never
    balanced_classes: bool = False  # whether batches have all classes equally often
    freeze_batchnorm: bool = False  # whether batch statistics stay those of the pretrained network
    precision: str = "auto"  # of the forward pass; auto: bfloat16 on a CUDA device that has it
    refresh_rows: int = 5000  # training rows that CRM's bias is computed from at evaluations; all of them at the end
    seed: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if hasattr(value, "item") and np.ndim(value) == 0:  # NumPy's numbers, which JSON does not know
                object.__setattr__(self, field.name, value.item())
        for name in ("steps", "batch_size", "eval_every", "refresh_rows"):
            check_count(getattr(self, name), name)
        if self.batch_size > MAX_BATCH:
            raise InputError(f"batch_size is {self.batch_size}: pass at most {MAX_BATCH}, or as many as there are rows")
        for name in ("clip", "tolerance", "momentum"):
            self._check_number(name, math.inf, allow_zero=True)
        self._check_number("weight_decay", MAX_FACTOR, allow_zero=True)
        if self.learning_rate is not None:
            self._check_number("learning_rate", MAX_FACTOR)
        if self.momentum >= 1:
            raise InputError(f"momentum is {self.momentum}: pass a number below 1")
        for name, end in (("patience", math.inf), ("seed", 2**63)):
            if check_whole(getattr(self, name), name) >= end:
                raise InputError(f"{name} is {getattr(self, name)!r}: pass a whole number below 2**63")
        if self.warmup is not None:
            check_whole(self.warmup, "warmup", self.steps)
        for name in ("balanced_classes", "freeze_batchnorm"):
            check_flag(getattr(self, name), name)
        for name, known in CHOICES.items():
            check_name(name, getattr(self, name), known)

    def _check_number(self, name: str, most: float, *, allow_zero: bool = False) -> None:
        """Check a number, and keep one that JSON does not know, such as a Decimal, as a float."""
        value = getattr(self, name)
        number = check_positive(value, name, allow_zero=allow_zero, most=most)
        if not isinstance(value, int | float):
            object.__setattr__(self, name, number)

    def resolved(self, kind: str, *, pretrained: bool) -> Settings:
        """With everything decided, for a backbone that takes ``kind``."""
        optimiser = ("adamw" if kind == "text" else "sgd") if self.optimiser == "auto" else self.optimiser
        schedule = ("linear" if optimiser == "adamw" else "constant") if self.schedule == "auto" else self.schedule
        rates = LEARNING_RATES if pretrained else FRESH_LEARNING_RATE
        warmup = (round(WARM_UP * self.steps) if schedule == "linear" else 0) if self.warmup is None else self.warmup
        return replace(
            self,
            optimiser=optimiser,
            schedule=schedule,
            learning_rate=rates[optimiser] if self.learning_rate is None else self.learning_rate,
            warmup=warmup,
        )

    def rate(self, step: int) -> float:
        """The learning rate of a step, a function of the step alone."""
        assert self.learning_rate is not None
        assert self.warmup is not None
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        if self.schedule == "constant":
            return self.learning_rate
        return self.learning_rate * (self.steps - step) / max(1, self.steps - self.warmup)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Settings:
        """What ``to_dict`` gave; unknown names are refused."""
        known = [field.name for field in fields(cls)]
        if not isinstance(content, Mapping):
            raise InputError(f"the settings are {content!r}: pass a mapping from names to values")
        for name in content:
            if name not in known:
                raise unknown_name("setting", name, known)
        return cls(**content)
