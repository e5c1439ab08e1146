"""Expired data is deleted automatically in small batches, and nothing else is deleted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
import structlog.testing
from msgspec.structs import replace

from aioflow.api.access.audit import audit_faults
from aioflow.catalog.snapshot import Snapshots
from aioflow.clock import SystemClock
from aioflow.errors import AioflowError, StoreUnavailable
from aioflow.maintenance import retention
from aioflow.maintenance.retention import Cleaning, RetentionDays
from aioflow.model.access import Actor, Role
from aioflow.model.dag import DagSpec, TaskSpec
from aioflow.model.states import RunState
from aioflow.model.triggers import ASSETS, AssetCondition, DagTriggerSpec
from aioflow.protocol.inputs import FileParsed
from aioflow.protocol.requests import CancelRun, CreateRun, EmitEvent, EraseVersions, SetPool
from aioflow.telemetry.task_log import TaskLog
from tests.journal_replay import compare_with_replay
from tests.test_deletion import deleted_by, gone
from tests.test_engine import Node, node

pytestmark = pytest.mark.timeout(60)

DAY_US = 86_400_000_000
KEPT = RetentionDays(runs_days=60, events_days=90, journal_days=7, logs_days=30)
VERSIONS = RetentionDays(runs_days=0, events_days=0, journal_days=0, logs_days=0, versions_days=30)
FOR_EVER = RetentionDays(runs_days=0, events_days=0, journal_days=0, logs_days=0)
A = TaskSpec(task_id="a")
KINDS = 7


class LaterClock(SystemClock):
    """A clock that is some days ahead. Long sleeps last until the test wakes all sleepers."""

    def __init__(self, days: float) -> None:
        self.days = days
        self.slept: list[float] = []
        self.woken = anyio.Event()
        self.heard = anyio.Event()

    def now(self) -> int:
        return super().now() + int(self.days * DAY_US)

    async def has_slept(self, seconds: float, times: int) -> None:
        while self.slept.count(seconds) < times:
            await self.heard.wait()

    def wake(self) -> None:
        self.woken.set()
        self.woken = anyio.Event()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.heard.set()
        self.heard = anyio.Event()
        if seconds < retention._FIRST_SECONDS:
            await anyio.lowlevel.checkpoint()
        else:
            await self.woken.wait()


def cleaner(n: Node, folder: Path, days: float = 100, kept: RetentionDays = KEPT) -> Cleaning:
    clock = LaterClock(days)
    (folder / "code").mkdir(exist_ok=True)
    snapshots = Snapshots(folder / "code")
    return Cleaning(n.engine, n.store, TaskLog(folder / "logs", clock), clock, kept, snapshots)


async def ended(n: Node, **fields: Any) -> str:
    run_id = await n.trigger(**fields)
    n.succeed(await n.effects.next_start())
    assert await n.ended(run_id) is RunState.SUCCESS
    return run_id


async def two_ended(n: Node) -> None:
    """Finish two runs of one DAG, one after the other."""
    await n.load(A)
    for name in ("one", "two"):
        await ended(n, run_id=name)


async def left(n: Node) -> list[str]:
    return sorted(run.run_id for run in await n.store.list_runs())


async def test_old_runs_go_and_the_newest_stays(store_url, tmp_path):
    async with node(store_url) as n:
        await n.load(A)
        for name in ("one", "two", "three"):
            await ended(n, run_id=name)

        assert (await cleaner(n, tmp_path, days=50).clean()).runs == 0
        found = await cleaner(n, tmp_path).clean()

        assert (found.runs, found.more) == (2, False)
        assert await left(n) == ["three"]
        async with deleted_by(n, tmp_path):
            await gone(n)
        assert await compare_with_replay(n.store) == []


async def test_old_lines_of_the_audit_go_and_the_chain_of_the_rest_holds(store_url, tmp_path):
    by = Actor(name="anna", role=Role.ADMIN)
    async with node(store_url) as n:
        for slots in (1, 2, 3):
            await n.engine.ask(SetPool(name="db", slots=slots), by)

        assert (await cleaner(n, tmp_path, kept=replace(KEPT, audit_days=200)).clean()).audit == 0
        service = cleaner(n, tmp_path, kept=replace(KEPT, audit_days=50))
        assert (await service.preview()).audit == 3
        assert (await service.clean()).audit == 3
        assert await n.store.list_audit() == []
        await n.engine.ask(SetPool(name="db", slots=4), by)

        assert await audit_faults(n.store) == []
        assert await compare_with_replay(n.store) == []


async def test_the_run_that_a_live_one_looks_back_at_stays(store_url, tmp_path):
    async with node(store_url) as n:
        await n.load(TaskSpec(task_id="a", depends_on_past=True))
        for day in (1, 2, 3):
            await ended(n, run_id=f"day-{day}", logical_date=day * DAY_US)
        await n.trigger(run_id="day-4", logical_date=4 * DAY_US)
        await n.trigger(run_id="day-0", logical_date=0)
        await n.engine.ask(CancelRun(run_id="day-0"))

        await cleaner(n, tmp_path).clean()

        assert await left(n) == ["day-0", "day-3", "day-4"]  # the newest ended, and two of a line


async def test_no_more_runs_are_named_than_are_deleted_meanwhile(store_url, tmp_path, monkeypatch):
    monkeypatch.setattr(retention, "_RUNS_AT_ONCE", 2)
    async with node(store_url) as n:
        await n.load(A)
        for name in ("a", "b", "c", "d", "e"):
            await ended(n, run_id=name)
        service = cleaner(n, tmp_path)

        assert await service._delete_few_runs() == (2, True)
        assert await service._delete_few_runs() == (0, True)  # those two are still to be deleted
        async with deleted_by(n, tmp_path):
            await gone(n)
        assert await service._delete_few_runs() == (2, True)
        assert await left(n) == ["e"]


def parsed(version: str, file: str = "dag.py", dag_id: str = "dag") -> FileParsed:
    spec = DagSpec(dag_id=dag_id, file=file, tasks=(A,))
    return FileParsed(file=file, version=version, dags=(spec,), sources={file: version.encode()})


async def edit(n: Node, version: str, **fields: str) -> None:
    n.engine.report([parsed(version, **fields)])
    await n.engine.wait_until_still()


async def test_versions_go_that_no_run_file_or_dag_has(store_url, tmp_path):
    async with node(store_url) as n:
        await n.load(A)
        await edit(n, "of-a-run")
        await ended(n)
        for version in ("old-1", "old-2", "newest"):
            await edit(n, version)
        await edit(n, "of-another", file="other.py", dag_id="other")
        service = cleaner(n, tmp_path, kept=VERSIONS)
        await service._snapshots.restore("old-1", {"dag.py": b""})
        os.utime(tmp_path / "code" / "old-1", (0, 0))
        await service._snapshots.restore("newest", {"dag.py": b""})
        os.utime(tmp_path / "code" / "newest", (0, 0))

        assert (await cleaner(n, tmp_path, days=20, kept=VERSIONS).clean()).versions == 0
        assert (await service.preview()).versions == 3
        assert (await service.clean()).versions == 3

        assert await n.store.list_versions() == ["newest", "of-a-run", "of-another"]
        assert [path.name for path in (tmp_path / "code").iterdir()] == ["newest"]
        assert await compare_with_replay(n.store) == []


async def test_a_version_that_was_deleted_may_come_back(store_url, tmp_path):
    async with node(store_url) as n:
        await n.load(A)
        await edit(n, "other")
        assert (await cleaner(n, tmp_path, kept=VERSIONS).clean()).versions == 1

        await edit(n, "v1")
        await ended(n)

        assert (await n.store.list_dags())[0].version == "v1"
        assert await n.store.list_versions() == ["other", "v1"]


async def test_a_version_that_comes_back_in_the_very_turn_it_is_deleted_in_stays(
    store_url, tmp_path
):
    async with node(store_url) as n:
        await n.load(A)
        await edit(n, "other")

        with structlog.testing.capture_logs() as logs:
            async with anyio.create_task_group() as both:
                both.start_soon(n.engine.ask, EraseVersions(versions=["v1", "never"]))
                await anyio.lowlevel.checkpoint()
                n.engine.report([parsed("v1")])
            await n.engine.wait_until_still()
        await ended(n)

        assert (await n.store.list_dags())[0].version == "v1"
        assert [line["event"] for line in logs if line["log_level"] == "error"] == []
        assert await compare_with_replay(n.store) == []


async def test_versions_that_are_held_keep_none_behind_them_from_going(
    store_url, tmp_path, monkeypatch
):
    monkeypatch.setattr(retention, "_VERSIONS_AT_ONCE", 2)
    async with node(store_url) as n:
        await n.load(A)
        for version in ("held-1", "held-2", "held-3", "old-1", "old-2", "old-3", "newest"):
            await edit(n, version)
        for version in ("held-1", "held-2", "held-3"):  # as a trigger is hosted with one
            n.engine.memory.add_plan(version, DagSpec(dag_id="dag", file="dag.py", tasks=(A,)))
        service = cleaner(n, tmp_path, kept=VERSIONS)

        assert (await service.preview()).versions == 4
        counts = [(await service.clean()).versions for _ in range(3)]

        assert counts == [2, 2, 0]
        assert await n.store.list_versions() == ["held-1", "held-2", "held-3", "newest"]


async def test_a_version_that_a_run_has_is_not_erased_on_any_request(store_url, tmp_path):
    async with node(store_url) as n:
        await n.load(A)
        await ended(n)
        await edit(n, "other")

        with pytest.raises(AioflowError):
            await n.engine.ask(EraseVersions(versions=["v1"]))

        assert await n.store.list_versions() == ["other", "v1"]


async def test_code_that_is_referenced_in_the_meantime_stays(tmp_path):
    snapshots = Snapshots(tmp_path)
    await snapshots.keep("a.py", "kept", {"a.py": b"1"})
    await snapshots.restore("stray", {"a.py": b"2"})
    looks = iter([False, True])

    assert await snapshots.discard(["kept"], lambda _: False) == 0
    assert await snapshots.discard(["stray"], lambda _: next(looks)) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "stray"]
    assert await snapshots.discard(["stray"], lambda _: False) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


async def test_code_that_cannot_be_deleted_does_not_keep_the_rest(tmp_path, caplog):
    snapshots = Snapshots(tmp_path)
    for version in ("a", "c"):
        await snapshots.restore(version, {"a.py": b"1"})

    assert await snapshots.discard(["a", "b", "c"], lambda _: False) == 2
    assert list(tmp_path.iterdir()) == []
    [said] = caplog.messages
    assert said.startswith("cannot delete the code of b now: ")


async def test_unfinished_files_of_a_dead_daemon_are_removed(tmp_path):
    snapshots = Snapshots(tmp_path)
    for name in ("old", ".old.1.part", ".old.gone", ".new.2.part"):
        (tmp_path / name).mkdir()
        if name != ".new.2.part":
            os.utime(tmp_path / name, (1, 1))

    assert await snapshots.list_old(before_seconds=2) == ["old"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".new.2.part", "old"]


async def test_unlimited_retention_deletes_nothing(store_url, tmp_path):
    async with node(store_url) as n:
        await n.load(A)
        for _ in range(3):
            await ended(n)
        await n.engine.ask(EmitEvent(name="n", key=None, data=b"\xc0"))
        before = len(await n.store.read_journal())

        found = await cleaner(n, tmp_path, days=10_000, kept=FOR_EVER).clean()

        assert (found.runs, found.events, found.journal, found.logs) == (0, 0, 0, 0)
        assert len(await n.store.read_journal()) == before


async def test_events_go_below_the_oldest_live_run(store_url, tmp_path):
    async with node(store_url) as n:
        await n.load(A)
        emit = EmitEvent(name="n", key=None, data=b"\xc0")
        await n.engine.ask(emit)
        run_id = await n.trigger()
        await n.engine.ask(emit)
        service = cleaner(n, tmp_path)

        assert (await service.clean()).events == 1
        assert len(await n.store.list_named_events("n")) == 1
        await n.engine.ask(CancelRun(run_id=run_id))
        assert (await service.clean()).events == 1
        assert await n.store.list_named_events("n") == []


async def test_the_key_of_an_event_that_may_start_a_run_is_known_for_ninety_days(
    store_url, tmp_path
):
    condition = msgspec.msgpack.encode(AssetCondition(True, ("a", "b")))
    trigger = DagTriggerSpec(class_path=ASSETS, kwargs=condition)
    spec = DagSpec(dag_id="dag", file="dag.py", tasks=(A,), trigger=trigger)
    kept = replace(KEPT, events_days=0)
    async with node(store_url) as n:
        n.engine.report([FileParsed(file="dag.py", version="v1", dags=(spec,), sources={})])
        await n.engine.ask(EmitEvent(name="asset:a", key=None, data=b"\xc0"))

        assert (await cleaner(n, tmp_path, days=89, kept=kept).clean()).events == 0
        service = cleaner(n, tmp_path, days=91, kept=kept)
        assert (await service.preview()).events == 1
        assert (await service.clean()).events == 1
        assert await n.store.list_numbers("dag_event", after=-1, limit=9) == []
        assert len(await n.store.list_named_events("asset:a")) == 1
        assert await compare_with_replay(n.store) == []


async def test_the_journal_goes_a_slice_at_a_time_and_stays_checkable(
    store_url, tmp_path, monkeypatch
):
    monkeypatch.setattr(retention, "_SLICE_ROWS", 3)
    monkeypatch.setattr(retention, "_SLICES", 2)
    async with node(store_url) as n:
        await n.load(A)
        for _ in range(3):
            await ended(n)
        service = cleaner(n, tmp_path, days=8)
        rows = len(await n.store.read_journal())
        assert rows >= 6

        assert (await service.preview()).journal == rows
        found = await service.clean()

        assert (found.journal, found.more) == (6, True)
        erased = [batch.erased for batch in n.effects.batches[-2:]]
        assert [len(part["journal"]) for part in erased] == [3, 3]
        assert await compare_with_replay(n.store) == []
    async with node(store_url) as n:  # a restart does not query deleted rows
        await ended(n)
        assert await compare_with_replay(n.store) == []


async def test_logs_of_active_runs_stay(store_url, tmp_path):
    async with node(store_url) as n:
        await n.load(A)
        run_id = await n.trigger()
        live = (await n.store.find_run(run_id)).run_no
        service = cleaner(n, tmp_path)
        log = service._tasklog
        for run_no in (live, live + 1, live + 2, live + 5_000):
            path = log.path(run_no, 0)
            path.parent.mkdir(parents=True)
            path.write_bytes(b"printed")
        young = log.path(live + 2, 1)
        young.write_bytes(b"printed")
        at = (SystemClock().now() + 99 * DAY_US) / 1e6
        os.utime(young, (at, at))

        assert (await service.preview()).logs == 2
        assert (await service.clean()).logs == 2

        assert [log.path(live + n, 0).exists() for n in (0, 1, 2, 5_000)] == [1, 0, 1, 0]
        assert await log.list_blocks() == [live // 1_000]


async def test_a_dry_run_reports_what_it_would_delete_and_deletes_nothing(store_url, tmp_path):
    async with node(store_url) as n:
        await two_ended(n)
        await n.engine.ask(EmitEvent(name="n", key=None, data=b"\xc0"))
        batches = len(n.effects.batches)

        found = await cleaner(n, tmp_path).preview()

        assert (found.runs, found.events, found.logs, found.more) == (1, 1, 0, False)
        assert found.journal == len(await n.store.read_journal())
        assert len(n.effects.batches) == batches


async def test_it_cleans_up_once_an_hour(store_url, tmp_path):
    async with node(store_url) as n:
        await two_ended(n)
        service = cleaner(n, tmp_path)
        clock: Any = service._clock
        async with anyio.create_task_group() as services:
            await services.start(service.run)
            await anyio.wait_all_tasks_blocked()
            assert await left(n) == ["one", "two"]  # not while everything starts
            clock.wake()
            await clock.has_slept(retention._ROUND_SECONDS, KINDS)
            assert await left(n) == ["two"]
            services.cancel_scope.cancel()


async def test_an_error_of_one_kind_ends_neither_the_others_nor_the_daemon(
    store_url, tmp_path, monkeypatch
):
    async with node(store_url) as n:
        await two_ended(n)
        service = cleaner(n, tmp_path)
        clock: Any = service._clock

        async def fail() -> list[int]:
            raise PermissionError("a test says so")

        monkeypatch.setattr(service._tasklog, "list_blocks", fail)
        async with anyio.create_task_group() as services:
            with structlog.testing.capture_logs() as said:
                await services.start(service.run)
                await anyio.wait_all_tasks_blocked()
                clock.wake()
                await clock.has_slept(retention._ROUND_SECONDS, KINDS)
            services.cancel_scope.cancel()
        assert await left(n) == ["two"]

    assert [line["kind"] for line in said if line["log_level"] == "error"] == ["logs"]


async def test_a_database_that_is_away_is_asked_again_by_and_by_and_then_it_cleans_up(
    store_url, tmp_path, monkeypatch
):
    async with node(store_url) as n:
        await two_ended(n)
        service = cleaner(n, tmp_path)
        clock: Any = service._clock

        async def away(*_: object, **__: object) -> list[int]:
            raise StoreUnavailable("a test says so")

        with structlog.testing.capture_logs() as said:
            async with anyio.create_task_group() as services:
                await services.start(service.run)
                await clock.has_slept(retention._FIRST_SECONDS, KINDS)
                with monkeypatch.context() as patch:
                    patch.setattr(n.store, "list_numbers", away)
                    clock.wake()
                    await clock.has_slept(retention._AWAY_SECONDS, KINDS + 2)
                    asked = [line["kind"] for line in said if line["log_level"] == "warning"]
                clock.wake()
                await clock.has_slept(retention._ROUND_SECONDS, KINDS)
                services.cancel_scope.cancel()
        assert sorted(asked) == ["events", "journal"]  # each once, and not each second
        assert [line["log_level"] for line in said].count("warning") == len(asked)


async def test_a_run_that_becomes_active_again_in_between_stays(store_url, tmp_path, monkeypatch):
    async with node(store_url) as n:
        await two_ended(n)
        rows = await n.store.list_runs()
        await n.engine.ask(CreateRun(dag_id="dag", run_id="three"))
        three = await n.store.find_run("three")
        stale = [run for run in rows if run.run_id == "one"] + [three]
        service = cleaner(n, tmp_path)

        async def read_before(limit: int) -> list[Any]:
            return stale

        monkeypatch.setattr(service, "_old_runs", read_before)

        assert (await service.clean()).runs == 1
        assert await left(n) == ["three", "two"]
