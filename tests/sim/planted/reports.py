"""Bugs of inputs: late reports, repeated events, inputs that raise."""

from __future__ import annotations

from tests.sim.planted.bug import PlantedBug, Seed
from tests.sim.planted.edit import Edit

__all__ = ("BUGS",)

BUGS = (
    PlantedBug(
        name="raising_input_swallowed",
        broken="an input that raises is passed over, and what it had changed is kept",
        promise="a request is answered, a culprit is blamed, memory says what the rows say",
        where="core",
        needs="an input that raises: a report, or a request, with a time that is none",
        edits=(
            Edit(
                "aioflow.core.step",
                "decide",
                "HANDLERS[type(entry)](entry, tx)",
                """
                try:
                    HANDLERS[type(entry)](entry, tx)
                except Exception:
                    continue
                """,
            ),
        ),
        seen_by="tests/core/test_rollback.py"
        "::test_a_report_that_raises_before_it_touched_anything_is_blamed_on_its_run",
        seed=Seed(1, 2783),
    ),
    PlantedBug(
        name="event_consumed_before_commit",
        broken="a trigger that fired is marked as hosted a time later, in memory alone",
        promise="an event is consumed with the commit, not before (law 6)",
        where="core",
        needs="a refusal of the turn that consumes the event",
        edits=(
            Edit(
                "aioflow.core.triggers.lifecycle",
                "fire",
                """
                if wait.row.ordinal < 0 and (report.ends or not wait.row.next_method):
                    _end_task(wait, task, report, tx)
                    return
                """,
                """
                if wait.row.ordinal < 0 and (report.ends or not wait.row.next_method):
                    _end_task(wait, task, report, tx)
                    return
                wait.assignment_id += 1
                """,
            ),
        ),
        seen_by="tests/core/test_rollback.py::test_a_refused_event_resumes_once_when_it_is_repeated",
        seed=Seed(1, 1018),
    ),
    PlantedBug(
        name="second_event_resumes_again",
        broken="an event is consumed whatever the trigger's state",
        promise="an event resumes its task once (law 6)",
        where="core",
        needs="the same event twice",
        edits=(
            Edit(
                "aioflow.core.triggers.lifecycle", "fire", "wait.state is not TriggerState.WAITING"
            ),
        ),
        seen_by="tests/core/test_step.py::test_the_same_event_twice_resumes_once",
        seed=Seed(1, 29),
    ),
    PlantedBug(
        name="event_of_another_hosting",
        broken="an event is consumed from any hosting",
        promise="a report of another hosting is late (law 6)",
        where="core",
        needs="a re-hosting, then the event of the old host",
        edits=(
            Edit(
                "aioflow.core.triggers.lifecycle",
                "fire",
                "report.assignment_id != wait.assignment_id",
            ),
        ),
        seen_by="tests/core/test_step.py::test_an_event_of_an_old_hosting_is_late",
        seed=Seed(1, 12),
    ),
    PlantedBug(
        name="late_report_accepted",
        broken="a report is accepted from any start",
        promise="a report of another start is late",
        where="core",
        needs="an interruption or a retry, then the report of the start before",
        edits=(
            Edit(
                "aioflow.core.step",
                "_current_task",
                "task is None or task.start_no != start_no",
                "task is None",
            ),
        ),
        seen_by="tests/core/test_step.py::test_a_late_report_of_an_earlier_start_changes_nothing",
        seed=Seed(1, 10),
    ),
    PlantedBug(
        name="late_end_of_another_hosting",
        broken="the end of an old hosting counts for the present one",
        promise="a report of another hosting is late (law 6)",
        where="core",
        needs="a re-hosting, then `TriggerEnded` of the old one: its task fails",
        edits=(
            Edit(
                "aioflow.core.triggers.lifecycle",
                "trigger_ended",
                """
                if report.assignment_id != wait.assignment_id:
                    return
                """,
            ),
        ),
        seen_by="tests/core/test_step.py::test_the_end_of_an_old_hosting_is_late",
    ),
)
