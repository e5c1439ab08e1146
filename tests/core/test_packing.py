"""Packing of deferred tasks: small in memory, and invisible to the code that looks a task up."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import msgspec
import pytest

from aioflow.core.runs.restore import RunRestore, quarantine_unrestored, restore_run
from aioflow.core.state.memory import Memory
from aioflow.core.state.packed_maps import Numbers, Pages, Rows
from aioflow.core.state.task_instance import Run, TaskInstance, TriggerInstance
from aioflow.core.triggers.assignment import ASSIGNED_AT_ONCE
from aioflow.core.why import explain_task
from aioflow.model.dag import Body, DagSpec, MapSource, MapSpec, TaskSpec
from aioflow.model.states import Failure
from aioflow.protocol.effects import AssignTrigger, StartTry
from aioflow.protocol.inputs import (
    AssignTriggers,
    HostLost,
    HostUp,
    RequestReceived,
    Restarted,
    TriggerCapacityChanged,
)
from aioflow.protocol.reports import Awaiting, Deferred, TriggerEnded, TriggerFired
from aioflow.protocol.requests import CancelRun, CreateRun, Explain
from tests.core.world import SECOND, World
from tests.sampling import seeds

CRASHED = Failure(type="Killed", message="SIGSEGV", reason="crashed")
BROKEN = Failure(type="ValueError", message="no", reason="raised")
FIELDS = b"\x81\xa1a\x01"


def wide(count: int, **options: Any) -> tuple[World, int]:
    """Return a run of one mapped task whose children are all deferred."""
    world = World(cpu_slots=count)
    mapped = MapSpec(sources=(MapSource("number", -1, count),))
    run = world.begin(TaskSpec(task_id="a", mapped=mapped, map_limit=count, **options))
    defer_all(world)
    return world, run


def defer_all(world: World, class_path: str = "m:T", **options: Any) -> list[Any]:
    starts = [effect.start for effect in world.starts.values()]
    world.starts.clear()
    return world.turn(
        *(
            Deferred(
                *(start.task_no, start.start_no, world.now, world.now),
                *(class_path, FIELDS, "after", b"\x80"),
                **options,
            )
            for start in starts
        )
    )


def handed(effects: list[Any]) -> list[int]:
    return [effect.host.trigger_no for effect in effects if isinstance(effect, AssignTrigger)]


def lost(role: str, culprit: int = -1) -> HostLost:
    return HostLost(role=role, culprit=culprit, failure=CRASHED, at=1)


def count_packed(world: World) -> int:
    return len(world.memory.active_tasks.packed_numbers())


def fields_of(thing: TaskInstance | TriggerInstance) -> dict[str, Any]:
    """Return all attributes except references to other objects."""
    skipped = {"run", "task", "waits"}
    return {name: getattr(thing, name) for name in thing.__slots__ if name not in skipped}


def test_a_task_that_waits_comes_back_as_it_was():
    world, _ = wide(1)
    [task] = world.memory.active_tasks.values()
    [wait] = task.waits
    strange = {
        "map_index": 0,
        "try_number": 3,
        "start_no": 7,
        "stored_start": 7,
        "suspended_start": 7,
        "interruptions": 2,
        "due_at": world.now + 5,
        "deadline_at": world.now - 1,
        "queued_at": world.now - 10**9,
        "started_at": None,
        "failure": BROKEN,
        "recorded": 4,
        "first_failed": 2,
        "open_kind": "any_of",
        "pokes": 6,
    }
    for name, value in strange.items():
        setattr(task, name, value)
    wait.assignment_id, wait.role, wait.has_capacity, wait.version = (
        2**40 + 1,
        "quarantine",
        False,
        "v9",
    )
    before, hosted_before = fields_of(task), fields_of(wait)

    world.turn()  # nothing refers to the unpacked task any more

    assert count_packed(world) == 1
    again = world.memory.active_tasks[task.task_no]
    assert again is not task
    assert fields_of(again) == before
    assert fields_of(again.waits[0]) == hosted_before
    assert again.run is task.run
    assert again.waits[0] is world.memory.waits[wait.row.trigger_no]
    assert again.waits[0].task is again


def test_every_field_of_a_task_is_folded_or_keeps_it_from_that():
    links = {"run", "spec", "waits", "task_no", "task_index", "state", "stored_state"}
    packed = {
        "map_index",
        "try_number",
        "start_no",
        "stored_start",
        "suspended_start",
        "pokes",
    }
    packed |= {
        "interruptions",
        "due_at",
        "deadline_at",
        "queued_at",
        "started_at",
        "failure",
    }
    packed |= {"recorded", "first_failed", "open_kind", "ends_at"}
    looked_at = {"resumed", "streams", "answer", "stored_slot", "worker", "is_hosted"}
    without_meaning = {"is_claimed", "ended_at"}  # of a task that has no slot, and has not ended

    assert {*TaskInstance.__slots__} == links | packed | looked_at | without_meaning
    hosted = {"assignment_id", "has_capacity", "role", "version"}
    assert {*TriggerInstance.__slots__} == hosted | {"row", "run", "task", "stream"}


@pytest.mark.parametrize(
    "change",
    [
        {"answer": (b"\x01", None)},
        {"is_hosted": True},
        {"stored_slot": (0, False, False)},
        {"suspended_start": 99},
    ],
    ids=str,
)
def test_tasks_that_would_not_be_restored_unchanged_are_not_packed(change):
    world, _ = wide(1)
    [task] = world.memory.active_tasks.values()
    for name, value in change.items():
        setattr(task, name, value)

    world.turn()

    assert count_packed(world) == 0
    assert world.memory.active_tasks[task.task_no] is task


def test_a_packed_task_continues_where_it_was():
    world, run = wide(3)
    assert count_packed(world) == 3
    numbers = sorted(world.rows.triggers)

    for number in numbers:
        assignment_id = world.memory.waits[number].assignment_id
        world.turn(TriggerFired(number, assignment_id, 0, world.now, b"\x01"))
    world.finish_all()

    assert world.run_state(run) == "success"
    assert count_packed(world) == 0
    assert not world.memory.packing.shapes()


def test_the_wait_of_a_packed_task_is_explained():
    world, run = wide(2)

    explained = world.ask(Explain(run_id=world.rows.runs[run].run_id, tasks=((0, 1),)))

    assert explained[0, 1].kind.value == "trigger"
    assert count_packed(world) == 2


def test_nothing_is_unfolded_to_say_what_it_waits_for():
    world, run = wide(2)

    explained = explain_task(world.memory.runs[run], 0, 1, world.memory, world.slots)

    assert explained is not None
    assert explained.kind.value == "trigger"
    assert not world.memory.active_tasks.objects
    assert not world.memory.waits.objects


def test_a_folded_task_times_out():
    world = World(cpu_slots=1)
    run = world.begin(TaskSpec(task_id="a"))
    defer_all(world, timeout_us=5 * SECOND)
    assert count_packed(world) == 1

    world.pass_time(6)

    assert world.state(run, "a") == "retrying"


def test_a_restart_arms_the_deadlines_of_what_it_folds():
    world = World(cpu_slots=1)
    run = world.begin(TaskSpec(task_id="a"))
    defer_all(world, timeout_us=5 * SECOND)
    world.armed.clear()

    world.restart()
    assert count_packed(world) == 1
    world.pass_time(6)

    assert world.state(run, "a") == "retrying"


def test_many_that_wait_are_cancelled_a_batch_at_a_time(monkeypatch):
    monkeypatch.setattr("aioflow.core.transaction.BATCH_ROWS", 10)
    world, run = wide(35)
    objects: list[int] = []
    pack_waiting = world.memory.packing.pack_waiting

    def count_and_pack(*changed) -> None:
        objects.append(len(world.memory.active_tasks.objects))
        pack_waiting(*changed)

    monkeypatch.setattr(world.memory.packing, "pack_waiting", count_and_pack)

    world.ask(CancelRun(run_id=world.rows.runs[run].run_id))

    assert world.run_state(run) == "cancelled"
    assert not world.memory.active_tasks
    assert max(objects) <= 10, "they were all unfolded at once"


# ── their host ──────────────────────────────────────────────────────────────────────────


def test_packed_triggers_of_a_dead_host_have_no_host():
    world, run = wide(2)
    numbers = sorted(world.rows.triggers)
    was = {number: world.memory.waits[number].assignment_id for number in numbers}
    world.turn()

    world.turn(lost("triggers"))

    assert count_packed(world) == 2, "it is all the same whether they are objects"
    assert not any(world.memory.waits[number].assignment_id for number in numbers)
    world.turn(TriggerFired(numbers[0], was[numbers[0]], 0, world.now, b"\x01"))
    assert world.state(run, "a", 0) == "deferred", "a dead host was heard"
    assert handed(world.turn(HostUp("triggers"))) == numbers


def test_the_one_that_killed_its_host_fails_though_it_was_folded():
    world, run = wide(2)
    culprit = min(world.rows.triggers)

    world.turn(lost("triggers", culprit))

    assert (world.state(run, "a", 0), world.state(run, "a", 1)) == ("retrying", "deferred")


def test_a_coroutine_that_died_with_its_host_runs_again_from_the_top():
    world = World()
    world.begin(TaskSpec(task_id="c", body=Body.COROUTINE))
    start = world.started("c").start
    at = (start.task_no, start.start_no, world.now, world.now)
    world.turn(Awaiting(*at, 0, "wait", "m:T", "flow.py:3", (("m:T", FIELDS),)))
    assert count_packed(world) == 1
    [number] = world.rows.triggers

    world.turn(lost("async"), HostUp("async"))
    assignment_id = world.memory.waits[number].assignment_id
    effects = world.turn(TriggerFired(number, assignment_id, 0, world.now, b"\x01"))

    [again] = [effect for effect in effects if isinstance(effect, StartTry)]
    assert again.resume is None


def test_a_host_that_comes_up_is_handed_many_in_several_turns():
    count = 2 * ASSIGNED_AT_ONCE + 5
    world, _ = wide(count)
    world.turn(lost("triggers"))

    effects = world.turn(HostUp("triggers"))

    assert handed(effects) == sorted(world.rows.triggers)
    assert sum(isinstance(effect, AssignTriggers) for effect in effects) == 2
    assert count_packed(world) == count


def two_tasks(**priorities: int) -> World:
    """Start a run of two mapped tasks. All of their children have started."""
    world = World(cpu_slots=4)
    mapped = MapSpec(sources=(MapSource("number", -1, 2),))
    world.begin(
        *(
            TaskSpec(task_id=name, mapped=mapped, map_limit=2, priority=priority)
            for name, priority in priorities.items()
        )
    )
    return world


def defer_those_of(world: World, name: str, class_path: str = "m:T") -> list[int]:
    """Defer the children of a task. Return the numbers of their triggers."""
    before = set(world.rows.triggers)
    for index in range(2):
        started = world.started(name, index)
        assert started is not None
        at = (started.start.task_no, started.start.start_no, world.now, world.now)
        world.turn(Deferred(*at, class_path, FIELDS, "after", b"\x80"))
    return sorted(set(world.rows.triggers) - before)


def test_a_host_that_comes_up_is_handed_the_higher_priority_first():
    world = two_tasks(low=1, high=5)
    low, high = defer_those_of(world, "low"), defer_those_of(world, "high")
    world.turn(lost("triggers"))

    assert handed(world.turn(HostUp("triggers"))) == [*high, *low]
    assert count_packed(world) == 4


def test_sleeping_tasks_are_assigned_to_no_host_and_stay_packed():
    world = two_tasks(sleeps=1, waits=1)
    defer_those_of(world, "sleeps", "sleep")
    waiting = defer_those_of(world, "waits")
    world.turn(lost("triggers"))

    assert handed(world.turn(HostUp("triggers"))) == waiting
    assert count_packed(world) == 4


def test_triggers_assigned_in_between_are_not_assigned_again():
    count = ASSIGNED_AT_ONCE + 2
    world, _ = wide(count)
    world.turn(lost("triggers"))
    _, effects, tx = world.decide([HostUp("triggers")])
    tx.mark_durable()
    [more] = [effect for effect in effects if isinstance(effect, AssignTriggers)]

    once = handed(world.turn(more))

    assert len(once) == 2
    assert not handed(world.turn(more))
    world.turn(lost("triggers"))
    assert not handed(world.turn(more)), "there is no host"


def test_a_hand_over_that_was_taken_back_is_made_again():
    world, _ = wide(3)
    world.turn(lost("triggers"))

    _, effects, tx = world.decide([HostUp("triggers")])
    world.take_back(tx)

    assert handed(world.turn(HostUp("triggers"))) == handed(effects)


def test_a_trigger_whose_return_was_taken_back_is_handed_over_all_the_same():
    world, _ = wide(2)
    number = min(world.rows.triggers)
    left = TriggerEnded(number, world.memory.waits[number].assignment_id, 1, reason="reassigned")

    _, effects, tx = world.decide([left])
    world.take_back(tx)

    assert handed(effects) == [number]
    assert handed(world.turn(left)) == [number], "no host would ever have it again"


def test_that_a_host_has_no_room_is_remembered_of_what_is_folded():
    world, run = wide(2)
    number = max(world.rows.triggers)
    assignment_id = world.memory.waits[number].assignment_id

    world.turn(TriggerCapacityChanged(number, assignment_id, has_capacity=False))

    assert count_packed(world) == 2
    explained = world.ask(Explain(run_id=world.rows.runs[run].run_id, tasks=((0, 0), (0, 1))))
    kinds = [explained[0, index].kind.value for index in (0, 1)]
    assert kinds == ["trigger", "trigger_capacity"]


def test_a_mere_read_leaves_it_packed():
    world, _ = wide(2)
    number = min(world.rows.triggers)

    wait = world.memory.packing.peek(number)

    assert wait is not None
    assert wait.row.trigger_no == number
    assert count_packed(world) == 2
    assert len(world.memory.waits) == 2


def test_a_refused_turn_leaves_what_it_had_unfolded_as_it_was():
    world, run = wide(2)
    number = min(world.rows.triggers)
    assignment_id = world.memory.waits[number].assignment_id

    world.refuse(TriggerFired(number, assignment_id, 0, world.now, b"\x01"))

    assert world.state(run, "a", 0) == "running"
    assert count_packed(world) == 1
    assert sorted(world.memory.active_tasks) == sorted(world.rows.tasks)
    assert world.memory.waits.keys() == world.rows.triggers.keys()


def test_deferred_tasks_are_small():
    world, _ = wide(500)

    bodies = world.memory.waits.packed_numbers()
    sizes = [len(bodies.get(number) or b"") - len(FIELDS) for number in bodies]

    assert len(sizes) == 500
    assert max(sizes) < 90
    assert not world.memory.active_tasks.objects


@pytest.fixture
def uncollected() -> Iterator[Callable[[type], int]]:
    """Count the new objects of a class while the garbage collector is disabled.

    Only reference counts free objects then.
    """
    gc.collect()
    before = {id(thing) for thing in gc.get_objects()}
    gc.disable()
    try:
        yield lambda kind: sum(
            isinstance(thing, kind) and id(thing) not in before for thing in gc.get_objects()
        )
    finally:
        gc.enable()


def test_packed_objects_are_freed_without_garbage_collection(uncollected: Callable[[type], int]):
    world, _ = wide(50)

    assert count_packed(world) == 50
    assert uncollected(TaskInstance) == 0
    assert uncollected(TriggerInstance) == 0


# ── whole runs ─────────────────────────────────────────────────────────────────────────


def packed_run(**request: Any) -> tuple[World, int]:
    """Return a run with an ended task, a deferred task, and one that depends on the latter."""
    world = World(cpu_slots=2)
    first = TaskSpec(task_id="a", feeds_limit=10)
    second = TaskSpec(task_id="b", parents=(0,), argument_parents=(0,))
    spec = DagSpec(
        dag_id="dag",
        file="dag.py",
        tasks=(first, second, TaskSpec(task_id="c", parents=(1,))),
        parameters=("n",),
    )
    world.load(spec)
    run_id, _ = world.ask(CreateRun(dag_id="dag", **request))
    world.succeed("a", body=b"\x05", size=1, width=1)
    defer_all(world)
    return world, next(no for no, row in world.rows.runs.items() if row.run_id == run_id)


def run_fields(run: Run) -> dict[str, Any]:
    names = {"active_tasks", "graph", "dag_version", "durations", "cleared"}
    assert not run.cleared
    return {name: getattr(run, name) for name in run.__slots__ if name not in names}


def test_a_run_that_was_folded_is_gone_without_a_collection(uncollected: Callable[[type], int]):
    world, _ = packed_run()

    assert len(world.memory.runs) == 1
    assert uncollected(Run) == 0


def test_a_run_that_only_waits_comes_back_as_it_was():
    world, run_no = packed_run(conf=b"\x81\xa1n\x01", key="k", logical_date=5)
    assert not world.memory.runs.objects
    fresh = World()
    fresh.memory.dag_versions = world.memory.dag_versions
    stored = restore_run(world.rows.live_run(run_no), fresh.memory)

    run = world.memory.runs[run_no]

    assert run.row == world.rows.runs[run_no]
    assert (run.states[0], run.states[2]) == (stored.states[0], stored.states[2])
    names = ("tallies", "unfinished", "widths", "source_starts", "info", "row")
    assert all(getattr(run, name) == getattr(stored, name) for name in names)
    assert (run.results, bytes(run.known)) == ({0: b"\x05"}, b"\x01\x00\x00")
    before = run_fields(run)
    world.turn()
    assert not world.memory.runs.objects
    assert run_fields(world.memory.runs[run_no]) == before


def test_a_run_that_only_waited_continues_to_its_end():
    world, run_no = packed_run()
    [number] = world.rows.triggers

    assignment_id = world.memory.packing.peek(number).assignment_id
    assert not world.memory.runs.objects, "it was only looked at"
    world.turn(TriggerFired(number, assignment_id, 0, world.now, b"\x01"))
    world.finish_all()

    assert world.run_state(run_no) == "success"
    assert not len(world.memory.runs)
    assert not list(world.memory.runs.count_dag_versions())


@pytest.mark.parametrize("run_id", [None, "mine", "mine.17", "mine.x.4"])
def test_a_run_that_only_waits_is_found_by_its_id_and_its_key(run_id):
    world, run_no = packed_run(run_id=run_id, key="k")
    found = world.rows.runs[run_no].run_id

    assert world.memory.find_run(found).run_no == run_no
    for other in ("", "mine.", f"other.{run_no}", "9" * 9_999, "mine.²"):
        assert world.memory.find_run(other) is None
    again = world.ask(CreateRun(dag_id="dag", key="k"))
    assert again == (found, False)
    world.ask(CancelRun(run_id=found))
    assert world.run_state(run_no) == "cancelled"
    assert world.memory.find_run(found) is None


def test_the_code_of_a_run_that_only_waits_is_not_deleted():
    world, run_no = packed_run()
    dag_version = world.memory.runs.peek(run_no).dag_version

    world.load(DagSpec(dag_id="dag", file="dag.py", tasks=(TaskSpec(task_id="z"),)), version="v2")

    assert not world.memory.runs.objects
    assert world.memory.dag_versions["v1", "dag"] is dag_version


def test_runs_that_only_wait_count_against_the_limit_of_their_dag():
    world = World(cpu_slots=3)
    world.begin(TaskSpec(task_id="a"), max_active_runs=2)
    world.trigger()
    defer_all(world)
    late = world.trigger()
    assert len(world.memory.runs.objects) == 1

    world.refuse(RequestReceived(77, CreateRun(dag_id="dag", run_id="one more")))

    assert world.memory.active_runs == {"dag": 2}
    assert world.run_state(late) == "queued"
    world.restart()
    assert world.memory.active_runs == {"dag": 2}
    assert world.run_state(late) == "queued"


# ── pages ───────────────────────────────────────────────────────────────────────────────


def as_bytes(step: int) -> bytes:
    """Return a row of 0 or more bytes, usually not of the same size as the row it replaces."""
    return b"%d" % step * (step % 7)


@pytest.mark.parametrize("seed", seeds(5, nightly=20))
@pytest.mark.parametrize(
    ("column", "value"),
    [(list, str), (Numbers, int), (Rows, as_bytes)],
    ids=("objects", "numbers", "rows"),
)
def test_pages_hold_what_a_dict_would(column: Any, value: Callable[[int], Any], seed: int):
    rng, pages, plain = Random(seed), Pages[Any](column), dict[int, Any]()
    highest = rng.choice((10, 300, 10**6))
    for step in range(2_000):
        number = rng.randrange(highest)
        match rng.randrange(4):
            case 0:
                assert pages.take(number) == plain.pop(number, None)
            case 1:
                assert pages.get(number) == plain.get(number)
                assert (number in pages) == (number in plain)
            case _:
                pages.put(number, value(step))
                plain[number] = value(step)
        assert len(pages) == len(plain)

    assert list(pages) == sorted(plain)
    after = rng.randrange(highest)
    assert list(pages.numbers(after)) == sorted(number for number in plain if number > after)
    assert list(pages.items(after)) == [(no, plain[no]) for no in sorted(plain) if no > after]
    assert {number: pages.get(number) for number in pages} == plain


def test_a_row_takes_little_more_room_than_it_has_bytes():
    rows, row = Pages[bytes](Rows), bytes(100)
    tracemalloc.start()
    try:
        for number in range(128 * 50):
            rows.put(number, row)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert taken / len(rows) < 1.2 * len(row)


def test_a_restart_folds_what_waits_and_hands_it_over_folded():
    world, _ = wide(3)
    before = handed(world.effects)
    world.effects.clear()

    world.start_up()
    assert count_packed(world) == 3, "none of them is made whole first"
    assert len(world.memory.active_tasks.objects) == 0
    world.turn(Restarted())
    effects = world.turn(HostUp("triggers"))

    assert handed(effects) == before
    assert count_packed(world) == 3
    for effect in effects:
        if isinstance(effect, AssignTrigger):
            wait = world.memory.packing.peek(effect.host.trigger_no)
            assert wait is not None
            assert (wait.assignment_id, wait.role) == (effect.host.assignment_id, "triggers")


def test_a_packed_trigger_is_assigned_like_an_unpacked_one():
    world, _ = wide(2)
    world.turn(lost("triggers"))
    [first, second] = sorted(world.rows.triggers)
    assert world.memory.waits[first].assignment_id == 0  # the look-up unpacks it

    hosts = [e.host for e in world.turn(HostUp("triggers")) if isinstance(e, AssignTrigger)]

    assert [host.trigger_no for host in hosts] == [first, second]
    own = {"trigger_no": 0, "task_no": 0, "assignment_id": 0, "map_index": 0}
    whole, told = (msgspec.structs.replace(host, **own) for host in hosts)
    assert told == whole


def test_an_assignment_of_packed_triggers_that_was_rolled_back_leaves_them_without_a_host():
    world, _ = wide(3)
    world.turn(lost("triggers"))

    _, _, tx = world.decide([HostUp("triggers")])
    world.take_back(tx)

    assert count_packed(world) == 3
    waits = [world.memory.packing.peek(number) for number in world.rows.triggers]
    assert {wait.assignment_id for wait in waits if wait is not None} == {0}
    assert len(world.memory.packing.shapes()) == 1


def test_a_turn_taken_back_that_handed_a_trigger_over_and_then_unfolded_it():
    world, _ = wide(1)
    world.turn(lost("triggers"))
    [number] = world.rows.triggers

    _, effects, tx = world.decide([HostUp("triggers")])
    [host] = [e.host for e in effects if isinstance(e, AssignTrigger)]
    assert world.memory.waits[number].assignment_id == host.assignment_id
    world.take_back(tx)

    assert world.memory.waits[number].assignment_id == 0


def test_a_run_that_cannot_be_restored_leaves_nothing_folded():
    world, run = wide(2)
    rows = world.rows.live_run(run)
    task = msgspec.structs.replace(rows.tasks[-1], task_index=7)
    world.memory = Memory(epoch=2)
    for version in world.rows.versions.values():
        for spec in version.dags:
            world.memory.add_plan(version.version, spec)
    restoring = RunRestore(rows, world.memory)
    restoring.take(rows)
    assert count_packed(world) == 2

    with pytest.raises((KeyError, IndexError)):
        restoring.take(msgspec.structs.replace(rows, tasks=[task]))
    quarantine_unrestored(rows.run, "its rows make no sense", world.memory, is_damaged=False)

    assert count_packed(world) == 0
    assert len(world.memory.waits) == 0
    assert not world.memory.runs
    assert not world.memory.packing.shapes()
