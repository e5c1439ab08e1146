"""The command line: one module per noun, nothing heavy before a command needs it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from aioflow.cli import (
    backfills,
    bench,
    config,
    dags,
    db,
    demo,
    events,
    nodes,
    pools,
    runs,
    triggers,
    up,
    values,
)
from aioflow.cli.client import Refused
from aioflow.errors import AioflowError, SettingsError

__all__ = ("main",)

_NOUNS = (
    up,
    demo,
    dags,
    runs,
    backfills,
    triggers,
    events,
    pools,
    nodes,
    values,
    db,
    config,
    bench,
)
_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    Without a command it is ``up``.

    Returns:
        0 if it is done, 1 if it failed, 2 if it was used wrongly, 130 if it was interrupted.
        ``dags trigger --wait`` also returns 3, for a run that ended partial.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or (words[0].startswith("-") and words[0] not in {"-h", "--help", "--version"}):
        words.insert(0, "up")
    arguments = _parser().parse_args(words)
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
    except AioflowError as exc:
        return _failed(exc)
    except BaseExceptionGroup as group:
        error = _ours(group)
        if error is None:
            raise
        return _failed(error)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # Whoever read us has enough, like `head`. Nothing may be flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


def _failed(error: AioflowError) -> int:
    """Say it in one line."""
    code = error.told_code if isinstance(error, Refused) else error.code
    print(f"aioflow: {_one_line(str(error))} [{code}]", file=sys.stderr)
    return 2 if isinstance(error, SettingsError) else 1


def _ours(group: BaseExceptionGroup[BaseException]) -> AioflowError | None:
    """Return the error of ours that ended a task group, if nothing else did."""
    matched, rest = group.split(AioflowError)
    if matched is None or rest is not None:
        return None
    first: BaseException = matched
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first if isinstance(first, AioflowError) else None


def _one_line(text: str) -> str:
    return " ".join(text.split())


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with a command in one line, as every other error is said."""

    def error(self, message: str) -> NoReturn:
        line = f"{self.prog}: {_one_line(message)}; see `{self.prog} --help` [usage]\n"
        self.exit(2, line)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="aioflow",
        description="Run workflows: one daemon, tens of thousands of waits, no polling.",
        epilog="Without a command the daemon is run, as by `aioflow up`.",
    )
    parser.add_argument("--version", action=_Version)
    nouns = parser.add_subparsers(required=True, metavar="COMMAND")
    for noun in _NOUNS:
        noun.add_parser(nouns)
    return parser


class _Version(argparse.Action):
    """Looks the version up only when it is asked for: that reads the disk."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version and exit")

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        from importlib.metadata import version

        print(version("aioflow"))
        parser.exit()
