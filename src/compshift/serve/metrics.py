"""Metrics of a service in Prometheus' format: requests, latencies, rows, and drift of the group frequencies.

Drift compares the estimated group frequencies of recent rows with the frequencies in training. The estimate maximises
the likelihood of the rows (``core.prior_em``), so it does not depend on the prior of the predictions. Only the features
of recent rows are kept, in memory, and the estimate is computed when the metrics are asked for.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from copy import copy
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from compshift import __version__
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.prior_em import estimate_log_prior
from compshift.serve.model import Query, ServedModel

MAX_RECENT_ROWS = 2000
"""Maximum number of recent rows whose group frequencies are estimated."""

MAX_RECENT_CELLS = 1 << 22
"""Maximum number of features of recent rows that are kept: 32 megabytes."""

MAX_DRIFT_GROUPS = 500
"""Largest number of groups for which drift is estimated; it bounds the time of an estimate to about a second."""

MAX_GROUP_GAUGES = 100
"""Maximum number of groups with a gauge of their own; the others share the label ``other``."""

SECONDS_BETWEEN_ESTIMATES = 5.0
"""Minimum time between two estimates, however often the metrics are asked for."""

LATENCIES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper ends of the buckets of latencies, in seconds."""


MAX_DRAINED_BYTES = 64 << 20
"""Maximum size of a rejected body that is read to its end, because many clients read the answer only after sending."""

DRAIN_SECONDS = 2.0
"""Maximum time for which a rejected body is read."""


class Drift(NamedTuple):
    """Estimated group frequencies of recent rows; ``frequency`` is None as long as there are no rows."""

    n_rows: int
    frequency: FloatArray | None  # (g,)


class DriftMonitor:
    """Group frequencies of recent rows, estimated when they are asked for.

    The groups are the candidates inside the affine hull of the seen groups. ``training`` (g,) are their frequencies in
    training.
    """

    def __init__(self, model: ServedModel) -> None:
        self._clf = copy(model.clf)
        self._clf.log_prior_ = self._clf._usable_log_prior("hull")
        self.position: IntArray = np.flatnonzero(self._clf.log_prior_ > -np.inf)  # (g,)
        weight = self._clf.group_weight_[self.position]
        self.training = weight / weight.sum()
        self.seen = self._clf.seen_[self.position]
        self.space = self._clf.space_
        self.groups = self._clf.groups_[self.position]
        self._blocks: deque[Any] = deque()
        self._n_rows = 0
        self._lock, self._estimating = Lock(), Lock()
        self._latest, self._changed, self._estimated_at = Drift(0, None), False, -np.inf

    @classmethod
    def of(cls, model: ServedModel) -> DriftMonitor | None:
        """Return a monitor; None if the model has no groups inside the hull, or too many of them."""
        if not model.has_groups or not 0 < model.clf.inside_hull_.sum() <= MAX_DRIFT_GROUPS:
            return None
        return cls(model) if model.clf.group_weight_.sum() > 0 else None

    def add(self, X: Any) -> None:
        """Add the features (r, p) of the rows of a request, and forget the oldest ones beyond the limits."""
        limit = max(1, min(MAX_RECENT_ROWS, MAX_RECENT_CELLS // X.shape[1]))
        X = X[-limit:]
        with self._lock:
            self._blocks.append(X)
            self._n_rows += len(X)
            self._changed = True
            while self._n_rows - len(self._blocks[0]) >= limit:
                self._n_rows -= len(self._blocks.popleft())

    def estimate(self) -> Drift:
        """Return the latest estimate; compute a new one if rows were added and the last one is old enough."""
        with self._estimating:
            if self._changed and time.monotonic() - self._estimated_at >= SECONDS_BETWEEN_ESTIMATES:
                with self._lock:
                    X, self._changed = np.concatenate(self._blocks), False
                log_ratio = self._clf.group_log_proba(X)[:, self.position] - self._clf.log_prior_[self.position]
                found = estimate_log_prior(log_ratio, np.ones(len(X)), concentration=1.0, tol=1e-3, max_iter=500)
                self._latest = Drift(len(X), np.exp(found.log_prior))
                self._estimated_at = time.monotonic()
            return self._latest

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges of drift; Prometheus' registry calls this method."""
        drift = self.estimate()
        yield GaugeMetricFamily("compshift_drift_rows", "Recent rows that drift is estimated from", drift.n_rows)
        if drift.frequency is None:
            return
        distance = 0.5 * float(np.abs(drift.frequency - self.training).sum())
        unseen = float(drift.frequency[~self.seen].sum())
        yield GaugeMetricFamily(
            "compshift_drift_total_variation",
            "Total variation distance of the group frequencies of recent rows from training: 0 is equal, 1 is disjoint",
            distance,
        )
        yield GaugeMetricFamily(
            "compshift_drift_unseen_share", "Estimated share of recent rows in groups absent from training", unseen
        )
        recent = GaugeMetricFamily(
            "compshift_group_frequency", "Estimated frequency of a group among recent rows", labels=["group"]
        )
        training = GaugeMetricFamily(
            "compshift_group_training_frequency", "Frequency of a group in training", labels=["group"]
        )
        order = np.argsort(-np.maximum(drift.frequency, self.training), kind="stable")
        shown, rest = order[:MAX_GROUP_GAUGES], order[MAX_GROUP_GAUGES:]
        for family, values in ((recent, drift.frequency), (training, self.training)):
            for group in shown:
                family.add_metric([self._label(group)], float(values[group]))
            if len(rest):
                family.add_metric(["other"], float(values[rest].sum()))
            yield family

    def _label(self, group: int) -> str:
        """Return a group as text, such as ``bird=duck, place=lake``."""
        code = self.groups[group]
        pairs = zip(self.space.names, self.space.values, code, strict=True)
        return ", ".join(f"{name}={values[position]}" for name, values, position in pairs)


class ServiceMetrics:
    """Counters, latencies and drift of one service, in a registry of their own."""

    def __init__(self, model: ServedModel) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self._requests = Counter("compshift_requests", "Answered requests", ["endpoint", "status"], registry=registry)
        self._errors = Counter(
            "compshift_errors", "Requests answered with an error", ["endpoint", "status"], registry=registry
        )
        self._rows = Counter("compshift_rows", "Rows of successful requests", ["endpoint"], registry=registry)
        self._latency = Histogram(
            "compshift_request_seconds",
            "Time from the first byte to the answer",
            ["endpoint"],
            buckets=LATENCIES,
            registry=registry,
        )
        self.active = Gauge(
            "compshift_active_requests", "Requests that are read, wait or are computed", registry=registry
        )
        about = Gauge("compshift_model", "The served model: always 1", ["file", "version"], registry=registry)
        about.labels(model.name, __version__).set(1)
        ProcessCollector(registry=registry)
        self.drift = DriftMonitor.of(model)
        if self.drift is not None:
            self.registry.register(self.drift)

    def answered(self, endpoint: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests.labels(endpoint, str(status)).inc()
        if status >= 400:
            self._errors.labels(endpoint, str(status)).inc()
        self._latency.labels(endpoint).observe(seconds)

    def predicted(self, endpoint: str, query: Query) -> None:
        """Count the rows of a request, and remember their features."""
        self._rows.labels(endpoint).inc(len(query.X))
        if self.drift is not None:
            self.drift.add(query.X)


class Observed:
    """ASGI middleware that counts answers and their latencies, and reads what is left of a rejected body."""

    def __init__(self, app: ASGIApp, metrics: ServiceMetrics, endpoints: Collection[str]) -> None:
        self._app, self._metrics, self._endpoints = app, metrics, endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status, complete = time.perf_counter(), 500, False

        async def observed_receive() -> Message:
            nonlocal complete
            message = await receive()
            complete = message["type"] == "http.disconnect" or not message.get("more_body", False)
            return message

        async def observed_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if status >= 400 and not complete and scope["method"] == "POST":
                    if status != 408:
                        await _drain(observed_receive, lambda: complete)
                    if not complete:  # the rest of the body cannot be told from another request
                        message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        try:
            await self._app(scope, observed_receive, observed_send)
        finally:
            path = scope["path"]
            endpoint = path if path in self._endpoints else "other"  # the number of labels is bounded
            self._metrics.answered(endpoint, status, time.perf_counter() - start)


async def _drain(receive: Receive, is_complete: Callable[[], bool]) -> None:
    """Read and forget the rest of a body, within limits."""
    size = 0
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            while not is_complete() and size <= MAX_DRAINED_BYTES:
                size += len((await receive()).get("body", b""))
    except TimeoutError:
        pass
