"""A registry of waits for runs to end, packed into bytes and indexed by what may answer them.

There may be a hundred thousand waits. The number of a wait combines the number of its query with a
number within that query. A wait is indexed under every kind of change that may answer it. An index
takes little memory for a key with a single waiter, and is fast for a key with a hundred thousand.

For a mapped task that has waiters, the number of children that have not ended is stored. So the
task need not be looked up each time a child ends.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from aioflow.core.state.packed_maps import Digests, Interner, Pages, Rows, packed, text_digest
from aioflow.executors.executor_context import QuerySender
from aioflow.model.ids import RunNo, TaskNo
from aioflow.model.rows import RunRow
from aioflow.model.timestamps import Timestamp
from aioflow.worker.query.messages import RunWanted

__all__ = (
    "ChildCount",
    "MappedTasks",
    "RunsQuery",
    "Wait",
    "WaitNo",
    "WaiterMap",
    "Waiters",
    "Waits",
    "dated_run_key",
    "next_run_key",
    "run_id_key",
)

FEW = 8
"""Up to this many numbers are stored as a tuple, more numbers in pages."""

Key = TypeVar("Key")
Key_contra = TypeVar("Key_contra", contravariant=True)

_Numbers: TypeAlias = int | tuple[int, ...] | Pages[None]


class WaiterMap(Protocol[Key_contra]):
    """A map of waiters by key: ``Pages`` if keys are close together, else ``Digests``."""

    def __len__(self) -> int: ...

    def get(self, key: Key_contra, /) -> Any:
        """Return the value of a key; ``None`` if there is none."""

    def put(self, key: Key_contra, value: Any, /) -> None:
        """Set the value of a key."""

    def take(self, key: Key_contra, /) -> Any:
        """Remove a key and return its value."""


class Waiters(Generic[Key]):
    """Sets of wait numbers by key."""

    __slots__ = ("_map",)

    def __init__(self, waiter_map: WaiterMap[Key]) -> None:
        self._map = waiter_map

    def __len__(self) -> int:
        return len(self._map)

    def __contains__(self, key: Key) -> bool:
        return self._map.get(key) is not None

    def at(self, key: Key) -> list[int]:
        """Return the numbers at a key. Their order has no meaning, but it is deterministic."""
        numbers: _Numbers | None = self._map.get(key)
        if numbers is None:
            return []
        return [numbers] if isinstance(numbers, int) else list(numbers)

    def add(self, key: Key, number: int) -> None:
        """Add a number. Does nothing if the number is there already."""
        numbers: _Numbers | None = self._map.get(key)
        if numbers is None:
            self._map.put(key, number)
        elif isinstance(numbers, Pages):
            numbers.put(number, None)
        else:
            few = (numbers,) if isinstance(numbers, int) else numbers
            if number not in few:
                self._map.put(key, _packed_numbers((*few, number)))

    def discard(self, key: Key, number: int) -> None:
        """Remove a number, if it is present."""
        numbers: _Numbers | None = self._map.get(key)
        if isinstance(numbers, Pages):
            numbers.take(number)
            if not numbers:
                self._map.take(key)
        elif numbers == number:
            self._map.take(key)
        elif isinstance(numbers, tuple) and number in numbers:
            left = tuple(one for one in numbers if one != number)
            self._map.put(key, left if len(left) > 1 else left[0])


def _packed_numbers(numbers: tuple[int, ...]) -> _Numbers:
    if len(numbers) <= FEW:
        return numbers
    pages: Pages[None] = Pages()
    for number in numbers:
        pages.put(number, None)
    return pages


class ChildCount:
    """A count of the ended children of one mapped task.

    The numbers of its children begin with ``first`` and are below ``end``.

    Attributes:
        missing: Number of children that had not ended at the last look-up. While fewer children
            have ended since then, the task has not ended, so no look-up is needed.
        seen: Number of children that have ended since that look-up began.
    """

    __slots__ = ("end", "first", "missing", "seen")

    def __init__(self, first: TaskNo, end: TaskNo) -> None:
        self.first = first
        self.end = end
        self.missing = 0
        self.seen = 0


class MappedTasks:
    """Mapped tasks that have waiters. The keys are the numbers the tasks would have if unmapped."""

    def __init__(self) -> None:
        self._at: dict[tuple[RunNo, int], TaskNo] = {}
        self._key_of: dict[TaskNo, tuple[RunNo, int]] = {}
        self._counts: dict[TaskNo, ChildCount] = {}
        self._firsts: list[tuple[TaskNo, TaskNo]] = []

    def expect(self, task_no: TaskNo, run_no: RunNo, task_index: int) -> None:
        """Register a mapped task that has a waiter, so that ``at`` finds it when it is expanded."""
        self._at[run_no, task_index] = task_no
        self._key_of[task_no] = (run_no, task_index)

    def at(self, run_no: RunNo, task_index: int) -> TaskNo | None:
        """Return the task at an index of a run; ``None`` if it has no waiters."""
        return self._at.get((run_no, task_index))

    def count(self, task_no: TaskNo, first: TaskNo, width: int) -> ChildCount:
        """Begin to look up whether a mapped task has ended. Return the count of its children.

        ``seen`` is 0, and from now on increases with each child that ends. The caller sets
        ``missing`` to the result of the look-up.
        """
        count = self._counts.get(task_no)
        if count is None or (count.first, count.end) != (first, first + width):
            self._uncount(task_no)
            count = self._counts[task_no] = ChildCount(first, first + width)
            if width:
                insort(self._firsts, (first, task_no))
        count.seen = 0
        return count

    def child_ended(self, child_no: TaskNo) -> TaskNo | None:
        """Count an ended child. Return its mapped task if this may have been the last child.

        Return ``None`` if other children have yet to end, or if the task has no waiters.
        """
        at = bisect_right(self._firsts, (child_no + 1, -1)) - 1
        if at < 0:
            return None
        task_no = self._firsts[at][1]
        count = self._counts[task_no]
        if child_no >= count.end:
            return None
        count.seen += 1
        return task_no if count.seen >= count.missing else None

    def forget(self, task_no: TaskNo) -> None:
        """Remove a task that has no waiters any more."""
        key = self._key_of.pop(task_no, None)
        if key is not None:
            del self._at[key]
        self._uncount(task_no)

    def _uncount(self, task_no: TaskNo) -> None:
        count = self._counts.pop(task_no, None)
        if count is not None and count.first < count.end:
            self._firsts.remove((count.first, task_no))


WaitNo: TypeAlias = int

_ROWS = 40
"""Number of bits for a wait's number within its query. The query's number is in the higher bits."""


class Wait(msgspec.Struct, frozen=True, array_like=True):
    """A wait of a task for a run, or for one task of a run.

    Attributes:
        target: Number of the DAG and task waited for.
        run_no: Run of the waiting task; ``task_index`` and ``map_index`` also belong to that task.
        run_id: See ``RunWanted``, also for ``logical_date`` and ``since``.
        awaited: The run waited for, once it exists.
        task_no: The awaited task in that run, if the wait is for one task.
        leads_to: Number of the set of tasks that have to end first in that run; -1 for all tasks.
        found_id: Id of that run, if the query did not name it.
    """

    target: int
    run_no: RunNo
    task_index: int
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
        """Id of the run waited for; empty if it is not known yet."""
        return self.run_id or self.found_id or ""


_decode_wait = msgspec.msgpack.Decoder(Wait).decode


class RunsQuery:
    """A continuing query: its sender is notified of each run when that run ends.

    Attributes:
        waits: The unanswered waits of the query, by number, packed.
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
        by_name: Waits by the run waited for, which need not exist yet: see ``run_id_key``,
            ``dated_run_key`` and ``next_run_key``.
        by_run: Waits by the run waited for.
        by_task: Waits by the task waited for.
        by_waiting_run: Waits for a run that exists, by the run of the waiting task.
        mapped: The mapped tasks waited for.
    """

    def __init__(self) -> None:
        self._queries: dict[int, RunsQuery] = {}
        self._of: defaultdict[QuerySender, dict[int, RunsQuery]] = defaultdict(dict)
        self._count = 0
        self._last_query_no = 0
        self._targets: Interner[tuple[str, str | None]] = Interner()
        self._leads_to: Interner[frozenset[int]] = Interner()
        self.by_name: Waiters[str] = Waiters(Digests(text_digest))
        self.by_run: Waiters[int] = Waiters(Pages())
        self.by_task: Waiters[int] = Waiters(Pages())
        self.by_waiting_run: Waiters[int] = Waiters(Pages())
        self.mapped = MappedTasks()

    def __len__(self) -> int:
        return self._count

    def __contains__(self, no: WaitNo) -> bool:
        runs_query = self._queries.get(no >> _ROWS)
        return runs_query is not None and no & (1 << _ROWS) - 1 in runs_query.waits

    def query_of(self, no: WaitNo) -> tuple[RunsQuery, int]:
        """Return the query to which a wait belongs, and the number of the wait in that query."""
        return self._queries[no >> _ROWS], no & (1 << _ROWS) - 1

    def get(self, no: WaitNo) -> Wait | None:
        """Return a wait; ``None`` if it no longer exists."""
        runs_query = self._queries.get(no >> _ROWS)
        body = None if runs_query is None else runs_query.waits.get(no & (1 << _ROWS) - 1)
        return None if body is None else _decode_wait(body)

    def target(self, wait: Wait) -> tuple[str, str | None]:
        """Return the DAG and the task waited for; the task is ``None`` if it is the whole run."""
        return self._targets[wait.target]

    def leads_to(self, wait: Wait) -> frozenset[int] | None:
        """Return the task indexes that have to end first in the awaited run; ``None`` for all."""
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
        """Add a wait for a run, which need not exist yet. Return the number of the wait."""
        known = self._of[sender].get(question)
        if known is not None:
            self.drop(known.no << _ROWS | wanted.number)
        runs_query = self._open(sender, question)
        no = runs_query.no << _ROWS | wanted.number
        wait = Wait(
            self._targets.acquire(target),
            run_no,
            wanted.task_index,
            wanted.map_index,
            wanted.run_id,
            wanted.logical_date,
            wanted.since,
        )
        runs_query.waits.put(wanted.number, packed(wait))
        self._count += 1
        self.by_name.add(self._name(wait), no)
        return no

    def bind_run(
        self, no: WaitNo, run: RunRow, task_no: TaskNo, leads_to: frozenset[int] | None
    ) -> bool:
        """Index a wait by the run it waits for, which is known now. Return whether that is new."""
        wait = self.get(no)
        if wait is None or (wait.awaited, wait.task_no) == (run.run_no, task_no):
            return False
        self._unbind_run(no, wait)
        if wait.run_id is not None and wait.awaited < 0:
            self.by_name.discard(self._name(wait), no)  # no other run has this id
        shape = -1 if leads_to is None else self._leads_to.acquire(leads_to)
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
        """Remove a wait. Does nothing if it does not exist."""
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
        self._unbind_run(no, wait)
        self._targets.release(wait.target)

    def cancel(self, sender: QuerySender, question: int, numbers: tuple[int, ...]) -> None:
        """Remove waits of a query: all of them if ``numbers`` is empty.

        If ``question`` is -1, remove all queries of the sender.
        """
        of_sender = self._of.get(sender, {})
        if question < 0:
            for each in list(of_sender):
                self.cancel(sender, each, ())
        elif question in of_sender:
            runs_query = of_sender[question]
            for number in numbers or list(runs_query.waits):
                self.drop(runs_query.no << _ROWS | number)

    def drop_closed(self) -> None:
        """Remove the queries of processes that replies can no longer reach."""
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

    def _unbind_run(self, no: WaitNo, wait: Wait) -> None:
        if wait.awaited < 0:
            return
        self.by_run.discard(wait.awaited, no)
        self.by_waiting_run.discard(wait.run_no, no)
        if wait.task_no >= 0:
            self.by_task.discard(wait.task_no, no)
            if wait.task_no not in self.by_task:
                self.mapped.forget(wait.task_no)
        if wait.leads_to >= 0:
            self._leads_to.release(wait.leads_to)

    def _name(self, wait: Wait) -> str:
        if wait.run_id is not None:
            return run_id_key(wait.run_id)
        dag_id, _ = self.target(wait)
        return (
            next_run_key(dag_id)
            if wait.logical_date is None
            else dated_run_key(dag_id, wait.logical_date)
        )

    def of_run(self, run_no: RunNo) -> Iterator[tuple[WaitNo, Wait]]:
        """Yield the waits of a run's tasks for runs that exist."""
        for no in self.by_waiting_run.at(run_no):
            wait = self.get(no)
            if wait is not None:
                yield no, wait


def run_id_key(run_id: str) -> str:
    """Return the key of waits for the run with an id, used while that run does not exist."""
    return "=" + run_id


def dated_run_key(dag_id: str, logical_date: Timestamp) -> str:
    """Return the key of waits for the run of a DAG that has a logical date."""
    return f"@{logical_date} {dag_id}"


def next_run_key(dag_id: str) -> str:
    """Return the key of waits for the next run of a DAG to end."""
    return "-" + dag_id
