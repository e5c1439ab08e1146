"""The DAGs the measurements run."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from aioflow import Operator, StartTriggerArgs, Trigger, TriggerEvent, dag, sensor, task
from aioflow_triggers.external import RunTrigger
from aioflow_triggers.files import FileTrigger
from aioflow_triggers.temporal import DateTimeTrigger


@task(map_limit=1_000_000)
async def numbers(count: int) -> list[int]:
    return list(range(count))


@task(map_limit=1_000_000)
async def async_noop(number: int) -> None:
    return None


@task(map_limit=1_000_000)
def noop(number: int) -> None:
    return None


@task(map_limit=1_000_000)
async def async_double(number: int) -> int:
    return 2 * number


@task(map_limit=1_000_000)
def double(number: int) -> int:
    return 2 * number


@task
def total(numbers: Any) -> int:
    return sum(numbers)


@dag
def fan_in_async(count: int = 1_000) -> None:
    total(async_double.expand(number=numbers(count)))


@dag
def fan_in_def(count: int = 1_000) -> None:
    total(double.expand(number=numbers(count)))


@task
def walk(results: Any) -> int:
    return sum(1 for _ in results)


@dag
def wide_async(count: int = 1_000) -> None:
    walk(async_noop.override(task_id="child").expand(number=numbers(count)))


@dag
def wide_def(count: int = 1_000) -> None:
    walk(noop.override(task_id="child").expand(number=numbers(count)))


@task(map_limit=1_000_000)
def fifty_milliseconds(number: int) -> None:
    time.sleep(0.05)


@dag
def fan_async(count: int = 10_000) -> None:
    async_noop.expand(number=numbers(count))


@dag
def fan_def(count: int = 10_000) -> None:
    noop.expand(number=numbers(count))


@dag
def fan_slow(count: int = 80) -> None:
    fifty_milliseconds.expand(number=numbers(count))


@task
def sleeping(number: int, seconds: float) -> None:
    time.sleep(seconds)


@dag
def fan_sleeping(count: int = 80, seconds: float = 0.2) -> None:
    sleeping.partial(seconds=seconds).expand(number=numbers(count))


@task
def short() -> None:
    return None


@dag
def three() -> None:
    short().after(short().after(short()))


def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


@task
def fibo(n: int) -> int:
    return fibonacci(n)


@dag
def chain() -> None:
    before = fibo(10)
    for _ in range(39):
        before = fibo(10).after(before)


class Late(Operator):
    """Waits until a time; returns how many milliseconds after it the next line ran."""

    def __init__(self, *, due: float, **options: Any) -> None:
        super().__init__(**options)
        self.due = due

    def execute(self, context: Any) -> None:
        moment = datetime.fromtimestamp(self.due, UTC)
        self.defer(trigger=DateTimeTrigger(moment=moment), method_name="resumed")

    def resumed(self, context: Any, event: Any = None) -> float:
        return (time.time() - self.due) * 1000


@task(map_limit=100_000)
def instants(count: int, per_second: float, after: float) -> list[float]:
    first = time.time() + after
    return [first + n / per_second for n in range(count)]


@dag
def lateness(count: int = 500, per_second: float = 100.0, after: float = 3.0) -> None:
    Late.partial(task_id="late").expand(due=instants(count, per_second, after))


@task(map_limit=100_000)
def one_instant(count: int, due: float) -> list[float]:
    return [due] * count


@dag
def burst(count: int = 10_000, due: float = 0.0) -> None:
    Late.partial(task_id="late", map_limit=100_000).expand(due=one_instant(count, due))


running: list[float] = []
"""The wall time at which each trigger of this process began to run."""

all_begun: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)
"""By round: set once all triggers of the round have begun."""


@dataclass
class Begun(Trigger[list[float]]):
    """Waits until all triggers of its round have begun; reports the first and the last time."""

    count: int

    async def run(self) -> AsyncIterator[TriggerEvent[list[float]]]:
        begun = all_begun[len(running) // self.count]
        running.append(time.time())
        if len(running) % self.count == 0:
            begun.set()
        await begun.wait()
        yield TriggerEvent([min(running[-self.count :]), max(running[-self.count :])])


class FromTrigger(Operator):
    """Starts as a trigger, and resumes once with its event."""

    start_from_trigger = True
    start_trigger_args = StartTriggerArgs(trigger_cls=Begun, next_method="resumed")

    def resumed(self, context: Any, event: Any = None) -> list[float]:
        return list(event)


@task(map_limit=100_000)
def same(count: int) -> list[dict[str, int]]:
    return [{"count": count}] * count


@dag
def handed_over(count: int = 10_000) -> None:
    FromTrigger.partial(task_id="begun", map_limit=100_000).expand(trigger_kwargs=same(count))


class Wait(Operator):
    """Waits for something that never happens: alternately a point in time, a file, a run."""

    def __init__(self, *, number: int, **options: Any) -> None:
        super().__init__(**options)
        self.number = number

    def execute(self, context: Any) -> None:
        match self.number % 3:
            case 0:
                never = datetime.now(UTC) + timedelta(days=30)
                self.defer(trigger=DateTimeTrigger(moment=never), method_name="resumed")
            case 1:
                path = f"/tmp/aioflow-never/{self.number}"
                self.defer(trigger=FileTrigger(path=path), method_name="resumed")
            case _:
                trigger = RunTrigger(dag="chain", run_id=f"never-{self.number}")
                self.defer(trigger=trigger, method_name="resumed")

    def resumed(self, context: Any, event: Any = None) -> None:
        return None


@dag
def waits(count: int = 5_000) -> None:
    Wait.partial(task_id="wait", map_limit=1_000_000).expand(number=numbers(count))


@sensor(interval="60s")
async def never() -> bool:
    return False


@dag
def one_sensor() -> None:
    never()
