"""Plan a benchmark: the jobs for all data sets × scenarios × methods.

``make_plan`` checks everything that can be checked without fitting a model.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from compshift._checks import check_count
from compshift._errors import ExtrapolationWarning, InputError, unknown_name
from compshift.bench.convex_methods import CONVEX_METHODS, SAME_ON_FEATURES, chooses_ridge
from compshift.bench.jobs import STANDARD, PlannedData, PlannedMethod, Unit
from compshift.bench.paper import FURTHER_METHODS, PAPER_METHODS, POOL_METHOD
from compshift.bench.pool import pool_share
from compshift.bench.protocol import Protocol, named_protocol, split_changes
from compshift.bench.sources import DataSource
from compshift.bench.store import Store
from compshift.bench.timing import estimate_seconds
from compshift.bench.trained_methods import find_network, pair_encoding
from compshift.core.arrays import IntArray
from compshift.core.groups import GroupSpace
from compshift.data.dataset import GroupedDataset
from compshift.data.shift import Scenario, drop_unseen_from_validation, parse_groups, scenarios, split_groups

METHOD_SETS = ("paper", "all")
"""Names that stand for several methods: the paper's eight methods, and all known methods."""

MAX_SCENARIO_GROUPS = 4
"""Largest number of dropped groups that a scenario's name lists; if there are more, it lists two and ends in a hash."""

MAX_DRAWS = 100_000
"""Maximum number of draws, and of seeds, in a plan."""


@dataclass(frozen=True, eq=False)
class BenchPlan:
    """All jobs of a benchmark, grouped in units of one method on one scenario."""

    units: list[Unit]
    plugins: tuple[tuple[str, str], ...]  # name and source code of each plugin

    @property
    def n_jobs(self) -> int:
        """Number of jobs in both stages."""
        return sum(unit.n_jobs for unit in self.units)

    @property
    def data(self) -> list[PlannedData]:
        """Data sets of the plan, each once."""
        return list({unit.data.source.label: unit.data for unit in self.units}.values())

    @property
    def is_tuning(self) -> bool:
        """Whether any jobs fine-tune a network."""
        return any(data.protocol.mode == "fine-tuning" for data in self.data)

    def store(self, folder: Path) -> Store:
        """Open or create the folder for the results, and add this plan to the plans that are stored there."""
        data = {
            planned.source.label: {
                "digest": planned.digest,
                "protocol": planned.protocol.to_dict(),
                "name": planned.source.name,
                **({"pairs": planned.pairs} if planned.pairs else {}),
                **({} if planned.unlabelled is None else {"unlabelled": planned.unlabelled}),
            }
            for planned in self.data
        }
        methods = {unit.method.name: unit.method.code for unit in self.units}
        plans: dict[str, list[Any]] = {}
        for unit in self.units:
            planned = [[list(code) for code in unit.dropped], unit.method.name, unit.draws, unit.seeds]
            plans.setdefault(unit.data.source.label, []).append(planned)
        return Store.create(folder, data, methods, plans)

    def workers(self, jobs: int | None, threads: int | None, *, remote: bool) -> tuple[int, int]:
        """Return the number of parallel jobs and the number of threads per job; None is replaced by a default.

        Fits on features are small, so by default one job runs per core, with one thread. Fine-tuning jobs run one at a
        time and use all cores of this machine; on a cluster (``remote``), each has one thread.
        """
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        jobs = jobs or (1 if self.is_tuning else cores)
        return jobs, threads or (max(1, cores // jobs) if self.is_tuning and not remote else 1)

    def finished_jobs(self, store: Store | None) -> list[int]:
        """Return the number of finished jobs of each unit in a store, whichever draws were run at seeds above 0."""
        if store is None:
            return [0] * len(self.units)
        finished = []
        for unit in self.units:
            keys = {unit.job(draw, seed).key for draw in range(unit.draws) for seed in range(unit.seeds)}
            finished.append(min(unit.n_jobs, sum(store.has(key) for key in keys)))
        return finished

    def check_networks(self, store: Store | None) -> None:
        """Check that the networks of all unfinished jobs can be found, before the jobs fail one by one."""
        unfinished = [
            unit.data for unit, count in zip(self.units, self.finished_jobs(store), strict=True) if count < unit.n_jobs
        ]
        for data in {planned.source.label: planned for planned in unfinished}.values():
            find_network(data)

    def estimate_seconds(self, store: Store | None, device: str = "auto") -> float:
        """Estimate the seconds that unfinished jobs take when run one after the other; 0 if there are none to time.

        Jobs on a data set whose features are not computed yet add nothing. Training steps are timed on ``device``; pass
        a device of the kind that the jobs will run on.
        """
        return estimate_seconds(self.units, self.finished_jobs(store), store, device)


def make_plan(
    sources: Sequence[DataSource],
    methods: Sequence[str] = ("paper",),
    drops: Sequence[str] | None = None,
    *,
    yes: bool = False,
    protocol: str = "compshift",
    changes: Mapping[str, Any] | None = None,
    draws: int | None = None,
    seeds: int | None = None,
    select: str | None = None,
    plan_seed: int = 0,
    steps: int | None = None,
    backbone: str | None = None,
    weights: str | PathLike[str] | None = None,
    strict: bool = False,
    plugins: Sequence[Any] = (),
    unlabelled: str | float | None = None,
) -> BenchPlan:
    """Plan every method on every scenario of every data set.

    Each entry of ``drops`` says which groups to drop: ``"each"`` (one group per scenario), ``"none"``, ``"standard"``
    (none, and validation keeps groups that training lacks), ``"random:0.3"`` (a random share of the groups), or groups
    as text such as ``"3,stripes"``, separated by semicolons if several are dropped together. ``changes`` are changes to
    the settings of ``protocol``; arguments that are None take the protocol's values. ``yes`` allows ``"each"`` for data
    sets whose published result is a single scenario. ``plugins`` are ``compshift.methods.registry.Plugin`` instances.
    ``unlabelled`` adds CRM with a pool of unlabelled rows to the methods: ``"test"`` for all test rows, which are also
    scored, or a share of the test rows, which then are not scored for any method.
    """
    changes, extent = split_changes(changes)
    draws = extent.get("draws") if draws is None else draws
    seeds = extent.get("seeds") if seeds is None else seeds
    if drops is None and "scenarios" in extent:
        drops = extent["scenarios"].split()
    for count, name in ((draws, "draws"), (seeds, "seeds")):
        if count is not None and check_count(count, name) > MAX_DRAWS:
            raise InputError(f"{name} is {count}: pass at most {MAX_DRAWS}")
    labels = Counter(source.label for source in sources)
    for label, count in labels.items():
        if count > 1:
            raise InputError(f"{count} data sets are called {label!r}: name each once, or rename the files")
    tuning = any(not source.features for source in sources)
    chosen = choose_methods(methods, plugins, tuning=tuning)
    share = None if unlabelled is None else pool_share(unlabelled)
    if unlabelled is not None:
        chosen = _with_pool(chosen, tuning=tuning)
    if not sources or not chosen or drops == []:
        raise InputError("there is nothing to run: name at least one data set, one method and one scenario")
    units = []
    for source in sources:
        data = source.labels()
        rules, path = _protocol(
            source,
            data,
            protocol,
            weights,
            changes=changes,
            steps=steps,
            backbone=backbone,
            select=select,
            plan_seed=plan_seed,
            strict=strict,
        )
        n_seeds = seeds or rules.seeds
        n_draws = {
            method.name: 1 if chooses_ridge(method.name, rules.select) else draws or rules.draws for method in chosen
        }
        wanted = drops or rules.scenarios.split()
        shifts = _all_scenarios(data, wanted, plan_seed, source.label, max(n_draws.values()), strict=strict)
        if "each" in wanted and "each" not in rules.scenarios.split() and not yes:
            jobs = len(shifts) * sum(count + n_seeds - 1 for count in n_draws.values())
            raise InputError(
                f"{source.label}: its training split already lacks groups that are tested, so its published result is "
                f"a single scenario, 'none', but 'each' would drop {len(shifts)} groups in turn ({jobs} jobs): choose "
                "the scenario 'none', or confirm with yes=True"
            )
        encoding = pair_encoding(rules, data)
        planned = PlannedData(source, source.digest(), rules, path, " ".join(wanted), encoding, share)
        if share is not None and np.count_nonzero(data.split == 2) < 2:
            raise InputError(
                f"{source.label}: unlabelled is {unlabelled}, but there are fewer than two test rows to divide: add "
                "test rows, or use unlabelled='test'"
            )
        own = [replace(method, ranges=rules.method_ranges(method.name, method.ranges)) for method in chosen]
        for shift in shifts:
            dropped = tuple(tuple(map(int, code)) for code in shift.dropped) if shift.trim_validation else STANDARD
            units += [Unit(planned, shift.name, dropped, method, n_draws[method.name], n_seeds) for method in own]
    if weights is not None and not any(unit.data.weights for unit in units):
        raise InputError(
            "weights is the checkpoint file of the backbone 'torchvision/resnet50', which no data set uses: leave it "
            "out"
        )
    return BenchPlan(units, tuple((plugin.name, plugin.source) for plugin in plugins))


def choose_methods(names: Sequence[str], plugins: Sequence[Any] = (), *, tuning: bool) -> list[PlannedMethod]:
    """Return the methods with these names, and all methods of the plugins.

    ``tuning`` says whether a network is fine-tuned. If not, methods that are equivalent to another method on fixed
    features are left out of "all", and raise an InputError if they are named.
    """
    if POOL_METHOD in names:
        raise InputError(
            f"{POOL_METHOD!r} is 'crm' with a pool of unlabelled rows: name 'crm', and pass the pool as "
            "unlabelled='test'"
        )
    convex = not tuning and not plugins and set(names) <= set(CONVEX_METHODS)  # PyTorch takes a second to import
    if convex or find_spec("torch") is None:
        return _convex_methods(names, tuning=tuning)
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
            raise unknown_name("method", name, (*METHOD_SETS, *METHODS))
        if name in SAME_ON_FEATURES and not tuning:
            same = SAME_ON_FEATURES[name]
            raise InputError(
                f"on fixed features {name!r} is the same as {same!r}: use {same!r}, or fine-tune a network"
            )
    wanted |= dict.fromkeys(own)
    if POOL_METHOD in wanted:
        raise InputError(f"{POOL_METHOD!r} is the name of CRM with a pool of unlabelled rows: choose another name")
    for name in wanted:
        fields = [field.name for field in dataclasses.fields(method_class(name))]  # type: ignore[arg-type]
        for key in method_class(name).ranges:
            if key not in fields:
                raise unknown_name(f"range of the method {name!r} for the hyper-parameter", key, fields)
    return [PlannedMethod(name, dict(method_class(name).ranges), code.get(name, "")) for name in wanted]


def _with_pool(methods: Sequence[PlannedMethod], *, tuning: bool) -> list[PlannedMethod]:
    """Insert ``POOL_METHOD`` after "crm" in a list of methods."""
    if tuning:
        raise InputError(
            "unlabelled is for frozen features, but a network is fine-tuned: use features=True, or leave unlabelled out"
        )
    names = [method.name for method in methods]
    if "crm" not in names:
        raise InputError(
            f"unlabelled is used by the method 'crm' alone, but the methods are {', '.join(names)}: add 'crm', or "
            "leave unlabelled out"
        )
    after = names.index("crm") + 1
    return [*methods[:after], PlannedMethod(POOL_METHOD, {}), *methods[after:]]


def _convex_methods(names: Sequence[str], *, tuning: bool) -> list[PlannedMethod]:
    """Return the methods with these names; raise an InputError if one of them needs PyTorch."""
    known = (*PAPER_METHODS, *FURTHER_METHODS)
    wanted: dict[str, None] = {}
    for name in names:
        if name not in (*METHOD_SETS, *known):
            raise unknown_name("method", name, (*METHOD_SETS, *known))
        wanted |= dict.fromkeys({"paper": tuple(PAPER_METHODS), "all": CONVEX_METHODS}.get(name, (name,)))
    trained = [name for name in wanted if tuning or name not in CONVEX_METHODS]
    if trained:
        raise InputError(
            f"{', '.join(trained)} must be trained, but PyTorch is not installed: install compshift[torch], or use "
            f"features=True with the methods {','.join(CONVEX_METHODS)}"
        )
    return [PlannedMethod(name, {}) for name in wanted]


def _protocol(
    source: DataSource, data: GroupedDataset, name: str, weights: str | PathLike[str] | None, **options: Any
) -> tuple[Protocol, str | None]:
    """Return the protocol for a data set, and the path of its backbone's weights if the backbone reads such a file."""
    backbone = options.pop("backbone")
    if source.features:
        return named_protocol(name, kind="features", dataset=source.name, **options), None
    from compshift.nn.backbones import FRESH, RESNET50, check_backbone

    known = source.known
    about: dict[str, Any] = {"dataset": source.name, "bundled": known is not None and known.bundled, "kind": data.kind}
    used = backbone or named_protocol(name, **about, changes=options["changes"]).backbone
    path, file_weights = None, "published"
    if weights is not None and used == RESNET50:
        from compshift.nn.torchvision import read_checkpoint, weights_name

        path = str(Path(weights).resolve())
        file_weights = weights_name(read_checkpoint(Path(weights))[1])
    found = named_protocol(name, **about, fresh=used in FRESH, backbone=backbone, **options)
    if file_weights != found.weights:
        found = replace(found, weights=file_weights, changed=tuple(sorted({*found.changed, "weights"})))
    settings = found.backbone_settings(data.kind)
    try:
        check_backbone(settings.pop("backbone"), data.kind, weights=path, **settings)
    except InputError as error:
        raise InputError(f"{source.label}, protocol {name!r}: {error}") from None
    return found, path


def _all_scenarios(
    data: GroupedDataset, drops: Sequence[str], plan_seed: int, label: str, draws: int, *, strict: bool
) -> list[Scenario]:
    """Return the scenarios of all drops, each once.

    A scenario that leaves too few rows to train or validate raises an InputError; ``each`` instead leaves it out with a
    warning, unless no scenario remains.
    """
    found: dict[tuple[Any, ...], Scenario] = {}
    try:
        for drop in drops:
            by_name = drop in ("each", "none", "standard") or drop.startswith("random:")
            wanted: Any = drop if by_name else parse_groups(data.space, split_groups(drop))
            reasons: dict[str, str] = {}
            for shift in scenarios(data, wanted, random_state=plan_seed):
                whole = drop == "standard" and _has_unseen_validation(data)  # otherwise the same as "none"
                name = "standard" if whole else scenario_name(data.space, shift.dropped)
                scenario = Scenario(name, shift.dropped, trim_validation=not whole)
                reason = _missing_rows(scenario.apply(data, strict=strict), draws)
                if reason is None:
                    found[whole, *map(tuple, scenario.dropped.tolist())] = scenario
                else:
                    reasons[scenario.name] = reason
            if reasons and (drop != "each" or not found):
                name, reason = next(iter(reasons.items()))
                advice = "; drop a smaller share, or pass another seed" if drop.startswith("random:") else ""
                where = "with no group dropped" if name == "none" else f"without {name}"
                raise InputError(f"{where}, {reason}{advice}")
            if reasons:
                warnings.warn(
                    f"{label}: {len(reasons)} of the scenarios of 'each' are left out; without "
                    + "; without ".join(f"{name}, {reason}" for name, reason in list(reasons.items())[:3]),
                    ExtrapolationWarning,
                    stacklevel=3,
                )
    except InputError as error:
        raise InputError(f"{label}: {error}") from None
    return list(found.values())


def _has_unseen_validation(data: GroupedDataset) -> bool:
    """Return whether the val split has groups that the train split lacks."""
    return len(drop_unseen_from_validation(data)) < len(data)


def scenario_name(space: GroupSpace, dropped: IntArray) -> str:
    """Return a name for a scenario that depends only on the dropped groups, not on how they were chosen."""
    labels = [space.label(code) for code in dropped]
    if len(labels) <= MAX_SCENARIO_GROUPS:
        return " ".join(labels) or "none"
    digest = hashlib.sha256(np.ascontiguousarray(dropped).tobytes()).hexdigest()[:6]
    return f"{' '.join(labels[:2])} and {len(labels) - 2} more, {digest}"


def _missing_rows(data: GroupedDataset, draws: int) -> str | None:
    """Return a sentence about the missing training or validation rows; None if no rows are missing."""
    present = set(np.unique(data.codes[data.split == 0, 0]).tolist())
    absent = [value for code, value in enumerate(data.space.values[0]) if code not in present]
    if absent:
        return f"the class {absent[0]!r} has no training rows: drop other groups"
    if draws > 1 and "val" not in data.splits:
        return f"there are no val rows, which are needed to choose among {draws} draws: add val rows, or use 1 draw"
    return None
