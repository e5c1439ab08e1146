"""The description of a planted bug."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from types import CodeType

from tests.sim.planted.edit import DoesNotApply, Edit

__all__ = ("PlantedBug", "Seed")


@dataclass(frozen=True)
class Seed:
    """A seed of the simulator that a planted bug is known to break."""

    level: int
    number: int


@dataclass(frozen=True)
class PlantedBug:
    """A bug that breaks one promise, and its catchers.

    Attributes:
        name: The unique name by which it is selected.
        broken: The wrong behaviour.
        promise: The broken promise, with the law of the architecture if there is one.
        where: What has to run for the bug to exist: ``core`` is ``decide()`` over any store,
            ``engine`` the engine with its timers over any store, ``store`` our own stores, ``host``
            the child processes and the daemon's records of them.
        needs: The condition under which the bug shows.
        edits: The changes to the code.
        seen_by: An ordinary test that fails because of the bug, as a pytest id; ``None`` if no test
            of a single function or module does.
        seed: A seed that is known to break. It is tried before other seeds are drawn. A bug with
            neither a test nor a seed must be noticed by random seeds.
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
        """The modules that the bug changes."""
        return frozenset(edit.module for edit in self.edits)

    def compile(self, module: str, source: bytes | str, path: str) -> CodeType:
        """Compile a module with the bug in it.

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
