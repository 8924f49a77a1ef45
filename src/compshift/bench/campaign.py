"""A whole benchmark: data sets, methods and scenarios, planned before anything runs."""

from __future__ import annotations

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
from compshift.bench.plan import PlannedData, PlannedMethod, Unit, make_units
from compshift.bench.protocol import Protocol, feature_protocol, tuning_protocol
from compshift.bench.results import PAPER_METHODS
from compshift.bench.solved import SAME_ON_FEATURES, SOLVED
from compshift.bench.source import DataSource
from compshift.bench.store import Store
from compshift.data.dataset import GroupedDataset
from compshift.data.shift import Scenario, parse_groups, scenarios

SETS = ("paper", "all")
"""Names that stand for several methods: the paper's eight, and all that there are."""

BACKBONES = {"images": "efficientnet-lite0", "text": "minilm"}
SMALL_IMAGES = "small-cnn"
"""The backbone of embedded images, which are small."""


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
            planned.source.label: {"digest": planned.digest, "protocol": planned.protocol.to_dict()}
            for planned in self.data
        }
        methods = {unit.method.name: unit.method.code for unit in self.units}
        plans = {
            planned.source.label: {
                "scenarios": list(dict.fromkeys(unit.scenario for unit in self.units if unit.data == planned)),
                "methods": list(methods),
                "draws": self.units[0].draws,
                "seeds": self.units[0].seeds,
            }
            for planned in self.data
        }
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
    dropped together are separated by semicolons. ``plugins`` are of ``compshift.methods.plugins.Plugin``.
    """
    check_count(draws, "draws")
    check_count(seeds, "seeds")
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
        if "val" not in data.splits and draws > 1:
            raise InputError(
                f"{source.label} has no val rows to choose among {draws} draws by: add some, or pass --draws 1"
            )
        shifts = [found for drop in drops for found in _scenarios(data, drop, plan_seed, source.label, strict=strict)]
        planned.append((PlannedData(source, source.digest(), protocol), shifts))
    return Campaign(
        make_units(planned, chosen, draws, seeds), tuple((plugin.name, plugin.source) for plugin in plugins)
    )


def choose_methods(names: Sequence[str], plugins: Sequence[Any] = (), *, tuning: bool) -> list[PlannedMethod]:
    """The methods of these names; with ``tuning``, also those that only differ when a network is trained."""
    if find_spec("torch") is None:
        return [_solved_method(name, tuning=tuning or bool(plugins)) for name in names]
    from compshift.methods.registry import METHODS, add_plugin, load_installed, method_class

    code = {name: plugin.digest for plugin in plugins for name in add_plugin(plugin)}
    load_installed()
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
    wanted |= dict.fromkeys(code)
    return [PlannedMethod(name, dict(method_class(name).ranges), code.get(name, "")) for name in wanted]


def _solved_method(name: str, *, tuning: bool) -> PlannedMethod:
    """A method without PyTorch."""
    if tuning or name not in SOLVED:
        what = f"the method {name!r} needs" if not tuning else "fine-tuning and plugins need"
        raise InputError(
            f"{what} PyTorch, which is not installed: install compshift[torch], or use --features with methods of "
            f"{', '.join(SOLVED)}"
        )
    return PlannedMethod(name, {})


def _protocol(
    source: DataSource, data: GroupedDataset, steps: int | None, backbone: str | None, **choices: Any
) -> Protocol:
    if source.features:
        return feature_protocol(steps=steps, **choices)
    from compshift.nn.backbones import FRESH

    known = source.known
    embedded = known is not None and known.embedded
    name = backbone or (SMALL_IMAGES if embedded else BACKBONES[data.kind])
    return tuning_protocol(
        source.name,
        data.kind,
        fresh=name in FRESH,
        steps=steps,
        backbone=name,
        balanced_classes=known is not None and known.balanced_classes,
        **choices,
    )


def _scenarios(data: GroupedDataset, drop: str, plan_seed: int, label: str, *, strict: bool) -> list[Scenario]:
    """The scenarios of one option. Of ``each``, those after which a class has no training rows are left out."""
    try:
        by_name = drop in ("each", "none") or drop.startswith("random:")
        wanted: Any = drop if by_name else parse_groups(data.space, drop.split(";"))
        found = scenarios(data, wanted, random_state=plan_seed)
        kept = [scenario for scenario in found if _lost_class(scenario.apply(data, strict=strict)) is None]
        if drop == "each" and kept:
            found = kept if len(kept) == len(found) else _announced(found, kept, label)
        if len(kept) < len(found):
            lost = _lost_class(found[0].apply(data, strict=strict))
            raise InputError(f"without {found[0].name} the class {lost!r} has no training rows: drop other groups")
    except InputError as error:
        raise InputError(f"{label}: {error}") from None
    return found


def _announced(found: Sequence[Scenario], kept: list[Scenario], label: str) -> list[Scenario]:
    lost = [scenario.name for scenario in found if scenario not in kept]
    warnings.warn(
        f"{label}: {len(lost)} of {len(found)} scenarios are left out, as a class would have no training rows: "
        f"{', '.join(lost[:4])}",
        ExtrapolationWarning,
        stacklevel=2,
    )
    return kept


def _lost_class(data: GroupedDataset) -> Any:
    """A class that no training row has; None if there is none."""
    present = set(np.unique(data.codes[data.split == 0, 0]).tolist())
    lost = [value for code, value in enumerate(data.space.values[0]) if code not in present]
    return lost[0] if lost else None
