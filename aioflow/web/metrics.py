"""The node's metrics in the Prometheus text format, collected on request."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from math import isinf
from typing import TypeAlias

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from aioflow.api import Api
from aioflow.api.metrics import Metrics, NodeMetrics, Sizes
from aioflow.engine.metrics import Histogram, Measures
from aioflow.model.nodes import ActiveState, NodeRole
from aioflow.processes.memory import resident_bytes

__all__ = ("Exposition", "exposition")

Exposition: TypeAlias = Callable[[], Awaitable[bytes]]
"""Returns all current metrics as text; on a standby, those that it has."""


class _NodeCollector(Collector):
    """Yields metrics that were fetched from the API in advance, and the delay of the event loop."""

    def __init__(self, api: Api, lag_seconds: Callable[[], float]) -> None:
        self._api = api
        self._lag_seconds = lag_seconds
        self.sizes = Sizes(0, 0)
        self.of_active: Metrics | None = None

    def describe(self) -> Iterable[Metric]:
        return []  # otherwise registration would collect from a node that is not running yet

    def collect(self) -> Iterable[Metric]:
        of_any = self._api.node_metrics()
        yield from _node(of_any)
        yield from _processes(of_any, self._lag_seconds())
        if (now := self.of_active) is None:
            return
        yield from _engine(now, self._api.measures)
        yield from _work(now)
        yield from _waits(now, self._api.measures)
        yield from _outbox(now)
        yield from _storage(now, self.sizes)


def exposition(api: Api, lag_seconds: Callable[[], float]) -> Exposition:
    """Return a function that returns all current metrics as text."""
    registry = CollectorRegistry(auto_describe=False)
    collector = _NodeCollector(api, lag_seconds)
    registry.register(collector)

    async def write() -> bytes:
        collector.of_active = await api.metrics()
        if collector.of_active is not None:
            collector.sizes = await api.sizes()
        return generate_latest(registry)

    return write


def _node(now: NodeMetrics) -> Iterable[Metric]:
    status = now.status
    roles = {str(role): int(role is status.role) for role in NodeRole}
    yield _gauges("node_state", "1 for the state of this node", "state", roles)
    states = {str(state): int(state is status.active) for state in ActiveState}
    yield _gauges("active_node", "1 for the state of the active node", "state", states)
    yield _gauge("node_term", "The term of this node", status.term)
    text = "Time since this node saw a sign of life of the active one"
    yield _gauge("active_silent_seconds", text, status.silent_seconds)
    text = "Time since this node knew of all commits"
    yield _gauge("follower_lag_seconds", text, now.follower_lag_seconds)
    yield _counter("takeovers", "Times this daemon took over from a silent node", status.takeovers)
    yield _counter("fenced", "Times another node had taken over from this daemon", status.fenced)


def _engine(now: Metrics, done: Measures) -> Iterable[Metric]:
    yield _counter("turns", "Engine turns", now.turns)
    yield _histogram("turn_seconds", "Duration of an engine turn, including its commit", done.turns)
    yield _counter("commits", "Batches committed", now.commits)
    yield _histogram("commit_seconds", "Duration of a commit, including retries", done.commits)
    yield _counter("changes", "Row changes committed", now.changes)
    yield _histogram("batch_rows", "Row changes of a batch", done.rows)
    yield _gauge("queue_depth", "Inputs in the queue", now.waiting_inputs)
    yield _counter("writes_fenced", "Batches rejected because another node took over", now.fenced)
    yield _counter("batches_refused", "Batches the database refused", now.refused)
    yield _gauge("lease_age_seconds", "Time since the lease was confirmed", now.lease_age_seconds)
    yield _gauge("store_away", "1 while the database is unavailable", int(now.is_store_away))


def _work(now: Metrics) -> Iterable[Metric]:
    yield _gauge("tasks_queued", "Tasks queued for a slot", now.tasks_waiting_for_slots)
    yield _gauge("tasks_sensing", "Sensors that poll", now.tasks_sensing)
    yield _by_executor("slots", "Total slots", now.slots, now.coroutine_slots)
    yield _by_executor("slots_used", "Slots in use", now.slots_used, now.coroutine_slots_used)
    yield _gauge("live_runs", "Runs that have not ended", now.live_runs)
    yield _gauge("live_tasks", "Tasks that are neither pending nor ended", now.live_tasks)
    yield _counter("runs_made", "Runs created", now.runs_made)
    yield _counters("runs_ended", "Runs that ended", "state", now.runs_ended)
    yield _counters("task_steps", "Tasks that entered a state", "state", now.steps)
    yield _counter("retries", "Failed tries that are retried", now.steps["retrying"])


def _waits(now: Metrics, done: Measures) -> Iterable[Metric]:
    yield _gauges("deferred_triggers", "Deferred waits, which use no slot", "kind", now.deferred)
    yield _counters("trigger_events", "Events received from triggers", "kind", now.fires)
    text = "Delay from an event or a timer to the turn that processed it"
    family = HistogramMetricFamily("aioflow_resume_seconds", text, labels=["cause"])
    for cause, times in (("event", done.events), ("timer", done.timers)):
        family.add_metric([cause], _buckets(times), times.total)
    yield family
    yield _counters("loop_stalls", "Times user code blocked a shared loop", "kind", now.stalls)
    yield _gauge("quarantined_classes", "Trigger classes in quarantine", now.quarantined_classes)
    yield _counter("coroutines_evicted", "Deferred coroutines that were evicted", now.evicted)


def _outbox(now: Metrics) -> Iterable[Metric]:
    yield _gauges("owed", "Callbacks and alerts to be delivered", "kind", now.owed)
    yield _counter("callbacks_failed", "Callbacks that failed", now.callbacks_failed)
    yield _counter("schedules_late", "Schedules that had no run in time", now.schedules_late)


def _processes(now: NodeMetrics, lag_seconds: float) -> Iterable[Metric]:
    lags = {host.name: host.lag_seconds for host in now.hosts}
    pids = {host.name: host.pid for host in now.hosts}
    yield _gauge("loop_lag_seconds", "Recent lag of the daemon's event loop", lag_seconds)
    yield _gauges("host_lag_seconds", "Recent lag of a host's event loop", "host", lags)
    memory = {name: resident_bytes(pid) for name, pid in pids.items()}
    memory["daemon"] = resident_bytes(os.getpid())
    yield _gauges("resident_bytes", "Memory of a process", "process", memory)
    yield _gauge("uptime_seconds", "Uptime of the daemon", now.uptime_seconds)


def _storage(now: Metrics, sizes: Sizes) -> Iterable[Metric]:
    yield _gauge("database_bytes", "Size of the database on disk", sizes.database_bytes)
    yield _gauge("journal_rows", "Batches in the journal", sizes.journal_rows)
    yield _counter("logs_bytes", "Stored output of tries", now.logs_bytes)
    yield _counters("spans", "Spans of traces", "outcome", now.spans)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"aioflow_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"aioflow_{name}", text, value=value)


def _histogram(name: str, text: str, histogram: Histogram) -> HistogramMetricFamily:
    buckets = _buckets(histogram)
    return HistogramMetricFamily(f"aioflow_{name}", text, buckets, histogram.total)


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    return [("+Inf" if isinf(bound) else repr(bound), n) for bound, n in histogram.up_to()]


def _gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"aioflow_{name}", text, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family


def _counters(name: str, text: str, label: str, values: Mapping[str, float]) -> CounterMetricFamily:
    family = CounterMetricFamily(f"aioflow_{name}", text, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family


def _by_executor(name: str, text: str, workers: int, coroutines: int) -> GaugeMetricFamily:
    return _gauges(name, text, "lane", {"def": workers, "async": coroutines})
