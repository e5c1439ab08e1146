"""DAG code that is already loaded in this process, and replacements for task functions."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Collection
from typing import Any

from aioflow.author.dag import DAG
from aioflow.author.node import Node
from aioflow.author.ref import Linked
from aioflow.author.task import TaskFunction
from aioflow.model.dag import Body
from aioflow.worker.code.loader import Code, CodeCache

__all__ = ("LoadedCodeCache", "Replaceable", "Understudies")

Replaceable = TaskFunction[Any, Any] | Linked | str
"""Identifies a task: its function, a reference to it, or its id."""


class _LoadedCode(Code):
    """The code of one DAG that is in memory."""

    def __init__(self, dag: DAG) -> None:
        self._dag = dag

    def dag(self, file: str, dag_id: str) -> DAG:
        """See ``Code``."""
        return self._dag

    def find_class(self, class_path: str) -> Any:
        """See ``Code``. A module that is loaded already is not loaded again."""
        module, _, qualname = class_path.partition(":")
        found: Any = sys.modules.get(module) or importlib.import_module(module)
        for name in qualname.split("."):
            found = getattr(found, name)
        return found


class LoadedCodeCache(CodeCache):
    """A code cache that gives all hosts the same objects: there is no process boundary."""

    def __init__(self) -> None:
        self._ours: dict[str, Code] = {}

    def put(self, version: str, dag: DAG) -> None:
        """Add a DAG."""
        self._ours[version] = _LoadedCode(dag)

    def version(self, version: str) -> Code:
        """See ``CodeCache``."""
        return self._ours[version]

    def unload_unused(self, in_use: Callable[[], Collection[str]]) -> list[str]:
        """See ``CodeCache``."""
        return []


class Understudies:
    """Replacements for the functions of tasks, until ``leave`` restores the originals."""

    def __init__(self) -> None:
        self._wanted: list[tuple[Replaceable, Callable[..., Any]]] = []
        self._replaced: dict[int, tuple[Node, Callable[..., Any] | None]] = {}
        self._dags: list[DAG] = []

    def enter(self, dag: DAG) -> None:
        """Apply all replacements to this DAG, including those that are added later."""
        self._dags.append(dag)
        for task, fn in self._wanted:
            self._replace_in(dag, task, fn)

    def replace(self, task: Replaceable, fn: Callable[..., Any]) -> None:
        """Run ``fn`` instead of a task's own function, in every DAG that uses the task."""
        self._wanted.append((task, fn))
        for dag in self._dags:
            self._replace_in(dag, task, fn)

    def unknown(self) -> str | None:
        """Return an error about a replaced task id that no DAG has.

        Return ``None`` if there is no such id, or if no DAG has been added.
        """
        if not self._dags:
            return None
        known = {node.task_id for dag in self._dags for node in dag.nodes}
        for task, _ in self._wanted:
            if isinstance(task, str) and task not in known:
                close = difflib.get_close_matches(task, known, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                dags = ", ".join(sorted({dag.dag_id for dag in self._dags}))
                return f"sim.replace({task!r}, ...): there is no such task in {dags}{hint}"
        return None

    def leave(self) -> None:
        """Restore the original functions of all tasks."""
        for node, fn in self._replaced.values():
            node.fn = fn
        self._replaced.clear()
        self._wanted.clear()

    def _replace_in(self, dag: DAG, task: Replaceable, fn: Callable[..., Any]) -> None:
        for node in dag.nodes:
            if self._is(task, node):
                self._replaced.setdefault(id(node), (node, node.fn))
                _ = node.annotations  # cache the annotations of the original function
                node.fn = _checked(node, fn)

    def _is(self, task: Replaceable, node: Node) -> bool:
        match task:
            case str():
                return node.task_id == task
            case TaskFunction():
                own = self._replaced.get(id(node), (node, node.fn))[1]
                return own is task.fn
            case _:
                return task.node is node


def _checked(node: Node, fn: Callable[..., Any]) -> Callable[..., Any]:
    if node.body is Body.FUNCTION and inspect.iscoroutinefunction(fn):
        raise TypeError(f"{node.task_id!r} is no `async def`: replace it by a `def` or a lambda")
    parameters = inspect.signature(fn).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return fn
    names = {parameter.name for parameter in parameters}

    @functools.wraps(fn)
    def with_what_it_takes(**arguments: Any) -> Any:
        return fn(**{name: value for name, value in arguments.items() if name in names})

    return with_what_it_takes
