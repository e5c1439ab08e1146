"""The command line. Heavy modules are imported when a command needs them."""

from __future__ import annotations

import argparse
import errno
import io
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from aioflow.cli import (
    accounts,
    arguments,
    backfills,
    bench,
    daemon,
    dags,
    db,
    decisions,
    events,
    pools,
    runs,
    triggers,
    values,
)
from aioflow.cli.client import Refused
from aioflow.cli.output import safe
from aioflow.errors import AioflowError, Fenced, SettingsError

__all__ = ("FENCED", "command_parser", "main")

_NOUNS: tuple[Callable[[Any], None], ...] = (
    daemon.add_up,
    daemon.add_demo,
    dags.add_parser,
    runs.add_parser,
    backfills.add_parser,
    triggers.add_parser,
    decisions.add_parser,
    events.add_parser,
    pools.add_executors,
    events.add_assets,
    pools.add_parser,
    daemon.add_nodes,
    values.add_parser,
    daemon.add_top,
    accounts.add_users,
    accounts.add_tokens,
    accounts.add_audit,
    db.add_parser,
    daemon.add_config,
    bench.add_parser,
    arguments.add_completion,
)
_INTERRUPTED = 130

FENCED = 75
"""The exit status of a daemon whose database another daemon has claimed. On this status, a
supervisor must not restart the daemon: the two daemons would fence each other forever.
"""

_DEBUG = "AIOFLOW_DEBUG"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FILES = ("home", "file", "files", "dags", "plot")
"""Names of the arguments that are file names, which may contain any bytes except NUL."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    Without a command, ``up`` is run.

    Returns:
        0 on success, 1 on failure, 2 on wrong usage, 130 if interrupted. ``dags trigger --wait``
        returns 3 for a run that ended ``partial``.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or (words[0].startswith("-") and words[0] not in {"-h", "--help", "--version"}):
        words.insert(0, "up")
    _refuse_no_character()
    parser = command_parser()
    arguments = parser.parse_args(words)
    if odd := _no_text(arguments):
        parser.error(f"{odd!r} is not valid UTF-8")
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe, as `head` does. Without the redirection, a flush at exit
        # would fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as exc:
        error = _ours(exc)
        if error is None and isinstance(exc, OSError) and exc.errno in _NO_ROOM:
            return _disk_full(exc)
        if error is None and os.environ.get(_DEBUG):
            raise
        return _defect(exc) if error is None else _failed(error)
    return status


def _defect(exc: Exception) -> int:
    """Print an unexpected exception in one line. If this process has a log, log the traceback."""
    if logging.getLogger().handlers:
        logging.getLogger(__name__).error("terminated by a defect", exc_info=exc)
    told = safe(_one_line(f"{type(exc).__name__}: {exc}"))
    print(f"aioflow: {told}; a defect, {_DEBUG}=1 shows where [defect]", file=sys.stderr)
    return 1


def _disk_full(exc: OSError) -> int:
    """Report that the output could not be written, and prevent a flush at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    where = "the output" if exc.filename is None else str(exc.filename)
    print(f"aioflow: {safe(where)} cannot be written: {exc.strerror} [output]", file=sys.stderr)
    return 1


def _failed(error: AioflowError) -> int:
    """Print the error in one line and return the exit status."""
    code = error.told_code if isinstance(error, Refused) else error.code
    print(f"aioflow: {safe(_one_line(str(error)))} [{code}]", file=sys.stderr)
    if isinstance(error, Fenced):
        return FENCED
    return 2 if isinstance(error, SettingsError) else 1


def _ours(exc: BaseException) -> AioflowError | None:
    """Return the first ``AioflowError`` in ``exc``; ``None`` if it contains any other error."""
    while isinstance(exc, BaseExceptionGroup):
        matched, rest = exc.split(AioflowError)
        if matched is None or rest is not None:
            return None
        exc = matched.exceptions[0]
    return exc if isinstance(exc, AioflowError) else None


def _refuse_no_character() -> None:
    """Make the standard streams escape characters that they cannot encode.

    A closed stream is replaced by ``/dev/null``.
    """
    sys.stdout = sys.stdout or _nothing()
    sys.stderr = sys.stderr or _nothing()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _nothing() -> io.TextIOWrapper:
    return Path(os.devnull).open("w", encoding="utf-8")


def _no_text(arguments: argparse.Namespace) -> str | None:
    """Return the first argument, except file names, that is not valid UTF-8, if any."""
    for name, value in vars(arguments).items():
        for word in value if isinstance(value, list) else [value]:
            if name not in _FILES and isinstance(word, str) and any(map(_is_half, word)):
                return word
    return None


def _is_half(character: str) -> bool:
    return "\ud800" <= character <= "\udfff"


def _one_line(text: str) -> str:
    return " ".join(text.split())


class _Parser(argparse.ArgumentParser):
    """A parser that reports usage errors in one line, in the format of all other errors."""

    def error(self, message: str) -> NoReturn:
        line = f"{self.prog}: {_one_line(message)}; see `{self.prog} --help` [usage]\n"
        self.exit(2, line)


def command_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = _Parser(
        prog="aioflow",
        description="Run workflows: one daemon, tens of thousands of waits, no polling.",
        epilog="Without a command the daemon is run, as by `aioflow up`.",
    )
    parser.add_argument("--version", action=_Version)
    nouns = parser.add_subparsers(required=True, metavar="COMMAND")
    for add_noun in _NOUNS:
        add_noun(nouns)
    return parser


class _Version(argparse.Action):
    """The option ``--version``. The version is on disk, and is read only if the option is used."""

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

        print(version("aioflow-engine"))
        parser.exit()
