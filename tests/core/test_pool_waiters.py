"""The tasks that wait for a pool, in the order in which they will get its slots."""

from __future__ import annotations

from aioflow.model.dag import TaskSpec
from aioflow.protocol.requests import SetPool, ShowWaiters
from tests.core.specs import mapped, task
from tests.core.world import World


def test_what_waits_is_listed_by_priority_and_without_what_runs():
    world = World()
    world.ask(SetPool(name="books", slots=1, include_deferred=False))
    names = ("a", "b", "c")
    priorities = (0, 5, 1)
    world.begin(
        *(
            task(name, pool="books", priority=priority)
            for name, priority in zip(names, priorities, strict=True)
        )
    )

    waiters = world.ask(ShowWaiters(name="books"))

    assert [(one.task_index, one.priority) for one in waiters] == [(2, 1), (0, 0)]
    assert [one.task_index for one in world.ask(ShowWaiters(name="books", limit=1))] == [2]
    assert world.ask(ShowWaiters(name="other")) == []


def test_the_remaining_children_of_a_mapped_task_are_one_entry():
    world = World()
    world.ask(SetPool(name="books", slots=2, include_deferred=False))
    world.begin(task("list"), mapped("work", 0, pool="books"))
    world.succeed("list", size=1, width=9)

    (waiter,) = world.ask(ShowWaiters(name="books"))

    assert (waiter.map_index, waiter.children) == (-1, 7)


def test_the_order_is_that_in_which_they_start():
    world = World(cpu_slots=1)
    world.ask(SetPool(name="books", slots=1, include_deferred=False))
    tasks: list[TaskSpec] = [task(f"t{n}", pool="books", priority=n * 7 % 5) for n in range(12)]
    run = world.begin(*tasks)

    expected = [one.task_index for one in world.ask(ShowWaiters(name="books"))]
    started = []
    while len(started) < len(expected):
        (running,) = [n for n in range(12) if world.state(run, f"t{n}") == "running"]
        world.succeed(f"t{running}")
        started += [n for n in range(12) if world.state(run, f"t{n}") == "running"]

    assert started == expected
