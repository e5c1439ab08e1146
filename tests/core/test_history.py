"""The history: each end counts once, with its durations, in the batch that contains it."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from aioflow.core.transaction import Transaction
from aioflow.model.batch import Batch
from aioflow.model.history import (
    DAY_US,
    HOUR_US,
    LAST_BUCKET,
    OF_RUN,
    PERCENTILE_ERROR,
    HistoryRow,
    Measure,
    bucket_of,
    day_of,
    hour_of,
    milliseconds_of,
    percentile_ms,
)
from aioflow.model.states import RunState, TaskState
from aioflow.protocol.requests import ClearTasks, EraseHistory
from tests.core.specs import mapped, task
from tests.core.test_clear import ONCE
from tests.core.world import SECOND, World


class Watched(World):
    """A world that totals the history of its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[tuple[str, str, int]] = Counter()
        self.spent: Counter[tuple[str, int]] = Counter()

    def _commit(self, batch, tx):
        keys = [
            (one.dag_id, one.task_id, one.measure, one.start, one.bucket) for one in batch.history
        ]
        assert len(set(keys)) == len(keys)
        for one in batch.history:
            assert one.start == hour_of(self.now)
            if one.measure == Measure.STATE:
                self.found[one.dag_id, one.task_id, one.bucket] += one.occurrences
            self.spent[one.task_id, one.measure] += one.total_ms
        super()._commit(batch, tx)

    def ends(self, task_id: str = OF_RUN) -> dict[str, int]:
        name = RunState if task_id == OF_RUN else TaskState
        return {name(state).label: n for (_, of, state), n in self.found.items() if of == task_id}


def test_each_end_counts_by_its_state():
    world = Watched()
    world.begin(task("a"), task("b", 0, retry=ONCE), task("c", 1))

    world.succeed("a")
    world.fail("b")

    assert world.ends("a") == {"success": 1}
    assert world.ends("b") == {"failed": 1}
    assert world.ends("c") == {"upstream_failed": 1}
    assert world.ends() == {"failed": 1}


def test_each_child_of_a_mapped_task_counts():
    world = Watched()
    world.begin(task("list"), mapped("work", 0))
    world.succeed("list", size=1, width=5)
    world.finish_all()

    assert world.ends("work") == {"success": 5}


def test_a_run_that_is_cleared_and_ends_again_counts_again():
    world = Watched()
    run = world.begin(task("a", retry=ONCE), task("b", 0))
    world.fail("a")
    world.pass_time(1)

    world.ask(ClearTasks(run_id=world.rows.runs[run].run_id, tasks=("a",), downstream=True))
    world.finish_all()

    assert world.ends() == {"failed": 1, "success": 1}
    assert world.ends("a") == {"failed": 1, "success": 1}


def test_only_successes_have_a_duration():
    world = Watched()
    world.begin(task("a"), task("b", retry=ONCE))
    world.now += 3 * SECOND

    world.succeed("a")
    world.fail("b")

    assert ("b", Measure.DURATION) not in world.spent
    assert ("", Measure.DURATION) not in world.spent


@pytest.mark.parametrize("share", [0.5, 0.95])
def test_a_percentile_is_as_close_as_promised(share):
    rng = random.Random(4)
    spent = sorted(int(10 ** rng.uniform(0, 8)) for _ in range(999))
    exact = spent[int(share * len(spent))]

    found = percentile_ms(Counter(map(bucket_of, spent)), share)

    assert found is not None
    assert abs(found - exact) <= exact * (PERCENTILE_ERROR + 0.001) + 1


def test_buckets_grow_with_the_duration_and_end():
    edges = [bucket_of(2**power) for power in range(39)]

    assert edges == [1 + 4 * power for power in range(39)]
    assert bucket_of(0) == 0
    assert bucket_of(milliseconds_of(10**18)) == LAST_BUCKET
    assert milliseconds_of(-5) == 0


def test_no_duration_has_no_percentile():
    assert percentile_ms({}, 0.5) is None


def test_hours_are_merged_into_their_day():
    world = World()
    hours = [
        HistoryRow(
            "dag", "a", Measure.DURATION, day_of(world.now) - DAY_US + hour * HOUR_US, 4, 2, 9
        )
        for hour in (1, 5)
    ]
    request = EraseHistory(rows=hours, is_merged=True)
    batches: list[Batch] = []
    commit = world._commit

    def kept(batch: Batch, tx: Transaction) -> None:
        batches.append(batch)
        commit(batch, tx)

    world._commit = kept  # type: ignore[method-assign]

    world.ask(request)

    (batch,) = [batch for batch in batches if batch.history]
    assert batch.history == [
        HistoryRow("dag", "a", Measure.DURATION, day_of(world.now) - DAY_US, 4, 4, 18)
    ]
    assert [key[3] for key in batch.erased["history"]] == [hour.start for hour in hours]
