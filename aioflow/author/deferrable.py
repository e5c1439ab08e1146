"""The default for ``deferrable`` of operators that can defer.

It comes from the daemon's setting `[operators] default_deferrable`, which is the first thing a
worker process receives.
"""

from __future__ import annotations

__all__ = ("default_deferrable", "set_default_deferrable")

_default: bool | None = None


def default_deferrable(*, unless_set: bool = False) -> bool:
    """Return the meaning of an operator's ``deferrable=None`` under this daemon's settings.

    The same both while the DAG file is imported and when the task runs.

    Args:
        unless_set: The value if the setting is missing, as outside of a daemon's processes.
            The built-in sensors defer then.
    """
    return unless_set if _default is None else _default


def set_default_deferrable(*, value: bool | None) -> None:
    """Set the daemon's setting in this process; ``None`` if it has none."""
    global _default  # noqa: PLW0603 - one setting of a process, set once before any user code
    _default = value
