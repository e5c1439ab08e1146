"""Checks for optional packages that parts of the catalogue require."""

from __future__ import annotations

import functools
import importlib.util

from aioflow import DagError

__all__ = ("require",)


def require(owner: str, module: str, extra: str) -> None:
    """Check that a required package is installed, so that the error is raised in the DAG file.

    Args:
        owner: The class that requires it.
        module: The required module.
        extra: The extra of aioflow that installs it.

    Raises:
        DagError: If the module is not installed.
    """
    if not _is_there(module):
        raise DagError(f"{owner} needs {module}: pip install 'aioflow-engine[{extra}]'")


@functools.cache
def _is_there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
