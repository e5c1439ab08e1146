"""Time limits on user code when it starts and when it ends. The tests wait for the full limits."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from aioflow.author.codec import encode
from aioflow.protocol.commands import Hello, StartTrigger, StopTrigger
from aioflow.protocol.reports import Query, Report, TriggerEnded, TriggerFired
from aioflow.worker.crash_recorder import CrashRecorder
from aioflow.worker.shared_host import ReportBuffer
from aioflow.worker.trigger.factory import MAKE_SECONDS
from aioflow.worker.triggerer import CLEANUP_SECONDS, TriggerHost
from tests.worker.peer import VERSION, run_info, start, write_version

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])

HEAD = """
import asyncio, contextlib
from dataclasses import dataclass
from typing import Any
from aioflow import *

class Slow(Trigger):
    async def run(self):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(1e6)
            yield TriggerEvent(1)

class Quick(Trigger):
    async def run(self):
        yield TriggerEvent(1)
"""

_reports = msgspec.msgpack.Decoder(Report)


class Link:
    """The daemon's end of the link, which records each report with its time in seconds."""

    def __init__(self) -> None:
        self.heard: list[tuple[float, Any]] = []
        self._news = asyncio.Event()

    def send(self, messages: Sequence[msgspec.Raw]) -> None:
        now = asyncio.get_running_loop().time()
        self.heard += [(now, _reports.decode(message)) for message in messages]
        self._news.set()

    async def drain(self) -> None: ...

    async def expect(self, kind: type[Any]) -> tuple[float, Any]:
        """Return the next report of a kind, with its time."""
        while True:
            for at, report in self.heard:
                if isinstance(report, kind):
                    self.heard.remove((at, report))
                    return at, report
            self._news.clear()
            await self._news.wait()


@pytest.fixture
def house(home, monkeypatch):
    """Return a function that makes a trigger host, in this process, for a DAG file's classes."""
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))

    def house(source: str) -> tuple[TriggerHost, Link]:
        write_version(home, flow=HEAD + source)
        line, link = ReportBuffer(), Link()
        theirs: Any = link
        line.connect(theirs)
        hello = Hello("triggers", str(home / "code"), str(home / "results"))
        return TriggerHost(line, CrashRecorder(), hello), link

    yield house
    for name in [name for name in sys.modules if name.startswith(f"aioflow_v_{VERSION}")]:
        del sys.modules[name]


def hosting(name: str, **changes: Any) -> StartTrigger:
    order = StartTrigger(1, 1, 1, 100, VERSION, f"flow:{name}", encode({}, ""), 1, None)
    return msgspec.structs.replace(order, **changes)


@pytest.mark.parametrize(
    "cleanup",
    [
        pytest.param("await asyncio.sleep(1e6)", id="it-sleeps"),
        pytest.param("await asyncio.Event().wait()", id="it-waits"),
    ],
)
async def test_a_cleanup_that_hangs_is_cut_short(house, cleanup):
    host, link = house(f"""
class Lingers(Quick):
    async def cleanup(self, reason): {cleanup}
""")

    host.handle(hosting("Lingers"))

    fired, _ = await link.expect(TriggerFired)
    ended, report = await link.expect(TriggerEnded)
    assert ended - fired == pytest.approx(CLEANUP_SECONDS)
    assert report.failure is None


async def test_a_cleanup_that_needs_less_than_its_time_is_waited_for(house):
    host, link = house(f"""
class Lingers(Quick):
    async def cleanup(self, reason): await asyncio.sleep({CLEANUP_SECONDS - 1})
""")

    host.handle(hosting("Lingers"))

    fired, _ = await link.expect(TriggerFired)
    ended, _ = await link.expect(TriggerEnded)
    assert ended - fired == pytest.approx(CLEANUP_SECONDS - 1)


async def test_undoing_a_cancelled_wait_has_its_own_limit_and_then_the_cleanup_runs(house):
    host, link = house("""
class Lingers(Slow):
    async def on_kill(self): await asyncio.sleep(1e6)
    async def cleanup(self, reason): print("cleaned up", reason)
""")
    host.handle(hosting("Lingers"))
    await asyncio.sleep(1)

    host.handle(StopTrigger(1, 1, "cancelled"))

    told = asyncio.get_running_loop().time()
    ended, report = await link.expect(TriggerEnded)
    assert ended - told == pytest.approx(CLEANUP_SECONDS)
    assert report.failure is None
    printed = b"".join(report.data for _, report in link.heard)
    assert b"cleaned up cancelled" in printed


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(
            """
class Stays(Trigger):
    async def run(self):
        with contextlib.suppress(asyncio.CancelledError): await asyncio.sleep(1e6)
        await asyncio.sleep(1e6)
        yield TriggerEvent(1)
""",
            id="run-swallows-its-end",
        ),
        pytest.param(
            """
class Stays(Slow):
    async def cleanup(self, reason):
        with contextlib.suppress(asyncio.CancelledError): await asyncio.sleep(1e6)
        await asyncio.sleep(1e6)
""",
            id="cleanup-swallows-its-end",
        ),
    ],
)
async def test_a_coroutine_that_does_not_end_is_abandoned_and_reported(house, source):
    host, link = house(source)
    host.handle(hosting("Stays"))
    await asyncio.sleep(1)

    host.handle(StopTrigger(1, 1, "timeout"))

    told = asyncio.get_running_loop().time()
    ended, report = await link.expect(TriggerEnded)
    assert ended - told == pytest.approx(2 * CLEANUP_SECONDS)
    assert report.failure.reason == "abandoned"


async def test_a_trigger_that_lingers_after_its_event_is_abandoned_but_its_event_came_at_once(
    house,
):
    host, link = house("""
class Stays(Trigger):
    async def run(self):
        try: yield TriggerEvent(1)
        finally: await asyncio.sleep(1e6)
""")
    began = asyncio.get_running_loop().time()

    host.handle(hosting("Stays"))

    fired, _ = await link.expect(TriggerFired)
    ended, _ = await link.expect(TriggerEnded)
    assert fired == began
    assert ended - fired == pytest.approx(2 * CLEANUP_SECONDS)


async def test_arguments_of_a_start_trigger_that_never_come_fail_it_in_time(house):
    host, link = house("""
@task
def parent(): ...

class Waits(Operator):
    start_from_trigger = True
    def __init__(self, value=None, **options):
        super().__init__(**options)
        self.start_trigger_args = StartTriggerArgs(trigger_cls=Quick, next_method="after")
    def execute(self, context): ...
    def after(self, context, event=None): ...

@dag
def pipeline():
    Waits(task_id="waits", value=parent())
""")
    host.handle(run_info())

    host.handle(hosting("Quick", task_no=101, start=start(1), is_made_there=True))

    asked, _ = await link.expect(Query)
    ended, report = await link.expect(TriggerEnded)
    assert ended - asked == pytest.approx(MAKE_SECONDS)
    assert (report.failure.type, report.failure.reason) == ("TimeoutError", "trigger_construct")
