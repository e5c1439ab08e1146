"""Work in short steps: an event loop that others share may do something else between them."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

__all__ = ("Steps", "at_once", "begun")

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""Yields after each step, and returns what the work came to."""

_FIRST_STEPS = 100
"""Some milliseconds of them."""


def at_once(steps: Steps[T]) -> T:
    """Do the work of all steps; return what it came to."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            value: T = done.value
            return value


def begun(steps: Steps[T]) -> Steps[T]:
    """Do the first steps now, which is all but for large values; return the others."""
    for _ in range(_FIRST_STEPS):
        try:
            next(steps)
        except StopIteration as done:
            return _done(done.value)
    return steps


def _done(value: T) -> Steps[T]:
    yield from ()
    return value
