"""``depends_on_past`` and ``wait_for_downstream``: tasks that wait for the previous run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aioflow.core.state.run_sequence import NEXT, EndedRun, NotLoaded, RunSequence
from aioflow.errors import RequestError
from aioflow.model.dag import Body, Chooses, DagSpec, MapSource, MapSpec, RetryPolicy, TaskSpec
from aioflow.model.states import TaskState, Wait, WaitKind
from aioflow.protocol.effects import Again
from aioflow.protocol.inputs import PreviousRunLoaded, RequestReceived
from aioflow.protocol.reports import ItemYielded, Succeeded
from aioflow.protocol.requests import CancelRun, ClearTasks, CreateRun, DeleteRun, Explain, Mark
from tests.core.world import SECOND, World

ONCE = RetryPolicy(tries=1)
DAY = 86_400 * SECOND


def task(name: str = "load", **fields: Any) -> TaskSpec:
    return TaskSpec(task_id=name, **{"retry": ONCE, "depends_on_past": True, **fields})


def after(name: str, *parents: int, **fields: Any) -> TaskSpec:
    return TaskSpec(task_id=name, parents=parents, retry=ONCE, **fields)


def loaded(*tasks: TaskSpec, **options: Any) -> World:
    world = World(cpu_slots=9)
    world.load(DagSpec(dag_id="dag", file="dag.py", tasks=tasks, **options))
    return world


def day(world: World, number: int) -> int:
    return world.trigger(logical_date=number * DAY)


def report(world: World, run_no: int, name: str, verb: str = "succeed", index: int = -1) -> None:
    """End a task of one run, although tasks of other runs have been started as well."""
    others = {n: e for n, e in world.starts.items() if e.info.run_no != run_no}
    world.starts = {n: e for n, e in world.starts.items() if e.info.run_no == run_no}
    getattr(world, verb)(name, index)
    world.starts.update(others)


def why(world: World, run_no: int, task_index: int = 0) -> Wait:
    run_id = world.rows.runs[run_no].run_id
    found: Wait = world.ask(Explain(run_id=run_id, tasks=((task_index, -1),)))[task_index, -1]
    return found


def states(world: World, *runs: int, name: str = "load") -> list[str]:
    return [world.state(run, name) for run in runs]


def clear(world: World, run_no: int, *tasks: str) -> None:
    world.ask(ClearTasks(run_id=world.rows.runs[run_no].run_id, tasks=tasks))


def test_a_run_of_another_version_that_comes_between_sets_free_what_it_does_not_have():
    world = loaded(task())
    first, third = day(world, 1), day(world, 3)
    assert states(world, first, third) == ["running", "pending"]

    world.load(DagSpec(dag_id="dag", file="dag.py", tasks=(task("other"),)), version="v2")
    day(world, 2)

    assert states(world, third) == ["running"]


def test_a_task_waits_for_itself_in_the_previous_run_and_starts_at_once_when_that_succeeded():
    world = loaded(task())
    first, second, third = (day(world, number) for number in (1, 2, 3))

    assert states(world, first, second, third) == ["running", "pending", "pending"]
    report(world, first, "load")
    assert states(world, first, second, third) == ["success", "running", "pending"]
    report(world, second, "load")
    assert states(world, third) == ["running"]


def test_it_says_for_which_task_of_which_run_it_waits():
    world = loaded(task())
    first, second = day(world, 1), day(world, 2)

    found = why(world, second)

    run_id = world.rows.runs[first].run_id
    assert (found.kind, found.detail) == (
        WaitKind.DEPENDS_ON_PAST,
        f"load of run {run_id}, which has not ended",
    )


def test_the_run_before_is_that_of_the_date_before_whenever_it_was_made():
    world = loaded(task())
    third, first = day(world, 3), day(world, 1)
    second = day(world, 2)

    assert states(world, first, second, third) == ["running", "pending", "running"]
    fourth = day(world, 4)
    report(world, third, "load")
    assert states(world, first, second, fourth) == ["running", "pending", "running"]


def test_a_task_that_was_skipped_holds_nothing_up():
    world = loaded(
        after("branch"), after("load", 0, depends_on_past=True), after("end", 1, rule="all_done")
    )
    first, second = day(world, 1), day(world, 2)

    others = {n: e for n, e in world.starts.items() if e.info.run_no != first}
    world.starts = {n: e for n, e in world.starts.items() if e.info.run_no == first}
    world.succeed("branch", skips=(1,))
    world.starts.update(others)
    report(world, second, "branch")

    assert states(world, first, second) == ["skipped", "running"]


def test_a_task_that_failed_holds_its_next_up_until_it_was_cleared_and_went_well():
    world = loaded(task(), max_active_runs=1)
    first = day(world, 1)
    report(world, first, "load", "fail")
    second = day(world, 2)

    assert states(world, second) == ["pending"]
    assert why(world, second).detail.endswith("which is failed")
    clear(world, first, "load")
    assert world.run_state(first) == "running"  # past the limit: the active one waits for it
    assert states(world, first, second) == ["running", "pending"]
    report(world, first, "load")
    assert states(world, first, second) == ["success", "running"]
    world.finish_all()
    assert world.memory.active_runs["dag"] == 0


def test_only_the_first_of_those_that_wait_begins_past_the_limit():
    world = loaded(task(), max_active_runs=1)
    early = [day(world, number) for number in (1, 2)]
    report(world, early[0], "load", "fail")
    assert world.run_state(early[1]) == "running"
    last = day(world, 3)
    assert world.run_state(last) == "queued"
    clear(world, early[0], "load")

    assert [world.run_state(run) for run in (*early, last)] == ["running", "running", "queued"]


def needed_and_created_with_an_earlier_one() -> tuple[World, list[int]]:
    """Begin a run past the limit, in a turn that then creates a run with an earlier date."""
    world = loaded(after("before"), after("load", 0, depends_on_past=True), max_active_runs=1)
    day(world, 2)
    world.finish_all()
    day(world, 4)
    before = world.started("before").start
    world.turn(
        RequestReceived(-1, CreateRun(dag_id="dag", logical_date=3 * DAY)),
        Succeeded(before.task_no, before.start_no, world.now, world.now),
        RequestReceived(-2, CreateRun(dag_id="dag", logical_date=DAY)),
    )
    (created,) = [batch.new_runs for batch in world.batches if len(batch.new_runs) == 2]
    return world, [row.run_no for row in created]


def test_a_run_begins_past_the_limit_though_an_earlier_one_is_created_in_the_same_turn():
    world, created = needed_and_created_with_an_earlier_one()

    assert [world.run_state(run) for run in created] == ["running", "queued"]


def test_a_run_that_is_first_in_line_once_another_was_cancelled_begins_past_the_limit():
    world = loaded(after("before"), after("load", 0, depends_on_past=True), max_active_runs=2)
    first, third = day(world, 1), day(world, 3)
    report(world, third, "before")
    second = day(world, 2)
    assert [world.run_state(run) for run in (first, second, third)] == [
        *("running", "queued", "running")
    ]
    world.trigger()  # replaces the one that ends

    world.ask(CancelRun(run_id=world.rows.runs[first].run_id))
    assert world.run_state(second) == "running"


def test_a_limit_of_runs_holds_though_waiting_runs_do_not_reach_it():
    world = loaded(task(), max_active_runs=1)
    world.trigger()  # has no date, and waits for no run
    first, second = day(world, 1), day(world, 2)

    assert [world.run_state(run) for run in (first, second)] == ["queued", "queued"]


def test_a_run_without_a_date_waits_for_none_and_none_for_it():
    world = loaded(task())
    undated, other = world.trigger(), world.trigger()
    dated = day(world, 1)

    assert states(world, undated, other, dated) == ["running"] * 3


def test_a_task_that_the_previous_run_did_not_have_starts():
    world = loaded(after("old"))
    day(world, 1)
    world.load(DagSpec(dag_id="dag", file="dag.py", tasks=(task(),)), version="v2")

    assert states(world, day(world, 2)) == ["running"]


def test_runs_of_a_version_that_did_not_wait_hold_up_those_that_do():
    world = loaded(task(depends_on_past=False))
    first = day(world, 1)
    world.load(DagSpec(dag_id="dag", file="dag.py", tasks=(task(),)), version="v2")
    second = day(world, 2)

    assert states(world, first, second) == ["running", "pending"]
    report(world, first, "load")
    assert states(world, second) == ["running"]


def test_wait_for_downstream_waits_for_what_comes_right_after_it_too():
    world = loaded(task(wait_for_downstream=True), after("check", 0), after("tell", 1))
    first, second = day(world, 1), day(world, 2)

    report(world, first, "load")
    assert states(world, second) == ["pending"]
    assert why(world, second).detail.startswith("check of run")
    report(world, first, "check")
    assert states(world, second) == ["running"]


def test_a_fan_out_waits_for_all_children_of_the_run_before():
    mapped = MapSpec((MapSource("x", -1, 2),))
    world = loaded(task(mapped=mapped))
    first, second = day(world, 1), day(world, 2)

    report(world, first, "load", index=0)
    assert len(world.starts) == 1
    report(world, first, "load", index=1)
    assert {e.info.run_no for e in world.starts.values()} == {second}
    assert len(world.starts) == 2


def test_children_that_ended_before_their_stream_start_the_next_run_when_it_closes():
    pages = after("pages", body=Body.COROUTINE, streams=True, feeds_limit=9)
    over = MapSpec((MapSource("page", 0, -1),))
    world = loaded(pages, after("load", 0, mapped=over, depends_on_past=True))
    first, second = day(world, 1), day(world, 2)
    for start in [effect.start for effect in world.starts.values()]:
        world.turn(ItemYielded(start.task_no, start.start_no, 0, b"\x01"))

    report(world, first, "load", index=0)
    assert world.started("load", 0) is None
    report(world, first, "pages")

    assert world.state(second, "load", 0) == "running"


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_loop_has_ended_well_with_its_last_round(is_restarted):
    spec = MapSpec((MapSource("", -1, 1),), (), 0)
    world = loaded(task("until", mapped=spec, map_limit=5, chooses=Chooses.ROUNDS))
    first = day(world, 1)
    world.succeed("until", 0, again=True)
    held = day(world, 2)
    assert world.state(held, "until", 0) == "pending"
    world.succeed("until", 1)
    assert world.state(held, "until", 0) == "running"
    world.succeed("until", 0)
    if is_restarted:
        world.restart()

    assert world.run_state(first) == "success"
    assert world.state(day(world, 3), "until", 0) == "running"


@pytest.mark.parametrize("body", list(Body))
@pytest.mark.parametrize("verb", ["succeed", "fail"])
def test_a_restart_finds_how_the_run_before_has_ended(body, verb):
    world = loaded(task(body=body), max_active_runs=2)
    first = day(world, 1)
    report(world, first, "load", verb)
    world.restart()

    second = day(world, 2)

    expected = "running" if verb == "succeed" else "pending"
    assert states(world, second) == [expected]
    world.restart()
    assert states(world, second) == [expected]


def test_a_restart_finds_who_waits_for_whom():
    world = loaded(task())
    first, second = day(world, 1), day(world, 2)
    world.restart()

    assert states(world, first, second) == ["running", "pending"]
    report(world, first, "load")
    assert states(world, second) == ["running"]


def test_a_cancelled_run_holds_its_next_up():
    world = loaded(after("before"), after("load", 0, depends_on_past=True))
    first, second = day(world, 1), day(world, 2)
    world.ask(CancelRun(run_id=world.rows.runs[first].run_id))
    report(world, second, "before")

    assert states(world, second) == ["pending"]
    world.restart()
    assert why(world, second, 1).detail.endswith("which is cancelled")


def cut_short(world: World, request: Any, reports: Callable[[], None]) -> None:
    """Let a run end over several turns, with reports of its tasks in between."""
    again = [e for e in world._turn([RequestReceived(-1, request)]) if isinstance(e, Again)]
    assert again
    reports()
    world.turn(*again)


@pytest.mark.parametrize("is_made_before", [True, False])
def test_a_success_while_its_run_is_cancelled_starts_the_next_run(monkeypatch, is_made_before):
    world = loaded(after("other"), task())
    first = day(world, 1)
    second = day(world, 2) if is_made_before else 0
    monkeypatch.setattr("aioflow.core.transaction.BATCH_ROWS", 1)
    request = CancelRun(run_id=world.rows.runs[first].run_id)
    cut_short(world, request, lambda: report(world, first, "load"))
    monkeypatch.undo()
    second = second or day(world, 2)

    assert world.run_state(first) == "cancelled"
    assert states(world, first, second) == ["success", "running"]
    assert states(world, first, name="other") == ["cancelled"]


def test_a_task_that_fails_while_its_run_is_marked_blocks_the_next_run(monkeypatch):
    world = loaded(after("other"), task())
    first, second = day(world, 1), day(world, 2)
    monkeypatch.setattr("aioflow.core.transaction.BATCH_ROWS", 1)
    request = Mark(run_id=world.rows.runs[first].run_id, tasks=(), state=TaskState.SUCCESS)
    cut_short(world, request, lambda: report(world, first, "load", "fail"))
    monkeypatch.undo()

    assert world.run_state(first) == "success"
    assert states(world, first, second) == ["failed", "pending"]
    assert why(world, second, 1).detail.endswith("which is failed")


@pytest.mark.parametrize("ended", [(0, 1), (0,)])
def test_children_that_end_well_while_their_run_is_cancelled_count_once_all_have(
    monkeypatch, ended
):
    mapped = MapSpec((MapSource("n", -1, 2),))
    world = loaded(after("other"), task(mapped=mapped))
    first, second = day(world, 1), day(world, 2)
    monkeypatch.setattr("aioflow.core.transaction.BATCH_ROWS", 1)
    request = CancelRun(run_id=world.rows.runs[first].run_id)

    def end_children() -> None:
        for index in ended:
            report(world, first, "load", index=index)

    cut_short(world, request, end_children)
    monkeypatch.undo()

    expected = "running" if len(ended) == 2 else "pending"
    assert world.state(second, "load", 0) == expected
    world.restart()
    assert world.state(day(world, 3), "load", 0) == "pending"
    assert world.state(second, "load", 0) == expected


def test_a_last_round_that_ends_well_while_its_run_is_cancelled_starts_the_next_run(monkeypatch):
    source = (MapSource("", -1, 1),)
    world = loaded(
        after("other"),
        task(mapped=MapSpec(source, (2,), 2), map_limit=5),
        after("until", mapped=MapSpec(source, (1,), 2), map_limit=5, chooses=Chooses.ROUNDS),
    )
    first, second = day(world, 1), day(world, 2)
    report(world, first, "until", index=0)
    monkeypatch.setattr("aioflow.core.transaction.BATCH_ROWS", 1)
    request = CancelRun(run_id=world.rows.runs[first].run_id)
    cut_short(world, request, lambda: report(world, first, "load", index=0))
    monkeypatch.undo()

    assert world.run_state(first) == "cancelled"
    assert world.state(second, "load", 0) == "running"


@pytest.mark.parametrize("is_whole", [True, False])
def test_consumers_of_a_stream_count_if_it_succeeded_while_its_run_was_cancelled(
    monkeypatch, is_whole
):
    pages = after("pages", body=Body.COROUTINE, streams=True, feeds_limit=9)
    over = MapSpec((MapSource("page", 1, -1),))
    world = loaded(after("other"), pages, after("load", 1, mapped=over, depends_on_past=True))
    first, second = day(world, 1), day(world, 2)
    for number in (first, second):
        start = next(
            effect.start
            for effect in world.starts.values()
            if effect.info.run_no == number and effect.start.task_index == 1
        )
        world.turn(ItemYielded(start.task_no, start.start_no, 0, b"\x01"))
    report(world, first, "load", index=0)
    monkeypatch.setattr("aioflow.core.transaction.BATCH_ROWS", 1)
    request = CancelRun(run_id=world.rows.runs[first].run_id)

    def end_stream() -> None:
        if is_whole:
            report(world, first, "pages")

    cut_short(world, request, end_stream)
    monkeypatch.undo()

    expected = "running" if is_whole else "pending"
    assert world.state(second, "load", 0) == expected
    world.restart()
    assert world.state(second, "load", 0) == expected


def mark(world: World, run_no: int, *tasks: str, state: TaskState = TaskState.SUCCESS) -> None:
    world.ask(Mark(run_id=world.rows.runs[run_no].run_id, tasks=tasks, state=state))


def delete(world: World, run_no: int) -> None:
    world.ask(DeleteRun(run_id=world.rows.runs[run_no].run_id))


def test_a_task_that_is_marked_while_it_runs_starts_the_next_run():
    world = loaded(task())
    first, second, third = (day(world, number) for number in (1, 2, 3))

    mark(world, first, "load")
    assert states(world, first, second, third) == ["success", "running", "pending"]
    mark(world, second, "load", state=TaskState.FAILED)
    assert states(world, third) == ["pending"]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_task_that_is_marked_in_a_run_that_had_ended_starts_the_next_run(is_restarted):
    world = loaded(task(), after("total", 0))
    first, second = day(world, 1), day(world, 2)
    report(world, first, "load", "fail")
    assert world.run_state(first) == "failed"
    if is_restarted:
        world.restart()

    mark(world, first, "load")

    assert states(world, first, second) == ["success", "running"]
    assert world.state(first, "total") == "running"


def test_marked_children_start_the_next_run_with_the_last_of_them():
    mapped = MapSpec((MapSource("n", -1, 2),))
    world = loaded(task(mapped=mapped))
    first, second = day(world, 1), day(world, 2)
    report(world, first, "load", "fail", 0)
    report(world, first, "load", "succeed", 1)
    assert world.run_state(first) == "failed"
    assert world.state(second, "load", 0) == "pending"

    mark(world, first, "load")

    assert world.run_state(first) == "success"
    assert world.state(second, "load", 0) == "running"


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_run_that_is_marked_starts_the_next_run_with_what_it_never_began(is_restarted):
    world = loaded(after("before"), task(parents=(0,)))
    first, second = day(world, 1), day(world, 2)
    report(world, second, "before")
    if is_restarted:
        world.restart()

    mark(world, first)
    assert states(world, first, second) == ["success", "running"]
    report(world, second, "load", "fail")
    third = day(world, 3)
    report(world, third, "before")
    assert states(world, third) == ["pending"]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_cancelled_run_that_is_marked_starts_the_next_run(is_restarted):
    world = loaded(after("before"), task(parents=(0,)))
    first, second = day(world, 1), day(world, 2)
    world.ask(CancelRun(run_id=world.rows.runs[first].run_id))
    report(world, second, "before")
    assert states(world, second) == ["pending"]
    if is_restarted:
        world.restart()

    mark(world, first)

    assert states(world, first, second) == ["success", "running"]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_deleted_run_lets_the_next_one_depend_on_the_previous_one(is_restarted):
    world = loaded(task())
    first, second = day(world, 1), day(world, 2)
    report(world, first, "load")
    report(world, second, "load", "fail")
    third = day(world, 3)
    assert states(world, third) == ["pending"]
    if is_restarted:
        world.restart()

    delete(world, second)

    assert states(world, third) == ["running"]


def test_the_next_that_is_made_waits_for_no_run_that_was_deleted():
    world = loaded(task())
    first = day(world, 1)
    report(world, first, "load", "fail")
    delete(world, first)

    assert states(world, day(world, 2)) == ["running"]


def test_a_turn_that_is_taken_back_leaves_who_waits_for_whom():
    world = loaded(task())
    first = day(world, 1)
    start = world.starts.popitem()[1].start
    second = day(world, 2)
    world.refuse(Succeeded(start.task_no, start.start_no, world.now, world.now + 50))

    assert states(world, first, second) == ["success", "running"]


def test_a_fan_out_of_the_next_run_is_taken_back_with_the_end_it_waited_for():
    mapped = MapSpec((MapSource("x", -1, 2),))
    world = World(cpu_slots=1)
    world.load(DagSpec(dag_id="dag", file="dag.py", tasks=(task(mapped=mapped),)))
    first, second = day(world, 1), day(world, 2)
    world.succeed("load", 0)
    start = world.starts.popitem()[1].start
    busy = DagSpec(dag_id="busy", file="b.py", tasks=(after("b", priority=9),))
    world.load(busy, file="b.py")
    world.trigger("busy")

    world.refuse(Succeeded(start.task_no, start.start_no, world.now, world.now + 50))
    world.finish_all()

    assert {run for run, _ in world.rows.expansions} == {first, second}
    assert [world.run_state(run) for run in (first, second)] == ["success", "success"]


def test_a_schedule_that_continues_queries_the_database_once():
    world = loaded(task())
    asked = []
    for number in range(1, 5):
        world.effects.clear()
        run = day(world, number)
        asked.append(sum(isinstance(effect, PreviousRunLoaded) for effect in world.effects))
        report(world, run, "load")

    assert asked == [1, 0, 0, 0]


def test_the_cost_of_an_end_does_not_grow_with_the_waiting_runs():
    world = loaded(task(), max_active_runs=1_000)
    runs = [day(world, number) for number in range(1, 301)]

    report(world, runs[0], "load")

    assert states(world, *runs[:3]) == ["success", "running", "pending"]
    batch, _, tx = world.decide([])
    assert batch.is_empty
    assert not tx.runs


def test_clearing_an_older_run_of_nothing_changes_nothing():
    world = loaded(task(), after("more", 0))
    first = day(world, 1)
    report(world, first, "load")
    report(world, first, "more")
    with pytest.raises(RequestError):
        clear(world, first, "none")
    world.ask(ClearTasks(run_id=world.rows.runs[first].run_id, failed=True))

    assert states(world, day(world, 2)) == ["running"]


# ── the sequence itself ─────────────────────────────────────────────────────────────────────


def ended(at: int, **bad: Any) -> EndedRun:
    return EndedRun((at, at), f"run{at}", bad)


def test_a_sequence_knows_no_ended_runs_until_they_are_loaded():
    sequence = RunSequence()
    sequence.add((5, 5))

    assert isinstance(sequence.before((5, 5)), NotLoaded)
    sequence.learn((5, 5), ended(3))
    assert sequence.before((5, 5)) == ended(3)


def test_a_run_that_enters_between_takes_the_place_before_its_next():
    sequence = RunSequence()
    sequence.add((5, 5))
    sequence.learn((5, 5), ended(3))
    sequence.add((4, 4))

    assert sequence.before((4, 4)) == ended(3)
    assert sequence.before((5, 5)) == 4
    sequence.remove((4, 4), ended(4))
    assert sequence.before((5, 5)) == ended(4)


def test_a_run_that_enters_before_a_known_end_has_to_ask():
    sequence = RunSequence()
    sequence.add((5, 5))
    sequence.learn((5, 5), ended(3))
    sequence.add((2, 2))

    assert isinstance(sequence.before((2, 2)), NotLoaded)
    assert sequence.before((5, 5)) == ended(3)
    sequence.remove((2, 2), ended(2))
    assert sequence.before((5, 5)) == ended(3)


def test_a_run_that_comes_back_is_before_its_next_as_a_live_one():
    sequence = RunSequence()
    sequence.add((5, 5))
    sequence.learn((5, 5), ended(3))
    sequence.add((3, 3))

    assert sequence.before((5, 5)) == 3
    assert isinstance(sequence.before((3, 3)), NotLoaded)


def test_a_run_that_was_never_made_leaves_a_doubt():
    sequence = RunSequence()
    sequence.learn(NEXT, None)
    sequence.add((5, 5))
    sequence.remove((5, 5))

    assert not sequence.knows(NEXT)


def test_the_next_run_knows_nothing_of_a_deleted_run():
    sequence = RunSequence()
    sequence.add((5, 5))
    sequence.learn((5, 5), ended(3))

    assert sequence.forget((3, 3)) == 5
    assert not sequence.knows((5, 5))


@pytest.mark.parametrize("is_restarted", [False, True], ids=["goes-on", "restarted"])
def test_a_child_that_is_marked_in_a_run_that_was_cut_short_counts_for_the_run_behind(is_restarted):
    mapped = MapSpec((MapSource("n", -1, 2),))
    world = loaded(task("load", mapped=mapped), after("slow"), after("never", 1))
    first, _ = day(world, 1), day(world, 3)
    run_id = world.rows.runs[first].run_id
    for index in range(2):
        report(world, first, "load", index=index)
    world.ask(CancelRun(run_id=run_id))
    assert world.rows.runs[first].ended_at is not None

    world.ask(Mark(run_id=run_id, tasks=("load",), map_index=0, state=TaskState.FAILED))
    if is_restarted:
        world.restart()

    assert world.state(day(world, 2), "load", 0) == "pending"


@pytest.mark.parametrize("is_restarted", [False, True], ids=["goes-on", "restarted"])
def test_a_fan_out_that_was_cut_short_went_as_its_worst_child_did(is_restarted):
    """Marking the run successful ends its unfinished children well, but not the failed one."""
    each = MapSpec((MapSource("x", -1, 2),))
    world = loaded(task(mapped=each))
    first = day(world, 1)
    report(world, first, "load", "fail", 0)

    mark(world, first, state=TaskState.SUCCESS)
    if is_restarted:
        world.restart()
    second = day(world, 2)

    assert world.run_state(first) == "success"
    assert why(world, second).kind is WaitKind.DEPENDS_ON_PAST


@pytest.mark.parametrize("is_restarted", [False, True], ids=["goes-on", "restarted"])
def test_children_that_are_cleared_wait_for_the_run_before_again(is_restarted):
    each = MapSpec((MapSource("x", -1, 2),))
    world = loaded(task(mapped=each), after("slow"))
    first, second = day(world, 1), day(world, 2)
    for run_no in (first, second):
        for index in range(2):
            report(world, run_no, "load", index=index)

    clear(world, first, "load")
    clear(world, second, "load")
    if is_restarted:
        world.restart()

    assert [world.state(run, "load", 0) for run in (first, second)] == ["running", "pending"]
    assert why(world, second).kind is WaitKind.DEPENDS_ON_PAST
    for index in range(2):
        report(world, first, "load", index=index)
    assert world.state(second, "load", 0) == "running"
