"""Files that runs write at the second level: large results and task logs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import anyio.lowlevel

from aioflow.maintenance import retention
from aioflow.results import result_path
from tests.sim.broken import Broken

__all__ = ("Files", "without_threads")

T = TypeVar("T")


class _Log:
    """The part of a task log that deletion needs: the runs that have output."""

    def __init__(self) -> None:
        self.runs: set[int] = set()

    async def delete(self, run_no: int) -> None:
        await anyio.lowlevel.checkpoint()
        self.runs.discard(run_no)


class Files:
    """Files that survive crashes of the node. Only deletion removes them.

    Attributes:
        results: The folder of large results.
        log: Replaces ``TaskLog``.
    """

    def __init__(self, results: Path) -> None:
        self.results = results
        self.log: Any = _Log()
        self._left: dict[Path, int] = {}

    def leave(self, run_no: int, task_no: int, start_no: int) -> None:
        """Write the large result of a start."""
        path = result_path(self.results, task_no, start_no)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self._left[path] = run_no

    def print_something(self, run_no: int) -> None:
        """Record that a task of the run has printed something."""
        self.log.runs.add(run_no)

    def nothing_left(self, deleted: Collection[int]) -> None:
        """I23: check that the files of deleted runs were deleted, and no others.

        Raises:
            Broken: If a file was not deleted, or a wrong one was.
        """
        wrong = [p for p, of in self._left.items() if p.exists() is (of in deleted)]
        printed = self.log.runs.intersection(deleted)
        if wrong or printed:
            raise Broken("I23 files", f"of {wrong} and {printed}: {deleted} are deleted")


@contextmanager
def without_threads() -> Iterator[None]:
    """Delete files at once, in the thread of the event loop."""

    async def here(function: Callable[[], T]) -> T:
        await anyio.lowlevel.checkpoint()
        return function()

    with patch.object(retention, "in_thread", here):
        yield
