"""Slot workers and user code, simulated on virtual time.

They keep the guarantees of the real workers, and no others: the reports of a process arrive in
order; a dead process sends no further reports; when a process dies, the try it was running fails,
and the tries it had only claimed are returned. The behaviour of user code is drawn from the seed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import msgspec

from aioflow.model.dag import Body as Made
from aioflow.model.dag import SensorSpec, TaskSpec
from aioflow.model.states import Failure
from aioflow.protocol.commands import StartTrigger
from aioflow.protocol.effects import StartTry
from aioflow.protocol.inputs import HostLost, Input
from aioflow.protocol.reports import (
    Deferred,
    Failed,
    Labelled,
    Recalled,
    SensorNotReady,
    Skipped,
    Succeeded,
    TaskStarted,
)
from tests.sim import themes
from tests.sim.faults import Faults
from tests.sim.ledger import Ledger
from tests.sim.loops import goes_on
from tests.sim.script import UNSTORABLE, carried
from tests.sim.streaming import end_of_stream, follow, handled
from tests.sim.tables import Tables

__all__ = ("Body", "Key", "Line", "Stage", "Worker", "lost_host", "result_of_start")

SECOND = 1_000_000
DEFERRALS = 3
STUCK_FACTOR, STUCK_FLOOR_US = 10, 5_000  # as in executors.process

_FIRST_WITH_LABELS = 10_000
_LENGTHS = (0, 50, 400, 3_000, 3_000, 80_000, 3 * SECOND, 40 * SECOND)
_BRIEF = (0, 50, 50, 400, 400, 400, 3_000, 3 * SECOND)
"""Durations of functions in a seed with brief functions. Only brief functions are claimed."""

_LARGE = 2_000
"""Size in bytes of a result that is too large to be cached in memory."""

Key: TypeAlias = tuple[int, int]


class Stage(Protocol):
    """The interface of the simulated node that actors use."""

    seed: int
    rng: random.Random
    faults: Faults
    ledger: Ledger
    tables: Tables
    points: Counter[str]
    has_people: bool
    """Whether simulated people vote on decisions."""

    def wall(self) -> int:
        """Return the wall time."""

    def after(self, delay_us: int, function: Callable[[], None]) -> None:
        """Call ``function`` after the delay, unless the node has crashed by then."""

    def say(self, report: Input) -> None:
        """Put a report into the inbox."""

    def spec_of(self, run_no: int, task_index: int) -> TaskSpec:
        """Return a task of the DAG version of its run."""


class Line:
    """The report stream of one process. Reports keep their order; some are late or repeated."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._waiting: list[Input] = []

    @property
    def is_waiting(self) -> bool:
        """Return whether reports are in flight."""
        return bool(self._waiting)

    def say(self, report: Input) -> None:
        self._stage.ledger.spoken.append(report)
        self._waiting.append(report)
        if self._stage.faults.happens("report repeated"):
            self._waiting.append(report)
        late = self._stage.faults.happens("report late")
        self._stage.after(self._stage.rng.randint(0, 2 * SECOND) if late else 0, self._flush)

    def add(self, report: Input) -> None:
        """Send a report together with the next one. Draws no random number."""
        self._waiting.append(report)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for report in waiting:
            self._stage.say(report)


class Body:
    """User code in one execution."""

    def __init__(self, stage: Stage, effect: StartTry) -> None:
        self._stage = stage
        self.effect = effect
        self.key: Key = (effect.start.task_no, effect.start.start_no)
        self.spec = stage.spec_of(effect.start.run_no, effect.start.task_index)
        self.began_at: int | None = None

    def begin(self, line: Line) -> int | None:
        """Begin the execution. Return its duration, or ``None`` if it never ends."""
        rng = self._stage.rng
        self.began_at = self._stage.wall()
        self._stage.ledger.begin(*self.key)
        if self.effect.body is Made.FUNCTION:
            line.say(TaskStarted(*self.key, self.began_at))
        if self.effect.start.map_index >= 0 and has_labels(self._stage.seed):
            task_no, start_no = self.key
            line.add(Labelled(task_no, start_no, f"{task_no}.{start_no}"))
        limit = self.effect.timeout_us
        if limit is not None and self._stage.faults.happens("try hangs"):
            return None
        is_brief = self.effect.body is Made.FUNCTION and themes.is_brief(self._stage.seed)
        return rng.choice(_BRIEF if is_brief else _LENGTHS)

    def begin_again(self) -> None:
        """Continue after a wait, as another start of the task."""
        self.began_at = self._stage.wall()
        self._stage.ledger.begin(*self.key)

    def end(self) -> Any:
        """Return the final report of the execution."""
        rng, spec, start = self._stage.rng, self.spec, self.effect.start
        times = (*self.key, self.began_at or 0, self._stage.wall())
        draw = rng.random()
        if start.upto and draw > 0.2:
            return handled(self, self._stage, times)
        if start.is_closing and spec.streams and draw > 0.4:
            return end_of_stream(self, self._stage, times)
        deferrals = self._stage.ledger.deferrals(start.task_no, start.try_number)
        if spec.sensor is not None and 0.1 < draw < 0.5 and self._may_look_again(spec.sensor):
            return SensorNotReady(*times, rng.choice((None, None, 7 * SECOND)))
        may_defer = not start.upto and deferrals < DEFERRALS
        if may_defer and (draw < 0.25 or (spec.events is not None and not start.is_closing)):
            self._stage.ledger.defer(start.task_no, start.try_number)
            timeout = rng.choice((None, 2 * SECOND, 900 * SECOND))
            self._stage.ledger.told.forget(start.task_no)
            dag_version = None if spec.events is None else follow(rng)
            kwargs = carried((start.task_no, start.start_no), dag_version)
            return Deferred(*times, "sim:Trigger", kwargs, "resume", None, timeout)
        if draw < 0.4:
            return self._failed(rng, times)
        if draw < 0.45:
            return Skipped(*times)
        return self._succeeded(rng, times)

    def _may_look_again(self, sensor: SensorSpec) -> bool:
        """Return whether the sensor may poke again.

        A hosted sensor reports only the pokes of its trigger.
        """
        is_ignored = bool(self.effect.start.method) and sensor.on_error == "ignore"
        return self.spec.body.value == "def" or is_ignored

    def _succeeded(self, rng: random.Random, times: tuple[int, int, int, int]) -> Succeeded:
        """Return a success whose result names its start, so that results cannot be confused."""
        body, size, width = None, 0, None
        if self.spec.streams:
            pass  # its items are stored already
        elif self.spec.feeds_limit is not None:
            size, width = 10, rng.randint(0, 24)
        elif self._stage.faults.happens("result unstorable"):
            body, size = UNSTORABLE, len(UNSTORABLE)
        elif rng.random() < 0.5:
            padding = rng.choice((0, 0, _LARGE))
            body = msgspec.msgpack.encode((*self.key, bytes(padding)))
            size = len(body)
        self._stage.ledger.succeed(*self.key, body, width)
        again = goes_on(self.spec, rng)
        if again:
            self._stage.ledger.again.add(self.key)
        return Succeeded(*times, body, size, width, again=again)

    def _failed(self, rng: random.Random, times: tuple[int, int, int, int]) -> Failed:
        failure = Failure(type="ValueError", message="no", reason="raised")
        after = rng.choice((None, None, None, 0, 500 * SECOND))
        return Failed(*times, failure, rng.random() < 0.9, after)

    def broken(self) -> Failed:
        """Return the report that the user code raised an exception."""
        times = (*self.key, self.began_at or 0, self._stage.wall())
        return self._failed(self._stage.rng, times)

    def timed_out(self) -> Failed:
        """Return the report of a timeout."""
        failure = Failure(type="TaskTimeout", message="too long", reason="timeout")
        return Failed(*self.key, self.began_at, self._stage.wall(), failure)

    def died(self, *, interrupted: bool) -> Failed:
        """Return the report that the process died."""
        reason = "killed" if interrupted else "crashed"
        failure = Failure(type="Killed", message="signal 9", reason=reason)
        return Failed(
            *self.key, self.began_at, self._stage.wall(), failure, interrupted=interrupted
        )


class Worker:
    """One slot. ``_life`` counts its processes; actions planned by an earlier process are void."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._life = 0
        self._line = Line(stage)
        self._bodies: dict[Key, Body] = {}
        self._begun: Body | None = None

    def start(self, effect: StartTry) -> None:
        """Queue a try behind those the slot already has."""
        body = Body(self._stage, effect)
        self._bodies[body.key] = body
        self._plan(0, self._next)
        if self._begun is not None:
            self._watch(self._begun)

    def stop(self, key: Key) -> None:
        """Stop a try at once. If it is running, its process dies.

        The process then returns the tries that are queued behind it.
        """
        body = self._bodies.pop(key, None)
        if body is not None and body is self._begun:
            self._die()

    def recall(self, keys: tuple[Key, ...]) -> None:
        """Return those of the given tries that have not begun."""
        back = tuple(k for k in keys if k in self._bodies and self._bodies[k] is not self._begun)
        for key in back:
            del self._bodies[key]
        if back:
            self._line.say(Recalled(back))

    def _plan(self, delay_us: int, function: Callable[[], None]) -> None:
        life = self._life
        self._stage.after(delay_us, lambda: function() if life == self._life else None)

    def _next(self) -> None:
        if self._begun is not None or not self._bodies:
            return
        if self._stage.faults.happens("worker dies"):
            self._die()  # before a try has begun
            return
        body = self._begun = next(iter(self._bodies.values()))
        took, limit = body.begin(self._line), body.effect.timeout_us
        self._watch(body)
        if took is None or (limit is not None and took > limit):
            assert limit is not None
            self._plan(limit, lambda: self._time_out(body))
        elif self._stage.faults.happens("worker dies"):
            self._plan(took, self._die)
        else:
            self._plan(took, lambda: self._end(body))

    def _watch(self, body: Body) -> None:
        """Plan to recall the tries queued behind this one if it takes far longer than expected."""
        if len(self._bodies) > 1:
            stuck = STUCK_FACTOR * max(STUCK_FLOOR_US, body.effect.expected_us)
            self._plan(stuck, lambda: self._recall_behind(body))

    def _recall_behind(self, body: Body) -> None:
        if self._begun is body:
            self._stage.ledger.called_back(body.key, len(self._bodies) - 1)
            self.recall(tuple(self._bodies))

    def _end(self, body: Body) -> None:
        if self._begun is body:
            self._begun = None
            del self._bodies[body.key]
            self._line.say(body.end())
            self._next()

    def _time_out(self, body: Body) -> None:
        if self._begun is body:
            self._line.say(body.timed_out())
            del self._bodies[body.key]
            self._die()

    def _die(self) -> None:
        """Let the process die. Another process replaces it."""
        rng = self._stage.rng
        reports: list[Input] = []
        begun, self._begun = self._begun, None
        if begun is not None and self._bodies.pop(begun.key, None) is not None:
            reports.append(begun.died(interrupted=rng.random() < 0.5))
        if self._bodies:
            reports.append(Recalled(tuple(self._bodies)))
        rng.shuffle(reports)
        for report in reports:
            self._line.say(report)
        self._bodies.clear()
        self._life += 1


def has_labels(seed: int) -> bool:
    """Return whether the mapped tasks of a seed set labels.

    In low seeds they never do: those seeds were chosen by tests for the cases that occur in them.
    """
    return seed >= _FIRST_WITH_LABELS and random.Random(f"label {seed}").random() < 0.5


def result_of_start(stage: Stage, host: StartTrigger) -> tuple[bytes | None, int, int | None]:
    """Return the result that an event has for its task.

    It is the same for the same start, in every process.
    """
    key = (host.task_no, host.start_no)
    rng = random.Random(f"{key}")
    body, size, width = None, 0, None
    if stage.spec_of(host.run_no, host.task_index).feeds_limit is not None:
        size, width = 10, rng.randint(0, 24)
    elif rng.random() < 0.5:
        body = msgspec.msgpack.encode(key)
        size = len(body)
    stage.ledger.succeed(*key, body, width)
    return body, size, width


def lost_host(role: str, culprit: int, at: int, *, reason: str) -> HostLost:
    """Return the report that a shared host died."""
    failure = Failure(type="Died", message=f"it was {reason}", reason=reason)
    return HostLost(role=role, culprit=culprit, failure=failure, at=at)
