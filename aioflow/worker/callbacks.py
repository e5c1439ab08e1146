"""The role ``callbacks``: runs callbacks of user code and sends alert notifications.

It handles one command at a time in the main thread. The daemon sends the next one after each reply.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from aioflow.author.callbacks import Callback as Function
from aioflow.author.callbacks import EmailNotifier, WebhookNotifier
from aioflow.author.client import set_process_values
from aioflow.author.context import context_value
from aioflow.errors import LinkClosed, NotificationFailed
from aioflow.model.ids import clear_number
from aioflow.model.states import Failure
from aioflow.model.timestamps import to_datetime
from aioflow.protocol.commands import Command, ForgetRun, Hello, Notify, Ping, RunCallback, RunInfo
from aioflow.protocol.outbox import Alert, Callback
from aioflow.protocol.reports import CallbackReturned, Pong
from aioflow.worker.code.loader import CodeCache
from aioflow.worker.failures import failure_of, print_traceback
from aioflow.worker.link import BlockingLink
from aioflow.worker.process_tree import Orphans
from aioflow.worker.query import values
from aioflow.worker.stdio import Descriptors, configure_logging, flush, line_by_line
from aioflow.worker.task.arguments import KnownRun, Runs

__all__ = ("CallbackHost", "Drive", "call", "notify")

Drive: TypeAlias = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine to completion."""


class CallbackHost:
    """Runs the callbacks of one code version, and sends alerts.

    Args:
        link: Link to the daemon, which has already sent ``Hello``.
        nonce: Distinguishes the marks that aioflow writes to the output from the output of user
            code.
    """

    def __init__(self, link: BlockingLink, hello: Hello, nonce: bytes) -> None:
        self._link = link
        self._runs = Runs(CodeCache(Path(hello.code), exclusive=True))
        self._descriptors = Descriptors(nonce)
        self._orphans = Orphans()

    def run(self, first: Sequence[Command] = ()) -> None:
        """Serve until the daemon closes the link."""
        line_by_line()
        configure_logging()
        for command in first:
            self._handle(command)
        while True:
            for command in self._link.receive():
                self._handle(command)

    def _handle(self, command: Command) -> None:
        match command:
            case Ping():
                self._link.send([Pong()])
            case RunInfo():
                self._runs.add(command)
            case ForgetRun():
                self._runs.forget(command.run_no)
            case RunCallback():
                self._descriptors.mark(command.number)
                self._answer(call(command, self._runs, asyncio.run))
            case Notify():
                self._descriptors.mark(command.number)
                self._answer(notify(command))
            case _:
                raise LinkClosed(f"a callback host was ordered {type(command).__name__}")

    def _answer(self, answer: CallbackReturned) -> None:
        flush()
        self._orphans.kill()
        self._link.send([answer])


def call(command: RunCallback, runs: Runs, drive: Drive) -> CallbackReturned:
    """Run the user's callbacks for an event. Each one runs even if an earlier one failed.

    Args:
        runs: The known runs. They must include the run of the event.
        drive: Runs a callback that is ``async def``.
    """
    failed: list[BaseException] = []
    try:
        callback = msgspec.msgpack.decode(command.body, type=Callback)
        set_process_values(values.values_by_name(command.names, command.values))
        run = runs.known(command.run_no)
        for function in _functions(run, callback):
            try:
                _run(function, _context(run, callback, command.number), drive)
            except BaseException as exc:  # noqa: BLE001 - user code may raise anything
                print_traceback(exc)
                failed.append(exc)
    except BaseException as exc:  # noqa: BLE001 - importing the DAG file is user code
        print_traceback(exc)
        failed.append(exc)
    finally:
        set_process_values({})
    return _called(command.number, failed)


def _functions(run: KnownRun, callback: Callback) -> tuple[Function, ...]:
    """Return the callbacks to run; empty if the DAG file no longer defines any."""
    if callback.task_index < 0:
        return run.dag.callbacks.get(callback.event, ())
    return run.dag.nodes[callback.task_index].settings.callbacks.get(callback.event, ())


def _run(function: Function, context: dict[str, Any], drive: Drive) -> None:
    found = function(context)
    if inspect.iscoroutine(found):
        drive(found)


def _context(run: KnownRun, callback: Callback, number: int) -> dict[str, Any]:
    own = run.own_context()
    if callback.task_index >= 0:
        own = replace(
            own,
            task_id=run.dag.nodes[callback.task_index].task_id,
            try_number=callback.try_number,
            map_index=callback.map_index,
            task_no=callback.task_no,
            clear_number=clear_number(callback.start_no),
        )
    failure = callback.failure
    key = own.idempotency_key.rstrip("/")
    context: dict[str, Any] = context_value("context", own)
    context |= {
        "event": callback.event,
        "state": callback.state,
        "at": to_datetime(callback.at),
        "error": None if failure is None else msgspec.structs.asdict(failure),
        "exception": None if failure is None else f"{failure.type}: {failure.message}",
        "idempotency_key": f"{key}/{callback.event}/{number}",
        "url": callback.url or None,
    }
    if callback.asked is not None:
        asked = callback.asked
        deadline = None if asked.deadline is None else to_datetime(asked.deadline).isoformat()
        context["decision"] = {**msgspec.structs.asdict(asked), "deadline": deadline}
    return context


def notify(command: Notify) -> CallbackReturned:
    """Send an alert over every configured channel, even if sending over another one fails."""
    alert = msgspec.msgpack.decode(command.body, type=Alert)
    failed: list[BaseException] = []
    try:
        set_process_values(values.values_by_name(command.names, command.values))
        for send in _ways(command):
            try:
                send(_alerted(alert, command))
            except BaseException as exc:  # noqa: BLE001 - the other channels are still used
                failed.append(exc)
    except BaseException as exc:  # noqa: BLE001 - an invalid setting may raise anything
        failed.append(exc)
    finally:
        set_process_values({})
    return _called(command.number, failed)


def _ways(command: Notify) -> list[Callable[[Mapping[str, Any]], None]]:
    ways: list[Callable[[Mapping[str, Any]], None]] = []
    if command.webhook or command.webhook_secret:
        ways.append(
            WebhookNotifier(
                command.webhook,
                url_secret=command.webhook_secret,
                signing_secret=command.signing_secret,
            )
        )
    if command.email:
        mail = EmailNotifier(command.email, connection=command.connection, sender=command.sender)
        ways.append(mail)
    return ways


def _alerted(alert: Alert, command: Notify) -> dict[str, Any]:
    """Return the context for the notifiers."""
    where = " of ".join(part for part in (alert.task_id, alert.run_id, alert.dag_id) if part)
    return {
        "event": "alert",
        "state": alert.reason,
        "dag_id": alert.dag_id,
        "run_id": alert.run_id,
        "task_id": alert.task_id,
        "text": f"{alert.reason}: {f'{where}: ' if where else ''}{alert.message}",
        "idempotency_key": f"alert/{command.number}",
        "url": command.url or None,
    }


def _called(number: int, failed: Sequence[BaseException]) -> CallbackReturned:
    """Return the report. It requests a retry if at least one failure is transient."""
    if not failed:
        return CallbackReturned(number)
    passing = [exc for exc in failed if isinstance(exc, NotificationFailed) and exc.may_pass]
    failure: Failure = failure_of((passing or failed)[0])
    return CallbackReturned(number, failure, may_pass=bool(passing))
