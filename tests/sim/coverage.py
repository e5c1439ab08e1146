"""Coverage goals of a campaign. A campaign in which nothing happens proves nothing.

Each kind of input must meet each outcome of a commit a minimum number of times. Impossible
combinations are excluded by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import get_args

from aioflow.protocol.inputs import Input

__all__ = ("CANNOT_HAPPEN", "EVENTS", "KINDS_OF_INPUT", "OUTCOMES", "short")

OUTCOMES = (
    "ok",
    "failed",
    "reply lost",
    "crash before",
    "crash after",
    "delayed",
    "refused",
    "fenced",
)

KINDS_OF_INPUT = tuple(kind.__name__ for kind in get_args(Input))

CANNOT_HAPPEN: Mapping[tuple[str, str], str] = {
    (outcome, kind): "it changes no row, so it is in a commit by accident"
    for outcome in OUTCOMES
    for kind in (
        "PreviousRunLoaded",
        "IsolateTriggerClass",
        "MigrateTriggers",
        "BodyReturned",
        "ResultWriteFailed",
        "TriggerCapacityChanged",
        "LoopBlocked",
        "PauseTriggers",
        "WorkerUnresponsive",
        "WorkerUp",
        "WorkerGone",
        "WorkerIdle",
        "ExecutorUnavailable",
    )
}
"""Why a combination is impossible, by outcome and kind of input."""

EVENTS = (
    "restart",
    "stop",
    "fenced write",
    "fenced repeat",
    "report of the dead",
    "refused for good",
    "retry",
    "event consumed",
    "expansion",
    "run ended",
)


def short(points: Counter[str], least: int) -> dict[str, int]:
    """Return the points reached less than ``least`` times, with their counts."""
    wanted = [
        f"{outcome} / {kind}"
        for outcome in OUTCOMES
        for kind in KINDS_OF_INPUT
        if (outcome, kind) not in CANNOT_HAPPEN
    ]
    return {name: points[name] for name in (*wanted, *EVENTS) if points[name] < least}
