"""Bugs of slots and pools: counting, claiming, releasing."""

from __future__ import annotations

from tests.sim.planted.bug import PlantedBug, Seed
from tests.sim.planted.edit import Edit

__all__ = ("BUGS",)

BUGS = (
    PlantedBug(
        name="pool_of_a_coroutine_not_given_back",
        broken="a coroutine does not release its pool",
        promise="a pool counts what runs",
        where="core",
        needs="coroutines in a limited pool",
        edits=(
            Edit(
                "aioflow.core.scheduling.slots",
                "Slots.release",
                "self._take(task.spec.pool, -task.spec.slots)",
            ),
        ),
        seen_by="tests/core/test_restart.py::test_a_pool_is_given_back_whatever_becomes_of_a_task",
        seed=Seed(1, 1),
    ),
    PlantedBug(
        name="pool_counted_twice_after_a_refusal",
        broken="slots are counted twice when a turn is undone",
        promise="a pool counts what runs",
        where="core",
        needs="a refusal while something runs in a limited pool",
        edits=(
            Edit(
                "aioflow.core.scheduling.slots",
                "Slots._count",
                "worker.current = task",
                """
                worker.current = task
                self._take(task.spec.pool, task.spec.slots)
                """,
            ),
        ),
        seen_by="tests/core/test_restart.py::test_a_refused_turn_leaves_pools_as_they_were",
        seed=Seed(1, 1),
    ),
    PlantedBug(
        name="slots_lost_when_undone",
        broken="what runs loses its slot when its run is read again",
        promise="no more tries run than there are slots; a pool is never exceeded",
        where="core",
        needs="a turn that is undone while something runs",
        edits=(
            Edit(
                "aioflow.core.rollback",
                "restore_slots",
                "start_no == task.start_no",
                "start_no == task.start_no and task.is_claimed",
            ),
        ),
        seen_by="tests/core/test_restart.py::test_a_refused_turn_leaves_pools_as_they_were",
        seed=Seed(1, 1),
    ),
    PlantedBug(
        name="claimed_behind_another_pool",
        broken="a try is claimed behind one of another pool",
        promise="a pool is never exceeded",
        where="core",
        needs="short tasks of one version in two pools, one of them limited",
        edits=(Edit("aioflow.core.scheduling.worker", "Worker.is_like", "spec.pool == self.pool"),),
        seed=Seed(1, 3),
    ),
    PlantedBug(
        name="cancel_leaves_claimed_tries",
        broken="a cancel leaves claimed tries with their worker",
        promise="a cancelled run starts nothing",
        where="core",
        needs="a cancel while tries are claimed: they get no `StopTry`",
        edits=(
            Edit(
                "aioflow.core.triggers.lifecycle",
                "stop",
                "task.worker >= 0",
                "task.worker >= 0 and not task.is_claimed",
            ),
        ),
        seen_by="tests/core/test_step.py::test_a_cancel_stops_what_is_claimed_as_it_does_what_runs",
        seed=Seed(1, 15920),
    ),
    PlantedBug(
        name="resized_pool_is_not_stored",
        broken="only the first size of a pool is stored",
        promise="what was acknowledged exists",
        where="core",
        needs="a pool that is resized, then a restart",
        edits=(
            Edit(
                "aioflow.core.requests",
                "_set_pool",
                "tx.batch.pools.append(after)",
                """
                if before is None:
                    tx.batch.pools.append(after)
                """,
            ),
        ),
        seed=Seed(2, 3),
    ),
)
