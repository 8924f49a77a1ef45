"""Protocols: the settings that affect a benchmark's numbers, besides data, scenario, method, draw and seed.

``protocols.toml`` holds the named protocols, one table each: ``paper`` does what the paper's text says, ``authors``
what the authors' public code does, and ``compshift``, the default, what this package recommends. ``named_protocol``
reads one of them for a data set. ``docs/paper.md`` explains every setting and lists what differs.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from compshift._checks import check_count
from compshift._errors import InputError, check_name, unknown_name
from compshift.methods.sampling import Fixed, LogUniform

PROTOCOLS = ("compshift", "paper", "authors")
"""Names of the protocols, the default first."""

COMBINATIONS = "combinations"
"""Value of ``select`` with which CRM on frozen features chooses its ridge on held-out combinations, without draws."""

SELECTIONS = ("balanced", "worst", "average", COMBINATIONS)
"""Ways to choose hyper-parameters: three validation accuracies, and ``COMBINATIONS``."""

MODES = ("features", "fine-tuning")
"""Modes of a benchmark: fit linear heads on frozen features, or train a whole network."""

PAPER_STEPS = (5000, 10_000)
"""Numbers of training steps that the paper uses."""

FIRST_FIELDS = (
    "mode",
    "steps",
    "ranges",
    "select",
    "plan_seed",
    "backbone",
    "balanced_classes",
    "strict",
    "tolerance",
    "solver_tolerance",
)
"""Fields that are stored for version 1 of the protocol ``compshift`` if no setting is changed.

Benchmarks from before protocols had names stored only these fields. A job's key is a hash of the stored fields, so
storing no others keeps those keys valid.
"""

ALL_ROWS = 1 << 31
"""Row limit larger than any data set, for settings that use all rows."""

FIXED = (
    "mode",
    "name",
    "version",
    "changed",
    "ranges",
    "methods",
    "plan_seed",
    "strict",
    "weights",
    "validation_rows",
    "validation_prior",
)
"""Fields of ``Protocol`` that ``changes`` cannot set: they are set in another way, or have only one possible value."""

FEATURE_SETTINGS = ("alpha", "steps", "select", "tolerance", "solver_tolerance", "draws", "seeds", "scenarios")
"""Settings that affect runs on frozen features, besides hyper-parameters of trained methods."""

FEATURE_FIELDS = (
    *("mode", "name", "version", "changed", "plan_seed", "strict", "eval_every", "draw_generator"),
    *("validation_rows", "validation_bias", "validation_prior"),
)
"""Further fields that ``Protocol.settings`` lists for runs on frozen features."""

EXTENT = {"draws": "int", "seeds": "int", "scenarios": "str"}
"""Settings that decide which jobs are run, with their types; they do not affect the result of a single job."""

STATED = ("backbone", "weights", "optimiser", "momentum", "ranges", "steps", "select", "strict")
"""Settings of runs that the paper states; its numbers can be compared only with runs that agree in all of them."""

NAMED_VALUES = {
    "select": SELECTIONS,
    "optimiser": ("sgd", "adamw"),
    "schedule": ("constant", "linear", "sawtooth"),
    "draw_generator": ("default_rng", "RandomState", "RandomState, one skipped"),
    "decay": ("matrices", "all", "vectors"),
    "precision": ("auto", "float32", "bfloat16"),
    "pooling": ("auto", "mean", "cls", "pooler"),
    "resampling": ("backbone", "bilinear", "bicubic"),
    "validation_bias": ("extrapolated", "learned"),
    "validation_prior": ("uniform",),
    "validation_rows": ("all",),
}
"""Accepted values of every setting whose values are names."""


@dataclass(frozen=True)
class Protocol:
    """Settings that are the same for all methods on a data set; tables never mix results of different protocols."""

    mode: str  # one of MODES
    steps: int  # maximum number of steps in a training run
    ranges: dict[str, LogUniform | Fixed] = field(hash=False)  # ranges of the hyper-parameters shared by all methods
    select: str = "balanced"  # one of SELECTIONS; a validation accuracy chooses a draw and a checkpoint
    plan_seed: int = 0  # seed of the hyper-parameter draws
    backbone: str | None = None  # network to fine-tune
    balanced_classes: bool = False  # whether classes are sampled equally often
    strict: bool = False  # whether rows of other groups that contain the same sample as a dropped row are dropped too
    tolerance: float = 1e-3  # training on features stops once no gradient entry exceeds it
    solver_tolerance: float = 1e-4  # a convex fit has converged once no gradient entry exceeds it
    name: str = "compshift"  # one of PROTOCOLS
    version: int = 1  # version of the named protocol
    changed: tuple[str, ...] = ()  # settings that differ from the named protocol
    weights: str = "published"  # weights of the backbone: the published ones, or the digest of a file
    resampling: str = "backbone"  # how images are resized: as the backbone was trained, or by the method named
    pooling: str = "auto"  # how a text model's outputs become one vector
    dropout: float = 0.0  # probability of dropout between a text model's pooled output and the head
    precision: str = "auto"  # precision of forward passes, in training, selection and reported predictions
    optimiser: str = "sgd"
    momentum: float = 0.9  # momentum of sgd
    schedule: str = "constant"  # schedule of the learning rate
    warmup: float = 0.0  # steps over which the learning rate rises; a number below 1 is a share of all steps
    decay: str = "matrices"  # parameters that weight decay applies to
    clip: float = 0.0  # norm to which gradients are clipped; 0 for no clipping
    eval_every: float = 0.05  # steps between evaluations; a number below 1 is a share of all steps
    validation_rows: str = "all"  # rows of the val split that evaluations use
    bias_rows: int = 5000  # training rows from which CRM's bias is computed at evaluations; 0 for all
    validation_bias: str = "extrapolated"  # CRM's bias in the predictor that selects checkpoints and draws
    validation_prior: str = "uniform"  # CRM's prior in that predictor
    draws: int = 5  # number of hyper-parameter draws
    seeds: int = 3  # number of seeds at which the chosen draw is run
    scenarios: str = "each"  # groups to drop, separated by spaces
    draw_generator: str = "default_rng"  # random generator of NumPy that hyper-parameters are drawn with
    # ranges of the methods' own hyper-parameters, by "method.hyper-parameter"
    methods: dict[str, LogUniform | Fixed] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise unknown_name("mode", self.mode, MODES)
        for name, known in NAMED_VALUES.items():
            check_name("selection" if name == "select" else name, getattr(self, name), known)
        if self.select == COMBINATIONS and self.mode != "features":
            raise InputError(
                f"select is {COMBINATIONS!r}, which chooses CRM's ridge on frozen features, but a network is "
                "fine-tuned: use frozen features (features=True in a benchmark), or select 'balanced' and the method "
                "'crm-resolved', whose ridge is chosen that way"
            )
        for name in ("steps", "draws", "seeds"):
            check_count(getattr(self, name), name)
        for name in ("dropout", "momentum", "warmup", "clip", "eval_every", "bias_rows"):
            below_one = name in ("dropout", "momentum")
            if not 0 <= getattr(self, name) < (1 if below_one else np.inf):
                raise InputError(f"{name} is {getattr(self, name)}: pass a number ≥ 0{' and below 1' * below_one}")
        if self.plan_seed < 0:
            raise InputError(f"the seed of the plan is {self.plan_seed}: pass an integer ≥ 0")

    def draw(self, number: int, own: Mapping[str, LogUniform | Fixed]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the hyper-parameters of a draw: those shared by all methods, and those of one method.

        ``own`` are the ranges of the latter. The shared values depend only on the plan's seed and the number of the
        draw, so they are the same for all methods.
        """
        if self.draw_generator.startswith("RandomState"):
            rng: Any = np.random.RandomState(self.plan_seed + number)
        else:
            rng = np.random.default_rng([self.plan_seed, number])
        common = {name: values.draw(rng) for name, values in self.ranges.items()}
        if self.draw_generator.endswith("one skipped"):
            rng.choice([0.0, 0.1, 0.5])  # the authors draw a dropout for texts that is never used
        return common, {name: values.draw(rng, self._scaled_steps) for name, values in own.items()}

    def middle(self, own: Mapping[str, LogUniform | Fixed]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the middle of every range, in the form in which ``draw`` returns drawn values."""
        common = {name: values.middle for name, values in self.ranges.items()}
        return common, {name: values.middle_for(self._scaled_steps) for name, values in own.items()}

    @property
    def _scaled_steps(self) -> int | None:
        """Run length to which drawn step numbers are scaled; None for the paper's run lengths, which the ranges fit."""
        return self.steps if self.mode == "features" or self.steps not in PAPER_STEPS else None

    def method_ranges(self, method: str, own: Mapping[str, LogUniform | Fixed]) -> dict[str, LogUniform | Fixed]:
        """Return the ranges of a method's hyper-parameters: its ``own``, replaced or extended by the protocol's."""
        prefix = f"{method}."
        named = {key.removeprefix(prefix): value for key, value in self.methods.items() if key.startswith(prefix)}
        if self.is_first:  # other entries equal the method's own defaults, and are not stored
            named = {key: value for key, value in named.items() if key in own}
        return {**own, **named}

    def steps_of(self, name: str) -> int:
        """Return ``warmup`` or ``eval_every`` in steps; values below 1 are shares of all steps."""
        value = float(getattr(self, name))
        return int(value * self.steps) if value < 1 else int(value)

    def training_settings(self) -> dict[str, Any]:
        """Return the settings of a training run that the protocol fixes, for ``compshift.training.Settings``.

        Steps, seed and drawn hyper-parameters are not included. An unchanged version 1 of ``compshift`` gives only four
        settings; the optimiser, schedule and warm-up then follow from the kind of samples, as in runs from before
        protocols had names.
        """
        found: dict[str, Any] = {
            "eval_every": max(1, self.steps_of("eval_every")),
            "metric": self.select,
            "balanced_classes": self.balanced_classes,
            "precision": self.precision,
        }
        if self.is_first:
            return found
        return found | {
            "optimiser": self.optimiser,
            "momentum": self.momentum,
            "schedule": self.schedule,
            "warmup": self.steps_of("warmup"),
            "decay": self.decay,
            "clip": self.clip,
            "refresh_rows": self.bias_rows or ALL_ROWS,
            "predictor": self.validation_predictor,
        }

    def backbone_settings(self, kind: str) -> dict[str, Any]:
        """Return ``"backbone"``, the name of the network, and further keyword arguments of ``named_backbone``."""
        found: dict[str, Any] = {"backbone": self.backbone}
        if kind == "text":
            return found | {"pooling": self.pooling, "dropout": self.dropout}
        return found | {"resampling": self.resampling}

    @property
    def is_first(self) -> bool:
        """Whether this is version 1 of ``compshift`` without changes, for which only ``FIRST_FIELDS`` are stored."""
        return (self.name, self.version, self.changed) == ("compshift", 1, ())

    @property
    def validation_predictor(self) -> str:
        """Name of CRM's predictor that selects checkpoints and draws."""
        return f"{self.validation_bias}-{self.validation_prior}"

    def to_dict(self) -> dict[str, Any]:
        """Return the protocol as a dictionary that JSON can represent; it is part of the hash that names a job."""
        return {
            item.name: _plain(getattr(self, item.name))
            for item in fields(self)
            if item.name in FIRST_FIELDS or not self.is_first
        }

    def settings(self) -> dict[str, str]:
        """Return every setting that affects results as text, for listings."""
        names = [item.name for item in fields(self) if item.name not in ("ranges", "methods")]
        ranges = {**self.ranges, **self.methods}
        if self.mode == "features":
            names = [name for name in names if name in FEATURE_SETTINGS or name in FEATURE_FIELDS]
            ranges = {name: values for name, values in ranges.items() if _has_effect(name, "features")}
        found: dict[str, Any] = {name: getattr(self, name) for name in names}
        found |= {f"range of {name}": values for name, values in ranges.items()}
        found["changed"] = ", ".join(self.changed)
        return {name: str(value) for name, value in found.items() if value not in (None, "")}


def validation_metric(select: str) -> str:
    """Return the name of the validation accuracy that chooses among the draws and the checkpoints of a method."""
    return "balanced" if select == COMBINATIONS else select


def _plain(value: Any) -> Any:
    """Convert a field of a protocol to values that JSON can represent."""
    if isinstance(value, LogUniform):
        return {item.name: getattr(value, item.name) for item in fields(value)}
    if isinstance(value, Fixed):
        return value.value
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return list(value) if isinstance(value, tuple) else value


@cache
def _tables() -> dict[str, Any]:
    """Return the content of ``protocols.toml``."""
    return tomllib.loads(files("compshift.bench").joinpath("protocols.toml").read_text(encoding="utf-8"))


def named_protocol(
    name: str = "compshift",
    *,
    kind: str,
    dataset: str | None = None,
    bundled: bool = False,
    fresh: bool = False,
    changes: Mapping[str, Any] | None = None,
    **options: Any,
) -> Protocol:
    """Return a named protocol for a data set.

    Parameters
    ----------
    name : {"compshift", "paper", "authors"}, default="compshift"
        Name of the protocol.
    kind : {"images", "text", "features"}
        Kind of samples that methods are fitted to.
    dataset : str, optional
        Name of the data set; a data set without settings of its own uses those of its kind.
    bundled : bool, default=False
        Whether the data set comes with compshift.
    fresh : bool, default=False
        Whether the network starts from random weights.
    changes : mapping, optional
        Settings to change, by name, as values or as text: fields of ``Protocol``, names of ``ranges``, or
        hyper-parameters such as ``"mixup.alpha"``.
    **options : Any
        Fields that every protocol lets a caller set: ``steps``, ``select``, ``backbone``, ``plan_seed`` and ``strict``;
        None leaves the protocol's value.

    Returns
    -------
    Protocol
        The settings. Its field ``changed`` names the settings that differ from the named protocol: entries of
        ``changes`` and, unless the protocol is ``"compshift"``, options other than ``plan_seed`` and ``strict``.

    Raises
    ------
    InputError
        If the name or a change is not known, or the protocol has no settings for this kind of samples.
    """
    check_name("protocol", name, PROTOCOLS)
    table = _tables()[name]
    features = kind == "features"
    if features and name != "compshift":
        raise InputError(
            f"the protocol {name!r} fine-tunes networks and has no settings for frozen features: use the protocol "
            "'compshift', or fine-tune"
        )
    order = (
        "features" if features else None,
        "fresh" if fresh else None,
        dataset,
        "bundled" if bundled else None,
        kind,
    )
    keys = [key for key in order if key]
    values = {key: _entry(value, keys) for key, value in table.items() if key not in ("ranges", "methods")}
    ranges = {key: _entry(value, keys) for key, value in table["ranges"].items()}
    if features:
        values["backbone"] = None
    protocol = Protocol(
        mode="features" if features else "fine-tuning",
        name=name,
        ranges={key: LogUniform.parse(text) for key, text in ranges.items() if text is not None},
        methods={key: _range(value) for key, value in table["methods"].items()},
        **{key: value for key, value in values.items() if value is not None},
    )
    given = {key: value for key, value in options.items() if value is not None}
    own = [key for key in given if key not in ("plan_seed", "strict") and given[key] != getattr(protocol, key)]
    protocol = replace(protocol, **given, changed=() if name == "compshift" else tuple(sorted(own)))
    return change_protocol(protocol, changes or {}, kind)


def protocol_ranges(name: str) -> dict[str, str]:
    """Return the ranges of all hyper-parameters in a protocol, as text, by name and kind of samples."""
    found: dict[str, str] = {}
    for kind in ("images", "text", "features"):
        if kind != "features" or name == "compshift":
            protocol = named_protocol(name, kind=kind)
            found |= {f"{key} ({kind})": str(values) for key, values in protocol.ranges.items()}
    return found | {key: str(values) for key, values in protocol.methods.items()}


def _entry(value: Any, keys: list[str]) -> Any:
    """Return a table's entry for the first of ``keys`` that it has, or for "other"; return other values unchanged."""
    if not isinstance(value, dict):
        return value
    return next((value[key] for key in keys if key in value), value.get("other"))


def _range(value: Any) -> LogUniform | Fixed:
    """Read the range of a hyper-parameter; a number or a name is a fixed value."""
    return LogUniform.parse(value) if isinstance(value, str) and "^" in value else Fixed(value)


def change_protocol(protocol: Protocol, changes: Mapping[str, Any], kind: str) -> Protocol:
    """Return a protocol with some settings changed, given as values or as text; ``changed`` names those that differ."""
    values: dict[str, Any] = {}
    ranges, methods = dict(protocol.ranges), dict(protocol.methods)
    types = {item.name: str(item.type).removesuffix(" | None") for item in fields(protocol)}
    open_names = [name for name in types if name not in FIXED]
    for name, value in changes.items():
        if name not in (*open_names, *ranges, *methods):
            raise unknown_name("setting of a protocol", name, (*open_names, *ranges, *methods))
        if not _has_effect(name, kind):
            samples = "frozen features" if kind == "features" else f"fine-tuning on {kind}"
            raise InputError(f"the setting {name!r} has no effect on {samples}: leave it out")
        if name in ranges:
            ranges[name] = _changed_range(name, value, ranges[name])
        elif name in methods:
            methods[name] = _changed_range(name, value, methods[name])
        else:
            values[name] = _converted(name, value, types[name])
    changed = replace(protocol, **values, ranges=ranges, methods=methods)
    differing = {name for name in changes if _setting(changed, name) != _setting(protocol, name)}
    return replace(changed, changed=tuple(sorted({*protocol.changed, *differing})))


def split_changes(changes: Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split changes into those that affect the result of a job, and those in ``EXTENT``, converted to their types."""
    given = dict(changes or {})
    extent = {name: _converted(name, given.pop(name), kind) for name, kind in EXTENT.items() if name in given}
    return given, extent


def _setting(protocol: Protocol, name: str) -> Any:
    """Look up a setting of a protocol by name: a range, a hyper-parameter of a method, or a field."""
    return protocol.ranges.get(name) or protocol.methods.get(name) or getattr(protocol, name)


def _has_effect(name: str, kind: str) -> bool:
    """Return whether a setting can change results on samples of a kind."""
    method, dot, _ = name.partition(".")
    if kind == "features":
        return method in ("groupdro", "irm", "vrex", "mixup") if dot else name in FEATURE_SETTINGS
    unused = {"images": ("pooling", "dropout"), "text": ("resampling",)}[kind]
    return name not in ("alpha", "tolerance", "solver_tolerance", *unused)


def _changed_range(name: str, value: Any, before: LogUniform | Fixed) -> LogUniform | Fixed:
    """Return the new range or fixed value of a hyper-parameter, from a value or text that replaces ``before``."""
    if isinstance(value, str) and "^" in value:
        return LogUniform.parse(value)
    kind = type(before.value).__name__ if isinstance(before, Fixed) else "int" if before.whole else "float"
    fixed = _converted(name, value, kind)
    if isinstance(before, LogUniform) and not (0 < fixed < np.inf or (name == "weight_decay" and fixed == 0)):
        raise InputError(f"{name} is {fixed}: pass a number above 0, or a range such as {before}")
    return Fixed(fixed)


def _converted(name: str, value: Any, kind: str) -> Any:
    """Convert the value of a setting, which may be text, to the type that ``kind`` names."""
    words = {"bool": "true or false", "int": "an integer", "float": "a number"}
    text = str(value).strip()
    try:
        if kind == "bool":
            return {"true": True, "false": False}[text.lower()]
        return {"int": int, "float": float, "str": str}[kind](text)
    except (KeyError, ValueError):
        raise InputError(f"{name} is {text!r}: pass {words[kind]}") from None
