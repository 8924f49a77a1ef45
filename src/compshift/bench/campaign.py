"""A whole benchmark: data sets, methods and scenarios, planned before anything runs."""

from __future__ import annotations

import dataclasses
import hashlib
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from compshift._checks import check_count
from compshift._errors import ExtrapolationWarning, InputError, unknown_name
from compshift.bench.convex_methods import SAME_ON_FEATURES, SOLVED
from compshift.bench.plan import PlannedData, PlannedMethod, Unit, make_units
from compshift.bench.protocol import Protocol, feature_protocol, tuning_protocol
from compshift.bench.results import FURTHER_METHODS, PAPER_METHODS
from compshift.bench.sources import DataSource
from compshift.bench.store import Store
from compshift.core.arrays import IntArray
from compshift.core.groups import GroupSpace
from compshift.data.dataset import GroupedDataset
from compshift.data.shift import Scenario, parse_groups, scenarios, split_groups

SETS = ("paper", "all")
"""Names that stand for several methods: the paper's eight, and all that there are."""

LISTED = 4
"""Groups that the name of a scenario lists."""

SMALL_IMAGES = "small-cnn"
"""The backbone of embedded images, which are small."""

MAX_RUNS = 100_000
"""Draws or seeds; more are a slip of the keyboard."""


@dataclass(frozen=True, eq=False)
class Campaign:
    """What will be run."""

    units: list[Unit]
    plugins: tuple[tuple[str, str], ...]

    @property
    def n_jobs(self) -> int:
        """Jobs of both stages."""
        return sum(unit.n_jobs for unit in self.units)

    @property
    def data(self) -> list[PlannedData]:
        """The data sets."""
        return list({unit.data.source.label: unit.data for unit in self.units}.values())

    def store(self, folder: Path) -> Store:
        """The folder for the results, if they fit with what it has."""
        data = {
            planned.source.label: {
                "digest": planned.digest,
                "protocol": planned.protocol.to_dict(),
                "name": planned.source.name,
            }
            for planned in self.data
        }
        methods = {unit.method.name: unit.method.code for unit in self.units}
        plans: dict[str, list[Any]] = {}
        for unit in self.units:
            planned = [[list(code) for code in unit.dropped], unit.method.name, unit.draws, unit.seeds]
            plans.setdefault(unit.data.source.label, []).append(planned)
        return Store.create(folder, data, methods, plans)


def make_campaign(
    sources: Sequence[DataSource],
    methods: Sequence[str] = ("paper",),
    drops: Sequence[str] = ("each",),
    *,
    draws: int = 5,
    seeds: int = 3,
    select: str = "balanced",
    plan_seed: int = 0,
    steps: int | None = None,
    backbone: str | None = None,
    strict: bool = False,
    plugins: Sequence[Any] = (),
) -> Campaign:
    """Plan every method on every scenario of every data set.

    ``drops`` are ``"each"``, ``"none"``, ``"random:0.3"`` or groups as texts, ``"3,stripes"``; groups that are to be
    dropped together are separated by semicolons. ``plugins`` are of ``compshift.methods.registry.Plugin``.
    """
    check_count(draws, "draws")
    check_count(seeds, "seeds")
    if max(draws, seeds) > MAX_RUNS:
        raise InputError(f"there are {draws} draws and {seeds} seeds: pass at most {MAX_RUNS} of each")
    labels = Counter(source.label for source in sources)
    for label, count in labels.items():
        if count > 1:
            raise InputError(f"{count} data sets are called {label!r}: name each once, or rename the files")
    if not sources or not drops:
        raise InputError("there is nothing to run: name at least one data set and one scenario")
    any_tuning = any(not source.features for source in sources)
    chosen = choose_methods(methods, plugins, tuning=any_tuning)
    planned = []
    for source in sources:
        data = source.labels()
        choices = {"select": select, "plan_seed": plan_seed, "strict": strict}
        protocol = _protocol(source, data, steps, backbone, **choices)
        shifts = _all_scenarios(data, drops, plan_seed, source.label, draws, strict=strict)
        planned.append((PlannedData(source, source.digest(), protocol), shifts))
    return Campaign(
        make_units(planned, chosen, draws, seeds), tuple((plugin.name, plugin.source) for plugin in plugins)
    )


def choose_methods(names: Sequence[str], plugins: Sequence[Any] = (), *, tuning: bool) -> list[PlannedMethod]:
    """The methods of these names; with ``tuning``, also those that only differ when a network is trained."""
    if find_spec("torch") is None:
        return _solved_methods(names, tuning=tuning)
    from compshift.methods.registry import METHODS, add_plugin, load_installed, method_class

    own = {name: plugin.digest for plugin in plugins for name in add_plugin(plugin)}
    code = {**load_installed(), **own}
    wanted: dict[str, None] = {}
    for name in names:
        if name == "paper":
            wanted |= dict.fromkeys(PAPER_METHODS)
        elif name == "all":
            wanted |= {known: None for known in METHODS if tuning or known not in SAME_ON_FEATURES}
        elif name in METHODS:
            wanted[name] = None
        else:
            raise unknown_name("method", name, (*SETS, *METHODS))
        if name in SAME_ON_FEATURES and not tuning:
            same = SAME_ON_FEATURES[name]
            raise InputError(f"on fixed features {name!r} is the same as {same!r}: name that one, or fine-tune")
    wanted |= dict.fromkeys(own)
    for name in wanted:
        fields = [field.name for field in dataclasses.fields(method_class(name))]  # type: ignore[arg-type]
        for key in method_class(name).ranges:
            if key not in fields:
                raise unknown_name(f"range of the method {name!r} for the hyper-parameter", key, fields)
    return [PlannedMethod(name, dict(method_class(name).ranges), code.get(name, "")) for name in wanted]


def _solved_methods(names: Sequence[str], *, tuning: bool) -> list[PlannedMethod]:
    """Methods on features without PyTorch."""
    known = (*PAPER_METHODS, *FURTHER_METHODS)
    wanted: dict[str, None] = {}
    for name in names:
        if name not in (*SETS, *known):
            raise unknown_name("method", name, (*SETS, *known))
        wanted |= dict.fromkeys({"paper": tuple(PAPER_METHODS), "all": SOLVED}.get(name, (name,)))
    untrained = [name for name in wanted if tuning or name not in SOLVED]
    if untrained:
        raise InputError(
            f"{', '.join(untrained)} must be trained, and PyTorch is not installed: install compshift[torch], or use "
            f"--features --methods {','.join(SOLVED)}"
        )
    return [PlannedMethod(name, {}) for name in wanted]


def _protocol(
    source: DataSource, data: GroupedDataset, steps: int | None, backbone: str | None, **choices: Any
) -> Protocol:
    if source.features:
        return feature_protocol(steps=steps, **choices)
    from compshift.nn.backbones import FRESH
    from compshift.nn.networks import DEFAULT_BACKBONES

    known = source.known
    embedded = known is not None and known.embedded
    name = backbone or (SMALL_IMAGES if embedded else DEFAULT_BACKBONES[data.kind])
    return tuning_protocol(
        source.name,
        data.kind,
        fresh=name in FRESH,
        steps=steps,
        backbone=name,
        balanced_classes=known is not None and known.balanced_classes,
        **choices,
    )


def _all_scenarios(
    data: GroupedDataset, drops: Sequence[str], plan_seed: int, label: str, draws: int, *, strict: bool
) -> list[Scenario]:
    """The scenarios of all options, each once. Of ``each``, those that leave too little to learn from are left out."""
    found: dict[tuple[Any, ...], Scenario] = {}
    try:
        for drop in drops:
            by_name = drop in ("each", "none") or drop.startswith("random:")
            wanted: Any = drop if by_name else parse_groups(data.space, split_groups(drop))
            reasons: dict[str, str] = {}
            for shift in scenarios(data, wanted, random_state=plan_seed):
                scenario = Scenario(scenario_name(data.space, shift.dropped), shift.dropped)
                reason = _what_is_missing(scenario.apply(data, strict=strict), draws)
                if reason is None:
                    found[tuple(map(tuple, scenario.dropped.tolist()))] = scenario
                else:
                    reasons[scenario.name] = reason
            if reasons and (drop != "each" or not found):
                name, reason = next(iter(reasons.items()))
                advice = "; drop fewer, or draw others with --seed" if drop.startswith("random:") else ""
                raise InputError(f"{'as it is' if name == 'none' else f'without {name}'}, {reason}{advice}")
            if reasons:
                warnings.warn(
                    f"{label}: {len(reasons)} of the scenarios of each are left out; without "
                    + "; without ".join(f"{name}, {reason}" for name, reason in list(reasons.items())[:3]),
                    ExtrapolationWarning,
                    stacklevel=3,
                )
    except InputError as error:
        raise InputError(f"{label}: {error}") from None
    return list(found.values())


def scenario_name(space: GroupSpace, dropped: IntArray) -> str:
    """The same groups have the same name, however they were chosen; many have a short one."""
    labels = [space.label(code) for code in dropped]
    if len(labels) <= LISTED:
        return " ".join(labels) or "none"
    digest = hashlib.sha256(np.ascontiguousarray(dropped).tobytes()).hexdigest()[:6]
    return f"{' '.join(labels[:2])} and {len(labels) - 2} more, {digest}"


def _what_is_missing(data: GroupedDataset, draws: int) -> str | None:
    """Why nothing can be learnt or chosen from what is left; None if it can."""
    present = set(np.unique(data.codes[data.split == 0, 0]).tolist())
    lost = [value for code, value in enumerate(data.space.values[0]) if code not in present]
    if lost:
        return f"the class {lost[0]!r} has no training rows"
    if draws > 1 and "val" not in data.splits:
        return f"there are no val rows to choose among {draws} draws by: add some, or pass --draws 1"
    return None
