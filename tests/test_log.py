from __future__ import annotations

import io
import json
import logging

import pytest
import structlog
from asyncpg.exceptions import CannotConnectNowError, ConnectionDoesNotExistError

from aioflow.telemetry import log


@pytest.fixture(autouse=True)
def as_before():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(stream: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_everything_is_one_stream_of_json_with_the_ids_of_its_place():
    stream = io.StringIO()
    log.configure(stream=stream)

    with log.about(run_id="r1"):
        structlog.get_logger("ours").info("begun", n=1)
        logging.getLogger("library").warning("odd: %s", "thing")
    structlog.get_logger("ours").info("over")

    first, second, third = lines(stream)
    assert (first["event"], first["run_id"], first["n"], first["level"]) == (
        "begun",
        "r1",
        1,
        "info",
    )
    assert (second["event"], second["run_id"], second["logger"]) == ("odd: thing", "r1", "library")
    assert "run_id" not in third
    assert third["timestamp"].endswith("Z")


def test_messages_below_the_level_are_not_shown():
    stream = io.StringIO()
    log.configure(level="warning", stream=stream)

    structlog.get_logger("ours").info("chatter")
    logging.getLogger("library").info("chatter")
    structlog.get_logger("ours").error("news")

    assert [line["event"] for line in lines(stream)] == ["news"]


def test_an_exception_is_reported_in_full():
    stream = io.StringIO()
    log.configure(stream=stream)

    try:
        raise ValueError("why")
    except ValueError:
        structlog.get_logger("ours").exception("it failed")

    assert "ValueError: why" in lines(stream)[0]["exception"]


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["file", "terminal"])
@pytest.mark.parametrize(
    ("logger", "error"),
    [
        ("asyncpg.pool", FileNotFoundError(2, "no such socket")),
        ("asyncpg.pool", CannotConnectNowError("the server is shutting down")),
        ("asyncio", ConnectionDoesNotExistError("connection was closed")),
    ],
)
def test_an_error_of_the_database_driver_is_one_line_with_its_cause(stream, logger, error):
    stream.seek(0)
    stream.truncate()
    log.configure(stream=stream)

    try:
        raise error
    except Exception:
        logging.getLogger(logger).warning("it failed\nfuture: <Future>", exc_info=True)

    (line,) = stream.getvalue().splitlines()
    assert f"{type(error).__name__}: {error}" in line
    assert "it failed" in line
    assert "future" not in line


@pytest.mark.parametrize(("logger", "error"), [("asyncio", ValueError("x")), ("lib", OSError("x"))])
def test_an_error_that_is_not_of_the_database_driver_keeps_its_traceback(logger, error):
    stream = io.StringIO()
    log.configure(stream=stream)

    logging.getLogger(logger).error("it failed", exc_info=error)

    assert lines(stream)[0]["exception"] == f"{type(error).__name__}: x"


def test_a_terminal_is_not_steered_by_what_is_logged():
    stream = Terminal()
    log.configure(stream=stream)

    structlog.get_logger("ours").info("DAG \x1b[2Jgone", name="a\nb\x07")

    assert "\x1b[2J" not in stream.getvalue()
    assert "\x07" not in stream.getvalue()
    assert stream.getvalue().count("\n") == 1


def test_configuring_twice_does_not_say_everything_twice():
    log.configure(stream=io.StringIO())
    stream = io.StringIO()
    log.configure(stream=stream)

    logging.getLogger("library").warning("once")

    assert len(lines(stream)) == 1
