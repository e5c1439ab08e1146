"""Write a day's settlement file, and print its expected total.

Each line is a card transaction of some merchant. The expected total is computed here in
whole paise, by other code than the pipeline's ``Decimal`` arithmetic, so that the two check
each other.

    python examples/settlement_data.py --day 2026-01-01
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import tempfile
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

DEFAULT_FOLDER = Path(tempfile.gettempdir()) / "aioflow-settlements"
ZONE = ZoneInfo("Asia/Kolkata")
FEE_PER_TEN_THOUSAND = 175  # 1.75 %, rounded half up to the paisa
FIXED_FEE_PAISE = 200


def settlement_file(folder: Path, day: date) -> Path:
    """Return where the bank drops the file of a day."""
    return folder / "incoming" / day.isoformat() / "settlements.csv"


def generate(
    folder: Path,
    day: date,
    *,
    merchants: int = 1_247,
    transactions: int = 100_000,
    seed: int = 20260101,
) -> Decimal:
    """Write the file of a day, atomically, and return the net total in rupees.

    The same arguments write the same file. A second call replaces it.
    """
    dice = random.Random(f"{seed}-{day}")
    path = settlement_file(folder, day)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.part")
    net_paise = 0
    with temporary.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("transaction", "merchant", "amount"))
        for number in range(transactions):
            merchant = number if number < merchants else dice.randrange(merchants)
            paise = dice.randint(1_000, 5_000_000)
            fee = (paise * FEE_PER_TEN_THOUSAND + 5_000) // 10_000 + FIXED_FEE_PAISE
            net_paise += paise - fee
            rupees = f"{paise // 100}.{paise % 100:02}"
            writer.writerow((f"T{number:07}", f"M{merchant:06}", rupees))
    temporary.replace(path)
    return Decimal(net_paise) / 100


def main() -> None:
    """Write the file of one day and print its total."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=DEFAULT_FOLDER)
    today = datetime.now(UTC).astimezone(ZONE).date()
    parser.add_argument("--day", type=date.fromisoformat, default=today)
    parser.add_argument("--merchants", type=int, default=1_247)
    parser.add_argument("--transactions", type=int, default=100_000)
    arguments = parser.parse_args()
    total = generate(
        arguments.folder,
        arguments.day,
        merchants=arguments.merchants,
        transactions=arguments.transactions,
    )
    print(f"{settlement_file(arguments.folder, arguments.day)}: net total {total}")


if __name__ == "__main__":
    main()
