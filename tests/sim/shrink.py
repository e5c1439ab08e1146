"""Shrinking a broken seed to fewer faults, requests and tasks, and to a shorter time.

This is delta debugging: the faults are cut into chunks, and chunks that are not needed are left
out; then smaller chunks, down to single faults. The same invariant must still break.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import msgspec

from tests.sim import loop_model, model
from tests.sim.cluster import model as cluster
from tests.sim.faults import Fault
from tests.sim.verdict import Verdict
from tests.sim.workload import without

__all__ = ("AllBut", "Minimal", "Recipe", "commit", "replay", "shrink")

ROOT = Path(__file__).parents[2]
STORMS = {1: model.STORMY_TURNS, 2: loop_model.PEOPLE, 3: cluster.PEOPLE}
"""Length of the period with faults: in turns at the first level, in requests at the others."""

Item = TypeVar("Item")


class AllBut(frozenset[Fault]):
    """A set of faults to leave out: all except the given ones.

    It includes faults that happen only because others were left out.
    """

    def __contains__(self, fault: object) -> bool:
        return not super().__contains__(fault)


class Recipe(msgspec.Struct, frozen=True):
    """A reduced way to run a seed.

    Attributes:
        faults: All faults that happen; ``None`` for those the seed draws.
        dropped: Removed tasks, each as a DAG and the task's index when it was removed.
        storm: See ``STORMS``.
    """

    level: int
    seed: int
    faults: tuple[Fault, ...] | None = None
    dropped: tuple[tuple[int, int], ...] = ()
    storm: int | None = None

    def encoded(self) -> str:
        """Return the recipe as an argument of ``--replay``."""
        return msgspec.json.encode(self).decode()


class Minimal(msgspec.Struct):
    """The result of shrinking a broken seed."""

    seed: int
    broken: str
    faults: list[Fault]
    recipe: Recipe
    tasks: tuple[int, ...]

    def __str__(self) -> str:
        faults = ", ".join(f"{kind} #{number}" for kind, number in self.faults) or "no fault"
        return (
            f"seed {self.seed} of level {self.recipe.level} at {commit()}: {self.broken}\n"
            f"  with {faults}\n"
            f"  in DAGs of {', '.join(map(str, self.tasks))} tasks\n"
            f"  python -m tests.sim --replay '{self.recipe.encoded()}' --trace"
        )


def commit() -> str:
    """Return the commit of the tree, with a mark if the tree has uncommitted changes."""
    command = ["git", "describe", "--always", "--dirty=+"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "a tree of no commit"


def replay(recipe: Recipe, trace: Callable[[str], None] | None = None) -> Verdict:
    """Run a seed as described by a recipe."""
    left_out = frozenset[Fault]() if recipe.faults is None else AllBut(map(_pair, recipe.faults))
    storm = STORMS[recipe.level] if recipe.storm is None else recipe.storm
    dropped = tuple(map(_pair, recipe.dropped))
    if recipe.level == 1:
        with patch.object(model, "STORMY_TURNS", storm):
            return model.play(recipe.seed, left_out, dropped, trace)
    play = loop_model.play if recipe.level == 2 else cluster.play
    return play(recipe.seed, left_out, dropped, trace, storm)


def _pair(pair: Iterable[Any]) -> Any:
    return tuple(pair)


def shrink(
    verdict: Verdict,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    level: int = 1,
) -> Minimal:
    """Shrink a broken seed for at most ``seconds``."""
    assert verdict.broken is not None
    search = _Search(verdict, level, clock() + seconds, clock)
    search.run()
    best = search.best
    recipe = msgspec.structs.replace(search.recipe, faults=tuple(best.faults))
    return Minimal(verdict.seed, best.broken or "", best.faults, recipe, _sizes(recipe))


class _Search:
    """Tries recipes and keeps the smallest that still breaks."""

    def __init__(
        self, verdict: Verdict, level: int, until: float, clock: Callable[[], float]
    ) -> None:
        self.best = verdict
        self.recipe = Recipe(level, verdict.seed)
        self._name = (verdict.broken or "").partition(":")[0]
        self._until = until
        self._clock = clock

    def run(self) -> None:
        """Repeat until nothing more can be left out, or the time is up."""
        left = None
        while left != (left := self._weight()) and self._is_time():
            self._shorten()
            self._leave_out()
            self._drop_tasks()

    def _weight(self) -> tuple[int, int, int]:
        recipe = self.recipe
        return len(self.best.faults), -len(recipe.dropped), recipe.storm or STORMS[recipe.level]

    def _is_time(self) -> bool:
        return self._clock() < self._until

    def _still(self, **changed: Any) -> bool:
        """Return whether the seed still breaks with this change. If so, adopt the change."""
        recipe = msgspec.structs.replace(self.recipe, **changed)
        again = replay(recipe)
        if again.broken is None or again.broken.partition(":")[0] != self._name:
            return False
        self.best, self.recipe = again, recipe
        return True

    def _shorten(self) -> None:
        """Halve the period with faults as long as the seed still breaks."""
        storm = self.recipe.storm or STORMS[self.recipe.level]
        while storm > 1 and self._is_time() and self._still(storm=storm // 2):
            storm //= 2

    def _leave_out(self) -> None:
        chunks = 2
        while (faults := self.best.faults) and self._is_time():
            size = max(1, len(faults) // chunks)
            if self._one_less(faults, size):
                chunks = max(2, chunks - 1)
            elif size == 1:
                return
            else:
                chunks *= 2

    def _one_less(self, faults: Sequence[Fault], size: int) -> bool:
        """Leave out one chunk. Late faults are tried first, because they have the least effect."""
        for at in reversed(range(0, len(faults), size)):
            retained = (*faults[:at], *faults[at + size :])
            if not self._is_time():
                return False
            if self._still(faults=retained):
                return True
        return False

    def _drop_tasks(self) -> None:
        """Drop tasks: the last ones of each DAG first, many at once while the seed breaks."""
        for number, size in enumerate(_sizes(self.recipe)):
            end, count = size, max(1, size // 2)
            while end > 1 and self._is_time():
                first = max(1, end - count)
                gone = tuple((number, task_index) for task_index in reversed(range(first, end)))
                if self._still(dropped=(*self.recipe.dropped, *gone)):
                    end = first
                elif count > 1:
                    count //= 2
                else:
                    end -= 1


def _sizes(recipe: Recipe) -> tuple[int, ...]:
    make = partial(model.dags_of if recipe.level == 1 else loop_model.dags_of, recipe.seed)
    dags = make()
    for number, task_index in recipe.dropped:
        dags[number] = without(dags[number], task_index)
    return tuple(len(spec.tasks) for spec in dags)
