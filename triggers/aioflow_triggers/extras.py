"""What of the catalogue needs a package that aioflow itself does not."""

from __future__ import annotations

import functools
import importlib.util

from aioflow import DagError

__all__ = ("require",)


def require(owner: str, module: str, extra: str) -> None:
    """Say where it is written that a trigger cannot work here.

    Args:
        owner: Who needs it.
        module: What it imports.
        extra: What of aioflow brings it.

    Raises:
        DagError: If the module is not installed.
    """
    if not _is_there(module):
        raise DagError(f"{owner} needs {module}: pip install 'aioflow-engine[{extra}]'")


@functools.cache
def _is_there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
