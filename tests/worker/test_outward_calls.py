"""Durable calls that reach beyond the task: emitted events, runs of other DAGs, serial waits."""

from __future__ import annotations

from typing import Any

import pytest

from aioflow.author.codec import decode, encode
from aioflow.model.states import Failure
from aioflow.protocol.commands import CallRecorded, ResumeCoroutine
from aioflow.protocol.reports import (
    Awaiting,
    EventEmitted,
    Failed,
    NextEventRequested,
    RunCalled,
    StreamOpened,
    Succeeded,
)
from tests.worker.peer import Child, result_of, run_info, write_version
from tests.worker.test_durable_calls import Talker, recorded

pytestmark = pytest.mark.process

TOP = """
from aioflow import *
from aioflow.errors import UnknownDag
from aioflow_triggers.events import EventTrigger

def threaded():
    emit("from a thread")

@task
async def work():
    {body}

@dag
def pipeline():
    work()

@dag("invoices")
def other(n: int = 1):
    work()
"""


@pytest.fixture
def talk(home, spawn):
    """Return a function that starts a host for a task with this body."""

    def talk(body: str) -> Talker:
        lines = "\n    ".join(body.strip().splitlines())
        write_version(home, flow=TOP.replace("{body}", lines))
        child: Child = spawn("async")
        child.send(run_info())
        return Talker(child)

    return talk


def confirm(host: Talker, call: Any, answer: Any = None, failure: Failure | None = None) -> None:
    body = None if answer is None else encode(answer, "an answer")
    host.child.send(CallRecorded(call.task_no, call.start_no, call.ordinal, body, failure))


# ── emitting ────────────────────────────────────────────────────────────────────────────


def test_an_event_is_reported_and_the_body_continues_once_it_is_stored(talk):
    host = talk("await emit('approved', key='k', data={'n': 1})\nawait emit('plain')")
    host.begin()

    first = host.child.expect(EventEmitted)
    confirm(host, first)
    second = host.child.expect(EventEmitted)
    confirm(host, second)

    host.child.expect(Succeeded)
    assert (first.ordinal, first.kind, first.name) == (0, "emit", "emit")
    assert (first.event, first.key, decode(first.data)) == ("approved", "k", {"n": 1})
    assert (second.event, second.key, decode(second.data)) == ("plain", None, None)
    assert first.source_location.startswith("flow.py:")


def test_an_event_that_is_recorded_is_not_emitted_again(talk):
    host = talk("await emit('first')\nawait emit('second')")

    host.replay(recorded("emit", "emit"))

    assert host.child.expect(EventEmitted).event == "second"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        pytest.param("emit('')", "BadEvent", "name", id="no-name"),
        pytest.param("emit('e', key='k' * 251)", "BadEvent", "key", id="long-key"),
        pytest.param("emit('e\\n')", "BadEvent", "printable", id="line-break"),
        pytest.param("emit('e', data='x' * 1024 ** 2)", "BadEvent", "allowed", id="large"),
        pytest.param("emit('e', data=object())", "Unserializable", "object", id="no-data"),
        pytest.param("step(threaded)", "RuntimeError", "`async def`", id="in-a-thread"),
        pytest.param("run_dag(5)", "TypeError", "int", id="no-dag"),
        pytest.param("run_dag('d', n='x' * 1024 ** 2)", "BadConf", "allowed", id="large-conf"),
    ],
)
def test_impossible_calls_are_refused_where_they_are_made(talk, call, error, message):
    body = f"try:\n    await {call}\nexcept Exception as exc:\n    return repr(exc)"
    host = talk(body)
    host.begin()
    if "step" in call:
        host.record()

    told = result_of(host.child.expect(Succeeded))

    assert told.startswith(error)
    assert message in told


def test_emit_outside_of_a_task_fails():
    from aioflow import emit

    with pytest.raises(RuntimeError, match="aioflow events emit"):
        _ = emit("approved")


# ── running another DAG ─────────────────────────────────────────────────────────────────


def run_called(host: Talker) -> RunCalled:
    return host.child.expect(RunCalled)


def resume(host: Talker, call: RunCalled, answer: Any, failure: Failure | None = None) -> None:
    body = encode(answer, "an answer")
    at = (1, call.task_no, call.start_no, call.start_no + 1)
    host.child.send(ResumeCoroutine(*at, body, failure))


@pytest.mark.parametrize("given", ["other", "'invoices'"])
def test_a_dag_is_run_by_itself_or_by_name_and_its_outcome_returned(talk, given):
    host = talk(f"return await run_dag({given}, n=4, a=None)")
    host.begin()
    call = run_called(host)

    resume(host, call, {"state": "partial", "run_id": "r", "result": None})

    told = result_of(host.child.expect(Succeeded))
    assert (call.kind, call.name, call.dag_id) == ("run_dag", "invoices", "invoices")
    assert decode(call.conf or b"") == {"a": None, "n": 4}
    assert told == {"state": "partial", "run_id": "r", "result": None}


def test_a_dag_without_parameters_has_no_conf(talk):
    host = talk("await run_dag('d')")
    host.begin()

    assert run_called(host).conf is None


FAILED = Failure(type="aioflow.errors:DagRunFailed", message="m", reason="dag_run_failed")
UNKNOWN = Failure(type="aioflow.errors:UnknownDag", message="m", reason="run_refused")


@pytest.mark.parametrize("replayed", [False, True])
def test_a_run_that_failed_raises_what_says_which(talk, replayed):
    host = talk(
        "try:\n    await run_dag('d')\n"
        "except DagRunFailed as exc:\n    return [exc.dag_id, exc.run_id, exc.state]"
    )
    if replayed:
        item = recorded("run_dag", "d")
        arguments = encode(["d", "r", "cancelled"], "arguments")
        host.replay(type(item)("run_dag", "d", "", arguments, FAILED))
    else:
        host.begin()
        resume(host, run_called(host), ["d", "r", "cancelled"], FAILED)

    assert result_of(host.child.expect(Succeeded)) == ["d", "r", "cancelled"]


def test_a_dag_that_is_not_there_is_an_error_of_the_call(talk):
    host = talk("try:\n    await run_dag('d')\nexcept UnknownDag as exc:\n    return exc.dag_id")
    host.begin()

    confirm(host, run_called(host), ["d"], UNKNOWN)

    assert result_of(host.child.expect(Succeeded)) == "d"


def test_an_uncaught_error_fails_the_try(talk):
    host = talk("await run_dag('d')")
    host.begin()

    resume(host, run_called(host), ["d", "r", "failed"], FAILED)

    ended = host.child.expect(Failed)
    assert "run 'r' of DAG 'd' ended failed" in ended.failure.message
    assert ended.retryable


# ── waits in a row ──────────────────────────────────────────────────────────────────────


def event(number: int, key: str | None = None) -> dict[str, Any]:
    return {"name": "e", "key": key, "data": None, "id": number}


def fields(suspended: Awaiting) -> list[Any]:
    return [decode(kwargs) for _, kwargs in suspended.triggers]


def test_each_wait_for_a_name_continues_after_the_event_of_the_previous_one(talk):
    host = talk(
        "for _ in range(2):\n    await wait(EventTrigger('e'))\n"
        "await wait(EventTrigger('e', key='k'))\nawait wait(EventTrigger('f'))"
    )
    host.begin()
    seen = []
    for number in (5, 9, 7, 3):
        suspended = host.child.expect(Awaiting)
        seen += [field["after"] for field in fields(suspended)]
        host.resume(suspended, event(number))

    host.child.expect(Succeeded)
    assert seen == [None, 5, None, None]


def test_a_replay_comes_to_the_same_place(talk):
    host = talk("for _ in range(3):\n    await wait(EventTrigger('e'))")

    host.replay(
        recorded("wait", "EventTrigger", event(5)), recorded("wait", "EventTrigger", event(9))
    )

    assert fields(host.child.expect(Awaiting)) == [{"name": "e", "key": None, "after": 9}]


def test_only_the_branch_that_got_an_event_continues(talk):
    host = talk(
        "a, b = EventTrigger('e', 'a'), EventTrigger('e', 'b')\n"
        "await wait(any_of(a, b))\nawait wait(all_of(a, b))\nawait wait(any_of(a, b))"
    )
    host.begin()
    seen = []
    for answer in ([1, event(5)], [event(7), event(8)], [0, event(9)]):
        suspended = host.child.expect(Awaiting)
        seen.append([field["after"] for field in fields(suspended)])
        host.resume(suspended, answer)

    host.child.expect(Succeeded)
    assert seen == [[None, None], [None, 5], [7, 8]]


def test_a_wait_that_timed_out_stays_where_it_was(talk):
    host = talk(
        "await wait(EventTrigger('e'))\ntry:\n    await wait(EventTrigger('e'), timeout=1)\n"
        "except TimeoutError:\n    await wait(EventTrigger('e'))"
    )
    late = Failure(type="TimeoutError", message="m", reason="timeout")

    host.replay(
        recorded("wait", "EventTrigger", event(5)),
        recorded("wait", "EventTrigger", failure=late),
    )

    assert fields(host.child.expect(Awaiting))[0]["after"] == 5


def test_a_stream_begins_behind_the_last_wait_and_a_wait_behind_what_was_streamed(talk):
    host = talk(
        "await wait(EventTrigger('e'))\nasync for event in stream(EventTrigger('e')):\n    break\n"
        "await wait(EventTrigger('e'))"
    )
    host.replay(recorded("wait", "EventTrigger", event(5)))
    opened = host.child.expect(StreamOpened)
    confirm(host, opened)
    wanted = host.child.expect(NextEventRequested)
    confirm(host, wanted, event(8))

    assert decode(opened.kwargs)["after"] == 5
    assert fields(host.child.expect(Awaiting))[0]["after"] == 8


def test_a_replayed_stream_is_counted_too(talk):
    host = talk(
        "async for event in stream(EventTrigger('e')):\n    break\nawait wait(EventTrigger('e'))"
    )

    host.replay(
        recorded("stream", "EventTrigger", None), recorded("next", "EventTrigger#0", event(8))
    )

    assert fields(host.child.expect(Awaiting))[0]["after"] == 8
