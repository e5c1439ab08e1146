"""Groups whose tasks are all mapped over the same items, index by index."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from aioflow import DAG, DagError, task, task_group
from aioflow.author.dag_spec import describe
from aioflow.author.node import FromSource, FromTask
from aioflow.model.dag import Chooses, DagSpec, MapSource

NUMBER: Any = 5


@task
def listed() -> list[int]:
    return [1]


@task
def first(x: Any, y: int = 0) -> int:
    return 1


@task
def second(x: int, before: int = 0) -> str:
    return ""


@task
def total(parts: Any) -> None: ...


@task_group
def work(x: Any, y: int = 0) -> Any:
    return second(first(x, y), before=x)


def described(call: Any) -> DagSpec:
    with DAG("made") as made:
        call()
    spec, failures = describe(made)
    assert spec is not None, failures
    return spec


def test_every_task_of_it_is_mapped_over_the_same_items():
    spec = described(lambda: total(work.partial(y=5).expand(x=listed())))

    assert [task.task_id for task in spec.tasks] == ["listed", "work.first", "work.second", "total"]
    mapped = [task.mapped for task in spec.tasks]
    assert mapped[1] is not None
    assert mapped[2] is not None
    assert mapped[1].sources == mapped[2].sources == (MapSource("x", 0, -1),)
    assert (mapped[1].along, mapped[2].along) == ((2,), (1,))


def test_its_first_tasks_alone_come_after_the_list():
    spec = described(lambda: total(work.expand(x=listed())))

    assert [task.parents for task in spec.tasks] == [(), (0,), (1,), (2,)]


def test_its_tasks_take_their_item_and_each_others_results():
    with DAG("made") as made:
        work.expand(x=[{"a": 1}])

    assert made.nodes[0].arguments["x"] == FromSource(0)
    assert made.nodes[1].arguments == {"x": FromTask(0), "before": FromSource(0)}


def test_a_part_of_an_item_may_be_taken():
    @task_group
    def parts(row: Any) -> None:
        first(row["a"], y=row["b"])

    with DAG("made") as made:
        parts.expand(row=[{"a": 1, "b": 2}])

    assert made.nodes[0].arguments == {"x": FromSource(0, ("a",)), "y": FromSource(0, ("b",))}


def test_an_item_may_give_the_parameters_of_the_group_by_name():
    with DAG("made") as made:
        work.expand_kwargs([{"x": 1, "y": 2}])

    assert made.nodes[0].arguments == {"x": FromSource(0, ("x",)), "y": FromSource(0, ("y",))}


def test_results_between_tasks_of_the_group_are_no_sequences():
    assert len(described(lambda: work.expand(x=[1])).tasks) == 2


def fanned_inside() -> None:
    @task_group
    def inner(x: Any) -> None:
        first.expand(x=[1, 2])

    inner.expand(x=[1])


def mapped_inside() -> None:
    @task_group
    def outer(x: Any) -> None:
        work.expand(x=[x])

    outer.expand(x=[1])


def leaked() -> None:
    kept: list[Any] = []

    @task_group
    def inner(x: Any) -> None:
        kept.append(x)
        first(x)

    inner.expand(x=[1])
    first(kept[0])


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        pytest.param(fanned_inside, "expands inside the mapped group", id="expand"),
        pytest.param(mapped_inside, "cannot be in another", id="mapped-group"),
        pytest.param(leaked, "outside of its mapped group", id="leaked"),
        pytest.param(lambda: work.expand(), "at least one", id="nothing"),
        pytest.param(lambda: work.partial(x=1).expand(x=[1]), "'x' from partial", id="twice"),
        pytest.param(lambda: work.expand(x=NUMBER), "over a int", id="number"),
    ],
)
def test_invalid_mapped_groups_are_refused(call: Any, complaint: str):
    with DAG("made"), pytest.raises(DagError, match=complaint):
        call()


def test_it_cannot_go_over_a_stream():
    @task
    async def pages() -> AsyncIterator[int]:
        yield 1

    with DAG("made") as made:
        work.expand(x=pages())

    _, failures = describe(made)
    assert "expands over the stream of 'pages'" in failures[0].message


@task.branch
def choose(x: Any = 0) -> str:
    return ""


def chosen_after(outside: Any) -> None:
    @task_group
    def inner(x: Any) -> Any:
        first(x).after(choose(x))
        return second(x).after(*outside)

    total(inner.expand(x=listed()))


def test_a_branch_may_choose_in_a_mapped_group():
    spec = described(lambda: chosen_after([]))

    assert spec.tasks[2].chooses is Chooses.CHILDREN
    assert spec.tasks[1].mapped is not None


def test_a_mapped_group_with_a_branch_expands_all_at_once():
    with DAG("made") as made:
        chosen_after([total(0)])

    spec, failures = describe(made)

    assert spec is None
    assert "'inner.second' comes after 'total'" in failures[0].message
