"""``aioflow runs logs``: print, follow or search the output of a task, or of a whole run."""

from __future__ import annotations

import argparse
import codecs
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from aioflow.cli.arguments import Nouns, add_command, positive
from aioflow.cli.client import Client, connect
from aioflow.cli.daemon_or_database import named_run, read
from aioflow.cli.output import hint, on_terminal, print_json, safe_text
from aioflow.cli.run_log import print_run_log
from aioflow.errors import RequestError
from aioflow.protocol.requests import OF_RUN

__all__ = ("add_logs", "found_lines", "pieces_until")

_LONGEST_LINE = 1024 * 1024
"""Maximum length of a line, in bytes. The rest of a longer line is treated as another line."""


def add_logs(verbs: Nouns, add_index: Callable[[argparse.ArgumentParser], None]) -> None:
    """Declare ``aioflow runs logs``."""
    logs = add_command(
        verbs,
        "logs",
        _print_log,
        text="print the output of a task, or of all tasks of a run",
        example="aioflow runs logs RUN settle --map 7 --follow",
    )
    logs.add_argument("run_id", metavar="RUN")
    logs.add_argument(
        "task", metavar="TASK", nargs="?", help=f"else all tasks; {OF_RUN}: callbacks"
    )
    add_index(logs)
    logs.add_argument(
        "--try",
        dest="try_number",
        type=positive,
        metavar="N",
        help="only this try, counted across all clears",
    )
    logs.add_argument("--follow", action="store_true", help="follow until the task ends")
    logs.add_argument(
        "--search", metavar="TEXT", help="only lines with this text, with their offsets"
    )
    logs.add_argument(
        "--raw",
        action="store_true",
        help="print raw; on a terminal control characters are otherwise escaped",
    )


@named_run
def _print_log(arguments: argparse.Namespace) -> int:
    if arguments.task is None:
        if arguments.map >= 0 or arguments.try_number is not None:
            raise RequestError("a child or a try is one of a task: runs logs RUN TASK")
        return print_run_log(arguments)
    if arguments.follow and arguments.task != OF_RUN:
        is_line = True
        pieces = _follow(arguments)
    else:
        is_line = False
        pieces = _whole(arguments)
    if arguments.search is not None:
        return _print_found(arguments, pieces, is_line=is_line)
    if not arguments.json:
        if not _print_pieces(pieces, is_raw=arguments.raw):
            hint(_why_nothing(arguments))
    elif is_line:
        for text in _decoded(pieces):
            print_json({"log": text}, line=True)
    else:
        print_json({**_whose(arguments), "log": "".join(_decoded(pieces))})
    return 0


def _why_nothing(arguments: argparse.Namespace) -> str:
    if arguments.task == OF_RUN:
        return "no callback of it has printed anything"
    if arguments.try_number is not None:
        return f"try {arguments.try_number} of it has printed nothing, or has not begun"
    if arguments.map < 0 and _is_mapped(arguments):
        return "nothing was printed; of a mapped task say which child: --map N"
    return "nothing was printed"


def _is_mapped(arguments: argparse.Namespace) -> bool:
    """Return whether a task is mapped and has children."""
    wanted = {"task": arguments.task, "state": None, "offset": 0, "limit": 1}
    found = read(arguments, lambda source: source.tasks(arguments.run_id, **wanted))
    return bool(found) and found[0]["map_index"] >= 0


def _whose(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "run_id": arguments.run_id,
        "task_id": arguments.task,
        "map_index": arguments.map,
        "try_number": arguments.try_number,
    }


# ── sources ─────────────────────────────────────────────────────────────────────────────


def _whole(arguments: argparse.Namespace) -> Iterator[bytes]:
    """Yield the log in pieces, from the daemon or, if no daemon runs, from the home."""

    def more(offset: int) -> bytes:
        piece: bytes = read(
            arguments,
            lambda source: source.logs(
                arguments.run_id,
                arguments.task,
                map_index=arguments.map,
                try_number=arguments.try_number,
                offset=offset,
            ),
        )
        return piece

    offset = 0
    while piece := more(offset):
        offset += len(piece)
        yield piece


def _follow(arguments: argparse.Namespace) -> Iterator[bytes]:
    from aioflow.cli.run_progress import TASK_ENDED, over_restarts, ticks

    client = connect(arguments)
    path = ("runs", arguments.run_id, "tasks", arguments.task)
    query = {"map": arguments.map, "try": arguments.try_number}

    def is_over() -> bool:
        return str(_state_of(client, path, arguments.map)) in TASK_ENDED

    def more(offset: int) -> bytes:
        return client.get_bytes(*path, "logs", **query, offset=offset)

    is_over()  # if no daemon answers at the start, it is not restarting: fail at once
    yield from pieces_until(
        lambda: over_restarts(is_over), lambda offset: over_restarts(partial(more, offset)), ticks()
    )


def _state_of(client: Client, path: tuple[str, ...], map_index: int) -> object:
    return client.get(*path, "why", map=map_index)["causes"][0]["state"]


def pieces_until(
    is_over: Callable[[], bool], more: Callable[[int], bytes], pauses: Iterable[None]
) -> Iterator[bytes]:
    """Yield the output of a task until the task has ended: each byte exactly once.

    Output that a task prints just before its end may reach the log just after the end. So the log
    is only considered complete when two successive reads after the end have found nothing.

    Args:
        is_over: Returns whether the task has ended; called before each round of reads.
        more: Returns the data from an offset on, or a part of that data.
        pauses: An iterator that pauses before each round of reads.
    """
    offset = silent = 0
    for _ in pauses:
        over, had = is_over(), offset
        while piece := more(offset):
            offset += len(piece)
            yield piece
        silent = silent + 1 if over and offset == had else 0
        if silent == 2:
            return


# ── output ──────────────────────────────────────────────────────────────────────────────


def _decoded(pieces: Iterable[bytes]) -> Iterator[str]:
    """Decode pieces of output. A character split between two pieces is in the second text."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for piece in pieces:
        if text := decoder.decode(piece):
            yield text
    if text := decoder.decode(b"", final=True):
        yield text


def _print_pieces(pieces: Iterable[bytes], *, is_raw: bool) -> bool:
    """Print the pieces of output. Return whether there were any."""
    some = False
    if on_terminal() and not is_raw:
        for text in _decoded(pieces):
            some = True
            sys.stdout.write(safe_text(text.replace("\r\n", "\n")))
            sys.stdout.flush()
        return some
    for piece in pieces:
        some = True
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    return some


def found_lines(pieces: Iterable[bytes], wanted: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the byte offset and the text of each line that contains ``wanted``."""
    offset, rest = 0, b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if wanted in line:
                yield offset, line
            offset += len(line) + 1
        if len(rest) > _LONGEST_LINE:
            if wanted in rest:
                yield offset, rest
            offset, rest = offset + len(rest), b""
    if rest and wanted in rest:
        yield offset, rest


def _print_found(arguments: argparse.Namespace, pieces: Iterable[bytes], *, is_line: bool) -> int:
    found = []
    count = 0
    for offset, line in found_lines(pieces, arguments.search.encode()):
        count += 1
        text = line.decode("utf-8", "replace")
        if arguments.json and not is_line:
            found.append({"offset": offset, "line": text})
        elif arguments.json:
            print_json({"offset": offset, "line": text}, line=True)
        elif on_terminal() and not arguments.raw:
            print(f"{offset}: {safe_text(text)}")
        else:
            sys.stdout.buffer.write(b"%d: %b\n" % (offset, line))
            sys.stdout.buffer.flush()
    if arguments.json and not is_line:
        print_json({**_whose(arguments), "lines": found})
    elif not count:
        hint("no line of it has that text")
    return 0
