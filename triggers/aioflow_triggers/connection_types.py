"""Connection types that the catalogue uses: web servers, PostgreSQL and object stores."""

from __future__ import annotations

from aioflow import Connection, ConnectionField, ConnectionType
from aioflow_triggers.credentials import base_url, http_headers, store_options
from aioflow_triggers.extras import require

__all__ = ("Http", "ObjectStore", "Postgres")

_TEST_SECONDS = 8.0
_REFUSALS = frozenset({401, 403, 407})
_SERVER_ERRORS = 500
_BODY_LIMIT = 512 * 1024


class Http(ConnectionType):
    """A web server. The test sends one ``GET`` with the credentials."""

    label = "Web server (HTTP)"
    schemes = ("https", "http")
    fields = (
        ConnectionField(name="host", label="Host", is_required=True, hint="api.example.org"),
        ConnectionField(name="port", label="Port", kind="number", hint="443, http 80"),
        ConnectionField(name="schema", label="Path", hint="such as v1"),
        ConnectionField(name="login", label="User", hint="none for a token"),
        ConnectionField(name="password", label="Password or token", kind="secret"),
    )

    async def test(self, connection: Connection) -> str:
        """Send one request. Any status is accepted, except a refusal or a server error."""
        from aioflow_triggers.http_client import ClientShare, Request, check_url

        url = base_url(connection)
        check_url(url)
        request = Request(
            url,
            headers=http_headers(connection),
            timeout_seconds=_TEST_SECONDS / 2,
            body_limit=_BODY_LIMIT,
        )
        async with ClientShare("The test of a web server") as client:
            answer = await client.ask(request)
        if answer.status in _REFUSALS:
            raise PermissionError(f"{answer.url} refuses the credentials: {answer.status}")
        if answer.status >= _SERVER_ERRORS:
            raise ConnectionError(f"{answer.url} answers {answer.status}")
        return f"{answer.url} answers {answer.status}"


class Postgres(ConnectionType):
    """A PostgreSQL database. The test logs in without running a statement."""

    label = "PostgreSQL"
    schemes = ("postgresql", "postgres")
    fields = (
        ConnectionField(name="host", label="Host", is_required=True),
        ConnectionField(name="port", label="Port", kind="number", hint="5432"),
        ConnectionField(name="schema", label="Database", hint="that of the user"),
        ConnectionField(name="login", label="User", is_required=True),
        ConnectionField(name="password", label="Password", kind="secret"),
        ConnectionField(
            name="extra.sslmode",
            label="TLS",
            kind="choice",
            choices=("", "disable", "require", "verify-ca", "verify-full"),
        ),
    )

    async def test(self, connection: Connection) -> str:
        """Log in."""
        require("The test of PostgreSQL", "asyncpg", "postgres")
        import asyncpg

        opened = await asyncpg.connect(
            host=connection.host or connection.extra.get("host"),
            port=connection.port,
            user=connection.login or None,
            password=connection.password or None,
            database=connection.schema or None,
            ssl=connection.extra.get("sslmode") or None,
            timeout=_TEST_SECONDS,
        )
        try:
            version = opened.get_server_version()
        finally:
            await opened.close(timeout=_TEST_SECONDS)
        return f"PostgreSQL {version.major}.{version.minor} accepts the user"


class ObjectStore(ConnectionType):
    """A bucket of an object store. The test lists its first folder."""

    label = "Object store"
    schemes = ("s3", "gs", "az", "abfss")
    fields = (
        ConnectionField(name="host", label="Bucket", is_required=True),
        ConnectionField(name="login", label="Key id or account", hint="that of the machine"),
        ConnectionField(name="password", label="Secret key", kind="secret"),
        ConnectionField(name="extra.region", label="Region", hint="such as eu-west-1"),
        ConnectionField(name="extra.endpoint", label="Endpoint", hint="for compatible stores"),
    )

    async def test(self, connection: Connection) -> str:
        """List the first names in the bucket."""
        require("The test of an object store", "obstore", "objects")
        import obstore

        from aioflow_triggers.objects import opened_store

        if not connection.host:
            raise ValueError("the test of an object store needs a bucket as its host")
        folder = f"{connection.conn_type}://{connection.host}"
        options = store_options(connection, connection.conn_type)
        store = opened_store(folder, tuple(sorted(options.items())))
        await obstore.list_with_delimiter_async(store)
        return f"{folder} can be listed"
