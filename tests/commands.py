"""Helpers that run commands of the command line and capture their output and exit status.

``run`` calls ``main`` in this process, which saves an interpreter and its imports per command.
Tests of signals, terminals, broken pipes, or a command's own daemon need ``run_process``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple
from unittest.mock import patch

import structlog

from aioflow.cli import main

__all__ = ("Done", "run", "run_process", "words_of")

_TIMEOUT_SECONDS = 110


class Done(NamedTuple):
    """A command that has ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The output, decoded as JSON."""
        return json.loads(self.out)


def run(*words: object, home: Path | None = None, given: str = "", **environment: str) -> Done:
    """Run a command in this process.

    Args:
        given: The standard input of the command.
    """
    with (
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        patch.dict(os.environ, _environment(home, environment), clear=True),
    ):
        with _streams(given, out, err), _logging():
            status = _status_of([str(word) for word in words])
        return Done(status, _text(out), _text(err))


def run_process(
    *words: object, home: Path | None = None, given: str = "", **environment: str
) -> Done:
    """Run a command in a separate process, as a shell does."""
    done = subprocess.run(
        [sys.executable, "-m", "aioflow", *map(str, words)],
        env=_environment(home, environment),
        input=given,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def _environment(home: Path | None, further: Mapping[str, str]) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AIOFLOW_")}
    if home is not None:
        clean["AIOFLOW_HOME"] = str(home)
    return {**clean, **further}


def _status_of(words: list[str]) -> int:
    try:
        return main(words)
    except SystemExit as ended:
        return int(ended.code or 0)


@contextlib.contextmanager
def _streams(given: str, out: IO[bytes], err: IO[bytes]) -> Iterator[None]:
    """Redirect the output of this process and its children into two files, at descriptor level."""
    before = (sys.stdin, sys.stdout, sys.stderr)
    with contextlib.ExitStack() as restoring:
        restoring.callback(lambda: _set_streams(*before))
        for stream, file, number in ((before[1], out, 1), (before[2], err, 2)):
            stream.flush()
            kept = os.dup(number)
            restoring.callback(os.close, kept)
            restoring.callback(os.dup2, kept, number)
            os.dup2(file.fileno(), number)
        streams = (
            io.TextIOWrapper(io.BytesIO(given.encode())),
            *(open(number, "w", encoding="utf-8", closefd=False) for number in (1, 2)),  # noqa: SIM115
        )
        for opened in streams:
            restoring.enter_context(opened)
        _set_streams(*streams)
        yield


@contextlib.contextmanager
def _logging() -> Iterator[None]:
    """Undo the logging set-up of a command that runs a daemon: its stream will be closed."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        structlog.reset_defaults()


def _set_streams(stdin: Any, stdout: Any, stderr: Any) -> None:
    sys.stdin, sys.stdout, sys.stderr = stdin, stdout, stderr


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode().replace("\r\n", "\n").replace("\r", "\n")


def words_of(parser: argparse.ArgumentParser, name: str) -> dict[str, tuple[str, ...]]:
    """Return the words that may follow each command: its subcommands and options."""
    return dict(_words(parser, name))


def _words(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    words: list[str] = []
    below: list[tuple[str, argparse.ArgumentParser]] = []
    for action in parser._actions:  # argparse has no other way to ask
        if isinstance(action, argparse._SubParsersAction):
            below += action.choices.items()
            words += action.choices
        elif action.option_strings:
            words += [option for option in action.option_strings if option.startswith("--")]
        else:
            words += [str(choice) for choice in action.choices or ()]
    yield name, tuple(words)
    for word, verb in below:
        yield from _words(verb, f"{name} {word}")
