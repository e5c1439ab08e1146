"""``aioflow runs logs RUN``: the output of all tasks of a run, in chronological order."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from typing import Any

from aioflow.cli.client import connect
from aioflow.cli.daemon_or_database import Source, read
from aioflow.cli.output import hint, on_terminal, print_json, safe, safe_text

__all__ = ("print_run_log",)

_FIELDS = ("at", "task_id", "map_index", "map_label", "round", "try_number", "level", "text")


def print_run_log(arguments: argparse.Namespace) -> int:
    """Print the lines of a run, or follow them until it has ended."""
    pages = _follow(arguments) if arguments.follow else _pages(arguments)
    count = 0
    found = []
    for line in _whole_lines(pages):
        count += 1
        if not arguments.json:
            text = line["text"]
            shown = safe_text(text) if on_terminal() and not arguments.raw else text
            print(f"{_time(line)}  {_name_of(line)}  {shown}", flush=arguments.follow)
        elif arguments.follow:
            print_json(_shape(line), line=True)
        else:
            found.append(_shape(line))
    if arguments.json and not arguments.follow:
        print_json({"run_id": arguments.run_id, "lines": found})
    elif not count and not arguments.json:
        hint("no line of it has that text" if arguments.search else "nothing was printed")
    return 0


def _query(arguments: argparse.Namespace, cursor: str) -> dict[str, Any]:
    return {"cursor": cursor, "search": arguments.search or ""}


def _pages(arguments: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    cursor: str | None = ""
    while cursor is not None:
        ask = partial(_page, arguments.run_id, _query(arguments, cursor))
        page = read(arguments, ask)
        yield page["items"]
        cursor = page["next"]


def _page(run_id: str, query: dict[str, Any], source: Source) -> Any:
    return source.run_log(run_id, **query)


def _follow(arguments: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    from aioflow.cli.run_progress import over_restarts, ticks

    client = connect(arguments)

    def more(cursor: str) -> Any:
        query = _query(arguments, cursor)
        return client.get("runs", arguments.run_id, "logs", **query, case="true")

    more("")  # if no daemon answers at the start, it is not restarting: fail at once
    cursor, silent = "", 0
    for _ in ticks():
        page = over_restarts(partial(more, cursor))
        while page["items"] or page["next"]:
            silent, cursor = 0, page["resume"]
            yield page["items"]
            page = over_restarts(partial(more, cursor))
        # Output may still arrive just after the end of the run.
        silent = 0 if page["is_live"] else silent + 1
        if silent == 2:
            return


def _whole_lines(pages: Iterator[list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Yield the lines of all pages. A line that is split between two pages is joined."""
    begun: dict[tuple[str, int, int], dict[str, Any]] = {}
    for page in pages:
        for part in page:
            source = (part["task_id"], part["map_index"], part["round"])
            line = begun.pop(source, {**part, "text": ""})
            line["text"] += part["text"]
            if part["is_open"]:
                begun[source] = line
            else:
                yield line
    yield from begun.values()


def _name_of(line: dict[str, Any]) -> str:
    """Return the name of the task instance that printed a line."""
    name = str(line["task_id"])
    if line["map_index"] >= 0:
        name += f"[{line['map_index']}]"
    if line.get("map_label"):
        name += f" {safe(line['map_label'])}"
    if line["round"]:
        name += f" round {line['round']}"
    return f"{name} try {line['try_number']}" if line.get("try_number", 1) > 1 else name


def _time(line: dict[str, Any]) -> str:
    at = str(line["at"] or "")
    return at[:19].replace("T", " ")


def _shape(line: dict[str, Any]) -> dict[str, Any]:
    return {name: line.get(name) for name in _FIELDS}
