"""Waits for the endings of runs, packed into bytes and indexed by what may answer them.

There may be a hundred thousand. The number of a wait combines that of its query and its own number
in that query. It is indexed under every kind of change that may answer it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from aioflow.core.state.digests import Digests, of_text
from aioflow.core.state.interner import Interner
from aioflow.core.state.pages import Pages, Rows, packed
from aioflow.executors.executor_context import QuerySender
from aioflow.model.ids import RunNo, TaskNo
from aioflow.model.rows import RunRow
from aioflow.model.timestamps import Timestamp
from aioflow.queries.mapped_tasks import Mapped
from aioflow.queries.waiters import Waiters
from aioflow.worker.queries import RunWanted

__all__ = ("RunsQuery", "Wait", "WaitNo", "Waits", "dated", "named", "of_dag")

WaitNo: TypeAlias = int

_ROWS = 40
"""Bits of a wait's own number. The number of its query is in the bits above."""


class Wait(msgspec.Struct, frozen=True, array_like=True):
    """A task waits for a run, or for one task of it.

    Attributes:
        target: Number of the DAG and task waited for.
        run_no: Run of the waiting task; ``position`` and ``map_index`` are its as well.
        run_id: See ``RunWanted``, also for ``logical_date`` and ``since``.
        awaited: The run waited for, once there is one.
        task_no: The task in that run, if the wait is for one task.
        leads_to: Number of the set of tasks that have to end first in that run; -1 for all.
        found_id: Id of that run, if the query did not name it.
    """

    target: int
    run_no: RunNo
    position: int
    map_index: int
    run_id: str | None
    logical_date: Timestamp | None
    since: Timestamp
    awaited: RunNo = -1
    task_no: TaskNo = -1
    leads_to: int = -1
    found_id: str | None = None

    @property
    def awaited_id(self) -> str:
        """Id of the run waited for."""
        return self.run_id or self.found_id or ""


_decode = msgspec.msgpack.Decoder(Wait).decode


class RunsQuery:
    """A continuous query: its sender is notified of each run as that run ends.

    Attributes:
        waits: Its unanswered waits, by number, packed.
    """

    __slots__ = ("no", "question", "sender", "waits")

    def __init__(self, no: int, sender: QuerySender, question: int) -> None:
        self.no = no
        self.sender = sender
        self.question = question
        self.waits: Pages[bytes] = Pages(Rows)


class Waits:
    """All waits for the endings of runs.

    Attributes:
        by_name: By the name of a run that may come: see ``named``, ``dated`` and ``of_dag``.
        by_run: By the run waited for.
        by_task: By the task waited for.
        by_waiting_run: Waits for a run that exists, by the run that waits.
        mapped: The mapped tasks waited for.
    """

    def __init__(self) -> None:
        self._queries: dict[int, RunsQuery] = {}
        self._of: defaultdict[QuerySender, dict[int, RunsQuery]] = defaultdict(dict)
        self._count = 0
        self._last_query_no = 0
        self._targets: Interner[tuple[str, str | None]] = Interner()
        self._leads_to: Interner[frozenset[int]] = Interner()
        self.by_name: Waiters[str] = Waiters(Digests(of_text))
        self.by_run: Waiters[int] = Waiters(Pages())
        self.by_task: Waiters[int] = Waiters(Pages())
        self.by_waiting_run: Waiters[int] = Waiters(Pages())
        self.mapped = Mapped()

    def __len__(self) -> int:
        return self._count

    def __contains__(self, no: WaitNo) -> bool:
        runs_query = self._queries.get(no >> _ROWS)
        return runs_query is not None and no & (1 << _ROWS) - 1 in runs_query.waits

    def query_of(self, no: WaitNo) -> tuple[RunsQuery, int]:
        """Return the query that a wait belongs to, and its number in that query."""
        return self._queries[no >> _ROWS], no & (1 << _ROWS) - 1

    def get(self, no: WaitNo) -> Wait | None:
        """Return a wait, if it still exists."""
        runs_query = self._queries.get(no >> _ROWS)
        body = None if runs_query is None else runs_query.waits.get(no & (1 << _ROWS) - 1)
        return None if body is None else _decode(body)

    def target(self, wait: Wait) -> tuple[str, str | None]:
        """Return the DAG whose run is waited for, and the task if it is not for the whole run."""
        return self._targets[wait.target]

    def leads_to(self, wait: Wait) -> frozenset[int] | None:
        """Return the positions that have to end first in the run waited for; ``None`` for all."""
        return None if wait.leads_to < 0 else self._leads_to[wait.leads_to]

    # ── adding and removing ─────────────────────────────────────────────────────────────

    def add(
        self,
        sender: QuerySender,
        question: int,
        run_no: RunNo,
        target: tuple[str, str | None],
        wanted: RunWanted,
    ) -> WaitNo:
        """Add a wait, indexed by the run that may come; return its number."""
        known = self._of[sender].get(question)
        if known is not None:
            self.drop(known.no << _ROWS | wanted.number)
        runs_query = self._open(sender, question)
        no = runs_query.no << _ROWS | wanted.number
        wait = Wait(
            self._targets.enter(target),
            run_no,
            wanted.position,
            wanted.map_index,
            wanted.run_id,
            wanted.logical_date,
            wanted.since,
        )
        runs_query.waits.put(wanted.number, packed(wait))
        self._count += 1
        self.by_name.add(self._name(wait), no)
        return no

    def point(
        self, no: WaitNo, run: RunRow, task_no: TaskNo, leads_to: frozenset[int] | None
    ) -> bool:
        """Index the wait by the run it now waits for; return whether that is new."""
        wait = self.get(no)
        if wait is None or (wait.awaited, wait.task_no) == (run.run_no, task_no):
            return False
        self._unpoint(no, wait)
        if wait.run_id is not None and wait.awaited < 0:
            self.by_name.discard(self._name(wait), no)  # there is no other run of that id
        shape = -1 if leads_to is None else self._leads_to.enter(leads_to)
        pointed = msgspec.structs.replace(
            wait,
            awaited=run.run_no,
            task_no=task_no,
            leads_to=shape,
            found_id=run.run_id if wait.run_id is None else None,
        )
        runs_query, number = self.query_of(no)
        runs_query.waits.put(number, packed(pointed))
        self.by_run.add(run.run_no, no)
        self.by_waiting_run.add(wait.run_no, no)
        if task_no >= 0:
            self.by_task.add(task_no, no)
        return True

    def drop(self, no: WaitNo) -> None:
        """Remove a wait. Does nothing if there is none."""
        wait = self.get(no)
        if wait is None:
            return
        runs_query, number = self.query_of(no)
        runs_query.waits.take(number)
        self._count -= 1
        if not runs_query.waits:
            self._forget(runs_query)
        if wait.run_id is None or wait.awaited < 0:
            self.by_name.discard(self._name(wait), no)
        self._unpoint(no, wait)
        self._targets.leave(wait.target)

    def cancel(self, sender: QuerySender, question: int, numbers: tuple[int, ...]) -> None:
        """Remove these waits of a query: all of the query if none is named, all queries for -1."""
        of_sender = self._of.get(sender, {})
        if question < 0:
            for each in list(of_sender):
                self.cancel(sender, each, ())
        elif question in of_sender:
            runs_query = of_sender[question]
            for number in numbers or list(runs_query.waits):
                self.drop(runs_query.no << _ROWS | number)

    def drop_closed(self) -> None:
        """Remove the queries of processes that no reply can reach any more."""
        for sender in [sender for sender in self._of if not sender.is_open]:
            self.cancel(sender, -1, ())

    def _open(self, sender: QuerySender, question: int) -> RunsQuery:
        runs_query = self._of[sender].get(question)
        if runs_query is None:
            self._last_query_no += 1
            runs_query = self._of[sender][question] = RunsQuery(
                self._last_query_no, sender, question
            )
            self._queries[runs_query.no] = runs_query
        return runs_query

    def _forget(self, runs_query: RunsQuery) -> None:
        del self._queries[runs_query.no]
        del self._of[runs_query.sender][runs_query.question]
        if not self._of[runs_query.sender]:
            del self._of[runs_query.sender]

    def _unpoint(self, no: WaitNo, wait: Wait) -> None:
        if wait.awaited < 0:
            return
        self.by_run.discard(wait.awaited, no)
        self.by_waiting_run.discard(wait.run_no, no)
        if wait.task_no >= 0:
            self.by_task.discard(wait.task_no, no)
            if wait.task_no not in self.by_task:
                self.mapped.forget(wait.task_no)
        if wait.leads_to >= 0:
            self._leads_to.leave(wait.leads_to)

    def _name(self, wait: Wait) -> str:
        if wait.run_id is not None:
            return named(wait.run_id)
        dag_id, _ = self.target(wait)
        return of_dag(dag_id) if wait.logical_date is None else dated(dag_id, wait.logical_date)

    def of_run(self, run_no: RunNo) -> Iterator[tuple[WaitNo, Wait]]:
        """Yield the waits of a run's tasks for runs that exist."""
        for no in self.by_waiting_run.at(run_no):
            wait = self.get(no)
            if wait is not None:
                yield no, wait


def named(run_id: str) -> str:
    """Return the key of waits for the run of an id, while there is none."""
    return "=" + run_id


def dated(dag_id: str, logical_date: Timestamp) -> str:
    """Return the key of waits for the run of a DAG with a logical date."""
    return f"@{logical_date} {dag_id}"


def of_dag(dag_id: str) -> str:
    """Return the key of waits for the next run of a DAG to end."""
    return "-" + dag_id
