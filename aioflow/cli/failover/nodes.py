"""The daemons of the failover demo, and the faults that are injected into them.

Each daemon has its own home, port, and proxy. The proxy can cut it off from the database.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from aioflow.cli.failover.local_postgres import SOCKET
from aioflow.crypto import Vault
from aioflow.processes.orphans import home_mark, kill_marked
from aioflow.settings import FILE_NAME
from aioflow.settings.home import make_home

__all__ = ("FAULTS", "DemoNode", "prepare_home", "prepare_nodes")

_ANSWER_SECONDS = 5.0
_HEALTH_SECONDS = 1.0
_CLOSE_SECONDS = 5.0
_CPU_SLOTS = "2"
_PIECE = 64 * 1024
_SETTINGS = """
[ha]
enabled = true
node_name = "{name}"
[results]
url = "file://{shared}/results"
[log]
url = "file://{shared}/logs"
"""


class Proxy:
    """Forwards connections from one Unix socket to another.

    Attributes:
        is_cut: Whether connections are refused.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        self._open: set[asyncio.StreamWriter] = set()
        self._serving = 0
        self._is_idle = anyio.Event()
        self.is_cut = False

    @asynccontextmanager
    async def listening(self, path: Path) -> AsyncIterator[None]:
        """Listen on a socket within the block. Only this user can access its folder."""
        server = await asyncio.start_unix_server(self._serve, path)
        try:
            yield
        finally:
            server.close()
            self.cut()
            # Wait until the connections have closed. Those still open when the event loop shuts
            # down would be cancelled, which would be logged as an error.
            with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
                while self._serving:
                    self._is_idle = anyio.Event()
                    await self._is_idle.wait()

    def cut(self) -> None:
        """Reset all connections, and refuse new ones."""
        self.is_cut = True
        for writer in list(self._open):
            writer.transport.abort()

    def mend(self) -> None:
        """Accept connections again."""
        self.is_cut = False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = {writer}
        self._serving += 1
        try:
            if self.is_cut:
                return
            there_reader, there = await asyncio.open_unix_connection(self._target)
            ends.add(there)
            self._open |= ends
            async with anyio.create_task_group() as copying:
                copying.start_soon(_copy, reader, there)
                copying.start_soon(_copy, there_reader, writer)
        except OSError:
            pass  # the server has ended, and the connection with it
        finally:
            self._open -= ends
            for end in ends:
                end.transport.abort()
            self._serving -= 1
            self._is_idle.set()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_PIECE):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


class DemoNode:
    """One of the daemons.

    Args:
        folder: Contains the home of the daemon, and its socket to the database.
        dags: The folders of DAG files.
        server: The folder of the database server.

    Attributes:
        proxy: The proxy between the daemon and the database server.
        port: The port of the daemon's page. It stays the same after a restart.
    """

    def __init__(self, folder: Path, name: str, dags: list[Path], server: Path) -> None:
        self.name = name
        self.home = folder / f"home-{name}"
        self.proxy = Proxy(server / SOCKET)
        self.gate = folder / name / SOCKET
        self.gate.parent.mkdir(mode=0o700)
        self.port = _free_port()
        self._log = folder / f"{name}.log"
        url = f"postgresql://postgres@/postgres?host={self.gate.parent}"
        self._command = [sys.executable, "-m", "aioflow", "up", "--home", str(self.home)]
        self._command += ["--db", url, "--port", str(self.port), "--cpu-slots", _CPU_SLOTS]
        for path in dags:
            self._command += ["--dags", str(path)]
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Start the daemon unless it runs. A Ctrl-C in the terminal does not reach it."""
        if self.is_alive:
            return
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def is_alive(self) -> bool:
        """Whether the process of the daemon exists."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """``kill -9`` the daemon."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def freeze(self) -> None:
        """Stop the daemon, but not its children."""
        self._signal(signal.SIGSTOP)

    def cut(self) -> None:
        """Cut the daemon off from the database."""
        self.proxy.cut()

    def heal(self) -> None:
        """Undo every fault: make the daemon run, and let it reach the database."""
        self.proxy.mend()
        self._signal(signal.SIGCONT)
        self.launch()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.is_alive:
            self._process.send_signal(number)

    def end(self) -> None:
        """Kill the daemon and all processes that it has started."""
        self.kill()
        with suppress(FileNotFoundError):
            kill_marked(f"{home_mark(self.home)}:")

    def last_words(self) -> str:
        """Return the last lines of the daemon's log."""
        with suppress(OSError):
            return "\n".join(self._log.read_text(errors="replace").splitlines()[-5:])
        return ""

    # ── requests ────────────────────────────────────────────────────────────────────────

    @property
    def page(self) -> str:
        """The URL of its page."""
        return f"http://127.0.0.1:{self.port}/"

    @property
    def token(self) -> str:
        """The token of its home; empty before the first start of the daemon."""
        with suppress(OSError):
            return (self.home / "token").read_text().strip()
        return ""

    async def is_ready(self) -> bool:
        """Return whether the daemon executes requests."""
        try:
            status, _ = await self._ask("GET", "/health/ready", None, _HEALTH_SECONDS)
        except (OSError, http.client.HTTPException):
            return False
        return status == 200

    async def start_run(self, dag_id: str, run_id: str, conf: Mapping[str, object]) -> bool:
        """Start a run, unless a run with this id exists. Return whether it is certain to exist."""
        body = {"run_id": run_id, "conf": conf}
        path = f"/api/v1/dags/{dag_id}/runs"
        try:
            status, _ = await self._ask("POST", path, body, _ANSWER_SECONDS)
        except (OSError, http.client.HTTPException):
            return False
        return status in {200, 201}

    async def _ask(self, method: str, path: str, body: object, seconds: float) -> tuple[int, bytes]:
        ask = partial(self._ask_once, method, path, body, seconds)
        return await anyio.to_thread.run_sync(ask, abandon_on_cancel=True)

    def _ask_once(self, method: str, path: str, body: object, seconds: float) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


FAULTS = {"killed": DemoNode.kill, "frozen": DemoNode.freeze, "cut off": DemoNode.cut}
"""The faults that can be injected into the active node, by name."""


def prepare_nodes(
    folder: Path, names: tuple[str, ...], dags: list[Path], server: Path
) -> list[DemoNode]:
    """Create the nodes and their homes. They share a key, and a folder for results and logs."""
    nodes = [DemoNode(folder, name, dags, server) for name in names]
    for node in nodes:
        prepare_home(node.home, node.name, shared=folder / "shared", key=folder / "key")
    return nodes


def prepare_home(home: Path, name: str, *, shared: Path, key: Path) -> None:
    """Create the home of a node, with its settings and a copy of the common key.

    Args:
        shared: The folder for the results and logs of all nodes.
        key: The file of the common key. Created if it does not exist.
    """
    make_home(home)
    (home / FILE_NAME).write_text(_SETTINGS.format(name=name, shared=shared))
    Vault.open(key)
    shutil.copy2(key, home / "key")  # only this user can enter the home


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
