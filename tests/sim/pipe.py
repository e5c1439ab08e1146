"""A trigger host inside the same event loop: the real code behind a delayed pipe.

Real are ``Triggerer`` and ``SharedHost`` on the daemon's side, the frames in between, and
``worker.triggerer`` with its supervisor on the other side. Replaced are the socket, the process,
and the few lines that pass commands to the host.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol
from unittest.mock import patch

import anyio
import msgspec

from aioflow.author.trigger import Trigger
from aioflow.clock import Clock
from aioflow.model.states import Failure
from aioflow.processes.memory import ProcessHeadroom
from aioflow.protocol.commands import Command, Hello, Ping, Reply, RunInfo, StartTask, StartTrigger
from aioflow.protocol.inputs import LoopBlocked
from aioflow.protocol.reports import Pong, Report
from aioflow.worker import triggerer
from aioflow.worker.crash_recorder import CrashRecorder
from aioflow.worker.link import frames
from aioflow.worker.shared_host import ReportBuffer
from aioflow.worker.task.outcome import Packed
from aioflow.worker.trigger import shared_poller
from aioflow.worker.trigger.factory import TriggerMaker
from aioflow.worker.trigger.instance import HostedTrigger, Wait
from aioflow.worker.trigger.shared_poller import HostedWatch
from aioflow.worker.triggerer import TriggerHost
from tests.sim.actors import Stage, result_of_start
from tests.sim.broken import Broken
from tests.sim.misbehaving import draw
from tests.sim.script import carried

__all__ = ("ChildrenOfRole", "InlineChild", "InlineChildren", "host_clock")

LAGS = (0.0, 0.0, 0.0, 0.001, 0.05, 2.0)
HANGS_SECONDS = (1.0, 60.0, 10_000.0)
"""How long a host hangs. The daemon does not tolerate the longest of these times."""

ABANDONED = 4
ATTEMPTS = 10
_HEADER_BYTES = 4

_commands = msgspec.msgpack.Decoder(list[Command])
_reports = msgspec.msgpack.Decoder(list[Report])


class Surroundings(Stage, Protocol):
    """The part of the simulated node that a process uses."""

    seed: int

    def found(self, broken: Broken) -> None:
        """Record a violation."""


@contextmanager
def host_clock(now: Callable[[], int]) -> Iterator[None]:
    """Give hosted code the wall time of the seed, and suppress its tracebacks."""
    with (
        patch.object(sys, "stdout", sys.stdout),  # each host replaces it by its own
        patch.object(sys, "stderr", sys.stderr),
        patch.object(triggerer, "now", now),
        patch.object(triggerer, "print_traceback", lambda problem: None),
        patch.object(triggerer, "traceback_of", lambda problem: ""),
        patch.object(shared_poller, "print_traceback", lambda problem: None),
        patch.object(triggerer, "pack", _pack),
    ):
        yield


class _Runs:
    """The runs as a host knows them, but without DAG files: only their tasks."""

    def __init__(self, world: Surroundings) -> None:
        self._world = world

    def add(self, info: RunInfo) -> None:
        """See ``worker.task.arguments``."""

    def forget(self, run_no: int) -> None:
        """See ``worker.task.arguments``."""

    def of(self, start: StartTask) -> Any:
        """See ``worker.task.arguments``. The DAG node is what ``_pack`` expects."""
        node = partial(result_of_start, self._world)
        return SimpleNamespace(dag=SimpleNamespace(nodes={start.task_index: (node, start)}))


def _pack(node: Any, start: StartTask, payload: object, results: Path) -> Packed:
    """See ``worker.task.outcome``. Return the result that the seed has for this start."""
    result, _ = node
    return Packed(*result(_as_host(start)))


def _as_host(start: StartTask) -> StartTrigger:
    """Return an assignment that contains what the result of this start depends on."""
    return StartTrigger(
        trigger_no=-1,
        assignment_id=-1,
        run_no=start.run_no,
        task_no=start.task_no,
        version="",
        class_path="",
        kwargs=b"",
        since=0,
        logical_date=None,
        task_index=start.task_index,
        start_no=start.start_no,
    )


class _Maker:
    """Makes triggers as the real factory does, and makes start triggers without a DAG file."""

    def __init__(self, real: TriggerMaker, world: Surroundings) -> None:
        self._real = real
        self._world = world
        self.runs = _Runs(world)

    def known(self, command: StartTrigger) -> type[Trigger[Any]] | None:
        """See ``worker.trigger.factory``."""
        return self._real.known(command)

    async def make(self, command: StartTrigger, enter: Callable[[str], None]) -> Trigger[Any]:
        """See ``worker.trigger.factory``."""
        if command.is_made_there:
            command = self._of_start(command)
        return await self._real.make(command, enter)

    def _of_start(self, command: StartTrigger) -> StartTrigger:
        world = self._world
        rng = random.Random(f"{world.seed} {command.trigger_no} {command.assignment_id}")
        trigger = world.spec_of(command.run_no, command.task_index).start_trigger
        assert trigger is not None
        ends = rng.choice(("success", "success", "failed", "skipped"))
        path, kwargs = draw(
            rng,
            carried((command.task_no,)),
            badly=world.faults.happens("trigger misbehaves"),
            has_timeout=world.ledger.has_deadline(command.trigger_no),
            ends="" if trigger.next_method and rng.random() < 0.5 else ends,
        )
        return msgspec.structs.replace(command, class_path=path, kwargs=kwargs, is_made_there=False)


class InlineChildren:
    """The part of ``Children`` that a shared host uses.

    Attributes:
        born: All children so far. The references prevent garbage collection, which would close the
            children at a time that the seed does not determine.
    """

    def __init__(self, world: Surroundings, clock: Clock) -> None:
        self._world = world
        self._room = ProcessHeadroom(clock)
        self.born: list[InlineChild] = []
        self._of_role: dict[str, InlineChild] = {}

    def hosted(self, role: str) -> set[int]:
        """Return the triggers of the current host of a role."""
        child = self._of_role.get(role)
        return set() if child is None else child.hosted()

    def watches(self, role: str) -> dict[HostedWatch, set[int]]:
        """See ``InlineChild``, for the current host of a role."""
        child = self._of_role.get(role)
        return {} if child is None else child.watches()

    def bury(self) -> None:
        """See ``InlineChild``."""
        for child in self.born:
            child.bury()

    @asynccontextmanager
    async def child(
        self, role: str, *, on_reports: Callable[[list[Report]], None], **options: Any
    ) -> AsyncIterator[InlineChild]:
        """See ``Children``."""
        await anyio.lowlevel.checkpoint()
        with self._room.attempt(role):
            if self._world.faults.happens("no process"):
                raise OSError("no room for another process")
        child = InlineChild(self._world, role, on_reports)
        self.born.append(child)
        self._of_role[role] = child
        try:
            yield child
        finally:
            child.abandon()

    async def wait_for_headroom(self) -> None:
        """See ``Children``."""
        await self._room.wait()


class _Line(ReportBuffer):
    """A report buffer that asks earlier to be replaced, and kills only its simulated child."""

    def __init__(self, child: InlineChild) -> None:
        super().__init__()
        self._child = child

    def exit_if_abandoned(self, abandoned_count: int) -> None:
        if abandoned_count >= ABANDONED:
            self._flush()
            self._child.kill()


class ChildrenOfRole:
    """The children of one host, which knows only the kind of its host."""

    def __init__(self, children: InlineChildren, role: str) -> None:
        self._children = children
        self._role = role
        self.wait_for_headroom = children.wait_for_headroom

    def child(self, _kind: str, **options: Any) -> Any:
        """See ``Children``."""
        return self._children.child(self._role, **options)


class InlineChild:
    """See ``Child``. After a kill, only reports that the child had already sent are received."""

    pid = 0
    log_nonce = "nonce"

    def __init__(
        self, world: Surroundings, role: str, on_reports: Callable[[list[Report]], None]
    ) -> None:
        self._world = world
        self._name = role
        self._incidents = 0
        self._on_reports = on_reports
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._ordered: deque[bytes] = deque()
        self._reported: deque[bytes] = deque()
        self._stuck: list[bytes] = []
        self._guests: list[Any] = []
        self._role: TriggerHost | None = None
        self._report_buffer: _Line | None = None
        self._is_dead = self._is_hung = self._is_released = False
        self._culprit = -1
        self._over = anyio.Event()

    # ── the daemon's side ───────────────────────────────────────────────────────────────

    @property
    def is_open(self) -> bool:
        """See ``Child``."""
        return not self._is_dead

    def send(self, messages: Sequence[object]) -> None:
        """See ``Child``."""
        if not self._is_dead:
            for frame in frames(messages):
                self._ordered.append(bytes(frame[_HEADER_BYTES:]))
                self._later(self._obey_next)

    def kill(self) -> None:
        """See ``Child``."""
        if self._is_dead:
            return
        self._is_dead = True
        hosted = [] if self._role is None else sorted(self._role._hosted)
        self._culprit = self._world.rng.choice([-1, *hosted])
        heard = self._world.rng.randint(0, len(self._reported))
        last = list(self._reported)[:heard]
        self._reported.clear()
        for guest in self._guests:
            if guest.limit is not None:
                guest.limit.cancel()
            if guest.task is not None:
                guest.task.cancel()
        self._later(lambda: self._end(last))

    def hosted(self) -> set[int]:
        """Return the hosted triggers, or none if the child is dead."""
        return set() if self._is_dead or self._role is None else set(self._role._hosted)

    def watches(self) -> dict[HostedWatch, set[int]]:
        """Return the shared pollers with the runs that wait in each, or none after death."""
        found: dict[HostedWatch, set[int]] = {}
        hosted = {} if self._is_dead or self._role is None else self._role._hosted
        for one in hosted.values():
            if isinstance(one, Wait) and one.watch is not None:
                found.setdefault(one.watch, set()).add(one.run_no)
        return found

    def loop_seconds(self) -> float:
        """See ``Child``. Nothing here uses any processor time."""
        return 0.0

    def culprit(self) -> int:
        """See ``Child``."""
        return self._culprit

    async def ended(self) -> Failure:
        """See ``Child``."""
        await self._over.wait()
        reason = self._world.rng.choice(("killed", "crashed"))
        return Failure(type="Died", message=f"it was {reason}", reason=reason)

    def abandon(self) -> None:
        """Kill the child and drop its further reports."""
        self._is_released = True
        self.kill()

    def bury(self) -> None:
        """Close coroutines that outlived their cancellation, while an event loop still runs."""
        for guest in self._guests:
            if guest.task is not None:
                guest.abandoned = True  # its task may step it once more, and finds it closed
                _close(guest.task.get_coro())

    def _end(self, last: list[bytes]) -> None:
        for frame in last:
            self._on_data(frame)
        self._over.set()

    def _hear_next(self) -> None:
        if self._reported:
            self._on_data(self._reported.popleft())

    def _on_data(self, frame: bytes) -> None:
        if not self._is_released:
            self._on_reports(_reports.decode(frame))

    # ── the child's side; it acts as the link of its line ───────────────────────────────

    def report(self, frame: bytes) -> None:
        """Send a frame, unless the child hangs or is dead."""
        if self._is_hung:
            self._stuck.append(frame)
        elif not self._is_dead:
            self._reported.append(frame)
            self._later(self._hear_next)

    def _obey_next(self) -> None:
        if self._is_hung:
            self._later(self._obey_next, 1.0)
        elif self._ordered and not self._is_dead:
            for command in _commands.decode(self._ordered.popleft()):
                self._handle(command)

    def _handle(self, command: Any) -> None:
        if isinstance(command, Hello):
            self._report_buffer = _Line(self)
            self._role = TriggerHost(self._report_buffer, CrashRecorder(), command)
            self._role._maker = _Maker(self._role._maker, self._world)  # type: ignore[assignment]
            self._report_buffer.connect(_Link(self))  # type: ignore[arg-type]
            self._note_guests(self._role._supervisor)
            return
        assert self._report_buffer is not None
        assert self._role is not None
        if isinstance(command, Reply):
            self._report_buffer.handle_reply(command)
        elif isinstance(command, Ping):
            self._report_buffer.report(Pong())
        else:
            self._role.handle(command)
            if isinstance(command, StartTrigger):
                self._look_for_two(command)
                self._mishap(command)

    def _note_guests(self, supervisor: Any) -> None:
        start = supervisor.start

        def noting(hosted: Any, coroutine: Any) -> None:
            self._guests.append(hosted)
            start(hosted, coroutine)

        supervisor.start = noting

    def _look_for_two(self, command: StartTrigger) -> None:
        """Check that no older assignment of the trigger is running, unless it is ending."""
        for guest in self._guests:
            if not isinstance(guest, HostedTrigger) or guest.number != command.trigger_no:
                continue
            is_over = guest.task is None or guest.task.done() or guest.is_over
            if guest.assignment_id < command.assignment_id and not is_over and not guest.ending:
                self._world.found(
                    Broken("hosting", f"{guest.key} goes on beside {command.assignment_id}")
                )

    def _mishap(self, command: StartTrigger) -> None:
        rng, faults = self._world.rng, self._world.faults
        if faults.happens("trigger stalls"):
            self._later(lambda: self._stall(command), rng.choice((0.0, 0.01, 5.0)))
        if faults.happens("trigger host dies"):
            self._later(self.kill, rng.choice((0.0, 0.01, 5.0, 700.0)))
        if faults.happens("trigger host hangs"):
            self._is_hung = True
            self._later(self._go_on, rng.choice(HANGS_SECONDS))

    def _stall(self, command: StartTrigger) -> None:
        """Report that a step of the trigger has blocked the loop, as the watchdog would."""
        if self._is_dead or self._is_released:
            return
        self._incidents += 1
        self._world.say(
            LoopBlocked(
                role=self._name,
                culprit=command.trigger_no,
                incident=f"{self._name} {command.assignment_id} {self._incidents}",
                milliseconds=self._world.rng.choice((400, 9_000)),
                source_location="flow.py:7",
                is_over=True,
                class_path=command.class_path,
            )
        )

    def _go_on(self) -> None:
        self._is_hung = False
        stuck, self._stuck = self._stuck, []
        for frame in stuck:
            self.report(frame)

    def _later(self, function: Callable[[], None], seconds: float | None = None) -> None:
        lag = self._world.rng.choice(LAGS) if seconds is None else seconds
        self._loop.call_later(lag, function, context=self._context)


def _close(coroutine: Any) -> None:
    """Close a coroutine, even if its cleanup awaits several times."""
    for _ in range(ATTEMPTS):
        try:
            coroutine.close()
        except RuntimeError:
            continue
        return


class _Link:
    """The link through which a report buffer sends."""

    def __init__(self, child: InlineChild) -> None:
        self._child = child

    def send(self, messages: Sequence[object]) -> None:
        for frame in frames(messages):
            self._child.report(bytes(frame[_HEADER_BYTES:]))
