"""A slot: gives its tries to a process of their version, and settles those of a dead process.

A try given to the slot *waits* until the slot has a process that can take it. A slot holds a
process only while that process has unfinished tries.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from aioflow.executors.executor_context import ExecutorContext
from aioflow.executors.heartbeat import Heartbeat
from aioflow.executors.process import Process, TryKey, key_of
from aioflow.executors.processes import Processes
from aioflow.model.states import Failure
from aioflow.protocol.effects import StartTry
from aioflow.protocol.inputs import WorkerUnresponsive
from aioflow.protocol.reports import Recalled

__all__ = ("Worker",)

SILENT_DEATHS_LIMIT = 3
"""Consecutive processes that may die before they report anything; then a try fails for it."""


class Worker:
    """One slot. ``SlotExecutor`` calls the commands, ``Processes`` the rest."""

    def __init__(self, number: int, context: ExecutorContext, processes: Processes) -> None:
        self._number = number
        self._context = context
        self._processes = processes
        self._process: Process | None = None
        self._waiting: dict[TryKey, StartTry] = {}
        self._silent_deaths = 0

    # ── verbs ───────────────────────────────────────────────────────────────────────────

    def start(self, effect: StartTry) -> None:
        """Send a try to the process, or queue it for the next one if this one cannot take it."""
        process = self._process
        can_take = process is not None and process.can_take(effect.info.version)
        if process is not None and can_take and not self._waiting:
            process.start(effect)
            return
        self._waiting[key_of(effect)] = effect
        if process is None:
            self._processes.want(self)

    def stop(self, key: TryKey) -> None:
        """End a try at once, killing all its process has started. It reports nothing more."""
        if self._waiting.pop(key, None) is None and self._process is not None:
            self._process.stop(key)

    def recall(self, keys: Sequence[TryKey]) -> None:
        """Recall those of these tries that have not begun."""
        here = tuple(key for key in keys if self._waiting.pop(key, None) is not None)
        if here:
            self._context.report([Recalled(here)])
        if self._process is not None:
            self._process.recall(keys)

    # ── for Processes ───────────────────────────────────────────────────────────────────

    @property
    def wanted_version(self) -> str | None:
        """Version of the first try that waits for a process; ``None`` if none waits."""
        return next((effect.info.version for effect in self._waiting.values()), None)

    def hold(self, process: Process) -> None:
        """Take a process and send it the waiting tries."""
        self._process = process
        process.on_idle = partial(self._give_back, process)
        waiting, self._waiting = self._waiting, {}
        for effect in waiting.values():
            self.start(effect)

    def lost(self, process: Process, failure: Failure) -> None:
        """Settle the tries of a dead process and, if more wait, request another process."""
        self._silent_deaths = self._silent_deaths + 1 if process.died_silently else 0
        # Recalling the same try forever would hide the fault, so the first waiting try fails.
        is_charged = self._silent_deaths >= SILENT_DEATHS_LIMIT
        if is_charged:
            self._silent_deaths = 0
        self._process = None
        process.settle(failure, charge_first=is_charged)
        if self._waiting:
            self._processes.want(self)

    def watch(self, process: Process) -> bool:
        """Ping the process; kill it if it has given no sign of life for too long.

        Returns:
            Whether to abandon the process: it was killed, and does not die.
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

    def _give_back(self, process: Process) -> None:
        """Let another slot use the process, which has ended all its tries.

        Does nothing if the slot has already returned it: threads left by a task may still report.
        """
        if process is not self._process:
            return
        self._process = None
        self._silent_deaths = 0
        self._processes.put_back(process)
        if self._waiting:
            self._processes.want(self)
