"""Triggers move to the newest code of their file without losing events, and wait for capacity."""

from __future__ import annotations

from typing import Any

import pytest

from aioflow.core.triggers.migration import REHOST_AT_ONCE
from aioflow.model.dag import Body, DagSpec, MapSource, MapSpec, RetryPolicy, TaskSpec
from aioflow.model.states import Failure, WaitKind
from aioflow.protocol.commands import StartTrigger
from aioflow.protocol.effects import AssignTrigger, ReleaseTrigger
from aioflow.protocol.inputs import (
    FileParsed,
    HostLost,
    HostUp,
    MigrateTriggers,
    TriggerCapacityChanged,
)
from aioflow.protocol.reports import (
    Deferred,
    NextEventRequested,
    StreamOpened,
    TriggerEnded,
    TriggerFired,
)
from tests.core.test_previous_runs import why
from tests.core.world import World

KILLED = Failure(type="Killed", message="SIGKILL", reason="killed")
GONE = Failure(type="Abandoned", message="did not end", reason="abandoned")
ONCE = RetryPolicy(tries=1)


def spec(*tasks: TaskSpec, dag_id: str = "dag", file: str = "dag.py") -> DagSpec:
    return DagSpec(dag_id=dag_id, file=file, tasks=tasks or (TaskSpec(task_id="a", retry=ONCE),))


def save(world: World, version: str, digest: str | None = "d1", **options: Any) -> list[Any]:
    """Save a new version of the file. Its class ``dag:T`` has this digest, or is missing."""
    return world.turn(
        FileParsed(
            file=options.get("file", "dag.py"),
            version=version,
            dags=(options.get("spec", spec()),),
            sources={},
            triggers={} if digest is None else {"dag:T": digest},
        )
    )


def defer(world: World, name: str = "a", map_index: int = -1, class_path: str = "dag:T") -> None:
    effect = world.started(name, map_index)
    assert effect is not None, "it has not been started"
    start = world.starts.pop(effect.start.task_no).start
    at = (start.task_no, start.start_no, world.now, world.now)
    world.turn(Deferred(*at, class_path, b"\x80", "after"))


def waiting(class_path: str = "dag:T") -> tuple[World, int]:
    """Return a run whose task waits for a trigger of its file, in the file's first version."""
    world = World()
    world.turn(HostUp("async"), HostUp("triggers"))
    save(world, "v1")
    run = world.trigger()
    defer(world, class_path=class_path)
    return world, run


def hosts(effects: list[Any]) -> list[StartTrigger]:
    return [effect.host for effect in effects if isinstance(effect, AssignTrigger)]


def told_to_end(effects: list[Any]) -> list[tuple[int, str]]:
    ends = [effect.end for effect in effects if isinstance(effect, ReleaseTrigger)]
    return [(end.assignment_id, end.reason) for end in ends]


def left(world: World, host: StartTrigger, failure: Failure | None = None) -> list[Any]:
    """Have the host confirm that it has released a trigger as requested."""
    at = (host.trigger_no, host.assignment_id, world.now)
    return world.turn(TriggerEnded(*at, failure, "reassigned"))


def test_a_trigger_is_handed_over_by_the_turn_that_defers_its_task():
    world, run = waiting()
    [host] = hosts(world.effects)
    assert world.state(run, "a") == "deferred"

    world.turn(TriggerFired(host.trigger_no, host.assignment_id, 0, world.now, b"\x05"))

    assert world.started("a").start.method == "after"


# ── moving to newer code ────────────────────────────────────────────────────────────────


def test_a_trigger_is_hosted_as_the_newest_version_has_it():
    world = World()
    world.turn(HostUp("async"), HostUp("triggers"))
    save(world, "v1")
    world.trigger()
    save(world, "v2", "d2")

    defer(world)

    [host] = hosts(world.effects)
    assert (host.version, host.newest) == ("v1", "v2")


def test_a_saved_class_moves_its_trigger_once_the_old_one_has_left():
    world, _ = waiting()
    [before] = hosts(world.effects)
    assert before.newest == ""
    world.pass_time(7)

    effects = save(world, "v2", "d2")
    assert told_to_end(effects) == [(before.assignment_id, "reassigned")]
    assert not hosts(effects)

    [after] = hosts(left(world, before))
    assert (after.trigger_no, after.version, after.newest) == (before.trigger_no, "v1", "v2")
    assert after.assignment_id > before.assignment_id
    assert after.since == before.since


@pytest.mark.parametrize(
    ("digest", "class_path"),
    [
        pytest.param("d1", "dag:T", id="the-class-is-what-it-was"),
        pytest.param("d2", "package:P", id="it-is-of-a-package"),
        pytest.param(None, "dag:T", id="the-file-has-it-no-more"),
    ],
)
def test_a_trigger_stays_where_it_is_if(digest, class_path):
    world, _ = waiting(class_path)

    assert not told_to_end(save(world, "v2", digest))


def test_a_class_that_comes_back_changed_moves_its_trigger():
    world, _ = waiting()
    save(world, "v2", None)

    assert told_to_end(save(world, "v3", "d3"))


def test_a_version_that_brings_back_the_old_class_moves_nothing():
    world, _ = waiting()
    [before] = hosts(world.effects)
    save(world, "v2", "d2")
    [after] = hosts(left(world, before))

    assert told_to_end(save(world, "v1", "d1")) == [(after.assignment_id, "reassigned")]
    assert hosts(left(world, after))[0].newest == ""


def test_an_event_on_its_way_while_the_class_was_saved_counts():
    world, run = waiting()
    [before] = hosts(world.effects)
    save(world, "v2", "d2")

    world.turn(TriggerFired(before.trigger_no, before.assignment_id, 0, world.now, b"\x05"))
    assert not hosts(left(world, before))

    assert world.started("a").start.event == b"\x05"
    world.succeed("a")
    assert world.run_state(run) == "success"


def test_a_trigger_that_failed_by_itself_meanwhile_fails_its_task():
    world, run = waiting()
    [before] = hosts(world.effects)
    save(world, "v2", "d2")

    at = (before.trigger_no, before.assignment_id, world.now)
    world.turn(TriggerEnded(*at, Failure(type="E", message="no", reason="trigger")))

    assert world.state(run, "a") == "failed"


def test_a_trigger_that_does_not_end_is_assigned_again_nevertheless():
    world, _ = waiting()
    [before] = hosts(world.effects)
    save(world, "v2", "d2")

    [after] = hosts(left(world, before, GONE))

    assert after.newest == "v2"


def test_a_second_confirmation_of_a_move_changes_nothing():
    world, _ = waiting()
    [before] = hosts(world.effects)
    save(world, "v2", "d2")
    left(world, before)

    assert not left(world, before)


def test_a_host_that_dies_during_a_move_gets_the_newest_version_when_it_is_back():
    world, _ = waiting()
    save(world, "v2", "d2")
    world.turn(HostLost(role="triggers", culprit=-1, failure=KILLED, at=world.now))

    [host] = hosts(world.turn(HostUp("triggers")))

    assert host.newest == "v2"


def test_a_class_saved_while_the_daemon_was_down_moves_its_trigger():
    world, _ = waiting()
    world.restart()
    assert not told_to_end(save(world, "v1", "d1"))

    assert told_to_end(save(world, "v2", "d2"))


def test_a_name_that_moved_to_another_file_leaves_its_triggers_alone():
    world, _ = waiting()
    save(world, "v2", "d2", spec=spec(dag_id="another"))
    elsewhere = spec(file="other.py")

    effects = save(world, "w1", "d9", file="other.py", spec=elsewhere)

    assert not told_to_end(effects)
    world.turn(HostLost(role="triggers", culprit=-1, failure=KILLED, at=world.now))
    [host] = hosts(world.turn(HostUp("triggers")))
    assert host.newest == ""


def fan(width: int) -> tuple[World, Any]:
    """Return a world in which all children of a mapped task wait for a trigger of their file."""
    world = World(cpu_slots=width)
    world.turn(HostUp("async"), HostUp("triggers"))
    over = MapSpec(sources=(MapSource("x", -1, width),))
    wide = spec(TaskSpec(task_id="a", mapped=over, retry=ONCE))
    save(world, "v1", spec=wide)
    world.trigger()
    reports = []
    while world.starts:
        started, world.starts = world.starts, {}
        for effect in started.values():
            at = (effect.start.task_no, effect.start.start_no, world.now, world.now)
            reports.append(Deferred(*at, "dag:T", b"\x80", "after"))
        world.turn(*reports)
        reports.clear()
    return world, wide


def test_many_triggers_move_in_batches_each_once():
    width = 2 * REHOST_AT_ONCE + 5
    world, wide = fan(width)

    batches = save(world, "v2", "d2", spec=wide)

    ends = [number for number, _ in told_to_end(batches)]
    assert len(ends) == len(set(ends)) == width
    assert sum(isinstance(effect, MigrateTriggers) for effect in batches) == 3


def test_a_move_that_a_newer_version_supersedes_stops():
    world, wide = fan(3)
    effects = world._turn([FileParsed(file="dag.py", version="v2", dags=(wide,), sources={},
                                      triggers={"dag:T": "d2"})])  # fmt: skip
    [behind] = [effect for effect in effects if isinstance(effect, MigrateTriggers)]
    world._turn([FileParsed(file="dag.py", version="v3", dags=(wide,), sources={},
                            triggers={"dag:T": "d1"})])  # fmt: skip

    assert not told_to_end(world.turn(behind))


def test_code_of_versions_without_a_hosted_trigger_is_forgotten():
    world, _ = waiting()
    for number in range(2, 30):
        save(world, f"v{number}", f"d{number}")

    assert len(world.memory.trigger_code) <= 3


def test_a_refused_turn_moves_its_triggers_when_it_is_repeated():
    world, _ = waiting()
    parsed = FileParsed(
        file="dag.py", version="v2", dags=(spec(),), sources={}, triggers={"dag:T": "d2"}
    )

    world.refuse(parsed)

    assert len(told_to_end(world.effects)) == 1


# ── streams ─────────────────────────────────────────────────────────────────────────────


def stream() -> tuple[World, StartTrigger]:
    world = World()
    world.turn(HostUp("async"), HostUp("triggers"))
    save(world, "v1", spec=spec(TaskSpec(task_id="a", body=Body.COROUTINE, retry=ONCE)))
    world.trigger()
    start = world.started("a").start
    named = (start.task_no, start.start_no, 0, "stream", "T", "f.py:3", "dag:T", b"\x80", 4)
    world.turn(StreamOpened(*named))
    [host] = hosts(world.effects)
    return world, host


def fire(
    world: World, host: StartTrigger, index: int, payload: bytes, key: str | None = None
) -> None:
    world.turn(TriggerFired(host.trigger_no, host.assignment_id, index, world.now, payload, key))


def take(world: World, ordinal: int) -> None:
    start = world.started("a").start
    at = (start.task_no, start.start_no, world.now, world.now)
    world.turn(NextEventRequested(*at, ordinal, "next", "T#0", "f.py:3", 0))


def test_a_stream_continues_in_newer_code_with_its_last_event_and_without_a_close():
    world, before = stream()
    assert before.last is None
    fire(world, before, 0, b"\x01", "one")
    save(world, "v2", "d2", spec=spec(TaskSpec(task_id="a", body=Body.COROUTINE, retry=ONCE)))
    fire(world, before, 1, b"\x02", "two")

    [after] = hosts(left(world, before))
    assert after.last == (b"\x02", "two")
    fire(world, after, 0, b"\x02", "two")  # it starts over and yields the same event again
    fire(world, after, 1, b"\x03", "three")

    assert [row.key for row in world.rows.events.values()] == ["one", "two", "three"]


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_the_last_event_outlives_a_restart_whether_it_was_consumed_or_not(taken):
    world, host = stream()
    fire(world, host, 0, b"\x01", "one")
    fire(world, host, 1, b"\x02", None)
    for ordinal in range(1, 1 + taken):
        take(world, ordinal)

    world.restart()

    assert hosts(world.effects)[-1].last == (b"\x02", None)


def test_a_dropped_event_is_not_the_last_one():
    world, host = stream()
    fire(world, host, 0, b"\x01", "one")
    fire(world, host, 1, b"\x07", "one")

    world.turn(HostLost(role="triggers", culprit=-1, failure=KILLED, at=world.now))

    assert hosts(world.turn(HostUp("triggers")))[0].last == (b"\x01", "one")


# ── capacity ────────────────────────────────────────────────────────────────────────────


def test_triggers_that_wait_for_capacity_say_so_until_they_have_it():
    world, run = waiting()
    [host] = hosts(world.effects)
    assert why(world, run).kind is WaitKind.TRIGGER

    world.turn(TriggerCapacityChanged(host.trigger_no, host.assignment_id, has_capacity=False))
    assert why(world, run).kind is WaitKind.TRIGGER_CAPACITY
    world.turn(TriggerCapacityChanged(host.trigger_no, host.assignment_id, has_capacity=True))
    assert why(world, run).kind is WaitKind.TRIGGER


def test_word_of_room_from_an_earlier_hosting_is_late():
    world, run = waiting()
    [before] = hosts(world.effects)
    world.turn(HostLost(role="triggers", culprit=-1, failure=KILLED, at=world.now))
    world.turn(HostUp("triggers"))

    world.turn(TriggerCapacityChanged(before.trigger_no, before.assignment_id, has_capacity=False))

    assert why(world, run).kind is WaitKind.TRIGGER


def test_a_host_that_comes_back_is_given_the_important_first_and_then_the_old():
    world = World(cpu_slots=9)
    world.begin(
        TaskSpec(task_id="old"),
        TaskSpec(task_id="vital", priority=5),
        TaskSpec(task_id="young"),
    )
    for name in ("old", "young", "vital"):
        defer(world, name)

    world.restart()

    restored = hosts(world.effects)
    assert [(host.priority, host.task_index) for host in restored] == [(5, 1), (0, 0), (0, 2)]


def test_a_trigger_is_hosted_with_the_place_of_its_task_for_the_log():
    world, _ = waiting()

    [host] = hosts(world.effects)

    task = world.memory.waits[host.trigger_no].task
    assert (host.task_index, host.map_index, host.try_number) == (0, -1, 1)
    assert host.start_no == task.start_no
