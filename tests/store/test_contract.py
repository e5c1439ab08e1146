"""The promises that both databases keep."""

from __future__ import annotations

import anyio
import pytest
from msgspec.structs import replace

from aioflow.crypto import Vault
from aioflow.errors import BatchRefused, Fenced, SchemaMismatch, StrangeDatabase
from aioflow.model.rows import EventRow, PoolRow, RunChange, TriggerChange, TriggerRow
from aioflow.model.states import RunState, TaskState, TriggerState
from aioflow.protocol.inputs import LiveRun
from aioflow.store import open_store, query_protocol, reading, tables
from tests.journal_replay import REPLAYED, compare_with_replay
from tests.store.loading import load
from tests.store.samples import (
    DAG,
    DAG_FILE,
    EXPANSION,
    FAILURE,
    NOON,
    OUTBOX,
    POOL,
    RESULT,
    RUN,
    TASK,
    TRIGGER,
    TRY,
    TRY_WORKER,
    VAULT,
    VERSION,
    batch,
    execute,
    first_batch,
    moved,
)

# ── The fence ───────────────────────────────────────────────────────────────────────────


async def test_each_claim_begins_a_new_epoch_and_knows_the_last_commit(store_url):
    async with open_store(store_url, VAULT) as store:
        first = await store.claim()
        await store.commit(first_batch())
    async with open_store(store_url, VAULT) as store:
        second = await store.claim()

    assert (first.epoch, first.commit_no) == (1, 0)
    assert (second.epoch, second.commit_no) == (2, 1)


async def test_a_batch_asked_for_twice_is_applied_once(store):
    await store.commit(first_batch())
    await store.commit(first_batch())  # the reply was lost, so the engine repeats the batch

    assert len(await store.list_runs()) == 1
    assert [row.commit_no for row in await store.read_journal()] == [1]


async def test_a_fenced_node_writes_nothing(store, store_url):
    await store.commit(first_batch())
    execute(store_url, "UPDATE node SET epoch = epoch + 1")

    with pytest.raises(Fenced):
        await store.commit(batch(2, gone_files=["etl.py"]))

    assert await store.list_dag_files() == [DAG_FILE]


@pytest.mark.parametrize("number", [3, 7], ids=["one-skipped", "many-skipped"])
async def test_a_commit_number_out_of_line_is_a_strange_database(store, number):
    await store.commit(first_batch())

    with pytest.raises(StrangeDatabase):
        await store.commit(batch(number, gone_files=["etl.py"]))

    assert await store.list_dag_files() == [DAG_FILE]


async def test_a_database_set_back_under_the_daemon_is_noticed(store, store_url):
    await store.commit(first_batch())
    execute(store_url, "UPDATE node SET commit_no = 0")

    with pytest.raises(StrangeDatabase):
        await store.commit(batch(2))


async def test_a_database_that_forgot_the_node_is_strange(store, store_url):
    execute(store_url, "DELETE FROM node")

    with pytest.raises(StrangeDatabase):
        await store.commit(first_batch())


async def test_a_database_that_lost_a_table_is_strange(store, store_url):
    await store.commit(first_batch())
    execute(store_url, "DROP TABLE outbox")

    with pytest.raises(StrangeDatabase):
        await store.commit(batch(2, done_outbox=[3]))


async def test_nothing_is_committed_before_the_claim(store_url):
    async with open_store(store_url, VAULT) as store:
        with pytest.raises(RuntimeError):
            await store.commit(first_batch())


async def test_a_cancelled_commit_is_whole_or_nothing_and_blocks_no_other(store):
    await store.commit(first_batch())
    with anyio.move_on_after(0):
        await store.commit(batch(2, done_outbox=[3], gone_files=["etl.py"]))

    await store.commit(batch(2, done_outbox=[3], gone_files=["etl.py"]))

    assert await store.list_dag_files() == []
    assert await compare_with_replay(store) == []


async def test_leased_numbers_never_overlap(store_url):
    blocks = []
    for _ in range(2):
        async with open_store(store_url, VAULT) as store:
            blocks.append((await store.lease_numbers(10), 10))
            blocks.append((await store.lease_numbers(1), 1))

    numbers = [first + i for first, count in blocks for i in range(count)]
    assert len(set(numbers)) == 22
    assert min(numbers) == 1


async def test_a_database_has_one_mark_for_ever(store_url):
    marks = []
    for proposal in ("first", "second"):
        async with open_store(store_url, VAULT) as store:
            marks += [await store.mark_storage(proposal), await store.mark_storage("third")]

    assert marks == ["first"] * 4


async def test_a_lease_of_nothing_is_a_mistake(store):
    with pytest.raises(ValueError, match="at least one"):
        await store.lease_numbers(0)


# ── Rows ────────────────────────────────────────────────────────────────────────────────


async def test_the_versions_that_something_may_run_come_back_without_their_sources(store):
    unused = replace(VERSION, version="cd34")
    await store.commit(replace(first_batch(), new_versions=[VERSION, unused]))

    assert await store.list_needed_versions() == [replace(VERSION, sources={})]
    assert await store.list_needed_version_names() == [VERSION.version]
    assert await store.find_run_no(1) == RUN


async def test_the_events_of_a_stream_come_back_with_the_run_that_has_them(store):
    event = EventRow(trigger_no=7, sequence=0, run_no=1, key="k", payload=b"\x01")
    await store.commit(replace(first_batch(), new_events=[event]))

    assert (await store.load_run(1)).events == [event]


async def test_every_kind_of_row_comes_back_as_it_was_written(store):
    await store.commit(first_batch())

    assert await store.find_version("ab12") == VERSION
    assert await store.list_dags() == [DAG]
    assert await store.list_dag_files() == [DAG_FILE]
    assert await store.list_runs() == [RUN]
    assert await store.list_tasks_between(0, 1_000) == [TASK]
    assert await store.list_expansions(1) == [EXPANSION]
    assert await store.list_expansions_of([1, 2, 99]) == [EXPANSION]
    assert await store.list_expansions_of([]) == []
    assert await store.list_tries(10) == [TRY]
    assert await store.list_try_workers(10) == [TRY_WORKER]
    assert await store.list_try_workers(11) == []
    assert await store.list_results(0, 100) == [RESULT]
    assert await store.list_triggers() == [TRIGGER]


async def test_a_restart_finds_everything_unfinished(store):
    await store.commit(first_batch())

    snapshot = await load(store)

    assert snapshot.dags == [DAG]
    assert snapshot.dag_files == [DAG_FILE]
    assert snapshot.versions == [replace(VERSION, sources={})]
    assert snapshot.pools == [POOL]
    assert snapshot.outbox == []
    assert snapshot.outbox_totals == {OUTBOX.kind: (1, OUTBOX.outbox_no)}
    assert await store.list_outbox(OUTBOX.kind, after=-1, limit=10) == [OUTBOX]
    assert snapshot.runs == [
        LiveRun(run=RUN, tasks=[TASK], expansions=[EXPANSION], widths=[(10, 3)], triggers=[TRIGGER])
    ]
    assert await store.load_run(1) == snapshot.runs[0]


async def test_a_restart_leaves_ended_runs_and_their_versions_alone(store):
    old = replace(VERSION, version="old")
    ended = replace(
        RUN, run_no=2, run_id="x", key=None, state=RunState.FAILED, version="old", ended_at=9
    )
    await store.commit(first_batch())
    await store.commit(
        batch(
            2,
            new_versions=[old],
            new_runs=[ended],
            new_tasks=[replace(TASK, task_no=20, run_no=2)],
        )
    )

    snapshot = await load(store)

    assert [live.run.run_no for live in snapshot.runs] == [1]
    assert [version.version for version in snapshot.versions] == ["ab12"]
    found = await store.load_run(2)
    assert found is not None
    assert found.run == ended
    assert await store.load_run(3) is None


@pytest.mark.parametrize("page", [1, 2, 3, 1000])
async def test_a_restart_reads_large_runs_in_pieces(store, monkeypatch, page):
    for module in (reading, query_protocol):
        monkeypatch.setattr(module, "PAGE_ROWS", page)
    await store.commit(first_batch())
    ended = [
        replace(RUN, run_no=n, run_id=f"x{n}", key=None, state=RunState.FAILED, ended_at=9)
        for n in (0, 2, 5)
    ]
    later = replace(RUN, run_no=4, run_id="y", key=None)
    tasks = [replace(TASK, task_no=number, run_no=4) for number in range(40, 45)]
    waits = [replace(TRIGGER, trigger_no=number, run_no=4) for number in range(60, 65)]
    strays = [replace(TRIGGER, trigger_no=number, run_no=number) for number in (0, 2, 5)]
    await store.commit(
        batch(2, new_runs=[*ended, later], new_tasks=tasks, new_triggers=[*waits, *strays])
    )

    async with store.unfinished() as parts:
        found = [part async for part in parts]

    pieces = [part for part in found if isinstance(part, LiveRun) and part.run == later]
    assert all(len(piece.tasks) <= page for piece in pieces)
    assert all(len(piece.triggers) <= page for piece in pieces)
    assert [task for piece in pieces for task in piece.tasks] == tasks
    assert [wait for piece in pieces for wait in piece.triggers] == waits
    assert [piece.is_whole for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    first_wait = next(at for at, piece in enumerate(pieces) if piece.triggers)
    assert not any(piece.tasks for piece in pieces[first_wait + 1 :]), "all tasks come first"
    snapshot = await load(store)
    assert snapshot.stray_triggers == strays
    assert snapshot.runs == [await store.load_run(number) for number in (1, 4)]
    async with store.pieces_of_run(4) as parts:
        alone = [part async for part in parts]
    assert all(len(piece.tasks) <= page for piece in alone)
    assert [task for piece in alone for task in piece.tasks] == tasks
    assert [wait for piece in alone for wait in piece.triggers] == waits
    assert [piece.is_whole for piece in alone] == [False] * (len(alone) - 1) + [True]
    async with store.pieces_of_run(999) as parts:
        assert [part async for part in parts] == []


async def test_a_request_to_clear_is_found_by_its_key(store):
    await store.commit(first_batch())
    await store.commit(batch(2, new_clears=[(1, "k", 3)]))

    assert await store.find_clear(1, "k") == 3
    assert await store.find_clear(1, "other") is None
    assert await store.find_clear(2, "k") is None
    with pytest.raises(BatchRefused):
        await store.commit(batch(3, new_clears=[(1, "k", 4)]))
    assert await compare_with_replay(store) == []


async def test_changes_set_what_they_carry_and_nothing_else(store):
    await store.commit(first_batch())
    await store.commit(
        batch(
            2,
            run_changes=[RunChange(1, RunState.RUNNING, RunState.FAILED, 5, 6, "why")],
            task_changes=[moved(TASK, TaskState.FAILED, ended_at=9, failure=FAILURE, due_at=4)],
            trigger_changes=[TriggerChange(7, TriggerState.WAITING, TriggerState.FIRED, b"e", "k")],
        )
    )

    assert await store.list_runs() == [
        replace(RUN, state=RunState.FAILED, started_at=5, ended_at=6, quarantine="why")
    ]
    assert await store.list_tasks_between(0, 1_000) == [
        replace(TASK, state=TaskState.FAILED, ended_at=9, failure=FAILURE, due_at=4)
    ]
    assert await store.list_triggers() == [
        replace(TRIGGER, state=TriggerState.FIRED, event=b"e", event_key="k")
    ]


async def test_a_run_is_moved_to_another_version_from_the_one_it_has(store):
    await store.commit(first_batch())
    await store.commit(
        batch(
            2, new_versions=[replace(VERSION, version="cd34")], run_versions=[(1, "ab12", "cd34")]
        )
    )

    assert await store.list_runs() == [replace(RUN, version="cd34")]
    with pytest.raises(BatchRefused):
        await store.commit(batch(3, run_versions=[(1, "ab12", "cd34")]))
    assert await store.list_runs() == [replace(RUN, version="cd34")]
    assert await compare_with_replay(store) == []


async def test_finished_outbox_rows_are_deleted(store):
    await store.commit(first_batch())
    await store.commit(
        batch(
            2,
            trigger_changes=[TriggerChange(7, TriggerState.WAITING, None, None, None)],
            done_outbox=[3],
            gone_files=["etl.py", "never.py"],
            gone_pools=["db"],
        )
    )

    snapshot = await load(store)
    assert await store.list_triggers() == []
    assert (snapshot.outbox, snapshot.dag_files, snapshot.pools) == ([], [], [])


async def test_whole_rows_replace_what_was_there_and_the_last_one_counts(store):
    await store.commit(first_batch())
    paused = replace(DAG, paused=True, next_run_at=None)
    broken = replace(DAG_FILE, reason="raised", message="boom")
    again = replace(RESULT, start_no=2, body=None, width=None)
    await store.commit(
        batch(2, dags=[replace(DAG, gone=True), paused], dag_files=[broken], results=[again])
    )

    assert await store.list_dags() == [paused]
    assert await store.list_dag_files() == [broken]
    assert await store.list_results(10, 11) == [again]
    assert await store.list_stored_results(0, 11) == [(10, 2)]
    assert await store.list_stored_results(0, 10) == await store.list_stored_results(11, 99) == []


async def test_a_version_that_is_known_stays_as_it_was(store):
    await store.commit(first_batch())
    await store.commit(batch(2, new_versions=[replace(VERSION, sources={})]))

    assert await store.find_version("ab12") == VERSION


# ── Refusals ────────────────────────────────────────────────────────────────────────────

S, R, T = TaskState, RunState, TriggerState

REFUSED = {
    "task-in-another-state": {"task_changes": [moved(replace(TASK, state=S.QUEUED), S.FAILED)]},
    "task-of-another-start": {"task_changes": [moved(replace(TASK, start_no=2), S.FAILED)]},
    "task-that-is-not-there": {"task_changes": [moved(replace(TASK, task_no=11), S.FAILED)]},
    "one-of-two-tasks": {
        "task_changes": [moved(TASK, S.FAILED), moved(replace(TASK, task_no=11), S.FAILED)]
    },
    "task-changed-twice": {
        "task_changes": [
            moved(TASK, S.QUEUED),
            moved(replace(TASK, state=S.QUEUED), S.CANCELLED),
        ]
    },
    "run-in-another-state": {"run_changes": [RunChange(1, R.QUEUED, R.FAILED, None, None, None)]},
    "trigger-in-another-state": {
        "trigger_changes": [TriggerChange(7, T.FIRED, T.ENDING, None, None)]
    },
    "trigger-deleted-in-another-state": {
        "trigger_changes": [TriggerChange(7, T.FIRED, None, None, None)]
    },
    "effect-done-twice": {"done_outbox": [3, 4]},
    "run-id-taken": {"new_runs": [replace(RUN, run_no=2, key=None)]},
    "run-number-taken": {"new_runs": [replace(RUN, run_id="x", key=None)]},
    "key-taken": {"new_runs": [replace(RUN, run_no=2, run_id="x")]},
    "task-there-already": {"new_tasks": [TASK]},
    "expansion-there-already": {"new_expansions": [EXPANSION]},
    "task-of-no-run": {"new_tasks": [replace(TASK, task_no=11, run_no=9)]},
    "run-of-no-version": {"new_runs": [replace(RUN, run_no=2, run_id="x", version="no")]},
    "label-of-no-task": {"labels": [(11, 1, "no one")]},
    "result-of-no-task": {"results": [replace(RESULT, task_no=11)]},
    "state-unknown": {"new_tasks": [replace(TASK, task_no=11, state=12)]},
    "fire-time-taken": {
        "new_runs": [
            replace(RUN, run_no=n, run_id=str(n), key=None, cause="schedule") for n in (2, 3)
        ]
    },
}


@pytest.mark.parametrize("changes", REFUSED.values(), ids=REFUSED)
async def test_a_refused_batch_leaves_nothing(store, changes):
    await store.commit(first_batch())
    before = await _everything(store)

    with pytest.raises(BatchRefused):
        await store.commit(batch(2, dags=[replace(DAG, paused=True)], **changes))

    assert await _everything(store) == before
    await store.commit(batch(2, done_outbox=[3]))  # the number is still free


async def test_a_fire_time_has_one_run_whichever_incarnation_makes_it(store, store_url):
    await store.commit(first_batch())
    scheduled = replace(RUN, run_no=2, run_id="2", key=None, cause="schedule")
    await store.commit(batch(2, new_runs=[scheduled]))
    again = batch(3, new_runs=[replace(scheduled, run_no=3, run_id="3")])

    await store.claim()  # the next one, which has forgotten it
    with pytest.raises(BatchRefused):
        await store.commit(again)
    execute(store_url, "UPDATE node SET epoch = epoch + 1")
    with pytest.raises(Fenced):  # and a node that does not know that it was fenced
        await store.commit(again)

    assert [run.run_no for run in await store.list_runs() if run.cause == "schedule"] == [2]


async def _everything(store):
    found = await store.scan([*REPLAYED, tables.history, tables.node, tables.journal])
    return [[tuple(row) for row in rows] for rows in found]


NASTY = {
    "lone-surrogate": ("\ud800", False),
    "nul": ("a\0b", False),
    "empty": ("", True),
    "quote": ("Robert'); DROP TABLE run;--", True),
    "dollar": ("$1 %s :x ? {}", True),
    "emoji": ("🦔", True),
    "right-to-left": ("\u202eabc", True),
    "newline": ("a\r\nb", True),
    "long": ("x" * 500, True),
    "too-long": ("x" * 501, False),
    "long-in-bytes": ("🦔" * 500, True),
    "number": (7, False),
    "bytes": (b"x", False),
    "none": (None, False),
}


@pytest.mark.parametrize(("text", "is_stored"), NASTY.values(), ids=NASTY)
async def test_both_databases_judge_a_text_alike(store, text, is_stored):
    await store.commit(first_batch())
    run = replace(RUN, run_no=2, run_id=text, key=None)

    if is_stored:
        await store.commit(batch(2, new_runs=[run]))
        assert await store.find_run(text) == run
    else:
        with pytest.raises(BatchRefused):
            await store.commit(batch(2, new_runs=[run]))


NUMBERS = {
    "largest": (2**63 - 1, True),
    "smallest": (-(2**63), True),
    "too-large": (2**63, False),
    "too-small": (-(2**63) - 1, False),
    "enormous": (2**200, False),
    "nan": (float("nan"), False),
    "infinity": (float("inf"), False),
    "fraction": (1.5, False),
    "whole-float": (1.0, False),
    "text": ("1", False),
    "bool": (True, False),
}


@pytest.mark.parametrize(("number", "is_stored"), NUMBERS.values(), ids=NUMBERS)
async def test_both_databases_judge_a_number_alike(store, number, is_stored):
    await store.commit(first_batch())
    task = replace(TASK, task_no=11, due_at=number)

    if is_stored:
        await store.commit(batch(2, new_tasks=[task]))
        assert (await store.list_tasks_between(0, 1_000))[1] == task
    else:
        with pytest.raises(BatchRefused):
            await store.commit(batch(2, new_tasks=[task]))


@pytest.mark.parametrize("name", ["\ud800", "a\0b"], ids=["surrogate", "nul"])
async def test_values_that_no_row_can_have_are_not_found(store, name):
    assert await store.find_run(name) is None
    assert await store.list_tasks_between(2**70, 2**71) == []


# ── Reading ─────────────────────────────────────────────────────────────────────────────


async def _runs(store):
    """Store runs 1 to 6 of two DAGs. Runs 1 and 4 are active."""
    await store.commit(first_batch())
    states = {2: R.SUCCESS, 3: R.FAILED, 4: R.QUEUED, 5: R.SUCCESS, 6: R.SUCCESS}
    runs = [
        replace(
            RUN,
            run_no=number,
            run_id=f"r{number}",
            dag_id="etl" if number % 2 else "other",
            key=f"k{number}",
            state=state,
            logical_date=NOON + number // 3,
            ended_at=None if state.is_live else 1000 - 10 * number,
        )
        for number, state in states.items()
    ]
    await store.commit(batch(2, new_runs=runs))


@pytest.mark.parametrize(
    ("asked", "numbers"),
    [
        pytest.param({}, [6, 5, 4, 3, 2, 1], id="all-newest-first"),
        pytest.param({"limit": 2}, [6, 5], id="first-page"),
        pytest.param({"limit": 2, "before": 5}, [4, 3], id="second-page"),
        pytest.param({"dag_id": "etl"}, [5, 3, 1], id="of-a-dag"),
        pytest.param({"state": R.SUCCESS}, [6, 5, 2], id="in-a-state"),
        pytest.param({"state": R.QUEUED}, [4], id="in-a-live-state"),
        pytest.param({"dag_id": "etl", "state": R.SUCCESS, "before": 6}, [5], id="everything"),
        pytest.param({"dag_id": "no"}, [], id="of-no-dag"),
    ],
)
async def test_runs_are_listed_newest_first(store, asked, numbers):
    await _runs(store)

    assert [run.run_no for run in await store.list_runs(**asked)] == numbers


async def test_runs_are_found_by_what_people_know_of_them(store):
    await _runs(store)

    by_id, by_key = await store.find_run("r5"), await store.find_run_by_key("etl", "k5")
    assert by_id is not None
    assert by_id.run_no == 5
    assert by_key == by_id
    assert await store.find_run_by_key("other", "k5") is None


@pytest.mark.parametrize("count", [0, 1, 2, 26, 501, 1100])
async def test_many_runs_and_tasks_are_found_at_once(store, count):
    runs = [
        replace(RUN, run_no=n, run_id=f"r{n}", key=None, logical_date=NOON + n)
        for n in range(1, 1201)
    ]
    tasks = [replace(TASK, task_no=10_000 + n) for n in range(1, 1201)]
    await store.commit(first_batch())
    await store.commit(batch(2, new_runs=runs[1:], new_tasks=tasks))
    wanted = range(1201 - count, 1201)

    found = await store.find_runs(["never", *(f"r{n}" for n in wanted), "no\0text"])
    dated = await store.find_runs_at(RUN.dag_id, [0, *(NOON + n for n in wanted)])
    of_tasks = await store.find_tasks([5, *(10_000 + n for n in wanted)])

    assert sorted(run.run_no for run in found) == list(wanted)
    assert sorted(run.run_no for run in dated) == list(wanted)
    assert sorted(task.task_no - 10_000 for task in of_tasks) == list(wanted)
    assert all(run in runs for run in found)


async def test_the_newest_of_several_runs_for_a_fire_time_is_found(store):
    runs = [
        replace(RUN, run_no=n, run_id=f"r{n}", key=None, logical_date=NOON + 9, dag_id=dag_id)
        for n, dag_id in ((2, "etl"), (3, "etl"), (4, "other"))
    ]
    await store.commit(first_batch())
    await store.commit(batch(2, new_runs=runs))

    assert await store.find_runs_at("etl", [NOON + 9, NOON + 10]) == [runs[1]]
    assert await store.find_runs_at("no\0dag", [NOON + 9]) == []


@pytest.mark.parametrize(("since", "number"), [(0, 5), (950, 5), (951, 3), (970, 3), (971, None)])
async def test_the_first_run_that_ended_since_is_found(store, since, number):
    await _runs(store)

    found = await store.first_run_ended_since("etl", since)

    assert (found and found.run_no) == number


async def test_tasks_come_in_pages_and_ranges_and_are_counted(store):
    await store.commit(first_batch())
    children = [
        replace(TASK, task_no=100 + i, task_index=1, map_index=i, state=S.SUCCESS) for i in range(5)
    ]
    gone = replace(TASK, task_no=200, task_index=1, map_index=0, state=S.REMOVED)
    await store.commit(batch(2, new_tasks=[*children, gone]))

    assert await store.list_tasks_between(0, 1_000, 2) == [TASK, children[0]]
    assert await store.list_tasks_between(101, 103) == children[1:3]
    assert await store.list_tasks_between(101, 105, 1) == children[1:2]
    assert await store.count_states(1) == [(0, S.RUNNING, 1), (1, S.SUCCESS, 5)]


async def test_the_label_of_a_child_is_that_of_its_last_try(store):
    await store.commit(first_batch())
    child = replace(TASK, task_no=100, task_index=1, map_index=0)
    await store.commit(batch(2, new_tasks=[child], labels=[(100, 1, "a"), (100, 1, "b")]))

    assert await store.list_labels(0, 1000) == {10: "merchant 7", 100: "b"}

    await store.commit(batch(3, labels=[(100, 1, "c")]))

    assert await store.list_labels(100, 101) == {100: "c"}
    assert await store.list_labels(0, 100) == {10: "merchant 7"}
    assert await store.find_labels([100, 10, 99]) == {10: "merchant 7", 100: "c"}


async def test_the_tries_of_many_tasks_are_found_in_their_order(store):
    await store.commit(first_batch())
    child = replace(TASK, task_no=100, task_index=1, map_index=0)
    tries = [replace(TRY, task_no=100, start_no=start) for start in (9, 4)]
    await store.commit(batch(2, new_tasks=[child], new_tries=tries))

    assert await store.find_try_starts([100, 10, 99]) == {10: [TRY.start_no], 100: [4, 9]}
    assert await store.find_try_starts([]) == {}


async def test_triggers_and_the_journal_come_in_pages(store):
    await store.commit(first_batch())
    more = [replace(TRIGGER, trigger_no=n) for n in (8, 9)]
    await store.commit(batch(2, new_triggers=more))

    assert await store.list_triggers(2) == [TRIGGER, more[0]]
    assert await store.list_triggers(2, 8) == [more[1]]
    [first] = await store.read_journal(limit=1)
    assert [row.commit_no for row in await store.read_journal(first.seq, 5)] == [2]
    assert [row.at for row in await store.read_journal(limit=1)] == [NOON]


@pytest.mark.parametrize("seq", [-(2**62), -1, 2**62, 2**63 - 1])
async def test_a_journal_row_at_a_damaged_place_hides_no_other_one(store, store_url, seq):
    await store.commit(first_batch())
    await store.commit(batch(2, done_outbox=[3]))
    execute(store_url, f"UPDATE journal SET seq = {seq} WHERE commit_no = 2")
    await store.commit(batch(3, gone_files=["etl.py"]))

    (first, third) = await store.read_journal()

    assert (first.commit_no, third.commit_no) == (1, 3)
    assert (await store.oldest_commit(), await store.newest_commit()) == (first.seq, third.seq)
    assert (await store.find_journal_end()).seq == third.seq
    assert [(one.table, one.column) for one in await store.find_damage()] == [("journal", "seq")]


async def test_a_store_opened_for_reading_reads_and_cannot_write(store, store_url):
    await store.commit(first_batch())

    async with open_store(store_url, VAULT, exclusive=False) as reader:
        assert await reader.list_runs() == [RUN]
        with pytest.raises(RuntimeError):
            await reader.claim()


async def test_the_size_is_reported(store):
    before = await store.size_bytes()
    large = replace(RESULT, body=b"x" * 1_000_000)
    await store.commit(replace(first_batch(), results=[large]))
    await store.checkpoint()

    assert before > 0
    # PostgreSQL compresses the value.
    assert await store.size_bytes() > before


# ── Secrets ─────────────────────────────────────────────────────────────────────────────

CANARY = b"canary-7f3b-sings"


async def test_kwargs_lie_sealed_in_every_table(store):
    canaries = {name: CANARY for name in TriggerRow.__struct_fields__ if "kwargs" in name}
    encrypted = replace(TRIGGER, **canaries)
    await store.commit(replace(first_batch(), new_triggers=[encrypted]))

    found = await store.scan(list(tables.metadata.sorted_tables))

    assert CANARY not in b"".join(
        cell for rows in found for row in rows for cell in row if isinstance(cell, bytes)
    )
    assert await store.list_triggers() == [encrypted]
    assert {"kwargs", "next_kwargs"} <= canaries.keys()


async def test_without_the_key_a_trigger_comes_back_without_its_kwargs(store, store_url):
    await store.commit(first_batch())

    async with open_store(store_url, Vault([b"z" * 32]), exclusive=False) as stranger:
        assert await stranger.list_triggers() == [replace(TRIGGER, kwargs=None, next_kwargs=None)]


@pytest.mark.parametrize(
    ("column", "source"),
    [("kwargs", "kwargs"), ("next_kwargs", "next_kwargs"), ("next_kwargs", "kwargs")],
)
async def test_kwargs_copied_to_another_place_do_not_open_there(store, store_url, column, source):
    other = replace(TRIGGER, trigger_no=8, kwargs=b"other")
    await store.commit(replace(first_batch(), new_triggers=[TRIGGER, other]))
    execute(
        store_url,
        f"UPDATE task_trigger SET {column} = "
        f"(SELECT {source} FROM task_trigger WHERE trigger_no = 7) WHERE trigger_no = 8",
    )

    assert [row.kwargs for row in await store.list_triggers()] == [TRIGGER.kwargs, None]


# ── The schema ──────────────────────────────────────────────────────────────────────────


async def test_a_newer_schema_is_left_alone(store_url):
    async with open_store(store_url, VAULT):
        pass
    execute(store_url, "UPDATE alembic_version SET version_num = '0999'")

    for exclusive in (True, False):
        with pytest.raises(SchemaMismatch):
            async with open_store(store_url, VAULT, exclusive=exclusive, migrate=True):
                pass


async def test_the_limited_pools_are_listed_by_name(store):
    ledger = PoolRow(name="ledger", slots=4)
    await store.commit(
        replace(first_batch(), pools=[ledger, PoolRow(name="api", slots=2, include_deferred=True)])
    )

    assert [row.name for row in await store.list_pools()] == ["api", "ledger"]
    assert (await store.list_pools())[1] == ledger
