"""Coverage of the second level, and the tools that find, shrink and judge its failures."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from aioflow.clock import SteadyClock
from aioflow.model.batch import Batch
from aioflow.model.dag import DagSpec
from aioflow.model.rows import OutboxRow
from aioflow.model.states import Failure
from aioflow.model.triggers import ASSETS, DagTriggerSpec
from aioflow.protocol.inputs import TimerFired
from aioflow.protocol.reports import Failed
from aioflow.store.changes import Kind
from tests.sim import loop_model
from tests.sim.broken import Broken
from tests.sim.faults import Fault
from tests.sim.incarnation import small_capacity, starving
from tests.sim.lengths import Lengths
from tests.sim.loop_faults import LoopFaults
from tests.sim.misbehaving import DRAWN, Misbehaving, Refuses, draw
from tests.sim.raising import as_run
from tests.sim.shaky_store import with_a_wrong_guard
from tests.sim.shrink import AllBut, replay, shrink
from tests.sim.tables import Tables

pytestmark = pytest.mark.timeout(120)

LEAST = {
    "fenced": 3,
    "refused for its guard": 10,
    "power cut": 3,
    "key lost": 2,
    "drained": 1,
    "ended at once": 1,
    "no process": 1,
    "trigger misbehaves": 5,
    "trigger host dies": 1,
    "trigger host hangs": 1,
}

_STARTS_RUNS = 1
"""The number of a DAG trigger, whose events start runs."""

FEW_PEOPLE = 15
"""Number of clients, each of which makes one request. The campaigns use more of them."""


@pytest.mark.nightly
@pytest.mark.timeout(300)  # 28 seeds, CPU-bound
def test_the_store_and_the_triggerer_meet_everything_that_is_drawn_for_them():
    points = Counter[str]()
    for seed in range(28):
        verdict = loop_model.play(seed, people=2 * FEW_PEOPLE)
        assert verdict.broken is None, f"seed {seed} of level 2"
        points.update(verdict.points)

    assert not {name: points[name] for name, count in LEAST.items() if points[name] < count}


@pytest.mark.nightly
@pytest.mark.parametrize(
    "seed", [1171, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1172, 1182))]
)
def test_a_seed_is_the_same_life_wherever_its_objects_lie(seed):
    first, second = (loop_model.play(seed, people=FEW_PEOPLE) for _ in range(2))

    assert first.digest == second.digest
    assert first.faults == second.faults


def test_a_store_that_counts_no_guards_is_found_out(monkeypatch):
    monkeypatch.setattr(Kind, "is_counted", False)

    said = (loop_model.play(seed).broken or "" for seed in range(6))

    assert any(broken.startswith("I3 guards") for broken in said)


@pytest.mark.nightly
def test_a_deadline_that_is_forgotten_is_found_and_shrunk_to_what_it_takes(monkeypatch):
    monkeypatch.setattr("aioflow.engine.timers.Timers.arm", _arms_no_second_due)
    seeds = range(2, 20)  # 0 has enough runs to take a minute, and would be replayed many times
    looks = itertools.count()  # the search reads this clock before each replay
    broken = next(v for v in map(loop_model.play, seeds) if v.broken is not None)

    minimal = shrink(broken, 3, clock=lambda: float(next(looks)), level=2)

    assert len(minimal.faults) < len(broken.faults)
    assert (replay(minimal.recipe).broken or "").partition(":")[0] == broken.broken.partition(":")[
        0
    ]
    assert minimal.recipe.encoded() in str(minimal)


def _arms_no_second_due(timers, due: TimerFired, *, at=None):
    """Arm a timer as the real method does, but ignore further timers while one is armed."""
    if not len(timers):
        timers._armed += 1
        timers._by_wall.append((due.at if at is None else at, timers._armed, due))
        timers._earlier.set()


def test_a_fault_keeps_its_number_when_another_kind_is_left_out():
    def drawn(left_out: frozenset[Fault] = frozenset()) -> list[Fault]:
        faults = LoopFaults(5, left_out)
        for _ in range(3000):
            for kind in ("reply lost", "power cut", "commit fails", "node replaced"):
                faults.happens(kind)
        return faults.happened

    happened = drawn()
    first = happened[0]

    assert drawn(frozenset({first})) == happened[1:]
    assert drawn(AllBut({first})) == [first]


def test_one_change_of_a_wrong_batch_expects_what_is_not_so():
    batch = Batch(number=7, at=0, new_outbox=[OutboxRow(outbox_no=1, kind="alert", body=b"")])

    wrong = with_a_wrong_guard(batch, random.Random(1), Tables())

    assert wrong.done_outbox
    assert wrong.new_outbox == batch.new_outbox
    assert not batch.done_outbox


class _Wall:
    """A clock whose wall time and monotonic time are set explicitly."""

    def __init__(self) -> None:
        self.wall = self.mono = 0

    def now(self) -> int:
        return self.wall

    def monotonic_us(self) -> int:
        return self.mono

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody sleeps here")


@pytest.mark.parametrize(
    ("mono_seconds", "said"),
    [(99, ["1 s too early"]), (100, []), (130, []), (7300, ["7200 s too late"])],
)
def test_a_length_of_time_that_comes_at_another_time_is_noticed(mono_seconds, said):
    clock, broken, passed = _Wall(), [], []
    timers = Lengths(SteadyClock(clock), passed.extend, broken.append)
    due = TimerFired(100_000_000, task_no=7)
    timers.arm(due)
    clock.mono = mono_seconds * 1_000_000

    timers._report([due])

    assert passed == [due]
    assert [str(found).rpartition(" comes ")[2] for found in broken] == said


def test_any_exception_of_a_body_ends_only_its_try():
    drawn = Failed(7, 2, 1, 5, Failure(type="ValueError", message="no", reason="raised"), False, 9)

    reports = [as_run(drawn, random.Random(seed)) for seed in range(50)]

    assert {"SystemExit", "KeyboardInterrupt"} < {report.failure.type for report in reports}
    assert {(r.task_no, r.start_no, r.at, r.retryable, r.retry_after_us) for r in reports} == {
        (7, 2, 5, False, 9)
    }


def test_a_body_that_ends_its_worker_is_found_out(monkeypatch):
    drawn = Failed(7, 2, 1, 5, Failure(type="ValueError", message="no", reason="raised"))
    monkeypatch.setattr("tests.sim.raising.run_body", _exits)

    with pytest.raises(Broken, match="ends its worker"):
        as_run(drawn, random.Random(1))


def _exits(*_: object) -> None:
    raise SystemExit


def test_only_a_trigger_with_a_timeout_waits_for_ever():
    for seed in range(200):
        _, fields = draw(random.Random(seed), b"\x80", badly=True, has_timeout=False)
        assert b"hang" not in fields.partition(b"leaving")[0]
        assert b"swallow" not in fields.partition(b"leaving")[0]


async def test_any_exit_that_a_trigger_raises_is_attributed_to_the_trigger():
    """Recognize an exit raised by a trigger by its arguments.

    The second level would report any other exit as a broken fence.
    """
    with pytest.raises(SystemExit) as of_its_class:
        Refuses({}, "cancelled", 0.0, "exit", "")
    with pytest.raises(SystemExit) as of_its_cleanup:
        await Misbehaving({}, "cancelled", 0.0, "exit").cleanup("cancelled")

    assert of_its_class.value.args == of_its_cleanup.value.args == DRAWN


def test_a_small_host_has_room_beside_the_triggers_that_start_runs_and_stay():
    ticks = DagTriggerSpec(class_path="sim:Ticks", kwargs=b"\x80", name="Ticks")
    assets = replace(ticks, class_path=ASSETS)
    plain, ticking, by_assets = (
        DagSpec(dag_id="d", file="d.py", tasks=(), trigger=trigger)
        for trigger in (None, ticks, assets)
    )

    assert small_capacity([plain, by_assets, by_assets]) == 2
    assert small_capacity([ticking, by_assets]) == 2
    assert small_capacity([ticking, ticking, plain]) == 3


@pytest.mark.parametrize(
    ("hosted", "waiting", "runs"),
    [
        pytest.param([_STARTS_RUNS, 5], [6], {9}, id="it-holds-all-there-is"),
        pytest.param([5, 7], [6], set(), id="another-will-make-room"),
        pytest.param([5, 8], [6], set(), id="the-stream-of-another-goes-on"),
        pytest.param([5], [8], set(), id="another-waits"),
        pytest.param([_STARTS_RUNS, 5], [], set(), id="nobody-waits"),
    ],
)
def test_a_run_starves_that_fills_a_host_with_streams_and_wants_one_more(hosted, waiting, runs):
    triggers = {
        number: SimpleNamespace(run_no=run_no, task_no=task_no, window=window)
        for number, run_no, task_no, window in [
            (5, 9, 1, 64),
            (6, 9, 1, 64),
            (7, 9, 2, 0),
            (8, 4, 3, 64),
        ]
    }
    tables = SimpleNamespace(triggers=triggers, dag_triggers={_STARTS_RUNS: None})

    found = starving([SimpleNamespace(_hosted=hosted, _waiting=waiting)], tables)

    assert found == runs
