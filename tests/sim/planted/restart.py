"""Bugs of restarts: state that a new process does not restore from the rows."""

from __future__ import annotations

from tests.sim.planted.bug import PlantedBug, Seed
from tests.sim.planted.edit import Edit

__all__ = ("BUGS",)

BUGS = (
    PlantedBug(
        name="try_number_reset_by_restart",
        broken="a restored task counts its tries from 1",
        promise="no more tries than the policy says",
        where="core",
        needs="a retry, then a crash or a turn that is undone",
        edits=(
            Edit(
                "aioflow.core.runs.restore",
                "RunRestore._add",
                "task.try_number = row.try_number",
            ),
        ),
        seen_by="tests/core/test_restart.py"
        "::test_a_retry_keeps_its_number_and_its_instant_over_a_restart",
        seed=Seed(1, 2),
    ),
    PlantedBug(
        name="restart_charges_no_task",
        broken="a restart charges no task for the crash",
        promise="a task that takes the daemon down fails in the end",
        where="core",
        needs="a crash while something runs: `interruptions` does not change",
        edits=(
            Edit(
                "aioflow.core.runs.recovery",
                "_resume_task",
                "cut_short(task, failure, tx)",
                """
                from aioflow.core.tasks.tries import requeue

                requeue(task, tx)
                """,
            ),
        ),
        seen_by="tests/core/test_step.py"
        "::test_a_task_that_takes_every_incarnation_down_fails_in_the_end",
        seed=Seed(1, 0),
    ),
    PlantedBug(
        name="suspects_begin_beside_the_rest",
        broken="what may have killed the daemon begins again beside everything else",
        promise="a task that takes the daemon down fails, and no other is charged",
        where="core",
        needs="a task that kills the daemon again and again",
        edits=(
            Edit(
                "aioflow.core.state.crash_trials",
                "on_trial",
                "trial is None or not trial.groups",
                "True",
            ),
        ),
        seen_by="tests/core/test_crash_trials.py"
        "::test_the_killer_of_twenty_fails_and_nothing_else_is_charged",
    ),
    PlantedBug(
        name="retry_timer_lost_by_restart",
        broken="a restart sets no timers for retries",
        promise="a retry comes at its instant",
        where="core",
        needs="a crash while something is retrying",
        edits=(
            Edit(
                "aioflow.core.runs.recovery",
                "_resume_task",
                "tx.wake_task(task, task.due_at)",
                """
                if task.state is TaskState.SENSING:
                    tx.wake_task(task, task.due_at)
                """,
            ),
        ),
        seen_by="tests/core/test_step.py"
        "::test_a_hosted_sensors_deadline_outlives_a_retry_and_a_restart",
        seed=Seed(1, 1),
    ),
    PlantedBug(
        name="wait_deadline_lost_by_restart",
        broken="a restart sets no timers for the deadlines of waits",
        promise="a wait ends at its deadline",
        where="core",
        needs="a crash during a wait with a deadline that no event ends",
        edits=(
            Edit(
                "aioflow.core.runs.recovery",
                "_resume_task",
                "tx.wake_task(task, task.wait.row.deadline_at)",
            ),
        ),
        seed=Seed(1, 3),
    ),
    PlantedBug(
        name="claimed_try_lost_by_restart",
        broken="a restart queues only what was never started",
        promise="what waits for a slot gets one",
        where="core",
        needs="a crash while a try is claimed, or queued after a start",
        edits=(
            Edit(
                "aioflow.core.runs.recovery",
                "_resume_task",
                """
                case TaskState.QUEUED:
                    tx.slots.offer(task)
                """,
                """
                case TaskState.QUEUED if task.start_no == 0:
                    tx.slots.offer(task)
                """,
            ),
        ),
        seen_by="tests/core/test_step.py::test_a_restart_continues_from_the_rows",
        seed=Seed(1, 0),
    ),
    PlantedBug(
        name="fresh_children_lost_by_restart",
        broken="a restart queues no children that have not started",
        promise="a fan-out runs all its children",
        where="core",
        needs="a crash in the middle of a fan-out",
        edits=(
            Edit(
                "aioflow.core.runs.progress",
                "resume",
                """
                if group.has_fresh and run.states[group.task_index] == TaskState.RUNNING:
                    tx.slots.offer(group)
                """,
            ),
        ),
        seen_by="tests/core/test_restart.py"
        "::test_a_fan_out_interrupted_anywhere_reaches_its_join_once",
        seed=Seed(1, 1),
    ),
    PlantedBug(
        name="width_lost_by_restart",
        broken="a restored fan-out counts as one parent",
        promise="a fan-in waits for all children",
        where="core",
        needs="a crash in the middle of a fan-out that another task follows",
        edits=(
            Edit("aioflow.core.runs.task_counts", "retally", "stream_expand.count(group)"),
            Edit(
                "aioflow.core.runs.restore",
                "RunRestore.look_back",
                """
                for expansion in self._expansions:
                    stream_expand.restore(self.run, expansion)
                """,
            ),
        ),
        seen_by="tests/core/test_restart.py"
        "::test_a_fan_in_counts_failed_children_from_before_the_restart",
        seed=Seed(2, 0),
    ),
    PlantedBug(
        name="unstarted_parent_lost_by_restart",
        broken="a restored parent that never started is not counted as ended",
        promise="a fan-in is decided when all its parents have ended",
        where="core",
        needs="a crash after a parent failed by its upstream, beside one that has not ended",
        edits=(
            Edit(
                "aioflow.core.runs.task_counts",
                "retally",
                """
                if not state.is_live:
                    run.count_ended(task_index, state)
                """,
                """
                if not state.is_live and state is not TaskState.UPSTREAM_FAILED:
                    run.count_ended(task_index, state)
                """,
            ),
        ),
        seen_by="tests/core/test_restart.py"
        "::test_a_parent_that_never_started_is_counted_after_a_restart",
        seed=Seed(1, 0),
    ),
    PlantedBug(
        name="expanded_again_by_restart",
        broken="a restored fan-out without rows of children is expanded again",
        promise="a width is decided once",
        where="core",
        needs="a crash between the expansion and the first child's start",
        edits=(
            Edit(
                "aioflow.core.runs.task_counts",
                "retally",
                "TaskState.RUNNING",
                "TaskState.RUNNING if any(fan_out.states) else TaskState.PENDING",
            ),
            Edit(
                "aioflow.core.runs.progress",
                "_expand",
                "task_index in run.groups",
                "task_index in run.groups and any(run.groups[task_index].states)",
            ),
        ),
        seed=Seed(1, 1),
    ),
    PlantedBug(
        name="cursor_one_behind_after_restart",
        broken="the cursor of a restored fan-out points at its last started child",
        promise="a child is started by its own row, once",
        where="core",
        needs="a crash, or a turn that is undone, in the middle of a fan-out",
        edits=(
            Edit(
                "aioflow.core.runs.task_counts",
                "recount",
                "rewind(group)",
                """
                rewind(group)
                group.cursor = max(0, group.cursor - 1)
                """,
            ),
        ),
        seen_by="tests/core/test_step.py::test_a_restart_continues_from_the_rows",
        seed=Seed(1, 0),
    ),
    PlantedBug(
        name="fan_in_not_recounted",
        broken="children that ended before a restart are not counted for what follows them",
        promise="a fan-in is decided when all its parents have ended",
        where="core",
        needs="a crash, or a turn that is undone, in a fan-out that another task follows",
        edits=(
            Edit(
                "aioflow.core.runs.task_counts",
                "retally",
                """
                for ended in (one for one in TaskState if not one.is_live):
                    if group.counts[ended]:
                        run.count_child(group, ended, group.counts[ended])
                """,
            ),
        ),
        seen_by="tests/core/test_restart.py"
        "::test_a_fan_out_interrupted_anywhere_reaches_its_join_once",
        seed=Seed(1, 2),
    ),
    PlantedBug(
        name="loops_not_counted_by_restart",
        broken="a restart does not count a loop that has ended",
        promise="a restart decides as if it had not happened",
        where="core",
        needs="a restart between the end of a loop and the start of what comes after it",
        edits=(
            Edit(
                "aioflow.core.runs.task_counts",
                "retally",
                """
                if group.is_loop and group.is_over:
                    run.count_ended(task_index, group.outcome())
                """,
            ),
        ),
        seed=Seed(1, 22),
    ),
    PlantedBug(
        name="alerts_lost_by_restart",
        broken="a restart forgets alerts that were not delivered",
        promise="a stored effect is carried out at least once",
        where="core",
        needs="a crash between an alert's commit and its delivery",
        edits=(
            Edit(
                "aioflow.core.runs.recovery",
                "resume_dags",
                """
                for kind in list(memory.outbox_quotas):
                    tx.outbox.read_more(kind)
                """,
            ),
        ),
        seen_by="tests/core/test_outbox.py"
        "::test_a_restart_hands_out_what_was_not_done_and_no_more_at_once",
        seed=Seed(1, 0),
    ),
    PlantedBug(
        name="ending_triggers_kept_by_restart",
        broken="triggers that were ending stay over a restart",
        promise="a row lives as long as something needs it",
        where="core",
        needs="a crash between the order to end a trigger and its host's report",
        edits=(
            Edit(
                "aioflow.core.runs.recovery",
                "delete_stray_triggers",
                """
                for wait in list(memory.waits.objects.values()):
                    if wait.state is TriggerState.ENDING:
                        tx.drop_wait(wait)
                """,
            ),
        ),
        seed=Seed(2, 1),
    ),
    PlantedBug(
        name="pools_of_the_deferred_lost_by_restart",
        broken="a restart does not count deferred tasks in a pool that includes them",
        promise="a pool is never exceeded",
        where="core",
        needs="a deferred task in such a pool, then a restart",
        edits=(
            Edit("aioflow.core.runs.recovery", "resume_run", "tx.slots.hold_pool_slots_of(run)"),
        ),
        seen_by="tests/core/test_pools.py::test_deferred_tasks_use_the_same_pool_slots_after_a_restart",
        seed=Seed(2, 1000),
    ),
    PlantedBug(
        name="deadlines_lost_by_restart",
        broken="a restart sets no timers for the deadlines of runs and tasks",
        promise="people are alerted of what is late",
        where="core",
        needs="a crash between the start of a run and its deadline",
        edits=(Edit("aioflow.core.runs.recovery", "resume_dags", "deadlines.arm_deadlines(tx)"),),
        seen_by="tests/core/test_deadline_alerts.py"
        "::test_a_deadline_is_not_lost_by_a_restart_whenever_that_comes",
        seed=Seed(1, 3),
    ),
    PlantedBug(
        name="run_timeout_lost_by_restart",
        broken="a restart sets no timers for `run_timeout`",
        promise="a run that takes too long fails",
        where="core",
        needs="a crash while a run with a `run_timeout` is running",
        edits=(Edit("aioflow.core.runs.recovery", "resume_run", "deadlines.arm_timeout(run, tx)"),),
        seen_by="tests/core/test_deadline_alerts.py::test_the_time_of_a_run_continues_over_a_restart",
        seed=Seed(1, 4),
    ),
    PlantedBug(
        name="held_events_forgotten_by_restart",
        broken="a restart sets no timers for what waits for quiet",
        promise="each event starts its run, or it is stored why not",
        where="core",
        needs="a crash while an event is held by `debounce`",
        edits=(Edit("aioflow.core.runs.recovery", "resume_dags", "event_runs.restarted(tx)"),),
        seed=Seed(1, 13),
    ),
)
