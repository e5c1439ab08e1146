"""Work in short steps, between which a shared event loop can run other tasks."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

__all__ = ("Steps", "at_once", "start_steps")

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""Yields after each step, and returns the result of the work."""

_FIRST_STEPS = 100
"""A few milliseconds of work."""


def at_once(steps: Steps[T]) -> T:
    """Run all steps and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            value: T = done.value
            return value


def start_steps(steps: Steps[T]) -> Steps[T]:
    """Run the first steps now and return the remaining ones. Only large values have any left."""
    for _ in range(_FIRST_STEPS):
        try:
            next(steps)
        except StopIteration as done:
            return _done(done.value)
    return steps


def _done(value: T) -> Steps[T]:
    yield from ()
    return value
