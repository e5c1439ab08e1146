"""Prefect 3: flows of tasks as Python functions, with a server."""

from __future__ import annotations

from benchmarks.peers.system import System, Variant

__all__ = ("SYSTEM",)

NO_TIMER = (
    "does not do a timer inside a run: a sleeping flow holds its process, and a suspended one is"
    " resumed by a request or an automation, which looks every 5 s, and starts from its beginning"
)

SYSTEM = System(
    name="prefect",
    title="Prefect 3",
    packages=("prefect==3.9.1",),
    program="with_prefect.py",
    variants=(
        Variant(
            "SQLite",
            "states survive kill -9, not a power cut: the server opens it with synchronous=NORMAL;"
            " results of no-ops and fan-outs are not stored",
            "SQLite, normal",
        ),
    ),
    settings=(
        (
            "A server of its own (`prefect server start`), one process with the flow, and SQLite,"
            " its default. Beyond a single user its documentation recommends PostgreSQL with the"
            " extension `pg_trgm`, which a normal installation has, but not the wheel of PostgreSQL"
            " that this comparison uses."
        ),
        "Logs are not sent to the API, analytics are off, the log level is ERROR.",
        (
            "The server records 20 states of tasks in one transaction instead of one, at least once"
            " a second, and 500 events. Tasks look for no cached result, and automations are off."
        ),
        (
            "`async` tasks are awaited together by `asyncio.gather`, which was faster than"
            " `task.map`; `def` tasks use `task.map` on a `ThreadPoolTaskRunner`."
        ),
        (
            "A task counts as durable once its server's database has the final state: the client"
            " reports states without waiting for that."
        ),
    ),
    written={
        "chain": "40 awaited tasks in a flow; to the recorded state of the last",
        "fan_1000": "`asyncio.gather` of the tasks, and a task that sums",
        "kill": "the client runs the flow again, with tasks of `persist_result=True` and the cache"
        " policy INPUTS: a killed flow run is not resumed automatically",
    },
    lacks={
        "waits": NO_TIMER,
        "lateness": NO_TIMER,
        "immediate": NO_TIMER,
        "density": NO_TIMER,
    },
    sizes={"tasks_async": 1_000, "tasks_def": 500},
)
