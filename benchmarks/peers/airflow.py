"""Apache Airflow 3: DAGs of tasks, with a scheduler, an API server and a triggerer."""

from __future__ import annotations

from benchmarks.peers.system import System, Variant

__all__ = ("SYSTEM",)

SYSTEM = System(
    name="airflow",
    title="Airflow 3",
    packages=("apache-airflow==3.3.2", "psycopg2-binary==2.9.13", "asyncpg==0.32.0"),
    newer="3.4.0",
    program="with_airflow.py",
    variants=(
        Variant(
            "PostgreSQL", "survives a power cut: synchronous_commit and fsync on", "PostgreSQL"
        ),
    ),
    settings=(
        (
            "LocalExecutor with a parallelism of 16; API server with one worker, scheduler, DAG"
            " processor and triggerer, each in processes of their own. Its documentation advises"
            " against SQLite."
        ),
        (
            "A triggerer capacity and pools of 20,000, mapped tasks without a limit, 512 task"
            " instances per query, log level WARNING, DAGs not paused, files parsed once an hour."
            " The scheduler sleeps 0.1 s instead of 1 s if it found nothing to do,"
            " which makes chains four times as fast and costs CPU while it is idle."
        ),
        (
            "Tasks of a scheduler that is gone are looked for every 10 s instead of 300 s, and it"
            " counts as gone after 10 s instead of 30 s. A task has 2 retries after 1 s."
        ),
        (
            "Triggers are written for precision (one `asyncio.sleep`); the ones it ships look"
            " once a second."
        ),
    ),
    written={
        "tasks_async": "a mapped `@task` of `async def`",
        "tasks_def": "a mapped `@task`",
        "chain": "40 tasks, each with the result of the one before it",
        "start_ready": "until API, scheduler, DAG processor and triggerer run",
        "waits": "an operator that defers and is resumed in a method. A deferrable task that is not"
        " mapped can start and end in the triggerer without a worker, which is not measured",
        "lateness": "two a second: at 100 a second its executor is saturated, and the figure would"
        " be the length of a queue",
        "kill": "a mapped `@task`; tasks are in flight as far as the parallelism allows",
    },
    per_second=2.0,
    sizes={
        "tasks_async": 200,
        "tasks_def": 200,
        "fan_1000": 200,
        "waits": 150,
        "lateness": 50,
        "kill": 50,
        "immediate": 100,
    },
)
