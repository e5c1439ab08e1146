"""The number of calls aioflow makes in a child for one task that does nothing.

The time of a task depends on the machine; the number of its calls does not. It grows by a call here
and there, each with a reason, but a fan-out pays for all of them. If one of these tests fails, let
the new code run only for the tasks that need it: test a flag, or create an object lazily. The first
try installs a counter in the thread that runs user code, and the last try returns the counts.
"""

from __future__ import annotations

from typing import Any

import pytest

from aioflow.protocol.reports import Succeeded
from aioflow.results import result_path, write_list
from tests.worker.peer import result_of, run_info, start, write_version

FLOW = """
import sys
from aioflow import dag, task

calls = [0, 0]

def count(frame, event, argument):
    if event == "call":
        calls[0] += 1
    elif event == "c_call":
        calls[1] += 1

@task
{define} numbers() -> list[int]: ...

@task
{define} nothing(number: int) -> None: ...

@task
{define} begin() -> None:
    sys.setprofile(count)

@task
{define} end() -> list[int]:
    sys.setprofile(None)
    return calls

@dag
def pipeline():
    nothing.expand(number=numbers())
    begin()
    end()
"""
LIST, CHILD, BEGIN, END = range(4)
TASKS = 200


@pytest.mark.parametrize(
    ("role", "define", "python_calls", "c_calls"),
    [("slot", "def", 50, 38), ("async", "async def", 57, 30)],
    ids=["def", "async def"],
)
def test_a_task_that_does_nothing_costs_few_calls(
    home, spawn, role, define, python_calls, c_calls
) -> None:
    write_version(home, flow=FLOW.format(define=define))
    write_list(result_path(home / "results", 100, 1), [b"\x07"] * TASKS, sync=False)
    child = spawn(role)
    child.send(run_info(), start(CHILD, task_no=200, map_index=0, **_one_of(TASKS)))
    assert result_of(child.expect(Succeeded)) is None  # imports what a first task imports
    tasks = [
        start(CHILD, task_no=1_000 + index, map_index=index, **_one_of(TASKS))
        for index in range(TASKS)
    ]
    child.send(start(BEGIN))
    child.expect(Succeeded, lambda one: one.task_no == 100 + BEGIN)
    child.send(*tasks, start(END))
    counted = result_of(child.expect(Succeeded, lambda one: one.task_no == 100 + END))
    python, c = (calls / TASKS for calls in counted)
    assert 1 < python <= python_calls, f"{python} calls of Python functions for each task"
    assert 1 < c <= c_calls, f"{c} calls of C functions for each task"


def _one_of(count: int) -> dict[str, Any]:
    return {"sources": ((LIST, 100, 1),), "widths": (count,)}
