"""Limits on the outbox entries in flight per kind. The other entries exist only as rows.

A hundred thousand callbacks of one DAG therefore need no more memory than a hundred. They delay
neither alerts nor the callbacks of other DAGs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from aioflow.protocol.inputs import Input, OutboxLoaded

__all__ = ("EMPTY", "WINDOW", "OutboxQuota", "backlog", "wanted")

WINDOW = 100
"""Maximum number of entries of a kind in flight. When half of them are done, more are read."""


class OutboxQuota(msgspec.Struct, frozen=True):
    """The outbox entries of one kind: how many are in flight, and how many wait.

    Attributes:
        in_flight: Number of entries that were handed out and not yet reported as done.
        waiting: Number of rows that are not in flight yet. Their numbers are above ``after``.
        after: Highest number of an entry that was handed out.
        is_reading: Whether the next rows are being read.
    """

    in_flight: int = 0
    waiting: int = 0
    after: int = -1
    is_reading: bool = False

    @property
    def is_over(self) -> bool:
        """Whether no entry is in flight or waiting."""
        return not (self.in_flight or self.waiting or self.is_reading)

    @property
    def has_capacity(self) -> bool:
        """Whether a new entry may be handed out immediately."""
        return not self.waiting and self.in_flight < WINDOW

    @property
    def wants_more(self) -> bool:
        """Whether more rows should be read."""
        return self.waiting > 0 and self.in_flight <= WINDOW // 2 and not self.is_reading


EMPTY = OutboxQuota()


def wanted(
    inputs: Iterable[Input], quotas: Mapping[str, OutboxQuota]
) -> dict[str, tuple[int, int]]:
    """Return the outbox rows to read for a turn: for each kind, after which number and how many."""
    kinds = {entry.kind for entry in inputs if isinstance(entry, OutboxLoaded)}
    return {
        kind: (quotas[kind].after, WINDOW - quotas[kind].in_flight)
        for kind in kinds
        if kind in quotas
    }


def backlog(quotas: Mapping[str, OutboxQuota]) -> dict[str, int]:
    """Return the number of outbox entries by kind."""
    return {kind: quota.in_flight + quota.waiting for kind, quota in quotas.items()}
