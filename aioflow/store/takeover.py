"""Before a daemon claims a database that another one may still serve: watch whether it lives.

To claim a database fences whoever wrote to it before, alive or not. So a daemon watches another
home's daemon for one lease: it ends if that one moves, and takes over if it does not. A home's
own daemon before this one is gone for certain, since the home is locked.
"""

from __future__ import annotations

import os
import socket
from importlib.metadata import version

from aioflow.clock import Clock, SystemClock
from aioflow.errors import Fenced, HomeBusy, SettingsError, StoreUnavailable
from aioflow.errors.daemon import ANOTHER_DATABASE
from aioflow.model.rows import NodeFacts
from aioflow.settings import Settings
from aioflow.settings.identity import own_identity
from aioflow.store import Store
from aioflow.store.owner import Holder
from aioflow.telemetry.log import Logger

__all__ = ("LEASE_SECONDS", "Beating", "prepare_claim", "wait_for_place")

BEAT_SECONDS = 2.0
"""How often a daemon says that it lives while it commits nothing."""

LEASE_SECONDS = 6.0
"""How long one that has said nothing is still believed to live."""

_LOOK_SECONDS = 0.5

_log = Logger(__name__)


async def prepare_claim(settings: Settings, store: Store, *, take_over: bool) -> NodeFacts:
    """Return what to claim a database with, once this daemon may.

    Args:
        take_over: Whether it may in any case.

    Raises:
        HomeBusy: If another daemon lives on this database.
        SettingsError: If no key of this home opens what is sealed in it.
    """
    clock, home, after = SystemClock(), own_identity(settings.home), None
    if not take_over:
        if not await store.opens_sealed():
            raise SettingsError(
                f"no key in {settings.key_file} opens what is sealed in {settings.shown_db}: "
                "the database, or the key file, is another home's; put the right key back, "
                "or start without what is sealed (--take-over)"
            )
        after = await wait_for_place(store, clock, home=home, where=settings.shown_db)
    return NodeFacts(
        started_at=clock.now(),
        version=version("aioflow-engine"),
        pid=os.getpid(),
        host=socket.gethostname(),
        home=home,
        after=after,
    )


async def wait_for_place(store: Store, clock: Clock, *, home: str, where: str) -> int | None:
    """Return once no other daemon serves a database: the epoch to take over from, if any.

    Args:
        home: The identity of this daemon's home.
        where: The database, for messages.

    Raises:
        HomeBusy: If another daemon lives.
        StoreUnavailable: If the database does not answer at first.
    """
    found = await store.find_holder()
    if found is None or found.home == home:
        return None if found is None else found.epoch
    _log.warning(
        "another daemon serves this database; taking over if it does not move",
        holder=found.name,
        seconds=LEASE_SECONDS,
    )
    since = clock.monotonic_us()
    while clock.monotonic_us() < since + LEASE_SECONDS * 1e6:
        await clock.sleep(_LOOK_SECONDS)
        try:
            now = await store.find_holder()
        except StoreUnavailable:
            since = clock.monotonic_us()  # it could not move either
            continue
        if now is None:
            return found.epoch  # it has just left
        if _mark(now) != _mark(found):
            raise HomeBusy(where, now.name, ANOTHER_DATABASE)
    _log.warning("taking over from a daemon that does not move", holder=found.name)
    return found.epoch


def _mark(holder: Holder) -> tuple[object, ...]:
    return holder.epoch, holder.commit_no, holder.seen_at


class Beating:
    """Says that a daemon lives while it commits nothing, and finds out whether it is fenced."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._commit_no = -1
        self._next_us = 0

    async def beat(self, commit_no: int) -> None:
        """Beat if it is time to, and nothing was committed since the last time.

        Raises:
            Fenced: If another daemon has claimed the database.
        """
        if commit_no != self._commit_no:
            self._commit_no = commit_no  # as good as a beat
            self._next_us = self._clock.monotonic_us() + round(BEAT_SECONDS * 1e6)
            return
        if self._clock.monotonic_us() < self._next_us:
            return
        self._next_us = self._clock.monotonic_us() + round(BEAT_SECONDS * 1e6)
        try:
            await self._store.beat(self._clock.now())
        except Fenced:
            _log.error("another daemon has taken this database over")
            raise
        except StoreUnavailable:
            return  # the engine says so as soon as it has something to commit
