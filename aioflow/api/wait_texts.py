"""Sentences that describe what a trigger of the catalogue waits for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

__all__ = ("SENTENCES", "sentence_of")

Fields: TypeAlias = Mapping[str, Any]
"""The public fields of a trigger, with URLs masked."""

_NAMED = 5
"""Tasks that a sentence names; further ones are counted."""


def sentence_of(class_path: str, fields: Fields) -> str | None:
    """Return what a trigger waits for; ``None`` if its class is not in the catalogue."""
    say = SENTENCES.get(class_path)
    try:
        return None if say is None else say(fields)
    except (KeyError, TypeError, ValueError):  # fields of another release, or damaged ones
        return None


def _files(fields: Fields) -> str:
    at_least = fields["at_least"]
    count = "a file" if at_least == 1 else f"{at_least} files"
    return f"for {count} like {fields['pattern']}"


def _event(fields: Fields) -> str:
    key = "" if fields.get("key") is None else f" with the key {fields['key']}"
    return f"for the event {fields['name']}{key}"


def _run(fields: Fields) -> str:
    task = "" if fields.get("task") is None else f"task {fields['task']} of "
    if fields.get("run_id") is not None:
        return f"for {task}run {fields['run_id']} of DAG {fields['dag']}"
    if fields.get("logical_date") is None:
        return f"for {task}the next run of DAG {fields['dag']} to end"
    offset = "" if fields.get("offset") is None else f", offset by {_length(fields['offset'])}"
    return f"for {task}the run of DAG {fields['dag']} at {_moment(fields['logical_date'])}{offset}"


def _tasks(fields: Fields) -> str:
    tasks = list(fields.get("tasks") or ())
    named = ", ".join(tasks[:_NAMED]) + (f" and {len(tasks) - _NAMED} more" * (len(tasks) > _NAMED))
    of = f"{'task' if len(tasks) == 1 else 'tasks'} {named} of " if tasks else ""
    return f"for {of}the run of DAG {fields['dag']} at {_moment(fields['logical_date'])}"


def _http(fields: Fields) -> str:
    status = fields["status"]
    statuses = ", ".join(map(str, status)) if isinstance(status, list) else str(status)
    return f"for {fields['method']} {fields['url']} to answer {statuses}"


def _pages(fields: Fields) -> str:
    if fields.get("interval") is None:
        return f"for the items of {fields['url']}, up to its last page"
    return f"for new items of {fields['url']}, without end as interval is not None"


def _instant(fields: Fields) -> str:
    return f"for {_moment(fields['moment'])}"


def _delta(fields: Fields) -> str:
    return f"for {_length(fields['delta'])} to pass"


def _moment(value: Any) -> str:
    return str(value).replace("+00:00", "Z")


def _length(value: Any) -> str:
    return f"{value:g} s" if isinstance(value, int | float) else str(value)


SENTENCES: Mapping[str, Callable[[Fields], str]] = {
    "aioflow_triggers.events:EventTrigger": _event,
    "aioflow_triggers.external:RunTrigger": _run,
    "aioflow_triggers.external:TasksTrigger": _tasks,
    "aioflow_triggers.files:FileGoneTrigger": "for the file {path} to be removed".format_map,
    "aioflow_triggers.files:FileTrigger": "for the file {path}".format_map,
    "aioflow_triggers.files:FilesTrigger": _files,
    "aioflow_triggers.files:NewFiles": "for new files like {pattern}".format_map,
    "aioflow_triggers.http:HttpTrigger": _http,
    "aioflow_triggers.objects:NewObjects": "for new objects like {url}".format_map,
    "aioflow_triggers.objects:ObjectTrigger": "for the object {url}".format_map,
    "aioflow_triggers.pages:HttpPagesTrigger": _pages,
    "aioflow_triggers.temporal:CronTrigger": (
        "for the next tick of {expression!r} in {timezone}".format_map
    ),
    "aioflow_triggers.temporal:DateTimeTrigger": _instant,
    "aioflow_triggers.temporal:TimeDeltaTrigger": _delta,
}
"""By class path. A test compares the keys with the registered catalogue."""
