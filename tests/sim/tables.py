"""The tables of ``tests.core.world`` with the fence and the pools in front of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from aioflow.model import RunState, TaskState, TriggerState
from aioflow.rows import Batch, LiveRun, PoolRow, TaskChange, TaskRow, TriggerRow
from tests.core.world import Rows

__all__ = ("Tables", "changed_tasks")


def changed_tasks(batch: Batch) -> list[TaskRow | TaskChange]:
    """The new and the changed task rows of a batch."""
    return [*batch.new_tasks, *batch.task_changes]


class Tables(Rows):
    """Rows, found by run; a batch that was applied already is left as it is.

    Attributes:
        fired: How often each trigger fired.
        resumptions: How often each task gave its place back by itself.
        widths: Of each expansion, as it was first committed.
        fenced: Batches that came again after they had been applied.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pools: dict[str, PoolRow] = {}
        self.fired: Counter[int] = Counter()
        self.resumptions: Counter[int] = Counter()
        self.fenced = 0
        self.widths: dict[tuple[int, int], int] = {}
        self._kept: set[tuple[int, int]] = set()
        self._open: dict[int, None] = {}
        self._task_nos: defaultdict[int, set[int]] = defaultdict(set)

    def commit(self, batch: Batch) -> None:
        """Apply a batch unless it has been."""
        if batch.number == self.commit_no:
            self.fenced += 1
            return
        for task_no, state in batch.steps:
            if state in {TaskState.DEFERRED, TaskState.SENSING}:
                self.resumptions[task_no] += 1
        for change in batch.trigger_changes:
            if change.state is TriggerState.FIRED:
                self.fired[change.trigger_no] += 1
        for tried in batch.new_tries:
            key = (tried.task_no, tried.start_no)
            assert key not in self._kept, f"a second row for the try {key}"
            self._kept.add(key)
        self.apply(batch)
        for expansion in batch.new_expansions:
            key = (expansion.run_no, expansion.position)
            width = self.widths.setdefault(key, expansion.width)
            assert width == expansion.width, f"{expansion} was {width} wide"
        self.pools.update({row.name: row for row in batch.pools})
        for name in batch.gone_pools:
            self.pools.pop(name, None)
        self._open.update({run.run_no: None for run in batch.new_runs if run.ended_at is None})
        for ended in batch.run_changes:
            if ended.ended_at is not None:
                self._open.pop(ended.run_no, None)
        for row in batch.new_tasks:
            self._task_nos[row.run_no].add(row.task_no)

    def lose_children(self, begun: Iterable[tuple[int, int]]) -> None:
        """The node and its children died: what had begun unheard is begun again uncharged.

        A claimed try begins in its worker before the engine hears of it; a crash in between
        leaves its row queued. Starts are at-least-once.
        """
        for task_no, start_no in begun:
            row = self.tasks.get(task_no)
            if row is not None and row.start_no == start_no and row.state is TaskState.QUEUED:
                self.resumptions[task_no] += 1

    def unfinished(self) -> list[int]:
        """See ``Rows``."""
        return list(self._open)

    def tasks_of(self, run_no: int) -> list[TaskRow]:
        """The task rows of a run by number."""
        return [self.tasks[task_no] for task_no in sorted(self._task_nos[run_no])]

    def triggers_of(self, run_no: int) -> list[TriggerRow]:
        """The trigger rows of a run by number."""
        return [row for _, row in sorted(self.triggers.items()) if row.run_no == run_no]

    def live_run(self, run_no: int) -> LiveRun:
        """See ``Rows``."""
        tasks = self.tasks_of(run_no)
        return LiveRun(
            run=self.runs[run_no],
            tasks=tasks,
            expansions=[e for (no, _), e in sorted(self.expansions.items()) if no == run_no],
            widths=[
                (row.task_no, found.width)
                for row in tasks
                if (found := self.results.get(row.task_no)) is not None and found.width is not None
            ],
            triggers=self.triggers_of(run_no),
        )

    def running(self, run_no: int) -> list[TaskRow]:
        """The task rows of a run that run."""
        return [row for row in self.tasks_of(run_no) if row.state is TaskState.RUNNING]

    def live_run_nos(self) -> list[int]:
        """The runs that are running."""
        return [no for no in self.unfinished() if self.runs[no].state is RunState.RUNNING]
