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

    __slots__ = ("asker", "no", "question", "waits")

    def __init__(self, no: int, asker: QuerySender, question: int) -> None:
        self.no = no
        self.asker = asker
        self.question = question
        self.waits: Pages[bytes] = Pages(Rows)


class Waits:
    """All waits for the endings of runs.

    Attributes:
        by_name: By the name of a run that may come: see ``named``, ``dated`` and ``of_dag``.
        by_run: By the run waited for.
        by_task: By the task waited for.
        by_asking: Waits for a run that exists, by the run that waits.
        mapped: The mapped tasks waited for.
    """

    def __init__(self) -> None:
        self._asked: dict[int, RunsQuery] = {}
        self._of: defaultdict[QuerySender, dict[int, RunsQuery]] = defaultdict(dict)
        self._count = 0
        self._last_asked = 0
        self._targets: Interner[tuple[str, str | None]] = Interner()
        self._leads_to: Interner[frozenset[int]] = Interner()
        self.by_name: Waiters[str] = Waiters(Digests(of_text))
        self.by_run: Waiters[int] = Waiters(Pages())
        self.by_task: Waiters[int] = Waiters(Pages())
        self.by_asking: Waiters[int] = Waiters(Pages())
        self.mapped = Mapped()

    def __len__(self) -> int:
        return self._count

    def __contains__(self, no: WaitNo) -> bool:
        asked = self._asked.get(no >> _ROWS)
        return asked is not None and no & (1 << _ROWS) - 1 in asked.waits

    def asked(self, no: WaitNo) -> tuple[RunsQuery, int]:
        """Return the query that a wait belongs to, and its number in that query."""
        return self._asked[no >> _ROWS], no & (1 << _ROWS) - 1

    def get(self, no: WaitNo) -> Wait | None:
        """Return a wait, if it still exists."""
        asked = self._asked.get(no >> _ROWS)
        body = None if asked is None else asked.waits.get(no & (1 << _ROWS) - 1)
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
        asker: QuerySender,
        question: int,
        run_no: RunNo,
        target: tuple[str, str | None],
        wanted: RunWanted,
    ) -> WaitNo:
        """Add a wait, indexed by the run that may come; return its number."""
        known = self._of[asker].get(question)
        if known is not None:
            self.drop(known.no << _ROWS | wanted.number)
        asked = self._open(asker, question)
        no = asked.no << _ROWS | wanted.number
        wait = Wait(
            self._targets.enter(target),
            run_no,
            wanted.position,
            wanted.map_index,
            wanted.run_id,
            wanted.logical_date,
            wanted.since,
        )
        asked.waits.put(wanted.number, packed(wait))
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
        asked, number = self.asked(no)
        asked.waits.put(number, packed(pointed))
        self.by_run.add(run.run_no, no)
        self.by_asking.add(wait.run_no, no)
        if task_no >= 0:
            self.by_task.add(task_no, no)
        return True

    def drop(self, no: WaitNo) -> None:
        """Remove a wait. Does nothing if there is none."""
        wait = self.get(no)
        if wait is None:
            return
        asked, number = self.asked(no)
        asked.waits.take(number)
        self._count -= 1
        if not asked.waits:
            self._forget(asked)
        if wait.run_id is None or wait.awaited < 0:
            self.by_name.discard(self._name(wait), no)
        self._unpoint(no, wait)
        self._targets.leave(wait.target)

    def withdraw(self, asker: QuerySender, question: int, numbers: tuple[int, ...]) -> None:
        """Remove these waits of a query: all of the query if none is named, all queries for -1."""
        of_asker = self._of.get(asker, {})
        if question < 0:
            for each in list(of_asker):
                self.withdraw(asker, each, ())
        elif question in of_asker:
            asked = of_asker[question]
            for number in numbers or list(asked.waits):
                self.drop(asked.no << _ROWS | number)

    def drop_closed(self) -> None:
        """Remove the queries of processes that no reply can reach any more."""
        for asker in [asker for asker in self._of if not asker.is_open]:
            self.withdraw(asker, -1, ())

    def _open(self, asker: QuerySender, question: int) -> RunsQuery:
        asked = self._of[asker].get(question)
        if asked is None:
            self._last_asked += 1
            asked = self._of[asker][question] = RunsQuery(self._last_asked, asker, question)
            self._asked[asked.no] = asked
        return asked

    def _forget(self, asked: RunsQuery) -> None:
        del self._asked[asked.no]
        del self._of[asked.asker][asked.question]
        if not self._of[asked.asker]:
            del self._of[asked.asker]

    def _unpoint(self, no: WaitNo, wait: Wait) -> None:
        if wait.awaited < 0:
            return
        self.by_run.discard(wait.awaited, no)
        self.by_asking.discard(wait.run_no, no)
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
        for no in self.by_asking.at(run_no):
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
