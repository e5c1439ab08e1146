"""``airflow.sdk.definitions._internal.types``."""

from __future__ import annotations

__all__ = ("NOTSET", "ArgNotSet", "is_arg_set")


class ArgNotSet:
    """The type of ``NOTSET``."""


NOTSET = ArgNotSet()
"""Represents an argument that was not given, where ``None`` has a meaning."""


def is_arg_set(value: object) -> bool:
    """Return whether an argument was given."""
    return not isinstance(value, ArgNotSet)
