"""Two or more real daemons on one PostgreSQL server, each behind a proxy, with a common ledger."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, Self

import asyncpg

from aioflow.crypto import Vault
from aioflow.settings import socket_path
from aioflow.store import open_store
from benchmarks.daemon import eventually
from benchmarks.nodes import NodeProcess
from tests.faults.ground import DAGS
from tests.ha.proxy import Proxy
from tests.journal_replay import compare_with_replay
from tests.postgres_server import PostgresServer, private_postgres

__all__ = ("LEASE_SECONDS", "Cluster", "Follower", "Node", "cluster")

LEASE_SECONDS = 3.0
_FENCED = "fenced, joins again as a standby"


class Node(NodeProcess):
    """A daemon of a cluster, with its own home and proxy."""

    def __init__(self, folder: Path, name: str, proxy: Proxy, dags: Path) -> None:
        super().__init__(folder, name, dags, proxy.url)
        self.proxy = proxy

    def count(self, words: str) -> int:
        """Return how often the daemon has logged this text."""
        return self.log.read_text(errors="replace").count(words) if self.log.exists() else 0


class Follower:
    """A client that behaves like a page open at a node. It reconnects when the live stream is cut.

    Attributes:
        tasks: The last state of each child of ``square`` in the stream, by run.
        cuts: How often the stream was cut.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._thread = Thread(target=self._run, daemon=True)
        self._is_over = False
        self._last_id = ""
        self.tasks: dict[tuple[str, int], str] = {}
        self.cuts = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join(30)

    def _run(self) -> None:
        while not self._is_over:
            with contextlib.suppress(OSError, http.client.HTTPException):
                self._read()
            self.cuts += 1
            time.sleep(0.1)  # as a browser does, which is not looked at here

    def _read(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
            stream.settimeout(1.0)
            stream.connect(str(socket_path(self._node.home)))
            head = "GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            told = f"Last-Event-ID: {self._last_id}\r\n" if self._last_id else ""
            stream.sendall(f"{head}{told}\r\n".encode())
            text = ""
            while not self._is_over:
                with contextlib.suppress(TimeoutError):
                    data = stream.recv(65_536)
                    if not data:
                        return
                    text += data.decode()
                *messages, text = text.split("\n\n")
                for message in messages:
                    self._take(message)

    def _take(self, message: str) -> None:
        fields = dict(line.split(": ", 1) for line in message.splitlines() if ": " in line)
        self._last_id = fields.get("id", self._last_id)
        if fields.get("event") == "commit":
            for task in json.loads(fields["data"])["tasks"]:
                if task["task_id"] == "square":
                    self.tasks[task["run_id"], task["map_index"]] = task["state"]


class Cluster:
    """A database server and its nodes.

    Attributes:
        ledger: The file to which tasks append.
    """

    def __init__(self, folder: Path, server: PostgresServer, nodes: list[Node]) -> None:
        self.folder = folder
        self.server = server
        self.nodes = nodes
        self.ledger = folder / "ledger"
        self.ledger.touch()

    def ask(self, sql: str, *values: Any) -> list[Any]:
        """Return the rows of a statement that is sent directly to the server."""

        async def fetch() -> list[Any]:
            connection = await asyncpg.connect(self.server.url)
            try:
                return [tuple(row) for row in await connection.fetch(sql, *values)]
            finally:
                await connection.close()

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, fetch()).result()

    def active_name(self) -> str | None:
        """Return the name of the active node, according to the database."""
        with contextlib.suppress(OSError, asyncpg.PostgresError):
            rows = self.ask("SELECT name FROM node WHERE state = 1")
            return str(rows[0][0]) if rows else None
        return None

    def start(self) -> tuple[Node, Node]:
        """Start the nodes one after the other. Return the active one and the first standby."""
        first, *others = self.nodes
        first.start(180.0)
        for node in others:
            node.launch()
            self.wait_for_standby(node)
            eventually(lambda node=node: node.health("live") == 200, 180.0, node.last_words)  # type: ignore[misc]
        return first, others[0]

    def wait_for_standby(self, node: Node) -> None:
        """Wait until a node is a standby."""
        asked = "SELECT state FROM node WHERE name = $1"
        eventually(lambda: self.ask(asked, node.name) == [(0,)], 180.0, self.words)

    def wait_for_active(self, node: Node, timeout: float = 180.0) -> float:
        """Wait until a node is active and ready. Return the seconds that took."""
        began = time.monotonic()
        eventually(node.is_ready, timeout, self.words)
        assert self.active_name() == node.name
        return time.monotonic() - began

    def words(self) -> str:
        """Return the ends of all logs."""
        return "\n".join(f"--- {node.name}\n{node.last_words()}" for node in self.nodes)

    def trigger(self, node: Node, *, count: int, seconds: float) -> str:
        """Start a run of ``small`` at a node."""
        conf = {"ledger": str(self.ledger), "count": count, "seconds": seconds}
        return node.trigger("small", conf)

    def lines(self, what: str, run_id: str, task_id: str = "square") -> Counter[int]:
        """Return how often each child of a task began or ended, according to the ledger."""
        words = [line.split() for line in self.ledger.read_text().splitlines()]
        of_task = [line for line in words if line[:3] == [what, run_id, task_id]]
        return Counter(int(line[3]) for line in of_task)

    def judge_run(self, node: Node, run_id: str, *, count: int, takeovers: int = 1) -> None:
        """Check a run of ``small``: its state, its total, its tries, and its part of the ledger."""
        ended = node.wait(run_id, 240.0)
        assert ended["state"] == "success", (ended, self.words())
        run = node.run(run_id)
        assert run["counts"] == {"success": count + 5}, run["counts"]
        tasks = {(task["task_id"], task["map_index"]): task for task in run["tasks"]}
        assert tasks["total", -1]["result"] == sum(n * n for n in range(count)) + 3
        tries = {name: task["try_number"] for name, task in tasks.items()}
        more = {name: number for name, number in tries.items() if number != 1}
        assert more == {("stumble", -1): 2}, "a try was charged"
        self._judge_ledger(run_id, count, takeovers)

    def _judge_ledger(self, run_id: str, count: int, takeovers: int) -> None:
        """Assert that each body ran, and at most once for each start in the database."""
        begun, ended = self.lines("begin", run_id), self.lines("end", run_id)
        assert set(begun) == set(ended) == set(range(count))
        assert max(begun.values()) <= 1 + takeovers, begun
        starts = dict(
            self.ask(
                "SELECT t.map_index, t.start_no FROM task t JOIN run r USING (run_no) "
                "WHERE r.run_id = $1 AND t.map_index >= 0",
                run_id,
            )
        )
        assert set(starts) == set(range(count))
        wrong = {index: times for index, times in begun.items() if times > starts[index]}
        assert not wrong, "a body began without a start in the database"
        for task_id in ("nap", "pause", "stumble", "total"):
            assert self.lines("begin", run_id, task_id)[-1] >= 1, f"{task_id} never began"

    def judge_database(self) -> None:
        """Assert that a replay of the journal of all nodes matches the tables."""

        async def differences() -> list[str]:
            vault = Vault.open(self.nodes[0].home / "key")
            async with open_store(self.server.url, vault, exclusive=False) as store:
                return await compare_with_replay(store)

        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(asyncio.run, differences()).result() == []

    def takeovers(self) -> int:
        """Return how often a node was declared dead and replaced by another."""
        return sum(node.count("the active node is silent, taking over") for node in self.nodes)

    def fenced(self) -> int:
        """Return how often a node noticed that it was fenced."""
        return sum(node.count(_FENCED) for node in self.nodes)

    def wait_for_fences(self, count: int) -> None:
        """Wait until nodes have noticed this many times that they were fenced."""
        eventually(lambda: self.fenced() >= count, 120.0, self.words)

    def wait_for_fence(self, node: Node) -> None:
        """Wait until a node has noticed that it was fenced."""
        eventually(lambda: node.count(_FENCED) > 0, 120.0, self.words)


@contextmanager
def cluster(
    folder: Path, names: tuple[str, ...] = ("a", "b"), dags: Path = DAGS
) -> Iterator[Cluster]:
    """Prepare a server and nodes that are not started yet. The nodes are killed at the end."""
    with private_postgres() as server, ExitStack() as stack:
        socket = Path(server.url.rpartition("host=")[2]) / ".s.PGSQL.5432"
        proxies = (stack.enter_context(Proxy(socket)) for _ in names)
        nodes = [Node(folder, *one, dags) for one in zip(names, proxies, strict=True)]
        try:
            yield Cluster(folder, server, nodes)
        finally:
            for node in nodes:
                if node.is_alive:
                    node.go_on()
                    node.kill(whole_tree=True)
