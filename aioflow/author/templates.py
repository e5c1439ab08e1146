"""Templates in texts of a DAG file: detection, errors, and the names they use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any, NamedTuple

from aioflow.author.airflow_context import context_hint

__all__ = ("Mistake", "environment", "is_template", "mistake_in", "names_of")


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
        if at is None:  # it parses, so a filter or test is unknown
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
