"""The trigger host on virtual time: one-shot triggers, streams, and start triggers.

It keeps the guarantees of the real host: a stream is never further ahead of the store than its
window; an assignment starts from the beginning or after the last stored event; ``StopTrigger`` is
confirmed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from aioflow.core.state.child_roles import QUARANTINE
from aioflow.core.triggers.migration import BLOCKED
from aioflow.model.states import Failure
from aioflow.protocol.commands import EventsStored, StartTrigger, StopTrigger
from aioflow.protocol.effects import AssignTrigger
from aioflow.protocol.inputs import HostUp, LoopBlocked, TriggerCapacityChanged
from aioflow.protocol.reports import TriggerEnded, TriggerFired
from tests.sim.actors import Line, Stage, lost_host, result_of_start
from tests.sim.broken import Broken
from tests.sim.script import plan_of, token_of, topic_of
from tests.sim.streaming import plan_of_start

__all__ = ("TriggerHost",)

SECOND = 1_000_000
_DELAYS_US = (0, 1_000, 5 * SECOND, 600 * SECOND)
_BETWEEN_US = (0, 0, 0, 1_000, SECOND)
_ENDS = ("success", "success", "failed", "skipped")
_LOOK_US = 30 * SECOND


class _Hosted(Protocol):
    """A hosted trigger."""

    host: StartTrigger

    def begin(self) -> None:
        """Begin the assignment."""

    def take(self, upto: int) -> None:
        """Receive the confirmation that ``upto`` events are stored."""


class TriggerHost:
    """One process with the triggers of a role.

    The process of the role ``quarantine`` starts when it is first assigned a trigger.
    """

    def __init__(self, stage: Stage, role: str) -> None:
        self.stage = stage
        self.role = role
        self.line = Line(stage)
        self._life = self._incidents = 0
        self._is_up = self._is_wanted = False
        self._hosted: dict[int, _Hosted] = {}
        self._given: set[tuple[int, int]] = set()

    def come_up(self) -> None:
        """Start the process, or another one after it has died."""
        self._is_up = self._is_wanted = True
        self._given.clear()
        self.line.say(HostUp(self.role))

    def was_given(self, trigger_no: int, assignment_id: int) -> bool:
        """Return whether this process was given the assignment.

        Return ``True`` as well while the engine cannot know it: the process is not up, or reports
        of it are in flight.
        """
        is_known = self._is_up and not self.line.is_waiting
        return not is_known or (trigger_no, assignment_id) in self._given

    def leave(self) -> bool:
        """Stop for good if nothing is hosted. Return whether the host has stopped."""
        if not self._is_up or self._hosted:
            return False
        self._is_up = False
        self._life += 1
        lost = lost_host(self.role, -1, self.stage.wall(), reason="killed")
        self.line.say(msgspec.structs.replace(lost, was_dismissed=True))
        return True

    # ── commands ────────────────────────────────────────────────────────────────────────

    def host(self, effect: AssignTrigger) -> None:
        """Start a trigger, or start it again if it is hosted; now and then not at once."""
        if not self._is_up:
            if self.role == QUARANTINE and not self._is_wanted:
                self._is_wanted = True
                self.stage.after(self.stage.rng.randint(0, SECOND), self.come_up)
            return
        host = effect.host
        if host.window and host.is_made_there:
            host = msgspec.structs.replace(host, kwargs=plan_of_start(host.task_no, host.window))
        make: type[_Once | _Stream] = _OfStart if host.is_made_there else _Once
        if host.class_path == "sim:Named":
            make = _Named
        hosted = (_Stream if host.window else make)(self, host)
        self._given.add((host.trigger_no, host.assignment_id))
        self._hosted[host.trigger_no] = hosted
        if self.stage.faults.happens("no room"):
            self.line.say(
                TriggerCapacityChanged(host.trigger_no, host.assignment_id, has_capacity=False)
            )
            self.after(hosted, self.stage.rng.choice(_DELAYS_US), lambda: self._find_room(hosted))
        else:
            hosted.begin()
        if self.stage.faults.happens("trigger host dies"):
            life = self._life
            delay = self.stage.rng.randint(0, 2 * self.stage.rng.choice(_DELAYS_US))
            self.stage.after(delay, lambda: self._die(life))
        if self.stage.faults.happens("trigger stalls"):
            self.after(hosted, self.stage.rng.choice(_DELAYS_US), lambda: self._stall(hosted))

    def _stall(self, hosted: _Hosted) -> None:
        """Report that a step of the trigger blocks the loop: once during it and once after it."""
        self._incidents += 1
        for milliseconds, is_over in ((300, False), (self.stage.rng.choice((400, 9_000)), True)):
            self.line.say(
                LoopBlocked(
                    role=self.role,
                    culprit=hosted.host.trigger_no,
                    incident=f"{self.role} {self._life} {self._incidents}",
                    milliseconds=milliseconds,
                    source_location="flow.py:7",
                    is_over=is_over,
                    class_path=hosted.host.class_path,
                )
            )

    def _find_room(self, hosted: _Hosted) -> None:
        self.line.say(
            TriggerCapacityChanged(
                hosted.host.trigger_no, hosted.host.assignment_id, has_capacity=True
            )
        )
        hosted.begin()

    def end(self, end: StopTrigger) -> None:
        """Stop a trigger and confirm the stop, now and then after a while.

        The stop is confirmed even if the trigger is not hosted.
        """
        hosted = self._hosted.get(end.trigger_no)
        at = (end.trigger_no, end.assignment_id)
        if not self._is_up or hosted is None or hosted.host.assignment_id != end.assignment_id:
            self.line.say(TriggerEnded(*at, self.stage.wall(), reason=end.reason))
            return
        del self._hosted[end.trigger_no]
        life, delay = self._life, self.stage.rng.choice((0, 0, 0, SECOND))

        def confirm() -> None:
            if life == self._life:
                self.line.say(TriggerEnded(*at, self.stage.wall(), reason=end.reason))

        self.stage.after(delay, confirm)

    def take_events(self, taken: EventsStored) -> None:
        """Let a stream continue."""
        hosted = self._hosted.get(taken.trigger_no)
        if hosted is not None and hosted.host.assignment_id == taken.assignment_id:
            hosted.take(taken.upto)

    # ── for the hosted ones ─────────────────────────────────────────────────────────────

    def after(self, hosted: _Hosted, delay_us: int, function: Callable[[], None]) -> None:
        """Call ``function`` after the delay if the trigger is still hosted then."""
        life = self._life

        def unless_gone() -> None:
            if life == self._life and self._hosted.get(hosted.host.trigger_no) is hosted:
                function()

        self.stage.after(delay_us, unless_gone)

    def forget(self, hosted: _Hosted) -> None:
        """Remove a trigger that has ended with its event."""
        del self._hosted[hosted.host.trigger_no]

    def over(self, hosted: _Hosted, failure: Failure | None = None) -> None:
        """Remove a trigger that has ended, and report its end."""
        host = hosted.host
        self.forget(hosted)
        self.line.say(TriggerEnded(host.trigger_no, host.assignment_id, self.stage.wall(), failure))

    def _die(self, life: int) -> None:
        if life != self._life or not self._is_up:
            return
        self._life += 1
        self._is_up = False
        culprit = self.stage.rng.choice([-1, *self._hosted])
        self._hosted.clear()
        reason = self.stage.rng.choice(("killed", "crashed", BLOCKED))
        self.line.say(lost_host(self.role, culprit, self.stage.wall(), reason=reason))
        self.stage.after(self.stage.rng.randint(1, 30 * SECOND), self.come_up)


class _Once:
    """A trigger that ends with its first event, or without any event."""

    def __init__(self, process: TriggerHost, host: StartTrigger) -> None:
        self.host = host
        self._process = process
        self._stage = process.stage

    def begin(self) -> None:
        stage = self._stage
        if stage.ledger.has_deadline(self.host.trigger_no) and stage.faults.happens(
            "trigger hangs"
        ):
            return
        self._process.after(self, stage.rng.choice(_DELAYS_US), self._fire)

    def take(self, upto: int) -> None:
        raise Broken("I6 streams", f"{self.host} is no stream, {upto} events are stored")

    def _fire(self) -> None:
        host, stage, line = self.host, self._stage, self._process.line
        at = stage.wall()
        if stage.faults.happens("stale event"):
            stale = msgspec.msgpack.encode("stale")
            line.say(TriggerFired(host.trigger_no, host.assignment_id - 1, 0, at, stale))
        failure = None
        if stage.rng.random() < 0.8:
            is_last = host.trigger_no % 2 == 0
            line.say(msgspec.structs.replace(self._event(at), is_last=is_last))
            if is_last:
                self._process.forget(self)
                return
            if stage.faults.happens("trigger repeats"):
                second = msgspec.msgpack.encode("second")
                line.say(TriggerFired(host.trigger_no, host.assignment_id, 1, at, second, "key"))
        elif stage.rng.random() < 0.7:
            failure = _broken()
        self._process.over(self, failure)

    def _event(self, at: int) -> TriggerFired:
        token = token_of(self.host.kwargs)
        if len(token) == 2 and self._stage.rng.random() < 0.2:  # of no durable call
            return self._end(at)
        payload = msgspec.msgpack.encode(["event", token])
        return TriggerFired(self.host.trigger_no, self.host.assignment_id, 0, at, payload, "key")

    def _end(self, at: int) -> TriggerFired:
        """Return an event that ends the task."""
        where = (self.host.trigger_no, self.host.assignment_id, 0, at)
        match self._stage.rng.choice(_ENDS):
            case "success":
                body, size, width = result_of_start(self._stage, self.host)
                return TriggerFired(*where, body or b"", "key", "success", size, width)
            case ends:
                return TriggerFired(*where, msgspec.msgpack.encode("as drawn"), "key", ends)


class _OfStart(_Once):
    """The trigger of a task deferred from its start. Ends the task if there is no method."""

    def _event(self, at: int) -> TriggerFired:
        host = self.host
        trigger = self._stage.spec_of(host.run_no, host.task_index).start_trigger
        assert trigger is not None
        if not trigger.next_method or self._stage.rng.random() < 0.5:
            return self._end(at)
        payload = msgspec.msgpack.encode(["event", [host.task_no]])
        return TriggerFired(host.trigger_no, host.assignment_id, 0, at, payload, "key")


class _Named(_Once):
    """A trigger for a named event. It fires with the first event after its position."""

    def begin(self) -> None:
        self._process.after(self, self._stage.rng.choice(_BETWEEN_US), self._look)

    def _look(self) -> None:
        topic, after = topic_of(self.host.kwargs)
        behind = max(after, self.host.run_no)
        rows = self._stage.tables.named_events.values()
        found = [row.event_no for row in rows if row.name == topic and row.event_no > behind]
        if not found:
            self._process.after(self, _LOOK_US, self._look)
            return
        host = self.host
        payload = msgspec.msgpack.encode(["event", token_of(host.kwargs), {"event_no": min(found)}])
        at = self._stage.wall()
        self._process.line.say(
            TriggerFired(host.trigger_no, host.assignment_id, 0, at, payload, str(min(found)))
        )
        self._process.over(self)


class _Stream:
    """A stream. It yields its numbers in order, and may yield them again in another assignment."""

    def __init__(self, process: TriggerHost, host: StartTrigger) -> None:
        self.host = host
        self._process = process
        self._stage = process.stage
        self._plan = plan_of(host.kwargs)
        self._keys: list[str | None] = []
        self._taken = 0
        self._number = 0
        self._is_waiting = False

    def begin(self) -> None:
        last = self.host.last
        if last is not None:
            self._knows(*last)
            if self._stage.rng.random() < 0.5:
                self._number = msgspec.msgpack.decode(last[0])[-1] + 1
        self._process.after(self, self._stage.rng.choice(_BETWEEN_US), self._go_on)

    def _knows(self, payload: bytes, key: str | None) -> None:
        """Check that the last event given to an assignment belongs to its stream and is stored."""
        _, token, *numbers = msgspec.msgpack.decode(payload)
        right = token == token_of(self.host.kwargs)
        if self._plan.keyed:
            right = right and key == str(numbers[-1])
            right = right and self._stage.tables.has_stored(self.host.trigger_no, key or "")
        if not right:
            raise Broken("I6 streams", f"{self.host} received an event that does not exist")

    def take(self, upto: int) -> None:
        """Continue after backpressure, and check that the confirmed events are stored."""
        number, sent = self.host.trigger_no, len(self._keys)
        if not self._taken < upto <= sent:
            raise Broken("I6 streams", f"{upto} of {sent} are taken after {self._taken}: {number}")
        is_held = self._stage.tables.is_held(self.host.run_no)
        for key in () if is_held else self._keys[self._taken : upto]:
            if key is not None and not self._stage.tables.has_stored(number, key):
                raise Broken("I6 streams", f"event {key} of {number} is taken, and not stored")
        self._taken = upto
        if self._is_waiting:
            self._is_waiting = False
            self._go_on()

    def _go_on(self) -> None:
        stage, dag_version = self._stage, self._plan
        if len(self._keys) - self._taken >= self.host.window:
            self._is_waiting = True
            return
        if self._number < dag_version.count:
            self._yield(self._number)
            self._number += 1
            self._process.after(self, stage.rng.choice(_BETWEEN_US), self._go_on)
        elif dag_version.ends != "hang" and not self._rests():
            self._process.over(self, _broken() if dag_version.ends == "fail" else None)

    def _rests(self) -> bool:
        """Return whether to stay: in the end, a DAG trigger would only be hosted again."""
        return self.host.task_no < 0 and self._stage.faults.healed

    def _yield(self, number: int) -> None:
        faults = self._stage.faults
        if faults.happens("stale event"):
            self._fire("stale", number, str(number), assignment_id=self.host.assignment_id - 1)
        self._fire("event", number, str(number) if self._plan.keyed else None)
        if self._plan.keyed and faults.happens("trigger repeats") and self._has_room():
            self._fire("second", number, str(number))

    def _has_room(self) -> bool:
        return len(self._keys) - self._taken < self.host.window

    def _fire(
        self, what: str, number: int, key: str | None, assignment_id: int | None = None
    ) -> None:
        host = self.host
        which = [number] if self._plan.keyed else [host.assignment_id, number]
        payload = msgspec.msgpack.encode([what, token_of(host.kwargs), *which])
        index, at = len(self._keys), self._stage.wall()
        if assignment_id is None:
            assignment_id = host.assignment_id
            self._keys.append(key)
        self._process.line.say(
            TriggerFired(host.trigger_no, assignment_id, index, at, payload, key)
        )


def _broken() -> Failure:
    return Failure(type="OSError", message="no", reason="trigger")
