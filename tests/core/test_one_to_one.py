"""Children that follow the children of another task, index by index."""

from __future__ import annotations

from typing import Any

import pytest

from aioflow.core import transaction
from aioflow.model.dag import MapSource, MapSpec, RetryPolicy, TaskSpec
from aioflow.model.states import TriggerRule
from aioflow.protocol.reports import Succeeded
from tests.core.world import World

ONCE = RetryPolicy(tries=1)
R = TriggerRule


def over(*parents: int, join: Any = "", along: tuple[int, ...] = ()) -> MapSpec:
    parts = tuple(MapSource("", parent, -1) for parent in parents)
    if not join:
        return MapSpec(tuple(MapSource("x", parent, -1) for parent in parents), along)
    return MapSpec((MapSource("x", -1, -1, join, parts),), along)


def literal(width: int) -> MapSpec:
    return MapSpec((MapSource("x", -1, width),))


def task(name: str, *parents: int, **fields: Any) -> TaskSpec:
    return TaskSpec(task_id=name, parents=parents, retry=ONCE, **fields)


def chain(*rest: TaskSpec, width: int = 3, **fields: Any) -> tuple[TaskSpec, ...]:
    """Return a fan-out, a fan-out that follows it child by child, and further tasks."""
    return (
        task("a", mapped=literal(width)),
        task("b", 0, mapped=over(0), **fields),
        *rest,
    )


def test_a_child_starts_when_its_own_instance_has_succeeded():
    world = World(cpu_slots=9)
    run = world.begin(*chain())

    world.succeed("a", 1)

    assert world.started("b", 1)
    assert not world.started("b", 0)
    assert world.state(run, "b", 0) == "pending"


def test_a_child_ends_with_its_own_instance_alone():
    world = World(cpu_slots=9)
    run = world.begin(*chain(task("c", 1, mapped=over(1)), task("sum", 2, rule=R.ALL_DONE)))

    world.fail("a", 0)
    world.finish_all()

    assert [world.state(run, "b", i) for i in range(3)] == ["upstream_failed", *["success"] * 2]
    assert [world.state(run, "c", i) for i in range(3)] == ["upstream_failed", *["success"] * 2]
    assert world.state(run, "sum") == "success"
    assert world.run_state(run) == "partial"


def test_the_fan_in_waits_for_every_child():
    world = World(cpu_slots=9)
    run = world.begin(*chain(task("sum", 1)))
    for index in range(3):
        world.succeed("a", index)
        world.succeed("b", index)
        assert (world.started("sum") is not None) is (index == 2)

    world.succeed("sum")

    assert world.run_state(run) == "success"


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        pytest.param(R.ALL_DONE, ["success", "success", "success"], id="all-done"),
        pytest.param(R.ONE_FAILED, ["success", "skipped", "skipped"], id="one-failed"),
        pytest.param(R.ALL_FAILED, ["success", "skipped", "skipped"], id="all-failed"),
        pytest.param(R.ONE_SUCCESS, ["upstream_failed", "success", "success"], id="one-success"),
        pytest.param(R.ALWAYS, ["success", "success", "success"], id="always"),
    ],
)
def test_a_rule_is_asked_of_each_index(rule, expected):
    world = World(cpu_slots=9)
    run = world.begin(*chain(rule=rule))

    world.fail("a", 0)
    world.finish_all()

    assert [world.state(run, "b", i) for i in range(3)] == expected


def test_nothing_runs_before_its_item_is_there_whatever_its_rule():
    world = World(cpu_slots=9)
    world.begin(*chain(rule=R.ALWAYS))

    assert not world.started("b", 0)
    world.fail("a", 0)

    assert world.started("b", 0)


def test_other_parents_are_waited_for_before_any_child_starts():
    world = World(cpu_slots=9)
    run = world.begin(task("a", mapped=literal(2)), task("gate"), task("b", 0, 1, mapped=over(0)))
    world.succeed("a", 0)
    assert not world.started("b", 0)

    world.succeed("gate")

    assert world.started("b", 0)
    world.finish_all()
    assert world.run_state(run) == "success"


def test_a_parent_of_all_children_that_fails_ends_them_as_one():
    world = World(cpu_slots=9)
    run = world.begin(
        task("a", mapped=literal(2)), task("gate"), task("b", 0, 1, mapped=over(0)), task("c", 2)
    )

    world.fail("gate")

    assert world.state(run, "b") == "upstream_failed"
    assert world.state(run, "c") == "upstream_failed"


def test_an_unexpanded_task_ends_its_follower_as_a_whole():
    world = World()
    run = world.begin(
        task("list", feeds_limit=9),
        task("a", 0, mapped=over(0)),
        task("b", 1, mapped=over(1)),
        task("c", 2, mapped=over(2), rule=R.ALL_DONE),
    )

    world.succeed("list", width=0)

    assert [world.state(run, name) for name in "abc"] == ["skipped"] * 3
    assert world.run_state(run) == "success"


def test_a_window_and_a_limit_hold_for_what_follows():
    world = World(cpu_slots=9)
    world.begin(*chain(width=5, window=2))

    for index in range(5):
        world.succeed("a", index)

    assert [bool(world.started("b", i)) for i in range(5)] == [True, True, False, False, False]
    world.succeed("b", 0)
    assert world.started("b", 2)


def test_too_wide_for_what_follows_fails_it_before_a_child_exists():
    world = World(cpu_slots=9)
    run = world.begin(*chain(map_limit=2))

    assert world.state(run, "b") == "failed"
    assert len(world.alerts()) == 1


def test_a_zip_of_two_fan_outs_goes_by_both_and_ends_with_the_shorter():
    world = World(cpu_slots=9)
    run = world.begin(
        task("a", mapped=literal(3)),
        task("b", mapped=literal(2)),
        task("c", 0, 1, mapped=over(0, 1, join="zip")),
    )
    world.succeed("a", 0)
    world.fail("a", 2)
    assert not world.started("c", 0)

    world.succeed("b", 0)
    assert world.started("c", 0)
    world.fail("b", 1)

    assert world.state(run, "c", 1) == "upstream_failed"
    world.finish_all()
    assert world.run_state(run) == "failed"


def test_a_concat_waits_for_the_one_it_takes_from():
    world = World(cpu_slots=9)
    run = world.begin(
        task("a", mapped=literal(1)),
        task("list", feeds_limit=9),
        task("c", 0, 1, mapped=over(1, 0, join="concat")),
    )

    world.succeed("list", size=9, width=2)

    assert [bool(world.started("c", i)) for i in range(3)] == [True, True, False]
    world.succeed("a", 0)
    assert world.started("c", 2)
    world.finish_all()
    assert world.run_state(run) == "success"


def test_a_product_starts_a_row_with_each_instance():
    world = World(cpu_slots=9)
    both = MapSpec((MapSource("x", 0, -1), MapSource("y", -1, 2)))
    world.begin(task("a", mapped=literal(2)), task("b", 0, mapped=both))

    world.succeed("a", 1)

    assert [bool(world.started("b", i)) for i in range(4)] == [False, False, True, True]


def test_a_mapped_group_goes_index_by_index_over_all_its_tasks():
    world = World(cpu_slots=9)
    run = world.begin(
        task("list", feeds_limit=9),
        task("a", 0, mapped=over(0, along=(2, 3))),
        task("b", 1, mapped=over(0, along=(1, 3))),
        task("c", 1, 2, mapped=over(0, along=(1, 2)), rule=R.ALL_DONE),
        task("sum", 3, rule=R.ALL_DONE),
    )
    world.succeed("list", size=9, width=2)
    world.succeed("a", 0)
    world.fail("b", 0)
    assert world.started("c", 0)
    assert not world.started("b", 1)
    world.fail("a", 1)
    assert world.state(run, "b", 1) == "upstream_failed"
    assert world.started("c", 1)

    world.finish_all()

    assert world.state(run, "sum") == "success"
    assert world.run_state(run) == "partial"


def test_a_task_whose_rule_lets_it_begin_before_its_list_waits_for_the_list():
    world = World(cpu_slots=9)
    run = world.begin(
        task("list", feeds_limit=9),
        task("other"),
        task("b", 0, 1, mapped=over(0), rule=R.ONE_SUCCESS),
    )
    world.succeed("other")
    assert world.state(run, "b") == "pending"

    world.succeed("list", size=9, width=1)

    assert world.started("b", 0)


def ended_before_it_expanded(width: int) -> tuple[World, int]:
    """Return a mapped task whose children failed, and a follower that still waits for a gate."""
    world = World(cpu_slots=50)
    run = world.begin(
        task("a", mapped=literal(width)), task("gate"), task("b", 0, 1, mapped=over(0))
    )
    for index in range(width - 1):
        world.fail("a", index)
    return world, run


def test_more_verdicts_than_a_batch_holds_are_put_off_and_gone_on_with(monkeypatch):
    monkeypatch.setattr(transaction, "BATCH_ROWS", 3)
    world, run = ended_before_it_expanded(9)
    commits = world.rows.commit_no

    world.succeed("gate")

    assert [world.state(run, "b", i) for i in range(9)] == [*["upstream_failed"] * 8, "pending"]
    assert world.rows.commit_no - commits >= 3
    world.succeed("a", 8)
    assert world.started("b", 8)


def test_verdicts_that_were_put_off_outlive_a_crash(monkeypatch):
    monkeypatch.setattr(transaction, "BATCH_ROWS", 3)
    world, run = ended_before_it_expanded(9)
    monkeypatch.setattr(world, "turn", lambda *inputs: world._turn(inputs))
    world.succeed("gate")
    assert world.state(run, "b", 7) == "pending"
    monkeypatch.undo()

    world.restart()

    assert [world.state(run, "b", i) for i in range(9)] == [*["upstream_failed"] * 8, "pending"]


@pytest.mark.parametrize("crash_after", range(9))
def test_a_crash_anywhere_on_the_way_changes_no_end(crash_after):
    world = World(cpu_slots=2)
    run = world.begin(*chain(task("c", 1, mapped=over(1)), task("sum", 2, rule=R.ALL_DONE)))
    steps = 0
    while world.rows.runs[run].ended_at is None:
        if steps == crash_after:
            world.restart()
        steps += 1
        effect = next(iter(world.starts.values()))
        name, index = world._spec(effect).task_id, effect.start.map_index
        if (name, index) == ("a", 1):
            world.fail(name, index)
        else:
            world.succeed(name, index)

    assert [world.state(run, "c", i) for i in range(3)] == ["success", "upstream_failed", "success"]
    assert world.state(run, "sum") == "success"


def test_a_turn_that_is_taken_back_leaves_every_child_that_may_start_waiting():
    world = World(cpu_slots=1)
    run = world.begin(*chain())
    first = world.starts.pop(world.started("a", 0).start.task_no).start

    world.refuse(Succeeded(first.task_no, first.start_no, world.now, world.now + 50))
    world.finish_all()

    assert world.run_state(run) == "success"


def test_a_child_is_given_the_widths_of_its_lists_and_requests_the_rest():
    world = World(cpu_slots=9)
    world.begin(*chain())

    world.succeed("a", 2)

    started = world.started("b", 2)
    assert started is not None
    assert (started.start.sources, started.start.widths) == ((), (3,))


# ── branches ────────────────────────────────────────────────────────────────────────────


def branching(**fields: Any) -> tuple[TaskSpec, ...]:
    """Return a mapped group (``pick``, then ``a`` and ``b``, then ``join``), and a fan-in."""

    def inside(name: str, number: int, *parents: int, **more: Any) -> TaskSpec:
        along = tuple({0, 1, 2, 3} - {number})
        mapped = MapSpec((MapSource("x", -1, 3),), along)
        return task(name, *parents, mapped=mapped, **more)

    return (
        inside("pick", 0),
        inside("a", 1, 0),
        inside("b", 2, 0, **fields),
        inside("join", 3, 1, 2, rule=R.NONE_FAILED_MIN_ONE_SUCCESS),
        task("sum", 3, rule=R.ALL_DONE),
    )


def picked(world: World, run: int) -> None:
    """Let each child of ``pick`` choose differently: ``a``, ``b``, or neither."""
    for index, skips in enumerate([(2,), (1,), (1, 2)]):
        world.succeed("pick", index, skips=skips)


def states(world: World, run: int, name: str) -> list[str]:
    return [world.state(run, name, index) for index in range(3)]


def test_a_branch_in_a_mapped_group_skips_at_its_own_index_alone():
    world = World(cpu_slots=9)
    run = world.begin(*branching())

    picked(world, run)
    world.finish_all()

    assert states(world, run, "a") == ["success", "skipped", "skipped"]
    assert states(world, run, "b") == ["skipped", "success", "skipped"]
    assert states(world, run, "join") == ["success", "success", "skipped"]
    assert world.run_state(run) == "success"


def test_tasks_that_a_child_has_skipped_stay_skipped_after_a_restart():
    world = World(cpu_slots=9)
    run = world.begin(*branching())
    picked(world, run)

    world.restart()
    world.finish_all()

    assert states(world, run, "a") == ["success", "skipped", "skipped"]
    assert states(world, run, "join") == ["success", "success", "skipped"]
    assert world.run_state(run) == "success"


def test_a_child_that_its_rule_has_let_is_not_skipped_though_it_has_no_slot_yet():
    world = World(cpu_slots=1)
    run = world.begin(*branching(rule=R.ALWAYS))
    assert states(world, run, "b") == ["pending"] * 3

    world.succeed("pick", 0, skips=(1, 2))
    world.finish_all()

    assert states(world, run, "a") == ["skipped", "success", "success"]
    assert states(world, run, "b") == ["success"] * 3
    assert world.run_state(run) == "success"


def test_a_child_that_could_not_be_judged_yet_is_skipped(monkeypatch):
    """The batch was full before the child was evaluated, and its parent has ended since."""
    monkeypatch.setattr(transaction, "BATCH_ROWS", 1)
    world = World(cpu_slots=9)
    run = world.begin(*branching())

    picked(world, run)
    world.finish_all()

    assert states(world, run, "b") == ["skipped", "success", "skipped"]
    assert states(world, run, "join") == ["success", "success", "skipped"]
    assert world.run_state(run) == "success"
