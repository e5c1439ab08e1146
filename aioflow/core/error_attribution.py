"""Which run a turn has failed on, as the traceback of its exception tells.

What a turn does with all runs it does with one after the other: the innermost frame that knows
a run has been at work on it.
"""

from __future__ import annotations

from types import TracebackType
from typing import TypeAlias

from aioflow.core.state.dag_triggers import DagTrigger
from aioflow.core.state.task_instance import MappedTask, Run, TaskInstance, TriggerInstance

__all__ = ("Culprit", "culprits")

Culprit: TypeAlias = Run | DagTrigger


def culprits(exc: BaseException | None) -> list[Culprit]:
    """Return what an exception was raised about: one, or those its frame has at hand."""
    frames = [] if exc is None else list(_locals(exc.__traceback__))
    for known in reversed(frames):
        found: dict[int, Culprit] = {}
        for value in known.values():
            one = _about(value)
            if one is not None:
                found[id(one)] = one
        if found:
            return list(found.values())
    return []


def _locals(traceback: TracebackType | None) -> list[dict[str, object]]:
    frames = []
    while traceback is not None:
        frames.append(traceback.tb_frame.f_locals)
        traceback = traceback.tb_next
    return frames


def _about(value: object) -> Culprit | None:
    match value:
        case Run() | DagTrigger():
            return value
        case TaskInstance() | MappedTask() | TriggerInstance():
            return value.run
        case _:
            return None
