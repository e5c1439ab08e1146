"""One slot: a process that runs ``def`` bodies one after the other, and its replacement.

A try given to the slot is in one of three places: *waiting* for a process that can take it,
*sent* (claimed) or *begun*. When a process dies, what had begun in it failed, what was only
sent goes back to the engine, and what waits is given to the next process.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TypeAlias, TypeGuard

import anyio

from aioflow.children import Child, NoRoom
from aioflow.effects import StartTry
from aioflow.executors.printing import Printing
from aioflow.executors.wiring import Outgoing, Wiring, may_ask
from aioflow.inputs import Input
from aioflow.messages import (
    Ask,
    Began,
    Deferred,
    Ended,
    EventsHandled,
    Failed,
    Labelled,
    NotReadyYet,
    Recalled,
    Report,
    Skipped,
    Succeeded,
)
from aioflow.model import Failure, RunNo, StartNo, TaskNo
from aioflow.orders import ForgetRun, Recall, RunInfo

__all__ = ("Worker",)

TRIES_LIMIT = 100_000
"""A process is replaced after this many tries, whatever they leaked. (What its slot is granted
meanwhile waits some 0.3 s for a start and an import: of a hundred tries less than one shall.)"""
MEMORY_LIMIT_BYTES = 1024 * 1024 * 1024
"""So it is when it has grown this large; looked at every ``MEMORY_LOOK`` tries."""
MEMORY_LOOK = 64

RUNS_KEPT = 128
"""Runs a process remembers; of more it is told again when it gets a try of theirs."""

STUCK_FACTOR = 10
STUCK_FLOOR_US = 5_000
SILENT_DEATHS_LIMIT = 3
"""Processes in a row may die before they report anything, then a try is charged for it."""

FIRST_DELAY_SECONDS = 0.1
LONGEST_DELAY_SECONDS = 5.0

_ENDED = (Succeeded, Failed, Skipped, NotReadyYet, Deferred, EventsHandled)

_NO_PROCESS = Failure(type="Killed", message="the slot has no process", reason="killed")

_logger = logging.getLogger(__name__)

TryKey: TypeAlias = tuple[TaskNo, StartNo]


class _Try:
    """A try that was sent to the process."""

    __slots__ = ("began", "began_us", "effect", "is_recalled", "is_stopped", "is_timed_out")

    def __init__(self, effect: StartTry) -> None:
        self.effect = effect
        self.began: Began | None = None
        self.began_us = 0
        self.is_recalled = False
        self.is_stopped = False
        self.is_timed_out = False


class Worker:
    """One slot. ``run`` keeps a process for it; the verbs are called by ``SlotExecutor``."""

    hosts_triggers = False

    def __init__(self, number: int, wiring: Wiring) -> None:
        self._number = number
        self._wiring = wiring
        self._waiting: dict[TryKey, StartTry] = {}
        self._wanted = anyio.Event()
        self._silent_deaths = 0
        self._spawn_failures = 0
        self._lacks_room = False
        self._forget_process()

    def _forget_process(self) -> None:
        self._child: Child | None = None
        self._outgoing: Outgoing | None = None
        self._is_accepting = False
        self._has_reported = False
        self._version = ""
        self._told: dict[RunNo, RunInfo] = {}
        self._sent: dict[TryKey, _Try] = {}
        self._begun: _Try | None = None
        self._tries = 0
        self._printing: Printing | None = None
        self._nap = anyio.CancelScope()
        self._nap_until: int | None = None

    # ── verbs ───────────────────────────────────────────────────────────────────────────

    def start(self, effect: StartTry) -> None:
        """Send it to the process, or keep it for the next one if this one cannot take it."""
        if self._can_take(effect):
            self._send_start(effect)
            return
        self._waiting[_key(effect)] = effect
        self._retire_if_due()
        self._wanted.set()

    def stop(self, key: TryKey) -> None:
        """End a try at once, with all its process has started; it reports nothing more."""
        if self._waiting.pop(key, None) is not None:
            return
        found = self._sent.get(key)
        if found is None:
            return  # it has ended
        found.is_stopped = True
        if found.began is None:
            self._order(Recall((key,)))
        else:
            self._kill()

    def recall(self, keys: Sequence[TryKey]) -> None:
        """Give back those of these tries that have not begun."""
        here = tuple(key for key in keys if self._waiting.pop(key, None) is not None)
        if here:
            self._wiring.report([Recalled(here)])
        there = tuple(key for key in keys if key in self._sent)
        if there:
            self._order(Recall(there))

    def forget(self, run_no: RunNo) -> None:
        """Tell the process that a run has ended."""
        if self._told.pop(run_no, None) is not None:
            self._order(ForgetRun(run_no))

    # ── an asker, see wiring.Asker ──────────────────────────────────────────────────────

    @property
    def is_open(self) -> bool:
        """Whether an answer still reaches the process."""
        return self._child is not None and self._child.is_open

    def serves(self, run_no: RunNo) -> bool:
        """Whether the process was told of this run."""
        return run_no in self._told

    def info(self, run_no: RunNo) -> RunInfo | None:
        """Return what the process was told of this run."""
        return self._told.get(run_no)

    def send(self, messages: Sequence[object]) -> None:
        """Send answers."""
        for message in messages:
            self._order(message)

    # ── the process ─────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Keep a process until cancelled."""
        while True:
            await self._wait_until_wanted()
            self._settle(await self._serve())
            self._forget_process()

    async def _wait_until_wanted(self) -> None:
        """Return at once, unless processes have died or failed to start without use."""
        failures = self._silent_deaths + self._spawn_failures
        if self._lacks_room:
            await self._wiring.children.room()
        elif failures:
            delay = FIRST_DELAY_SECONDS * 2.0 ** min(failures - 1, 10)
            await self._wiring.clock.sleep(min(delay, LONGEST_DELAY_SECONDS))
        if (failures or self._lacks_room) and not self._waiting:
            await self._wanted.wait()
        self._lacks_room = False
        self._wanted = anyio.Event()

    async def _serve(self) -> Failure:
        """Run one process until it is dead; return what became of it."""
        failure = _NO_PROCESS
        try:
            async with self._wiring.children.child(
                "slot", on_reports=self._take, on_output=self._print
            ) as child:
                self._spawn_failures = 0
                self._adopt(child)
                async with anyio.create_task_group() as group:
                    group.start_soon(self._watch_the_time)
                    failure = await child.ended()
                    group.cancel_scope.cancel()
        except* NoRoom:
            self._lacks_room = True  # what waits can wait longer
        except* OSError as exc:
            self._spawn_failures += 1
            _logger.error("slot %d has no process: %s", self._number, exc.exceptions)  # noqa: TRY400
        if self._printing is not None:
            await self._printing.finish()
        return failure

    async def _print(self, data: bytes) -> None:
        if self._printing is not None:
            await self._printing.keep(data)

    def _adopt(self, child: Child) -> None:
        self._child = child
        self._is_accepting = True
        self._outgoing = Outgoing(child)
        self._printing = Printing(self._wiring.tasklog, child.log_nonce)
        child.send([self._wiring.welcome("slot")])
        waiting, self._waiting = self._waiting, {}
        for effect in waiting.values():
            self.start(effect)

    def _can_take(self, effect: StartTry) -> bool:
        return (
            self._is_accepting and not self._waiting and self._version in {"", effect.info.version}
        )

    def _send_start(self, effect: StartTry) -> None:
        info = effect.info
        self._version = info.version
        if self._told.pop(info.run_no, None) is None:
            self._make_room()
            self._order(info)
        self._told[info.run_no] = info  # now the last to be forgotten
        key = _key(effect)
        self._sent[key] = _Try(effect)
        if self._printing is not None:
            self._printing.expect(effect.start)
        self._order(effect.start)
        if self._begun is not None:
            self._begun.is_recalled = False  # something stands behind it again
        self._rearm()

    def _make_room(self) -> None:
        """Let the process forget the run it has had nothing of for longest, if it knows many."""
        if len(self._told) < RUNS_KEPT:
            return
        busy = {sent.effect.info.run_no for sent in self._sent.values()}
        idle = next((run_no for run_no in self._told if run_no not in busy), None)
        if idle is not None:
            self.forget(idle)

    def _order(self, message: object) -> None:
        if self._outgoing is not None:
            self._outgoing.put(message)

    def _kill(self) -> None:
        self._is_accepting = False
        if self._child is not None:
            self._child.kill()

    def _retire_if_due(self) -> None:
        """Let an idle process end if it has served enough, or another version is wanted."""
        if self._sent or not self._is_accepting or self._child is None:
            return
        too_large = (
            self._tries % MEMORY_LOOK == 0
            and self._tries > 0
            and self._child.memory_bytes() > MEMORY_LIMIT_BYTES
        )
        if self._waiting or too_large or self._tries >= TRIES_LIMIT:
            self._is_accepting = False
            self._child.dismiss()

    # ── reports ─────────────────────────────────────────────────────────────────────────

    def _take(self, reports: list[Report]) -> None:
        passed: list[Input] = []
        over = {_key_of(report) for report in reports if _tells_begin(report)}
        for report in reports:
            if isinstance(report, Began):
                self._take_begin(report, passed, is_told=_key_of(report) in over)
            elif isinstance(report, _ENDED):
                self._take_end(report, passed)
            elif isinstance(report, Labelled):
                self._take_label(report, passed)
            elif isinstance(report, Recalled):
                self._take_back(report, passed)
            elif isinstance(report, Ask):
                if may_ask(self, report):
                    self._wiring.ask(self, report)
            else:
                _logger.warning("slot %d reported %s", self._number, type(report).__name__)
        self._has_reported = True
        self._silent_deaths = 0
        if passed:
            self._wiring.report(passed)
        self._retire_if_due()
        self._rearm()

    def _take_begin(self, report: Began, passed: list[Input], *, is_told: bool) -> None:
        """Note it; pass it on unless its end, which came along with it, tells the same."""
        found = self._sent.get(_key_of(report))
        if found is None:
            return
        found.began = report
        found.began_us = self._wiring.clock.monotonic_us()
        self._begun = found
        if found.is_stopped:
            self._kill()  # the recall came too late
        elif not is_told:
            passed.append(report)

    def _take_label(self, report: Labelled, passed: list[Input]) -> None:
        found = self._sent.get(_key_of(report))
        if found is not None and not found.is_stopped:
            passed.append(report)

    def _take_end(self, report: Ended, passed: list[Input]) -> None:
        found = self._sent.pop(_key_of(report), None)
        if found is None:
            return
        self._tries += 1
        if self._begun is found:
            self._begun = None
        if not found.is_stopped:
            passed.append(report)

    def _take_back(self, report: Recalled, passed: list[Input]) -> None:
        found = [(key, self._sent.pop(key, None)) for key in report.tries]
        back = tuple(key for key, tried in found if tried is not None and not tried.is_stopped)
        if back:
            passed.append(Recalled(back))

    def _settle(self, failure: Failure) -> None:
        """Tell the engine what became of the tries a dead process had."""
        alive = {key: tried for key, tried in self._sent.items() if not tried.is_stopped}
        reports: list[Input] = [
            self._failed(tried, failure) for tried in alive.values() if tried.began is not None
        ]
        back = [key for key, tried in alive.items() if tried.began is None]
        if self._is_accepting and not self._has_reported:  # it died of itself
            self._silent_deaths += 1
            if back and self._silent_deaths >= SILENT_DEATHS_LIMIT:
                # Going round for ever helps nobody: the first in line answers for it.
                reports.append(self._failed(alive[back.pop(0)], failure, interrupted=True))
                self._silent_deaths = 0
        if back:
            reports.append(Recalled(tuple(back)))
        if reports:
            self._wiring.report(reports)

    def _failed(self, tried: _Try, failure: Failure, *, interrupted: bool = False) -> Failed:
        if tried.is_timed_out:
            seconds = (tried.effect.timeout_us or 0) / 1e6
            message = f"the try took longer than its {seconds:g} s and was killed"
            failure = Failure(type="TaskTimeout", message=message, reason="timeout")
        start = tried.effect.start
        return Failed(
            task_no=start.task_no,
            start_no=start.start_no,
            began_at=None if tried.began is None else tried.began.at,
            at=self._wiring.clock.now(),
            failure=failure,
            # Killed from outside is nobody's fault; what a body does to its process is its own.
            interrupted=interrupted or failure.reason == "killed",
        )

    # ── time ────────────────────────────────────────────────────────────────────────────

    async def _watch_the_time(self) -> None:
        """End what runs longer than it may; call back what stands behind a slow try."""
        clock = self._wiring.clock
        while True:
            with anyio.CancelScope() as self._nap:
                self._nap_until = self._next_deadline()
                if self._nap_until is None:
                    await anyio.sleep_forever()
                else:
                    await clock.sleep(max(0, self._nap_until - clock.monotonic_us()) / 1e6)
            self._enforce()

    def _rearm(self) -> None:
        """Wake the watch if something is due sooner than it thinks; it may wake too early."""
        due = self._next_deadline()
        if due is not None and (self._nap_until is None or due < self._nap_until):
            self._nap_until = due
            self._nap.cancel()

    def _next_deadline(self) -> int | None:
        tried = self._begun
        if tried is None or tried.is_timed_out:
            return None
        timeout_at = self._timeout_at(tried)
        if tried.is_recalled or len(self._sent) < 2:
            return timeout_at
        stuck_at = _stuck_at(tried)
        return stuck_at if timeout_at is None else min(timeout_at, stuck_at)

    def _timeout_at(self, tried: _Try) -> int | None:
        timeout_us = tried.effect.timeout_us
        return None if timeout_us is None else tried.began_us + timeout_us

    def _enforce(self) -> None:
        tried, now = self._begun, self._wiring.clock.monotonic_us()
        if tried is None:
            return
        timeout_at = self._timeout_at(tried)
        if timeout_at is not None and now >= timeout_at:
            tried.is_timed_out = True
            self._kill()
        elif not tried.is_recalled and len(self._sent) > 1 and now >= _stuck_at(tried):
            tried.is_recalled = True
            self._order(Recall(tuple(key for key, sent in self._sent.items() if not sent.began)))


def _key(effect: StartTry) -> TryKey:
    return (effect.start.task_no, effect.start.start_no)


def _key_of(report: Began | Ended | Labelled) -> TryKey:
    return (report.task_no, report.start_no)


def _tells_begin(report: Report) -> TypeGuard[Ended]:
    return isinstance(report, _ENDED) and report.began_at is not None


def _stuck_at(tried: _Try) -> int:
    return tried.began_us + STUCK_FACTOR * max(STUCK_FLOOR_US, tried.effect.expected_us)
