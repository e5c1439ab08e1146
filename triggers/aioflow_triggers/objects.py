"""Triggers that wait for objects in S3, Google Cloud Storage and Azure.

Waits with the same period share one request per period if they are for the same object, or for
patterns in the same folder. An object exists completely or not at all, so there is no need to wait
until the object stops growing.
"""

from __future__ import annotations

import asyncio
import re
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeAlias, TypedDict, TypeVar

from aioflow import (
    Duration,
    Trigger,
    TriggerEvent,
    as_timedelta,
    masked_url,
    masked_urls,
)
from aioflow_triggers.credentials import FetchedConnection, store_options
from aioflow_triggers.extras import require
from aioflow_triggers.folders import matches
from aioflow_triggers.paths import in_key
from aioflow_triggers.waking import Waking

__all__ = ("NewObjects", "ObjectSeen", "ObjectTrigger", "opened_store")

T = TypeVar("T")
_Options: TypeAlias = tuple[tuple[str, str], ...]

_SCHEMES = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss")
_SHORTEST_INTERVAL_SECONDS = 0.1
_TIMEOUT = timedelta(seconds=30)
_CACHED_STORES = 1_000

_SHORTEST_SECRET = 5

_STATUS = re.compile(r"status code: ([0-9]{3})")
_REFUSALS = {"401": "UnauthenticatedError", "403": "PermissionDeniedError"}
"""Exceptions by status that the driver raises for a single object. For a listing, it raises a
generic exception instead.
"""

_COARSEST_CLOCK = timedelta(seconds=2)
"""Tolerance for modification times: stores report them in seconds, with unspecified rounding."""
_LATE = timedelta(minutes=1)
"""A store may list an object this much later than its modification time."""


class ObjectSeen(TypedDict):
    """An object that was found. ``modified`` is by the store's clock."""

    url: str
    size_bytes: int
    etag: str
    modified: datetime


@dataclass(frozen=True)
class ObjectTrigger(Trigger[ObjectSeen]):
    """Fires once an object exists.

    Attributes:
        url: Such as ``s3://bucket/folder/name``, ``gs://...``, ``az://...``, ``abfss://...``. The
            name may contain ``*``, ``?`` or ``[...]``: then the folder is listed, without its
            subfolders, and the first matching object by name is used.
        interval: Time between two polls: a timedelta, seconds, or text; at least 0.1 s.
        options: Options of the store, as its driver names them: ``region``, ``endpoint``,
            ``access_key_id``, ``skip_signature`` ... They are stored encrypted, like the other
            fields. Missing options are taken from the triggerer's environment and the permissions
            of its machine.
        connection: The name of a connection. Its user, password and extra settings become options
            of the store, unless ``options`` sets them.

    Raises:
        ValueError: If ``url`` has another scheme or no name, or ``interval`` is too short.
        DagError: If ``interval`` is not a duration, or the package ``obstore`` is not installed
            (the extra ``objects`` installs it).

    Events:
        One. ``payload`` is ``{"url": str, "size_bytes": int, "etag": str, "modified": datetime}``;
        ``key`` is the URL and the ETag.

    Errors:
        A missing object, folder or bucket is not an error: the trigger waits for it. If the store
        does not respond, or
        responds with an error that its driver does not classify, the trigger logs a warning and
        continues to wait. Any other error fails the waiting task, for example if the store denies
        access
        (401, 403), does not know an option, or rejects the value of an option.
    """

    public_fields = ("url", "interval", "connection")

    url: str
    interval: Duration = 60.0
    options: Mapping[str, str] = field(default_factory=dict)
    connection: str = ""

    def __post_init__(self) -> None:
        _check(self)

    async def run(self) -> AsyncIterator[TriggerEvent[ObjectSeen]]:
        """Yield one event when the object exists."""
        connection = FetchedConnection(self.connection)
        while (seen := await self._poll(connection)) is None:
            self.note_check("not there", next_in=_shared().seconds_left(_seconds(self.interval)))
            await _shared().next_period(_seconds(self.interval))
        yield TriggerEvent(seen, key=f"{in_key(seen['url'])}:{seen['etag'][:64]}")

    async def poll(self) -> ObjectSeen | None:
        """Poll once and return the object if it exists, else ``None``."""
        return await self._poll(FetchedConnection(self.connection))

    async def _poll(self, connection: FetchedConnection) -> ObjectSeen | None:
        found = await _found(self, connection)
        return min(found, key=lambda seen: seen["url"], default=None)


@dataclass(frozen=True)
class NewObjects(Trigger[ObjectSeen]):
    """Fires for every new object in a folder: a stream without end.

    An object is new if it was written after the task began to wait, by the clock of the store, or
    at most two seconds earlier, because stores report whole seconds. An object that is written
    again is new again. An object that appears and disappears between two polls is missed.

    Attributes:
        url: The URL of a folder, and a name with ``*``, ``?`` or ``[...]``; see ``ObjectTrigger``.
        existing: Whether objects that existed when the task began to wait count too.
        interval: See ``ObjectTrigger``.
        options: See ``ObjectTrigger``.
        connection: See ``ObjectTrigger``.

    Raises:
        ValueError: As in ``ObjectTrigger``.
        DagError: As in ``ObjectTrigger``.

    Events:
        Many; the events of one poll are ordered by modification time. ``payload`` is as for
        ``ObjectTrigger``; ``key`` is the URL, the ETag and the modification time, so that each
        object is yielded once. After a restart, the trigger omits objects that were written a
        minute or more before the object of its last event; other duplicates are dropped by their
        key.

    Errors:
        Those of ``ObjectTrigger``.
    """

    public_fields = ("url", "existing", "interval", "connection")

    url: str
    existing: bool = False
    interval: Duration = 60.0
    options: Mapping[str, str] = field(default_factory=dict)
    connection: str = ""

    def __post_init__(self) -> None:
        _check(self)

    async def run(self) -> AsyncIterator[TriggerEvent[ObjectSeen]]:
        """Yield an event for each new object."""
        horizon = self._horizon()
        told: dict[str, str] = {}
        connection = FetchedConnection(self.connection)
        while True:
            found = {_key(seen): seen for seen in await _found(self, connection)}
            told = {key: key for key in told if key in found}
            new = [seen for key, seen in found.items() if key not in told]
            for seen in sorted(new, key=lambda seen: (seen["modified"], seen["url"])):
                key = _key(seen)
                told[key] = key
                if seen["modified"] >= horizon:
                    yield TriggerEvent(seen, key=key)
            self.note_check(next_in=_shared().seconds_left(_seconds(self.interval)))
            await _shared().next_period(_seconds(self.interval))

    def _horizon(self) -> datetime:
        """Return the horizon: an object that was modified before this time does not count."""
        horizon = datetime(1970, 1, 1, tzinfo=UTC)
        if not self.existing:
            horizon = self.since - _COARSEST_CLOCK
        if self.last is not None:
            horizon = max(horizon, self.last.payload["modified"] - _LATE)
        return horizon


def _key(seen: ObjectSeen) -> str:
    return f"{in_key(seen['url'])}:{seen['etag'][:64]}:{seen['modified'].isoformat()}"


def _check(trigger: ObjectTrigger | NewObjects) -> None:
    require(type(trigger).__name__, "obstore", "objects")
    scheme, _, rest = trigger.url.partition("://")
    folder, _, name = rest.rpartition("/")
    if scheme not in _SCHEMES or not folder or not name:
        raise ValueError(
            f"url must be a scheme ({', '.join(_SCHEMES)}), a bucket and a name, "
            f"got {masked_url(trigger.url)!r}"
        )
    if _is_glob(folder):
        raise ValueError(f"url must name objects of one folder: {folder!r} stands for many")
    if isinstance(trigger, NewObjects) and not _is_glob(name):
        raise ValueError(f"url must end in a pattern such as '*.parquet', got {name!r}")
    if _seconds(trigger.interval) < _SHORTEST_INTERVAL_SECONDS:
        raise ValueError(f"interval must be at least {_SHORTEST_INTERVAL_SECONDS} s")


def _is_glob(name: str) -> bool:
    return any(sign in name for sign in "*?[")


def _seconds(interval: Duration) -> float:
    return as_timedelta(interval, "interval").total_seconds()


async def _options(trigger: ObjectTrigger | NewObjects, connection: FetchedConnection) -> _Options:
    found = await connection.get()
    scheme = trigger.url.partition("://")[0]
    given = {} if found is None else store_options(found, scheme)
    return tuple(sorted({**given, **trigger.options}.items()))


async def _found(
    trigger: ObjectTrigger | NewObjects, connection: FetchedConnection
) -> Sequence[ObjectSeen]:
    """Return the objects that exist now; empty if the store does not respond."""
    import obstore.exceptions

    folder, _, name = trigger.url.rpartition("/")
    options = await _options(trigger, connection)
    seconds = _seconds(trigger.interval)
    shared = _shared()
    try:
        store = shared.store(folder, options)
        if not _is_glob(name):
            meta = await shared.once(
                (trigger.url, options), seconds, lambda: obstore.head_async(store, name)
            )
            return [_seen(folder, name, meta)]
        listed = await shared.once(
            (folder + "/", options), seconds, lambda: obstore.list_with_delimiter_async(store)
        )
    except FileNotFoundError:
        return []
    except (obstore.exceptions.GenericError, TimeoutError) as exc:
        why = masked_urls(str(exc).partition("\n")[0])
        status = _STATUS.search(why)
        if status is not None and status[1] in _REFUSALS:
            raise getattr(obstore.exceptions, _REFUSALS[status[1]])(why) from None
        trigger.log.warning("%s cannot be polled: %s", masked_url(trigger.url), why)
        return []
    except obstore.exceptions.BaseError as exc:
        raise type(exc)(masked_urls(str(exc))) from None  # the URL may be a signed one
    return [
        _seen(folder, meta["path"], meta)
        for meta in listed["objects"]
        if matches(meta["path"], name)
    ]


def _seen(folder: str, name: str, meta: Mapping[str, Any]) -> ObjectSeen:
    etag = (meta["e_tag"] or meta["version"] or "").strip('"')
    modified = meta["last_modified"].astimezone(UTC)
    return ObjectSeen(url=f"{folder}/{name}", size_bytes=meta["size"], etag=etag, modified=modified)


def opened_store(folder: str, options: _Options) -> Any:
    """Create the store for a folder's URL; this sends no request yet.

    Raises:
        ValueError: If the store has no such option, or an option has an invalid value.
    """
    import obstore.exceptions
    from obstore.store import from_url

    plain = any(value.startswith("http://") for _, value in options)
    make: Any = from_url  # the valid options depend on the store, which checks them
    try:
        return make(
            folder,
            config=dict(options),
            client_options={"timeout": _TIMEOUT, "allow_http": plain},
            retry_config={"max_retries": 2, "retry_timeout": _TIMEOUT},
        )
    except obstore.exceptions.BaseError as exc:
        why = _without_values(masked_urls(str(exc).partition("\n")[0]), options)
        raise ValueError(f"options of {masked_url(folder)}: {why}") from None
    except BaseException as exc:
        if not _is_panic(exc):
            raise
        names = [name for name, value in options if _panics(make, folder, name, value)]
        if not names:
            raise ValueError(f"options of {masked_url(folder)}: the driver panicked") from None
        raise ValueError(
            f"options of {masked_url(folder)}: {', '.join(map(repr, names))} is an option of "
            "connections, not of the store; leave it out"
        ) from None


def _without_values(why: str, options: _Options) -> str:
    """Replace the option values in an error by the options' names, because they may be secrets."""
    for name, value in options:
        if len(value) >= _SHORTEST_SECRET:
            why = why.replace(value, f"<{name}>")
    return why


def _panics(make: Any, folder: str, name: str, value: str) -> bool:
    """Return whether an option makes the driver panic; the panic does not name the option."""
    try:
        make(folder, config={name: value})
    except BaseException as exc:
        if not isinstance(exc, Exception) and not _is_panic(exc):
            raise
        return _is_panic(exc)
    return False


def _is_panic(exc: BaseException) -> bool:
    """Return whether the driver panicked. The class of the exception cannot be imported."""
    return type(exc).__name__ == "PanicException"


class _SharedRequest:
    """One request, and the waits for its response."""

    def __init__(self, period: float, answer: asyncio.Future[Any]) -> None:
        self.period = period
        self.answer = answer
        self.waiting: dict[asyncio.Future[Any], None] = {}


class _Shared:
    """State shared on one event loop: connections to stores, and the requests of this period."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waking = Waking(loop)
        self._stores: dict[object, Any] = {}
        self._requests: dict[tuple[object, float], _SharedRequest] = {}
        self._resting: dict[float, dict[asyncio.Future[None], None]] = {}

    def store(self, folder: str, options: _Options) -> Any:
        """Return the store for a folder's URL; names are relative to it.

        Raises:
            ValueError: As in ``opened_store``.
        """
        key = (folder, options)
        if key not in self._stores:
            if len(self._stores) >= _CACHED_STORES:
                self._stores.clear()
            self._stores[key] = opened_store(folder, options)
        return self._stores[key]

    async def once(self, what: object, seconds: float, fetch: Callable[[], Awaitable[T]]) -> T:
        """Return this period's result of ``fetch``, which only the first caller runs."""
        key, period = (what, seconds), self._loop.time() // seconds
        asked = self._requests.get(key)
        if asked is None or asked.period != period:
            asked = self._requests[key] = _SharedRequest(
                period, asyncio.ensure_future(_awaited(fetch))
            )
            asked.answer.add_done_callback(partial(self._answered, asked))
            self._loop.call_later(seconds, self._forget, key, asked)
        if asked.answer.done():
            found: T = asked.answer.result()
            return found
        # Each caller has its own future, so that cancelling one caller does not affect the others.
        waiting: asyncio.Future[T] = self._loop.create_future()
        asked.waiting[waiting] = None
        try:
            return await waiting
        finally:
            asked.waiting.pop(waiting, None)
            if not asked.waiting and not asked.answer.done():
                asked.answer.cancel()
                self._forget(key, asked)

    def _answered(self, asked: _SharedRequest, answer: asyncio.Future[Any]) -> None:
        waiting, asked.waiting = asked.waiting, {}
        if not answer.cancelled():
            problem = answer.exception()
            self._waking.wake(waiting, None if problem else answer.result(), problem)

    def seconds_left(self, seconds: float) -> float:
        """Return the seconds until the next period."""
        return seconds - self._loop.time() % seconds

    async def next_period(self, seconds: float) -> None:
        """Sleep until the next period. Periods are aligned, so that all polls happen together."""
        resting = self._resting.get(seconds)
        if resting is None:
            resting = self._resting[seconds] = {}
            self._loop.call_later(self.seconds_left(seconds), self._begin, seconds)
        waiting: asyncio.Future[None] = self._loop.create_future()
        resting[waiting] = None
        try:
            await waiting
        finally:
            resting.pop(waiting, None)

    def _begin(self, seconds: float) -> None:
        self._waking.wake(self._resting.pop(seconds), None)

    def _forget(self, key: tuple[object, float], asked: _SharedRequest) -> None:
        if self._requests.get(key) is asked:
            del self._requests[key]


async def _awaited(fetch: Callable[[], Awaitable[T]]) -> T:
    return await fetch()


_all: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared] = weakref.WeakKeyDictionary()


def _shared() -> _Shared:
    loop = asyncio.get_running_loop()
    shared = _all.get(loop)
    if shared is None:
        shared = _all[loop] = _Shared(loop)
    return shared
