"""Previews the next fire times of a timetable, which only its user code can compute."""

from __future__ import annotations

import asyncio

from aioflow.author.timetables import TimetableTrigger
from aioflow.model.states import Failure
from aioflow.model.timestamps import to_datetime, to_timestamp
from aioflow.protocol.commands import PreviewFireTimes
from aioflow.protocol.reports import FireTimesPreviewed, NextFireTime
from aioflow.worker.failures import failure_of, print_traceback
from aioflow.worker.shared_host import ReportBuffer
from aioflow.worker.task_supervisor import UserCoroutine
from aioflow.worker.trigger_factory import LOAD, TriggerMaker

__all__ = ("FireTimePreview", "report_next_fire_time")

_TIMETABLE = "timetable"
"""Failure reason for errors of the timetable itself."""

TIMEOUT = "timeout"


class FireTimePreview(UserCoroutine):
    """A preview request for a timetable.

    Runs beside the triggers, and is attributed to the timetable in logs and crash reports.
    """

    __slots__ = ("_command", "_stage")

    def __init__(self, command: PreviewFireTimes) -> None:
        super().__init__()
        self._command = command
        self._stage = LOAD

    @property
    def number(self) -> int:
        """See ``UserCoroutine``: a crash or a blocked loop is attributed to the timetable."""
        return self._command.host.trigger_no

    @property
    def key(self) -> tuple[int, int]:
        """See ``UserCoroutine``."""
        return self.number, self._command.host.hosting

    @property
    def run_no(self) -> int:
        """The run on whose behalf it queries."""
        return self._command.host.run_no

    async def answer(self, maker: TriggerMaker, reports: ReportBuffer) -> None:
        """Ask the timetable, and report the fire times or the failure to the daemon."""
        number, limit = self._command.question, asyncio.timeout(self._command.limit_seconds)
        try:
            async with limit:
                said = FireTimesPreviewed(number, await self._slots(maker))
        except BaseException as exc:  # noqa: BLE001 - user code may raise anything
            said = FireTimesPreviewed(number, failure=self._failure(exc, is_late=limit.expired()))
            print_traceback(exc)
        reports.report(said)

    async def _slots(self, maker: TriggerMaker) -> tuple[int, ...]:
        command = self._command
        trigger = await maker.make(command.host, self._enter)
        if not isinstance(trigger, TimetableTrigger):
            raise TypeError(f"{command.host.class_path} is no timetable")
        self._enter(_TIMETABLE)
        slots = await trigger.foresee(to_datetime(command.after), command.count)
        return tuple(to_timestamp(slot) for slot in slots)

    def _enter(self, stage: str) -> None:
        self._stage = stage

    def _failure(self, problem: BaseException, *, is_late: bool) -> Failure:
        if is_late:
            message = f"it took longer than {self._command.limit_seconds:g} s"
            return Failure(type="TimeoutError", message=message, reason=TIMEOUT)
        return failure_of(problem, self._stage)


def report_next_fire_time(trigger: object, of: tuple[int, int], reports: ReportBuffer) -> None:
    """Report to the daemon the fire time a timetable waits for; ignore other triggers."""
    if isinstance(trigger, TimetableTrigger):
        trigger.expect_by(
            lambda slot: reports.report(
                NextFireTime(*of, None if slot is None else to_timestamp(slot))
            )
        )
