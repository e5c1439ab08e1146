"""Marking: which tasks end as requested, what follows from that, and what is left unchanged."""

from __future__ import annotations

from typing import Any

import pytest

from aioflow.core.repair import execution
from aioflow.errors import RequestError, UnknownRun, UnknownTask
from aioflow.model.dag import Body, Chooses, MapSource, MapSpec, RetryPolicy, TaskSpec
from aioflow.model.ids import after_clear
from aioflow.model.states import RunState, TaskState, TriggerRule
from aioflow.protocol.effects import ReleaseTrigger, StopTry
from aioflow.protocol.reports import Deferred, Skipped, Succeeded
from aioflow.protocol.requests import CancelRun, ClearTasks, Mark
from tests.core.specs import mapped, task
from tests.core.test_clear import ONCE, chain, fan_out, previewed, states
from tests.core.test_iterations import begin, go_round, inside
from tests.core.test_stream_consumer import deferred, fire, handle
from tests.core.test_stream_producer import children, give, load, pages, run_of, streaming, total
from tests.core.world import SECOND, World

SUCCESS, FAILED = TaskState.SUCCESS, TaskState.FAILED


def mark(
    world: World, run: int, *tasks: str, state: TaskState = SUCCESS, map_index: int = -1
) -> int:
    """Mark a run or its tasks. Return how many were marked, which the preview must predict."""
    run_id = world.rows.runs[run].run_id
    request = Mark(run_id=run_id, state=state, tasks=tasks, map_index=map_index)
    expected = previewed(world, request, marked=True)
    marked, stands = world.ask(request)
    assert not tasks or expected == marked
    assert isinstance(stands, RunState)
    return int(marked)


def failed_chain() -> tuple[World, int]:
    """Return a run of three tasks in a row, the first of which has failed."""
    world = World()
    run = world.begin(task("a", retry=ONCE), task("b", 0), task("c", 1))
    world.fail("a")
    assert states(world, run, "abc") == ["failed", "upstream_failed", "upstream_failed"]
    return world, run


# ── one task ────────────────────────────────────────────────────────────────────────────


def test_a_task_that_runs_is_stopped_and_the_tasks_after_it_start():
    world = World()
    run = world.begin(task("a"), task("b", 0))
    start = world.started("a").start

    assert mark(world, run, "a") == 1

    stops = [effect for effect in world.effects if isinstance(effect, StopTry)]
    assert [(stop.task_no, stop.start_no) for stop in stops] == [(start.task_no, 1)]
    assert states(world, run, "ab") == ["success", "running"]
    world.succeed("b")
    assert world.run_state(run) == "success"


def test_a_late_report_of_a_marked_task_changes_nothing():
    world = World()
    run = world.begin(task("a"), task("b", 0))
    start = world.started("a").start

    mark(world, run, "a", state=FAILED)
    before = world.rows.commit_no
    world.turn(Succeeded(start.task_no, start.start_no, world.now, world.now))

    assert world.rows.commit_no == before
    assert states(world, run, "ab") == ["failed", "upstream_failed"]
    assert world.run_state(run) == "failed"


def test_a_wait_is_released():
    world = World()
    run = world.begin(task("a", body=Body.COROUTINE))
    start = world.started("a").start
    place = (start.task_no, start.start_no, world.now, world.now)
    world.turn(Deferred(*place, class_path="m:T", kwargs=b"\x80", next_method="go_on"))

    mark(world, run, "a")

    assert [e.end.reason for e in world.effects if isinstance(e, ReleaseTrigger)] == ["cancelled"]
    assert world.run_state(run) == "success"


@pytest.mark.parametrize("state", [SUCCESS, FAILED], ids=["success", "failed"])
def test_a_task_that_has_not_begun_never_does(state):
    world = World()
    run = world.begin(task("a"), task("b", 0), task("c", 1, rule=TriggerRule.ALL_DONE))

    mark(world, run, "b", state=state)

    assert states(world, run, "abc") == ["running", state.label, "running"]
    world.finish_all()
    assert states(world, run, "abc") == ["success", state.label, "success"]


def test_its_row_says_who_ended_it_and_its_tries_stay():
    world = World()
    run = world.begin(task("a"))

    mark(world, run, "a", state=FAILED)

    row = next(iter(world.rows.tasks.values()))
    assert (row.failure.reason, row.failure.message) == ("marked", "a person marked it failed")
    assert (row.try_number, row.start_no) == (1, after_clear(1))
    assert [row.state.label for row in world.rows.tries] == ["cancelled"]


def test_tasks_already_in_that_state_are_left_unchanged():
    world, run = chain()
    before = world.rows.commit_no

    assert mark(world, run, "a", "b") == 0

    assert world.rows.commit_no == before
    assert not world.memory.runs


def test_a_try_that_waits_to_begin_again_does_not():
    world = World()
    run = world.begin(task("a"))
    world.fail("a")
    assert world.state(run, "a") == "retrying"

    mark(world, run, "a")
    world.pass_time(3600)

    assert world.run_state(run) == "success"
    assert not world.starts


def test_a_try_that_will_not_begin_again_has_used_up_no_retry():
    world = World()
    run = world.begin(task("a"), task("b"), task("c", retry=ONCE))
    world.fail("a")
    world.fail("b")
    world.fail("c")
    assert world.memory.runs[run].retried == 2

    mark(world, run, "a", "c")

    assert world.memory.runs[run].retried == 1
    world.restart()
    assert world.memory.runs[run].retried == 1


# ── consequences of the earlier end ─────────────────────────────────────────────────────


def test_tasks_that_an_end_prevented_run_when_that_end_is_undone():
    world, run = failed_chain()

    assert mark(world, run, "a") == 1

    assert world.run_state(run) == "running"
    assert states(world, run, "abc") == ["success", "running", "pending"]
    world.succeed("b")
    world.succeed("c")
    assert world.run_state(run) == "success"


def test_tasks_that_have_run_keep_their_end():
    world, run = chain()

    mark(world, run, "a", state=FAILED)

    assert states(world, run, "abc") == ["failed", "success", "success"]
    assert world.run_state(run) == "partial"
    assert world.rows.runs[run].first_task_no not in world.rows.results
    assert not world.memory.runs


def test_a_run_whose_last_failure_is_taken_back_has_ended_well_at_once():
    world = World()
    run = world.begin(task("a", retry=ONCE), max_active_runs=1)
    world.fail("a")
    ended_at = world.rows.runs[run].ended_at
    world.pass_time(60)
    other = world.trigger()

    mark(world, run, "a")

    assert world.run_state(run) == "success"
    assert world.rows.runs[run].ended_at == ended_at
    assert world.run_state(other) == "running"


def test_a_run_that_becomes_active_again_waits_for_its_turn():
    world = World()
    run = world.begin(task("a", retry=ONCE), task("b", 0), max_active_runs=1)
    world.fail("a")
    other = world.trigger()

    mark(world, run, "a")

    assert [world.run_state(no) for no in (run, other)] == ["queued", "running"]
    world.finish_all()
    assert [world.run_state(no) for no in (run, other)] == ["success", "success"]


def test_active_tasks_are_stopped_if_their_rule_no_longer_lets_them_run():
    world = World()
    run = world.begin(task("a"), task("b", 0), task("c", 0, rule=TriggerRule.ALL_DONE))
    world.succeed("a")

    mark(world, run, "a", state=FAILED)

    assert states(world, run, "abc") == ["failed", "upstream_failed", "running"]
    assert world.started("c").start.start_no == 1


def test_tasks_skipped_by_a_branch_stay_skipped():
    world = World()
    run = world.begin(
        task("fork", chooses=Chooses.CHILDREN), task("b", 0, 3), task("c", 0), task("d", retry=ONCE)
    )
    world.succeed("fork", skips=(1,))
    world.fail("d")
    world.succeed("c")

    mark(world, run, "d")

    assert world.run_state(run) == "success"
    assert world.state(run, "b") == "skipped"


def test_a_list_that_was_marked_is_none_and_skips_what_would_expand_over_it():
    world = World()
    run = world.begin(task("list", feeds_limit=99), mapped("work", 0), task("sum", 1))

    mark(world, run, "list")

    assert world.state(run, "work") == "skipped"
    assert world.run_state(run) == "success"


def test_a_run_that_was_cancelled_stays_so():
    world = World()
    run = world.begin(task("a"), task("b", 0))
    world.ask(CancelRun(run_id=world.rows.runs[run].run_id))

    mark(world, run, "a")

    assert states(world, run, "ab") == ["success", "cancelled"]
    assert world.run_state(run) == "cancelled"
    assert not world.memory.runs


def test_a_marked_task_is_cleared_like_any_other():
    world, run = failed_chain()
    mark(world, run, "a")

    world.ask(ClearTasks(run_id=world.rows.runs[run].run_id, tasks=("a",)))

    assert states(world, run, "abc") == ["running", "pending", "pending"]
    world.finish_all()
    assert world.run_state(run) == "success"


def test_a_mark_holds_over_a_restart():
    world, run = failed_chain()

    mark(world, run, "a")
    world.restart()

    assert states(world, run, "abc") == ["success", "running", "pending"]


# ── children ────────────────────────────────────────────────────────────────────────────


def test_one_child_is_marked_and_the_others_stay():
    world, run = fan_out(rule=TriggerRule.ALL_SUCCESS)
    world.finish_all()

    assert mark(world, run, "work", state=FAILED, map_index=1) == 1

    assert [world.state(run, "work", index) for index in range(3)] == [
        "success",
        "failed",
        "success",
    ]


def test_the_failure_of_a_child_is_taken_back_and_what_gathers_runs():
    world = World(cpu_slots=8)
    run = world.begin(task("list", feeds_limit=9), mapped("work", 0, retry=ONCE), task("sum", 1))
    world.succeed("list", size=9, width=3)
    world.fail("work", 1)
    world.finish_all()
    assert world.run_state(run) == "failed"

    mark(world, run, "work", map_index=1)

    assert world.state(run, "sum") == "running"


def test_a_whole_fan_out_is_marked_whatever_its_children_are_at():
    world = World(cpu_slots=2)
    run = world.begin(task("list", feeds_limit=9), mapped("work", 0), task("sum", 1))
    world.succeed("list", size=9, width=5)
    world.succeed("work", 0)

    assert mark(world, run, "work") == 4

    assert [world.state(run, "work", index) for index in range(5)] == ["success"] * 5
    assert world.state(run, "sum") == "running"
    world.succeed("sum")
    assert world.run_state(run) == "success"


def test_a_wide_fan_out_is_marked_in_parts(monkeypatch):
    monkeypatch.setattr(execution, "SLICE_TASKS", 4)
    world = World(cpu_slots=1)
    run = world.begin(task("list", feeds_limit=99), mapped("work", 0), task("sum", 1))
    world.succeed("list", size=9, width=10)
    before = world.rows.commit_no

    assert mark(world, run, "work") == 10

    assert world.rows.commit_no == before + 3
    assert world.state(run, "sum") == "running"


def test_a_fan_out_that_has_not_expanded_never_does():
    world = World()
    run = world.begin(task("list", feeds_limit=9), mapped("work", 0), task("sum", 1))

    mark(world, run, "work")
    world.succeed("list", size=9, width=3)

    stand = [world.state(run, name) for name in ("list", "work", "sum")]
    assert stand == ["success", "success", "running"]
    assert not world.rows.expansions


def test_items_that_an_operator_had_collected_are_deleted_by_a_mark():
    world = deferred()
    fire(world, 1, 2, 3)
    handle(world, b"one", b"two")
    assert world.rows.items

    mark(world, run_of(world), "o")

    assert not world.rows.items


def test_tasks_skipped_after_a_loop_were_not_unchosen_by_it():
    own = range(2, 4)
    world = World(cpu_slots=9)
    run = world.begin(
        task("bad", retry=ONCE),
        task("left"),
        inside("try", 2, own),
        inside("until", 3, own, 2),
        task("after", 0, 1, 3),
    )
    start = world.starts.pop(world.started("left").start.task_no).start
    world.turn(Skipped(start.task_no, start.start_no, world.now, world.now))
    assert world.state(run, "after") == "skipped"
    world.fail("bad")
    go_round(world, again=False)

    mark(world, run, "left")

    assert world.state(run, "after") == "upstream_failed"


def test_unrun_tasks_after_a_loop_that_restarts_are_decided_again_with_it():
    own = range(1, 3)
    world = World(cpu_slots=9)
    run = world.begin(
        task("first", retry=ONCE),
        inside("try", 1, own),
        inside("until", 2, own, 0, 1),
        task("after", 1),
    )
    world.fail("first")
    world.fail("try", 0)
    assert world.state(run, "until") == "upstream_failed"
    assert world.state(run, "after") == "upstream_failed"

    mark(world, run, "first")

    assert world.started("try", 0) is not None
    assert world.state(run, "after") == "pending"
    world.succeed("try", 0)
    world.succeed("until", 0)
    world.succeed("after")
    assert world.run_state(run) == "success"


def loading_pages(**fields: Any) -> tuple[World, int]:
    """Start a run of a task, a stream after it, and a task that expands over the stream."""
    world = World(cpu_slots=4)
    over = MapSpec((MapSource("page", 1, -1),))
    taker = TaskSpec(task_id="load", parents=(1,), mapped=over, **fields)
    return world, world.begin(task("first", retry=ONCE), pages(parents=(0,)), taker)


def test_consumers_of_a_stream_that_is_undone_wait_for_its_items_again():
    world, run = loading_pages(rule=TriggerRule.ALWAYS)
    world.fail("first")
    assert world.run_state(run) == "failed"

    mark(world, run, "first")
    give(world, 0, 1)

    assert children(world) == [0, 1]
    world.finish_all()
    assert world.run_state(run) == "success"


def test_consumers_of_a_stream_that_is_stopped_end_with_it():
    world, run = loading_pages()
    world.succeed("first")
    give(world, 0, 1)
    assert children(world) == [0, 1]

    mark(world, run, "first", state=FAILED)

    assert not world.starts
    assert not world.rows.items
    assert not world.rows.expansions
    assert world.run_state(run) == "failed"


@pytest.mark.parametrize("is_restarted", [False, True], ids=["goes-on", "restarted"])
def test_the_next_round_of_a_loop_heeds_what_was_marked_before_it(is_restarted):
    own = range(1, 4)
    world = World(cpu_slots=9)
    run = world.begin(
        task("first"),
        inside("try", 1, own, 0),
        inside("clean", 2, own),
        inside("until", 3, own, 1, 2, rule=TriggerRule.ALL_DONE),
    )
    world.succeed("first")
    world.succeed("try", 0)
    world.succeed("clean", 0)

    mark(world, run, "first", state=FAILED)
    if is_restarted:
        world.restart()
    world.succeed("until", 0, again=True)

    stands = [world.state(run, name, 1) for name in ("try", "clean", "until")]
    assert stands == ["upstream_failed", "running", "pending"]
    world.succeed("clean", 1)
    world.succeed("until", 1)
    assert world.run_state(run) == "partial"


def test_no_task_of_a_loop_is_marked_and_it_is_said_what_helps():
    world, run = begin()
    go_round(world, again=True)
    before = dict(world.rows.tasks)

    for name, index in (("try", 1), ("until", -1)):
        with pytest.raises(RequestError, match="is in a loop") as refused:
            mark(world, run, name, map_index=index)
        run_id = world.rows.runs[run].run_id
        assert f"`aioflow runs clear {run_id} --task {name}`" in str(refused.value)
    with pytest.raises(RequestError, match="'check' is in a loop"):
        mark(world, run, "first", "check", state=FAILED)

    assert world.rows.tasks == before
    world.ask(Mark(run_id=world.rows.runs[run].run_id, state=TaskState.SUCCESS))
    assert world.run_state(run) == "success"


@pytest.mark.parametrize(
    ("name", "why"),
    [("pages", "'pages' emits items"), ("load", "'load' expands over the items of a task")],
)
def test_no_task_of_a_stream_is_marked_and_it_is_said_what_helps(name, why):
    world = streaming(World(cpu_slots=4), pages(), load(), total())
    run = run_of(world)
    give(world, 0, 1)

    with pytest.raises(RequestError, match=f"{why}.* clear it .*--task {name}"):
        mark(world, run, name)

    assert children(world) == [0, 1]
    mark(world, run, "total")
    assert world.state(run, "total") == "success"


def beside_one_that_never_expanded() -> tuple[World, int]:
    """Return two tasks of a mapped group, the first of which could not run, and one outside."""
    pair, alone = (MapSource("x", -1, 2),), RetryPolicy(tries=1)
    world = World(cpu_slots=4)
    run = world.begin(
        TaskSpec(task_id="bad", retry=alone),
        TaskSpec(task_id="one", parents=(0,), mapped=MapSpec(pair, along=(2,))),
        TaskSpec(
            task_id="two", parents=(1,), rule=TriggerRule.ALL_DONE, mapped=MapSpec(pair, along=(1,))
        ),
        TaskSpec(task_id="other"),
        TaskSpec(task_id="last", parents=(2, 3)),
    )
    world.fail("bad")
    world.succeed("other")
    assert world.state(run, "one") == "upstream_failed"
    assert [world.state(run, "two", index) for index in (0, 1)] == ["running", "running"]
    return world, run


def test_a_mark_leaves_children_alone_that_go_along_with_what_never_expanded():
    world, run = beside_one_that_never_expanded()

    mark(world, run, "last")

    assert [world.state(run, "two", index) for index in (0, 1)] == ["running", "running"]
    world.succeed("two", 0)
    world.succeed("two", 1)
    assert not world.starts
    assert len(world.rows.tasks) == 6
    assert world.run_state(run) == "partial"


def test_a_clear_leaves_children_alone_that_go_along_with_what_never_expanded():
    world, run = beside_one_that_never_expanded()

    _, state = world.ask(ClearTasks(run_id=world.rows.runs[run].run_id, tasks=("other",)))

    assert state is RunState.RUNNING
    assert [world.state(run, "two", index) for index in (0, 1)] == ["running", "running"]
    assert world.started("other") is not None


# ── a run ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("state", "tasks"),
    [(SUCCESS, ["success", "success", "success"]), (FAILED, ["success", "cancelled", "cancelled"])],
    ids=["success", "failed"],
)
def test_a_run_is_marked_and_its_active_tasks_are_stopped(state, tasks):
    world = World()
    run = world.begin(task("a"), task("b", 0), task("c", 1))
    world.succeed("a")

    mark(world, run, state=state)

    assert world.run_state(run) == state.label
    assert states(world, run, "abc") == tasks
    assert not world.starts
    assert not world.memory.runs


def test_a_run_that_waits_for_its_turn_is_marked_and_never_begins():
    world = World()
    first = world.begin(task("a"), max_active_runs=1)
    second = world.trigger()

    mark(world, second)
    world.succeed("a")

    assert [world.run_state(no) for no in (first, second)] == ["success", "success"]
    assert not world.starts


def test_an_ended_run_is_marked_and_its_tasks_stay_as_they_are():
    world, run = failed_chain()

    mark(world, run)

    assert world.run_state(run) == "success"
    assert states(world, run, "abc") == ["failed", "upstream_failed", "upstream_failed"]


def test_a_run_that_was_marked_while_a_try_had_failed_can_be_cleared():
    world = World()
    run = world.begin(task("a"))
    world.fail("a")
    assert world.state(run, "a") == "retrying"
    mark(world, run)
    assert world.state(run, "a") == "success"

    world.ask(ClearTasks(run_id=world.rows.runs[run].run_id))
    world.succeed("a")

    assert world.run_state(run) == "success"
    tries = [(row.start_no, row.state) for row in world.rows.tries]
    assert tries == [(1, FAILED), (2, SUCCESS)]


def test_a_marked_run_that_a_restart_finds_half_stopped_ends_as_was_said():
    world = World()
    run = world.begin(task("a"), task("b"))
    _, _, tx = world.decide([])
    active = world.memory.runs[run]
    tx.change_run(active, state=RunState.SUCCESS)
    world.rows.apply(tx.close())

    world.restart()

    assert world.run_state(run) == "success"
    assert states(world, run, "ab") == ["success", "success"]


def test_a_run_that_took_too_long_is_not_one_that_a_person_marked():
    world = World()
    run = world.begin(task("a"), run_timeout_us=60 * SECOND)

    world.pass_time(60)

    assert world.run_state(run) == "failed"
    assert next(iter(world.rows.tasks.values())).failure.reason == "run_timeout"


# ── refusals ────────────────────────────────────────────────────────────────────────────


def test_unknown_tasks_cannot_be_marked():
    world, run = chain()
    run_id = world.rows.runs[run].run_id

    with pytest.raises(UnknownRun):
        world.ask(Mark(run_id="nobody", state=SUCCESS))
    with pytest.raises(UnknownTask):
        world.ask(Mark(run_id=run_id, state=SUCCESS, tasks=("nobody",)))
    with pytest.raises(UnknownTask):
        world.ask(Mark(run_id=run_id, state=SUCCESS, tasks=("a",), map_index=0))
    assert not world.memory.runs


def test_no_task_of_a_run_that_is_being_ended_is_marked():
    world = World()
    run = world.begin(*(TaskSpec(task_id=name) for name in "ab"))
    _, _, tx = world.decide([])
    tx.change_run(world.memory.runs[run], state=RunState.CANCELLED)

    with pytest.raises(RequestError, match="is being ended"):
        mark(world, run, "a")
