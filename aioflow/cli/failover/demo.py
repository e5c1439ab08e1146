"""The failover demo: runs waits and settlements under faults, and checks that no task is lost.

Every few seconds the active daemon is killed, frozen or cut off from the database. Meanwhile the
ledger is compared with the records in the database. At the end, every task must have succeeded.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import shutil
import signal
import sys
import tempfile
from contextlib import AsyncExitStack, ExitStack, suppress
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path

import anyio
import msgspec

from aioflow.cli.embedded_daemon import DEMO_DAG, EXAMPLES, generate_file
from aioflow.cli.failover.display import Display, Figures, print_summary
from aioflow.cli.failover.ledger import Ledger, NotesFile
from aioflow.cli.failover.local_postgres import find_binaries, local_postgres
from aioflow.cli.failover.nodes import FAULTS, DemoNode, prepare_nodes
from aioflow.cli.output import hint
from aioflow.clock import SystemClock
from aioflow.crypto import Vault
from aioflow.errors import SettingsError, StoreError
from aioflow.model.states import NodeState, RunState, TaskState
from aioflow.store import Store, open_store

__all__ = ("run_failover",)

_NODES = ("a", "b")
_WAITS = "waits"
_FIRST_DAY = date(2026, 1, 1)
_MERCHANTS, _TRANSACTIONS_EACH = 1_247, 80
_WAITS_PER_MERCHANT = 8
_PAUSE_SECONDS = (1.0, 4.0)
_LOOK_SECONDS = 0.2
_COUNT_SECONDS = 1.0
_START_SECONDS = 300.0
_END_SECONDS = 180.0
_ROWS = 20_000
_LONGEST_FOLDER = 60
_INTERRUPTED = 130


def run_failover(arguments: argparse.Namespace) -> int:
    """Run the demo. Return 1 if anything was lost or done twice.

    Raises:
        SettingsError: If there is no PostgreSQL.
    """
    if importlib.util.find_spec("asyncpg") is None:
        raise SettingsError("this demo needs asyncpg; install aioflow-engine[postgres]")
    binaries = find_binaries(None if arguments.postgres is None else Path(arguments.postgres))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up, as on a Ctrl-C
    hint("Starting a PostgreSQL server and two daemons...")
    with ExitStack() as stack:
        folder = _folder(stack)
        server = folder / "postgres"
        server.mkdir(mode=0o700)
        url = stack.enter_context(local_postgres(binaries, server))
        nodes = prepare_nodes(folder, _NODES, _dags(), server)
        for node in nodes:
            stack.callback(node.end)
        demo = _Demo(arguments, folder, url, nodes)
        figures = anyio.run(demo.run)
    if figures is None:
        return _INTERRUPTED
    print_summary(figures, is_json=arguments.json)
    return 0 if figures.is_good else 1


def _folder(stack: ExitStack) -> Path:
    """Create a folder that is removed at the end. Its path is short, as it contains sockets."""
    parent = tempfile.gettempdir()
    if len(parent) > _LONGEST_FOLDER:
        parent = "/tmp"  # noqa: S108 - mkdtemp makes the name
    folder = Path(tempfile.mkdtemp(prefix="aioflow-failover-", dir=parent))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    if os.geteuid() == 0:
        folder.chmod(0o711)  # the server's user has to pass through this folder
    return folder


def _dags() -> list[Path]:
    folders = [EXAMPLES / "dags", EXAMPLES / "failover"]
    for folder in folders:
        if not folder.is_dir():
            raise SettingsError(f"the examples are missing: {folder}; install aioflow again")
    return folders


class _Settlement(msgspec.Struct):
    """A settlement of one day.

    Attributes:
        expected: The total that the generator of the input file has computed.
        has_ended: Whether the run has ended and its total was compared.
    """

    run_id: str
    day: date
    expected: Decimal
    notes: NotesFile
    has_ended: bool = False


class _Demo:
    """Runs the demo.

    Args:
        url: The URL of the database, without a proxy in between.
    """

    def __init__(
        self, arguments: argparse.Namespace, folder: Path, url: str, nodes: list[DemoNode]
    ) -> None:
        self._seconds: float = arguments.seconds
        self._waits: int = arguments.waits
        self._merchants = min(_MERCHANTS, max(self._waits // _WAITS_PER_MERCHANT, 1))
        self._folder, self._url, self._nodes = folder, url, nodes
        self._clock = SystemClock()
        self._chance = random.Random(arguments.seed)
        self._began_us = self._clock.monotonic_us()
        self._ledger = Ledger()
        self._notes = NotesFile(folder / "waits.txt")
        self._settlements: list[_Settlement] = []
        self._active = ""
        self._faulty_node: DemoNode | None = None
        self._takeovers = self._wrong_totals = 0
        self._display = Display()

    async def run(self) -> Figures | None:
        """Return the figures of the whole demo; ``None`` if it was interrupted."""
        figures: Figures | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(self._end_on_signal, group.cancel_scope)
            async with AsyncExitStack() as stack:
                for node in self._nodes:
                    await stack.enter_async_context(node.proxy.listening(node.gate))
                figures = await self._play()
            group.cancel_scope.cancel()
        return figures

    async def _end_on_signal(self, scope: anyio.CancelScope) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                scope.cancel()

    async def _play(self) -> Figures:
        await self._start()
        key = await anyio.to_thread.run_sync(Vault.open, self._nodes[0].home / "key")
        async with open_store(self._url, key, exclusive=False) as store:
            with self._display:
                for node in self._nodes:
                    self._display.tell(f"The page at node {node.name}: {_address(node)}")
                await self._run_under_faults(store)
                await self._finish(store)
        return self._figures()

    async def _run_under_faults(self, store: Store) -> None:
        await self._find_active(store)
        self._began_us = self._clock.monotonic_us()
        async with anyio.create_task_group() as group:
            group.start_soon(self._keep_counting, store)
            await self._begin_waits()
            async with anyio.create_task_group() as playing:
                playing.start_soon(self._keep_settling)
                await self._keep_injecting(store)
            group.cancel_scope.cancel()

    async def _start(self) -> None:
        """Start the daemons one after the other.

        Raises:
            SettingsError: If a daemon does not start.
        """
        for node in self._nodes:
            node.launch()
            with anyio.move_on_after(_START_SECONDS):
                while node.is_alive and not await node.is_ready():
                    await self._clock.sleep(_LOOK_SECONDS)
                if node.is_alive:
                    continue
            raise SettingsError(f"node {node.name} does not start: {node.last_words()}")

    # ── the load ────────────────────────────────────────────────────────────────────────

    async def _begin_waits(self) -> None:
        seconds = self._seconds
        conf = {"ledger": str(self._folder / "waits.txt"), "count": self._waits, "seconds": seconds}
        await self._start_run(_WAITS, _WAITS, conf)
        self._ledger.expect(f"{_WAITS}/wait_once/{number}" for number in range(self._waits))
        self._display.tell(f"{self._waits:,} waits begin, which use no slot.")

    async def _keep_settling(self) -> None:
        """Settle one day after another, as long as faults are injected."""
        while self._elapsed() < self._seconds:
            await self._settle()
            while not self._settlements[-1].has_ended:
                await self._clock.sleep(_LOOK_SECONDS)

    async def _settle(self) -> None:
        number, data = len(self._settlements), self._folder / "data"
        day, run_id = _FIRST_DAY + timedelta(days=number), f"settlement-{number + 1}"
        sizes = {
            "merchants": self._merchants,
            "transactions": self._merchants * _TRANSACTIONS_EACH,
        }
        settlement = _Settlement(
            run_id=run_id,
            day=day,
            expected=await generate_file(data, day.isoformat(), **sizes),
            notes=NotesFile(data / "ledger" / f"{day.isoformat()}.txt"),
        )
        await self._start_run(DEMO_DAG, run_id, {"day": day.isoformat(), "folder": str(data)})
        self._ledger.expect(f"{run_id}/settle/{number}" for number in range(self._merchants))
        self._settlements.append(settlement)

    async def _start_run(self, dag_id: str, run_id: str, conf: dict[str, object]) -> None:
        """Start a run at any node. Retry at the other node until it is certain to exist."""
        while True:
            for node in self._nodes:
                if await node.start_run(dag_id, run_id, conf):
                    return
            await self._clock.sleep(_LOOK_SECONDS)

    # ── the faults ──────────────────────────────────────────────────────────────────────

    async def _keep_injecting(self, store: Store) -> None:
        """Inject faults into the active node, at least one, until the time is up."""
        faults: list[str] = []
        while True:
            await self._clock.sleep(self._chance.uniform(*_PAUSE_SECONDS))
            active, standby = await self._wait_for_both(store)
            faults = faults or self._chance.sample(sorted(FAULTS), len(FAULTS))
            await self._inject(store, active, standby, faults.pop())
            if self._elapsed() >= self._seconds:
                return

    async def _inject(self, store: Store, active: DemoNode, standby: DemoNode, fault: str) -> None:
        began_us, self._faulty_node = self._clock.monotonic_us(), active
        FAULTS[fault](active)
        self._display.tell(f"{self._elapsed():5.1f} s  node {active.name} is {fault}")
        while await self._find_active(store) != standby.name or not await standby.is_ready():
            await self._clock.sleep(_LOOK_SECONDS)
        took = (self._clock.monotonic_us() - began_us) / 1e6
        self._takeovers += 1
        self._display.tell(
            f"{self._elapsed():5.1f} s  node {standby.name} has taken over, {took:.1f} s later"
        )
        active.heal()
        self._faulty_node = None

    async def _wait_for_both(self, store: Store) -> tuple[DemoNode, DemoNode]:
        """Wait until one node is active and the other is ready to take over. Return both."""
        while True:
            name = await self._find_active(store)
            active = next((node for node in self._nodes if node.name == name), None)
            if active is not None and all([await node.is_ready() for node in self._nodes]):
                return active, next(node for node in self._nodes if node is not active)
            await self._clock.sleep(_LOOK_SECONDS)

    async def _find_active(self, store: Store) -> str:
        rows = await store.list_nodes()
        active = (row.name or "" for row in rows if row.state is NodeState.ACTIVE)
        self._active = next(active, "")
        return self._active

    # ── the count ───────────────────────────────────────────────────────────────────────

    async def _finish(self, store: Store) -> None:
        """Heal all nodes. Wait until every task has succeeded, or the time is up."""
        self._display.tell(f"{self._elapsed():5.1f} s  no more faults; the work is finished")
        with anyio.move_on_after(_END_SECONDS + self._seconds):
            while not (self._ledger.is_complete and all(s.has_ended for s in self._settlements)):
                for node in self._nodes:
                    node.heal()
                await self._clock.sleep(_COUNT_SECONDS)
                await self._count(store)
                self._display.show(self._figures())
        await self._count(store, is_last=True)
        self._ledger.close()
        self._wrong_totals += sum(not settlement.has_ended for settlement in self._settlements)

    async def _keep_counting(self, store: Store) -> None:
        while True:
            for node in self._nodes:
                if node is not self._faulty_node:
                    node.launch()  # a daemon that was fenced too often has ended
            await self._count(store)
            self._display.show(self._figures())
            await self._clock.sleep(_COUNT_SECONDS)

    async def _count(self, store: Store, *, is_last: bool = False) -> None:
        """Compare the notes of task bodies with the records in the database.

        Settlements that have ended are compared only once more, in the last call.
        """
        with suppress(StoreError):
            await self._record(store, _WAITS, "wait_once", self._waits)
            for settlement in self._settlements:
                if is_last or not settlement.has_ended:
                    await self._compare_total(store, settlement)  # everything is recorded by then
                    await self._record(store, settlement.run_id, "settle", self._merchants)
        self._ledger.note(self._notes.new_lines())
        for settlement in self._settlements:
            self._ledger.note(settlement.notes.new_lines())

    async def _record(self, store: Store, run_id: str, task_id: str, count: int) -> None:
        run = await store.find_run(run_id)
        if run is None:
            return
        succeeded: dict[str, int] = {}
        for row in await store.list_expansions(run.run_no):
            first, end = row.first_task_no, row.first_task_no + row.width
            for task in await store.list_tasks_between(first, end, limit=_ROWS):
                if task.state is TaskState.SUCCESS:
                    succeeded[f"{run_id}/{task_id}/{task.map_index}"] = task.ended_at or 0
        asked = [f"{run_id}/{task_id}/{number}" for number in range(count)]
        self._ledger.record(asked, succeeded)

    async def _compare_total(self, store: Store, settlement: _Settlement) -> None:
        run = await store.find_run(settlement.run_id)
        if settlement.has_ended or run is None or run.state.is_live:
            return
        settlement.has_ended = True
        path = self._folder / "data" / "totals" / f"{settlement.day.isoformat()}.json"
        with suppress(OSError):
            total = Decimal(json.loads(await anyio.Path(path).read_text())["net"])
            if run.state is RunState.SUCCESS and total == settlement.expected:
                return
        self._wrong_totals += 1
        self._display.tell(f"{settlement.run_id} has a wrong total, or failed")

    def _elapsed(self) -> float:
        return (self._clock.monotonic_us() - self._began_us) / 1e6

    def _figures(self) -> Figures:
        ledger = self._ledger
        return Figures(
            seconds=round(self._elapsed(), 1),
            active=self._active,
            tasks=ledger.expected,
            done=ledger.done,
            settlements=sum(settlement.has_ended for settlement in self._settlements),
            takeovers=self._takeovers,
            begun_again=ledger.begun_again,
            lost=len(ledger.lost),
            done_twice=len(ledger.doubled),
            wrong_totals=self._wrong_totals,
        )


def _address(node: DemoNode) -> str:
    """Return the URL of the web page of a node. It contains the token only on a terminal."""
    if sys.stderr.isatty():
        return f"{node.page}?token={node.token}"
    return f"{node.page} (the token is in {node.home / 'token'})"
