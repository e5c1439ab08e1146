"""``aioflow dags test``: run one DAG of a file to its end, on a temporary daemon."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import anyio

from aioflow.cli.dags_check import allowed_of, choice_of, folders_of, parse_files, place_of
from aioflow.cli.embedded import Guest, with_daemon
from aioflow.cli.follow import exit_status
from aioflow.cli.output import hint, print_json, safe, task_name
from aioflow.cli.run_progress import RunProgress
from aioflow.daemon import Ready
from aioflow.errors import DagError, SettingsError, UnknownDag
from aioflow.protocol.parse_results import Parsed
from aioflow.settings import Settings
from aioflow.telemetry import log

__all__ = ("test",)

_PARSE_SECONDS = 60.0

_LOGS_SHOWN = 5

_LOG_BYTES = 64 * 1024


def test(arguments: argparse.Namespace) -> int:
    """Run the DAG. The exit status is that of ``dags trigger --wait``."""
    log.configure(level="warning", style="auto")
    with tempfile.TemporaryDirectory(prefix="aioflow-test-") as folder:
        return anyio.run(_test, arguments, Path(folder), backend_options={"use_uvloop": True})


async def _test(arguments: argparse.Namespace, folder: Path) -> int:
    path, folders, allowed = Path(arguments.file), folders_of(arguments), allowed_of(arguments)
    (parsed,) = await parse_files([path], folders, allowed)
    dag_id = _chosen(parsed, arguments.dag, arguments.file)
    beside = choice_of(path, folders, parsed).digests
    _copy([*parsed.modules, *beside], place_of(path, folders)[0], folder / "dags")
    overrides = {"dags": [str(folder / "dags")], "web.port": 0, "children.env": allowed}
    settings = Settings.read(folder / "home", overrides)

    async def visit(guest: Guest, ready: Ready) -> int:
        if await guest.find_dag(dag_id, seconds=_PARSE_SECONDS) is None:
            raise UnknownDag(dag_id)
        made = await guest.post("dags", dag_id, "runs", body={"conf": arguments.conf})
        with RunProgress(on_stderr=True) as progress:
            run = await guest.watch(made["run_id"], progress)
        _print_end(run, is_json=arguments.json)
        if not arguments.json:
            await _print_logs(run, guest)
        return exit_status(run["state"])

    return await with_daemon(settings, visit)


def _chosen(parsed: Parsed, wanted: str | None, file: str) -> str:
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


def _copy(names: Iterable[str], source: Path, target: Path) -> None:
    """Copy only the files of the DAG file's version, and so no schedules of its neighbours."""
    for name in names:
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, copy)


def _print_end(run: dict[str, Any], *, is_json: bool) -> None:
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


async def _print_logs(run: dict[str, Any], guest: Guest) -> None:
    """Print the logs of the last tries of failed tasks; tracebacks are in them."""
    failed = [task for task in run["tasks"] if task["state"] == "failed" and task["try_number"]]
    for task in failed[:_LOGS_SHOWN]:
        log, is_whole = await _log_of(run["run_id"], task, guest)
        heading = f"the log of {task_name(task)}, try {task['try_number']}"
        hint(safe(f"{heading}:" if is_whole else f"{heading}, its end:"))
        hint(log.decode(errors="backslashreplace").rstrip("\n"))
    if len(failed) > _LOGS_SHOWN:
        hint(f"{len(failed) - _LOGS_SHOWN} more tasks failed; their logs are not shown")


async def _log_of(run_id: str, task: dict[str, Any], guest: Guest) -> tuple[bytes, bool]:
    """Return the end of the log of a task's last try, and whether that is the whole log."""
    child = {"map": task["map_index"]} if task["map_index"] >= 0 else {}
    child |= {"round": task["round"]} if task["round"] else {}
    where: dict[str, object] = {**child, "try": task["try_number"]}
    log, offset = b"", 0
    while piece := await guest.get_bytes(
        "runs", run_id, "tasks", task["task_id"], "logs", offset=offset, **where
    ):
        offset += len(piece)
        log = (log + piece)[-_LOG_BYTES:]
    return log, offset == len(log)
