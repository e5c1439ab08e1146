"""What is owed, handed out a few of each kind at a time; the rest stays in its rows.

A hundred thousand callbacks of one DAG take as much memory as a hundred, and none of another DAG,
and no alert, stands behind them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from aioflow.protocol.inputs import Input, OutboxLoaded

__all__ = ("EMPTY", "WINDOW", "OutboxQuota", "backlog", "wanted")

WINDOW = 100
"""How many of a kind are handed out at once; at half of it more are read."""


class OutboxQuota(msgspec.Struct, frozen=True):
    """What is owed of one kind.

    Attributes:
        handed: How many are handed out, and not said to be done.
        waiting: How many rows there are besides these; all have higher numbers.
        after: The highest number that was handed out.
        is_reading: Whether the next rows are on their way.
    """

    handed: int = 0
    waiting: int = 0
    after: int = -1
    is_reading: bool = False

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is owed."""
        return not (self.handed or self.waiting or self.is_reading)

    @property
    def has_room(self) -> bool:
        """Whether what begins to be owed may be handed out at once."""
        return not self.waiting and self.handed < WINDOW

    @property
    def wants_more(self) -> bool:
        """Whether rows should be read."""
        return self.waiting > 0 and self.handed <= WINDOW // 2 and not self.is_reading


EMPTY = OutboxQuota()


def wanted(inputs: Iterable[Input], lanes: Mapping[str, OutboxQuota]) -> dict[str, tuple[int, int]]:
    """Return what a turn needs of the outbox: by kind behind which number, and how many rows."""
    kinds = {entry.kind for entry in inputs if isinstance(entry, OutboxLoaded)}
    return {
        kind: (lanes[kind].after, WINDOW - lanes[kind].handed) for kind in kinds if kind in lanes
    }


def backlog(lanes: Mapping[str, OutboxQuota]) -> dict[str, int]:
    """Return how many are owed of each kind."""
    return {kind: lane.handed + lane.waiting for kind, lane in lanes.items()}
