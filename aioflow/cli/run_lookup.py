"""Which run is meant: by its id, or by how that begins where no other's does."""

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
"""Characters of the beginning of an id: fewer are a slip."""

Command = Callable[[argparse.Namespace], int]


def named_run(command: Command) -> Command:
    """Have a command take the beginning of an id, too, where it can mean one run only.

    It is asked again with the whole id after it was told that there is no such run, which it must
    be before it has done or printed anything. The newest 1,000 runs are looked at.
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
    """Return the id of the one run whose id begins so.

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
