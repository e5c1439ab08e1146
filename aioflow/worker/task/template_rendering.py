"""Rendering of templates in the arguments of a task and in fields of its operator or trigger.

Templates are rendered only here, in the process where user code runs. Only strings written in the
DAG file are templates. The result of a parent and the conf of a run are values: braces in them have
no meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from aioflow.author.context import RunContext, context_value
from aioflow.author.deferral import TRIGGER_KWARGS
from aioflow.author.node import Node
from aioflow.author.templates import environment, is_template

__all__ = ("FieldTemplates", "template_renderer", "unrendered")


def template_renderer(run: RunContext) -> Callable[[Any], Any]:
    """Return a function that renders strings for one try, also inside lists, tuples and dicts."""

    def render(value: Any) -> Any:
        match value:
            case str() if is_template(value):
                return environment().from_string(value).render(context_value("context", run))
            case list():
                return [render(item) for item in value]
            case tuple() if type(value) is tuple:
                return tuple(render(item) for item in value)
            case dict():
                return {key: render(item) for key, item in value.items()}
            case _:
                return value

    return render


class FieldTemplates:
    """Decides which fields of one task are templates, and renders them.

    Args:
        node: The task. The ``template_fields`` of its operator name its templates.
        make_context: Returns the context of the try. Called at most once, and only if needed.
    """

    def __init__(self, node: Node, make_context: Callable[[], RunContext]) -> None:
        self._node = node
        self._make_context = make_context
        self._names = frozenset(getattr(node.operator, "template_fields", ()))

    @cached_property
    def context(self) -> RunContext:
        """The context of the try.

        It is created lazily, because most children of a fan-out never need it.
        """
        return self._make_context()

    def rendered(self, fields: Any) -> Any:
        """Return fields from the DAG file, with those listed in ``template_fields`` rendered."""
        if not self._names or not isinstance(fields, Mapping):
            return fields
        render = template_renderer(self.context)
        return {name: render(v) if name in self._names else v for name, v in fields.items()}

    def renderer_of(self, name: str) -> Callable[[Any], Any]:
        """Return the function that renders strings for the argument with this name.

        If the argument is not a template, return ``unrendered``.
        """
        if name in self._names:
            return template_renderer(self.context)
        if name == TRIGGER_KWARGS and self._node.starts_from_trigger:
            return self.rendered
        return unrendered


def unrendered(value: Any) -> Any:
    """Return the value unchanged."""
    return value
