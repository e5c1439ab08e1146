"""Slot workers: a bounded number of busy processes, and idle processes besides them.

A process serves one DAG version for its whole life, so a slot that gets work of another file needs
another process. The former process stays idle, and any slot may use it again. So work that
alternates between files starts no new processes. A spare process without loaded code is ready for
a version that has no process.

A try assigned to a slot *waits* until the slot has a process that accepts it. A slot has a process
only while that process has unfinished tries.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Protocol

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus

from aioflow.clock import backoff_seconds
from aioflow.core.state.child_roles import interpreter_of
from aioflow.errors import InterpreterUnusable
from aioflow.executors.executor_context import ExecutorContext
from aioflow.executors.worker_process import (
    FROZEN_SECONDS,
    NO_PROCESS,
    Heartbeat,
    Process,
    TryKey,
    beat_seconds,
    key_of,
)
from aioflow.model.ids import RunNo
from aioflow.model.states import Failure
from aioflow.processes import Launch, NoHeadroom, memory_limit_bytes
from aioflow.protocol.effects import RecallTries, StartTry, StopTry
from aioflow.protocol.inputs import WorkerUnresponsive
from aioflow.protocol.reports import Recalled

__all__ = (
    "IDLE_SECONDS",
    "MEMORY_SHARE",
    "Slot",
    "Worker",
    "WorkerPool",
    "WorkerProcesses",
)

HEAD_START_SECONDS = 0.1
"""Delay before a taken spare process is replaced.

A start takes at least as much processor time as the first task of a small DAG file.
"""

FIRST_DELAY_SECONDS = 0.1
LONGEST_DELAY_SECONDS = 5.0

_logger = logging.getLogger(__name__)


class Slot(Protocol):
    """The part of a slot that ``WorkerProcesses`` uses; see ``Worker``."""

    @property
    def wanted_version(self) -> str | None:
        """Version of the first try that waits for a process; ``None`` if none waits."""

    @property
    def wanted_interpreter(self) -> str:
        """Interpreter of the version; empty for the daemon's own."""

    def give_up(self) -> None:
        """Return the waiting tries to the engine, because their interpreter is unusable."""

    def use(self, process: Process) -> None:
        """Accept a process and send it the waiting tries."""

    def lost(self, process: Process, failure: Failure) -> None:
        """Settle the tries of a dead process."""

    def watch(self, process: Process) -> bool:
        """Ping the process. Return whether to abandon it."""


class WorkerProcesses:
    """Starts processes, assigns them to slots, and caches idle ones.

    Args:
        slots: Number of slots. As many idle processes with loaded code are retained without limit.
        idle_seconds: Lifetime of an idle process beyond that number.
        memory_bytes: Memory limit of all idle processes, enforced while there are more than slots.
        frozen_seconds: Maximum seconds for which a busy process may neither answer nor compute.
    """

    def __init__(
        self,
        context: ExecutorContext,
        slots: int,
        *,
        idle_seconds: float,
        memory_bytes: float,
        frozen_seconds: float,
    ) -> None:
        self._context = context
        self._slots = slots
        self._idle_seconds = idle_seconds
        self._memory_bytes = memory_bytes
        self._frozen_seconds = frozen_seconds
        self._group: TaskGroup | None = None
        self._all: set[Process] = set()
        self._waiting_slots: dict[Slot, None] = {}
        self._holders: dict[Process, Slot] = {}
        self._unloaded: list[Process] = []
        self._idle: dict[str, list[Process]] = {}
        self._idle_count = self._idle_bytes = 0
        self._starting = 0
        self._starting_others: Counter[str] = Counter()
        self._failures = 0
        self._is_backing_off = self._is_replenishing = self._is_aging = False
        self._is_watching = math.isinf(frozen_seconds)  # infinite: never start the watch

    async def run(self) -> None:
        """Run processes until cancelled. Then kill all of them."""
        async with anyio.create_task_group() as self._group:
            self._start(self._slots)
            await anyio.sleep_forever()

    # ── verbs ───────────────────────────────────────────────────────────────────────────

    def request_process(self, slot: Slot) -> None:
        """Assign a process to a slot for its waiting tries, now or as soon as one is available."""
        version = slot.wanted_version
        if version is None:
            return
        process = self._take_idle(version, slot.wanted_interpreter)
        if process is None:
            self._waiting_slots[slot] = None
            self._fill()
            return
        was_spare = not process.version
        self._assign(process, slot)
        if was_spare:
            self._fill()

    def return_process(self, process: Process) -> None:
        """Assign a process that its slot no longer needs to another slot, or cache it."""
        del self._holders[process]
        had_failures, self._failures = self._failures > 0, 0
        if process.is_spent:
            process.dismiss()
            self._fill()
            return
        self._offer(process)
        if had_failures:
            self._fill()

    def forget(self, run_no: RunNo) -> None:
        """Drop a run that has ended, also in all processes."""
        for process in self._all:
            process.forget(run_no)

    # ── assignment ──────────────────────────────────────────────────────────────────────

    def _assign(self, process: Process, slot: Slot) -> None:
        self._waiting_slots.pop(slot, None)
        self._holders[process] = slot
        slot.use(process)
        if not self._is_watching and self._group is not None:
            self._is_watching = True
            self._group.start_soon(self._watch)

    async def _watch(self) -> None:
        """Ping the processes as long as slots have any."""
        while self._holders:
            await self._context.clock.sleep(beat_seconds(self._frozen_seconds))
            for process, slot in list(self._holders.items()):
                if slot.watch(process):
                    self._abandon(process)
        self._is_watching = False

    def _abandon(self, process: Process) -> None:
        """Let a slot continue without a process that was killed but hangs in the kernel.

        The process runs no more code. When it returns from the kernel, the signal takes effect
        first.
        """
        self._holders.pop(process).lost(process, process.kill_frozen())
        self._fill()

    def _offer(self, process: Process) -> None:
        """Assign a free process to the first slot that waits for its version, or cache it."""
        for slot in list(self._waiting_slots):
            version = slot.wanted_version
            if version is None:
                del self._waiting_slots[slot]
            elif process.can_take(version, slot.wanted_interpreter):
                self._assign(process, slot)
                return
        if not process.version and process.launch is None:
            self._unloaded.append(process)
            return
        if not process.version:
            process.dismiss()  # no slot waits for it any more
            return
        process.idle_since_us = self._context.clock.monotonic_us()
        self._idle.setdefault(process.version, []).append(process)
        self._idle_count += 1
        self._idle_bytes += process.memory_bytes
        self._trim()

    def _take_idle(self, version: str, interpreter: str) -> Process | None:
        """Return the most recently used idle process of a version, or one without loaded code.

        Return ``None`` if there is neither.
        """
        idle = self._idle.get(version)
        if not idle:
            return self._unloaded.pop() if self._unloaded and not interpreter else None
        process = idle[-1]
        self._remove_idle(process)
        return process

    def _remove_idle(self, process: Process) -> None:
        """Remove a process from the idle processes, if it is idle."""
        if process in self._unloaded:
            self._unloaded.remove(process)
        idle = self._idle.get(process.version, [])
        if process not in idle:
            return
        idle.remove(process)
        if not idle:
            del self._idle[process.version]
        self._idle_count -= 1
        self._idle_bytes -= process.memory_bytes

    # ── numbers ─────────────────────────────────────────────────────────────────────────

    def _fill(self) -> None:
        """Start the processes that slots wait for and, after a delay, spare ones without code."""
        if self._group is None:
            return
        self._fill_others()
        if self._is_backing_off:
            return
        self._start(self._waiting)
        if not self._is_replenishing and self._missing_ready > self._starting:
            self._is_replenishing = True
            self._group.start_soon(self._replenish)

    def _fill_others(self) -> None:
        """Start the processes that slots wait for in other interpreters."""
        known = self._context.interpreters
        if known is None or not self._waiting_slots:
            return
        wanted = Counter(slot.wanted_interpreter for slot in self._waiting_slots)
        for name in wanted.keys() - {""}:
            launch = known.launch(name)
            if launch is None and known.complaint(name):
                for slot in [one for one in self._waiting_slots if one.wanted_interpreter == name]:
                    del self._waiting_slots[slot]
                    slot.give_up()
                continue
            if launch is None:
                continue  # the interpreter is being checked
            for _ in range(wanted[name] - self._starting_others[name]):
                self._starting_others[name] += 1
                assert self._group is not None  # noqa: S101 - see ``_fill``
                self._group.start_soon(self._serve_other, launch)

    def interpreter_changed(self, name: str) -> None:
        """End processes of a changed interpreter, and start the processes that slots wait for."""
        known = self._context.interpreters
        generation = 0 if known is None else known.generation(name)
        for process in list(self._all):
            launch = process.launch
            if launch is None or launch.interpreter != name or launch.generation == generation:
                continue
            process.retire()
            if process not in self._holders:
                self._dismiss(process)
        self._fill()

    async def _replenish(self) -> None:
        """Start spare processes after a delay, in which the taken process can begin its work."""
        await self._context.clock.sleep(HEAD_START_SECONDS)
        self._is_replenishing = False
        if not self._is_backing_off:
            self._start(self._missing_ready)

    def _start(self, processes: int) -> None:
        """Start processes until ``processes`` are starting, including those already starting."""
        for _ in range(processes - self._starting):
            self._starting += 1
            assert self._group is not None  # noqa: S101 - nothing is started before ``run``
            self._group.start_soon(self._serve)

    @property
    def _waiting(self) -> int:
        """Number of slots that wait for a process in the daemon's own interpreter."""
        return sum(
            slot.wanted_version is not None and not slot.wanted_interpreter
            for slot in self._waiting_slots
        )

    @property
    def _missing_ready(self) -> int:
        """Number of processes to start: those that slots wait for, and spare ones without code.

        The target is one spare process, or one per slot without a process if that is more. While
        starts fail, no spare processes are started.
        """
        waiting = self._waiting
        if self._failures:
            return waiting
        free = self._slots - len(self._holders) - self._idle_count
        return waiting + max(1, free - waiting) - len(self._unloaded)

    def _trim(self) -> None:
        """Dismiss the least recently used idle processes while all together use too much memory.

        Only processes in excess of the number of slots are dismissed.
        """
        while self._has_extra and self._idle_bytes > self._memory_bytes:
            self._dismiss(self._least_recent())
        if self._group is not None and self._has_extra and not self._is_aging:
            self._is_aging = True
            self._group.start_soon(self._dismiss_unused)

    async def _dismiss_unused(self) -> None:
        """Dismiss processes idle for too long, while there are more idle ones than slots."""
        clock = self._context.clock
        while self._has_extra and not math.isinf(self._idle_seconds):
            oldest = self._least_recent()
            idle_us = clock.monotonic_us() - oldest.idle_since_us
            left_seconds = self._idle_seconds - idle_us / 1e6
            if left_seconds > 0:
                await clock.sleep(left_seconds)
            else:
                self._dismiss(oldest)
        self._is_aging = False

    @property
    def _has_extra(self) -> bool:
        return self._idle_count > self._slots

    def _least_recent(self) -> Process:
        oldest = (idle[0] for idle in self._idle.values())
        return min(oldest, key=lambda process: process.idle_since_us)

    def _dismiss(self, process: Process) -> None:
        self._remove_idle(process)
        process.dismiss()

    # ── lifecycle ───────────────────────────────────────────────────────────────────────

    async def _serve(self) -> None:
        """Run one process until it is dead. Then settle its tries."""
        process, failure = Process(self._context, Heartbeat(self._frozen_seconds)), NO_PROCESS
        is_up = lacks_headroom = False

        def on_up() -> None:
            nonlocal is_up
            is_up = True
            self._starting -= 1
            self._offer(process)

        self._all.add(process)
        try:
            failure = await process.run(on_up)
        except* NoHeadroom:
            lacks_headroom = True
        except* OSError as exc:
            self._failures += 1
            _logger.error("no slot worker can be started: %s", exc.exceptions)  # noqa: TRY400
        self._all.discard(process)
        if not is_up:
            self._starting -= 1
        self._failures += process.died_silently
        self._settle(process, failure)
        self._try_again(lacks_headroom=lacks_headroom)

    def _settle(self, process: Process, failure: Failure) -> None:
        self._remove_idle(process)
        slot = self._holders.pop(process, None)
        if slot is not None:
            slot.lost(process, failure)

    async def _serve_other(self, launch: Launch) -> None:
        """Run a process of another interpreter.

        If it dies before it answers, no try is affected.
        """
        heartbeat = Heartbeat(self._frozen_seconds)
        process, failure = Process(self._context, heartbeat, launch), NO_PROCESS
        known, is_up, lacks_headroom = self._context.interpreters, False, False
        assert known is not None  # noqa: S101 - ``launch`` is from there

        def on_up() -> None:
            nonlocal is_up
            is_up = True
            self._starting_others[launch.interpreter] -= 1
            known.answered(launch)
            if process.is_spent:  # its interpreter was changed meanwhile
                process.dismiss()
            else:
                self._offer(process)

        self._all.add(process)
        try:
            failure = await process.run(on_up)
        except* NoHeadroom:
            lacks_headroom = True
        except* InterpreterUnusable as exc:
            failure = msgspec.structs.replace(NO_PROCESS, message=str(exc.exceptions[0]))
        except* OSError as exc:
            failure = msgspec.structs.replace(NO_PROCESS, message=str(exc.exceptions[0]))
        self._all.discard(process)
        if not is_up:
            self._starting_others[launch.interpreter] -= 1
            if not lacks_headroom and not process.is_spent:
                known.died_silently(launch, failure.message)
        self._settle(process, failure)
        self._try_again(lacks_headroom=lacks_headroom)

    def _try_again(self, *, lacks_headroom: bool) -> None:
        """Start missing processes. If starts fail, retry after a delay."""
        if lacks_headroom:
            self._failures = max(1, self._failures)
            if self._idle_count:  # an idle process uses memory that another process needs
                self._dismiss(self._least_recent())
        if not self._failures:
            self._fill()
        elif self._group is not None and not self._is_backing_off:
            self._is_backing_off = True
            self._group.start_soon(self._back_off, lacks_headroom)

    async def _back_off(self, lacks_headroom: bool) -> None:
        if lacks_headroom:
            await self._context.children.wait_for_headroom()
        else:
            delay = backoff_seconds(
                self._failures - 1, first=FIRST_DELAY_SECONDS, longest=LONGEST_DELAY_SECONDS
            )
            await self._context.clock.sleep(delay)
        self._is_backing_off = False
        self._fill()


SILENT_DEATHS_LIMIT = 3
"""Number of consecutive processes that die without any report until a try fails."""


class Worker:
    """One slot. ``WorkerPool`` calls the commands, ``WorkerProcesses`` calls the other methods."""

    def __init__(self, number: int, context: ExecutorContext, processes: WorkerProcesses) -> None:
        self._number = number
        self._context = context
        self._processes = processes
        self._process: Process | None = None
        self._waiting: dict[TryKey, StartTry] = {}
        self._silent_deaths = 0

    # ── verbs ───────────────────────────────────────────────────────────────────────────

    def start(self, effect: StartTry) -> None:
        """Send a try to the process, or queue it for the next process if this one cannot run it."""
        process = self._process
        if process is None:
            self._waiting[key_of(effect)] = effect
            self._processes.request_process(self)
        elif self._waiting or not self._can_take(process, effect):
            self._waiting[key_of(effect)] = effect
        else:
            process.start(effect)

    def stop(self, key: TryKey) -> None:
        """End a try at once, and kill all that its process has started.

        Nothing more is reported.
        """
        if self._waiting.pop(key, None) is None and self._process is not None:
            self._process.stop(key)

    def recall(self, keys: Sequence[TryKey]) -> None:
        """Recall those tries in ``keys`` that have not begun."""
        here = tuple(key for key in keys if self._waiting.pop(key, None) is not None)
        if here:
            self._context.report([Recalled(here)])
        if self._process is not None:
            self._process.recall(keys)

    # ── for WorkerProcesses ─────────────────────────────────────────────────────────────

    @property
    def wanted_version(self) -> str | None:
        """Version of the first try that waits for a process; ``None`` if none waits."""
        return next((effect.info.version for effect in self._waiting.values()), None)

    @property
    def wanted_interpreter(self) -> str:
        """Interpreter of the version; empty for the daemon's own."""
        return next((self._interpreter_of(effect) for effect in self._waiting.values()), "")

    def _can_take(self, process: Process, effect: StartTry) -> bool:
        return process.can_take(effect.info.version, self._interpreter_of(effect))

    def _interpreter_of(self, effect: StartTry) -> str:
        """Return the interpreter of a try.

        Without a list of interpreters, it is the daemon's own.
        """
        return "" if self._context.interpreters is None else interpreter_of(effect.role)

    def give_up(self) -> None:
        """Return the waiting tries to the engine, because their interpreter is unusable."""
        back, self._waiting = tuple(self._waiting), {}
        self._context.report([Recalled(back)])

    def use(self, process: Process) -> None:
        """Accept a process and send it the waiting tries."""
        self._process = process
        process.on_idle = partial(self._return_process, process)
        waiting, self._waiting = self._waiting, {}
        for effect in waiting.values():
            self.start(effect)

    def lost(self, process: Process, failure: Failure) -> None:
        """Settle the tries of a dead process. If more tries wait, request another process."""
        self._silent_deaths = self._silent_deaths + 1 if process.died_silently else 0
        # Recalling the same try forever would hide the fault, so the first waiting try fails.
        is_charged = self._silent_deaths >= SILENT_DEATHS_LIMIT
        if is_charged:
            self._silent_deaths = 0
        self._process = None
        process.end_tries(failure, charge_first=is_charged)
        if self._waiting:
            self._processes.request_process(self)

    def watch(self, process: Process) -> bool:
        """Ping the process. Kill it if it has given no sign of life for too long.

        Returns:
            Whether to abandon the process, because it was killed and does not die.
        """
        process.beat()
        heartbeat = process.heartbeat
        if heartbeat.is_silent != heartbeat.is_reported:
            heartbeat.is_reported = heartbeat.is_silent
            self._report_silence(heartbeat)
        if heartbeat.is_frozen:
            process.kill_frozen()
        return heartbeat.survives_kill

    def _report_silence(self, heartbeat: Heartbeat) -> None:
        silent = WorkerUnresponsive(self._number)
        if heartbeat.is_silent:
            now = self._context.clock.now()
            since, until = now - heartbeat.silent_us, now + heartbeat.left_us
            silent = WorkerUnresponsive(self._number, since, until)
        self._context.report([silent])

    def _return_process(self, process: Process) -> None:
        """Let another slot use the process, which has ended all its tries.

        Does nothing if the slot has already returned the process, because threads left by a task
        may still report.
        """
        if process is not self._process:
            return
        self._process = None
        self._silent_deaths = 0
        self._processes.return_process(process)
        if self._waiting:
            self._processes.request_process(self)


IDLE_SECONDS = 600.0
"""Idle time after which a process is dismissed, while there are more idle processes than slots."""
MEMORY_SHARE = 4
"""All idle processes together may use 1/``MEMORY_SHARE`` of the memory.

The limit applies only while there are more idle processes than slots.
"""


class WorkerPool:
    """Runs ``def`` bodies in ``slots`` slots, numbered from 0.

    The commands never block and never fail: outcomes are reported. A worker that dies is replaced.
    If a try had begun in it, the try is reported as ``Failed``. A claimed try is reported as
    ``Recalled``.

    Args:
        idle_seconds: Lifetime of an unused process beyond the number of slots.
        frozen_seconds: Maximum seconds for which a busy process may neither answer nor compute.
    """

    def __init__(
        self,
        context: ExecutorContext,
        slots: int,
        *,
        idle_seconds: float = IDLE_SECONDS,
        frozen_seconds: float = FROZEN_SECONDS,
    ) -> None:
        self._processes = WorkerProcesses(
            context,
            slots,
            idle_seconds=idle_seconds,
            frozen_seconds=frozen_seconds,
            memory_bytes=memory_limit_bytes() / MEMORY_SHARE,
        )
        self._workers = tuple(Worker(n, context, self._processes) for n in range(slots))

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Run processes for the slots until cancelled. Then kill all of them."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._processes.run)
            task_status.started()

    def start_try(self, effect: StartTry) -> None:
        """Run a try in its worker, after the tries that the worker already has."""
        self._workers[effect.worker].start(effect)

    def stop_try(self, effect: StopTry) -> None:
        """End a try at once. Tries claimed after it are reported as ``Recalled``."""
        self._workers[effect.worker].stop((effect.task_no, effect.start_no))

    def recall(self, effect: RecallTries) -> None:
        """Recall claimed tries. Those that have begun in the meantime continue."""
        self._workers[effect.worker].recall(effect.tries)

    def interpreter_changed(self, name: str) -> None:
        """Run tries that start from now on in the changed interpreter."""
        self._processes.interpreter_changed(name)

    def forget(self, run_no: RunNo) -> None:
        """Drop a run that has ended, also in all processes."""
        self._processes.forget(run_no)
