"""What has come and is not needed yet: events of a trigger, items of a task's output."""

from __future__ import annotations

from collections import deque

__all__ = ("RECENT_BYTES", "EventStream", "StreamOutput")

RECENT_BYTES = 256 * 1024
"""Items of one task that stay at hand for whoever takes them; the others are asked for."""


class EventStream:
    """The events of one trigger that goes on.

    Attributes:
        next_sequence: The number of the next event to be stored.
        pending: ``(sequence, payload, key)`` of what is stored and not consumed, in order.
        keys: Digests of the keys of all that was ever stored.
        index: The event of the present hosting that comes next.
        taken: Up to which index the host was told that its events are stored.
        last: Payload and key of the last one stored, for whoever hosts the trigger next.
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
        """Keep an event until it is consumed."""
        self.pending.append((sequence, payload, key))
        self.pending_bytes += len(payload)
        self.next_sequence = sequence + 1


class StreamOutput:
    """The items a task has given on.

    Attributes:
        count: Of all of them.
    """

    __slots__ = ("_recent", "_size", "count")

    def __init__(self, count: int = 0) -> None:
        self.count = count
        self._recent: deque[bytes] = deque()
        self._size = 0

    def add(self, payload: bytes) -> None:
        """Another one; it stays at hand for a while."""
        self.count += 1
        self._recent.append(payload)
        self._size += len(payload)
        while self._size > RECENT_BYTES:
            self._size -= len(self._recent.popleft())

    def at_hand(self, index: int) -> bytes | None:
        """Return an item, if it is still there."""
        place = index - (self.count - len(self._recent))
        return self._recent[place] if 0 <= place < len(self._recent) else None
