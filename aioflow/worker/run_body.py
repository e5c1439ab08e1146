"""Runs one ``def`` body: from the start command to the report of its outcome."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias

import msgspec

from aioflow.author.named_values import Held, in_process
from aioflow.author.signals import sensor_saw
from aioflow.author.steps import at_once
from aioflow.errors import TaskError, UnknownValue
from aioflow.model.dag import ValueKind
from aioflow.model.ids import RunNo
from aioflow.protocol.commands import Reply, StartTask
from aioflow.protocol.reports import Ended, Labelled, ResultWriteFailed, SensorNotReady
from aioflow.worker import values
from aioflow.worker.arguments import spec_of
from aioflow.worker.body import begin
from aioflow.worker.outcome import (
    ended_badly,
    gives_items,
    handled,
    not_begun,
    now,
    pack,
    succeeded,
)
from aioflow.worker.queries import ResultsPage, ResultsWanted
from aioflow.worker.result_writer import write_failure_reporter, write_out
from aioflow.worker.runs import Runs

__all__ = ("AskDaemon", "run_body")

Tell: TypeAlias = Callable[[Labelled | ResultWriteFailed], None]

AskDaemon: TypeAlias = Callable[[RunNo, str, bytes], Reply]
"""Sends the query ``(run, kind, body)`` and returns the reply; see ``questions``."""


def run_body(start: StartTask, runs: Runs, ask: AskDaemon, tell: Tell, results: Path) -> Ended:
    """Run a try in this thread and return its report. User code cannot make it raise.

    Args:
        runs: Must already know the run.
        ask: Queries the daemon for results of parents and for declared values. Blocks, and may be
            called from threads of user code.
        tell: Called with the label before the body runs, and later each time the result cannot be
            written.
        results: Folder of the large results.
    """
    try:
        run = runs.of(start)
        node = run.dag.nodes[start.position]
    except BaseException as exc:  # noqa: BLE001 - importing the DAG file is user code
        return not_begun(start, exc)
    began_at = now()
    body = None
    try:
        in_process(_values(ask, start, spec_of(node).values))
        body = begin(run, node, start, partial(_page, ask), results)
        if body.label is not None:
            tell(Labelled(start.task_no, start.start_no, body.label))
        value = body.call()
        if inspect.iscoroutine(value):
            value.close()
            raise TypeError(
                f"{node.task_id!r} is no `async def`, yet returned a coroutine; "
                "declare it async, so that it runs on an event loop"
            )
        if body.is_check:
            done, value = sensor_saw(value)
            if not done:
                return SensorNotReady(start.task_no, start.start_no, began_at, now())
        if gives_items(node, start):
            return at_once(handled(node, start, began_at, value))
        packed = at_once(pack(node, start, value, results))
        if packed.write is not None:
            write_out(packed.write, write_failure_reporter(start, tell))
        return succeeded(start, began_at, packed)
    except BaseException as exc:  # noqa: BLE001 - user code may raise anything
        operator = None if body is None else body.operator
        return at_once(ended_badly(node, start, began_at, exc, operator))
    finally:
        in_process({})


def _page(ask: AskDaemon, run_no: RunNo, position: int, after: int) -> ResultsPage:
    got = ask(run_no, "results", msgspec.msgpack.encode(ResultsWanted(position, after)))
    if got.error:
        raise TaskError(f"results of a parent are not to be had: {got.error}")
    return msgspec.msgpack.decode(got.body, type=ResultsPage)


def _values(ask: AskDaemon, start: StartTask, names: tuple[tuple[ValueKind, str], ...]) -> Held:
    if not names:
        return {}
    got = ask(start.run_no, "values", values.encoded_query(start.position, names))
    if got.error:
        raise UnknownValue(got.error)
    return values.decoded(names, got.body)
