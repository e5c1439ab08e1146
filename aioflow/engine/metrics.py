"""Metrics of the engine, in plain lists, so that an input or state change costs a few additions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

from aioflow.model.batch import Batch
from aioflow.model.states import RunState, TaskState
from aioflow.model.timestamps import Moment
from aioflow.protocol.inputs import Input, TimerFired
from aioflow.protocol.reports import TriggerFired

__all__ = ("ROWS", "SECONDS", "Histogram", "Measures")

SECONDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)
ROWS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0, 3_000.0, 10_000.0, 30_000.0)


class Histogram:
    """A histogram: the number of values in each interval between two bounds.

    Args:
        bounds: Upper bounds, ascending. A value is counted in the interval of the lowest bound that
            is not less than the value.

    Attributes:
        total: The sum of all values added.
    """

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self._counts)

    def up_to(self) -> Iterator[tuple[float, int]]:
        """Yield each bound with the number of values up to it. The last bound is infinite."""
        seen = 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            seen += count
            yield bound, seen


class Measures:
    """Metrics of one engine since its creation.

    Attributes:
        turns: Durations of turns, including commits.
        commits: Durations of commits, including all attempts.
        rows: Number of row changes in each batch.
        events: Time from a trigger's event to the end of the turn that processed it. By then the
            command to resume the task was sent, or the task waits for a slot.
        timers: Time from the due time of a retry, a sensor's poke or a wait to the end of the turn
            that processed it.
        fenced: Batches rejected because another node had taken over.
        refused: Batches whose content the database refused.
        steps: How often tasks entered each state, by the number of the state.
        run_steps: How often runs entered each state, by its number. Creating a live run does not
            count.
        runs_made: Number of runs created.
    """

    __slots__ = (
        "commits",
        "events",
        "fenced",
        "refused",
        "rows",
        "run_steps",
        "runs_made",
        "steps",
        "timers",
        "turns",
    )

    def __init__(self) -> None:
        self.turns = Histogram(SECONDS)
        self.commits = Histogram(SECONDS)
        self.rows = Histogram(ROWS)
        self.events = Histogram(SECONDS)
        self.timers = Histogram(SECONDS)
        self.fenced = 0
        self.refused = 0
        self.steps = [0] * len(TaskState)
        self.run_steps = [0] * len(RunState)
        self.runs_made = 0

    def record_latencies(self, inputs: Sequence[Input], read: Callable[[], Moment]) -> None:
        """Record the latency of the inputs of a completed turn.

        Args:
            read: Returns the current moment. It is a function, because most turns have no input
                with a latency.
        """
        at: Moment | None = None
        for entry in inputs:
            if isinstance(entry, TriggerFired):
                at = at or read()
                self.events.add(max(at.now - entry.at, 0) / 1e6)
            elif isinstance(entry, TimerFired) and entry.task_no >= 0:
                at = at or read()
                self.timers.add(max(at.steady - entry.at, 0) / 1e6)

    def committed(self, batch: Batch, seconds: float) -> None:
        """Record a durable batch."""
        self.commits.add(seconds)
        self.rows.add(_changes(batch))
        steps = self.steps
        for _, state in batch.steps:
            steps[state] += 1
        for change in batch.run_changes:
            if change.state is not change.was:
                self.run_steps[change.state] += 1
        for run in batch.new_runs:
            self.runs_made += 1
            if not run.state.is_live:
                self.run_steps[run.state] += 1


def _changes(batch: Batch) -> int:
    return (
        len(batch.new_runs)
        + len(batch.run_changes)
        + len(batch.new_tasks)
        + len(batch.task_changes)
        + len(batch.results)
        + len(batch.new_triggers)
        + len(batch.trigger_changes)
        + len(batch.new_records)
        + len(batch.record_changes)
        + len(batch.new_events)
        + len(batch.new_items)
        + len(batch.named_events)
    )
