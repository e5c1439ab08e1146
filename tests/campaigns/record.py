"""Append the figures of a campaign to a file for the day under ``results``."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

__all__ = ("record",)

RESULTS = Path(__file__).parent / "results"


def record(campaign: str, **figures: Any) -> None:
    """Append a line. It is written in one piece, because several workers append to the file."""
    RESULTS.mkdir(exist_ok=True)
    now = datetime.now(UTC)
    with (RESULTS / f"{campaign}-{now.date().isoformat()}.jsonl").open("a") as file:
        file.write(json.dumps({"at": now.isoformat(), **figures}) + "\n")
