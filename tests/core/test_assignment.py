"""A trigger never runs in two processes, whatever happens to its hosts.

Once all reports are read, it runs in one. Drawn at random are: classes that enter and leave
quarantine, versions that become isolated or shared, hosts that start and die, and the delay until
the engine gets each report.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioflow.model.dag import DagSpec, RetryPolicy, TaskSpec
from aioflow.model.states import Failure
from aioflow.protocol.commands import StopTrigger
from aioflow.protocol.effects import AssignTrigger, ReleaseTrigger, StartHost
from aioflow.protocol.inputs import HostLost, HostUp, IsolateTriggerClass
from aioflow.protocol.reports import TriggerEnded
from tests.core.test_isolation import defer
from tests.core.world import World

OWN, QUARANTINE, TRIGGERS = "triggers:dag", "quarantine", "triggers"
ROLES = (OWN, QUARANTINE, TRIGGERS)
CLASSES = ("dag:A", "dag:B")
DIED = Failure(type="Killed", message="SIGKILL", reason="killed")
ONCE = RetryPolicy(tries=1)


def spec(*, isolated: bool) -> DagSpec:
    tasks = tuple(TaskSpec(task_id=f"t{n}", retry=ONCE) for n in range(len(CLASSES)))
    reasons = ("it changes os.environ['A']",) if isolated else ()
    return DagSpec(dag_id="dag", file="dag.py", tasks=tasks, isolated=reasons)


class Hosts:
    """The processes of an engine, as the triggerers see them.

    Attributes:
        has: The triggers of each running process, with their assignment.
        ending: Triggers that were asked to end and have not ended yet.
        inbox: Reports that the engine has not read yet.
    """

    def __init__(self) -> None:
        self.world = World(cpu_slots=len(CLASSES))
        self.has: dict[str, dict[int, int]] = {TRIGGERS: {}}
        self.ending: dict[str, deque[StopTrigger]] = defaultdict(deque)
        self.inbox: deque[Any] = deque()
        self.wanted: set[str] = set()
        self.versions = 0
        self.load(isolated=False)
        self.world.trigger()
        for number, class_path in enumerate(CLASSES):
            defer(self.world, f"t{number}", class_path)
        self.act([one for one in self.world.effects if isinstance(one, AssignTrigger)])
        self.numbers = [host for hosts in self.has.values() for host in hosts]
        assert len(self.numbers) == len(CLASSES)

    def turn(self, *inputs: Any) -> None:
        self.act(self.world.turn(*inputs))

    def act(self, effects: list[Any]) -> None:
        for effect in list(effects):
            match effect:
                case AssignTrigger(host=host, role=role) if role in self.has:
                    others = [one for one in self.has if one != role]
                    assert not any(host.trigger_no in self.has[one] for one in others), "twice"
                    self.has[role][host.trigger_no] = host.assignment_id
                case AssignTrigger(role=role) if role == QUARANTINE:
                    self.wanted.add(role)
                case StartHost(role=role):
                    self.wanted.add(role)
                case ReleaseTrigger(end=end, role=role):
                    if end.trigger_no in self.has.get(role, ()):
                        self.ending[role].append(end)
                    else:
                        self.say_ended(end)
                case _:
                    pass

    def say_ended(self, end: StopTrigger) -> None:
        at = (end.trigger_no, end.assignment_id, self.world.now)
        self.inbox.append(TriggerEnded(*at, None, end.reason))

    # ── actions ─────────────────────────────────────────────────────────────────────────

    def load(self, *, isolated: bool) -> None:
        self.versions += 1
        known = len(self.world.effects)
        self.world.load(spec(isolated=isolated), version=f"v{self.versions}")
        self.act(self.world.effects[known:])

    def move(self, class_path: str, *, is_quarantined: bool) -> None:
        self.turn(IsolateTriggerClass(class_path, is_quarantined=is_quarantined))

    def come_up(self, role: str) -> None:
        if role not in self.has and (role in self.wanted or role == TRIGGERS):
            self.has[role] = {}
            self.inbox.append(HostUp(role))

    def die(self, role: str) -> None:
        if role in self.has:
            del self.has[role]
            self.ending.pop(role, None)
            self.inbox.append(HostLost(role=role, culprit=-1, failure=DIED, at=self.world.now))

    def leave(self, role: str) -> None:
        if self.ending[role]:
            end = self.ending[role].popleft()
            if self.has[role].get(end.trigger_no) == end.assignment_id:
                del self.has[role][end.trigger_no]
            self.say_ended(end)

    def read(self) -> None:
        if self.inbox:
            self.turn(self.inbox.popleft())

    def settle(self) -> None:
        """Read all reports, confirm all releases, and start all requested hosts."""
        for _ in range(50):
            for role in ROLES:
                self.come_up(role)
                while self.ending[role]:
                    self.leave(role)
            while self.inbox:
                self.read()


ACTIONS = st.one_of(
    st.tuples(st.just("load"), st.booleans()),
    st.tuples(st.sampled_from(["quarantine", "release"]), st.sampled_from(CLASSES)),
    st.tuples(st.sampled_from(["come_up", "die", "leave"]), st.sampled_from(ROLES)),
    st.tuples(st.just("read"), st.none()),
)


def do(hosts: Hosts, action: str, value: Any) -> None:
    match action:
        case "load":
            hosts.load(isolated=value)
        case "quarantine" | "release":
            hosts.move(value, is_quarantined=action == "quarantine")
        case "read":
            hosts.read()
        case _:
            getattr(hosts, action)(value)


def check(actions: list[tuple[str, Any]]) -> None:
    hosts = Hosts()
    for action, value in actions:
        do(hosts, action, value)
    hosts.settle()
    found = sorted(number for has in hosts.has.values() for number in has)
    assert found == sorted(hosts.numbers), hosts.has


A, B = CLASSES
READ = ("read", None)


@pytest.mark.parametrize(
    "actions",
    [
        pytest.param(
            [
                *[("quarantine", A), ("quarantine", B)],
                *[("leave", TRIGGERS), ("leave", TRIGGERS), READ],
                *[("die", TRIGGERS), ("come_up", TRIGGERS), ("come_up", QUARANTINE), READ],
                *[("release", B), READ, READ],
            ],
            id="released-before-word-came-that-the-quarantine-host-which-has-it-is-up",
        ),
        pytest.param(
            [("load", True), ("die", TRIGGERS)],
            id="its-dag-was-isolated-before-the-shared-host-died",
        ),
        pytest.param(
            [("quarantine", A), ("die", TRIGGERS)],
            id="its-host-died-before-it-could-leave-for-quarantine",
        ),
        pytest.param(
            [
                *[("quarantine", A), ("leave", TRIGGERS), READ, ("come_up", QUARANTINE), READ],
                *[("release", A), ("die", QUARANTINE)],
            ],
            id="the-quarantine-host-died-before-it-could-leave",
        ),
        pytest.param(
            [
                *[("load", True), ("die", TRIGGERS), READ],
                *[("quarantine", A), ("load", False)],
            ],
            id="the-own-host-it-waited-for-is-none-of-it-any-more",
        ),
    ],
)
def test_a_trigger_is_in_one_process_though(actions):
    check(actions)


@settings(max_examples=100, deadline=None)
@given(st.lists(ACTIONS, max_size=25))
def test_each_trigger_is_in_one_process(actions):
    check(actions)
