"""A standby: watches the active node, and takes over when that node has left or is dead."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias

import msgspec

from aioflow.clock import Clock
from aioflow.core.observation import Poll, Timing, Watch, is_silent, observed, pause_us
from aioflow.engine.loop import Engine
from aioflow.engine.role import active_role
from aioflow.errors import HomeBusy, StoreUnavailable
from aioflow.errors.runtime import ANOTHER_DATABASE
from aioflow.model.nodes import ActiveCommit, ActiveState, NodeRole, NodeStatus
from aioflow.model.rows import NodeFacts, NodeMark
from aioflow.settings import Settings
from aioflow.store.membership import ActiveNode, Joined, Membership
from aioflow.store.takeover import HEARTBEAT_SECONDS
from aioflow.telemetry.log import Logger

__all__ = (
    "REJOINS",
    "REJOIN_SECONDS",
    "NodeCounts",
    "Rejoins",
    "Standby",
    "StatusReader",
    "timing_of",
)

_log = Logger(__name__)

_SILENCE_US = 5_000_000  # between two log lines about an outage

TakeOver: TypeAlias = Callable[[NodeFacts], Awaitable[None]]
"""Claims the database.

Raises:
    HomeBusy: If the node to take over from is alive, or another node was faster.
    StoreUnavailable: If it is unknown whether the claim was made.
"""


def timing_of(settings: Settings) -> Timing:
    """Return the timing of an observer."""
    return Timing(
        heartbeat_us=round(settings.ha_heartbeat_seconds * 1e6),
        lease_us=round(settings.ha_lease_seconds * 1e6),
        quick_lease_us=round(settings.ha_quick_lease_seconds * 1e6),
    )


class Standby:
    """Watches the active node on the monotonic clock; see ``core.observation``.

    Args:
        about: The facts about this node.
        where: The database, for messages.
        is_warm: Returns whether this node answers requests. It sends no heartbeats before, so that
            others see that it is joining.

    Attributes:
        active: The active node at the last poll; ``None`` if there was none, or no answer.
        active_commit: The last commit of the active node at that poll.
        node_no: The number of this node, once it has joined.
    """

    def __init__(
        self,
        membership: Membership,
        clock: Clock,
        timing: Timing,
        about: NodeFacts,
        where: str,
        *,
        is_warm: Callable[[], bool] = lambda: True,
    ) -> None:
        self._membership = membership
        self._clock = clock
        self._timing = timing
        self._about = about
        self._where = where
        self._has_been_warm = False
        self._is_warm = is_warm
        self._is_away = False
        self._joined: Joined | None = None
        self._watch: Watch | None = None
        self._twin: NodeMark | None = None
        self._silent_until = self._next_heartbeat = 0
        self.active: ActiveNode | None = None
        self.active_commit: ActiveCommit | None = None

    @property
    def node_no(self) -> int | None:
        """The number of this node, once it has joined."""
        return None if self._joined is None else self._joined.node_no

    @property
    def epoch(self) -> int | None:
        """The term of this node, once it has joined."""
        return None if self._joined is None else self._joined.epoch

    @property
    def is_joining(self) -> bool:
        """Whether this node has sent no heartbeat yet."""
        return not self._has_been_warm

    @property
    def active_state(self) -> ActiveState:
        """The state of the active node at the last poll."""
        if self._is_away:
            return ActiveState.UNKNOWN
        if self.active is None:
            return ActiveState.MISSING
        watch = self._watch
        is_quiet = watch is not None and is_silent(watch, self._timing)
        return ActiveState.SILENT if is_quiet else ActiveState.ALIVE

    @property
    def silent_seconds(self) -> float:
        """How long the active node has given no sign of life; 0 without an active node."""
        watch = self._watch
        return 0.0 if watch is None else (self._clock.monotonic_us() - watch.since) / 1e6

    async def wait(self, take_over: TakeOver) -> None:
        """Wait until this node has claimed the database.

        Raises:
            Fenced: If another daemon has the identity of this home, or the node was removed.
            HomeBusy: If another daemon with the identity of this home is active.
        """
        while True:
            began = self._clock.monotonic_us()
            if await self._poll(take_over):
                return
            took_us = self._clock.monotonic_us() - began
            wait_us = pause_us(self._watch, began, self._timing)
            await self._clock.sleep(max(wait_us - took_us, 0) / 1e6)

    async def _poll(self, take_over: TakeOver) -> bool:
        """Poll once. Return whether this node has claimed the database."""
        at = self._clock.monotonic_us()
        try:
            self.active = active = await self._membership.find_active()
            answered_at = self._clock.monotonic_us()
            self.active_commit = _commit_of(active, at)
            self._is_away = False
            if active is None and self._joined is not None and await self._leaves_it_to_another():
                await self._heartbeat(at)
                return False
            if active is None or active.home == self._about.home:
                return self._is_free(active) and await self._claim(take_over, None)
            if self._about.is_forced:
                return await self._claim(take_over, active.mark)
            if self._joined is None:
                self._joined = await self._membership.join(self._about)
                _log.info("stands by", node=self.node_no, active=active.name)
            await self._heartbeat(at)
        except StoreUnavailable as exc:
            self.active, self.active_commit, self._is_away = None, None, True
            self._watch = observed(self._watch, None, self._timing)
            if at >= self._silent_until:
                self._silent_until = at + _SILENCE_US
                _log.warning("the database cannot be watched", error=str(exc))
            return False
        self._silent_until = 0
        self._watch = observed(self._watch, _poll_of(active, at, answered_at), self._timing)
        if self._watch is None or not self._watch.is_dead:
            return False
        if await self._leaves_it_to_another():
            return False
        _log.warning("the active node is silent, taking over", dead=active.name)
        return await self._claim(take_over, active.mark)

    async def _heartbeat(self, at: int) -> None:
        """Send a heartbeat of this node if one is due.

        Raises:
            Fenced: If another daemon has the identity of this home, or the node was removed.
        """
        self._has_been_warm = self._has_been_warm or self._is_warm()
        if self._has_been_warm and at >= self._next_heartbeat:
            self._next_heartbeat = at + self._timing.heartbeat_us
            await self._membership.heartbeat(self._clock.now())

    async def _leaves_it_to_another(self) -> bool:
        """Return whether this standby is drained while another one can take over."""
        try:
            return await self._membership.is_drained() and await self._membership.has_standby()
        except StoreUnavailable:
            return False

    def _is_free(self, active: ActiveNode | None) -> bool:
        """Return whether no node is active, or only the earlier daemon of this home.

        The earlier daemon has ended, since this one has locked the home, but its sessions may
        outlive it. If it commits nevertheless, the home was copied together with its identity.

        Raises:
            HomeBusy: If the home was copied.
        """
        if active is None or not active.has_sessions:
            return True
        self._twin = self._twin or active.mark
        if self._twin != active.mark:
            raise HomeBusy(self._where, "with a copy of this home", ANOTHER_DATABASE)
        return False

    async def _claim(self, take_over: TakeOver, after: NodeMark | None) -> bool:
        is_own = self.active is not None and self.active.home == self._about.home
        joined = 0 if self._joined is None or is_own else self._joined.epoch
        try:
            await take_over(msgspec.structs.replace(self._about, after=after, joined_epoch=joined))
        except HomeBusy:
            _log.info("another node is active")
            self._watch = None
            return False
        except StoreUnavailable as exc:
            _log.warning("the takeover failed, trying again", error=str(exc))
            # The claim may have been made. This session would then look like a session of another
            # daemon with the same identity.
            await self._membership.end_own_session()
            await self._end_idle_session(after)
            return False
        return True

    async def _end_idle_session(self, mark: NodeMark | None) -> None:
        if mark is None:
            return
        with suppress(StoreUnavailable):
            if await self._membership.end_idle_session(mark):
                _log.warning("ended the session of the dead node, which was in a transaction")


def _commit_of(active: ActiveNode | None, asked_at: int) -> ActiveCommit | None:
    if active is None:
        return None
    mark = active.mark
    return ActiveCommit(epoch=mark.epoch, commit_no=mark.commit_no, asked_at=asked_at)


def _poll_of(active: ActiveNode, at: int, answered_at: int) -> Poll:
    return Poll(
        at=at,
        answered_at=answered_at,
        mark=active.mark,
        heartbeat_us=1_000 * active.heartbeat_ms or round(1e6 * HEARTBEAT_SECONDS),
        has_sessions=active.has_sessions,
        is_working=active.is_working,
    )


REJOINS = 3
"""How often a node may be fenced and become a standby again within ``REJOIN_SECONDS``."""

REJOIN_SECONDS = 600


class Rejoins:
    """Counts how often this daemon was fenced."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._times: deque[int] = deque()

    def may_rejoin(self) -> bool:
        """Count a rejoin. Return ``False`` if there were too many."""
        now = self._clock.monotonic_us()
        while self._times and self._times[0] < now - REJOIN_SECONDS * 1_000_000:
            self._times.popleft()
        self._times.append(now)
        return len(self._times) <= REJOINS


class NodeCounts(msgspec.Struct):
    """How often the successive nodes of one daemon took over and were fenced.

    Attributes:
        takeovers: How often it has taken over from a silent node.
        fenced: How often it found that another node had taken over.
    """

    takeovers: int = 0
    fenced: int = 0


class StatusReader:
    """Reads the status of a node.

    Attributes:
        standby: The node's standby object; ``None`` if no other node can be active.
    """

    def __init__(self, engine: Engine, counts: Callable[[], NodeCounts]) -> None:
        self._engine = engine
        self._counts = counts
        self.standby: Standby | None = None

    def read(self) -> NodeStatus:
        """Return the current status."""
        engine, standby = self._engine, self.standby
        counts = self._counts()
        if standby is not None and engine.epoch is None:
            return NodeStatus(
                role=NodeRole.JOINING if standby.is_joining else NodeRole.STANDBY,
                term=standby.epoch or 0,
                active=standby.active_state,
                active_commit=standby.active_commit,
                silent_seconds=standby.silent_seconds,
                takeovers=counts.takeovers,
                fenced=counts.fenced,
            )
        role = active_role(engine)
        return NodeStatus(
            role=role,
            term=engine.epoch or 0,
            active=_active_state(engine, role),
            takeovers=counts.takeovers,
            fenced=counts.fenced,
        )


def _active_state(engine: Engine, role: NodeRole) -> ActiveState:
    if engine.store_away_since is not None:
        return ActiveState.UNKNOWN
    return ActiveState.MISSING if role is NodeRole.JOINING else ActiveState.ALIVE
