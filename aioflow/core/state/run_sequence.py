"""The runs of one DAG that have a logical date, in the order of these dates.

The sequence contains all live runs. It also knows the ended run right before each live run, and the
ended run right before any future run. If one of these is not known yet, the database is queried.
This happens at most once per run, and never for the runs of a schedule without gaps.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from aioflow.core.state.graph import Graph
from aioflow.core.state.task_instance import MappedTask
from aioflow.model.dag import DagSpec
from aioflow.model.ids import RunNo, TaskNo
from aioflow.model.rows import ExpansionRow, RunRow, TaskRow
from aioflow.model.states import RunState, TaskState
from aioflow.model.timestamps import Timestamp

__all__ = (
    "GOOD",
    "NEXT",
    "EndedRun",
    "NotLoaded",
    "RunKey",
    "RunSequence",
    "ended_as",
    "last_rounds",
    "run_key",
    "stored_as",
)

RunKey: TypeAlias = tuple[Timestamp, RunNo]
"""Sort key of a run: its logical date and number."""

NEXT: Final[RunKey] = (1 << 62, -1)
"""Key of a future run, which sorts after all existing runs."""

GOOD = frozenset({TaskState.SUCCESS, TaskState.SKIPPED})
"""Final states of a task that satisfy a dependency of the next run."""

_WORST = (TaskState.FAILED, TaskState.CANCELLED, TaskState.UPSTREAM_FAILED)
"""States that a mapped task gets if any of its children has them, in order of precedence."""


class EndedRun(msgspec.Struct, frozen=True):
    """Summary of an ended run, containing what the next run depends on.

    Attributes:
        bad: Tasks that neither succeeded nor were skipped, with their states.
    """

    key: RunKey
    run_id: str
    bad: Mapping[str, TaskState]


class NotLoaded:
    """Placeholder for a previous run that the database has not been queried for yet."""


_UNKNOWN = NotLoaded()


class RunSequence:
    """The order of the runs of one DAG."""

    __slots__ = ("_before", "_keys")

    def __init__(self) -> None:
        self._keys: list[RunKey] = [NEXT]
        self._before: dict[RunNo, EndedRun | None] = {}

    def add(self, key: RunKey) -> None:
        """Add a live run. Idempotent."""
        at = bisect.bisect_left(self._keys, key)
        above = self._keys[at]
        if above == key:
            return
        self._keys.insert(at, key)
        known = self._before.get(above[1], _UNKNOWN)
        if isinstance(known, NotLoaded):
            return
        if known is None or known.key < key:
            self._before[key[1]] = known
        if known is None or known.key <= key:
            self._before[above[1]] = None  # no ended run is between these two

    def remove(self, key: RunKey, ended: EndedRun | None = None) -> None:
        """Remove a live run.

        Args:
            ended: Summary of the ended run; ``None`` if the run was never created or its end is not
                known.
        """
        at = bisect.bisect_left(self._keys, key)
        if self._keys[at] != key:
            return
        del self._keys[at]
        self._before.pop(key[1], None)
        above = self._keys[at][1]
        if ended is None:
            self._before.pop(above, None)
            return
        known = self._before.get(above, _UNKNOWN)
        if known is None or (isinstance(known, EndedRun) and known.key < key):
            self._before[above] = ended

    def invalidate(self) -> None:
        """Drop all knowledge of ended runs, which a rollback may have invalidated."""
        self._before.clear()

    def forget(self, key: RunKey) -> RunNo | None:
        """Record that an ended run was deleted.

        Return the next live run, which may have been its direct successor; ``None`` if there is
        none.
        """
        above = self.next_run(key)
        self._before.pop(NEXT[1] if above is None else above, None)
        return above

    def learn(self, key: RunKey, ended: EndedRun | None) -> None:
        """Record the ended run right before a run, as read from the database; ``None`` if none."""
        self._before[key[1]] = ended

    def knows(self, key: RunKey) -> bool:
        """Return whether the previous run is known without a query."""
        return key[1] in self._before

    def before(self, key: RunKey) -> RunNo | EndedRun | NotLoaded | None:
        """Return the run right before this one; ``None`` if there is none.

        A live run is returned as its number, an ended run as its summary. ``NotLoaded`` means that
        the database must be queried.
        """
        known = self._before.get(key[1], _UNKNOWN)
        if isinstance(known, NotLoaded):
            return known
        at = bisect.bisect_left(self._keys, key)
        below = self._keys[at - 1] if at else None
        if below is None or (known is not None and known.key > below):
            return known
        return below[1]

    def next_run(self, key: RunKey) -> RunNo | None:
        """Return the live run right after a key; ``None`` if there is none.

        The key need not be in the sequence.
        """
        above = self._keys[bisect.bisect_right(self._keys, key)]
        return None if above == NEXT else above[1]

    def live(self) -> Iterator[RunNo]:
        """Yield the live runs in order."""
        for _, run_no in self._keys[:-1]:
            yield run_no

    @property
    def first(self) -> RunNo | None:
        """The first live run; ``None`` if there is none."""
        return None if self._keys[0] == NEXT else self._keys[0][1]


def run_key(row: RunRow) -> RunKey | None:
    """Return the sort key of a run; ``None`` if it has no logical date."""
    return None if row.logical_date is None else (row.logical_date, row.run_no)


def ended_as(
    row: RunRow, graph: Graph, states: bytearray, groups: Iterable[MappedTask]
) -> EndedRun:
    """Summarize an ended run that is still in memory, for the next run."""
    absent = _absent(row)
    found = [TaskState(state) for state in states]
    cut_short = {group.task_index: group for group in groups if found[group.task_index].is_live}
    for task_index, group in cut_short.items():
        found[task_index] = _cut_short(group, absent)
    found = [absent if state.is_live else state for state in found]
    _lack_items(graph.spec, cut_short, found)
    return _ended(row, graph.spec, found)


def _cut_short(group: MappedTask, absent: TaskState) -> TaskState:
    """Return the state of a mapped task that had not ended when its run ended.

    Its last children may end later.
    """
    if group.is_loop:
        return absent if group.is_open or not group.width else TaskState(group.states[-1])
    ends = [state for state in _WORST if group.counts[state] or group.cut is state]
    if ends:
        return ends[0]
    return group.outcome() if group.ended == group.width else absent


def _absent(row: RunRow) -> TaskState:
    """Return the state of tasks that had not finished when the run ended.

    It is success if the run was marked as successful, else cancelled.
    """
    return TaskState.SUCCESS if row.state is RunState.SUCCESS else TaskState.CANCELLED


def stored_as(
    row: RunRow,
    spec: DagSpec,
    counts: list[tuple[int, TaskState, int]],
    expansions: list[ExpansionRow],
    last_rounds: Sequence[TaskRow] = (),
) -> EndedRun:
    """Summarize an ended run from its rows, for the next run.

    Args:
        counts: Number of task rows by task index and state.
        last_rounds: Task rows with the numbers that the function ``last_rounds`` returns.
    """
    absent = TaskState.PENDING if row.ended_at is None else _absent(row)
    found: list[dict[TaskState, int]] = [{} for _ in spec.tasks]
    for task_index, state, count in counts:
        if state is not TaskState.REMOVED:
            found[task_index][state] = count
    widths = {row.task_index: row.width for row in expansions}
    states = [_together(of, widths.get(at, 1), absent) for at, of in enumerate(found)]
    cut_short = {row.task_index for row in expansions if row.is_open}
    for last in last_rounds:
        states[last.task_index] = absent if last.task_index in cut_short else last.state
    _lack_items(spec, widths, states)
    return _ended(row, spec, states)


def _lack_items(spec: DagSpec, expanded: Iterable[int], states: list[TaskState]) -> None:
    """Set mapped tasks to ``upstream_failed`` if the producer of their stream failed.

    Any final state of the producer except ``success`` and ``skipped`` counts as a failure.
    """
    for task_index in expanded:
        mapped = spec.tasks[task_index].mapped
        source = -1 if mapped is None else mapped.sources[0].task_index
        if source >= 0 and spec.tasks[source].streams and states[source] not in GOOD:
            states[task_index] = TaskState.UPSTREAM_FAILED


def last_rounds(spec: DagSpec, expansions: list[ExpansionRow]) -> list[TaskNo]:
    """Return the row number of the last iteration of each task in a loop.

    The state of that iteration is the state of the task.
    """
    loops = [p for p, task in enumerate(spec.tasks) if task.mapped and task.mapped.until >= 0]
    return [
        row.first_task_no + row.width - 1
        for row in expansions
        if row.width and row.task_index in loops
    ]


def _together(found: dict[TaskState, int], width: int, absent: TaskState) -> TaskState:
    """Return the state of a task.

    Args:
        found: Number of its instances with a row, by state.
        width: Number of all its instances.
        absent: State of instances that had not finished when the run ended.
    """
    for state in _WORST:
        if state in found:
            return state
    active = [state for state in found if state.is_live]
    if active or sum(found.values()) < width:
        return active[0] if active else absent
    return TaskState.SUCCESS if TaskState.SUCCESS in found else TaskState.SKIPPED


def _ended(row: RunRow, spec: DagSpec, states: list[TaskState]) -> EndedRun:
    key = run_key(row)
    assert key is not None  # noqa: S101 - only dated runs are in a sequence
    tasks = zip(spec.tasks, states, strict=True)
    bad = {task.task_id: state for task, state in tasks if state not in GOOD}
    return EndedRun(key, row.run_id, bad)
