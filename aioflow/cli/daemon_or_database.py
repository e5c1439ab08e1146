"""Queries of commands that only read: to a running daemon, or else to the database itself.

Commands on a run accept the id of the run, or a unique prefix of the id.
"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, Protocol

from aioflow.cli.client import Client, Refused, connect
from aioflow.cli.output import hint, safe
from aioflow.errors import AioflowError, DaemonAway, RequestError, TimetableAway, UnknownRun
from aioflow.settings import find_home

__all__ = (
    "Source",
    "named_run",
    "read",
    "read_run",
)

_LIVE = ("queued", "running")
_PAGE = 1_000


class Source(Protocol):
    """Answers queries with JSON-compatible data.

    The docstring of each method names the method of ``api.Api`` that returns the same result.
    """

    def dags(self) -> Any:
        """``list_dags``."""

    def dag(self, dag_id: str) -> Any:
        """``show_dag``."""

    def next_fire_times(self, dag_id: str, after: str | None, count: int) -> Any:
        """``next_fire_times``."""

    def runs(self, query: Mapping[str, Any], *, limit: int) -> Any:
        """``page_of_runs``, all pages. ``query`` has the parameters of the HTTP request."""

    def run(self, run_id: str, *, offset: int = 0, limit: int = 1_000) -> Any:
        """``show_run``."""

    def tasks(
        self, run_id: str, *, task: str | None, state: str | None, offset: int, limit: int
    ) -> Any:
        """``reads.one_task.list``."""

    def task(self, run_id: str, task_id: str, *, map_index: int) -> Any:
        """``reads.one_task.show``."""

    def why(self, run_id: str, task_id: str | None, map_index: int) -> Any:
        """``why``."""

    def logs(
        self, run_id: str, task_id: str, *, map_index: int, try_number: int | None, offset: int
    ) -> bytes:
        """One piece of ``logs``; ``b""`` at the end."""

    def run_log(self, run_id: str, *, cursor: str, search: str) -> Any:
        """``run_log``."""

    def triggers(self, *, limit: int | None) -> Any:
        """``list_triggers``, all pages."""

    def trigger(self, trigger_id: int) -> Any:
        """``show_trigger``."""

    def events(self, *, name: str | None, limit: int) -> Any:
        """``list_events``."""

    def pools(self) -> Any:
        """``list_pools``."""

    def nodes(self) -> Any:
        """``reads.nodes``."""

    def values(self, kind: str) -> Any:
        """``values.list``."""

    def backfills(self, dag_id: str | None, limit: int) -> Any:
        """``backfills.list``."""

    def backfill(self, backfill_id: int) -> Any:
        """``backfills.show``."""

    def decisions(self, *, is_open: bool, dag: str | None, run: str | None, limit: int) -> Any:
        """``decisions.page``, without its cursor."""

    def decision(self, decision_id: int) -> Any:
        """``decisions.show``."""

    def users(self) -> Any:
        """``access.list_users``."""

    def tokens(self) -> Any:
        """``access.list_tokens``."""

    def audit(self, query: Mapping[str, Any], *, limit: int, before: int | None) -> Any:
        """``access.list_audit``, with the filter of the HTTP API."""

    def notes(self, run_id: str) -> Any:
        """``notes.page``, all pages."""


def read(arguments: argparse.Namespace, question: Callable[[Source], Any]) -> Any:
    """Query the daemon or, if no daemon runs, its database.

    Raises:
        DaemonAway: If there is neither a daemon nor a database.
    """
    found, _ = _read(arguments, question)
    return found


def read_run(arguments: argparse.Namespace, question: Callable[[Source], Any]) -> Any:
    """Query a run. Print a hint if its waits are unknown because no daemon runs."""
    found, is_served = _read(arguments, question)
    if not is_served and found["state"] in _LIVE:
        hint("no daemon is running; it is needed to show waits: aioflow up")
    return found


def _read(arguments: argparse.Namespace, question: Callable[[Source], Any]) -> tuple[Any, bool]:
    """Return the result, and whether it came from a daemon."""
    try:
        return question(_Daemon(connect(arguments))), True
    except DaemonAway:
        if arguments.url:
            raise
        return question(_Database(find_home(arguments.home))), False


class _Daemon:
    """Queries a daemon over HTTP."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def dags(self) -> Any:
        return self._client.items("dags")

    def dag(self, dag_id: str) -> Any:
        return self._client.get("dags", dag_id)

    def next_fire_times(self, dag_id: str, after: str | None, count: int) -> Any:
        return self._client.items("dags", dag_id, "next", limit=count, **{"from": after})

    def runs(self, query: Mapping[str, Any], *, limit: int) -> Any:
        return self._client.items("runs", **query, limit=limit)

    def run(self, run_id: str, *, offset: int = 0, limit: int = 1_000) -> Any:
        return self._client.get("runs", run_id, offset=offset, limit=limit)

    def tasks(
        self, run_id: str, *, task: str | None, state: str | None, offset: int, limit: int
    ) -> Any:
        query = {"task": task, "state": state, "offset": offset, "limit": limit}
        return self._client.get("runs", run_id, "tasks", **query)["items"]

    def task(self, run_id: str, task_id: str, *, map_index: int) -> Any:
        return self._client.get("runs", run_id, "tasks", task_id, "show", map=map_index)

    def why(self, run_id: str, task_id: str | None, map_index: int) -> Any:
        if task_id is None:
            return self._client.get("runs", run_id, "why")
        return self._client.get("runs", run_id, "tasks", task_id, "why", map=map_index)

    def logs(
        self, run_id: str, task_id: str, *, map_index: int, try_number: int | None, offset: int
    ) -> bytes:
        query = {"map": map_index, "try": try_number, "offset": offset}
        return self._client.get_bytes("runs", run_id, "tasks", task_id, "logs", **query)

    def run_log(self, run_id: str, *, cursor: str, search: str) -> Any:
        query = {"cursor": cursor, "search": search, "case": "true"}
        return self._client.get("runs", run_id, "logs", **query)

    def triggers(self, *, limit: int | None) -> Any:
        return self._client.items("triggers", limit=limit)

    def trigger(self, trigger_id: int) -> Any:
        return self._client.get("triggers", str(trigger_id))

    def events(self, *, name: str | None, limit: int) -> Any:
        return self._client.items("events", name=name, limit=limit)

    def pools(self) -> Any:
        return self._client.items("pools")

    def nodes(self) -> Any:
        return self._client.items("nodes")

    def values(self, kind: str) -> Any:
        return self._client.items(f"{kind}s")

    def backfills(self, dag_id: str | None, limit: int) -> Any:
        return self._client.items("backfills", dag=dag_id, limit=limit)

    def backfill(self, backfill_id: int) -> Any:
        return self._client.get("backfills", str(backfill_id))

    def decisions(self, *, is_open: bool, dag: str | None, run: str | None, limit: int) -> Any:
        state = "open" if is_open else "all"
        return self._client.items("decisions", state=state, dag=dag, run=run, limit=limit)

    def decision(self, decision_id: int) -> Any:
        return self._client.get("decisions", str(decision_id))

    def users(self) -> Any:
        return self._client.items("users")

    def tokens(self) -> Any:
        return self._client.items("tokens")

    def audit(self, query: Mapping[str, Any], *, limit: int, before: int | None) -> Any:
        return self._client.items("audit", limit=limit, before=before, **query)

    def notes(self, run_id: str) -> Any:
        return self._client.items("runs", run_id, "notes")


class _Database:
    """Queries the database, opened read-only. Waits are missing: only a daemon knows them."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def dags(self) -> Any:
        return self._ask(lambda api: api.list_dags())

    def dag(self, dag_id: str) -> Any:
        return self._ask(lambda api: api.show_dag(dag_id))

    def next_fire_times(self, dag_id: str, after: str | None, count: int) -> Any:
        from aioflow.api import instant

        async def ask(api: Any) -> Any:
            start = api.clock.now() if after is None else instant(after, "--from")
            return await api.next_fire_times(dag_id, start, count)

        try:
            return self._ask(ask)
        except TimetableAway as exc:
            hint("its timetable is code in the DAG file, and only a daemon runs that code")
            raise DaemonAway(str(self._home)) from exc

    def runs(self, query: Mapping[str, Any], *, limit: int) -> Any:
        async def ask(api: Any) -> Any:
            from aioflow.api.run_filters import query_of, run_filter

            wanted = await run_filter(api, query_of(query))
            return (await api.page_of_runs(wanted, limit=limit)).items

        return self._ask(ask)

    def run(self, run_id: str, *, offset: int = 0, limit: int = 1_000) -> Any:
        return self._ask(lambda api: api.show_run(run_id, offset=offset, limit=limit))

    def tasks(
        self, run_id: str, *, task: str | None, state: str | None, offset: int, limit: int
    ) -> Any:
        page = self._ask(
            lambda api: api.reads.one_task.list(
                run_id,
                task_id=task,
                states=() if state is None else (state,),
                offset=offset,
                limit=limit,
            )
        )
        return page["items"]

    def task(self, run_id: str, task_id: str, *, map_index: int) -> Any:
        return self._ask(lambda api: api.reads.one_task.show(run_id, task_id, map_index=map_index))

    def why(self, run_id: str, task_id: str | None, map_index: int) -> Any:
        return self._ask(lambda api: api.why(run_id, task_id, map_index=map_index))

    def logs(
        self, run_id: str, task_id: str, *, map_index: int, try_number: int | None, offset: int
    ) -> bytes:
        found: bytes = self._ask(
            lambda api: api.logs(
                run_id, task_id, map_index=map_index, try_number=try_number, offset=offset
            )
        )
        return found

    def run_log(self, run_id: str, *, cursor: str, search: str) -> Any:
        from aioflow.api.logs.run_log import RunLogRange
        from aioflow.worker.log_text import LineFilter

        wanted = RunLogRange(limit=1_000, cursor=cursor, wanted=LineFilter(search, is_case=True))
        return self._ask(lambda api: api.run_log(run_id, wanted))

    def triggers(self, *, limit: int | None) -> Any:
        async def ask(api: Any) -> Any:
            found: list[Any] = []
            after = -1
            while limit is None or len(found) < limit:
                wanted = _PAGE if limit is None else min(limit - len(found), _PAGE)
                page = await api.list_triggers(limit=wanted, after=after)
                if not page:
                    break
                found += page
                after = page[-1].trigger_id
            return found

        return self._ask(ask)

    def trigger(self, trigger_id: int) -> Any:
        return self._ask(lambda api: api.show_trigger(trigger_id))

    def events(self, *, name: str | None, limit: int) -> Any:
        return self._ask(lambda api: api.list_events(name=name, limit=limit))

    def pools(self) -> Any:
        return self._ask(lambda api: api.list_pools())

    def nodes(self) -> Any:
        return self._ask(lambda api: api.reads.nodes())

    def values(self, kind: str) -> Any:
        from aioflow.model.dag import ValueKind

        return self._ask(lambda api: api.values.list(ValueKind(kind)))

    def backfills(self, dag_id: str | None, limit: int) -> Any:
        return self._ask(lambda api: api.backfills.list(dag_id=dag_id, limit=limit))

    def backfill(self, backfill_id: int) -> Any:
        return self._ask(lambda api: api.backfills.show(backfill_id))

    def decisions(self, *, is_open: bool, dag: str | None, run: str | None, limit: int) -> Any:
        page = self._ask(
            lambda api: api.decisions.page(
                is_open=is_open or None, dag_id=dag, run_id=run, limit=limit
            )
        )
        return page["items"]

    def decision(self, decision_id: int) -> Any:
        return self._ask(lambda api: api.decisions.show(decision_id))

    def users(self) -> Any:
        return self._ask(lambda api: api.access.list_users())

    def tokens(self) -> Any:
        return self._ask(lambda api: api.access.list_tokens())

    def audit(self, query: Mapping[str, Any], *, limit: int, before: int | None) -> Any:
        from aioflow.api.access.audit import audit_filter

        wanted = audit_filter(query)
        return self._ask(lambda api: api.access.list_audit(wanted, limit=limit, before=before))

    def notes(self, run_id: str) -> Any:
        async def ask(api: Any) -> Any:
            found: list[Any] = []
            cursor = None
            while True:
                page = await api.notes.page(run_id, limit=_PAGE, cursor=cursor)
                found += page.items
                cursor = page.next
                if cursor is None:
                    return found

        return self._ask(ask)

    def _ask(self, question: Callable[[Any], Awaitable[Any]]) -> Any:
        from aioflow.cli.offline_database import ask_database

        return ask_database(self._home, question)


_LISTED_IDS = 5
_SHORTEST_PREFIX = 3
"""Minimum length of a prefix of a run id. A shorter text is probably a typo."""

RunCommand = Callable[[argparse.Namespace], int]


def named_run(command: RunCommand) -> RunCommand:
    """Let a command accept a unique prefix of a run id.

    If the command fails because the run is unknown, it is called again with the full id. So it must
    not change or print anything before that error.
    """

    @wraps(command)
    def called(arguments: argparse.Namespace) -> int:
        try:
            return command(arguments)
        except AioflowError as exc:
            whole = _full_run_id(arguments) if _is_unknown_run(exc) else None
            if whole is None:
                raise
        hint(f"run {safe(whole)}")
        arguments.run_id = whole
        return command(arguments)

    return called


def _is_unknown_run(error: AioflowError) -> bool:
    code = error.told_code if isinstance(error, Refused) else error.code
    return code == UnknownRun.code


def _full_run_id(arguments: argparse.Namespace) -> str | None:
    """Return the id of the only run whose id has the given prefix; ``None`` if there is none.

    Raises:
        RequestError: If several runs have this prefix.
    """
    begin = str(arguments.run_id)
    if len(begin) < _SHORTEST_PREFIX:
        return None

    def listed(source: Source) -> list[str]:
        runs = source.runs({"prefix": begin}, limit=_LISTED_IDS + 1)
        return [run["run_id"] for run in runs]

    found: list[str] = read(arguments, listed)
    if len(found) > 1:
        named = ", ".join(found[:_LISTED_IDS])
        more = " and more" if len(found) > _LISTED_IDS else ""
        raise RequestError(f"several runs begin with {begin!r}: {named}{more}; give more of the id")
    return found[0] if found else None
