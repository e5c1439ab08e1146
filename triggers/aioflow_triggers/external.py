"""Triggers that wait for other runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypedDict

import anyio

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
"""Where a run is named it does not matter since when."""


class RunEnded(TypedDict):
    """How the run, or its task, ended.

    ``result`` is that of the task, if one was named and its result is small, else ``None``.
    """

    state: str
    run_id: str
    result: object


class TasksEnded(TypedDict):
    """How some tasks of a run ended; the run itself stands under ``""``.

    Only those that had ended by the time one of them ended badly.
    """

    run_id: str
    states: dict[str, str]


@dataclass(frozen=True)
class RunTrigger(Trigger[RunEnded]):
    """Fires when a run of another DAG, or one task of it, has reached its final state.

    Which run: the one named by ``run_id``; else the one for ``logical_date``, which need not
    exist yet; else the first that ends after the task began to wait.

    Attributes:
        dag: The name of the other DAG.
        task: Wait for this task only; a mapped one has ended with its last child.
        run_id: This very run.
        logical_date: The run that stands for this instant; with a time zone. Text is ISO 8601.
        offset: Added to ``logical_date``; negative for an earlier run, also as text: ``"-1d"``.

    Raises:
        ValueError: If ``run_id`` and ``logical_date`` are both given, if ``logical_date`` has no
            time zone, or if there is an ``offset`` but nothing to add it to.

    Events:
        One. ``payload`` is ``{"state": str, "run_id": str, "result": ...}`` for any final state,
        ``failed`` and ``cancelled`` too; ``key`` is the run's id, and the task's if one is
        named.

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
        """All runs of a DAG are in one watch; one that is not named is known by what it is."""
        if self.run_id is not None:
            return Share(RunsEnding, self.run_id, of=(self.dag, self.task))
        slot = self._slot()
        if slot is not None:
            return Share(RunsEnding, slot, of=(self.dag, self.task))
        return Share(RunsEnding, self.since, of=(self.dag, self.task, "first since"))

    def _slot(self) -> datetime | None:
        if self.logical_date is None or self.offset is None:
            return self.logical_date
        return self.logical_date + signed_timedelta(self.offset, "offset")


class RunsEnding(Watch[str | datetime, RunEnded]):
    """Runs of a DAG, or one task in each of them; wanted are ids of runs, or instants.

    Args:
        instants: What an instant means: the run that stands ``for`` it, or the
            ``first since`` then to end.
    """

    def __init__(self, dag: str, task: str | None, instants: str = "for") -> None:
        self._dag = dag
        self._task = task
        self._instants = instants
        self._endings: RunEndings[str | datetime] | None = None
        self._told: list[tuple[str | datetime, RunEnding | AioflowError]] = []
        self._stirred = asyncio.Event()

    def joined(self, wanted: str | datetime) -> None:
        """Ask for it, in the name of the task that waits: so a cycle of waits is found."""
        if self._endings is None:
            self._endings = RunEndings(self._hear)
        self._ask(self._endings, wanted)

    def left(self, wanted: str | datetime) -> None:
        """Have it forgotten, here and in the daemon, if it was given up."""
        if self._endings is not None:
            self._endings.forget(wanted)

    async def run(
        self,
    ) -> AsyncIterator[tuple[str | datetime, TriggerEvent[RunEnded] | AioflowError]]:
        """Yield each when it has ended. Nothing is polled: the daemon tells of it."""
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            told, self._told = self._told, []
            for wanted, ending in told:
                yield wanted, self._event(ending)

    def _ask(self, endings: RunEndings[str | datetime], wanted: str | datetime) -> None:
        if isinstance(wanted, str):
            endings.ask(wanted, self._dag, task_id=self._task, run_id=wanted, since=_NEVER)
        elif self._instants == "for":
            endings.ask(wanted, self._dag, task_id=self._task, logical_date=wanted, since=wanted)
        else:
            endings.ask(wanted, self._dag, task_id=self._task, since=wanted)

    def _hear(self, wanted: str | datetime, ending: RunEnding | AioflowError) -> None:
        self._told.append((wanted, ending))
        self._stirred.set()

    def _event(self, ending: RunEnding | AioflowError) -> TriggerEvent[RunEnded] | AioflowError:
        if isinstance(ending, AioflowError):
            return ending
        payload = RunEnded(state=ending.state, run_id=ending.run_id, result=ending.result)
        key = ending.run_id if self._task is None else f"{ending.run_id}/{self._task}"
        return TriggerEvent(payload, key=key)


@dataclass(frozen=True)
class TasksTrigger(Trigger[TasksEnded]):
    """Fires when several tasks of a run of another DAG have ended, or the first of them badly.

    Attributes:
        dag: The name of the other DAG.
        logical_date: The run that stands for this instant, which need not exist yet; with a time
            zone.
        tasks: Which; none stands for the run as a whole.
        good: The final states that are not bad.

    Raises:
        ValueError: If ``logical_date`` has no time zone, or no state is good.

    Events:
        One. ``payload`` is ``{"run_id": str, "states": {task: state}}``, the run itself under
        ``""``; ``key`` is the run's id and the tasks.

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
        """Yield one event when they have ended."""
        ended = await self.ended()
        yield TriggerEvent(ended, key="/".join([ended["run_id"], *self.tasks]))

    async def ended(self) -> TasksEnded:
        """Wait for what ``run`` waits for and return its payload."""
        return await _endings(self.dag, self.tasks, self.logical_date, good=self.good)


async def _endings(
    dag: str, tasks: Sequence[str], logical_date: datetime, *, good: Collection[str]
) -> TasksEnded:
    """Wait until all of these tasks have ended, or one of them in a state that is not good.

    Without tasks the run as a whole counts. Nothing is polled: the daemon tells of the endings.
    """
    ended: dict[str, RunEnding] = {}
    refused: list[AioflowError] = []

    async def follow(task: str | None) -> None:
        try:
            ending = await run_ending(
                dag, task_id=task, logical_date=logical_date, since=logical_date
            )
        except AioflowError as exc:
            refused.append(exc)  # alone, not in a group: it is what the author reads
            group.cancel_scope.cancel()
            return
        ended[task or ""] = ending
        if ending.state not in good:
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for task in tasks or (None,):
            group.start_soon(follow, task)
    if refused:
        raise refused[0]
    run_id = next(iter(ended.values())).run_id
    return TasksEnded(run_id=run_id, states={name: e.state for name, e in ended.items()})
