"""Append the figures of a campaign to a file of the day below ``results``."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

__all__ = ("record",)

RESULTS = Path(__file__).parent / "results"


def record(campaign: str, **figures: Any) -> None:
    """Append one line. Workers append beside each other: a line is written at once."""
    RESULTS.mkdir(exist_ok=True)
    now = datetime.now(UTC)
    with (RESULTS / f"{campaign}-{now.date().isoformat()}.jsonl").open("a") as file:
        file.write(json.dumps({"at": now.isoformat(), **figures}) + "\n")
