"""Random actions in random order: each event starts exactly one run, in the order of the events."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from aioflow.model.dag import DagSpec, IfPaused, TaskSpec
from aioflow.model.states import Failure
from aioflow.model.triggers import DagTriggerSpec
from aioflow.protocol.effects import AssignTrigger, ConfirmEvents, ReleaseTrigger
from aioflow.protocol.inputs import FileDeleted, HostLost, HostUp
from aioflow.protocol.reports import TriggerEnded, TriggerFired
from aioflow.protocol.requests import SetPaused
from tests.core.dag_trigger_host import Hosting
from tests.core.world import World
from tests.sampling import seeds

EVENTS = 40
STEPS = 120
KILLED = Failure(type="Killed", message="SIGKILL", reason="killed")
BROKEN = Failure(type="OSError", message="no", reason="trigger")


class Life:
    """A node with one DAG, and a host whose trigger continues counting after its last event."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.world = World()
        self.if_paused: IfPaused = self.dice.choice(["stay", "stop"])
        self.versions = 0
        self.assignment_id: Hosting | None = None
        self.seen = 0
        self.save()

    # ── actions ─────────────────────────────────────────────────────────────────────────

    def save(self) -> None:
        """Save the file, with the same or other fields of the trigger."""
        self.versions += 1
        fields = msgspec.msgpack.encode({"path": self.dice.choice("ab")})
        spec = DagTriggerSpec(class_path="m:Counting", kwargs=fields)
        self.world.load(
            DagSpec(
                dag_id="dag",
                file="dag.py",
                tasks=(TaskSpec(task_id="t"),),
                trigger=spec,
                parameters=("n",),
                max_active_runs=2,
                if_paused=self.if_paused,
            ),
            version=f"v{self.versions}",
        )

    def lose_file(self) -> None:
        self.world.turn(FileDeleted("dag.py"))

    def pause(self) -> None:
        self.world.ask(SetPaused(dag_id="dag", paused=self.dice.random() < 0.5))

    def yield_some(self) -> None:
        """Have the trigger, if hosted, yield some events. Some reports are repeated or refused."""
        self.heed()
        if self.assignment_id is None:
            return
        reports = self.assignment_id.reports(self.dice.randint(1, 5), EVENTS, self.world.now)
        if reports and self.dice.random() < 0.3:
            reports = [*reports, self.dice.choice(reports)]
        if reports and self.dice.random() < 0.2:
            self.world.refuse(*reports)
        elif reports:
            self.world.turn(*reports)

    def fail(self) -> None:
        self.heed()
        if self.assignment_id is not None:
            failure = self.dice.choice([None, BROKEN])
            number, assignment_id = self.assignment_id.number, self.assignment_id.assignment_id
            self.assignment_id = None
            self.world.turn(TriggerEnded(number, assignment_id, self.world.now, failure))

    def kill_host(self) -> None:
        number = -1 if self.assignment_id is None else self.assignment_id.number
        culprit = self.dice.choice([-1, number])
        self.heed()
        self.assignment_id = None
        at = self.world.now
        self.world.turn(HostLost(role="triggers", culprit=culprit, failure=KILLED, at=at))
        self.seen = len(self.world.effects)
        self.world.turn(HostUp("triggers"))

    def kill_node(self) -> None:
        self.assignment_id, self.seen = None, 0
        self.world.restart()

    def let_time_pass(self) -> None:
        self.world.pass_time(self.dice.choice([1, 10, 300]))

    def finish(self) -> None:
        self.world.finish_all()

    # ── the host ────────────────────────────────────────────────────────────────────────

    def heed(self) -> None:
        """Handle the commands that have arrived."""
        orders, self.seen = self.world.effects[self.seen :], len(self.world.effects)
        ended: list[Any] = []
        for order in orders:
            match order:
                case AssignTrigger(host=host):
                    self.assignment_id = Hosting.of(host, self.dice.randint(0, 3))
                case ReleaseTrigger(end=end):
                    of = (end.trigger_no, end.assignment_id, self.world.now)
                    ended.append(TriggerEnded(*of, reason=end.reason))
                    if (
                        self.assignment_id is not None
                        and self.assignment_id.assignment_id == end.assignment_id
                    ):
                        self.assignment_id = None
                case ConfirmEvents(confirmed=confirmed):
                    if (
                        self.assignment_id is not None
                        and self.assignment_id.assignment_id == confirmed.assignment_id
                    ):
                        self.assignment_id.confirmed = confirmed.upto
                case _:
                    pass
        if ended:
            self.world.turn(*ended)
            self.heed()

    def go_on_to_the_end(self) -> None:
        self.save()
        self.world.ask(SetPaused(dag_id="dag", paused=False))
        for _ in range(3 * EVENTS):
            self.world.pass_time(300)
            self.yield_some()
            self.finish()


@pytest.mark.parametrize("seed", seeds(15, nightly=40))
def test_each_event_starts_one_run_whatever_happens(seed):
    life = Life(seed)
    steps = [life.yield_some] * 6 + [life.finish] * 2
    steps += [life.save, life.lose_file, life.pause, life.fail, life.kill_host, life.kill_node]
    steps += [life.let_time_pass]
    for _ in range(STEPS):
        life.dice.choice(steps)()
    life.go_on_to_the_end()

    rows = life.world.rows
    runs = [run for _, run in sorted(rows.runs.items())]
    given = [msgspec.msgpack.decode(run.conf or b"\x80")["n"] for run in runs]
    assert given == list(range(EVENTS))
    assert {run.state.label for run in runs} == {"success"}
    assert sorted(event.sequence for event in rows.dag_events.values()) == list(range(EVENTS))
    assert all(isinstance(event.run_no, int) for event in rows.dag_events.values())


def test_random_events_are_reported_as_a_host_would():
    fired = Hosting(7, 3).reports(2, EVENTS, 5)

    assert fired == [
        TriggerFired(7, 3, 0, 5, msgspec.msgpack.encode({"n": 0}), "0"),
        TriggerFired(7, 3, 1, 5, msgspec.msgpack.encode({"n": 1}), "1"),
    ]
