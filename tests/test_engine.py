"""The engine loop over a real store: durable before it acts, and patient with the database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
import structlog.testing

from aioflow.clock import SystemClock
from aioflow.core.repair import execution
from aioflow.core.scheduling.slots import Slots
from aioflow.crypto import Vault
from aioflow.engine.loop import EffectDispatcher, Engine
from aioflow.engine.timers import Timers
from aioflow.errors import (
    BatchRefused,
    DaemonStopping,
    StoreUnavailable,
    UnknownDag,
    UnknownRun,
)
from aioflow.model.batch import Batch
from aioflow.model.dag import DagSpec, MapSource, MapSpec, ScheduleSpec, TaskSpec
from aioflow.model.ids import after_clear
from aioflow.model.states import Failure, RunState, TaskState
from aioflow.model.triggers import DagTriggerSpec
from aioflow.protocol.effects import DeliverOutbox, StartTry
from aioflow.protocol.inputs import FileParsed, HostUp, LiveRun, OutboxDelivered, TimerFired
from aioflow.protocol.outbox import Alert
from aioflow.protocol.reports import Deferred, Failed, Succeeded, TriggerFired
from aioflow.protocol.requests import (
    CancelRun,
    ClearTasks,
    CreateRun,
    DeleteRun,
    Mark,
    SetPool,
    ShowPools,
)
from aioflow.store import open_store
from tests.databases import on_both_databases
from tests.journal_replay import compare_with_replay

pytestmark = pytest.mark.timeout(180)

END = 2**62
"""A number that is higher than every task number."""


class EffectRecorder:
    """Records the effects of an engine. The test acts as the executor."""

    def __init__(self, dispatcher: EffectDispatcher) -> None:
        dispatcher.register(
            {**dict.fromkeys(dispatcher.unhandled, self._note), StartTry: self._start_try}
        )
        dispatcher.subscribe(self._committed)
        self.starts: list[StartTry] = []
        self.others: list[Any] = []
        self.arrived = anyio.Event()
        self.batches: list[Batch] = []

    def _note(self, effect: Any) -> None:
        self.others.append(effect)

    def _start_try(self, effect: StartTry) -> None:
        self.starts.append(effect)
        self.arrived.set()

    def _committed(self, batch: Batch, tx: Any) -> None:
        self.batches.append(batch)

    async def next_start(self) -> StartTry:
        while not self.starts:
            self.arrived = anyio.Event()
            await self.arrived.wait()
        return self.starts.pop(0)


class Flaky:
    """A store whose next commits fail as planned. Everything else is passed to the real store."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.plan: list[str] = []
        self.outages = 0
        self.refuse = lambda batch: False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @asynccontextmanager
    async def unfinished(self) -> AsyncIterator[AsyncIterator[Any]]:
        async with self._store.unfinished() as parts:
            yield self._unfinished(parts)

    async def _unfinished(self, parts: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for part in parts:
            yield part
            if self.outages and isinstance(part, LiveRun):
                self.outages -= 1
                raise StoreUnavailable("it restarts in the middle")

    async def commit(self, batch: Batch) -> None:
        if self.refuse(batch):
            raise BatchRefused("a test refuses this one")
        verdict = self.plan.pop(0) if self.plan else "ok"
        if verdict == "away":
            raise StoreUnavailable("a test says so")
        await self._store.commit(batch)
        if verdict == "reply lost":
            raise StoreUnavailable("applied, but nobody heard")


class Node:
    def __init__(self, store: Flaky, engine: Engine, effects: EffectRecorder) -> None:
        self.store, self.engine, self.effects = store, engine, effects

    async def load(self, *tasks: TaskSpec, **fields: Any) -> None:
        spec = DagSpec(dag_id="dag", file="dag.py", tasks=tasks, **fields)
        self.engine.report(
            [
                FileParsed(file="dag.py", version="v1", dags=(spec,), sources={"dag.py": b""}),
                HostUp("async"),
                HostUp("triggers"),
            ]
        )

    async def trigger(self, **fields: Any) -> str:
        answer: Any = await self.engine.ask(CreateRun(dag_id="dag", **fields))
        return answer[0]

    def succeed(self, effect: StartTry, **fields: Any) -> None:
        start = effect.start
        self.engine.report([Succeeded(start.task_no, start.start_no, 1, 2, **fields)])

    async def ended(self, run_id: str) -> RunState:
        await self.engine.wait_until_idle()
        return (await self.store.find_run(run_id)).state


@asynccontextmanager
async def node(url: str) -> AsyncIterator[Node]:
    async with open_store(url, Vault([b"k" * 32])) as store:
        flaky = Flaky(store)
        engine = Engine(
            flaky, Slots(cpu_slots=2, async_slots=10), clock=SystemClock(), random=lambda: 0.5
        )
        effects = EffectRecorder(engine.dispatcher)
        async with anyio.create_task_group() as services:
            await services.start(engine.run)
            yield Node(flaky, engine, effects)
            services.cancel_scope.cancel()


A, B = TaskSpec(task_id="a"), TaskSpec(task_id="b", parents=(0,))


async def test_a_run_goes_from_request_to_success(store_url):
    async with node(store_url) as n:
        await n.load(A, B)
        run_id = await n.trigger()
        n.succeed(await n.effects.next_start())
        n.succeed(await n.effects.next_start())

        assert await n.ended(run_id) is RunState.SUCCESS


async def test_started_tasks_are_durable_already(store_url):
    async with node(store_url) as n:
        await n.load(A)
        await n.trigger()

        started = (await n.effects.next_start()).start

        (row,) = await n.store.list_tasks_between(0, END)
        assert (row.state, row.start_no) == (TaskState.RUNNING, started.start_no)


async def test_a_request_that_cannot_be_done_is_answered_with_its_error(store_url):
    async with node(store_url) as n:
        with pytest.raises(UnknownDag):
            await n.trigger()


async def test_a_request_to_an_ended_engine_fails_and_its_services_only_wait(store_url):
    ended: list[str] = []

    async def ask(engine: Engine, *, fails_at_end: bool) -> None:
        try:
            await engine.ask(CreateRun(dag_id="dag"), fails_at_end=fails_at_end)
        except DaemonStopping:
            ended.append("heard")
        except anyio.get_cancelled_exc_class():
            ended.append("cancelled")
            raise

    async with anyio.create_task_group() as group:
        async with node(store_url) as n:
            await n.load(A)
            n.store.plan = ["away"] * 100
            n.engine.report([HostUp("async")])
            for fails_at_end in (False, True):
                group.start_soon(partial(ask, n.engine, fails_at_end=fails_at_end))
            await anyio.wait_all_tasks_blocked()
        await anyio.wait_all_tasks_blocked()
        assert ended == ["heard"]
        with pytest.raises(DaemonStopping):
            await n.engine.ask(CreateRun(dag_id="dag"), fails_at_end=True)
        group.cancel_scope.cancel()

    assert ended == ["heard", "cancelled"]


@pytest.mark.parametrize("verdict", ["away", "reply lost"])
async def test_a_database_that_is_away_loses_and_doubles_nothing(store_url, verdict):
    async with node(store_url) as n:
        await n.load(A, B)
        run_id = await n.trigger()
        first = await n.effects.next_start()
        n.store.plan = [verdict, verdict, "ok"]

        n.succeed(first)
        second = await n.effects.next_start()
        n.succeed(second)

        assert await n.ended(run_id) is RunState.SUCCESS
        assert not n.effects.starts


async def test_a_database_that_restarts_in_the_middle_of_a_takeover_is_read_again(store_url):
    async with node(store_url) as n:
        await n.load(A)
        run_ids = [await n.trigger() for _ in range(2)]
        first = [await n.effects.next_start() for _ in run_ids]

    async with restarted(store_url, lambda store: setattr(store, "outages", 2)) as n:
        assert n.store.outages == 0
        again = [await n.effects.next_start() for _ in run_ids]
        for start in again:
            n.succeed(start)

        assert [await n.ended(run_id) for run_id in run_ids] == [RunState.SUCCESS] * 2
        assert not n.effects.starts
    tasks = {effect.start.task_no for effect in first}
    assert {effect.start.task_no for effect in again} == tasks


class StandingClock(SystemClock):
    """A clock whose monotonic time is set by the test."""

    us = 0

    def monotonic_us(self) -> int:
        return self.us


def test_a_database_that_stays_away_is_named_at_once_and_then_each_second():
    clock, away = StandingClock(), StoreUnavailable("a test says so")
    nowhere: Any = None
    engine = Engine(nowhere, Slots(cpu_slots=1, async_slots=1), clock=clock, random=lambda: 0.5)
    with structlog.testing.capture_logs() as logs:
        for attempt, milliseconds in enumerate((0, 50, 150, 350, 750, 1550, 2000, 2549, 2550), 1):
            clock.us = 7_000_000 + milliseconds * 1_000
            engine._note_unavailable(away, attempt)

    assert [line["attempts"] for line in logs] == [1, 6, 9]
    assert engine.store_away_since == 7_000_000


@on_both_databases
async def test_a_refused_batch_costs_only_its_culprit(store_url):
    async with node(store_url) as n:
        await n.load(A, B)
        good, bad = await n.trigger(run_id="good"), await n.trigger(run_id="bad")
        starts = [await n.effects.next_start() for _ in range(2)]
        runs = {effect.info.run_id: effect for effect in starts}
        poison = runs["bad"].start.task_no
        n.store.refuse = lambda batch: any(
            change.task_no == poison and change.state is TaskState.SUCCESS
            for change in batch.task_changes
        )

        n.engine.report(
            [
                Succeeded(e.start.task_no, e.start.start_no, 1, 2)
                for e in (runs["bad"], runs["good"])
            ]
        )
        follower = await n.effects.next_start()

        assert follower.info.run_id == good
        n.succeed(follower)
        while (await n.store.find_run(good)).state is not RunState.SUCCESS:
            await anyio.lowlevel.checkpoint()
        held = await n.store.find_run(bad)
        assert held.state is RunState.RUNNING
        assert "a test refuses" in held.quarantine


async def test_a_fire_time_whose_run_is_refused_is_alerted_and_retried(store_url):
    async with node(store_url) as n:
        n.engine.memory.late_after_us = 1
        n.store.refuse = lambda batch: bool(batch.new_runs)
        await n.load(A, schedule=ScheduleSpec(every_us=50_000))
        while not (told := [e for e in n.effects.others if isinstance(e, DeliverOutbox)]):
            await n.engine.next_turn()

        alert = msgspec.msgpack.decode(told[0].body, type=Alert)
        assert (alert.reason, alert.dag_id) == ("schedule_late", "dag")
        assert "a test refuses" in alert.message
        assert len(n.engine.timers) == 1
        assert not await n.store.list_runs()


async def test_an_event_held_until_it_is_quiet_whose_run_is_refused_is_tried_again(
    store_url, monkeypatch
):
    armed: list[TimerFired] = []
    arm = Timers.arm

    def note(timers: Timers, due: TimerFired, *, at: int | None = None) -> None:
        armed.append(due)
        arm(timers, due, at=at)

    monkeypatch.setattr(Timers, "arm", note)
    async with node(store_url) as n:
        n.store.refuse = lambda batch: bool(batch.new_runs)
        trigger = DagTriggerSpec(class_path="m:Ticks", kwargs=b"\x80", debounce_us=1_000)
        await n.load(TaskSpec(task_id="t"), trigger=trigger)
        while (
            not n.engine.memory.dag_triggers
            or not n.engine.memory.dag_triggers.of("dag").assignment_id
        ):
            await n.engine.next_turn()
        one = n.engine.memory.dag_triggers.of("dag")
        with structlog.testing.capture_logs() as logs:
            n.engine.report(
                [TriggerFired(one.row.trigger_no, one.assignment_id, 0, 1, b"\xc0", "a")]
            )
            while not any(line["event"].startswith("a scheduled start of a DAG") for line in logs):
                await n.engine.next_turn()

        assert [line["dag_id"] for line in logs if "dag_id" in line] == ["dag"]
        assert len(n.engine.timers) == 1  # in a minute
        assert one.row.held.key == "a"
        assert not await n.store.list_runs()

        n.store.refuse = lambda batch: False
        n.engine.report(armed[-1:])  # as after the minute
        await n.effects.next_start()
        assert len(await n.store.list_runs()) == 1


async def test_work_in_flight_survives_a_turn_taken_back(store_url):
    """Memory is restored from the rows, but the processes continue. Their reports count."""
    async with node(store_url) as n:
        await n.load(A, TaskSpec(task_id="x"), TaskSpec(task_id="sum", parents=(0, 1)))
        run_id = await n.trigger()
        a, x = [await n.effects.next_start() for _ in range(2)]
        refused = []

        def once(batch: Batch) -> bool:
            wanted = any(c.task_no == a.start.task_no for c in batch.task_changes)
            if wanted and not refused:
                refused.append(batch)
                return True
            return False

        n.store.refuse = once
        n.succeed(a)
        n.succeed(x)
        last = await n.effects.next_start()

        assert refused
        assert last.start.task_index == 2
        n.succeed(last)
        assert await n.ended(run_id) is RunState.SUCCESS


async def test_an_unstorable_result_fails_no_other_task(store_url):
    async with node(store_url) as n:
        await n.load(A)
        first, second = await n.trigger(run_id="one"), await n.trigger(run_id="two")
        starts = {e.info.run_id: e for e in [await n.effects.next_start() for _ in range(2)]}
        surrogate = Failure(type="E", message="\ud800", reason="raised")
        bad = starts["one"].start

        n.engine.report([Failed(bad.task_no, bad.start_no, 1, 2, surrogate, retryable=False)])
        n.succeed(starts["two"])
        while (await n.store.find_run(second)).state is not RunState.SUCCESS:
            await anyio.lowlevel.checkpoint()

        row = await n.store.find_run(first)
        assert row.state is RunState.FAILED or row.quarantine


@on_both_databases
async def test_a_restart_on_the_same_rows_continues(store_url):
    mapped = MapSpec(sources=(MapSource("x", 0, -1),))
    tasks = (
        TaskSpec(task_id="list", feeds_limit=9),
        TaskSpec(task_id="work", parents=(0,), argument_parents=(0,), mapped=mapped),
    )
    async with node(store_url) as n:
        await n.load(*tasks)
        run_id = await n.trigger()
        n.succeed(await n.effects.next_start(), size=1, width=3)
        n.succeed(await n.effects.next_start())
        await n.effects.next_start()

    async with node(store_url) as n:
        seen = set()
        while True:
            if not n.engine.memory.runs:
                break
            effect = await n.effects.next_start()
            seen.add(effect.start.map_index)
            n.succeed(effect)
            if seen >= {1, 2}:
                break
        assert await n.ended(run_id) is RunState.SUCCESS
        assert 0 not in seen


async def test_an_ended_run_is_cleared_and_the_journal_tells_the_same(store_url):
    mapped = MapSpec(sources=(MapSource("x", 0, -1),))
    tasks = (
        TaskSpec(task_id="list", feeds_limit=9),
        TaskSpec(task_id="work", parents=(0,), argument_parents=(0,), mapped=mapped),
    )
    async with node(store_url) as n:
        await n.load(*tasks)
        run_id = await n.trigger()
        n.succeed(await n.effects.next_start(), size=1, width=2)
        for _ in range(2):
            n.succeed(await n.effects.next_start(), body=b"\x01", size=1)
        assert await n.ended(run_id) is RunState.SUCCESS

    async with node(store_url) as n:  # which no longer has the run in memory
        request = ClearTasks(run_id=run_id, tasks=("work",), map_index=1)
        assert await n.engine.ask(request) == (1, RunState.QUEUED)
        again = (await n.effects.next_start()).start
        assert (again.map_index, again.start_no, again.try_number) == (1, after_clear(1) + 1, 1)
        await n.engine.ask(ClearTasks(run_id=run_id))  # running tasks, too

    async with node(store_url) as n:
        n.succeed(await n.effects.next_start(), size=1, width=1)
        n.succeed(await n.effects.next_start())
        assert await n.ended(run_id) is RunState.SUCCESS
        rows = await n.store.list_tasks_between(0, END)
        assert sorted((row.map_index, row.state.label) for row in rows) == [
            (-1, "success"),
            (0, "removed"),
            (0, "success"),
            (1, "removed"),
        ]
        assert [row.task_no for row in await n.store.list_results(0, 1 << 60)] == [rows[0].task_no]
        assert await compare_with_replay(n.store) == []


async def test_a_clear_survives_that_the_database_refuses_it_once(store_url):
    async with node(store_url) as n:
        await n.load(A, B)
        run_id = await n.trigger()
        n.succeed(await n.effects.next_start())
        n.succeed(await n.effects.next_start())
        await n.ended(run_id)
        refusals = [True]
        n.store.refuse = lambda batch: bool(batch.task_changes and refusals and refusals.pop())

        assert await n.engine.ask(ClearTasks(run_id=run_id, tasks=("b",))) == (1, RunState.QUEUED)
        n.succeed(await n.effects.next_start())

        assert await n.ended(run_id) is RunState.SUCCESS


async def test_marks_of_a_live_and_of_an_ended_run_are_in_the_journal(store_url):
    async with node(store_url) as n:
        await n.load(A, B)
        run_id = await n.trigger()
        first = await n.effects.next_start()
        request = Mark(run_id=run_id, state=TaskState.FAILED, tasks=("a",))
        assert await n.engine.ask(request) == (1, RunState.FAILED)
        n.succeed(first)  # late
        assert await n.ended(run_id) is RunState.FAILED

    async with node(store_url) as n:  # which no longer has the run in memory
        request = Mark(run_id=run_id, state=TaskState.SUCCESS, tasks=("a",))
        assert await n.engine.ask(request) == (1, RunState.RUNNING)
        n.succeed(await n.effects.next_start())
        assert await n.ended(run_id) is RunState.SUCCESS
        whole = Mark(run_id=run_id, state=TaskState.FAILED)
        assert await n.engine.ask(whole) == (0, RunState.FAILED)
        rows = await n.store.list_tasks_between(0, END)
        assert [row.state for row in rows] == [TaskState.SUCCESS, TaskState.SUCCESS]
        assert rows[0].failure is not None
        assert rows[0].failure.reason == "marked"
        assert await compare_with_replay(n.store) == []


@pytest.mark.parametrize("is_cut_short", [False, True])
async def test_a_restart_continues_with_what_is_left_of_a_mark(
    store_url, monkeypatch, is_cut_short
):
    monkeypatch.setattr(execution, "SLICE_TASKS", 2)
    work = TaskSpec(task_id="work", mapped=MapSpec((MapSource("x", -1, 9),)))
    async with node(store_url) as n:
        await n.load(work, TaskSpec(task_id="after", parents=(0,)))
        run_id = await n.trigger()
        for _ in range(1 if is_cut_short else 10):
            n.succeed(await n.effects.next_start())
        if is_cut_short:
            await n.engine.ask(CancelRun(run_id=run_id))
        before = await n.ended(run_id)
        request = Mark(run_id=run_id, state=TaskState.FAILED, tasks=("work",))
        said = await n.engine.ask(request)
        assert said == (9, before if is_cut_short else RunState.QUEUED)
        run = await n.store.find_run(run_id)
        assert run.ended_at is None

    async with node(store_url) as n:
        after = await n.ended(run_id)
        assert after is (before if is_cut_short else RunState.PARTIAL)
        counts = await n.store.count_states(run.run_no)
        assert (0, TaskState.FAILED, 9) in counts
        assert (await n.store.find_run(run_id)).ended_at is not None
        assert await compare_with_replay(n.store) == []


async def test_an_alert_is_delivered_again_until_it_is_reported_done(store_url):
    async with node(store_url) as n:
        await n.load(A)
        await n.trigger()
        start = (await n.effects.next_start()).start
        failure = Failure(type="FanOutCapped", message="too wide", reason="fanout_cap")
        n.engine.report([Failed(start.task_no, start.start_no, 1, 2, failure, retryable=False)])
        await n.engine.wait_until_idle()

    async with node(store_url) as n:
        while not (owing := [e for e in n.effects.others if type(e).__name__ == "DeliverOutbox"]):
            await n.engine.next_turn()
        (owed,) = owing
        n.engine.report([OutboxDelivered(owed.outbox_no)])
        await n.engine.ask(CreateRun(dag_id="dag"))

    async with node(store_url) as n:
        assert not [e for e in n.effects.others if type(e).__name__ == "DeliverOutbox"]


async def test_a_sealed_wait_comes_back_with_its_kwargs(store_url):
    async with node(store_url) as n:
        await n.load(A)
        await n.trigger()
        start = (await n.effects.next_start()).start
        n.engine.report(
            [Deferred(start.task_no, start.start_no, 1, 2, "m:T", b"\x81\xa1a\x01", "next")]
        )
        while not n.engine.memory.waits:
            await anyio.lowlevel.checkpoint()
        await n.engine.ask(CreateRun(dag_id="dag", run_id="later"))

    async with node(store_url) as n:
        (wait,) = n.engine.memory.waits.values()
        assert wait.row.kwargs == b"\x81\xa1a\x01"


async def test_a_pool_keeps_its_limit_over_a_restart(store_url):
    async with node(store_url) as n:
        assert await n.engine.ask(SetPool(name="ledger", slots=3)) is True
        assert await n.engine.ask(SetPool(name="ledger", slots=3)) is False
        counting = SetPool(name="ledger", slots=3, include_deferred=True)
        assert await n.engine.ask(counting) is True

    async with node(store_url) as n:
        answer: Any = await n.engine.ask(ShowPools())
        ((row, used),) = answer
        assert (row.name, row.slots, row.include_deferred, used) == ("ledger", 3, True, 0)
        await n.engine.ask(SetPool(name="ledger", slots=None))

    async with node(store_url) as n:
        assert await n.engine.ask(ShowPools()) == []


async def test_a_report_that_raises_quarantines_its_run_and_no_other(store_url):
    """The report raises before it changes anything. The other run starts instead."""
    async with node(store_url) as n:
        await n.load(A, max_active_runs=1)
        bad, good = await n.trigger(run_id="bad"), await n.trigger(run_id="good")
        start = (await n.effects.next_start()).start
        unreadable: Any = "a time that is none"

        n.engine.report([Succeeded(start.task_no, start.start_no, 1, unreadable)])
        follower = await n.effects.next_start()

        assert (await n.store.find_run(good)).quarantine is None
        assert (await n.store.find_run(bad)).quarantine is not None
        await n.engine.ask(CancelRun(run_id=bad))
        n.succeed(follower)
        assert await n.ended(good) is RunState.SUCCESS


async def test_a_run_whose_quarantine_is_refused_too_holds_no_slot_and_no_place(store_url):
    """Both tasks of the run are running, and the report of one of them cannot be stored."""
    async with node(store_url) as n:
        await n.load(A, TaskSpec(task_id="b"), max_active_runs=1)
        bad, good = await n.trigger(run_id="bad"), await n.trigger(run_id="good")
        starts = [await n.effects.next_start() for _ in range(2)]
        assert {start.info.run_id for start in starts} == {bad}
        run_no = starts[0].info.run_no
        n.store.refuse = lambda batch: (
            any(c.run_no == run_no for c in batch.run_changes)
            or any(c.task_no == starts[0].start.task_no for c in batch.task_changes)
        )

        n.succeed(starts[0])
        followers = [await n.effects.next_start() for _ in range(2)]

        assert {start.info.run_id for start in followers} == {good}
        assert set(n.engine.memory.isolated) == {run_no}


async def test_a_place_that_a_refused_report_gave_free_is_taken_at_once(store_url):
    """No other input arrives, so the turn that rolls back the report has to assign slots itself."""
    async with node(store_url) as n:
        await n.load(A)
        runs = [await n.trigger(run_id=f"run{number}") for number in range(9)]
        starts = []
        while len(starts) < len(n.engine.slots.workers):
            starts.append(await n.effects.next_start())
        poison = starts[0].start
        n.store.refuse = lambda batch: any(
            c.task_no == poison.task_no and c.state is TaskState.SUCCESS for c in batch.task_changes
        )

        n.succeed(starts[0])
        follower = await n.effects.next_start()

        assert follower.info.run_id in runs
        held = [run_id for run_id in runs if (await n.store.find_run(run_id)).quarantine]
        assert held == [starts[0].info.run_id]


# ── restarts that cannot take every run along ───────────────────────────────────────────


@asynccontextmanager
async def restarted(url: str, change: Callable[[Flaky], None]) -> AsyncIterator[Node]:
    """Start the node again, over a store that was changed in the meantime."""
    async with open_store(url, Vault([b"k" * 32])) as store:
        flaky = Flaky(store)
        change(flaky)
        engine = Engine(
            flaky, Slots(cpu_slots=2, async_slots=10), clock=SystemClock(), random=lambda: 0.5
        )
        effects = EffectRecorder(engine.dispatcher)
        async with anyio.create_task_group() as services:
            await services.start(engine.run)
            yield Node(flaky, engine, effects)
            services.cancel_scope.cancel()


async def two_runs(url: str) -> dict[str, StartTry]:
    """Start two runs, each with a task in flight when the daemon ends."""
    async with node(url) as n:
        await n.load(A, B)
        await n.trigger(run_id="good")
        await n.trigger(run_id="bad")
        starts = [await n.effects.next_start() for _ in range(2)]
    return {start.info.run_id: start for start in starts}


async def test_a_restart_that_is_refused_for_one_run_continues_with_the_others(store_url):
    poison = (await two_runs(store_url))["bad"].start.task_no

    def refuse_the_bad_one(store: Flaky) -> None:
        store.refuse = lambda batch: any(c.task_no == poison for c in batch.task_changes)

    async with restarted(store_url, refuse_the_bad_one) as n:
        assert (await n.effects.next_start()).info.run_id == "good"
        held = {run_id: await n.store.find_run(run_id) for run_id in ("good", "bad")}

    assert held["good"].quarantine is None
    assert "a test refuses" in held["bad"].quarantine


async def test_a_run_whose_rows_make_no_sense_keeps_no_other_from_going_on(store_url):
    await two_runs(store_url)

    def damage_the_bad_one(store: Flaky) -> None:
        @asynccontextmanager
        async def unfinished() -> AsyncIterator[Any]:
            async with store._store.unfinished() as parts:
                yield damaged(parts)

        async def damaged(parts: AsyncIterator[Any]) -> AsyncIterator[Any]:
            async for part in parts:
                if isinstance(part, LiveRun) and part.run.run_id == "bad":
                    row = part.tasks[0]
                    part.tasks[0] = msgspec.structs.replace(row, map_index=3)  # of no expansion
                yield part

        store.unfinished = unfinished  # type: ignore[method-assign]

    async with restarted(store_url, damage_the_bad_one) as n:
        assert (await n.effects.next_start()).info.run_id == "good"
        held = await n.store.find_run("bad")
        assert {run.row.run_id for run in n.engine.memory.runs.values()} == {"good"}

    assert "cannot be restored: KeyError" in held.quarantine


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_rows_read_of_an_ended_run_are_read_again_after_its_mark(store_url, is_deleted):
    async with node(store_url) as n:
        await n.load(A, B)
        run_id = await n.trigger()
        for _ in range(2):
            n.succeed(await n.effects.next_start())
        await n.ended(run_id)
        is_read, may_go_on = anyio.Event(), anyio.Event()
        store: Any = n.store
        read = store.pieces_of_run

        @asynccontextmanager
        async def slowly(run_no):
            async with read(run_no) as pieces:
                found = [piece async for piece in pieces]
            is_read.set()
            await may_go_on.wait()

            async def again():
                for piece in found:
                    yield piece

            yield again()

        store.pieces_of_run = slowly
        answers: list[Any] = []

        async def clear() -> None:
            try:
                answers.append(await n.engine.ask(ClearTasks(run_id=run_id, failed=True)))
            except UnknownRun as exc:
                answers.append(exc.code)

        async with anyio.create_task_group() as people:
            people.start_soon(clear)
            await is_read.wait()
            if is_deleted:
                await n.engine.ask(DeleteRun(run_id=run_id))
            else:
                await n.engine.ask(Mark(run_id=run_id, state=TaskState.FAILED))
            may_go_on.set()

        assert answers == [UnknownRun.code if is_deleted else (0, RunState.FAILED)]


async def test_others_are_served_while_an_ended_run_is_read_for_a_clear(store_url):
    async with node(store_url) as n:
        await n.load(A)
        run_id = await n.trigger()
        n.succeed(await n.effects.next_start())
        await n.ended(run_id)
        is_read = anyio.Event()
        store: Any = n.store
        read = store.pieces_of_run

        @asynccontextmanager
        async def slowly(run_no):
            async with read(run_no) as pieces:
                await is_read.wait()
                yield pieces

        store.pieces_of_run = slowly
        async with anyio.create_task_group() as people:
            people.start_soon(n.engine.ask, ClearTasks(run_id=run_id))
            await anyio.lowlevel.checkpoint()

            await n.engine.ask(CreateRun(dag_id="dag", run_id="another"))

            n.succeed(await n.effects.next_start())
            assert await n.ended("another") is RunState.SUCCESS
            assert (await n.store.find_run(run_id)).state is RunState.SUCCESS
            is_read.set()
        n.succeed(await n.effects.next_start())
        assert await n.ended(run_id) is RunState.SUCCESS


async def test_an_event_that_is_refused_is_reported_again_with_the_later_ones(store_url):
    def is_bad(batch: Batch) -> bool:
        return any(event.key == "bad" for event in batch.of_dags.events)

    async with node(store_url) as n:
        n.store.refuse = is_bad
        trigger = DagTriggerSpec(class_path="m:Ticks", kwargs=b"\x80")
        await n.load(TaskSpec(task_id="t"), trigger=trigger)
        while (
            not n.engine.memory.dag_triggers
            or not n.engine.memory.dag_triggers.of("dag").assignment_id
        ):
            await n.engine.next_turn()
        one = n.engine.memory.dag_triggers.of("dag")
        at = (one.row.trigger_no, one.assignment_id)
        n.engine.report(
            [TriggerFired(*at, n_th, 1, b"\xc0", key) for n_th, key in enumerate(["a", "bad", "b"])]
        )
        while one.failure is None:
            await n.engine.next_turn()

        number = one.row.trigger_no
        # The next assignment continues after the event that was refused.
        assert await n.store.find_event_keys({number: ["a", "bad", "b"]}) == {(number, "a")}
        assert (one.failure.reason, one.assignment_id) == ("refused", 0)
        assert one.retry_at is not None
        assert len(await n.store.list_runs(dag_id="dag")) == 1
