"""A process that hosts many coroutines or triggers, and its replacement when it dies or is blocked.

The process answers pings from its event loop, so it does not answer while the loop is blocked. If C
code holds the GIL, the watchdog in the process is blocked, too. The daemon then still reads from
the crash recorder whose code is running, but not at which line.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import anyio
from anyio.abc import TaskStatus

from aioflow.clock import Clock, backoff_seconds
from aioflow.core.state.child_roles import ASYNC, interpreter_of, kind_of
from aioflow.errors import InterpreterUnusable
from aioflow.executors.executor_context import ExecutorContext
from aioflow.executors.host_inspection import HostLoad, WatchLoad
from aioflow.model.states import Failure
from aioflow.processes import Child, CommandBuffer, Launch, NoHeadroom
from aioflow.protocol.commands import Ping
from aioflow.protocol.inputs import HostLost, HostUp, LoopBlocked
from aioflow.protocol.reports import Pong, Report
from aioflow.telemetry.log import about
from aioflow.worker.watchdog import BlockedLoop, BlockedLoopReader

__all__ = (
    "HEALTH_SECONDS",
    "UNKNOWN_LOCATION",
    "BlockedProcessMonitor",
    "HostHeartbeat",
    "SharedHost",
)

UNKNOWN_LOCATION = "code that holds the GIL"

_COMPUTING_SHARE = 0.1
"""Share of a beat that the event loop's thread must have computed to count as blocked by a step.

It is low, because the machine may be busy. A stopped process computes nothing.
"""


class BlockedProcessMonitor:
    """Examines a silent host from outside, once per beat of its heartbeat.

    Args:
        child: The process.
        beat_seconds: Duration of a beat.
    """

    def __init__(self, child: Child, beat_seconds: float) -> None:
        self._child = child
        self._enough_seconds = _COMPUTING_SHARE * beat_seconds
        self._number = -1
        self._used_seconds = 0.0

    def culprit(self, silent_beats: int) -> int:
        """Return the owner of a step that computed during the whole last beat, or -1."""
        if not silent_beats:
            return -1
        was, used = self._number, self._used_seconds
        self._number, self._used_seconds = self._child.culprit(), self._child.loop_seconds()
        # The first sample of a silence cannot be compared with an earlier one.
        is_it = silent_beats > 1 and was == self._number
        return was if is_it and self._used_seconds - used >= self._enough_seconds else -1


HEALTH_SECONDS = 30.0
"""Default of the setting for how long an event loop may be blocked, in seconds."""

_BEAT_SECONDS = 1.0
_BEATS_AT_LEAST = 4
"""Minimum number of beats in which a loop can give a sign of life, however short the limit is."""


class HostHeartbeat:
    """Detects that a process has not answered its pings for too long.

    Silence is counted in beats instead of clock time. So a daemon that was itself stopped for a
    while does not blame its hosts.

    Attributes:
        limit_seconds: Maximum seconds for which the process may be silent; infinity disables the
            check.
        beat_seconds: Interval between pings.
        silent_beats: Number of beats since the last sign of life of the process.
    """

    def __init__(self, clock: Clock, limit_seconds: float) -> None:
        self.limit_seconds = limit_seconds
        self._clock = clock
        self.beat_seconds = min(_BEAT_SECONDS, limit_seconds / _BEATS_AT_LEAST)
        self.silent_beats = 0

    def reset(self) -> None:
        """Reset the count after a message. Messages are sent by the loop, so it is not blocked."""
        self.silent_beats = 0

    async def stopped(self, ping: Callable[[], None]) -> None:
        """Return once the process has been silent for too long from now on; at most 2 beats late.

        Args:
            ping: Called with each beat. It must make the process reply.
        """
        if math.isinf(self.limit_seconds):
            await anyio.sleep_forever()
        self.reset()
        allowed = math.ceil(self.limit_seconds / self.beat_seconds)
        # Allow one beat more, because the first beat may have begun just before the last sign of
        # life.
        while self.silent_beats <= allowed:
            ping()
            await self._clock.sleep(self.beat_seconds)
            self.silent_beats += 1


FIRST_DELAY_SECONDS = 0.1
SECOND_DELAY_SECONDS = 1.0
LONGEST_DELAY_SECONDS = 30.0
LONG_LIFE_US = 60_000_000
"""Lifetime of a process after which its death counts as the first, with the shortest delay."""

_LAG_SAMPLES = 30

_FIRST_WORK_US = 5_000_000
"""Time after a host's start in which it may still be sent the work for which it was started."""

_WILL_BE_REPLACED = "%s: the %s host is replaced once no coroutine runs in it"

_process_numbers = itertools.count(1)

_logger = logging.getLogger(__name__)


class SharedHost:
    """Runs one process of a role, replaces it if it dies, and reports when it starts and ends.

    A process whose event loop is blocked is killed, because nothing in it can continue or time out.
    If the blocking step is known, ``patience_seconds`` is the limit. Commands are dropped while
    there is no process, because the engine sends all of them again after ``HostUp``.

    A commit may take longer than a replacement. So the engine may assign work to a process that it
    does not know to be dead, and the command arrives when the next process is up. The engine then
    regards that work as lost, and would never end it there. Therefore each process has a number,
    and ``accepts`` returns whether a process may start work that the engine assigned to a number.

    If the process uses an interpreter other than the daemon's own, it counts as up once it has
    answered. If it dies before that, ``run`` returns, because the interpreter has to be checked
    first.

    Args:
        role: See ``core.state.child_roles``.
        on_reports: Called with the reports of the process.
        on_lost: Called when the process is dead, before ``HostLost`` is reported. Must clear all
            state about the process.
        health_seconds: Maximum seconds for which its event loop may be blocked.
        patience_seconds: Returns the maximum seconds for which one step may block now. A host that
            is blocked for longer is replaced without delay, and the step's owner is the culprit.
        class_of: Returns the class path of one of its triggers; an empty string for any other
            number.
        idle_seconds: After this many idle seconds, the process ends and is not replaced.
        is_idle: Returns whether the process has no work.
        may_replace: Returns whether the process may be replaced because installed packages changed.
    """

    def __init__(
        self,
        role: str,
        context: ExecutorContext,
        *,
        on_reports: Callable[[list[Report]], None],
        on_output: Callable[[bytes], Awaitable[None]],
        on_lost: Callable[[], None],
        health_seconds: float,
        patience_seconds: Callable[[], float] = lambda: math.inf,
        class_of: Callable[[int], str] = lambda _: "",
        idle_seconds: float = math.inf,
        is_idle: Callable[[], bool] = lambda: False,
        may_replace: Callable[[], bool] = lambda: True,
    ) -> None:
        self._role = role
        self._context = context
        self._on_reports = on_reports
        self._on_output = on_output
        self._on_lost = on_lost
        self._heartbeat = HostHeartbeat(context.clock, health_seconds)
        self._blocked_reader = BlockedLoopReader("")
        self._blocked_at = ""
        self._incident = 0
        self._patience_seconds = patience_seconds
        self._class_of = class_of
        self._idle_seconds = idle_seconds
        self._is_idle = is_idle
        self._may_replace = may_replace
        self._was_idle = self._is_outdated = False
        self._changed = ""
        self._commands_sent = 0
        self._blocked: Failure | None = None
        self._offender = -1
        self._outgoing: CommandBuffer | None = None
        self._child: Child | None = None
        self._starting: TaskStatus[None] | None = None
        self._launch: Launch | None = None
        self._is_unusable = False
        self._up_since_us = self._process_no = 0
        self._late_us: deque[int] = deque(maxlen=_LAG_SAMPLES)
        self._evicted = self._evicted_here = 0
        self._watches: list[WatchLoad] | None = None

    @property
    def load(self) -> HostLoad:
        """Load of the host."""
        return HostLoad(
            name=self._role,
            pid=self.pid,
            lag_seconds=max(self._late_us, default=0) / 1e6,
            evicted=self._evicted,
            watches=self._watches,
        )

    @property
    def is_up(self) -> bool:
        """Whether there is a process that accepts commands."""
        return self._outgoing is not None

    @property
    def process_no(self) -> int:
        """Number of the process that is or was up, unique in this daemon; 0 before the first."""
        return self._process_no

    def accepts(self, process_no: int) -> bool:
        """Return whether the process with this number is up, so that its work may start."""
        return self.is_up and process_no == self._process_no

    @property
    def is_open(self) -> bool:
        """Whether commands can still reach a process."""
        return self._child is not None and self._child.is_open

    @property
    def pid(self) -> int | None:
        """Process id, if there is a process."""
        return None if self._child is None else self._child.pid

    def put(self, message: object) -> None:
        """Send a command with the next frame. Drop it if there is no process."""
        if self._outgoing is not None:
            self._commands_sent += 1
            self._outgoing.put(message)

    def send(self, messages: Sequence[object]) -> None:
        """Send replies to the process."""
        for message in messages:
            self.put(message)

    @property
    def was_idle(self) -> bool:
        """Whether the last process ended because it had no work."""
        return self._was_idle

    @property
    def is_idle(self) -> bool:
        """Whether a process has been up for a while, and has no work."""
        up_us = self._context.clock.monotonic_us() - self._up_since_us
        return self.is_up and up_us > _FIRST_WORK_US and self._is_idle()

    def end(self) -> None:
        """End the idle process, and do not replace it."""
        if self._child is not None:
            self._was_idle = True
            self._child.dismiss()

    def outdate_unless(self, generation: int, name: str) -> None:
        """Replace the process, once no coroutine runs in it, if its interpreter is outdated.

        Args:
            generation: The current generation of its interpreter.
        """
        if self._child is None or self._launch is None or self._changed:
            return
        if self._launch.generation != generation:
            self._changed = f"python {name}"
            _logger.info(_WILL_BE_REPLACED, f"python {name} changed", self._role)
            self._replace_if_outdated()

    def kill(self) -> None:
        """Kill the process, so that it is replaced."""
        if self._child is not None:
            self._child.kill()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Run and replace a process until cancelled, idle, or without a usable interpreter.

        Signals ``task_status`` when the first process is up, or could not be started.
        """
        clock, deaths = self._context.clock, 0
        self._starting = task_status
        while True:
            born = clock.monotonic_us()
            has_headroom = await self._serve()
            self._tell_started()
            if self._was_idle or self._is_unusable:
                return
            if not has_headroom:
                await self._context.children.wait_for_headroom()
                continue
            if self._offender >= 0 or self._is_outdated:
                continue  # no delay: the host lived longer than a start takes
            if clock.monotonic_us() - born > LONG_LIFE_US:
                deaths = 0
            await clock.sleep(_delay_seconds(deaths))
            deaths += 1

    async def _serve(self) -> bool:
        """Run one process until it is dead. Return whether it could be started."""
        if not self._find_interpreter():
            self._is_unusable = True
            return True
        failure: Failure | None = None
        unusable: BaseException | None = None
        has_headroom = True
        culprit = self._offender = -1
        self._is_outdated = False
        try:
            async with self._context.children.child(
                kind_of(self._role),
                on_reports=self._receive,
                on_output=self._on_data,
                black_box=True,
                launch=self._launch,
            ) as child:
                self._send_hello(child)
                async with anyio.create_task_group() as group:
                    group.start_soon(self._watch_heartbeat, child)
                    if self._idle_seconds < math.inf:
                        group.start_soon(self._dismiss_when_idle, child)
                    failure = await child.ended()
                    group.cancel_scope.cancel()
                # The process is certainly dead, so the crash recorder still names the owner of its
                # last step.
                culprit = child.culprit()
        except* NoHeadroom:
            has_headroom = False
        except* InterpreterUnusable as exc:
            unusable = exc.exceptions[0]
        except* OSError as exc:
            _logger.error("no %s host: %s", self._role, exc.exceptions)  # noqa: TRY400
        finally:
            was_up, self._outgoing, self._child = self.is_up, None, None
            # The blocking step may have ended before the kill, and a step of another owner may have
            # begun.
            culprit = culprit if self._offender < 0 else self._offender
            class_path = self._class_of(culprit)
            self._on_lost()
        if was_up:
            self._report_loss(self._blocked or failure, culprit, class_path)
        elif self._launch is not None and has_headroom and not self._was_idle:
            self._died_silently(self._launch, failure or unusable)
        return has_headroom

    def _find_interpreter(self) -> bool:
        """Determine how to start the process. Return whether its interpreter can be used now."""
        name, known = interpreter_of(self._role), self._context.interpreters
        if name and known is not None:
            self._launch = known.launch(name)
        return not name or self._launch is not None

    def _died_silently(self, launch: Launch, how: Failure | BaseException | None) -> None:
        """Request the check of the interpreter, because a process died before it answered."""
        words = how.message if isinstance(how, Failure) else str(how)
        self._is_unusable = True
        if self._context.interpreters is not None:
            self._context.interpreters.died_silently(launch, words)

    def _receive(self, reports: list[Report]) -> None:
        self._heartbeat.reset()
        if self._outgoing is None and self._child is not None:
            self._be_up(self._child)
        passed: list[Report] = [report for report in reports if not isinstance(report, Pong)]
        if len(passed) < len(reports):
            self._handle_pongs([report for report in reports if isinstance(report, Pong)])
        self._on_reports(passed)
        self._replace_if_outdated()

    def _handle_pongs(self, pongs: Sequence[Pong]) -> None:
        self._late_us.append(max(pong.late_us for pong in pongs))
        self._evicted += pongs[-1].evicted - self._evicted_here
        self._evicted_here = pongs[-1].evicted
        told = pongs[-1].watches
        self._watches = None if told is None else [WatchLoad(*one) for one in told]
        if pongs[-1].changed and not self._changed:
            self._changed = pongs[-1].changed
            _logger.info(_WILL_BE_REPLACED, f"the installed {self._changed} changed", self._role)

    def _replace_if_outdated(self) -> None:
        """Replace the process if installed packages have changed since it imported them."""
        if self._changed and not self._is_outdated and self._may_replace():
            self._is_outdated = True
            if self._child is not None:
                self._child.dismiss()

    async def _on_data(self, data: bytes) -> None:
        """Forward the output of the process, and report the watchdog lines found in it."""
        printed, blocks = self._blocked_reader.feed(data)
        if blocks:
            self._incident = blocks[-1].incident
            self._blocked_at = "" if blocks[-1].is_over else f" at {blocks[-1].source_location}"
            self._context.report([self._loop_blocked(block) for block in blocks])
            self._attribute(blocks[-1])
        if printed:
            await self._on_output(printed)

    def _attribute(self, block: BlockedLoop) -> None:
        """Kill the process if a step has blocked the loop for longer than ``patience_seconds``."""
        child, seconds = self._child, block.milliseconds / 1000
        is_slow_once = block.is_over or block.is_loading
        if child is None or is_slow_once or seconds < self._patience_seconds():
            return
        self._offender = block.number
        self._blocked = _blocked(seconds, f" at {block.source_location}")
        child.kill()

    def _loop_blocked(self, block: BlockedLoop) -> LoopBlocked:
        return LoopBlocked(
            role=self._role,
            culprit=block.number,
            incident=f"{self.pid}.{block.incident}",
            milliseconds=block.milliseconds,
            source_location=block.source_location,
            is_loading=block.is_loading,
            is_over=block.is_over,
            class_path=self._class_of(block.number),
        )

    async def _dismiss_when_idle(self, child: Child) -> None:
        """End the process once it has had no work, and got no commands, for ``idle_seconds``."""
        sent = -1
        while sent != self._commands_sent or not (self.is_up and self._is_idle()):
            sent = self._commands_sent
            await self._context.clock.sleep(self._idle_seconds)
        self._was_idle = True
        child.dismiss()

    async def _watch_heartbeat(self, child: Child) -> None:
        outside = BlockedProcessMonitor(child, self._heartbeat.beat_seconds)
        await self._heartbeat.stopped(lambda: self._ping(outside))
        self._blocked = _blocked(self._heartbeat.limit_seconds, self._blocked_at)
        child.kill()

    def _ping(self, outside: BlockedProcessMonitor) -> None:
        if self._outgoing is not None:  # not counted as a command, because a ping is not work
            self._outgoing.put(Ping(self._context.clock.monotonic_us()))
        silent_beats = self._heartbeat.silent_beats
        culprit = outside.culprit(silent_beats)
        if culprit >= 0 and not self._blocked_at:
            # When the watchdog can report again, its report of this stall has the same incident
            # number.
            milliseconds = round(silent_beats * self._heartbeat.beat_seconds * 1000)
            block = BlockedLoop(self._incident + 1, culprit, milliseconds, UNKNOWN_LOCATION)
            self._context.report([self._loop_blocked(block)])
            self._attribute(block)

    def _send_hello(self, child: Child) -> None:
        self._blocked = None
        self._changed = ""
        self._late_us.clear()
        self._evicted_here = 0
        self._watches = None
        self._blocked_reader, self._blocked_at, self._incident = (
            BlockedLoopReader(child.log_nonce),
            "",
            0,
        )
        self._child = child
        hello = self._context.hello(kind_of(self._role))
        if self._launch is None:
            child.send([hello])
            self._be_up(child)
        else:
            child.send([hello, Ping(self._context.clock.monotonic_us())])

    def _be_up(self, child: Child) -> None:
        self._outgoing = CommandBuffer(child)
        self._up_since_us = self._context.clock.monotonic_us()
        if self._launch is not None and self._context.interpreters is not None:
            self._context.interpreters.answered(self._launch)
        self._process_no = next(_process_numbers)
        self._context.report([HostUp(self._role, self._process_no)])
        self._tell_started()

    def _tell_started(self) -> None:
        if self._starting is not None:
            self._starting.started()
            self._starting = None

    def _report_loss(self, failure: Failure | None, culprit: int, class_path: str) -> None:
        gone = Failure(type="Killed", message="the host failed to be served", reason="killed")
        failure = failure or gone
        named = "trigger_id" if kind_of(self._role) != ASYNC else "task_no"
        with about(host=self._role, **{named: culprit} if culprit >= 0 else {}):
            if self._was_idle:
                _logger.info("the %s host ended: it had nothing to do", self._role)
            elif self._is_outdated:
                _logger.info("the %s host ended: the next one has the new packages", self._role)
            else:
                _logger.warning("the %s host died: %s", self._role, failure.message)
        lost = HostLost(
            role=self._role,
            culprit=culprit,
            failure=failure,
            at=self._context.clock.now(),
            class_path=class_path,
            was_dismissed=self._was_idle or self._is_outdated,
        )
        self._context.report([lost])


def _blocked(seconds: float, where: str) -> Failure:
    message = f"the loop of the host was blocked for {seconds:g} s{where}"
    return Failure(type="Blocked", message=message, reason="blocked")


def _delay_seconds(deaths: int) -> float:
    """Return the delay after a death that follows ``deaths`` earlier ones. Log each death."""
    if not deaths:
        return FIRST_DELAY_SECONDS
    delay = backoff_seconds(deaths, first=FIRST_DELAY_SECONDS, longest=LONGEST_DELAY_SECONDS)
    return max(delay, SECOND_DELAY_SECONDS)
