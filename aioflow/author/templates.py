"""Detection and checks of templates in the texts of a DAG file.

The texts are in the arguments of tasks. Only texts in template fields are rendered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from itertools import chain, islice
from typing import Any, NamedTuple

from aioflow.author.arguments import SPREAD
from aioflow.author.context import CONTEXT_INSTEAD, TEMPLATE_NAMES, context_hint
from aioflow.author.deferral import TRIGGER_KWARGS, StartTriggerArgs
from aioflow.author.node import LiteralValue, Nested, Node
from aioflow.errors import BadTemplate, DagError

__all__ = (
    "Mistake",
    "environment",
    "is_template",
    "mistake_in",
    "names_of",
    "odd_templates",
    "wrong_templates",
)


class Mistake(NamedTuple):
    """A permanent error in a template, with its position, counted from 1."""

    message: str
    line: int
    column: int


def is_template(text: str) -> bool:
    """Return whether a text contains template syntax."""
    return "{{" in text or "{%" in text or "{#" in text


@cache
def environment() -> Any:
    """Return the sandbox in which all templates are rendered. Created on first use."""
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Undefined(StrictUndefined):
        """An unknown name: any use of it raises an error that names the replacement."""

        __slots__ = ()

        @property
        def _undefined_message(self) -> str:
            name = self._undefined_name
            return super()._undefined_message + (context_hint(name) if name else "")

    return ImmutableSandboxedEnvironment(
        undefined=Undefined,
        keep_trailing_newline=True,
        autoescape=False,
    )


@lru_cache(maxsize=512)
def mistake_in(text: str) -> Mistake | None:
    """Return why a template does not compile, such as an unknown filter or test."""
    from jinja2 import TemplateSyntaxError

    try:
        environment().compile(text, raw=True)
    except TemplateSyntaxError as exc:
        text = re.sub(r"\r\n?", "\n", text)  # Jinja normalizes newlines
        at = _offset(text)
        if at is None:  # the text parses, so a filter or test is unknown
            at = _offset_of_name(text, exc.lineno, exc.message or "")
        before = text[:at]
        line_start = before.rfind("\n") + 1
        return Mistake(exc.message or str(exc), before.count("\n") + 1, at - line_start + 1)
    return None


@lru_cache(maxsize=512)
def names_of(text: str) -> frozenset[str]:
    """Return the names that a valid template reads from the context."""
    from jinja2 import meta

    return frozenset(meta.find_undeclared_variables(environment().parse(text)))


def _offset(text: str) -> int | None:
    """Return the offset of a parse error. Jinja itself only reports the line."""
    from jinja2 import TemplateSyntaxError
    from jinja2.lexer import TokenStream
    from jinja2.parser import Parser

    engine = environment()
    begin = end = 0

    def pieces() -> Iterator[tuple[int, str, str]]:
        nonlocal begin, end
        for line, kind, value in engine.lexer.tokeniter(text, None):
            found = text.find(value, end)  # whitespace next to a minus sign is stripped
            begin = end if found < 0 else found
            end = begin + len(value)
            yield line, kind, value
            begin = end
        begin = end = len(text.rstrip())

    parser = Parser(engine, "")
    try:
        parser.stream = TokenStream(engine.lexer.wrap(pieces(), None, None), None, None)
        parser.parse()
    except TemplateSyntaxError:
        return begin + len(text[begin:]) - len(text[begin:].lstrip())
    return None


def _offset_of_name(text: str, line: int, message: str) -> int:
    start = sum(len(above) + 1 for above in text.split("\n")[: line - 1])
    named = re.search(r"named '([^']+)'", message)
    return start if named is None else max(text.find(named[1], start), start)


_SHOWN_CHARACTERS = 60
_TEXTS_LIMIT = 200


class FieldText(NamedTuple):
    """A text in an argument.

    Attributes:
        field: Its location: ``filepath``, or ``env['DAY']`` for a text in a container.
        is_rendered: Whether the argument is a template field.
        is_made: Whether ``__init__`` sets the text. If not, the file passes it as an argument.
    """

    field: str
    text: str
    is_rendered: bool = False
    is_made: bool = False


def wrong_templates(node: Node) -> Iterator[DagError]:
    """Yield an error with its position for each template of a task that does not parse.

    Such a task still has a description, so an existing run fails only when it renders the template.
    """
    cls = node.operator
    if cls is not None and isinstance(cls.template_fields, str):
        yield DagError(
            f"task {node.task_id!r}: {cls.__name__}.template_fields is the text "
            f"{cls.template_fields!r}; make it a tuple of names: ({cls.template_fields!r},)"
        )
    for found in _texts_of(node):
        mistake = mistake_in(found.text) if found.is_rendered else None
        if mistake is not None:
            yield BadTemplate(node.task_id, found.field, *mistake)


def odd_templates(node: Node) -> Iterator[str]:
    """Yield warnings about the templates of a task that parse.

    Warns about braces in texts that are not rendered, and about unknown names in templates. For a
    function, warns only about texts that use names of the context, because other braces may have
    another use.
    """
    for found in _texts_of(node):
        if found.is_rendered:
            yield from _unknown_names(found)
        elif node.operator is None:
            if _names_the_run(found.text):
                yield (
                    f"argument {found.field!r} has {_shown(found.text)}, which stays as it is: "
                    "arguments of functions are not templates; give it current.ds or the like, or "
                    "make the text in the task"
                )
        elif found.is_made:
            yield (
                f"field {found.field!r} has {_shown(found.text)}, which stays as it is: __init__ "
                "sets it, and only arguments of the task are rendered; pass it to the task as an "
                "argument"
            )
        else:
            yield (
                f"field {found.field!r} has {_shown(found.text)}, which stays as it is: "
                f"{_rendered_by(node.operator)}"
            )


def _rendered_by(cls: type[Any]) -> str:
    names = ", ".join(cls.template_fields) or "none"
    return f"template_fields of {cls.__name__}: {names}"


def _unknown_names(found: FieldText) -> Iterator[str]:
    for name in sorted(names_of(found.text) - TEMPLATE_NAMES):
        hint = context_hint(name) or f"; there are {', '.join(sorted(TEMPLATE_NAMES))}"
        yield f"field {found.field!r} names {name!r}, which templates do not know{hint}"


def _names_the_run(text: str) -> bool:
    if mistake_in(text) is not None:
        return False
    return not names_of(text).isdisjoint(TEMPLATE_NAMES | CONTEXT_INSTEAD.keys())


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}...")


def _texts_of(node: Node) -> list[FieldText]:
    """Return the texts with braces: first those in the file, then those that ``__init__`` sets.

    At most ``_TEXTS_LIMIT`` of each, because a list in the file may have tens of thousands.
    """
    fields = frozenset(getattr(node.operator, "template_fields", ()))
    found = chain(
        _argument_texts(node, fields), _item_texts(node, fields), _start_field_texts(node, fields)
    )
    given = list(islice(filter(_has_braces, found), _TEXTS_LIMIT))
    rendered = [one.text for one in given if one.is_rendered]
    # A text of __init__ that contains a rendered argument is not checked: when the argument is
    # rendered, the braces disappear from the text as well.
    made = (
        one for one in _init_texts(node, fields) if not any(text in one.text for text in rendered)
    )
    return given + list(islice(filter(_has_braces, made), _TEXTS_LIMIT))


def _has_braces(found: FieldText) -> bool:
    if found.is_rendered:
        return is_template(found.text)
    return "{{" in found.text or "{%" in found.text


def _argument_texts(node: Node, fields: frozenset[str]) -> Iterator[FieldText]:
    for name, binding in node.arguments.items():
        value = binding.value if isinstance(binding, LiteralValue | Nested) else None
        if name == TRIGGER_KWARGS and name not in fields:
            yield from _named_texts(value, fields if node.starts_from_trigger else frozenset())
        else:
            yield from _texts_below(name, value, is_rendered=name in fields)


def _item_texts(node: Node, fields: frozenset[str]) -> Iterator[FieldText]:
    """Yield the texts among the items that a task expands over."""
    for source in node.sources:
        name = source.parameter
        is_start = name == TRIGGER_KWARGS and node.starts_from_trigger
        # Same condition as in ``worker.task.arguments``: items from a function or a task are not
        # rendered.
        is_spread = SPREAD in node.arguments and not source.functions and not any(source.parents)
        by_name = SPREAD in node.arguments or (name == TRIGGER_KWARGS and name not in fields)
        named = fields if is_start or is_spread else frozenset[str]()
        for item in chain.from_iterable(leaf.values for leaf in source.leaves):
            if by_name:
                yield from _named_texts(item, named)
            else:
                yield from _texts_below(name, item, is_rendered=name in fields)


def _start_field_texts(node: Node, fields: frozenset[str]) -> Iterator[FieldText]:
    """Yield the texts that the class of a task passes to its start trigger."""
    said = getattr(node.operator, "start_trigger_args", None)
    if node.starts_from_trigger and isinstance(said, StartTriggerArgs):
        yield from _named_texts(said.trigger_kwargs or {}, fields)


def _init_texts(node: Node, fields: frozenset[str]) -> Iterator[FieldText]:
    """Yield the texts of template fields that ``__init__`` sets and the file does not pass."""
    own = {} if node.instance is None else vars(node.instance)
    for name in sorted(fields & own.keys() - node.arguments.keys()):
        for found in _texts_below(name, own[name], is_rendered=False):
            yield found._replace(is_made=True)


def _named_texts(values: Any, fields: frozenset[str]) -> Iterator[FieldText]:
    if isinstance(values, Mapping):
        for name, value in values.items():
            yield from _texts_below(str(name), value, is_rendered=name in fields)


def _texts_below(field: str, value: object, *, is_rendered: bool) -> Iterator[FieldText]:
    """Yield the texts in lists, tuples and dicts, each with its location."""
    match value:
        case str():
            yield FieldText(field, value, is_rendered)
        case list() | tuple():
            for number, item in enumerate(value):
                yield from _texts_below(f"{field}[{number}]", item, is_rendered=is_rendered)
        case dict():
            for key, item in value.items():
                yield from _texts_below(f"{field}[{key!r}]", item, is_rendered=is_rendered)
        case LiteralValue() | Nested():
            yield from _texts_below(field, value.value, is_rendered=is_rendered)
        case _:
            pass
