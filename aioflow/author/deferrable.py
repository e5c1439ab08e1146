"""Whether operators that can defer do so where their author does not say.

What the daemon was told, `[operators] default_deferrable`; every child is told it first of all.
"""

from __future__ import annotations

__all__ = ("default_deferrable", "set_default_deferrable")

_default: bool | None = None


def default_deferrable(*, unless_set: bool = False) -> bool:
    """Return what an operator's ``deferrable=None`` stands for, as this daemon is set.

    While a task is written and where it runs.

    Args:
        unless_set: What it stands for where the setting does not say, as outside of a daemon's
            children. The ready sensors defer then.
    """
    return unless_set if _default is None else _default


def set_default_deferrable(*, value: bool | None) -> None:
    """Tell this process what its daemon is set to; ``None`` where it is not."""
    global _default  # noqa: PLW0603 - one setting of a process, set once before any user code
    _default = value
