"""Runs uvicorn in the daemon's task group, with its own signals, sockets and shutdown.

Two servers share one application. Requests over the Unix socket are trusted, because only the
home's owner can open it; requests over TCP must be authenticated.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

import anyio
import anyio.to_thread
import uvicorn
from anyio.abc import TaskStatus
from starlette.types import ASGIApp

from aioflow.api import Api
from aioflow.api.accounts import Access
from aioflow.errors import SettingsError
from aioflow.settings import Settings, is_loopback
from aioflow.telemetry.log import Logger
from aioflow.web.app import create_app
from aioflow.web.guard import Trusted
from aioflow.web.limits import HEAD_BYTES, limited, pending_paths
from aioflow.web.loop_lag import LoopLag
from aioflow.web.proxy_headers import Proxies
from aioflow.web.sockets import listen_on_address, listen_on_home
from aioflow.web.tokens import Token

__all__ = ("serve",)

_GRACE_SECONDS = 3
_LAST_SECONDS = 2.0
_KEEP_ALIVE_SECONDS = 30
_PATHS_TOLD = 5
_log = Logger(__name__)

_WILDCARDS = frozenset({"0.0.0.0", "::"})  # noqa: S104


class _Server(uvicorn.Server):
    """Installs no signal handlers, signals when it listens, and cancels requests at the end."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = anyio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down. Requests that do not end in time are cancelled, and logged in one line."""
        with anyio.move_on_after(_GRACE_SECONDS) as grace:
            await super().shutdown(sockets)
        if grace.cancelled_caught:
            await self._cut_short()

    async def _cut_short(self) -> None:
        state = self.server_state
        tasks, connections = set(state.tasks), list(state.connections)
        if tasks:
            _log.warning(
                "requests cut short, the daemon stops",
                count=len(tasks),
                paths=sorted(pending_paths(connections))[:_PATHS_TOLD],
                seconds=_GRACE_SECONDS,
            )
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=_LAST_SECONDS)
        for connection in connections:
            connection.transport.abort()

    async def run_on(self, listening: socket.socket) -> None:
        """Serve until ``should_exit`` is set. Shielded: a cancel would leave the port open."""
        with anyio.CancelScope(shield=True):
            await self.serve(sockets=[listening])


def check_address(settings: Settings) -> None:
    """Check that the address is reachable by other machines only if that is allowed.

    Raises:
        SettingsError: If it is reachable, and that is not allowed.
    """
    if not is_loopback(settings.host) and not settings.allow_remote:
        raise SettingsError(
            f"web.host is {settings.host}, which other machines can reach; "
            "add --allow-remote if that is meant"
        )


async def serve(
    api: Api,
    settings: Settings,
    stop: anyio.Event,
    *,
    task_status: TaskStatus[str] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until ``stop`` is set or the caller is cancelled.

    Report the page's URL, with a token, to ``task_status`` once requests are answered.

    Raises:
        PortInUse: If the address is in use.
        SettingsError: If it is invalid, or reachable by other machines without permission.
    """
    check_address(settings)
    token = await anyio.to_thread.run_sync(Token.open, settings.token_file)
    lag = LoopLag(api.clock)
    api.reads.lag_seconds = lag.worst_seconds
    proxies = Proxies(settings.trusted_proxies)
    app = create_app(
        api,
        token,
        hosts=(settings.host, socket.gethostname()),
        any_address=settings.host in _WILDCARDS,
        proxies=proxies,
        lag_seconds=lag.worst_seconds,
    )
    with ExitStack() as listening:
        address = listening.enter_context(listen_on_address(settings.host, settings.port))
        home = listening.enter_context(listen_on_home(settings.home))
        servers = ((_server(app, proxies), address), (_server(Trusted(app), proxies), home))
        async with _noting(api.access, stop), anyio.create_task_group() as group:
            try:
                for server, sock in servers:
                    group.start_soon(server.run_on, sock)
                    await server.up.wait()
                group.start_soon(lag.run)
                group.start_soon(api.reads.commits.run)
                task_status.started(_url(settings, address, token))
                await stop.wait()
            finally:
                api.reads.commits.close()
                for server, _ in servers:
                    server.should_exit = True
                group.cancel_scope.cancel()  # the servers are shielded and shut down by themselves


@asynccontextmanager
async def _noting(access: Access, stop: anyio.Event) -> AsyncIterator[None]:
    """Write denied requests to the audit; the last ones after all requests have ended."""
    async with anyio.create_task_group() as group:
        await group.start(access.run)
        try:
            yield
        finally:
            if stop.is_set():  # otherwise the engine is cancelled as well
                with anyio.move_on_after(_LAST_SECONDS, shield=True) as patience:
                    await access.finish()
                if patience.cancelled_caught:
                    _log.warning("the audit lacks what was refused last, the engine is gone")
            group.cancel_scope.cancel()


def _server(app: ASGIApp, proxies: Proxies) -> _Server:
    return _Server(
        uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            http=limited(is_exempt=proxies.is_trusted),
            h11_max_incomplete_event_size=HEAD_BYTES,
            ws="none",
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )
    )


def _url(settings: Settings, address: socket.socket, token: Token) -> str:
    port = address.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{port}/?token={token.secret}"
