"""Queries of runs by their properties.

A list starts with the newest run and ends at its limit. If there are at most a million runs, and
the index ``run_by_kind`` contains all filtered properties, a count reads only that index. Other
counts read the rows of the newest ``limit`` runs. Properties without an index are compared row by
row; the time limit of queries bounds that.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Select,
    bindparam,
    func,
    literal_column,
    or_,
    select,
)

from aioflow.model.ids import RunNo
from aioflow.model.rows import RunRow
from aioflow.model.run_filter import CAUSES, RunCount, RunCounts, RunFilter
from aioflow.model.states import RunState
from aioflow.store import rows, tables
from aioflow.store.contains import Contains
from aioflow.store.query_protocol import QueryInterface
from aioflow.store.selects import literal, number, text

__all__ = ("MAX_DAGS", "RunFilterReader")

MAX_DAGS = 500
"""Maximum number of DAGs in a filter."""

_INDEXED = frozenset({"first", "last"})
_INDEXED_RUNS = 1_000_000

_WIDTHS = (1, 8, 64, MAX_DAGS)
_GROUPS = 20_000
_STATEMENTS = 256
"""Maximum number of cached statements of each kind. Clients choose the properties of a filter."""

_run = tables.run


@lru_cache(_STATEMENTS)
def _conditions(
    dags: int,
    states: tuple[RunState, ...],
    causes: tuple[str, ...],
    given: frozenset[str],
) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions of a kind of filter.

    Args:
        dags: Number of DAG parameters; 0 for any DAG.
        given: The other non-empty properties of the filter.
    """
    found: list[ColumnElement[bool]] = [tables.not_deleted]
    if dags:
        found.append(_run.c.dag_id.in_([text(f"dag_{at}") for at in range(dags)]))
    if states:
        found.append(_run.c.state.in_([literal(state) for state in states]))
        # Redundant, but makes the planner use the partial indexes.
        if all(state.is_live for state in states):
            found.append(_run.c.ended_at.is_(None))
        elif not dags and all(state > RunState.SUCCESS for state in states):
            found.append(tables.unsuccessful)
    if causes:
        found.append(_run.c.cause.in_([literal_column(f"'{cause}'") for cause in causes]))
    if "first" in given:
        found.append(_run.c.created_at >= number("first"))
    if "last" in given:
        found.append(_run.c.created_at < number("last"))
    if "search" in given:
        of_run, of_dag = (Contains(one, text("search")) for one in (_run.c.run_id, _run.c.dag_id))
        found.append(or_(of_run, of_dag))
    if "prefix" in given:
        begin = func.substr(_run.c.run_id, literal(1), func.length(text("prefix")))
        found.append(begin == text("prefix"))
    if "params" in given:
        part = bindparam("params", type_=_run.c.conf.type)
        found.append(or_(Contains(_run.c.conf, part), _run.c.run_no.in_(_noted(part))))
    if "before" in given:
        found.append(_run.c.run_no < number("before"))
    return tuple(found)


def _noted(part: BindParameter[bytes]) -> Select[Any]:
    """Select the runs with a note that contains a text. There are few notes compared with runs."""
    return select(tables.note.c.run_no).where(Contains(tables.note.c.body, part))


@lru_cache(_STATEMENTS)
def _page(*kind: Any) -> Select[Any]:
    return (
        select(_run)
        .where(*_conditions(*kind))
        .order_by(_run.c.run_no.desc())
        .limit(number("limit"))
    )


_size = select(func.count()).select_from(select(_run.c.dag_id).limit(number("limit")).subquery())
"""Counts all runs up to a limit. The planner chooses the smallest index."""


@lru_cache(_STATEMENTS)
def _all_counts(*kind: Any) -> Select[Any]:
    """Count all runs that match a kind of filter, in the order of the index."""
    keys = (_run.c.dag_id, _run.c.state, _run.c.cause)
    counted = select(*keys, func.count()).where(*_conditions(*kind))
    return counted.group_by(*keys).order_by(*keys).limit(literal(_GROUPS))


@lru_cache(_STATEMENTS)
def _newest_counts(*kind: Any) -> Select[Any]:
    newest = (
        select(_run.c.dag_id, _run.c.state, _run.c.cause)
        .where(*_conditions(*kind))
        .order_by(_run.c.run_no.desc())
        .limit(number("limit"))
        .subquery()
    )
    keys = (newest.c.dag_id, newest.c.state, newest.c.cause)
    counted = select(*keys, func.count()).group_by(*keys).order_by(*keys)
    return counted.limit(literal(_GROUPS))


def _parameters(wanted: RunFilter, before: RunNo | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the kind of a filter, and the parameters of its statements."""
    named: dict[str, Any] = {
        "first": wanted.first,
        "last": wanted.last,
        "search": wanted.search or None,
        "prefix": wanted.prefix or None,
        "params": wanted.params.encode("utf-8", "surrogatepass") or None,
        "before": before,
    }
    given = {name: value for name, value in named.items() if value is not None}
    dags = list(dict.fromkeys(wanted.dag_ids))
    width = next(width for width in (0, *_WIDTHS) if width >= len(dags))
    dags += dags[-1:] * (width - len(dags))
    kind = (
        width,
        tuple(sorted(set(wanted.states))),
        tuple(cause for cause in CAUSES if cause in wanted.causes),
        frozenset(given),
    )
    return kind, given | {f"dag_{at}": dag_id for at, dag_id in enumerate(dags)}


class RunFilterReader(QueryInterface):
    """The part of a store that finds runs by their properties."""

    async def find_matching_runs(
        self, wanted: RunFilter, *, limit: int, before: RunNo | None = None
    ) -> list[RunRow]:
        """See ``Store``."""
        kind, given = _parameters(wanted, before)
        return await self._all(rows.run_row, _page(*kind), limit=limit, **given)

    async def count_matching_runs(self, wanted: RunFilter, *, limit: int) -> RunCounts:
        """See ``Store``."""
        kind, given = _parameters(wanted, None)
        named: frozenset[str] = kind[-1]
        if named <= _INDEXED and await self._is_indexed_count():
            return RunCounts(await self._all(_run_count, _all_counts(*kind), **given), True)
        found = await self._all(_run_count, _newest_counts(*kind), limit=limit, **given)
        return RunCounts(found, sum(one.count for one in found) < limit)

    async def _is_indexed_count(self) -> bool:
        """Return whether there are few enough runs to count all of them through the index."""
        (size,) = await self._all(_first, _size, limit=_INDEXED_RUNS + 1)
        return size <= _INDEXED_RUNS


def _first(row: Any) -> int:
    return int(row[0])


def _run_count(row: Any) -> RunCount:
    dag_id, state, cause, count = row
    return RunCount(dag_id, RunState(state), cause, count)
