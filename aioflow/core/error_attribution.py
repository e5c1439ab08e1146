"""Attribution of a failed turn to a run, by the traceback of its exception.

A turn that concerns all runs processes them one after the other. So the innermost frame that refers
to a run was processing that run.
"""

from __future__ import annotations

from types import TracebackType
from typing import TypeAlias

from aioflow.core.state.dag_triggers import DagTrigger
from aioflow.core.state.task_instance import MappedTask, Run, TaskInstance, TriggerInstance

__all__ = ("Culprit", "culprits")

Culprit: TypeAlias = Run | DagTrigger


def culprits(exc: BaseException | None) -> list[Culprit]:
    """Return the run or trigger that an exception concerns, or all that its frame refers to."""
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
