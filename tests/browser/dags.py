"""The DAG files of the browser tests, as text."""

from __future__ import annotations

__all__ = (
    "ASKS",
    "ASSETS",
    "FAILS",
    "MANY",
    "PAYLOADS",
    "STALLS",
    "STEERED",
    "WIDE",
    "WORKS",
    "hostile",
)

ASSETS = """
from aioflow import Asset, dag, task

ORDERS, STOCK = Asset("orders"), Asset("s3://warehouse/stock")


@task(outlets=[ORDERS])
def load() -> None: ...


@dag
def imports() -> None:
    load()


@task
def write() -> None: ...


@dag(schedule=ORDERS & STOCK)
def reports() -> None:
    write()
"""

WORKS = '''
"""Work of all sorts."""

from __future__ import annotations

from aioflow import Retry, current, dag, task, wait
from aioflow_triggers.files import FileTrigger
from aioflow_triggers.temporal import TimeDeltaTrigger


@task
async def landed(folder: str) -> str:
    # Polls are that rare: a file that is seen sooner was reported by the kernel.
    await wait(FileTrigger(f"{folder}/in.csv", poll_seconds=600, stable=0))
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


@task
def note() -> None:
    print("noted")


@dag
def noted() -> None:
    note()


@dag(schedule="@daily", catchup=False, tags=("books",))
def daily(region: str = "north", limit: int = 5, full: bool = False) -> None:
    """Books of each day."""
    note()


@dag(schedule="@daily", catchup=False)
def nightly() -> None:
    note()
'''

FAILS = """
from __future__ import annotations

from pathlib import Path

from aioflow import dag, task


@task(retries=0)
def once(flag: str) -> str:
    if not Path(flag).exists():
        raise ValueError("not yet")
    return "done"


@task
def then(what: str) -> str:
    return what


@dag
def fails(flag: str) -> None:
    then(once(flag))
"""

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

STEERED = '''
"""What is steered by hand."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

from aioflow import Param, current, dag, task, wait
from aioflow_triggers.events import EventTrigger
from aioflow_triggers.temporal import TimeDeltaTrigger


@task
async def rests() -> None:
    await wait(TimeDeltaTrigger("1h"))


@task
def after(nothing: None) -> None:
    """Comes after."""


@dag
def patient() -> None:
    after(rests())


@task
def at_once() -> None:
    """Has nothing to wait for."""


@dag
def brief() -> None:
    at_once()


@dag(schedule="30 3 * * *", timezone="Europe/Berlin", catchup=False)
def early() -> None:
    at_once()


@dag(schedule=EventTrigger("gates/opened"))
def gated() -> None:
    at_once()


@task(pool="desk")
async def sits() -> None:
    await wait(TimeDeltaTrigger("1h"))


@dag
def sitting() -> None:
    sits()


@task
async def hears() -> object:
    return (await wait(EventTrigger("doors/opened")))["data"]


@dag
def listening() -> None:
    hears()


@task(retries=0)
def part(number: int, flag: str) -> int:
    if number == 1 and not Path(flag).exists():
        raise ValueError("not yet")
    return number


@dag
def parts(flag: str) -> None:
    part.partial(flag=flag).expand(number=[0, 1, 2])


@dag(params={"size": Param(type="string", enum=["small", "large"])})
def shaped(
    count: int = Param(3, type="integer", minimum=1, maximum=9),
    full: bool = Param(False, type="boolean", description="Whether all of it"),
    code: str = Param("ab", type="string", pattern="^[a-z]+$"),
) -> None:
    at_once()


@task
def prints(folder: str) -> None:
    for number in range(5_000):
        print(f"line {number} of many")
    sys.stdout.flush()
    while not Path(folder, "go").exists():
        time.sleep(0.02)
    print("and a last one, with \\N{LATIN SMALL LETTER A WITH DIAERESIS}")


@dag
def printing(folder: str) -> None:
    prints(folder)


@task(retries=0)
def speaks(number: int) -> None:
    print("\\x1b[31mred\\x1b[0m and <b>bold</b>; see https://example.com/page.")
    print("10 %\\r100 %")
    logging.getLogger("orders").warning("be careful")
    raise ValueError(f"no {number}")


@dag
def speaking() -> None:
    speaks.expand(number=[1, 2])


@task(retries=1, retry_delay=0, map_label="{region}")
def tries(region: str, try_number: int = current.try_number) -> None:
    print(f"{region}: try {try_number}")
    if try_number == 1:
        raise ValueError("once")


@dag
def trying() -> None:
    tries.expand(region=["north", "east"])


@task
def chatters() -> None:
    for number in range(60_000):
        print(f"line {number:05} {'x' * 88}")


@dag
def chatting() -> None:
    chatters()
'''

STALLS = """
from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from aioflow import Trigger, TriggerEvent, dag, task, wait


@dataclass
class Slow(Trigger[int]):
    folder: str

    async def run(self):
        while not Path(self.folder, "gate").exists():
            if not Path(self.folder, "mended").exists():
                time.sleep(0.3)
            await asyncio.sleep(0.05)
        yield TriggerEvent(1)


@task
async def waits(folder: str) -> None:
    await wait(Slow(folder))


@dag
def stalling(folder: str) -> None:
    waits(folder)
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
    """Return a DAG file in which every text is an injection payload."""
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


ASKS = '''
"""Questions to people."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from aioflow import ask_person, dag, task


@dataclass
class Payment:
    amount: Decimal
    currency: Literal["EUR", "CHF"] = "EUR"


@task
async def release() -> bool:
    details = "Invoice 4711 of the printer, due on Friday."
    return await ask_person("Release the payment?", details=details, assignees="finance")


@dag
def released() -> None:
    release()


@task
async def fill_in() -> str:
    payment = await ask_person("Which payment?", form=Payment)
    return f"{payment.amount:.2f} {payment.currency}"


@dag
def filled() -> None:
    fill_in()
'''
