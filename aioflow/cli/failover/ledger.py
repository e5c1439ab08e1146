"""The ledger of the demo: compares the notes of task bodies with the records in the database.

A task is *lost* if its success is recorded but its body never noted its end, if a recorded success
no longer exists, or if there is still no success at the end of the demo. A task is *done twice* if
its body began after its success had been recorded. It is not an error if a body begins again before
that, because the daemon died meanwhile: tasks are started at least once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

__all__ = ("Ledger", "NotesFile")

_NS_PER_US = 1_000


class NotesFile:
    """A file to which task bodies append lines. Each line is returned once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_lines(self) -> list[str]:
        """Return the complete lines that were appended since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.decode(errors="replace").splitlines()


class Ledger:
    """Compares notes with records. Each task is identified by its idempotency key.

    Notes must be read after the records that they are compared with, because a body notes its end
    before its success can be recorded.
    """

    def __init__(self) -> None:
        self._begun: dict[str, list[int]] = {}
        self._ended: set[str] = set()
        self._recorded: dict[str, int] = {}
        self._vanished: set[str] = set()
        self._expected: set[str] = set()
        self._is_closed = False

    def expect(self, keys: Iterable[str]) -> None:
        """Add tasks that must have succeeded at the end."""
        self._expected.update(keys)

    def note(self, lines: Iterable[str]) -> None:
        """Add lines from task bodies: ``begin`` or ``end``, a name, the key, and the time in ns."""
        for line in lines:
            what, *rest = line.split()
            if what == "begin":
                self._begun.setdefault(rest[1], []).append(int(rest[2]))
            elif what == "end":
                self._ended.add(rest[1])

    def record(self, asked: Collection[str], succeeded: Mapping[str, int]) -> None:
        """Add the current records in the database.

        Args:
            asked: The keys of the tasks that were queried.
            succeeded: The time at which the success of a task was recorded, in µs, by key.
        """
        for key in asked:
            if key in self._recorded and key not in succeeded:
                self._vanished.add(key)
        for key, at in succeeded.items():
            self._recorded.setdefault(key, at)

    def close(self) -> None:
        """Count every expected task without a recorded success as lost from now on."""
        self._is_closed = True

    @property
    def done(self) -> int:
        """The number of tasks whose success is recorded."""
        return len(self._recorded)

    @property
    def expected(self) -> int:
        """The number of tasks that must succeed."""
        return len(self._expected)

    @property
    def is_complete(self) -> bool:
        """Whether the success of every expected task is recorded."""
        return self._expected <= self._recorded.keys()

    @property
    def begun_again(self) -> int:
        """The number of permitted restarts of bodies, before their success was recorded."""
        begun = sum(len(times) - 1 for times in self._begun.values())
        return begun - len(self.doubled)

    @property
    def lost(self) -> set[str]:
        """The keys of lost tasks."""
        unnoted = {key for key in self._recorded if key not in self._ended}
        missing = self._expected - self._recorded.keys() if self._is_closed else set()
        return unnoted | self._vanished | missing

    @property
    def doubled(self) -> list[str]:
        """The keys of tasks that were done twice. A key occurs once for each extra time."""
        return [
            key
            for key, at in self._recorded.items()
            for begun in self._begun.get(key, ())
            if begun > at * _NS_PER_US
        ]
