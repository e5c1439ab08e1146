"""Settle the day's card transactions, merchant by merchant, once the bank's file is there.

The bank drops one file a day, some time after three in the morning. It is split by merchant,
each merchant's fee and net amount are computed and written on their own, and a total checks
the day. Every write is atomic and can be repeated: a task that is run again after a crash
leaves what it would have left the first time.
"""

from __future__ import annotations

import csv
import json
import os
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import anyio

from aioflow import Retry, current, dag, sensor, task

FOLDER = Path(tempfile.gettempdir()) / "aioflow-settlements"
PAISA = Decimal("0.01")
FEE_RATE = Decimal("0.0175")
FIXED_FEE = Decimal("2.00")


@sensor(timeout="14h", interval="1s")
async def npci_file(day: date, folder: Path) -> bool:
    """Is the bank's file of the day there? It arrives by a rename, so it is complete."""
    return await anyio.Path(folder, "incoming", day.isoformat(), "settlements.csv").exists()


@task
def list_merchants(day: date, folder: Path) -> list[str]:
    """Split the file by merchant; return the merchants in order."""
    rows: dict[str, list[str]] = {}
    with (folder / "incoming" / day.isoformat() / "settlements.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            rows.setdefault(row["merchant"], []).append(row["amount"])
    parts = folder / "parts" / day.isoformat()
    parts.mkdir(parents=True, exist_ok=True)
    for merchant, amounts in rows.items():
        write_atomically(parts / merchant, "\n".join(amounts))
    return sorted(rows)


@task(retry=Retry(tries=5, delay="1s", factor=2, max_delay="5m"), execution_timeout="10m")
def settle(merchant: str, day: date, folder: Path, start: str = current.idempotency_key) -> Decimal:
    """Compute one merchant's fee and net amount; write them; return the net amount."""
    note(folder, day, f"begin {merchant} {start} {time.time_ns()}")
    gross = fees = Decimal(0)
    for line in (folder / "parts" / day.isoformat() / merchant).read_text().split():
        amount = Decimal(line)
        gross += amount
        fees += (amount * FEE_RATE).quantize(PAISA, ROUND_HALF_UP) + FIXED_FEE
    settled = folder / "settled" / day.isoformat()
    settled.mkdir(parents=True, exist_ok=True)
    record = {"merchant": merchant, "gross": str(gross), "fees": str(fees)}
    write_atomically(settled / f"{merchant}.json", json.dumps(record))
    note(folder, day, f"end {merchant} {start} {time.time_ns()}")
    return gross - fees


@task
def daily_total(amounts: Sequence[Decimal], day: date, folder: Path) -> Decimal:
    """Add the day up, and write it where the books look for it."""
    total = sum(amounts, Decimal(0))
    totals = folder / "totals"
    totals.mkdir(parents=True, exist_ok=True)
    record = {"day": day.isoformat(), "merchants": len(amounts), "net": str(total)}
    write_atomically(totals / f"{day.isoformat()}.json", json.dumps(record))
    return total


@dag(schedule="0 3 * * *", timezone="Asia/Kolkata", catchup=False, max_active_runs=1)
def settlements(day: date = current.logical_day, folder: Path = FOLDER) -> None:
    """Wait for the bank's file, settle every merchant in it, total the day."""
    merchants = list_merchants(day, folder).after(npci_file(day, folder))
    amounts = settle.partial(day=day, folder=folder).expand(merchant=merchants)
    daily_total(amounts, day, folder)


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old one or the new one, never half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)


def note(folder: Path, day: date, line: str) -> None:
    """Append to the day's ledger which task started and ended; it is outside of any database."""
    ledger = folder / "ledger"
    ledger.mkdir(parents=True, exist_ok=True)
    with (ledger / f"{day.isoformat()}.txt").open("a") as file:
        file.write(line + "\n")
