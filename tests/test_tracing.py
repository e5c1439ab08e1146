"""A run is one trace, with its tries below it and their stays below them, across restarts."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import asynccontextmanager

import pytest
from opentelemetry import trace as otel
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from aioflow.errors import SettingsError
from aioflow.model.dag import DagSpec, RetryPolicy, TaskSpec
from aioflow.model.ids import span_id, trace_id, traceparent
from aioflow.protocol.commands import RunInfo, StartTask
from aioflow.telemetry import tracing
from aioflow.telemetry.otel_export import SpanMaker, open_export
from aioflow.telemetry.tracing import Span, Traces
from aioflow.worker.task.body import use_span
from tests.executors.processes import running
from tests.turns import until
from tests.web.node import node

TIMER = "aioflow_triggers.temporal:TimeTrigger"
ONE = DagSpec(
    dag_id="one",
    file="one.py",
    tasks=(TaskSpec(task_id="only", retry=RetryPolicy(tries=2, delay_us=0)),),
)


class Tracer:
    """Traces that are exported to memory."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.traces = Traces(SpanMaker([SimpleSpanProcessor(self.exporter)]).make)

    def spans(self, name=None):
        found = self.exporter.get_finished_spans()
        return [span for span in found if name in {None, span.name}]

    def one(self, name):
        [span] = self.spans(name)
        return span


@asynccontextmanager
async def traced(home):
    tracer = Tracer()
    async with node(home) as n:
        n.engine.dispatcher.subscribe(tracer.traces.committed)
        async with running(tracer.traces):
            n.define(ONE)
            yield n, tracer


async def ended(n):
    while n.engine.memory.runs:
        await n.engine.next_turn()


async def deferred(n):
    await until(n.engine, n.api.list_triggers)
    return (await n.api.list_triggers())[0].trigger_id


def number(span):
    return span.context.span_id


async def test_a_run_is_a_trace_with_a_try_and_its_stay(tmp_path):
    async with traced(tmp_path) as (n, tracer):
        made = await n.api.trigger("one")
        row = await n.api.run(made.run_id)
        await n.succeed()
        await ended(n)

    run, whole, stay = tracer.one("run one"), tracer.one("only"), tracer.one("running")
    trace = trace_id(row.run_no, row.run_id, row.created_at)
    assert {span.context.trace_id for span in tracer.spans()} == {trace}
    assert run.parent is None
    assert whole.parent.span_id == number(run)
    assert stay.parent.span_id == number(whole)
    assert whole.attributes["aioflow.state"] == run.attributes["aioflow.state"] == "success"
    assert (whole.attributes["aioflow.task_id"], whole.attributes["aioflow.try"]) == ("only", 1)
    assert run.start_time <= whole.start_time <= stay.start_time <= stay.end_time
    assert stay.end_time <= whole.end_time <= run.end_time


async def test_a_wait_lies_between_two_stays_that_are_linked(tmp_path):
    async with traced(tmp_path) as (n, tracer):
        await n.api.trigger("one")
        await n.defer(TIMER, {})
        await n.api.fire(await deferred(n))
        await n.succeed()
        await ended(n)

    first, second = tracer.spans("running")
    wait, whole = tracer.one("waiting"), tracer.one("only")
    assert {span.parent.span_id for span in (first, wait, second)} == {number(whole)}
    assert first.end_time <= wait.start_time <= wait.end_time <= second.start_time
    assert {link.context.span_id for link in second.links} == {number(first), number(wait)}
    assert not first.links
    assert whole.start_time <= first.start_time
    assert second.end_time <= whole.end_time


async def test_a_restarted_daemon_continues_the_trace(tmp_path):
    async with traced(tmp_path) as (n, before):
        made = await n.api.trigger("one")
        await n.defer(TIMER, {})
        await deferred(n)
    async with traced(tmp_path) as (n, after):
        await n.api.fire(await deferred(n))
        await n.succeed()
        await ended(n)
        row = await n.api.run(made.run_id)

    first, wait, second = before.one("running"), after.one("waiting"), after.one("running")
    whole, run = after.one("only"), after.one("run one")
    assert {span.context.trace_id for span in before.spans() + after.spans()} == {
        trace_id(row.run_no, row.run_id, row.created_at)
    }
    assert {span.parent.span_id for span in (first, wait, second)} == {number(whole)}
    assert whole.parent.span_id == number(run)
    assert {link.context.span_id for link in second.links} == {number(first), number(wait)}
    assert first.end_time <= wait.start_time <= wait.end_time


async def test_each_try_has_a_span_and_says_why_it_failed(tmp_path):
    async with traced(tmp_path) as (n, tracer):
        await n.api.trigger("one")
        await n.fail("no money")
        await n.succeed()
        await ended(n)

    failed, good = tracer.spans("only")
    assert [span.attributes["aioflow.try"] for span in (failed, good)] == [1, 2]
    assert failed.status.description == "ValueError: no money"
    assert (failed.status.is_ok, good.status.is_ok) == (False, True)
    assert number(failed) != number(good)
    assert failed.end_time <= good.start_time


async def test_a_cleared_task_that_runs_again_has_spans_of_its_own(tmp_path):
    async with traced(tmp_path) as (n, tracer):
        made = await n.api.trigger("one")
        await n.succeed()
        await ended(n)
        await n.api.clear(made.run_id)
        await n.succeed()
        await ended(n)

    assert len({number(span) for span in tracer.spans("only")}) == 2
    assert len({number(span) for span in tracer.spans("running")}) == 2


async def test_spans_that_come_too_fast_are_dropped_and_counted(monkeypatch):
    monkeypatch.setattr(tracing, "WAITING_LIMIT", 2)
    made = []
    traces = Traces(made.extend)
    span = Span(name="a", trace=1, span=1, parent=0, began=0, ended=1, attributes={})

    traces._put([span] * 5)
    async with running(traces):
        while traces.made < 2:
            await traces._make_waiting()

    assert (traces.made, traces.dropped, len(made)) == (2, 3, 2)


# ── ids ─────────────────────────────────────────────────────────────────────────────────


def test_ids_tell_homes_runs_kinds_and_starts_apart():
    traces = {trace_id(*of) for of in ((1, "a", 5), (1, "a", 6), (2, "a", 5), (1, "b", 5))}
    spans = {span_id(9, *of) for of in (("try", 1, 2), ("running", 1, 2), ("try", 12, 2))}

    assert (len(traces), len(spans)) == (4, 3)
    assert all(0 < trace < 1 << 128 for trace in traces)
    assert all(0 < span < 1 << 64 for span in spans)


# ── the child's side ────────────────────────────────────────────────────────────────────

INFO = RunInfo(1, "r", "d", "v", "f.py", None, 5, None, 1)
START = StartTask(run_no=1, task_no=7, start_no=3, task_index=0, map_index=-1, try_number=1)


def test_while_a_start_runs_its_process_says_which_span_it_is_in():
    trace = trace_id(1, "r", 5)
    with use_span(INFO, START):
        inside = otel.get_current_span().get_span_context()
        variable = os.environ["TRACEPARENT"]

    assert variable == traceparent(trace, 7, 3)
    assert (inside.trace_id, inside.span_id) == (trace, span_id(trace, "running", 7, 3))
    assert "TRACEPARENT" not in os.environ
    assert not otel.get_current_span().get_span_context().is_valid


def test_a_run_that_the_process_does_not_know_has_none():
    with use_span(None, START):
        assert "TRACEPARENT" not in os.environ


# ── the SDK ─────────────────────────────────────────────────────────────────────────────


def test_an_exporter_that_is_not_installed_is_reported(monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "nonsense")

    with pytest.raises(SettingsError, match=r"no exporter 'nonsense'.*aioflow-engine\[otel\]"):
        open_export()


def test_an_sdk_that_is_not_installed_is_reported(monkeypatch):
    monkeypatch.delitem(sys.modules, "aioflow.telemetry.otel_export")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)

    with pytest.raises(SettingsError, match=r"needs an SDK of OpenTelemetry.*\[otel\]"):
        importlib.import_module("aioflow.telemetry.otel_export")


def test_no_exporter_at_all_is_fine(monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")

    traces, close = open_export()
    close()

    assert (traces.made, traces.dropped) == (0, 0)
