"""Texts among a task's arguments in the DAG file, and which of them are rendered as templates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any, NamedTuple

from aioflow.author import templates
from aioflow.author.airflow_context import CONTEXT_INSTEAD, context_hint
from aioflow.author.arguments import SPREAD
from aioflow.author.binding import Literal, Nested
from aioflow.author.context import TEMPLATE_NAMES
from aioflow.author.node import Node
from aioflow.author.start import START_KWARGS, StartTriggerArgs
from aioflow.errors import BadTemplate, DagError

__all__ = ("odd_templates", "wrong_templates")

_SHOWN = 60
_LIMIT = 200


class Text(NamedTuple):
    """A text in an argument.

    Attributes:
        field: Its location: ``filepath``, or ``env['DAY']`` for a text inside.
        is_rendered: Whether the argument is a template field.
        is_made: Whether ``__init__`` sets it, rather than the file passing it as an argument.
    """

    field: str
    text: str
    is_rendered: bool = False
    is_made: bool = False


def wrong_templates(node: Node) -> Iterator[DagError]:
    """Yield an error with its position for each template of a task that does not parse.

    Such a task still has a description: an existing run of it fails only when the template is
    rendered.
    """
    cls = node.operator
    if cls is not None and isinstance(cls.template_fields, str):
        yield DagError(
            f"task {node.task_id!r}: {cls.__name__}.template_fields is the text "
            f"{cls.template_fields!r}; make it a tuple of names: ({cls.template_fields!r},)"
        )
    for found in _texts_of(node):
        mistake = templates.mistake_in(found.text) if found.is_rendered else None
        if mistake is not None:
            yield BadTemplate(node.task_id, found.field, *mistake)


def odd_templates(node: Node) -> Iterator[str]:
    """Yield warnings about the templates of a task that parse.

    Reports braces in texts that are not rendered, and unknown names in templates. For a function,
    only texts that use names of the context: other braces may be templates of its own.
    """
    for found in _texts_of(node):
        if found.is_rendered:
            yield from _unknown_names(found)
        elif node.operator is None:
            if _names_the_run(found.text):
                yield (
                    f"argument {found.field!r} has {_shown(found.text)}, which stays as it is: "
                    "arguments of functions are no templates; give it current.ds or the like, or "
                    "make the text in the task"
                )
        elif found.is_made:
            yield (
                f"field {found.field!r} has {_shown(found.text)}, which stays as it is: __init__ "
                "sets it, and only arguments of the task are rendered; let the task be given it"
            )
        else:
            yield (
                f"field {found.field!r} has {_shown(found.text)}, which stays as it is: "
                f"{_rendered_by(node.operator)}"
            )


def _rendered_by(cls: type[Any]) -> str:
    names = ", ".join(cls.template_fields) or "none"
    return f"template_fields of {cls.__name__}: {names}"


def _unknown_names(found: Text) -> Iterator[str]:
    for name in sorted(templates.names_of(found.text) - TEMPLATE_NAMES):
        hint = context_hint(name) or f"; there are {', '.join(sorted(TEMPLATE_NAMES))}"
        yield f"field {found.field!r} names {name!r}, which templates do not know{hint}"


def _names_the_run(text: str) -> bool:
    if templates.mistake_in(text) is not None:
        return False
    return not templates.names_of(text).isdisjoint(TEMPLATE_NAMES | CONTEXT_INSTEAD.keys())


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


def _texts_of(node: Node) -> list[Text]:
    """Return the texts with braces in the file, those set by ``__init__`` last.

    At most ``_LIMIT`` of each, as a list in the file may have tens of thousands.
    """
    fields = frozenset(getattr(node.operator, "template_fields", ()))
    found = chain(_arguments(node, fields), _items(node, fields), _start_fields(node, fields))
    given = list(islice(filter(_counts, found), _LIMIT))
    rendered = [one.text for one in given if one.is_rendered]
    # A text derived from an argument loses its braces when the argument is rendered.
    made = (one for one in _made(node, fields) if not any(text in one.text for text in rendered))
    return given + list(islice(filter(_counts, made), _LIMIT))


def _counts(found: Text) -> bool:
    if found.is_rendered:
        return templates.is_template(found.text)
    return "{{" in found.text or "{%" in found.text


def _arguments(node: Node, fields: frozenset[str]) -> Iterator[Text]:
    for name, binding in node.arguments.items():
        value = binding.value if isinstance(binding, Literal | Nested) else None
        if name == START_KWARGS and name not in fields:
            yield from _by_name(value, fields if node.starts_from_trigger else frozenset())
        else:
            yield from _below(name, value, is_rendered=name in fields)


def _items(node: Node, fields: frozenset[str]) -> Iterator[Text]:
    """Yield the texts among the items that a task expands over."""
    for source in node.sources:
        name = source.parameter
        is_start = name == START_KWARGS and node.starts_from_trigger
        # As in ``worker.arguments``: items from a function or another task are not rendered.
        is_spread = SPREAD in node.arguments and not source.functions and not any(source.parents)
        by_name = SPREAD in node.arguments or (name == START_KWARGS and name not in fields)
        named = fields if is_start or is_spread else frozenset[str]()
        for item in chain.from_iterable(leaf.values for leaf in source.leaves):
            if by_name:
                yield from _by_name(item, named)
            else:
                yield from _below(name, item, is_rendered=name in fields)


def _start_fields(node: Node, fields: frozenset[str]) -> Iterator[Text]:
    """Yield the texts that the class of a task passes to its start trigger."""
    said = getattr(node.operator, "start_trigger_args", None)
    if node.starts_from_trigger and isinstance(said, StartTriggerArgs):
        yield from _by_name(said.trigger_kwargs or {}, fields)


def _made(node: Node, fields: frozenset[str]) -> Iterator[Text]:
    """Yield the texts of template fields that ``__init__`` sets and the file does not pass."""
    own = {} if node.instance is None else vars(node.instance)
    for name in sorted(fields & own.keys() - node.arguments.keys()):
        for found in _below(name, own[name], is_rendered=False):
            yield found._replace(is_made=True)


def _by_name(values: Any, fields: frozenset[str]) -> Iterator[Text]:
    if isinstance(values, Mapping):
        for name, value in values.items():
            yield from _below(str(name), value, is_rendered=name in fields)


def _below(field: str, value: object, *, is_rendered: bool) -> Iterator[Text]:
    """Yield the texts in lists, tuples and dicts, each with its location."""
    match value:
        case str():
            yield Text(field, value, is_rendered)
        case list() | tuple():
            for number, item in enumerate(value):
                yield from _below(f"{field}[{number}]", item, is_rendered=is_rendered)
        case dict():
            for key, item in value.items():
                yield from _below(f"{field}[{key!r}]", item, is_rendered=is_rendered)
        case Literal() | Nested():
            yield from _below(field, value.value, is_rendered=is_rendered)
        case _:
            pass
