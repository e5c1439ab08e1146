"""Records of what user code did, independent of the database."""

from __future__ import annotations

from collections import Counter, deque

from aioflow.model.batch import Batch
from aioflow.model.states import TaskState
from aioflow.protocol.inputs import Input
from tests.sim.operating import is_marked
from tests.sim.tables import changed_tasks
from tests.sim.told import Told

__all__ = ("Ledger", "Returned")

STORM = 50
_REMEMBERED = 40

Returned = tuple[bytes | None, int | None]
"""The result of user code, and the number of its items if it feeds an expansion."""


class Ledger:
    """Executions and successes by start, and the state of actors that must survive crashes.

    Attributes:
        begins: How often the user code of each task began.
        cleared: For each task, the number of the start in which it was last cleared.
        starts: How often each start began.
        returned: The return value of each start whose user code returned.
        deadlines: Triggers whose wait has a deadline.
        over: Tasks that have ended and whose end has been reported.
        begun_after_end: Tasks of ``over`` that began nevertheless.
        storms: Tries behind which other tries were recalled again and again.
        told: The answers that coroutines received.
        handed: Outbox rows that were ever handed out.
        spoken: The last reports of all processes, received or not.
        again: Starts that requested another iteration of their loop.
    """

    def __init__(self) -> None:
        self.begins: Counter[int] = Counter()
        self.cleared: Counter[int] = Counter()
        self.starts: Counter[tuple[int, int]] = Counter()
        self.returned: dict[tuple[int, int], Returned] = {}
        self.deadlines: set[int] = set()
        self.begun_after_success: list[int] = []
        self.recorded: set[int] = set()
        self.over: set[int] = set()
        self.handed: set[int] = set()
        self.begun_after_end: list[int] = []
        self.storms: list[tuple[int, int]] = []
        self.spoken: deque[Input] = deque(maxlen=_REMEMBERED)
        self.told = Told()
        self.again: set[tuple[int, int]] = set()
        self._open: list[tuple[int, int]] = []
        self._deferrals: Counter[tuple[int, int]] = Counter()
        self._called_back: Counter[tuple[int, int]] = Counter()

    def begin(self, task_no: int, start_no: int) -> None:
        """Record that user code begins."""
        self.starts[task_no, start_no] += 1
        self._open.append((task_no, start_no))
        if start_no < self.cleared[task_no]:
            return  # cleared since: it is stopped, and its report is ignored
        if task_no in self.recorded:
            self.begun_after_success.append(task_no)
        if task_no in self.over:
            self.begun_after_end.append(task_no)
        self.begins[task_no] += 1

    def record(self, batch: Batch) -> None:
        """Record a stored batch: successes, deadlines and cleared tasks."""
        self._clear(batch)
        for row in changed_tasks(batch):
            if row.state is TaskState.SUCCESS and not is_marked(row):
                self.recorded.add(row.task_no)
        for wait in batch.new_triggers:
            if wait.deadline_at is not None:
                self.deadlines.add(wait.trigger_no)

    def _clear(self, batch: Batch) -> None:
        """Forget the history of tasks that were cleared."""
        for change in batch.task_changes:
            if (change.task_no, TaskState.PENDING) in batch.steps:
                number = change.task_no
                self.cleared[number] = change.start_no
                self.begins[number] = 0
                self.recorded.discard(number)
                self.over.discard(number)
                self.told.clear(number)

    def take_open(self) -> list[tuple[int, int]]:
        """Return the starts that began in this incarnation, and clear the list."""
        begun, self._open = self._open, []
        return begun

    def succeed(
        self, task_no: int, start_no: int, body: bytes | None = None, width: int | None = None
    ) -> None:
        """Record that user code returned."""
        self.returned[task_no, start_no] = (body, width)

    def defer(self, task_no: int, try_number: int) -> None:
        """Record that user code deferred."""
        self._deferrals[task_no, try_number] += 1

    def deferrals(self, task_no: int, try_number: int) -> int:
        """Return how often the task has deferred in this try."""
        return self._deferrals[task_no, try_number]

    def called_back(self, key: tuple[int, int], count: int) -> None:
        """Record that tries queued behind a slow one were recalled."""
        if count:
            self._called_back[key] += 1
            if self._called_back[key] == STORM:
                self.storms.append(key)

    def has_deadline(self, trigger_no: int) -> bool:
        """Return whether a wait has a deadline."""
        return trigger_no in self.deadlines
