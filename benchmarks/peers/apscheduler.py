"""APScheduler 4: a scheduler of jobs as a library, with a data store."""

from __future__ import annotations

from benchmarks.peers.system import System, Variant

__all__ = ("SYSTEM",)

NO_FAN_IN = (
    "does not do fan-in: a job cannot wait for others; users count completions in their own code"
)

SYSTEM = System(
    name="apscheduler",
    title="APScheduler 4 (alpha)",
    packages=(
        "apscheduler==4.0.0a6",
        "sqlalchemy[asyncio]==2.1.9",
        "aiosqlite==0.22.1",
        "asyncpg==0.32.0",
        "sniffio==1.3.1",  # imported, but required only through an older anyio
    ),
    program="with_apscheduler.py",
    variants=(
        Variant(
            "SQLite",
            "survives a power cut: SQLite's defaults, synchronous=FULL with a rollback journal",
            "SQLite",
        ),
        Variant(
            "PostgreSQL", "survives a power cut: synchronous_commit and fsync on", "PostgreSQL"
        ),
    ),
    settings=(
        (
            "`SQLAlchemyDataStore` over aiosqlite or asyncpg; the event broker is the local one,"
            " which is right for one scheduler process."
        ),
        (
            "One `AsyncScheduler`, `max_concurrent_jobs=100`. These lines understate it: the limit"
            " for each task was meant to be off, but `add_job` set it back to one job at a time."
        ),
        (
            "Its own documentation does not recommend SQLite for several schedulers; here is one."
            " On PostgreSQL, 20 jobs or schedules are added at a time."
        ),
        "Its memory store is faster, but not durable, so it is not measured.",
    ),
    written={
        "tasks_async": "`add_job`, of which there is no batch; from the first to the end of all",
        "chain": "each job adds the next one at its end",
        "waits": "schedules with a `DateTrigger`: a wait is a row, no code of the user has begun."
        " The resumed code is the job's first line",
        "waits_bytes": "rows alone; no process holds anything per wait",
        "kill": "500 jobs at a time; success is recorded by deleting the job's row. A job of a dead"
        " scheduler is run again if one looks for jobs once the lease of 30 s is over, which a new"
        " job each second makes it do, and ends as abandoned if a clean-up comes first",
    },
    lacks={"fan_1000": NO_FAN_IN, "fan_10000": NO_FAN_IN},
    sizes={"tasks_async": 1_000, "tasks_def": 1_000, "waits": 5_000},
)
