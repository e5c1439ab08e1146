"""Histograms with counts in plain lists, and the counters of the engine."""

from __future__ import annotations

import json
import os
import re
import resource
from itertools import pairwise
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from aioflow.engine.metrics import Histogram, Measures
from aioflow.executors.host_inspection import HostLoad
from aioflow.model.timestamps import Moment
from aioflow.processes.memory import resident_bytes
from aioflow.protocol.inputs import TimerFired
from aioflow.protocol.reports import TriggerFired
from aioflow.web.metrics import exposition
from tests.web.node import CHAIN, node

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
NOBODY = 2**22 + 1  # above the numbers that the kernel uses
SECOND = 1_000_000


def test_a_value_counts_up_to_the_first_bound_that_is_not_smaller():
    histogram = Histogram((1.0, 10.0))

    for value in (0.5, 1.0, 1.5, 10.0, 11.0):
        histogram.add(value)

    assert list(histogram.up_to()) == [(1.0, 2), (10.0, 4), (float("inf"), 5)]
    assert (histogram.count, histogram.total) == (5, 24.0)


def test_the_latency_of_a_resume_is_that_of_the_event_or_of_the_timer():
    measures = Measures()
    fired = TriggerFired(trigger_no=1, assignment_id=1, index=0, at=4 * SECOND, payload=b"")

    measures.record_latencies(
        [fired, TimerFired(2 * SECOND, task_no=3), TimerFired(SECOND, dag_id="a")],
        lambda: Moment.of(5 * SECOND),
    )

    assert (measures.events.count, measures.events.total) == (1, 1.0)
    assert (measures.timers.count, measures.timers.total) == (1, 3.0)


def test_a_clock_that_was_set_back_makes_no_negative_latency():
    measures = Measures()

    measures.record_latencies([TimerFired(9 * SECOND, task_no=3)], lambda: Moment.of(SECOND))

    assert (measures.timers.count, measures.timers.total) == (1, 0.0)


def test_a_process_that_is_gone_has_no_memory():
    assert resident_bytes(None) == resident_bytes(NOBODY) == 0


def test_without_a_free_descriptor_no_memory_is_reported():
    mine = resident_bytes(os.getpid())
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        found = resident_bytes(os.getpid())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    assert (mine > 2**20, found) == (True, 0)


async def families(n):
    text = (await exposition(n.api, lambda: 0.0)()).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


async def test_the_engine_counts_what_a_run_makes_it_do(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        await n.api.trigger("chain")
        for _ in range(3):
            await n.succeed()
        while n.engine.memory.runs:
            await n.engine.next_turn()
        found = await families(n)

    def value(family, **labels):
        [sample] = [s for s in found[family].samples if s.labels == labels]
        return sample.value

    assert value("aioflow_task_steps", state="success") == 3
    assert value("aioflow_runs_ended", state="success") == 1
    assert value("aioflow_runs_made") == 1
    assert value("aioflow_retries") == 0
    assert value("aioflow_journal_rows") == value("aioflow_commits") > 0
    assert value("aioflow_database_bytes") > 0
    turns = {s.name: s.value for s in found["aioflow_turn_seconds"].samples if not s.labels}
    assert turns["aioflow_turn_seconds_count"] == value("aioflow_turns")
    assert turns["aioflow_turn_seconds_sum"] > 0


async def test_a_host_says_how_it_fares(tmp_path):
    loads = [HostLoad(name="triggers", pid=None, lag_seconds=0.5, evicted=2)]
    async with node(tmp_path) as n:
        n.api._hosts = lambda: loads
        found = await families(n)

    lags = found["aioflow_host_lag_seconds"].samples
    assert {s.labels["host"]: s.value for s in lags} == {"triggers": 0.5}
    assert found["aioflow_coroutines_evicted"].samples[0].value == 2


async def test_fired_events_are_counted_once_for_all_metrics(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        for path in ("aioflow_triggers.temporal:DateTimeTrigger", "mine:Own"):
            await n.api.trigger("chain")
            await n.defer(path, {})
            await n.api.list_pools()
        for deferred in await n.api.list_triggers():
            await n.api.fire(deferred.trigger_id)
        found = await families(n)
        overview = await n.api.reads.overview("ready")

    events = found["aioflow_trigger_events"].samples
    assert {s.labels["kind"]: s.value for s in events} == {"time": 1, "Own": 1}
    assert overview.fires_per_second == round(2 / 60, 3)


async def test_buckets_grow_and_the_last_holds_all(tmp_path):
    async with node(tmp_path) as n:
        found = await families(n)

    histograms = [family for family in found.values() if family.type == "histogram"]
    assert len(histograms) == 4
    for family in histograms:
        for cause in {s.labels.get("cause") for s in family.samples}:
            own = [s for s in family.samples if s.labels.get("cause") == cause]
            buckets = [s.value for s in own if s.name.endswith("_bucket")]
            [count] = [s.value for s in own if s.name.endswith("_count")]
            assert all(one <= other for one, other in pairwise(buckets))
            assert buckets[-1] == count


# ── the reference ───────────────────────────────────────────────────────────────────────


def listed() -> dict[str, str]:
    text = (REFERENCE / "metrics.md").read_text()
    return dict(re.findall(r"^\| `(aioflow_\w+)` \| (\w+) \|", text, re.MULTILINE))


async def test_every_metric_is_listed_with_its_kind_and_no_other(tmp_path):
    async with node(tmp_path) as n:
        found = await families(n)

    kinds = {
        name + ("_total" if family.type == "counter" else ""): family.type
        for name, family in found.items()
    }
    assert kinds == listed()


def test_the_dashboard_draws_metrics_that_there_are():
    dashboard = json.loads((REFERENCE / "grafana.json").read_text())
    drawn = {
        name.removesuffix("_bucket")
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"aioflow_\w+", target["expr"])
    }

    assert drawn <= listed().keys()


@pytest.mark.parametrize("name", ["turn", "commit", "resume"])
def test_each_length_is_in_seconds(name):
    assert listed()[f"aioflow_{name}_seconds"] == "histogram"
