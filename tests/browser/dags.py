"""DAG files of these tests, as text."""

from __future__ import annotations

__all__ = ("MANY", "PAYLOADS", "WIDE", "WORKS", "hostile")

WORKS = '''
"""Work of all sorts."""

from __future__ import annotations

from aioflow import Retry, current, dag, task, wait
from aioflow_triggers.files import FileTrigger
from aioflow_triggers.temporal import TimeDeltaTrigger


@task
async def landed(folder: str) -> str:
    await wait(FileTrigger(f"{folder}/in.csv", stable=0))
    return "here"


@task
def count(what: str) -> int:
    """Count what has landed."""
    print("counted")
    return 3


@dag
def landing(folder: str) -> None:
    """Waits for a file, and counts it."""
    count(landed(folder))


@task
async def rests() -> None:
    await wait(TimeDeltaTrigger("1h"))


@task
def after(nothing: None) -> None:
    """Comes after."""


@dag
def slow() -> None:
    after(rests())


@task(retries=0)
def once(flag: str) -> str:
    from pathlib import Path

    if not Path(flag).exists():
        raise ValueError("not yet")
    return "done"


@dag
def fails(flag: str) -> None:
    once(flag)


@task
def note() -> None:
    print("noted")


@dag(schedule="@daily", catchup=False, tags=("books",))
def daily(region: str = "north", limit: int = 5, full: bool = False) -> None:
    """Books of each day."""
    note()
'''

WIDE = """
from __future__ import annotations

from aioflow import dag, task


@task
def numbers(count: int) -> list[int]:
    return list(range(count))


@task
async def each(number: int) -> int:
    return number


@task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@dag
def wide(count: int) -> None:
    total(each.expand(number=numbers(count)))
"""

MANY = """
from aioflow import dag, task


@task
def work() -> None:
    pass


for number in range(5_000):

    @dag(dag_id=f"team_{number % 50:02}.job_{number:04}", schedule="@daily", catchup=False)
    def made() -> None:
        work()

    globals()[f"made_{number}"] = made
"""

PAYLOADS = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "\"'><svg onload=alert(3)>",
    "javascript:alert(4)",
    "</title><script>alert(5)</script>",
    "{{constructor.constructor('alert(6)')()}}",
    "<a href=javascript:alert(7)>x</a>",
    "\x1b]8;;javascript:alert(8)\x1b\\\\x\x1b[31m",
    "\u202ereversed",
    "<iframe srcdoc='<script>alert(9)</script>'>",
    "__proto__",
)


def hostile() -> str:
    """Return a DAG whose every text is a payload."""
    every = " ".join(PAYLOADS)
    return f'''
from __future__ import annotations

from aioflow import dag, emit, task

EVERY = {every!r}
PAYLOADS = {list(PAYLOADS)!r}


@task(retries=0)
def breaks(text: str) -> None:
    """{PAYLOADS[0]} {PAYLOADS[1]}"""
    print(text)
    raise ValueError(text)


@task
def gives() -> list[str]:
    print(EVERY)
    return PAYLOADS


@task
async def emits() -> None:
    for number, text in enumerate(PAYLOADS):
        key = f"{{number}} {{text[:30]}}".replace("\\x1b", "")
        await emit("heard", key=key, data={{text: text}})


@dag(tags=("<script>alert(1)</script>",))
def hostile(given: str = "") -> None:
    """{PAYLOADS[0]} {PAYLOADS[1]} {PAYLOADS[4]}"""
    emits()
    breaks.expand(text=gives())
'''
