"""The async host, simulated on virtual time: coroutines make durable calls, suspend and resume.

It keeps the guarantees of the real host. A call is made once it is reported. A call that has to
wait suspends its coroutine. Resuming a coroutine that is no longer suspended yields
``NotSuspended``. Calls that an earlier start recorded are replayed at once.
"""

from __future__ import annotations

from collections import deque
from typing import Any, TypeAlias

import msgspec

from aioflow.core.state.child_roles import ASYNC
from aioflow.model.decisions import PERSON
from aioflow.model.rows import RecordRow
from aioflow.model.states import Failure
from aioflow.protocol.commands import CallRecorded, ItemsStored, ResumeCoroutine
from aioflow.protocol.effects import StartTry
from aioflow.protocol.inputs import HostUp, Input
from aioflow.protocol.reports import (
    Awaiting,
    CallAnswered,
    EventEmitted,
    Failed,
    NextEventRequested,
    NotSuspended,
    RecordDropped,
    RunCalled,
    StreamOpened,
)
from tests.sim import asking
from tests.sim.actors import Body, Key, Line, Stage, lost_host
from tests.sim.broken import Broken
from tests.sim.called import Positions, outcome_is_true
from tests.sim.generators import Generator
from tests.sim.script import Call, carried, script
from tests.sim.workload import COUNTING

__all__ = ("AsyncHost",)

SECOND = 1_000_000
_PAUSES_US = (0, 0, 0, 50, 3_000, SECOND)
_PLACE = "flow.py:1"


Hosted: TypeAlias = "Coroutine | _Sensor | Generator"


class AsyncHost:
    """One process with the coroutines of a role.

    Attributes:
        hosted: The hosted coroutines by task and start, including suspended ones.
    """

    def __init__(self, stage: Stage, seed: int, role: str = ASYNC) -> None:
        self.role = role
        self.hosted: dict[Key, Hosted] = {}
        self.seed = seed
        self.stage = stage
        self.line = Line(stage)
        self._life = 0
        self._is_up = False

    def come_up(self) -> None:
        """Start the process, or another one after it has died."""
        self._is_up = True
        self.line.say(HostUp(self.role))

    def leave(self) -> bool:
        """Stop for good if nothing is hosted. Return whether the host has stopped."""
        if not self._is_up or self.hosted:
            return False
        self._is_up = False
        self._life += 1
        lost = lost_host(self.role, -1, self.stage.wall(), reason="killed")
        self.line.say(msgspec.structs.replace(lost, was_dismissed=True))
        return True

    # ── commands ────────────────────────────────────────────────────────────────────────

    def start(self, effect: StartTry) -> None:
        """Start a coroutine, or resume a suspended one."""
        if not self._is_up:
            return
        if effect.resume is not None:
            self._resume(effect.resume)
            return
        for left in self._of_task(effect.start.task_no):
            self.let_go(left)  # the engine does not know of it any more
        hosted = self._made(effect)
        self.hosted[hosted.body.key] = hosted
        hosted.begin()
        self._perhaps_die()

    def _made(self, effect: StartTry) -> Hosted:
        task = self.stage.spec_of(effect.start.run_no, effect.start.task_index)
        if task.sensor is not None:
            return _Sensor(self, effect)
        if task.streams and task.events is None:
            return Generator(self, effect)
        return Coroutine(self, effect)

    def _resume(self, order: ResumeCoroutine) -> None:
        hosted = self.hosted.get((order.task_no, order.was_start_no))
        if isinstance(hosted, Coroutine) and hosted.is_suspended:
            del self.hosted[hosted.body.key]
            hosted.body.key = (order.task_no, order.start_no)
            self.hosted[hosted.body.key] = hosted
            hosted.resume(order)
            self._perhaps_die()
        else:
            self.line.say(NotSuspended(order.task_no, order.start_no))

    def confirm(self, order: CallRecorded | ItemsStored) -> None:
        """Confirm that a call is recorded, or that yielded items are stored."""
        if isinstance(order, ItemsStored):
            giving = self.hosted.get((order.task_no, order.start_no))
            if isinstance(giving, Generator):
                giving.take(order)
            return
        hosted = self.hosted.get((order.task_no, order.start_no))
        if hosted is None:
            if self._is_up:
                self.line.say(NotSuspended(order.task_no, order.start_no))
        elif isinstance(hosted, Coroutine) and order.ordinal == hosted.made:
            hosted.answered(order.answer, order.failure)

    def stop(self, key: Key) -> None:
        """Cancel a coroutine."""
        self.hosted.pop(key, None)

    def forget(self, run_no: int) -> None:
        """Drop the suspended coroutines of an ended run, since they will never be resumed."""
        for hosted in list(self.hosted.values()):
            if hosted.run_no == run_no and isinstance(hosted, Coroutine) and hosted.is_suspended:
                self.let_go(hosted)

    # ── for the hosted ones ─────────────────────────────────────────────────────────────

    def after(self, hosted: Hosted, delay_us: int, function: Any) -> None:
        """Call ``function`` after the delay if the coroutine is still hosted then."""
        life = self._life

        def unless_gone() -> None:
            if life == self._life and self.hosted.get(hosted.body.key) is hosted:
                function()

        self.stage.after(delay_us, unless_gone)

    def let_go(self, hosted: Hosted, report: Input | None = None) -> None:
        """Remove a coroutine, and send its last report."""
        self.hosted.pop(hosted.body.key, None)
        if report is not None:
            self.line.say(report)

    def _of_task(self, task_no: int) -> list[Hosted]:
        found = [hosted for key, hosted in self.hosted.items() if key[0] == task_no]
        return [hosted for hosted in found if isinstance(hosted, Coroutine) and hosted.is_suspended]

    def _perhaps_die(self) -> None:
        if self.stage.faults.happens("async host dies"):
            life = self._life
            delay = self.stage.rng.choice((0, 3_000, 40 * SECOND))
            self.stage.after(delay, lambda: self._die(life))

    def _die(self, life: int) -> None:
        if life != self._life or not self._is_up:
            return
        self._life += 1
        self._is_up = False
        tasks = [task_no for task_no, _ in self.hosted]
        culprit = self.stage.rng.choice([-1, *tasks])
        self.hosted.clear()
        reason = self.stage.rng.choice(("killed", "crashed"))
        self.line.say(lost_host(self.role, culprit, self.stage.wall(), reason=reason))
        self.stage.after(self.stage.rng.randint(1, 30 * SECOND), self.come_up)


class _Sensor:
    """A hosted sensor: it polls until its condition is met."""

    def __init__(self, host: AsyncHost, effect: StartTry) -> None:
        self.body = Body(host.stage, effect)
        self.run_no = effect.start.run_no
        self._host = host

    def begin(self) -> None:
        took, limit = self.body.begin(self._host.line), self.body.effect.timeout_us
        if self._host.stage.rng.random() < 0.3:
            return  # its deadline ends it
        if took is None or (limit is not None and took > limit):
            assert limit is not None
            self._host.after(self, limit, lambda: self._end(self.body.timed_out()))
        else:
            self._host.after(self, took, lambda: self._end(self.body.end()))

    def _end(self, report: Input) -> None:
        self._host.let_go(self, report)


class Coroutine:
    """One coroutine, from its first start to its end. It may have several starts in between.

    Attributes:
        made: Number of calls made, including replayed ones.
        is_suspended: Whether it is suspended in a call that has no answer yet.
    """

    def __init__(self, host: AsyncHost, effect: StartTry) -> None:
        self.body = Body(host.stage, effect)
        self.run_no = effect.start.run_no
        self.made = 0
        self.is_suspended = False
        self._host = host
        self._start = effect.start
        self._told = host.stage.ledger.told
        self._known: deque[RecordRow] = deque()
        self._calls: list[Call] = []
        self._is_waiting = False
        self._has_dropped = False
        self._own: tuple[bytes | None, Failure | None] = (None, None)
        self._positions = Positions()

    @property
    def task_no(self) -> int:
        """The task that the coroutine runs."""
        return self._start.task_no

    # ── starts ──────────────────────────────────────────────────────────────────────────

    def begin(self) -> None:
        """Run the coroutine from the top."""
        host, start, limit = self._host, self._start, self.body.effect.timeout_us
        stage = host.stage
        self._told.begin(start.task_no, start.method, start.try_number)
        if start.recorded and stage.faults.happens("code changes"):
            self._told.rewrite(start.task_no)
        name = f"{host.seed} {start.task_no}"
        calls = script(name, start.method, self._told.edition(start.task_no))
        self._calls = asking.with_questions(calls, host.seed) if stage.has_people else calls
        took = self.body.begin(host.line)
        if limit is not None:
            host.after(self, limit, lambda: host.let_go(self, self.body.timed_out()))
        if took is not None:
            host.after(self, took, self._read)

    def _read(self) -> None:
        """Read the recorded calls of the task."""
        tables = self._host.stage.tables
        row = tables.tasks.get(self.task_no)
        is_over = row is not None and not (
            row.state.is_live and row.start_no == self._start.start_no
        )
        if self._start.recorded and is_over:
            return  # ended by a commit not reported yet; its record is deleted
        if self._start.recorded:
            records = tables.records_of(self.task_no)
            self._told.replays(self.task_no, self._start.recorded, records)
            self._known.extend(records)
        self._go_on()

    def resume(self, order: ResumeCoroutine) -> None:
        """Continue as another start, with the answer to the call in which it was suspended."""
        self.body.begin_again()
        self.answered(order.answer, order.failure)

    # ── calls ───────────────────────────────────────────────────────────────────────────

    def answered(self, body: bytes | None = None, failure: Failure | None = None) -> None:
        """Receive the stored answer to the call in progress."""
        if not self._is_waiting:
            return
        self._is_waiting = self.is_suspended = False
        if self._calls[self.made].kind in {"step", "now"}:
            body, failure = self._own
        self._later(lambda: self._hear(body, failure))

    def _hear(self, body: bytes | None, failure: Failure | None) -> None:
        call = self._calls[self.made]
        tables = self._host.stage.tables
        # A quarantined run may lack an event; its quarantine reports the loss.
        may_lack = tables.is_held(self.run_no)
        self._told.hears(self.body.key, self.made, call, body, failure, may_lack=may_lack)
        if call.kind == "run_dag":
            outcome_is_true(tables, self.task_no, body, failure)
        elif call.kind == "ask_person" and not may_lack:
            asking.answer_is_true(tables, self.task_no, self.made, body, failure)
        elif call.kind == "wait" and call.topic and failure is None:
            self._told.named += self._positions.hears(tables, self.run_no, call.topic, body)
        if call.kind == "next" and body is None and failure is None:
            self._is_over(call)
        self.made += 1
        if failure is not None and not call.is_caught:
            self._host.let_go(self, self._failed("uncaught"))
        else:
            self._go_on()

    def _is_over(self, call: Call) -> None:
        """Check that a stream ends only when all of its events have been consumed."""
        stage, plan = self._host.stage, self._calls[call.stream].plan
        assert plan is not None
        events = stage.tables.stream_events(self.task_no, call.stream)
        if events is None or stage.tables.is_held(self.run_no):
            return
        left = [row for row in events if row.payload is not None]
        if left or (plan.keyed and len(events) != plan.count) or len(events) < plan.count:
            raise Broken("I6 streams", f"{call} of task {self.task_no} is over: {events}")

    def _go_on(self) -> None:
        """Make the next call, replay a recorded call, or end."""
        rng = self._host.stage.rng
        if self._known:
            self._replay()
        elif rng.random() < 0.03:
            self._host.let_go(self, self._failed("between two calls"))
        elif self.made == len(self._calls):
            self._host.let_go(self, self.body.end())
        else:
            self._later(self._make)

    def _replay(self) -> None:
        record = self._known[0]
        call = self._calls[self.made] if self.made < len(self._calls) else None
        if call is not None and (record.kind, record.name) == (call.kind, call.name):
            self._known.popleft()
            self._hear(record.answer, record.failure)
            return
        if self._told.edition(self.task_no) == 0:
            raise Broken("E5 replay", f"{record} is no call of {self._start}, which makes {call}")
        if call is None:
            self._host.let_go(self, self.body.end())  # the rest of the record is not requested
            return
        self._mismatch()

    def _mismatch(self) -> None:
        """Handle a recorded call that the changed code does not make, as its author chose."""
        host, key = self._host, self.body.key
        match host.stage.rng.choice(("fail", "restart", "keep", "keep")):
            case "fail":
                host.let_go(self, self._failed("another call is recorded"))
            case "restart":
                self._told.forget(self.task_no)
                host.let_go(self, RecordDropped(*key, 0, True))
            case _:
                self._known.clear()
                self._has_dropped = True
                self._told.forget(self.task_no, self.made)
                host.line.say(RecordDropped(*key, self.made, False))
                self._go_on()

    def _make(self) -> None:
        call = self._calls[self.made]
        key, at = self.body.key, self._host.stage.wall()
        named = (*key, self.made, call.kind, call.name, _PLACE)
        timed = (*key, self.body.began_at or at, at, self.made, call.kind, call.name, _PLACE)
        report: Input
        match call.kind:
            case "step" | "now":
                answer, failure = self._own = self._work()
                report = CallAnswered(*named, answer, failure)
            case "stream":
                assert call.plan is not None
                kwargs = carried((*key, self.made), call.plan)
                report = StreamOpened(*named, "sim:Stream", kwargs, call.plan.window)
            case "emit":
                data = msgspec.msgpack.encode([*key, self.made])
                report = EventEmitted(*named, call.topic, None, data)
            case "run_dag":
                report = RunCalled(*timed, self._dag_of(call), None)
            case "wait" if call.topic:
                after = self._positions.after(call.topic)
                token = (self.task_no, self.made, 0)
                kwargs = carried(token, topic=call.topic, after=after)
                report = Awaiting(*timed, (("sim:Named", kwargs),), call.timeout_us)
            case "ask_person":
                asked = asking.question(call, self.task_no, self.made)
                report = Awaiting(*timed, ((PERSON, asked),), call.timeout_us)
            case "next":
                report = NextEventRequested(*timed, call.stream, call.timeout_us)
            case _:
                triggers = tuple(
                    ("sim:Trigger", carried((self.task_no, self.made, branch)))
                    for branch in range(call.width)
                )
                report = Awaiting(*timed, triggers, call.timeout_us)
        self._is_waiting = True
        self.is_suspended = isinstance(report, Awaiting | NextEventRequested | RunCalled)
        self._host.line.say(report)
        if self.is_suspended:
            self._mishap()

    def _dag_of(self, call: Call) -> str:
        """Return the DAG to run: one ordered after the caller's DAG, or an unknown one.

        It is unknown if the caller's run was itself started by a task; otherwise there would be
        ever more runs, or runs that wait for each other. It is also unknown if the pool counts
        deferred tasks, because the called run may need the slots that the caller occupies.
        """
        tables = self._host.stage.tables
        run = tables.runs[self.run_no]
        task = self._host.stage.spec_of(self.run_no, self._start.task_index)
        if task.pool == COUNTING:
            return "nobody"
        behind = sorted(dag_id for dag_id in tables.dags if dag_id > run.dag_id)
        return behind[call.dag % len(behind)] if behind and run.caller is None else "nobody"

    def _work(self) -> tuple[bytes | None, Failure | None]:
        """Run the user code of a step, which must not run again once its record is stored."""
        stage = self._host.stage
        stored = [row for row in stage.tables.records_of(self.task_no) if row.ordinal == self.made]
        if stored and not self._has_dropped:
            raise Broken("E7 steps", f"{self._calls[self.made]} runs again after {stored}")
        if self._calls[self.made].kind == "step" and stage.rng.random() < 0.15:
            return None, Failure(type="ValueError", message="no", reason="step")
        return msgspec.msgpack.encode([*self.body.key, self.made]), None

    # ── failures while suspended ────────────────────────────────────────────────────────

    def _mishap(self) -> None:
        host, stage, made = self._host, self._host.stage, self.made
        delay = stage.rng.choice((0, 1_000, 5 * SECOND))

        def while_suspended(function: Any) -> None:
            host.after(self, delay, lambda: function() if self._is_still(made) else None)

        if stage.faults.happens("evicted"):
            while_suspended(lambda: host.let_go(self))
        elif stage.faults.happens("fails while suspended"):
            interrupted = stage.rng.random() < 0.3
            while_suspended(
                lambda: host.let_go(self, self._failed("cut short", interrupted=interrupted))
            )

    def _is_still(self, made: int) -> bool:
        return self.is_suspended and self.made == made

    def _failed(self, message: str, *, interrupted: bool = False) -> Failed:
        reason = "interrupted" if interrupted else "raised"
        failure = Failure(type="ValueError", message=message, reason=reason)
        at = self._host.stage.wall()
        return Failed(*self.body.key, self.body.began_at, at, failure, interrupted=interrupted)

    def _later(self, function: Any) -> None:
        self._host.after(self, self._host.stage.rng.choice(_PAUSES_US), function)
