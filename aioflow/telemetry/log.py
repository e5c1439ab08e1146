"""The log of the daemon: one stream on standard error, for the daemon and its libraries.

On a terminal, lines are formatted for people; elsewhere, each line is a JSON object. In a block of
``about(run_id=...)``, these ids are added to every line, including lines of tasks started there.

structlog is imported only when logging is configured or a line is logged, because many commands log
nothing.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TextIO

__all__ = ("Logger", "about", "configure")

_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code != 10}
_CONTROL[ord("\n")] = "\\n"

_QUIET = ("aiosqlite", "alembic", "asyncio", "uvicorn")
"""Libraries whose messages below level warning are not useful."""


_DRIVER = "asyncpg"


class Logger:
    """Logs events, with facts as fields, under the name of a module.

    Args:
        name: The name of the module.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def info(self, event: str, **facts: object) -> None:
        """Log an event at level info."""
        self._log("info", event, facts)

    def warning(self, event: str, **facts: object) -> None:
        """Log a condition that may need attention."""
        self._log("warning", event, facts)

    def error(self, event: str, **facts: object) -> None:
        """Log a condition that needs attention."""
        self._log("error", event, facts)

    def exception(self, event: str, **facts: object) -> None:
        """Log an error with the exception that is being handled."""
        self._log("exception", event, facts)

    def _log(self, method: str, event: str, facts: Mapping[str, object]) -> None:
        with _rich_only_on_a_terminal():
            import structlog
        getattr(structlog.get_logger(self._name), method)(event, **facts)


@contextmanager
def _rich_only_on_a_terminal() -> Iterator[None]:
    """Let structlog import Rich, which formats tracebacks, only if there is a terminal.

    The import of Rich takes four times as long as that of structlog itself.
    """
    if {"rich", "structlog"} & sys.modules.keys() or sys.stderr.isatty():
        yield
        return
    sys.modules["rich"] = None  # type: ignore[assignment] # as if it were not installed
    try:
        yield
    finally:
        del sys.modules["rich"]


def configure(*, level: str = "info", style: str = "auto", stream: TextIO | None = None) -> None:
    """Send all log lines to one stream. A second call replaces the first.

    Args:
        level: The lowest level that is shown: ``debug``, ``info``, ``warning`` or ``error``.
        style: ``pretty``, ``json``, or ``auto``, which depends on the stream.
        stream: The stream; standard error by default.
    """
    with _rich_only_on_a_terminal():
        import structlog

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
            foreign_pre_chain=[_without_driver_traceback, *shared],
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
    """Return a context manager that adds these ids to every line logged in its block."""
    from structlog.contextvars import bound_contextvars

    return bound_contextvars(**ids)


def _shared_processors() -> list[Callable[..., Any]]:
    import structlog

    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]


def _last_processors(*, is_pretty: bool, colors: bool) -> list[Callable[..., Any]]:
    import structlog

    if is_pretty:
        return [_without_control, structlog.dev.ConsoleRenderer(colors=colors)]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]


def _without_driver_traceback(
    logger: object, method: str, entry: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Reduce an error of the database driver to one line with its cause.

    A lost connection is not a defect, and its traceback shows only code of the driver. The driver
    logs such errors itself. The event loop logs the errors of connections that no task awaits.
    """
    error = (entry.get("exc_info") or (None, None))[1]
    name = entry["_record"].name
    is_of_driver = name.partition(".")[0] == _DRIVER
    is_of_loop = name == "asyncio" and type(error).__module__.partition(".")[0] == _DRIVER
    if error is not None and (is_of_driver or is_of_loop):
        del entry["exc_info"]
        entry["event"] = entry["event"].partition("\n")[0]
        entry["error"] = f"{type(error).__name__}: {error}"
    return entry


def _without_control(
    logger: object, method: str, entry: MutableMapping[str, Any]
) -> Mapping[str, Any]:
    """Escape control characters, so that a name in a line cannot control the terminal."""
    return {
        name: value.translate(_CONTROL)
        if isinstance(value, str) and name not in {"exception", "stack"}
        else value
        for name, value in entry.items()
    }
