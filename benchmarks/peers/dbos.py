"""DBOS Transact for Python: durable workflows as a library in the user's own process."""

from __future__ import annotations

from benchmarks.peers.system import System, Variant

__all__ = ("SYSTEM",)

SYSTEM = System(
    name="dbos",
    title="DBOS",
    packages=("dbos==3.4.0", "psycopg[binary]==3.3.9"),
    newer="3.5.0",
    program="with_dbos.py",
    variants=(
        Variant(
            "SQLite",
            "survives a power cut: synchronous=FULL with a rollback journal, as DBOS opens it",
            "SQLite",
        ),
        Variant(
            "PostgreSQL", "survives a power cut: synchronous_commit and fsync on", "PostgreSQL"
        ),
    ),
    settings=(
        "PostgreSQL is what its documentation recommends for production, SQLite is its default.",
        (
            "The log level is ERROR, and its executor has 32 threads instead of any number, which"
            " was faster; everything else is the default."
        ),
        "No-op tasks are steps, its cheapest durable unit; two processes share them on PostgreSQL.",
        "Waits are `async def`, on one event loop; chains and fan-outs are `def`, which is faster.",
    ),
    written={
        "tasks_async": "`async` steps, one after the other in one workflow of each process, which"
        " was faster than several at a time",
        "tasks_def": "`def` steps, one after the other in one workflow of each process",
        "chain": "a workflow of 40 steps",
        "fan_1000": "a workflow that calls the steps one after the other, which was faster than"
        " gathering them, and sums their results",
        "waits": "workflows in `DBOS.sleep_async`; handed over once all of them sleep. It can also"
        " delay a workflow that is enqueued, which is a row alone; that is not measured",
        "lateness": "the line after `DBOS.sleep_async`",
        "kill": "500 workflows of one step each; recovery at the second launch is automatic",
    },
    sizes={"tasks_async": 3_000, "tasks_def": 3_000, "waits": 5_000},
    task_programs=2,
)
