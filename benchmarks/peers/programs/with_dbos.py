"""The work as a user of DBOS writes it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import serving
import sqlalchemy as sa
from dbos import DBOS, SetWorkflowID

WORKFLOWS = 1
"""Number of no-op workflows that a process runs at a time. More were slower."""

THREADS = 32
"""Number of threads of the library's executor. By default, thousands of them fight for the pool."""

HANDED_OVER = 200
"""Number of workflows that are started at a time."""

late_ms: list[float] = []
asleep: list[float] = []


@DBOS.step()
async def noop(number: int) -> int:
    return number


@DBOS.step()
def noop_def(number: int) -> int:
    return number


@DBOS.step()
def double(number: int) -> int:
    return 2 * number


@DBOS.workflow()
async def many(count: int) -> None:
    for number in range(count):
        await noop(number)


@DBOS.workflow()
def many_def(count: int) -> None:
    for number in range(count):
        noop_def(number)


@DBOS.workflow()
def chain(hops: int) -> int:
    number = 0
    for _ in range(hops):
        number = noop_def(number)
    return number


@DBOS.workflow()
def fan(count: int) -> int:
    return sum(double(number) for number in range(count))


@DBOS.workflow()
async def nap(due: float) -> None:
    asleep.append(due)
    await DBOS.sleep_async(max(0.0, due - time.time()))
    late_ms.append((time.time() - due) * 1000)


@DBOS.step()
async def work(number: int, ledger: str) -> None:
    serving.mark(ledger, f"start {number}")
    await asyncio.sleep(serving.task_seconds(number))
    serving.mark(ledger, f"end {number}")


@DBOS.workflow()
async def in_flight(number: int, ledger: str) -> None:
    await work(number, ledger)


async def result_of(workflow: Callable[[int], Any], size: int) -> Any:
    """Run a ``def`` workflow in a thread of the library; return its result."""
    handle = await asyncio.to_thread(DBOS.start_workflow, workflow, size)
    return await asyncio.to_thread(handle.get_result)


class WithDBOS(serving.Program):
    """One process with the library."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self.url = self.database or f"sqlite:///{self.folder}/dbos.sqlite"
        self.schema = "dbos." if self.database else ""
        engine = self.url.replace("postgresql://", "postgresql+psycopg://")
        self.engine = sa.create_engine(engine)
        self.due = 0.0
        self.waits_count = 0

    async def start(self) -> serving.Answer:
        DBOS(
            config={
                "name": "peer",
                "system_database_url": self.url,
                "log_level": "ERROR",
                "max_executor_threads": THREADS,
                "application_version": "1",
                "executor_id": "local" if self.role == "main" else self.role,
            }
        )
        DBOS.launch()
        return {}

    def rows(self, statement: str) -> list[Any]:
        with self.engine.connect() as connection:
            return list(connection.execute(sa.text(statement)))

    def successes(self, name: str) -> int:
        table = f"{self.schema}workflow_status"
        ((count,),) = self.rows(
            f"SELECT count(*) FROM {table} WHERE name = '{name}' AND status = 'SUCCESS'"
        )
        return int(count)

    async def tasks(self, kind: str, count: int, seconds: float) -> serving.Answer:
        parts = [count // WORKFLOWS] * WORKFLOWS
        parts[0] += count - sum(parts)
        if kind == "async":
            await asyncio.gather(*(many(part) for part in parts))
        else:
            await asyncio.gather(*(result_of(many_def, part) for part in parts))
        return {}

    async def chain(self, hops: int, seconds: float) -> serving.Answer:
        began = time.monotonic()
        await result_of(chain, hops)
        return {"seconds": time.monotonic() - began}

    async def fan(self, count: int, seconds: float) -> serving.Answer:
        began = time.monotonic()
        total = await result_of(fan, count)
        return {"seconds": time.monotonic() - began, "total": total}

    async def _sleep(self, dues: list[float]) -> None:
        starting = (DBOS.start_workflow_async(nap, due) for due in dues)
        await serving.gathered(starting, HANDED_OVER)

    async def waits(self, count: int, seconds: float, far: bool = False) -> serving.Answer:
        asleep.clear()
        self.due = time.time() + (86_400.0 if far else self.patience * (10.0 + count / 80))
        self.waits_count = count
        began = time.monotonic()
        await self._sleep([self.due] * count)
        await serving.eventually(lambda: len(asleep) >= count, seconds)
        took = time.monotonic() - began
        assert time.time() < self.due, "due before all were handed over"
        return {"seconds": took}

    async def waits_end(self, seconds: float) -> serving.Answer:
        assert time.time() < self.due, "due before the end was awaited"
        await asyncio.sleep(self.due - time.time())
        await serving.eventually(self._all_ended, seconds, 0.05)
        return {"seconds": time.time() - self.due}

    async def _all_ended(self) -> bool:
        return await asyncio.to_thread(self.successes, "nap") >= self.waits_count

    async def lateness(self, count: int, per_second: float, seconds: float) -> serving.Answer:
        late_ms.clear()
        first = time.time() + self.patience * (2.0 + count / 120)
        await self._sleep([first + number / per_second for number in range(count)])
        assert time.time() < first, "due before all were handed over"
        await serving.eventually(lambda: len(late_ms) >= count, seconds)
        return {"late_ms": list(late_ms)}

    async def flight(self, count: int, ledger: str, seconds: float) -> serving.Answer:
        async def hand_over(number: int) -> None:
            with SetWorkflowID(f"flight-{number}"):
                await DBOS.start_workflow_async(in_flight, number, ledger)

        for number in range(count):
            await hand_over(number)
        return {}

    async def again(self, seconds: float) -> serving.Answer:
        return {}

    async def recorded(self) -> list[int]:
        rows = self.rows(
            f"SELECT workflow_uuid FROM {self.schema}operation_outputs"
            " WHERE workflow_uuid LIKE 'flight-%' AND error IS NULL"
        )
        return [int(name.rpartition("-")[2]) for (name,) in rows]

    async def immediate(self, count: int, seconds: float) -> serving.Answer:
        before = self.successes("nap")
        await self._sleep([time.time() - 1.0] * count)

        def all_ended() -> bool:
            return self.successes("nap") - before >= count

        await serving.eventually(all_ended, min(20.0, seconds), 0.1)
        return {"ended": self.successes("nap") - before}


if __name__ == "__main__":
    serving.main(WithDBOS)
