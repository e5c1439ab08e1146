"""Triggers in a shared poller end like triggers with their own coroutine."""

from __future__ import annotations

import os
import signal

import msgspec
import pytest

from aioflow.author.codec import decode, encode
from aioflow.model.triggers import TriggerDescription
from aioflow.protocol.commands import Describe, Ping, StartTrigger, StopTrigger
from aioflow.protocol.reports import Described, Output, Pong, TriggerEnded, TriggerFired
from tests.differing import differing
from tests.worker.peer import VERSION, write_version

pytestmark = pytest.mark.process

SINCE = 1_767_225_600_000_000  # 2026-01-01

SOURCE = """
import asyncio, os, sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from aioflow import *

def note(text):
    with open(HOME + "/notes", "a") as file:
        file.write(text + "\\n")

def act(what):
    match what.partition(":")[0]:
        case "ring": return TriggerEvent(what, key="k" + what)
        case "odd": return 5
        case "odd-key": return TriggerEvent(1, key=5)
        case "odd-payload": return TriggerEvent(object())
        case "large": return TriggerEvent("x" * 2**20)
        case "exit": sys.exit(1)
        case "crash": os.kill(os.getpid(), 11)
        case "break": raise RuntimeError("broken")

class Street(Watch):
    def __init__(self, name):
        note("made")
        self.name = name
        self.heard = asyncio.Queue()

    def joined(self, wanted):
        if wanted == "unwelcome":
            raise RuntimeError("not here")
        note(f"joined {wanted}")
        self.heard.put_nowait(wanted)

    def left(self, wanted):
        note(f"left {wanted}")
        if wanted == "never:clings":
            raise RuntimeError("stay")

    def next_check(self):
        if self.name == "side street":
            raise RuntimeError("who knows")
        return datetime(2030, 1, 1, tzinfo=UTC)

    def last_check(self):
        if self.name == "side street":
            raise RuntimeError("who knows")
        return datetime(2029, 12, 31, 23, 59, 55, tzinfo=UTC)

    async def run(self):
        try:
            while True:
                what = await self.heard.get()
                print("heard", what)
                match what.partition(":")[0]:
                    case "never": pass
                    case "end": return
                    case "refuse": yield what, ValueError("refused")
                    case "bare": yield 5
                    case "flaw":
                        if os.path.exists(HOME + "/flaw"):
                            os.unlink(HOME + "/flaw")
                            raise RuntimeError("once")
                        yield what, act("ring")
                    case "all":
                        for wanted in list(self.wanted):
                            yield wanted, TriggerEvent(wanted)
                    case _: yield what, act(what)
        finally:
            note("closed")

@dataclass(frozen=True)
class Shared(Trigger):
    what: str
    street: str = "high street"
    def share(self):
        return Share(Street, self.what, of=(self.street,))

@dataclass(frozen=True)
class Odd(Shared):
    def share(self):
        return Share(Street, [self.what], of=(self.street,))

@dataclass(frozen=True)
class Tidy(Shared):
    async def cleanup(self, reason): note(f"cleanup {reason} {self.what} {self.since.year}")
    async def on_kill(self): note(f"killed {self.what}")

@dataclass(frozen=True)
class Own(Shared):
    async def run(self):
        if self.what == "end": return
        if self.what == "wait": await asyncio.Event().wait()
        if self.what == "refuse": raise ValueError("refused")
        yield act(self.what)

@dataclass(frozen=True)
class Says(Shared):
    public_fields = ("what",)
    def describe(self):
        if self.street == "side street":
            raise RuntimeError("who knows")
        return f"for {self.what}"

@dataclass(frozen=True)
class SaysMore(Says):
    async def run(self):
        self.note_check("1 of 2 found", next_in=60)
        await asyncio.Event().wait()
        yield

@dataclass(frozen=True)
class Talks(Shared):
    def __post_init__(self): print("made of", self.what)
"""


@pytest.fixture
def host(home, spawn):
    write_version(home, flow=f"HOME = {str(home)!r}\n{SOURCE}")
    return spawn("triggers")


def hosting(
    name: str, what: str, trigger_no: int = 1, assignment_id: int = 1, **fields: object
) -> StartTrigger:
    fields = {"what": what, **fields}
    at = (VERSION, f"flow:{name}", encode(fields, ""), SINCE, None)
    return StartTrigger(trigger_no, assignment_id, 1, 100, *at)


def notes(home):
    return (home / "notes").read_text().splitlines()


def over(host):
    """Return the next report that ends an assignment."""
    return host.expect(
        (TriggerFired, TriggerEnded), lambda r: isinstance(r, TriggerEnded) or r.is_last
    )


def ended(host, count):
    return {end.trigger_no: end for end in (over(host) for _ in range(count))}


@pytest.mark.parametrize("form", ["Shared", "Tidy", "Own"])
def test_its_event_resumes_the_task_and_ends_the_hosting(host, form):
    host.send(hosting(form, "ring", 7, 3))

    fired = host.expect(TriggerFired)
    assert (fired.trigger_no, fired.assignment_id, fired.index) == (7, 3, 0)
    assert (decode(fired.payload), fired.key) == ("ring", "kring")
    assert fired.is_last == (form == "Shared")  # the others have something to clean up
    if not fired.is_last:
        end = host.expect(TriggerEnded)
        assert (end.trigger_no, end.assignment_id, end.failure, end.reason) == (7, 3, None, "")


WRONG = {
    "break": ("RuntimeError", "trigger"),
    "refuse": ("ValueError", "trigger"),
    "exit": ("SystemExit", "trigger"),
    "end": ("TriggerWrong", "trigger_ended"),
    "odd": ("TriggerWrong", "trigger_yield"),
    "odd-key": ("TriggerWrong", "trigger_yield"),
    "odd-payload": ("Unserializable", "unserializable"),
    "large": ("TriggerWrong", "payload_too_large"),
}


@pytest.mark.parametrize("form", ["Shared", "Tidy", "Own"])
def test_errors_have_the_same_reason_in_both_forms(host, form):
    found = {}
    for number, what in enumerate(WRONG):
        host.send(hosting(form, what, 2 * number))
        failure = host.expect(TriggerEnded).failure
        found[what] = (failure.type, failure.reason)
        host.send(hosting(form, "ring", 2 * number + 1))  # the host lives
        assert over(host).trigger_no == 2 * number + 1

    assert not (rows := differing(found, WRONG)), rows


def test_thousands_share_one_watch_and_each_has_its_event(host, home):
    count = 3_000
    waits = [hosting("Shared", f"never:{n}", n) for n in range(count)]

    host.send(*waits[:1_500])
    host.send(*waits[1_500:], hosting("Shared", "all", count))

    fired = {f.trigger_no: decode(f.payload) for f in (host.expect(TriggerFired) for _ in waits)}
    assert fired == {n: f"never:{n}" for n in range(count)}
    assert notes(home).count("made") == 1


def test_a_shared_watch_and_its_next_poll_are_shown_on_request(host):
    host.send(hosting("Shared", "ring", 7), hosting("Own", "ring", 8))
    ended(host, 2)  # their classes are at hand now
    host.send(*(hosting("Shared", "never", n) for n in range(2)), hosting("Shared", "never:2", 2))
    host.send(hosting("Shared", "never", 3, street="side street"), hosting("Own", "wait", 4))
    host.send(Ping(), Describe(5, (0, 2, 3, 4, 99)))

    noon = 1_893_456_000_000_000
    assert host.expect(Pong).watches == (("flow:Shared", 2, noon),)
    told = host.expect(Described)
    shared, of_one, alone = (
        TriggerDescription(2, noon, noon - 5_000_000),
        TriggerDescription(0, None),
        TriggerDescription(0, None),
    )
    assert told == Described(5, ((0, shared), (2, shared), (3, of_one), (4, alone)))

    host.send(*(StopTrigger(n, 1, "cancelled") for n in range(5)))
    ended(host, 5)
    host.send(Ping())
    assert host.expect(Pong).watches == ()


@pytest.mark.parametrize("form", ["Says", "SaysMore"])
def test_a_trigger_is_described_in_the_words_of_its_author(host, form):
    host.send(hosting(form, "never", 1), hosting(form, "never", 2, street="side street"))
    host.send(hosting(form, "never:3", 3), StopTrigger(3, 1, "cancelled"))
    assert over(host).trigger_no == 3
    host.send(Describe(5, (1, 2, 3)))

    (one, known), (other, broken) = host.expect(Described).triggers
    assert (one, known.text, known.public) == (1, "for never", ("what",))
    assert (other, broken.text, broken.public) == (2, "", ("what",))
    if form == "SaysMore":
        assert known.note == "1 of 2 found"
        assert known.next_check_at - known.last_check_at == 60_000_000


def test_waits_for_the_same_file_are_reported_together(host, home):
    host.send(*(hosting("Shared", "never", n) for n in range(5)))
    host.send(hosting("Shared", "all", 5))

    assert set(ended(host, 6)) == set(range(6))
    host.send(Ping())
    host.expect(Pong)  # whatever was to be closed has been
    assert notes(home) == ["made", "joined never", "joined all", "left never", "left all", "closed"]


def test_another_target_has_a_watch_of_its_own(host, home):
    host.send(hosting("Shared", "never", 1), hosting("Shared", "break", 2, street="side street"))

    end = host.expect(TriggerEnded)
    assert (end.trigger_no, end.failure.message) == (2, "broken")
    host.send(StopTrigger(1, 1, "cancelled"))
    assert host.expect(TriggerEnded).failure is None


@pytest.mark.parametrize("how", ["break", "exit", "end", "bare"])
def test_a_trigger_that_no_watch_survives_fails_alone_and_says_why_in_its_log(host, how):
    host.send(*(hosting("Shared", f"never:{n}", n) for n in range(5)))
    host.send(hosting("Shared", "never", 5, street="side street"), hosting("Shared", how, 6))

    end = over(host)
    assert (end.trigger_no, end.failure is None) == (6, False)
    assert host.expect(Output).task_no == 6
    # The others are polled as before, in the pollers into which they were split.
    host.send(*(StopTrigger(n, 1, "cancelled") for n in range(1, 5)), hosting("Shared", "ring", 7))
    assert set(ended(host, 5)) == {1, 2, 3, 4, 7}
    host.send(
        StopTrigger(0, 1, "timeout"), hosting("Shared", "ring", 8)
    )  # still waiting, not failed
    assert {number: end.failure for number, end in ended_by_order(host, 0, 8).items()} == {0: None}


def ended_by_order(host, *numbers):
    """Return those of these triggers that ended without an event."""
    reports = ended(host, len(numbers))
    assert set(reports) == set(numbers)
    return {n: end for n, end in reports.items() if isinstance(end, TriggerEnded)}


def test_a_watch_that_fails_once_is_begun_again_for_all_of_its_triggers(host, home):
    (home / "flaw").touch()
    host.send(*(hosting("Shared", f"never:{n}", n) for n in range(50)))
    host.send(hosting("Shared", "flaw", 50))

    assert over(host).trigger_no == 50
    host.send(hosting("Shared", "all", 51))
    fired = ended(host, 51)
    assert all(isinstance(event, TriggerFired) for event in fired.values())
    assert set(fired) == {*range(50), 51}
    assert notes(home).count("made") == 2


def test_an_error_of_a_watch_while_a_trigger_leaves_fails_no_trigger(host):
    host.send(hosting("Shared", "never:clings", 1), hosting("Shared", "never", 2))
    host.send(hosting("Shared", "all", 3))

    assert all(isinstance(event, TriggerFired) for event in ended(host, 3).values())


def test_an_unusable_wanted_value_fails_its_triggers(host):
    host.send(hosting("Odd", "never", 1), hosting("Shared", "never", 2))
    assert over(host).failure.type == "TypeError"

    host.send(hosting("Shared", "all", 3))
    assert set(ended(host, 2)) == {2, 3}


def test_one_that_is_refused_takes_no_other_with_it(host):
    host.send(hosting("Shared", "never", 1), hosting("Shared", "refuse", 2))

    end = host.expect(TriggerEnded)
    assert (end.trigger_no, end.failure.message) == (2, "refused")
    host.send(hosting("Shared", "unwelcome", 3))
    end = host.expect(TriggerEnded)
    assert (end.trigger_no, end.failure.message) == (3, "not here")
    host.send(hosting("Shared", "all", 4))
    assert {host.expect(TriggerFired).trigger_no, host.expect(TriggerFired).trigger_no} == {1, 4}


def test_an_end_is_confirmed_and_the_last_one_closes_the_watch(host, home):
    host.send(hosting("Shared", "never:a", 1), hosting("Shared", "never:b", 2))

    host.send(StopTrigger(1, 1, "timeout"))
    end = host.expect(TriggerEnded)
    assert (end.trigger_no, end.reason, end.failure) == (1, "timeout", None)
    assert "closed" not in notes(home)
    host.send(StopTrigger(2, 1, "cancelled"), hosting("Shared", "ring", 3))
    assert set(ended(host, 2)) == {2, 3}
    assert notes(home).count("made") == 2


def test_an_end_right_behind_its_hosting_is_confirmed(host):
    host.send(hosting("Shared", "ring", 1))
    over(host)

    host.send(hosting("Shared", "ring", 2), StopTrigger(2, 1, "cancelled"))

    end = host.expect(TriggerEnded)
    assert (end.trigger_no, end.reason, end.failure) == (2, "cancelled", None)


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("cancelled", ["killed never", "cleanup cancelled never 2026"]),
        ("timeout", ["cleanup timeout never 2026"]),
        ("reassigned", ["cleanup reassigned never 2026"]),
    ],
)
def test_its_cleanup_runs_on_an_instance(host, home, reason, said):
    host.send(hosting("Shared", "ring", 1))
    over(host)
    host.send(hosting("Tidy", "ring", 2), hosting("Tidy", "never", 3))
    host.expect(TriggerEnded)

    host.send(StopTrigger(3, 1, reason))

    assert host.expect(TriggerEnded).reason == reason
    assert [note for note in notes(home) if note.endswith("never 2026") or "killed" in note] == said


def test_a_cleanup_runs_behind_the_event_too(host, home):
    host.send(hosting("Tidy", "ring"))

    host.expect(TriggerEnded)

    assert notes(home)[-1] == "cleanup finished ring 2026"


def test_a_repeated_hosting_is_one_and_a_newer_one_takes_over(host, home):
    host.send(hosting("Shared", "never", 1, 1))
    host.send(hosting("Shared", "never", 1, 1), hosting("Shared", "ring", 1, 2))

    fired = host.expect(TriggerFired)
    assert (fired.trigger_no, fired.assignment_id) == (1, 2)
    assert fired.is_last
    end = host.expect(TriggerEnded)
    assert (end.assignment_id, end.reason) == (1, "reassigned")


def test_a_stream_is_hosted_by_its_run(host):
    host.send(msgspec.structs.replace(hosting("Shared", "ring"), window=64))

    assert decode(host.expect(TriggerFired).payload) == "ring"
    assert host.expect(TriggerEnded).failure is None


def test_output_of_its_construction_is_in_its_log_and_that_of_the_watch_in_none(host):
    host.send(hosting("Talks", "never:a", 1))
    assert host.expect(Output, lambda out: out.task_no == 1).data == b"made of never:a\n"

    host.send(hosting("Talks", "never:b", 2))

    assert host.expect(Output).data == b"made of never:b\n"
    assert host.printed(lambda printed: b"heard never:b\n" in printed)


def test_a_crash_of_a_watch_leaves_one_of_its_triggers_in_the_black_box(home, spawn):
    write_version(home, flow=f"HOME = {str(home)!r}\n{SOURCE}")
    box = os.memfd_create("box")
    host = spawn("triggers", recorder=box, started=True)

    host.send(hosting("Shared", "ring", 5), hosting("Shared", "never", 6), Ping())
    host.expect(TriggerFired)
    host.send(hosting("Shared", "never", 7), hosting("Shared", "crash", 8))

    assert host.process.wait(host.PATIENCE) == -signal.SIGSEGV
    assert int.from_bytes(os.pread(box, 8, 0), "little", signed=True) in {6, 7, 8}
    os.close(box)
