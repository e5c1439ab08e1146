"""Runs of a DAG with a crash at each of its commits, and a comparison of their outcomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

from aioflow.testing.runs import SimRun

__all__ = ("Ending", "ending_of", "play_crashing_everywhere")

Key = TypeVar("Key")

_Task = tuple[str, Any, str | None]


class Ending(NamedTuple):
    """The outcome of a run.

    Attributes:
        tasks: State, result and error type of every task and mapped child, by id.
    """

    state: str
    tasks: dict[str, _Task]


def ending_of(run: SimRun) -> Ending:
    """Return the outcome of a run that has ended."""
    tasks = {}
    for view, result in run.outcomes():
        name = view.task_id if view.map_index < 0 else f"{view.task_id}[{view.map_index}]"
        tasks[name] = (view.state, result, None if view.error is None else view.error.type)
    return Ending(run.state, tasks)


class CrashTest(Protocol):
    """Runs a DAG in a separate simulation."""

    async def __call__(self, crash: Callable[[int, bool], bool]) -> Ending:
        """Run the DAG to its end, and return the outcome.

        Args:
            crash: Called before and after each commit, with the number of the commit and whether
                the commit is still to come; returns whether the node crashes there.
        """


async def play_crashing_everywhere(play: CrashTest) -> int:
    """Run a DAG without a crash, then twice for each commit: crashing before it, and after it.

    Returns:
        The number of commits of the run without a crash.

    Raises:
        AssertionError: If a run with a crash had another outcome.
    """
    commits = 0

    def never(number: int, is_before: bool) -> bool:
        nonlocal commits
        commits = number
        return False

    expected = await play(never)
    for number in range(1, commits + 1):
        for is_before in (True, False):
            ending = await play(lambda *place, wanted=(number, is_before): place == wanted)
            if ending != expected:
                when = "before" if is_before else "after"
                raise AssertionError(
                    f"with a crash just {when} commit {number} of {commits}:\n"
                    + "\n".join(_differences(expected, ending))
                )
    return commits


def _differences(expected: Ending, found: Ending) -> list[str]:
    lines = []
    if found.state != expected.state:
        lines.append(f"the run ended {found.state}, else {expected.state}")
    for name in sorted(expected.tasks.keys() | found.tasks.keys()):
        was, is_now = expected.tasks.get(name), found.tasks.get(name)
        if was != is_now:
            lines.append(f"{name}: {_told(is_now)}, else {_told(was)}")
    return lines


def _told(task: _Task | None) -> str:
    if task is None:
        return "not there"
    state, result, error = task
    return f"{state} with {result!r}" if error is None else f"{state} with {error}"
