"""Edges with their own rules, required shares, setups and teardowns, as an author writes them."""

from __future__ import annotations

from typing import Any

import pytest

from aioflow import DAG, DagError, dag, setup, task, teardown
from aioflow.author.dag_spec import describe
from aioflow.model.dag import EdgeGroup, TaskSpec
from aioflow.model.states import TriggerRule


def specs(made: DAG) -> dict[str, TaskSpec]:
    spec, failures = describe(made, file="dags.py")
    assert not failures
    assert spec is not None
    return {task.task_id: task for task in spec.tasks}


@task
def work(value: Any = None) -> int:
    return 1


def test_parents_given_a_rule_together_form_a_group():
    with DAG("d") as made:
        a, b, c = (work.override(task_id=name)() for name in "abc")
        work.override(task_id="end")(c).after(a, b, rule="one_success")

    end = specs(made)["end"]
    assert end.parents == (0, 1, 2)
    assert end.groups == (EdgeGroup((0, 1), TriggerRule.ONE_SUCCESS),)


def test_the_same_group_named_again_is_one_group():
    with DAG("d") as made:
        a, b = work(), work()
        end = work.override(task_id="end")()
        end.after(a, b, rule="one_success").after([b, a], rule="one_success")

    assert len(specs(made)["end"].groups) == 1


def test_an_unknown_rule_of_an_edge_is_refused_where_it_is_written():
    with DAG("d"), pytest.raises(DagError, match=r"rule='most' is unknown.*test_groups.py"):
        work().after(work(), rule="most")  # type: ignore[arg-type]


def test_min_success_is_a_rule_of_its_own():
    with DAG("d") as made:
        work.override(task_id="end", min_success=0.95)(work())

    assert specs(made)["end"].min_success == 0.95


@pytest.mark.parametrize("share", [-0.1, 1.1, "all", True])
def test_a_share_that_is_none_is_refused(share: Any):
    with pytest.raises(DagError, match="min_success must be a share"):
        task(min_success=share)(lambda: None)


def test_min_success_beside_a_trigger_rule_is_refused():
    with pytest.raises(DagError, match="either trigger_rule or min_success"):
        task(min_success=0.5, trigger_rule="all_done")(lambda: None)


def test_an_override_with_a_rule_replaces_a_share():
    shared = task(min_success=0.5)(work.fn)
    with DAG("d") as made:
        shared.override(trigger_rule="all_done")(work())

    made_specs = specs(made)
    assert made_specs["work__1"].min_success is None
    assert made_specs["work__1"].rule is TriggerRule.ALL_DONE


@setup
def create() -> str:
    return "cluster"


@teardown
def delete(name: str) -> None: ...


def test_a_teardown_waits_for_everything_after_its_setup():
    @dag
    def pipeline() -> None:
        cluster = create()
        cluster >> work() >> delete(cluster)

    made = specs(pipeline)
    assert made["create"].is_setup
    assert made["delete"].is_teardown
    assert made["delete"].rule is TriggerRule.ALL_DONE_SETUP_SUCCESS
    assert made["delete"].parents == (0, 1)
    assert not made["delete"].fails_run


def test_any_task_can_be_made_a_setup_and_a_teardown():
    with DAG("d") as made:
        first, middle, last = work(), work(), work()
        first >> middle >> last.as_teardown(setups=first, on_failure_fail_dagrun=True)

    made_specs = specs(made)
    assert made_specs["work"].is_setup
    assert made_specs["work__2"].is_teardown
    assert made_specs["work__2"].fails_run
    assert made_specs["work__2"].parents == (0, 1)


def test_tasks_created_inside_a_teardown_are_between_it_and_its_setups():
    with DAG("d") as made:
        first, last = work.override(task_id="create")(), work.override(task_id="delete")()
        with last.as_teardown(setups=first):
            work.override(task_id="b")(work.override(task_id="a")())
            work.override(task_id="c")()

    made_specs = specs(made)
    parents = {name: spec.parents for name, spec in made_specs.items()}
    assert parents == {"create": (), "delete": (0, 3, 4), "a": (0,), "b": (2,), "c": (0,)}


def test_a_teardown_may_carry_options_of_a_task():
    patient = teardown(on_failure_fail_dagrun=True)(task(retries=7)(delete.fn))
    with DAG("d") as made:
        patient(create())

    spec = specs(made)["delete"]
    assert spec.retry.tries == 8
    assert spec.fails_run


def test_an_explicit_rule_of_a_teardown_is_used():
    with DAG("d") as made:
        work.override(task_id="end", trigger_rule="all_success")(work()).as_teardown()

    assert specs(made)["end"].rule is TriggerRule.ALL_SUCCESS
