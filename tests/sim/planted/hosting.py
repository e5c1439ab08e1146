"""Bugs of trigger hosts and slot workers, and of the daemon's records of them."""

from __future__ import annotations

from tests.sim.planted.bug import PlantedBug, Seed
from tests.sim.planted.edit import Edit

__all__ = ("BUGS",)

BUGS = (
    PlantedBug(
        name="exit_in_a_task_not_fenced",
        broken="a slot worker catches only `Exception`",
        promise="what a task does costs its try alone",
        where="host",
        needs="`sys.exit()` in a `def` task: its process ends, an interruption, not a failure",
        edits=(
            Edit(
                "aioflow.worker.slot",
                "run_body",
                "return run_steps(ended_badly(node, start, began_at, exc, operator))",
                """
                from aioflow.author.deferral import TaskDeferred

                if not isinstance(exc, (Exception, TaskDeferred)):
                    raise
                return run_steps(ended_badly(node, start, began_at, exc, operator))
                """,
            ),
        ),
        seen_by="tests/worker/test_slot.py::test_any_error_of_a_task_fails_only_its_try",
        seed=Seed(2, 0),
    ),
    PlantedBug(
        name="exit_in_a_trigger_not_fenced",
        broken="the trigger host catches only `Exception`",
        promise="what a trigger does costs itself alone",
        where="host",
        needs="`sys.exit()` in a trigger, or where its class is loaded: the whole host ends",
        edits=(
            Edit(
                "aioflow.worker.triggerer",
                "TriggerHost._host",
                "BaseException",
                "(Exception, asyncio.CancelledError)",
            ),
        ),
        seen_by="tests/worker/test_triggerer.py"
        "::test_any_error_of_a_trigger_ends_only_its_assignment",
        seed=Seed(2, 6),
    ),
    PlantedBug(
        name="hosting_numbers_begin_again",
        broken="hosting numbers begin at 1 in each incarnation",
        promise="a report of another hosting is late, also of an earlier incarnation (law 6)",
        where="core",
        needs="a crash while something is deferred, then a report of the host that was",
        edits=(Edit("aioflow.core.state.memory", "Memory.__init__", "epoch << 32", "0"),),
        seed=Seed(1, 24),
    ),
    PlantedBug(
        name="new_trigger_host_gets_nothing_back",
        broken="a new trigger host is given only what was never hosted",
        promise="what waits is hosted as long as there is a host",
        where="core",
        needs="the death of the trigger host, without one of the daemon",
        edits=(
            Edit(
                "aioflow.core.triggers.assignment",
                "_assign_packed",
                "assignment_id > entry.assignment_id or (assignment_id and change.is_elsewhere)",
                "assignment_id",
            ),
            Edit(
                "aioflow.core.triggers.assignment",
                "_is_wanted",
                "wait.assignment_id and wait.role != role and _accepts(wait.role, memory)",
                "wait.assignment_id",
            ),
            Edit("aioflow.core.triggers.assignment", "unhost", "wait.assignment_id = 0"),
            Edit(
                "aioflow.core.state.packed.tasks",
                "Packing.assignment_id",
                "one.assignment_id > self._lost.get(role, 0)",
                "role",
            ),
        ),
        seen_by="tests/core/test_step.py::test_an_event_of_an_old_hosting_is_late",
        seed=Seed(1, 2638),
    ),
    PlantedBug(
        name="suspected_triggers_hosted_all_the_same",
        broken="every trigger may be hosted while it is looked for which of them kills the daemon",
        promise="a suspect is hosted with its group alone, so that each death halves what is left",
        where="core",
        needs="a daemon that dies three times in a row while it has two triggers or more",
        edits=(
            Edit(
                "aioflow.core.state.crash_trials",
                "may_host",
                "has_begun and is_in and (span.count == 1 or number not in dict(trial.alone))",
                "True",
            ),
        ),
        seen_by="tests/core/test_trigger_trials.py"
        "::test_after_the_third_death_a_half_is_hosted_and_the_rest_says_why_it_waits",
        seed=Seed(1, 784),
    ),
    PlantedBug(
        name="on_kill_at_every_early_end",
        broken="`on_kill` is called whenever a trigger ends early",
        promise="`on_kill` is for a cancel: a re-hosting leaves remote work running",
        where="host",
        needs="a re-hosting, a timeout or a shutdown of a trigger with `on_kill`",
        edits=(
            Edit(
                "aioflow.worker.triggerer",
                "TriggerHost._clean_up",
                "reason == _CANCELLED",
                "reason != _FINISHED",
            ),
        ),
        seen_by="tests/worker/test_triggerer.py::test_an_end_is_confirmed_after_the_cleanup",
        seed=Seed(2, 0),
    ),
    PlantedBug(
        name="late_end_frees_the_present_hosting",
        broken="the daemon removes a trigger from its host's list at the end of an old hosting",
        promise="the daemon knows what its host has",
        where="host",
        needs="a trigger that is hosted again in the same host",
        edits=(
            Edit(
                "aioflow.executors.triggerer",
                "Triggerer._release",
                """
                if hosted.assignment_id != ended.assignment_id:
                    self._hosted.put(ended.trigger_no, body)
                    return
                """,
            ),
        ),
        seen_by="tests/test_triggerer.py::test_a_new_hosting_takes_the_place_of_the_old_one",
        seed=Seed(2, 27),
    ),
    PlantedBug(
        name="next_process_starts_what_the_lost_one_was_assigned",
        broken="a new host starts work that the engine assigned to the process before it",
        promise="a host has nothing that the engine regards as lost",
        where="host",
        needs="a commit that takes longer than the replacement of a host",
        edits=(
            Edit(
                "aioflow.executors.shared_host",
                "SharedHost.accepts",
                "self.is_up and process_no == self._process_no",
                "self.is_up",
            ),
        ),
        seen_by="tests/test_triggerer.py"
        "::test_a_trigger_assigned_to_a_lost_process_is_not_hosted_by_the_next",
        seed=Seed(2, 566969960),
    ),
    PlantedBug(
        # A host can get an order for a trigger that it has, and was not ordered to end, in only one
        # way: the quarantine host is up, and the engine has not been notified of that yet. The
        # simulator has not produced this case, so there is no seed.
        name="hosted_beside_the_old_hosting",
        broken="a trigger that is hosted again keeps running beside its new hosting",
        promise="a trigger runs in one hosting at a time",
        where="host",
        needs="a newer order for a trigger that the host has",
        edits=(
            Edit("aioflow.worker.triggerer", "TriggerHost._start", "self._end(known, _REASSIGNED)"),
        ),
        seen_by="tests/worker/test_triggerer.py"
        "::test_a_repeated_hosting_is_one_and_a_newer_one_takes_over",
    ),
)
