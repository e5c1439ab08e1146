"""The processes of all slots, and the idle ones kept beyond them for the versions used of late.

A process serves one version for its whole life, so a slot that is given work of another file
takes another process. Its former one stays, idle, and any slot may take it again: work that
alternates between files costs no process starts. One process that has loaded nothing is kept
ready for a version that has none.
"""

from __future__ import annotations

import logging
import math
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from aioflow.executors.executor_context import Wiring
from aioflow.executors.heartbeat import Heartbeat, beat_seconds
from aioflow.executors.process import NO_PROCESS, Process
from aioflow.model.ids import RunNo
from aioflow.model.states import Failure
from aioflow.processes import NoRoom

__all__ = ("Processes", "Slot")

HEAD_START_SECONDS = 0.1
"""A start takes as much processor time as the first task of a small DAG file, and more."""

FIRST_DELAY_SECONDS = 0.1
LONGEST_DELAY_SECONDS = 5.0

_logger = logging.getLogger(__name__)


class Slot(Protocol):
    """What takes processes: see ``Worker``."""

    @property
    def wanted_version(self) -> str | None:
        """The version of what waits for a process; ``None`` if nothing does."""

    def hold(self, process: Process) -> None:
        """Take a process and send it what waits for one."""

    def lost(self, process: Process, failure: Failure) -> None:
        """Settle the tries of a dead process."""

    def watch(self, process: Process) -> bool:
        """Ask the process for a sign of life; return whether it is to be given up."""


class Processes:
    """Starts processes, hands them to slots, and keeps the idle ones.

    Args:
        slots: How many slots there are; so many loaded processes are kept however long they idle.
        idle_seconds: How long an idle process beyond these is kept.
        memory_bytes: How much memory idle processes beyond these may take together.
        frozen_seconds: How long a process with work may neither answer nor compute.
    """

    def __init__(
        self,
        wiring: Wiring,
        slots: int,
        *,
        idle_seconds: float,
        memory_bytes: float,
        frozen_seconds: float,
    ) -> None:
        self._wiring = wiring
        self._slots = slots
        self._idle_seconds = idle_seconds
        self._memory_bytes = memory_bytes
        self._frozen_seconds = frozen_seconds
        self._group: TaskGroup | None = None
        self._all: set[Process] = set()
        self._wanting: dict[Slot, None] = {}
        self._holders: dict[Process, Slot] = {}
        self._unloaded: list[Process] = []
        self._idle: dict[str, list[Process]] = {}
        self._idle_count = self._idle_bytes = 0
        self._starting = 0
        self._failures = 0
        self._is_held_up = self._is_replenishing = self._is_aging = False
        self._is_watching = math.isinf(frozen_seconds)  # then never

    async def run(self) -> None:
        """Keep processes until cancelled; then all are killed."""
        async with anyio.create_task_group() as self._group:
            self._start(self._slots)
            await anyio.sleep_forever()

    # ── verbs ───────────────────────────────────────────────────────────────────────────

    def want(self, slot: Slot) -> None:
        """Give a slot a process for what waits there, now or as soon as there is one."""
        version = slot.wanted_version
        if version is None:
            return
        process = self._take_idle(version)
        if process is None:
            self._wanting[slot] = None
        else:
            self._hand_over(process, slot)
        self._fill()

    def put_back(self, process: Process) -> None:
        """A slot has no more tries for this process: hand it to another slot, or keep it."""
        del self._holders[process]
        self._failures = 0
        if process.is_spent:
            process.dismiss()
            self._fill()
        else:
            self._offer(process)

    def forget(self, run_no: RunNo) -> None:
        """Tell all processes that a run has ended."""
        for process in self._all:
            process.forget(run_no)

    # ── which slot gets which ───────────────────────────────────────────────────────────

    def _hand_over(self, process: Process, slot: Slot) -> None:
        self._wanting.pop(slot, None)
        self._holders[process] = slot
        slot.hold(process)
        if not self._is_watching and self._group is not None:
            self._is_watching = True
            self._group.start_soon(self._watch)

    async def _watch(self) -> None:
        """Ask processes for signs of life while slots hold any."""
        while self._holders:
            await self._wiring.clock.sleep(beat_seconds(self._frozen_seconds))
            for process, slot in list(self._holders.items()):
                if slot.watch(process):
                    self._give_up(process)
        self._is_watching = False

    def _give_up(self, process: Process) -> None:
        """Let a slot go on without a process that was killed and hangs in the kernel.

        It runs no more code of anybody: the signal is the first that it will meet.
        """
        self._holders.pop(process).lost(process, process.kill_frozen())
        self._fill()

    def _offer(self, process: Process) -> None:
        """Hand a free process to the first slot that waits for one like it, or keep it."""
        for slot in list(self._wanting):
            version = slot.wanted_version
            if version is None:
                del self._wanting[slot]
            elif process.can_take(version):
                self._hand_over(process, slot)
                return
        if not process.version:
            self._unloaded.append(process)
            return
        process.idle_since_us = self._wiring.clock.monotonic_us()
        self._idle.setdefault(process.version, []).append(process)
        self._idle_count += 1
        self._idle_bytes += process.memory_bytes
        self._trim()

    def _take_idle(self, version: str) -> Process | None:
        """Return an idle process of a version, the last used one, or an unloaded one."""
        kept = self._idle.get(version)
        if not kept:
            return self._unloaded.pop() if self._unloaded else None
        process = kept[-1]
        self._remove_idle(process)
        return process

    def _remove_idle(self, process: Process) -> None:
        """Take a process out of the idle ones; does nothing if it is none of them."""
        if process in self._unloaded:
            self._unloaded.remove(process)
        kept = self._idle.get(process.version, [])
        if process not in kept:
            return
        kept.remove(process)
        if not kept:
            del self._idle[process.version]
        self._idle_count -= 1
        self._idle_bytes -= process.memory_bytes

    # ── how many ────────────────────────────────────────────────────────────────────────

    def _fill(self) -> None:
        """Start what slots wait for, and soon after that what is to be ready unloaded."""
        if self._group is None or self._is_held_up:
            return
        self._start(self._waiting)
        if not self._is_replenishing and self._missing_ready > self._starting:
            self._is_replenishing = True
            self._group.start_soon(self._replenish)

    async def _replenish(self) -> None:
        """Start what is to be ready, after the work that took the last one had a head start."""
        await self._wiring.clock.sleep(HEAD_START_SECONDS)
        self._is_replenishing = False
        if not self._is_held_up:
            self._start(self._missing_ready)

    def _start(self, processes: int) -> None:
        """Start processes, less those that are starting."""
        for _ in range(processes - self._starting):
            self._starting += 1
            assert self._group is not None  # noqa: S101 - nothing is started before ``run``
            self._group.start_soon(self._serve)

    @property
    def _waiting(self) -> int:
        """How many slots wait for a process."""
        return sum(slot.wanted_version is not None for slot in self._wanting)

    @property
    def _missing_ready(self) -> int:
        """How many more may start so that one is unloaded, or one for each slot that has none.

        Includes those that slots wait for. While starts fail there are no others.
        """
        waiting = self._waiting
        if self._failures:
            return waiting
        free = self._slots - len(self._holders) - self._idle_count
        return waiting + max(1, free - waiting) - len(self._unloaded)

    def _trim(self) -> None:
        """Dismiss the least recently used idle processes if all take too much memory."""
        while self._has_extra and self._idle_bytes > self._memory_bytes:
            self._dismiss(self._least_recent())
        if self._group is not None and self._has_extra and not self._is_aging:
            self._is_aging = True
            self._group.start_soon(self._dismiss_unused)

    async def _dismiss_unused(self) -> None:
        """Dismiss idle processes as each was not used for too long, while there are extra ones."""
        clock = self._wiring.clock
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
        oldest = (kept[0] for kept in self._idle.values())
        return min(oldest, key=lambda process: process.idle_since_us)

    def _dismiss(self, process: Process) -> None:
        self._remove_idle(process)
        process.dismiss()

    # ── their lives ─────────────────────────────────────────────────────────────────────

    async def _serve(self) -> None:
        """Run one process until it is dead, then settle what it held."""
        process, failure = Process(self._wiring, Heartbeat(self._frozen_seconds)), NO_PROCESS
        is_up = lacks_room = False

        def on_up() -> None:
            nonlocal is_up
            is_up = True
            self._starting -= 1
            self._offer(process)

        self._all.add(process)
        try:
            failure = await process.run(on_up)
        except* NoRoom:
            lacks_room = True
        except* OSError as exc:
            self._failures += 1
            _logger.error("no slot worker can be kept: %s", exc.exceptions)  # noqa: TRY400
        self._all.discard(process)
        if not is_up:
            self._starting -= 1
        self._failures += process.died_silently
        self._remove_idle(process)
        slot = self._holders.pop(process, None)
        if slot is not None:
            slot.lost(process, failure)
        self._try_again(lacks_room=lacks_room)

    def _try_again(self, *, lacks_room: bool) -> None:
        """Start what is missing: at once, or after a while if starts fail."""
        if lacks_room:
            self._failures = max(1, self._failures)
            if self._idle_count:  # it takes what another process needs
                self._dismiss(self._least_recent())
        if not self._failures:
            self._fill()
        elif self._group is not None and not self._is_held_up:
            self._is_held_up = True
            self._group.start_soon(self._hold_up, lacks_room)

    async def _hold_up(self, lacks_room: bool) -> None:
        if lacks_room:
            await self._wiring.children.room()
        else:
            delay = FIRST_DELAY_SECONDS * 2.0 ** min(self._failures - 1, 10)
            await self._wiring.clock.sleep(min(delay, LONGEST_DELAY_SECONDS))
        self._is_held_up = False
        self._fill()
