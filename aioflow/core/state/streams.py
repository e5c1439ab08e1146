"""Buffers of pending events of a trigger, and of recent items of a task's output."""

from __future__ import annotations

from collections import deque

__all__ = ("RECENT_BYTES", "EventStream", "StreamOutput")

RECENT_BYTES = 256 * 1024
"""Size of a task's most recent items in memory; children query the store for older ones."""


class EventStream:
    """The events of a trigger that fires more than once.

    Attributes:
        next_sequence: Sequence number of the next event to store.
        pending: ``(sequence, payload, key)`` of events stored and not consumed, in order.
        keys: Digests of the keys of all events ever stored.
        index: Index of the next event of the current assignment.
        taken: Events below this index were confirmed to the host as stored.
        last: Payload and key of the last event stored, for the next host of the trigger.
    """

    __slots__ = ("index", "keys", "last", "next_sequence", "pending", "pending_bytes", "taken")

    def __init__(self) -> None:
        self.next_sequence = 0
        self.pending: deque[tuple[int, bytes, str | None]] = deque()
        self.pending_bytes = 0
        self.keys: set[int] = set()
        self.index = 0
        self.taken = 0
        self.last: tuple[bytes, str | None] | None = None

    def store(self, sequence: int, payload: bytes, key: str | None) -> None:
        """Add an event until it is consumed."""
        self.pending.append((sequence, payload, key))
        self.pending_bytes += len(payload)
        self.next_sequence = sequence + 1


class StreamOutput:
    """The items that a task has yielded.

    Attributes:
        count: Number of all items.
    """

    __slots__ = ("_recent", "_size", "count")

    def __init__(self, count: int = 0) -> None:
        self.count = count
        self._recent: deque[bytes] = deque()
        self._size = 0

    def add(self, payload: bytes) -> None:
        """Add an item. Older ones are dropped beyond ``RECENT_BYTES``."""
        self.count += 1
        self._recent.append(payload)
        self._size += len(payload)
        while self._size > RECENT_BYTES:
            self._size -= len(self._recent.popleft())

    def at_hand(self, index: int) -> bytes | None:
        """Return an item if it is still in memory, else ``None``."""
        place = index - (self.count - len(self._recent))
        return self._recent[place] if 0 <= place < len(self._recent) else None
