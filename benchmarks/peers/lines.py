"""Lines, each with one value of one system in one round, and the file that contains them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

__all__ = ("FILE", "OTHERS_LIMIT", "Line", "append", "read")

FILE = Path(__file__).parent / "results" / "peers.jsonl"

OTHERS_LIMIT = 0.4
"""Number of cores. A value is marked if other processes used more while it was measured."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One measured value, or the reason why there is none.

    Attributes:
        variant: How the system was run: its database and, if not the usual ones, its settings.
        version: Version of the main package.
        measurement: The cell that was run; it may give several figures.
        value: ``None`` if the system does not do this, or did not end within the time limit.
        size: Number of tasks, hops, children or waits.
        run: When the command that measured it was started.
        round: Number of the round, from 1; 0 in a line about a feature that the system lacks.
        beside: The variant of aioflow that this is compared with.
        load: Load average of the last minute before the cell. It includes the system measured
            before.
        others: Cores that other processes used just before or just after the cell.
        durability: What a commit survives, and by which setting.
        note: Why there is no value, or a remark that the page prints beside it.
    """

    system: str
    variant: str
    version: str
    measurement: str
    figure: str
    value: float | None
    unit: str
    size: int
    run: str
    round: int
    load: float
    others: float
    fsync_ms: float
    durability: str
    beside: str = ""
    note: str = ""
    commit: str = ""
    cpus: int = 0
    when: str = ""

    @property
    def is_missing(self) -> bool:
        """Whether the system does not have the feature at all."""
        return self.round == 0

    @property
    def was_loaded(self) -> bool:
        """Whether the machine had other work while this was measured."""
        return self.others > OTHERS_LIMIT


def append(file: Path, lines: Iterable[Line]) -> None:
    """Append lines to the file. Create the file and its folder if they do not exist."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as written:
        for line in lines:
            written.write(msgspec.json.encode(line) + b"\n")


def read(file: Path) -> list[Line]:
    """Return all lines of a file; none if it does not exist.

    Raises:
        ValueError: If a line is damaged. The message has its number.
    """
    if not file.exists():
        return []
    found = []
    for number, text in enumerate(file.read_bytes().splitlines(), 1):
        try:
            found.append(msgspec.json.decode(text, type=Line))
        except msgspec.DecodeError as error:
            raise ValueError(f"{file}:{number}: {error}") from error
    return found
