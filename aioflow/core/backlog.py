"""Events of one trigger: what is stored and nobody has consumed, and what is known of the rest."""

from __future__ import annotations

from collections import deque

__all__ = ("Stream",)


class Stream:
    """The events of one trigger that goes on.

    Attributes:
        next_sequence: The number of the next event to be stored.
        pending: ``(sequence, payload)`` of what is stored and not consumed, in order.
        keys: Digests of the keys of all that was ever stored.
        index: The event of the present hosting that comes next.
        taken: Up to which index the host was told that its events are stored.
        last: Payload and key of the last one stored, for whoever hosts the trigger next.
    """

    __slots__ = ("index", "keys", "last", "next_sequence", "pending", "pending_bytes", "taken")

    def __init__(self) -> None:
        self.next_sequence = 0
        self.pending: deque[tuple[int, bytes]] = deque()
        self.pending_bytes = 0
        self.keys: set[int] = set()
        self.index = 0
        self.taken = 0
        self.last: tuple[bytes, str | None] | None = None

    def store(self, sequence: int, payload: bytes) -> None:
        """Keep an event until it is consumed."""
        self.pending.append((sequence, payload))
        self.pending_bytes += len(payload)
        self.next_sequence = sequence + 1
