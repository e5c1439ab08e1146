"""Runs one ``def`` body: from the order to start it to the report of how it ended."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from aioflow.author.values import Held, in_process
from aioflow.host.arguments import spec_of
from aioflow.host.body import PagesOfRun, begin
from aioflow.host.outcome import (
    ended_badly,
    gives_items,
    handled,
    not_begun,
    now,
    pack,
    sensor_saw,
    succeeded,
)
from aioflow.host.runs import Runs
from aioflow.messages import Ended, NotReadyYet
from aioflow.model import ValueKind
from aioflow.orders import Start

__all__ = ("ValuesOfTry", "run_body")

ValuesOfTry: TypeAlias = Callable[[Start, tuple[tuple[ValueKind, str], ...]], Held]


def run_body(
    start: Start, runs: Runs, pages: PagesOfRun, values: ValuesOfTry, results: Path
) -> Ended:
    """Run it in this thread, and return what is to be reported, whatever user code does.

    Args:
        runs: Has been told of its run.
        pages: Fetches results of its parents; may block.
        values: Fetches the secrets, connections and variables it declares; may block.
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
        in_process(values(start, spec_of(node).values))
        body = begin(run, node, start, pages, results)
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
                return NotReadyYet(start.task_no, start.start_no, began_at, now())
        if gives_items(node, start):
            return handled(node, start, began_at, value)
        packed = pack(node, start, value, results)
        if packed.write is not None:
            packed.write()
        return succeeded(start, began_at, packed)
    except BaseException as exc:  # noqa: BLE001 - user code may raise anything
        return ended_badly(node, start, began_at, exc, None if body is None else body.operator)
    finally:
        in_process({})
