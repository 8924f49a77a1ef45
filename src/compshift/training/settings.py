"""Settings of a training run other than its data, method and backbone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from compshift._checks import MAX_FACTOR, check_count, check_flag, check_positive, check_whole
from compshift._errors import InputError, check_name, unknown_name

OPTIMISERS = ("auto", "sgd", "adamw")
SCHEDULES = ("auto", "constant", "linear", "sawtooth")
METRICS = ("balanced", "worst", "average")
PRECISIONS = ("auto", "float32", "bfloat16", "float16")
DECAYS = ("matrices", "all", "vectors")
CHOICES = {
    "optimiser": OPTIMISERS,
    "schedule": SCHEDULES,
    "metric": METRICS,
    "precision": PRECISIONS,
    "decay": DECAYS,
}
"""Accepted values of each setting whose value is a name."""

MAX_BATCH = 1 << 24
"""Maximum batch size."""

LEARNING_RATES = {"sgd": 1e-3, "adamw": 2e-5}
"""Default learning rate of pretrained backbones, by optimiser."""

FRESH_LEARNING_RATES = {"sgd": 0.05, "adamw": 1e-3}
"""Default learning rate of backbones that are not pretrained, by optimiser."""

LATER_SETTINGS = ("decay", "predictor")
"""Settings that older run folders of format 1 lack. A run's identity leaves them out at their defaults."""


@dataclass(frozen=True)
class Settings:
    """Settings of a training run. ``resolved`` replaces ``"auto"`` and None by values that suit the backbone.

    The defaults are stochastic gradient descent with momentum for images, AdamW with linear warm-up and decay for
    texts, one learning rate for backbone and head, weight decay on weight matrices only, and the checkpoint with the
    best balanced validation accuracy. ``compshift train --protocol paper`` uses the paper's settings instead.

    Parameters
    ----------
    steps : int, default=1000
        Number of optimiser steps.
    batch_size : int, default=64
        Number of samples per batch, over all processes.
    optimiser : {"auto", "sgd", "adamw"}, default="auto"
        "auto" is AdamW for texts and stochastic gradient descent otherwise.
    learning_rate : float, optional
        Learning rate, after warm-up. Default: depends on the optimiser, and on whether the backbone is pretrained.
    weight_decay : float, default=1e-4
        Weight decay of the parameters that ``decay`` names.
    momentum : float, default=0.9
        Momentum of stochastic gradient descent.
    schedule : {"auto", "constant", "linear", "sawtooth"}, default="auto"
        Learning rate over the steps: constant, or linear warm-up and then linear decay to 0. "auto" is "linear" for
        AdamW and "constant" otherwise. "sawtooth" is the schedule of the paper's authors for texts: the rate falls to 0
        during the warm-up, starts again at its full value, and then falls by 1/``steps`` of this value in every step.
    warmup : int, optional
        Number of steps over which the learning rate rises. Default: a tenth of the steps of a linear schedule, else 0.
    clip : float, default=0.0
        Maximum norm of the gradient; 0 turns clipping off.
    tolerance : float, default=0.0
        Training stops once the largest absolute entry of a batch's gradient, weight decay included, is at most this
        value; 0 turns this off.
    eval_every : int, default=100
        Number of steps between evaluations. Each writes a checkpoint, so a killed run loses at most this many steps.
    metric : {"balanced", "worst", "average"}, default="balanced"
        Validation accuracy by which the best checkpoint is selected.
    patience : int, default=0
        Training stops after this many evaluations without improvement; 0 turns this off.
    balanced_classes : bool, default=False
        Whether to draw all classes equally often; ignored by methods that choose themselves how rows are drawn.
    freeze_batchnorm : bool, default=False
        Whether batch normalisation keeps the statistics of the pretrained network.
    precision : {"auto", "float32", "bfloat16", "float16"}, default="auto"
        Precision of the forward pass; "auto" is bfloat16 on a CUDA device that supports it, else float32.
    refresh_rows : int, default=5000
        Number of training rows from which CRM's bias is computed at evaluations; the final bias uses all rows.
    seed : int, default=0
        Seed of initial weights, batches and dropout.
    decay : {"matrices", "all", "vectors"}, default="matrices"
        Parameters that weight decay applies to: weight matrices and kernels, all parameters, or only biases and the
        parameters of normalisation layers.
    predictor : str, default=""
        Name of the method's predictor that selects the checkpoint, such as ``"learned-uniform"`` of CRM; a method
        without a predictor of that name uses its first one.

    Raises
    ------
    InputError
        If a value is out of range.

    Examples
    --------
    >>> settings = Settings(steps=200).resolved("images", pretrained=True)
    >>> settings.optimiser, settings.learning_rate, settings.schedule
    ('sgd', 0.001, 'constant')
    """

    steps: int = 1000
    batch_size: int = 64
    optimiser: str = "auto"
    learning_rate: float | None = None
    weight_decay: float = 1e-4
    momentum: float = 0.9
    schedule: str = "auto"
    warmup: int | None = None
    clip: float = 0.0
    tolerance: float = 0.0
    eval_every: int = 100
    metric: str = "balanced"
    patience: int = 0
    balanced_classes: bool = False
    freeze_batchnorm: bool = False
    precision: str = "auto"
    refresh_rows: int = 5000
    seed: int = 0
    decay: str = "matrices"
    predictor: str = ""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if hasattr(value, "item") and np.ndim(value) == 0:  # NumPy numbers, which JSON cannot hold
                object.__setattr__(self, field.name, value.item())
        for name in ("steps", "batch_size", "eval_every", "refresh_rows"):
            check_count(getattr(self, name), name)
        if self.batch_size > MAX_BATCH:
            raise InputError(f"batch_size is {self.batch_size}: pass at most {MAX_BATCH}")
        for name in ("clip", "tolerance", "momentum"):
            self._check_number(name, math.inf, allow_zero=True)
        self._check_number("weight_decay", MAX_FACTOR, allow_zero=True)
        if self.learning_rate is not None:
            self._check_number("learning_rate", MAX_FACTOR)
        if self.momentum >= 1:
            raise InputError(f"momentum is {self.momentum}: pass a number below 1")
        for name, end in (("patience", math.inf), ("seed", 2**63)):
            if check_whole(getattr(self, name), name) >= end:
                raise InputError(f"{name} is {getattr(self, name)!r}: pass an integer below 2**63")
        if self.warmup is not None:
            check_whole(self.warmup, "warmup", self.steps)
        for name in ("balanced_classes", "freeze_batchnorm"):
            check_flag(getattr(self, name), name)
        for name, known in CHOICES.items():
            check_name(name, getattr(self, name), known)
        if not isinstance(self.predictor, str):
            raise InputError(f"predictor is {self.predictor!r}: pass the name of a predictor, or ''")

    def _check_number(self, name: str, most: float, *, allow_zero: bool = False) -> None:
        """Check a setting's number; convert types that JSON cannot hold, such as Decimal, to float."""
        value = getattr(self, name)
        number = check_positive(value, name, allow_zero=allow_zero, most=most)
        if not isinstance(value, int | float):
            object.__setattr__(self, name, number)

    def resolved(self, kind: str, *, pretrained: bool) -> Settings:
        """Replace all settings that are ``"auto"`` or None, except the precision.

        Parameters
        ----------
        kind : {"images", "text", "features"}
            Kind of samples that the backbone takes.
        pretrained : bool
            Whether the backbone is pretrained.

        Returns
        -------
        Settings
            A copy with the optimiser, its learning rate, the schedule and the warm-up set.
        """
        optimiser = ("adamw" if kind == "text" else "sgd") if self.optimiser == "auto" else self.optimiser
        schedule = ("linear" if optimiser == "adamw" else "constant") if self.schedule == "auto" else self.schedule
        rates = LEARNING_RATES if pretrained else FRESH_LEARNING_RATES
        warmup = (round(0.1 * self.steps) if schedule == "linear" else 0) if self.warmup is None else self.warmup
        return replace(
            self,
            optimiser=optimiser,
            schedule=schedule,
            learning_rate=rates[optimiser] if self.learning_rate is None else self.learning_rate,
            warmup=warmup,
        )

    def rate(self, step: int) -> float:
        """Return the learning rate of a step; call ``resolved`` first.

        Parameters
        ----------
        step : int
            Number of the step, from 0.

        Returns
        -------
        float
            The learning rate, which depends on the settings and the step alone.
        """
        assert self.learning_rate is not None
        assert self.warmup is not None
        if self.schedule == "sawtooth":
            falling = 1 - step / self.warmup if step < self.warmup else 1 - (step - self.warmup) / self.steps
            return self.learning_rate * falling
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        if self.schedule == "constant":
            return self.learning_rate
        return self.learning_rate * (self.steps - step) / max(1, self.steps - self.warmup)

    def identity(self) -> dict[str, Any]:
        """Return the settings that identify a run, as a dictionary.

        Returns
        -------
        dict
            All settings except those in ``LATER_SETTINGS`` that have their default, so that older runs can be resumed.
        """
        default = Settings()
        return {
            name: value
            for name, value in self.to_dict().items()
            if name not in LATER_SETTINGS or value != getattr(default, name)
        }

    def to_dict(self) -> dict[str, Any]:
        """Convert the settings to a dictionary.

        Returns
        -------
        dict
            Values that JSON can hold.
        """
        return asdict(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Settings:
        """Make settings from a dictionary such as ``to_dict`` returns.

        Parameters
        ----------
        content : mapping
            Settings by name; settings left out keep their defaults.

        Returns
        -------
        Settings
            The settings.

        Raises
        ------
        InputError
            If a name is not known or a value is out of range.
        """
        known = [field.name for field in fields(cls)]
        if not isinstance(content, Mapping):
            raise InputError(f"the settings are {content!r}: pass a mapping from names to values")
        for name in content:
            if name not in known:
                raise unknown_name("setting", name, known)
        return cls(**content)
