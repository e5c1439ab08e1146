"""The node's numbers in the text format of Prometheus, read when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from aioflow.api import Api

__all__ = ("exposition",)


class _NodeCollector(Collector):
    def __init__(self, api: Api, lag_seconds: Callable[[], float]) -> None:
        self._api = api
        self._lag_seconds = lag_seconds

    def describe(self) -> Iterable[Metric]:
        return []  # else registering would ask a node that is not up yet

    def collect(self) -> Iterable[Metric]:
        now = self._api.metrics()
        yield _counter("turns", "Turns of the engine", now.turns)
        yield _counter("commits", "Batches committed", now.commits)
        yield _counter("changes", "Row changes committed", now.changes)
        yield _gauge("commit_seconds", "How long a commit takes lately", now.commit_seconds)
        yield _gauge("queue_depth", "Inputs not taken yet", now.waiting_inputs)
        yield _gauge("tasks_queued", "Tasks that wait for a slot", now.tasks_waiting_for_slots)
        yield _by_lane("slots", "Slots there are", now.slots, now.coroutine_slots)
        yield _by_lane("slots_used", "Slots taken", now.slots_used, now.coroutine_slots_used)
        yield _gauge("live_runs", "Runs that are not over", now.live_runs)
        yield _gauge("live_tasks", "Tasks between pending and their end", now.live_tasks)
        parked = GaugeMetricFamily(
            "aioflow_parked_triggers", "Waits that hold no slot", labels=["kind"]
        )
        for kind, count in sorted(now.parked.items()):
            parked.add_metric([kind], count)
        yield parked
        stalls = CounterMetricFamily(
            "aioflow_loop_stalls", "User code that held up a shared loop", labels=["kind"]
        )
        for kind, count in now.stalls.items():
            stalls.add_metric([kind], count)
        yield stalls
        yield _gauge("quarantined_classes", "Trigger classes apart", now.quarantined_classes)
        owed = GaugeMetricFamily(
            "aioflow_owed", "Callbacks and alerts to be delivered", labels=["kind"]
        )
        for kind, count in now.owed.items():
            owed.add_metric([kind], count)
        yield owed
        yield _counter("callbacks_failed", "Callbacks that came to nothing", now.callbacks_failed)
        yield _counter("schedules_late", "Schedules that had no run in time", now.schedules_late)
        yield _gauge("store_away", "1 while the database does not answer", int(now.is_store_away))
        yield _gauge("loop_lag_seconds", "How late the loop was lately", self._lag_seconds())
        yield _gauge("uptime_seconds", "Since the daemon started", now.uptime_seconds)


def exposition(api: Api, lag_seconds: Callable[[], float]) -> Callable[[], bytes]:
    """Return a function that writes all metrics as of now."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_NodeCollector(api, lag_seconds))
    return lambda: generate_latest(registry)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"aioflow_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"aioflow_{name}", text, value=value)


def _by_lane(name: str, text: str, workers: int, coroutines: int) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"aioflow_{name}", text, labels=["lane"])
    family.add_metric(["def"], workers)
    family.add_metric(["async"], coroutines)
    return family
