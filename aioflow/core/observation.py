"""Observation of the active node by a standby, to decide whether the active node is dead.

Each poll reads the counters of the active node, which change with each of its commits and
heartbeats. Silence is measured with the monotonic clock of the observer, and only while the
observer polls in time. So an observer that slept, or a database that was unavailable, does not
cause a living node to be declared dead.
"""

from __future__ import annotations

import msgspec

from aioflow.model.rows import NodeMark

__all__ = ("Poll", "Timing", "Watch", "is_silent", "observed", "pause_us")


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an observer, in microseconds.

    Attributes:
        heartbeat_us: Interval of its heartbeats. It polls twice per interval.
        lease_us: Silence after which a node is dead.
        quick_lease_us: Silence after which a node without database sessions is dead.
    """

    heartbeat_us: int
    lease_us: int
    quick_lease_us: int


class Poll(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one poll of the active node.

    Attributes:
        at: When the poll began, in microseconds of the monotonic clock.
        answered_at: When the response arrived. The values were read between ``at`` and this time.
        heartbeat_us: The heartbeat interval that the active node has stored.
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
    """State of the observation of the active node.

    Attributes:
        since: Start of the current silence.
        polled_at: Time of the last poll.
        has_shown_sessions: Whether a session of this node was ever seen. Only then is the absence
            of sessions evidence of its death.
        due: When the silence will have lasted too long, if it continues.
        absences: Number of consecutive polls without a session.
    """

    mark: NodeMark
    since: int
    polled_at: int
    has_shown_sessions: bool
    due: int
    absences: int = 0

    @property
    def is_dead(self) -> bool:
        """Whether the active node has been silent for too long."""
        return self.polled_at >= self.due


_POLLS_PER_HEARTBEAT = 2
_POLLS_WITHOUT_SESSIONS = 2
_HEARTBEATS_IN_LEASE = 4
_LEASES_OF_WORK = 3


def observed(watch: Watch | None, poll: Poll | None, timing: Timing) -> Watch | None:
    """Return the state of the observation after a poll.

    Args:
        watch: The state before the poll; ``None`` at the start.
        poll: The poll; ``None`` if it failed, or if no node is active.
    """
    if poll is None:
        return None
    is_same = watch is not None and watch.mark[:2] == poll.mark[:2]
    has_shown = poll.has_sessions or (watch is not None and is_same and watch.has_shown_sessions)
    is_late = watch is None or poll.at - watch.polled_at > 2 * timing.heartbeat_us
    if watch is None or watch.mark != poll.mark or is_late:
        since, absences = poll.answered_at, 0  # the mark may have been read as late as this
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
    """Return the time to the next poll: half a heartbeat, or less if the node may be dead sooner.

    Args:
        at: When the last poll began.
    """
    longest = timing.heartbeat_us // _POLLS_PER_HEARTBEAT
    if watch is None or watch.due <= at:
        return longest
    return min(longest, watch.due - at)


def is_silent(watch: Watch, timing: Timing) -> bool:
    """Return whether the active node is silent for long enough that a takeover is to be expected.

    This is the case before the node counts as dead. It is shown to users, and reads are no longer
    forwarded to the node, but it does not cause a takeover.
    """
    is_gone = watch.has_shown_sessions and watch.absences > 0
    return is_gone or watch.polled_at - watch.since >= timing.lease_us // 2


def _patience_us(poll: Poll, timing: Timing, *, is_gone: bool) -> int:
    """Return how long the node may be silent before it counts as dead."""
    if poll.is_working:  # slow is not dead: the server is working on a query
        return max(_LEASES_OF_WORK * timing.lease_us, _HEARTBEATS_IN_LEASE * poll.heartbeat_us)
    if is_gone:
        return min(timing.quick_lease_us, timing.lease_us)
    return max(timing.lease_us, _HEARTBEATS_IN_LEASE * poll.heartbeat_us)
