"""Clearing in slices: a batch contains at most one, and nothing else runs before the last one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from aioflow.core.repair import execution
from aioflow.core.repair.clear import portion
from aioflow.core.state.mapped_task import MappedChildren
from aioflow.errors import RequestError
from aioflow.model.dag import Body, MapSource, MapSpec, StartTriggerSpec, TaskSpec
from aioflow.model.rows import ExpansionRow
from aioflow.model.states import RunState, TaskState
from aioflow.protocol.effects import Acknowledge, Again
from aioflow.protocol.inputs import ContinueRun, HostLost, HostUp, Input, RequestReceived, Restarted
from aioflow.protocol.reports import ItemYielded, Succeeded, TriggerEnded
from aioflow.protocol.requests import CancelRun, ClearTasks, Mark
from tests.core.specs import task
from tests.core.test_clear import ONCE, clear, fan_out
from tests.core.test_previous_runs import after, day, loaded
from tests.core.test_previous_runs import task as task_of_past
from tests.core.test_start_trigger import KILLED, hosts
from tests.core.test_stream_producer import give, run_of, streaming
from tests.core.world import World

WIDTH, SLICE = 7, 2


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch):
    monkeypatch.setattr(execution, "SLICE_TASKS", SLICE)


class Sliced:
    """A world in which slices wait until the test lets them continue."""

    def __init__(self, world: World, run: int) -> None:
        self.world, self.run = world, run
        world.batches = self.batches = []
        self.waiting: list[Input] = []
        self.answers: list[Acknowledge] = []

    def turn(self, *inputs: Input) -> None:
        effects = self.world._turn(inputs)
        self.waiting += [effect for effect in effects if isinstance(effect, Again)]
        self.answers += [effect for effect in effects if isinstance(effect, Acknowledge)]

    def ask(self, **fields: Any) -> None:
        run_id = self.world.rows.runs[self.run].run_id
        self.turn(RequestReceived(len(self.answers), ClearTasks(run_id=run_id, **fields)))

    def mark(self, state: TaskState, *tasks: str) -> None:
        run_id = self.world.rows.runs[self.run].run_id
        request = Mark(run_id=run_id, state=state, tasks=tasks)
        self.turn(RequestReceived(len(self.answers), request))

    @property
    def counts(self) -> list[int]:
        """The number of tasks that each request has cleared, according to its response."""
        return [answer.answer[0] for answer in self.answers if isinstance(answer.answer, tuple)]

    def go_on(self) -> bool:
        if not self.waiting:
            return False
        self.turn(self.waiting.pop(0))
        return True

    def go_on_to_the_end(self) -> None:
        while self.go_on():
            pass

    def clear_all(self) -> None:
        """Continue until all selected tasks are reset. Later tasks are not evaluated yet."""
        while self.is_clearing:
            assert self.go_on()

    def go_on_over(self, crash_after: int | None) -> None:
        """Continue to the end. Crash once after ``crash_after`` turns, unless that is ``None``."""
        for _ in range(crash_after or 0):
            self.go_on()
        if crash_after is not None:
            self.restart()
        self.go_on_to_the_end()

    def finish_all(self) -> None:
        while self.world.starts:
            self.world.finish_all()
            self.go_on_to_the_end()

    def restart(self) -> None:
        self.waiting.clear()
        self.world.start_up()
        self.turn(Restarted())
        self.turn(HostUp("async"), HostUp("triggers"))

    @property
    def is_clearing(self) -> bool:
        return self.run in self.world.memory.clearings


def wide(width: int = WIDTH) -> Sliced:
    world, run = fan_out(width)
    world.succeed("sum")
    assert world.run_state(run) == "success"
    return Sliced(world, run)


def children(sliced: Sliced) -> list[str]:
    rows = sliced.world.rows.tasks.values()
    return [row.state.label for row in rows if row.map_index >= 0]


@pytest.mark.parametrize("named", [("work",), ()])
def test_no_batch_holds_more_than_a_slice_and_nothing_starts_before_the_last(named):
    sliced = wide()

    sliced.ask(tasks=named, downstream=True)

    assert [answer.error for answer in sliced.answers] == [None]
    assert sliced.answers[0].answer == (WIDTH + (1 if named else 2), RunState.QUEUED)
    while sliced.is_clearing:
        assert not sliced.world.starts
        assert sliced.go_on()
    cleared = [
        [state for _, state in batch.steps].count(TaskState.PENDING) for batch in sliced.batches
    ]
    assert max(cleared) == SLICE
    assert len(sliced.batches) > WIDTH / SLICE
    sliced.go_on_to_the_end()
    sliced.world.finish_all()
    sliced.go_on_to_the_end()
    assert not sliced.world.rows.outbox


def many(number: int) -> Callable[[Sliced], None]:
    def some(sliced: Sliced) -> None:
        for _ in range(number):
            sliced.go_on()

    return some


@pytest.mark.parametrize("slices", range(7))
@pytest.mark.parametrize("named", [("work",), ()])
def test_a_restart_between_two_slices_continues_where_they_stood(named, slices):
    sliced = wide()
    sliced.ask(tasks=named, downstream=True)
    many(slices)(sliced)
    before = children(sliced).count("success")

    sliced.restart()
    assert children(sliced).count("success") >= before - SLICE
    sliced.go_on_to_the_end()

    assert not sliced.is_clearing
    if not named:
        sliced.world.succeed("list", size=9, width=3)
    sliced.world.finish_all()
    sliced.go_on_to_the_end()
    assert sliced.world.run_state(sliced.run) == "success"
    left = {"success"} if named else {"success", "removed"}
    assert set(children(sliced)) == left
    assert children(sliced).count("success") == (WIDTH if named else 3)


@pytest.mark.parametrize("slices", range(7))
@pytest.mark.parametrize("named", [("work",), ()])
def test_a_run_is_cancelled_between_two_slices_and_cleared_once_more(named, slices):
    sliced = wide()
    sliced.ask(tasks=named, downstream=True)
    many(slices)(sliced)

    sliced.turn(RequestReceived(9, CancelRun(run_id=sliced.world.rows.runs[sliced.run].run_id)))
    sliced.go_on_to_the_end()

    assert sliced.world.rows.runs[sliced.run].ended_at is not None
    assert not sliced.world.rows.outbox
    assert not sliced.world.memory.runs
    assert all(not row.state.is_live for row in sliced.world.rows.tasks.values())
    sliced.restart()
    sliced.ask()
    sliced.go_on_to_the_end()
    sliced.world.succeed("list", size=9, width=4)
    sliced.world.finish_all()
    sliced.go_on_to_the_end()
    assert sliced.world.run_state(sliced.run) == "success"
    assert children(sliced).count("success") == 4


@pytest.mark.parametrize("slices", range(7))
def test_children_of_a_run_that_was_cancelled_in_between_may_be_cleared_alone(slices):
    sliced = wide()
    sliced.ask()
    many(slices)(sliced)
    sliced.turn(RequestReceived(9, CancelRun(run_id=sliced.world.rows.runs[sliced.run].run_id)))
    sliced.go_on_to_the_end()

    sliced.ask(failed=True)
    sliced.go_on_to_the_end()
    sliced.world.finish_all()
    sliced.go_on_to_the_end()

    assert sliced.world.rows.runs[sliced.run].ended_at is not None
    assert not sliced.world.memory.runs


def test_a_refused_slice_is_taken_back_and_comes_again():
    sliced = wide()
    sliced.ask(tasks=("work",))
    sliced.go_on()
    again = sliced.waiting.pop()
    before = dict(sliced.world.rows.tasks)

    _, _, tx = sliced.world.decide([again])
    sliced.world.take_back(tx)

    assert sliced.world.rows.tasks == before
    assert sliced.is_clearing
    sliced.turn(again)
    sliced.go_on_to_the_end()
    sliced.world.finish_all()
    assert sliced.world.run_state(sliced.run) == "success"


def test_reports_of_other_tasks_count_and_those_of_cleared_ones_are_late():
    world, run = fan_out(WIDTH)
    sum_of = world.started("sum").start
    sliced = Sliced(world, run)
    old = next(row for row in world.rows.tasks.values() if row.map_index == 0)
    sliced.ask(tasks=("work",))  # and the active task right after it
    sliced.go_on()

    sliced.turn(Succeeded(sum_of.task_no, sum_of.start_no, world.now, world.now))
    sliced.turn(Succeeded(old.task_no, old.start_no, world.now, world.now))

    assert world.state(run, "sum") == "pending"
    assert world.rows.tasks[old.task_no].state is TaskState.PENDING
    sliced.go_on_to_the_end()
    world.finish_all()
    assert world.run_state(run) == "success"


def test_a_task_that_is_not_cleared_ends_meanwhile_and_what_follows_is_judged_after_that():
    world = World(cpu_slots=8)
    run = world.begin(task("a"), task("b"), task("c", 1), task("d"))
    world.succeed("a")
    world.succeed("d")
    started = world.starts[world.rows.runs[run].first_task_no + 1].start
    sliced = Sliced(world, run)
    sliced.ask(tasks=("a", "d"))
    assert sliced.is_clearing

    sliced.turn(Succeeded(started.task_no, started.start_no, world.now, world.now))

    assert (world.state(run, "b"), world.state(run, "c")) == ("success", "pending")
    assert (world.state(run, "a"), world.state(run, "d")) == ("pending", "pending")
    sliced.go_on_to_the_end()
    assert world.state(run, "c") == "running"
    world.finish_all()
    assert world.run_state(run) == "success"


def test_another_request_waits_until_the_first_is_done():
    sliced = wide()
    sliced.ask(tasks=("work",))

    sliced.ask(tasks=("sum",))
    assert len(sliced.answers) == 1
    sliced.go_on_to_the_end()

    assert sliced.counts == [WIDTH, 1]
    sliced.world.finish_all()
    assert sliced.world.run_state(sliced.run) == "success"


def test_a_mark_of_a_task_waits_until_all_is_cleared():
    sliced = wide()
    sliced.ask(tasks=("work",))
    sliced.mark(TaskState.SUCCESS, "work")
    assert sliced.counts == [WIDTH]
    assert "success" in children(sliced)

    sliced.go_on_to_the_end()

    assert sliced.counts == [WIDTH, WIDTH]
    assert children(sliced) == ["success"] * WIDTH
    assert not sliced.world.starts
    assert sliced.world.run_state(sliced.run) == "success"


@pytest.mark.parametrize("slices", range(4))
def test_a_run_that_is_marked_between_two_slices_ends_with_what_was_cleared(slices):
    sliced = wide()
    sliced.ask(tasks=("list",), downstream=True)
    many(slices)(sliced)

    sliced.mark(TaskState.SUCCESS)
    assert not sliced.is_clearing
    assert not sliced.world.rows.outbox
    sliced.restart()
    sliced.go_on_to_the_end()

    assert sliced.world.run_state(sliced.run) == "success"
    assert not sliced.world.rows.unfinished()
    assert TaskState.PENDING not in {row.state for row in sliced.world.rows.tasks.values()}


def test_the_run_behind_waits_for_what_is_still_to_be_cleared_of_the_one_before():
    mapped = MapSpec((MapSource("n", -1, WIDTH),))
    world = loaded(after("gate"), task_of_past("work", parents=(0,), mapped=mapped))
    first = day(world, 1)
    world.finish_all()
    second = day(world, 2)
    sliced = Sliced(world, first)
    sliced.ask(tasks=("work",))
    assert "success" in children(sliced)

    gate = world.starts[world.rows.runs[second].first_task_no].start
    sliced.turn(Succeeded(gate.task_no, gate.start_no, world.now, world.now))

    assert world.state(second, "work", 0) == "pending"
    sliced.go_on_to_the_end()
    assert world.state(second, "work", 0) == "pending"
    world.finish_all()
    assert not world.rows.unfinished()


def test_a_run_that_is_held_still_while_it_is_cleared_refuses_another_request():
    sliced = wide()
    sliced.ask(tasks=("work",))
    run = sliced.world.memory.runs[sliced.run]
    run.row = replace(run.row, quarantine="odd")

    sliced.ask(tasks=("sum",))

    assert isinstance(sliced.answers[-1].error, RequestError)


def test_a_slice_and_a_request_are_taken_alone():
    sliced = wide()
    sliced.ask(tasks=("work",))
    memory = sliced.world.memory
    other, mine = ContinueRun(99), ContinueRun(sliced.run)
    asked = RequestReceived(1, ClearTasks(run_id="x"))

    assert portion([mine, other], 9, memory) == 1
    assert portion([other, other, mine], 9, memory) == 2
    assert portion([asked, other], 9, memory) == 1
    assert portion([other, other], 9, memory) == 2


def test_an_expansion_left_open_by_a_cancelled_run_is_closed_by_a_clear():
    source = MapSpec((MapSource("page", 0, -1),))
    world = World(cpu_slots=4)
    run = world.begin(
        TaskSpec(task_id="pages", body=Body.COROUTINE, streams=True, feeds_limit=9, retry=ONCE),
        TaskSpec(task_id="load", parents=(0,), mapped=source, retry=ONCE),
    )
    world.turn(HostUp("async"))
    start = world.started("pages").start
    world.turn(ItemYielded(start.task_no, start.start_no, 0, b"\x01"))
    world.ask(CancelRun(run_id=world.rows.runs[run].run_id))
    assert [row.is_open for row in world.rows.expansions.values()] == [True]

    assert clear(world, run, "load") == 1
    world.finish_all()

    assert [row.is_open for row in world.rows.expansions.values()] == [False]
    assert world.rows.runs[run].ended_at is not None


@pytest.mark.parametrize("crashed", [False, True], ids=["", "crashed"])
def test_a_child_whose_stream_a_cancelled_clear_has_emptied_is_expanded_again(crashed):
    world = streaming(World(cpu_slots=4))
    give(world, *range(4))
    world.finish_all()
    sliced = Sliced(world, run_of(world))
    assert world.run_state(sliced.run) == "success"
    sliced.ask(tasks=("pages",))
    assert children(sliced).count("success") > 1
    world.ask(CancelRun(run_id=world.rows.runs[sliced.run].run_id))
    assert world.rows.runs[sliced.run].ended_at is not None
    left = [row.map_index for row in world.rows.tasks.values() if row.state is TaskState.SUCCESS]
    if crashed:
        sliced.restart()

    sliced.ask(tasks=("load",), map_index=max(left))
    sliced.go_on_to_the_end()
    sliced.finish_all()

    assert not world.rows.unfinished()
    assert set(children(sliced)) == {"removed"}
    assert world.state(sliced.run, "load") == "upstream_failed"


def test_a_child_that_was_cleared_is_the_next_though_a_later_one_ends():
    row = ExpansionRow(run_no=1, task_index=0, width=4, first_task_no=1)
    siblings = MappedChildren(row)
    for _ in range(4):
        siblings.note(siblings.take_fresh(), TaskState.RUNNING)
    siblings.note(1, TaskState.PENDING)

    for state in (TaskState.PENDING, TaskState.SUCCESS):  # as if marked at the same time
        siblings.note(3, state)

    assert siblings.has_fresh
    assert siblings.take_fresh() == 1


@pytest.mark.parametrize("how", ["reassigned", "host-again", "restart"])
@pytest.mark.parametrize("what", ["clear", "mark", "cancel"])
def test_tasks_that_wait_for_their_slice_are_not_assigned_again(what, how, monkeypatch):
    """Such a trigger cannot be created: the list that its task expands over no longer exists."""
    monkeypatch.setattr("aioflow.core.transaction.BATCH_ROWS", SLICE)
    start = StartTriggerSpec(class_path="dag:T", next_method="after")
    over = MapSpec((MapSource("item", 0, -1),))
    world = World(cpu_slots=8)
    run = world.begin(
        task("list", feeds_limit=99),
        TaskSpec(task_id="work", parents=(0,), mapped=over, start_trigger=start, retry=ONCE),
    )
    world.succeed("list", size=9, width=WIDTH)
    host = hosts(world)[-1]
    sliced = Sliced(world, run)
    if what == "clear":
        sliced.ask(tasks=("list",))
    elif what == "mark":
        sliced.mark(TaskState.FAILED, "list", "work")
    else:
        sliced.turn(RequestReceived(0, CancelRun(run_id=world.rows.runs[run].run_id)))
    assert children(sliced).count("deferred") > 1
    world.effects.clear()

    if how == "reassigned":
        sliced.turn(
            TriggerEnded(host.trigger_no, host.assignment_id, world.now, reason="reassigned")
        )
    elif how == "host-again":
        sliced.turn(HostLost(role="triggers", culprit=-1, failure=KILLED, at=world.now))
        sliced.turn(HostUp("triggers"))
    else:
        sliced.restart()

    assert not hosts(world)
    sliced.go_on_to_the_end()
    assert not hosts(world)
    ended = {"clear": "removed", "mark": "failed", "cancel": "cancelled"}[what]
    assert set(children(sliced)) == {ended}
    if what == "clear":
        world.succeed("list", size=9, width=2)
        assert len(hosts(world)) == 2
        assert children(sliced).count("deferred") == 2


# ── a repeated request with the same key ────────────────────────────────────────────────


def test_the_same_key_clears_once_and_is_answered_the_same():
    sliced = wide()
    sliced.ask(tasks=("work",), key="k")
    sliced.ask(tasks=("work",), key="k")
    sliced.go_on_to_the_end()
    sliced.world.finish_all()
    sliced.go_on_to_the_end()
    commit_no = sliced.world.rows.commit_no

    sliced.ask(tasks=("work",), key="k")
    sliced.restart()
    sliced.ask(tasks=("work",), key="k")

    assert sliced.counts == [WIDTH] * 4
    assert sliced.world.rows.commit_no == commit_no
    sliced.ask(tasks=("work",), key="another")
    assert sliced.is_clearing


def test_a_key_is_known_also_where_there_was_nothing_to_clear():
    world, run = fan_out(WIDTH)
    assert clear(world, run, "work", failed=True, key="k") == 0
    world.finish_all()

    assert clear(world, run, key="k") == 0

    assert world.run_state(run) == "success"


def test_a_key_is_one_of_its_run():
    world, first = fan_out(2)
    world.finish_all()
    second = world.trigger()
    world.succeed("list", size=9, width=2)
    world.finish_all()

    assert [clear(world, run, "sum", key="k") for run in (first, second)] == [1, 1]
