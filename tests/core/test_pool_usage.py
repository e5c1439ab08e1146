"""The holders of a pool's slots, found without iterating over all tasks that wait for the pool."""

from __future__ import annotations

from aioflow.core.requests import pool_holders
from aioflow.model.dag import Body, TaskSpec
from aioflow.protocol.requests import SetPool
from tests.core.world import World


def test_the_holders_of_a_pool_are_listed_and_nothing_after_the_last_of_them_is_read():
    world = World()
    world.ask(SetPool(name="p", slots=1))
    world.ask(SetPool(name="q", slots=1))
    pools = {"a": "p", "b": "q", "c": "q", "d": "p"}
    world.begin(*(TaskSpec(task_id=t, body=Body.COROUTINE, pool=p) for t, p in pools.items()))
    assert world.slots.running_coroutines == 2
    *_, last = world.memory.active_tasks.objects.values()
    del last.is_hosted  # reading this task would raise

    for pool in ("p", "q"):
        (holder,) = pool_holders(pool, world.memory, world.slots, limit=10)
        assert not holder.is_waiting
