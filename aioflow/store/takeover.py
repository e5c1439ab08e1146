"""Takeover of a database, after a check that no other daemon still serves it.

A claim fences any earlier writer, whether it is alive or not. So if the daemon of another home owns
the database, the new daemon watches the owner for ``LEASE_SECONDS``. If the owner commits or sends
a heartbeat in that time, the new daemon exits. Otherwise it takes over. An earlier daemon of the
same home has certainly ended, because the new daemon has locked the home.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import TypeVar

from aioflow.clock import Clock, SystemClock
from aioflow.errors import Fenced, HomeBusy, SettingsError, StoreUnavailable
from aioflow.errors.runtime import ANOTHER_DATABASE
from aioflow.model.rows import NodeFacts, NodeMark
from aioflow.settings import Settings
from aioflow.settings.home import own_identity
from aioflow.store import Store
from aioflow.telemetry.log import Logger

__all__ = (
    "HEARTBEAT_SECONDS",
    "LEASE_SECONDS",
    "Beating",
    "prepare_claim",
    "retried",
    "wait_for_takeover",
)

HEARTBEAT_SECONDS = 2.0
"""Interval between heartbeats while a daemon commits nothing."""

LEASE_SECONDS = 6.0
"""Time without commits and heartbeats after which a daemon is considered dead."""

_POLL_SECONDS = 0.5
_RETRY_SECONDS = 1.0

_log = Logger(__name__)

Answer = TypeVar("Answer")


async def prepare_claim(settings: Settings, store: Store, *, take_over: bool) -> NodeFacts:
    """Wait until this daemon may claim a database. Return the facts to claim it with.

    Args:
        take_over: Claim the database even if another daemon serves it.

    Raises:
        HomeBusy: If another daemon serves this database.
        SettingsError: If no key of this home decrypts the encrypted values in the database.
    """
    clock, home, after = SystemClock(), own_identity(settings.home), None
    membership = store.membership
    # A node that rejoins must outlast an outage, because it may be the only node that is left.
    patience = 0.0 if membership is None else settings.db_wait_seconds
    if membership is not None:
        await retried(membership.check_connection, clock, patience)
    if not take_over:
        if not await retried(store.can_decrypt, clock, patience):
            raise SettingsError(
                f"no key in {settings.key_file} decrypts the values in {settings.shown_db}: "
                "the database, or the key file, is another home's; put the right key back, "
                "or start without these values (--take-over)"
            )
        if membership is None:
            after = await wait_for_takeover(store, clock, home=home, where=settings.shown_db)
    return NodeFacts(
        started_at=clock.now(),
        version=version("aioflow-engine"),
        pid=os.getpid(),
        host=socket.gethostname(),
        home=home,
        name=settings.ha_node_name,
        heartbeat_ms=round(1_000 * settings.ha_heartbeat_seconds) if settings.ha_enabled else 0,
        after=after,
        is_forced=take_over,
    )


async def retried(ask: Callable[[], Awaitable[Answer]], clock: Clock, seconds: float) -> Answer:
    """Repeat a query until the database answers or the time limit expires. Return the answer.

    Raises:
        StoreUnavailable: If the database does not answer within ``seconds``.
    """
    until = clock.monotonic_us() + round(seconds * 1e6)
    while True:
        try:
            return await ask()
        except StoreUnavailable as exc:
            if clock.monotonic_us() >= until:
                raise
            _log.warning("the database does not answer, trying again", error=str(exc))
            await clock.sleep(_RETRY_SECONDS)


async def wait_for_takeover(
    store: Store, clock: Clock, *, home: str, where: str
) -> NodeMark | None:
    """Wait until no other daemon serves a database. Return the node to take over from, if any.

    Args:
        home: The identity of this daemon's home.
        where: The database, for messages.

    Raises:
        HomeBusy: If another daemon is alive.
        StoreUnavailable: If the database does not respond to the first query.
    """
    found = await store.find_owner()
    if found is None or found.home == home:
        return None
    _log.warning(
        "another daemon serves this database; taking over if it makes no progress",
        holder=found.name,
        seconds=LEASE_SECONDS,
    )
    since = clock.monotonic_us()
    while clock.monotonic_us() < since + LEASE_SECONDS * 1e6:
        await clock.sleep(_POLL_SECONDS)
        try:
            now = await store.find_owner()
        except StoreUnavailable:
            since = clock.monotonic_us()  # the owner could not write either: start over
            continue
        if now is None:
            return None  # the owner has just shut down
        if now.mark != found.mark:
            raise HomeBusy(where, now.name, ANOTHER_DATABASE)
    _log.warning("taking over from a daemon that makes no progress", holder=found.name)
    return found.mark


class Beating:
    """Sends heartbeats while a daemon commits nothing, and detects that it is fenced.

    Args:
        send: Records a heartbeat.
        seconds: The interval of the heartbeats.
    """

    def __init__(
        self,
        send: Callable[[], Awaitable[None]],
        clock: Clock,
        *,
        seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        self._send = send
        self._clock = clock
        self._interval_us = round(seconds * 1e6)
        self._commit_no = -1
        self._next_us = 0

    async def heartbeat(self, commit_no: int) -> None:
        """Send a heartbeat if it is due and nothing was committed since the last call.

        Raises:
            Fenced: If another daemon has claimed the database.
        """
        if commit_no != self._commit_no:
            self._commit_no = commit_no  # a commit counts as a heartbeat
            self._next_us = self._clock.monotonic_us() + self._interval_us
            return
        if self._clock.monotonic_us() < self._next_us:
            return
        self._next_us = self._clock.monotonic_us() + self._interval_us
        try:
            await self._send()
        except Fenced:
            _log.error("another daemon took this database over")
            raise
        except StoreUnavailable:
            return  # the engine reports the error at its next commit
