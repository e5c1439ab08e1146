"""Invariants of the search for a trigger that kills the daemon, and of what remains of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from aioflow.core.state.crash_trials import DAEMON
from aioflow.model.rows import OutboxRow
from aioflow.protocol.effects import AssignTrigger, Effect
from aioflow.protocol.outbox import TRIAL, Trial
from tests.sim.broken import Broken

__all__ = ("goes_by_itself", "suspects_are_hosted_in_turn")


def suspects_are_hosted_in_turn(
    node: Any, trials: Sequence[Trial | None], effects: Iterable[Effect]
) -> None:
    """Check that only the group on trial is hosted of all suspected triggers.

    Args:
        trials: The trial at the beginning of the turn and the trial at its end; ``None`` for none.
    """
    for effect in effects:
        if isinstance(effect, AssignTrigger):
            number = effect.host.trigger_no
            node.points["hosted on trial"] += all(
                trial is not None and trial.spans for trial in trials
            )
            if not any(_lets_host(trial, number) for trial in trials):
                raise Broken("trials", f"trigger {number} is hosted during {trials}")


def _lets_host(trial: Trial | None, number: int) -> bool:
    """Return whether a trial, according to its row, allows a trigger to be hosted."""
    if trial is None or trial.process != DAEMON or not trial.groups or not trial.spans:
        return True
    on_trial = trial.spans[0]
    if not trial.has_begun or not on_trial.first <= number < on_trial.end:
        return False
    return on_trial.count == 1 or all(number != tried for tried, _ in trial.alone)


def goes_by_itself(row: OutboxRow) -> bool:
    """Return whether an outbox row will be deleted in the end without further input.

    A trial without suspects is not deleted while it bars DAG triggers: it waits until their files
    change.
    """
    if row.kind != TRIAL:
        return True
    trial = msgspec.msgpack.decode(row.body, type=Trial)
    return bool(trial.groups or trial.alone or trial.deaths or not trial.barred)
