"""Runs uvicorn in the daemon's task group, with its own signals, sockets and shutdown.

Two servers share one application, on a TCP address and on a Unix socket in the home. Requests over
the Unix socket are trusted, because only the home's owner can open it; requests over TCP must be
authenticated.

While the daemon waits for its database, ``/health/live`` reports that it is alive, and all other
paths report that it is not ready. These answers need no authentication, because they contain no
data.

The delay of the event loop is measured, because code that blocks it delays every response and
every timer.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import anyio
import anyio.to_thread
import uvicorn
from anyio.abc import TaskStatus
from starlette.types import ASGIApp, Receive, Scope, Send

from aioflow.api import Api
from aioflow.api.access.accounts import Access
from aioflow.clock import Clock
from aioflow.errors import HomeBusy, PortInUse, SettingsError
from aioflow.filesystem import make_folder
from aioflow.settings import Settings, is_loopback, socket_path
from aioflow.telemetry.log import Logger
from aioflow.web.app import create_app
from aioflow.web.forwarding import respond
from aioflow.web.guard import Trusted
from aioflow.web.limits import HEAD_BYTES, Connections
from aioflow.web.routing import PageUrls
from aioflow.web.tokens import Token
from aioflow.web.trusted_proxies import Proxies

__all__ = (
    "LoopLag",
    "WebAddress",
    "listen_on_address",
    "listen_on_home",
    "serve",
    "serve_not_ready",
)

_BACKLOG = 1_024
_UNACKNOWLEDGED_MS = 60_000
_CONNECT_SECONDS = 1.0


def listen_on_address(host: str, port: int) -> socket.socket:
    """Return a listening socket; the caller closes it.

    Args:
        host: A name or an address.
        port: 0 for any free port.

    Raises:
        PortInUse: If the port is in use.
        SettingsError: If this machine has no such address.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as exc:
        raise SettingsError(f"web.host {host!r} cannot be used: {exc.strerror}") from exc
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit this option. A connection that acknowledges no data for this time is
        # closed.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError as exc:
        listening.close()
        if exc.errno == errno.EADDRINUSE:
            raise PortInUse(host, port) from exc
        raise SettingsError(f"cannot listen on {host}:{port}: {exc.strerror}") from exc
    listening.setblocking(False)
    return listening


@contextmanager
def listen_on_home(home: Path) -> Iterator[socket.socket]:
    """Listen on the home's Unix socket. Only its owner can access it. Remove it at the end.

    A socket left by a dead daemon is replaced.

    Raises:
        HomeBusy: If a running daemon listens there.
        SettingsError: If the folder of the socket cannot be trusted.
    """
    path = socket_path(home)
    _own_folder(path.parent)
    _remove_stale(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        try:
            listening.bind(str(path))
            # No client can have connected yet, because the socket does not listen yet.
            path.chmod(0o600)
            made = path.stat().st_ino
        except OSError as exc:
            raise SettingsError(f"cannot listen on {path}: {exc.strerror}") from exc
        listening.listen(_BACKLOG)
        listening.setblocking(False)
        try:
            yield listening
        finally:
            with suppress(FileNotFoundError):
                if path.stat().st_ino == made:  # otherwise it belongs to another daemon by now
                    path.unlink()


def _own_folder(folder: Path) -> None:
    make_folder(folder)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise SettingsError(f"{folder} must be a folder of this user that no other user can write")


def _remove_stale(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise SettingsError(f"{path} is not a socket; remove it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_SECONDS)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except FileNotFoundError:
            return
        except TimeoutError:
            pass  # the socket does not respond, but a process has it open
    raise HomeBusy(str(path), "process unknown")


_LAG_CHECK_SECONDS = 0.5
_LAG_SAMPLES = 30


class LoopLag:
    """Measures the event loop's delay: how much longer a short sleep takes than requested."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._late_us: deque[float] = deque([0.0], maxlen=_LAG_SAMPLES)

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            began = self._clock.monotonic_us()
            await self._clock.sleep(_LAG_CHECK_SECONDS)
            took = self._clock.monotonic_us() - began
            self._late_us.append(max(took - _LAG_CHECK_SECONDS * 1e6, 0.0))

    def worst_seconds(self) -> float:
        """Return the maximum delay of the last 15 seconds."""
        return max(self._late_us) / 1e6


_DATE_SECONDS = 1.0
_GRACE_SECONDS = 3
_LAST_SECONDS = 2.0
_KEEP_ALIVE_SECONDS = 30
_PATHS_TOLD = 5
_log = Logger(__name__)

_WILDCARDS = frozenset({"0.0.0.0", "::"})  # noqa: S104


class _Server(uvicorn.Server):
    """A uvicorn server without signal handlers. ``up`` is set as soon as the server listens."""

    def __init__(self, app: ASGIApp, proxies: Proxies) -> None:
        self._connections = Connections(app, is_exempt=proxies.is_trusted)
        config = uvicorn.Config(
            self._connections,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            http="h11",
            h11_max_incomplete_event_size=HEAD_BYTES,
            ws="none",
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )
        config.load()
        config.http_protocol_class = self._connections.protocol(config.http_protocol_class)
        super().__init__(config)
        self.up = anyio.Event()
        self._stopping = anyio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    async def main_loop(self) -> None:
        """Renew the date for response headers once a second, until ``stop`` is called.

        uvicorn's own loop wakes up ten times a second, even if the daemon is idle.
        """
        while not await self.on_tick(0):
            with anyio.move_on_after(_DATE_SECONDS):
                await self._stopping.wait()

    def stop(self) -> None:
        """Begin to shut down."""
        self.should_exit = True
        self._stopping.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down. Requests that do not end in time are cancelled and logged in one line."""
        with anyio.move_on_after(_GRACE_SECONDS) as grace:
            await super().shutdown(sockets)
        if grace.cancelled_caught:
            await self._cut_short()

    async def _cut_short(self) -> None:
        requests = dict(self._connections.requests)
        if requests:
            _log.warning(
                "requests cancelled: the daemon stops",
                count=len(requests),
                paths=sorted(set(requests.values()))[:_PATHS_TOLD],
                seconds=_GRACE_SECONDS,
            )
            for task in requests:
                task.cancel()
            await asyncio.wait(requests, timeout=_LAST_SECONDS)
        self._connections.abort()

    async def run_on(self, listening: socket.socket) -> None:
        """Serve until ``stop`` is called. Shielded: cancellation would leave the port open."""
        with anyio.CancelScope(shield=True):
            await self.serve(sockets=[listening])


def check_address(settings: Settings) -> None:
    """Check that the address is reachable by other machines only if that is allowed.

    Raises:
        SettingsError: If other machines can reach it, and that is not allowed.
    """
    if not is_loopback(settings.host) and not settings.allow_remote:
        raise SettingsError(
            f"web.host is {settings.host}, which other machines can reach; "
            "add --allow-remote if that is meant"
        )


async def _no_app(scope: Scope, receive: Receive, send: Send) -> None:
    raise RuntimeError("an address has no application yet")


class WebAddress:
    """The address and the home's socket of a daemon. One application at a time answers there.

    The application may be replaced while connections are open, for example when a standby becomes
    the active node.

    Attributes:
        is_listening: Whether requests are answered.
        port: The port; 0 before ``listen``.
    """

    def __init__(self, settings: Settings) -> None:
        check_address(settings)
        self._settings = settings
        self._proxies = Proxies(settings.trusted_proxies)
        self._sockets = ExitStack()
        self._closing = anyio.Event()
        self._is_over = anyio.Event()
        self._app: ASGIApp = _no_app
        self._has_app = anyio.Event()
        self.is_listening = False
        self.port = 0

    def listen(self) -> None:
        """Bind the address and the home's socket. ``run`` releases them.

        Raises:
            PortInUse: If the address is in use.
            SettingsError: If the address is invalid.
        """
        settings = self._settings
        with ExitStack() as listening:
            self._public = listening.enter_context(listen_on_address(settings.host, settings.port))
            self._home = listening.enter_context(listen_on_home(settings.home))
            self.port = self._public.getsockname()[1]
            self._sockets = listening.pop_all()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Answer requests until closed or cancelled. Without an application, requests wait."""
        try:
            with self._sockets:
                await self._serve(task_status)
        finally:
            self._is_over.set()

    async def _serve(self, task_status: TaskStatus[None]) -> None:
        servers = (
            (_Server(self._answer, self._proxies), self._public),
            (_Server(Trusted(self._answer), self._proxies), self._home),
        )
        async with anyio.create_task_group() as group:
            try:
                for server, sock in servers:
                    group.start_soon(server.run_on, sock)
                    await server.up.wait()
                self.is_listening = True
                task_status.started()
                await self._closing.wait()
            finally:
                self.is_listening = False
                for server, _ in servers:
                    server.stop()  # the servers are shielded and shut down by themselves

    def close(self) -> None:
        """Start to shut down. Open requests have a few seconds to end."""
        self._closing.set()

    async def closed(self) -> None:
        """Wait until the shutdown has ended."""
        await self._is_over.wait()

    def answer_with(self, app: ASGIApp) -> None:
        """Answer new requests with this application from now on."""
        self._app = app
        self._has_app.set()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._has_app.wait()
        await self._app(scope, receive, send)


async def serve(
    api: Api,
    settings: Settings,
    stop: anyio.Event,
    *,
    at: WebAddress | None = None,
    task_status: TaskStatus[str] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until ``stop`` is set or the caller is cancelled.

    Report the page's URL, with a token, to ``task_status`` once requests are answered.

    Args:
        at: An address that remains open after a cancellation, so that another application can take
            over. By default, a separate address is opened and closed.

    Raises:
        PortInUse: If the address is in use.
        SettingsError: If the address is invalid, or other machines can reach it without permission.
    """
    address = at or WebAddress(settings)
    if at is None:
        address.listen()
    token = await anyio.to_thread.run_sync(Token.open, settings.token_file)
    lag = LoopLag(api.clock)
    api.reads.lag_seconds = lag.worst_seconds
    async with _noting(api.access, stop), anyio.create_task_group() as group:
        try:
            if at is None:
                await group.start(address.run)
            url = _url(settings, address.port)
            app = create_app(
                api,
                token,
                hosts=(settings.host, socket.gethostname()),
                any_address=settings.host in _WILDCARDS,
                proxies=Proxies(settings.trusted_proxies),
                lag_seconds=lag.worst_seconds,
                page_urls=PageUrls(settings.public_url, url),
            )
            address.answer_with(app)
            if api.node_queries is not None and api.follower is None:
                api.node_queries.respond = respond(app, api)
            group.start_soon(lag.run)
            group.start_soon(api.reads.commits.run)
            task_status.started(f"{url}/?token={token.secret}")
            await stop.wait()
        finally:
            api.reads.commits.close()
            if at is None or stop.is_set():
                address.close()
                with anyio.CancelScope(shield=True):
                    await address.closed()
            group.cancel_scope.cancel()


@asynccontextmanager
async def _noting(access: Access, stop: anyio.Event) -> AsyncIterator[None]:
    """Write denied requests to the audit. Write the last ones after all requests have ended."""
    async with anyio.create_task_group() as group:
        await group.start(access.run)
        try:
            yield
        finally:
            if stop.is_set():  # otherwise the engine is cancelled as well
                with anyio.move_on_after(_LAST_SECONDS, shield=True) as patience:
                    await access.finish()
                if patience.cancelled_caught:
                    _log.warning(
                        "the last denials are missing from the audit: the engine has stopped"
                    )
            group.cancel_scope.cancel()


def _url(settings: Settings, port: int) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{port}"


_HEALTH_CHECK_SECONDS = 5.0
_HEALTH_CHECK_BYTES = 16 * 1024
_LIVE_BODY = b'{"status":"live"}'
_NOT_READY_BODY = b'{"status":"not_ready"}'


async def serve_not_ready(
    settings: Settings, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Answer all requests as not ready. When cancelled, release the web server's address.

    Raises:
        PortInUse: If the address is in use.
        SettingsError: If the address is invalid, or other machines can reach it without permission.
    """
    check_address(settings)
    with listen_on_address(settings.host, settings.port) as listening:
        server = await _not_ready_server(listening)
        try:
            task_status.started()
            await anyio.sleep_forever()
        finally:
            server.close()


async def _not_ready_server(listening: socket.socket) -> asyncio.Server:
    return await asyncio.start_server(_answer_not_ready, sock=listening, limit=_HEALTH_CHECK_BYTES)


async def _answer_not_ready(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        with suppress(OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            with anyio.fail_after(_HEALTH_CHECK_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            writer.write(_not_ready_response(head))
            await writer.drain()
    except TimeoutError:
        pass  # the client sent no request: close the connection
    finally:
        writer.close()


def _not_ready_response(head: bytes) -> bytes:
    words = head.split(b"\r\n", 1)[0].split(b" ")
    is_live = len(words) > 1 and words[1].partition(b"?")[0] == b"/health/live"
    status, body = (
        (b"200 OK", _LIVE_BODY) if is_live else (b"503 Service Unavailable", _NOT_READY_BODY)
    )
    lines = (
        b"HTTP/1.1 " + status,
        b"content-type: application/json",
        b"content-length: " + str(len(body)).encode(),
        b"retry-after: 5",
        b"connection: close",
    )
    return b"\r\n".join((*lines, b"", body))
