"""What is to be run: jobs that are named by all that decides about their result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from compshift.bench.convex_methods import DETERMINISTIC, SOLVED
from compshift.bench.protocol import Protocol
from compshift.bench.sources import DataSource
from compshift.data.shift import Scenario
from compshift.methods.base import LogUniform


@dataclass(frozen=True)
class PlannedData:
    """A data set of a plan."""

    source: DataSource
    digest: str
    protocol: Protocol


@dataclass(frozen=True)
class PlannedMethod:
    """A method of a plan. ``code`` tells versions of a plugin apart."""

    name: str
    ranges: dict[str, LogUniform] = field(hash=False)
    code: str = ""


@dataclass(frozen=True)
class Job:
    """One run: a method on a scenario of a data set, with drawn hyper-parameters and a seed."""

    data: PlannedData
    scenario: str
    dropped: tuple[tuple[int, ...], ...]  # codes, the class first
    method: PlannedMethod
    draw: int
    seed: int

    @property
    def solved(self) -> bool:
        """Whether a solver finds the optimum, instead of a training loop."""
        return self.data.protocol.mode == "features" and self.method.name in SOLVED

    @cached_property
    def drawn(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Hyper-parameters: those that all methods have, and the method's own."""
        return self.data.protocol.draw(self.draw, self.method.ranges)

    def config(self) -> dict[str, Any]:
        """Everything that decides about the result, and nothing else: not where the data lie, nor who runs it."""
        common, own = self.drawn
        return {
            "data": self.data.source.label,
            "digest": self.data.digest,
            "scenario": self.scenario,
            "dropped": [list(code) for code in self.dropped],
            "method": self.method.name,
            "code": self.method.code,
            "draw": self.draw,
            "seed": self.seed,
            "common": common,
            "hyperparameters": own,
            "protocol": self.data.protocol.to_dict(),
        }

    @cached_property
    def key(self) -> str:
        """The job's name: a digest of its configuration."""
        text = json.dumps(self.config(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    @property
    def run_seed(self) -> int:
        """Seed of everything random in the run; another method or data set changes nothing about it."""
        return seed_for(self.data.source.label, self.scenario, self.method.name, self.draw, self.seed)


@dataclass(frozen=True)
class Unit:
    """A method on a scenario: its draws at the first seed, then the chosen draw at the others."""

    data: PlannedData
    scenario: str
    dropped: tuple[tuple[int, ...], ...]
    method: PlannedMethod
    draws: int
    seeds: int

    def job(self, draw: int, seed: int) -> Job:
        """One of its jobs."""
        return Job(self.data, self.scenario, self.dropped, self.method, draw, seed)

    def first(self) -> list[Job]:
        """The draws, at seed 0."""
        return [self.job(draw, 0) for draw in range(self.draws)]

    def second(self, chosen: int) -> list[Job]:
        """The chosen draw at the other seeds; where nothing is random there is nothing to repeat."""
        repeated = 1 if self.data.protocol.mode == "features" and self.method.name in DETERMINISTIC else self.seeds
        return [self.job(chosen, seed) for seed in range(1, repeated)]

    @property
    def n_jobs(self) -> int:
        """How many jobs it takes."""
        return self.draws + len(self.second(0))


def make_units(
    data: Sequence[tuple[PlannedData, Sequence[Scenario]]], methods: Sequence[PlannedMethod], draws: int, seeds: int
) -> list[Unit]:
    """Every method on every scenario of every data set."""
    return [
        Unit(planned, scenario.name, tuple(tuple(map(int, code)) for code in scenario.dropped), method, draws, seeds)
        for planned, shifts in data
        for scenario in shifts
        for method in methods
    ]


def seed_for(*names: Any) -> int:
    """A seed that depends on the names alone."""
    return int.from_bytes(hashlib.sha256(json.dumps(names).encode()).digest()[:7], "big")
