"""Descriptions of triggers for the UI: what they wait for and share, and when they check or fire.

The fire times of a custom timetable can be computed only here, because that runs user code.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from aioflow.author.schedule import TimetableTrigger
from aioflow.author.trigger import Trigger
from aioflow.model.states import Failure
from aioflow.model.timestamps import Timestamp, to_datetime, to_timestamp
from aioflow.model.triggers import TriggerDescription
from aioflow.protocol.commands import PreviewFireTimes
from aioflow.protocol.reports import FireTimesPreviewed, NextFireTime
from aioflow.worker.crash_recorder import CrashRecorder, signed
from aioflow.worker.failures import failure_of, print_traceback
from aioflow.worker.shared_host import ReportBuffer
from aioflow.worker.task_supervisor import UserCoroutine
from aioflow.worker.trigger.factory import LOAD, TriggerMaker
from aioflow.worker.trigger.instance import HostedTrigger, Wait
from aioflow.worker.trigger.shared_poller import HostedWatch

__all__ = (
    "Describer",
    "FireTimePreview",
    "public_fields_of",
    "report_next_fire_time",
)

_BUDGET_SECONDS = 0.05
"""Time limit for all calls of ``describe`` in one reply.

Further triggers are described without it.
"""

_TEXT_LENGTH = 300
_FIELDS = 100


class Describer:
    """Describes triggers for the daemon. If the code of a trigger raises, its part is omitted."""

    def __init__(self, recorder: CrashRecorder) -> None:
        self._recorder = recorder
        self._texts: dict[int, str] = {}

    def keep(self, number: int, trigger: Trigger[Any]) -> None:
        """Store the description of a trigger that is now held as data, if its class has one."""
        text = self._call(number, trigger.describe) if describes(trigger) else ""
        if text:
            self._texts[number] = text

    def forget(self, number: int) -> None:
        """Drop the description of a trigger that was held as data and has ended."""
        self._texts.pop(number, None)

    def describe(
        self, numbers: Sequence[int], hosted: Mapping[int, HostedTrigger | Wait]
    ) -> tuple[tuple[int, TriggerDescription], ...]:
        """Describe the triggers in ``numbers`` that are in this process."""
        until = time.monotonic() + _BUDGET_SECONDS
        checks: dict[HostedWatch, tuple[Timestamp | None, Timestamp | None]] = {}
        described = []
        for number in numbers:
            one = hosted.get(number)
            if isinstance(one, Wait):
                described.append((number, self._data(one, checks)))
            elif one is not None:
                described.append((number, self._coroutine(one, time.monotonic() < until)))
        return tuple(described)

    def _data(
        self, wait: Wait, checks: dict[HostedWatch, tuple[Timestamp | None, Timestamp | None]]
    ) -> TriggerDescription:
        watch: HostedWatch | None = wait.watch
        if watch is not None and watch not in checks:
            checks[watch] = watch.next_check(self._recorder), watch.last_check(self._recorder)
        next_at, last_at = (None, None) if watch is None else checks[watch]
        return TriggerDescription(
            0 if watch is None else watch.count - 1,
            next_at,
            last_at,
            text=self._texts.get(wait.number, ""),
            public=wait.kind.public,
        )

    def _coroutine(self, hosted: HostedTrigger, may_ask: bool) -> TriggerDescription:
        trigger = hosted.trigger
        if trigger is None:
            return TriggerDescription(0, None, public=hosted.kind.public)
        last, following, note = trigger._hosted_check or (None, None, "")  # noqa: SLF001
        text = ""
        if may_ask and describes(trigger):
            text = self._call(hosted.number, trigger.describe)
        return TriggerDescription(
            0,
            _timestamp_or_none(following),
            _timestamp_or_none(last),
            text,
            note[:_TEXT_LENGTH],
            hosted.kind.public,
        )

    def _call(self, number: int, describe: Callable[[], object]) -> str:
        """Return a trigger's own description. Runs user code, but does not raise."""
        try:
            with signed(self._recorder, number):
                return str(describe() or "")[:_TEXT_LENGTH]
        except BaseException:  # noqa: BLE001 - user code may raise anything, and it is only shown
            return ""


def describes(trigger: Trigger[Any]) -> bool:
    """Return whether the class of a trigger defines ``describe``."""
    return type(trigger).describe is not Trigger.describe


def public_fields_of(trigger: Trigger[Any]) -> tuple[str, ...]:
    """Return the fields that a trigger's class declares public; empty if they are invalid."""
    declared: object = type(trigger).public_fields
    if isinstance(declared, str):
        return ()
    try:
        return tuple(map(str, declared))[:_FIELDS]  # type: ignore[call-overload]
    except Exception:  # noqa: BLE001 - user code may put anything there, and it is only shown
        return ()


def _timestamp_or_none(moment: datetime | None) -> Timestamp | None:
    return None if moment is None else to_timestamp(moment)


_TIMETABLE_STAGE = "timetable"
"""Failure reason for errors of the timetable itself."""

TIMEOUT = "timeout"


class FireTimePreview(UserCoroutine):
    """A preview request for a timetable.

    It runs beside the triggers, and is attributed to the timetable in logs and crash reports.
    """

    __slots__ = ("_command", "_stage")

    def __init__(self, command: PreviewFireTimes) -> None:
        super().__init__()
        self._command = command
        self._stage = LOAD

    @property
    def number(self) -> int:
        """The number of the timetable, to which a crash or a blocked loop is attributed."""
        return self._command.host.trigger_no

    @property
    def key(self) -> tuple[int, int]:
        """The key of the timetable's log, which receives the output of its code."""
        return self.number, self._command.host.assignment_id

    @property
    def run_no(self) -> int:
        """The run on whose behalf the timetable queries."""
        return self._command.host.run_no

    async def answer(self, maker: TriggerMaker, reports: ReportBuffer) -> None:
        """Compute the fire times, and report them or the failure to the daemon."""
        number, limit = self._command.question, asyncio.timeout(self._command.limit_seconds)
        try:
            async with limit:
                said = FireTimesPreviewed(number, await self._fire_times(maker))
        except BaseException as exc:  # noqa: BLE001 - user code may raise anything
            said = FireTimesPreviewed(number, failure=self._failure(exc, is_late=limit.expired()))
            print_traceback(exc)
        reports.report(said)

    async def _fire_times(self, maker: TriggerMaker) -> tuple[int, ...]:
        command = self._command
        trigger = await maker.make(command.host, self._enter)
        if not isinstance(trigger, TimetableTrigger):
            raise TypeError(f"{command.host.class_path} is not a timetable")
        self._enter(_TIMETABLE_STAGE)
        fire_times = await trigger.preview(to_datetime(command.after), command.count)
        return tuple(to_timestamp(fire_time) for fire_time in fire_times)

    def _enter(self, stage: str) -> None:
        self._stage = stage

    def _failure(self, problem: BaseException, *, is_late: bool) -> Failure:
        if is_late:
            message = f"it took longer than {self._command.limit_seconds:g} s"
            return Failure(type="TimeoutError", message=message, reason=TIMEOUT)
        return failure_of(problem, self._stage)


def report_next_fire_time(trigger: object, of: tuple[int, int], reports: ReportBuffer) -> None:
    """Report to the daemon the fire time that a timetable waits for. Other triggers are ignored."""
    if isinstance(trigger, TimetableTrigger):
        trigger.expect_by(
            lambda fire_time: reports.report(
                NextFireTime(*of, None if fire_time is None else to_timestamp(fire_time))
            )
        )
