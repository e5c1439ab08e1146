"""Resolves the annotations of user code to types, as far as possible."""

from __future__ import annotations

import sys
from typing import Any, get_type_hints

__all__ = ("hints",)


def hints(owner: Any) -> dict[str, Any]:
    """Return the resolved annotations of a function or class.

    A name that cannot be resolved (imported for type checkers only, or local to a function)
    leaves its parameter unannotated: its values are then passed as they were decoded.
    """
    try:
        return get_type_hints(owner)
    except (NameError, AttributeError, TypeError, SyntaxError):
        return _one_by_one(owner)


def _one_by_one(owner: Any) -> dict[str, Any]:
    classes = reversed(owner.__mro__) if isinstance(owner, type) else [owner]
    found: dict[str, Any] = {}
    for holder in classes:
        names = dict(vars(sys.modules.get(holder.__module__, sys)))
        names |= getattr(holder, "__globals__", {})
        for name, annotation in getattr(holder, "__annotations__", {}).items():
            resolved = _resolved(annotation, names)
            if resolved is not None:
                found[name] = resolved
    return found


def _resolved(annotation: Any, names: dict[str, Any]) -> Any:
    def probe() -> None: ...

    probe.__annotations__ = {"it": annotation}
    try:
        return get_type_hints(probe, globalns=names)["it"]
    except (NameError, AttributeError, TypeError, SyntaxError):
        return None
