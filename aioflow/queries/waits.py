"""Waits for how runs end, packed: a row of bytes each, and who is to be looked at when.

There may be a hundred thousand. A wait is known by one number, made of the question it belongs
to and of its own number there. It is entered under whatever change may answer it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from aioflow.core.state.digests import Digests, of_text
from aioflow.core.state.interner import Interner
from aioflow.core.state.pages import Pages, Rows, packed
from aioflow.executors.executor_context import Asker
from aioflow.model.ids import RunNo, TaskNo
from aioflow.model.rows import RunRow
from aioflow.model.timestamps import Timestamp
from aioflow.queries.mapped_tasks import Mapped
from aioflow.queries.waiters import Crowds
from aioflow.worker.queries import RunWanted

__all__ = ("Asked", "Wait", "WaitNo", "Waits", "dated", "named", "of_dag")

WaitNo: TypeAlias = int

_ROWS = 40
"""Bits of a wait's own number; before them stands that of its question."""


class Wait(msgspec.Struct, frozen=True, array_like=True):
    """A task waits for a run, or for one task of it.

    Attributes:
        target: The number of whose run, and which task of it.
        run_no: Of the task that waits; so are ``position`` and ``map_index``.
        run_id: See ``RunWanted``; so ``logical_date`` and ``since``.
        awaited: The run it waits for, once there is one.
        task_no: The task of that, if it waits for one.
        leads_to: The number of what has to end first in that; -1 for all of it.
        found_id: The id of that run, if it was not asked for by it.
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
        """The id of the run it waits for."""
        return self.run_id or self.found_id or ""


_decode = msgspec.msgpack.Decoder(Wait).decode


class Asked:
    """A question that goes on: whoever asked it is told of each run as that ends.

    Attributes:
        waits: What of it has no answer yet, by number, packed.
    """

    __slots__ = ("asker", "no", "question", "waits")

    def __init__(self, no: int, asker: Asker, question: int) -> None:
        self.no = no
        self.asker = asker
        self.question = question
        self.waits: Pages[bytes] = Pages(Rows)


class Waits:
    """All waits for the endings of runs.

    Attributes:
        by_name: By what a run is to be known by that may come: see ``named`` and its like.
        by_run: By the run that is waited for.
        by_task: By the task that is waited for.
        by_asking: Those for a run that exists, by the run that waits.
        mapped: What is known of mapped tasks that are waited for.
    """

    def __init__(self) -> None:
        self._asked: dict[int, Asked] = {}
        self._of: defaultdict[Asker, dict[int, Asked]] = defaultdict(dict)
        self._count = 0
        self._last_asked = 0
        self._targets: Interner[tuple[str, str | None]] = Interner()
        self._leads_to: Interner[frozenset[int]] = Interner()
        self.by_name: Crowds[str] = Crowds(Digests(of_text))
        self.by_run: Crowds[int] = Crowds(Pages())
        self.by_task: Crowds[int] = Crowds(Pages())
        self.by_asking: Crowds[int] = Crowds(Pages())
        self.mapped = Mapped()

    def __len__(self) -> int:
        return self._count

    def __contains__(self, no: WaitNo) -> bool:
        asked = self._asked.get(no >> _ROWS)
        return asked is not None and no & (1 << _ROWS) - 1 in asked.waits

    def asked(self, no: WaitNo) -> tuple[Asked, int]:
        """Return which question a wait belongs to, and its number there."""
        return self._asked[no >> _ROWS], no & (1 << _ROWS) - 1

    def get(self, no: WaitNo) -> Wait | None:
        """Return a wait, if it is still one."""
        asked = self._asked.get(no >> _ROWS)
        body = None if asked is None else asked.waits.get(no & (1 << _ROWS) - 1)
        return None if body is None else _decode(body)

    def target(self, wait: Wait) -> tuple[str, str | None]:
        """Return whose run it waits for, and for which task of it, if not for all."""
        return self._targets[wait.target]

    def leads_to(self, wait: Wait) -> frozenset[int] | None:
        """Return the positions that have to end first in what it waits for; ``None`` for all."""
        return None if wait.leads_to < 0 else self._leads_to[wait.leads_to]

    # ── coming and going ────────────────────────────────────────────────────────────────

    def add(
        self,
        asker: Asker,
        question: int,
        run_no: RunNo,
        target: tuple[str, str | None],
        wanted: RunWanted,
    ) -> WaitNo:
        """Enter a wait, under what may come; return its number."""
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
        """It waits for this run from now on; whether that is news."""
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
        """It waits no more; nothing is left to do if it did not."""
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

    def withdraw(self, asker: Asker, question: int, numbers: tuple[int, ...]) -> None:
        """Drop these of a question; all of it if none is named, all there are for -1."""
        of_asker = self._of.get(asker, {})
        if question < 0:
            for each in list(of_asker):
                self.withdraw(asker, each, ())
        elif question in of_asker:
            asked = of_asker[question]
            for number in numbers or list(asked.waits):
                self.drop(asked.no << _ROWS | number)

    def drop_closed(self) -> None:
        """Drop what was asked by processes that no answer reaches any more."""
        for asker in [asker for asker in self._of if not asker.is_open]:
            self.withdraw(asker, -1, ())

    def _open(self, asker: Asker, question: int) -> Asked:
        asked = self._of[asker].get(question)
        if asked is None:
            self._last_asked += 1
            asked = self._of[asker][question] = Asked(self._last_asked, asker, question)
            self._asked[asked.no] = asked
        return asked

    def _forget(self, asked: Asked) -> None:
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
    """Return where those stand who wait for the run of an id, while there is none."""
    return "=" + run_id


def dated(dag_id: str, logical_date: Timestamp) -> str:
    """Return where those stand who wait for the run of a DAG that stands for an instant."""
    return f"@{logical_date} {dag_id}"


def of_dag(dag_id: str) -> str:
    """Return where those stand who wait for the next run of a DAG to end."""
    return "-" + dag_id
