"""HTTP requests: one client per event loop, limits for connections, and rules for redirects.

Connections are limited per origin, per DAG, and in total, with a timeout for the wait. A server
that does not respond can only use up the connections of its origin, and a DAG that calls a hundred
such servers only the connections of the DAG. If all connections are in use, the next free one goes
to the DAG that uses the fewest.

Redirects are followed within one origin, or from ``http`` to ``https`` of the same host, so that
credentials are sent only to the host that the author named. A connection to a link-local address,
where clouds serve the credentials of the machine, is closed before anything is sent.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import weakref
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Self, TypeAlias

from aioflow import masked_url, masked_urls, own_dag_id
from aioflow_triggers.extras import require

__all__ = (
    "CONNECTIONS",
    "CONNECTIONS_PER_DAG",
    "CONNECTIONS_PER_ORIGIN",
    "Away",
    "ClientShare",
    "ConnectionSlots",
    "Forbidden",
    "NoConnectionSlot",
    "Request",
    "Response",
    "ResponseTooLarge",
    "check_url",
    "may_follow",
)

CONNECTIONS_PER_ORIGIN = 20
CONNECTIONS_PER_DAG = 60
CONNECTIONS = 400
"""Maximum number of connections. A process has only a few hundred file descriptors for everything.
"""

_ConnectionQueue: TypeAlias = deque[asyncio.Future[None]]


class NoConnectionSlot(Exception):
    """Raised if no connection slot became free in time."""


class ConnectionSlots:
    """The connection slots of one event loop."""

    def __init__(self) -> None:
        self._all = 0
        self._of_origin: Counter[str] = Counter()
        self._of_dag: Counter[str] = Counter()
        self._waiting: dict[str, dict[str, _ConnectionQueue]] = {}  # by DAG, and by origin

    @asynccontextmanager
    async def hold(self, dag: str, origin: str, seconds: float) -> AsyncIterator[None]:
        """Hold a connection slot within a ``with``.

        Args:
            seconds: How long to wait for the slot.

        Raises:
            NoConnectionSlot: If none became free in time.
        """
        if self._has_room(dag, origin):
            self._take(dag, origin)
        else:
            await self._wait(dag, origin, seconds)
        try:
            yield
        finally:
            self._give_back(dag, origin)

    def _has_room(self, dag: str, origin: str) -> bool:
        return (
            self._all < CONNECTIONS
            and self._of_dag[dag] < CONNECTIONS_PER_DAG
            and self._of_origin[origin] < CONNECTIONS_PER_ORIGIN
        )

    def _take(self, dag: str, origin: str) -> None:
        self._all += 1
        self._of_dag[dag] += 1
        self._of_origin[origin] += 1

    def _give_back(self, dag: str, origin: str) -> None:
        self._all -= 1
        for counts, key in ((self._of_dag, dag), (self._of_origin, origin)):
            counts[key] -= 1
            if not counts[key]:
                del counts[key]
        self._hand_on()

    async def _wait(self, dag: str, origin: str, seconds: float) -> None:
        """Wait until a slot is handed over. From then on, it is already counted as in use."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue = self._waiting.setdefault(dag, {}).setdefault(origin, deque())
        queue.append(turn)
        try:
            async with asyncio.timeout(seconds):
                await turn
        except BaseException as exc:
            if turn.done() and not turn.cancelled():
                self._give_back(dag, origin)  # the slot was handed over just as the wait ended
            else:
                self._forget(dag, origin, turn)
            if isinstance(exc, TimeoutError):
                raise NoConnectionSlot(f"no connection was free within {seconds:g} s") from None
            raise

    def _forget(self, dag: str, origin: str, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(dag, {}).get(origin)
        if queue is not None and turn in queue:
            queue.remove(turn)
            self._tidy(dag, origin)

    def _hand_on(self) -> None:
        """Hand free slots to waiters, starting with the DAG that has the fewest."""
        while (chosen := self._next()) is not None:
            dag, origin = chosen
            turn = self._waiting[dag][origin].popleft()
            self._tidy(dag, origin)
            if not turn.done():
                self._take(dag, origin)
                turn.set_result(None)

    def _next(self) -> tuple[str, str] | None:
        for dag in sorted(self._waiting, key=self._of_dag.__getitem__):
            for origin in self._waiting[dag]:
                if self._has_room(dag, origin):
                    return dag, origin
        return None

    def _tidy(self, dag: str, origin: str) -> None:
        """Drop an empty queue, or move a queue that was just served to the end."""
        queue = self._waiting[dag].pop(origin)
        if queue:
            self._waiting[dag][origin] = queue
        elif not self._waiting[dag]:
            del self._waiting[dag]


_IDLE_CONNECTIONS = 100
_IDLE_SECONDS = 30.0
_REDIRECTS = 5
_REDIRECTED = frozenset({301, 302, 303, 307, 308})
_LONGEST_RETRY_AFTER_SECONDS = 86_400.0


class Away(Exception):
    """Raised if there was no response: the connection failed, or timed out. A retry may succeed."""


class Forbidden(Exception):
    """Raised if a response leads to another origin, or the address is not allowed."""


class ResponseTooLarge(Exception):
    """Raised if the body of a response exceeds the limit."""


@dataclass(frozen=True)
class Request:
    """A request, which may be sent repeatedly.

    Attributes:
        timeout_seconds: The timeout for each of connecting, sending, and the whole response.
        body_limit: Maximum size of the response in bytes, decompressed.
    """

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None
    timeout_seconds: float = 30.0
    body_limit: int = 512 * 1024


@dataclass(frozen=True)
class Response:
    """A response.

    Attributes:
        url: The URL after redirects, masked for display.
        headers: By lower-case name.
    """

    status: int
    url: str
    headers: Mapping[str, str]
    content: bytes

    def body(self) -> Any:
        """Return the decoded JSON, or the body as text.

        Raises:
            ValueError: If it is declared as JSON but is not.
        """
        if "json" in self.headers.get("content-type", "").partition(";")[0]:
            return json.loads(self.content) if self.content else None
        return self.content.decode("utf-8", "replace")

    def retry_after_seconds(self, now: datetime) -> float:
        """Return the delay requested by ``Retry-After`` in seconds: 0 if none, at most a day."""
        text = self.headers.get("retry-after", "").strip()
        if text.isdecimal():
            seconds = float(text)
        else:
            try:
                moment = parsedate_to_datetime(text)
            except ValueError:
                return 0.0
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            seconds = (moment - now) / timedelta(seconds=1)
        return min(max(seconds, 0.0), _LONGEST_RETRY_AFTER_SECONDS)


class ClientShare:
    """A share in the loop's connection pool. Use ``async with`` around any number of requests.

    The pool is closed with its last share.

    Args:
        owner: The class that sends requests; named in the error if the package is missing.
    """

    def __init__(self, owner: str) -> None:
        require(owner, "httpx2", "http")
        self._pool: _Pool | None = None

    async def __aenter__(self) -> Self:
        self.open()
        return self

    def open(self) -> None:
        """Take the share where ``async with`` cannot be used."""
        loop = asyncio.get_running_loop()
        pool = _pools.get(loop)
        if pool is None:
            pool = _pools[loop] = _Pool(loop)
        pool.shares += 1
        self._pool = pool

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Return the share. Idempotent."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        pool.shares -= 1
        if not pool.shares:
            loop = asyncio.get_running_loop()
            if _pools.get(loop) is pool:
                del _pools[loop]
            client = await asyncio.shield(pool.client)
            await client.aclose()

    async def ask(
        self, request: Request, more_headers: Mapping[str, str] | None = None
    ) -> Response:
        """Send one request, follow its redirects, and return the response, whatever its status.

        Raises:
            Away: If there was no response in time.
            Forbidden: If it leads to another origin, or the address is link-local.
            ResponseTooLarge: If its body exceeds the limit.
        """
        pool = self._pool
        assert pool is not None  # noqa: S101 - set when the share was taken
        client = await asyncio.shield(pool.client)
        import httpx2

        url = httpx2.URL(request.url)
        headers = {**request.headers, **(more_headers or {})}
        method, body = request.method, request.body
        for _ in range(_REDIRECTS + 1):
            wanted = client.build_request(
                method,
                url,
                headers=headers,
                content=body,
                timeout=httpx2.Timeout(request.timeout_seconds, pool=None),
                extensions={"trace": _refuse_link_local},
            )
            origin = f"{url.scheme}://{url.host}:{_port(url)}"
            try:
                async with pool.slots.hold(_dag_id(), origin, request.timeout_seconds):
                    answer = await _answer(client, wanted, request)
            except NoConnectionSlot as exc:
                raise Away(f"{method} {masked_url(str(url))}: {exc}") from None
            except httpx2.TransportError as exc:
                why = masked_urls(str(exc)) or type(exc).__name__
                raise Away(f"{method} {masked_url(str(url))}: {why}") from None
            except TimeoutError as exc:
                limit = f"no whole answer in {request.timeout_seconds:g} s"
                raise Away(f"{method} {masked_url(str(url))}: {limit}") from exc
            if answer.status not in _REDIRECTED or "location" not in answer.headers:
                return answer
            url = _followed(url, answer.headers["location"])
            if answer.status == 303 or (answer.status in {301, 302} and method == "POST"):
                method, body = ("HEAD" if method == "HEAD" else "GET"), None
        raise Forbidden(f"{masked_url(request.url)} redirects more than {_REDIRECTS} times")


def _dag_id() -> str:
    """Return the DAG for which the request is sent; empty in a plain script."""
    try:
        return own_dag_id()
    except RuntimeError:
        return ""


async def _answer(client: Any, wanted: Any, request: Request) -> Response:
    token = _is_asking.set(True)
    try:
        # Connecting and sending each have a timeout, but reading the head of the response has none.
        async with asyncio.timeout(3 * request.timeout_seconds):
            response = await client.send(wanted, stream=True)
    finally:
        _is_asking.reset(token)
    try:
        content = bytearray()
        # The client's timeout is per chunk, which a slow trickle of data never exceeds.
        async with asyncio.timeout(request.timeout_seconds):
            async for piece in response.aiter_bytes():
                content += piece
                if len(content) > request.body_limit:
                    limit = f"more than {request.body_limit} bytes"
                    raise ResponseTooLarge(
                        f"the answer of {masked_url(str(wanted.url))} has {limit}"
                    )
    finally:
        await response.aclose()
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Response(response.status_code, masked_url(str(response.url)), headers, bytes(content))


class _Pool:
    """The connections of one event loop, and the number of shares in them.

    Attributes:
        slots: Limits the connections.
        client: Created in a thread: importing it and reading the certificates takes a quarter of a
            second, which would block the event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.client: asyncio.Future[Any] = loop.run_in_executor(None, _made_client)
        self.slots = ConnectionSlots()
        self.shares = 0


_is_asking: ContextVar[bool] = ContextVar("is_asking", default=False)


def _is_of_others(record: logging.LogRecord) -> bool:
    """Return whether a log record of the client belongs to other users of the client's package."""
    return not _is_asking.get()


def _made_client() -> Any:
    import httpx2

    logging.getLogger(httpx2.__name__).addFilter(_is_of_others)

    limits = httpx2.Limits(
        max_connections=None,  # limited by slots instead
        max_keepalive_connections=_IDLE_CONNECTIONS,
        keepalive_expiry=_IDLE_SECONDS,
    )
    return httpx2.AsyncClient(limits=limits, follow_redirects=False)


_pools: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = weakref.WeakKeyDictionary()


def check_url(url: str) -> None:
    """Check that a URL has the scheme ``http`` or ``https``, and a host.

    Raises:
        ValueError: If it does not.
    """
    scheme, _, rest = url.partition("://")
    host = rest.partition("/")[0].partition("?")[0].rpartition("@")[2]
    if scheme not in {"http", "https"} or not host:
        raise ValueError(
            f"url must begin with http:// or https:// and a host, got {masked_url(url)!r}"
        )


def _followed(url: Any, location: str) -> Any:
    import httpx2

    try:
        target = url.join(location)
    except httpx2.InvalidURL as exc:
        asked = masked_url(str(url))
        raise Forbidden(f"{asked} redirects to {masked_url(location)!r}, which is no URL") from exc
    if not may_follow(str(url), str(target)):
        asked, led = masked_url(str(url)), masked_url(str(target))
        raise Forbidden(f"{asked} redirects to {led}, which is another origin")
    return target


def may_follow(url: str, target: str) -> bool:
    """Return whether ``target`` has the origin of ``url``, or is the ``https`` form of it."""
    import httpx2

    ours, theirs = httpx2.URL(url), httpx2.URL(target)
    if ours.host != theirs.host:
        return False
    same = (ours.scheme, _port(ours)) == (theirs.scheme, _port(theirs))
    secured = ours.scheme == "http" and theirs.scheme == "https" and _port(theirs) == 443
    return same or (secured and _port(ours) == 80)


def _port(url: Any) -> int:
    port: int | None = url.port
    return port or (443 if url.scheme == "https" else 80)


async def _refuse_link_local(event: str, info: Mapping[str, Any]) -> None:
    """Close a connection to a link-local address.

    Checks the connected address, because the host name may have resolved differently earlier.
    """
    if event != "connection.connect_tcp.complete":
        return
    stream = info["return_value"]
    address = stream.get_extra_info("server_addr")[0]
    if _is_link_local(address):
        await stream.aclose()
        raise Forbidden(
            f"{address} is link-local, or where a cloud keeps the credentials of its machines; "
            "nothing is asked there"
        )


_METADATA = tuple(
    map(ipaddress.ip_network, ("fd00:ec2::/32", "fd20:ce::254/128", "100.100.100.200/32"))
)
"""Addresses of cloud metadata services outside of the IPv4 link-local range."""

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def _is_link_local(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address in _NAT64:
            address = ipaddress.IPv4Address(address.packed[-4:])
        else:
            address = address.ipv4_mapped or address
    return address.is_link_local or any(address in network for network in _METADATA)
