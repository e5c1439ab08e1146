"""The triggerer: capacity, confirmations, and triggers of a host that dies."""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import pytest

from aioflow.clock import SystemClock
from aioflow.executors import host_inspection
from aioflow.executors.executor_context import ExecutorContext
from aioflow.executors.host_inspection import WatchLoad
from aioflow.executors.shared_host import FIRST_DELAY_SECONDS
from aioflow.executors.triggerer import Triggerer
from aioflow.model.triggers import TriggerDescription
from aioflow.processes import Children
from aioflow.protocol.commands import StartTrigger, StopTrigger
from aioflow.protocol.effects import AssignTrigger, ReleaseTrigger
from aioflow.protocol.inputs import HostLost, HostUp, LoopBlocked, TriggerCapacityChanged
from aioflow.protocol.reports import CancelQuery, Query, TriggerEnded, TriggerFired
from aioflow.telemetry.task_log import TaskLog
from aioflow.worker.watchdog import BlockedLoop
from tests.executors.processes import program, running, until

pytestmark = pytest.mark.process

# Fires once for each trigger and confirms each end. Dies when it gets a trigger of class "crash".
# For class "stand", it prints the trigger's fields as the watchdog would, and blocks forever; for
# class "pause", it blocks for a while.
HOST = """
[welcome] = link.receive()
box = int(os.environ["AIOFLOW_BLACKBOX_FD"])
try:
    while True:
        for order in link.receive():
            if isinstance(order, Ping):
                link.send([Pong(0, 0, (("m:T", 2, 7),))])
            elif isinstance(order, Describe):
                if not is_mute:
                    told = tuple((number, (4, 7)) for number in order.numbers)
                    link.send([Described(order.question, told)])
            elif isinstance(order, StartTrigger):
                if order.class_path == "crash":
                    os.pwrite(box, order.trigger_no.to_bytes(8, sys.byteorder), 0)
                    os.kill(os.getpid(), signal.SIGABRT)
                if order.class_path in {"stand", "pause"}:
                    nonce = os.environ["AIOFLOW_LOG_NONCE"].encode()
                    os.write(2, b"\\x1e" + nonce + b" stall " + order.kwargs + b"\\n")
                    os.pwrite(box, (1).to_bytes(8, sys.byteorder), 0)  # another's, by now
                    time.sleep(1000 if order.class_path == "stand" else 0.3)
                if order.class_path == "ask":
                    link.send([Query(1, order.run_no, "runs", b""), Query(2, 12345, "runs", b"")])
                is_mute = order.class_path == "mute"
                is_stubborn = order.class_path == "stubborn"
                if order.class_path == "print":
                    link.send([Output(order.trigger_no, order.assignment_id, b"a line\\n")])
                    link.send([Output(order.trigger_no, 99, b"of another hosting\\n")])
                is_last = order.class_path == "data"
                hosted = order.trigger_no, order.assignment_id
                link.send([TriggerFired(*hosted, 0, 1, b"", is_last=is_last)])
            elif isinstance(order, StopTrigger) and order.reason == "shutdown" and is_stubborn:
                os._exit(1)
            elif isinstance(order, StopTrigger):
                at = order.trigger_no, order.assignment_id
                link.send([TriggerEnded(*at, 1, None, order.reason)])
except LinkClosed:
    pass
"""


class NotedClock(SystemClock):
    """A clock that records the durations of sleeps."""

    def __init__(self):
        self.asked_seconds = []

    async def sleep(self, seconds):
        self.asked_seconds.append(seconds)
        await super().sleep(seconds)


class Node:
    def __init__(self, home, capacity, role, idle_seconds):
        self.reports, self.asked = [], []
        self.storing = set()
        self.clock = NotedClock()
        self.children = Children(home, program=program(HOST))
        context = ExecutorContext(
            children=self.children,
            code=home / "code",
            results=home / "results",
            tasklog=TaskLog(home / "logs", SystemClock()),
            report=self.reports.extend,
            clock=self.clock,
            on_query=lambda child, ask: self.asked.append((child, ask)),
            is_storing=lambda number: number in self.storing,
        )
        self.tasklog = context.tasklog
        self.triggerer = Triggerer(context, role=role, capacity=capacity, idle_seconds=idle_seconds)

    def host(
        self, number, class_path="", assignment_id=1, kwargs=b"", *, process_no=None, **fields
    ):
        host = StartTrigger(
            number, assignment_id, 7, number, "v", class_path, kwargs, 0, None, **fields
        )
        process_no = self.triggerer.host_process.process_no if process_no is None else process_no
        self.triggerer.host(AssignTrigger(host, process_no=process_no))

    def end(self, number, assignment_id=1):
        self.triggerer.end(ReleaseTrigger(StopTrigger(number, assignment_id, "finished")))

    def of(self, kind):
        return [report for report in self.reports if isinstance(report, kind)]

    def fired(self):
        return [report.trigger_no for report in self.of(TriggerFired)]

    def room(self):
        return [(word.trigger_no, word.has_capacity) for word in self.of(TriggerCapacityChanged)]

    def ended(self):
        return [report.trigger_no for report in self.of(TriggerEnded)]


@asynccontextmanager
async def node(tmp_path, capacity=100, role="triggers", idle_seconds=math.inf):
    node = Node(tmp_path, capacity, role, idle_seconds)
    async with running(node.children, node.triggerer):
        yield node


async def test_a_trigger_is_assigned_fires_and_is_released(tmp_path):
    async with node(tmp_path) as n:
        n.host(1)
        await until(n.fired)
        n.end(1)
        await until(n.ended)
        assert not n.triggerer.load.triggers

    assert [type(report) for report in n.reports] == [HostUp, TriggerFired, TriggerEnded]


async def test_reports_of_a_host_about_its_watches_are_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(host_inspection, "DESCRIPTION_SECONDS", 20.0)
    async with node(tmp_path) as n:
        await until(lambda: n.triggerer.load.watches == [WatchLoad("m:T", 2, 7)])
        n.host(1)
        n.host(2)

        assert await n.triggerer.describe([1, 9]) == {1: TriggerDescription(4, 7)}
        assert await n.triggerer.describe([9]) == {}


async def test_no_request_waits_long_for_a_silent_host(tmp_path, monkeypatch):
    monkeypatch.setattr(host_inspection, "DESCRIPTION_SECONDS", 0.01)
    async with node(tmp_path) as n:
        n.host(1, "mute")

        assert await n.triggerer.describe([1]) == {}


async def test_a_trigger_whose_event_was_the_last_is_released(tmp_path):
    async with node(tmp_path, capacity=1) as n:
        n.host(1, "data")
        n.host(2)
        await until(lambda: n.fired() == [1, 2])  # there was capacity for it
        n.end(1)  # reported before the event was received
        assert n.ended() == [1]
        assert n.triggerer.load.triggers == 1


async def test_a_host_does_not_end_before_the_results_of_its_triggers_are_stored(tmp_path):
    async with node(tmp_path, idle_seconds=0.03) as n:
        n.storing.add(1)
        n.host(1, "data")
        await until(n.fired)
        looks = n.clock.asked_seconds.count(0.03)
        await until(lambda: n.clock.asked_seconds.count(0.03) > looks + 3)
        assert not n.triggerer.host_process.was_idle
        n.storing.clear()
        await until(lambda: n.triggerer.host_process.was_idle)


async def test_more_is_handed_over_at_once_than_fits_into_one_frame(tmp_path):
    fields = bytes(1024 * 1024)
    async with node(tmp_path, capacity=200) as n:
        for number in range(1, 151):
            n.host(number, kwargs=fields)
        await until(lambda: len(n.fired()) == 150)

    assert not n.of(HostLost)


async def test_over_capacity_the_oldest_waits_least(tmp_path):
    async with node(tmp_path, capacity=2) as n:
        for number in (1, 2, 3, 4, 5):
            n.host(number)
        assert n.triggerer.load.waiting == 3
        n.end(4)  # one that waits is released at once
        assert n.ended() == [4]
        n.end(1)
        await until(lambda: 3 in n.fired())
        assert n.triggerer.load.waiting == 1
        n.end(2)
        await until(lambda: 5 in n.fired())
        assert not n.triggerer.load.waiting


async def test_the_queue_drops_triggers_that_no_longer_wait_for_capacity(tmp_path):
    async with node(tmp_path, capacity=1) as n:
        for number in range(1, 1_001):
            n.host(number, priority=5 if number == 400 else 0)
        for number in range(3, 1_001):
            if number != 400:
                n.end(number)
        kept = len(n.triggerer._heap)
        for number in (1, 400):
            n.end(number)
            await until(partial(has_fired, n, 2 if number == 1 else 3))

    assert kept < 100
    assert n.fired() == [1, 400, 2]


def has_fired(node, count):
    return len(node.fired()) == count


async def test_over_capacity_the_important_come_first_then_the_old(tmp_path):
    async with node(tmp_path, capacity=1) as n:
        n.host(1)
        n.host(2)
        n.host(5, priority=3)
        n.host(4, priority=3)
        n.host(3, priority=9)
        for count, number in enumerate((1, 3, 4, 5, 2), 1):
            await until(partial(has_fired, n, count))
            n.end(number)

    assert n.fired() == [1, 3, 4, 5, 2]


async def test_the_engine_gets_reports_of_waiting_for_capacity_and_of_its_end(tmp_path):
    async with node(tmp_path, capacity=1) as n:
        n.host(1)
        n.host(2)
        n.host(2)  # a second order for the same
        assert n.room() == [(2, False), (2, False)]
        n.end(1)
        await until(lambda: 2 in n.fired())

    assert n.room()[2:] == [(2, True)]


async def test_one_that_waits_for_capacity_ends_with_the_requested_reason(tmp_path):
    async with node(tmp_path, capacity=1) as n:
        n.host(1)
        n.host(2)
        n.triggerer.end(ReleaseTrigger(StopTrigger(2, 1, "reassigned")))
        [ended] = n.of(TriggerEnded)
        assert (ended.trigger_no, ended.reason) == (2, "reassigned")
        n.host(2, assignment_id=2)
        n.end(1)
        await until(lambda: 2 in n.fired())

    assert [fired.assignment_id for fired in n.of(TriggerFired)] == [1, 2]


async def test_when_the_daemon_ends_all_are_released_without_an_alert(tmp_path):
    async with node(tmp_path, capacity=2) as n:
        for number in (1, 2, 3):
            n.host(number)
        await until(lambda: len(n.fired()) == 2)

        await n.triggerer.shut_down()
        n.host(4)

        assert not n.triggerer.load.triggers
        assert not n.triggerer.load.waiting
        assert n.fired() == [1, 2]
        assert not n.ended()


async def test_a_host_that_dies_when_the_daemon_ends_has_released_all(tmp_path):
    async with node(tmp_path) as n:
        n.host(1, "stubborn")
        await until(n.fired)

        await n.triggerer.shut_down()

        assert n.of(HostLost)


async def test_a_host_that_has_nothing_is_not_waited_for(tmp_path):
    async with node(tmp_path) as n:
        await n.triggerer.shut_down()


async def test_output_of_a_trigger_is_in_the_log_of_its_task(tmp_path):
    async with node(tmp_path) as n, running(n.tasklog):
        place = {"task_index": 3, "map_index": 1001, "start_no": 5, "try_number": 2}
        n.host(1, "print", **place)
        path = n.tasklog.path(7, 3, 1001)
        await until(path.exists)
        await until(lambda: b"a line" in path.read_bytes())
        n.end(1)
        await until(n.ended)

    assert b"of another hosting" not in path.read_bytes()


async def test_a_new_hosting_takes_the_place_of_the_old_one(tmp_path):
    async with node(tmp_path, capacity=1) as n:
        n.host(1)
        n.host(1, assignment_id=2)
        await until(lambda: len(n.fired()) == 2)
        n.end(1, assignment_id=1)  # late: of the previous assignment
        await until(n.ended)
        assert n.triggerer.load.triggers == 1


async def test_letting_go_of_an_unknown_trigger_is_confirmed(tmp_path):
    async with node(tmp_path) as n:
        n.end(99)

    assert n.ended() == [99]


async def test_a_death_names_the_culprit_and_forgets_all(tmp_path):
    async with node(tmp_path, capacity=2) as n:
        n.host(1)
        await until(n.fired)
        n.host(2, "crash")
        n.host(3)
        await until(lambda: len(n.of(HostUp)) == 2)
        assert not n.triggerer.load.triggers
        assert not n.triggerer.load.waiting
        assert [asked for _, asked in n.asked] == [CancelQuery(-1)]  # no query is left
        n.host(1, assignment_id=2)
        await until(lambda: len(n.fired()) == 2)

    assert FIRST_DELAY_SECONDS in n.clock.asked_seconds
    [lost] = n.of(HostLost)
    assert (lost.role, lost.culprit, lost.failure.reason) == ("triggers", 2, "crashed")
    assert "SIGABRT" in lost.failure.message


@pytest.mark.parametrize("role", ["triggers", "quarantine"])
async def test_a_trigger_assigned_to_a_lost_process_is_not_hosted_by_the_next(tmp_path, role):
    async with node(tmp_path, role=role) as n:
        n.host(1)  # the quarantine host starts for it
        await until(lambda: n.of(HostUp))
        lost_no = n.triggerer.host_process.process_no
        n.host(2, "crash")
        await until(lambda: len(n.of(HostUp)) == 2)
        n.host(3, process_no=lost_no)  # its commit took longer than the replacement
        n.host(4, process_no=0)  # decided before any process was known
        assert not n.triggerer.load.triggers
        n.end(3)
        await until(n.ended)
        n.host(5)
        await until(lambda: 5 in n.fired())

    first, second = n.of(HostUp)
    assert first.process_no == lost_no != second.process_no
    assert n.ended() == [3]
    assert not {3, 4} & {*n.fired()}


async def test_a_trigger_asks_only_for_a_run_it_is_hosted_for(tmp_path):
    async with node(tmp_path) as n:
        n.host(1, "ask")
        await until(n.fired)
        [(child, asked)] = n.asked

        assert asked == Query(1, 7, "runs", b"")
        assert child.info(7) is None
        assert child.serves(7)
        assert not child.serves(12345)


# ── one that holds up the others ────────────────────────────────────────────────────────


def stand(node, milliseconds=520, how="stand", **fields):
    """Let trigger 2 block the loop, and the watchdog report for how long."""
    stall = BlockedLoop(1, 2, milliseconds, "flow.py:7 in Slow.run", **fields)
    node.host(2, how, kwargs=msgspec.json.encode(stall))


def has_come_up(node, times):
    return len(node.of(HostUp)) == times


async def test_one_that_holds_up_others_costs_its_host_which_is_replaced_without_delay(tmp_path):
    async with node(tmp_path) as n:
        for assignment_id in range(1, 4):
            n.host(1, assignment_id=assignment_id)
            await until(partial(has_fired, n, assignment_id))
            stand(n)
            await until(partial(has_come_up, n, assignment_id + 1))

    lost = n.of(HostLost)
    assert {(one.culprit, one.failure.reason, one.class_path) for one in lost} == {
        (2, "blocked", "stand")
    }
    assert {stalled.class_path for stalled in n.of(LoopBlocked)} == {"stand"}
    assert lost[0].failure.message.endswith("0.52 s at flow.py:7 in Slow.run")
    assert FIRST_DELAY_SECONDS not in n.clock.asked_seconds


@pytest.mark.parametrize(
    ("role", "others", "said"),
    [
        pytest.param("triggers", 0, {}, id="nobody-else-waits"),
        pytest.param("triggers", 1, {"milliseconds": 340}, id="not-for-long-enough"),
        pytest.param("triggers", 100, {"milliseconds": 354}, id="more-are-dearer-to-move"),
        pytest.param("triggers", 1, {"is_over": True}, id="over-by-now"),
        pytest.param("triggers", 1, {"is_loading": True}, id="an-import-is-slow-once"),
        pytest.param("quarantine", 1, {}, id="in-quarantine-they-put-up-with-it"),
    ],
)
async def test_one_that_stands_is_left_in_peace(tmp_path, role, others, said):
    async with node(tmp_path, capacity=1000, role=role) as n:
        n.host(3)
        await until(lambda: n.triggerer.load.triggers or n.host(3))
        await until(n.fired)
        n.end(3)
        await until(n.ended)
        for number in range(10, 10 + others):
            n.host(number)
        stand(n, how="pause", **said)
        await until(lambda: 2 in n.fired())
        assert n.of(LoopBlocked)

    assert not n.of(HostLost)
