"""Asks other machines over HTTP: one client per loop, and what is safe to follow.

How many connections there may be per origin and per DAG is the matter of ``places``.

Redirects are followed within one origin, or from ``http`` to ``https`` of the same host; a
credential never travels further than where the author sent it. A connection to a link-local
address, behind which clouds keep the keys of the machine, is closed before anything is sent.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import weakref
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Self

from aioflow import masked_url, masked_urls, own_dag_id
from aioflow_triggers.extras import require
from aioflow_triggers.places import NoPlace, Places

__all__ = (
    "Answer",
    "AnswerTooLarge",
    "Away",
    "Forbidden",
    "Line",
    "Request",
    "check_url",
    "may_follow",
)

_KEPT_CONNECTIONS = 100
_KEPT_SECONDS = 30.0
_REDIRECTS = 5
_REDIRECTED = frozenset({301, 302, 303, 307, 308})
_LONGEST_RETRY_AFTER_SECONDS = 86_400.0


class Away(Exception):
    """There was no answer: no connection, or none in time. Later there may be one."""


class Forbidden(Exception):
    """An answer leads where the author did not send us."""


class AnswerTooLarge(Exception):
    """An answer has a longer body than is allowed."""


@dataclass(frozen=True)
class Request:
    """What is asked, the same each time.

    Attributes:
        timeout_seconds: For connecting, sending, and the whole answer, each.
        body_limit: Bytes of the answer, decompressed.
    """

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None
    timeout_seconds: float = 30.0
    body_limit: int = 512 * 1024


@dataclass(frozen=True)
class Answer:
    """What came back.

    Attributes:
        url: The server that answered in the end, masked for display.
        headers: By their names in lower case.
    """

    status: int
    url: str
    headers: Mapping[str, str]
    content: bytes

    def body(self) -> Any:
        """Return JSON as what it stands for, anything else as text.

        Raises:
            ValueError: If it calls itself JSON and is none.
        """
        if "json" in self.headers.get("content-type", "").partition(";")[0]:
            return json.loads(self.content) if self.content else None
        return self.content.decode("utf-8", "replace")

    def retry_after_seconds(self, now: datetime) -> float:
        """Return how long it asks to be left alone: 0 if it does not, at most a day."""
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


class Line:
    """A share in the loop's pool of connections. ``async with``, around as many questions.

    The pool is closed when nobody has a share in it any more.

    Args:
        owner: Who asks; named if the package for it is missing.
    """

    def __init__(self, owner: str) -> None:
        require(owner, "httpx2", "http")
        self._pool: _Pool | None = None

    async def __aenter__(self) -> Self:
        self.open()
        return self

    def open(self) -> None:
        """Take the share; for those who cannot write ``async with``."""
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
        """Give the share back; a second time does nothing."""
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

    async def ask(self, request: Request, more_headers: Mapping[str, str] | None = None) -> Answer:
        """Ask once and return the answer, whatever its status.

        Raises:
            Away: If there was none in time.
            Forbidden: If it leads elsewhere, or the address is link-local.
            AnswerTooLarge: If its body is longer than allowed.
        """
        pool = self._pool
        assert pool is not None  # noqa: S101 - the share has been taken
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
                async with pool.places.place(_dag_id(), origin, request.timeout_seconds):
                    answer = await _answer(client, wanted, request)
            except NoPlace as exc:
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
    """Return for which DAG is asked; empty in a plain script."""
    try:
        return own_dag_id()
    except RuntimeError:
        return ""


async def _answer(client: Any, wanted: Any, request: Request) -> Answer:
    token = _is_asking.set(True)
    try:
        # Connecting and sending have a limit each, a head that drips has none.
        async with asyncio.timeout(3 * request.timeout_seconds):
            response = await client.send(wanted, stream=True)
    finally:
        _is_asking.reset(token)
    try:
        content = bytearray()
        # Each piece has a time limit of its own: one that drips would never reach it.
        async with asyncio.timeout(request.timeout_seconds):
            async for piece in response.aiter_bytes():
                content += piece
                if len(content) > request.body_limit:
                    limit = f"more than {request.body_limit} bytes"
                    raise AnswerTooLarge(f"the answer of {masked_url(str(wanted.url))} has {limit}")
    finally:
        await response.aclose()
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answer(response.status_code, masked_url(str(response.url)), headers, bytes(content))


class _Pool:
    """The connections of one loop, and how many have a share in them.

    Attributes:
        places: Who may have one.
        client: Made in a thread: to import it and to read the certificates takes a quarter of a
            second, for which nothing else on the loop would go on.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.client: asyncio.Future[Any] = loop.run_in_executor(None, _made_client)
        self.places = Places()
        self.shares = 0


_is_asking: ContextVar[bool] = ContextVar("is_asking", default=False)


def _is_of_others(record: logging.LogRecord) -> bool:
    """Keep the client from writing whole URLs of ours into logs; what others ask is theirs."""
    return not _is_asking.get()


def _made_client() -> Any:
    import httpx2

    logging.getLogger(httpx2.__name__).addFilter(_is_of_others)

    limits = httpx2.Limits(
        max_connections=None,  # limited by places instead
        max_keepalive_connections=_KEPT_CONNECTIONS,
        keepalive_expiry=_KEPT_SECONDS,
    )
    return httpx2.AsyncClient(limits=limits, follow_redirects=False)


_pools: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = weakref.WeakKeyDictionary()


def check_url(url: str) -> None:
    """Refuse what is no address of a web server.

    Raises:
        ValueError: Saying why.
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
    """Return whether ``target`` is of the origin of ``url``, or its secured twin."""
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
    """Look at whom we are connected to: what a name meant a moment ago proves nothing."""
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
"""Where clouds answer about a machine, besides the link-local addresses of IPv4."""

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def _is_link_local(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address in _NAT64:
            address = ipaddress.IPv4Address(address.packed[-4:])
        else:
            address = address.ipv4_mapped or address
    return address.is_link_local or any(address in network for network in _METADATA)
