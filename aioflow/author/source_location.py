"""Source locations in the author's files, for error messages."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import msgspec

from aioflow.errors import DagError, ReferenceMisused

__all__ = ("SourceLocation", "dag_error", "here", "importing", "is_being_read", "misused")

# Generated code, such as the __init__ of a dataclass, has no file.
_OURS = (str(Path(__file__).parent), "<string>")


class SourceLocation(msgspec.Struct, frozen=True):
    """A line of a file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def here() -> SourceLocation:
    """Return the innermost line outside of this package in the call stack."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    if frame is None:
        return SourceLocation("<unknown>", 0)
    return SourceLocation(frame.f_code.co_filename, frame.f_lineno)


def importing() -> SourceLocation | None:
    """Return the line of the innermost module that is being imported, if any.

    A DAG belongs to the file that calls a factory, not to the one that defines the factory.
    """
    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_back
        is_import = caller is not None and caller.f_code.co_filename.startswith("<frozen importlib")
        if is_import and frame.f_code.co_name == "<module>":
            return SourceLocation(frame.f_code.co_filename, frame.f_lineno)
        frame = caller
    return None


def is_being_read(file: str) -> bool:
    """Return whether the top level of a file, or of a module it imports, is being executed.

    ``False`` if a function of the file, such as a test, is called after the import.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename == file:
            return True
        frame = frame.f_back
    return importing() is not None


def dag_error(message: str) -> DagError:
    """Return an error that includes the author's line."""
    return DagError(f"{message} ({here()})")


def misused(name: str, operation: str) -> ReferenceMisused:
    """Return the error for a reference that is used as if it were the value it refers to."""
    return ReferenceMisused(name, operation, where=str(here()))


def function_location(fn: Any) -> SourceLocation:
    """Return where a function starts, including its decorators."""
    code = fn.__code__
    return SourceLocation(code.co_filename, code.co_firstlineno)
