"""Names of environment variables that the daemon withholds from its children."""

from __future__ import annotations

import os
from types import FrameType, TracebackType

__all__ = ("WITHHELD", "last_frame", "take_names", "withheld_variable_hint")

WITHHELD = "AIOFLOW_CHILD_WITHHELD"
"""The variable in which the daemon passes the names of withheld variables, without their values."""

_WHERE = ("<frozen os>", "/os.py")

_names: frozenset[str] = frozenset()


def take_names() -> None:
    """Move the names from the environment into this module, before user code runs."""
    global _names  # noqa: PLW0603 - state of the process, like the environment
    _names = frozenset(os.environ.pop(WITHHELD, "").split(",")) - {""}


def withheld_variable_hint(problem: BaseException) -> str:
    """Return how to pass on a withheld variable if its lookup raised ``problem``; else empty."""
    if not isinstance(problem, KeyError) or not _names or len(problem.args) != 1:
        return ""
    name = problem.args[0]
    if not isinstance(name, str) or name not in _names or not _is_lookup(problem.__traceback__):
        return ""
    return (
        "; the daemon has this variable and does not let its children see it: "
        f'to let it through, set env = ["{name}"] under [children] in aioflow.toml'
    )


def _is_lookup(trace: TracebackType | None) -> bool:
    """Return whether the exception was raised by ``os.environ``."""
    frame = last_frame(trace)
    return frame is not None and frame.f_code.co_filename.endswith(_WHERE)


def last_frame(trace: TracebackType | None) -> FrameType | None:
    """Return the frame in which an exception was raised."""
    frame = None
    while trace is not None:
        frame, trace = trace.tb_frame, trace.tb_next
    return frame
