"""Arguments that several commands share, and ``aioflow completion`` for shells."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from datetime import datetime
from typing import Any, Literal, TypeAlias

__all__ = (
    "Command",
    "Nouns",
    "add_command",
    "add_completion",
    "add_group",
    "complete_paths",
    "completion_script",
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
    """Declare a command with the options that every command has.

    Args:
        nouns: The group to which the command is added.
        name: The word for the command within its group.
        run: Runs the command and returns the exit status.
        text: The help text, one line.
        example: An example call.
        remote: Whether the command talks to a daemon, which may run on another machine.
    """
    parser = _add(nouns, name, text, example)
    parser.add_argument("--json", action="store_true", help="print JSON for machines")
    home = parser.add_argument(
        "--home", metavar="DIR", help="home of the daemon (AIOFLOW_HOME, default ~/.aioflow)"
    )
    complete_paths(home, "directory")
    if remote:
        parser.add_argument(
            "--url", metavar="URL", help="use a remote daemon; its token is in AIOFLOW_TOKEN"
        )
    parser.set_defaults(run=run)
    return parser


def complete_paths(argument: argparse.Action, kind: Literal["file", "directory"]) -> None:
    """Let shells complete an argument with paths. ``shtab`` reads the attribute set here."""
    vars(argument)["complete"] = kind


def add_group(nouns: Nouns, name: str, *, text: str, example: str) -> Nouns:
    """Declare a noun and return the group for its commands. ``example`` is an example call."""
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
    """Parse the conf of a run, which must be a JSON object.

    Raises:
        argparse.ArgumentTypeError: If ``text`` is not a JSON object.
    """
    value = json_value(text)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError('a conf is a JSON object, such as {"day": "2026-01-31"}')
    return value


def json_value(text: str) -> Any:
    """Parse JSON.

    Raises:
        argparse.ArgumentTypeError: If ``text`` is not JSON.
    """
    try:
        return parsed_json(text)
    except (ValueError, RecursionError) as exc:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not valid JSON: {exc}") from exc


def parsed_json(text: str) -> Any:
    """Parse JSON, but reject ``NaN`` and infinities.

    Raises:
        ValueError: If ``text`` is not JSON.
        RecursionError: If ``text`` is nested too deeply.
    """
    return json.loads(text, parse_constant=_no_number)


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


def moment(text: str) -> str:
    """Check that ``text`` is an ISO 8601 time, and return it unchanged.

    Raises:
        argparse.ArgumentTypeError: If it is not an ISO 8601 time.
    """
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text[:80]!r} is not a timestamp; write it as 2026-01-31T03:00:00Z"
        ) from None
    return text


def index(text: str) -> int:
    """Parse a map index; -1 means that the task is not mapped."""
    return _at_least(text, -1)


def from_zero(text: str) -> int:
    """Parse an integer that is not negative."""
    return _at_least(text, 0)


def positive(text: str) -> int:
    """Parse an integer of at least 1."""
    return _at_least(text, 1)


def seconds(text: str, least: float = 0.0) -> float:
    """Parse a duration in seconds, at most one day."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not least <= found <= _DAY_SECONDS:
        raise argparse.ArgumentTypeError(
            f"{text[:80]!r} is not a time between {least:g} and {_DAY_SECONDS:g} seconds"
        )
    return found


def _at_least(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a whole number") from None
    if number < least:
        raise argparse.ArgumentTypeError(f"{number} is less than {least}")
    return number


_COMPLETION_SHELLS = ("bash", "zsh", "fish")


def add_completion(nouns: Nouns) -> None:
    """Declare ``aioflow completion``."""
    parser = nouns.add_parser(
        "completion",
        help="print a completion script for bash, zsh or fish",
        description="Print a shell completion script for aioflow.",
        epilog="example:\n  source <(aioflow completion bash)",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=_COMPLETION_SHELLS)
    parser.set_defaults(run=_print_completion)


def _print_completion(arguments: argparse.Namespace) -> int:
    from aioflow.cli import command_parser

    print(completion_script(arguments.shell, command_parser()))
    return 0


def completion_script(shell: str, parser: argparse.ArgumentParser) -> str:
    """Return the completion script for a shell."""
    import shtab  # slower to import than all of argparse

    text: str = shtab.complete(parser, shell=shell)
    return text
