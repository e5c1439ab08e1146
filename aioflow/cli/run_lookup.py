"""Lookup of a run by its id or by a unique prefix of it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import wraps

from aioflow.cli.client import Refused
from aioflow.cli.output import hint, safe
from aioflow.cli.queries import Source, read
from aioflow.errors import AioflowError, RequestError, UnknownRun

__all__ = ("named_run",)

_LOOKED_AT = 1_000
_NAMED = 5
_LEAST = 3
"""Characters of a prefix: a shorter one is probably a typing error."""

Command = Callable[[argparse.Namespace], int]


def named_run(command: Command) -> Command:
    """Let a command accept a unique prefix of a run id.

    If the command fails because the run is unknown, it is called again with the full id. It must
    fail so before it has changed or printed anything. Only the newest 1,000 runs are searched.
    """

    @wraps(command)
    def called(arguments: argparse.Namespace) -> int:
        try:
            return command(arguments)
        except AioflowError as exc:
            whole = _whole_id(arguments) if _is_unknown(exc) else None
            if whole is None:
                raise
        hint(f"run {safe(whole)}")
        arguments.run_id = whole
        return command(arguments)

    return called


def _is_unknown(error: AioflowError) -> bool:
    code = error.told_code if isinstance(error, Refused) else error.code
    return code == UnknownRun.code


def _whole_id(arguments: argparse.Namespace) -> str | None:
    """Return the id of the only run whose id has this prefix, or ``None``.

    Raises:
        RequestError: If there are several.
    """
    begin = str(arguments.run_id)
    if len(begin) < _LEAST:
        return None

    def listed(source: Source) -> list[str]:
        runs = source.runs(dag=None, state=None, limit=_LOOKED_AT)
        return [run["run_id"] for run in runs if run["run_id"].startswith(begin)]

    found: list[str] = read(arguments, listed)
    if len(found) > 1:
        named = ", ".join(found[:_NAMED])
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        raise RequestError(f"several runs begin with {begin!r}: {named}{more}; give more of the id")
    return found[0] if found else None
