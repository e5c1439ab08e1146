"""Templates in the arguments of operators, rendered only here, where user code runs.

Only strings written in the DAG file are templates. A parent's result or the conf of a run is a
value: braces in it have no meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aioflow.author.context import RunContext, resolve
from aioflow.author.templates import environment, is_template

__all__ = ("renderer",)


def renderer(run: RunContext) -> Callable[[Any], Any]:
    """Return a function that renders strings, also in lists, tuples and dicts, for one try."""

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
