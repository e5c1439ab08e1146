"""Chains of causes over several runs, from a task that waits for the previous run."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from aioflow.api.schemas import ShareView, TargetView
from aioflow.api.waits import causes
from aioflow.model.dag import DagSpec, MapSource, MapSpec, TaskSpec
from aioflow.model.triggers import TriggerDescription
from aioflow.protocol.requests import CountTasks, SetPool
from tests.web.node import ONCE, Node, node

DAILY = DagSpec(
    dag_id="daily",
    file="daily.py",
    tasks=(
        TaskSpec(task_id="fetch", retry=ONCE),
        TaskSpec(task_id="load", parents=(0,), retry=ONCE, depends_on_past=True),
    ),
)


async def days(n: Node, spec: DagSpec, *runs: str) -> None:
    """Create one run per day."""
    n.define(spec)
    for number, run_id in enumerate(runs, 1):
        date = f"2026-01-{number:02}T00:00:00Z"
        await n.api.trigger(spec.dag_id, run_id=run_id, logical_date=date)


async def hold_first_run(n: Node, count: int) -> None:
    """Wait until ``count`` tasks have started. Let all but those of the first run succeed."""
    starts = [await n.effects.next_start() for _ in range(count)]
    first = min(start.info.run_no for start in starts)
    n.effects.starts += [start for start in starts if start.info.run_no != first]
    for _ in list(n.effects.starts):
        await n.succeed()
    await n.engine.ask(CountTasks(run_ids=()))  # after the earlier reports


def told(chain: Any) -> list[tuple[int, str, str, str]]:
    return [
        (c.depth, c.run_id, c.task_id, "" if c.waiting_on is None else c.waiting_on.kind)
        for c in chain.causes
    ]


async def test_the_chain_leads_into_the_run_before_and_on_down_to_what_runs(tmp_path):
    async with node(tmp_path, cpu_slots=3) as n:
        await days(n, DAILY, "mon", "tue", "wed")
        await hold_first_run(n, 3)
        chain = await n.api.why("wed", "load")

    assert told(chain) == [
        (0, "wed", "load", "depends_on_past"),
        (1, "tue", "load", "depends_on_past"),
        (2, "mon", "load", "upstream"),
        (3, "mon", "fetch", ""),
    ]
    assert chain.more == 0


async def test_the_wait_of_a_trigger_is_described_with_its_next_poll(tmp_path):
    noon = 1_893_456_000_000_000

    async def watched(numbers):
        looked = TriggerDescription(0, noon + 2_000_000, noon - 3_000_000)
        own = replace(looked, text="for https://x.example/?token=4711", note="1 of 2 found")
        public = replace(looked, public=("what",))
        return dict(zip(numbers, (looked, own, public), strict=False))

    alone = DagSpec(dag_id="one", file="one.py", tasks=(TaskSpec(task_id="w", retry=ONCE),))
    waits: dict[str, tuple[str, dict[str, Any]]] = {
        "file": ("aioflow_triggers.files:FileTrigger", {"path": "/in/bank.csv"}),
        "own": ("mine:Own", {"what": 1, "token": "secret"}),
        "public": ("mine:Public", {"what": 1, "token": "secret"}),
        "plain": ("mine:Plain", {"what": 1, "token": "secret"}),
    }
    found = {}
    async with node(tmp_path) as n:
        n.define(alone)
        for run_id, (class_path, fields) in waits.items():
            await n.api.trigger("one", run_id=run_id)
            await n.defer(class_path, fields)
        await n.engine.ask(CountTasks(run_ids=()))
        numbers = sorted(one.trigger_id for one in await n.api.list_triggers())
        told = await watched(numbers)

        async def of_these(wanted):
            return {number: told[number] for number in wanted if number in told}

        n.api.reads.trigger_reader._watched = of_these
        for run_id in waits:
            (cause,) = (await n.api.why(run_id)).causes
            assert cause.waiting_on == (await n.api.show_run(run_id)).tasks[0].waiting_on
            found[run_id] = cause.waiting_on

    assert {run_id: wait.detail for run_id, wait in found.items()} == {
        "file": "for the file /in/bank.csv",
        "own": "for https://x.example/?token=***; 1 of 2 found",
        "public": "Public(what=1, token=***)",
        "plain": "mine:Plain",
    }
    assert {run_id: wait.last_answer for run_id, wait in found.items()} == {
        "file": "not met",
        "own": "1 of 2 found",
        "public": "not met",
        "plain": None,
    }
    file, plain = found["file"], found["plain"]
    assert (file.last_check_at, file.next_check_at) == (
        *("2029-12-31T23:59:57Z", "2030-01-01T00:00:02Z"),
    )
    assert (plain.trigger_id, plain.next_check_at) == (numbers[-1], None)


async def test_the_causes_are_shown_of_a_run_that_waits_for_the_previous_one(tmp_path):
    async with node(tmp_path, cpu_slots=3) as n:
        await days(n, DAILY, "mon", "tue")
        await hold_first_run(n, 2)
        chain = await n.api.why("tue")

    assert told(chain) == [
        (0, "tue", "load", "depends_on_past"),
        (1, "mon", "load", "upstream"),
        (2, "mon", "fetch", ""),
    ]


async def test_causes_are_followed_through_waiting_tasks(tmp_path):
    spec = DagSpec(
        dag_id="daily",
        file="daily.py",
        tasks=(
            TaskSpec(task_id="load", retry=ONCE, depends_on_past=True, wait_for_downstream=True),
            TaskSpec(task_id="check", parents=(0,), retry=ONCE, pool="narrow", slots=2),
        ),
    )
    async with node(tmp_path, cpu_slots=3) as n:
        await n.engine.ask(SetPool(name="narrow", slots=1))
        await days(n, spec, "mon", "tue")
        await n.succeed()
        chain = await n.api.why("tue", "load")

    assert told(chain) == [(0, "tue", "load", "depends_on_past"), (1, "mon", "check", "slot")]
    assert "narrow" in chain.causes[1].waiting_on.detail


async def test_some_children_of_a_mapped_task_of_the_previous_run_are_reported(tmp_path):
    over = MapSpec((MapSource("item", 0, -1),))
    spec = DagSpec(
        dag_id="daily",
        file="daily.py",
        tasks=(
            TaskSpec(task_id="list", feeds_limit=99),
            TaskSpec(task_id="each", parents=(0,), mapped=over, depends_on_past=True),
        ),
    )
    async with node(tmp_path, cpu_slots=9) as n:
        await days(n, spec, "mon", "tue")
        await n.succeed(width=9)
        await n.succeed(width=1)
        for _ in range(9):
            await n.effects.next_start()
        chain = await n.api.why("tue", "each")

    assert [(c.run_id, c.map_index, c.depth, c.count) for c in chain.causes] == [
        ("tue", -1, 0, 1),
        ("mon", -1, 1, 1),
        ("mon", 0, 2, 9),
    ]
    assert chain.more == 0


async def test_children_that_wait_for_a_pool_are_listed_with_their_number(tmp_path):
    over = MapSpec((MapSource("item", 0, -1),))
    spec = DagSpec(
        dag_id="wide",
        file="wide.py",
        tasks=(
            TaskSpec(task_id="list", feeds_limit=5_000),
            TaskSpec(task_id="each", parents=(0,), mapped=over, pool="small", retry=ONCE),
            TaskSpec(task_id="total", parents=(1,)),
        ),
    )
    causes_of = {}
    async with node(tmp_path, cpu_slots=9) as n:
        await n.engine.ask(SetPool(name="small", slots=5))
        n.define(spec)
        await n.api.trigger("wide", run_id="r")
        await n.succeed(width=1_640)
        for _ in range(5):
            await n.effects.next_start()
        for task in (None, "each", "total"):
            causes_of[task] = await n.api.why("r", task)

    pool = "pool small: 5 of 5 slots are taken"
    for task, chain in causes_of.items():
        told = [
            (c.count, c.state, "" if c.waiting_on is None else c.waiting_on.detail)
            for c in chain.causes
            if c.task_id == "each" and (c.map_index >= 0 or task == "each")
        ]
        if task == "each":
            assert told == [(1, "running", pool)]
        else:
            assert told == [(1_635, "queued", pool), (5, "running", "")]
        assert chain.more == 0
    first, *_ = causes_of[None].causes
    assert causes_of[None].text == f"{first.text}, and 1 more cause"
    assert first.text == (f"1,635 of 1,640 children of each are waiting for {pool}, held by r (5)")
    assert (first.target, first.total) == (TargetView(type="pool", name="small"), 1_640)
    assert first.shares == [ShareView(run_id="r", dag_id="wide", slots=5)]
    assert first.actions == ["set_pool", "mark"]


async def test_deferred_children_with_one_cause_are_all_counted(tmp_path):
    over = MapSpec((MapSource("item", 0, -1),))
    spec = DagSpec(
        dag_id="wide",
        file="wide.py",
        tasks=(
            TaskSpec(task_id="list", feeds_limit=5_000),
            TaskSpec(task_id="each", parents=(0,), mapped=over, retry=ONCE),
        ),
    )
    async with node(tmp_path, cpu_slots=120) as n:
        n.define(spec)
        await n.api.trigger("wide", run_id="r")
        await n.succeed(width=120)
        for _ in range(120):
            await n.defer("aioflow_triggers.events:EventTrigger", {"name": "paid"})
        await n.engine.ask(CountTasks(run_ids=()))
        chain = await n.api.why("r")
        (waits,) = (await n.api.reads.overview("ready")).waiting_longest

    assert [(cause.count, cause.total) for cause in chain.causes] == [(120, 120)]
    assert chain.text == (
        "120 of 120 children of each are waiting for triggers, such as the event paid"
    )
    assert (waits.task_id, waits.count, waits.text) == ("each", 120, chain.text)


async def test_a_few_children_of_a_cause_are_named_each_and_many_causes_are_counted(tmp_path):
    over = MapSpec((MapSource("item", 0, -1),))
    spec = DagSpec(
        dag_id="wide",
        file="wide.py",
        tasks=(
            TaskSpec(task_id="list", feeds_limit=5_000),
            TaskSpec(task_id="each", parents=(0,), mapped=over, retry=ONCE),
            TaskSpec(task_id="total", parents=(1,)),
        ),
    )
    async with node(tmp_path, cpu_slots=20) as n:
        n.define(spec)
        await n.api.trigger("wide", run_id="r")
        await n.succeed(width=20)
        for _ in range(2):
            await n.defer("mine:Rare", {})
        for number in range(12):
            await n.defer(f"mine:T{number}", {})
        for _ in range(6):
            await n.effects.next_start()
        await n.engine.ask(CountTasks(run_ids=()))
        chain = await n.api.why("r", "total")

    assert [(c.map_index, c.count, c.state) for c in chain.causes[:3]] == [
        (-1, 1, "pending"),
        (0, 1, "deferred"),
        (1, 1, "deferred"),
    ]
    assert [c.map_index for c in chain.causes[3:]] == [2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert chain.more == 9


async def test_the_chain_ends_where_the_run_before_failed(tmp_path):
    async with node(tmp_path) as n:
        await days(n, DAILY, "mon", "tue")
        await n.fail()
        await n.succeed()
        chain = await n.api.why("tue", "load")

    assert told(chain) == [(0, "tue", "load", "depends_on_past")]
    assert "load of run mon, which is upstream_failed" in chain.causes[0].waiting_on.detail


async def test_a_long_line_of_runs_is_followed_as_far_as_there_is_room(tmp_path, monkeypatch):
    monkeypatch.setattr(causes, "CHAIN_LIMIT", 5)
    alone = DagSpec(
        dag_id="daily",
        file="daily.py",
        tasks=(TaskSpec(task_id="load", retry=ONCE, depends_on_past=True),),
    )
    runs = [f"day{number}" for number in range(1, 10)]
    async with node(tmp_path) as n:
        await days(n, alone, *runs)
        chain = await n.api.why("day9", "load")
        short = await n.api.why("day4", "load")

    assert [c.run_id for c in chain.causes] == ["day9", "day8", "day7", "day6", "day5"]
    assert chain.more == 1
    assert [(c.run_id, c.state) for c in short.causes][-1] == ("day1", "running")
    assert short.more == 0


async def test_a_task_of_the_previous_run_that_two_wait_for_is_reported_once(tmp_path):
    spec = DagSpec(
        dag_id="daily",
        file="daily.py",
        tasks=(
            TaskSpec(task_id="slow", retry=ONCE),
            TaskSpec(
                task_id="a",
                retry=ONCE,
                depends_on_past=True,
                wait_for_downstream=True,
            ),
            TaskSpec(
                task_id="b",
                retry=ONCE,
                depends_on_past=True,
                wait_for_downstream=True,
            ),
            TaskSpec(task_id="end", parents=(0, 1, 2), retry=ONCE),
        ),
    )
    async with node(tmp_path, cpu_slots=4) as n:
        await days(n, spec, "mon", "tue")
        starts = [await n.effects.next_start() for _ in range(4)]
        n.effects.starts += [start for start in starts if start.start.task_index in {1, 2}]
        await n.succeed()
        await n.succeed()
        await n.engine.ask(CountTasks(run_ids=()))
        chain = await n.api.why("tue")

    assert [(depth, run_id, task_id) for depth, run_id, task_id, _ in told(chain)] == [
        (0, "tue", "a"),
        (1, "mon", "end"),
        (2, "mon", "slow"),
        (0, "tue", "b"),
        (0, "tue", "slow"),
    ]


def failures(chain: Any) -> list[tuple[int, str, int, str, str]]:
    return [
        (c.depth, c.task_id, c.map_index, c.state, "" if c.error is None else c.error.message)
        for c in chain.causes
    ]


FAILS = DagSpec(
    dag_id="fails",
    file="fails.py",
    tasks=(
        TaskSpec(task_id="list", feeds_limit=999),
        TaskSpec(
            task_id="part", parents=(0,), mapped=MapSpec((MapSource("x", 0, -1),)), retry=ONCE
        ),
        TaskSpec(task_id="total", parents=(1,), retry=ONCE),
        TaskSpec(task_id="mail", parents=(2,), retry=ONCE),
        TaskSpec(task_id="aside", parents=(0,), retry=ONCE),
    ),
)


async def fail_parts(n: Node, run_id: str, width: int, bad: dict[int, str]) -> None:
    """Let these children of a run fail with the given messages. All others succeed."""
    await n.api.trigger("fails", run_id=run_id)
    await n.succeed(width=width)
    for _ in range(width + 1):
        start = await n.effects.next_start()
        n.effects.starts.insert(0, start)
        message = bad.get(start.start.map_index) if start.start.task_index == 1 else None
        await (n.succeed() if message is None else n.fail(message))
    await n.engine.wait_until_idle()


async def test_a_failure_is_followed_down_to_the_child_and_its_error(tmp_path):
    async with node(tmp_path, cpu_slots=9) as n:
        n.define(FAILS)
        await fail_parts(n, "r", 3, {1: "division by zero"})
        of_task, of_run = await n.api.why("r", "mail"), await n.api.why("r")
        whole, fine = await n.api.why("r", "part"), await n.api.why("r", "aside")

    assert of_run.state == "failed"
    assert failures(of_run) == [(0, "part", 1, "failed", "division by zero")]
    assert failures(of_task) == [
        (0, "mail", -1, "upstream_failed", ""),
        (1, "total", -1, "upstream_failed", ""),
        (2, "part", 1, "failed", "division by zero"),
    ]
    assert failures(whole) == [
        (0, "part", -1, "failed", ""),
        (1, "part", 1, "failed", "division by zero"),
    ]
    assert failures(fine) == [(0, "aside", -1, "success", "")]
    assert of_task.causes[2].error.type == "ValueError"


async def test_children_that_failed_alike_are_one_cause_with_their_count(tmp_path, monkeypatch):
    monkeypatch.setattr(causes, "_FAILED_SAMPLED", 8)
    async with node(tmp_path, cpu_slots=20) as n:
        n.define(FAILS)
        await fail_parts(n, "r", 12, {index: f"no {index}" for index in range(2, 12)})
        chain = await n.api.why("r", "total")

    assert failures(chain)[1:] == [(1, "part", 2, "failed", "no 2")]
    assert (chain.causes[1].count, chain.more) == (8, 2)


async def test_the_stopped_tasks_of_an_interrupted_run_are_named(tmp_path):
    async with node(tmp_path) as n:
        n.define(FAILS)
        await n.api.trigger("fails", run_id="r")
        await n.effects.next_start()
        await n.api.cancel("r")
        await n.engine.wait_until_idle()
        chain = await n.api.why("r", "mail")

    assert failures(chain) == [(0, "mail", -1, "cancelled", "")]
