"""Triggers that wait for other runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypedDict

from aioflow import (
    AioflowError,
    Duration,
    RunEnding,
    RunEndings,
    Share,
    Trigger,
    TriggerEvent,
    Watch,
    run_ending,
)
from aioflow_triggers.instants import instant_of, signed_timedelta

__all__ = ("RunEnded", "RunTrigger", "RunsEnding", "TasksEnded", "TasksTrigger")

_NEVER = datetime(1970, 1, 1, tzinfo=UTC)
"""The start time of a wait with a ``run_id``, for which the start time does not matter."""


class RunEnded(TypedDict):
    """The outcome of the run, or of its task.

    ``result`` is the result of the task, if a task was named and its result is small, else
    ``None``.
    """

    state: str
    run_id: str
    result: object


class TasksEnded(TypedDict):
    """The final states of tasks of a run. The state of the run itself has the key ``""``.

    If a task ended in a bad state, the tasks that had not ended by then are missing.
    """

    run_id: str
    states: dict[str, str]


@dataclass(frozen=True)
class RunTrigger(Trigger[RunEnded]):
    """Fires when a run of another DAG, or one task of it, has reached a final state.

    The run is selected by ``run_id``, or by ``logical_date``, in which case it may not exist yet.
    With neither, it is the first run that ends after the task began to wait.

    Attributes:
        dag: The id of the other DAG.
        task: Wait only for this task. A mapped task has ended when all of its children have ended.
        run_id: Wait for the run with this id.
        logical_date: Wait for the run with this logical date; with a time zone. Text is ISO 8601.
        offset: Added to ``logical_date``; negative for an earlier run. Also as text: ``"-1d"``.

    Raises:
        ValueError: If ``run_id`` and ``logical_date`` are both given, if ``logical_date`` has no
            time zone, or if there is an ``offset`` without a ``logical_date``.

    Events:
        One. ``payload`` is ``{"state": str, "run_id": str, "result": ...}`` for any final state,
        including ``failed`` and ``cancelled``; ``key`` is the id of the run, and of the task if one
        is named.

    Errors:
        A DAG or task that does not exist fails the waiting task.
    """

    public_fields = ("dag", "task", "run_id", "logical_date", "offset")

    dag: str
    task: str | None = None
    run_id: str | None = None
    logical_date: datetime | None = None
    offset: Duration | None = None

    def __post_init__(self) -> None:
        if self.run_id is not None and self.logical_date is not None:
            raise ValueError("give run_id or logical_date, not both")
        if self.logical_date is not None:
            moment = instant_of(self.logical_date, "logical_date")
            object.__setattr__(self, "logical_date", moment)
        if self.offset is None:
            return
        if self.logical_date is None:
            raise ValueError("offset needs a logical_date to be added to")
        signed_timedelta(self.offset, "offset")

    def share(self) -> Share:
        """Share one watch between all waits for a DAG; its keys are run ids or times."""
        if self.run_id is not None:
            return Share(RunsEnding, self.run_id, of=(self.dag, self.task))
        logical_date = self._logical_date()
        if logical_date is not None:
            return Share(RunsEnding, logical_date, of=(self.dag, self.task))
        return Share(RunsEnding, self.since, of=(self.dag, self.task, "first since"))

    def _logical_date(self) -> datetime | None:
        if self.logical_date is None or self.offset is None:
            return self.logical_date
        return self.logical_date + signed_timedelta(self.offset, "offset")


class RunsEnding(Watch[str | datetime, RunEnded]):
    """A watch for the ends of runs of a DAG, or of one task in each of them.

    The wanted keys are run ids or times.

    Args:
        instants: How a time selects a run: ``for`` means the run with this logical date, ``first
            since`` the first run that ends at this time or later.
    """

    def __init__(self, dag: str, task: str | None, instants: str = "for") -> None:
        self._dag = dag
        self._task = task
        self._instants = instants
        self._endings: RunEndings[str | datetime] | None = None
        self._received: list[tuple[str | datetime, RunEnding | AioflowError]] = []
        self._stirred = asyncio.Event()

    def joined(self, wanted: str | datetime) -> None:
        """Subscribe on behalf of the waiting task, so that the daemon detects a cycle of waits."""
        if self._endings is None:
            self._endings = RunEndings(self._on_event)
        self._ask(self._endings, wanted)

    def left(self, wanted: str | datetime) -> None:
        """Cancel the subscription, here and in the daemon."""
        if self._endings is not None:
            self._endings.forget(wanted)

    async def run(
        self,
    ) -> AsyncIterator[tuple[str | datetime, TriggerEvent[RunEnded] | AioflowError]]:
        """Yield each ending when it happens. Does not poll: the daemon reports the endings."""
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            told, self._received = self._received, []
            for wanted, ending in told:
                yield wanted, self._event(ending)

    def _ask(self, endings: RunEndings[str | datetime], wanted: str | datetime) -> None:
        if isinstance(wanted, str):
            endings.ask(wanted, self._dag, task_id=self._task, run_id=wanted, since=_NEVER)
        elif self._instants == "for":
            endings.ask(wanted, self._dag, task_id=self._task, logical_date=wanted, since=wanted)
        else:
            endings.ask(wanted, self._dag, task_id=self._task, since=wanted)

    def _on_event(self, wanted: str | datetime, ending: RunEnding | AioflowError) -> None:
        self._received.append((wanted, ending))
        self._stirred.set()

    def _event(self, ending: RunEnding | AioflowError) -> TriggerEvent[RunEnded] | AioflowError:
        if isinstance(ending, AioflowError):
            return ending
        payload = RunEnded(state=ending.state, run_id=ending.run_id, result=ending.result)
        key = ending.run_id if self._task is None else f"{ending.run_id}/{self._task}"
        return TriggerEvent(payload, key=key)


@dataclass(frozen=True)
class TasksTrigger(Trigger[TasksEnded]):
    """Fires when several tasks of another run have ended, or one of them has ended in a bad state.

    Attributes:
        dag: The id of the other DAG.
        logical_date: The logical date of the run, which may not exist yet; with a time zone.
        tasks: The tasks; if empty, the trigger waits for the run as a whole.
        good: The final states that are not bad.

    Raises:
        ValueError: If ``logical_date`` has no time zone, or ``good`` is empty.

    Events:
        One. ``payload`` is ``{"run_id": str, "states": {task: state}}``, with ``""`` as the key of
        the run itself; ``key`` is the ids of the run and the tasks.

    Errors:
        A DAG or task that does not exist fails the waiting task.
    """

    public_fields = ("dag", "logical_date", "tasks", "good")

    dag: str
    logical_date: datetime
    tasks: Sequence[str] = ()
    good: Sequence[str] = ("success",)

    def __post_init__(self) -> None:
        moment = instant_of(self.logical_date, "logical_date")
        object.__setattr__(self, "logical_date", moment)
        if not self.good:
            raise ValueError("good must name at least one state")

    async def run(self) -> AsyncIterator[TriggerEvent[TasksEnded]]:
        """Yield one event when all tasks have ended, or one of them has ended in a bad state."""
        ended = await self.ended()
        yield TriggerEvent(ended, key="/".join([ended["run_id"], *self.tasks]))

    async def ended(self) -> TasksEnded:
        """Wait until the condition of ``run`` is met, and return the payload."""
        return await _endings(self.dag, self.tasks, self.logical_date, good=self.good)


async def _endings(
    dag: str, tasks: Sequence[str], logical_date: datetime, *, good: Collection[str]
) -> TasksEnded:
    """Wait until all of these tasks have ended, or one of them has ended in a bad state.

    Without tasks, wait for the run as a whole. Does not poll: the daemon reports the endings.
    """
    ended: dict[str, RunEnding] = {}
    refused: list[AioflowError] = []

    following: list[asyncio.Task[None]] = []

    def stop_others() -> None:
        for other in following:
            if other is not asyncio.current_task():
                other.cancel()

    async def follow(task: str | None) -> None:
        try:
            ending = await run_ending(
                dag, task_id=task, logical_date=logical_date, since=logical_date
            )
        except AioflowError as exc:
            refused.append(exc)  # raised alone, as an exception group is hard to read for authors
            stop_others()
            return
        ended[task or ""] = ending
        if ending.state not in good:
            stop_others()

    async with asyncio.TaskGroup() as group:
        following.extend(group.create_task(follow(task)) for task in tasks or (None,))
    if refused:
        raise refused[0]
    run_id = next(iter(ended.values())).run_id
    return TasksEnded(run_id=run_id, states={name: e.state for name, e in ended.items()})
