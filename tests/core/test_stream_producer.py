"""Fan-outs that grow with a stream of items: each item is stored and becomes one child."""

from __future__ import annotations

from typing import Any

import pytest

from aioflow.core.state import task_instance
from aioflow.model.dag import Body, EventsSpec, MapSource, MapSpec, RetryPolicy, TaskSpec
from aioflow.model.states import TriggerRule, WaitKind
from aioflow.protocol.commands import ItemsStored, StartTask
from aioflow.protocol.effects import ConfirmCall, StopTry
from aioflow.protocol.reports import (
    Deferred,
    EventsHandled,
    ItemYielded,
    Skipped,
    TriggerEnded,
    TriggerFired,
)
from aioflow.protocol.requests import CancelRun, Explain, SetPool
from tests.core.world import SECOND, World

ONCE = RetryPolicy(tries=1)
TWICE = RetryPolicy(tries=2, delay_us=5 * SECOND, jitter=False)
OVER_PAGES = MapSpec((MapSource("page", 0, -1),))


def pages(limit: int = 50_000, **fields: Any) -> TaskSpec:
    fields.setdefault("retry", ONCE)
    return TaskSpec(task_id="pages", body=Body.COROUTINE, streams=True, feeds_limit=limit, **fields)


def load(parents: tuple[int, ...] = (0,), **fields: Any) -> TaskSpec:
    fields.setdefault("retry", ONCE)
    return TaskSpec(task_id="load", parents=parents, mapped=OVER_PAGES, **fields)


def total(**fields: Any) -> TaskSpec:
    return TaskSpec(task_id="total", parents=(1,), argument_parents=(1,), **fields)


def streaming(world: World | None = None, *tasks: TaskSpec, **options: Any) -> World:
    """Start a run of a generator, the consumer of its items, and the consumer of those results."""
    world = world or World()
    world.begin(*(tasks or (pages(), load(), total())), **options)
    return world


def run_of(world: World) -> int:
    return next(iter(world.rows.runs))


def start_of(world: World, name: str = "pages", index: int = -1) -> StartTask:
    effect = world.started(name, index)
    assert effect is not None, f"{name}[{index}] has not been started"
    return effect.start


def give(world: World, *indexes: int, payload: bytes | None = None) -> list[Any]:
    """Let the generator yield the items of these indexes, one per turn."""
    start = start_of(world)
    effects: list[Any] = []
    for index in indexes:
        body = bytes([index]) if payload is None else payload
        effects += world.turn(ItemYielded(start.task_no, start.start_no, index, body))
    return effects


def taken(effects: list[Any]) -> list[int]:
    """Return the numbers of stored items that were confirmed to the generator."""
    found = [effect.recorded for effect in effects if isinstance(effect, ConfirmCall)]
    return [word.upto for word in found if isinstance(word, ItemsStored)]


def children(world: World, name: str = "load") -> list[int]:
    """Return the indexes of the children that have started and not reported yet."""
    task_index = [task.task_id for task in spec(world)].index(name)
    starts = (effect.start for effect in world.starts.values())
    return sorted(start.map_index for start in starts if start.task_index == task_index)


def spec(world: World) -> tuple[TaskSpec, ...]:
    row = world.rows.runs[run_of(world)]
    return world.memory.dag_versions[row.version, row.dag_id].graph.spec.tasks


def expansion(world: World) -> tuple[int, bool]:
    [row] = world.rows.expansions.values()
    return row.width, row.is_open


def state(world: World, name: str, index: int = -1) -> str:
    return world.state(run_of(world), name, index)


def test_a_child_begins_with_each_item_while_the_generator_continues():
    world = streaming(World(cpu_slots=4))

    give(world, 0)
    assert children(world) == [0]
    give(world, 1, 2)

    assert children(world) == [0, 1, 2]
    assert [start_of(world, "load", n).item for n in range(3)] == [b"\x00", b"\x01", b"\x02"]
    assert state(world, "pages") == "running"
    assert expansion(world) == (3, True)


def test_an_item_is_stored_before_its_child_and_its_generator_learn_of_it():
    world = streaming()
    start = start_of(world)

    batch, effects, _ = world.decide([ItemYielded(start.task_no, start.start_no, 0, b"\x09")])

    assert [row.payload for row in batch.new_items] == [b"\x09"]
    assert [row.width for row in batch.new_expansions] == [1]
    assert taken(effects) == [1]


def test_the_fan_in_waits_for_the_end_of_the_stream():
    world = streaming(World(cpu_slots=4))
    give(world, 0, 1)
    world.succeed("load", 0)
    world.succeed("load", 1)
    assert world.started("total") is None

    world.succeed("pages")

    assert world.started("total") is not None
    assert expansion(world) == (2, False)
    world.succeed("total")
    assert world.run_state(run_of(world)) == "success"


def test_the_fan_in_waits_for_the_last_child():
    world = streaming(World(cpu_slots=4))
    give(world, 0, 1)
    world.succeed("pages")
    world.succeed("load", 0)
    assert world.started("total") is None

    world.succeed("load", 1)

    assert world.started("total") is not None


def test_an_empty_stream_skips_what_would_take_its_items():
    world = streaming()
    world.succeed("pages")

    assert state(world, "load") == "skipped"
    assert state(world, "total") == "skipped"
    assert not world.rows.expansions


def test_an_item_reported_twice_is_one_child():
    world = streaming(World(cpu_slots=4))
    give(world, 0, 1)

    effects = give(world, 1, payload=b"\x63")

    assert children(world) == [0, 1]
    assert world.rows.items[start_of(world).task_no, 1].payload == b"\x01"
    assert taken(effects) == [2]


def test_the_next_try_continues_after_what_is_stored():
    world = streaming(World(cpu_slots=4), pages(retry=TWICE), load(), total())
    give(world, 0, 1)
    world.fail("pages")
    assert state(world, "pages") == "retrying"
    assert expansion(world) == (2, True)
    world.succeed("load", 0)
    world.succeed("load", 1)
    assert world.started("total") is None
    world.pass_time(5)

    assert start_of(world).stored == 2
    give(world, 2)
    world.succeed("pages")

    assert children(world) == [2]
    assert expansion(world) == (3, False)


def test_a_restart_in_the_midst_of_a_stream_loses_no_item_and_doubles_none():
    world = streaming(World(cpu_slots=2))
    give(world, 0, 1, 2)
    world.succeed("load", 0)
    world.starts.clear()
    world.restart()

    assert start_of(world).stored == 3
    give(world, 3)
    assert children(world) == [1, 2]
    assert [start_of(world, "load", n).item for n in (1, 2)] == [None, None]  # they ask
    world.succeed("load", 1)
    world.succeed("load", 2)
    assert start_of(world, "load", 3).item == b"\x03"
    world.succeed("load", 3)
    world.succeed("pages")
    assert world.started("total") is not None


def test_a_restart_after_the_close_continues_with_the_children():
    world = streaming(World(cpu_slots=1))
    give(world, 0, 1)
    world.succeed("pages")
    world.restart()
    world.succeed("load", 0)
    world.succeed("load", 1)

    assert world.started("total") is not None
    world.finish_all()
    assert world.run_state(run_of(world)) == "success"


def test_started_children_finish_when_the_generator_fails_for_good():
    world = streaming(World(cpu_slots=4))
    give(world, 0, 1)
    world.fail("pages")
    assert expansion(world) == (2, False)
    assert state(world, "total") == "upstream_failed"
    world.succeed("load", 0)
    assert world.run_state(run_of(world)) == "running"

    world.succeed("load", 1)

    assert world.run_state(run_of(world)) == "failed"


@pytest.mark.parametrize("restarts", [False, True])
def test_a_fan_in_that_takes_what_there_is_runs_though_the_generator_failed(restarts):
    world = streaming(World(cpu_slots=4), pages(), load(), total(rule=TriggerRule.ALL_DONE))
    give(world, 0, 1)
    world.fail("pages")
    world.succeed("load", 0)
    if restarts:
        world.starts.clear()
        world.restart()
    assert world.started("total") is None

    world.succeed("load", 1)

    assert world.started("total") is not None
    world.succeed("total")
    assert world.run_state(run_of(world)) == "partial"


def test_a_generator_that_skips_in_the_midst_skips_the_fan_in():
    world = streaming(World(cpu_slots=4))
    give(world, 0)
    start = world.starts.pop(start_of(world).task_no).start
    world.turn(Skipped(start.task_no, start.start_no, world.now, world.now))
    world.succeed("load", 0)

    assert state(world, "total") == "skipped"


def test_an_item_too_many_fails_the_generator_and_tells_people():
    world = streaming(World(cpu_slots=4), pages(limit=2, retry=TWICE), load(map_limit=2), total())
    give(world, 0, 1)

    effects = give(world, 2)

    assert state(world, "pages") == "failed"
    (failure,) = [row.failure for row in world.rows.tries]
    assert failure.reason == "fanout_cap"
    assert "more than 2 items, without a known end" in failure.message
    assert len(world.alerts()) == 1
    assert any(isinstance(effect, StopTry) for effect in effects)
    assert len(world.rows.items) == 2
    assert children(world) == [0, 1]


def test_a_window_holds_the_generator_back_until_a_child_has_ended():
    world = streaming(World(cpu_slots=4), pages(), load(window=2), total())
    assert taken(give(world, 0)) == [1]
    assert taken(give(world, 1)) == []

    effects = world.succeed("load", 0)

    assert taken(effects) == [2]
    assert state(world, "pages") == "running"


def test_a_generator_that_is_held_back_says_so():
    world = streaming(World(cpu_slots=4), pages(), load(window=1), total())
    give(world, 0)

    run = world.rows.runs[run_of(world)]
    why = world.ask(Explain(run_id=run.run_id, tasks=((0, -1),)))[0, -1]

    assert (why.kind, why.detail) == (
        WaitKind.WINDOW,
        "load: 1 of at most 1 children are unfinished",
    )
    world.succeed("load", 0)
    assert world.ask(Explain(run_id=run.run_id, tasks=((0, -1),)))[0, -1] is None


def test_a_child_that_waits_to_be_tried_again_keeps_its_place_in_the_window():
    world = streaming(World(cpu_slots=4), pages(), load(window=1, retry=TWICE), total())
    give(world, 0)
    assert taken(world.fail("load", 0)) == []
    world.pass_time(5)

    assert taken(world.succeed("load", 0)) == [1]


def test_a_generator_in_the_way_of_its_own_children_is_not_held_back():
    world = World(async_slots=1)
    streaming(world, pages(), load(window=1, body=Body.COROUTINE), total())

    assert taken(give(world, 0, 1, 2)) == [1, 2, 3]

    world.succeed("pages")
    for index in range(3):
        world.succeed("load", index)
    assert world.started("total") is not None


@pytest.mark.parametrize("what", ["pool", "run"])
def test_no_limit_they_share_makes_a_generator_wait_for_its_children_for_ever(what):
    world = World(cpu_slots=4)
    limit = {"max_active_tasks": 1} if what == "run" else {}
    if what == "pool":
        world.ask(SetPool(name="p", slots=1))
    pool = "p" if what == "pool" else "default"
    streaming(world, pages(pool=pool), load(window=1, pool=pool), total(), **limit)

    assert taken(give(world, 0, 1)) == [1, 2]


def test_a_child_that_comes_back_to_a_place_its_generator_has_is_not_waited_for():
    world = World(cpu_slots=4)
    streaming(world, pages(retry=TWICE), load(window=1, retry=TWICE), total(), max_active_tasks=1)
    give(world, 0)
    world.fail("pages")  # now the child has the only slot
    world.fail("load", 0)
    world.pass_time(5)  # and the generator again, before its child

    assert state(world, "load", 0) == "queued"
    assert taken(give(world, 1, 2)) == [2, 3]


def test_a_stream_waits_for_the_other_parents_of_what_takes_it_and_loses_nothing():
    world = World(cpu_slots=4)
    gate = TaskSpec(task_id="gate", retry=ONCE)
    streaming(world, pages(), load(parents=(0, 2), window=1), gate)
    assert taken(give(world, 0, 1)) == [1, 2]  # no consumer could take them yet
    assert not world.rows.expansions

    world.succeed("gate")

    assert expansion(world) == (2, True)
    assert children(world) == [0]
    world.succeed("pages")
    world.succeed("load", 0)
    world.succeed("load", 1)
    assert world.run_state(run_of(world)) == "success"


def test_a_gate_that_opens_after_the_stream_has_ended_finds_all_items():
    world = World(cpu_slots=4)
    streaming(world, pages(), load(parents=(0, 2)), TaskSpec(task_id="gate"))
    give(world, 0, 1)
    world.succeed("pages")
    assert not world.rows.expansions

    world.succeed("gate")

    assert expansion(world) == (2, False)
    assert children(world) == [0, 1]


def test_tasks_blocked_by_a_failed_gate_never_start():
    world = World(cpu_slots=4)
    streaming(world, pages(), load(parents=(0, 2)), TaskSpec(task_id="gate", retry=ONCE))
    give(world, 0)
    world.fail("gate")

    world.succeed("pages")

    assert state(world, "load") == "upstream_failed"
    assert not world.rows.expansions


def test_one_that_always_runs_begins_before_there_is_an_item():
    world = World(cpu_slots=4)
    streaming(world, pages(), load(rule=TriggerRule.ALWAYS), total())
    assert expansion(world) == (0, True)

    world.succeed("pages")

    assert expansion(world) == (0, False)
    assert state(world, "total") == "skipped"


def test_several_take_the_items_of_one_stream():
    world = World(cpu_slots=8)
    second = TaskSpec(task_id="index", parents=(0,), mapped=OVER_PAGES, window=1)
    streaming(world, pages(), load(), second)
    assert taken(give(world, 0)) == []
    assert taken(world.succeed("load", 0)) == []

    assert taken(world.succeed("index", 0)) == [1]
    world.succeed("pages")
    assert world.run_state(run_of(world)) == "success"


def test_items_at_hand_are_bounded_by_their_bytes(monkeypatch):
    monkeypatch.setattr(task_instance, "RECENT_BYTES", 1)
    world = streaming(World(cpu_slots=1))
    give(world, 0, 1, 2)

    assert start_of(world, "load", 0).item == b"\x00"
    world.succeed("load", 0)
    assert start_of(world, "load", 1).item is None
    world.succeed("load", 1)
    assert start_of(world, "load", 2).item == b"\x02"


def test_a_cancelled_run_ends_with_its_stream_open():
    world = streaming(World(cpu_slots=4))
    give(world, 0, 1)
    world.ask(CancelRun(run_id=world.rows.runs[run_of(world)].run_id))

    assert world.run_state(run_of(world)) == "cancelled"
    assert {row.state.label for row in world.rows.tasks.values()} == {"cancelled"}
    world.restart()
    assert not world.starts


def test_a_refused_turn_with_items_is_taken_back_whole():
    world = streaming(World(cpu_slots=4))
    give(world, 0)
    start = start_of(world)
    items = [ItemYielded(start.task_no, start.start_no, n, bytes([n])) for n in (1, 2)]

    world.refuse(*items)

    assert [row.payload for row in world.rows.items.values()] == [b"\x00", b"\x01", b"\x02"]
    assert expansion(world) == (3, True)
    assert children(world) == [0, 1, 2]
    assert taken(world.effects)[-1] == 3


def test_a_generator_whose_confirmation_was_rolled_back_is_confirmed_again():
    world = streaming(World(cpu_slots=4), pages(), load(window=1), total())
    give(world, 0)
    world.refuse(ItemYielded(start_of(world).task_no, start_of(world).start_no + 9, 0, b""))
    load_start = world.starts.pop(start_of(world, "load", 0).task_no).start
    _, _, tx = world.decide(
        [Skipped(load_start.task_no, load_start.start_no, world.now, world.now)]
    )
    world.take_back(tx)

    effects = world.turn(Skipped(load_start.task_no, load_start.start_no, world.now, world.now))

    assert taken(effects) == [1]


def test_an_item_of_an_earlier_start_is_late():
    world = streaming()
    start = start_of(world)
    give(world, 0)
    world.starts.clear()
    world.restart()

    world.turn(ItemYielded(start.task_no, start.start_no, 1, b"\x01"))

    assert len(world.rows.items) == 1


def test_a_gap_between_items_is_a_defect_that_holds_the_run_still():
    world = streaming()
    start = start_of(world)

    with pytest.raises(Exception, match="item 3"):
        world.turn(ItemYielded(start.task_no, start.start_no, 3, b""))


# ── operators ───────────────────────────────────────────────────────────────────────────────

EVENTS = EventsSpec(method="handle_trigger_events", batch=2, delay_us=0)


def operator(**fields: Any) -> TaskSpec:
    fields.setdefault("retry", ONCE)
    return TaskSpec(task_id="pages", events=EVENTS, streams=True, feeds_limit=9, **fields)


def following(world: World | None = None, *tasks: TaskSpec, next_method: str = "") -> World:
    """Start a run of an operator that waits for the events of a trigger."""
    world = streaming(world or World(cpu_slots=4), *(tasks or (operator(), load(), total())))
    start = world.starts.pop(start_of(world).task_no).start
    at = (start.task_no, start.start_no, world.now, world.now)
    world.turn(Deferred(*at, "m:Ticks", b"\x80", next_method))
    return world


def fire(world: World, *events: int) -> list[Any]:
    (row,) = world.rows.triggers.values()
    wait = world.memory.waits[row.trigger_no]
    first = wait.stream.index
    return world.turn(
        *(
            TriggerFired(row.trigger_no, wait.assignment_id, first + n, world.now, bytes([event]))
            for n, event in enumerate(events)
        )
    )


def end(world: World) -> list[Any]:
    (row,) = world.rows.triggers.values()
    return world.turn(
        TriggerEnded(row.trigger_no, world.memory.waits[row.trigger_no].assignment_id, world.now)
    )


def handle(world: World, *items: bytes) -> list[Any]:
    start = world.starts.pop(start_of(world).task_no).start
    at = (start.task_no, start.start_no, world.now, world.now)
    return world.turn(EventsHandled(*at, start.upto, items, start.is_closing))


def test_the_return_values_of_an_operator_for_its_events_start_children():
    world = following()
    fire(world, 1, 2)
    handle(world, b"\x0a", b"\x0b", b"\x0c")

    assert children(world) == [0, 1, 2]
    assert start_of(world, "load", 1).item == b"\x0b"


def test_an_operator_without_a_method_for_the_end_ends_without_a_start():
    world = following()
    fire(world, 1, 2)
    handle(world, b"\x0a")
    world.succeed("load", 0)

    end(world)

    assert state(world, "pages") == "success"
    assert world.started("total") is not None


def test_the_return_value_of_the_closing_method_is_the_last_item():
    world = following(next_method="close")
    end(world)
    handle(world, b"\x0a")

    assert state(world, "pages") == "success"
    assert children(world) == [0]
    assert expansion(world) == (1, False)


def test_an_operator_is_given_no_more_events_while_the_window_is_full():
    world = following(None, operator(), load(window=2), total())
    fire(world, 1, 2)
    fire(world, 3, 4)
    handle(world, b"\x0a", b"\x0b")
    assert world.started("pages") is None
    run = world.rows.runs[run_of(world)]
    assert world.ask(Explain(run_id=run.run_id, tasks=((0, -1),)))[0, -1].kind is WaitKind.WINDOW

    world.succeed("load", 0)

    assert [payload for payload, _ in start_of(world).events] == [b"\x03", b"\x04"]


def test_an_operator_blocked_by_a_window_continues_after_a_restart():
    world = following(None, operator(), load(window=1), total())
    fire(world, 1, 2)
    fire(world, 3)
    handle(world, b"\x0a")
    world.starts.clear()
    world.restart()
    assert world.started("pages") is None

    world.succeed("load", 0)

    assert [payload for payload, _ in start_of(world).events] == [b"\x03"]


def test_an_operator_that_gives_too_many_items_fails():
    world = following()
    fire(world, 1, 2)

    handle(world, *[b"\x01"] * 10)

    assert state(world, "pages") == "failed"
    assert len(world.alerts()) == 1
    assert len(world.rows.items) == 9
