"""A trigger that waits for the response of a web server."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypedDict

from aioflow import Connection, Duration, Fail, Trigger, TriggerEvent, as_timedelta
from aioflow_triggers.credentials import FetchedConnection, with_base, with_credentials_of
from aioflow_triggers.data import JsonIs
from aioflow_triggers.extras import require
from aioflow_triggers.http_client import Away, ClientShare, Request, Response, check_url

__all__ = ("HttpAnswer", "HttpTrigger", "HttpUnexpected", "JsonIs", "checked_interval")

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_CONDITIONAL = frozenset({"GET", "HEAD"})
_NOT_YET = frozenset({404, 408, 409, 410, 423, 425, 429})
_SHORTEST_INTERVAL_SECONDS = 0.1
_BODY_LIMIT = 512 * 1024
_sleep = asyncio.sleep


class HttpAnswer(TypedDict):
    """The response of the server. ``body`` is the decoded JSON, or text.

    ``url`` has no user information, and the values of its query are masked.
    """

    status: int
    url: str
    headers: dict[str, str]
    body: Any


class HttpUnexpected(Exception):
    """A response that makes further waiting pointless."""


@dataclass(frozen=True)
class HttpTrigger(Trigger[HttpAnswer]):
    """Fires when a web server gives the expected response.

    It sends one request per ``interval``. If a response had an ``ETag`` or ``Last-Modified``, the
    next ``GET`` or ``HEAD`` is conditional. "Not modified" then counts as the same response, and
    the trigger continues to wait. ``Retry-After`` delays the next request, by at most a day.

    Attributes:
        url: The URL, ``http`` or ``https``. Redirects are followed within its origin, or from
            ``http`` to ``https`` of the same host. With a ``connection``, it may also be a path on
            its server, which begins with ``/``.
        method: Such as ``GET``.
        headers: Request headers. They are stored encrypted, like the other fields.
        body: Request body, as text.
        status: The expected status, or several.
        until: An additional condition on the JSON of the response.
        fail_if: A condition on the JSON that makes waiting pointless.
        interval: Time between two requests: a timedelta, seconds, or text; at least 0.1 s.
        timeout: The timeout for each of connecting, sending, and the whole response.
        body_limit: Maximum size of a response in bytes, decompressed; at most 512 KiB.
        connection: The name of a connection to the server, for its credentials: Basic, or Bearer
            if it has a password without a user. A header in ``headers`` overrides them.

    Raises:
        ValueError: If ``url``, ``method``, ``status`` or ``body_limit`` are invalid.
        DagError: If ``interval`` or ``timeout`` are not durations, or the package ``httpx2`` is not
            installed; the extra ``http`` installs it.

    Events:
        One. ``payload`` is ``{"status": int, "url": str, "headers": {...}, "body": ...}``, with
        lower-case header names and without ``Set-Cookie``; ``key`` is the URL and the ``ETag``, or
        else a digest of the body.

    Errors:
        The trigger continues to wait after a failed or timed-out connection, after 404, 408, 409,
        410, 423,
        425, 429 and any 5xx, and after a success other than the expected one. Any other status,
        such as that for a wrong token, fails the waiting task. The same applies to a response that
        is too large, a response that is declared as JSON but is not, a redirect to another origin,
        and a link-local address.
    """

    public_fields = ("url", "method", "status", "interval", "timeout", "body_limit", "connection")

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None
    status: int | Sequence[int] = 200
    until: JsonIs | None = None
    fail_if: JsonIs | None = None
    interval: Duration = 60.0
    timeout: Duration = 30.0
    body_limit: int = _BODY_LIMIT
    connection: str = ""

    def __post_init__(self) -> None:
        require("HttpTrigger", "httpx2", "http")
        if not (self.connection and self.url.startswith("/")):
            check_url(self.url)
        checked_interval(self.interval)
        as_timedelta(self.timeout, "timeout")
        if self.method not in _METHODS:
            raise ValueError(f"method must be one of {sorted(_METHODS)}, got {self.method!r}")
        if not self._statuses() or not all(200 <= status < 600 for status in self._statuses()):
            raise ValueError(f"status must be from 200 to 599, got {self.status!r}")
        if not 0 < self.body_limit <= _BODY_LIMIT:
            raise ValueError(f"body_limit must be at most {_BODY_LIMIT}, got {self.body_limit}")

    async def run(self) -> AsyncIterator[TriggerEvent[HttpAnswer]]:
        """Yield one event for the expected response."""
        answer, key = await self._hoped_for()
        yield TriggerEvent(answer, key=key)

    async def poll(self) -> HttpAnswer | None:
        """Send one request and return the response if it is the expected one, else ``None``."""
        async with ClientShare(type(self).__name__) as line:
            try:
                found = await FetchedConnection(self.connection).get()
                answer = await line.ask(self._request(found))
            except Away as exc:
                self.log.info("%s", exc)
                return None
        event = self._judged(answer)
        return None if event is None else event[0]

    async def _hoped_for(self) -> tuple[HttpAnswer, str]:
        interval = checked_interval(self.interval)
        seen: dict[str, str] = {}
        connection = FetchedConnection(self.connection)
        async with ClientShare(type(self).__name__) as line:
            while True:
                patience, said = 0.0, "no answer"
                try:
                    answer = await line.ask(self._request(await connection.get()), seen)
                    said = f"it answered {answer.status}"
                    found = self._judged(answer)
                    if found is not None:
                        return found
                    patience = answer.retry_after_seconds(_now())
                    if self.method in _CONDITIONAL:
                        seen = _condition(answer) or (seen if answer.status == 304 else {})
                except Away as exc:
                    self.log.info("%s", exc)
                self.note_check(said, next_in=max(interval, patience))
                await _sleep(max(interval, patience))

    def _request(self, connection: Connection | None) -> Request:
        url = self.url if connection is None else with_base(connection, self.url)
        return Request(
            url,
            self.method,
            with_credentials_of(connection, url, self.headers),
            self.body,
            as_timedelta(self.timeout, "timeout").total_seconds(),
            self.body_limit,
        )

    def _statuses(self) -> Sequence[int]:
        return [self.status] if isinstance(self.status, int) else self.status

    def _judged(self, answer: Response) -> tuple[HttpAnswer, str] | None:
        """Return the event for a response; ``None`` if the response means "not yet"."""
        if answer.status not in self._statuses():
            _check_not_yet(answer)
            return None
        try:
            body = None if self.method == "HEAD" else answer.body()
        except ValueError as exc:
            raise HttpUnexpected(f"{answer.url} calls its answer JSON, but: {exc}") from exc
        if self.fail_if is not None and self.fail_if.holds(body):
            raise Fail(f"{answer.url} says what was named as fail_if: {self.fail_if.path}")
        if self.until is not None and not self.until.holds(body):
            return None
        headers = {name: text for name, text in answer.headers.items() if name != "set-cookie"}
        seen = HttpAnswer(status=answer.status, url=answer.url, headers=headers, body=body)
        tag = answer.headers.get("etag") or hashlib.sha256(answer.content).hexdigest()[:32]
        return seen, f"{hashlib.sha256(self.url.encode()).hexdigest()[:32]}:{tag}"[:1024]


def _check_not_yet(answer: Response) -> None:
    """Check that a response may still change.

    Raises:
        HttpUnexpected: If the response will not change.
    """
    status = answer.status
    if not (200 <= status < 300 or status in _NOT_YET or status >= 500 or status == 304):
        raise HttpUnexpected(f"{answer.url} answered {status}, which waiting does not change")


def _condition(answer: Response) -> dict[str, str]:
    """Return headers that make the next request conditional on a change since this response."""
    asked = {
        "if-none-match": answer.headers.get("etag"),
        "if-modified-since": answer.headers.get("last-modified"),
    }
    if not 200 <= answer.status < 300:
        return {}
    return {name: value for name, value in asked.items() if value is not None}


def checked_interval(interval: Duration) -> float:
    """Return an interval in seconds.

    Raises:
        DagError: If it is not a duration.
        ValueError: If it is too short.
    """
    seconds = as_timedelta(interval, "interval").total_seconds()
    if seconds < _SHORTEST_INTERVAL_SECONDS:
        raise ValueError(f"interval must be at least {_SHORTEST_INTERVAL_SECONDS} s")
    return seconds


def _now() -> datetime:
    return datetime.now(UTC)
