"""Questions to people: ``ask_person`` for coroutines, and its trigger for operators.

The form of a question is a class. Its JSON Schema is stored with the question, so that an answer
can be checked without the code of the DAG. The answer is restored to the class in the task.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, Literal, TypeVar, overload

import msgspec

from aioflow.author.durable_calls import Call, current_calls
from aioflow.author.duration import Duration, microseconds
from aioflow.author.source_location import SourceLocation, dag_error, here
from aioflow.author.trigger import Trigger, TriggerEvent
from aioflow.model.decisions import (
    APPROVALS,
    ASSIGNEE_LENGTH,
    ASSIGNEES,
    DETAILS_LENGTH,
    QUESTION_LENGTH,
    SCHEMA_LENGTH,
    schema_misfit,
)

__all__ = ("PersonTrigger", "ask_person")

T = TypeVar("T")

_UNSET: Any = msgspec.UNSET


class PersonTrigger(Trigger[Any]):
    """Waits until people have decided. No process runs it: the answer of a person is its event.

    The payload is ``True`` or ``False``, or, with a form, a dict of plain JSON types. Restore it
    with ``msgspec.convert(event, Form)``. A coroutine uses ``ask_person`` instead.

    Args:
        question: One line of at most 500 characters.
        form: A dataclass or a ``msgspec.Struct``, whose fields people fill in. Without one, the
            answer is yes or no.
        details: Further text, shown below the question.
        assignees: Who may answer: names of users, of groups or of roles; by default operators.
        approvals: How many people must approve. A single rejection decides at once.
        not_by: ``"starter"`` excludes the person who started the run.
        default: The answer after the timeout of the wait.
        schema: The JSON Schema of the form, instead of ``form``.

    Raises:
        DagError: If an argument is invalid.
    """

    public_fields = ("question", "assignees", "approvals")

    def __init__(
        self,
        question: str,
        *,
        form: type[Any] | None = None,
        details: str = "",
        assignees: str | Sequence[str] = (),
        approvals: int = 1,
        not_by: Literal["", "starter"] = "",
        default: Any = _UNSET,
        schema: str = "",
    ) -> None:
        self.question = _text("question", question, QUESTION_LENGTH)
        self.details = _text("details", details, DETAILS_LENGTH, is_line=False)
        self.assignees = _names(assignees)
        self.approvals = _count(approvals)
        if not_by not in {"", "starter"}:
            raise dag_error(f'not_by takes "starter", got {not_by!r}')
        self.not_by = not_by
        self.schema = _checked_schema(schema) if form is None else _schema_of(form)
        if self.schema and self.approvals > 1:
            raise dag_error("a form is filled in by one person; ask for approvals without a form")
        self.default = default
        if form is not None or not schema:
            self.default = _plain_default(default, form)
        elif default is not msgspec.UNSET:
            self.default = _plain(default)

    def __init_subclass__(cls, **options: Any) -> None:
        raise TypeError("a PersonTrigger cannot be derived from: the engine itself answers it")

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the fields."""
        fields: dict[str, Any] = {
            "question": self.question,
            "details": self.details,
            "schema": self.schema,
            "assignees": list(self.assignees),
            "approvals": self.approvals,
            "not_by": self.not_by,
        }
        if self.default is not msgspec.UNSET:
            fields["default"] = self.default
        return "aioflow.author.person.PersonTrigger", fields

    async def run(self) -> AsyncIterator[TriggerEvent[Any]]:
        """Raise an error, because no process runs this trigger."""
        raise RuntimeError("a PersonTrigger is answered by people, and runs nowhere")
        yield


@overload
def ask_person(
    question: str,
    *,
    details: str = "",
    assignees: str | Sequence[str] = (),
    approvals: int = 1,
    not_by: Literal["", "starter"] = "",
    timeout: Duration | None = None,
    default: bool = ...,
) -> Coroutine[Any, Any, bool]: ...
@overload
def ask_person(
    question: str,
    *,
    details: str = "",
    assignees: str | Sequence[str] = (),
    approvals: int = 1,
    not_by: Literal["", "starter"] = "",
    timeout: Duration | None = None,
    default: None,
) -> Coroutine[Any, Any, bool | None]: ...
@overload
def ask_person(
    question: str,
    *,
    form: type[T],
    details: str = "",
    assignees: str | Sequence[str] = (),
    not_by: Literal["", "starter"] = "",
    timeout: Duration | None = None,
    default: None,
) -> Coroutine[Any, Any, T | None]: ...
@overload
def ask_person(
    question: str,
    *,
    form: type[T],
    details: str = "",
    assignees: str | Sequence[str] = (),
    not_by: Literal["", "starter"] = "",
    timeout: Duration | None = None,
    default: T = ...,
) -> Coroutine[Any, Any, T]: ...
def ask_person(
    question: str,
    *,
    form: type[Any] | None = None,
    details: str = "",
    assignees: str | Sequence[str] = (),
    approvals: int = 1,
    not_by: Literal["", "starter"] = "",
    timeout: Duration | None = None,
    default: Any = _UNSET,
) -> Coroutine[Any, Any, Any]:
    """Ask people, and wait for their answer without using a slot. Must be awaited.

    A durable call: the answer is recorded, and replayed if the task runs again.

    Args:
        question: One line of at most 500 characters.
        form: A dataclass or a ``msgspec.Struct``, whose fields a person fills in. Without one, the
            answer is ``True`` or ``False``.
        details: Further text, shown below the question.
        assignees: Who may answer: names of users, of groups or of roles; by default operators.
        approvals: How many people must approve. A single rejection decides at once.
        not_by: ``"starter"`` excludes the person who started the run.
        timeout: How long to wait.
        default: The answer after the timeout.

    Raises:
        TimeoutError: If no person has answered in time, and there is no ``default``.
        DagError: If an argument is invalid.
        RuntimeError: Outside an ``async def`` task.
    """
    if default is not _UNSET and timeout is None:
        raise dag_error("the default of ask_person() is for its timeout; give one")
    trigger = PersonTrigger(
        question,
        form=form,
        details=details,
        assignees=assignees,
        approvals=approvals,
        not_by=not_by,
        default=default,
    )
    limit = None if timeout is None else microseconds(timeout, "timeout")
    return _ask(trigger, form, limit, here())


async def _ask(
    trigger: PersonTrigger,
    form: type[Any] | None,
    timeout_us: int | None,
    source_location: SourceLocation,
) -> Any:
    call = Call("ask_person", "PersonTrigger", source_location)
    instead = "an operator waits for a PersonTrigger by defer()"
    made = current_calls("ask_person", instead=instead)
    answer = await made.await_triggers(call, (trigger,), timeout_us)
    return answer if form is None or answer is None else msgspec.convert(answer, form)


# ── checks ──────────────────────────────────────────────────────────────────────────────


def _text(name: str, value: str, limit: int, *, is_line: bool = True) -> str:
    good = _is_text(value) and len(value) <= limit and "\0" not in value
    if good and is_line:
        good = bool(value.strip()) and value.isprintable()
    if not good:
        what = f"one line of 1 to {limit}" if is_line else f"text of at most {limit}"
        raise dag_error(f"the {name} of a decision is {what} characters")
    return value


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    for name in names:
        if not (_is_text(name) and 0 < len(name) <= ASSIGNEE_LENGTH and name.isprintable()):
            raise dag_error(f"assignees are names of users, groups or roles, got {name!r}")
    if len(names) > ASSIGNEES:
        raise dag_error(f"a decision has at most {ASSIGNEES} assignees")
    return tuple(dict.fromkeys(names))


def _count(approvals: int) -> int:
    if type(approvals) is not int or not 1 <= approvals <= APPROVALS:
        raise dag_error(f"approvals takes 1 to {APPROVALS}, got {approvals!r}")
    return approvals


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_form(form: object) -> bool:
    if not isinstance(form, type):
        return False
    return dataclasses.is_dataclass(form) or issubclass(form, msgspec.Struct)


def _schema_of(form: type[Any]) -> str:
    """Return the JSON Schema of a form, with the schemas of enums moved into its fields."""
    if not _is_form(form):
        raise dag_error(f"a form is a dataclass or a msgspec.Struct, got {form!r}")
    try:
        schema = msgspec.json.schema(form)
    except (TypeError, NameError) as exc:
        raise dag_error(f"the form {form.__name__} has no JSON Schema: {exc}") from None
    known: dict[str, Any] = schema.get("$defs", {})
    root = known.pop(schema["$ref"].rpartition("/")[2]) if "$ref" in schema else schema
    if root.get("type") != "object" or not root.get("properties"):
        raise dag_error(f"the form {form.__name__} needs named fields")
    for name, field in root["properties"].items():
        named = known.get(field.get("$ref", "").rpartition("/")[2], {})
        if "enum" in named:
            rest = {key: value for key, value in field.items() if key != "$ref"}
            root["properties"][name] = {**named, **rest}
    if not str(root.get("description", "")).strip() or dataclasses.is_dataclass(form):
        root.pop("description", None)  # without a docstring, a dataclass gets its signature as one
    root["additionalProperties"] = False
    text = json.dumps({**root, **({"$defs": known} if known else {})})
    if len(text) > SCHEMA_LENGTH:
        raise dag_error(f"the form {form.__name__} is too large")
    return text


def _checked_schema(schema: str) -> str:
    if not _is_text(schema):
        raise dag_error(f"the schema of a decision is JSON text, got {schema!r}")
    wrong = schema_misfit(schema) if schema else None
    if wrong:
        raise dag_error(f"a decision cannot be asked: {wrong}")
    return schema


def _plain(default: Any) -> Any:
    try:
        plain = msgspec.to_builtins(default, str_keys=True)
        msgspec.json.encode(plain)
    except (TypeError, ValueError, RecursionError) as exc:
        raise dag_error(f"the default of a decision is not a JSON value: {exc}") from None
    return plain


def _plain_default(default: Any, form: type[Any] | None) -> Any:
    """Return a default in plain JSON types, the form in which answers are stored."""
    if default is msgspec.UNSET or default is None:
        return default
    if form is None:
        if not isinstance(default, bool):
            raise dag_error(f"the default of an approval is True or False, got {default!r}")
        return default
    try:
        plain = msgspec.to_builtins(default, str_keys=True)
        msgspec.convert(plain, form)
    except (TypeError, ValueError) as exc:
        raise dag_error(f"the default does not fit the form {form.__name__}: {exc}") from None
    return plain
