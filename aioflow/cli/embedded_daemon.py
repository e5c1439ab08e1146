"""A temporary daemon in the process of a command: for ``aioflow dags test`` and ``aioflow demo``.

The daemon runs only as long as the command. ``dags test`` runs one DAG of a file to its end. The
demo runs the settlement example on a temporary home: it creates the input file of one run, and
checks the total.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Mapping
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from aioflow.catalog.file_patterns import TABLE_FILE
from aioflow.cli.client import Client, connect_home
from aioflow.cli.offline_parser import (
    dag_folders,
    data_files_of,
    parse_files,
    path_in_folder,
)
from aioflow.cli.output import hint, print_json, safe, task_name
from aioflow.cli.run_progress import RUN_ENDED, RunProgress, run_exit_status
from aioflow.cli.startup_banner import banner_lines, shown_url
from aioflow.clock import SystemClock
from aioflow.daemon.node import Ready, serve
from aioflow.errors import AioflowError, DagError, SettingsError, UnknownDag
from aioflow.protocol.reports import Parsed
from aioflow.settings import Settings
from aioflow.telemetry import log

__all__ = (
    "DEMO_DAG",
    "EXAMPLES",
    "AsyncClient",
    "generate_file",
    "run_demo",
    "test_dag",
    "with_daemon",
)

_EVERY_SECONDS = 0.2
_INTERRUPTED = 130


class AsyncClient:
    """A client of the daemon in this process.

    Requests run in a worker thread, so that the daemon's event loop can answer them.
    """

    def __init__(self, home: Path) -> None:
        self._client: Client = connect_home(home)
        self._clock = SystemClock()

    async def get(self, *path: str, **query: object) -> Any:
        """See ``Client.get``."""
        return await anyio.to_thread.run_sync(partial(self._client.get, *path, **query))

    async def items(self, *path: str, **query: object) -> list[Any]:
        """See ``Client.items``."""
        return await anyio.to_thread.run_sync(lambda: self._client.items(*path, **query))  # type: ignore[arg-type]

    async def get_bytes(self, *path: str, **query: object) -> bytes:
        """See ``Client.get_bytes``."""
        return await anyio.to_thread.run_sync(partial(self._client.get_bytes, *path, **query))

    async def post(self, *path: str, body: dict[str, object] | None = None) -> Any:
        """See ``Client.post``."""
        return await anyio.to_thread.run_sync(partial(self._client.post, *path, body=body))

    async def whole_run(self, run_id: str) -> Any:
        """Return a run with all of its tasks. They are fetched page by page."""
        run = await self.get("runs", run_id)
        while len(run["tasks"]) < sum(run["counts"].values()):
            page = await self.get("runs", run_id, offset=len(run["tasks"]))
            if not page["tasks"]:
                break
            run["tasks"] += page["tasks"]
        return run

    async def watch(self, run_id: str, progress: RunProgress) -> Any:
        """Show a run until it ends. Return its final state with all of its tasks."""
        while True:
            run = await self.get("runs", run_id)
            progress.show(run)
            if run["state"] in RUN_ENDED:
                return await self.whole_run(run_id)
            await self._clock.sleep(_EVERY_SECONDS)

    async def find_dag(self, dag_id: str, *, seconds: float) -> Any:
        """Return a DAG as soon as the daemon knows it, or ``None`` after ``seconds``."""
        with anyio.move_on_after(seconds):
            while True:
                for dag in await self.items("dags"):
                    if dag["dag_id"] == dag_id:
                        return dag
                await self._clock.sleep(_EVERY_SECONDS)
        return None


async def with_daemon(
    settings: Settings,
    visit: Callable[[AsyncClient, Ready], Awaitable[int]],
    *,
    stay: bool = False,
) -> int:
    """Run a daemon and, in parallel, ``visit``. Return the exit status that ``visit`` returns.

    Args:
        settings: The daemon's settings.
        visit: Called once the daemon answers requests. If the daemon is stopped meanwhile,
            ``visit`` is cancelled, and the exit status is that of an interrupted command.
        stay: Whether the daemon continues to run after ``visit``, until it is stopped.
    """
    up = anyio.Event()
    ready: list[Ready] = []
    status = _INTERRUPTED

    def announce(facts: Ready) -> None:
        ready.append(facts)
        up.set()

    async with anyio.create_task_group() as group:

        async def run() -> None:
            await serve(settings, announce)
            group.cancel_scope.cancel()  # the daemon was stopped: cancel ``visit``, too

        group.start_soon(run)
        await up.wait()
        status = await _visited(visit, AsyncClient(settings.home), ready[0])
        if not stay and not ready[0].stopped.is_set():
            group.cancel_scope.cancel()
    return status


async def _visited(
    visit: Callable[[AsyncClient, Ready], Awaitable[int]], client: AsyncClient, facts: Ready
) -> int:
    """Return the status of ``visit`` or, if the daemon stopped, that of an interrupted command."""
    status = _INTERRUPTED
    async with anyio.create_task_group() as group:

        async def leave() -> None:
            await facts.stopped.wait()
            group.cancel_scope.cancel()

        group.start_soon(leave)
        try:
            status = await visit(client, facts)
        except (AioflowError, ExceptionGroup):
            if not facts.stopped.is_set():  # otherwise the stop made a request fail
                raise
        group.cancel_scope.cancel()
    return status


_PARSE_SECONDS = 60.0

_LOGS_SHOWN = 5

_LOG_BYTES = 64 * 1024


def test_dag(arguments: argparse.Namespace) -> int:
    """Run one DAG of a file. Return an exit status like that of ``dags trigger --wait``."""
    log.configure(level="warning", style="auto")
    with tempfile.TemporaryDirectory(prefix="aioflow-test-") as folder:
        return anyio.run(_test_dag, arguments, Path(folder), backend_options={"use_uvloop": True})


async def _test_dag(arguments: argparse.Namespace, folder: Path) -> int:
    path, folders = Path(arguments.file), dag_folders(arguments)
    of_home = Settings.read(arguments.home)
    (parsed,) = await parse_files([path], folders, of_home)
    dag_id = _chosen_dag(parsed, arguments.dag, arguments.file)
    beside = data_files_of(path, folders, parsed).digests
    _copy_sources([*parsed.modules, *beside], path_in_folder(path, folders)[0], folder / "dags")
    if interpreter := parsed.dags[0].interpreter:  # chosen in a folder above the file, perhaps
        await anyio.Path(folder, "dags", TABLE_FILE).write_text(f'python = "{interpreter}"\n')
    overrides = {
        "dags": [str(folder / "dags")],
        "web.port": 0,
        "children.env": of_home.children_env,
        "executor": of_home.executor,
        "executors": of_home.executors or None,
        **{f"pythons.{name}.path": python for name, python in of_home.pythons.items()},
    }
    settings = Settings.read(folder / "home", overrides)

    async def visit(client: AsyncClient, ready: Ready) -> int:
        if await client.find_dag(dag_id, seconds=_PARSE_SECONDS) is None:
            raise UnknownDag(dag_id)
        made = await client.post("dags", dag_id, "runs", body={"conf": arguments.conf})
        with RunProgress(on_stderr=True) as progress:
            run = await client.watch(made["run_id"], progress)
        _print_results(run, is_json=arguments.json)
        if not arguments.json:
            await _print_logs(run, client)
        return run_exit_status(run["state"])

    return await with_daemon(settings, visit)


def _chosen_dag(parsed: Parsed, wanted: str | None, file: str) -> str:
    names = [spec.dag_id for spec in parsed.dags]
    if not names:
        failure = parsed.failures[0] if parsed.failures else None
        where = f"line {failure.line}: " if failure is not None and failure.line else ""
        why = "it defines no DAG" if failure is None else f"{where}{failure.message}"
        raise DagError(f"{file} cannot be tested: {why}")
    if wanted is None and len(names) > 1:
        raise SettingsError(f"{file} has several DAGs; choose with --dag: {', '.join(names)}")
    if wanted is not None and wanted not in names:
        raise SettingsError(f"{file} has no DAG {wanted!r}; choose with --dag: {', '.join(names)}")
    return wanted or names[0]


def _copy_sources(names: Iterable[str], source: Path, target: Path) -> None:
    """Copy the files of the DAG file's version, but no other DAG files, which have schedules."""
    for name in names:
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, copy)


def _print_results(run: dict[str, Any], *, is_json: bool) -> None:
    if is_json:
        print_json(run)
        return
    for task in run["tasks"]:
        if task["error"] is not None:
            error = task["error"]
            hint(safe(f"{task_name(task)} {task['state']}: {error['type']}: {error['message']}"))
        elif task["result"] is not None and task["map_index"] < 0:
            print(safe(f"{task_name(task)} = {task['result']!r}"))
    print(f"{run['dag_id']} {run['state']}")
    sys.stdout.flush()


async def _print_logs(run: dict[str, Any], client: AsyncClient) -> None:
    """Print the log of the last try of each failed task. It contains the traceback."""
    failed = [task for task in run["tasks"] if task["state"] == "failed" and task["try_number"]]
    for task in failed[:_LOGS_SHOWN]:
        log, is_whole = await _log_of(run["run_id"], task, client)
        heading = f"the log of {task_name(task)}, try {task['try_number']}"
        hint(safe(f"{heading}:" if is_whole else f"{heading}, its end:"))
        hint(log.decode(errors="backslashreplace").rstrip("\n"))
    if len(failed) > _LOGS_SHOWN:
        hint(f"{len(failed) - _LOGS_SHOWN} more tasks failed; their logs are not shown")


async def _log_of(run_id: str, task: dict[str, Any], client: AsyncClient) -> tuple[bytes, bool]:
    """Return the end of the log of a task's last try, and whether this is the whole log."""
    child = {"map": task["map_index"]} if task["map_index"] >= 0 else {}
    child |= {"round": task["round"]} if task["round"] else {}
    where: dict[str, object] = {**child, "try": task["try_number"]}
    log, offset = b"", 0
    while piece := await client.get_bytes(
        "runs", run_id, "tasks", task["task_id"], "logs", offset=offset, **where
    ):
        offset += len(piece)
        log = (log + piece)[-_LOG_BYTES:]
    return log, offset == len(log)


_IN_THE_PACKAGE = Path(__file__).parents[1] / "examples"
_BESIDE_IT = Path(__file__).parents[2] / "examples"
EXAMPLES = _IN_THE_PACKAGE if _IN_THE_PACKAGE.is_dir() else _BESIDE_IT
"""The folder of the examples. In a wheel it is inside the package, in a checkout beside it."""

DEMO_DAG = "settlements"
DEMO_DAY = "2026-01-01"
_DASK_WORKERS = 2

_GENERATE_FILE = """
import json
import sys
from datetime import date
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from settlement_data import generate
folder, day, sizes = sys.argv[2:]
print(generate(Path(folder), date.fromisoformat(day), **json.loads(sizes)))
"""


async def generate_file(folder: Path, day: str, **sizes: int) -> Decimal:
    """Write the bank's file of a day below a folder. Return its net total.

    The generator is one of the examples. It runs in a separate process and session, so that a
    Ctrl-C in the terminal does not interrupt it.
    """
    command = [sys.executable, "-c", _GENERATE_FILE, str(EXAMPLES), str(folder), day]
    command.append(json.dumps(sizes))
    done = await anyio.run_process(command, stderr=None, start_new_session=True)
    return Decimal(done.stdout.decode().strip())


def run_demo(arguments: argparse.Namespace) -> int:
    """Run the demo. Return 0 if the pipeline's total equals the generator's."""
    if not (EXAMPLES / "dags" / f"{DEMO_DAG}.py").is_file():
        raise SettingsError(f"the examples are missing: {EXAMPLES}; install aioflow again")
    log.configure(level="warning", style="auto")
    with tempfile.TemporaryDirectory(prefix="aioflow-demo-") as folder:
        run = _run_demo_on_dask if arguments.dask else _run_demo
        return anyio.run(run, arguments, Path(folder), backend_options={"use_uvloop": True})


async def _run_demo_on_dask(arguments: argparse.Namespace, folder: Path) -> int:
    from aioflow.executors.dask.local_cluster import local_cluster

    async with local_cluster(folder, _DASK_WORKERS) as address:
        hint(f"A Dask cluster of {_DASK_WORKERS} workers runs at {address}.")
        table = {"address": address, "shared_home": True}
        return await _run_demo(
            arguments, folder, {"executor": "dask", "executors": {"dask": table}}
        )


async def _run_demo(
    arguments: argparse.Namespace, folder: Path, more: Mapping[str, object] | None = None
) -> int:
    data = folder / "data"
    overrides = {
        "dags": [str(EXAMPLES / "dags")],
        "web.port": arguments.port,
        "web.host": "127.0.0.1",
        **(more or {}),
    }
    settings = Settings.read(arguments.home or folder / "home", overrides)

    async def visit(client: AsyncClient, ready: Ready) -> int:
        hint(banner_lines(ready, sys.stderr))
        if await client.find_dag(DEMO_DAG, seconds=_PARSE_SECONDS) is None:
            raise UnknownDag(DEMO_DAG)
        made = await client.post(
            "dags", DEMO_DAG, "runs", body={"conf": {"day": DEMO_DAY, "folder": str(data)}}
        )
        hint(f"Run {made['run_id']} waits for the bank's file and uses no slot meanwhile.")
        expected, run = await _watch_demo(client, made["run_id"], data, arguments.after)
        status = _print_demo_total(run, expected, is_json=arguments.json)
        if not arguments.exit:
            hint(f"Still up: {shown_url(ready, sys.stderr)}\nStop it with Ctrl-C.")
        return status

    return await with_daemon(settings, visit, stay=not arguments.exit)


async def _watch_demo(
    client: AsyncClient, run_id: str, data: Path, after: float
) -> tuple[Decimal, Any]:
    """Write the input file after a delay, and watch the run until it ends.

    Return the expected total and the ended run.
    """
    expected: list[Decimal] = []

    async def drop() -> None:
        await SystemClock().sleep(after)
        expected.append(await generate_file(data, DEMO_DAY))

    with RunProgress(on_stderr=True) as progress:
        async with anyio.create_task_group() as group:
            group.start_soon(drop)
            run = await client.watch(run_id, progress)
    return expected[0], run


def _print_demo_total(run: dict[str, Any], expected: Decimal, *, is_json: bool) -> int:
    totals = [task["result"] for task in run["tasks"] if task["task_id"] == "daily_total"]
    totals = totals or [None]
    is_right = totals[-1] is not None and Decimal(str(totals[-1])) == expected
    facts = {
        "run_id": run["run_id"],
        "state": run["state"],
        "total": totals[-1],
        "expected": str(expected),
        "matches": is_right,
    }
    if is_json:
        print_json(facts)
    else:
        print(f"total {totals[-1]}, expected {expected}: {'equal' if is_right else 'DIFFERENT'}")
    return run_exit_status(run["state"]) if is_right else 1
