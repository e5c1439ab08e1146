"""The history in the API: by hour and day, in a time zone, per DAG and task, on a time line."""

from __future__ import annotations

from collections import Counter
from datetime import UTC
from pathlib import Path

import pytest
from msgspec.structs import replace

from aioflow.api import Api
from aioflow.api.page.history import Span, history_faults, slow_after_ms
from aioflow.api.page.home import HomeView, home
from aioflow.api.past_fire_times import days_of, fire_days, past_fire_times
from aioflow.api.schemas import ErrorView
from aioflow.clock import SystemClock
from aioflow.errors import RequestError, UnknownDag
from aioflow.maintenance.retention import RetentionDays
from aioflow.model.dag import DagSpec, RetryPolicy, ScheduleSpec, TaskSpec
from aioflow.model.history import HOUR_US, bucket_of, day_of, hour_of
from aioflow.model.rows import RunRow
from aioflow.model.states import Failure, RunState
from aioflow.protocol.reports import Failed
from aioflow.telemetry.task_log import TaskLog
from tests.journal_replay import compare_with_replay
from tests.test_engine import Node, node
from tests.test_retention import cleaner

pytestmark = pytest.mark.timeout(60)

A = TaskSpec(task_id="a", retry=RetryPolicy(tries=1, delay_us=1))
MERGED = RetentionDays(
    runs_days=0, events_days=0, journal_days=0, logs_days=0, hourly_history_days=30, history_days=90
)


def api_of(n: Node, folder: Path) -> Api:
    clock = SystemClock()
    return Api(n.engine, n.store, TaskLog(folder / "logs", clock), clock=clock)


async def one_of_each(n: Node) -> None:
    """Create a run that succeeds, and a run that fails."""
    await n.load(A)
    good = await n.trigger()
    n.succeed(await n.effects.next_start())
    assert await n.ended(good) is RunState.SUCCESS
    bad = await n.trigger()
    start = (await n.effects.next_start()).start
    failure = Failure(type="E", message="no", reason="raised")
    n.engine.report([Failed(start.task_no, start.start_no, 1, 2, failure)])
    assert await n.ended(bad) is RunState.FAILED


async def test_what_ended_is_in_the_history_of_the_runs_the_dag_and_its_task(store_url, tmp_path):
    async with node(store_url) as n:
        await one_of_each(n)
        history = api_of(n, tmp_path).history
        span = history.span(None, None, "hour", None)

        runs = await history.runs(span)
        dag = await history.dag("dag", span)
        tasks = await history.tasks("dag", span)
        (in_short,) = (await history.dags(span)).items
        line = await history.timeline(span)
        failures = await history.failures("dag", span)
        with pytest.raises(UnknownDag):
            await history.failures("other", span)

    ends = {"success": 1, "failed": 1}
    assert sum((Counter(one.ends) for one in runs.items), Counter()) == ends
    assert (dag.total.ends, dag.total.failure_rate) == (ends, 0.5)
    assert (dag.total.duration.count, dag.total.queue.count) == (1, 2)
    assert [(one.task_id, one.ends) for one in tasks.items] == [("a", ends)]
    assert (in_short.dag_id, in_short.ends, in_short.slow_after_seconds) == ("dag", ends, None)
    assert {one.state for one in line.items} == {"success", "failed"}
    assert failures.items == [one for one in line.items if one.state == "failed"]
    assert not failures.more


async def opened(api: Api) -> HomeView:
    """Return the content of the home page, without pools, decisions and broken files."""
    return await home(api, api.history, api.clock, pools=[], decisions=[], import_errors=[])


async def test_the_first_view_shows_failures_by_dag_and_what_is_in_flight(store_url, tmp_path):
    async with node(store_url) as n:
        await one_of_each(n)
        api = api_of(n, tmp_path)
        failed = await opened(api)
        live = await n.trigger()
        effect = await n.effects.next_start()
        in_flight = (await opened(api)).in_flight
        n.succeed(effect)
        await n.ended(live)
        recovered = await opened(api)

    (group,) = failed.attention
    assert (group.dag_id, group.count, group.state, group.is_recovered) == (
        "dag",
        1,
        "failed",
        False,
    )
    assert group.error == ErrorView(type="E", message="no", reason="raised")
    assert [(one.run.run_id, sum(one.counts.values())) for one in in_flight] == [(live, 1)]
    assert [(one.usual_seconds, one.slow_after_seconds) for one in in_flight] == [(None, None)]
    assert [one.is_recovered for one in recovered.attention] == [True]


async def test_the_journal_and_a_check_agree_with_the_history(store_url):
    async with node(store_url) as n:
        await one_of_each(n)

        assert await compare_with_replay(n.store) == []
        assert await history_faults(n.store) == []


@pytest.mark.parametrize("hourly", [0, 120])
async def test_hours_that_are_never_merged_expire_with_their_days(store_url, tmp_path, hourly):
    kept = replace(MERGED, hourly_history_days=hourly)
    async with node(store_url) as n:
        await one_of_each(n)
        every = {"since": 0, "until": 2**60}
        before = await n.store.list_history("dag", **every)

        await cleaner(n, tmp_path, days=40, kept=kept).clean()
        assert await n.store.list_history("dag", **every) == before
        gone = await cleaner(n, tmp_path, days=100, kept=kept).clean()

        assert gone.history >= len(before)
        assert await n.store.list_history("dag", **every) == []


async def test_old_hours_become_days_and_old_days_go(store_url, tmp_path):
    async with node(store_url) as n:
        await one_of_each(n)
        every = {"since": 0, "until": 2**60}
        before = await n.store.list_history("dag", **every)

        await cleaner(n, tmp_path, days=1, kept=MERGED).clean()
        assert await n.store.list_history("dag", **every) == before
        await cleaner(n, tmp_path, days=40, kept=MERGED).clean()
        merged = await n.store.list_history("dag", **every)
        again = await cleaner(n, tmp_path, days=40, kept=MERGED).clean()

        assert {row.start for row in merged} == {day_of(row.start) for row in before}
        assert sum(row.occurrences for row in merged) == sum(row.occurrences for row in before)
        assert sum(row.total_ms for row in merged) == sum(row.total_ms for row in before)
        assert (again.history, await n.store.list_history("dag", **every)) == (0, merged)
        gone = await cleaner(n, tmp_path, days=100, kept=MERGED).clean()
        assert gone.history > 0
        assert await n.store.list_history("dag", **every) == []


@pytest.mark.parametrize(
    ("since", "until", "zone", "problem"),
    [
        (5, 5, None, "is empty"),
        (0, 2**52, None, "longer than 800 days"),
        (None, None, "Mars/Olympus", "zone 'Mars/Olympus' is unknown"),
        (None, None, "../../etc/passwd", "is unknown"),
    ],
)
async def test_a_period_that_makes_no_sense_is_refused(
    store_url, tmp_path, since, until, zone, problem
):
    async with node(store_url) as n:
        history = api_of(n, tmp_path).history

        with pytest.raises(RequestError, match=problem):
            history.span(since, until, "day", zone)
        with pytest.raises(UnknownDag):
            await history.dag("never", history.span(None, None, "day", None))


async def test_days_begin_at_midnight_of_the_zone(store_url, tmp_path):
    async with node(store_url) as n:
        await one_of_each(n)
        history = api_of(n, tmp_path).history
        now = history.span(None, None, "day", "Asia/Kolkata")

        (day,) = (await history.runs(now)).items

    assert day.start.endswith("18:30:00Z")


async def test_a_manual_run_has_no_fire_time(store_url, tmp_path):
    async with node(store_url) as n:
        await one_of_each(n)
        now = SystemClock().now()

        found = await past_fire_times(api_of(n, tmp_path), hour_of(now) - HOUR_US, now + HOUR_US)

    assert (found.items, found.more) == ([], False)


async def test_days_count_what_fired_failed_was_late_or_missed(store_url, tmp_path):
    """Fire times before the first run do not count: the schedule may not have existed."""
    hour = ScheduleSpec(cron="0 * * * *")
    spec = DagSpec(dag_id="dag", file="f.py", tasks=(), schedule=hour)
    begin = day_of(SystemClock().now())
    runs = [
        RunRow(
            run_no=at,
            run_id=f"r{at}",
            dag_id="dag",
            version="v",
            state=RunState.FAILED if at == 23 else RunState.SUCCESS,
            cause="schedule",
            first_task_no=1,
            logical_date=begin + at * HOUR_US,
            created_at=begin,
            started_at=begin + at * HOUR_US + (61_000_000 if at in {22, 24} else 1),
        )
        for at in (20, 22, 23, 24, 25)
    ]

    span = Span(begin, begin + 27 * HOUR_US, "day", UTC)
    first, second = days_of(runs, spec, span)

    assert (first.fired, first.failed, first.late, first.missed) == (3, 1, 1, 1)
    assert (second.fired, second.failed, second.late, second.missed) == (2, 0, 1, 1)
    async with node(store_url) as n:
        await one_of_each(n)
        api = api_of(n, tmp_path)
        whole = api.history.span(None, None, "day", None)
        assert (await fire_days(api, "dag", whole)).items == []
        assert (await api.history.usual()).items == []
        with pytest.raises(UnknownDag):
            await fire_days(api, "never", whole)


@pytest.mark.parametrize(
    ("durations", "expected"),
    [
        pytest.param([1000] * 9, None, id="too-few"),
        pytest.param([1000] * 20, 1500, id="half-longer-than-the-median"),
        pytest.param([1000] * 18 + [60_000] * 4, 60_000, id="the-95th-percentile"),
    ],
)
def test_when_a_run_is_slower_than_usual(durations, expected):
    found = slow_after_ms(Counter(map(bucket_of, durations)))

    assert found == (None if expected is None else pytest.approx(expected, rel=0.1))
