"""``aioflow runs``: list, watch, explain and change runs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from typing import Any
from zoneinfo import ZoneInfo

from aioflow.cli.arguments import Nouns, add_command, add_group, from_zero, index, positive
from aioflow.cli.bulk import act_on_matching, add_bulk, is_bulk
from aioflow.cli.client import connect, show_run_link
from aioflow.cli.daemon_or_database import Source, named_run, read, read_run
from aioflow.cli.logs import add_logs
from aioflow.cli.output import (
    checks_text,
    hint,
    print_json,
    print_table,
    progress_text,
    safe,
    state,
    task_name,
    wait_text,
)
from aioflow.cli.run_filters import add_filters, run_query
from aioflow.errors import SettingsError

__all__ = ("add_parser",)

_PAGE = 1_000
_TEXT_LENGTH = 80
_VERSION_DIGITS = 12
_EXAMPLES = {"cancel": "running", "delete": "cancelled"}
_UTC_NAMES = frozenset({"UTC", "Etc/UTC", "GMT"})
_COMMANDS_SHOWN = 3
"""Maximum number of suggested commands."""
_FEW = 10
"""Maximum number of children of one task in one state that get a row each; more share one row."""


def add_parser(nouns: Nouns) -> None:
    """Declare ``aioflow runs`` and its commands."""
    verbs = add_group(
        nouns,
        "runs",
        text="list, watch, explain, cancel, clear, mark, delete runs",
        example="aioflow runs why monday",
    )
    listing = add_command(
        verbs,
        "list",
        _list,
        text="list runs, the newest first",
        example="aioflow runs list --dag daily --state failed",
    )
    add_filters(listing)
    listing.add_argument("--limit", type=positive, default=100, metavar="N")
    show = _add_one(verbs, "show", _show, "show a run and its tasks")
    show.add_argument("--offset", type=from_zero, default=0, metavar="N", help="skip so many tasks")
    show.add_argument("--limit", type=positive, default=_PAGE, metavar="N")
    show.add_argument("--state", metavar="STATE", help="only tasks in this state, such as failed")
    show.add_argument(
        "--task", metavar="TASK", help="only this task; for a mapped task its children"
    )
    _add_one(verbs, "watch", _watch, "follow a run until it ends")
    why = _add_one(verbs, "why", _why, "explain what a run or task waits for")
    why.add_argument("task", nargs="?", metavar="TASK")
    _add_index(why)
    add_bulk(_add_many(verbs, "cancel", _cancel, "cancel a run, or all runs that match a filter"))
    _add_clear(verbs)
    _add_mark(verbs)
    text = "delete an ended run, with its results and logs, or all that match a filter"
    add_bulk(_add_many(verbs, "delete", _delete, text))
    _add_note(verbs)
    add_logs(verbs, _add_index)


def _add_clear(verbs: Nouns) -> None:
    clear = add_command(
        verbs,
        "clear",
        _clear,
        text="clear tasks of a run so that they run again",
        example="aioflow runs clear RUN --task load --downstream",
    )
    add_bulk(clear)
    clear.add_argument("--task", action="append", default=[], metavar="TASK", help="only this task")
    clear.add_argument(
        "--map", type=index, default=-1, metavar="N", help="for a mapped task: its map index"
    )
    clear.add_argument("--downstream", action="store_true", help="and what comes after")
    clear.add_argument("--failed", action="store_true", help="only those that failed")
    clear.add_argument(
        "--latest", action="store_true", help="use the newest version of the DAG from now on"
    )


def _add_note(verbs: Nouns) -> None:
    note = add_command(
        verbs,
        "note",
        _write_note,
        text="write, show or remove the note on a run, or on a task of it",
        example='aioflow runs note RUN load "the bank sends the file at noon"',
    )
    note.add_argument("run_id", metavar="RUN")
    note.add_argument(
        "words", nargs="*", metavar="[TASK] TEXT", help="without it, the notes are shown"
    )
    note.add_argument("--remove", action="store_true", help="remove the note")
    _add_index(note)


def _add_mark(verbs: Nouns) -> None:
    mark = add_command(
        verbs,
        "mark",
        _mark,
        text="set the end state of tasks of a run, or of the run",
        example="aioflow runs mark RUN --task load --state success",
    )
    add_bulk(mark, state="--in-state")
    mark.add_argument("--state", required=True, choices=("success", "failed"))
    mark.add_argument("--task", action="append", default=[], metavar="TASK", help="not the run")
    mark.add_argument(
        "--map", type=index, default=-1, metavar="N", help="for a mapped task: its map index"
    )


def _add_many(verbs: Nouns, name: str, run: Any, text: str) -> argparse.ArgumentParser:
    example = f"aioflow runs {name} --dag daily --state {_EXAMPLES[name]}"
    return add_command(verbs, name, run, text=text, example=example)


def _add_one(verbs: Nouns, name: str, run: Any, text: str) -> argparse.ArgumentParser:
    parser = add_command(verbs, name, run, text=text, example=f"aioflow runs {name} RUN")
    parser.add_argument("run_id", metavar="RUN")
    return parser


def _add_index(parser: argparse.ArgumentParser) -> None:
    one = parser.add_mutually_exclusive_group()
    one.add_argument(
        "--map", type=index, default=-1, metavar="N", help="for a mapped task: its map index"
    )
    one.add_argument(
        "--round",
        dest="map",
        type=from_zero,
        metavar="N",
        help="for a task in a loop: default the last round",
    )


def _list(arguments: argparse.Namespace) -> int:
    found = read(
        arguments,
        lambda source: source.runs(run_query(arguments), limit=arguments.limit),
    )
    if arguments.json:
        print_json(found)
        return 0
    print_table(
        ("RUN", "DAG", "STATE", "STARTED", "ENDED"),
        (
            (run["run_id"], run["dag_id"], run["state"], run["started_at"], run["ended_at"])
            for run in found
        ),
        empty=(
            "no matching runs: aioflow runs list"
            if run_query(arguments)
            else "no runs: aioflow dags trigger DAG"
        ),
    )
    return 0


@named_run
def _show(arguments: argparse.Namespace) -> int:
    found = read_run(arguments, lambda source: _run_pages(source, arguments))
    if arguments.json:
        print_json(found)
        return 0
    print(f"{found['run_id']}  {state(found['state'])}  {progress_text(found['counts'])}")
    for name in ("logical_date", "started_at", "ended_at"):
        if found[name]:
            print(f"{name}: {found[name]}")
    print(f"version: {found['version'][:_VERSION_DIGITS]}")
    _show_notes(arguments)
    show_run_link(arguments, found["run_id"])
    print()
    print_table(
        ("TASK", "STATE", "TRY", "NOTE"),
        _rows(found["tasks"]),
        empty="no tasks here",
    )
    if arguments.task and len(found["tasks"]) <= _FEW:
        _show_workers(arguments, found["tasks"])
    left = sum(found["counts"].values()) - arguments.offset - len(found["tasks"])
    if arguments.state or arguments.task:
        if len(found["tasks"]) == arguments.limit:
            hint(f"there may be more: --offset {arguments.offset + len(found['tasks'])}")
    elif left > 0:
        hint(f"{left} more: --offset {arguments.offset + len(found['tasks'])}")
    return 0


def _show_notes(arguments: argparse.Namespace) -> None:
    """Print the notes on a run and on its tasks, with their authors."""
    for note in read(arguments, lambda source: source.notes(arguments.run_id)):
        where = "" if note["task_id"] is None else f" on {task_name(note)}"
        text = safe(" ".join(note["text"].split()))
        print(f"note{where}: {text} ({safe(note['author'])}, {note['at']})")


def _rows(tasks: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each task. Many consecutive children in the same state share a row."""
    for (task_id, task_state), alike in groupby(tasks, key=itemgetter("task_id", "state")):
        children = list(alike)
        if len(children) > _FEW:
            yield _range_of(task_id, children), task_state, "", f"{len(children)} tasks"
            continue
        for task in children:
            tries = f"{task['try_number']}/{task['max_tries']}"
            yield task_name(task), task_state, tries, _note(task)


def _show_workers(arguments: argparse.Namespace, tasks: list[dict[str, Any]]) -> None:
    """Print where the tries of these tasks ran, if any of them ran in a remote worker."""
    is_in_loop = any(task["round"] for task in tasks)

    def details(source: Source) -> list[Any]:
        return [
            source.task(
                arguments.run_id,
                task["task_id"],
                map_index=task["round"] if is_in_loop else task["map_index"],
            )
            for task in tasks
            if task["try_number"]
        ]

    rows = [
        (task_name(task), one["try_number"], one["state"], _worker_text(one))
        for task in read(arguments, details)
        for one in task["tries"]
        if one["executor"] is not None
    ]
    if rows:
        print()
        print_table(("TASK", "TRY", "STATE", "RAN ON"), rows, empty="")


def _worker_text(one: dict[str, Any]) -> str:
    """Return where a try ran: its executor, machine, process, and the page of the worker."""
    where = (one["host"], one["worker"], one["worker_url"])
    return ", ".join((one["executor"], *filter(None, where)))


def _range_of(task_id: str, children: list[dict[str, Any]]) -> str:
    first, last = children[0], children[-1]
    if first["map_index"] < 0:
        return f"{task_id}, rounds {first['round']}..{last['round']}"
    return f"{task_id}[{first['map_index']}..{last['map_index']}]"


def _run_pages(source: Source, arguments: argparse.Namespace) -> Any:
    """Return a run with the requested number of tasks. They are fetched page by page."""
    limit, offset = arguments.limit, arguments.offset
    if arguments.state or arguments.task:
        return {**source.run(arguments.run_id, limit=1), "tasks": _narrowed(source, arguments)}
    found = source.run(arguments.run_id, offset=offset, limit=min(limit, _PAGE))
    while len(found["tasks"]) < limit:
        had = len(found["tasks"])
        wanted = min(limit - had, _PAGE)
        if had % _PAGE:
            break
        more = source.run(arguments.run_id, offset=offset + had, limit=wanted)["tasks"]
        if not more:
            break
        found["tasks"] += more
    return found


def _narrowed(source: Source, arguments: argparse.Namespace) -> list[Any]:
    """Return the tasks of a run that match the requested id or state."""
    found: list[Any] = []
    while len(found) < arguments.limit:
        wanted = min(arguments.limit - len(found), _PAGE)
        page = source.tasks(
            arguments.run_id,
            task=arguments.task,
            state=arguments.state,
            offset=arguments.offset + len(found),
            limit=wanted,
        )
        found += page
        if len(page) < wanted:
            break
    return found


def _note(task: dict[str, Any]) -> str:
    """Return the text of a table about a task: its wait, its error, or its result."""
    if task["waiting_on"] is not None:
        return wait_text(task["waiting_on"])
    if task["error"] is not None:
        return _cut(_error_text(task["error"]), 2 * _TEXT_LENGTH)
    return "" if task["result"] is None else _cut(f"= {task['result']!r}", _TEXT_LENGTH)


def _error_text(error: dict[str, Any]) -> str:
    return f"{error['type']}: {error['message']}"


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."


@named_run
def _watch(arguments: argparse.Namespace) -> int:
    from aioflow.cli.run_progress import watch_run

    return watch_run(arguments, arguments.run_id)


@named_run
def _why(arguments: argparse.Namespace) -> int:
    _check_place(arguments, arguments.task, "name a TASK, too")
    found = read_run(
        arguments, lambda source: source.why(arguments.run_id, arguments.task, arguments.map)
    )
    if arguments.json:
        print_json(found)
        return 0
    _show_chain(found)
    show_run_link(arguments, found["run_id"], arguments.task, arguments.map)
    return 0


def _show_chain(found: Mapping[str, Any]) -> None:
    """Print a chain of causes, one line each, indented by depth, and what can be done."""
    if not found["causes"]:
        print(f"{found['run_id']} is {state(found['state'])}; it is waiting for nothing")
    for cause in found["causes"]:
        other = "" if cause["run_id"] == found["run_id"] else f" (run {cause['run_id']})"
        times = _times_text(cause["waiting_on"], found["timezone"])
        text = f"{cause['text']}{other}{f' ({times})' if times else ''}"
        print(f"{'  ' * cause['depth']}{state(cause['state'])}: {safe(text)}")
    if found["more"]:
        hint(f"{found['more']} more")
    commands = dict.fromkeys(one for cause in found["causes"] for one in _chain_commands(cause))
    for command in list(commands)[:_COMMANDS_SHOWN]:
        hint(safe(command))


def _times_text(wait: Mapping[str, Any] | None, timezone: str) -> str:
    """Return since when and until when a task waits, and its checks; empty if unknown."""
    if wait is None:
        return ""
    fires = wait.get("fires_at")
    times = (("since", wait["since"]), ("ends", fires), ("until", wait["until"]))
    parts = [
        f"{word} {_time_text(at, timezone)}"
        for word, at in times
        if at and (word != "until" or at != fires)
    ]
    if wait["kind"] == "interval" and wait["detail"]:
        parts.append(wait["detail"])
    if checks := checks_text(wait):
        parts.append(checks)
    return "; ".join(parts)


def _time_text(text: str, timezone: str) -> str:
    """Return a timestamp from JSON in UTC and, if that differs, in the DAG's time zone."""
    at = datetime.fromisoformat(text).astimezone(UTC)
    shown = f"{at:%Y-%m-%d %H:%M:%S} UTC"
    if timezone in _UTC_NAMES:
        return shown
    own = at.astimezone(ZoneInfo(timezone))
    day = "" if own.date() == at.date() else f"{own:%Y-%m-%d} "
    return f"{shown}, {day}{own:%H:%M:%S} in {timezone}"


def _chain_commands(cause: Mapping[str, Any]) -> Iterator[str]:
    """Yield commands with which a user can end the wait, the most specific one first."""
    wait, target = cause["waiting_on"], cause["target"]
    for action in cause["actions"]:
        if action == "set_pool" and target is not None:
            yield f"more slots: aioflow pools set {target['name']} SLOTS"
        elif action == "fire" and wait is not None and wait["trigger_id"] is not None:
            yield f"send its event: aioflow triggers fire {wait['trigger_id']}"
        elif action == "clear":
            yield f"run it again: aioflow runs clear {cause['run_id']} --task {cause['task_id']}"


@named_run
def _cancel(arguments: argparse.Namespace) -> int:
    if is_bulk(arguments):
        return act_on_matching(arguments, "cancel")
    answer = connect(arguments).post("runs", arguments.run_id, "cancel")
    if arguments.json:
        print_json(answer)
    else:
        print(f"{answer['run_id']} is {state(answer['state'])}")
    return 0


@named_run
def _clear(arguments: argparse.Namespace) -> int:
    _check_place(arguments, arguments.task, "name its --task, too")
    if is_bulk(arguments):
        if not arguments.failed or arguments.task or arguments.downstream or arguments.latest:
            raise SettingsError("many runs are cleared with --failed alone, of what failed")
        return act_on_matching(arguments, "clear_failed")
    wanted = {
        "tasks": arguments.task,
        "map_index": arguments.map,
        "downstream": arguments.downstream,
        "failed": arguments.failed,
        "latest": arguments.latest,
    }
    answer = connect(arguments).post("runs", arguments.run_id, "clear", body=wanted)
    if arguments.json:
        print_json(answer)
    else:
        tasks = "1 task" if answer["cleared"] == 1 else f"{answer['cleared']} tasks"
        print(f"{tasks} cleared; {answer['run_id']} is {state(answer['state'])}")
        print(_version_line(answer["version"], answer["newest_version"]))
        if left := answer["upstream_failed"]:
            names = ", ".join(left[:_FEW]) + (" ..." if len(left) > _FEW else "")
            verb = "stays" if len(left) == 1 else "stay"
            hint(f"{names} {verb} upstream_failed; --downstream clears what comes after, too")
    return 0


def _version_line(version: str, newest: str | None) -> str:
    """Return a line that names the DAG version in which a cleared run continues."""
    shown = version[:_VERSION_DIGITS]
    if newest is None:
        return f"it runs version {shown}; no file defines the DAG any more"
    if newest == version:
        return f"it runs version {shown}, the newest"
    other = newest[:_VERSION_DIGITS]
    return f"it runs version {shown}, not the newest, {other}; --latest moves the run to that"


@named_run
def _mark(arguments: argparse.Namespace) -> int:
    _check_place(arguments, arguments.task, "name its --task, too")
    if is_bulk(arguments):
        if arguments.task:
            raise SettingsError("of many runs, no tasks can be marked: leave out --task")
        return act_on_matching(arguments, f"mark_{arguments.state}")
    wanted = {"state": arguments.state, "tasks": arguments.task, "map_index": arguments.map}
    answer = connect(arguments).post("runs", arguments.run_id, "mark", body=wanted)
    if arguments.json:
        print_json(answer)
        return 0
    tasks = "1 task" if answer["marked"] == 1 else f"{answer['marked']} tasks"
    done = f"{tasks} marked {state(arguments.state)}; " if arguments.task else ""
    print(f"{done}{answer['run_id']} is {state(answer['state'])}")
    return 0


def _check_place(arguments: argparse.Namespace, task: object, what: str) -> None:
    """Reject a map index or iteration if no task is named."""
    if arguments.map >= 0 and not task:
        raise SettingsError(f"a map index or a round is that of one task: {what}")


@named_run
def _write_note(arguments: argparse.Namespace) -> int:
    words: list[str] = arguments.words
    if not words and not arguments.remove:
        return _list_notes(arguments)
    task, texts = (words, []) if arguments.remove else (words[:-1], words[-1:])
    if len(task) > 1:
        raise SettingsError("a note is one text: put it in quotes")
    _check_place(arguments, task, "name its TASK, too")
    path = ["runs", arguments.run_id, *(["tasks", *task] if task else []), "note"]
    query = {"map": arguments.map} if task else {}
    client = connect(arguments)
    if arguments.remove:
        answer = client.delete(*path, query=query)
    else:
        answer = client.put(*path, body={"text": texts[0]}, query=query)
    if arguments.json:
        print_json(answer)
    else:
        where = " ".join([answer["run_id"], *task])
        print(f"the note on {safe(where)} is {'removed' if arguments.remove else 'written'}")
    return 0


def _list_notes(arguments: argparse.Namespace) -> int:
    found = read(arguments, lambda source: source.notes(arguments.run_id))
    if arguments.json:
        print_json(found)
        return 0
    print_table(
        ("TASK", "NOTE", "BY", "AT"),
        (
            (
                "" if note["task_id"] is None else task_name(note),
                note["text"],
                note["author"],
                note["at"],
            )
            for note in found
        ),
        empty=f'no notes: aioflow runs note {arguments.run_id} "TEXT"',
    )
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    if is_bulk(arguments):
        return act_on_matching(arguments, "delete")
    answer = connect(arguments).delete("runs", arguments.run_id)
    if arguments.json:
        print_json(answer)
    else:
        print(f"{answer['run_id']} is deleted")
    return 0
