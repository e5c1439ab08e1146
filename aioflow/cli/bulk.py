"""Actions on all runs that match a filter: a preview, a confirmation, then slice after slice."""

from __future__ import annotations

import argparse
import secrets
import sys
from typing import Any

from aioflow.cli.client import Client, connect
from aioflow.cli.output import hint, print_json, safe
from aioflow.cli.run_filters import add_filters, run_query
from aioflow.errors import SettingsError

__all__ = ("act_on_matching", "add_bulk", "is_bulk")

_DONE = {
    "cancel": "cancelled",
    "clear_failed": "cleared",
    "mark_success": "marked success",
    "mark_failed": "marked failed",
    "delete": "deleted",
}
_VERBS = {
    "cancel": "cancel",
    "clear_failed": "clear what failed of",
    "mark_success": "mark success",
    "mark_failed": "mark failed",
    "delete": "delete",
}


def add_bulk(parser: argparse.ArgumentParser, *, state: str = "--state") -> None:
    """Let a command act on one run, or on all runs that match a filter.

    Args:
        state: The option for the state of the runs.
    """
    parser.add_argument("run_id", nargs="?", metavar="RUN", help="one run; else give a filter")
    add_filters(parser, state=state)
    parser.add_argument("--yes", action="store_true", help="do not ask for a confirmation")


def is_bulk(arguments: argparse.Namespace) -> bool:
    """Return whether a filter selects the runs.

    Raises:
        SettingsError: If there is neither a run nor a filter, or both.
    """
    query = run_query(arguments)
    if bool(query) == (arguments.run_id is not None):
        raise SettingsError("give the id of one run, or a filter such as --dag DAG --state running")
    return bool(query)


def act_on_matching(arguments: argparse.Namespace, action: str) -> int:
    """Preview the action, ask for a confirmation, and act on one slice after another."""
    client, query = connect(arguments), run_query(arguments)
    expected = client.act("run-actions", action, query={**query, "dry_run": "true"})
    count = sum(expected["states"].values())
    if count and not arguments.yes and not _is_confirmed(action, expected):
        hint("nothing was changed")
        return 1
    total = _act(client, action, query, count) if count else _nothing(action)
    if arguments.json:
        print_json(total)
    else:
        print(f"{total['done']} of {expected['matching']} matching runs {_DONE[action]}")
        for error in total["errors"]:
            hint(f"{safe(error['run_id'])}: {safe(error['detail'])}")
        if total["failed"]:
            hint(f"{total['failed']} runs could not be changed")
    return 1 if total["failed"] else 0


def _nothing(action: str) -> dict[str, Any]:
    return {"action": action, "done": 0, "failed": 0, "errors": []}


def _is_confirmed(action: str, expected: dict[str, Any]) -> bool:
    """Show what would be changed, and ask for a confirmation.

    Raises:
        SettingsError: If there is no terminal on which to ask.
    """
    states = ", ".join(f"{count} {state}" for state, count in expected["states"].items())
    count = sum(expected["states"].values())
    question = f"{_VERBS[action]} {count} of {expected['matching']} matching runs ({states})?"
    if not sys.stdin.isatty():
        raise SettingsError(f"{question} Confirm with --yes")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _act(client: Client, action: str, query: dict[str, Any], count: int) -> dict[str, Any]:
    total = _nothing(action)
    key, cursor = secrets.token_hex(16), None
    while True:
        answer = client.act("run-actions", action, query={**query, "cursor": cursor}, key=key)
        total["done"] += answer["done"]
        total["failed"] += answer["failed"]
        total["errors"] = (total["errors"] + answer["errors"])[:10]
        cursor = answer["next"]
        if cursor is None:
            return total
        hint(f"{total['done'] + total['failed']} of {count}")
