"""What user code did, written down beside the database: the independent witness."""

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
"""What user code returned: the result, and how many items it has if it feeds an expansion."""


class Ledger:
    """Begins and successes by start, and what the actors must remember over crashes.

    Attributes:
        begins: How often user code of a task began.
        cleared: The number each task had when it was cleared last.
        starts: Each start that did, with how often.
        returned: Starts whose user code returned, with what.
        deadlines: Triggers whose wait has one.
        over: Tasks that have ended, and everyone who had to be was told so.
        begun_after_end: Those of them that began all the same.
        storms: Tries behind which one was called back again and again.
        told: What the coroutines were told.
        handed: Owed effects that were ever handed out.
        spoken: The last reports of any process, heard or not.
        again: Starts that asked for another round of their loop.
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
        """User code begins."""
        self.starts[task_no, start_no] += 1
        self._open.append((task_no, start_no))
        if start_no < self.cleared[task_no]:
            return  # what was cleared since is stopped, and never heard
        if task_no in self.recorded:
            self.begun_after_success.append(task_no)
        if task_no in self.over:
            self.begun_after_end.append(task_no)
        self.begins[task_no] += 1

    def record(self, batch: Batch) -> None:
        """A batch is stored: what has succeeded, what ends by itself, and what begins anew."""
        self._clear(batch)
        for row in changed_tasks(batch):
            if row.state is TaskState.SUCCESS and not is_marked(row):
                self.recorded.add(row.task_no)
        for wait in batch.new_triggers:
            if wait.deadline_at is not None:
                self.deadlines.add(wait.trigger_no)

    def _clear(self, batch: Batch) -> None:
        """Tasks begin anew: what they did before counts no longer."""
        for change in batch.task_changes:
            if (change.task_no, TaskState.PENDING) in batch.steps:
                number = change.task_no
                self.cleared[number] = change.start_no
                self.begins[number] = 0
                self.recorded.discard(number)
                self.over.discard(number)
                self.told.clear(number)

    def take_open(self) -> list[tuple[int, int]]:
        """Return the starts that have begun in this incarnation; there will be another."""
        begun, self._open = self._open, []
        return begun

    def succeed(
        self, task_no: int, start_no: int, body: bytes | None = None, width: int | None = None
    ) -> None:
        """User code returned."""
        self.returned[task_no, start_no] = (body, width)

    def defer(self, task_no: int, try_number: int) -> None:
        """User code asked to wait."""
        self._deferrals[task_no, try_number] += 1

    def deferrals(self, task_no: int, try_number: int) -> int:
        """How often it has in this try."""
        return self._deferrals[task_no, try_number]

    def called_back(self, key: tuple[int, int], count: int) -> None:
        """What stood behind a slow try was called back."""
        if count:
            self._called_back[key] += 1
            if self._called_back[key] == STORM:
                self.storms.append(key)

    def has_deadline(self, trigger_no: int) -> bool:
        """Whether a wait ends by itself."""
        return trigger_no in self.deadlines
