from __future__ import annotations

import os
import signal

import msgspec
import pytest

from aioflow.author.codec import decode, encode
from aioflow.protocol.commands import Describe, ForgetRun, Reply, StartTask, StopTask
from aioflow.protocol.reports import (
    CallAnswered,
    Deferred,
    Described,
    Failed,
    Output,
    Query,
    Skipped,
    Succeeded,
)
from aioflow.results import result_path
from aioflow.worker.query.messages import ResultsPage, RunEnded, RunEnding, RunsWanted
from aioflow.worker.shared_host import REPORTS_AT_ONCE
from tests.differing import differing
from tests.worker.peer import Child, kinds, result_of, run_info, start, write_version

pytestmark = pytest.mark.process

HEAD = """
import asyncio, contextlib, os, sys, threading
from collections.abc import Sequence
from datetime import UTC, datetime
from aioflow import *
"""


@pytest.fixture
def host(home, spawn):
    """Return a function that starts an async host for a DAG file and announces a run to it."""

    def host(source: str, **options: object) -> Child:
        write_version(home, flow=HEAD + source)
        child: Child = spawn("async", **options)
        child.send(run_info())
        return child

    return host


def tasks(*bodies: str, options: str = "") -> str:
    """Return a DAG of async tasks with these bodies."""
    source, calls = "", ""
    for number, body in enumerate(bodies):
        lines = "\n    ".join(body.strip().splitlines())
        source += f"\n@task({options})\nasync def work{number}():\n    {lines}\n"
        calls += f"\n    work{number}()"
    return f"{source}\n@dag\ndef pipeline():{calls}\n"


def test_coroutines_run_side_by_side_and_report_in_one_frame(host):
    # The first waits for the second, so if they ran one after the other, they would never end.
    child = host(
        "gate = asyncio.Event()" + tasks("await gate.wait()\nreturn 1", "gate.set()\nreturn 2")
    )

    child.send(start(0), start(1))
    ended = {child.expect(Succeeded).task_no, child.expect(Succeeded).task_no}

    assert ended == {100, 101}
    assert kinds(child.frames[0]) == ["Succeeded", "Succeeded"]


def test_early_ends_of_very_many_are_reported_while_the_others_run(host):
    child = host(tasks("return 1"))

    child.send(*(start(0, task_no=200 + i) for i in range(2 * REPORTS_AT_ONCE + 7)))
    for _ in range(2 * REPORTS_AT_ONCE + 7):
        child.expect(Succeeded)

    assert max(map(len, child.frames)) == REPORTS_AT_ONCE


ENDS = {
    "raises": ("1 / 0", "ZeroDivisionError", "raised"),
    "exits": ("sys.exit(1)", "SystemExit", "exit"),
    "^C": ("raise KeyboardInterrupt", "KeyboardInterrupt", "raised"),
    "generator-exit": ("raise GeneratorExit", "GeneratorExit", "raised"),
    "cancelled": ("raise asyncio.CancelledError", "CancelledError", "raised"),
    "cancels-itself": (
        "asyncio.current_task().cancel()\nawait asyncio.sleep(0)",
        "CancelledError",
        "raised",
    ),
    "exits-in-a-task-of-its-own": (
        "async def leave(): sys.exit(2)\nawait asyncio.create_task(leave())",
        "SystemExit",
        "exit",
    ),
    "object": ("return object()", "Unserializable", "unserializable"),
    "not-ready": ("raise NotReady()", "NotASensor", "not_ready"),
}
"""The body of a coroutine, and the failure that it causes."""


def test_any_error_of_a_coroutine_fails_only_its_try(host):
    child = host(
        tasks("await asyncio.sleep(0.05)\nreturn 1", *(body for body, *_ in ENDS.values()))
    )
    found = {}
    for task_index, name in enumerate(ENDS, start=1):
        child.send(start(0, start_no=task_index), start(task_index))
        failed = child.expect(Failed)
        assert failed.task_no == 100 + task_index
        found[name] = (failed.failure.type, failed.failure.reason)
        assert result_of(child.expect(Succeeded)) == 1

    assert not (rows := differing(found, {name: end[1:] for name, end in ENDS.items()})), rows


def test_the_host_outlives_callbacks_that_exit(host):
    child = host(
        tasks("asyncio.get_running_loop().call_soon(sys.exit)\nawait asyncio.sleep(0.05)\nreturn 1")
    )

    child.send(start(0))

    assert result_of(child.expect(Succeeded)) == 1


def test_output_belongs_to_the_try_that_printed_it(host):
    body = """
print("begin", {n})
await asyncio.sleep(0)
await asyncio.to_thread(print, "thread", {n})
await asyncio.create_task(asyncio.sleep(0))
print("end", {n}, file=sys.stderr)
sys.stdout.buffer.write(b"raw")
"""
    child = host(tasks(body.replace("{n}", "0"), body.replace("{n}", "1")))

    child.send(start(0, start_no=4), start(1, start_no=5))
    for _ in range(2):
        child.expect(Succeeded)

    reports = [report for frame in child.frames for report in frame]
    for task_no, start_no, n in ((100, 4, 0), (101, 5, 1)):
        mine = [r for r in reports if getattr(r, "task_no", None) == task_no]
        text = b"".join(r.data for r in mine if isinstance(r, Output))
        assert text == f"begin {n}\nthread {n}\nend {n}\nraw".encode()
        assert all(r.start_no == start_no for r in mine)
        assert isinstance(mine[-1], Succeeded)  # all output precedes it


def test_a_flood_of_output_is_bounded_and_what_was_dropped_is_said(host):
    child = host(tasks("for _ in range(40): print('x' * 1_000_000)\nreturn 1"))

    child.send(start(0))
    child.expect(Succeeded)

    text = b"".join(r.data for frame in child.frames for r in frame if isinstance(r, Output))
    assert len(text) < 5_000_000
    assert b"bytes of output dropped" in text[-200:]


def test_a_stopped_coroutine_reports_nothing_but_what_it_still_prints_and_that_it_left(host, home):
    child = host(tasks(
        f"print('hello')\ntry: await asyncio.sleep(3600)\nfinally:\n    print('bye')\n"
        f"    open({str(home / 'ended')!r}, 'w')", "return 1"
    ))  # fmt: skip
    child.send(start(0))
    child.expect(Output)

    child.send(StopTask(100, 1, "cancelled"))
    child.send(start(1))

    assert child.expect(Succeeded).task_no == 101
    child.close()
    assert (home / "ended").exists()
    said = [report for frame in child.frames for report in frame if report.task_no == 100]
    assert kinds(said) == ["Output", "Output", "Output", "TaskStopped"]
    assert (said[1].data, said[2].is_stderr) == (b"bye\n", True)


def test_a_stop_right_behind_its_start_is_no_trouble(host):
    child = host(tasks("return 1", "return 2"))

    child.send(start(0), StopTask(100, 1, "cancelled"), start(1))

    assert child.expect(Succeeded).task_no == 101


def test_an_execution_timeout_ends_a_try(host):
    child = host(tasks("await asyncio.sleep(3600)", options="execution_timeout=0.05"))

    child.send(start(0))

    failed = child.expect(Failed)
    assert (failed.failure.type, failed.failure.reason) == ("TaskTimeout", "timeout")
    assert failed.retryable


def test_a_timeout_counts_also_if_the_coroutine_swallows_it(host):
    child = host(
        tasks(
            "with contextlib.suppress(asyncio.CancelledError): await asyncio.sleep(3600)\nreturn 1",
            options="execution_timeout=0.05",
        )
    )

    child.send(start(0))

    assert child.expect(Failed).failure.reason == "timeout"


def test_two_versions_of_a_file_and_its_helper_do_not_mix(host, home):
    source = HEAD + tasks("import helper\nreturn [helper.NAME, FILE]")
    write_version(
        home, "aaaa", flow=f"{source}\nfrom helper import NAME as FILE", helper="NAME='a'"
    )
    write_version(
        home, "bbbb", flow=f"{source}\nfrom helper import NAME as FILE", helper="NAME='b'"
    )
    child = host("")

    for run_no, version in ((2, "aaaa"), (3, "bbbb")):
        child.send(run_info(run_no, version=version), start(0, run_no=run_no, task_no=run_no))

    ended = {s.task_no: result_of(s) for s in (child.expect(Succeeded), child.expect(Succeeded))}
    assert ended == {2: ["a", "a"], 3: ["b", "b"]}


def test_a_missing_snapshot_may_be_tried_again(host):
    child = host(tasks("return 1"))

    child.send(run_info(2, version="feedbeef"), start(0, run_no=2))

    failed = child.expect(Failed)
    assert (failed.failure.reason, failed.retryable) == ("code_missing", True)


def test_a_segfault_leaves_the_culprit_in_the_black_box(host):
    box = os.memfd_create("box")
    os.ftruncate(box, 8)
    child = host(
        tasks(
            "await asyncio.sleep(3600)",
            "async def crash(): os.kill(os.getpid(), 11)\n"
            "await asyncio.sleep(0)\nawait asyncio.gather(crash())",
        ),
        recorder=box,
        started=True,
    )

    child.send(start(0, task_no=41), start(1, task_no=42))

    assert child.process.wait(child.PATIENCE) == -signal.SIGSEGV
    assert int.from_bytes(os.pread(box, 8, 0), "little", signed=True) == 42
    os.close(box)


def test_the_black_box_is_empty_while_everything_waits(host):
    box = os.memfd_create("box")
    child = host(tasks("await asyncio.sleep(3600)", "return 1"), recorder=box)

    child.send(start(0), start(1))
    child.expect(Succeeded)

    assert int.from_bytes(os.pread(box, 8, 0), "little", signed=True) == -1
    os.close(box)


def test_a_sensor_looks_until_it_is_done(host):
    child = host(
        """
looks = []

@sensor(interval="10ms")
async def ready():
    looks.append(1)
    if len(looks) < 3: return False
    if len(looks) < 5: raise NotReady("20ms")
    return PokeReturnValue(True, len(looks))

@dag
def pipeline(): ready()
"""
    )

    child.send(start(0))

    assert result_of(child.expect(Succeeded)) == 5
    assert [kind for frame in child.frames for kind in kinds(frame)] == ["Succeeded"]


def test_it_tells_of_each_sensor_when_it_looked_and_looks_next(host):
    child = host(
        """
@sensor(interval="1h")
async def rests(): return False

@sensor(interval="1h")
async def looks():
    print("looking", flush=True)
    await asyncio.Event().wait()

@sensor(interval="1h", on_error="ignore")
async def stumbles(): raise OSError("no route\\nto the bank")

@task
async def body():
    await asyncio.Event().wait()

@dag
def pipeline(): rests(), looks(), body(), stumbles()
"""
    )

    child.send(start(0), start(3), start(2), start(1))
    child.expect(Output, lambda printed: b"looking" in printed.data)
    child.send(Describe(1, (100, 101, 102, 103)))

    (rests, resting), (looks, looking), (_, stumbled) = child.expect(Described).triggers
    assert (rests, looks) == (100, 101)
    assert (resting.note, looking.note) == ("", "")
    assert stumbled.note == "OSError: no route to the bank"
    assert resting.next_check_at - resting.last_check_at == pytest.approx(3_600e6, rel=1e-3)
    assert (looking.next_check_at, looking.last_check_at > resting.last_check_at) == (None, True)


@pytest.mark.parametrize(
    ("on_error", "kind"), [("retry", Failed), ("skip", Failed), ("ignore", Succeeded)]
)
def test_an_error_in_a_check_counts_as_the_sensor_says(host, on_error, kind):
    child = host(
        f"""
looks = []

@sensor(interval="10ms", on_error={on_error!r})
async def ready():
    looks.append(1)
    if len(looks) < 2: raise OSError
    return True

@dag
def pipeline(): ready()
"""
    )

    child.send(start(0))

    child.expect(kind)  # a skip is the engine's to make of the failure


def test_a_sensor_can_skip_and_fail(host):
    child = host(
        """
@sensor
async def skips(): raise Skip("holiday")

@sensor(on_error="ignore")
async def fails(): raise Fail("never")

@dag
def pipeline():
    skips()
    fails()
"""
    )

    child.send(start(0), start(1))

    assert child.expect(Skipped).message == "holiday"
    assert child.expect(Failed).retryable is False


FAN = """
@task
async def child(n: int): return n

@task
async def total(parts: Sequence[int], big: str, more: int):
    return [list(parts), len(big), more]

@task
def big(): ...

@task
def more(): ...

@dag
def pipeline():
    total(child.expand(n=[1, 2]), big(), more())
"""


def test_results_of_parents_are_fetched_before_the_body_begins(host, home):
    child = host(FAN)
    path = result_path(home / "results", 500, 2)
    path.parent.mkdir()
    path.write_bytes(encode("x" * 70_000, ""))

    child.send(start(3, results={2: encode(7, "")}, at_hand=(2,)))
    pages = [
        ResultsPage(2, [(0, 10, 1, encode(1, ""))], [], 0, more=True),
        ResultsPage(2, [(1, 11, 1, encode(2, ""))], [], 1, more=False),
        ResultsPage(-1, [(-1, 500, 2, None)], [], -1, more=False),
    ]
    for page in pages:
        child.send(Reply(child.expect(Query).question, msgspec.msgpack.encode(page)))

    assert result_of(child.expect(Succeeded)) == [[1, 2], 70_000, 7]


def test_a_large_result_is_written_off_the_loop(host, home):
    child = host(tasks("return 'x' * 100_000"))

    child.send(start(0, start_no=3))

    made = child.expect(Succeeded)
    assert (made.body, made.size > 100_000) == (None, True)
    assert decode(result_path(home / "results", 100, 3).read_bytes()) == "x" * 100_000


def test_an_async_operator_defers_with_a_trigger_others_can_find(host):
    child = host(
        """
from dataclasses import dataclass

@dataclass
class Later(Trigger[int]):
    n: int
    async def run(self): yield TriggerEvent(self.n)

class Waiter(Operator):
    async def execute(self, context):
        await asyncio.sleep(0)
        self.defer(trigger=Later(3), method_name="resume")
    async def resume(self, context, event=None):
        return event

with DAG("pipeline"):
    Waiter(task_id="wait")
"""
    )

    child.send(start(0))
    deferred = child.expect(Deferred)
    assert deferred.class_path == "flow:Later"

    child.send(start(0, start_no=2, method="resume", event=encode(3, "")))
    assert result_of(child.expect(Succeeded)) == 3


def test_a_coroutine_that_waits_with_too_much_fails_its_try_alone(host):
    child = host(
        """
from dataclasses import dataclass

@dataclass
class Later(Trigger[int]):
    blob: bytes
    async def run(self): yield TriggerEvent(1)

class Waiter(Operator):
    async def execute(self, context):
        self.defer(trigger=Later(b"x" * 2**20), method_name="execute")

with DAG("pipeline"):
    Waiter(task_id="wait")
"""
    )

    child.send(start(0))

    failed = child.expect(Failed)
    assert (failed.failure.reason, failed.retryable) == ("payload_too_large", False)
    assert "Later.blob" in failed.failure.message


def test_a_dag_file_with_a_dot_in_its_name_runs(host, home):
    write_version(home, **{"daily.v2": HEAD + tasks("return 1")})
    child = host("")

    child.send(run_info(2, file="daily.v2.py"), start(0, run_no=2))

    assert result_of(child.expect(Succeeded)) == 1


def test_a_coroutine_can_wait_for_another_run(host):
    child = host(
        tasks(
            "e = await run_ending('other', since=datetime(2026, 1, 1, tzinfo=UTC))\n"
            "return [e.state, e.result]"
        )
    )

    child.send(start(0))
    ask = child.expect(Query)
    wanted = msgspec.msgpack.decode(ask.body, type=RunsWanted)
    (run,) = wanted.runs
    assert (ask.kind, wanted.dag_id, run.since) == ("runs", "other", 1_767_225_600_000_000)
    ended = RunEnded(run.number, RunEnding("run-9", "success", encode(5, "")))
    child.send(Reply(ask.question, msgspec.msgpack.encode([ended])))

    assert result_of(child.expect(Succeeded)) == ["success", 5]


def test_a_forgotten_run_is_described_again(host):
    child = host(tasks("return 1"))
    child.send(start(0))
    child.expect(Succeeded)

    child.send(ForgetRun(1), run_info(), start(0, start_no=2))

    assert child.expect(Succeeded).start_no == 2


def test_the_host_ends_when_the_link_closes_whatever_it_hosts(host):
    child = host(tasks(
        "print('hello')\n"
        "while True:\n    with contextlib.suppress(BaseException): await asyncio.sleep(3600)"
    ))  # fmt: skip
    child.send(start(0))
    child.expect(Output)

    assert child.close() == 0


def test_a_start_for_a_run_it_was_not_told_of_fails(host):
    child = host(tasks("return 1"))

    child.send(StartTask(77, 5, 1, 0, -1, 1))

    failed = child.expect(Failed)
    assert (failed.task_no, failed.interrupted) == (5, True)


HOSTILE = """
import itertools
from dataclasses import dataclass
from aioflow import *
from collections.abc import Sequence

class Endless(Sequence):
    def __len__(self): return 10
    def __getitem__(self, index): return 1
    def __iter__(self): return itertools.repeat("x" * 1000)

def doubled():
    value = "x" * 10
    for _ in range(60):
        value = [value, value]
    return value

@dataclass
class Later(Trigger[int]):
    rows: list
    async def run(self): yield TriggerEvent(1)

class Waits(Operator):
    async def execute(self, context):
        self.defer(trigger=Later([1]), method_name="execute", kwargs={"rows": Endless()})

class WaitsOn(Operator):
    async def execute(self, context):
        self.defer(trigger=Later(doubled()), method_name="execute")
"""


@pytest.mark.parametrize(
    ("body", "reason", "place"),
    [
        pytest.param("return {'rows': Endless()}", "result_too_large",
                     "the result of 'work0'['rows']", id="result"),
        pytest.param("return doubled()", "result_too_large", "the result of 'work0'[0][0]",
                     id="shared-result", marks=pytest.mark.nightly),
        pytest.param("await emit('e', data={'rows': Endless()})", "raised",
                     "the data of event 'e'['rows']", id="emit"),
        pytest.param("await run_dag('d', rows=Endless())", "conf",
                     "the parameters of the run['rows']", id="run-dag"),
        pytest.param("await wait(Later(Endless()))", "payload_too_large", "Later.rows",
                     id="trigger"),
        pytest.param("async for _ in stream(Later(Endless())): pass", "payload_too_large",
                     "Later.rows", id="stream"),
    ],
)  # fmt: skip
def test_a_value_without_an_end_fails_its_try_alone_and_is_named(host, body, reason, place):
    flow = tasks(body, "await asyncio.sleep(0.05)\nreturn 1")
    child = host(f"{HOSTILE}{flow}")

    child.send(start(0), start(1))

    others, failed = child.expect(Succeeded), child.expect(Failed)
    assert result_of(others) == 1
    assert failed.failure.reason == reason
    assert place in failed.failure.message


@pytest.mark.parametrize(
    ("name", "place"), [("Waits", "kwargs of execute.rows"), ("WaitsOn", "Later.rows")]
)
def test_serializing_the_trigger_of_a_deferred_task_has_a_limit(host, name, place):
    child = host(f"{HOSTILE}with DAG('pipeline'):\n    {name}(task_id='wait')\n")

    child.send(start(0))

    failed = child.expect(Failed)
    assert failed.failure.reason == "payload_too_large"
    assert place in failed.failure.message


def test_a_step_whose_result_has_no_end_is_recorded_as_failed(host):
    child = host(f"{HOSTILE}{tasks('await step(doubled)')}")

    child.send(start(0))

    told = child.expect(CallAnswered)
    assert "the result of " in told.failure.message
    assert "doubled[0][0]" in told.failure.message
    assert "1 MiB are allowed" in told.failure.message
