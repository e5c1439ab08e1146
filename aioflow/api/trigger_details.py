"""Details of triggers: their public fields, and sentences that describe what they wait for.

Fields that are declared public are shown. All others are masked, because they may contain
credentials. In a URL, the user information and the query are masked, too. A class declares its
public fields in ``public_fields``. The declarations of the catalogue are repeated here, because the
daemon does not import the catalogue. Plug-ins are inspected once, in a separate process. For any
other class, the host of the trigger reports the declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias

from aioflow.api.schemas import TargetView, plain_bytes
from aioflow.author.duration import microseconds
from aioflow.core.triggers.assignment import RUN, SLEEP
from aioflow.errors import BadSchedule
from aioflow.model.decisions import PERSON
from aioflow.model.timestamps import Timestamp, to_timestamp
from aioflow.model.triggers import TriggerDescription
from aioflow.protocol.reports import TriggerKind
from aioflow.redaction import MASK, Masks, masked_url, masked_urls

__all__ = (
    "CATALOGUE_FIELDS",
    "CATALOGUE_PAYLOADS",
    "CATALOGUE_SENTENCES",
    "CATALOGUE_TARGETS",
    "DETAIL_LENGTH",
    "PublicFields",
    "fires_at",
    "wait_sentence",
)

Fields: TypeAlias = Mapping[str, Any]
"""The public fields of a trigger, with URLs masked."""

_NAMED_TASKS = 5
"""Maximum number of tasks that a sentence names. Further tasks are only counted."""


def wait_sentence(class_path: str, fields: Fields) -> str | None:
    """Return a sentence for what a trigger waits for; ``None`` if it is not in the catalogue."""
    say = CATALOGUE_SENTENCES.get(class_path)
    try:
        return None if say is None else say(fields)
    except (KeyError, TypeError, ValueError):  # fields of another release, or damaged ones
        return None


def fires_at(
    class_path: str, kwargs: bytes | None, *, since: Timestamp, deadline: Timestamp | None
) -> Timestamp | None:
    """Return when a trigger for a time or a duration fires; ``None`` for others, or if unknown.

    Args:
        since: When its task began to wait, on the wall clock.
        deadline: The end of the wait, on the wall clock. For a sleep, this is when it fires.
    """
    if class_path == SLEEP:
        return deadline
    find = _FIRES.get(class_path)
    fields = None if find is None else plain_bytes(kwargs)
    if find is None or not isinstance(fields, dict):
        return None
    try:
        return find(fields, since)
    except (BadSchedule, KeyError, TypeError, ValueError):  # damaged, or of another release
        return None


def _moment_fires(fields: Fields, since: Timestamp) -> Timestamp:
    return to_timestamp(datetime.fromisoformat(str(fields["moment"])).astimezone(UTC))


def _delta_fires(fields: Fields, since: Timestamp) -> Timestamp:
    return since + microseconds(fields["delta"], "delta")


_FIRES: Mapping[str, Callable[[Fields, Timestamp], Timestamp]] = {
    "aioflow_triggers.temporal:DateTimeTrigger": _moment_fires,
    "aioflow_triggers.temporal:TimeDeltaTrigger": _delta_fires,
}


def _files_sentence(fields: Fields) -> str:
    at_least = fields["at_least"]
    count = "a file" if at_least == 1 else f"{at_least} files"
    return f"for {count} like {fields['pattern']}"


def _event_sentence(fields: Fields) -> str:
    key = "" if fields.get("key") is None else f" with the key {fields['key']}"
    return f"for the event {fields['name']}{key}"


def _run_sentence(fields: Fields) -> str:
    task = "" if fields.get("task") is None else f"task {fields['task']} of "
    if fields.get("run_id") is not None:
        return f"for {task}run {fields['run_id']} of DAG {fields['dag']}"
    if fields.get("logical_date") is None:
        return f"for {task}the next run of DAG {fields['dag']} to end"
    offset = "" if fields.get("offset") is None else f", offset by {_duration(fields['offset'])}"
    return f"for {task}the run of DAG {fields['dag']} at {_moment(fields['logical_date'])}{offset}"


def _tasks_sentence(fields: Fields) -> str:
    tasks = list(fields.get("tasks") or ())
    named = ", ".join(tasks[:_NAMED_TASKS]) + (
        f" and {len(tasks) - _NAMED_TASKS} more" * (len(tasks) > _NAMED_TASKS)
    )
    of = f"{'task' if len(tasks) == 1 else 'tasks'} {named} of " if tasks else ""
    return f"for {of}the run of DAG {fields['dag']} at {_moment(fields['logical_date'])}"


def _http_sentence(fields: Fields) -> str:
    status = fields["status"]
    statuses = ", ".join(map(str, status)) if isinstance(status, list) else str(status)
    return f"for {fields['method']} {fields['url']} to answer {statuses}"


def _pages_sentence(fields: Fields) -> str:
    if fields.get("interval") is None:
        return f"for the items of {fields['url']}, up to its last page"
    return f"for new items of {fields['url']}, without end as interval is not None"


def _datetime_sentence(fields: Fields) -> str:
    return f"for {_moment(fields['moment'])}"


def _timedelta_sentence(fields: Fields) -> str:
    return f"for {_duration(fields['delta'])} to pass"


def _moment(value: Any) -> str:
    return str(value).replace("+00:00", "Z")


def _duration(value: Any) -> str:
    return f"{value:g} s" if isinstance(value, int | float) else str(value)


CATALOGUE_SENTENCES: Mapping[str, Callable[[Fields], str]] = {
    "aioflow_triggers.events:EventTrigger": _event_sentence,
    "aioflow_triggers.external:RunTrigger": _run_sentence,
    "aioflow_triggers.external:TasksTrigger": _tasks_sentence,
    "aioflow_triggers.files:FileGoneTrigger": "for the file {path} to be removed".format_map,
    "aioflow_triggers.files:FileTrigger": "for the file {path}".format_map,
    "aioflow_triggers.files:FilesTrigger": _files_sentence,
    "aioflow_triggers.files:NewFiles": "for new files like {pattern}".format_map,
    "aioflow_triggers.http:HttpTrigger": _http_sentence,
    "aioflow_triggers.objects:NewObjects": "for new objects like {url}".format_map,
    "aioflow_triggers.objects:ObjectTrigger": "for the object {url}".format_map,
    "aioflow_triggers.pages:HttpPagesTrigger": _pages_sentence,
    "aioflow_triggers.temporal:CronTrigger": (
        "for the next tick of {expression!r} in {timezone}".format_map
    ),
    "aioflow_triggers.temporal:DateTimeTrigger": _datetime_sentence,
    "aioflow_triggers.temporal:TimeDeltaTrigger": _timedelta_sentence,
}
"""Sentences by class path. A test checks that the keys are the classes of the catalogue."""


DETAIL_LENGTH = 500
"""Maximum length of a detail; longer details are cut."""

NOT_MET = "not met"
"""The answer of a check that found nothing, and said no more than that."""

_BRIEF_FIELDS = 2
"""Number of fields in a brief text. Classes declare the most significant fields first."""

CATALOGUE_FIELDS: Mapping[str, tuple[str, ...]] = {
    "aioflow_triggers.events:EventTrigger": ("name", "key", "after"),
    "aioflow_triggers.external:RunTrigger": ("dag", "task", "run_id", "logical_date", "offset"),
    "aioflow_triggers.external:TasksTrigger": ("dag", "logical_date", "tasks", "good"),
    "aioflow_triggers.files:FileGoneTrigger": ("path", "poll_seconds"),
    "aioflow_triggers.files:FileTrigger": ("path", "poll_seconds", "stable"),
    "aioflow_triggers.files:FilesTrigger": ("pattern", "at_least", "poll_seconds", "stable"),
    "aioflow_triggers.files:NewFiles": ("pattern", "stable", "existing", "poll_seconds"),
    "aioflow_triggers.http:HttpTrigger": (
        *("url", "method", "status", "interval", "timeout", "body_limit", "connection"),
    ),
    "aioflow_triggers.objects:NewObjects": ("url", "existing", "interval", "connection"),
    "aioflow_triggers.objects:ObjectTrigger": ("url", "interval", "connection"),
    "aioflow_triggers.pages:HttpPagesTrigger": (
        *("url", "items", "key", "next_link", "next_cursor", "cursor_parameter"),
        *("page_parameter", "first_page", "per", "interval", "timeout", "body_limit"),
        "connection",
    ),
    "aioflow_triggers.temporal:CronTrigger": ("expression", "timezone"),
    "aioflow_triggers.temporal:DateTimeTrigger": ("moment",),
    "aioflow_triggers.temporal:TimeDeltaTrigger": ("delta",),
}
"""The public fields that the catalogue's classes declare. A test checks that both agree."""


_PERSON_FIELDS = ("question", "assignees", "approvals")


def _run_target(fields: Fields) -> TargetView:
    dag_id, run_id = str(fields["dag"]), fields.get("run_id")
    task = None if fields.get("task") is None else str(fields["task"])
    if run_id is None:
        return TargetView(type="dag", name=dag_id, dag_id=dag_id, task_id=task)
    run = str(run_id)
    return TargetView(type="run", name=run, dag_id=dag_id, run_id=run, task_id=task)


def _event_target(fields: Fields) -> TargetView:
    key = fields.get("key")
    return TargetView(type="event", name=str(fields["name"]), key=None if key is None else str(key))


def _named_by(type_: str, field: str) -> Callable[[Fields], TargetView]:
    """Return a function that makes a target of this type, named by one of a trigger's fields."""
    return lambda fields: TargetView(type=type_, name=str(fields[field]))


CATALOGUE_TARGETS: Mapping[str, Callable[[Fields], TargetView]] = {
    "aioflow_triggers.events:EventTrigger": _event_target,
    "aioflow_triggers.external:RunTrigger": _run_target,
    "aioflow_triggers.external:TasksTrigger": _run_target,
    "aioflow_triggers.files:FileGoneTrigger": _named_by("file", "path"),
    "aioflow_triggers.files:FileTrigger": _named_by("file", "path"),
    "aioflow_triggers.files:FilesTrigger": _named_by("file", "pattern"),
    "aioflow_triggers.files:NewFiles": _named_by("file", "pattern"),
    "aioflow_triggers.http:HttpTrigger": _named_by("url", "url"),
    "aioflow_triggers.objects:NewObjects": _named_by("object", "url"),
    "aioflow_triggers.objects:ObjectTrigger": _named_by("object", "url"),
    "aioflow_triggers.pages:HttpPagesTrigger": _named_by("url", "url"),
    "aioflow_triggers.temporal:CronTrigger": _named_by("time", "expression"),
    "aioflow_triggers.temporal:DateTimeTrigger": _named_by("time", "moment"),
    "aioflow_triggers.temporal:TimeDeltaTrigger": _named_by("time", "delta"),
}
"""The targets of the catalogue's classes. A test checks that the keys are these classes."""


_TEXT, _NUMBER = {"type": "string"}, {"type": "integer"}
_TEXTS: Mapping[str, Any] = {"type": "array", "items": _TEXT}
_FILE: Mapping[str, Mapping[str, Any]] = {"path": _TEXT, "size_bytes": _NUMBER}

CATALOGUE_PAYLOADS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "aioflow_triggers.events:EventTrigger": {
        "name": _TEXT,
        "key": {"type": ["string", "null"]},
        "data": {},
        "id": _NUMBER,
    },
    "aioflow_triggers.external:RunTrigger": {"state": _TEXT, "run_id": _TEXT, "result": {}},
    "aioflow_triggers.external:TasksTrigger": {"run_id": _TEXT, "states": {"type": "object"}},
    "aioflow_triggers.files:FileGoneTrigger": {"path": _TEXT},
    "aioflow_triggers.files:FileTrigger": _FILE,
    "aioflow_triggers.files:FilesTrigger": {"paths": _TEXTS, "size_bytes": _NUMBER},
    "aioflow_triggers.http:HttpTrigger": {
        "status": _NUMBER,
        "url": _TEXT,
        "headers": {"type": "object"},
        "body": {},
    },
}
"""JSON schemas for the fields of events that a person can send instead of a trigger.

A test checks that the names are classes of the catalogue.
"""


class PublicFields:
    """Shows the public fields of triggers.

    Args:
        masks: Masks texts that are known to be secret.
    """

    def __init__(self, masks: Masks) -> None:
        self._masks = masks
        self.masked_text = masks.masked_text
        self._declared = {**CATALOGUE_FIELDS, PERSON: _PERSON_FIELDS}

    def learn(self, kinds: Iterable[TriggerKind]) -> None:
        """Register the public fields that the classes of a plug-in declare."""
        for kind in kinds:
            if kind.public_fields:
                self._declared[kind.class_path] = tuple(kind.public_fields)

    def detail(
        self, class_path: str, kwargs: bytes | None, watched: TriggerDescription | None = None
    ) -> str:
        """Return the author's description of a trigger, or else its class and fields.

        Fields are shown only if the class declares public fields.

        Args:
            watched: The description from the trigger's host.
        """
        if watched is not None and watched.text:
            return self._safe(watched.text)
        public = self._public(class_path, watched)
        fields = None if public is None else plain_bytes(kwargs)
        if public is None or not isinstance(fields, dict):
            return class_path
        shown = ", ".join(
            f"{name}={_masked(value)!r}" if name in public else f"{name}={MASK.decode()}"
            for name, value in fields.items()
            if value is not None and (name in public or value)
        )
        name = class_path.rpartition(":")[2]
        return self._masks.masked_text(f"{name}({shown})")[:DETAIL_LENGTH]

    def sentence(
        self, class_path: str, kwargs: bytes | None, watched: TriggerDescription | None
    ) -> str:
        """Return a sentence for what a trigger waits for, including the result of its last check.

        Args:
            watched: The description from the trigger's host.
        """
        text = None if watched is None or not watched.text else self._safe(watched.text)
        if text is None and class_path in CATALOGUE_FIELDS:
            fields = plain_bytes(kwargs)
            known = fields if isinstance(fields, dict) else {}
            shown = {
                name: _masked(known[name]) for name in CATALOGUE_FIELDS[class_path] if name in known
            }
            text = wait_sentence(class_path, shown)
            text = text and self._masks.masked_text(text)
        if text is None and class_path == PERSON:
            fields = plain_bytes(kwargs)
            question = fields.get("question") if isinstance(fields, dict) else None
            text = None if question is None else f"for a decision: {_masked(question)}"
            text = text and self._masks.masked_text(text)
        text = text or self.detail(class_path, kwargs, watched)
        note = "" if watched is None or not watched.note else f"; {self._safe(watched.note)}"
        return f"{text}{note}"[:DETAIL_LENGTH]

    def last_answer(self, watched: TriggerDescription | None) -> str | None:
        """Return what the last check found; ``None`` if unknown, or while a check is under way.

        A check that finds what is waited for ends the wait, so others found nothing.
        """
        if watched is None or watched.last_check_at is None or watched.next_check_at is None:
            return None
        return self._safe(watched.note) or NOT_MET

    def target(self, class_path: str, kwargs: bytes | None) -> TargetView:
        """Return the target of a trigger; outside of the catalogue only the name of its class."""
        fields = plain_bytes(kwargs)
        known = fields if isinstance(fields, dict) else {}
        if class_path == SLEEP:
            return TargetView(type="time", name=SLEEP)
        if class_path == RUN:
            return _run_target(known)
        public = CATALOGUE_FIELDS.get(class_path, ())
        shown = {
            name: self._masks.masked_text(value) if isinstance(value, str) else value
            for name in public
            if (value := _masked(known.get(name))) is not None
        }
        try:
            return CATALOGUE_TARGETS[class_path](shown)
        except (KeyError, TypeError, ValueError):  # another class, or fields of another release
            return TargetView(type="trigger", name=class_path.rpartition(":")[2])

    def payload(self, class_path: str, kwargs: bytes | None) -> dict[str, dict[str, Any]] | None:
        """Return the fields of a trigger's event, each a JSON schema with a default if known.

        Return ``None`` for a class whose events are not known.
        """
        known = CATALOGUE_PAYLOADS.get(class_path)
        if known is None:
            return None
        target = self.target(class_path, kwargs)
        defaults = {"name": target.name, "key": target.key, "run_id": target.run_id}
        if target.type == "file" and "*" not in target.name:
            defaults["path"] = target.name
        return {
            name: {**schema, "default": value} if (value := defaults.get(name)) else {**schema}
            for name, schema in known.items()
        }

    def brief(self, name: str, class_path: str, kwargs: bytes) -> str:
        """Return the name of a class, followed by the first public fields that are set, if any."""
        fields = plain_bytes(kwargs)
        known = fields if isinstance(fields, dict) else {}
        public = self._declared.get(class_path, ())
        told = [field for field in public if not _is_unset(known.get(field))][:_BRIEF_FIELDS]
        shown = ", ".join(
            f"{field}={_masked(known[field])!r}" if at else repr(_masked(known[field]))
            for at, field in enumerate(told)
        )
        return self._masks.masked_text(f"{name}({shown})") if shown else name

    def _public(
        self, class_path: str, watched: TriggerDescription | None
    ) -> Collection[str] | None:
        """Return the public fields: those registered here, or else those reported by the host."""
        declared = self._declared.get(class_path)
        if declared is None and watched is not None and watched.public:
            return watched.public
        return declared

    def _safe(self, text: str) -> str:
        """Mask secrets in a text that comes from the trigger's author or its last check."""
        return self._masks.masked_text(masked_urls(text))[:DETAIL_LENGTH]


def _is_unset(value: Any) -> bool:
    return value is None or value is False


def _masked(value: Any) -> Any:
    match value:
        case str():
            return masked_url(value)
        case list():
            return [_masked(item) for item in value]
        case dict():
            return {name: _masked(item) for name, item in value.items()}
        case _:
            return value
