"""The history in the database is added up, merged, checked, and deleted with its DAG."""

from __future__ import annotations

from msgspec.structs import replace

from aioflow.model.history import DAY_US, HOUR_US, OF_RUN, HistoryRow, Measure, day_of, hour_of
from aioflow.model.rows import RunChange, RunRow
from aioflow.model.states import RunState
from tests.journal_replay import compare_with_replay
from tests.store.samples import NOON, RUN, batch, execute, first_batch

HOUR, DAY = hour_of(NOON), day_of(NOON)
ENDED = HistoryRow("etl", OF_RUN, int(Measure.STATE), HOUR, int(RunState.SUCCESS), 1, 0)
TOOK = HistoryRow("etl", "a", int(Measure.DURATION), HOUR, 7, 2, 30)
ALWAYS = {"since": 0, "until": 2**60}


def run_ends():
    return [RunChange(1, RunState.RUNNING, RunState.SUCCESS, NOON, NOON, None)]


async def test_what_a_batch_counts_is_added(store):
    await store.commit(first_batch())
    for number in (2, 3):
        await store.commit(batch(number, history=[TOOK, ENDED]))

    assert await store.list_history("etl", "a", **ALWAYS) == [
        TOOK._replace(occurrences=4, total_ms=60)
    ]
    assert await store.count_run_ends(0, 2**60) == [(HOUR, 2, 2)]
    assert await store.count_ends_by_dag(0, 2**60) == [("etl", 2, 2)]
    of_tasks = await store.count_durations_of_tasks([("etl", "a"), ("etl", "b")], 0, 2**60)
    assert of_tasks == [TOOK._replace(start=0, occurrences=4, total_ms=0)]
    sums = await store.sum_history_by_task("etl", **ALWAYS)
    assert [(one.task_id, one.occurrences, one.total_ms) for one in sums] == [
        ("", 2, 0),
        ("a", 4, 60),
    ]


async def test_a_batch_that_is_repeated_counts_once(store):
    await store.commit(first_batch())
    again = batch(2, history=[TOOK])
    await store.commit(again)
    await store.commit(again)

    assert await store.list_history("etl", "a", **ALWAYS) == [TOOK]


async def test_a_damaged_number_does_not_refuse_the_next_commit(store, store_url):
    await store.commit(first_batch())
    await store.commit(batch(2, history=[TOOK]))
    execute(store_url, f"UPDATE history SET occurrences = {2**63 - 1}, total_ms = {2**63 - 1}")

    assert await store.sum_history_by_task("etl", **ALWAYS) == []
    assert await store.list_history("etl", "a", **ALWAYS) == []
    assert [damage.table for damage in store.damages.all()] == ["history"]
    await store.commit(batch(3, history=[TOOK]))
    assert await store.list_history("etl", "a", **ALWAYS) == [TOOK]


async def test_a_damaged_sum_is_left_out_of_the_sum_over_hours(store, store_url):
    await store.commit(first_batch())
    later = TOOK._replace(start=HOUR + HOUR_US)
    await store.commit(batch(2, history=[TOOK, later, ENDED]))
    execute(store_url, f"UPDATE history SET total_ms = {2**63 - 1} WHERE start = {HOUR}")

    (left,) = await store.sum_history_by_task("etl", **ALWAYS)

    assert (left.task_id, left.occurrences, left.total_ms) == ("a", 2, 30)
    assert await store.count_run_ends(0, 2**60) == []
    assert await store.list_history("etl", "a", **ALWAYS) == [later]
    assert {(one.table, one.column) for one in await store.find_damage()} == {
        ("history", "total_ms")
    }


async def test_the_journal_says_what_the_history_should_count(store, store_url):
    await store.commit(first_batch())
    await store.commit(batch(2, run_changes=run_ends(), history=[ENDED]))
    assert await compare_with_replay(store) == []

    execute(store_url, "UPDATE history SET occurrences = 5")

    assert any("history" in one for one in await compare_with_replay(store))


async def test_a_check_finds_ends_that_are_not_counted(store, store_url):
    await store.commit(first_batch())
    before = ENDED._replace(start=HOUR - DAY_US)
    await store.commit(batch(2, run_changes=run_ends(), history=[ENDED, before]))
    assert await store.find_uncounted_ends() == []

    execute(store_url, f"DELETE FROM history WHERE start = {HOUR}")

    assert await store.find_uncounted_ends() == [("etl", DAY, int(RunState.SUCCESS), 1, 0)]


async def test_old_hours_and_days_are_found_and_erased(store):
    await store.commit(first_batch())
    rows = [TOOK._replace(start=DAY + hour * HOUR_US) for hour in (0, 3)]
    await store.commit(batch(2, history=rows))

    midnight, later = rows
    assert await store.list_old_history(before=HOUR, is_daily=False, limit=9) == [later]
    assert await store.list_old_history(before=HOUR, is_daily=True, limit=9) == [midnight]
    assert await store.list_old_history(before=DAY, is_daily=True, limit=9) == []
    keys = [tuple(row)[:5] for row in rows]
    await store.commit(batch(3, erased={"history": keys}))

    assert await store.list_history_of_dag("etl", limit=9) == []


async def test_the_history_goes_with_its_dag(store):
    await store.commit(first_batch())
    other = TOOK._replace(dag_id="other")
    await store.commit(batch(2, history=[TOOK, ENDED, other]))

    await store.commit(batch(3, gone_dags=["etl"]))

    assert await store.list_history_of_dag("etl", limit=9) == []
    assert await store.list_history_of_dag("other", limit=9) == [other]


async def test_runs_of_a_period_are_the_live_ones_and_those_that_ended_in_it(store):
    await store.commit(first_batch())

    assert [run.run_no for run in await store.list_runs_between(NOON, NOON + 9, limit=9)] == [1]
    assert await store.list_runs_between(NOON - 9, NOON, limit=9) == []
    await store.commit(batch(2, run_changes=run_ends(), history=[ENDED]))
    assert [run.run_no for run in await store.list_runs_between(NOON, NOON + 9, limit=9)] == [1]
    assert await store.list_runs_between(NOON + 1, NOON + 9, limit=9) == []


async def test_failed_runs_of_a_dag_are_found_with_their_times_the_newest_first(store):
    await store.commit(first_batch())
    states = [RunState.FAILED, RunState.SUCCESS, RunState.PARTIAL, RunState.CANCELLED]
    runs = [
        replace(
            RUN,
            run_no=10 + at,
            run_id=f"r{at}",
            key=None,
            state=state,
            started_at=None if at == 4 else NOON + at,
            ended_at=NOON + 10 + at,
        )
        for at, state in enumerate([*states, RunState.FAILED])
    ]
    await store.commit(batch(2, new_runs=runs))

    async def found(since: int, until: int, limit: int = 9, dag_id: str = RUN.dag_id) -> list[int]:
        rows = await store.list_failed_runs(dag_id, since, until, limit=limit)
        return [run.run_no for run in rows]

    assert await found(NOON, NOON + 99) == [12, 10]
    assert await found(NOON, NOON + 99, limit=1) == [12]
    assert await found(NOON + 10, NOON + 12) == [10]
    assert await found(NOON, NOON + 99, dag_id="other") == []


async def test_a_period_has_the_runs_that_began_before_its_end_and_ended_later(store):
    """Holds whether few runs were created before the period, or few have ended after it."""
    await store.commit(first_batch())
    runs = [
        replace(
            RUN,
            run_no=10 + at,
            run_id=f"r{at}",
            key=None,
            state=RunState.SUCCESS,
            created_at=NOON + 3 * at * HOUR_US,
            started_at=NOON + 3 * at * HOUR_US,
            ended_at=NOON + (3 * at + (17 if at % 3 == 0 else 2)) * HOUR_US,
        )
        for at in range(8)
    ]
    await store.commit(batch(2, new_runs=runs))

    def ended(run: RunRow) -> int:
        return run.ended_at or 0

    for since in range(NOON - 2 * HOUR_US, NOON + 44 * HOUR_US, 2 * HOUR_US):
        until = since + 2 * HOUR_US
        found = await store.list_runs_between(since, until, limit=99)
        assert [run.run_no for run in found if run.run_no >= 10] == [
            run.run_no
            for run in sorted(runs, key=lambda run: (ended(run), run.run_no), reverse=True)
            if run.created_at < until and ended(run) >= since
        ]
