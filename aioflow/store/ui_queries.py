"""Queries of the user interface and the API. Their parameters limit the size of each query."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Collection, Sequence
from functools import cache, lru_cache
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    Select,
    and_,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    or_,
    select,
)

from aioflow.model.ids import RunNo, StartNo, TaskNo, TriggerNo
from aioflow.model.rows import NamedEventRow, NodeRow, RunRow, TaskRow, TriggerRow, TryRow
from aioflow.model.states import NodeState, RunState, TaskState, TriggerState
from aioflow.model.timestamps import Timestamp
from aioflow.store import rows, tables
from aioflow.store.contains import Contains
from aioflow.store.query_protocol import QueryInterface
from aioflow.store.selects import literal, number, text
from aioflow.store.ui_protocol import (
    AGE_SECONDS,
    AUDIT_SEARCHED,
    CommitsAbove,
    Counted,
    JournalEnd,
    WaitCount,
)

__all__ = ("BrowsingReader",)

_WIDTHS_CACHED = 64
"""Maximum number of cached statements that differ in their number of parameters."""

Row = TypeVar("Row")

_run, _task, _try = tables.run, tables.task, tables.try_
_wait, _version, _event = tables.task_trigger, tables.version, tables.named_event
_record, _label = tables.record, tables.map_label
_WIDTH = 100


_RECENT_RUNS = (
    select(_run)
    .where(_run.c.dag_id == text("dag_id"), tables.not_deleted)
    .order_by(_run.c.run_no.desc())
    .limit(number("limit"))
)
_newest_failed = (
    select(_run.c.ended_at)
    .where(_run.c.state == literal(RunState.FAILED), tables.unsuccessful, tables.not_deleted)
    .order_by(_run.c.run_no.desc())
    .limit(number("limit"))
    .subquery()
)
_FAILED_SINCE = select(func.count()).where(_newest_failed.c.ended_at >= number("since"))
_newest_of_dag = (
    select(_run.c.version)
    .where(_run.c.dag_id == text("dag_id"), tables.not_deleted)
    .order_by(_run.c.run_no.desc())
    .limit(number("limit"))
    .subquery()
)
_VERSIONS_OF_DAG = (
    select(_newest_of_dag.c.version, func.count())
    .group_by(_newest_of_dag.c.version)
    .order_by(_newest_of_dag.c.version)
)
_TRIES_BETWEEN = (
    select(_try)
    .where(_try.c.task_no >= number("first"), _try.c.task_no < number("end"))
    .order_by(_try.c.task_no, _try.c.start_no)
    .limit(number("limit"))
)
_COUNTS_BETWEEN = (
    select(
        _task.c.task_index,
        _task.c.state,
        func.count(),
        func.min(_task.c.started_at),
        func.max(_task.c.ended_at),
    )
    .where(
        _task.c.task_no >= number("first"),
        _task.c.task_no < number("end"),
        _task.c.state != literal(TaskState.REMOVED),
    )
    .group_by(_task.c.task_index, _task.c.state)
    .order_by(_task.c.task_index, _task.c.state)
)
_in_state = (
    _task.c.task_no >= number("first"),
    _task.c.task_no < number("end"),
    _task.c.state == bindparam("state", type_=_task.c.state.type),
)
_TASKS_IN_STATE = (
    select(_task.c.task_no)
    .where(*_in_state)
    .order_by(_task.c.task_no)
    .limit(number("limit"))
    .offset(number("offset"))
)
_LIVE_DAGS = select(_run.c.dag_id).where(_run.c.ended_at.is_(None)).distinct()
_FIRST_FAILED = (
    select(_task)
    .where(
        _task.c.run_no == number("run_no"),
        _task.c.state == literal(TaskState.FAILED),
    )
    .order_by(_task.c.ended_at, _task.c.task_no)
    .limit(1)
)
_COUNT_IN_STATE = select(func.count()).select_from(_task).where(*_in_state)
_WAITS_OF_TASK = (
    select(_wait)
    .where(_wait.c.run_no == number("run_no"), _wait.c.task_no == number("task_no"))
    .order_by(_wait.c.trigger_no)
    .limit(number("limit"))
)
_EVENT_BY_NO = select(_event).where(_event.c.event_no == number("event_no"))
_is_drained = tables.node.c.node_no.in_(select(tables.drained.c.node_no)).label("is_drained")
_dag_event, _dag_trigger = tables.dag_event, tables.dag_trigger
_NODES = select(tables.node, _is_drained).order_by(tables.node.c.node_no)
_OLDEST_COMMIT = select(func.min(tables.journal.c.seq)).where(tables.has_place)
_NEWEST_COMMIT = select(func.max(tables.journal.c.seq)).where(tables.has_place)
_JOURNAL_END = select(
    tables.node.c.node_no, tables.node.c.commit_no, _NEWEST_COMMIT.scalar_subquery()
)
_ROWS_BEFORE = 1_000
_commit_no = tables.journal.c.commit_no
_of_node = and_(
    tables.journal.c.node_no == number("node_no"),
    # SQLite sorts any text above all numbers, so a damaged commit number that is a text would be
    # taken for the highest one. This condition excludes such rows.
    cast(_commit_no, _commit_no.type) == _commit_no,
)
_COMMITS_ABOVE: Any = select(func.count(), func.min(_commit_no), func.max(_commit_no)).where(
    _of_node,
    _commit_no > number("number"),
    # In SQLite only ``seq`` has an index. It is never below the commit number, so a range of
    # ``seq`` contains all rows above. Some rows before them are read, too, because damaged commit
    # numbers may be among them.
    tables.journal.c.seq > number("number") - literal(_ROWS_BEFORE),
)
_LAST_COMMIT_UNTIL = select(func.max(_commit_no)).where(_of_node, _commit_no <= number("number"))


def _younger(index: int) -> Any:
    return func.sum(case((_wait.c.since > number(f"since_{index}"), literal(1)), else_=literal(0)))


_WAIT_COUNTS = (
    select(
        _wait.c.class_path,
        func.min(_wait.c.since),
        func.count(),
        *(_younger(index) for index in range(len(AGE_SECONDS))),
    )
    .where(_wait.c.state == literal(TriggerState.WAITING))
    .group_by(_wait.c.class_path)
    .order_by(_wait.c.class_path)
)


@lru_cache(_WIDTHS_CACHED)
def _made_at(width: int) -> Select[Any]:
    names = [text(f"version_{n}") for n in range(width)]
    return select(_version.c.version, _version.c.created_at).where(_version.c.version.in_(names))


@lru_cache(_WIDTHS_CACHED)
def _runs_by_no(width: int) -> Select[Any]:
    numbers = [number(f"no_{n}") for n in range(width)]
    return select(_run).where(_run.c.run_no.in_(numbers), tables.not_deleted)


@cache
def _started_by(paths: int) -> Select[Any]:
    """Return the statement for runs that DAG triggers of some classes started for an event key.

    Args:
        paths: Number of class paths.
    """
    classes = [text(f"path_{n}") for n in range(paths)]
    return (
        select(_dag_event.c.run_no)
        .distinct()
        .join(_dag_trigger, _dag_trigger.c.trigger_no == _dag_event.c.trigger_no)
        .where(
            _dag_trigger.c.class_path.in_(classes),
            _dag_event.c.key == text("key"),
            _dag_event.c.run_no.is_not(None),
        )
        .order_by(_dag_event.c.run_no)
        .limit(number("limit"))
    )


@lru_cache(_WIDTHS_CACHED)
def _waits_by_no(width: int) -> Select[Any]:
    numbers = [number(f"no_{n}") for n in range(width)]
    return select(_wait).where(_wait.c.trigger_no.in_(numbers))


_audit = tables.audit
_space: ColumnElement[str] = literal_column("' '")
_is_single = and_(
    _audit.c.action == literal_column("'run.clear'"),
    or_(
        _audit.c.target == text("run_id"),
        func.substr(_audit.c.target, literal(1), func.length(text("of_task"))) == text("of_task"),
    ),
)
_is_of_many = and_(
    _audit.c.action == literal_column("'runs.clear_failed'"),
    Contains(_space + func.coalesce(_audit.c.after, literal_column("''")) + _space, text("word")),
)
_CLEARS = (
    select(
        _audit.c.at,
        _audit.c.actor,
        case((_is_single, _audit.c.target), else_=text("run_id")),
    )
    .where(
        _audit.c.audit_no > select(func.max(_audit.c.audit_no) - AUDIT_SEARCHED).scalar_subquery(),
        _audit.c.is_refused == literal(0),
        or_(_is_single, _is_of_many),
    )
    .order_by(_audit.c.audit_no)
)


@lru_cache(_WIDTHS_CACHED)
def _oldest_waits(width: int) -> Select[Any]:
    """Return the statement for the oldest waiting triggers outside some ranges of tasks."""
    outside = [
        or_(_wait.c.task_no < number(f"first_{n}"), _wait.c.task_no >= number(f"end_{n}"))
        for n in range(width)
    ]
    is_waiting = _wait.c.state == literal(TriggerState.WAITING)
    return (
        select(_wait)
        .where(is_waiting, *outside)
        .order_by(_wait.c.trigger_no)
        .limit(number("limit"))
    )


@lru_cache(_WIDTHS_CACHED)
def _call_labels(width: int) -> Select[Any]:
    numbers = [number(f"no_{n}") for n in range(width)]
    is_call = and_(_record.c.task_no == _wait.c.task_no, _record.c.ordinal == _wait.c.ordinal)
    return (
        select(_wait.c.trigger_no, _record.c.label)
        .join(_record, is_call)
        .where(_wait.c.trigger_no.in_(numbers), _record.c.label.is_not(None))
    )


@lru_cache(_WIDTHS_CACHED)
def _map_labels(width: int) -> Select[Any]:
    numbers = [number(f"no_{n}") for n in range(width)]
    return select(_label.c.task_no, _label.c.label).where(_label.c.task_no.in_(numbers))


@lru_cache(_WIDTHS_CACHED)
def _try_starts(width: int) -> Select[Any]:
    numbers = [number(f"no_{n}") for n in range(width)]
    return select(_try.c.task_no, _try.c.start_no).where(_try.c.task_no.in_(numbers))


@cache
def _waits_page(
    paths: int, *, prefixes: int, of_dag: bool, in_state: bool, is_number: bool = False
) -> Select[Any]:
    """Return the statement for a page of triggers, filtered by class paths and prefixes.

    Args:
        paths, prefixes: Number of class paths, and of prefixes of class paths.
        is_number: Whether to select only the trigger number.
    """
    page = (
        (select(_wait.c.trigger_no) if is_number else select(_wait))
        .where(_wait.c.trigger_no > number("after"))
        .order_by(_wait.c.trigger_no)
        .limit(number("limit"))
    )
    alike = [_wait.c.class_path == text(f"path_{n}") for n in range(paths)]
    for n in range(prefixes):
        length = func.length(text(f"prefix_{n}"))
        alike.append(func.substr(_wait.c.class_path, literal(1), length) == text(f"prefix_{n}"))
    if alike:
        page = page.where(or_(*alike))
    if in_state:
        page = page.where(_wait.c.state == bindparam("state", type_=_wait.c.state.type))
    if of_dag:
        live = select(_run.c.run_no).where(
            _run.c.dag_id == text("dag_id"), _run.c.ended_at.is_(None)
        )
        page = page.where(_wait.c.run_no.in_(live))
    return page


class BrowsingReader(QueryInterface):
    """The part of a store that serves the user interface and the API."""

    @abstractmethod
    def _trigger(self, values: rows.Values) -> TriggerRow:
        """Return a trigger row, decrypted."""

    async def list_recent_runs(
        self, dag_ids: Sequence[str], *, limit: int = 20
    ) -> dict[str, list[RunRow]]:
        """See ``Store``."""
        known = list(filter(_is_text, dict.fromkeys(dag_ids)))
        if not known:
            return {}
        answers = await self._fetch(
            [self._question(_RECENT_RUNS, dag_id=dag_id, limit=limit) for dag_id in known]
        )
        return {
            dag_id: self._read(_RECENT_RUNS, rows.run_row, answer)
            for dag_id, answer in zip(known, answers, strict=True)
        }

    async def count_failed_since(self, since: Timestamp, *, limit: int = 1_000) -> int:
        """See ``Store``."""
        (count,) = await self._all(lambda row: row[0], _FAILED_SINCE, since=since, limit=limit)
        return int(count)

    async def count_versions_of_dag(
        self, dag_id: str, *, limit: int = 10_000
    ) -> list[tuple[str, int]]:
        """See ``Store``."""
        return await self._all(
            lambda row: (row[0], row[1]), _VERSIONS_OF_DAG, dag_id=dag_id, limit=limit
        )

    async def find_live_dags(self) -> set[str]:
        """See ``Store``."""
        return set(await self._all(lambda row: row[0], _LIVE_DAGS))

    async def find_made_at(self, versions: Collection[str]) -> dict[str, Timestamp]:
        """See ``Store``."""
        found: dict[str, Timestamp] = {}
        wanted = list(dict.fromkeys(versions))
        for start in range(0, len(wanted), _WIDTH):
            piece = wanted[start : start + _WIDTH]
            piece += piece[-1:] * (_WIDTH - len(piece))
            named = {f"version_{n}": version for n, version in enumerate(piece)}
            found.update(await self._all(lambda row: (row[0], row[1]), _made_at(_WIDTH), **named))
        return found

    async def find_runs_by_no(self, run_nos: Collection[RunNo]) -> dict[RunNo, RunRow]:
        """See ``Store``."""
        found = await self._each(rows.run_row, _runs_by_no, "no", dict.fromkeys(run_nos))
        return {row.run_no: row for row in found}

    async def list_tries_between(
        self, first: TaskNo, end: TaskNo, limit: int = 1_000
    ) -> list[TryRow]:
        """See ``Store``."""
        return await self._all(rows.try_row, _TRIES_BETWEEN, first=first, end=end, limit=limit)

    async def count_states_between(self, first: TaskNo, end: TaskNo) -> list[Counted]:
        """See ``Store``."""
        return await self._all(_counted, _COUNTS_BETWEEN, first=first, end=end)

    async def count_tasks_in(self, first: TaskNo, end: TaskNo, state: TaskState) -> int:
        """See ``Store``."""
        (count,) = await self._all(
            lambda row: row[0], _COUNT_IN_STATE, first=first, end=end, state=int(state)
        )
        return int(count)

    async def find_first_failed(self, run_no: RunNo) -> TaskRow | None:
        """See ``Store``."""
        found = await self._all(rows.task_row, _FIRST_FAILED, run_no=run_no)
        return found[0] if found else None

    async def list_task_nos_in(
        self, first: TaskNo, end: TaskNo, state: TaskState, *, offset: int, limit: int
    ) -> list[TaskNo]:
        """See ``Store``."""
        cut = {"offset": offset, "limit": limit}
        return await self._all(
            lambda row: row[0], _TASKS_IN_STATE, first=first, end=end, state=int(state), **cut
        )

    async def find_waits_of_task(
        self, run_no: RunNo, task_no: TaskNo, *, limit: int = 10
    ) -> list[TriggerRow]:
        """See ``Store``."""
        return await self._all(
            self._trigger, _WAITS_OF_TASK, run_no=run_no, task_no=task_no, limit=limit
        )

    async def browse_triggers(
        self,
        *,
        paths: Sequence[str] = (),
        prefixes: Sequence[str] = (),
        dag_id: str | None = None,
        state: TriggerState | None = None,
        after: TriggerNo = -1,
        limit: int = 1_000,
    ) -> list[TriggerRow]:
        """See ``Store``."""
        page = _waits_page(
            len(paths),
            prefixes=len(prefixes),
            of_dag=dag_id is not None,
            in_state=state is not None,
        )
        named = _named(paths, prefixes, dag_id, state)
        return await self._all(self._trigger, page, after=after, limit=limit, **named)

    async def browse_trigger_nos(
        self,
        *,
        state: TriggerState,
        paths: Sequence[str] = (),
        prefixes: Sequence[str] = (),
        dag_id: str | None = None,
        after: TriggerNo = -1,
        limit: int = 1_000,
    ) -> list[TriggerNo]:
        """See ``Store``."""
        page = _waits_page(
            len(paths),
            prefixes=len(prefixes),
            of_dag=dag_id is not None,
            in_state=True,
            is_number=True,
        )
        named = _named(paths, prefixes, dag_id, state)
        return await self._all(lambda row: row[0], page, after=after, limit=limit, **named)

    async def find_triggers(self, numbers: Collection[TriggerNo]) -> list[TriggerRow]:
        """See ``Store``."""
        found = await self._each(self._trigger, _waits_by_no, "no", dict.fromkeys(numbers))
        return sorted(found, key=lambda row: row.trigger_no)

    async def list_oldest_waits(
        self, outside: Sequence[tuple[TaskNo, TaskNo]], *, limit: int
    ) -> list[TriggerRow]:
        """See ``Store``."""
        bounds = {f"first_{n}": first for n, (first, _) in enumerate(outside)}
        bounds |= {f"end_{n}": end for n, (_, end) in enumerate(outside)}
        return await self._all(self._trigger, _oldest_waits(len(outside)), limit=limit, **bounds)

    async def list_clears(self, run_id: str) -> list[tuple[Timestamp, str, str]]:
        """See ``Store``."""
        named = {"run_id": run_id, "of_task": f"{run_id} ", "word": f" {run_id} "}
        return await self._all(tuple, _CLEARS, **named)

    async def find_call_labels(self, numbers: Collection[TriggerNo]) -> dict[TriggerNo, str]:
        """See ``Store``."""
        return dict(await self._each(tuple, _call_labels, "no", dict.fromkeys(numbers)))

    async def find_labels(self, numbers: Collection[TaskNo]) -> dict[TaskNo, str]:
        """See ``Store``."""
        return dict(await self._each(tuple, _map_labels, "no", dict.fromkeys(numbers)))

    async def find_try_starts(self, numbers: Collection[TaskNo]) -> dict[TaskNo, list[StartNo]]:
        """See ``Store``."""
        found: dict[TaskNo, list[StartNo]] = {}
        starts = await self._each(tuple, _try_starts, "no", dict.fromkeys(numbers))
        for task_no, start_no in sorted(starts):
            found.setdefault(task_no, []).append(start_no)
        return found

    async def count_waits(self, now: Timestamp) -> list[WaitCount]:
        """See ``Store``."""
        edges = {
            f"since_{index}": now - seconds * 1_000_000 for index, seconds in enumerate(AGE_SECONDS)
        }
        return await self._all(_wait_count, _WAIT_COUNTS, **edges)

    async def find_named_event_no(self, event_no: int) -> NamedEventRow | None:
        """See ``Store``."""
        found = await self._all(rows.named_event_row, _EVENT_BY_NO, event_no=event_no)
        return found[0] if found else None

    async def list_started_by(self, paths: Sequence[str], key: str, *, limit: int) -> list[RunNo]:
        """See ``Store``."""
        named = {f"path_{n}": path for n, path in enumerate(paths)}
        statement = _started_by(len(paths))
        return await self._all(lambda row: row[0], statement, key=key, limit=limit, **named)

    async def list_nodes(self) -> list[NodeRow]:
        """See ``Store``."""
        return await self._all(_node_row, _NODES)

    async def oldest_commit(self) -> int | None:
        """See ``Store``."""
        (found,) = await self._all(lambda row: row[0], _OLDEST_COMMIT)
        return None if found is None else int(found)

    async def newest_commit(self) -> int | None:
        """See ``Store``."""
        (found,) = await self._all(lambda row: row[0], _NEWEST_COMMIT)
        return None if found is None else int(found)

    async def find_journal_end(self) -> JournalEnd:
        """See ``Store``."""
        found = await self._all(tuple, _JOURNAL_END)
        commits = {int(node_no): int(commit_no) for node_no, commit_no, _ in found}
        return JournalEnd(seq=max((seq or 0 for *_, seq in found), default=0), commits=commits)

    async def commits_above(self, number: int, *, node_no: int = 1) -> CommitsAbove | None:
        """See ``Store``."""
        named = {"number": number, "node_no": node_no}
        (above,) = await self._all(tuple, _COMMITS_ABOVE, **named)
        count, first, newest = above
        if not count:
            return None
        (last,) = await self._all(lambda row: row[0], _LAST_COMMIT_UNTIL, **named)
        return CommitsAbove(
            number=number,
            rows=int(count),
            first=int(first),
            newest=int(newest),
            last=last,
            node_no=node_no,
        )


def _named(
    paths: Sequence[str], prefixes: Sequence[str], dag_id: str | None, state: TriggerState | None
) -> dict[str, object]:
    named: dict[str, object] = {f"path_{n}": path for n, path in enumerate(paths)}
    named |= {f"prefix_{n}": prefix for n, prefix in enumerate(prefixes)}
    return named | {"dag_id": dag_id, "state": None if state is None else int(state)}


def _is_text(name: str) -> bool:
    """Return whether a database can store this text."""
    return "\0" not in name and not any("\ud800" <= char <= "\udfff" for char in name)


def _counted(values: rows.Values) -> Counted:
    task_index, state, count, started_at, ended_at = values
    return task_index, TaskState(state), count, started_at, ended_at


def _wait_count(values: rows.Values) -> WaitCount:
    class_path, since, count, *younger = values
    upto = [int(number) for number in younger] + [count]
    before = [0, *upto[:-1]]
    oldest = sys.maxsize if since is None else since  # ``None`` if a row of this class is damaged
    return class_path, oldest, tuple(a - b for a, b in zip(upto, before, strict=True))


def _node_row(values: rows.Values) -> NodeRow:
    node_no, epoch, commit_no, started_at, seen_at, version, pid, host, _, *rest = values
    _, name, state, _, heartbeat_ms, heartbeat_at, is_drained = rest
    moments = [at for at in (seen_at, heartbeat_at) if at is not None]
    return NodeRow(
        node_no=node_no,
        epoch=epoch,
        commit_no=commit_no,
        is_drained=bool(is_drained),
        started_at=started_at,
        seen_at=max(moments, default=None),
        version=version,
        pid=pid,
        host=host,
        name=name,
        state=NodeState(state),
        heartbeat_ms=heartbeat_ms,
    )
