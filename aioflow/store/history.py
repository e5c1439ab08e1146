"""Reads of the history: how many runs and tasks ended per hour, and how long they took.

The database adds up the buckets as far as possible. Damaged rows are left out.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import ColumnElement, Select, and_, func, literal_column, or_, select

from aioflow.model.history import DAY_US, OF_RUN, HistoryRow, Measure
from aioflow.model.rows import RunRow
from aioflow.model.states import RunState
from aioflow.model.timestamps import Timestamp
from aioflow.store import rows, tables
from aioflow.store.columns import in_range
from aioflow.store.query_protocol import QueryInterface
from aioflow.store.selects import literal, number, text

__all__ = ("HistoryReader",)

_CLOCK_STEP_US = 3_600_000_000
"""How far the clock may have been set back between the creation of two runs."""

_EXAMINED = 50_000
"""How many runs of a DAG are examined at most to find those that failed."""

_history, _run, _dag = tables.history, tables.run, tables.dag


_of_run = _history.c.task_id == literal_column("''")
_states = _history.c.measure == literal(Measure.STATE)
_between = and_(_history.c.start >= number("since"), _history.c.start < number("until"))
# Skip damaged values before adding up, because a sum cannot show which row was damaged.
_is_count = and_(in_range(_history.c.occurrences), in_range(_history.c.total_ms))

_RUN_ENDS = (
    select(_history.c.start, _history.c.bucket, func.sum(_history.c.occurrences))
    .select_from(_dag.join(_history, _history.c.dag_id == _dag.c.dag_id))
    .where(_of_run, _states, _between, _is_count)
    .group_by(_history.c.start, _history.c.bucket)
    .order_by(_history.c.start, _history.c.bucket)
)
_ENDS_BY_DAG = (
    select(_history.c.dag_id, _history.c.bucket, func.sum(_history.c.occurrences))
    .select_from(_dag.join(_history, _history.c.dag_id == _dag.c.dag_id))
    .where(_of_run, _states, _between, _is_count)
    .group_by(_history.c.dag_id, _history.c.bucket)
    .order_by(_history.c.dag_id, _history.c.bucket)
)
_OF_TASK = (
    select(_history)
    .where(
        _history.c.dag_id == text("dag_id"),
        _history.c.task_id == text("task_id"),
        _between,
    )
    .order_by(_history.c.measure, _history.c.start, _history.c.bucket)
    .limit(number("limit"))
)
_BY_TASK = (
    select(
        _history.c.task_id,
        _history.c.measure,
        _history.c.bucket,
        func.sum(_history.c.occurrences),
        func.sum(_history.c.total_ms),
    )
    .where(_history.c.dag_id == text("dag_id"), _between, _is_count)
    .group_by(_history.c.task_id, _history.c.measure, _history.c.bucket)
    .order_by(_history.c.task_id, _history.c.measure, _history.c.bucket)
)
_DURATIONS = (
    select(_history.c.dag_id, _history.c.bucket, func.sum(_history.c.occurrences))
    .select_from(_dag.join(_history, _history.c.dag_id == _dag.c.dag_id))
    .where(
        _of_run,
        _history.c.measure == literal(Measure.DURATION),
        _between,
        _is_count,
    )
    .group_by(_history.c.dag_id, _history.c.bucket)
)
_DURATIONS_OF_TASK = (
    select(
        _history.c.dag_id,
        _history.c.task_id,
        _history.c.measure,
        _history.c.bucket,
        func.sum(_history.c.occurrences),
    )
    .where(
        _history.c.dag_id == text("dag_id"),
        _history.c.task_id == text("task_id"),
        _history.c.measure != literal(Measure.STATE),
        _between,
        _is_count,
    )
    .group_by(_history.c.dag_id, _history.c.task_id, _history.c.measure, _history.c.bucket)
)


def _expired(is_daily: bool) -> Select[tuple[object, ...]]:
    found = select(_history).where(
        tables.is_daily if is_daily else tables.is_hourly, _history.c.start < number("before")
    )
    return found.order_by(_history.c.start).limit(number("limit"))


_OLD_HOURS, _OLD_DAYS = _expired(is_daily=False), _expired(is_daily=True)
_OF_DAG = (
    select(_history)
    .where(_history.c.dag_id == text("dag_id"))
    .order_by(*_history.primary_key)
    .limit(number("limit"))
)

_of_present_dag = _dag.join(_run, _run.c.dag_id == _dag.c.dag_id)
_started = _run.c.started_at < number("until")


def _ended_runs(*conditions: ColumnElement[bool]) -> Select[tuple[object, ...]]:
    """Return the statement for ended runs that started before ``until``, the last ended first."""
    return (
        select(_run)
        .where(tables.not_deleted, *conditions, _started)
        .order_by(_run.c.ended_at.desc(), _run.c.run_no.desc())
        .limit(number("limit"))
    )


_ENDED_BETWEEN = _ended_runs(
    _run.c.ended_at.is_not(None),
    _run.c.ended_at >= number("since"),
    _run.c.ended_at < number("until"),
).select_from(_of_present_dag)
_ENDED_AFTER = _ended_runs(
    _run.c.ended_at.is_not(None), _run.c.ended_at >= number("until")
).select_from(_of_present_dag)
_EARLY_ENDED_AFTER = _ended_runs(
    _run.c.run_no < number("run_no"),
    literal_column("+run.ended_at") >= number("until"),  # the sign prevents the use of its index
)
_newest = (
    select(_run.c.run_no)
    .where(
        _run.c.dag_id == text("dag_id"),
        _run.c.ended_at.is_not(None),
        _run.c.ended_at >= number("since"),
        _run.c.ended_at < number("until"),
    )
    .order_by(_run.c.ended_at.desc())
    .limit(number("examined"))
)
_FAILED_BETWEEN = (
    select(_run)
    .where(
        tables.not_deleted,
        _run.c.run_no.in_(_newest),
        _run.c.state.in_([literal(RunState.FAILED), literal(RunState.PARTIAL)]),
        _run.c.started_at.is_not(None),
    )
    .order_by(_run.c.ended_at.desc(), _run.c.run_no.desc())
    .limit(number("limit"))
)
_RUN_NUMBERS = select(func.min(_run.c.run_no), func.max(_run.c.run_no))
_NEXT_CREATED = (
    select(_run.c.run_no, _run.c.created_at)
    .where(_run.c.run_no >= number("run_no"))
    .order_by(_run.c.run_no)
    .limit(literal_column("1"))
)
_SCHEDULED = (
    select(_run)
    .select_from(_of_present_dag)
    .where(
        tables.not_deleted,
        _run.c.cause == literal_column("'schedule'"),
        _run.c.logical_date >= number("since"),
        _run.c.logical_date < number("until"),
    )
    .order_by(_run.c.logical_date.desc(), _run.c.run_no.desc())
    .limit(number("limit"))
)
_SCHEDULED_OF_DAG = _SCHEDULED.where(_run.c.dag_id == text("dag_id"))
_LIVE = (
    select(_run)
    .where(_run.c.ended_at.is_(None), _started)
    .order_by(_run.c.run_no.desc())
    .limit(number("limit"))
)

_day = (_run.c.ended_at - _run.c.ended_at % literal(DAY_US)).label("day")
_ended = (
    select(_run.c.dag_id, _day, _run.c.state, func.count().label("ended"))
    .where(_run.c.ended_at.is_not(None))
    .group_by(_run.c.dag_id, _day, _run.c.state)
    .subquery()
)
_counted = (
    select(func.coalesce(func.sum(_history.c.occurrences), literal(0)))
    .where(
        _history.c.dag_id == _ended.c.dag_id,
        _of_run,
        _states,
        _is_count,
        _history.c.bucket == _ended.c.state,
        _history.c.start >= _ended.c.day,
        _history.c.start < _ended.c.day + literal(DAY_US),
    )
    .scalar_subquery()
)
_first = (
    select(func.min(_history.c.start))
    .where(_history.c.dag_id == _ended.c.dag_id, _of_run, _states)
    .scalar_subquery()
)
_UNCOUNTED = (
    select(_ended.c.dag_id, _ended.c.day, _ended.c.state, _ended.c.ended, _counted)
    .where(
        or_(_first.is_(None), _ended.c.day > _first),
        _ended.c.ended > _counted,
    )
    .order_by(_ended.c.dag_id, _ended.c.day, _ended.c.state)
    .limit(number("limit"))
)


class HistoryReader(QueryInterface):
    """The part of a store that reads the history."""

    async def count_run_ends(
        self, since: Timestamp, until: Timestamp
    ) -> list[tuple[Timestamp, int, int]]:
        """See ``Store``."""
        return await self._all(_numbers, _RUN_ENDS, since=since, until=until)

    async def count_ends_by_dag(
        self, since: Timestamp, until: Timestamp
    ) -> list[tuple[str, int, int]]:
        """See ``Store``."""
        return await self._all(_named_numbers, _ENDS_BY_DAG, since=since, until=until)

    async def count_durations_by_dag(
        self, since: Timestamp, until: Timestamp
    ) -> list[tuple[str, int, int]]:
        """See ``Store``."""
        return await self._all(_named_numbers, _DURATIONS, since=since, until=until)

    async def count_durations_of_tasks(
        self, tasks: Collection[tuple[str, str]], since: Timestamp, until: Timestamp
    ) -> list[HistoryRow]:
        """See ``Store``."""
        period = {"since": since, "until": until}
        answers = await self._fetch(
            [
                self._question(_DURATIONS_OF_TASK, dag_id=dag_id, task_id=task_id, **period)
                for dag_id, task_id in tasks
            ]
        )
        return [
            row for answer in answers for row in self._read(_DURATIONS_OF_TASK, _row_sum, answer)
        ]

    async def list_history(
        self,
        dag_id: str,
        task_id: str = OF_RUN,
        *,
        since: Timestamp,
        until: Timestamp,
        limit: int = 100_000,
    ) -> list[HistoryRow]:
        """See ``Store``."""
        named = {"dag_id": dag_id, "task_id": task_id, "since": since, "until": until}
        return await self._all(_row, _OF_TASK, limit=limit, **named)

    async def sum_history_by_task(
        self, dag_id: str, *, since: Timestamp, until: Timestamp
    ) -> list[HistoryRow]:
        """See ``Store``."""

        def row(values: rows.Values) -> HistoryRow:
            task_id, measure, bucket, occurrences, total_ms = values
            sums = (int(occurrences), int(total_ms))
            return HistoryRow(dag_id, task_id, measure, since, bucket, *sums)

        return await self._all(row, _BY_TASK, dag_id=dag_id, since=since, until=until)

    async def list_old_history(
        self, *, before: Timestamp, is_daily: bool, limit: int
    ) -> list[HistoryRow]:
        """See ``Store``."""
        statement = _OLD_DAYS if is_daily else _OLD_HOURS
        return await self._all(_row, statement, before=before, limit=limit)

    async def list_history_of_dag(self, dag_id: str, *, limit: int) -> list[HistoryRow]:
        """See ``Store``."""
        return await self._all(_row, _OF_DAG, dag_id=dag_id, limit=limit)

    async def list_runs_between(
        self, since: Timestamp, until: Timestamp, *, limit: int
    ) -> list[RunRow]:
        """See ``Store``."""
        found = await self._all(rows.run_row, _LIVE, until=until, limit=limit)
        if len(found) < limit:
            found += await self._list_ended_after(until, limit)
        if len(found) < limit:
            period = {"since": since, "until": until}
            found += await self._all(rows.run_row, _ENDED_BETWEEN, limit=limit, **period)
        return found[:limit]

    async def list_failed_runs(
        self, dag_id: str, since: Timestamp, until: Timestamp, *, limit: int
    ) -> list[RunRow]:
        """See ``Store``."""
        period = {"dag_id": dag_id, "since": since, "until": until, "examined": _EXAMINED}
        return await self._all(rows.run_row, _FAILED_BETWEEN, limit=limit, **period)

    async def _list_ended_after(self, until: Timestamp, limit: int) -> list[RunRow]:
        """Return the runs that started before a time, and ended at or after it.

        No index covers both times. Therefore the smaller of two sets is read: the runs created
        before the time, or the runs that ended after it.
        """
        bounds = await self._one(_values, _RUN_NUMBERS)
        if bounds is None or bounds[0] is None:
            return []
        first, last = bounds
        begin, end = first, last + 1
        while begin < end:  # the numbers of runs are in the order of their creation
            middle = (begin + end) // 2
            run = await self._one(_values, _NEXT_CREATED, run_no=middle)
            if run is None or run[1] >= until + _CLOCK_STEP_US:
                end = middle
            else:
                begin = run[0] + 1
        if begin - first > last - begin:
            return await self._all(rows.run_row, _ENDED_AFTER, until=until, limit=limit)
        early = {"run_no": begin, "until": until}
        return await self._all(rows.run_row, _EARLY_ENDED_AFTER, limit=limit, **early)

    async def list_scheduled_runs(
        self, since: Timestamp, until: Timestamp, *, limit: int, dag_id: str | None = None
    ) -> list[RunRow]:
        """See ``Store``."""
        values: dict[str, object] = {"since": since, "until": until, "limit": limit}
        if dag_id is None:
            return await self._all(rows.run_row, _SCHEDULED, **values)
        return await self._all(rows.run_row, _SCHEDULED_OF_DAG, dag_id=dag_id, **values)

    async def find_uncounted_ends(
        self, limit: int = 100
    ) -> list[tuple[str, Timestamp, int, int, int]]:
        """See ``Store``."""

        def found(values: rows.Values) -> tuple[str, Timestamp, int, int, int]:
            dag_id, day, state, ended, counted = values
            return dag_id, int(day), int(state), int(ended), int(counted)

        return await self._all(found, _UNCOUNTED, limit=limit)


def _values(values: rows.Values) -> rows.Values:
    return values


def _numbers(values: rows.Values) -> tuple[Timestamp, int, int]:
    start, bucket, occurrences = values
    return start, bucket, int(occurrences)


def _named_numbers(values: rows.Values) -> tuple[str, int, int]:
    name, bucket, occurrences = values
    return name, bucket, int(occurrences)


def _row_sum(values: rows.Values) -> HistoryRow:
    dag_id, task_id, measure, bucket, occurrences = values
    return HistoryRow(dag_id, task_id, measure, 0, bucket, int(occurrences), 0)


def _row(values: rows.Values) -> HistoryRow:
    return HistoryRow(*values)
