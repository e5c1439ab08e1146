"""Loops in DAG files: groups that are repeated until one of their tasks decides to stop."""

from __future__ import annotations

from typing import Any

import pytest

from aioflow import DAG, DagError, sensor, task, task_group
from aioflow.author.dag import dag
from aioflow.author.dag_spec import describe
from aioflow.author.node import FromParameter, FromRound, FromTask, LiteralValue
from aioflow.model.dag import Body, Chooses, DagSpec, MapSource, MapSpec


@task
def listed() -> list[int]:
    return [1]


@task
def tried(value: Any, before: Any = None) -> int:
    return 1


@task
def checked(value: int) -> str:
    return ""


@task
def after(value: Any = None) -> None: ...


def good(value: object) -> bool:
    return True


@task_group(until=good, max_rounds=7)
def refine(value: Any, previous: Any = None) -> Any:
    return checked(tried(value, previous))


def described(call: Any) -> DagSpec:
    with DAG("made") as made:
        call()
    spec, failures = describe(made)
    assert spec is not None, failures
    return spec


def test_its_tasks_are_rounds_of_one_loop_and_the_last_decides():
    spec = described(lambda: after(refine(listed())))

    names = ["listed", "refine.tried", "refine.checked", "refine.until", "after"]
    assert [task.task_id for task in spec.tasks] == names
    one = (MapSource("", -1, 1),)
    assert [task.mapped for task in spec.tasks[1:4]] == [
        MapSpec(one, (2, 3), 3),
        MapSpec(one, (1, 3), 3),
        MapSpec(one, (1, 2), 3),
    ]
    assert {task.map_limit for task in spec.tasks[1:4]} == {7}
    assert [task.chooses for task in spec.tasks[2:4]] == [Chooses.NOTHING, Chooses.ROUNDS]


def test_consumers_of_its_value_or_its_iterations_come_after_the_decision():
    def call() -> None:
        refined = refine(1)
        after(refined)
        after(refined.rounds)
        tried.expand(value=refined.rounds)
        after() << refined

    parents = [set(task.parents) for task in described(call).tasks]

    assert parents[3:] == [{1, 2}, {1, 2}, {1, 2}, {2}]


def test_consumers_of_a_task_inside_come_after_the_decision():
    kept: list[Any] = []

    @task_group(until=good)
    def leaks(value: int) -> Any:
        kept.append(tried(value))
        return checked(kept[0])

    def call() -> None:
        leaks(1)
        after(kept[0])

    assert set(described(call).tasks[3].parents) == {0, 2}


def test_the_decision_waits_for_every_last_task_of_a_round():
    @task_group(until=good)
    def wide(value: int) -> Any:
        first = tried(value)
        after(first)
        return checked(first)

    assert described(lambda: wide(1)).tasks[3].parents == (1, 2)


def test_the_value_of_the_round_before_is_bound_with_what_stands_in_for_it():
    @dag
    def made(begin: int = 3) -> None:
        refine(1, listed())
        refine(2)
        refine(3, previous=begin)

    arguments = [node.arguments for node in made.nodes]

    assert arguments[1]["before"] == FromRound(FromTask(0))
    assert arguments[4]["before"] == FromRound(LiteralValue(None))
    assert arguments[7]["before"] == FromRound(FromParameter("begin"))
    assert 0 in made.nodes[1].argument_parents


def test_a_part_of_the_round_before_or_of_the_last_value_may_be_taken():
    @task_group(until=good)
    def parts(previous: Any = None) -> Any:
        return tried(previous["a"][0])

    with DAG("made") as made:
        after(parts()["b"])

    assert made.nodes[0].arguments["value"] == FromRound(LiteralValue(None), ("a", 0))
    assert made.nodes[2].arguments["value"] == FromTask(0, ("b",), is_last=True)


def test_the_deciding_task_may_have_options_or_be_a_coroutine():
    @task(pool="judges", retries=5)
    async def judge(value: int) -> bool:
        return True

    @task_group(until=judge)
    def judged() -> Any:
        return tried(1)

    decides = described(judged).tasks[1]

    assert (decides.task_id, decides.pool, decides.body) == (
        "judged.until",
        "judges",
        Body.COROUTINE,
    )
    assert decides.retry.tries == 6


def test_a_misfit_between_the_last_value_and_what_takes_it_is_found():
    @task
    def lists(value: list[int]) -> None: ...

    with DAG("made") as made:
        lists(refine(1))

    _, failures = describe(made)
    assert "refine.checked" in failures[0].message


@sensor
def looks(value: int) -> bool:
    return True


def group(**options: Any) -> Any:
    return task_group(**{"until": good, **options})


def returning(value: Any) -> None:
    @group()
    def returns() -> Any:
        tried(1)
        return value

    returns()


def fanned_inside() -> None:
    @group()
    def inner() -> Any:
        return tried.expand(value=[1, 2])

    inner()


def mapped_inside() -> None:
    @task_group
    def mapped(x: Any) -> Any:
        return tried(x)

    @group()
    def inner() -> Any:
        return mapped.expand(x=[1])

    inner()


def looped_inside() -> None:
    @group()
    def inner() -> Any:
        return refine(1)

    inner()


def chosen_inside() -> None:
    @task.branch
    def choose() -> str:
        return ""

    @group()
    def inner() -> Any:
        return choose()

    inner()


def leaked() -> None:
    kept: list[Any] = []

    @group()
    def inner(previous: Any = None) -> Any:
        kept.append(previous)
        return tried(previous)

    inner()
    after(kept[0])


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        pytest.param(fanned_inside, "expands inside the loop 'inner'", id="expand"),
        pytest.param(mapped_inside, "or in a loop", id="mapped-group"),
        pytest.param(looped_inside, "in another loop", id="loop"),
        pytest.param(chosen_inside, "cannot be in a loop", id="branch"),
        pytest.param(leaked, "outside of its loop", id="leaked"),
        pytest.param(lambda: refine.expand(value=[1]), "cannot be mapped", id="mapped"),
        pytest.param(lambda: returning(None), "it returned None", id="nothing"),
        pytest.param(lambda: returning(listed()), "one of its tasks", id="of-another"),
        pytest.param(lambda: tried.expand(value=refine(1)), "its .rounds", id="over-the-value"),
        pytest.param(lambda: refine(1)["a"].rounds, "has no rounds", id="rounds-of-a-part"),
        pytest.param(lambda: group(until=looks)(refine.fn)(1), "is a sensor", id="sensor"),
        pytest.param(lambda: group(until=5)(refine.fn), "function or a task", id="number"),
        pytest.param(lambda: group(max_rounds=0)(refine.fn), "at least 1", id="no-rounds"),
        pytest.param(
            lambda: task_group(max_rounds=5)(refine.fn),  # type: ignore[call-overload]
            "but no until",
            id="no-until",
        ),
    ],
)
def test_invalid_loops_are_refused(call: Any, complaint: str):
    with DAG("made"), pytest.raises(DagError, match=complaint):
        call()
