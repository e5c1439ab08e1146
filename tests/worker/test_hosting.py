"""The trigger host apart from firing: logs, newer code, streams, stages, unusual triggers."""

from __future__ import annotations

import msgspec
import pytest

from aioflow.author.codec import decode, encode
from aioflow.protocol.commands import EventsStored, StartTrigger, StopTrigger
from aioflow.protocol.reports import Output, TriggerEnded, TriggerFired
from tests.differing import differing
from tests.worker.peer import VERSION, write_version
from tests.worker.test_triggerer import HEAD, hosting

pytestmark = pytest.mark.process

NEWER = "4567cdef"

NEVER = """
class Never(Trigger):
    async def run(self):
        print("runs")
        await asyncio.Event().wait()
        yield TriggerEvent(1)
    async def cleanup(self, reason): note(f"cleanup:{reason}")
    async def on_kill(self): note("on_kill")
"""


@pytest.fixture
def host(home, spawn):
    """Return a function that starts a trigger host for the classes of a DAG file."""

    def host(source: str, newer: str | None = None):
        head = f"HOME = {str(home)!r}\n{HEAD}"
        write_version(home, flow=f"{head}{source}")
        if newer is not None:
            write_version(home, NEWER, flow=f"{head}{newer}")
        return spawn("triggers")

    return host


def with_newest(order: StartTrigger, newest: str = NEWER) -> StartTrigger:
    return msgspec.structs.replace(order, newest=newest)


def printed(child, trigger_no: int = 1, assignment_id: int = 1) -> str:
    """Return what a trigger has printed by the end of its assignment."""
    child.expect(
        TriggerEnded, lambda e: (e.trigger_no, e.assignment_id) == (trigger_no, assignment_id)
    )
    outputs = [r for frame in child.frames for r in frame if isinstance(r, Output)]
    mine = [o.data for o in outputs if (o.task_no, o.start_no) == (trigger_no, assignment_id)]
    return b"".join(mine).decode()


# ── logs ────────────────────────────────────────────────────────────────────────────────


def test_logs_and_output_of_a_trigger_are_its_own(host):
    child = host(
        """
@dataclass
class Chatty(Trigger):
    who: str
    async def run(self):
        self.log.info("logs %s", self.who)
        print("prints", self.who)
        await asyncio.sleep(0)
        await asyncio.to_thread(print, "in a thread", self.who)
        yield TriggerEvent(1)
    async def cleanup(self, reason): print("cleans up", self.who)
"""
    )

    child.send(hosting("Chatty", 1, who="one"), hosting("Chatty", 2, who="two"))

    for number, name in ((1, "one"), (2, "two")):
        text = printed(child, number)
        assert f"INFO aioflow.trigger.Chatty: logs {name}\n" in text
        for line in ("prints", "in a thread", "cleans up"):
            assert f"{line} {name}\n" in text
    child.close()
    assert b"prints" not in child.output()


def test_output_of_a_trigger_precedes_the_report_of_its_event(host):
    child = host(
        """
class Chatty(Trigger):
    async def run(self):
        print("before")
        yield TriggerEvent(1)
"""
    )

    child.send(hosting("Chatty"))
    child.expect(TriggerEnded)

    reports = [report for frame in child.frames for report in frame]
    assert [type(report) for report in reports] == [Output, TriggerFired, TriggerEnded]


def test_a_trigger_that_raises_leaves_its_traceback_in_the_log(host):
    child = host(
        """
class Broken(Trigger):
    async def run(self):
        raise ValueError("no such luck")
        yield
"""
    )

    child.send(hosting("Broken"))

    text = printed(child)
    assert "flow.py" in text
    assert "ValueError: no such luck" in text


# ── newer code ──────────────────────────────────────────────────────────────────────────

SAYS = """
@dataclass
class Says(Trigger):
    n: int
    {field}
    async def run(self): yield TriggerEvent({value})
"""


def test_the_newest_class_that_takes_the_fields_is_hosted(host):
    child = host(
        SAYS.format(field="", value="'old'"), SAYS.format(field="more: int = 5", value="self.more")
    )

    child.send(with_newest(hosting("Says", n=1)))

    assert decode(child.expect(TriggerFired).payload) == 5


@pytest.mark.parametrize(
    ("newer", "named"),
    [
        pytest.param(SAYS.format(field="more: int", value="'new'"), "more", id="wants-another"),
        pytest.param(SAYS.format(field="", value="1").replace("n:", "m:"), "'m'", id="renames-one"),
        pytest.param("", "Says", id="has-no-such-class"),
        pytest.param("Says = 5", "not a Trigger class", id="made-it-something-else"),
        pytest.param("sys.exit('at import')", "at import", id="does-not-import"),
        pytest.param(
            SAYS.format(field="def __post_init__(self): sys.exit('in init')", value="1"), "in init",
            id="exits-in-init",
        ),
    ],
)  # fmt: skip
def test_newer_code_that_cannot_host_it_leaves_it_to_its_own_version(host, newer, named):
    child = host(SAYS.format(field="", value="'old'"), newer)

    child.send(with_newest(hosting("Says", n=1)))

    assert decode(child.expect(TriggerFired).payload) == "old"
    text = printed(child)
    assert "in the version of its run" in text
    assert named in text


def test_a_newest_version_that_is_not_on_this_machine_leaves_it_to_its_own(host):
    child = host(SAYS.format(field="", value="'old'"))

    child.send(with_newest(hosting("Says", n=1), "feedbeef"))

    assert decode(child.expect(TriggerFired).payload) == "old"


@pytest.mark.parametrize("reason", ["reassigned", "paused"])
def test_a_trigger_that_has_to_move_ends_with_that_reason_and_is_assigned_again(host, home, reason):
    child = host(NEVER, NEVER.replace("Event().wait()", "sleep(0)"))
    child.send(hosting("Never"))
    child.expect(Output)

    child.send(StopTrigger(1, 1, reason))
    ended = child.expect(TriggerEnded)
    assert (ended.assignment_id, ended.reason, ended.failure) == (1, reason, None)
    child.send(with_newest(hosting("Never", 1, 2)))

    assert child.expect(TriggerFired).assignment_id == 2
    assert child.expect(TriggerEnded).reason == ""
    notes = (home / "notes").read_text().split()
    assert notes == [f"cleanup:{reason}", "cleanup:finished"]


@pytest.mark.parametrize("reason", ["reassigned", "paused"])
def test_a_cancel_that_finds_a_trigger_on_the_move_still_kills_what_it_started(host, home, reason):
    child = host(
        """
class Slow(Trigger):
    async def run(self):
        print("runs")
        try:
            await asyncio.Event().wait()
        finally:
            note("leaving")
            await asyncio.sleep(0.2)
        yield
    async def on_kill(self): note("on_kill")
"""
    )
    child.send(hosting("Slow"))
    child.expect(Output)

    child.send(StopTrigger(1, 1, reason), StopTrigger(1, 1, "cancelled"))

    assert child.expect(TriggerEnded).reason == "cancelled"
    assert (home / "notes").read_text().split() == ["leaving", "on_kill"]


def test_an_event_that_was_on_its_way_is_not_taken_back_by_a_move(host):
    child = host(
        """
class Soon(Trigger):
    async def run(self): yield TriggerEvent("seen")
    async def cleanup(self, reason): await asyncio.sleep(0.1)
"""
    )
    child.send(hosting("Soon"))
    child.expect(TriggerFired)

    child.send(StopTrigger(1, 1, "reassigned"))

    assert child.expect(TriggerEnded).reason == ""


def test_many_saves_leave_only_the_newest_code_at_work(host, home):
    child = host(SAYS.format(field="", value="0"))
    for number in range(1, 41):
        version = f"{number:08x}"
        write_version(home, version, flow=HEAD + SAYS.format(field="", value=str(number)))
        child.send(with_newest(hosting("Says", 1, number, n=1), version))
        fired = child.expect(TriggerFired)
        assert (fired.assignment_id, decode(fired.payload)) == (number, number)


# ── streams ─────────────────────────────────────────────────────────────────────────────

COUNTS = """
class Counts(Trigger):
    async def run(self):
        n = self.last.payload if self.last else 0
        while True:
            n += 1
            print("last", self.last)
            yield TriggerEvent(n, key=str(n))
"""


def streaming(hosting_no: int = 1, **fields: object) -> StartTrigger:
    return msgspec.structs.replace(hosting("Counts", 1, hosting_no), window=2, **fields)


def test_a_stream_continues_after_its_last_stored_event(host):
    child = host(COUNTS)

    child.send(streaming(last=(encode(41, ""), "41")))

    assert [decode(child.expect(TriggerFired).payload) for _ in range(2)] == [42, 43]


def test_a_stream_learns_which_of_its_events_are_stored(host):
    child = host(COUNTS)
    child.send(streaming())
    for _ in range(2):
        child.expect(TriggerFired)

    child.send(EventsStored(1, 1, 2))
    for _ in range(2):
        child.expect(TriggerFired)
    child.send(StopTrigger(1, 1, "finished"))

    lines = printed(child).splitlines()
    assert lines[:2] == ["last None", "last None"]
    assert lines[2] == "last TriggerEvent(payload=2, key='2')"


# ── stages ──────────────────────────────────────────────────────────────────────────────

STAGES = """
class Loose(Trigger):
    def __init__(self, **kwargs): 1 / 0
    async def run(self): yield TriggerEvent(1)

class Odd:
    def __init__(self, how): self.how = how
    def __iter__(self): self.how()
    def __len__(self): self.how()

class Payload(dict):
    def items(self): sys.exit("in items")
    def __iter__(self): sys.exit("in iter")
    def __len__(self): sys.exit("in len")

class Closes(Trigger):
    async def run(self):
        try:
            yield TriggerEvent(1)
        finally:
            sys.exit("in finally")

class Cleans(Trigger):
    async def run(self): yield TriggerEvent(1)
    async def cleanup(self, reason): sys.exit("in cleanup")

class CleansByProperty(Trigger):
    async def run(self): yield TriggerEvent(1)
    @property
    def cleanup(self): sys.exit("in property")

class CleansByNothing(Trigger):
    async def run(self): yield TriggerEvent(1)
    cleanup = None

class Serialises(Trigger):
    async def run(self): yield TriggerEvent(Payload(a=1))

class SerialisesOdd(Trigger):
    async def run(self): yield TriggerEvent(Odd(lambda: 1 / 0))

class Again(Trigger):
    async def run(self):
        return self
    def __aiter__(self): return self
    async def __anext__(self): raise ValueError("in anext")

class NoIterator(Trigger):
    def run(self): return 5

class RunsSync(Trigger):
    def run(self): sys.exit("in run")
"""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        pytest.param("Loose", "trigger_construct", id="construct"),
        pytest.param("RunsSync", "trigger", id="run"),
        pytest.param("NoIterator", "trigger_yield", id="run-gives-no-iterator"),
        pytest.param("Again", "trigger", id="a-step"),
        pytest.param("Serialises", "unserializable", id="serialise-exits"),
        pytest.param("SerialisesOdd", "unserializable", id="serialise-refuses"),
    ],
)
def test_each_stage_is_fenced_and_named(host, name, reason):
    child = host(STAGES)

    child.send(hosting(name, 1), hosting("Plain", 2))

    ended = {e.trigger_no: e.failure for e in (child.expect(TriggerEnded) for _ in range(2))}
    assert ended[1] is not None
    assert ended[1].reason == reason
    assert ended[2] is None


@pytest.mark.parametrize(
    ("name", "says"),
    [
        pytest.param("Closes", "in finally", id="closing"),
        pytest.param("Cleans", "in cleanup", id="cleanup"),
        pytest.param("CleansByProperty", "in property", id="cleanup-is-a-property"),
        pytest.param("CleansByNothing", "None is not", id="cleanup-is-none"),
    ],
)
def test_errors_of_a_trigger_after_it_has_fired_are_only_logged(host, name, says):
    child = host(STAGES)

    child.send(hosting(name))

    assert decode(child.expect(TriggerFired).payload) == 1
    assert child.expect(TriggerEnded).failure is None
    assert says in "".join(
        report.data.decode()
        for frame in child.frames
        for report in frame
        if isinstance(report, Output)
    )


# ── sources of classes, and refusals ────────────────────────────────────────────────────


NO_TRIGGERS = {
    "a-function": "os:system",
    "a-class-that-is-no-trigger": "subprocess:Popen",
    "eval": "builtins:eval",
    "a-method": "flow:Plain.run",
    "globals": "flow:Plain.__init__.__globals__",
    "nothing": "flow:",
    "no-module": ":",
    "no-colon": "flow",
    "the-host-itself": "__main__:main",
}


def test_a_class_path_that_names_no_trigger_is_refused(host):
    child = host("")
    found = {}
    for number, (name, path) in enumerate(NO_TRIGGERS.items()):
        order = msgspec.structs.replace(hosting("Plain", 2 * number), class_path=path)
        newest = msgspec.structs.replace(order, trigger_no=2 * number + 1)
        child.send(order, with_newest(newest, VERSION))
        found[name] = {child.expect(TriggerEnded).failure.reason for _ in range(2)}

    expected = {name: {"trigger_load"} for name in NO_TRIGGERS}
    assert not (rows := differing(found, expected)), rows


AIRFLOWS = """
class Bare(Trigger):
    def __init__(self, path, poke_interval=5.0, **kwargs):
        # no super().__init__(), as in many of them
        self.path, self.poke_interval = path, poke_interval
        self.trigger_id = self.task_instance = self.timeout_after = None
    def serialize(self):
        return ("flow.Bare", {"path": self.path, "poke_interval": self.poke_interval})
    async def run(self):
        yield TriggerEvent({"path": self.path, "every": self.poke_interval, "id": self.trigger_id})
        return
    async def cleanup(self): note("cleanup")
"""


def test_a_trigger_as_airflow_writes_it_is_hosted(host, home):
    child = host(AIRFLOWS)

    child.send(hosting("Bare", path="/x", poke_interval=2.0))

    assert decode(child.expect(TriggerFired).payload) == {"path": "/x", "every": 2.0, "id": None}
    assert child.expect(TriggerEnded).failure is None
    assert (home / "notes").read_text().split() == ["cleanup"]
