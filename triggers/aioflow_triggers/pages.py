"""A trigger that reads a paginated API as a single stream.

Credentials are removed from the URLs of pages before the URLs are stored in events.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, TypedDict
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit, urlunsplit

from aioflow import Duration, Trigger, TriggerEvent, as_timedelta, masked_url
from aioflow_triggers.credentials import FetchedConnection, with_credentials_of
from aioflow_triggers.data import Nothing, at_path
from aioflow_triggers.extras import require
from aioflow_triggers.http import HttpUnexpected, checked_interval
from aioflow_triggers.http_client import (
    Away,
    ClientShare,
    Forbidden,
    Request,
    Response,
    check_url,
    may_follow,
)

__all__ = (
    "HttpPagesTrigger",
    "PageItems",
    "with_credentials",
    "without_credentials",
)

_MASK = "***"


def without_credentials(url: str, own: str) -> str:
    """Return a URL with the user information and query values of ``own`` masked."""
    parts, ours = urlsplit(url), urlsplit(own)
    secret = set(parse_qsl(ours.query))
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    netloc = parts.netloc
    if "@" in netloc:
        netloc = f"{_MASK}@{netloc.rpartition('@')[2]}"
    query = parts.query
    if secret.intersection(pairs):
        hidden = [(name, _MASK if (name, value) in secret else value) for name, value in pairs]
        query = urlencode(hidden, safe="*")
    return urlunsplit(parts._replace(netloc=netloc, query=query))


def with_credentials(url: str, own: str) -> str:
    """Return the URL that was passed to ``without_credentials``."""
    parts, ours = urlsplit(url), urlsplit(own)
    known = dict(parse_qsl(ours.query))
    netloc, query = parts.netloc, parts.query
    if netloc.startswith(f"{_MASK}@") and "@" in ours.netloc:
        netloc = f"{ours.netloc.rpartition('@')[0]}@{netloc.rpartition('@')[2]}"
    pairs = parse_qsl(query, keep_blank_values=True)
    if any(value == _MASK for _, value in pairs):
        query = urlencode(
            [(name, known.get(name, value) if value == _MASK else value) for name, value in pairs]
        )
    return urlunsplit(parts._replace(netloc=netloc, query=query))


_BODY_LIMIT = 8 * 1024 * 1024
_KEY_LENGTH = 500
_AGAIN = frozenset({408, 425, 429})
_FIRST_DELAY_SECONDS = 1.0
_LONGEST_DELAY_SECONDS = 60.0
_sleep = asyncio.sleep


class PageItems(TypedDict):
    """Items of one page: a single item, or all new items.

    ``page`` is the URL of the page, from which the stream resumes after a restart. The credentials
    in it, which are the query values and the user information of the trigger's own ``url``, are
    masked.
    """

    items: list[Any]
    page: str


@dataclass(frozen=True)
class HttpPagesTrigger(Trigger[PageItems]):
    """Fires for every item of a paginated API, which it reads as one stream.

    It reads page after page. At the end it polls the last page once per ``interval`` for new items
    on this page and for new pages after it. Set exactly one of ``next_link``, ``next_cursor`` and
    ``page_parameter``. It states how to find the next page.

    Attributes:
        url: The first page.
        items: The path of the list of items in a page, as in ``JsonIs``; ``""`` if the page is the
            list.
        key: The path of an item's unique key in the item; ``""`` for the whole item.
        next_link: The path of the next page's URL in a page; ``"link"`` for the header ``Link``
            with ``rel="next"``.
        next_cursor: The path of the next page's cursor in a page. The cursor is sent as the
            parameter ``cursor_parameter``.
        page_parameter: The parameter with the page number. The first page has ``first_page``; a
            page without items is the end.
        per: ``item`` for one event per item, ``page`` for one event with all new items of a page.
        interval: Time between two polls of the last page, at least 0.1 s. A stream with an interval
            never ends, so a task that needs its end, such as a fan-in, never starts. ``None`` ends
            the stream at the last page.
        timeout: See ``HttpTrigger``.
        body_limit: Maximum size of a page in bytes; at most 8 MiB.
        connection: See ``HttpTrigger``. The ``url`` must be a complete URL on its server.

    Raises:
        ValueError: If ``url`` or ``body_limit`` is invalid, or not exactly one of the fields for
            the next page is set.
        DagError: As in ``HttpTrigger``.

    Events:
        Many, in the order of the API. ``payload`` is ``{"items": [...], "page": str}``; ``key`` is
        the key of the item, or of the last item of the page. After a restart, the trigger resumes
        on
        the page of its last event, after the item of that event; if the item is no longer on the
        page, it yields the whole page.

    Errors:
        After a failed or timed-out connection, 408, 425, 429 and any 5xx, the request is retried,
        but not before the time in ``Retry-After``. With ``page_parameter``, 404 means the end. Any
        other
        status fails the waiting task. So does a page or an item that lacks a value at one of the
        paths. A next page of another origin fails the task too, because that origin would receive
        the headers.
    """

    public_fields = (
        *("url", "items", "key", "next_link", "next_cursor", "cursor_parameter"),
        *("page_parameter", "first_page", "per", "interval", "timeout", "body_limit"),
        "connection",
    )

    url: str
    items: str = ""
    key: str = ""
    next_link: str | None = None
    next_cursor: str | None = None
    cursor_parameter: str = "cursor"
    page_parameter: str | None = None
    first_page: int = 1
    per: Literal["item", "page"] = "item"
    headers: Mapping[str, str] = field(default_factory=dict)
    interval: Duration | None = 60.0
    timeout: Duration = 30.0
    body_limit: int = _BODY_LIMIT
    connection: str = ""

    def __post_init__(self) -> None:
        require("HttpPagesTrigger", "httpx2", "http")
        check_url(self.url)
        ways = [self.next_link, self.next_cursor, self.page_parameter]
        if sum(way is not None for way in ways) != 1:
            raise ValueError("give exactly one of next_link, next_cursor and page_parameter")
        if self.per not in {"item", "page"}:
            raise ValueError(f"per must be 'item' or 'page', got {self.per!r}")
        if self.interval is not None:
            checked_interval(self.interval)
        as_timedelta(self.timeout, "timeout")
        if not 0 < self.body_limit <= _BODY_LIMIT:
            raise ValueError(f"body_limit must be at most {_BODY_LIMIT}, got {self.body_limit}")

    async def run(self) -> AsyncIterator[TriggerEvent[PageItems]]:
        """Yield an event for each item, or each page."""
        position, before, widest = self._start(), None, 0
        line, connection = ClientShare(type(self).__name__), FetchedConnection(self.connection)
        line.open()
        try:
            while True:
                page = await self._page(line, connection, position.url)
                if before is not None and page.items and before.may_have_grown(widest):
                    for event in self._events(
                        await self._page(line, connection, before.url), before
                    ):
                        yield event
                for event in self._events(page, position):
                    yield event
                widest = max(widest, len(page.items))
                following = self._next(page, position.url)
                if following is not None:
                    position, before = _Position(following), self._counted(position)
                    continue
                if self.interval is None:
                    return
                if before is not None and not page.items:
                    position, before = before, None  # the last page with items may get more
                    position.was_last = True
                self.note_check(next_in=self.interval)
                await _sleep(checked_interval(self.interval))
        finally:
            await line.close()

    def _counted(self, position: _Position) -> _Position | None:
        """Return the position if pages are numbered, else ``None``.

        A numbered page is read again when the next page has items.
        """
        return None if self.page_parameter is None else position

    def _start(self) -> _Position:
        """Return the first position: that of the last event, or else the first page."""
        if self.last is not None:
            return _Position(
                with_credentials(self.last.payload["page"], self.url), behind=self.last.key
            )
        if self.page_parameter is None:
            return _Position(self.url)
        return _Position(_with_parameter(self.url, self.page_parameter, str(self.first_page)))

    # ── one page ────────────────────────────────────────────────────────────────────────

    async def _page(self, line: ClientShare, connection: FetchedConnection, url: str) -> _Page:
        """Return a page. Retries while the server is unreachable or overloaded."""
        seconds = _FIRST_DELAY_SECONDS
        timeout = as_timedelta(self.timeout, "timeout").total_seconds()
        while True:
            patience, said = 0.0, "no answer"
            request = Request(
                url,
                headers=with_credentials_of(await connection.get(), url, self.headers),
                timeout_seconds=timeout,
                body_limit=self.body_limit,
            )
            try:
                answer = await line.ask(request)
                said = f"it answered {answer.status}"
                if 200 <= answer.status < 300:
                    return self._read(answer)
                if answer.status == 404 and self.page_parameter is not None:
                    return _Page(None, [], "")
                if answer.status not in _AGAIN and answer.status < 500:
                    raise HttpUnexpected(f"{masked_url(url)} answered {answer.status}")
                patience = answer.retry_after_seconds(_now())
                self.log.info("%s answered %d", masked_url(url), answer.status)
            except Away as exc:
                self.log.info("%s", exc)
            self.note_check(said, next_in=max(seconds, patience))
            await _sleep(max(seconds, patience))
            seconds = min(seconds * 2, _LONGEST_DELAY_SECONDS)

    def _read(self, answer: Response) -> _Page:
        try:
            document = json.loads(answer.content)
        except ValueError as exc:
            raise HttpUnexpected(f"{answer.url} is not valid JSON: {exc}") from exc
        items = at_path(document, self.items)
        if not isinstance(items, list):
            raise HttpUnexpected(f"{answer.url} has no list at {self.items!r}")
        return _Page(document, items, answer.headers.get("link", ""))

    def _events(self, page: _Page, position: _Position) -> Iterator[TriggerEvent[PageItems]]:
        keys = [self._key(item, position.url) for item in page.items]
        if position.behind in keys:
            position.told.update(keys[: keys.index(position.behind) + 1])
        position.behind, position.size = None, len(keys)
        told = frozenset(position.told)
        new = [(item, key) for item, key in zip(page.items, keys, strict=True) if key not in told]
        if self.per == "page":
            new = [([item for item, _ in new], new[-1][1])] if new else []
        else:
            new = [([item], key) for item, key in new]
        for items, key in new:
            position.told.update(keys if self.per == "page" else [key])
            yield TriggerEvent(
                PageItems(items=items, page=without_credentials(position.url, self.url)), key=key
            )

    def _key(self, item: Any, url: str) -> str:
        found = at_path(item, self.key)
        if found is Nothing:
            raise HttpUnexpected(f"an item of {masked_url(url)} has nothing at {self.key!r}")
        text = found if isinstance(found, str) else json.dumps(found, sort_keys=True)
        long = len(text) > _KEY_LENGTH
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() if long else text

    def _next(self, page: _Page, url: str) -> str | None:
        following = self._following(page, url)
        if following is None or following == url:
            return None
        if not may_follow(url, following):
            led = masked_url(following)
            raise Forbidden(f"the page behind {masked_url(url)} is {led}, of another origin")
        return following

    def _following(self, page: _Page, url: str) -> str | None:
        if self.page_parameter is not None:
            number = int(dict(parse_qsl(urlsplit(url).query))[self.page_parameter])
            return (
                _with_parameter(url, self.page_parameter, str(number + 1)) if page.items else None
            )
        if self.next_cursor is not None:
            cursor = _text(at_path(page.document, self.next_cursor))
            return _with_parameter(url, self.cursor_parameter, cursor) if cursor else None
        if self.next_link == "link":
            link = _next_of(page.link)
        else:
            link = _text(at_path(page.document, self.next_link or ""))
        return urljoin(url, link) if link else None


@dataclass
class _Position:
    """The position in the stream: a page, and which of its items were yielded.

    Attributes:
        behind: After a restart: the key of the item after which the stream resumes.
        size: The number of items in the last response.
        was_last: Whether the next page has been empty once.
    """

    url: str
    behind: str | None = None
    told: set[str] = field(default_factory=set)
    size: int = 0
    was_last: bool = False

    def may_have_grown(self, widest: int) -> bool:
        """Return whether items may have been added to the page before the next page began."""
        return self.was_last or self.size < widest


@dataclass(frozen=True)
class _Page:
    """A page as received; ``link`` is its ``Link`` header."""

    document: Any
    items: list[Any]
    link: str


_LINK = re.compile(r"<([^>]*)>([^<]*)")
_REL_NEXT = re.compile(r""";\s*rel\s*=\s*(?:"[^"]*\bnext\b[^"]*"|next\b)""", re.IGNORECASE)


def _next_of(header: str) -> str:
    """Return the URL with ``rel="next"`` in a ``Link`` header, or ``""``."""
    found = (match[1] for match in _LINK.finditer(header) if _REL_NEXT.search(match[2]))
    return next(found, "")


def _text(found: Any) -> str:
    return "" if found is Nothing or found is None else str(found)


def _with_parameter(url: str, name: str, value: str) -> str:
    parts = urlsplit(url)
    others = [pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] != name]
    return urlunsplit(parts._replace(query=urlencode([*others, (name, value)])))


def _now() -> datetime:
    return datetime.now(UTC)
