"""Describes running triggers for the UI: what they wait for and share, and when they check."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from aioflow.author.trigger import Trigger
from aioflow.model.timestamps import Timestamp, to_timestamp
from aioflow.model.trigger_description import Watched
from aioflow.worker.crash_recorder import CrashRecorder, signed
from aioflow.worker.shared_poller import HostedWatch
from aioflow.worker.trigger_instance import HostedTrigger, Wait

__all__ = ("Describer", "public_fields_of")

_BUDGET_SECONDS = 0.05
"""Time limit for calling ``describe`` in one reply; further triggers are described without it."""

_TEXT_LENGTH = 300
_FIELDS = 100


class Describer:
    """Describes triggers for the daemon. If their code raises, that part is omitted."""

    def __init__(self, recorder: CrashRecorder) -> None:
        self._recorder = recorder
        self._texts: dict[int, str] = {}

    def keep(self, number: int, trigger: Trigger[Any]) -> None:
        """Store the description of a trigger that becomes data only, if its class has one."""
        text = self._call(number, trigger.describe) if describes(trigger) else ""
        if text:
            self._texts[number] = text

    def forget(self, number: int) -> None:
        """Drop the description of a data-only trigger that has ended."""
        self._texts.pop(number, None)

    def describe(
        self, numbers: Sequence[int], hosted: Mapping[int, HostedTrigger | Wait]
    ) -> tuple[tuple[int, Watched], ...]:
        """Describe those of these triggers that are in this process."""
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
    ) -> Watched:
        watch: HostedWatch | None = wait.watch
        if watch is not None and watch not in checks:
            checks[watch] = watch.next_check(self._recorder), watch.last_check(self._recorder)
        next_at, last_at = (None, None) if watch is None else checks[watch]
        return Watched(
            0 if watch is None else watch.count - 1,
            next_at,
            last_at,
            text=self._texts.get(wait.number, ""),
            public=wait.kind.public,
        )

    def _coroutine(self, hosted: HostedTrigger, may_ask: bool) -> Watched:
        trigger = hosted.trigger
        if trigger is None:
            return Watched(0, None, public=hosted.kind.public)
        last, following, note = trigger._hosted_check or (None, None, "")  # noqa: SLF001
        text = ""
        if may_ask and describes(trigger):
            text = self._call(hosted.number, trigger.describe)
        return Watched(
            0, _instant(following), _instant(last), text, note[:_TEXT_LENGTH], hosted.kind.public
        )

    def _call(self, number: int, describe: Callable[[], object]) -> str:
        """Return a trigger's description of itself. Runs user code, but does not raise."""
        try:
            with signed(self._recorder, number):
                return str(describe() or "")[:_TEXT_LENGTH]
        except BaseException:  # noqa: BLE001 - user code may raise anything, and it is only shown
            return ""


def describes(trigger: Trigger[Any]) -> bool:
    """Return whether the class of a trigger defines ``describe``."""
    return type(trigger).describe is not Trigger.describe


def public_fields_of(trigger: Trigger[Any]) -> tuple[str, ...]:
    """Return the fields that a trigger's class declares public; none if invalid."""
    declared: object = type(trigger).public_fields
    if isinstance(declared, str):
        return ()
    try:
        return tuple(map(str, declared))[:_FIELDS]  # type: ignore[call-overload]
    except Exception:  # noqa: BLE001 - user code may put anything there, and it is only shown
        return ()


def _instant(moment: datetime | None) -> Timestamp | None:
    return None if moment is None else to_timestamp(moment)
