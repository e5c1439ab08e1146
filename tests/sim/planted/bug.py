"""The description of a planted bug."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from types import CodeType

from tests.sim.planted.edit import DoesNotApply, Edit

__all__ = ("PlantedBug", "Seed")


@dataclass(frozen=True)
class Seed:
    """A seed of the simulator that breaks over the bug."""

    level: int
    number: int


@dataclass(frozen=True)
class PlantedBug:
    """A bug that breaks one promise, and its catchers.

    Attributes:
        name: How it is selected; unique.
        broken: The wrong behaviour.
        promise: The broken promise, with the law of the architecture if there is one.
        where: What has to run for the bug to exist: ``core`` is ``decide()`` over any store,
            ``engine`` the engine with its timers over any store, ``store`` our own stores,
            ``host`` the child processes and the daemon's books of them.
        needs: The condition under which it shows.
        edits: Its changes of the code.
        seen_by: An ordinary test that fails over it, as pytest names it; ``None`` if no test of
            one function or module does.
        seed: A seed that is known to break over it, tried before others are drawn. With neither
            a test nor a seed, random seeds must notice it.
    """

    name: str
    broken: str
    promise: str
    where: str
    needs: str
    edits: tuple[Edit, ...]
    seen_by: str | None = None
    seed: Seed | None = None

    @property
    def modules(self) -> frozenset[str]:
        """Return the modules it changes."""
        return frozenset(edit.module for edit in self.edits)

    def compile(self, module: str, source: bytes | str, path: str) -> CodeType:
        """Return the code of a module with the bug in it.

        Raises:
            DoesNotApply: If an edit does not fit the source, or changes nothing.
        """
        tree = ast.parse(source, path)
        before = ast.dump(tree)
        for edit in self.edits:
            if edit.module == module:
                edit.apply(tree)
        if ast.dump(tree) == before:
            raise DoesNotApply(f"{self.name} changes nothing in {module}")
        code: CodeType = compile(tree, path, "exec")
        return code
