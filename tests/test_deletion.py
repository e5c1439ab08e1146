"""Deletion of runs: hidden at once, and finally without any rows, whatever happens in between."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog.testing

from aioflow.clock import SystemClock
from aioflow.errors import (
    RequestError,
    RunBeingDeleted,
    StorageUnavailable,
    StoreUnavailable,
    UnknownRun,
)
from aioflow.maintenance import retention
from aioflow.maintenance.retention import Deleting
from aioflow.model.dag import CallbackSpec, MapSource, MapSpec, RetryPolicy, TaskSpec
from aioflow.model.states import Failure, RunState
from aioflow.protocol.effects import DeliverOutbox
from aioflow.protocol.inputs import OutboxDelivered
from aioflow.protocol.reports import Deferred, Failed
from aioflow.protocol.requests import (
    CancelRun,
    ClearTasks,
    CreateRun,
    DeleteRun,
    EraseRows,
    SetNote,
)
from aioflow.results import result_path, write_value
from aioflow.store import tables
from aioflow.store.retention import ERASED
from aioflow.telemetry.task_log import LogKey, TaskLog
from tests.databases import on_both_databases
from tests.journal_replay import compare_with_replay
from tests.test_engine import Node, node
from tests.turns import until

pytestmark = pytest.mark.timeout(60)

WORK = MapSpec(sources=(MapSource("x", 0, -1),))
TASKS = (
    TaskSpec(task_id="list", feeds_limit=99, retry=RetryPolicy(tries=2, delay_us=1)),
    TaskSpec(task_id="work", parents=(0,), argument_parents=(0,), mapped=WORK),
)


async def finished(n: Node, width: int = 3) -> str:
    """Finish a run with a failed try, children and results, all of which have rows."""
    await n.load(*TASKS)
    run_id = await n.trigger()
    start = (await n.effects.next_start()).start
    failure = Failure(type="E", message="no", reason="raised")
    n.engine.report([Failed(start.task_no, start.start_no, 1, 2, failure)])
    n.succeed(await n.effects.next_start(), size=1, width=width)
    for _ in range(width):
        n.succeed(await n.effects.next_start(), body=b"\x01", size=1)
    assert await n.ended(run_id) is RunState.SUCCESS
    return run_id


async def left_of(n: Node, run_no: int) -> dict[str, int]:
    """Return how many rows of a run each table has."""
    found = {}
    for table in ERASED:
        found[table.name] = len(await n.store.list_erasable(table.name, run_no))
    return {name: count for name, count in found.items() if count}


@asynccontextmanager
async def deleted_by(n: Node, folder: Path) -> AsyncIterator[None]:
    clock = SystemClock()
    log = TaskLog(folder / "logs", clock)
    service = Deleting(n.engine, n.store, log, folder / "results", clock)
    n.engine.dispatcher.subscribe(service.committed)
    async with anyio.create_task_group() as services:
        services.start_soon(service.run)
        yield
        services.cancel_scope.cancel()


async def gone(n: Node, *, but: int = 0) -> None:
    async def erased() -> bool:
        return len(await n.store.list_deletions()) <= but

    await until(n.engine, erased)


def leave_files(folder: Path, run: Any) -> None:
    """Write a large result of the run, one of another run, and task output of two runs."""
    write_value(result_path(folder / "results", run.first_task_no, 2), b"large")
    write_value(result_path(folder / "results", run.first_task_no + 4000, 1), b"of another")
    log = TaskLog(folder / "logs", SystemClock())
    for run_no in (run.run_no, run.run_no + 1_000_000):
        path = log.path(run_no, 0)
        path.parent.mkdir(parents=True)
        path.write_bytes(b"printed")


def files(folder: Path) -> list[str]:
    return sorted(
        path.read_bytes().decode() for path in folder.glob("[lr]*/**/*") if path.is_file()
    )


async def test_nothing_is_left_of_a_run_that_is_deleted(store_url, tmp_path):
    async with node(store_url) as n:
        run_id = await finished(n)
        other = await finished(n)
        request = ClearTasks(run_id=run_id, tasks=("work",), map_index=0, key="once")
        assert await n.engine.ask(request) == (1, RunState.QUEUED)
        n.succeed(await n.effects.next_start(), body=b"\x01", size=1)
        assert await n.ended(run_id) is RunState.SUCCESS
        run = await n.store.find_run(run_id)
        leave_files(tmp_path, run)
        await n.engine.ask(SetNote(run_id=run_id, text="the bank was called"))
        await n.engine.ask(SetNote(run_id=run_id, task="work", task_index=1, text="late"))
        tables_of_run = {"clear_request", "expansion", "note", "result", "run", "task", "try"}
        assert set(await left_of(n, run.run_no)) == tables_of_run
        async with deleted_by(n, tmp_path):
            await n.engine.ask(DeleteRun(run_id=run_id))
            await gone(n)

        assert await left_of(n, run.run_no) == {}
        assert files(tmp_path) == ["of another", "printed"]
        assert [row.run_id for row in await n.store.list_runs()] == [other]
        assert await compare_with_replay(n.store) == []


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (StoreUnavailable("it is away"), "database"),
        (StorageUnavailable("it is away"), "storage of results or logs"),
    ],
)
async def test_it_is_told_for_what_a_deletion_waits(store_url, tmp_path, monkeypatch, error, what):
    errors, delete = [error], TaskLog.delete

    async def delete_later(log: TaskLog, run_no: int) -> None:
        if errors:
            raise errors.pop()
        await delete(log, run_no)

    monkeypatch.setattr(TaskLog, "delete", delete_later)
    async with node(store_url) as n:
        run_id = await finished(n)
        with structlog.testing.capture_logs() as said:
            async with deleted_by(n, tmp_path):
                await n.engine.ask(DeleteRun(run_id=run_id))
                await gone(n)
    warnings = [line["event"] for line in said if line["log_level"] == "warning"]
    assert warnings == [f"deleting runs waits for the {what}"]


async def test_a_run_that_is_being_deleted_is_hidden(store_url):
    async with node(store_url) as n:
        await n.load(*TASKS)
        run_id = await finished(n)
        run = await n.store.find_run(run_id)

        await n.engine.ask(DeleteRun(run_id=run_id))

        assert await n.store.find_run(run_id) is None
        assert await n.store.find_runs([run_id]) == []
        assert await n.store.list_runs() == []
        assert await n.store.first_run_ended_since("dag", 0) is None
        for request in (DeleteRun(run_id=run_id), ClearTasks(run_id=run_id)):
            with pytest.raises(UnknownRun):
                await n.engine.ask(request)
        assert run.run_no in [row.run_no for row in await n.store.list_deletions()]


@on_both_databases
@pytest.mark.parametrize("fields", [{"run_id": "mine"}, {"key": "once"}])
async def test_the_run_id_and_key_of_a_run_are_free_when_all_of_it_is_deleted(
    store_url, tmp_path, fields
):
    async with node(store_url) as n:
        await n.load(TaskSpec(task_id="a"))
        run_id = await n.trigger(**fields)
        n.succeed(await n.effects.next_start())
        assert await n.ended(run_id) is RunState.SUCCESS
        assert await n.engine.ask(CreateRun(dag_id="dag", **fields)) == (run_id, False)

        with structlog.testing.capture_logs() as said:
            await n.engine.ask(DeleteRun(run_id=run_id))
            with pytest.raises(RunBeingDeleted):
                await n.engine.ask(CreateRun(dag_id="dag", **fields))
        assert [line for line in said if line["log_level"] == "error"] == []  # no turn rolled back

        async with deleted_by(n, tmp_path):
            await gone(n)
        again: Any = await n.engine.ask(CreateRun(dag_id="dag", **fields))
        assert again[1] is True


async def test_a_restart_continues_where_it_was_cut_short(store_url, tmp_path, monkeypatch):
    monkeypatch.setattr(retention, "DELETION_SLICE_ROWS", 2)
    async with node(store_url) as n:
        run_id = await finished(n, width=9)
        run = await n.store.find_run(run_id)
        before = len(n.effects.batches)
        await n.engine.ask(DeleteRun(run_id=run_id))
        async with deleted_by(n, tmp_path):
            while len(n.effects.batches) < before + 9:
                await n.engine.next_turn()
        erased = [sum(map(len, b.erased.values())) for b in n.effects.batches[before:]]
        assert max(erased) == 2
        assert await left_of(n, run.run_no)

    async with node(store_url) as n:
        async with deleted_by(n, tmp_path):
            await gone(n)
        assert await left_of(n, run.run_no) == {}
        assert await compare_with_replay(n.store) == []


async def test_one_that_cannot_be_deleted_keeps_no_other_from_it(store_url, tmp_path, monkeypatch):
    async with node(store_url) as n:
        run_ids = [await finished(n) for _ in range(12)]
        runs = [await n.store.find_run(run_id) for run_id in run_ids]
        delete = TaskLog.delete

        async def refuse_one(log: TaskLog, run_no: int) -> None:
            if run_no == runs[3].run_no:
                raise PermissionError("a test says so")
            await delete(log, run_no)

        monkeypatch.setattr(TaskLog, "delete", refuse_one)
        async with deleted_by(n, tmp_path):
            for run_id in run_ids:
                await n.engine.ask(DeleteRun(run_id=run_id))
            await gone(n, but=1)

        assert [row.run_no for row in await n.store.list_deletions()] == [runs[3].run_no]
    async with node(store_url) as n:  # the next start tries again
        monkeypatch.undo()
        async with deleted_by(n, tmp_path):
            await gone(n)
        assert [await left_of(n, run.run_no) for run in runs] == [{}] * 12
        assert await compare_with_replay(n.store) == []


@on_both_databases
async def test_erasing_deleted_runs_again_is_no_error(store_url):
    async with node(store_url) as n:
        run_id = await finished(n)
        run = await n.store.find_run(run_id)
        await n.engine.ask(DeleteRun(run_id=run_id))
        keys = await n.store.list_erasable("result", run.run_no)

        for _ in range(2):  # the first answer was lost
            await n.engine.ask(EraseRows(run_no=run.run_no, table="result", keys=keys))

        assert await n.store.list_erasable("result", run.run_no) == []
        assert await compare_with_replay(n.store) == []


async def test_an_active_run_is_not_deleted(store_url):
    async with node(store_url) as n:
        await n.load(*TASKS)
        run_id = await n.trigger()
        run = await n.store.find_run(run_id)

        with pytest.raises(RequestError, match="has not ended"):
            await n.engine.ask(DeleteRun(run_id=run_id))
        with pytest.raises(RequestError, match="has not ended"):
            await n.engine.ask(EraseRows(run_no=run.run_no, table="task", keys=[]))
        assert await n.store.list_deletions() == []


async def test_a_run_stays_until_its_hosts_have_released_it(store_url, tmp_path):
    async with node(store_url) as n:
        await n.load(TaskSpec(task_id="a"))
        run_id = await n.trigger()
        start = (await n.effects.next_start()).start
        place = (start.task_no, start.start_no, 1, 2)
        deferred = Deferred(*place, class_path="m:T", kwargs=b"\x80", next_method="go_on")
        n.engine.report([deferred])
        await until(n.engine, n.store.list_triggers)
        await n.engine.ask(CancelRun(run_id=run_id))
        run = await n.store.find_run(run_id)
        await n.engine.ask(DeleteRun(run_id=run_id))
        assert await n.store.has_triggers(run.run_no)

    async with node(store_url) as n:  # its host died with the daemon
        async with deleted_by(n, tmp_path):
            await gone(n)
        assert await left_of(n, run.run_no) == {}


async def looked_at_twice(n: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait until a run was found to be still needed, and was then checked once more."""
    look, looks = n.store.list_outbox, 0
    is_over = anyio.Event()

    async def count(*args: Any, **fields: Any) -> Any:
        nonlocal looks
        looks += 1
        if looks == 2:
            is_over.set()
        return await look(*args, **fields)

    monkeypatch.setattr(n.store, "list_outbox", count, raising=False)
    await is_over.wait()


async def test_a_run_stays_until_its_author_was_called_back_for_all_of_it(
    store_url, tmp_path, monkeypatch
):
    monkeypatch.setattr(retention, "_DELETION_RETRY_SECONDS", 0.01)
    called = CallbackSpec(events=("success",))
    async with node(store_url) as n:
        await n.load(TaskSpec(task_id="a", callbacks=called), callbacks=called)
        run_ids = [await n.trigger(), await n.trigger()]
        for _ in run_ids:
            n.succeed(await n.effects.next_start())
        await n.engine.wait_until_idle()
        owing = [e for e in n.effects.others if isinstance(e, DeliverOutbox)]
        assert len(owing) == 4
        run = await n.store.find_run(run_ids[0])
        async with deleted_by(n, tmp_path):
            await n.engine.ask(DeleteRun(run_id=run.run_id))
            n.engine.report([OutboxDelivered(owing[0].outbox_no)])
            await n.engine.wait_until_idle()
            await looked_at_twice(n, monkeypatch)
            assert set(await left_of(n, run.run_no)) == {"deletion", "run", "task"}
            assert await n.store.find_run_no(run.run_no) is not None  # the callback reads it

    async with node(store_url) as n:
        async with deleted_by(n, tmp_path):
            n.engine.report([OutboxDelivered(effect.outbox_no) for effect in owing[1:]])
            await gone(n)
        assert await left_of(n, run.run_no) == {}
        assert await n.store.find_run(run_ids[1]) is not None


def test_every_table_that_knows_runs_is_emptied_of_them():
    of_runs = {
        table
        for table in tables.metadata.sorted_tables
        if "run_no" in table.c or "task_no" in table.c
    }
    of_dags = {tables.dag_trigger, tables.dag_event}  # which run an event started, whatever became
    # Pieces of results are deleted like stored objects, before the rows that refer to them.
    kept = {tables.task_trigger, tables.event, tables.named_event, tables.result_chunk} | of_dags

    assert of_runs - kept == set(ERASED)


async def test_output_of_others_can_be_written_while_a_folder_goes(tmp_path):
    clock = SystemClock()
    log = TaskLog(tmp_path, clock)
    async with anyio.create_task_group() as services:
        await services.start(log.run)
        for start_no in range(20):
            key = LogKey(
                run_no=7, task_index=0, map_index=-1, task_no=1, start_no=start_no, try_number=1
            )
            await log.open(key).write(b"line\n")
            await log.delete(8)
        services.cancel_scope.cancel()

    assert await log.read(7, 0) == b"line\n" * 20
