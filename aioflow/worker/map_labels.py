"""Labels of mapped children: a format string filled with the arguments, or a function of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from aioflow.author.node import Node
from aioflow.protocol.commands import StartTask
from aioflow.worker.failures import one_line, print_traceback
from aioflow.worker.values import masks

__all__ = ("LABEL_LIMIT", "label_of")

LABEL_LIMIT = 200
"""Maximum characters of a label."""


def label_of(node: Node, start: StartTask, arguments: Mapping[str, Any]) -> str | None:
    """Return the label of a child at the start of a try; ``None`` if it has none.

    If user code raises, the traceback is printed to the log and the try continues.
    """
    label = node.settings.map_label
    if label is None or start.map_index < 0 or start.method:
        return None
    try:
        said = label.format(**arguments) if isinstance(label, str) else _called(label, arguments)
        return _shortened(one_line(masks.masked_text(str(said)).replace("\0", " ")))
    except BaseException as exc:  # noqa: BLE001 - user code may raise anything
        print_traceback(exc)
        return None


def _called(function: Callable[..., object], arguments: Mapping[str, Any]) -> object:
    parameters = inspect.signature(function).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return function(**arguments)
    return function(**{name: arguments[name] for name in parameters if name in arguments})


def _shortened(label: str) -> str:
    return label if len(label) <= LABEL_LIMIT else f"{label[: LABEL_LIMIT - 3]}..."
