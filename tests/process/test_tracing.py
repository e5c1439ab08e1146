"""A trace continues after ``kill -9``. A task's own spans are children of its running span."""

from __future__ import annotations

import json
import re

import pytest

from benchmarks.daemon import eventually
from tests.daemons import SharedDaemon

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

DAGS = """
import os

from opentelemetry import trace

from aioflow import dag, task, wait
from aioflow_triggers.events import EventTrigger


@task
def first() -> str:
    return os.environ.get("TRACEPARENT", "none")


@task
async def approved(before: str) -> str:
    await wait(EventTrigger("approved"))
    return f"{trace.get_current_span().get_span_context().span_id:016x}"


@dag
def traced() -> None:
    approved(first())
"""


def are_running(log, count):
    """Return whether there are ``count`` spans named ``running``.

    The last span in the log may be incomplete.
    """
    try:
        return len([span for span in spans_of(log) if span["name"] == "running"]) == count
    except json.JSONDecodeError:
        return False


def spans_of(log):
    """Return the spans that the console exporter has printed into a daemon's log."""
    text, decoder = log.read_text(errors="replace"), json.JSONDecoder()
    begins = re.finditer(r'^\{\n    "name": ', text, re.MULTILINE)
    return [decoder.raw_decode(text, begin.start())[0] for begin in begins]


def is_waited_in(daemon, run_id):
    return any(trigger["run_id"] == run_id for trigger in daemon.items("/api/v1/triggers"))


@pytest.mark.nightly
def test_a_run_that_waits_over_a_kill_is_one_trace(tmp_path):
    daemon = SharedDaemon(
        tmp_path,
        environment={
            "AIOFLOW_TRACES__EXPORT": "true",
            "OTEL_TRACES_EXPORTER": "console",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
        },
    )
    daemon.add("flows.py", DAGS)
    with daemon:
        run_id = daemon.trigger("traced")
        eventually(lambda: is_waited_in(daemon, run_id), 30)
        # Of the spans of both tasks, only that of the wait has not ended.
        eventually(lambda: are_running(daemon.log, 2))
        daemon.kill(whole_tree=True)
        daemon.start()
        daemon.request("POST", "/api/v1/events/approved")
        assert daemon.wait(run_id)["state"] == "success"
        tasks = {task["task_id"]: task for task in daemon.run(run_id)["tasks"]}

    spans = spans_of(daemon.log)
    by_name = {span["name"]: span for span in spans}
    assert len({span["context"]["trace_id"] for span in spans}) == 1
    assert by_name["run traced"]["parent_id"] is None
    for task in ("first", "approved"):
        assert by_name[task]["parent_id"] == by_name["run traced"]["context"]["span_id"]
    stays = [s for s in spans if s["parent_id"] == by_name["approved"]["context"]["span_id"]]
    assert [s["name"] for s in stays if s["name"] != "queued"] == ["running", "waiting", "running"]
    before, wait, after = (s for s in stays if s["name"] != "queued")
    assert {link["context"]["span_id"] for link in after["links"]} == {
        before["context"]["span_id"],
        wait["context"]["span_id"],
    }
    # After the kill, the task ran again from the top, so its result names the later span.
    assert f"0x{tasks['approved']['result']}" == after["context"]["span_id"]
    [stay] = [s for s in spans if s["parent_id"] == by_name["first"]["context"]["span_id"]
              and s["name"] == "running"]  # fmt: skip
    trace, span = stay["context"]["trace_id"][2:], stay["context"]["span_id"][2:]
    assert tasks["first"]["result"] == f"00-{trace}-{span}-01"


def test_without_the_setting_no_span_is_made_and_a_task_sees_none(shared_daemon):
    daemon = shared_daemon
    daemon.add("flows.py", DAGS)
    run_id = daemon.trigger("traced")
    eventually(lambda: is_waited_in(daemon, run_id), 30)
    [first, _] = daemon.run(run_id)["tasks"]
    assert 'aioflow_spans_total{outcome="made"} 0.0' in daemon.get("/metrics")[1]
    daemon.request("POST", "/api/v1/events/approved")
    daemon.wait(run_id)

    assert first["result"] == "none"
    assert spans_of(daemon.log) == []
