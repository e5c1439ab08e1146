"""A trigger that kills the daemon is found by bisection. Others continue and are not charged."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from aioflow.core.crash_trials import TRIGGER_DEATHS
from aioflow.core.state.child_roles import TRIGGERS, own_role
from aioflow.core.why import explain_dag_trigger, explain_task
from aioflow.model.dag import DagSpec, RetryPolicy, TaskSpec
from aioflow.model.rows import TaskRow
from aioflow.model.triggers import DagTriggerSpec
from aioflow.protocol.effects import AssignTrigger, ReleaseTrigger, StartHost
from aioflow.protocol.inputs import Drain, HostUp, Restarted
from aioflow.protocol.outbox import ALERT, TRIAL
from aioflow.protocol.reports import Deferred, TriggerEnded
from aioflow.protocol.requests import DrainNode
from tests.core.world import SECOND, World, instant
from tests.sampling import seeds

NEVER = math.inf
KEPT = b"\x81\xa1a\x01"


class Machine:
    """A node under a supervisor. Its triggers kill the daemon some time after their assignment.

    Args:
        waits: The triggers of tasks, each with the seconds after which it kills the daemon.
        dags: The same for the triggers of DAGs.
        isolated: The same for triggers of tasks of an isolated DAG, which has its own host.
        works: The same for tasks that never end.
    """

    def __init__(
        self,
        waits: dict[str, float],
        dags: dict[str, float] | None = None,
        isolated: dict[str, float] | None = None,
        works: dict[str, float] | None = None,
    ) -> None:
        self.waits, self.dags = waits, dags or {}
        self.isolated, self.works = isolated or {}, works or {}
        self.kills = {**self.waits, **self.dags, **self.isolated, **self.works}
        self.crashes = 0
        self.world = world = World(cpu_slots=len(self.kills) + 1)
        once = RetryPolicy(tries=3)
        tasks = {
            name: tuple(TaskSpec(task_id=one, retry=once) for one in some)
            for name, some in (("dag", {**self.waits, **self.works}), ("own", self.isolated))
        }
        why = ("it changes os.environ['A']",)
        self.load("e1")
        specs = [
            DagSpec(dag_id=name, file="dag.py", tasks=some, isolated=why if name == "own" else ())
            for name, some in tasks.items()
        ]
        world.load(*specs, file="dag.py")
        self.runs = {name: world.trigger(name) for name in tasks if tasks[name]}
        self._hosted: dict[int, tuple[int, str, int]] = {}
        self._seen = 0
        self._running: dict[int, tuple[str, int]] = {}
        self._defer()

    def load(self, version: str) -> None:
        """Load the file of the DAGs whose runs are started by triggers."""
        specs = [
            DagSpec(
                dag_id=name,
                file="evented.py",
                tasks=(TaskSpec(task_id="a"),),
                trigger=DagTriggerSpec(class_path=f"m:{name}", name=name, kwargs=KEPT),
            )
            for name in self.dags
        ]
        if specs:
            self.world.load(*specs, file="evented.py", version=version)

    def _defer(self) -> None:
        world = self.world
        for effect in list(world.starts.values()):
            name = world._spec(effect).task_id
            if name in self.works:
                continue
            start = world.starts.pop(effect.start.task_no).start
            at = (start.task_no, start.start_no, world.now, world.now)
            world.turn(Deferred(*at, f"m:{name}", KEPT, "after", b"\x80"))

    # ── actions ─────────────────────────────────────────────────────────────────────────

    def live(self, seconds: float, *, is_over: Callable[[], bool] = lambda: False) -> None:
        """Let time pass. The daemon dies whenever a trigger or task kills it."""
        world = self.world
        until = world.now + int(seconds * SECOND)
        while world.now < until and not is_over():
            self._hear()
            deadly = self._deadly()
            if deadly and deadly[0] <= world.now:
                self.crash()
                continue
            upcoming = [*map(instant, world.armed), *deadly, until]
            world.now = min(at for at in upcoming if at > world.now)
            world.pass_time(0)

    def _hear(self) -> None:
        """Execute the commands of the engine."""
        world = self.world
        while self._seen < len(world.effects):
            effect = world.effects[self._seen]
            self._seen += 1
            if isinstance(effect, StartHost) and effect.role not in world.memory.hosts_up:
                world.turn(HostUp(effect.role))
            elif isinstance(effect, AssignTrigger):
                host = effect.host
                name = host.class_path.removeprefix("m:")
                self._hosted[host.trigger_no] = host.assignment_id, name, world.now
            elif isinstance(effect, ReleaseTrigger):
                end = effect.end
                if self._hosted.get(end.trigger_no, (0,))[0] == end.assignment_id:
                    del self._hosted[end.trigger_no]
                ended = TriggerEnded(end.trigger_no, end.assignment_id, world.now, None, end.reason)
                world.turn(ended)

    def _deadly(self) -> list[int]:
        """Return the times at which hosted triggers and running tasks kill the daemon, in order."""
        world = self.world
        for number in self._running.keys() - world.starts.keys():
            del self._running[number]
        for number, effect in world.starts.items():
            self._running.setdefault(number, (world._spec(effect).task_id, world.now))
        since = [*((name, at) for _, name, at in self._hosted.values()), *self._running.values()]
        kills = [(at, self.kills.get(name, NEVER)) for name, at in since]
        return sorted(at + int(after * SECOND) for at, after in kills if after < NEVER)

    def crash(self, downtime: float = 1) -> None:
        """Let the daemon die, and its supervisor restart it after the downtime."""
        self.crashes += 1
        self.lose()
        self.world.now += int(downtime * SECOND)
        self.world.restart()

    def lose(self) -> None:
        """Let all processes die."""
        self._hosted.clear()
        self._running.clear()
        self._seen = 0

    # ── observations ────────────────────────────────────────────────────────────────────

    @property
    def hosted(self) -> set[str]:
        """The names of the triggers that a host has."""
        self._hear()
        return {name for _, name, _ in self._hosted.values()}

    @property
    def killers(self) -> set[str]:
        return {name for name, seconds in self.kills.items() if seconds < NEVER}

    def states(self) -> dict[str, str]:
        """Return the states of the tasks."""
        found = {}
        for dag_id, names in (("dag", {**self.waits, **self.works}), ("own", self.isolated)):
            for name in names:
                found[name] = self.world.state(self.runs[dag_id], name)
        return found

    def paid(self) -> set[str]:
        """Return the tasks that failed, and the DAGs with barred triggers."""
        trial, standing = self.world.memory.trial, self.world.memory.dag_triggers
        barred = () if trial is None else [number for number, _ in trial.barred]
        dags = {one.row.dag_id for one in standing if one.row.trigger_no in barred}
        return {name for name, state in self.states().items() if state == "failed"} | dags

    def is_settled(self) -> bool:
        """Return whether every killer was charged, and everything else is hosted."""
        innocent = self.kills.keys() - self.killers - self.works.keys()
        return self.paid() == self.killers and self.hosted >= innocent

    def judge(self) -> None:
        assert self.paid() == self.killers
        assert self.hosted == self.kills.keys() - self.killers - self.works.keys()
        innocent = {name: state for name, state in self.states().items() if name in self.hosted}
        assert set(innocent.values()) <= {"deferred"}
        halvings = math.ceil(math.log2(len(self.kills))) + 1
        most = TRIGGER_DEATHS + len(self.killers) * (halvings + 8)
        assert self.crashes <= most, (self.crashes, most)


def of(count: int, **killers: float) -> dict[str, float]:
    return {**{f"t{number}": NEVER for number in range(count)}, **killers}


@pytest.mark.parametrize("killers", [("t0",), ("t20",), ("t3", "t17")])
def test_the_killer_of_twenty_fails_and_nothing_else_is_charged(killers):
    machine = Machine(of(21, **dict.fromkeys(killers, 0.5)))
    machine.live(4_000, is_over=machine.is_settled)

    machine.judge()
    tries = [row for row in machine.world.rows.tries if row.failure is not None]
    assert [row.failure.reason for row in tries] == ["interrupted"] * len(killers)
    assert all("ran alone" in row.failure.message for row in tries)
    alerts = [row for row in machine.world.rows.outbox.values() if row.kind == ALERT]
    assert len(alerts) == len(killers)


def test_the_trigger_of_a_dag_that_kills_is_hosted_again_when_its_file_changes():
    machine = Machine(of(3), of(4, d1=NEVER, d2=0.5))
    machine.live(4_000, is_over=machine.is_settled)

    machine.judge()
    crashes, one = machine.crashes, machine.world.memory.dag_triggers.of("d2")
    assert one is not None
    wait = explain_dag_trigger(one, machine.world.memory)
    assert wait is not None
    assert (wait.kind, "killed the daemon" in wait.detail) == ("quarantined", True)
    machine.crash()  # by something else
    machine.live(60)
    machine.judge()
    assert machine.crashes == crashes + 1

    machine.load("e2")
    machine.kills["d2"] = NEVER
    machine.live(1)
    assert "d2" in machine.hosted
    assert machine.paid() == set()


@pytest.mark.parametrize("seed", seeds(12, 300))
def test_killers_are_found_whenever_they_kill_and_whatever_is_beside_them(seed):
    rng = random.Random(seed)
    names = [f"{kind}{n}" for kind in "wdio" for n in range(rng.randint(0, 9))] or ["w0", "w1"]
    killers = rng.sample(names, min(len(names), rng.randint(1, 2)))
    kills = {
        name: rng.choice([0.0, 0.5, rng.uniform(0, 60)]) if name in killers else NEVER
        for name in names
    }
    parts = [{name: kills[name] for name in names if name[0] == kind} for kind in "wdio"]
    machine = Machine(*parts)
    machine.live(40_000, is_over=machine.is_settled)

    machine.judge()
    machine.live(4_000)  # the rest of the trial is forgotten
    machine.judge()
    trial = machine.world.memory.trial
    if trial is not None:  # except barred triggers, and tasks that ran alone and still run
        assert (trial.groups, trial.deaths) == ((), 0)
        assert {number for number, _ in trial.alone} <= machine.world.starts.keys()


def test_after_one_or_two_deaths_all_are_hosted_at_once():
    machine = Machine(of(8))
    for _ in range(TRIGGER_DEATHS - 1):
        machine.crash()
        assert len(machine.hosted) == 8


def test_after_the_third_death_a_half_is_hosted_and_the_rest_says_why_it_waits():
    machine = Machine(of(8), of(0, d=NEVER))
    world = machine.world
    for _ in range(TRIGGER_DEATHS):
        machine.crash()
        world.pass_time(1)
    run = world.memory.runs[machine.runs["dag"]]
    waits = [explain_task(run, at, -1, world.memory, world.slots) for at in range(8)]
    details = [wait.detail for wait in waits if wait is not None]
    said = "9 triggers were hosted when the daemon died again; they begin first, in groups"

    assert len(machine.hosted) == 5
    assert sum(said in detail for detail in details) + ("d" not in machine.hosted) == 4
    machine.live(20)
    assert len(machine.hosted) == 9
    assert not world.memory.trial.groups


def test_deaths_of_a_daemon_that_lived_long_enough_are_not_in_a_row():
    machine = Machine(of(8))
    for _ in range(10):
        machine.crash()
        machine.live(3_700)
        assert len(machine.hosted) == 8
        assert machine.world.memory.trial is None
        assert not [row for row in machine.world.rows.outbox.values() if row.kind == TRIAL]


def test_a_daemon_that_was_stopped_has_not_died():
    machine = Machine(of(8))
    world = machine.world
    for _ in range(10):
        world.turn(Drain(is_over=True))
        machine.lose()
        world.start_up()
        world.turn(Restarted())
        world.turn(HostUp(TRIGGERS))
        assert len(machine.hosted) == 8
    assert world.memory.trial is None


def test_a_daemon_that_dies_without_its_suspect_acquits_it():
    machine = Machine(of(1))
    for _ in range(40):  # by something else, regardless of what is hosted
        machine.crash()
        machine.live(1)
    machine.live(4_000)

    assert machine.hosted == {"t0"}
    assert machine.paid() == set()


def test_a_daemon_that_dies_before_a_group_is_hosted_tries_the_same_group_again():
    machine = Machine(of(8))
    world = machine.world
    for _ in range(TRIGGER_DEATHS):
        machine.crash()
    group = world.memory.trial.spans[0]
    for _ in range(5):
        machine.lose()
        world.start_up()
        world.slots.is_suspended = True  # its web server does not answer yet
        world.turn(Restarted(has_crashed=True))
        world.turn(HostUp(TRIGGERS))
        assert not machine.hosted
    assert world.memory.trial.spans[0].count == math.ceil(group.count / 2)

    world.slots.is_suspended = False
    world.pass_time(1)
    world.turn()
    assert len(machine.hosted) == 2


def test_a_suspected_task_that_waits_when_the_daemon_dies_again_still_times_out():
    world = World()
    run = world.begin(TaskSpec(task_id="a", retry=RetryPolicy(tries=9)))
    (number,) = world.rows.tasks
    while world.memory.trial is None or number not in dict(world.memory.trial.alone):
        world.pass_time(1)
        assert world.started("a") is not None
        world.starts.clear()
        world.restart()
    start = world.started("a").start
    at = (number, start.start_no, world.now, world.now)
    world.turn(Deferred(*at, "m:T", KEPT, "after", b"\x80", timeout_us=60 * SECOND))
    times_out = world.now + 60 * SECOND

    world.restart()

    assert times_out in {wake.due.at for wake in world.armed if wake.due.task_no == number}
    assert world.state(run, "a") == "deferred"


@pytest.mark.parametrize("deaths", [TRIGGER_DEATHS, TRIGGER_DEATHS + 4])
def test_a_turn_that_is_refused_is_as_if_it_had_never_been(deaths):
    machine = Machine(of(8, t3=0.5), of(2, d0=NEVER, d1=NEVER))
    world = machine.world
    machine.live(4_000, is_over=lambda: machine.crashes == deaths)

    def take_back() -> bool:
        """Roll back a turn before each one that is committed."""
        before = world.memory.trial
        due = [wake.due for wake in world.armed if world._has_come(wake)]
        _, _, tx = world.decide(due)
        world.take_back(tx)
        assert world.memory.trial == before
        return machine.is_settled()

    machine.live(4_000, is_over=take_back)
    machine.judge()


def test_triggers_that_a_drained_node_does_not_host_are_no_suspects():
    machine = Machine(of(8))
    machine.world.ask(DrainNode(node_no=1, is_drained=True))
    for _ in range(5):
        machine.crash()
        assert not machine.hosted
    machine.world.ask(DrainNode(node_no=1, is_drained=False))

    assert len(machine.hosted) == 8


def test_a_suspect_that_can_never_begin_holds_back_nothing_for_ever():
    machine = Machine(of(4), works={"o0": NEVER, "o1": NEVER})
    world = machine.world
    for _ in range(TRIGGER_DEATHS):
        machine.crash()
    assert world.memory.trial.groups[0]
    world.cpu_slots = 0  # whatever the reason
    machine.crash()
    machine.live(3_000)

    assert {row.state.label for row in running(machine)} == {"queued"}
    assert len(machine.hosted) == 4
    assert not world.memory.trial.groups


def running(machine: Machine) -> list[TaskRow]:
    return [row for row in machine.world.rows.tasks.values() if row.state.label != "deferred"]


def test_the_own_host_of_a_dag_is_not_started_for_what_is_held_back():
    machine = Machine(of(4), isolated={"i0": NEVER})
    for _ in range(TRIGGER_DEATHS):
        machine.crash()
    assert own_role(TRIGGERS, "own") not in machine.world.memory.hosts_up
    machine.live(60)

    assert len(machine.hosted) == 5


def test_a_restart_in_the_same_instant_still_forgets_the_deaths_in_time():
    machine = Machine(of(0, w0=NEVER))
    world = machine.world
    machine.crash()
    machine.lose()
    world.start_up()
    world.turn(Restarted())
    machine.live(3_700)

    assert world.memory.trial is None
