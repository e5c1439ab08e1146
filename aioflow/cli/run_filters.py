"""Options that select runs, for commands on many runs."""

from __future__ import annotations

import argparse
from typing import Any

__all__ = ("add_filters", "run_query")

_STATES = ("queued", "running", "success", "failed", "partial", "cancelled")
_CAUSES = ("manual", "schedule", "backfill", "event", "task")
_PROPERTIES = ("dag", "tag", "cause", "from", "to", "search", "prefix", "params")


def add_filters(parser: argparse.ArgumentParser, *, state: str = "--state") -> None:
    """Declare the options of a filter. If an option is repeated, a run must match any one value.

    Args:
        state: The option for the state of the runs.
    """
    group = parser.add_argument_group("which runs", "runs that match all of these; default all")
    group.add_argument("--dag", action="append", metavar="DAG", help="may be repeated")
    group.add_argument("--tag", action="append", metavar="TAG", help="of the DAG; may be repeated")
    group.add_argument(
        state,
        dest="in_state",
        action="append",
        choices=_STATES,
        metavar="STATE",
        help=f"{', '.join(_STATES)}; may be repeated",
    )
    group.add_argument(
        "--cause",
        action="append",
        choices=_CAUSES,
        metavar="CAUSE",
        help=f"{', '.join(_CAUSES)}; may be repeated",
    )
    group.add_argument("--from", metavar="T", help="created at this time or later")
    group.add_argument("--to", metavar="T", help="created before this time")
    group.add_argument("--search", metavar="TEXT", help="a part of the id of the run or its DAG")
    group.add_argument("--prefix", metavar="TEXT", help="the beginning of the id of the run")
    group.add_argument(
        "--params", metavar="TEXT", help="a part of a name or a text among its parameters"
    )


def run_query(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the given options as the query of an HTTP request."""
    given = {name: getattr(arguments, name, None) for name in _PROPERTIES}
    given["state"] = arguments.in_state
    return {name: value for name, value in given.items() if value}
