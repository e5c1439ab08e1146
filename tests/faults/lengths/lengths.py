"""Durations of an hour that a step of the wall clock must not end, and one of a few seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aioflow import Operator, dag, sensor, sleep, task, wait
from aioflow_triggers.files import FileTrigger
from aioflow_triggers.temporal import TimeDeltaTrigger


@sensor(interval="500ms", timeout="1h")
def looks(gate: Path) -> bool:
    return gate.exists()


class Limited(Operator):
    """Has an hour for its try, most of which it spends waiting."""

    def __init__(self, *, gate: Path, **options: Any) -> None:
        super().__init__(execution_timeout="1h", **options)
        self.gate = gate

    def execute(self, context: Any) -> None:
        self.defer(trigger=FileTrigger(path=str(self.gate)), method_name="resumed")

    def resumed(self, context: Any, event: Any = None) -> int:
        return 1


@task
async def asleep() -> None:
    await sleep("1h")


@task
async def seconds() -> None:
    await wait(TimeDeltaTrigger("5s"))


@dag(run_timeout="1h")
def hours(ledger: Path, gate: Path) -> None:
    looks(gate)
    Limited(task_id="limited", gate=gate)
    asleep()


@dag
def soon(ledger: Path) -> None:
    seconds()
