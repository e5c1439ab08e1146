"""Bugs in deciding the consequences of inputs."""

from __future__ import annotations

from tests.sim.planted.bug import PlantedBug, Seed
from tests.sim.planted.edit import Edit

__all__ = ("BUGS",)

BUGS = (
    PlantedBug(
        name="failure_passed_on_in_a_later_turn",
        broken="what follows from a failure is decided a turn later, and not at a restart",
        promise="an end and all that follows from it are one batch",
        where="core",
        needs="a failed task; a crash before the next turn leaves its run without an end",
        edits=(
            Edit(
                "aioflow.core.runs.recovery",
                "resume_run",
                "run.row.quarantine is None",
                "run.row.quarantine is None and run.groups",
            ),
            Edit(
                "aioflow.core.runs.progress",
                "end",
                "_step(run, follows, tx)",
                """
                if state is TaskState.FAILED:
                    tx.postpone(run)
                else:
                    _step(run, follows, tx)
                """,
            ),
            Edit(
                "aioflow.core.step",
                "_continue_run",
                "continue_evaluation(run, tx)",
                """
                from aioflow.core.runs.progress import resume

                resume(run, tx)
                """,
            ),
        ),
        seed=Seed(1, 0),
    ),
    PlantedBug(
        name="fan_out_made_in_a_later_turn",
        broken="a fan-out over a result is expanded a turn later, and not at a restart",
        promise="an end and all that follows from it are one batch",
        where="core",
        needs="a crash between the end of the source and the next turn",
        edits=(
            Edit(
                "aioflow.core.runs.progress",
                "resume",
                "[p for p in run.graph.order if run.states[p] == TaskState.PENDING]",
                "[p for p in run.graph.order if run.spec.tasks[p].mapped is None]",
            ),
            Edit(
                "aioflow.core.runs.progress",
                "end",
                "_step(run, follows, tx)",
                """
                tasks = run.spec.tasks
                wide = [one for one in follows if one[1] < 0 and tasks[one[0]].mapped is not None]
                if wide:
                    tx.postpone(run)
                _step(run, [one for one in follows if one not in wide], tx)
                """,
            ),
            Edit(
                "aioflow.core.step",
                "_continue_run",
                "continue_evaluation(run, tx)",
                """
                from aioflow.core.runs.progress import step

                tasks = run.spec.tasks
                step(run, (p for p in run.graph.order if tasks[p].mapped), tx)
                continue_evaluation(run, tx)
                """,
            ),
        ),
        seed=Seed(1, 0),
    ),
    PlantedBug(
        name="numbers_for_one_window_only",
        broken="an expansion reserves numbers for one window of children",
        promise="numbers are laid out without overlap",
        where="core",
        needs="a window smaller than the width, then another expansion",
        edits=(
            Edit(
                "aioflow.core.runs.progress",
                "_make_group",
                "tx.numbers.take(numbers)",
                "tx.numbers.take(min(numbers, spec.window or numbers))",
            ),
        ),
        seed=Seed(1, 2),
    ),
    PlantedBug(
        name="cancelled_run_stays_active",
        broken="a cancelled run stays counted among the active ones",
        promise="the end of a run lets the next one begin",
        where="core",
        needs="`max_active_runs`, and a cancel of a run that is running",
        edits=(
            Edit(
                "aioflow.core.runs.cancel",
                "_cut_short",
                "create.run_ended(run, was=was, tx=tx)",
                "create.run_ended(run, was=run.state, tx=tx)",
            ),
        ),
        seed=Seed(1, 6),
    ),
    PlantedBug(
        name="cancel_in_two_batches",
        broken="a cancel ends its run in one batch and its tasks in another, lost by a restart",
        promise="a cancelled run starts nothing",
        where="core",
        needs="a crash between the two: its tasks start again",
        edits=(
            Edit(
                "aioflow.core.runs.cancel",
                "_cut_short",
                "cancel_tasks(run, tx, at)",
                "tx.postpone(run)",
            ),
            Edit(
                "aioflow.core.runs.recovery",
                "resume_run",
                """
                if not run.state.is_live and run.clearing is None:
                    cancel_tasks(run, tx)
                """,
            ),
        ),
        seen_by="tests/core/test_step.py"
        "::test_a_cancel_cut_short_by_a_crash_is_finished_at_the_next_start",
        seed=Seed(2, 1),
    ),
    PlantedBug(
        name="paused_dag_fires",
        broken="a fire time that was timed before a pause fires during it",
        promise="a paused DAG starts no scheduled run",
        where="core",
        needs="a pause between two fire times",
        edits=(
            Edit("aioflow.core.runs.create", "fire_time_due", "row.paused"),
            Edit("aioflow.core.dag_registry", "next_run_starts_at", "row.paused"),
        ),
        seen_by="tests/core/test_step.py::test_a_paused_dag_starts_no_scheduled_run",
        seed=Seed(1, 1),
    ),
    PlantedBug(
        name="fire_time_not_moved_on_in_its_batch",
        broken="a schedule advances in memory alone",
        promise="a fire time starts one run",
        where="core",
        needs="a crash, or a turn that is undone, after a scheduled run: its fire time fires again",
        edits=(
            Edit(
                "aioflow.core.runs.create",
                "_put_made",
                "put_dag(row, tx)",
                "tx.memory.dags[row.dag_id] = row",
            ),
        ),
        seed=Seed(2, 5),
    ),
    PlantedBug(
        name="sensor_timeout_retried",
        broken="a sensor that timed out is retried",
        promise="a sensor's time is that of all its tries",
        where="core",
        needs="a sensor with tries left that times out",
        edits=(
            Edit(
                "aioflow.core.tasks.tries",
                "time_out_sensor",
                "fail(task, failure, tx)",
                "fail_or_retry(task, failure, tx)",
            ),
        ),
        seen_by="tests/core/test_step.py"
        "::test_a_look_that_hangs_is_stopped_at_the_sensors_deadline",
        seed=Seed(1, 1),
    ),
    PlantedBug(
        name="hanging_sensor_not_timed",
        broken="a sensor's time is checked between its polls only",
        promise="a sensor that hangs times out",
        where="core",
        needs="a `def` sensor with a poll that outlasts its deadline",
        edits=(
            Edit(
                "aioflow.core.step",
                "_timer_fired",
                "task.deadline_at == due.at",
                "task.deadline_at == due.at and task.state is not TaskState.RUNNING",
            ),
        ),
        seen_by="tests/core/test_step.py"
        "::test_a_look_that_hangs_is_stopped_at_the_sensors_deadline",
        seed=Seed(1, 2),
    ),
    PlantedBug(
        name="state_not_written_by_itself",
        broken="a task that is queued again for its retry is written with its old state",
        promise="a transition writes its new state",
        where="core",
        needs="a retry that has to wait for its slot, then a crash or its next transition",
        edits=(
            Edit(
                "aioflow.core.transaction",
                "Transaction._close_task",
                """
                TaskChange(
                    task.task_no,
                    task.stored_state,
                    task.stored_start,
                    task.state,
                    task.try_number,
                    task.start_no,
                    task.interruptions,
                    stored_due(task),
                    task.deadline_at,
                    task.queued_at,
                    task.started_at,
                    task.ended_at,
                    task.failure,
                )
                """,
                """
                TaskChange(
                    task.task_no,
                    task.stored_state,
                    task.stored_start,
                    task.stored_state
                    if task.state is TaskState.QUEUED and task.stored_state is TaskState.RETRYING
                    else task.state,
                    task.try_number,
                    task.start_no,
                    task.interruptions,
                    stored_due(task),
                    task.deadline_at,
                    task.queued_at,
                    task.started_at,
                    task.ended_at,
                    task.failure,
                )
                """,
            ),
        ),
        seen_by="tests/core/test_step.py::test_a_task_that_ended_while_a_limit_blocked_it_takes_no_slot",
        seed=Seed(1, 2),
    ),
    PlantedBug(
        name="every_start_is_the_first_try",
        broken="each start is that of the first try",
        promise="no more tries than the policy says",
        where="core",
        needs="a task that always fails: it never ends",
        edits=(
            Edit(
                "aioflow.core.tasks.tries",
                "start",
                "task.start_no += 1",
                """
                task.start_no += 1
                if task.started_at is None:
                    task.try_number = 1
                """,
            ),
        ),
        seen_by="tests/core/test_step.py"
        "::test_a_failed_try_runs_again_after_its_delay_and_keeps_its_story",
        seed=Seed(2, 0),
    ),
    PlantedBug(
        name="outbox_beyond_the_window_forgotten",
        broken="effects beyond those handed out are not read when some of these are done",
        promise="a stored effect is carried out at least once",
        where="core",
        needs="more effects of a kind than are handed out at once",
        edits=(Edit("aioflow.core.outbox", "OutboxUpdates.delete", "self.read_more(kind)"),),
        seen_by="tests/core/test_outbox.py"
        "::test_outbox_rows_beyond_the_window_are_delivered_in_order",
        seed=Seed(1, 2),
    ),
    PlantedBug(
        name="retry_reported_as_failure",
        broken="a retry calls the callback of a failure",
        promise="each transition calls its own callback",
        where="core",
        needs="a retry of a task with `on_retry` or `on_failure`",
        edits=(Edit("aioflow.core.callbacks", "_TASK_EVENTS", "'retry'", "'failure'"),),
        seen_by="tests/core/test_outbox.py::test_each_transition_has_its_own_callback",
        seed=Seed(1, 0),
    ),
)
