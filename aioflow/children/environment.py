"""What a child may see of the daemon's environment."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ("MARK", "NAMES_ALLOWED", "child_environment")

MARK = "AIOFLOW_CHILD_OF"
"""Carried by every child and inherited by whatever it starts: ``<home id>:<nonce>``."""

NAMES_ALLOWED = "AIOFLOW_CHILD_ENV"
"""Names the user lets pass besides ours, separated by commas."""

_OURS = "AIOFLOW_"
_NAMES = frozenset({"HOME", "LANG", "LANGUAGE", "PATH", "TMPDIR", "TZ", "VIRTUAL_ENV"})
_PREFIXES = ("LC_", "PYTHON")


def child_environment(source: Mapping[str, str]) -> dict[str, str]:
    """Return what of ``source`` a child is given.

    Nothing of the daemon's own settings passes, not even if the user names it: database
    URLs, keys and tokens live there.
    """
    more = {name.strip() for name in source.get(NAMES_ALLOWED, "").split(",")}
    return {
        name: value
        for name, value in source.items()
        if not name.startswith(_OURS)
        and (name in _NAMES or name in more or name.startswith(_PREFIXES))
    }
