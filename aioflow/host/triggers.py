"""The role ``triggers``: hosts things that wait, by the tens of thousands, on one loop."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

from aioflow.author import codec
from aioflow.author.asking import asker
from aioflow.author.trigger import Trigger, TriggerEvent, construct, prepare
from aioflow.errors import LinkClosed, Unserializable
from aioflow.host.asker import LineAsker, as_datetime
from aioflow.host.blackbox import BlackBox
from aioflow.host.code import CodeShelf
from aioflow.host.failures import failure_of, print_traceback
from aioflow.host.loader import CodeMissing
from aioflow.host.nursery import Hosted, Nursery
from aioflow.host.outcome import LostInHost, now
from aioflow.host.shared import Line
from aioflow.messages import End, Fired, ForgetRun, Host, Order, RunInfo, TriggerEnded, Welcome
from aioflow.model import Failure

__all__ = ("CLEANUP_SECONDS", "KEY_LIMIT", "PAYLOAD_LIMIT", "TriggerHost")

CLEANUP_SECONDS = 10.0
"""How long ``cleanup`` may take; letting go of ``run`` has as much again."""

PAYLOAD_LIMIT = 1024 * 1024
"""Bytes of msgpack an event may carry."""

KEY_LIMIT = 1024
"""Bytes of UTF-8 its key may have."""

_FINISHED = "finished"
_CANCELLED = "cancelled"


class TriggerWrong(Exception):
    """A trigger did what a trigger must not do.

    Attributes:
        reason: Machine-readable, for the failure.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class HostedTrigger(Hosted):
    """A trigger in the nursery.

    Attributes:
        stage: The reason if user code raises right now.
        is_over: It has fired or failed and is letting go; no longer to be cancelled.
        failure: Why its hosting ends badly; ``None`` while or if it does not.
    """

    __slots__ = ("failure", "is_over", "order", "stage")

    def __init__(self, order: Host) -> None:
        super().__init__()
        self.order = order
        self.stage = "trigger_load"
        self.is_over = False
        self.failure: Failure | None = None


class TriggerHost:
    """Hosts each trigger in one task of the nursery.

    A hosting ends after the first event, on ``End``, or when the trigger fails; then its
    ``cleanup`` runs, and ``TriggerEnded`` tells the daemon that nothing is left of it here.
    """

    def __init__(self, line: Line, box: BlackBox, welcome: Welcome) -> None:
        self._line = line
        self._nursery: Nursery[HostedTrigger] = Nursery(
            box, 2 * CLEANUP_SECONDS, self._gone, self._abandoned
        )
        self._shelf = CodeShelf(Path(welcome.code), exclusive=False)
        self._hosted: dict[int, HostedTrigger] = {}
        self._classes: dict[tuple[str, str], Any] = {}

    def obey(self, order: Order) -> None:
        """See ``shared.Role``."""
        match order:
            case Host():
                self._take(order)
            case End():
                hosted = self._hosted.get(order.trigger_no)
                if hosted is None or hosted.order.hosting != order.hosting:
                    # It ended by itself on the way: the confirmation has been sent, or is
                    # owed to an earlier process. Saying it again does no harm.
                    self._line.report(TriggerEnded(order.trigger_no, order.hosting, now()))
                elif not hosted.is_over:
                    self._nursery.cancel(hosted, order.reason)
            case RunInfo() | ForgetRun():
                pass  # a trigger is data: it knows of no run
            case _:
                raise LinkClosed(f"a trigger host was ordered {type(order).__name__}")

    def _take(self, order: Host) -> None:
        known = self._hosted.get(order.trigger_no)
        if known is not None:
            if known.order.hosting >= order.hosting:
                return  # repeated, or late
            self._nursery.cancel(known, "reassigned")
        hosted = self._hosted[order.trigger_no] = HostedTrigger(order)
        self._nursery.start(order.trigger_no, hosted, self._host(hosted))

    # ── one hosting ─────────────────────────────────────────────────────────────────────

    async def _host(self, hosted: HostedTrigger) -> None:
        order = hosted.order
        asker.set(LineAsker(self._line, order.run_no))
        trigger: Trigger[Any] | None = None
        try:
            found = self._class(order.version, order.class_path)
            hosted.stage = "trigger_construct"
            trigger = prepare(construct(found, order.kwargs), since=as_datetime(order.since))
            hosted.stage = "trigger"
            await self._watch(trigger, hosted)
        except BaseException as exc:  # noqa: BLE001 - user code may raise anything
            if not hosted.ending:
                hosted.failure = _failure(exc, hosted.stage)
            if not (hosted.ending and isinstance(exc, asyncio.CancelledError)):
                print_traceback(exc)
        self._over(hosted)
        if trigger is not None:
            await self._clean_up(trigger, hosted.ending or _FINISHED)

    def _over(self, hosted: HostedTrigger) -> None:
        """From here on it is bounded by the clock alone."""
        hosted.is_over = True
        self._nursery.bound(hosted)

    def _class(self, version: str, class_path: str) -> type[Trigger[Any]]:
        known = self._classes.get((version, class_path))
        if known is None:
            known = self._find(version, class_path)
            if not (isinstance(known, type) and issubclass(known, Trigger)):
                raise TriggerWrong("trigger_load", f"{class_path} is not a Trigger class")
            self._classes[version, class_path] = known
            self._put_back_versions()
        found: type[Trigger[Any]] = known
        return found

    def _find(self, version: str, class_path: str) -> Any:
        try:
            return self._shelf.version(version).find_class(class_path)
        except CodeMissing:
            # One from an installed package needs nothing of the version.
            module, _, name = class_path.partition(":")
            try:
                return getattr(importlib.import_module(module), name)
            except ImportError:
                pass
            raise
        except (ImportError, AttributeError) as exc:
            raise TriggerWrong("trigger_load", f"{class_path} cannot be loaded: {exc}") from exc

    def _put_back_versions(self) -> None:
        gone = self._shelf.put_back(
            lambda: {hosted.order.version for hosted in self._hosted.values()}
        )
        if gone:
            self._classes = {k: c for k, c in self._classes.items() if k[0] not in gone}

    async def _watch(self, trigger: Trigger[Any], hosted: HostedTrigger) -> None:
        """Wait for the first event and report it.

        The generator is closed in every case. What it does against that is its own failure
        only if it had not delivered yet.
        """
        name = type(trigger).__name__
        events = await _iterator(trigger.run(), name)
        delivered = False
        try:
            async for event in events:
                self._fire(hosted, event, name)
                self._over(hosted)
                delivered = True
                break
        finally:
            if isinstance(events, AsyncGenerator):
                try:
                    await events.aclose()
                except BaseException as exc:
                    print_traceback(exc)
                    if isinstance(exc, asyncio.CancelledError):
                        raise
        if not delivered:
            raise TriggerWrong("trigger_ended", f"{name} ended without an event")

    def _fire(self, hosted: HostedTrigger, event: object, name: str) -> None:
        if hosted.ending:
            raise asyncio.CancelledError  # told to end, it swallowed that and went on
        if not isinstance(event, TriggerEvent):
            raise TriggerWrong(
                "trigger_yield",
                f"{name} yielded a {type(event).__name__}; wrap it: `yield TriggerEvent(...)`",
            )
        if event.key is not None:
            _check_key(event.key, name)
        payload = codec.encode(event.payload, f"the event of {name}")
        if len(payload) > PAYLOAD_LIMIT:
            raise TriggerWrong(
                "payload_too_large",
                f"the event of {name} has {len(payload)} bytes, {PAYLOAD_LIMIT} are allowed",
            )
        order = hosted.order
        self._line.report(Fired(order.trigger_no, order.hosting, 0, now(), payload, event.key))

    async def _clean_up(self, trigger: Trigger[Any], reason: str) -> None:
        """Let the trigger let go, whatever it does, within the time for that."""
        cls = type(trigger)
        if reason == _CANCELLED and cls.on_kill is not Trigger.on_kill:
            await _bounded(trigger.on_kill)
        if cls.cleanup is not Trigger.cleanup:
            takes_reason = bool(inspect.signature(trigger.cleanup).parameters)
            await _bounded(trigger.cleanup, *([reason] if takes_reason else []))

    # ── endings ─────────────────────────────────────────────────────────────────────────

    def _gone(self, hosted: HostedTrigger) -> None:
        order = hosted.order
        if self._hosted.get(order.trigger_no) is hosted:
            del self._hosted[order.trigger_no]
        if not hosted.is_over and not hosted.ending:
            hosted.failure = failure_of(LostInHost(), "interrupted")
        self._line.report(TriggerEnded(order.trigger_no, order.hosting, now(), hosted.failure))

    def _abandoned(self, hosted: HostedTrigger) -> None:
        hosted.failure = Failure(
            type="Abandoned",
            message=f"{hosted.order.class_path} did not end when it was told to",
            reason="abandoned",
        )
        self._gone(hosted)
        self._line.give_up_if(self._nursery.abandoned_count)


def _check_key(key: object, name: str) -> None:
    if not isinstance(key, str):
        raise TriggerWrong("trigger_yield", f"the key of {name}'s event must be text")
    try:
        size = len(key.encode())
    except UnicodeEncodeError as exc:
        raise TriggerWrong(
            "trigger_yield", f"the key of {name}'s event is no valid text: {exc}"
        ) from exc
    if size > KEY_LIMIT:
        raise TriggerWrong(
            "payload_too_large",
            f"the key of {name}'s event has {size} bytes, {KEY_LIMIT} are allowed",
        )


async def _iterator(made: object, name: str) -> AsyncIterator[object]:
    """Return what ``run`` gave as something to iterate, or say what is wrong with it."""
    if inspect.iscoroutine(made):
        # `async def run` without a yield: let it run, its outcome tells which mistake it is.
        returned = await made
        if isinstance(returned, TriggerEvent):
            raise TriggerWrong(
                "trigger_yield", f"{name}.run returned its event; it must yield it instead"
            )
        if isinstance(returned, AsyncIterator):
            return returned
        raise TriggerWrong("trigger_ended", f"{name}.run ended without an event: it has no yield")
    if isinstance(made, AsyncIterator):
        return made
    raise TriggerWrong(
        "trigger_yield", f"{name}.run must be `async def` with a yield, not {type(made).__name__}"
    )


async def _bounded(method: Any, *arguments: object) -> None:
    """Call a method of user code, def or async; what it raises goes to the log alone."""
    try:
        async with asyncio.timeout(CLEANUP_SECONDS):
            pending = method(*arguments)
            if inspect.isawaitable(pending):
                await pending
    except BaseException as exc:  # noqa: BLE001 - user code may raise anything
        print_traceback(exc)


def _failure(problem: BaseException, stage: str) -> Failure:
    match problem:
        case TriggerWrong():
            return failure_of(problem, problem.reason)
        case CodeMissing():
            return failure_of(problem, "code_missing")
        case Unserializable() if stage == "trigger":
            return failure_of(problem, "unserializable")
        case _:
            return failure_of(problem, stage)
