from __future__ import annotations

import os
import signal

import msgspec
import pytest

from aioflow.author.codec import decode, encode
from aioflow.protocol.commands import Ping, PreviewFireTimes, Reply, StartTrigger, StopTrigger
from aioflow.protocol.reports import (
    CancelQuery,
    FireTimesPreviewed,
    NextFireTime,
    Pong,
    Query,
    TriggerEnded,
    TriggerFired,
)
from aioflow.worker.query.messages import EventsPage, RunEnded, RunEnding, RunsWanted
from tests.differing import differing
from tests.worker.peer import VERSION, kinds, write_version

pytestmark = pytest.mark.process

SINCE = 1_767_225_600_000_000  # 2026-01-01

HEAD = """
import asyncio, contextlib, os, sys
from dataclasses import dataclass
from datetime import datetime, timedelta
from aioflow import *

def note(text):
    with open(HOME + "/notes", "a") as file:
        file.write(text + "\\n")

class Plain(Trigger):
    async def run(self):
        yield TriggerEvent(1)
"""


@pytest.fixture
def host(home, spawn):
    """Return a function that starts a trigger host for the classes of a DAG file."""

    def host(source: str, **options: object):
        write_version(home, flow=f"HOME = {str(home)!r}\n{HEAD}{source}")
        return spawn("triggers", **options)

    return host


def hosting(
    name: str, trigger_no: int = 1, assignment_id: int = 1, **fields: object
) -> StartTrigger:
    """Return the command that assigns a trigger, by default of a class in the DAG file."""
    path = name if ":" in name else f"flow:{name}"
    return StartTrigger(
        trigger_no, assignment_id, 1, 100, VERSION, path, encode(fields, ""), SINCE, None
    )


def test_a_trigger_fires_once_and_its_hosting_ends(host, home):
    child = host(
        """
@dataclass(frozen=True)
class Soon(Trigger[dict]):
    wait: timedelta
    async def run(self):
        try:
            await asyncio.sleep(self.wait.total_seconds())
            yield TriggerEvent({"since": self.since, "last": self.last}, key="k")
            yield TriggerEvent("never seen")
        finally:
            note("closed")
    async def cleanup(self, reason):
        await asyncio.sleep(0)
        note(reason)
"""
    )

    child.send(hosting("Soon", 7, 3, wait=0.01))

    fired, ended = child.expect(TriggerFired), child.expect(TriggerEnded)
    assert (fired.trigger_no, fired.assignment_id, fired.index, fired.key) == (7, 3, 0, "k")
    payload = decode(fired.payload)
    assert (payload["since"].isoformat(), payload["last"]) == ("2026-01-01T00:00:00+00:00", None)
    assert (ended.trigger_no, ended.assignment_id, ended.failure) == (7, 3, None)
    assert (home / "notes").read_text().split() == ["closed", "finished"]


def test_it_knows_the_dag_in_whose_name_it_asks(host):
    child = host(
        """
class Asks(Trigger):
    async def run(self):
        yield TriggerEvent(own_dag_id())
"""
    )

    child.send(msgspec.structs.replace(hosting("Asks", 1), dag_id="mine"), hosting("Asks", 2))

    told = {
        f.trigger_no: decode(f.payload)
        for f in (child.expect(TriggerFired), child.expect(TriggerFired))
    }
    assert told == {1: "mine", 2: ""}


def test_an_end_is_confirmed_after_the_cleanup(host, home):
    child = host(
        """
class Never(Trigger):
    async def run(self):
        note("runs")
        await asyncio.Event().wait()
        yield TriggerEvent(1)
    async def cleanup(self, reason): note(f"cleanup:{reason}")
    async def on_kill(self): note("on_kill")
"""
    )
    child.send(hosting("Never", 1), hosting("Never", 2), hosting("Plain", 3))
    child.expect(TriggerFired)

    child.send(StopTrigger(1, 1, "timeout"), StopTrigger(2, 1, "cancelled"))

    ended = [child.expect(TriggerEnded, lambda e: e.trigger_no != 3) for _ in range(2)]
    assert {(e.trigger_no, e.failure) for e in ended} == {(1, None), (2, None)}
    notes = (home / "notes").read_text().split()
    assert sorted(notes) == ["cleanup:cancelled", "cleanup:timeout", "on_kill", "runs", "runs"]
    assert notes.index("on_kill") < notes.index("cleanup:cancelled")


def test_an_end_right_behind_its_hosting_is_confirmed(host):
    child = host("")

    child.send(hosting("Plain"), StopTrigger(1, 1, "cancelled"))

    assert child.expect(TriggerEnded).failure is None


def test_an_end_for_something_unknown_is_confirmed(host):
    child = host("")

    child.send(StopTrigger(5, 2, "cancelled"))

    assert child.expect(TriggerEnded).trigger_no == 5


@pytest.mark.parametrize("where", ["in_run", "in_cleanup"])
def test_an_event_is_reported_before_the_cleanup_blocks_the_loop(host, home, where):
    child = host(
        """
@dataclass
class Blocks(Trigger):
    gate: str
    in_cleanup: bool
    async def run(self):
        try:
            yield TriggerEvent(1)
        finally:
            if not self.in_cleanup:
                open(self.gate).close()
    async def cleanup(self, reason):
        if self.in_cleanup:
            open(self.gate).close()
"""
    )
    os.mkfifo(home / "gate")
    child.send(hosting("Blocks", gate=str(home / "gate"), in_cleanup=where == "in_cleanup"))

    child.expect(TriggerFired)

    with (home / "gate").open("w"):  # returns once the other end is open
        pass
    assert child.expect(TriggerEnded).failure is None


def test_an_end_does_not_cut_a_cleanup_short(host, home):
    child = host(
        """
class Slow(Trigger):
    async def run(self): yield TriggerEvent(1)
    async def cleanup(self, reason):
        note("begun")
        await asyncio.sleep(0.1)
        note("over")
"""
    )
    child.send(hosting("Slow"))
    child.expect(TriggerFired)

    child.send(StopTrigger(1, 1, "finished"))

    assert child.expect(TriggerEnded).failure is None
    assert (home / "notes").read_text().split() == ["begun", "over"]


ODD = {
    "raises": ("1 / 0\n        yield", "ZeroDivisionError", "trigger"),
    "fails": ("raise Fail('no use')\n        yield", "Fail", "trigger_fail"),
    "exits": ("sys.exit(1)\n        yield", "SystemExit", "trigger"),
    "^C": ("raise KeyboardInterrupt\n        yield", "KeyboardInterrupt", "trigger"),
    "cancels": ("raise asyncio.CancelledError\n        yield", "CancelledError", "trigger"),
    "no-event": ("return\n        yield", "TriggerWrong", "trigger_ended"),
    "no-yield": ("pass", "TriggerWrong", "trigger_ended"),
    "returns": ("return TriggerEvent(1)", "TriggerWrong", "trigger_yield"),
    "yields-a-bare-value": ("yield 5", "TriggerWrong", "trigger_yield"),
    "bad-key": ("yield TriggerEvent(1, key=5)", "TriggerWrong", "trigger_yield"),
    "odd-text": ("yield TriggerEvent(1, key='\\ud800')", "TriggerWrong", "trigger_yield"),
    "key-too-long": ("yield TriggerEvent(1, key='k' * 1025)", "TriggerWrong", "payload_too_large"),
    "odd-key": (
        "yield TriggerEvent(1, key=type('S', (str,), {})('k'))",
        "Unserializable",
        "unserializable",
    ),
    "bad-payload": ("yield TriggerEvent(object())", "Unserializable", "unserializable"),
    "too-large": ("yield TriggerEvent('x' * 2**20)", "TriggerWrong", "payload_too_large"),
    "rows-that-are-shared": (
        "yield TriggerEvent({'rows': [[['x' * 10] * 1000] * 1000] * 1000})",
        "TriggerWrong",
        "payload_too_large",
    ),
}
"""The body of a trigger, and the failure that it causes."""


def test_fail_raised_outside_of_run_is_no_failure_of_the_run(host):
    child = host(
        """
@dataclass(frozen=True)
class Made(Trigger):
    n: int
    def __post_init__(self): raise Fail("not made")
    async def run(self): yield TriggerEvent(1)
"""
    )

    child.send(hosting("Made", n=1))

    assert child.expect(TriggerEnded).failure.reason == "trigger_construct"


def test_any_error_of_a_trigger_ends_only_its_assignment(host, home):
    child = host(
        "".join(
            f"""
class Odd{number}(Trigger):
    async def run(self):
        {body}
    async def cleanup(self, reason): note(reason)
"""
            for number, (body, *_) in enumerate(ODD.values())
        )
    )
    found = {}
    for number, name in enumerate(ODD):
        child.send(hosting(f"Odd{number}", 1 + number))
        failure = child.expect(TriggerEnded).failure
        found[name] = (failure.type, failure.reason)

    assert not (rows := differing(found, {name: odd[1:] for name, odd in ODD.items()})), rows
    assert (home / "notes").read_text().split() == ["finished"] * len(ODD)
    child.send(hosting("Plain", 2))  # the host lives
    assert child.expect(TriggerEnded).failure is None


@pytest.mark.parametrize(
    ("path", "fields", "reason"),
    [
        pytest.param("flow:Absent", {}, "trigger_load", id="no-such-class"),
        pytest.param("absent:Plain", {}, "trigger_load", id="no-such-module"),
        pytest.param("flow:note", {}, "trigger_load", id="not-a-class"),
        pytest.param("flow:Picky", {"a": 1}, "trigger_construct", id="other-fields"),
        pytest.param("flow:Picky", {"n": -1}, "trigger_construct", id="refuses"),
        pytest.param("broken:Plain", {}, "trigger_load", id="module-exits"),
    ],
)
def test_a_class_that_cannot_be_had_fails_with_the_stage(host, home, path, fields, reason):
    child = host(
        """
@dataclass
class Picky(Trigger):
    n: int
    def __post_init__(self):
        if self.n < 0: raise SystemExit("negative")
    async def run(self): yield TriggerEvent(1)
"""
    )
    write_version(home, broken="import sys\nsys.exit(1)")

    child.send(hosting(path, **fields))

    assert child.expect(TriggerEnded).failure.reason == reason


def test_a_missing_snapshot_is_distinguished_and_does_not_matter_to_plug_ins(host):
    child = host("")
    gone = hosting("Plain")
    plug_in = hosting("aioflow_triggers.temporal:TimeDeltaTrigger", 2, delta=0)

    child.send(
        msgspec.structs.replace(gone, version="feedbeef"),
        msgspec.structs.replace(plug_in, version="feedbeef", waits_since=0),
    )

    assert child.expect(TriggerEnded, lambda e: e.trigger_no == 1).failure.reason == "code_missing"
    assert child.expect(TriggerFired).trigger_no == 2


def test_a_missing_file_that_is_called_like_a_package_is_missing_all_the_same(host):
    child = host("")

    child.send(msgspec.structs.replace(hosting("calendar:Mine"), version="feedbeef"))

    assert child.expect(TriggerEnded).failure.reason == "code_missing"


def test_a_trigger_of_a_helper_module_is_found_by_its_path(host, home):
    write_version(home, deep__waits=HEAD.replace("HOME +", "") + "class Mine(Plain): ...")
    child = host("")

    child.send(hosting("deep.waits:Mine"))

    assert decode(child.expect(TriggerFired).payload) == 1


def test_a_trigger_with_an_init_of_its_own_is_hosted(host):
    child = host(
        """
class Airflows(Trigger):
    def __init__(self, url, n=1):
        super().__init__()
        self.url, self.n = url, n
    def serialize(self): return ("flow.Airflows", {"url": self.url, "n": self.n})
    async def run(self): yield TriggerEvent(f"{self.url}:{self.n}")
    async def cleanup(self): pass
"""
    )

    child.send(hosting("Airflows", url="u", n=2))

    assert decode(child.expect(TriggerFired).payload) == "u:2"
    assert child.expect(TriggerEnded).failure is None


def told(ask: Query, ending: RunEnding | str) -> Reply:
    """Return a reply about the first run of a query."""
    number = msgspec.msgpack.decode(ask.body, type=RunsWanted).runs[0].number
    return Reply(ask.question, msgspec.msgpack.encode([RunEnded(number, ending)]))


def test_a_trigger_can_ask_for_the_end_of_a_run(host):
    child = host("")

    child.send(hosting("aioflow_triggers.external:RunTrigger", dag="other", task="t"))
    ask = child.expect(Query)
    wanted = msgspec.msgpack.decode(ask.body, type=RunsWanted)
    assert (ask.run_no, wanted.dag_id, wanted.task_id) == (1, "other", "t")
    assert [run.since for run in wanted.runs] == [SINCE]
    child.send(told(ask, RunEnding("run-9", "failed", None)))

    fired = child.expect(TriggerFired)
    assert decode(fired.payload) == {"state": "failed", "run_id": "run-9", "result": None}
    assert fired.key == "run-9/t"


def test_a_run_that_its_last_trigger_has_given_up_is_asked_about_no_more(host):
    child = host("")
    waits = ("r", "r", "s")
    for number, run_id in enumerate(waits):
        child.send(
            hosting("aioflow_triggers.external:RunTrigger", number, dag="other", run_id=run_id)
        )
    asked = {}
    while set(asked) != {"r", "s"}:
        ask = child.expect(Query)
        for run in msgspec.msgpack.decode(ask.body, type=RunsWanted).runs:
            asked[run.run_id] = (ask.question, run.number)
    (question, of_r), _ = asked["r"], asked["s"]

    for number in (0, 1):
        child.send(StopTrigger(number, 1, "cancelled"))
        child.expect(TriggerEnded, lambda ended, number=number: ended.trigger_no == number)
    assert child.expect(CancelQuery) == CancelQuery(question, (of_r,))

    child.send(StopTrigger(2, 1, "cancelled"))
    assert child.expect(CancelQuery) == CancelQuery(question)


def test_events_are_asked_for_in_the_name_of_one_who_still_waits(host):
    """The daemon rejects a query for a run without triggers, which would fail all listeners."""
    child = host("")
    path = "aioflow_triggers.events:EventTrigger"
    fields = encode({"name": "approved", "key": "k", "after": 5}, "")
    first = msgspec.structs.replace(hosting(path), kwargs=fields)
    second = msgspec.structs.replace(first, trigger_no=2, run_no=2)
    child.send(first)
    ask = child.expect(Query)
    child.send(second, StopTrigger(1, 1, "cancelled"))
    child.expect(TriggerEnded)

    child.send(Reply(ask.question, msgspec.msgpack.encode(EventsPage([], 9))))

    again = child.expect(Query)
    assert (again.run_no, again.question > ask.question) == (2, True)


def test_the_query_of_a_trigger_that_ends_at_once_is_sent_before_its_end(host):
    """After its end, the process has no trigger of the run: the query would be rejected."""
    child = host("")
    path = "aioflow_triggers.external:RunTrigger"
    child.send(hosting(path, 1, dag="other", run_id="at hand"))
    child.expect(Query)
    first = hosting(path, 2, dag="other", run_id="r")
    second = msgspec.structs.replace(first, trigger_no=3, run_no=2)

    child.send(first, second, StopTrigger(2, 1, "cancelled"))

    reports = []
    while not any(isinstance(report, TriggerEnded) for report in reports):
        reports += [report for report in child.receive() if not isinstance(report, Pong)]
    at = next(n for n, report in enumerate(reports) if isinstance(report, TriggerEnded))
    assert [type(report) for report in reports[:at]] == [Query]


def test_a_question_that_is_refused_fails_the_trigger(host):
    child = host("")

    child.send(hosting("aioflow_triggers.external:RunTrigger", dag="absent"))
    child.send(told(child.expect(Query), "there is no DAG 'absent'"))

    failure = child.expect(TriggerEnded).failure
    assert (failure.reason, failure.message) == ("trigger", "there is no DAG 'absent'")


def test_thousands_fire_in_few_frames(host):
    child = host("")
    count = 3_000

    child.send(*(hosting("Plain", n) for n in range(count)))
    fired, ended = set(), set()
    while len(ended) < count:
        for report in child.receive():
            (fired if isinstance(report, TriggerFired) else ended).add(report.trigger_no)

    assert fired == ended == set(range(count))
    assert len(child.frames) < count / 10


def test_a_repeated_hosting_is_one_and_a_newer_one_takes_over(host):
    child = host(
        """
class Never(Trigger):
    async def run(self):
        await asyncio.Event().wait()
        yield TriggerEvent(1)
    async def cleanup(self, reason): note(reason)
"""
    )

    child.send(hosting("Never", 1, 1), hosting("Never", 1, 1), hosting("Plain", 2))
    child.expect(TriggerFired)
    child.send(hosting("Plain", 1, 2))

    fired = child.expect(TriggerFired)
    assert (fired.trigger_no, fired.assignment_id) == (1, 2)
    ended = [child.expect(TriggerEnded, lambda e: e.trigger_no == 1) for _ in range(2)]
    assert {e.assignment_id for e in ended} == {1, 2}


def test_a_crash_leaves_the_culprit_in_the_black_box(host):
    box = os.memfd_create("box")
    child = host(
        """
class Crash(Trigger):
    async def run(self):
        await asyncio.sleep(0)
        os.kill(os.getpid(), 11)
        yield
""",
        recorder=box,
    )

    child.send(hosting("Plain", 1), hosting("Crash", 77))

    assert child.process.wait(child.PATIENCE) == -signal.SIGSEGV
    assert int.from_bytes(os.pread(box, 8, 0), "little", signed=True) == 77
    os.close(box)


def test_the_host_ends_when_the_link_closes(host):
    child = host("")
    child.send(hosting("Plain"))
    child.expect(TriggerEnded)

    assert child.close() == 0
    assert kinds(child.frames[0])[0] == "TriggerFired"


def test_an_event_that_cannot_travel_takes_no_other_with_it(host):
    child = host(
        """
class Odd(Trigger):
    async def run(self): yield TriggerEvent(1, key=type("S", (str,), {})("\\ud800"))
"""
    )

    child.send(hosting("Plain", 1), hosting("Odd", 2), hosting("Plain", 3))

    fired = {child.expect(TriggerFired).trigger_no for _ in range(2)}
    ended = {child.expect(TriggerEnded).trigger_no for _ in range(3)}
    assert (fired, ended) == ({1, 3}, {1, 2, 3})


def test_a_ping_is_answered_whatever_waits(host):
    child = host(
        """
class Never(Trigger):
    async def run(self):
        await asyncio.Event().wait()
        yield
"""
    )

    child.send(hosting("Never"), Ping())

    child.expect(Pong)


def test_a_trigger_of_a_file_with_a_dot_in_its_name_is_found_by_its_path(host, home):
    write_version(home, **{"team.a__daily.v2": HEAD + "class Mine(Plain): ..."})
    child = host("")

    child.send(hosting("team%2Ea.daily%2Ev2:Mine"))

    assert decode(child.expect(TriggerFired).payload) == 1


TIMETABLES = """
@dataclass
class Hours:
    step: int = 1
    def next_after(self, moment):
        print("asked")
        return moment.replace(minute=0, second=0) + timedelta(hours=self.step)
@dataclass
class Wrong:
    how: str
    def next_after(self, moment):
        if self.how == "exits":
            sys.exit("no")
        return datetime(2026, 1, 1) if self.how == "naive" else moment
"""


def timetable(name: str, **fields: object) -> StartTrigger:
    """Return the command that hosts a timetable of the DAG file."""
    slots = {"timetable": f"flow:{name}", "fields": encode(fields, ""), "code": ""}
    return StartTrigger(
        *(7, 3, 7, -1, VERSION, f"flow:{name}"), encode(slots, ""), SINCE, None, window=64
    )


def test_a_timetable_says_its_next_fire_times_whether_it_is_hosted_or_not(host):
    child = host(TIMETABLES)

    child.send(PreviewFireTimes(1, timetable("Hours", step=2), SINCE, 2, 60.0))
    found = child.expect(FireTimesPreviewed)
    child.send(timetable("Hours"), PreviewFireTimes(2, timetable("Hours"), SINCE, 1, 60.0))
    waits, again = child.expect(NextFireTime), child.expect(FireTimesPreviewed)

    hour = 3_600_000_000
    assert (found.question, found.fire_times) == (1, (SINCE + 2 * hour, SINCE + 4 * hour))
    assert (again.question, again.fire_times) == (2, (SINCE + hour,))
    assert (waits.trigger_no, waits.assignment_id) == (7, 3)
    assert waits.fire_time is not None


@pytest.mark.parametrize(
    ("order", "kind", "reason"),
    [
        pytest.param(timetable("Wrong", how="exits"), "SystemExit", "timetable", id="exits"),
        pytest.param(timetable("Wrong", how="naive"), "BadSchedule", "timetable", id="naive"),
        pytest.param(timetable("Wrong", how="stays"), "BadSchedule", "timetable", id="stays"),
        pytest.param(timetable("Gone"), "TriggerWrong", "trigger_load", id="gone"),
        pytest.param(hosting("Plain"), "TypeError", "trigger_construct", id="no-timetable"),
    ],
)
def test_a_timetable_that_cannot_say_them_fails_alone(host, order, kind, reason):
    child = host(TIMETABLES)

    child.send(
        PreviewFireTimes(1, order, SINCE, 2, 60.0),
        PreviewFireTimes(2, timetable("Hours"), SINCE, 1, 60.0),
    )

    answers = {
        answer.question: answer for answer in (child.expect(FireTimesPreviewed) for _ in range(2))
    }
    assert (answers[1].failure.type, answers[1].failure.reason) == (kind, reason)
    assert answers[2].failure is None


def test_a_timetable_that_takes_its_time_is_cut_short_between_two_slots(host):
    child = host(TIMETABLES)

    child.send(PreviewFireTimes(1, timetable("Hours"), SINCE, 10**9, 0.05))

    assert child.expect(FireTimesPreviewed).failure.reason == "timeout"
