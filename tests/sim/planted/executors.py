"""Bugs of workers that come and go, and of the number of workers demanded."""

from __future__ import annotations

from tests.sim.planted.bug import PlantedBug, Seed
from tests.sim.planted.edit import Edit

__all__ = ("BUGS",)

CORE = "tests/core/test_remote_workers.py"

BUGS = (
    PlantedBug(
        name="claim_begins_without_its_worker",
        broken="a claimed start in a remote worker is not stored with its worker",
        promise="the page shows in which worker a try ran",
        where="core",
        needs="tasks that follow each other in a remote worker",
        edits=(Edit("aioflow.core.step", "_has_started", "note_worker(task, tx)", "pass"),),
        seen_by=f"{CORE}::test_a_claim_is_stored_with_its_worker_once_it_begins",
    ),
    PlantedBug(
        name="dead_worker_gets_tries",
        broken="a worker that is reported dead gets further tries",
        promise="a try is started where it can run",
        where="core",
        needs="a worker that dies, and a task that waits",
        edits=(
            Edit(
                "aioflow.core.scheduling.remote_workers",
                "RemoteWorkers.remove",
                "worker.is_leaving = True",
                "worker.is_leaving = False",
            ),
        ),
        seen_by=f"{CORE}::test_a_worker_that_has_ended_gets_nothing",
    ),
    PlantedBug(
        name="lost_worker_gets_tries",
        broken="a worker that cannot be reached gets further tries",
        promise="a try is started where it can run",
        where="core",
        needs="a worker that is lost while it is idle, and a task that waits",
        edits=(
            Edit(
                "aioflow.core.scheduling.remote_workers",
                "RemoteWorkers.of_spec",
                "one.is_leaving or one.is_lost",
                "one.is_leaving",
            ),
        ),
        seen_by=f"{CORE}::test_a_lost_worker_gets_no_further_try",
    ),
    PlantedBug(
        name="resources_are_ignored",
        broken="a task runs in a worker that lacks what it requires",
        promise="a task runs only where it can",
        where="core",
        needs="tasks of one executor with and without resources",
        edits=(
            Edit(
                "aioflow.core.scheduling.ready",
                "worker_spec",
                "spec.resources",
                "()",
            ),
        ),
        seen_by=f"{CORE}::test_each_spec_is_demanded_and_served_by_itself",
        seed=Seed(1, 4013),
    ),
    PlantedBug(
        name="demand_lost_with_a_turn",
        broken="a demand is not made again after its turn was undone",
        promise="a task does not wait for a worker that was never requested",
        where="core",
        needs="a refusal of the turn in which a demand has changed",
        edits=(
            Edit(
                "aioflow.core.scheduling.slots",
                "Slots.recount",
                "self.remote.forget_demand()",
                "pass",
            ),
        ),
        seen_by=f"{CORE}::test_a_demand_whose_turn_was_taken_back_is_made_again",
    ),
    PlantedBug(
        name="two_versions_in_a_worker",
        broken="a worker gets tries of a version other than the one that it has loaded",
        promise="a try runs the code of its version",
        where="core",
        needs="an idle remote worker, and a task of another version",
        edits=(
            Edit(
                "aioflow.core.scheduling.slots",
                "Slots._idle_remote",
                'worker.version in {"", version}',
                "True",
            ),
        ),
        seen_by=f"{CORE}::test_one_idle_worker_gives_way_to_another_version_at_a_time",
        seed=Seed(1, 4019),
    ),
    PlantedBug(
        name="busy_worker_is_retired",
        broken="a worker is ended that got a try while it was reported idle",
        promise="no try is interrupted without need",
        where="core",
        needs="a worker that gets a try in the moment in which it has been idle for long enough",
        edits=(
            Edit(
                "aioflow.core.processes",
                "worker_idle",
                "worker.is_idle and not worker.is_held",
                "True",
            ),
        ),
        seen_by=f"{CORE}::test_an_idle_worker_is_retired_and_a_busy_one_is_not",
    ),
    PlantedBug(
        name="pool_holder_demands_no_worker",
        broken="a task that keeps its slots in a full pool is not counted in the demand",
        promise="a task does not wait for a worker that was never requested",
        where="core",
        needs="a remote task that resumes in a full pool that counts deferred tasks",
        edits=(
            Edit(
                "aioflow.core.scheduling.ready",
                "count_waiting",
                "0 if is_holder else entry.spec.slots",
                "entry.spec.slots",
            ),
        ),
        seen_by=f"{CORE}::test_a_task_that_keeps_its_slots_in_a_full_pool_demands_a_worker",
    ),
    PlantedBug(
        name="worker_gone_after_its_tries",
        broken="the end of a worker is reported after the end of its tries",
        promise="a try is started where it can run",
        where="host",
        needs="a worker that dies with a claimed try",
        edits=(
            Edit(
                "aioflow.executors.remote_executor",
                "RemoteExecutor._serve",
                "process.end_tries(failure, charge_first=is_charged)",
                """
                process.end_tries(failure, charge_first=is_charged)
                self._context.report([WorkerGone(worker.number)])
                """,
            ),
            Edit(
                "aioflow.executors.remote_executor",
                "RemoteExecutor._end",
                "self._context.report([WorkerGone(worker.number)])",
                "pass",
            ),
        ),
        seen_by="tests/executors/test_remote_executor.py::"
        "test_a_killed_worker_interrupts_the_begun_try_and_returns_the_claimed_ones",
    ),
    PlantedBug(
        name="lost_worker_is_given_up_at_once",
        broken="the tries of a lost worker are started elsewhere while it may still run them",
        promise="no two bodies of a try run at the same time",
        where="host",
        needs="a worker that cannot be reached for a moment",
        edits=(
            Edit(
                "aioflow.executors.remote_executor",
                "RemoteExecutor._await_lost",
                "await self._context.clock.sleep(self._patience_seconds)",
                "await self._context.clock.sleep(0)",
            ),
        ),
        seen_by="tests/executors/test_remote_executor.py::"
        "test_a_lost_worker_that_is_back_goes_on_with_its_try",
    ),
    PlantedBug(
        name="try_of_a_dead_worker_is_dropped",
        broken="a try that is sent to a dead worker is not returned",
        promise="every start ends",
        where="host",
        needs="a worker that dies between the grant of a try and its start",
        edits=(
            Edit(
                "aioflow.executors.remote_executor",
                "RemoteExecutors.start_try",
                "self._context.report([Recalled((key_of(effect),))])",
                "pass",
            ),
        ),
        seen_by="tests/executors/test_remote_executor.py::"
        "test_a_try_for_a_worker_that_has_gone_is_returned",
    ),
)
