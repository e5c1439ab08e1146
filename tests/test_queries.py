"""Queries of children are answered from committed rows, and no end of a run is missed."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import anyio
import msgspec
import pytest

from aioflow.clock import SystemClock
from aioflow.errors import BatchRefused, StoreUnavailable
from aioflow.executors.executor_context import refuse
from aioflow.model.batch import Batch
from aioflow.model.dag import DagSpec, MapSource, MapSpec, TaskSpec, ValueKind
from aioflow.model.rows import (
    DagRow,
    ExpansionChange,
    ExpansionRow,
    ItemRow,
    NamedEventRow,
    RecordRow,
    ResultRow,
    RunChange,
    RunRow,
    TaskChange,
    TaskRow,
    ValueRow,
    VersionRow,
)
from aioflow.model.states import Failure, RecordState, RunState, TaskState
from aioflow.protocol.commands import Reply, RunInfo
from aioflow.protocol.reports import CancelQuery, Query
from aioflow.queries import QueryHandler
from aioflow.redaction import Masks
from aioflow.worker.query.messages import (
    PAGE_BYTES,
    PAGE_ITEMS,
    EventsPage,
    EventsWanted,
    RecordsPage,
    RecordsWanted,
    ResultsPage,
    ResultsWanted,
    RunEnded,
    RunEnding,
    RunsWanted,
    RunWanted,
    ValuesFound,
    ValuesWanted,
    only,
)
from tests.executors.processes import running

S = TaskState
INFO = RunInfo(7, "r7", "d", "v", "d.py", None, 0, None, 100)


class Tables:
    """The tables of a store in memory. ``between`` is called in the middle of each read."""

    def __init__(self):
        self.runs: dict[int, RunRow] = {}
        self.tasks: dict[int, TaskRow] = {}
        self.results: dict[int, ResultRow] = {}
        self.records: list[RecordRow] = []
        self.items: list[ItemRow] = []
        self.expansions: list[ExpansionRow] = []
        self.events: list[NamedEventRow] = []
        self.values: dict[tuple[ValueKind, str], ValueRow] = {}
        tasks = (
            TaskSpec(task_id="a", values=((ValueKind.SECRET, "A"), (ValueKind.SECRET, "B"))),
            TaskSpec(task_id="b", mapped=MapSpec((MapSource("x", 0, -1),))),
            TaskSpec(task_id="round", mapped=MapSpec((MapSource("", -1, 1),), (), 2)),
        )
        spec = DagSpec(dag_id="d", file="d.py", tasks=tasks)
        self.version = VersionRow(version="v", file="d.py", dags=(spec,), sources={}, created_at=0)
        self.needed = [self.version]
        self.reads = 0
        self.between = lambda: None
        self.impossible = "\0"  # no text in a database

    def _check(self, *texts):
        if self.impossible in texts:
            raise BatchRefused("no such text")

    async def _read(self, value):
        """Return a value that was read before ``between`` is called."""
        self.reads += 1
        await anyio.lowlevel.checkpoint()
        self.between()
        await anyio.lowlevel.checkpoint()
        return value

    async def find_runs(self, run_ids):
        wanted = set(run_ids)
        self._check(*wanted)
        return await self._read([r for r in self.runs.values() if r.run_id in wanted])

    async def find_runs_at(self, dag_id, logical_dates):
        found = {
            r.logical_date: r
            for r in self.runs.values()
            if r.dag_id == dag_id and r.logical_date in logical_dates
        }
        return await self._read(list(found.values()))

    async def find_tasks(self, task_nos):
        return await self._read([self.tasks[no] for no in task_nos if no in self.tasks])

    async def first_run_ended_since(self, dag_id, since):
        found = [
            r for r in self.runs.values() if r.dag_id == dag_id and (r.ended_at or -1) >= since
        ]
        return await self._read(min(found, key=lambda r: r.ended_at or 0) if found else None)

    async def list_dags(self):
        return await self._read([DagRow(dag_id="d", file="d.py", version="v")])

    async def find_version(self, version):
        return await self._read(self.version if version == "v" else None)

    async def list_needed_versions(self):
        return await self._read(self.needed)

    async def list_expansions(self, run_no):
        return await self._read(list(self.expansions))

    async def count_states(self, run_no):
        keys = sorted((t.task_index, t.state) for t in self.tasks.values())
        counted = [(*key, len(list(same))) for key, same in itertools.groupby(keys)]
        return await self._read(counted)

    async def list_tasks_between(self, first, end, limit=1000):
        found = [self.tasks[no] for no in range(first, end) if no in self.tasks]
        return await self._read(found[:limit])

    async def list_records(self, task_no, after=-1, limit=1000):
        found = [r for r in self.records if r.task_no == task_no and r.ordinal > after]
        return await self._read(found[:limit])

    async def list_named_events(self, name, *, after=-1, limit=1000):
        self._check(name)
        found = [e for e in self.events if e.name == name and e.event_no > after]
        return await self._read(found[:limit])

    async def find_value(self, kind, name):
        return await self._read(self.values.get((kind, name)))

    async def list_items(self, task_no, after=-1, limit=1000):
        found = [r for r in self.items if r.task_no == task_no and r.item_index > after]
        return await self._read(found[:limit])

    async def list_results(self, first, end, limit=1000):
        found = [self.results[no] for no in range(first, end) if no in self.results]
        return await self._read(found[:limit])


class Child:
    hosts_triggers = False

    def __init__(self, info=INFO):
        self.is_open = True
        self.answers: list[Reply] = []
        self.answered = anyio.Event()
        self._info = info

    def serves(self, run_no):
        return True

    def info(self, run_no):
        return self._info

    def send(self, messages):
        self.answers += messages
        self.answered.set()

    async def ending(self):
        """Return the reply about the only run that was queried."""
        with anyio.fail_after(60):
            await self.answered.wait()
        [(_, ending)] = self.endings()
        return ending

    def endings(self):
        """Return all replies about runs, as ``(number, ending)``."""
        told = [msgspec.msgpack.decode(a.body, type=list[RunEnded]) for a in self.answers]
        return [(each.number, each.ending) for of_one in told for each in of_one]

    async def answer(self, kind):
        with anyio.fail_after(60):
            await self.answered.wait()
        [answer] = self.answers
        assert answer.error == ""
        return msgspec.msgpack.decode(answer.body, type=kind)


class World:
    """Tables, the query handler that reads them, and the commits that change them."""

    def __init__(self):
        self.tables = Tables()
        self.masks = Masks()
        self.answers = QueryHandler(self.tables, SystemClock(), masks=self.masks)
        self.number = 0

    def run(self, run_no=7, state=RunState.RUNNING, **columns):
        return RunRow(
            run_no=run_no,
            run_id=f"r{run_no}",
            **{
                "dag_id": "d",
                "version": "v",
                "state": state,
                "cause": "manual",
                "first_task_no": 100,
                **columns,
            },
        )

    def commit(
        self, *, runs=(), new_tasks=(), expansions=(), ended=None, moved=(), events=(), grown=()
    ):
        """Apply a batch to the tables, and then report it as the engine does."""
        self.number += 1
        batch = Batch(number=self.number, at=0, new_runs=list(runs), new_tasks=list(new_tasks))
        batch.new_expansions = list(expansions)
        batch.named_events = list(events)
        self.tables.events += events
        self.tables.expansions += expansions
        for change in grown:
            (expansion,) = self.tables.expansions
            batch.expansion_changes.append(change)
            self.tables.expansions = [
                msgspec.structs.replace(expansion, width=change.width, is_open=change.is_open)
            ]
        self.tables.runs |= {row.run_no: row for row in runs}
        self.tables.tasks |= {row.task_no: row for row in new_tasks}
        for run_no, state in (ended or {}).items():
            row = self.tables.runs[run_no]
            self.tables.runs[run_no] = msgspec.structs.replace(row, state=state, ended_at=50)
            batch.run_changes.append(RunChange(run_no, row.state, state, None, 50, None))
        for task_no, now in moved:
            old = self.tables.tasks[task_no]
            self.tables.tasks[task_no] = msgspec.structs.replace(old, state=now)
            batch.task_changes.append(TaskChange(task_no, old.state, 1, now, 1, 1, 0, *[None] * 6))
        known = {no: SimpleNamespace(row=row) for no, row in self.tables.runs.items()}
        self.answers.committed(batch, SimpleNamespace(runs=known))  # type: ignore[arg-type]

    def ask_run(
        self,
        child,
        task_id=None,
        run_id=None,
        logical_date=None,
        since=0,
        dag_id="d",
        *,
        number=0,
        question=1,
        asking=7,
    ):
        run = RunWanted(number, run_id, logical_date, since, 0, -1)
        body = msgspec.msgpack.encode(RunsWanted(dag_id, task_id, [run]))
        self.answers.submit(child, Query(question, asking, "runs", body))

    async def page(self, task_index, after=-2):
        child = Child()
        wanted = ResultsWanted(task_index, after)
        self.answers.submit(child, Query(1, 7, "results", msgspec.msgpack.encode(wanted)))
        return await child.answer(ResultsPage)

    async def records(self, task_no, after=-1):
        child = Child()
        wanted = msgspec.msgpack.encode(RecordsWanted(task_no, after))
        self.answers.submit(child, Query(1, 7, "records", wanted))
        return await child.answer(RecordsPage)


def task(task_no, task_index=0, map_index=-1, state=S.RUNNING, **columns):
    return TaskRow(
        task_no=task_no,
        run_no=7,
        task_index=task_index,
        map_index=map_index,
        state=state,
        try_number=1,
        start_no=1,
        **columns,
    )


def children(width, state=S.RUNNING, first=1000):
    return [task(first + i, 1, i, state) for i in range(width)]


def result(task_no, body=b"\x01"):
    return ResultRow(task_no=task_no, run_no=7, start_no=1, body=body, size=len(body or b"x" * 99))


# ── endings ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("state", [state for state in RunState if not state.is_live])
async def test_a_run_that_has_ended_is_answered_at_once(state):
    w, child = World(), Child()
    async with running(w.answers):
        w.commit(runs=[w.run(state=state)])
        w.ask_run(child, run_id="r7")
        assert await child.ending() == RunEnding("r7", state.label, None)
    assert not w.answers.waiting


@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param({"run_id": "r7"}, id="by-id"),
        pytest.param({"logical_date": 5}, id="by-logical-date"),
        pytest.param({"since": 10}, id="the-first-to-end"),
    ],
)
async def test_a_run_that_comes_later_is_waited_for(wanted):
    w, child = World(), Child()
    async with running(w.answers):
        w.ask_run(child, **wanted)
        await anyio.wait_all_tasks_blocked()
        w.commit(runs=[w.run(8, logical_date=4), w.run(7, logical_date=5)])
        await anyio.wait_all_tasks_blocked()
        assert not child.answers
        w.commit(ended={7: RunState.FAILED})
        assert await child.ending() == RunEnding("r7", "failed", None)
    assert not w.answers.waiting


@pytest.mark.parametrize("moment", range(1, 8))
@pytest.mark.parametrize("wanted", [{"run_id": "r7"}, {"logical_date": 5}, {"since": 0}])
async def test_an_ending_in_the_middle_of_any_look_does_not_slip_by(moment, wanted):
    w, child = World(), Child()
    w.commit(runs=[w.run(logical_date=5)])

    def end():
        if w.tables.reads == moment:
            w.commit(ended={7: RunState.SUCCESS})

    w.tables.between = end
    async with running(w.answers):
        w.ask_run(child, **wanted)
        await anyio.wait_all_tasks_blocked()
        if w.tables.runs[7].state.is_live:
            w.commit(ended={7: RunState.SUCCESS})
        assert (await child.ending()).state == "success"


async def test_a_task_is_answered_with_its_small_result():
    w, child = World(), Child()
    async with running(w.answers):
        w.commit(runs=[w.run()], new_tasks=[task(100)])
        w.ask_run(child, "a", run_id="r7")
        await anyio.wait_all_tasks_blocked()
        w.tables.results[100] = result(100, b"\x07")
        w.commit(moved=[(100, S.SUCCESS)])
        assert await child.ending() == RunEnding("r7", "success", b"\x07")


async def test_a_task_its_run_never_came_to_is_removed():
    w, child = World(), Child()
    async with running(w.answers):
        w.commit(runs=[w.run()])
        w.ask_run(child, "a", run_id="r7")
        await anyio.wait_all_tasks_blocked()
        w.commit(ended={7: RunState.CANCELLED})
        assert (await child.ending()).state == "removed"


async def test_a_mapped_task_ends_with_its_last_child():
    w, child = World(), Child()
    async with running(w.answers):
        w.commit(runs=[w.run()])
        w.ask_run(child, "b", run_id="r7")
        await anyio.wait_all_tasks_blocked()
        w.commit(expansions=[ExpansionRow(run_no=7, task_index=1, width=50, first_task_no=1000)])
        await anyio.wait_all_tasks_blocked()
        w.commit(new_tasks=children(50))
        for number in range(1000, 1049):
            reads = w.tables.reads
            w.commit(moved=[(number, S.SKIPPED if number % 2 else S.SUCCESS)])
            await anyio.wait_all_tasks_blocked()
            assert w.tables.reads == reads  # fewer endings than are missing lead to no look
        assert not child.answers
        w.commit(moved=[(1049, S.SUCCESS)])
        assert (await child.ending()).state == "success"


@pytest.mark.parametrize(
    ("made", "expected"), [(S.SUCCESS, "success"), (S.FAILED, "upstream_failed")]
)
async def test_a_mapped_task_over_a_stream_ends_when_that_is_closed(made, expected):
    w, child = World(), Child()
    async with running(w.answers):
        w.commit(
            runs=[w.run()],
            expansions=[
                ExpansionRow(run_no=7, task_index=1, width=2, first_task_no=1000, is_open=True)
            ],
            new_tasks=[task(100, 0), *children(2, S.SUCCESS)],
        )
        w.ask_run(child, "b", run_id="r7")
        await anyio.wait_all_tasks_blocked()
        assert not child.answers

        w.commit(moved=[(100, made)], grown=[ExpansionChange(7, 1, 2, 2, False)])

        assert (await child.ending()).state == expected


async def test_a_task_of_a_loop_ends_as_its_last_round_did_when_none_follows():
    w, child = World(), Child()
    async with running(w.answers):
        w.commit(
            runs=[w.run()],
            expansions=[
                ExpansionRow(run_no=7, task_index=2, width=2, first_task_no=1000, is_open=True)
            ],
            new_tasks=[task(1000, 2, 0, S.FAILED), task(1001, 2, 1, S.SUCCESS)],
        )
        w.ask_run(child, "round", run_id="r7")
        await anyio.wait_all_tasks_blocked()
        assert not child.answers

        w.commit(grown=[ExpansionChange(7, 2, 2, 2, False)])

        assert (await child.ending()).state == "success"


@pytest.mark.parametrize("moment", range(1, 12))
async def test_the_last_child_ending_in_the_middle_of_a_look_does_not_slip_by(moment):
    w, child = World(), Child()
    expansion = ExpansionRow(run_no=7, task_index=1, width=3, first_task_no=1000)
    w.commit(runs=[w.run()], expansions=[expansion], new_tasks=children(3))

    def end():
        if w.tables.reads == moment:
            w.commit(moved=[(number, S.FAILED) for number in (1000, 1001, 1002)])

    w.tables.between = end
    async with running(w.answers):
        w.ask_run(child, "b", run_id="r7")
        await anyio.wait_all_tasks_blocked()
        if w.tables.tasks[1000].state.is_live:
            w.tables.reads = moment - 1
            end_now = [(number, S.FAILED) for number in (1000, 1001, 1002)]
            w.commit(moved=end_now)
        assert (await child.ending()).state == "failed"


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        pytest.param({"dag_id": "x"}, "no DAG 'x'", id="missing-dag"),
        pytest.param({"run_id": "r7", "dag_id": "x"}, "belongs to DAG 'd'", id="another-dags-run"),
        pytest.param({"run_id": "r7", "task_id": "x"}, "no task 'x'", id="missing-task"),
        pytest.param({"run_id": "r8", "task_id": "x"}, "no task 'x'", id="of-a-run-to-come"),
        pytest.param({"logical_date": 5, "task_id": "x"}, "no task 'x'", id="of-a-date-to-come"),
        pytest.param({"task_id": "x"}, "no task 'x', neither in its newest", id="of-any-run"),
    ],
)
async def test_impossible_queries_are_refused(wanted, why):
    w, child = World(), Child()
    async with running(w.answers):
        w.commit(runs=[w.run()])
        w.ask_run(child, **wanted)
        assert why in await child.ending()
    assert not w.answers.waiting


async def test_a_task_that_only_an_older_version_has_is_waited_for_while_a_run_needs_that():
    w, child = World(), Child()
    old = DagSpec(dag_id="d", file="d.py", tasks=(TaskSpec(task_id="x"),))
    w.tables.needed.append(
        VersionRow(version="old", file="d.py", dags=(old,), sources={}, created_at=0)
    )
    async with running(w.answers):
        w.ask_run(child, "x", since=50)
        w.ask_run(child, "a", run_id="r8", question=2)
        await anyio.wait_all_tasks_blocked()

        assert not child.answers
        assert w.answers.waiting == 2


DEEP = b"\x91" * 100_000 + b"\xc0"


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("runs", b"\xc1"),
        ("weather", b""),
        ("runs", b"\x93\xa2\xff\xfe\xc0\x90"),
        ("events", b"\x92\xa2\xff\xfe\x00"),
        ("results", b"\x93\x00\x00" + DEEP),
    ],
    ids=["bad", "kind", "bad text", "bad name", "too deep"],
)
async def test_a_question_that_makes_no_sense_is_refused(kind, body):
    w, child = World(), Child()
    w.answers.submit(child, Query(1, 7, kind, body))

    assert "cannot be decoded" in child.answers[0].error


async def test_a_database_that_is_away_delays_the_answer():
    w, child = World(), Child()
    w.commit(runs=[w.run(state=RunState.SUCCESS)])

    def away():
        if w.tables.reads == 1:
            raise StoreUnavailable("away")

    w.tables.between = away
    async with running(w.answers):
        w.ask_run(child, run_id="r7")
        assert (await child.ending()).state == "success"


async def test_unstorable_names_are_refused_and_the_others_are_answered():
    w = World()
    w.commit(runs=[w.run(state=RunState.SUCCESS)])
    strange, healthy = Child(), Child()
    w.tables.impossible = "strange"
    async with running(w.answers):
        wanted = RunsWanted(
            "d", None, [RunWanted(0, "strange", None, 0), RunWanted(1, "r7", None, 0)]
        )
        w.answers.submit(strange, Query(1, 7, "runs", msgspec.msgpack.encode(wanted)))
        w.answers.submit(
            strange, Query(2, 7, "events", msgspec.msgpack.encode(EventsWanted("strange", 0)))
        )
        w.ask_run(healthy, run_id="r7")
        assert (await healthy.ending()).state == "success"
        await anyio.wait_all_tasks_blocked()

    refused = [answer for answer in strange.answers if answer.question == 2]
    assert [answer.error for answer in refused] == ["no such text"]
    told = [
        ended
        for answer in strange.answers
        if answer.question == 1
        for ended in msgspec.msgpack.decode(answer.body, type=list[RunEnded])
    ]
    assert {ended.number: isinstance(ended.ending, RunEnding) for ended in told} == {
        0: False,
        1: True,
    }


async def test_questions_of_dead_processes_do_not_pile_up():
    w = World()
    w.commit(runs=[w.run()])
    async with running(w.answers):
        for _ in range(5):
            child = Child()
            for number in range(200):
                w.ask_run(child, run_id="r7", number=number)
            await anyio.wait_all_tasks_blocked()
            child.is_open = False
        assert w.answers.waiting <= 400


async def test_thousands_are_looked_into_together_and_told_together():
    w, child = World(), Child()
    count = 2_000
    w.commit(runs=[w.run(no, logical_date=no) for no in range(10, 10 + count)])
    async with running(w.answers):
        for no in range(10, 10 + count):
            wanted = {"logical_date": no} if no % 2 else {"run_id": f"r{no}"}
            w.ask_run(child, **wanted, number=no)
        await anyio.wait_all_tasks_blocked()
        assert (w.answers.waiting, child.answers) == (count, [])
        assert w.tables.reads < 20
        w.commit(ended=dict.fromkeys(range(10, 10 + count), RunState.SUCCESS))
        await anyio.wait_all_tasks_blocked()

    assert {number: ending.run_id for number, ending in child.endings()} == {
        no: f"r{no}" for no in range(10, 10 + count)
    }
    assert len(child.answers) < 10
    assert w.tables.reads < 40


async def test_a_commit_checks_only_the_waits_it_may_answer():
    w, child = World(), Child()
    w.commit(runs=[w.run(8), w.run(9, logical_date=9)], new_tasks=[task(100), task(101)])
    async with running(w.answers):
        w.ask_run(child, run_id="r8", number=0)
        w.ask_run(child, run_id="r9", task_id="a", number=1)
        w.ask_run(child, run_id="r10", number=2)
        w.ask_run(child, logical_date=9, number=3)
        w.ask_run(child, logical_date=11, number=4)
        await anyio.wait_all_tasks_blocked()
        reads = w.tables.reads

        w.commit(runs=[w.run(20), w.run(21, logical_date=21)], moved=[(101, S.SUCCESS)])
        w.commit(ended={20: RunState.SUCCESS}, events=[event(5)], new_tasks=[task(200)])
        await anyio.wait_all_tasks_blocked()

        assert w.tables.reads == reads
    assert w.answers.waiting == 5


async def test_a_wait_for_an_instant_follows_the_newest_run_for_it():
    w, child = World(), Child()
    async with running(w.answers):
        w.commit(runs=[w.run(7, logical_date=5)])
        w.ask_run(child, logical_date=5)
        await anyio.wait_all_tasks_blocked()
        w.commit(runs=[w.run(8, logical_date=5)])
        await anyio.wait_all_tasks_blocked()
        w.commit(ended={7: RunState.FAILED})
        await anyio.wait_all_tasks_blocked()
        assert not child.answers
        w.commit(ended={8: RunState.SUCCESS})
        assert await child.ending() == RunEnding("r8", "success", None)
    assert not w.answers.waiting


async def test_the_first_run_to_end_answers_all_who_have_waited_for_less_long():
    w, child = World(), Child()
    w.commit(runs=[w.run(8), w.run(9)], ended={8: RunState.FAILED})  # at 50
    async with running(w.answers):
        for since in (10, 50, 51, 60):
            w.ask_run(child, since=since, number=since)
        await anyio.wait_all_tasks_blocked()

    assert sorted(number for number, _ in child.endings()) == [10, 50]
    assert w.answers.waiting == 2


async def test_some_runs_of_a_query_are_withdrawn():
    w, child = World(), Child()
    w.commit(runs=[w.run(7), w.run(8)])
    async with running(w.answers):
        for number, run_id in enumerate(["r7", "r8", "r8", "never"]):
            w.ask_run(child, run_id=run_id, number=number)
        await anyio.wait_all_tasks_blocked()
        w.answers.submit(child, CancelQuery(1, (0, 2, 3, 77)))
        w.answers.submit(Child(), CancelQuery(1, (1,)))
        w.answers.submit(child, CancelQuery(5, (1,)))
        w.commit(ended={7: RunState.SUCCESS, 8: RunState.SUCCESS})
        await anyio.wait_all_tasks_blocked()

    assert [number for number, _ in child.endings()] == [1]
    assert not w.answers.waiting


@pytest.mark.parametrize("wanted", [{"run_id": "r7"}, {"run_id": "r7", "task_id": "b"}])
@pytest.mark.parametrize("moment", range(1, 6))
async def test_a_wait_withdrawn_during_a_lookup_is_not_answered(moment, wanted):
    w, child = World(), Child()
    w.commit(
        runs=[w.run()],
        expansions=[ExpansionRow(run_no=7, task_index=1, width=2, first_task_no=1000)],
        new_tasks=children(2),
    )

    def withdraw():
        if w.tables.reads == moment:
            w.answers.submit(child, CancelQuery(1))

    w.tables.between = withdraw
    async with running(w.answers):
        w.ask_run(child, **wanted)
        await anyio.wait_all_tasks_blocked()
        w.answers.submit(child, CancelQuery(1))
        w.commit(ended={7: RunState.SUCCESS}, moved=[(1000, S.SUCCESS), (1001, S.SUCCESS)])
        await anyio.wait_all_tasks_blocked()

    assert (child.answers, w.answers.waiting) == ([], 0)


async def test_queries_of_a_dead_process_are_not_answered_to_the_next():
    w, child, other = World(), Child(), Child()
    w.commit(runs=[w.run()])
    async with running(w.answers):
        w.ask_run(child, run_id="r7", question=100)
        w.ask_run(other, run_id="r7", question=100)
        await anyio.wait_all_tasks_blocked()
        w.answers.submit(child, CancelQuery(-1))  # its host has died
        w.ask_run(child, run_id="r7", question=200, number=3)  # the next host asks again
        await anyio.wait_all_tasks_blocked()
        w.commit(ended={7: RunState.SUCCESS})
        await anyio.wait_all_tasks_blocked()

    assert [answer.question for answer in child.answers] == [200]
    assert [number for number, _ in child.endings()] == [3]
    assert [answer.question for answer in other.answers] == [100]
    assert not w.answers.waiting


async def test_results_of_many_tasks_come_in_bounded_replies():
    w, child = World(), Child()
    body = b"x" * 60_000
    w.commit(runs=[w.run(no, first_task_no=no * 10) for no in range(10, 210)])
    w.commit(new_tasks=[task(no * 10, state=S.SUCCESS) for no in range(10, 210)])
    w.tables.results = {no * 10: result(no * 10, body) for no in range(10, 210)}
    async with running(w.answers):
        for no in range(10, 210):
            w.ask_run(child, run_id=f"r{no}", task_id="a", number=no)
        await anyio.wait_all_tasks_blocked()

    assert len(child.endings()) == 200
    assert all(len(answer.body) < PAGE_BYTES + 2 * len(body) for answer in child.answers)


async def test_nothing_is_stored_of_a_mapped_task_without_a_waiter():
    w, child = World(), Child()
    w.commit(
        runs=[w.run()],
        expansions=[ExpansionRow(run_no=7, task_index=1, width=2, first_task_no=1000)],
        new_tasks=children(2),
    )
    mapped = w.answers._endings._waits.mapped
    async with running(w.answers):
        w.ask_run(child, "b", run_id="r7")
        await anyio.wait_all_tasks_blocked()
        assert mapped.at(7, 1) == 101
        w.answers.submit(child, CancelQuery(1))
        assert (mapped.at(7, 1), mapped.child_ended(1000)) == (None, None)


def test_each_waiter_of_a_refused_query_about_runs_gets_the_refusal():
    child = Child()
    runs = [RunWanted(number, "r", None, 0) for number in (4, 9)]
    body = msgspec.msgpack.encode(RunsWanted("d", None, runs))

    refuse(child, Query(3, 7, "runs", body), "not yours")

    assert child.answers[0].error == ""
    assert child.endings() == [(4, "not yours"), (9, "not yours")]


# ── pages ───────────────────────────────────────────────────────────────────────────────


async def test_the_result_of_an_unmapped_parent_is_one_page():
    w = World()
    w.commit(runs=[w.run()], new_tasks=[task(100, state=S.SUCCESS)])
    w.tables.results[100] = result(100)
    async with running(w.answers):
        page = await w.page(0)

    assert page == ResultsPage(-1, [(-1, 100, 1, b"\x01")], [], -1, more=False)


async def test_pages_hold_all_children_in_map_order_and_why_others_failed():
    w = World()
    width = 2 * PAGE_ITEMS + 10
    failure = Failure(type="E", message="m", reason="raised")
    w.commit(
        expansions=[ExpansionRow(run_no=7, task_index=1, width=width, first_task_no=1000)],
        new_tasks=children(width, S.SUCCESS),
    )
    w.tables.tasks[1003] = task(1003, 1, 3, S.FAILED, failure=failure)
    del w.tables.tasks[1004]  # pending
    w.tables.results = {1000 + i: result(1000 + i) for i in range(0, width, 2) if i != 4}
    w.tables.results[1006] = result(1006, None)  # in a file
    async with running(w.answers):
        pages = [await w.page(1)]
        while pages[-1].more:
            pages.append(await w.page(1, pages[-1].last))

    items = [item for page in pages for item in page.items]
    assert [item[0] for item in items] == [i for i in range(width) if i not in {3, 4}]
    assert [page.last for page in pages] == [PAGE_ITEMS - 1, 2 * PAGE_ITEMS - 1, width - 1]
    assert pages[0].failed == [(3, S.FAILED, failure)]
    assert items[1] == (1, 1001, 0, None)
    assert items[2] == (2, 1002, 1, b"\x01")
    assert next(item for item in items if item[0] == 6) == (6, 1006, 1, None)


async def test_one_child_may_be_asked_for_alone_and_none_beyond_the_last():
    w = World()
    w.commit(
        expansions=[ExpansionRow(run_no=7, task_index=1, width=3, first_task_no=1000)],
        new_tasks=[*children(3, S.SUCCESS), task(1003, 2, 0, S.SUCCESS)],
    )
    w.tables.tasks[1001] = task(1001, 1, 1, S.SKIPPED)
    w.tables.results = {1000 + i: result(1000 + i) for i in (0, 2, 3)}
    async with running(w.answers):
        pages = [await w.page(1, only(index)) for index in range(4)]
        unexpanded = await w.page(5, only(0))

    assert [[item[0] for item in page.items] for page in pages] == [[0], [], [2], []]
    assert [[failed[0] for failed in page.failed] for page in pages] == [[], [1], [], []]
    assert unexpanded.items == []


async def test_a_page_of_large_results_is_bounded_in_bytes():
    w = World()
    w.commit(
        expansions=[ExpansionRow(run_no=7, task_index=1, width=500, first_task_no=1000)],
        new_tasks=children(500, S.SUCCESS),
    )
    body = b"x" * 60_000
    w.tables.results = {1000 + i: result(1000 + i, body) for i in range(500)}
    async with running(w.answers):
        page = await w.page(1)

    assert page.more
    assert sum(len(item[3]) for item in page.items) < 2 * PAGE_BYTES


async def test_a_process_that_runs_no_tasks_gets_no_results():
    w, child = World(), Child(info=None)
    async with running(w.answers):
        body = msgspec.msgpack.encode(ResultsWanted(0))
        w.answers.submit(child, Query(1, 7, "results", body))
        with anyio.fail_after(60):
            await child.answered.wait()

    assert "only a process that runs tasks" in child.answers[0].error


# ── recorded calls ──────────────────────────────────────────────────────────────────────


def record(ordinal, answer=b"\x01", *, run_no=7):
    return RecordRow(
        task_no=100,
        ordinal=ordinal,
        run_no=run_no,
        state=RecordState.ANSWERED,
        kind="step",
        name="d:f",
        source_location="d.py:3",
        answer=answer,
    )


async def test_the_recorded_calls_of_a_task_come_in_order():
    w = World()
    w.tables.records = [record(ordinal, bytes([ordinal])) for ordinal in range(100)]
    async with running(w.answers):
        page = await w.records(100)
        rest = await w.records(100, after=97)

    assert [item.answer for item in page.items] == [bytes([ordinal]) for ordinal in range(100)]
    assert (page.more, rest.more) == (False, False)
    assert [item.answer for item in rest.items] == [bytes([98]), bytes([99])]


async def test_a_page_of_large_calls_is_bounded_in_bytes_and_the_next_continues():
    w = World()
    w.tables.records = [record(ordinal, b"x" * 900_000) for ordinal in range(300)]
    got = 0
    async with running(w.answers):
        while True:
            page = await w.records(100, after=got - 1)
            assert sum(len(item.answer) for item in page.items) < 4 * PAGE_BYTES
            got += len(page.items)
            if not page.more:
                break

    assert got == 300


async def test_calls_of_another_run_are_not_told():
    w = World()
    w.tables.records = [record(0, run_no=8)]
    async with running(w.answers):
        page = await w.records(100)

    assert (page.items, page.more) == ([], False)


# ── named events ────────────────────────────────────────────────────────────────────────


def event(number, name="e", *, size=1):
    return NamedEventRow(event_no=number, name=name, key=None, data=b"x" * size, at=0)


def ask_events(w, child, after, *, until=None, question=1):
    wanted = msgspec.msgpack.encode(EventsWanted("e", after, until))
    w.answers.submit(child, Query(question, 7, "events", wanted))


def numbers(page):
    return [item.event_no for item in page.items]


async def test_existing_events_are_reported_at_once():
    w, child = World(), Child()
    w.tables.events = [event(1), event(2, "other"), event(3), event(5)]
    async with running(w.answers):
        ask_events(w, child, 1)
        page = await child.answer(EventsPage)

    assert (numbers(page), page.last, w.answers.waiting) == ([3, 5], 5, 0)


async def test_a_question_for_events_waits_for_one_of_that_name():
    w, child = World(), Child()
    w.tables.events = [event(1)]
    async with running(w.answers):
        ask_events(w, child, 1)
        await anyio.wait_all_tasks_blocked()
        w.commit(events=[event(2, "other")])
        await anyio.wait_all_tasks_blocked()
        assert (child.answers, w.answers.waiting) == ([], 1)
        w.commit(events=[event(3), event(4)])
        page = await child.answer(EventsPage)

    assert (numbers(page), w.answers.waiting) == ([3, 4], 0)


@pytest.mark.parametrize("moment", range(1, 5))
async def test_no_event_slips_by_between_the_look_and_the_wait(moment):
    w, child = World(), Child()

    def emit():
        if w.tables.reads == moment:
            w.commit(events=[event(3)])

    w.tables.between = emit
    async with running(w.answers):
        ask_events(w, child, 1)
        await anyio.wait_all_tasks_blocked()
        if not w.tables.events:
            w.commit(events=[event(3)])
        assert numbers(await child.answer(EventsPage)) == [3]


async def test_a_query_up_to_a_number_is_answered_at_once_however_little_there_is():
    w, child, other = World(), Child(), Child()
    w.tables.events = [event(1), event(3), event(9)]
    async with running(w.answers):
        ask_events(w, child, 0, until=5)
        ask_events(w, other, 3, until=5)
        page, empty = await child.answer(EventsPage), await other.answer(EventsPage)

    assert (numbers(page), page.last) == ([1, 3], 5)
    assert (numbers(empty), empty.last) == ([], 5)


@pytest.mark.parametrize("size", [10, 900_000])
async def test_events_come_in_pages_that_are_bounded_and_leave_none_out(size):
    w, count = World(), 30 if size > 10 else 3 * PAGE_ITEMS
    w.tables.events = [event(number, size=size) for number in range(1, count + 1)]
    told = []
    async with running(w.answers):
        while len(told) < count:
            child = Child()
            ask_events(w, child, told[-1] if told else 0)
            page = await child.answer(EventsPage)
            assert len(page.items) <= PAGE_ITEMS
            assert sum(len(item.data) for item in page.items) < 2 * PAGE_BYTES
            told += numbers(page)

    assert told == list(range(1, count + 1))


@pytest.mark.parametrize("number", [1, -1])
async def test_a_withdrawn_query_is_not_answered(number):
    w, child = World(), Child()
    async with running(w.answers):
        ask_events(w, child, 0)
        await anyio.wait_all_tasks_blocked()
        w.answers.submit(child, CancelQuery(number))
        w.commit(events=[event(3)])
        await anyio.wait_all_tasks_blocked()

    assert (child.answers, w.answers.waiting) == ([], 0)


async def test_a_query_withdrawn_during_its_lookup_is_not_answered():
    w, child = World(), Child()
    w.tables.events = [event(3)]
    w.tables.between = lambda: w.answers.submit(child, CancelQuery(1))
    async with running(w.answers):
        ask_events(w, child, 0)
        await anyio.wait_all_tasks_blocked()

    assert (child.answers, w.answers.waiting) == ([], 0)


async def test_only_what_is_named_is_withdrawn_and_only_of_who_asked():
    w, child, other = World(), Child(), Child()
    async with running(w.answers):
        for number in (1, 2):
            ask_events(w, child, 0, question=number)
        ask_events(w, other, 0)
        await anyio.wait_all_tasks_blocked()
        w.answers.submit(child, CancelQuery(1))
        w.answers.submit(child, CancelQuery(77))
        w.commit(events=[event(3)])
        await anyio.wait_all_tasks_blocked()

    assert [answer.question for answer in child.answers] == [2]
    assert [answer.question for answer in other.answers] == [1]


# ── items of a stream ───────────────────────────────────────────────────────────────────


def item(index, payload=b"\x01", *, run_no=7):
    return ItemRow(task_no=100, item_index=index, run_no=run_no, payload=payload)


async def test_the_items_of_a_task_come_in_order():
    w = World()
    w.tables.items = [item(index, bytes([index])) for index in range(100)]
    async with running(w.answers):
        page = await w.page(~100, after=-1)
        rest = await w.page(~100, after=97)

    assert page.items == [(index, 100, 0, bytes([index])) for index in range(100)]
    assert [found[0] for found in rest.items] == [98, 99]
    assert (page.more, rest.more, rest.last) == (False, False, 99)


async def test_a_page_of_large_items_is_bounded_in_bytes_and_the_next_continues():
    w = World()
    w.tables.items = [item(index, b"x" * 900_000) for index in range(20)]
    got, after, more = [], -1, True
    async with running(w.answers):
        while more:
            page = await w.page(~100, after=after)
            assert len(page.items) <= 1
            got += [found[0] for found in page.items]
            after, more = page.last, page.more

    assert got == list(range(20))


async def test_items_of_another_run_are_not_told():
    w = World()
    w.tables.items = [item(0, run_no=8)]
    async with running(w.answers):
        page = await w.page(~100, after=-1)

    assert (page.items, page.more) == ([], False)


# ── secrets ─────────────────────────────────────────────────────────────────────────────


class Watched(Child):
    """A child that records the redacted values at the moment of a reply."""

    def __init__(self, masks):
        super().__init__()
        self.hidden = b""
        self._masks = masks

    def send(self, messages):
        self.hidden = self._masks.masked(b"canary")
        super().send(messages)


class TriggerHost(Child):
    hosts_triggers = True


def kept(world, name, value=b"\xa6canary"):
    row = ValueRow(kind=ValueKind.SECRET, name=name, value_no=1, at=0, value=value)
    world.tables.values[row.kind, name] = row


def ask_values(world, child, *names, task_index=0):
    wanted = ValuesWanted(task_index, tuple((ValueKind.SECRET, name) for name in names))
    world.answers.submit(child, Query(1, 7, "values", msgspec.msgpack.encode(wanted)))


async def test_a_task_gets_what_it_declares_and_it_is_redacted_before():
    w = World()
    child = Watched(w.masks)
    kept(w, "A")
    kept(w, "B", b"\xa5other")
    async with running(w.answers):
        ask_values(w, child, "B", "A")
        found = await child.answer(ValuesFound)

    assert found.values == (b"\xa5other", b"\xa6canary")
    assert child.hidden == b"***"


@pytest.mark.parametrize(
    ("child", "task_index", "names", "reason"),
    [
        pytest.param(Child, 0, ["C"], "task 'a' does not declare secret 'C'", id="undeclared"),
        pytest.param(Child, 1, ["A"], "task 'b' does not declare", id="declared-by-another"),
        pytest.param(Child, 0, ["A", "C"], "does not declare", id="one-of-two-undeclared"),
        pytest.param(Child, -1, ["A"], "only a task that declares", id="a-task-as-a-trigger"),
        pytest.param(Child, 9, ["A"], "only a task that declares", id="no-such-task"),
        pytest.param(Child, 0, ["B"], "aioflow secrets set B", id="not-set"),
        pytest.param(TriggerHost, -1, ["B"], "there is no secret 'B'", id="not-set-for-a-trigger"),
        pytest.param(
            TriggerHost, -1, ["D"], "no key of this home can decrypt", id="encrypted-by-another-key"
        ),
    ],
)
async def test_undeclared_and_missing_values_are_refused(child, task_index, names, reason):
    w, child = World(), child()
    for name in ("A", "C"):
        kept(w, name)
    kept(w, "D", None)
    async with running(w.answers):
        ask_values(w, child, *names, task_index=task_index)
        with anyio.fail_after(60):
            await child.answered.wait()

    [answer] = child.answers
    assert reason in answer.error
    assert answer.body == b""


async def test_a_trigger_gets_the_values_that_its_code_requests():
    w, child = World(), TriggerHost(info=None)
    kept(w, "Z")
    async with running(w.answers):
        ask_values(w, child, "Z", task_index=-1)
        assert (await child.answer(ValuesFound)).values == (b"\xa6canary",)
