"""Runs ``def`` bodies and callbacks in threads, one at a time, alternating with the event loop.

While a body runs, the event loop is blocked and no virtual time passes. When the body sleeps or
requests a result, the loop continues. So the order of events does not depend on the speed of the
machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic, TypeVar

from aioflow.author.callbacks import Notification, outbound
from aioflow.errors import LinkClosed
from aioflow.protocol.commands import (
    Command,
    ForgetRun,
    Hello,
    Notify,
    Recall,
    Reply,
    RunCallback,
    RunInfo,
    StartTask,
)
from aioflow.protocol.reports import CallbackReturned, Ended, Recalled, TaskStarted
from aioflow.testing.fake_time import napping, virtual_loop
from aioflow.worker.callbacks import call, notify
from aioflow.worker.code.loader import CodeCache
from aioflow.worker.shared_host import ReportBuffer
from aioflow.worker.slot import result_files, run_body
from aioflow.worker.task.arguments import Runs
from aioflow.worker.task.outcome import now

__all__ = (
    "BodyHost",
    "CallingHost",
    "Turns",
)

Outcome = TypeVar("Outcome")


class _Killed(BaseException):
    """The simulated process of a body was killed. Raised in the body where it pauses."""


class _Stage:
    """A reusable thread. Starting a thread for each body would take longer than most bodies."""

    def __init__(self) -> None:
        self._body: Callable[[], object] | None = None
        self._has_body = threading.Semaphore(0)
        threading.Thread(target=self._run, daemon=True).start()

    def give(self, body: Callable[[], object]) -> None:
        """Run a body in an idle thread."""
        self._body = body
        self._has_body.release()

    def _run(self) -> None:
        while self._has_body.acquire():
            body, self._body = self._body, None
            assert body is not None  # noqa: S101 - set by ``give``
            with contextlib.suppress(_Killed):
                body()
            del body  # release the body and everything it refers to
            _free.append(self)


_free: list[_Stage] = []
"""Idle threads, shared by all nodes of this process."""


class Turns(Generic[Outcome]):
    """A body in its thread, alternating with the event loop.

    Args:
        work: Runs the body.
        on_end: Called on the loop with the result; not called for a body that was killed.
    """

    def __init__(self, work: Callable[[], Outcome], on_end: Callable[[Outcome], None]) -> None:
        self._loop = virtual_loop()
        self._work = work
        self._on_end = on_end
        self._body_resumes = threading.Semaphore(0)
        self._loop_resumes = threading.Semaphore(0)
        self._wish: Callable[[], object] | None = None
        self._ended: Outcome | None = None
        self._is_killed = self._is_over = False

    def begin(self) -> None:
        """Let the body run to its first pause."""
        if self._is_killed:
            return
        context = contextvars.copy_context()
        stage = _free.pop() if _free else _Stage()
        stage.give(partial(context.run, self._run))
        self._switch_to_body()

    def kill(self) -> None:
        """End the body where it is paused, or prevent its start."""
        self._is_killed = True
        if self._wish is not None:
            self._switch_to_body()

    def pause(self, wish: Callable[[Callable[[], None]], object]) -> None:
        """Pause the body. Called from its thread.

        The loop calls ``wish`` with a function that resumes the body.
        """
        if self._is_killed:
            raise _Killed
        self._wish = partial(wish, self._switch_to_body)
        with self._loop.at_rest():
            self._loop_resumes.release()
            self._body_resumes.acquire()
        if self._is_killed:
            raise _Killed

    def _run(self) -> None:
        self._body_resumes.acquire()
        try:
            with self._loop.at_work(), napping(self._nap):
                self._ended = self._work()
        finally:
            self._is_over = True
            self._loop_resumes.release()

    def _nap(self, seconds: float) -> None:
        self.pause(partial(self._loop.call_later, max(0.0, seconds)))

    def _switch_to_body(self) -> None:
        """Hand control to the body, and wait until it pauses or ends."""
        if self._is_over:
            return
        self._wish = None
        self._body_resumes.release()
        self._loop_resumes.acquire()
        if self._wish is not None:
            self._wish()
        elif self._ended is not None and not self._is_killed:
            self._on_end(self._ended)


class BodyHost:
    """The role ``slot``, see ``worker.slot``: runs one body after another.

    Args:
        announce: Called with the start message of each try before the try begins.
    """

    def __init__(
        self,
        reports: ReportBuffer,
        hello: Hello,
        code_cache: CodeCache,
        announce: Callable[[StartTask], None],
    ) -> None:
        self._reports = reports
        self._loop = asyncio.get_running_loop()
        self._results = result_files(hello, self._ask)
        self._runs = Runs(code_cache)
        self._announce = announce
        self._claimed: dict[tuple[int, int], StartTask] = {}
        self._running: Turns[Ended] | None = None

    def handle(self, command: Command) -> None:
        """See ``worker.shared_host.Role``."""
        match command:
            case StartTask():
                self._claimed[command.task_no, command.start_no] = command
                self._begin_next()
            case RunInfo():
                self._runs.add(command)
            case ForgetRun():
                self._runs.forget(command.run_no)
            case Recall():
                back = tuple(key for key in command.tries if self._claimed.pop(key, None))
                self._reports.report(Recalled(back))
            case _:
                raise LinkClosed(f"a slot worker was ordered {type(command).__name__}")

    def kill(self) -> None:
        """Drop the claimed tries, and end the running body where it is paused."""
        self._claimed.clear()
        if self._running is not None:
            self._running.kill()

    def _begin_next(self) -> None:
        if self._running is not None or not self._claimed:
            return
        start = self._claimed.pop(next(iter(self._claimed)))
        self._reports.report(TaskStarted(start.task_no, start.start_no, now()))
        self._announce(start)
        work = partial(run_body, start, self._runs, self._ask, self._reports.report, self._results)
        self._running = Turns(work, self._end)
        self._loop.call_soon(self._running.begin)  # so that the start is reported first

    def _end(self, ended: Ended) -> None:
        self._running = None
        self._reports.report(ended)
        self._begin_next()

    def _ask(self, run_no: int, kind: str, body: bytes) -> Reply:
        """See ``AskDaemon``; called from the body's thread."""
        running = self._running
        assert running is not None  # noqa: S101 - called by a running body
        got: list[Reply] = []

        def ask(resume: Callable[[], None]) -> None:
            def take(of: None, answer: Reply) -> None:
                got.append(answer)
                resume()

            self._reports.query_then(run_no, kind, body, take, None)

        running.pause(ask)
        return got[0]


class CallingHost:
    """The role ``callbacks``, see ``worker.callbacks``.

    Args:
        announce: Called with the number of each callback before the callback begins.
        on_notification: Called with each notification instead of sending it.
    """

    def __init__(
        self,
        reports: ReportBuffer,
        code_cache: CodeCache,
        announce: Callable[[int], None],
        on_notification: Callable[[Notification], None],
    ) -> None:
        self._reports = reports
        self._loop = asyncio.get_running_loop()
        self._runs = Runs(code_cache)
        self._announce = announce
        self._running: Turns[CallbackReturned] | None = None
        outbound.set(on_notification)

    def handle(self, command: Command) -> None:
        """See ``worker.shared_host.Role``."""
        match command:
            case RunCallback():
                self._begin(command.number, partial(call, command, self._runs, self._drive))
            case Notify():
                self._begin(command.number, partial(notify, command))
            case RunInfo():
                self._runs.add(command)
            case ForgetRun():
                self._runs.forget(command.run_no)
            case _:
                raise LinkClosed(f"a callback host was ordered {type(command).__name__}")

    def kill(self) -> None:
        """End the running callback where it is paused."""
        if self._running is not None:
            self._running.kill()

    def _begin(self, number: int, work: Callable[[], CallbackReturned]) -> None:
        self._announce(number)
        self._running = Turns(work, self._reports.report)
        self._loop.call_soon(self._running.begin)

    def _drive(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the node's event loop, while the thread of the callback waits."""
        running = self._running
        assert running is not None  # noqa: S101 - called by a running callback
        tasks: list[asyncio.Task[Any]] = []

        def wish(resume: Callable[[], None]) -> None:
            task = self._loop.create_task(coroutine)
            task.add_done_callback(lambda _: resume())
            tasks.append(task)

        running.pause(wish)
        return tasks[0].result()
