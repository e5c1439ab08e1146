"""A task that needs more slots than its pool has never starts; that is an error of its file."""

from __future__ import annotations

from aioflow.model.dag import Body, DagSpec, SensorSpec, TaskSpec
from aioflow.protocol.inputs import RequestReceived
from aioflow.protocol.requests import Explain, SetPool
from tests.core.world import World


def load(world: World, *tasks: TaskSpec, version: str = "v1") -> None:
    world.load(DagSpec(dag_id="dag", file="dag.py", tasks=tasks), version=version)


def said(world: World) -> tuple[str | None, str | None]:
    row = world.rows.files["dag.py"]
    assert row == world.memory.files["dag.py"]
    return row.reason, row.message


def wide(slots: int = 3) -> TaskSpec:
    return TaskSpec(task_id="wide", pool="ledger", slots=slots)


TOO_NARROW = (
    "dag.pool_too_narrow",
    "task dag.wide takes 3 slots of pool 'ledger', which has 2: it can never start",
)


def test_it_is_said_when_the_file_is_parsed_and_the_rest_of_the_dag_runs():
    world = World()
    world.ask(SetPool(name="ledger", slots=2))

    load(world, wide(), TaskSpec(task_id="beside"))

    assert said(world) == TOO_NARROW
    run = world.trigger()
    assert (world.state(run, "wide"), world.state(run, "beside")) == ("queued", "running")


def test_it_is_said_when_the_pool_shrinks_and_no_longer_when_it_grows():
    world = World()
    load(world, wide())
    assert said(world) == (None, None)

    world.ask(SetPool(name="ledger", slots=2))
    assert said(world) == TOO_NARROW
    run = world.trigger()
    why = world.ask(Explain(run_id=world.rows.runs[run].run_id, tasks=((0, -1),)))[0, -1]
    assert why.detail == "pool ledger has 2 slots, and it needs 3"

    world.ask(SetPool(name="ledger", slots=3))
    assert said(world) == (None, None)
    assert world.state(run, "wide") == "running"


def test_a_saved_file_that_takes_less_is_well_again():
    world = World()
    world.ask(SetPool(name="ledger", slots=2))
    load(world, wide())

    load(world, wide(slots=2), version="v2")

    assert said(world) == (None, None)


def test_a_hosted_sensor_weighs_on_no_pool():
    world = World()
    world.ask(SetPool(name="ledger", slots=2))
    sensor = SensorSpec()

    load(
        world,
        TaskSpec(task_id="s", pool="ledger", slots=9, body=Body.COROUTINE, sensor=sensor),
    )

    assert said(world) == (None, None)


def test_other_errors_of_a_file_come_first():
    world = World()
    load(world, wide())
    world.load(DagSpec(dag_id="dag", file="two.py", tasks=(wide(),)), file="two.py")

    world.ask(SetPool(name="ledger", slots=2))

    assert said(world) == TOO_NARROW
    assert world.rows.files["two.py"].reason == "dag.duplicate_dag"


def test_a_pool_that_changes_twice_in_a_turn_writes_the_file_once():
    world = World()
    load(world, wide())
    asked = [RequestReceived(number, SetPool(name="ledger", slots=number)) for number in (1, 2)]

    batch, _, _ = world.decide(asked)

    assert [(row.reason, row.message) for row in batch.dag_files] == [TOO_NARROW]
