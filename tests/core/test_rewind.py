"""A loop goes back to a round: that and what came after it is taken back, and it goes on."""

from __future__ import annotations

import random

import pytest

from aioflow.core.repair import execution
from aioflow.core.runs.restore import restore_run
from aioflow.core.state.memory import Memory
from aioflow.errors import RequestError, UnknownRound
from aioflow.model.dag import MapSource, MapSpec
from aioflow.model.states import TaskState, TriggerRule
from aioflow.protocol.inputs import RequestReceived
from aioflow.protocol.reports import Succeeded
from aioflow.protocol.requests import CancelRun, ClearTasks
from tests.core.test_clear_slices import Sliced
from tests.core.test_iterations import begin, behind_two, go_round, inside, loop, states, task
from tests.core.world import World
from tests.seeds import seeds

R = TriggerRule
NAMES = ("try", "check", "until")


def back(world: World, run: int, number: int, *tasks: str, downstream: bool = False) -> int:
    """Have the loop go back to a round; return how many tasks that takes back."""
    run_id = world.rows.runs[run].run_id
    request = ClearTasks(
        run_id=run_id, tasks=tasks or ("check",), round=number, downstream=downstream
    )
    cleared, _ = world.ask(request)
    return cleared


def ended(*tasks, rounds: int = 3) -> tuple[World, int]:
    """A run whose loop was good after so many rounds."""
    world, run = begin(*(tasks or loop(map_limit=9)))
    for number in range(rounds):
        go_round(world, again=number + 1 < rounds)
    world.finish_all()
    assert world.run_state(run) == "success"
    return world, run


def widths(world: World) -> set[int]:
    return {row.width for row in world.rows.expansions.values()}


def test_a_loop_goes_back_to_a_round_and_on_from_there():
    world, run = ended()

    assert back(world, run, 1) == 6

    assert widths(world) == {2}
    assert [name for name in NAMES if world.started(name, 1)] == ["try"]
    assert states(world, run, "check", 3) == ["success", "pending", "removed"]
    for again in (True, True, False):
        go_round(world, again=again)
    world.finish_all()
    assert states(world, run, "check", 4) == ["success"] * 4
    assert world.run_state(run) == "success"


def test_what_ran_before_that_round_stays_as_it_ended():
    world, run = ended()
    before = [row for row in world.rows.tasks.values() if row.map_index == 0]

    back(world, run, 1)
    go_round(world, again=False)
    world.finish_all()

    assert [row for row in world.rows.tasks.values() if row.map_index == 0] == before
    assert states(world, run, "check", 3) == ["success", "success", "removed"]


def test_it_may_end_sooner_than_it_did_and_go_on_later_with_the_rows_it_had():
    world, run = ended(rounds=4)
    rows = {row.task_no for row in world.rows.tasks.values()}
    back(world, run, 1)
    go_round(world, again=False)
    world.finish_all()
    assert widths(world) == {2}

    world.restart()
    back(world, run, 1)
    for again in (True, True, False):
        go_round(world, again=again)
    world.finish_all()

    assert {row.task_no for row in world.rows.tasks.values()} == rows
    starts = {row.map_index: row.start_no for row in world.rows.tasks.values() if row.position == 2}
    assert starts[0] < starts[1]
    assert states(world, run, "until", 4) == ["success"] * 4


def test_a_loop_under_way_is_stopped_and_goes_back():
    world, run = begin(*loop(map_limit=9))
    for _ in range(3):
        go_round(world, again=True)
    late = world.started("try", 3)
    assert late is not None

    assert back(world, run, 2) == 4
    world.turn(
        Succeeded(late.start.task_no, late.start.start_no, world.now, world.now + 50, again=True)
    )

    assert states(world, run, "try", 4) == ["success", "success", "running", "removed"]
    go_round(world, again=False)
    world.finish_all()
    assert world.run_state(run) == "success"
    assert widths(world) == {3}


def test_the_round_that_goes_on_begins_anew_in_place():
    world, run = begin()
    go_round(world, again=True)
    world.succeed("try", 1)

    assert back(world, run, 1) == 2

    assert world.started("try", 1)
    assert not world.started("check", 1)
    go_round(world, again=False)
    world.finish_all()
    assert world.run_state(run) == "success"


def test_the_first_round_too_can_be_gone_back_to():
    world, run = ended()

    assert back(world, run, 0) == 9

    assert world.started("try", 0)
    go_round(world, again=False)
    world.finish_all()
    assert widths(world) == {1}


def test_what_comes_after_is_taken_back_where_that_is_asked_for():
    world, run = ended()

    assert back(world, run, 2) == 3
    go_round(world, again=False)
    assert not world.started("after")
    assert world.run_state(run) == "success"

    assert back(world, run, 2, downstream=True) == 4
    go_round(world, again=False)
    assert world.started("after")


def test_what_maps_over_the_rounds_is_made_anew():
    after = task("each", 2, 3, mapped=MapSpec((MapSource("x", 2, -1),)))
    world, run = ended(*loop(after, map_limit=9))

    assert back(world, run, 1) == 6 + 3
    go_round(world, again=False)
    world.finish_all()

    each = [row for row in world.rows.tasks.values() if row.position == 4]
    assert sorted(row.state for row in each) == [TaskState.SUCCESS] * 2 + [TaskState.REMOVED] * 3
    assert world.run_state(run) == "success"


def test_a_loop_that_ran_out_of_rounds_has_those_again_that_are_taken_back():
    world, run = begin(*loop(map_limit=3))
    for _ in range(3):
        go_round(world, again=True)
    assert world.run_state(run) == "failed"

    back(world, run, 1, downstream=True)
    go_round(world, again=True)
    go_round(world, again=False)
    world.finish_all()

    assert world.run_state(run) == "success"


def test_a_round_that_failed_begins_anew_without_those_before():
    world, run = begin()
    go_round(world, again=True)
    world.fail("try", 1)
    assert world.run_state(run) == "failed"

    back(world, run, 1, downstream=True)

    assert world.started("try", 1)
    go_round(world, again=False)
    world.finish_all()
    assert world.run_state(run) == "success"


def test_a_task_of_the_loop_that_never_had_a_round_gets_its_rounds():
    world, run = behind_two()
    world.succeed("a", 0)
    world.fail("slow")
    assert world.run_state(run) == "failed"
    run_id = world.rows.runs[run].run_id
    world.ask(ClearTasks(run_id=run_id, tasks=("slow",)))
    world.succeed("slow")

    back(world, run, 0, "a")
    for again in (True, False):
        go_round(world, again=again)

    assert world.run_state(run) == "success"


def test_a_teardown_left_behind_in_an_earlier_round_goes_on():
    own = range(1, 5)
    world = World(cpu_slots=9)
    run = world.begin(
        task("first"),
        inside("make", 1, own, 0, is_setup=True),
        inside("use", 2, own, 1),
        inside("remove", 3, own, 1, 2, rule=R.ALL_DONE_SETUP_SUCCESS, is_teardown=True),
        inside("until", 4, own, 2),
    )
    world.succeed("first")
    for index in range(2):
        world.succeed("make", index)
        world.succeed("use", index)
        world.succeed("until", index, again=True)
    assert [bool(world.started("remove", index)) for index in range(2)] == [True, True]

    back(world, run, 1, "use")

    assert [bool(world.started("remove", index)) for index in range(2)] == [True, False]
    for name in ("make", "use"):
        world.succeed(name, 1)
    world.succeed("until", 1, again=False)
    world.finish_all()
    assert states(world, run, "remove", 2) == ["success"] * 2
    assert world.run_state(run) == "success"


# ── what is refused ─────────────────────────────────────────────────────────────────────


def test_a_round_that_has_not_begun_is_refused():
    world, run = ended()

    with pytest.raises(UnknownRound, match="has not begun round 3; its last one is 2"):
        back(world, run, 3)

    assert world.run_state(run) == "success"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"tasks": ("first",)}, "'first' is in no loop"),
        ({"tasks": ()}, "name one of its tasks"),
        ({"tasks": ("check",), "failed": True}, "omit --map and --failed"),
        ({"tasks": ("check",), "map_index": 0}, "omit --map and --failed"),
    ],
)
def test_what_makes_no_sense_with_a_round_is_refused(fields, says):
    world, run = ended()

    with pytest.raises(RequestError, match=says):
        world.ask(ClearTasks(run_id=world.rows.runs[run].run_id, round=1, **fields))


# ── slices, crashes, and what comes in between ──────────────────────────────────────────


def rows_tell_it_all(world: World) -> None:
    """What a restart would read is what memory has."""
    fresh = Memory(epoch=99)
    fresh.dag_versions, fresh.clearings = world.memory.dag_versions, world.memory.clearings
    for run_no in world.rows.unfinished():
        read, known = restore_run(world.rows.live_run(run_no), fresh), world.memory.runs[run_no]
        assert read.removed == known.removed
        assert dict(read.cleared.items()) == dict(known.cleared.items())
        for position, group in read.groups.items():
            other = known.groups[position]
            assert (group.states, group.counts) == (other.states, other.counts)
            assert (group.is_open, group.unfinished) == (other.is_open, other.unfinished)


@pytest.fixture
def _small_slices(monkeypatch):
    monkeypatch.setattr(execution, "SLICE_TASKS", 2)


def even(world: World) -> bool:
    """Whether all tasks of the loop have the same rounds."""
    return len(widths(world)) == 1


@pytest.mark.usefixtures("_small_slices")
@pytest.mark.parametrize("crash_after", range(7))
def test_a_crash_between_two_slices_goes_on_where_they_stood(crash_after):
    world, run = ended(rounds=5)
    sliced = Sliced(world, run)
    sliced.ask(tasks=("check",), round=1, downstream=True)
    for _ in range(crash_after):
        sliced.go_on()
        rows_tell_it_all(world)
    assert even(world)

    sliced.restart()
    while sliced.is_clearing:
        assert not world.starts
        assert sliced.go_on()
        assert even(world)
        rows_tell_it_all(world)
    sliced.go_on_to_the_end()

    assert widths(world) == {2}
    for again in (True, False):
        go_round(world, again=again)
    world.finish_all()
    assert states(world, run, "check", 5) == ["success"] * 3 + ["removed"] * 2
    assert world.run_state(run) == "success"


@pytest.mark.usefixtures("_small_slices")
@pytest.mark.parametrize("slices", range(6))
def test_a_run_that_is_cancelled_between_two_slices_has_a_loop_that_can_go_on(slices):
    world, run = ended(rounds=5)
    sliced = Sliced(world, run)
    sliced.ask(tasks=("check",), round=1, downstream=True)
    for _ in range(slices):
        sliced.go_on()
    sliced.turn(RequestReceived(9, CancelRun(run_id=world.rows.runs[run].run_id)))
    sliced.go_on_to_the_end()
    assert world.rows.runs[run].ended_at is not None
    assert even(world)

    run_id = world.rows.runs[run].run_id
    world.ask(ClearTasks(run_id=run_id, tasks=("check",), round=1, downstream=True))

    assert world.started("try", 1)
    go_round(world, again=False)
    world.finish_all()
    assert world.run_state(run) == "success"


@pytest.mark.parametrize("crash_after", range(9))
def test_a_crash_at_any_commit_after_it_went_back_changes_no_round(crash_after):
    world, run = ended()
    back(world, run, 1, downstream=True)

    steps = 0
    while world.rows.runs[run].ended_at is None:
        if steps == crash_after:
            world.restart()
        rows_tell_it_all(world)
        steps += 1
        effect = next(iter(world.starts.values()))
        name, index = world._spec(effect).task_id, effect.start.map_index
        world.succeed(name, index, again=name == "until" and index < 3)

    assert steps == 10
    assert states(world, run, "until", 4) == ["success"] * 4
    assert world.run_state(run) == "success"


def test_a_turn_that_is_taken_back_takes_up_its_round_once():
    world, run = ended()
    back(world, run, 1)
    world.succeed("try", 1)
    world.succeed("check", 1)
    effect = world.started("until", 1)
    assert effect is not None
    start = world.starts.pop(effect.start.task_no).start

    world.refuse(Succeeded(start.task_no, start.start_no, world.now, world.now + 50, again=True))
    rows_tell_it_all(world)

    assert world.started("try", 2)
    go_round(world, again=False)
    world.finish_all()
    assert world.run_state(run) == "success"
    assert widths(world) == {3}


def test_going_back_in_a_turn_that_is_taken_back_is_done_once():
    world, run = ended()
    run_id = world.rows.runs[run].run_id

    world.refuse(RequestReceived(0, ClearTasks(run_id=run_id, tasks=("try",), round=2)))

    rows_tell_it_all(world)
    go_round(world, again=False)
    world.finish_all()
    assert states(world, run, "until", 3) == ["success"] * 3


@pytest.mark.parametrize("seed", seeds(20, nightly=60))
def test_a_run_ends_whatever_rounds_it_goes_back_to(seed, monkeypatch):
    rng = random.Random(seed)
    monkeypatch.setattr(execution, "SLICE_TASKS", rng.choice((1, 4, 1_500)))
    after = task("each", 2, 3, mapped=MapSpec((MapSource("x", 2, -1),)))
    world, run = begin(*loop(after, map_limit=6), max_active_runs=1)
    run_id = world.rows.runs[run].run_id

    for _ in range(60):
        rows_tell_it_all(world)
        match rng.choice(("end", "end", "end", "end", "back", "clear", "cancel", "restart")):
            case "back":
                begun = max(widths(world), default=0)
                if begun:
                    back(world, run, rng.randrange(begun), downstream=rng.random() < 0.5)
            case "clear" if rng.random() < 0.3:
                world.ask(ClearTasks(run_id=run_id, tasks=(rng.choice(NAMES),)))
            case "cancel" if rng.random() < 0.2 and world.rows.runs[run].ended_at is None:
                world.ask(CancelRun(run_id=run_id))
            case "restart" if rng.random() < 0.5:
                world.restart()
            case _:
                _end_one(world, rng)
    for _ in range(200):
        _end_one(world, rng, well=True)

    assert world.rows.runs[run].ended_at is not None
    assert not world.memory.runs
    assert all(not row.state.is_live or not row.state for row in world.rows.tasks.values())


def _end_one(world: World, rng: random.Random, *, well: bool = False) -> None:
    if not world.starts:
        return
    effect = world.starts[rng.choice(sorted(world.starts))]
    name, index = world._spec(effect).task_id, effect.start.map_index
    if not well and rng.random() < 0.1:
        world.fail(name, index)
    else:
        world.succeed(name, index, again=name == "until" and not well and rng.random() < 0.7)
