"""Observation of the active node by a standby: whether it is dead.

Each poll reads the counters of the active node. They change with each of its commits and
heartbeats. Only the monotonic clock of the observer counts, and only while it polls in time, so
that an observer that slept, or a database that was away, declares no living node dead.
"""

from __future__ import annotations

import msgspec

from aioflow.model.rows import NodeMark

__all__ = ("Poll", "Timing", "Watch", "is_silent", "observed", "pause_us")


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an observer, in microseconds.

    Attributes:
        heartbeat_us: Interval of its heartbeats. It polls twice as often.
        lease_us: Silence after which a node is dead.
        quick_lease_us: The same for a node whose database sessions are gone.
    """

    heartbeat_us: int
    lease_us: int
    quick_lease_us: int


class Poll(msgspec.Struct, frozen=True, kw_only=True):
    """What one poll read about the active node.

    Attributes:
        at: When the poll began, in microseconds of the monotonic clock.
        answered_at: When its answer had arrived. What it says was true at some time in between.
        heartbeat_us: The interval of the heartbeats of that node, as it says itself.
        has_sessions: Whether the server has a session in which this node writes.
        is_working: Whether the server executes a statement for such a session.
    """

    at: int
    answered_at: int
    mark: NodeMark
    heartbeat_us: int
    has_sessions: bool
    is_working: bool


class Watch(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about the active node since its counters last changed.

    Attributes:
        since: When the silence began to count.
        polled_at: Time of the last poll.
        has_shown_sessions: A session of this node was seen at some time, so its absence is a sign.
        due: When it will have been silent for too long, as far as is known.
        absences: Number of polls in a row without a session.
    """

    mark: NodeMark
    since: int
    polled_at: int
    has_shown_sessions: bool
    due: int
    absences: int = 0

    @property
    def is_dead(self) -> bool:
        """Whether it has been silent for too long."""
        return self.polled_at >= self.due


_POLLS_PER_HEARTBEAT = 2
_POLLS_WITHOUT_SESSIONS = 2
_HEARTBEATS_IN_LEASE = 4
_LEASES_OF_WORK = 3


def observed(watch: Watch | None, poll: Poll | None, timing: Timing) -> Watch | None:
    """Return what is known after a poll.

    Args:
        watch: What was known; ``None`` at the beginning.
        poll: The poll; ``None`` if it failed, or if no node is active.
    """
    if poll is None:
        return None
    is_same = watch is not None and watch.mark[:2] == poll.mark[:2]
    has_shown = poll.has_sessions or (watch is not None and is_same and watch.has_shown_sessions)
    is_late = watch is None or poll.at - watch.polled_at > 2 * timing.heartbeat_us
    if watch is None or watch.mark != poll.mark or is_late:
        since, absences = poll.answered_at, 0  # the mark may have been read only then
    else:
        since, absences = watch.since, 0 if poll.has_sessions else watch.absences + 1
    is_gone = has_shown and absences >= _POLLS_WITHOUT_SESSIONS
    return Watch(
        mark=poll.mark,
        since=since,
        polled_at=poll.at,
        has_shown_sessions=has_shown,
        due=since + _patience_us(poll, timing, is_gone=is_gone),
        absences=absences,
    )


def pause_us(watch: Watch | None, at: int, timing: Timing) -> int:
    """Return how long to wait for the next poll: half a heartbeat, or until the node may be dead.

    Args:
        at: When the last poll began.
    """
    longest = timing.heartbeat_us // _POLLS_PER_HEARTBEAT
    if watch is None or watch.due <= at:
        return longest
    return min(longest, watch.due - at)


def is_silent(watch: Watch, timing: Timing) -> bool:
    """Return whether the active node gives reason to expect a takeover.

    That is earlier than it is dead, and decides nothing: it is shown to people, and reads are no
    longer passed on.
    """
    is_gone = watch.has_shown_sessions and watch.absences > 0
    return is_gone or watch.polled_at - watch.since >= timing.lease_us // 2


def _patience_us(poll: Poll, timing: Timing, *, is_gone: bool) -> int:
    """Return the silence after which the node is dead."""
    if poll.is_working:  # slow is not dead: the server works for it
        return max(_LEASES_OF_WORK * timing.lease_us, _HEARTBEATS_IN_LEASE * poll.heartbeat_us)
    if is_gone:
        return min(timing.quick_lease_us, timing.lease_us)
    return max(timing.lease_us, _HEARTBEATS_IN_LEASE * poll.heartbeat_us)
