"""The tasks that a branch or a short circuit skips, depending on its return value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from aioflow import DAG, DagError, chain, task, task_group
from aioflow.author.dag import forget_registered
from aioflow.worker.task.branching import BadChoice, skipped_by


@pytest.fixture(autouse=True)
def _nothing_registered() -> Iterator[None]:
    yield
    forget_registered()


@task.branch
def pick() -> Any: ...


@task.short_circuit
def goes_on() -> Any: ...


@task.short_circuit(ignore_downstream_trigger_rules=False, retries=1)
def goes_on_gently() -> Any: ...


@task
def work() -> None: ...


def skips(made: DAG, value: object) -> set[str]:
    """Return the tasks that the first task of a DAG skips if it returns ``value``."""
    return {made.nodes[task_index].task_id for task_index in skipped_by(made.nodes[0], value)}


def branching() -> DAG:
    """Return a DAG in which ``pick`` leads to a, b and c, and both a and b lead to join."""
    with DAG("d") as made:
        first = pick()
        a, b, c = (work.override(task_id=name)() for name in "abc")
        join = work.override(task_id="join")()
        chain(first, [a, b, c])
        chain([a, b], join)
        first >> join
    return made


@pytest.mark.parametrize(
    ("value", "skipped"),
    [
        pytest.param("a", {"b", "c"}, id="one"),
        pytest.param(["a", "b"], {"c"}, id="several"),
        pytest.param(("c",), {"a", "b", "join"}, id="join-comes-after-others-alone"),
        pytest.param(None, {"a", "b", "c", "join"}, id="none"),
        pytest.param([], {"a", "b", "c", "join"}, id="nothing"),
    ],
)
def test_a_branch_skips_the_children_it_did_not_choose(value: object, skipped: set[str]):
    assert skips(branching(), value) == skipped


@pytest.mark.parametrize("value", ["nobody", ["a", "pick"], 7, {"a": 1}, ["a", 3]])
def test_only_children_can_be_chosen(value: object):
    with pytest.raises(BadChoice, match="There is a, b, c, join"):
        skips(branching(), value)


@pytest.mark.parametrize("value", [True, "text", [0]])
def test_a_short_circuit_that_is_true_skips_nothing(value: object):
    with DAG("d") as made:
        goes_on() >> work()

    assert skips(made, value) == set()


def test_a_short_circuit_that_is_false_skips_everything_after_it_but_teardowns():
    with DAG("d") as made:
        first = goes_on()
        a, b, c = (work.override(task_id=name)() for name in "abc")
        chain(first, a, b, c.as_teardown())

    assert skips(made, 0) == {"a", "b"}


def test_a_gentle_one_skips_its_children_alone():
    with DAG("d") as made:
        chain(goes_on_gently(), work.override(task_id="a")(), work.override(task_id="b")())

    assert skips(made, None) == {"a"}


def test_return_values_of_other_tasks_skip_nothing():
    with DAG("d") as made:
        work() >> work()

    assert skips(made, None) == set()


@pytest.mark.parametrize("chooses", [pick, goes_on])
def test_a_task_that_chooses_cannot_be_mapped(chooses: Any):
    with DAG("d"), pytest.raises(DagError, match="cannot be mapped itself"):
        chooses.partial().expand(x=[1])


# ── in a mapped group ───────────────────────────────────────────────────────────────────


def mapped(first: Any) -> DAG:
    """Return a DAG with a mapped group in which ``first`` chooses between a and b.

    Task ``last`` follows b, and a task outside the group joins the whole group.
    """

    @task_group
    def inside(x: int) -> Any:
        chooser = first()
        a, b, last = (work.override(task_id=name)() for name in ("a", "b", "last"))
        chain(chooser, [a, b])
        chain(b, last)
        return last

    with DAG("d") as made:
        chain(inside.expand(x=[1, 2]), work.override(task_id="outside")())
    return made


@pytest.mark.parametrize(
    ("value", "skipped"),
    [("inside.a", {"inside.b"}), (None, {"inside.a", "inside.b"})],
)
def test_a_branch_in_a_mapped_group_chooses_among_its_tasks_alone(value: Any, skipped: set[str]):
    assert skips(mapped(pick), value) == skipped


@pytest.mark.parametrize(
    ("first", "skipped"),
    [
        (goes_on, {"inside.a", "inside.b", "inside.last"}),
        (goes_on_gently, {"inside.a", "inside.b"}),
    ],
)
def test_a_short_circuit_in_a_mapped_group_skips_nothing_outside_of_it(
    first: Any, skipped: set[str]
):
    assert skips(mapped(first), 0) == skipped
