"""What the commands' arguments have in common."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeAlias

__all__ = (
    "Command",
    "Nouns",
    "add_command",
    "conf",
    "from_zero",
    "json_value",
    "moment",
    "positive",
)

Nouns: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001
Command: TypeAlias = Callable[[argparse.Namespace], int]


def add_command(
    nouns: Nouns, name: str, run: Command, *, text: str, example: str, remote: bool = True
) -> argparse.ArgumentParser:
    """Declare a command with what every one has.

    Args:
        nouns: Where it belongs.
        name: The word.
        run: Does it and returns the exit status.
        text: What it does, in one line.
        example: How it is used.
        remote: Whether it speaks to a daemon, which may be on another machine.
    """
    parser = nouns.add_parser(
        name,
        help=text,
        description=f"{text[:1].upper()}{text[1:]}.",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print JSON for machines")
    parser.add_argument(
        "--home", metavar="DIR", help="home of the daemon (AIOFLOW_HOME, default ~/.aioflow)"
    )
    if remote:
        parser.add_argument(
            "--url", metavar="URL", help="a remote daemon instead; its token in AIOFLOW_TOKEN"
        )
    parser.set_defaults(run=run)
    return parser


def conf(text: str) -> dict[str, Any]:
    """Return the conf of a run, a JSON object.

    Raises:
        argparse.ArgumentTypeError: If it is anything else.
    """
    value = json_value(text)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError('a conf is a JSON object, such as {"day": "2026-01-31"}')
    return value


def json_value(text: str) -> Any:
    """Return what a piece of JSON says.

    Raises:
        argparse.ArgumentTypeError: If it is none.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is no JSON: {exc}") from exc


def moment(text: str) -> str:
    """Return a text that names an instant, as it is.

    Raises:
        argparse.ArgumentTypeError: If it names none.
    """
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text[:80]!r} is no time; write it as 2026-01-31T03:00:00Z"
        ) from None
    return text


def from_zero(text: str) -> int:
    """Return a number that is not negative."""
    return _at_least(text, 0)


def positive(text: str) -> int:
    """Return a number of at least 1."""
    return _at_least(text, 1)


def _at_least(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is no whole number") from None
    if number < least:
        raise argparse.ArgumentTypeError(f"{number} is less than {least}")
    return number
