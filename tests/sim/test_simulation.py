"""A sample of seeds of both levels for every test run, and more of them each night.

Long campaigns over many seeds are in ``tests/campaigns``.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from aioflow.core.repair.mark_apply import marked
from aioflow.core.state import outbox_quota
from aioflow.core.state.memory import Memory
from aioflow.core.tasks.start_command import order
from aioflow.core.triggers import event_stream
from aioflow.errors import Fenced, StrangeDatabase
from aioflow.model.batch import Batch
from aioflow.model.dag import DEFAULT_POOL, Body, DagSpec, ScheduleSpec, TaskSpec
from aioflow.model.rows import OutboxRow, ResultRow, RunChange, RunRow, TaskRow
from aioflow.model.states import Failure, RunState, TaskState, TriggerRule
from aioflow.protocol.commands import StartTask
from aioflow.protocol.outbox import ALERT, TRIAL, Trial
from aioflow.protocol.requests import StartBackfill
from tests.core.test_previous_runs import needed_and_created_with_an_earlier_one
from tests.core.test_remote_workers import RemoteWorld, far
from tests.sim import coverage, loop_model, model, oracle
from tests.sim.broken import Broken
from tests.sim.circle import RARE
from tests.sim.drawing import FIRST, draw
from tests.sim.faults import KINDS, Faults
from tests.sim.filling import nobody_else_waits
from tests.sim.ledger import Ledger
from tests.sim.owing import what_is_owed_is_read
from tests.sim.past import note_begun
from tests.sim.script import Call, script
from tests.sim.shrink import shrink
from tests.sim.stored import starts_read_the_last_success
from tests.sim.tables import Numbers, Tables
from tests.sim.themes import ALL, EVENTS, is_brief, louder, themes_of
from tests.sim.told import Told
from tests.sim.trying import goes_by_itself
from tests.sim.verdict import Verdict
from tests.sim.wheel import Watch, resumed
from tests.sim.workload import SECOND

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).parents[2]
LEAST_MODEL = {
    "restart": 5,
    "stop": 2,
    "fenced write": 2,
    "fenced repeat": 20,
    "report of the dead": 5,
    "refused for good": 1,
    "retry": 50,
    "event consumed": 50,
    "call answered": 200,
    "call replayed": 50,
    "event of a stream": 20,
    "event emitted": 100,
    "event told": 5,
    "run called": 5,
    "event handled": 20,
    "item given on": 20,
    "open fan-out": 5,
    "another round": 5,
    "expansion": 20,
    "run cleared": 5,
    "run marked": 5,
    "run deleted": 2,
    "run of an event": 5,
    "run of a backfill": 2,
    "run ended": 50,
}
LEAST_LOOP = {
    "restart": 3,
    "fenced repeat": 10,
    "event consumed": 20,
    "call answered": 100,
    "call replayed": 20,
    "event of a stream": 10,
    "event emitted": 50,
    "event told": 5,
    "run called": 5,
    "item given on": 50,
    "open fan-out": 10,
    "batch refused": 3,
    "run cleared": 3,
    "run marked": 3,
    "run deleted": 2,
    "run ended": 20,
}


def _random_seed() -> int:
    return random.SystemRandom().randrange(10**6, 10**9)


def _well(verdict: Verdict) -> None:
    if verdict.broken is not None:
        pytest.fail(str(shrink(verdict, 20)))


def _enough(points: Counter[str], least: dict[str, int]) -> None:
    """Check that each point was covered often enough; otherwise the campaign proves nothing."""
    short = {name: points[name] for name, count in least.items() if points[name] < count}
    assert not short


MODEL_SAMPLE = (4, 12, 16, 51)
LOOP_SAMPLE = (5, 6, 36)
"""Short seeds that together cover every point that the nightly seeds must cover."""


@pytest.mark.parametrize("seed", MODEL_SAMPLE)
def test_the_model_keeps_its_promises_under_faults(seed):
    verdict = model.play(seed)

    _well(verdict)
    assert verdict.points["run ended"]


@pytest.mark.parametrize(
    "seed", [1023, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1004, 1029))]
)
def test_the_model_keeps_its_promises_where_dags_have_hosts_of_their_own(seed):
    verdict = model.play(seed)

    _well(verdict)
    _enough(verdict.points, {"own host": 20, "own host left": 3, "run ended": 1})


@pytest.mark.nightly
def test_the_model_keeps_its_promises_under_faults_of_every_kind():
    points = Counter[str]()
    for seed in range(16):
        verdict = model.play(seed)
        _well(verdict)
        points.update(verdict.points)

    _enough(points, LEAST_MODEL)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("play", "sample", "least"),
    [(model.play, MODEL_SAMPLE, LEAST_MODEL), (loop_model.play, LOOP_SAMPLE, LEAST_LOOP)],
    ids=["model", "engine"],
)
def test_the_sample_of_every_day_meets_each_point(play, sample, least):
    points = sum((play(seed).points for seed in sample), Counter[str]())

    _enough(points, dict.fromkeys(least, 1))


@pytest.mark.nightly
@pytest.mark.parametrize(
    "seed",
    [
        *(27, 110, 219, 241, 271, 289, 916, 1184, 5245, 7399410000465, 7399410002605),
        *(162, 171, 335, 431, 121, 151, 257, 276, 193),
    ],
)
def test_a_seed_that_once_broke_a_promise_keeps_it(seed):
    """Play seeds that once broke a promise.

    The history tells what each of them found. Later changes to drawing may have made them harmless.
    """
    _well(model.play(seed))


def test_the_model_keeps_its_promises_under_a_seed_never_played_before():
    seed = _random_seed()
    print(f"seed {seed}")
    _well(model.play(seed))


@pytest.mark.parametrize("seed", LOOP_SAMPLE)
def test_the_engine_keeps_its_promises_under_faults(seed):
    verdict = loop_model.play(seed)

    assert verdict.broken is None, f"seed {seed} of level 2"
    assert verdict.points["run ended"]


@pytest.mark.nightly
def test_the_engine_keeps_its_promises_under_faults_of_every_kind():
    points = Counter[str]()
    for seed in range(14):
        verdict = loop_model.play(seed)
        assert verdict.broken is None, f"seed {seed} of level 2"
        points.update(verdict.points)

    _enough(points, LEAST_LOOP)


def test_the_engine_keeps_its_promises_under_a_seed_never_played_before():
    seed = _random_seed()
    print(f"seed {seed}")
    assert loop_model.play(seed).broken is None, f"seed {seed} of level 2"


PROGRAM = """
from tests.sim import loop_model, model
print(model.play(5).digest, loop_model.play(5, people=15).digest)
"""


@pytest.mark.nightly
def test_a_seed_is_the_same_life_whatever_the_hashes_of_the_process():
    digests = set()
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout)
    assert len(digests) == 1


def test_a_broken_promise_is_found_and_shrunk(monkeypatch):
    """Plant a bug that only a crash can reveal: a queued task is forgotten."""
    monkeypatch.setattr("aioflow.core.runs.run_queue.remember", lambda run, memory: None)

    broken = next(v for v in map(model.play, range(50)) if v.broken is not None)
    minimal = shrink(broken, 5)

    assert len(minimal.faults) <= len(broken.faults)
    assert minimal.broken


def test_cases_that_a_campaign_has_not_met_often_enough_are_named():
    points = Counter(dict.fromkeys(coverage.EVENTS, 9))

    missing = coverage.short(points, 10)

    assert missing["restart"] == 9
    assert missing["fenced / HostLost"] == 0
    assert not coverage.short(Counter(dict.fromkeys(missing, 10)), 10)


def test_a_time_that_nothing_reacted_to_is_noticed():
    tables = Tables()
    run = RunRow(
        run_no=1,
        run_id="run",
        dag_id="dag",
        version="v",
        state=RunState.RUNNING,
        cause="manual",
        first_task_no=2,
    )
    tables.runs[1] = run
    node = SimpleNamespace(mono=0, seen_at=None, wall=lambda: 1_000)
    watch = Watch(tables, resumed(node))
    row = TaskRow(
        task_no=2,
        run_no=1,
        task_index=0,
        map_index=-1,
        state=TaskState.RETRYING,
        try_number=1,
        start_no=1,
        due_at=1_500,
    )
    tables.tasks[2] = row
    watch.note(Batch(number=1, at=1_000, new_tasks=[row]))
    watch.look(500)

    with pytest.raises(Broken, match="L2 timers"):
        watch.look(501)


def _reader(at_hand: dict[int, Any]) -> StartTask:
    """Return the start of a task that reads the result of its parent."""
    return StartTask(1, 3, 1, 1, -1, 1, results=at_hand, at_hand=tuple(at_hand))


def _after_a_mark(stored: list[ResultRow]) -> SimpleNamespace:
    """Return a node in which a result was ignored, because the task was then marked successful."""
    tables, ledger = Tables(), Ledger()
    tables.runs[1] = RunRow(
        run_no=1,
        run_id="run",
        dag_id="dag",
        version="v",
        state=RunState.RUNNING,
        cause="manual",
        first_task_no=2,
    )
    tasks = (
        TaskSpec(task_id="gives", body=Body.FUNCTION),
        TaskSpec(task_id="takes", body=Body.FUNCTION, parents=(0,), argument_parents=(0,)),
    )
    tables.specs["v", "dag"] = DagSpec(dag_id="dag", file="dag.py", tasks=tasks)
    tables.tasks[2] = TaskRow(
        task_no=2,
        run_no=1,
        task_index=0,
        map_index=-1,
        state=TaskState.SUCCESS,
        try_number=1,
        start_no=1,
        failure=marked(TaskState.SUCCESS),
    )
    tables.results |= {row.task_no: row for row in stored}
    ledger.succeed(2, 1, b"unheard")
    return SimpleNamespace(tables=tables, ledger=ledger)


@pytest.mark.parametrize("at_hand", [{}, {0: None}], ids=["reads", "is given"])
def test_a_marked_task_has_no_result_whatever_its_last_start_returned(at_hand):
    starts_read_the_last_success(_after_a_mark([]), _reader(at_hand))


@pytest.mark.parametrize("at_hand", [{}, {0: b"unheard"}], ids=["reads", "is given"])
def test_a_result_that_a_mark_has_left_is_noticed(at_hand):
    left = ResultRow(task_no=2, run_no=1, start_no=1, body=b"unheard", size=7, width=None)

    with pytest.raises(Broken, match="I17 results"):
        starts_read_the_last_success(_after_a_mark([left]), _reader(at_hand))


def test_a_run_that_was_the_oldest_when_it_began_may_be_beyond_the_limit():
    world, (needed, _) = needed_and_created_with_an_earlier_one()
    tables = Tables()
    for batch in world.batches:
        tables.commit(batch)
        note_begun(tables, batch)

    assert tables.may_be_beyond == {needed}


def test_a_run_that_begins_after_an_earlier_one_was_stored_may_not_be_beyond_the_limit():
    world, (needed, _) = needed_and_created_with_an_earlier_one()
    tables = Tables()
    for batch in world.batches:
        tables.commit(batch)
    begins = RunChange(needed, RunState.QUEUED, RunState.RUNNING, world.now, None, None)

    note_begun(tables, Batch(number=99, at=world.now, run_changes=[begins]))

    assert not tables.may_be_beyond


@pytest.mark.parametrize(("task", "is_fair"), [(far("x"), True), (TaskSpec(task_id="x"), False)])
def test_a_start_of_a_backfill_overtakes_only_tasks_that_need_something_else(task, is_fair):
    world = RemoteWorld(cpu_slots=1)
    every = ScheduleSpec(every_us=60 * SECOND)
    near = DagSpec(dag_id="near", file="near.py", tasks=(TaskSpec(task_id="t"),), schedule=every)
    world.load(near)
    now = world.now
    world.ask(StartBackfill(dag_id="near", first=now - 90 * SECOND, last=now, max_active=1))
    (start,) = world.starts.values()
    world.load(DagSpec(dag_id="other", file="other.py", tasks=(task,)), version="v2", file="o.py")
    world.trigger("other")
    tables = Tables()
    for batch in world.batches:
        tables.commit(batch)

    def spec_of(run_no: int, task_index: int) -> TaskSpec:
        return tables.spec_of_run(run_no).tasks[task_index]

    node = SimpleNamespace(tables=tables, memory=world.memory, slots=world.slots, spec_of=spec_of)
    with nullcontext() if is_fair else pytest.raises(Broken, match="I25 backfills"):
        nobody_else_waits(node, start)


def test_a_number_is_taken_once():
    numbers = Numbers()
    numbers.take(10, 5)
    numbers.take(20, 5)

    for first, count in ((14, 1), (8, 3), (15, 6), (20, 1)):
        with pytest.raises(AssertionError):
            numbers.take(first, count)
    numbers.take(15, 5)


def test_the_tables_are_fenced():
    tables = Tables()
    old, new = tables.claim(), tables.claim()

    with pytest.raises(Fenced):
        tables.commit(Batch(number=1, at=0), old)
    with pytest.raises(StrangeDatabase):
        tables.commit(Batch(number=3, at=0), new)

    tables.commit(Batch(number=1, at=0), new)
    assert tables.accepted == [(new, 1)]


def test_a_theme_makes_its_faults_likely_whatever_else_a_seed_draws():
    seeds = {theme: [s for s in range(200) if themes_of(s) == {theme}] for theme in ALL}

    assert all(len(found) >= 10 for found in seeds.values())
    for seed in seeds[EVENTS]:
        odds = Faults(random.Random(seed), louder=louder(seed, 1))._odds
        assert odds["refused for good"] >= 0.5


def test_outbox_rows_that_no_turn_reads_are_noticed(monkeypatch):
    monkeypatch.setattr(outbox_quota, "WINDOW", 2)
    rows = [OutboxRow(outbox_no=number, kind=ALERT, body=b"") for number in range(3)]
    memory, tables = Memory(epoch=1), Tables()
    tables.outbox = {row.outbox_no: row for row in rows}
    node = SimpleNamespace(memory=memory, tables=tables)
    waiting = outbox_quota.OutboxQuota(waiting=3)

    memory.outbox_quotas = {ALERT: replace(waiting, is_reading=True)}
    what_is_owed_is_read(node)
    memory.outbox_quotas = {ALERT: waiting}
    with pytest.raises(Broken, match="L3 progress: 3 of alert are owed, 0 handed out"):
        what_is_owed_is_read(node)
    memory.outbox = {row.outbox_no: (row.kind, row.body) for row in rows[:2]}
    what_is_owed_is_read(node)  # after the two that are handed out


def test_the_functions_of_some_seeds_may_follow_each_other_in_a_slot():
    brief = [seed for seed in range(10_000, 10_400) if is_brief(seed)]
    tasks = [
        task
        for seed in brief
        for dag in draw(seed, random.Random(seed), FIRST).dags
        for task in dag.tasks
        if task.sensor is None and task.start_trigger is None
    ]
    functions = [task for task in tasks if task.body is Body.FUNCTION and task.pool == DEFAULT_POOL]

    assert len(brief) >= 60
    assert len(functions) > len(tasks) / 2
    assert all(louder(seed, 1)["cancel while claimed"] >= 0.1 for seed in brief)
    assert not any(map(is_brief, range(10_000)))  # tests have chosen these for their cases


def test_a_fault_that_is_left_out_does_not_happen():
    def plays(left_out=frozenset()):
        faults = Faults(random.Random(3), left_out)
        for _ in range(2000):
            for kind in KINDS:
                faults.happens(kind)
        return faults.happened

    happened = plays()

    assert happened
    assert happened[0] not in plays(frozenset({happened[0]}))


@pytest.mark.parametrize(
    ("rule", "parents", "said"),
    [
        (TriggerRule.ALL_SUCCESS, [TaskState.SUCCESS, TaskState.RUNNING], "wait"),
        (TriggerRule.ALL_SUCCESS, [TaskState.FAILED, TaskState.RUNNING], "fail"),
        (TriggerRule.ONE_FAILED, [TaskState.SUCCESS, TaskState.SKIPPED], "skip"),
        (TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS, [TaskState.SKIPPED], "skip"),
        (TriggerRule.ALL_DONE, [TaskState.CANCELLED, TaskState.SKIPPED], "run"),
    ],
)
def test_the_oracle_knows_the_rules(rule, parents, said):
    assert oracle.judge(rule, parents) == said


STEP = Call(kind="step", name="f")


def test_a_coroutine_that_gets_another_answer_than_before_is_noticed():
    told = Told()
    told.begin(7, "", 1)
    told.hears((7, 1), 0, STEP, msgspec.msgpack.encode([7, 1, 0]), None)

    with pytest.raises(Broken, match="E5 replay"):
        told.hears((7, 2), 0, STEP, msgspec.msgpack.encode([7, 2, 0]), None)


def test_a_coroutine_that_gets_the_answer_of_another_is_noticed():
    told = Told()

    with pytest.raises(Broken, match="E6 answers"):
        told.hears((7, 1), 0, STEP, msgspec.msgpack.encode([8, 1, 0]), None)


def test_a_coroutine_whose_record_is_shorter_than_the_answers_it_got_is_noticed():
    told = Told()
    told.hears((7, 1), 0, STEP, msgspec.msgpack.encode([7, 1, 0]), None)

    with pytest.raises(Broken, match="E5 replay"):
        told.replays(7, 0, [])


def test_the_next_try_is_given_again_what_had_failed():
    told = Told()
    failure = Failure(type="ValueError", message="no", reason="step")
    told.hears((7, 1), 0, STEP, None, failure)
    told.begin(7, "", 2)

    told.replays(7, 0, [])
    told.hears((7, 2), 0, STEP, msgspec.msgpack.encode([7, 2, 0]), None)


def test_another_edition_of_the_code_keeps_some_of_the_calls_at_its_beginning():
    for seed in range(50):
        first, second = script(seed, "", 0), script(seed, "", 1)
        retained = [call for call in second if call.name.partition("#")[0].endswith("@0")]
        assert all(call.stream >= 0 or call in first for call in retained)


def test_a_lost_stream_event_is_found(monkeypatch):
    """Plant a bug: a repeated event with the same key replaces the next event."""
    monkeypatch.setattr(event_stream, "_is_known", lambda stream, key: False)

    said = (verdict.broken or "" for verdict in map(model.play, range(40)))

    assert any(broken.startswith("I6 streams") for broken in said)


def test_a_replay_without_its_record_is_found(monkeypatch):
    """Plant a bug: a coroutine that lost its host begins as if it had made no call."""
    monkeypatch.setattr("aioflow.core.tasks.tries.order", _forgets_its_record)

    broken = next(v.broken for v in map(model.play, range(40)) if v.broken is not None)

    assert broken.startswith(("E5", "E7", "raised: TurnFailed"))


def _forgets_its_record(task, now):
    return msgspec.structs.replace(order(task, now), recorded=0)


@pytest.mark.parametrize(
    ("trial", "goes"),
    [
        (Trial("daemon", barred=((1, "v1"),)), False),
        (Trial("daemon", barred=((1, "v1"),), deaths=1), True),
        (Trial("daemon", barred=((1, "v1"),), groups=((2,),)), True),
        (Trial("daemon"), True),
    ],
)
def test_only_a_trial_that_bars_and_nothing_else_is_left_in_the_end(trial, goes):
    row = OutboxRow(outbox_no=1, kind=TRIAL, body=msgspec.msgpack.encode(trial))

    assert goes_by_itself(row) is goes


def test_every_input_that_the_simulator_names_exists():
    named = RARE | {kind for _, kind in coverage.CANNOT_HAPPEN}

    assert named - set(coverage.KINDS_OF_INPUT) == set()
