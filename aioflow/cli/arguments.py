"""What the commands' arguments have in common."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeAlias

__all__ = (
    "Command",
    "Nouns",
    "add_command",
    "add_group",
    "conf",
    "from_zero",
    "index",
    "json_value",
    "moment",
    "parsed_json",
    "positive",
    "seconds",
)

_DAY_SECONDS = 86_400.0

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
    parser = _add(nouns, name, text, example)
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


def add_group(nouns: Nouns, name: str, *, text: str, example: str) -> Nouns:
    """Declare a noun, and return where its commands belong; ``example`` is one of these."""
    return _add(nouns, name, text, example).add_subparsers(required=True, metavar="COMMAND")


def _add(nouns: Nouns, name: str, text: str, example: str) -> argparse.ArgumentParser:
    return nouns.add_parser(
        name,
        help=text,
        description=f"{text[:1].upper()}{text[1:]}.",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


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
        return parsed_json(text)
    except (ValueError, RecursionError) as exc:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is no JSON: {exc}") from exc


def parsed_json(text: str) -> Any:
    """Return what a piece of JSON says; ``NaN`` and the infinities are no JSON.

    Raises:
        ValueError: If it is none.
        RecursionError: If it is too deep.
    """
    return json.loads(text, parse_constant=_no_number)


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number")


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


def index(text: str) -> int:
    """Return a map index, -1 for what is not mapped."""
    return _at_least(text, -1)


def from_zero(text: str) -> int:
    """Return a number that is not negative."""
    return _at_least(text, 0)


def positive(text: str) -> int:
    """Return a number of at least 1."""
    return _at_least(text, 1)


def seconds(text: str, least: float = 0.0) -> float:
    """Return a length of time, of a day at most."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not least <= found <= _DAY_SECONDS:
        raise argparse.ArgumentTypeError(
            f"{text[:80]!r} is no time between {least:g} and {_DAY_SECONDS:g} seconds"
        )
    return found


def _at_least(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is no whole number") from None
    if number < least:
        raise argparse.ArgumentTypeError(f"{number} is less than {least}")
    return number
