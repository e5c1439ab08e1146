"""Task groups: prefixed names, options in layers, and edges to and from a whole group."""

from __future__ import annotations

from typing import Any

import pytest

from aioflow import DAG, Context, DagError, Operator, TaskGroup, chain, dag, task, task_group
from aioflow.author.dag_spec import describe
from aioflow.worker.task.branching import skipped_by


def parents(made: DAG) -> dict[str, set[str]]:
    spec, failures = describe(made, file="dags.py")
    assert not failures
    assert spec is not None
    names = [task.task_id for task in spec.tasks]
    return {task.task_id: {names[parent] for parent in task.parents} for task in spec.tasks}


@task
def work(value: object = None) -> int:
    return 1


@task_group
def etl(source: int) -> int:
    return work.override(task_id="load")(work.override(task_id="extract")(source))


def test_the_tasks_of_a_group_are_named_after_it():
    @dag
    def pipeline() -> None:
        work.override(task_id="end")(etl(1))

    assert parents(pipeline) == {
        "etl.extract": set(),
        "etl.load": {"etl.extract"},
        "end": {"etl.load"},
    }


class Work(Operator):
    def __init__(self, source: object = None, **options: Any) -> None:
        super().__init__(**options)

    def execute(self, context: Context) -> str:
        return self.task_id


@task_group
def classes(source: int) -> object:
    return Work(source=Work(source=source, task_id="extract").output, task_id="load").output


def test_operators_in_a_group_are_named_after_it_as_functions_are():
    with DAG("d") as made:
        classes(1)
        classes(2)
        with TaskGroup("g", prefix_group_id=False):
            Work.partial(task_id="mapped").expand(source=[1])

    assert parents(made) == {
        "classes.extract": set(),
        "classes.load": {"classes.extract"},
        "classes__1.extract": set(),
        "classes__1.load": {"classes__1.extract"},
        "mapped": set(),
    }
    assert [getattr(node.instance, "task_id", None) for node in made.nodes] == [
        *("classes.extract", "classes.load", "classes__1.extract", "classes__1.load"),
        None,
    ]


def test_an_operator_of_a_group_knows_its_whole_name_where_it_runs():
    with DAG("d") as made, TaskGroup("g"):
        Work(task_id="one")

    assert made.nodes[0].make_operator({"task_id": "one"}).execute({}) == "g.one"


def test_a_second_call_makes_another_group():
    with DAG("d") as made:
        etl(1)
        etl(2)

    assert set(parents(made)) == {"etl.extract", "etl.load", "etl__1.extract", "etl__1.load"}


def test_a_group_is_linked_by_its_first_and_last_tasks():
    with DAG("d") as made:
        start, end = work.override(task_id="start")(), work.override(task_id="end")()
        with TaskGroup("g") as group:
            a, b, c = (work.override(task_id=name)() for name in "abc")
            chain(a, [b, c])
        start >> group >> end

    found = parents(made)
    assert found["g.a"] == {"start"}
    assert found["g.b"] == {"g.a"}
    assert found["end"] == {"g.b", "g.c"}


def test_the_return_value_of_a_group_is_linked_as_the_whole_group():
    with DAG("d") as made:
        start = work.override(task_id="start")()
        etl(1).after(start)

    assert parents(made)["etl.extract"] == {"start"}
    assert parents(made)["etl.load"] == {"etl.extract"}


def test_groups_stand_in_groups():
    with DAG("d") as made, TaskGroup("outer") as outer:
        with TaskGroup("inner"):
            work()
        work.override(task_id="end")().after(*[])
    with made:
        work.override(task_id="last")().after(outer)

    assert parents(made) == {
        "outer.inner.work": set(),
        "outer.end": set(),
        "last": {"outer.inner.work", "outer.end"},
    }


def test_a_group_may_leave_the_names_of_its_tasks_alone():
    with DAG("d") as made, TaskGroup("g", prefix_group_id=False):
        work()

    assert set(parents(made)) == {"work"}


def test_a_teardown_is_not_waited_for_by_what_comes_after_its_group():
    with DAG("d") as made:
        with TaskGroup("g") as group:
            create = work.override(task_id="create")()
            with work.override(task_id="delete")().as_teardown(setups=create):
                work.override(task_id="load")()
        group >> work.override(task_id="end")()

    assert parents(made)["end"] == {"g.load"}


def test_options_of_the_innermost_group_win():
    with (
        DAG("d", default_args={"retries": 1, "pool": "outer"}) as made,
        TaskGroup("g", default_args={"retries": 7}),
    ):
        work()
        work.override(task_id="own", retries=2)()

    spec, _ = describe(made, file="dags.py")
    assert spec is not None
    assert [(t.task_id, t.retry.tries, t.pool) for t in spec.tasks] == [
        ("g.work", 8, "outer"),
        ("g.own", 3, "outer"),
    ]


def test_a_group_that_returns_nothing_is_given_back_itself():
    @task_group(group_id="named", tooltip="two at once")
    def both() -> None:
        work()
        work()

    with DAG("d") as made:
        both() >> work.override(task_id="end")()

    assert parents(made)["end"] == {"named.work", "named.work__1"}


def test_an_empty_group_cannot_be_linked():
    with DAG("d"):
        with TaskGroup("empty") as group:
            pass
        with pytest.raises(DagError, match="has no tasks to link"):
            group >> work()


def test_a_rule_of_an_edge_holds_for_the_first_tasks_of_a_group():
    with DAG("d") as made:
        a, b = work(), work()
        etl(1).after(a, b, rule="one_success")

    spec, _ = describe(made, file="dags.py")
    assert spec is not None
    assert {t.task_id: len(t.groups) for t in spec.tasks}["etl.extract"] == 1


def test_a_branch_may_choose_a_group():
    @task.branch
    def pick() -> str:
        return "g"

    with DAG("d") as made:
        first = pick()
        with TaskGroup("g") as group:
            work.override(task_id="a")() >> work.override(task_id="b")()
        first >> [group, work.override(task_id="other")()]

    skipped = skipped_by(made.nodes[0], "g")
    assert [made.nodes[task_index].task_id for task_index in skipped] == ["other"]


def test_unknown_options_of_a_group_are_refused():
    with DAG("d"), pytest.raises(DagError, match="has no option 'retries'"):
        TaskGroup("g", retries=3)  # type: ignore[call-arg]
