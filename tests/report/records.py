"""Benchmark folders with made-up records, for tests of tables and pages."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from compshift.bench.store import Store
from compshift.core.groups import GroupSpace

VERSIONS = {"compshift": "0.1.0", "python": "3.12.0"}
SCENARIOS = {"(duck, sea)": [(0, 1)], "(owl, lake)": [(2, 0)]}
PREDICTORS = {"crm": ("extrapolated-uniform", "extrapolated-empirical", "learned-uniform", "learned-empirical")}


@dataclass(frozen=True)
class Made:
    """A made-up data set and the plan of a benchmark on it."""

    label: str = "birds"
    names: tuple[str, ...] = ("bird", "place")
    values: tuple[tuple[Any, ...], ...] = (("duck", "gull", "owl"), ("lake", "sea"))
    methods: tuple[str, ...] = ("erm", "crm")
    scenarios: Mapping[str, Sequence[tuple[int, ...]]] = field(default_factory=lambda: dict(SCENARIOS))
    draws: int = 1
    seeds: int = 1
    name: str | None = None  # name of the published data set, if it is one
    mode: str = "fine-tuning"
    settings: Mapping[str, Any] | None = None  # whole protocol; None for the parts that tables and pages read
    counts: Mapping[str, Sequence[int]] | None = None  # rows of every group by split; None for random numbers

    @property
    def protocol(self) -> dict[str, Any]:
        """Return the protocol."""
        if self.settings is not None:
            return dict(self.settings)
        return {"mode": self.mode, "select": "balanced", "backbone": "small-cnn", "steps": 20}

    @property
    def about(self) -> dict[str, Any]:
        """Return the entry of the data set in the folder's header."""
        return {"digest": self.label, "protocol": self.protocol, "name": self.name}

    @property
    def plan(self) -> list[Any]:
        """Return the planned jobs: dropped groups, method, draws and seeds."""
        return [
            [[list(code) for code in dropped], method, self.draws, self.seeds]
            for dropped in self.scenarios.values()
            for method in self.methods
        ]

    def records(self) -> list[dict[str, Any]]:
        """Return a record of every draw with the first seed, and of the first draw with every other seed."""
        rng = np.random.default_rng(0)
        space = GroupSpace(self.names, self.values)
        groups = space.codes(np.arange(space.n_groups))
        train = rng.integers(5, 90, size=len(groups))
        rows = {split: rng.integers(4, 60, size=len(groups)) for split in ("val", "test")}
        if self.counts is not None:
            train, *others = (np.array(self.counts[split]) for split in ("train", "val", "test"))
            rows = dict(zip(("val", "test"), others, strict=True))
        runs = [(draw, 0) for draw in range(self.draws)] + [(0, seed) for seed in range(1, self.seeds)]
        return [
            self._record(rng, space, groups, train, rows, label, dropped, method, run)
            for label, dropped in self.scenarios.items()
            for method in self.methods
            for run in runs
        ]

    def _record(self, rng, space, groups, train, rows, label, dropped, method, run):
        config = {
            "data": self.label,
            "digest": self.label,
            "scenario": label,
            "dropped": [list(code) for code in dropped],
            "method": method,
            "code": "",
            "draw": run[0],
            "seed": run[1],
            "protocol": self.protocol,
        }
        codes = [code for code in dropped if len(code)]  # the scenario "standard" drops one empty group
        unseen = np.isin(space.index(groups), space.index(codes)) if codes else np.zeros(len(groups), bool)
        detail = {}
        if method == "crm":
            tail = [float(rng.uniform(0, 1)) if rng.random() < 0.7 else None for _ in dropped]
            size = rng.uniform(5, 300, size=len(dropped)).tolist()
            detail = {
                "bias_gap": float(rng.uniform(0, 0.02)),
                "extrapolated": [[list(code), n, k] for code, n, k in zip(dropped, size, tail, strict=True) if code],
            }
        right = {
            split: {name: rng.integers(0, count + 1).tolist() for name in PREDICTORS.get(method, ("default",))}
            for split, count in rows.items()
        }
        return {
            "version": 1,
            "key": hashlib.sha256(json.dumps(config).encode()).hexdigest()[:20],
            "config": config,
            "status": "done",
            "detail": detail,
            "names": list(self.names),
            "values": [list(values) for values in self.values],
            "groups": groups.tolist(),
            "train_rows": train.tolist(),
            "seen_rows": np.where(unseen, 0, train).tolist(),
            "rows": {split: count.tolist() for split, count in rows.items()},
            "right": right,
            "warnings": [],
            "seconds": 2.0,
            "finished": f"2025-01-0{1 + run[1]}T10:00:00+00:00",
            "versions": VERSIONS,
        }


def write_results(
    path: Path, *data: Made, change: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda record: record
) -> Store:
    """Write a results folder; ``change`` may replace each record, or leave it out by returning None."""
    methods = {method: "" for made in data for method in made.methods}
    about = {made.label: made.about for made in data}
    store = Store.create(path, about, methods, {made.label: made.plan for made in data})
    for record in (change(record) for made in data for record in made.records()):
        if record is not None:
            store.write(record)
    return store
