"""The next run of one DAG, by the calendar or a custom timetable.

The code of a custom timetable runs in a child process only, so previews are requested from it.
The daemon already knows the fire time that each timetable waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from aioflow.core.scheduling import timetable
from aioflow.core.state.child_roles import TRIGGERS
from aioflow.core.state.memory import Memory
from aioflow.core.triggers.assignment import role_of
from aioflow.errors import TimetableAway, TimetableFailed, TimetableSilent
from aioflow.model.dag import DagSpec
from aioflow.model.dag_triggers import DagTriggerRow
from aioflow.model.ids import TriggerNo
from aioflow.model.rows import DagRow
from aioflow.model.states import CODE_MISSING, Failure
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.commands import StartTrigger
from aioflow.protocol.reports import FireTimesPreviewed

__all__ = (
    "Foreseer",
    "HostedTimetables",
    "Timetables",
    "calendar_fire_times",
    "foreseen",
    "next_run_at",
    "preview_command",
)

_FOREVER = 1 << 62

_UNANSWERED = frozenset({"timeout", "lost"})


class Timetables(Protocol):
    """Access to custom timetables."""

    def expected(self) -> Mapping[str, Timestamp]:
        """Return the fire time that each DAG with a hosted timetable waits for."""

    def expected_of(self, dag_id: str) -> Timestamp | None:
        """Return the fire time that one DAG waits for."""

    async def foresee(
        self, row: DagTriggerRow, version: str, after: Timestamp, count: int
    ) -> FireTimesPreviewed | None:
        """Preview a timetable's next fire times in a child; ``None`` if there is no child."""


class Foreseer(Protocol):
    """A host of triggers, as the daemon knows it."""

    @property
    def expected(self) -> Mapping[TriggerNo, Timestamp]:
        """See ``Triggerer``."""

    async def foresee(
        self, host: StartTrigger, *, after: Timestamp, count: int
    ) -> FireTimesPreviewed | None:
        """See ``Triggerer``."""


class HostedTimetables:
    """The custom timetables of a running daemon.

    Args:
        hosts: By role, as of now.
        memory: The memory of the engine, which knows the role of each class.
        start: Starts the dedicated host of a DAG.
    """

    def __init__(
        self,
        hosts: Mapping[str, Foreseer],
        memory: Callable[[], Memory],
        start: Callable[[str], None],
    ) -> None:
        self._hosts = hosts
        self._memory = memory
        self._start = start

    def expected(self) -> Mapping[str, Timestamp]:
        """See ``Timetables``."""
        dag_triggers = self._memory().dag_triggers
        slots = [slot for host in self._hosts.values() for slot in host.expected.items()]
        known = [(dag_triggers.get(number), at) for number, at in slots]
        return {one.row.dag_id: at for one, at in known if one is not None}

    def expected_of(self, dag_id: str) -> Timestamp | None:
        """See ``Timetables``."""
        one = self._memory().dag_triggers.of(dag_id)
        if one is None or not one.hosting:
            return None
        host = self._hosts.get(one.role)
        return None if host is None else host.expected.get(one.row.trigger_no)

    async def foresee(
        self, row: DagTriggerRow, version: str, after: Timestamp, count: int
    ) -> FireTimesPreviewed | None:
        """See ``Timetables``."""
        memory = self._memory()
        one = memory.dag_triggers.get(row.trigger_no)
        host = preview_command(row, version, 0 if one is None else one.hosting)
        plan = memory.dag_versions.get((version, row.dag_id))
        role = TRIGGERS if plan is None else role_of(row.class_path, plan, memory)
        asked = self._hosts.get(role)
        if asked is None:
            self._start(role)
            return None
        return await asked.foresee(host, after=after, count=count)


def preview_command(row: DagTriggerRow, version: str, hosting: int) -> StartTrigger:
    """Return the command from which a child that previews a timetable creates it.

    Args:
        version: The newest version of its DAG.
        hosting: Its current assignment, if it is hosted; its output is attributed to that.
    """
    return StartTrigger(
        trigger_no=row.trigger_no,
        hosting=hosting,
        run_no=row.trigger_no,
        task_no=-1,
        version=version,
        class_path=row.class_path,
        kwargs=row.kwargs or b"",
        since=row.since,
        logical_date=None,
        dag_id=row.dag_id,
    )


async def foreseen(
    timetables: Timetables | None,
    dag: DagRow,
    own: DagTriggerRow | None,
    after: Timestamp,
    count: int,
) -> tuple[Timestamp, ...]:
    """Return the next fire times of a custom timetable, computed by its newest code.

    Args:
        own: The stored trigger of the DAG.

    Raises:
        TimetableAway: If there was no child to ask.
        TimetableSilent: If it takes too long or crashes its host.
        TimetableFailed: If it raised, or did not return valid fire times.
    """
    if timetables is None or own is None:
        raise TimetableAway(dag.dag_id)
    if own.kwargs is None:
        raise TimetableFailed(dag.dag_id, "no key of this home opens its fields", dag.file)
    answer = await timetables.foresee(own, dag.version, after, count)
    if answer is None:
        raise TimetableAway(dag.dag_id)
    failure = answer.failure
    if failure is None:
        return answer.slots
    if failure.reason in _UNANSWERED:
        raise TimetableSilent(dag.dag_id, failure.message)
    raise TimetableFailed(dag.dag_id, _why(failure), dag.file)


def _why(failure: Failure) -> str:
    if failure.reason == CODE_MISSING:
        return f"its code is not there: {failure.message}"
    return f"{failure.type}: {failure.message}"


def calendar_fire_times(
    row: DagRow, spec: DagSpec, after: Timestamp, count: int
) -> list[Timestamp]:
    """Return the next fire times of a built-in schedule; none if they depend on earlier runs.

    ``@once`` has one until its run has been created.
    """
    if spec.schedule is None or spec.schedule.gap_us is not None:
        return []
    if spec.schedule.once:
        at = next_run_at(row, spec)
        return [] if at is None or count < 1 else [at]
    if spec.start_date is not None:
        after = max(after, spec.start_date - 1)
    until = _FOREVER if spec.end_date is None else spec.end_date
    return timetable.slots_between(
        spec.schedule, spec.timezone, after=after, until=until, limit=count
    )


def next_run_at(row: DagRow, spec: DagSpec) -> Timestamp | None:
    """Return the stored next fire time if a run will be created then.

    A schedule that has ended, or whose DAG is gone, keeps its fire time but creates no run. It is
    unknown for a run that follows the end of another.
    """
    at = row.next_run_at
    if at is None or row.gone or spec.schedule is None or spec.schedule.gap_us is not None:
        return None
    return None if spec.end_date is not None and at > spec.end_date else at
