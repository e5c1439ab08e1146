"""Bugs of user operations on runs: clear, mark, delete."""

from __future__ import annotations

from tests.sim.planted.bug import PlantedBug, Seed
from tests.sim.planted.edit import Edit

__all__ = ("BUGS",)

BUGS = (
    PlantedBug(
        name="marked_and_nothing_undone",
        broken="a mark undoes nothing but its own tasks",
        promise="what comes after a mark is decided as if the task had ended so",
        where="core",
        needs="a mark of a task that had ended otherwise, with tasks behind it that never ran",
        edits=(
            Edit("aioflow.core.repair.mark", "_choose", "revoked and not is_cut_short", "False"),
        ),
        seed=Seed(2, 9),
    ),
    PlantedBug(
        name="rest_of_a_mark_forgotten",
        broken="tasks of a mark that do not fit into its turn are forgotten",
        promise="what was acknowledged exists",
        where="core",
        needs="more tasks marked at once than one slice holds",
        edits=(
            Edit(
                "aioflow.core.repair.execution",
                "_mark",
                "tx.postpone(run)",
                "_finish(run, tx)",
            ),
        ),
        seed=Seed(1, 5),
    ),
    PlantedBug(
        name="reset_under_its_old_number",
        broken="a task is reset under the number of its last start",
        promise="a report of another start is late",
        where="core",
        needs="a clear, or a mark, of a running task, then the report of its start",
        edits=(
            Edit(
                "aioflow.core.repair.reset",
                "reset_task",
                "after_clear(old.start_no)",
                "old.start_no",
            ),
        ),
        seed=Seed(1, 0),
    ),
    PlantedBug(
        name="marked_run_reuses_the_number_of_a_failed_try",
        broken="a retrying task of a run that is marked successful keeps its failed try's number",
        promise="a start has one row of its try",
        where="core",
        needs="that, and a clear of it",
        edits=(
            Edit(
                "aioflow.core.runs.cancel",
                "_stop",
                """
                if task.state is TaskState.RETRYING:
                    task.start_no += 1
                """,
            ),
        ),
        seed=Seed(2, 1003),
    ),
    PlantedBug(
        name="reset_task_keeps_its_result",
        broken="a task that is reset keeps its result",
        promise="a result is of the start that succeeded",
        where="core",
        needs="a clear, or a mark, of a task that had a result",
        edits=(
            Edit(
                "aioflow.core.repair.reset",
                "reset_task",
                "tx.batch.gone_results.append(task.task_no)",
            ),
        ),
        seed=Seed(1, 4),
    ),
    PlantedBug(
        name="deleted_run_stays_the_previous_one",
        broken="a deleted run stays the previous run of the one behind it",
        promise="what waits for the previous run looks at the one before the deleted",
        where="core",
        needs="`depends_on_past`, and a deleted run that did not succeed",
        edits=(
            Edit("aioflow.core.retention", "delete_run", "previous.forget(row.dag_id, order, tx)"),
        ),
        seed=Seed(1, 32),
    ),
    PlantedBug(
        name="resumes_half_cleared",
        broken="a run continues when a part of it has been cleared",
        promise="until all is cleared nothing of a run starts",
        where="core",
        needs="a clear of more than one slice",
        edits=(
            Edit(
                "aioflow.core.repair.execution",
                "execute_slice",
                "not targets",
                "len(targets) < SLICE_TASKS",
            ),
        ),
        seed=Seed(1, 4),
    ),
)
