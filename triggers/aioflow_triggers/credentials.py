"""Addresses and credentials from connections, for triggers and for connection tests."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from urllib.parse import urlsplit

from aioflow import Connection, fetch_connection

__all__ = (
    "FetchedConnection",
    "base_url",
    "http_headers",
    "store_options",
    "with_base",
    "with_credentials_of",
)

_FRESH_SECONDS = 300.0

_KEYS = {
    "s3": ("access_key_id", "secret_access_key"),
    "s3a": ("access_key_id", "secret_access_key"),
    "gs": ("", "service_account_key"),
    "az": ("account_name", "account_key"),
    "azure": ("account_name", "account_key"),
    "adl": ("account_name", "account_key"),
    "abfs": ("account_name", "account_key"),
    "abfss": ("account_name", "account_key"),
}
"""Names of the options for the user and the password of a connection, by kind of store."""


class FetchedConnection:
    """A connection by name. It is fetched again every few minutes, so that a new password is used.

    Args:
        name: Empty for no connection.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._found: Connection | None = None
        self._until = 0.0

    async def get(self) -> Connection | None:
        """Return the connection; ``None`` if there is no name."""
        now = asyncio.get_running_loop().time()
        if self._name and (self._found is None or now >= self._until):
            self._found, self._until = await fetch_connection(self._name), now + _FRESH_SECONDS
        return self._found


def base_url(connection: Connection) -> str:
    """Return the URL of a web server, without credentials.

    The host of the connection may already be a URL.
    """
    if "://" in connection.host:
        return connection.host
    scheme = connection.conn_type if connection.conn_type in {"http", "https"} else "https"
    host = f"[{connection.host}]" if ":" in connection.host else connection.host
    port = "" if connection.port is None else f":{connection.port}"
    path = f"/{connection.schema}" if connection.schema else ""
    return f"{scheme}://{host}{port}{path}"


def with_base(connection: Connection, url: str) -> str:
    """Return a URL on the server of a connection. A path is appended to the URL of the server.

    Raises:
        ValueError: If the URL has another origin, which must not receive the credentials.
    """
    base = base_url(connection)
    if url.startswith("/"):
        return base.rstrip("/") + url
    if _origin(url) != _origin(base):
        raise ValueError("the url is not on the server of the connection")
    return url


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    usual = 443 if parts.scheme == "https" else 80
    return parts.scheme, parts.hostname, parts.port or usual


def http_headers(connection: Connection) -> dict[str, str]:
    """Return the header with the credentials: Basic, or Bearer for a password without a user."""
    if connection.login:
        pair = f"{connection.login}:{connection.password}".encode()
        return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}
    if connection.password:
        return {"Authorization": f"Bearer {connection.password}"}
    return {}


def with_credentials_of(
    connection: Connection | None, url: str, headers: Mapping[str, str]
) -> dict[str, str]:
    """Return headers with the credentials of a connection. Headers that are already set win.

    Raises:
        ValueError: If the URL is not on the server of the connection.
    """
    found = dict(headers)
    if connection is not None:
        with_base(connection, url)
        own = {name.lower() for name in headers}
        credentials = http_headers(connection)
        found |= {name: text for name, text in credentials.items() if name.lower() not in own}
    return found


def store_options(connection: Connection, scheme: str) -> Mapping[str, str]:
    """Return the options of an object store: the extra settings and the credentials."""
    user, password = _KEYS.get(scheme, ("", ""))
    found = {name: str(value) for name, value in connection.extra.items()}
    if user and connection.login:
        found[user] = connection.login
    if password and connection.password:
        found[password] = connection.password
    return found
