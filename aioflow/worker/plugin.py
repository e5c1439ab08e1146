"""Inspects a plug-in: imports its entry point and lists the triggers found."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator

from aioflow.author.trigger import Trigger, class_path
from aioflow.protocol.parse_results import DagFailure, Inspected, TriggerKind
from aioflow.worker.failures import failure_of, print_traceback

__all__ = ("inspect_plugin",)


def inspect_plugin(entry_point: str) -> Inspected:
    """Import a plug-in and return its triggers, or the failure.

    Args:
        entry_point: ``module``, for all trigger classes it names; or ``module:Class``.
    """
    module, _, name = entry_point.partition(":")
    try:
        found: object = importlib.import_module(module)
        for part in name.split(".") if name else ():
            found = getattr(found, part)
        classes = [found] if isinstance(found, type) else list(vars(found).values())
        kinds = tuple(_kinds(classes, module.partition(".")[0]))
    except BaseException as exc:  # noqa: BLE001 - a plug-in may raise anything
        print_traceback(exc)
        reason = "exit" if isinstance(exc, SystemExit) else "import_error"
        return Inspected((), DagFailure(reason, f"{type(exc).__name__}: {failure_of(exc).message}"))
    return Inspected(kinds)


def _kinds(found: list[object], package: str) -> Iterator[TriggerKind]:
    """Yield the public triggers defined in the plug-in's own package, not those it only imports."""
    for cls in found:
        if not (isinstance(cls, type) and issubclass(cls, Trigger)):
            continue
        if cls.__module__.partition(".")[0] == package and not cls.__name__.startswith("_"):
            summary = (inspect.getdoc(cls) or "").partition("\n")[0]
            # A dataclass without a docstring gets its signature as one.
            has_own = "__doc__" in vars(cls) and not summary.startswith(f"{cls.__name__}(")
            public = tuple(map(str, cls.public_fields))
            yield TriggerKind(class_path(cls), summary if has_own else "", public)
