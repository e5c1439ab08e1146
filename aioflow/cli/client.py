"""The HTTP client of the commands: connects to the home's Unix socket, or to a URL.

It uses only the standard library, because importing another client would delay each command by half
a second.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, unquote, urlencode

from aioflow.cli.output import hint, on_terminal
from aioflow.errors import AioflowError, DaemonAway, SettingsError
from aioflow.settings import find_home, socket_path

__all__ = ("Client", "Connection", "Refused", "connect", "connect_home", "show_run_link")


_PAGE = 1_000
"""Maximum number of items in a response."""


class Refused(AioflowError):
    """Raised if the daemon answers with an error.

    Attributes:
        told_code: The stable error code of the response.
        status: The HTTP status; 0 without a response.
    """

    code = "remote"

    def __init__(self, told_code: str, detail: str, status: int) -> None:
        super().__init__(detail)
        self.told_code = told_code
        self.status = status


class Connection(Protocol):
    """A connection to one daemon."""

    def ask(
        self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        """Send one request and return the status and the body of the response.

        Raises:
            OSError: If there is no response.
        """


class Client:
    """Sends requests to one daemon, one after another.

    Args:
        place: Names the daemon in error messages.
        token: If given, it is sent with each request.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        place: str,
        prefix: str = "",
        token: str | None = None,
    ) -> None:
        self._connection = connection
        self._place = place
        self._prefix = prefix
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def get(self, *path: str, **query: object) -> Any:
        """Send a GET request and return the decoded JSON. Query values of ``None`` are left out.

        Raises:
            DaemonAway: If no daemon answers.
            Refused: If the daemon answers with an error.
        """
        return json.loads(self.get_bytes(*path, **query))

    def get_bytes(self, *path: str, **query: object) -> bytes:
        """Send a GET request and return the raw body."""
        return self._ask("GET", _joined(path, query))

    def items(self, *path: str, limit: int | None = None, **query: object) -> list[Any]:
        """Return the items of a list, at most ``limit``. They are fetched page by page."""
        found: list[Any] = []
        cursor: str | None = None
        while limit is None or len(found) < limit:
            wanted = _PAGE if limit is None else min(limit - len(found), _PAGE)
            page = self.get(*path, **query, limit=wanted, cursor=cursor)
            found += page["items"]
            cursor = page["next"]
            if cursor is None:
                break
        return found

    def text(self, target: str) -> str:
        """Return the text at a path outside the API."""
        return self._ask("GET", target).decode()

    def post(self, *path: str, body: Mapping[str, object] | None = None) -> Any:
        """Send a POST request and return its result."""
        return self._change("POST", path, body)

    def act(self, *path: str, query: Mapping[str, object], key: str | None = None) -> Any:
        """Send a POST request with a query and an idempotency key."""
        headers = {} if key is None else {"Idempotency-Key": key}
        return json.loads(self._ask("POST", _joined(path, query), headers=headers))

    def clean(self, *, dry_run: bool) -> Any:
        """Delete one batch of expired data, or only count it; see ``api.Api.clean``."""
        return self._change("POST", ("db", "clean"), query={"dry_run": str(dry_run).lower()})

    def emit(self, name: str, *, key: str | None = None, data: object = None) -> Any:
        """Emit a named event; see ``api.Api.emit``."""
        return self._change("POST", ("events", name), data, {"key": key})

    def put(
        self,
        *path: str,
        body: Mapping[str, object] | None = None,
        query: Mapping[str, object] | None = None,
    ) -> Any:
        """Send a PUT request and return its result."""
        return self._change("PUT", path, body, query)

    def delete(self, *path: str, query: Mapping[str, object] | None = None) -> Any:
        """Send a DELETE request and return its result."""
        return self._change("DELETE", path, query=query)

    def _change(
        self,
        method: str,
        path: tuple[str, ...],
        body: object = None,
        query: Mapping[str, object] | None = None,
    ) -> Any:
        data = None if body is None else json.dumps(body).encode()
        return json.loads(self._ask(method, _joined(path, query), data))

    def _ask(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        headers = {**self._headers, **(headers or {})}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            status, data = self._connection.ask(method, self._prefix + target, body, headers)
        except OSError as exc:
            raise self._away(exc) from exc
        if status >= 400:
            raise self._refused(status, data, target)
        return data

    def _refused(self, status: int, data: bytes, target: str) -> Refused:
        try:
            told = json.loads(data)
            code, detail = str(told["code"]), str(told["detail"])
            if advice := told.get("advice"):
                detail = f"{detail}; {advice}"
        except (ValueError, KeyError, TypeError):
            return Refused("remote", f"the daemon answered with HTTP status {status}", status)
        if code == "web.no_such_path":
            place = unquote(self._prefix + target.partition("?")[0])
            detail = (
                f"the daemon has no resource at {place!r}; a name is not empty, and has no / in it"
            )
        if code == "web.unauthorized":
            why = "rejected the token in" if self._headers else "needs a token, in"
            where = "the home's is in its file `token`"
            detail = f"the daemon of {self._place} {why} AIOFLOW_TOKEN; {where}"
        return Refused(code, detail, status)

    def _away(self, exc: Exception) -> AioflowError:
        if isinstance(exc, ConnectionRefusedError | FileNotFoundError):
            return DaemonAway(self._place)
        detail = str(exc) or type(exc).__name__
        return Refused(DaemonAway.code, f"the daemon of {self._place} does not answer: {detail}", 0)


def _joined(path: tuple[str, ...], query: Mapping[str, object] | None = None) -> str:
    """Return the target of a request. Parameters that are ``None`` are omitted."""
    target = "/api/v1/" + "/".join(quote(part, safe="") for part in path)
    given = {name: value for name, value in (query or {}).items() if value is not None}
    return f"{target}?{urlencode(given, doseq=True)}" if given else target


def connect(arguments: argparse.Namespace) -> Client:
    """Return a client of the daemon that the arguments select. The daemon need not be running."""
    if arguments.url:
        return _connect_url(arguments.url)
    return connect_home(find_home(arguments.home))


def connect_home(home: Path) -> Client:
    """Return a client of a home's daemon."""
    from aioflow.cli.http_connection import over_socket

    return Client(over_socket(socket_path(home)), place=str(home))


def _connect_url(url: str) -> Client:
    from aioflow.cli.http_connection import over_url

    connection, prefix = over_url(url)
    return Client(connection, place=url, prefix=prefix, token=_token())


def _token() -> str | None:
    token = os.environ.get("AIOFLOW_TOKEN", "").strip()
    if not (token.isascii() and token.isprintable()):
        raise SettingsError("AIOFLOW_TOKEN is not a token: use letters, digits, _ and -")
    return token or None


def show_run_link(
    arguments: argparse.Namespace, run_id: str, task: str | None = None, map_index: int = -1
) -> None:
    """Print the URL of a run, or of a task of the run, if standard output is a terminal.

    Print nothing if no daemon runs, because then there is no page.
    """
    if arguments.json or not on_terminal():
        return
    try:
        base = connect(arguments).get("me").get("page_url") or arguments.url
    except (DaemonAway, Refused):
        return
    if base:
        from aioflow.model.page_links import task_page

        hint(f"on the page: {task_page(base.rstrip('/'), run_id, task or '', map_index)}")
