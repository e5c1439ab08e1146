"""Descriptions of DAGs for the engine, and all errors in a DAG."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, get_type_hints

import pytest

from aioflow import (
    DAG,
    Continuous,
    Cron,
    DagError,
    Dates,
    Every,
    Operator,
    PokeReturnValue,
    Retry,
    Sensor,
    StartTriggerArgs,
    TriggerRule,
    chain,
    current,
    dag,
    sensor,
    task,
)
from aioflow.author.dag import registered
from aioflow.author.dag_spec import COPIED_OPTIONS, describe
from aioflow.author.node import LiteralValue
from aioflow.author.options import Settings
from aioflow.core.state.child_roles import ASKED_FOR
from aioflow.model.dag import (
    Body,
    DagSpec,
    MapSource,
    MapSpec,
    RetryPolicy,
    ScheduleSpec,
    SensorSpec,
    TaskSpec,
)
from aioflow.model.timestamps import EARLIEST_DATE, LATEST_DATE

SECOND = 1_000_000
DAY = 86_400 * SECOND


def spec_of(made: DAG) -> DagSpec:
    spec, failures = describe(made, file="dags.py")
    assert not failures
    assert spec is not None
    return spec


def reasons(made: DAG) -> list[str]:
    spec, failures = describe(made)
    assert spec is None
    return [failure.reason for failure in failures]


@task
def one(value: Any = None) -> int:
    """Count."""
    return 1


@task
def listed() -> list[int]:
    return [1]


def test_the_settlement_pipeline_is_what_one_expects():
    @sensor(timeout="14h", interval="60s")
    async def npci_file(day: date) -> bool:
        return True

    @task
    def list_merchants(day: date) -> list[str]:
        return []

    @task(
        retry=Retry(tries=5, delay="1s", factor=2, max_delay="5m"),
        execution_timeout="10m",
        pool="ledger",
        map_limit=1_000_000,
    )
    def settle(merchant: str) -> Decimal:
        return Decimal(0)

    @task(trigger_rule="all_done")
    def daily_total(amounts: Sequence[Decimal]) -> Decimal:
        return sum(amounts, Decimal(0))

    @dag(schedule="0 3 * * *", timezone="Asia/Kolkata", catchup=False, max_active_runs=1)
    def settlements(day: date = current.logical_day) -> None:
        arrived = npci_file(day)
        merchants = list_merchants(day).after(arrived)
        daily_total(settle.expand(merchant=merchants))

    body = settlements.line + 2
    assert spec_of(settlements) == DagSpec(
        dag_id="settlements",
        file="dags.py",
        schedule=ScheduleSpec(cron="0 3 * * *"),
        timezone="Asia/Kolkata",
        max_active_runs=1,
        parameters=("day",),
        types={"day": "date"},
        line=settlements.line,
        tasks=(
            TaskSpec(
                task_id="npci_file",
                body=Body.COROUTINE,
                sensor=SensorSpec(interval_us=60 * SECOND, timeout_us=14 * 3600 * SECOND),
                line=body,
            ),
            TaskSpec(task_id="list_merchants", parents=(0,), feeds_limit=1_000_000, line=body + 1),
            TaskSpec(
                task_id="settle",
                parents=(1,),
                retry=RetryPolicy(
                    tries=5, delay_us=SECOND, factor=2.0, max_delay_us=300 * SECOND, jitter=True
                ),
                execution_timeout_us=600 * SECOND,
                pool="ledger",
                map_limit=1_000_000,
                mapped=MapSpec((MapSource("merchant", 1, -1),)),
                line=body + 2,
            ),
            TaskSpec(
                task_id="daily_total",
                parents=(2,),
                argument_parents=(2,),
                rule=TriggerRule.ALL_DONE,
                line=body + 2,
            ),
        ),
    )


def test_every_node_knows_its_spec_afterwards():
    @dag
    def made() -> None:
        one()

    spec = spec_of(made)

    assert [node.spec for node in made.nodes] == list(spec.tasks)


def test_the_smallest_limit_of_what_expands_over_a_list_guards_it():
    @dag
    def made() -> None:
        items = listed()
        one.override(map_limit=10).expand(value=items)
        one.override(map_limit=5).expand(value=items)

    assert spec_of(made).tasks[0].feeds_limit == 5


def test_a_product_keeps_the_order_of_its_sources():
    @task
    def both(x: int, y: int, z: int) -> None: ...

    @dag
    def made() -> None:
        both.partial(z=0).expand(y=[1, 2, 3], x=listed())

    mapped = spec_of(made).tasks[1].mapped
    assert mapped == MapSpec((MapSource("y", -1, 3), MapSource("x", 0, -1)))
    assert made.nodes[1].sources[0].values == [1, 2, 3]


def test_a_mapped_argument_is_no_whole_result():
    @dag
    def made() -> None:
        one.expand(value=listed())

    child = spec_of(made).tasks[1]
    assert child.parents == (0,)
    assert child.argument_parents == ()


@pytest.mark.parametrize(
    ("schedule", "spec"),
    [
        pytest.param("@daily", ScheduleSpec(cron="0 0 * * *"), id="a-name"),
        pytest.param("*/5 * * * *", ScheduleSpec(cron="*/5 * * * *"), id="cron"),
        pytest.param(Cron("@hourly"), ScheduleSpec(cron="0 * * * *"), id="cron-object"),
        pytest.param(Every("15m"), ScheduleSpec(every_us=900 * SECOND), id="every"),
        pytest.param(timedelta(hours=1), ScheduleSpec(every_us=3600 * SECOND), id="timedelta"),
        pytest.param("@once", ScheduleSpec(once=True), id="once"),
        pytest.param("@continuous", ScheduleSpec(gap_us=SECOND), id="continuous"),
        pytest.param(Continuous("1m"), ScheduleSpec(gap_us=60 * SECOND), id="with-a-gap"),
        pytest.param("5 0 3 * * *", ScheduleSpec(cron="5 0 3 * * *"), id="seconds"),
        pytest.param(
            Cron("@daily", jitter="5m"),
            ScheduleSpec(cron="0 0 * * *", jitter_us=300 * SECOND),
            id="jitter",
        ),
        pytest.param(
            Dates([date(1970, 1, 2), datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)]),
            ScheduleSpec(dates=(SECOND, DAY)),
            id="dates",
        ),
        pytest.param([date(1970, 1, 2)], ScheduleSpec(dates=(DAY,)), id="a-list-of-dates"),
        pytest.param(
            ("@daily", Every("1h"), date(1970, 1, 2)),
            ScheduleSpec(
                parts=(
                    ScheduleSpec(cron="0 0 * * *"),
                    ScheduleSpec(every_us=3600 * SECOND),
                    ScheduleSpec(dates=(DAY,)),
                )
            ),
            id="several",
        ),
        pytest.param(["@daily"], ScheduleSpec(cron="0 0 * * *"), id="several-of-one"),
        pytest.param(None, None, id="none"),
    ],
)
def test_schedules(schedule, spec):
    with DAG("made", schedule=schedule) as made:
        one()

    assert spec_of(made).schedule == spec


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/New_York"])
def test_a_start_or_an_end_beyond_the_calendar_is_the_first_or_last_that_every_zone_has(zone):
    first = datetime.combine(date.min, time.min)
    last = datetime.combine(date.max, time.max)
    with DAG("made", timezone=zone, start_date=first, end_date=last) as made:
        one()

    spec, _ = describe(made)

    assert spec is not None
    assert (spec.start_date, spec.end_date) == (EARLIEST_DATE, LATEST_DATE)


def test_an_interval_is_counted_from_the_start_date_in_the_zone_of_the_dag():
    with DAG(
        "made", schedule=Every("1d"), start_date=date(2026, 1, 1), timezone="Asia/Kolkata"
    ) as made:
        one()

    spec = spec_of(made)
    midnight = datetime(2025, 12, 31, 18, 30, tzinfo=UTC).timestamp() * SECOND
    assert spec.start_date == midnight
    assert spec.schedule is not None
    assert spec.schedule.anchor == midnight


def test_a_task_that_waits_for_downstream_in_the_previous_run_waits_for_itself_too():
    @dag(default_args={"depends_on_past": True})
    def made() -> None:
        one()
        one.override(task_id="free", depends_on_past=False)()
        one.override(task_id="whole", depends_on_past=False, wait_for_downstream=True)()

    found = {task.task_id: task for task in spec_of(made).tasks}
    assert [found[name].depends_on_past for name in ("one", "free", "whole")] == [True, False, True]
    assert [task.wait_for_downstream for task in found.values()] == [False, False, True]


def test_options_of_the_dag_and_docs_are_preserved():
    @dag(
        tags=["a", "b"],
        max_active_tasks=3,
        params={"limit": 5},
        run_timeout="2h",
        deadline=90,
        retry_budget=0,
        isolated=True,
        if_paused="stop",
        default_args={"deadline": "1m", "max_active_tis_per_dag": 7},
    )
    def made(day: date, count: int = 3) -> None:
        """Say why."""
        one()

    spec = spec_of(made)
    assert spec.tags == ("a", "b")
    assert spec.max_active_tasks == 3
    assert spec.retry_budget == 0
    assert spec.isolated == (ASKED_FOR,)
    assert spec.if_paused == "stop"
    assert (spec.run_timeout_us, spec.deadline_us) == (7_200_000_000, 90_000_000)
    assert {task.deadline_us for task in spec.tasks} == {60_000_000}
    assert {task.max_active_tis_per_dag for task in spec.tasks} == {7}
    assert spec.parameters == ("day", "count", "limit")
    assert spec.required == ("day",)
    assert spec.doc == "Say why."
    assert spec.tasks[0].doc == "Count."


def test_default_args_are_below_what_a_task_says_itself():
    @task(retries=0)
    def own() -> None: ...

    @task(retry=Retry(tries=7))
    def own_object() -> None: ...

    with DAG("made", default_args={"retries": 4, "pool": "shared", "timeout": "1h"}) as made:
        one()
        own()
        own_object()

    tasks = spec_of(made).tasks
    assert [described.retry.tries for described in tasks] == [5, 1, 7]
    assert {described.pool for described in tasks} == {"shared"}


# ── classes ─────────────────────────────────────────────────────────────────────────────


class Copy(Operator):
    def __init__(self, source: str, target: str = "/out", **options: Any) -> None:
        super().__init__(**options)
        self.source, self.target = source, target

    def execute(self, context: Any) -> str:
        return f"{self.source} {self.target}"


class Look(Sensor):
    def __init__(self, path: str, **options: Any) -> None:
        super().__init__(**options)
        self.path = path

    async def poke(self, context: Any) -> PokeReturnValue[str]:
        return PokeReturnValue(is_done=True, xcom_value=self.path)


def test_operators_and_functions_mix():
    with DAG("made") as made:
        look = Look(task_id="look", path="/in", poke_interval=30, soft_fail=True, mode="poke")
        copy = Copy(listed()["path"], task_id="copy", retries=1)
        look >> copy >> one(copy.output)

    spec = spec_of(made)
    assert [described.task_id for described in spec.tasks] == ["look", "listed", "copy", "one"]
    assert [described.parents for described in spec.tasks] == [(), (), (0, 1), (2,)]
    assert spec.tasks[0].body is Body.COROUTINE
    assert spec.tasks[0].sensor == SensorSpec(interval_us=30 * SECOND, on_timeout="skip")
    assert spec.tasks[2].retry.tries == 2
    lines = [described.line for described in spec.tasks]
    assert lines == [made.line + 1, made.line + 2, made.line + 2, made.line + 3]


def test_a_sensor_looks_each_minute_for_twelve_hours_unless_it_says_otherwise():
    @sensor
    def plain() -> bool:
        return True

    with DAG("made") as made:
        plain()
        Look(task_id="look", path="/in", mode="reschedule", exponential_backoff=True)

    usual = SensorSpec(interval_us=60 * SECOND, timeout_us=12 * 3600 * SECOND, backoff=1.0)
    first, second = (described.sensor for described in spec_of(made).tasks)
    assert first == usual
    assert second == SensorSpec(backoff=2.0)


def test_a_new_instance_is_made_of_resolved_arguments():
    with DAG("made") as made:
        Copy(listed()["path"], task_id="copy", pool="disk")

    operator = made.nodes[1].make_operator({"source": "/in", "task_id": "copy", "pool": "disk"})

    assert isinstance(operator, Copy)
    assert (operator.source, operator.target, operator.task_id) == ("/in", "/out", "copy")
    assert len(made.nodes) == 2


def test_an_operator_fans_out():
    with DAG("made") as made:
        Copy.partial(task_id="copies", target="/out", pool="disk").expand(source=listed())

    spec = spec_of(made)
    assert spec.tasks[1].mapped == MapSpec((MapSource("source", 0, -1),))
    assert spec.tasks[1].pool == "disk"


def test_a_mapped_operator_has_an_output_as_any_other():
    with DAG("made") as made:
        copies = Copy.partial(task_id="copies", target="/out").expand(source=["a", "b"])
        one(copies.output)

    assert spec_of(made).tasks[1].parents == (0,)


class Idle(Operator):
    """An operator without an ``execute``."""

    def __init__(self, number: int = 0, **options: Any) -> None:
        super().__init__(**options)


class Blind(Sensor):
    """A sensor without a ``poke``."""


@pytest.mark.parametrize(
    ("write", "words"),
    [
        pytest.param(lambda: Idle(task_id="t"), "Idle needs a method execute()", id="operator"),
        pytest.param(lambda: Blind(task_id="t"), "Blind needs a method poke()", id="sensor"),
        pytest.param(
            lambda: Idle.partial(task_id="t").expand(number=[1]),
            "Idle needs a method execute()",
            id="mapped",
        ),
    ],
)
def test_a_class_that_does_nothing_is_said_with_its_line(write, words):
    with DAG("made") as made:
        write()

    spec, failures = describe(made)

    assert spec is None
    assert [(said.reason, said.message) for said in failures] == [("dag", f"task 't': {words}")]
    assert failures[0].line > 0


def test_a_class_that_waits_from_its_start_need_do_nothing():
    class Waits(Operator):
        start_from_trigger = True
        start_trigger_args = StartTriggerArgs(trigger_cls="m:T")

    with DAG("made") as made:
        Waits(task_id="t")

    assert spec_of(made).tasks[0].start_trigger is not None


def test_an_operator_that_never_reaches_our_init_is_said():
    class Lost(Operator):
        def __init__(self) -> None:
            self.path = "/"

    with DAG("made") as made:
        Lost()
        Copy("/a", task_id="copy")

    _, failures = describe(made)
    (failure,) = failures
    assert "Lost.__init__ does not call super()" in failure.message


# ── errors ──────────────────────────────────────────────────────────────────────────────


def test_a_cycle_is_found_with_its_line():
    @dag
    def made() -> None:
        first = one()
        second = one(first)
        first.after(second)

    _, failures = describe(made)

    assert [failure.reason for failure in failures] == ["dag.cycle"]
    assert "one -> one__1 -> one" in failures[0].message
    assert failures[0].line == made.line + 2


def test_everything_wrong_is_said_at_once():
    with DAG("made", schedule="61 * * * *", catchup=True) as made:
        Copy("/a", task_id="copy")
        Copy("/b", task_id="copy")
        one.override(map_limit=2).expand(value=[1, 2, 3])

    assert sorted(reasons(made)) == ["dag", "dag.duplicate_task", "dag.schedule", "dag.schedule"]


def test_an_empty_dag_is_wrong():
    assert reasons(DAG("made")) == ["dag"]


def test_a_scheduled_dag_needs_defaults():
    @dag(schedule="@daily")
    def made(day: date) -> None:
        one(day)

    assert reasons(made) == ["dag"]


@pytest.mark.parametrize(
    ("catchup", "found"),
    [(True, "all"), (False, "latest"), ("all", "all"), ("latest", "latest"), ("skip", "skip")],
)
def test_missed_fire_times_are_declared_in_airflows_terms_or_by_name(catchup, found):
    with DAG("made", schedule="@daily", start_date=date(2026, 1, 1), catchup=catchup) as made:
        one()

    assert spec_of(made).missed == found


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"catchup": "some"}, "catchup must be True, False, 'all', 'latest' or 'skip'"),
        ({"catchup": 1.5}, "catchup must be"),
        ({"data_interval": "next"}, "data_interval must be 'fire_time' or 'previous'"),
    ],
)
def test_options_of_a_schedule_that_are_none_are_said(options, words):
    with pytest.raises(DagError, match=words):
        DAG("made", **options)


@pytest.mark.parametrize("schedule", [[date(2026, 1, 1)], "@once", "@continuous", None])
def test_only_what_goes_back_without_end_needs_a_start_date_to_be_caught_up(schedule):
    with DAG("made", schedule=schedule, catchup=True) as made:
        one()

    assert spec_of(made).missed == "all"


def test_a_date_that_no_clock_shows_is_the_first_instant_after_it():
    march = datetime(2026, 3, 29, 2, 30)  # noqa: DTZ001 - of the wall
    october = datetime(2026, 10, 25, 2, 30)  # noqa: DTZ001
    with DAG("made", schedule=[march, october], timezone="Europe/Berlin") as made:
        one()

    schedule = spec_of(made).schedule
    assert schedule is not None
    assert [at // SECOND for at in schedule.dates or ()] == [
        round(datetime(2026, 3, 29, 1, tzinfo=UTC).timestamp()),
        round(datetime(2026, 10, 25, 0, 30, tzinfo=UTC).timestamp()),
    ]


@pytest.mark.parametrize(
    "schedule",
    [
        "@sometimes",
        "hello",
        Every("1ms"),
        5,
        "0 0 30 2 *",
        [],
        ["@daily", "@once"],
        ["@daily", Continuous()],
        ["@daily", "hello"],
        [5],
        {"@daily"},
        Dates([]),
        Dates(["2026-01-01"]),  # type: ignore[list-item]
        Dates([date(2026, 1, 1) + timedelta(n) for n in range(10_001)]),
        Continuous("100ms"),
        Cron("@daily", jitter="soon"),
        Cron(5),  # type: ignore[arg-type]
    ],
)
def test_a_schedule_that_is_none_is_said(schedule):
    with DAG("made", schedule=schedule) as made:
        one()

    assert reasons(made) == ["dag.schedule"]


# ── registering ─────────────────────────────────────────────────────────────────────────


def test_a_dag_is_registered_for_the_file_that_makes_it():
    @dag
    def first() -> None: ...

    second = DAG("second")

    assert registered() == [first, second]
    assert registered(__file__) == [first, second]
    assert registered("/another.py") == []


FACTORY = """
from aioflow import DAG, dag, task

@task
def one(): ...

def by_function(name):
    @dag(name)
    def made():
        one()

def by_class(name):
    with DAG(name):
        one()

by_function("of_factory")
"""

CALLER = """
import a_factory_of_dags

a_factory_of_dags.by_function("first")
a_factory_of_dags.by_class("second")
"""


def test_a_dag_belongs_to_the_file_that_asks_a_factory_for_it(tmp_path, monkeypatch):
    factory, caller = tmp_path / "a_factory_of_dags.py", tmp_path / "a_caller_of_it.py"
    factory.write_text(FACTORY)
    caller.write_text(CALLER)
    monkeypatch.syspath_prepend(tmp_path)

    importlib.import_module("a_caller_of_it")

    assert [made.dag_id for made in registered(str(factory))] == ["of_factory"]
    asked = registered(str(caller))
    assert [(made.dag_id, made.line) for made in asked] == [("first", 4), ("second", 5)]
    assert [spec_of(made).tasks[0].line for made in asked] == [4, 5]


def test_a_dag_in_a_loop_sees_its_own_turn():
    for name in ("a", "b"):

        @dag(name)
        def made() -> None:
            one(name)  # noqa: B023 - run at once

    assert [made.dag_id for made in registered()] == ["a", "b"]
    assert [made.nodes[0].arguments for made in registered()] == [
        {"value": LiteralValue("a")},
        {"value": LiteralValue("b")},
    ]


def test_a_dag_that_failed_is_not_registered():
    with pytest.raises(ZeroDivisionError):

        @dag
        def made() -> None:
            raise ZeroDivisionError

    assert registered() == []


def test_calling_a_dag_changes_nothing():
    @dag
    def made(day: date) -> None:
        one()

    made()

    assert registered() == [made]
    assert len(made.nodes) == 1


def test_the_second_call_of_a_task_is_numbered():
    @dag
    def made() -> None:
        one()
        one()
        one.override(task_id="one__2")()
        one()

    assert [node.task_id for node in made.nodes] == ["one", "one__1", "one__2", "one__3"]


def test_chain_takes_lists_on_either_side():
    @dag
    def made() -> None:
        a, b, c, d, e, f = (one() for _ in range(6))
        chain(a, [b, c], [d, e], f)

    assert [node.parents for node in made.nodes] == [set(), {0}, {0}, {1}, {2}, {3, 4}]


def test_arrows_take_lists_on_either_side():
    @dag
    def made() -> None:
        a, b, c, d = (one() for _ in range(4))
        a >> [b, c] >> d
        [a, b] << c

    assert [node.parents for node in made.nodes] == [{2}, {0, 2}, {0}, {1, 2}]


def test_options_that_are_copied_have_the_same_type_and_default_in_the_specification():
    options, described = get_type_hints(Settings), get_type_hints(TaskSpec)
    settled, spec = Settings(), TaskSpec(task_id="one")

    assert {name: options[name] for name in COPIED_OPTIONS} == {
        name: described[name] for name in COPIED_OPTIONS
    }
    assert [name for name in COPIED_OPTIONS if getattr(settled, name) != getattr(spec, name)] == []
    assert {"pool", "sensor", "deadline_us", "outlets"} <= set(COPIED_OPTIONS)


def test_max_wait_limits_the_wait_of_a_task_and_the_interval_of_a_sensor():
    @sensor(max_wait="5m")
    async def looked() -> bool:
        return True

    @task(max_wait="2h")
    def late() -> None: ...

    @dag(default_args={"max_wait": "1h"})
    def made() -> None:
        one()
        late()
        looked()

    specs = {spec.task_id: spec for spec in spec_of(made).tasks}
    waits = {name: spec.max_wait_us for name, spec in specs.items()}
    assert waits == {"one": 3_600 * SECOND, "late": 7_200 * SECOND, "looked": None}
    assert specs["looked"].sensor.max_interval_us == 300 * SECOND
