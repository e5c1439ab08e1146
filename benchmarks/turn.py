"""Time of each part of an engine turn: take, decide, commit, act.

Question: microseconds of each part per no-op task, from the engine's own inbox to its effects,
without worker processes.

Method: the real engine on a real SQLite store at ``durability=full``, in this process. Each start
is answered at once with ``Succeeded``, as many as were started in the turn. The four parts are
timed with plain timers, without a profiler. Then the committed batches are taken apart: binding
their rows, encoding their journal, and, as the yardstick, the same statements with the same
parameters on a bare ``sqlite3`` connection in as many durable commits.

    python -m benchmarks.turn --tasks 20000 --rounds 3
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import anyio

from aioflow.clock import SystemClock
from aioflow.core.scheduling.slots import Slots
from aioflow.core.transaction import Transaction
from aioflow.crypto import Vault
from aioflow.engine.loop import Engine
from aioflow.model.batch import Batch
from aioflow.model.dag import Body, DagSpec, MapSource, MapSpec, TaskSpec
from aioflow.protocol.effects import Effect, StartTry
from aioflow.protocol.inputs import FileParsed, HostUp, Input
from aioflow.protocol.reports import Succeeded
from aioflow.protocol.requests import CreateRun
from aioflow.store import journal, open_store
from aioflow.store.changes import SQLITE, Changes, bind_batch, written
from benchmarks.daemon import fsync_ms
from benchmarks.harness import Figure, command, median, report

FULL = {"tasks": 20_000, "rounds": 3}
TINY = {"tasks": 50, "rounds": 1}
PARTS = ("take", "decide", "commit", "act")
VAULT = Vault([b"k" * 32])


class TimedEngine(Engine):
    """The engine with a timer around each part of its loop."""

    seconds: defaultdict[str, float]

    async def _turn(self, inputs: list[Input]) -> None:
        began = time.perf_counter()
        before = self.seconds["commit"] + self.seconds["act"]
        await super()._turn(inputs)
        took = time.perf_counter() - began
        self.seconds["decide"] += took - (self.seconds["commit"] + self.seconds["act"] - before)

    async def _take(self) -> list[Input]:
        began = time.perf_counter()
        inputs = await super()._take()
        self.seconds["take"] += time.perf_counter() - began
        return inputs

    async def _commit(self, batch: Batch, tx: Transaction) -> None:
        began = time.perf_counter()
        await super()._commit(batch, tx)
        self.seconds["commit"] += time.perf_counter() - began

    def time_effects(self) -> None:
        """Time the dispatch of effects, too."""
        dispatch = self.dispatcher.dispatch

        def timed(effects: Iterable[Effect]) -> None:
            began = time.perf_counter()
            dispatch(effects)
            self.seconds["act"] += time.perf_counter() - began

        self.dispatcher.dispatch = timed  # type: ignore[method-assign]


class Children:
    """Reports the success of every start at once; records the committed batches."""

    def __init__(self, engine: Engine, clock: SystemClock) -> None:
        self._engine = engine
        self._clock = clock
        self.batches: list[Batch] = []
        ignored = dict.fromkeys(engine.dispatcher.unhandled, self._ignore)
        engine.dispatcher.register({**ignored, StartTry: self._start_try})
        engine.dispatcher.subscribe(self._committed)

    def _start_try(self, effect: StartTry) -> None:
        start, now = effect.start, self._clock.now()
        self._engine.report([Succeeded(start.task_no, start.start_no, now, now)])

    def _committed(self, batch: Batch, tx: Transaction) -> None:
        self.batches.append(batch)

    def _ignore(self, effect: object) -> None:
        """Ignore effects that stop, recall, forget, assign or deliver anything."""


async def turn_once(folder: Path, tasks: int) -> tuple[float, dict[str, float], list[Batch]]:
    """Run one fan-out through a new engine; return total time, time per part and batches."""
    mapped = MapSpec(sources=(MapSource("number", -1, tasks),))
    task = TaskSpec(task_id="noop", body=Body.COROUTINE, mapped=mapped, map_limit=tasks)
    spec = DagSpec(dag_id="dag", file="dag.py", tasks=(task,))
    clock = SystemClock()
    async with open_store(f"sqlite:///{folder}/turn.db", VAULT) as store:
        slots = Slots(cpu_slots=2, async_slots=1000)
        engine = TimedEngine(store, slots, clock=clock, random=random.random)
        engine.seconds = defaultdict(float)
        engine.time_effects()
        children = Children(engine, clock)
        async with anyio.create_task_group() as services:
            await services.start(engine.run)
            file = FileParsed(file="dag.py", version="v1", dags=(spec,), sources={"dag.py": b""})
            engine.report([file, HostUp("async"), HostUp("triggers")])
            began = time.perf_counter()
            engine.seconds.clear()
            await engine.ask(CreateRun(dag_id="dag"))
            await engine.wait_until_idle()
            took = time.perf_counter() - began
            services.cancel_scope.cancel()
    return took, engine.seconds, children.batches


def replay_seconds(folder: Path, batches: Sequence[Batch]) -> dict[str, float]:
    """Time the parts of a commit: binding, encoding, and the bare statements with their commits."""
    began = time.perf_counter()
    bound = [bind_batch(batch, VAULT) for batch in batches]
    middle = time.perf_counter()
    bodies = [journal.encode(batch, c) for batch, c in zip(batches, bound, strict=True)]
    end = time.perf_counter()
    path = folder / "bare.db"
    bare = _bare(folder / "turn.db", path, list(zip(bound, bodies, strict=True)))
    path.unlink()
    return {"bind": middle - began, "journal": end - middle, "sqlite": bare}


def _bare(made: Path, path: Path, work: list[tuple[Changes, bytes]]) -> float:
    raw = sqlite3.connect(path, isolation_level=None)
    raw.execute("PRAGMA journal_mode = WAL")
    raw.execute("PRAGMA synchronous = FULL")
    with sqlite3.connect(made) as source:
        schema = source.execute(
            "SELECT sql FROM sqlite_master WHERE sql NOT NULL ORDER BY type = 'index'"
        ).fetchall()
    source.close()
    for (sql,) in schema:
        raw.execute(sql)
    statements = {
        kind.name: written(kind, SQLITE).sql for changes, _ in work for kind, _ in changes
    }
    began = time.perf_counter()
    for number, (changes, body) in enumerate(work):
        raw.execute("BEGIN IMMEDIATE")
        for kind, rows in changes:
            raw.executemany(statements[kind.name], rows)
        raw.execute("INSERT INTO journal VALUES (?, 0, ?, 1, ?)", (number, body, number))
        raw.execute("COMMIT")
    took = time.perf_counter() - began
    raw.close()
    return took


def measure(folder: Path, *, tasks: int, rounds: int) -> dict[str, Any]:
    """Run the fan-out repeatedly and report the medians of the parts."""
    seen: list[dict[str, float]] = []
    turns: list[int] = []
    for number in range(rounds):
        home = folder / str(number)
        home.mkdir()
        took, parts, batches = anyio.run(
            turn_once, home, tasks, backend_options={"use_uvloop": True}
        )
        replay = replay_seconds(home, batches)
        seen.append({"all": took, **{part: parts[part] for part in PARTS}, **replay})
        turns.append(len(batches))
    each = {name: round(1e6 * median([one[name] for one in seen]) / tasks, 2) for name in seen[0]}
    bare = "bare sqlite3: the same statements in as many commits"
    figures = [
        Figure("one task through the circle", each["all"], "us", each["sqlite"], bare),
        *(Figure(f"of it: {part}", each[part], "us") for part in ("take", "decide")),
        Figure("of it: commit", each["commit"], "us", each["sqlite"], bare),
        Figure("of it: act", each["act"], "us"),
        Figure("of the commit: binding rows", each["bind"], "us"),
        Figure("of the commit: encoding the journal", each["journal"], "us"),
    ]
    return report(
        "turn",
        figures=figures,
        tasks=tasks,
        rounds=rounds,
        durability="full",
        fsync_ms=fsync_ms(folder),
        turns=turns,
        each_us=each,
    )


if __name__ == "__main__":
    command(__doc__, measure, FULL)
