"""Run ids and idempotency keys in use by active, ended and partly deleted runs."""

from __future__ import annotations

from typing import Any

import pytest

from aioflow.errors import RequestError, RunBeingDeleted, RunExists
from aioflow.model.dag import DagSpec, TaskSpec
from aioflow.protocol.effects import Acknowledge
from aioflow.protocol.inputs import RequestReceived
from aioflow.protocol.requests import CreateRun, DeleteRun
from tests.core.world import World

TASK = TaskSpec(task_id="a")


def ended(**fields: Any) -> World:
    """Return a world with one run, which has ended."""
    world = World()
    world.load(DagSpec(dag_id="dag", file="dag.py", tasks=(TASK,), parameters=("n",)))
    world.trigger(**fields)
    world.finish_all()
    assert world.rows.unfinished() == []
    return world


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"run_id": "mine"}, id="run-id"),
        pytest.param({"key": "once"}, id="key"),
        pytest.param({"run_id": "mine", "key": "once"}, id="both"),
    ],
)
def test_a_repeated_request_for_an_ended_run_is_answered_with_it(fields):
    world = ended(**fields)
    (run,) = world.rows.runs.values()

    assert world.ask(CreateRun(dag_id="dag", **fields)) == (run.run_id, False)
    assert len(world.rows.runs) == 1


@pytest.mark.parametrize("fields", [{"run_id": "mine"}, {"key": "once"}])
def test_the_id_and_key_of_a_run_that_is_being_deleted_are_refused(fields):
    world = ended(**fields)
    (run,) = world.rows.runs.values()
    world.ask(DeleteRun(run_id=run.run_id))

    with pytest.raises(RunBeingDeleted, match="retry later") as refused:
        world.ask(CreateRun(dag_id="dag", **fields))

    assert (refused.value.code, refused.value.run_id) == (
        "request.run_being_deleted",
        run.run_id,
    )
    assert not list(world.rows.seen())


@pytest.mark.parametrize("fields", [{"run_id": "mine"}, {"key": "once"}])
def test_the_id_of_a_run_deleted_in_the_same_turn_is_refused_as_well(fields):
    world = ended(**fields)
    (run,) = world.rows.runs.values()

    effects = world.turn(
        RequestReceived(90, DeleteRun(run_id=run.run_id)),
        RequestReceived(91, CreateRun(dag_id="dag", **fields)),
    )

    said = {e.ticket: e.error for e in effects if isinstance(e, Acknowledge)}
    assert said[90] is None
    assert isinstance(said[91], RunBeingDeleted)


@pytest.mark.parametrize("fields", [{"run_id": "mine"}, {"key": "once"}])
def test_deleted_names_may_be_used_again(fields):
    world = ended(**fields)
    (run,) = world.rows.runs.values()
    world.ask(DeleteRun(run_id=run.run_id))
    world.rows.runs.clear()  # all of its rows have been deleted
    world.rows.deletions.clear()

    assert world.ask(CreateRun(dag_id="dag", **fields))[1] is True


def test_a_key_of_another_dag_is_free():
    world = ended(key="once")
    world.load(DagSpec(dag_id="other", file="o.py", tasks=(TASK,)), version="v2", file="o.py")

    assert world.ask(CreateRun(dag_id="other", key="once"))[1] is True


def test_the_id_of_an_ended_run_of_something_else_is_refused():
    world = ended(run_id="mine")

    with pytest.raises(RunExists):
        world.ask(CreateRun(dag_id="dag", run_id="mine", conf=b"\x81\xa1n\x01"))


def test_an_id_like_a_made_one_is_refused_before_it_is_made():
    world = ended()
    (run,) = world.rows.runs.values()

    assert world.ask(CreateRun(dag_id="dag", run_id=run.run_id)) == (run.run_id, False)
    with pytest.raises(RequestError, match="form of a generated one"):
        world.ask(CreateRun(dag_id="dag", run_id="dag.20260101T000000Z.7"))
