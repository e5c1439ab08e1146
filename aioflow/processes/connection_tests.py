"""Runs ``worker.connection_program``, which lists the types of connections or tests one connection.

Types are plug-ins. Therefore their code runs in a separate process, with the environment of
children. After a time limit, or if the request is cancelled, the process is killed with all that it
started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import anyio
import msgspec
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from aioflow.author.client import Connection
from aioflow.errors import RequestError
from aioflow.processes.environment import MARK, child_environment
from aioflow.worker.connection_program import BEGUN, ConnectionOutcome, FoundTypes

__all__ = ("TEST_SECONDS", "ConnectionTests")

TEST_SECONDS = 10.0
"""Time limit of a test. The start of its process does not count."""

_START_SECONDS = 30.0
_PROCESSES = 2
_ANSWER_BYTES = 1024 * 1024
_PROGRAM = ("-P", "-m", "aioflow.worker.connection_program")


class ConnectionTests:
    """Lists the types of connections, and tests connections, a few at a time.

    Args:
        environment: The daemon's own environment.
        allowed: Names, or patterns of names, of further variables that children inherit.
        mark: The mark of the home's children, by which a process that outlives the daemon is found.
        test_seconds: Time limit of a test.
    """

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        allowed: tuple[str, ...] = (),
        *,
        mark: str = "",
        test_seconds: float = TEST_SECONDS,
    ) -> None:
        source = os.environ if environment is None else environment
        self._environment = child_environment(source, allowed)
        if mark:
            self._environment[MARK] = mark
        self._test_seconds = test_seconds
        self._processes = anyio.CapacityLimiter(_PROCESSES)
        self._known: FoundTypes | None = None

    async def types(self) -> FoundTypes:
        """Return the installed types. They are read only once in the life of the daemon.

        Raises:
            RequestError: If the process gives no answer.
        """
        if self._known is None:
            async with self._run("types") as (_, answer):
                try:
                    with anyio.fail_after(_START_SECONDS):
                        self._known = msgspec.json.decode(await _rest(answer), type=FoundTypes)
                except (TimeoutError, msgspec.MsgspecError) as exc:
                    raise RequestError("the types of connections cannot be read") from exc
        return self._known

    async def test(self, connection: Connection) -> ConnectionOutcome:
        """Open a connection, and return the outcome. Secrets in its message are masked.

        Raises:
            RequestError: If no process can be started.
        """
        async with self._run("test") as (process, answer):
            try:
                with anyio.fail_after(_START_SECONDS):
                    assert process.stdin is not None  # noqa: S101 - a pipe was requested
                    await process.stdin.send(msgspec.json.encode(connection))
                    await process.stdin.aclose()
                    begun = await answer.receive_exactly(len(BEGUN))
                if begun != BEGUN:
                    raise anyio.EndOfStream
            except (TimeoutError, OSError, anyio.EndOfStream, *_BROKEN) as exc:
                raise RequestError("the test of the connection did not begin") from exc
            try:
                with anyio.fail_after(self._test_seconds):
                    return msgspec.json.decode(await _rest(answer), type=ConnectionOutcome)
            except TimeoutError:
                return ConnectionOutcome(False, "", f"no answer in {self._test_seconds:g} s")
            except (msgspec.MsgspecError, *_BROKEN):
                return ConnectionOutcome(False, "", "the process of the test died")

    @asynccontextmanager
    async def _run(self, role: str) -> AsyncIterator[tuple[Process, BufferedByteReceiveStream]]:
        """Start the program.

        At the end of the block, the program and everything it started are dead.

        Raises:
            RequestError: If the machine cannot start a process now.
        """
        async with self._processes:
            try:
                process = await anyio.open_process(
                    [sys.executable, *_PROGRAM, role],
                    stderr=subprocess.DEVNULL,
                    env=self._environment,
                    cwd="/",
                    start_new_session=True,
                )
            except OSError as exc:
                raise RequestError(f"no process can be started: {exc.strerror}") from exc
            try:
                assert process.stdout is not None  # noqa: S101 - a pipe was requested
                yield process, BufferedByteReceiveStream(process.stdout)
            finally:
                with anyio.CancelScope(shield=True):
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    await process.aclose()


_BROKEN = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.IncompleteRead)


async def _rest(answer: BufferedByteReceiveStream) -> bytes:
    """Return the whole rest of the answer, within a limit."""
    found = bytearray()
    with contextlib.suppress(anyio.EndOfStream):
        while len(found) <= _ANSWER_BYTES:
            found += await answer.receive()
    return bytes(found)
