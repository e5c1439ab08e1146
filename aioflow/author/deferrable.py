"""Whether operators that can defer do so where their author does not say.

What the daemon was told, `[operators] default_deferrable`; every child is told it first of all.
"""

from __future__ import annotations

__all__ = ("default_deferrable", "set_default_deferrable")

_default = False


def default_deferrable() -> bool:
    """Return what an operator's ``deferrable=None`` stands for, as this daemon is set.

    While a task is written and where it runs; false outside of a daemon's children.
    """
    return _default


def set_default_deferrable(*, value: bool) -> None:
    """Tell this process what its daemon is set to."""
    global _default  # noqa: PLW0603 - one setting of a process, set once before any user code
    _default = value
