"""A task that kills its process is found by bisection, and no other task is charged."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec
import pytest

from aioflow.core.state.child_roles import ASYNC, own_role
from aioflow.core.why import explain_task
from aioflow.model.dag import Body, DagSpec, MapSource, MapSpec, RetryPolicy, TaskSpec
from aioflow.model.states import Failure
from aioflow.protocol.effects import StartHost, StartTry
from aioflow.protocol.inputs import Drain, HostLost, HostUp, Restarted
from aioflow.protocol.outbox import TRIAL
from aioflow.protocol.reports import Succeeded
from aioflow.protocol.requests import DrainNode, SetPool
from tests.core.world import SECOND, World
from tests.sampling import seeds

NAMES = tuple(f"t{number}" for number in range(21))
STEP = 0.25
ISOLATED = ("it changes os.environ['A']",)
KILLED = Failure(type="Killed", message="killed by signal 9", reason="killed")


class Machine:
    """A node under a supervisor. Its tasks either end after a time or kill their process.

    Args:
        kills: How many seconds after its start each killer kills.
        lasts: How many seconds each of the other tasks runs.
    """

    options: ClassVar[dict[str, Any]] = {}
    """Options of the DAG."""

    def __init__(self, kills: dict[str, float], lasts: dict[str, float], **fields: Any) -> None:
        self.kills, self.lasts = kills, lasts
        self.crashes = 0
        self.starts: dict[str, int] = {}
        self._began: dict[int, tuple[str, int, StartTry]] = {}
        names = sorted([*kills, *lasts])
        self.world = World(cpu_slots=len(names), async_slots=len(names))
        specs = [TaskSpec(task_id=name, **fields) for name in names]
        self.run = self.world.begin(*specs, **self.options)

    def live(self, most: int = 10_000, *, between: Callable[[], None] = lambda: None) -> None:
        """Continue until the run has ended."""
        for _ in range(most):
            if self.world.run_state(self.run) not in {"running", "queued"}:
                return
            self.start_hosts()
            self._note_starts()
            self._step()
            between()
        raise AssertionError(f"still running after {self.crashes} crashes")

    def start_hosts(self) -> None:
        """Start the requested hosts that serve a single DAG."""
        world = self.world
        asked = {effect.role for effect in world.effects if isinstance(effect, StartHost)}
        world.turn(*map(HostUp, sorted(asked - world.memory.hosts_up)))

    def _note_starts(self) -> None:
        world = self.world
        for number in self._began.keys() - world.starts.keys():
            del self._began[number]
        for number, effect in world.starts.items():
            known = self._began.get(number)
            if known is None or known[2].start.start_no != effect.start.start_no:
                name = world._spec(effect).task_id
                self.starts[name] = self.starts.get(name, 0) + 1
                self._began[number] = name, world.now, effect

    def _step(self) -> None:
        world = self.world
        for name, since, _ in self._began.values():
            if name in self.kills and world.now >= since + self.kills[name] * SECOND:
                self.crash(name)
                return
        ended = [
            effect
            for name, since, effect in self._began.values()
            if name in self.lasts and world.now >= since + self.lasts[name] * SECOND
        ]
        for effect in ended:
            start = world.starts.pop(effect.start.task_no).start
            world.turn(Succeeded(start.task_no, start.start_no, world.now, world.now))
        world.pass_time(STEP)

    def crash(self, by: str) -> None:
        """Let the daemon die, and its supervisor restart it."""
        self.crashes += 1
        self._began.clear()
        self.world.now += SECOND
        self.world.restart()

    def states(self) -> dict[str, str]:
        return {name: self.world.state(self.run, name) for name in (*self.kills, *self.lasts)}


class HostMachine(Machine):
    """A machine whose async host dies, where no crash recorder names the code that was running."""

    role = ASYNC

    def crash(self, by: str) -> None:
        self.crashes += 1
        self._began.clear()
        world = self.world
        world.turn(HostLost(role=self.role, culprit=-1, failure=KILLED, at=world.now))
        world.now += SECOND
        world.turn(HostUp(self.role))


class OwnHostMachine(HostMachine):
    """A host machine whose dying host is the async host of an isolated DAG."""

    role = own_role(ASYNC, "dag")
    options: ClassVar[dict[str, Any]] = {"isolated": ISOLATED}


class IsolatedMachine(Machine):
    """A node under a supervisor, with an isolated DAG."""

    options: ClassVar[dict[str, Any]] = {"isolated": ISOLATED}


def judge(machine: Machine) -> None:
    states = machine.states()
    assert {states[name] for name in machine.kills} <= {"failed"}
    assert {states[name] for name in machine.lasts} <= {"success"}
    halvings = math.ceil(math.log2(len(states))) + 1
    assert machine.crashes <= len(machine.kills) * (halvings + 8), machine.crashes
    for name in machine.lasts:
        assert machine.starts[name] <= 2 + len(machine.kills) * (halvings + 1), name
    assert not [row for row in machine.world.rows.outbox.values() if row.kind == TRIAL]


def tasks(*killers: str) -> tuple[dict[str, float], dict[str, float]]:
    """Return killers that kill soon after their start, and other tasks that run for a while."""
    return dict.fromkeys(killers, 0.5), {n: 30.0 for n in NAMES if n not in killers}


@pytest.mark.parametrize("killers", [("t0",), ("t20",), ("t3", "t17")])
def test_the_killer_of_twenty_fails_and_nothing_else_is_charged(killers):
    machine = Machine(*tasks(*killers))
    machine.live()

    judge(machine)


@pytest.mark.parametrize("kind", [Machine, IsolatedMachine, HostMachine, OwnHostMachine])
@pytest.mark.parametrize("seed", seeds(6, 150))
def test_killers_are_found_whenever_they_kill_and_however_long_others_run(kind, seed):
    rng = random.Random(seed)
    names = NAMES[: rng.randint(1, len(NAMES))]
    killers = rng.sample(names, min(len(names), rng.randint(1, 3)))
    is_host = issubclass(kind, HostMachine)
    body = Body.COROUTINE if is_host else rng.choice([Body.FUNCTION, Body.COROUTINE])
    machine = kind(
        {name: rng.choice([0.0, 0.5, rng.uniform(0, 60)]) for name in killers},
        {name: rng.choice([0.25, rng.uniform(0, 100)]) for name in names if name not in killers},
        body=body,
        retry=RetryPolicy(tries=3),
    )
    machine.live()

    judge(machine)


@pytest.mark.parametrize(
    ("kind", "other"),
    [(HostMachine, "async:other"), (OwnHostMachine, "async:other"), (OwnHostMachine, "async")],
)
def test_the_death_of_another_host_leaves_a_trial_as_it_is(kind, other):
    machine = kind(*tasks("t3", "t17"), body=Body.COROUTINE)
    world = machine.world
    beside = TaskSpec(task_id="beside", body=Body.COROUTINE)
    isolated = () if other == ASYNC else ISOLATED
    spec = DagSpec(dag_id="other", file="other.py", tasks=(beside,), isolated=isolated)
    world.load(spec, file="other.py")
    run, tried = world.trigger("other"), set()

    def kill_the_other() -> None:
        before = world.memory.trial
        if before is not None and before.groups:
            tried.add(bool(before.groups[0]))
            world.turn(HostLost(role=other, culprit=-1, failure=KILLED, at=world.now))
            world.turn(HostUp(other))
            assert world.memory.trial == before

    machine.live(between=kill_the_other)

    judge(machine)
    assert tried == {True, False}  # in groups and in controls
    assert world.state(run, "beside") == "running"


def test_an_own_host_that_ends_because_it_is_idle_begins_no_trial():
    machine = OwnHostMachine(*tasks(), body=Body.COROUTINE)
    machine.start_hosts()
    machine.crash("nobody")
    world = machine.world
    for _ in range(3):
        lost = HostLost(role=machine.role, culprit=-1, failure=KILLED, at=world.now)
        world.turn(msgspec.structs.replace(lost, was_dismissed=True))
        world.turn(HostUp(machine.role))

    assert len(world.starts) == len(NAMES)
    assert world.memory.trial is None
    assert not world.rows.outbox


def test_tasks_that_wait_for_the_trial_of_an_own_host_say_so():
    machine = OwnHostMachine(*tasks("t4"), body=Body.COROUTINE)
    machine.start_hosts()
    machine.crash("t4")
    machine.crash("t4")
    world = machine.world
    wait = explain_task(
        world.memory.runs[machine.run], len(NAMES) - 1, -1, world.memory, world.slots
    )

    assert wait is not None
    begins = "21 tasks ran when the async host of dag died again; they begin first, in groups"
    assert wait.detail == begins


@pytest.mark.parametrize("kind", [HostMachine, OwnHostMachine])
def test_tasks_of_other_processes_do_not_wait_for_a_trial_of_a_host(kind):
    machine = kind(*tasks("t4"), body=Body.COROUTINE)
    machine.start_hosts()
    machine.crash("t4")
    machine.crash("t4")
    world = machine.world
    elsewhere = ISOLATED if machine.role == ASYNC else ()
    specs = (TaskSpec(task_id="hosted", body=Body.COROUTINE), TaskSpec(task_id="worker"))
    spec = DagSpec(dag_id="other", file="other.py", tasks=specs, isolated=elsewhere)
    world.load(spec, file="other.py")
    world.turn(HostUp(own_role(ASYNC, "other")), HostUp(ASYNC))
    run = world.trigger("other")

    assert world.memory.trial.groups
    assert [world.state(run, name) for name in ("hosted", "worker")] == ["running", "running"]
    assert world.state(world.trigger(), "t0") == "queued"


def test_suspects_of_a_host_wait_for_places_that_others_took_meanwhile():
    machine = HostMachine(*tasks("t4"), body=Body.COROUTINE)
    machine.start_hosts()
    machine.crash("t4")
    machine.crash("t4")
    world = machine.world
    group = len(world.memory.trial.groups[0])
    world.slots.coroutines = group + 1
    many = tuple(TaskSpec(task_id=f"m{n}", body=Body.COROUTINE) for n in range(5))
    spec = DagSpec(dag_id="other", file="other.py", tasks=many, isolated=ISOLATED)
    world.load(spec, file="other.py")
    world.turn(HostUp(own_role(ASYNC, "other")))
    world.trigger("other")

    assert world.slots.running_coroutines == group + 1
    machine.crash("t4")
    assert world.slots.running_coroutines <= group + 1
    machine.live()
    judge(machine)


def lose_async_host(world: World) -> None:
    world.turn(HostLost(role=ASYNC, culprit=-1, failure=KILLED, at=world.now))
    world.turn(HostUp(ASYNC))


def test_a_suspect_of_a_host_waits_for_the_limit_of_its_run_that_another_task_reached_meanwhile():
    world = World()
    hosted = TaskSpec(task_id="hosted", body=Body.COROUTINE, priority=9)
    functions = (TaskSpec(task_id="first"), TaskSpec(task_id="second"))
    run = world.begin(hosted, *functions, max_active_tasks=1)
    for name in ("first", "second"):  # each begins while the host is away
        lose_async_host(world)
        assert [world.state(run, each) for each in ("hosted", name)] == ["queued", "running"]
        world.succeed(name)
        assert world.state(run, "hosted") == "running"


def test_other_tasks_of_a_host_wait_ten_minutes_for_a_suspect_that_cannot_start():
    world = World()
    hosted = TaskSpec(task_id="hosted", body=Body.COROUTINE, priority=9)
    functions = (TaskSpec(task_id="first"), TaskSpec(task_id="second"))
    run = world.begin(hosted, *functions, max_active_tasks=1)
    lose_async_host(world)
    world.succeed("first")
    world.pass_time(3600)  # the life of the daemon does not count for a suspect of the host
    lose_async_host(world)  # "second" has taken the slot in between
    beside = TaskSpec(task_id="beside", body=Body.COROUTINE)
    world.load(DagSpec(dag_id="other", file="other.py", tasks=(beside,)), file="other.py")
    other = world.trigger("other")

    world.pass_time(599)
    assert world.state(other, "beside") == "queued"
    world.pass_time(1)
    assert world.state(other, "beside") == "running"
    assert world.state(run, "hosted") == "queued"  # it begins with everything else
    world.succeed("second")
    assert world.state(run, "hosted") == "running"


def suspects_without_room() -> tuple[World, int]:
    """Return a world with two suspects in two groups, and a run that has to wait for their trials.

    Their pool was reduced to fewer slots than each of them needs while they were running.
    """
    world = World()
    world.ask(SetPool(name="narrow", slots=4))
    wide = TaskSpec(task_id="a", body=Body.COROUTINE, pool="narrow", slots=2)
    world.begin(wide, msgspec.structs.replace(wide, task_id="b"))
    beside = TaskSpec(task_id="beside", body=Body.COROUTINE)
    world.load(DagSpec(dag_id="other", file="other.py", tasks=(beside,)), file="other.py")
    lose_async_host(world)
    world.ask(SetPool(name="narrow", slots=1))
    lose_async_host(world)
    assert [len(group) for group in world.memory.trial.groups] == [1, 1]
    return world, world.trigger("other")


def test_each_group_is_waited_for_ten_minutes():
    world, other = suspects_without_room()

    for _ in range(2):
        world.pass_time(599)
        assert world.state(other, "beside") == "queued"
        world.pass_time(1)
    assert world.state(other, "beside") == "running"


def test_the_ten_minutes_begin_again_when_a_drained_node_takes_work_again():
    world, other = suspects_without_room()
    world.pass_time(500)
    world.ask(DrainNode(node_no=1, is_drained=True))
    world.pass_time(7_000)
    world.ask(DrainNode(node_no=1, is_drained=False))

    world.pass_time(599)
    assert len(world.memory.trial.groups) == 2
    world.pass_time(1)
    assert len(world.memory.trial.groups) == 1
    assert world.state(other, "beside") == "queued"


def test_the_ten_minutes_begin_again_with_the_groups_of_another_death():
    world, other = suspects_without_room()
    world.pass_time(500)
    world.ask(SetPool(name="narrow", slots=4))  # the first of the two begins
    world.ask(SetPool(name="narrow", slots=1))
    lost = HostLost(role=ASYNC, culprit=-1, failure=KILLED, at=world.now)
    world.turn(lost, HostUp(ASYNC))

    world.pass_time(599)
    assert world.state(other, "beside") == "queued"
    world.pass_time(1)
    assert world.state(other, "beside") == "running"


def test_a_suspect_is_waited_for_ten_minutes_however_long_it_had_run():
    world = World()
    world.ask(SetPool(name="narrow", slots=1))
    run = world.begin(TaskSpec(task_id="hosted", body=Body.COROUTINE, pool="narrow"))
    beside = TaskSpec(task_id="beside", body=Body.COROUTINE)
    both = (TaskSpec(task_id="function", pool="narrow"), beside)
    world.load(DagSpec(dag_id="other", file="other.py", tasks=both), file="other.py")

    def run_for_long():
        while world.state(run, "hosted") != "running":
            world.pass_time(60)
        world.pass_time(5_000)

    for _ in range(4):
        run_for_long()
        lose_async_host(world)
    run_for_long()
    other = world.trigger("other")
    lose_async_host(world)
    control_us = world.memory.trial.proof_us

    assert world.memory.trial.groups[0] == ()
    assert control_us > 1_000 * SECOND
    assert [world.state(other, name) for name in ("function", "beside")] == ["running", "queued"]
    world.pass_time(control_us / SECOND)
    world.pass_time(599)
    assert world.state(other, "beside") == "queued"
    world.pass_time(1)
    assert [world.state(other, "beside"), world.state(run, "hosted")] == ["running", "queued"]


def first_half_begins(machine: Machine) -> bool:
    """Return whether only the first of two groups has started."""
    world = machine.world
    begun = {world._spec(effect).task_id for effect in world.starts.values()}
    return begun == set(sorted(NAMES)[:11]) and len(world.memory.trial.groups) == 2


def test_a_host_that_is_long_away_loses_no_patience_with_its_suspects():
    machine = HostMachine(*tasks("t4"), body=Body.COROUTINE)
    machine.start_hosts()
    world = machine.world
    machine.crash("t4")
    world.turn(HostLost(role=ASYNC, culprit=-1, failure=KILLED, at=world.now))
    world.starts.clear()
    for _ in range(14):
        world.pass_time(500)
        world.turn()
    world.turn(HostUp(ASYNC))

    assert first_half_begins(machine)


def test_a_daemon_that_is_long_away_loses_no_patience_with_its_suspects():
    machine = Machine(*tasks("t4"))
    world = machine.world
    machine.crash("t4")
    for away in (1, 7_000):  # it dies before its web server answers
        world.now += away * SECOND
        world.start_up()
        world.slots.is_suspended = True
        world.turn(Restarted(has_crashed=True))
        world.pass_time(4)
    world.slots.is_suspended = False
    world.turn()

    assert first_half_begins(machine)


def test_a_restart_after_one_crash_begins_everything_at_once():
    machine = Machine(*tasks("t4"))
    machine.crash("t4")

    assert len(machine.world.starts) == len(NAMES)
    assert machine.world.memory.trial is None


def test_after_a_second_crash_a_half_begins_and_the_rest_says_why_it_waits():
    machine = Machine(*tasks("t4"))
    world = machine.world
    machine.crash("t4")
    machine.crash("t4")
    run = world.memory.runs[machine.run]
    waits = [explain_task(run, at, -1, world.memory, world.slots) for at in range(len(NAMES))]
    details = {wait.detail for wait in waits if wait is not None}

    assert len(world.starts) == 11
    assert details == {"21 tasks ran when the daemon died again; they begin first, in groups"}
    other = world.trigger()
    assert world.state(other, "t0") == "queued"  # no other task starts beside them
    world.pass_time(3)  # longer than they had run
    assert len(world.starts) == len(NAMES) == 21
    world.pass_time(3)
    assert world.memory.trial is None


@pytest.mark.parametrize("step_seconds", [-7200, -1, 1, 7200])
def test_a_clock_that_is_set_holds_up_no_trial(step_seconds):
    machine = Machine(*tasks("t4"))
    machine.crash("t4")
    machine.crash("t4")
    world = machine.world
    world.set_clock(step_seconds)
    for _ in range(20):
        world.pass_time(1)
        assert not any(map(world._has_come, world.armed))  # else turns without end

    assert len(world.starts) == len(NAMES)
    assert world.memory.trial is None


def test_a_daemon_that_dies_without_its_suspect_acquits_it():
    machine = Machine({}, {"long": 1e6})
    world = machine.world
    for _ in range(40):  # by something else, regardless of what runs
        machine.crash("nobody")
        world.pass_time(1)

    for _ in range(20):
        world.pass_time(60)
    assert machine.states() == {"long": "running"}


def test_a_suspect_that_comes_to_its_end_is_forgotten():
    machine = Machine({}, {"long": 1e6})
    for _ in range(3):
        machine.crash("nobody")
        while not machine.world.starts:
            machine.world.pass_time(1)
    assert machine.world.memory.trial.alone
    machine.world.succeed("long")

    machine.world.pass_time(1)
    assert machine.world.memory.trial is None
    assert not machine.world.rows.outbox


def test_a_stop_by_people_ends_a_trial():
    machine = Machine(*tasks("t4"))
    machine.crash("t4")
    machine.crash("t4")
    machine.world.turn(Drain(is_over=True))
    machine.crash("nobody")

    assert len(machine.world.starts) == len(NAMES)


def test_a_daemon_that_dies_before_a_group_begins_tries_the_same_group_again():
    machine = Machine(*tasks("t4"))
    world = machine.world
    machine.crash("t4")
    machine.crash("t4")
    group = world.memory.trial.groups[0]
    world.start_up()
    world.decide([Restarted()])  # never committed
    world.restart()

    assert len(world.memory.trial.groups[0]) == math.ceil(len(group) / 2)
    world.slots.is_open = False
    world.start_up()
    world.slots.is_open = False  # its web server does not answer yet
    world.turn(Restarted())
    world.restart()
    assert len(world.memory.trial.groups[0]) == math.ceil(math.ceil(len(group) / 2) / 2)


def test_tries_that_may_have_started_unseen_are_not_claimed_after_a_crash():
    over = MapSpec(sources=(MapSource("item", 0, -1),))
    world = World(cpu_slots=1)
    run = world.begin(
        TaskSpec(task_id="list", feeds_limit=9),
        TaskSpec(task_id="work", parents=(0,), mapped=over, map_limit=9),
    )
    world.succeed("list", size=9, width=6)
    world.succeed("work", 0)
    (worker,) = world.slots.workers
    claimed = [task.task_no for task in worker.claims]
    assert claimed  # the duration of one is known: the others are sent in advance
    world.restart()
    (worker,) = world.slots.workers
    begun = []
    while world.run_state(run) == "running":
        begun.append(worker.current.task_no)
        assert not {task.task_no for task in worker.claims} & set(claimed)
        world.succeed("work", worker.current.map_index)

    assert set(claimed) <= set(begun)


@pytest.mark.parametrize("crashes", [2, 9])
def test_a_refused_turn_of_a_restart_leaves_the_trial_as_it_was(crashes):
    machine = Machine(*tasks("t4"))
    world = machine.world
    for _ in range(crashes):
        machine.crash("t4")
        world.pass_time(5)
    world.start_up()
    before = world.memory.trial
    _, _, tx = world.decide([Restarted()])
    world.take_back(tx)

    assert world.memory.trial == before
