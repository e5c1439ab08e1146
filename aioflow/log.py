"""What the daemon says of itself: one stream on standard error, ours and the libraries' alike.

Pretty on a terminal, one JSON object a line elsewhere. ``about(run_id=...)`` puts ids on every
line that is logged within it, also by the tasks that are started there.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, MutableMapping
from contextlib import AbstractContextManager
from typing import Any, TextIO

import structlog
from structlog.contextvars import bound_contextvars
from structlog.typing import Processor

__all__ = ("about", "configure")

_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code != 10}
_CONTROL[ord("\n")] = "\\n"

_QUIET = ("aiosqlite", "alembic", "asyncio", "uvicorn")
"""Libraries whose chatter helps nobody below a warning."""


def configure(*, level: str = "info", style: str = "auto", stream: TextIO | None = None) -> None:
    """Send everything that is logged to one stream; a second call replaces the first.

    Args:
        level: The least that is shown: ``debug``, ``info``, ``warning`` or ``error``.
        style: ``pretty``, ``json``, or ``auto`` for what suits the stream.
        stream: Standard error by default.
    """
    stream = stream or sys.stderr
    is_pretty = style == "pretty" or (style == "auto" and stream.isatty())
    shared = _shared_processors()
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_last_processors(is_pretty=is_pretty, colors=stream.isatty()),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def about(**ids: object) -> AbstractContextManager[None]:
    """Return a block in which every logged line carries these ids."""
    return bound_contextvars(**ids)


def _shared_processors() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]


def _last_processors(*, is_pretty: bool, colors: bool) -> list[Processor]:
    if is_pretty:
        return [_without_control, structlog.dev.ConsoleRenderer(colors=colors)]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]


def _without_control(
    logger: object, method: str, entry: MutableMapping[str, Any]
) -> Mapping[str, Any]:
    """Show control characters as text: a name in a line must not steer the terminal."""
    return {
        name: value.translate(_CONTROL)
        if isinstance(value, str) and name not in {"exception", "stack"}
        else value
        for name, value in entry.items()
    }
