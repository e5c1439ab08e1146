"""Templates in the arguments of operators: rendered here, where user code runs, and only here.

Only text that stands in the DAG file is a template. What a parent returned, or a run was started
with, is a value: braces in it mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aioflow.author.context import RunContext, resolve
from aioflow.author.templates import environment, is_template

__all__ = ("renderer",)


def renderer(run: RunContext) -> Callable[[Any], Any]:
    """Return what renders texts, in lists, tuples and dicts too, for one try."""

    def render(value: Any) -> Any:
        match value:
            case str() if is_template(value):
                return environment().from_string(value).render(resolve("context", run))
            case list():
                return [render(item) for item in value]
            case tuple() if type(value) is tuple:
                return tuple(render(item) for item in value)
            case dict():
                return {key: render(item) for key, item in value.items()}
            case _:
                return value

    return render
