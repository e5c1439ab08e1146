"""What is owed to the world outside: the bodies of outbox rows."""

from __future__ import annotations

import msgspec

from aioflow.model import Instant, RunNo

__all__ = ("DEADLINE", "Alert", "Deadline")

DEADLINE = "deadline"
"""The kind of the outbox rows that wait for an instant, see ``Deadline``."""


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """An owed word to the people on call: the body of an outbox row of kind ``alert``."""

    reason: str
    dag_id: str
    run_id: str
    task_id: str
    message: str


class Deadline(msgspec.Struct, frozen=True, array_like=True):
    """A word that is owed if something of a run has not ended by then: the body of such a row."""

    run_no: RunNo
    at: Instant
