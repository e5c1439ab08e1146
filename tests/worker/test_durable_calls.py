"""Durable calls in the async host: made, recorded, waited for, and answered from the record."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from aioflow.author import codec
from aioflow.author.codec import decode
from aioflow.author.durable_calls import LABEL_LENGTH, Call, _checked_label
from aioflow.author.person import PersonTrigger
from aioflow.author.source_location import SourceLocation
from aioflow.author.trigger import serialize
from aioflow.model.decisions import PERSON
from aioflow.model.states import Failure
from aioflow.protocol.commands import (
    CallRecorded,
    ForgetRun,
    Hello,
    Reply,
    ResumeCoroutine,
    StartTask,
    StopTask,
)
from aioflow.protocol.reports import (
    Awaiting,
    CallAnswered,
    Failed,
    NextEventRequested,
    NotSuspended,
    Output,
    Query,
    RecordDropped,
    Skipped,
    StreamOpened,
    Succeeded,
)
from aioflow.redaction import Masks
from aioflow.worker.process import MEMORY_POLL_SECONDS, MemoryPressure
from aioflow.worker.query import values
from aioflow.worker.query.messages import RecordItem, RecordsPage, RecordsWanted
from aioflow.worker.task import durable_calls
from tests.worker.peer import Child, kinds, result_of, run_info, start, write_version

pytestmark = pytest.mark.process

HEAD = """
import asyncio, os, sys, threading
from dataclasses import dataclass
from aioflow import *

@dataclass
class Never(Trigger[int]):
    n: int = 0
    async def run(self):
        await asyncio.sleep(3600)
        yield TriggerEvent(self.n)

class Oops(Exception):
    pass

class Picky(Exception):
    def __init__(self, *, code):
        super().__init__(f"code {code}")

def plain(x: int = 1) -> int:
    print("step", x)
    return x

async def awaited(x: int = 1) -> tuple[int, ...]:
    return (x, x)

def fails(kind=Oops, *args):
    raise kind(*args)
"""


def encode(value: object) -> bytes:
    return codec.encode(value, "a value of the test")


class Talker:
    """An async host with one DAG of tasks ``work0``, ``work1`` ..., and a recording daemon."""

    def __init__(self, child: Child) -> None:
        self.child = child

    def begin(self, task_index: int = 0, **changes: Any) -> StartTask:
        order = start(task_index, **changes)
        self.child.send(order)
        return order

    def replay(self, *items: RecordItem, task_index: int = 0, start_no: int = 2) -> StartTask:
        """Begin a start of a task that made these calls in an earlier start."""
        order = self.begin(task_index, start_no=start_no, recorded=len(items))
        ask = self.child.expect(Query)
        wanted = msgspec.msgpack.decode(ask.body, type=RecordsWanted)
        assert (ask.kind, wanted.task_no, wanted.after) == ("records", order.task_no, -1)
        page = msgspec.msgpack.encode(RecordsPage(list(items), more=False))
        self.child.send(Reply(ask.question, page))
        return order

    def record(self) -> CallAnswered:
        """Receive the next call that does not have to wait, and confirm it."""
        call = self.child.expect(CallAnswered)
        self.child.send(CallRecorded(call.task_no, call.start_no, call.ordinal))
        return call

    def resume(
        self, suspended: Awaiting, answer: Any = None, failure: Failure | None = None
    ) -> ResumeCoroutine:
        body = None if failure is not None else encode(answer)
        order = ResumeCoroutine(
            1, suspended.task_no, suspended.start_no, suspended.start_no + 1, body, failure
        )
        self.child.send(order)
        return order


@pytest.fixture
def talk(home, spawn):
    """Return a function that starts a host for tasks with these bodies."""

    def talk(*bodies: str, options: str = "", top: str = "") -> Talker:
        source, made = HEAD + top, ""
        for number, body in enumerate(bodies):
            lines = "\n    ".join(body.strip().splitlines())
            source += f"\n@task({options})\nasync def work{number}():\n    {lines}\n"
            made += f"\n    work{number}()"
        write_version(home, flow=f"{source}\n@dag\ndef pipeline():{made}\n")
        child: Child = spawn("async")
        child.send(run_info())
        return Talker(child)

    return talk


def recorded(kind: str, name: str, answer: Any = None, failure: Failure | None = None) -> Any:
    body = None if failure is not None else encode(answer)
    return RecordItem(kind, name, "flow.py:9", body, failure)


# ── making calls ────────────────────────────────────────────────────────────────────────


def test_a_step_continues_once_it_is_recorded_and_returns_what_was_recorded(talk):
    host = talk("a = await step(plain, 7)\nb = await step(awaited, 8)\nreturn [a, list(b)]")
    host.begin()

    first, second = host.record(), host.record()

    assert [(c.ordinal, c.kind, c.name) for c in (first, second)] == [
        (0, "step", "flow:plain"),
        (1, "step", "flow:awaited"),
    ]
    assert first.source_location.startswith("flow.py:")
    assert result_of(host.child.expect(Succeeded)) == [7, [8, 8]]


def test_a_step_does_not_continue_before_it_is_recorded(talk):
    host = talk("await step(plain)", "return 5")
    host.begin(0)
    host.child.expect(CallAnswered)

    host.begin(1)

    assert host.child.expect(Succeeded).task_no == 101


def test_output_of_a_step_in_a_thread_is_in_the_log_of_its_task(talk):
    host = talk("print('before')\nawait step(plain, 3)\nprint('after')")
    host.begin()
    host.record()
    host.child.expect(Succeeded)

    reports = [report for frame in host.child.frames for report in frame]
    at = kinds(reports).index("CallAnswered")
    before = b"".join(r.data for r in reports[:at] if isinstance(r, Output))
    after = b"".join(r.data for r in reports[at:] if isinstance(r, Output))
    assert (before, after) == (b"before\nstep 3\n", b"after\n")
    assert all(r.task_no == 100 for r in reports if isinstance(r, Output))


def test_the_time_and_a_number_come_from_the_record(talk):
    host = talk("return [await now(), await uuid()]")
    host.begin()
    time, number = host.record(), host.record()
    first = result_of(host.child.expect(Succeeded))

    host.replay(
        RecordItem("now", "now", "", time.answer, None),
        RecordItem("uuid", "uuid", "", number.answer, None),
    )
    again = result_of(host.child.expect(Succeeded))

    assert first == again
    assert isinstance(decode(time.answer, datetime), datetime)
    assert isinstance(decode(number.answer, UUID), UUID)


def test_a_wait_suspends_and_continues_under_the_start_it_is_resumed_in(talk):
    host = talk("got = await wait(Never(4), timeout='1m')\nprint('on')\nreturn got")
    host.begin()

    suspended = host.child.expect(Awaiting)
    host.resume(suspended, 42)
    ended = host.child.expect(Succeeded)

    assert (suspended.kind, suspended.name, suspended.timeout_us) == ("wait", "Never", 60_000_000)
    ((class_path, kwargs),) = suspended.triggers
    assert (class_path, decode(kwargs)) == ("flow:Never", {"n": 4})
    assert (ended.start_no, result_of(ended)) == (2, 42)
    (output,) = [r for frame in host.child.frames for r in frame if isinstance(r, Output)]
    assert (output.start_no, output.data) == (2, b"on\n")


def test_a_sleep_names_no_trigger(talk):
    host = talk("await sleep('5m')\nreturn 1")
    host.begin()

    suspended = host.child.expect(Awaiting)
    host.child.send(ResumeCoroutine(1, suspended.task_no, 1, 2, None))

    assert (suspended.kind, suspended.triggers, suspended.timeout_us) == ("sleep", (), 300_000_000)
    assert result_of(host.child.expect(Succeeded)) == 1


def test_the_first_of_several_comes_with_its_index(talk):
    host = talk("index, got = await wait(any_of(Never(), Never()))\nreturn [index, got]")
    host.begin()

    host.resume(host.child.expect(Awaiting), [1, 42])

    assert result_of(host.child.expect(Succeeded)) == [1, 42]


def test_the_answers_of_all_come_as_a_list(talk):
    host = talk("return await wait(all_of(Never(), Never()))")
    host.begin()

    awaiting = host.child.expect(Awaiting)
    assert (awaiting.kind, len(awaiting.triggers)) == ("all_of", 2)
    host.resume(awaiting, [1, 42])

    assert result_of(host.child.expect(Succeeded)) == [1, 42]


def test_a_def_step_runs_in_a_thread_and_an_async_one_on_the_loop(talk):
    host = talk(
        "return [await step(where), await step(awhere)]",
        top="""
import threading
def where() -> bool: return threading.current_thread() is threading.main_thread()
async def awhere() -> bool: return threading.current_thread() is threading.main_thread()
""",
    )
    host.begin()
    host.record()
    host.record()

    assert result_of(host.child.expect(Succeeded)) == [False, True]


def test_a_timeout_is_raised_where_the_task_waits(talk):
    host = talk("try: await wait(Never(), timeout=1)\nexcept TimeoutError as e: return str(e)")
    host.begin()

    host.resume(
        host.child.expect(Awaiting),
        failure=Failure(type="TimeoutError", message="gave no event", reason="timeout"),
    )

    assert result_of(host.child.expect(Succeeded)) == "gave no event"


# ── answers from the record ─────────────────────────────────────────────────────────────


def test_recorded_calls_answer_at_once_and_do_nothing(talk):
    host = talk(
        "a = await step(plain)\nb = await wait(Never())\nc = await step(plain, a + b)\nreturn c"
    )

    host.replay(recorded("step", "flow:plain", 10), recorded("wait", "Never", 20))
    call = host.record()

    assert (call.ordinal, decode(call.answer)) == (2, 30)
    assert result_of(host.child.expect(Succeeded)) == 30


def test_many_records_come_page_by_page(talk):
    host = talk("return sum([await step(plain) for _ in range(5)])")
    order = host.begin(start_no=2, recorded=5)
    for after, more in ((-1, True), (1, True), (3, False)):
        ask = host.child.expect(Query)
        assert msgspec.msgpack.decode(ask.body, type=RecordsWanted).after == after
        items = [recorded("step", "flow:plain", 1)] * (2 if more else 1)
        host.child.send(Reply(ask.question, msgspec.msgpack.encode(RecordsPage(items, more))))

    assert result_of(host.child.expect(Succeeded)) == 5
    assert order.recorded == 5


@pytest.mark.parametrize(
    ("item", "body"),
    [
        pytest.param(recorded("wait", "Never"), "await step(plain)", id="kind"),
        pytest.param(recorded("step", "flow:awaited"), "await step(plain)", id="function"),
        pytest.param(recorded("wait", "Other"), "await wait(Never())", id="trigger"),
        pytest.param(recorded("any_of", "Never"), "await wait(any_of(Never(), Never()))",
                     id="count"),
    ],
)  # fmt: skip
def test_another_call_than_the_recorded_one_fails_with_both_and_their_places(talk, item, body):
    host = talk("await step(plain)\n" + body)

    host.replay(recorded("step", "flow:plain", 1), item)

    failed = host.child.expect(Failed)
    assert (failed.failure.type, failed.failure.reason) == ("CallMismatch", "call_mismatch")
    assert not failed.retryable
    assert f"durable call 1 was {item.kind}({item.name}) at flow.py:9" in failed.failure.message
    assert " at flow.py:" in failed.failure.message.partition(" and is ")[2]


def test_other_arguments_are_no_mismatch(talk):
    host = talk("return await step(plain, 99) + await wait(Never(99))")

    host.replay(recorded("step", "flow:plain", 1), recorded("wait", "Never", 2))

    assert result_of(host.child.expect(Succeeded)) == 3


def test_changed_code_may_start_over_with_an_empty_record(talk, home):
    host = talk(
        f"try: await step(plain)\nfinally: open({str(home / 'left')!r}, 'w')",
        "return 1",
        options="on_code_change='restart'",
    )

    host.replay(recorded("wait", "Never"))
    dropped = host.child.expect(RecordDropped)
    host.begin(1)

    assert (dropped.first, dropped.starts_over, dropped.start_no) == (0, True, 2)
    assert host.child.expect(Succeeded).task_no == 101
    assert (home / "left").exists()
    assert {"Failed", "CallAnswered"}.isdisjoint(k for f in host.child.frames for k in kinds(f))


def test_changed_code_may_keep_what_still_matches(talk):
    host = talk(
        "return [await step(plain, 5), list(await step(awaited, 6)), await step(plain, 7)]",
        options="on_code_change='keep'",
    )

    host.replay(
        recorded("step", "flow:plain", 1),
        recorded("wait", "Never", 2),
        recorded("step", "flow:plain", 3),
    )
    dropped = host.child.expect(RecordDropped)
    calls = [host.record(), host.record()]

    assert (dropped.first, dropped.starts_over) == (1, False)
    assert [call.ordinal for call in calls] == [1, 2]
    assert result_of(host.child.expect(Succeeded)) == [1, [6, 6], 7]


# ── exceptions of steps ─────────────────────────────────────────────────────────────────


def test_exceptions_of_a_step_are_recorded_and_raised(talk):
    host = talk("try: await step(fails, Oops, 'so', 5)\nexcept Oops as e: return list(e.args)")
    host.begin()

    call = host.record()

    assert call.failure == Failure(type="flow:Oops", message="('so', 5)", reason="step")
    assert result_of(host.child.expect(Succeeded)) == ["so", 5]


def test_a_recorded_exception_is_restored_with_its_class(talk):
    host = talk("try: await step(fails, Oops, 'so', 5)\nexcept Oops as e: return list(e.args)")
    host.begin()
    call = host.record()
    host.child.expect(Succeeded)

    host.replay(RecordItem(call.kind, call.name, call.source_location, call.answer, call.failure))

    assert result_of(host.child.expect(Succeeded)) == ["so", 5]


@pytest.mark.parametrize(
    "kind", ["flow:Gone", "flow:Picky", "flow:plain", "no.such.module:Error", "Nested.<locals>"]
)
def test_exceptions_that_cannot_be_restored_are_named(talk, kind):
    host = talk("try: await step(plain)\nexcept Exception as e: return [type(e).__name__, str(e)]")

    item = recorded(
        "step", "flow:plain", failure=Failure(type=kind, message="it was so", reason="step")
    )
    host.replay(msgspec.structs.replace(item, answer=encode(["a"])))

    name, text = result_of(host.child.expect(Succeeded))
    assert name == "StepFailed"
    assert kind in text
    assert "it was so" in text


def test_an_error_of_the_standard_library_is_made_again(talk):
    body = "try: await step(fails, ValueError, 'no')\nexcept ValueError as e: return str(e)"
    host = talk(body)
    host.begin()
    call = host.record()
    host.child.expect(Succeeded)

    host.replay(RecordItem(call.kind, call.name, call.source_location, call.answer, call.failure))

    assert result_of(host.child.expect(Succeeded)) == "no"


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        pytest.param("object()", "Unserializable", id="unserializable"),
        pytest.param("'x' * 1_100_000", "ValueTooLarge", id="too-large"),
    ],
)
def test_a_result_that_cannot_be_recorded_is_a_failure_of_its_step(talk, value, kind):
    host = talk(
        "try: await step(bad)\nexcept Exception as e: print(e)\nreturn await step(plain, 2)",
        top=f"\ndef bad(): return {value}\n",
    )
    host.begin()

    first, second = host.record(), host.record()

    assert first.failure.type.endswith(f":{kind}")
    assert (first.ordinal, second.ordinal) == (0, 1)
    assert result_of(host.child.expect(Succeeded)) == 2


@pytest.mark.parametrize(
    ("value", "reason"),
    [("object()", "unserializable"), ("'x' * 1_100_000", "payload_too_large")],
)
def test_a_result_that_cannot_be_recorded_ends_the_task_as_one_of_its_own_also_later(
    talk, value, reason
):
    host = talk("await step(bad)", top=f"\ndef bad(): return {value}\n")
    host.begin()
    call = host.record()
    first = host.child.expect(Failed)

    host.replay(RecordItem(call.kind, call.name, call.source_location, call.answer, call.failure))

    again = host.child.expect(Failed)
    assert (first.failure.reason, first.retryable) == (reason, False)
    assert (again.failure, again.retryable) == (first.failure, False)


@pytest.mark.parametrize(
    ("raised", "kind"), [("Skip('no')", Skipped), ("Fail('no')", Failed), ("RetryAfter(5)", Failed)]
)
def test_outcomes_of_the_task_raised_in_a_step_are_not_recorded(talk, raised, kind):
    host = talk("await step(say)", top=f"\ndef say(): raise {raised}\n")
    host.begin()

    host.child.expect(kind)

    assert "CallAnswered" not in [k for frame in host.child.frames for k in kinds(frame)]


def test_a_call_that_was_never_made_does_not_count(talk):
    body = """
try: await step(say)
except Skip: pass
try: await wait(Bad(object()))
except Unserializable: pass
return await step(plain, 2)
"""
    host = talk(
        body,
        top="\ndef say(): raise Skip('no')\n@dataclass\nclass Bad(Never):\n    x: object = None\n",
    )
    host.begin()

    assert host.record().ordinal == 0
    assert result_of(host.child.expect(Succeeded)) == 2


@pytest.mark.parametrize(
    "fn",
    [
        pytest.param("functools.partial(plain, 4)", id="partial"),
        pytest.param("functools.partial(awaited_int, 4)", id="async-partial"),
        pytest.param("lambda: 4", id="lambda"),
        pytest.param("lambda: awaited_int(4)", id="lambda-of-a-coroutine"),
        pytest.param("Four()", id="instance"),
        pytest.param("Four().method", id="method"),
    ],
)
def test_every_callable_can_be_a_step(talk, fn):
    host = talk(
        f"return await step({fn})",
        top="""
import functools
async def awaited_int(x: int) -> int: return x
class Four:
    def __call__(self): return 4
    def method(self): return 4
""",
    )
    host.begin()

    host.record()

    assert result_of(host.child.expect(Succeeded)) == 4


# ── one call at a time ──────────────────────────────────────────────────────────────────


def test_two_steps_at_once_are_refused(talk):
    host = talk("await asyncio.gather(step(awaited), step(awaited))")
    host.begin()

    failed = host.child.expect(Failed)

    assert failed.failure.type == "RuntimeError"
    assert "one durable call at a time" in failed.failure.message
    assert "any_of()" in failed.failure.message


def test_two_waits_at_once_fail_the_try_instead_of_waiting_for_ever(talk):
    host = talk("await asyncio.gather(wait(Never()), wait(Never()))")
    host.begin()

    assert host.child.expect(Awaiting).ordinal == 0
    assert "one durable call at a time" in host.child.expect(Failed).failure.message


@pytest.mark.parametrize(
    "call",
    ["wait(Never())", "sleep(9)", "step(plain)", "now()", "uuid()", "run_dag('a')", "emit('a')"],
)
def test_a_call_that_a_task_of_asyncio_awaits_is_named_by_the_line_that_made_it(talk, call):
    host = talk(f"first = asyncio.create_task({call})\nawait asyncio.gather(now(), first)")
    host.begin()

    message = host.child.expect(Failed).failure.message

    second, first = map(int, re.findall(r"flow\.py:(\d+)", message))
    assert second == first + 1


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("return 1", id="returns"),
        pytest.param("raise Skip('enough')", id="skips"),
        pytest.param("raise asyncio.CancelledError", id="cancelled"),
    ],
)
def test_a_body_that_ends_while_a_task_of_its_own_still_waits_fails(talk, body):
    host = talk(
        "waiting = asyncio.create_task(wait(Never()))\nawait asyncio.sleep(0)\n"
        f"await asyncio.sleep(0)\n{body}"
    )
    host.begin()

    host.child.expect(Awaiting)
    failed = host.child.expect(Failed)

    assert failed.failure.reason in {"call_cut_short", "raised"}
    if "raise asyncio" not in body:
        assert failed.failure.type == "CallCutShort"
        assert not failed.retryable


def test_a_body_that_ends_while_a_task_of_its_own_is_in_a_step_has_ended(talk):
    host = talk(
        "working = asyncio.create_task(step(gate.wait))\nawait asyncio.sleep(0)\nreturn 1",
        "gate.set()\nawait asyncio.sleep(0.05)\nreturn 2",
        top="\ngate = asyncio.Event()\n",
    )
    host.begin(0)
    assert result_of(host.child.expect(Succeeded)) == 1

    host.begin(1)

    assert result_of(host.child.expect(Succeeded)) == 2


def test_a_wait_in_a_step_is_refused(talk):
    host = talk(
        "try: await step(inner)\nexcept RuntimeError as e: return str(e)",
        top="\nasync def inner(): await wait(Never())\n",
    )
    host.begin()

    host.record()

    assert "while step() of flow.py:" in result_of(host.child.expect(Succeeded))


def test_a_wait_in_the_thread_of_a_step_is_refused(talk):
    host = talk(
        "try: await step(inner)\nexcept RuntimeError as e: return str(e)",
        top="\ndef inner(): asyncio.run(wait(Never()))\n",
    )
    host.begin()

    host.record()

    assert "one durable call at a time" in result_of(host.child.expect(Succeeded))


# ── calls cut short ─────────────────────────────────────────────────────────────────────


CUT = """
try:
    async with asyncio.timeout(0.01):
        await {call}
except TimeoutError:
    {then}
"""


def test_a_wait_cut_short_by_its_own_task_fails_the_try_and_says_how_to_do_it(talk):
    host = talk(CUT.format(call="wait(Never())", then="return 1"))
    host.begin()

    host.child.expect(Awaiting)
    failed = host.child.expect(Failed)

    assert (failed.failure.type, failed.failure.reason) == ("CallCutShort", "call_cut_short")
    assert "wait(Never) at flow.py:" in failed.failure.message
    assert "timeout=" in failed.failure.message
    assert not failed.retryable


def test_after_a_call_was_cut_short_no_other_is_made(talk):
    host = talk(CUT.format(call="step(asyncio.sleep, 60)", then="await step(plain)"))
    host.begin()

    failed = host.child.expect(Failed)

    assert failed.failure.reason == "call_cut_short"
    assert "CallAnswered" not in [k for frame in host.child.frames for k in kinds(frame)]


def test_a_step_cut_short_does_no_harm_if_no_call_comes_after_it(talk):
    host = talk(CUT.format(call="step(asyncio.sleep, 60)", then="return 1"))
    host.begin()

    assert result_of(host.child.expect(Succeeded)) == 1


def test_a_coroutine_that_left_its_wait_is_not_resumed(talk):
    host = talk(CUT.format(call="wait(Never())", then="await asyncio.sleep(0.5)"))
    host.begin()
    suspended = host.child.expect(Awaiting)
    host.child.expect(Failed)

    host.resume(suspended, 1)

    assert host.child.expect(NotSuspended).start_no == 2


def test_a_wait_made_after_the_try_was_stopped_counts_for_nothing(talk):
    host = talk(
        "try: await wait(Never())\nexcept asyncio.CancelledError: await wait(Never())", "return 2"
    )
    host.begin(0)
    suspended = host.child.expect(Awaiting)

    host.child.send(StopTask(suspended.task_no, 1, "cancelled"))
    host.begin(1)

    assert host.child.expect(Succeeded).task_no == 101
    host.child.close()
    calls = [r for frame in host.child.frames for r in frame if isinstance(r, Awaiting)]
    assert len(calls) == 1


def test_a_task_that_swallows_its_end_in_a_loop_blocks_no_other(talk):
    host = talk(
        "while True:\n    try: await wait(Never())\n    except asyncio.CancelledError: pass",
        "return 2",
    )
    host.begin(0)
    suspended = host.child.expect(Awaiting)

    host.child.send(StopTask(suspended.task_no, 1, "cancelled"))
    host.begin(1)

    assert host.child.expect(Succeeded).task_no == 101


# ── resuming ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("was_start_no", [1, 3], ids=["never-started", "another-start"])
def test_coroutines_not_suspended_here_are_not_resumed(talk, was_start_no):
    host = talk("await wait(Never())", "await wait(Never())")
    host.begin(1, start_no=2)
    host.child.expect(Awaiting)

    task_no = 101 if was_start_no == 3 else 100
    host.child.send(ResumeCoroutine(1, task_no, was_start_no, 9, b"\x01"))

    unknown = host.child.expect(NotSuspended)
    assert (unknown.task_no, unknown.start_no) == (task_no, 9)


def test_a_start_takes_the_place_of_the_coroutine_that_was_suspended(talk, home):
    host = talk(f"try: return await wait(Never())\nfinally: open({str(home / 'left')!r}, 'a')")
    host.begin(0)
    suspended = host.child.expect(Awaiting)

    host.replay(recorded("wait", "Never", 8), start_no=5)

    assert result_of(host.child.expect(Succeeded)) == 8
    host.resume(suspended, 1)
    host.child.expect(NotSuspended)
    assert Path(home / "left").exists()


def test_a_confirmation_of_an_earlier_call_is_late(talk):
    host = talk("await step(plain)\nreturn await step(plain, 2)", "return 5")
    host.begin(0)
    first = host.record()
    second = host.child.expect(CallAnswered)

    host.child.send(CallRecorded(first.task_no, first.start_no, first.ordinal))
    host.begin(1)
    assert host.child.expect(Succeeded).task_no == 101  # the first still waits
    host.child.send(CallRecorded(second.task_no, second.start_no, second.ordinal))

    assert result_of(host.child.expect(Succeeded)) == 2


def test_the_end_of_a_run_releases_coroutines_that_are_still_suspended(talk, home):
    host = talk(f"try: await wait(Never())\nfinally: open({str(home / 'left')!r}, 'w')", "return 2")
    host.begin(0)
    host.child.expect(Awaiting)

    host.child.send(ForgetRun(1), run_info())
    host.begin(1)

    host.child.expect(Succeeded)
    assert (home / "left").exists()


# ── where there are no calls ────────────────────────────────────────────────────────────


def test_outside_of_aioflow_a_call_says_where_it_belongs(talk):
    from aioflow import sleep

    with pytest.raises(RuntimeError, match="`async def` tasks that aioflow runs"):
        sleep(1).send(None)


def test_in_a_sensor_a_call_says_where_it_belongs(home, spawn):
    source = (
        "\n@sensor\nasync def seen():\n    await sleep(1)\n\n@dag\ndef pipeline():\n    seen()\n"
    )
    write_version(home, flow=HEAD + source)
    child = spawn("async")
    child.send(run_info(), start(0))

    failed = child.expect(Failed)

    assert failed.failure.type == "RuntimeError"
    assert "sleep() works in `async def` tasks" in failed.failure.message


def test_in_a_def_task_a_call_says_where_it_belongs(home, spawn):
    source = (
        "\n@task\ndef work():\n    asyncio.run(step(plain))\n\n@dag\ndef pipeline():\n    work()\n"
    )
    write_version(home, flow=HEAD + source)
    child = spawn("slot")
    child.send(run_info(), start(0))

    failed = child.expect(Failed)

    assert "Operator.defer()" in failed.failure.message


# ── memory ──────────────────────────────────────────────────────────────────────────────


class Meter:
    def __init__(self, used: int) -> None:
        self.used = used

    def __call__(self) -> int:
        return self.used


@pytest.mark.parametrize(
    ("used", "excess"), [(50, 0), (100, 0), (101, 1), (125, 20), (200, 50), (10_000, 99)]
)
def test_the_excess_share_is_released(used, excess):
    assert MemoryPressure(100, Meter(used)).excess(100) == excess


def test_there_is_one_look_in_its_time_and_none_without_a_limit():
    pressure = MemoryPressure(100, Meter(500))

    assert [
        pressure.is_due(at)
        for at in (5.0, 5.0 + MEMORY_POLL_SECONDS / 2, 5.0 + MEMORY_POLL_SECONDS)
    ] == [
        True,
        False,
        True,
    ]
    assert not MemoryPressure(0, Meter(500)).is_due(5.0)


def test_the_meter_sees_what_a_process_takes():
    """This uses a separate process: here, memory of earlier tests may be freed at any time."""
    program = """
from aioflow.worker.process import own_memory
before = own_memory()
taken = bytearray(b"x") * 64_000_000
print(own_memory() - before, len(taken))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    seen, taken = map(int, done.stdout.split())
    assert 60_000_000 < seen < 68_000_000
    assert taken == 64_000_000


def test_a_host_above_its_limit_releases_suspended_coroutines_and_runs_them_again(home, spawn):
    source = """
@task
async def work() -> int:
    return await wait(Never())

@dag
def pipeline():
    work()
"""
    write_version(home, flow=HEAD + source)
    child = spawn("async", memory_limit_bytes=1, started=True)
    child.send(run_info(), start(0))
    suspended = child.expect(Awaiting)
    talker = Talker(child)

    talker.resume(suspended, 5)

    assert child.expect(NotSuspended).start_no == 2
    talker.replay(recorded("wait", "Never", 5), start_no=3)
    assert result_of(child.expect(Succeeded)) == 5
    assert "Failed" not in [k for frame in child.frames for k in kinds(frame)]
    assert Hello("async", "", "").memory_limit_bytes == 0


def test_a_stream_whose_reader_was_released_is_read_by_a_start_from_the_top(home, spawn):
    """The event had already arrived, so only the host knows that nothing reads it any more."""
    source = """
@task
async def work() -> int:
    async for event in stream(Never()):
        return event

@dag
def pipeline():
    work()
"""
    write_version(home, flow=HEAD + source)
    child = spawn("async", memory_limit_bytes=1)
    child.send(run_info(), start(0))
    opened = child.expect(StreamOpened)
    child.send(CallRecorded(opened.task_no, opened.start_no, opened.ordinal))
    wanted = child.expect(NextEventRequested)

    child.send(CallRecorded(wanted.task_no, wanted.start_no, wanted.ordinal, encode(5)))

    assert child.expect(NotSuspended).start_no == wanted.start_no


# ── labels ──────────────────────────────────────────────────────────────────────────────


def test_a_label_is_reported_and_a_replay_does_not_compare_it(talk):
    body = "return await step(plain, 5, label='double it')"
    host = talk(body)
    host.begin()
    call = host.record()
    host.child.expect(Succeeded)

    host.replay(RecordItem(call.kind, call.name, call.source_location, call.answer, call.failure))

    assert (call.label, call.name) == ("double it", "flow:plain")
    assert result_of(host.child.expect(Succeeded)) == 5


def test_a_wait_reports_its_label(talk):
    host = talk("await sleep(60, label=' the cooling-off\\n period ')")
    host.begin()

    assert host.child.expect(Awaiting).label == "the cooling-off period"


def test_a_label_is_masked_and_bounded(monkeypatch):
    masks = Masks()
    masks.hide(["s3cr3t-of-the-bank"])
    monkeypatch.setattr(durable_calls, "masks", masks)
    here = SourceLocation("flow.py", 1)

    labelled = durable_calls._label(Call("wait", "T", here, f"s3cr3t-of-the-bank {'x' * 400}"))

    assert labelled.startswith("*** xxx")
    assert len(labelled) == LABEL_LENGTH


def test_a_secret_across_the_limit_of_a_label_is_masked_whole(monkeypatch):
    masks = Masks()
    masks.hide(["s3cr3t-of-the-bank"])
    monkeypatch.setattr(durable_calls, "masks", masks)
    checked = _checked_label("wait", f"{'x' * (LABEL_LENGTH - 12)}s3cr3t-of-the-bank")

    labelled = durable_calls._label(Call("wait", "T", SourceLocation("flow.py", 1), checked))

    assert labelled == f"{'x' * (LABEL_LENGTH - 12)}***"


def test_secrets_in_a_question_are_masked_before_it_is_stored(monkeypatch):
    masks = Masks()
    masks.hide(["s3cr3t-of-the-bank"])
    monkeypatch.setattr(values, "masks", masks)
    asked = PersonTrigger("Use s3cr3t-of-the-bank?", details="as s3cr3t-of-the-bank@db")

    stored = serialize(values.without_secrets(asked))

    assert stored[0] == PERSON
    fields = msgspec.msgpack.decode(stored[1])
    assert (fields["question"], fields["details"]) == ("Use ***?", "as ***@db")
    assert asked.question == "Use s3cr3t-of-the-bank?"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        pytest.param("await sleep(1, label=7)", "takes a string, got a int", id="no-text"),
        pytest.param("await step(named, label='x')", "has a parameter", id="own-parameter"),
    ],
)
def test_a_label_that_cannot_be_meant_is_refused(talk, body, problem):
    host = talk(body, top="\ndef named(label): return label\n")
    host.begin()

    assert problem in host.child.expect(Failed).failure.message
