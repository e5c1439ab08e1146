"""Bugs of runs that events or backfills start."""

from __future__ import annotations

from tests.sim.planted.bug import PlantedBug, Seed
from tests.sim.planted.edit import Edit

__all__ = ("BUGS",)

BUGS = (
    PlantedBug(
        name="event_behind_a_lost_one_is_consumed",
        broken="an event is consumed though the one before it of its hosting was not",
        promise="each event starts its run in order, or it is stored why not",
        where="core",
        needs="an event that is refused for good, and another behind it",
        edits=(
            Edit(
                "aioflow.core.triggers.event_runs",
                "fire",
                "report.index != one.index",
                "report.index < one.index",
            ),
        ),
        seen_by="tests/core/test_event_runs.py::"
        "test_events_after_a_refused_one_wait_for_the_next_assignment",
        seed=Seed(1, 38),
    ),
    PlantedBug(
        name="progress_of_a_backfill_not_stored",
        broken="the position of a backfill is stored with its first runs and its last alone",
        promise="each fire time of a backfill is handled once",
        where="core",
        needs="a crash in the middle of a backfill",
        edits=(
            Edit(
                "aioflow.core.transaction",
                "Transaction.put_backfill",
                "self.batch.backfills.append(row)",
                """
                if row.state != "running" or row.made == 0:
                    self.batch.backfills.append(row)
                """,
            ),
        ),
        seed=Seed(1, 8),
    ),
    PlantedBug(
        name="backfill_begins_among_the_others",
        broken="tasks that begin in a run of a backfill wait no longer than any other",
        promise="a backfill never keeps a run of today from its slots",
        where="core",
        needs="a backfill beside runs that wait for slots",
        edits=(
            Edit(
                "aioflow.core.scheduling.ready",
                "Ready._ranked",
                "2 if entry.run.row.backfill is None else 3",
                "2",
            ),
        ),
        seed=Seed(1, 8),
    ),
    PlantedBug(
        name="waiting_runs_not_cancelled_for_the_next",
        broken="of the runs that a new one replaces only the last is cancelled",
        promise="what `cancel_old` replaces does not run",
        where="core",
        needs="events of such a DAG while a run of it waits for its turn",
        edits=(
            Edit(
                "aioflow.core.triggers.event_runs",
                "_cancel_old",
                "[run for run in queued if run.row.cause == BY_EVENT]",
                "[]",
            ),
        ),
        seed=Seed(1, 7_399_480_000_083),
    ),
)
