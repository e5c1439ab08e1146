"""What a campaign must have met: a campaign in which nothing happens proves nothing.

Every kind of input meets every outcome of a commit, so often; what cannot happen is excluded
by name.
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
        "ResultWriteFailed",
        "TriggerCapacityChanged",
        "LoopBlocked",
        "PauseTriggers",
        "WorkerUnresponsive",
    )
}
"""By outcome and kind of input, the reason."""

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
    """Return what was met less than ``least`` times, with how often it was."""
    wanted = [
        f"{outcome} / {kind}"
        for outcome in OUTCOMES
        for kind in KINDS_OF_INPUT
        if (outcome, kind) not in CANNOT_HAPPEN
    ]
    return {name: points[name] for name in (*wanted, *EVENTS) if points[name] < least}
