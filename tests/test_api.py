"""API requests and responses, with a real engine and a real database."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioflow.api import Api, dags, instant, iso
from aioflow.api.dags import FirstScan
from aioflow.api.schemas import plain, plain_bytes
from aioflow.api.task_instances import RunLayout
from aioflow.author.codec import encode
from aioflow.clock import SystemClock
from aioflow.crypto import Vault
from aioflow.errors import (
    BadConf,
    DaemonAway,
    RequestError,
    RunExists,
    StoreUnavailable,
    UnknownDag,
    UnknownRound,
    UnknownRun,
    UnknownTask,
)
from aioflow.model.access import Actor, Role
from aioflow.model.dag import Chooses, DagSpec, MapSource, MapSpec, RetryPolicy, TaskSpec
from aioflow.model.rows import ExpansionRow, RunRow
from aioflow.model.states import Failure, RunState, TaskState
from aioflow.protocol.inputs import Drain, FileDeleted, LoopBlocked
from aioflow.protocol.reports import Failed, ItemYielded, Succeeded
from aioflow.protocol.requests import CountTasks
from aioflow.results import result_path, write_list
from aioflow.store import Store, open_store
from aioflow.store.sqlite.store import SqliteStore
from aioflow.telemetry.task_log import LogKey, TaskLog
from tests.web.node import CHAIN, FAN, STREAM, node

PAIRED = DagSpec(
    dag_id="paired",
    file="paired.py",
    tasks=(
        TaskSpec(task_id="numbers", feeds_limit=10),
        TaskSpec(task_id="words", feeds_limit=10),
        TaskSpec(
            task_id="each",
            parents=(0, 1),
            mapped=MapSpec((MapSource("number", 0, -1), MapSource("word", 1, -1))),
        ),
    ),
)
LOOP = DagSpec(
    dag_id="loop",
    file="loop.py",
    tasks=(
        TaskSpec(task_id="first"),
        TaskSpec(task_id="improve", parents=(0,), mapped=MapSpec((MapSource("", -1, 1),), (2,), 2)),
        TaskSpec(
            task_id="until",
            parents=(1,),
            mapped=MapSpec((MapSource("", -1, 1),), (1,), 2),
            chooses=Chooses.ROUNDS,
        ),
    ),
)


def states(run) -> dict[str, str]:
    return {
        task.task_id if task.map_index < 0 else f"{task.task_id}[{task.map_index}]": task.state
        for task in run.tasks
    }


class CountedStore:
    """A store that counts how often it had to count rows."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.counts = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def count_states(self, run_no: int) -> list[tuple[int, TaskState, int]]:
        self.counts += 1
        return await self._store.count_states(run_no)


# ── starting ────────────────────────────────────────────────────────────────────────────


async def test_the_same_request_makes_one_run_while_it_lives_and_after_it_ended(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        first = await n.api.trigger("chain", run_id="r", conf={"day": "d", "n": 1})
        again = await n.api.trigger("chain", run_id="r", conf={"n": 1, "day": "d"})
        await n.api.cancel("r")
        later = await n.api.trigger("chain", run_id="r", conf={"day": "d", "n": 1})

    assert (first.created, again.created, later.created) == (True, False, False)
    assert (first.state, later.state) == ("running", "cancelled")


async def test_an_id_taken_by_another_request_is_refused_while_it_lives_and_after(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        await n.api.trigger("chain", run_id="r", conf={"n": 1})
        with pytest.raises(RunExists):
            await n.api.trigger("chain", run_id="r", conf={"n": 2})
        await n.api.cancel("r")
        with pytest.raises(RunExists):
            await n.api.trigger("chain", run_id="r")


async def test_a_key_finds_its_run_also_after_it_ended(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        first = await n.api.trigger("chain", key="k")
        await n.api.cancel(first.run_id)
        again = await n.api.trigger("chain", key="k")
        other = await n.api.trigger("chain", key="k2")

    assert (again.run_id, again.created) == (first.run_id, False)
    assert other.created


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        pytest.param({"conf": {"nonsense": 1}}, BadConf, id="unknown-parameter"),
        pytest.param({"run_id": "../etc"}, RequestError, id="no-id"),
        pytest.param({"run_id": ""}, RequestError, id="empty-id"),
        pytest.param({"run_id": "."}, RequestError, id="this-folder"),
        pytest.param({"run_id": ".."}, RequestError, id="the-folder-above"),
        pytest.param({"logical_date": "yesterday"}, RequestError, id="no-time"),
        pytest.param({"key": "a\nb"}, RequestError, id="no-key"),
        pytest.param({"conf": {"n": "x" * 2_000_000}}, BadConf, id="too-large"),
    ],
)
async def test_a_request_that_cannot_be_met_makes_nothing(tmp_path, arguments, error):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        with pytest.raises(error):
            await n.api.trigger("chain", **arguments)
        assert await n.api.list_runs() == []


async def test_a_dag_that_does_not_exist_is_unknown(tmp_path):
    async with node(tmp_path) as n:
        for question in (
            n.api.trigger("nobody"),
            n.api.set_paused("nobody", paused=True),
            n.api.show_dag("nobody"),
        ):
            with pytest.raises(UnknownDag):
                await question


# ── showing ─────────────────────────────────────────────────────────────────────────────


async def test_tasks_without_rows_are_pending_and_say_for_what_they_wait(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        await n.api.trigger("chain", run_id="r", conf={"n": 3})
        run = await n.api.show_run("r")

    assert states(run) == {"first": "running", "second": "pending", "third": "pending"}
    assert run.counts == {"pending": 2, "running": 1}
    assert [task.waiting_on and task.waiting_on.kind for task in run.tasks] == [
        None,
        "upstream",
        "upstream",
    ]
    assert run.tasks[1].waiting_on.detail.startswith("first")
    assert run.conf == {"n": 3}


async def test_without_rows_in_a_cancelled_run_they_are_cancelled_and_wait_for_nothing(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        await n.api.trigger("chain", run_id="r")
        answer = await n.api.cancel("r")
        run = await n.api.show_run("r")

    assert answer["state"] == "cancelled"
    assert set(states(run).values()) == {"cancelled"}
    assert run.counts == {"cancelled": 3}
    assert all(task.waiting_on is None for task in run.tasks)


async def test_cancelling_what_has_ended_changes_nothing(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        await n.api.trigger("chain", run_id="r")
        for _ in CHAIN.tasks:
            await n.succeed()
        await n.engine.wait_until_idle()

        assert (await n.api.cancel("r"))["state"] == "success"
        assert (await n.api.show_run("r")).state == "success"
        with pytest.raises(UnknownRun):
            await n.api.cancel("nobody")


async def test_a_map_index_marks_no_whole_run(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        await n.api.trigger("chain", run_id="r")
        with pytest.raises(RequestError, match="name the task"):
            await n.api.mark("r", "failed", map_index=1)
        shown = await n.api.show_run("r")

    assert shown.state == "running"


async def test_a_failed_task_tells_its_error_and_its_children_none(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        await n.api.trigger("chain", run_id="r")
        await n.fail("no money")
        await n.engine.wait_until_idle()
        run = await n.api.show_run("r")

    assert run.state == "failed"
    assert states(run) == {
        "first": "failed",
        "second": "upstream_failed",
        "third": "upstream_failed",
    }
    assert run.tasks[0].error.message == "no money"
    assert run.tasks[0].error.reason == "raised"
    assert run.tasks[1].error is None


async def test_small_results_are_shown_and_large_ones_measured(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        await n.api.trigger("chain", run_id="r")
        await n.succeed({"net": Decimal("1.10")})
        await n.succeed("x" * 5_000)
        await n.succeed(None)
        await n.engine.wait_until_idle()
        run = await n.api.show_run("r")

    assert run.tasks[0].result == {"net": "1.10"}
    assert run.tasks[1].result == {"size_bytes": 5_003}
    assert run.tasks[2].result is None


async def test_children_are_counted_and_paged_in_map_order_before_they_have_rows(tmp_path):
    width = 2_500
    async with node(tmp_path) as n:
        n.define(FAN)
        await n.api.trigger("fan", run_id="r")
        await n.succeed(width=width)
        await n.effects.next_start()
        pages = [await n.api.show_run("r", offset=offset) for offset in (0, 1_000, 2_000, 3_000)]

    tasks = [task for page in pages for task in page.tasks]
    assert [len(page.tasks) for page in pages] == [1_000, 1_000, 502, 0]
    assert [task.map_index for task in tasks] == [-1, *range(width), -1]
    assert sum(pages[0].counts.values()) == width + 2
    assert pages[0].counts == {"pending": 1, "queued": width - 2, "running": 2, "success": 1}
    assert {task.state for task in tasks[3:-1]} == {"queued"}
    assert tasks[2_000].waiting_on.kind == "slot"


async def test_counting_tasks_reads_no_row_of_a_live_run_and_those_of_an_ended_one_once(tmp_path):
    async with node(tmp_path) as n:
        n.define(FAN)
        await n.api.trigger("fan", run_id="r")
        await n.succeed(width=3)
        reads = n.api.store = CountedStore(n.store)
        live = (await n.api.show_run("r")).counts
        for _ in range(4):
            await n.succeed()
        await n.engine.wait_until_idle()
        ended = [(await n.api.show_run("r")).counts for _ in range(2)]
        await n.api.clear("r", ["each"], map_index=1)
        n.effects.starts.insert(0, await n.effects.next_start())  # it is under way again
        again = (await n.api.show_run("r")).counts
        assert reads.counts == 1
        await n.succeed()
        await n.engine.wait_until_idle()
        reexpanded = (await n.api.show_run("r")).counts

    assert live == {"pending": 1, "queued": 1, "running": 2, "success": 1}
    assert ended == [{"success": 5}] * 2
    assert again == {"running": 1, "success": 4}
    assert reexpanded == {"success": 5}
    assert reads.counts == 2


async def test_a_small_list_that_is_expanded_over_is_read_from_its_file(tmp_path):
    async with node(tmp_path) as n:
        n.define(FAN)
        await n.api.trigger("fan", run_id="r")
        start = n.effects.starts[0].start if n.effects.starts else None
        while start is None:
            effect = await n.effects.next_start()
            n.effects.starts.insert(0, effect)
            start = effect.start
        path = result_path(n.home / "results", start.task_no, start.start_no)
        write_list(path, [b"\x01", b"\xa1b"])
        await n.succeed(width=2)
        await n.effects.next_start()
        run = await n.api.show_run("r", limit=1)

    assert run.tasks[0].result == [1, "b"]


async def test_a_child_is_shown_with_its_own_item_of_each_list(tmp_path):
    async with node(tmp_path) as n:
        n.define(PAIRED)
        await n.api.trigger("paired", run_id="r")
        for items in ([b"\x01", b"\x02"], [b"\xa1a", b"\xda\x10\x00" + b"x" * 4096, b"\xa1c"]):
            start = (await n.effects.next_start()).start
            path = result_path(n.home / "results", start.task_no, start.start_no)
            write_list(path, items)
            now = SystemClock().now()
            told = Succeeded(start.task_no, start.start_no, now, now, None, 9, len(items))
            n.engine.report([told])
        await n.effects.next_start()
        first, fifth = [await n.api.reads.one_task.show("r", "each", map_index=at) for at in (0, 4)]

    assert [(one.name, one.from_task, one.value) for one in first.inputs] == [
        ("number", "numbers", 1),
        ("word", "words", "a"),
    ]
    assert [one.value for one in fifth.inputs] == [2, {"size_bytes": 4099}]


async def test_the_few_items_of_a_stream_are_shown_and_many_are_counted(tmp_path):
    results = []
    for name, item in (("few", b"\x01"), ("large", b"\xda\x10\x00" + b"x" * 4096)):
        (tmp_path / name).mkdir()
        async with node(tmp_path / name) as n:
            n.define(STREAM)
            await n.api.trigger("stream", run_id="r")
            start = (await n.effects.next_start()).start
            n.engine.report([ItemYielded(start.task_no, start.start_no, k, item) for k in (0, 1)])
            n.engine.report([Succeeded(start.task_no, start.start_no, 1, 2)])
            for _ in range(3):
                await n.succeed()
            results.append((await n.api.show_run("r")).tasks[0].result)

    assert results == [[1, 1], {"items": 2}]


async def test_runs_are_listed_newest_first_in_pages(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN, FAN)
        for name in ("a", "b", "c"):
            await n.api.trigger("chain", run_id=name)
        await n.api.trigger("fan", run_id="d")
        await n.api.cancel("b")

        assert [run.run_id for run in await n.api.list_runs()] == ["d", "c", "b", "a"]
        assert [run.run_id for run in await n.api.list_runs(dag_id="chain", limit=2)] == ["c", "b"]
        assert [run.run_id for run in await n.api.list_runs(before="b")] == ["a"]
        assert [run.run_id for run in await n.api.list_runs(state="cancelled")] == ["b"]
        with pytest.raises(RequestError):
            await n.api.list_runs(state="gone")


async def test_dags_are_listed_with_what_is_wrong_with_their_files(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        n.break_file("chain.py")
        n.break_file("other.py")
        await n.api.set_paused("chain", paused=True)
        other, chain = await n.api.list_dags()  # files without a DAG come first

    assert (chain.dag_id, chain.paused) == ("chain", True)
    assert chain.import_error == "syntax_error: line 3: what"
    assert (other.dag_id, other.file) == (None, "other.py")


# ── explaining ──────────────────────────────────────────────────────────────────────────


async def test_the_chain_of_causes_leads_down_to_what_runs(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        await n.api.trigger("chain", run_id="r")
        chain = await n.api.why("r", "third")

    assert [(c.depth, c.task_id, c.state) for c in chain.causes] == [
        (0, "third", "pending"),
        (1, "second", "pending"),
        (2, "first", "running"),
    ]
    assert chain.causes[2].waiting_on is None


async def test_while_nothing_can_be_stored_an_explanation_and_an_error_say_why(
    tmp_path, monkeypatch
):
    full = "the disk of /home is full: 4,096 bytes are free"

    async def refuse(*_: object) -> None:
        raise StoreUnavailable(full)

    async with node(tmp_path) as n:
        n.define(CHAIN)
        await n.api.trigger("chain", run_id="r")
        with monkeypatch.context() as patch:
            patch.setattr(type(n.store), "commit", refuse)
            n.define(STREAM)
            while n.engine.store_away_since is None:
                await anyio.sleep(0.01)
            with pytest.raises(StoreUnavailable) as refused:
                await n.api._send(CountTasks(run_ids=()), 0.01)
            chain = await n.api.why("r")
            health = await n.api.health()

    assert f"({full})" in str(refused.value)
    assert (health.checks["database"], health.reason) == (False, full)
    waits = {cause.waiting_on.detail for cause in chain.causes if cause.waiting_on is not None}
    assert waits == {f"the database cannot be written: {full}"}


async def test_the_chain_of_a_fan_in_groups_its_children_by_cause_with_their_count(tmp_path):
    async with node(tmp_path, cpu_slots=1) as n:
        n.define(FAN)
        await n.api.trigger("fan", run_id="r")
        await n.succeed(width=50)
        await n.effects.next_start()
        chain = await n.api.why("r", "total")

    assert [(c.map_index, c.count, c.state) for c in chain.causes] == [
        *((-1, 1, "pending"), (1, 49, "queued"), (0, 1, "running")),
    ]
    assert chain.causes[1].waiting_on.kind == "slot"
    assert chain.more == 0


async def test_the_chain_of_a_fan_in_over_a_stream_leads_to_what_may_bring_more(tmp_path):
    async with node(tmp_path) as n:
        n.define(STREAM)
        await n.api.trigger("stream", run_id="r")
        start = (await n.effects.next_start()).start
        n.engine.report([ItemYielded(start.task_no, start.start_no, 0, b"\x01")])
        await n.succeed()
        chain = await n.api.why("r", "total")
        shown = await n.api.show_run("r")

    assert [(c.task_id, c.state) for c in chain.causes] == [
        ("total", "pending"),
        ("pages", "running"),
    ]
    assert [task.state for task in shown.tasks] == ["running", "success", "pending"]


async def test_a_run_waits_for_its_unfinished_tasks_that_wait_for_no_other(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        await n.api.trigger("chain", run_id="r")
        chain = await n.api.why("r")
        await n.api.cancel("r")
        after = await n.api.why("r")

    assert [c.task_id for c in chain.causes] == ["first"]
    assert after.causes == []


async def test_a_task_that_does_not_exist_is_unknown(tmp_path):
    async with node(tmp_path) as n:
        n.define(FAN)
        await n.api.trigger("fan", run_id="r")
        with pytest.raises(UnknownTask):
            await n.api.why("r", "nobody")
        with pytest.raises(UnknownTask):
            await n.api.logs("r", "each", map_index=7)


async def test_a_round_that_has_not_begun_is_refused_with_those_that_have(tmp_path):
    async with node(tmp_path) as n:
        n.define(LOOP)
        await n.api.trigger("loop", run_id="r")
        to_come = await n.api.why("r", "improve", map_index=0)
        with pytest.raises(UnknownRound, match="has not begun round 1; its last one is 0"):
            await n.api.why("r", "improve", map_index=1)
        await n.succeed()
        await n.succeed()
        await n.succeed(again=True)
        await n.effects.next_start()
        begun = await n.api.why("r", "improve", map_index=1)
        with pytest.raises(UnknownRound, match="has not begun round 7; its last one is 1"):
            await n.api.logs("r", "improve", map_index=7)
        with pytest.raises(UnknownTask, match="'first' of run 'r' has no child or iteration 7"):
            await n.api.why("r", "first", map_index=7)

    assert [(task.task_id, task.round) for task in to_come.causes] == [("improve", 0), ("first", 0)]
    assert [(task.task_id, task.round) for task in begun.causes] == [("improve", 1)]


async def test_deferred_triggers_are_listed_with_their_public_fields_only(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        await n.api.trigger("chain", run_id="r1")
        await n.api.trigger("chain", run_id="r2")
        await n.defer("aioflow_triggers.files:FileTrigger", {"path": "/in/a.csv"})
        await n.defer("mine:HttpTrigger", {"password": "hunter2"})
        await n.api.set_paused("chain", paused=False)  # answered once both are committed
        shown = await n.api.show_run("r1")
        known, own = await n.api.list_triggers()
        (second,) = await n.api.list_triggers(after=known.trigger_id)
        one = await n.api.show_trigger(own.trigger_id)

    assert (known.kind, known.run_id, known.task_id, known.state) == (
        "file",
        "r1",
        "first",
        "waiting",
    )
    assert known.detail == "FileTrigger(path='/in/a.csv')"
    assert (own.kind, own.detail) == ("HttpTrigger", "mine:HttpTrigger")
    assert second == own == one
    assert shown.tasks[0].state == "deferred"
    assert shown.tasks[0].waiting_on is not None


async def test_triggers_of_a_paused_dag_that_stops_them_are_listed_as_stopped(
    tmp_path,
):
    async with node(tmp_path) as n:
        n.define(msgspec.structs.replace(CHAIN, if_paused="stop"))
        await n.api.trigger("chain")
        await n.api.set_paused("chain", paused=True)
        await n.defer("aioflow_triggers.files:FileTrigger", {"path": "/in/a.csv"})
        await n.api.set_paused("chain", paused=True)  # answered once it is committed
        (stopped,) = await n.api.list_triggers()
        await n.api.set_paused("chain", paused=False)
        (waiting,) = await n.api.list_triggers()

    assert (stopped.state, waiting.state) == ("stopped", "waiting")


async def test_a_trigger_of_a_paused_dag_that_has_fired_is_not_stopped(tmp_path):
    async with node(tmp_path) as n:
        n.define(msgspec.structs.replace(CHAIN, if_paused="stop"))
        await n.api.trigger("chain")
        await n.api.set_paused("chain", paused=True)
        await n.defer("aioflow_triggers.files:FileTrigger", {"path": "/in/a.csv"})
        await n.api.set_paused("chain", paused=True)  # answered once it is committed
        (waiting,) = await n.api.list_triggers()
        await n.api.fire(waiting.trigger_id, payload="it is there")
        (fired,) = await n.api.list_triggers()

    assert fired.state == "fired"


# ── without a daemon ────────────────────────────────────────────────────────────────────


async def test_without_a_daemon_everything_but_waits_can_be_read_and_nothing_changed(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        await n.api.trigger("chain", run_id="r")
        run = await n.store.find_run("r")
        log = n.api._tasklog.open(
            LogKey(
                run_no=run.run_no,
                task_index=0,
                map_index=-1,
                task_no=run.first_task_no,
                start_no=1,
                try_number=1,
            )
        )
        log.offer(b"hello\n")

    url, clock = f"sqlite:///{tmp_path}/aioflow.db", SystemClock()
    async with open_store(url, Vault([b"x" * 32]), exclusive=False) as store:
        api = Api.offline(store, TaskLog(tmp_path / "logs", clock), home=tmp_path)
        shown = await api.show_run("r")

        assert shown.counts == {"pending": 2, "running": 1}
        assert all(task.waiting_on is None for task in shown.tasks)
        assert [dag.dag_id for dag in await api.list_dags()] == ["chain"]
        assert await api.logs("r", "first") == b"hello\n"
        assert await api.list_triggers() == []
        for change in (
            api.trigger("chain"),
            api.cancel("r"),
            api.set_paused("chain", paused=True),
            api.health(),
        ):
            with pytest.raises(DaemonAway):
                await change


async def test_the_answer_of_a_clear_says_what_stays_upstream_failed(tmp_path):
    async with node(tmp_path, cpu_slots=3) as n:
        n.define(FAN)
        await n.api.trigger("fan", run_id="r")
        await n.succeed(width=3)
        for _ in range(3):
            await n.fail()
        await n.engine.wait_until_idle()
        alone = await n.api.clear("r", ["each"], map_index=1)
        n.effects.starts.insert(0, await n.effects.next_start())
        await n.succeed()
        await n.engine.wait_until_idle()
        of_all = await n.api.clear("r", ["each"], downstream=True)

    assert (alone["cleared"], alone["upstream_failed"]) == (1, ["total"])
    assert of_all["upstream_failed"] == []


async def test_a_dry_run_names_what_is_touched_and_changes_nothing(tmp_path):
    async with node(tmp_path) as n:
        n.define(FAN)
        await n.api.trigger("fan", run_id="r")
        before = n.engine.memory.commit_no
        by_anna = n.api.by(Actor(name="anna", role=Role.ADMIN))
        cleared = await by_anna.clear("r", ["list"], downstream=True, dry_run=True)
        marked = await by_anna.mark("r", "failed", ["list"], dry_run=True)
        whole = await by_anna.mark("r", "failed", dry_run=True)
        after = n.engine.memory.commit_no
        with pytest.raises(UnknownTask):
            await by_anna.clear("r", ["absent"], dry_run=True)
        audit = await n.api.access.list_audit()

    assert before == after
    assert [line.action for line in audit] == []
    assert cleared == {
        "run_id": "r",
        "dag_id": "fan",
        "state": "running",
        "cleared": 1,
        "dry_run": True,
        "tasks": [{"task_id": "list", "is_marked": False, "states": {"queued": 1}}],
        "more": 0,
        "upstream_failed": [],
    }
    assert (marked["marked"], whole["marked"]) == (1, 3)
    assert marked["tasks"] == [{"task_id": "list", "is_marked": True, "states": {"queued": 1}}]


async def test_the_log_of_a_task_sets_tries_apart_that_a_clear_lies_between(tmp_path):
    async def try_it(n: Any, text: bytes) -> None:
        start = (await n.effects.next_start()).start
        key = LogKey(
            run_no=start.run_no,
            task_index=start.task_index,
            map_index=start.map_index,
            task_no=start.task_no,
            start_no=start.start_no,
            try_number=start.try_number,
        )
        n.api._tasklog.open(key).offer(text)
        failure = Failure(type="ValueError", message="no", reason="raised")
        now = SystemClock().now()
        n.engine.report([Failed(start.task_no, start.start_no, now, now, failure)])

    again = RetryPolicy(tries=2, delay_us=1)
    spec = DagSpec(dag_id="d", file="d.py", tasks=(TaskSpec(task_id="t", retry=again),))
    async with node(tmp_path) as n:
        n.define(spec)
        await n.api.trigger("d", run_id="r")
        await try_it(n, b"a")
        await try_it(n, b"b")
        await n.engine.wait_until_idle()
        before = await n.api.logs("r", "t")
        await n.api.clear("r")
        cleared = await n.api.logs("r", "t")
        await try_it(n, b"c")
        await try_it(n, b"d")
        await n.engine.wait_until_idle()
        whole = await n.api.logs("r", "t")
        tries = [await n.api.logs("r", "t", try_number=number) for number in range(1, 6)]
        shown = await n.api.reads.one_task.show("r", "t", map_index=-1)

    assert before == cleared == b"ab"
    assert whole == b"ab\n[aioflow: the task was cleared; try 3 follows]\ncd"
    assert tries == [b"a", b"b", b"c", b"d", b""]
    assert [one.try_number for one in shown.tries] == [1, 2, 3, 4]


# ── watching over ───────────────────────────────────────────────────────────────────────


async def test_a_dag_without_a_file_is_listed_and_shown_while_a_run_of_it_is_active(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN, FAN)
        await n.api.trigger("chain", run_id="r")
        n.engine.report([FileDeleted("chain.py"), FileDeleted("fan.py")])
        await n.engine.ask(CountTasks(run_ids=()))
        listed = {dag.dag_id: dag.import_error for dag in await n.api.list_dags()}
        (page,) = await n.api.list_dags(limit=1)
        shown = await n.api.show_dag("chain")
        with pytest.raises(UnknownDag):
            await n.api.show_dag("fan")
        for _ in range(3):
            await n.succeed()
        await n.engine.wait_until_idle()
        after = await n.api.list_dags()

    assert listed == {"chain": "gone: no file defines it any more; its active runs continue"}
    assert (page.dag_id, page.next_run_at) == ("chain", None)
    assert (shown.import_error, len(shown.tasks)) == (listed["chain"], 3)
    assert after == []


async def test_the_graph_grid_and_code_of_a_dag_without_a_file_are_those_of_its_newest_version(
    tmp_path,
):
    async with node(tmp_path) as n:
        n.define(CHAIN, FAN)
        await n.api.trigger("chain", run_id="r")
        graph = await n.api.reads.graphs.graph("chain")
        n.engine.report([FileDeleted("chain.py"), FileDeleted("fan.py")])
        await n.engine.ask(CountTasks(run_ids=()))
        reads = n.api.reads

        assert await reads.graphs.graph("chain") == graph
        assert (await reads.graphs.code("chain")).version == graph.version
        assert [one.version for one in await reads.graphs.versions("chain")] == [graph.version]
        grid = await reads.progress.grid("chain", limit=1)
        assert (grid.tasks, len(grid.runs)) == ([task.task_id for task in graph.nodes], 1)
        for read in (reads.graphs.graph, reads.graphs.code, reads.graphs.versions):
            with pytest.raises(UnknownDag):
                await read("fan")


async def test_the_node_is_ready_once_its_hosts_are_up(tmp_path):
    async with node(tmp_path) as n:
        before = await n.api.health()
        n.define(CHAIN)
        await n.api.set_paused("chain", paused=False)
        after = await n.api.health()

    assert (before.status, before.checks["hosts"]) == ("not_ready", False)
    assert after.status == "ready"


@pytest.mark.parametrize("is_over", [False, True])
async def test_a_node_that_stops_is_not_ready(tmp_path, is_over):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        await n.api.set_paused("chain", paused=False)
        n.engine.report([Drain(is_over=is_over)])
        await n.engine.next_turn()
        health = await n.api.health()

    assert (health.status, health.checks["open"]) == ("not_ready", False)


async def test_a_node_that_was_drained_stays_ready(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        await n.api.set_paused("chain", paused=False)
        await n.api.drain(n.engine.memory.node_no, is_drained=True)
        health = await n.api.health()

    assert health.status == "ready"


async def test_a_request_waits_for_a_dag_whose_file_has_not_been_read_yet(tmp_path):
    read = anyio.Event()
    made: dict[str, Any] = {}
    async with node(tmp_path) as n, anyio.create_task_group() as asking:
        n.define(FAN)
        await n.api.set_paused("fan", paused=False)
        n.api._first_read = FirstScan(n.api.clock, read.is_set)
        health = await n.api.health()

        async def ask() -> None:
            made["shown"] = await n.api.show_dag("chain")
            made["run"] = await n.api.trigger("chain", run_id="r")

        asking.start_soon(ask)
        for _ in range(3):
            await n.engine.next_turn() if n.engine.waiting_inputs else await anyio.sleep(0.02)
        n.define(CHAIN)
        with anyio.fail_after(60):
            while len(made) < 2:
                await anyio.sleep(0.01)
        read.set()
        with pytest.raises(UnknownDag, match="see `aioflow dags list`"):
            await n.api.trigger("nowhere")
        after = await n.api.health()

    assert (made["shown"].dag_id, made["run"].created) == ("chain", True)
    assert (health.status, health.checks["dags"]) == ("not_ready", False)
    assert (after.status, after.checks["dags"]) == ("ready", True)


async def test_a_dag_that_is_unknown_while_files_are_parsed_is_reported_in_time(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(dags, "FIRST_SCAN_SECONDS", 0.1)
    async with node(tmp_path) as n:
        n.api._first_read = FirstScan(n.api.clock, lambda: False)
        with pytest.raises(UnknownDag, match="the DAG files are still being read"):
            await n.api.trigger("chain")
        with pytest.raises(UnknownDag, match="see `aioflow dags list`"):
            await n.api.trigger("chain")
        n.define(CHAIN)
        await n.api.set_paused("chain", paused=False)
        health = await n.api.health()

    assert health.status == "ready"


async def test_a_node_whose_disk_is_full_is_not_ready_and_names_it(tmp_path, monkeypatch):
    async with node(tmp_path) as n:
        with monkeypatch.context() as patch:
            patch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=1, f_frsize=4096))
            health = await n.api.health()

    assert (health.status, health.checks["disk"]) == ("not_ready", False)
    assert health.reason == f"the disk of {n.home} is full: 4,096 bytes are free"


async def test_a_node_whose_database_is_damaged_is_not_ready(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        await n.api.set_paused("chain", paused=False)
        assert isinstance(n.store, SqliteStore)
        n.store._damage.append("page 7 is never used")
        health = await n.api.health()

    assert (health.status, health.checks["database"]) == ("not_ready", False)


async def test_blocking_classes_are_listed_counted_and_unquarantined(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        run = await n.api.trigger("chain")
        await n.defer("flows:Slow", {})
        await n.api.set_paused("chain", paused=False)  # answered once it is committed
        [deferred] = await n.api.list_triggers()
        assert await n.api.list_slow() == []
        stalled = LoopBlocked(
            role="triggers",
            culprit=deferred.trigger_id,
            incident="1.1",
            milliseconds=6_000,
            source_location="flows.py:3 in Slow.run",
        )
        n.engine.report([stalled])
        await n.api.set_paused("chain", paused=False)  # the class moves in the turn after this one
        assert await n.api.unquarantine("flows:Slow") == {"class": "flows:Slow", "changed": True}
        assert (await n.api.unquarantine("flows:Slow"))["changed"] is False
        [slow] = await n.api.list_slow()
        metrics = await n.api.metrics()

    assert (slow.kind, slow.name, slow.run_id) == ("trigger", "flows:Slow", run.run_id)
    assert (slow.stalls, slow.longest_ms, slow.quarantined) == (1, 6_000, False)
    assert (slow.trigger_id, slow.source_location) == (
        deferred.trigger_id,
        "flows.py:3 in Slow.run",
    )
    assert (metrics.stalls, metrics.quarantined_classes) == ({"trigger": 1, "task": 0}, 0)


async def test_metrics_follow_what_happens(tmp_path):
    async with node(tmp_path, cpu_slots=3) as n:
        n.define(CHAIN)
        await n.api.trigger("chain")
        now = await n.api.metrics()

    assert (now.slots, now.slots_used, now.live_runs) == (3, 1, 1)
    assert now.turns > 0


# ── pieces ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Decimal("1.50"), "1.50"),
        (date(2026, 1, 31), "2026-01-31"),
        (timedelta(minutes=1), 60.0),
        (b"\0\1", "AAE="),
        ((1, {2}), [1, [2]]),
        ({1: "a", (1, 2): "b"}, {"1": "a", "[1, 2]": "b"}),
        (1 << 60, str(1 << 60)),
        (Path("/x"), "/x"),
        pytest.param(1 << 20_000, hex(1 << 20_000), id="long"),
        pytest.param({-1 << 20_000: 1}, {hex(-1 << 20_000): 1}, id="long-key"),
        (float("nan"), "nan"),
        (True, True),
    ],
)
def test_values_become_the_nearest_json(value, expected):
    assert plain(value) == expected


KEYS = st.one_of(
    st.none(),
    st.booleans(),
    st.text(),
    st.binary(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.dates(),
    st.datetimes(timezones=st.none() | st.timezones()),
    st.times(),
    st.timedeltas(),
    st.uuids(),
    st.binary().map(lambda name: Path(os.fsdecode(name.replace(b"\0", b"")))),
)
LONG = st.integers(60, 60_000).map(lambda bits: 1 << bits)
NESTED = st.recursive(
    KEYS | LONG,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.frozensets(KEYS | LONG)
        | st.dictionaries(KEYS, inner)
    ),
)


def can_be_shown(value: object) -> None:
    shown = plain_bytes(encode(value, "the value"))

    assert msgspec.json.decode(msgspec.json.encode(shown)) == shown


@given(NESTED)
@settings(max_examples=30)
def test_all_storable_values_can_be_shown(value):
    can_be_shown(value)


@pytest.mark.nightly
@given(NESTED)
@settings(max_examples=300)
def test_much_that_can_be_stored_can_be_shown(value):
    can_be_shown(value)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-31T03:00:00Z", datetime(2026, 1, 31, 3, tzinfo=UTC)),
        ("2026-01-31T03:00:00", datetime(2026, 1, 31, 3, tzinfo=UTC)),
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        ("2026-01-31T05:30:00+05:30", datetime(2026, 1, 31, tzinfo=UTC)),
    ],
)
def test_a_time_is_read_and_written(text, moment):
    at = instant(text, "T")

    assert at == int(moment.timestamp()) * 1_000_000
    assert iso(at) == moment.replace(tzinfo=None).isoformat() + "Z"


def test_an_instant_no_calendar_has_is_not_shown():
    assert iso(1 << 62) is None


def test_neighbouring_rows_are_read_together():
    run = RunRow(
        run_no=1,
        run_id="r",
        dag_id="fan",
        version="v",
        state=RunState.RUNNING,
        cause="manual",
        first_task_no=10,
    )
    expansion = ExpansionRow(run_no=1, task_index=1, width=5, first_task_no=100)
    layout = RunLayout(run, FAN, [expansion])

    places = layout.page(0, 100)

    assert list(layout.ranges(places, 3)) == [(10, 11), (100, 103), (103, 105), (12, 13)]
    assert [layout.find(place.task_no) for place in places] == places
    assert layout.page(3, 2) == places[3:5]
    counted = layout.counts([(1, TaskState.SUCCESS, 2)], RunState.RUNNING)
    assert counted == {"pending": 5, "success": 2}
