"""Operations on future lists, and arguments of tasks by name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from aioflow import DAG, DagError, Operator, task
from aioflow.author.dag_spec import describe
from aioflow.author.node import FromContext, FromTask, LiteralValue, Spread
from aioflow.model.dag import DagSpec, MapSource


@task
def listed() -> list[int]:
    return [1]


@task
def one(x: Any) -> Any: ...


@task
def two(x: int, y: str = "", ds: str | None = None) -> None: ...


def described(call: Any) -> DagSpec:
    """Return the description of the DAG that ``call`` writes."""
    with DAG("made") as made:
        call()
    spec, failures = describe(made)
    assert spec is not None, failures
    return spec


def refused(call: Any) -> str:
    """Return the warnings and errors of the DAG that ``call`` defines."""
    with DAG("made") as made:
        call()
    _, failures = describe(made)
    return "; ".join(failure.message for failure in failures)


def source_of(call: Any) -> MapSource:
    mapped = described(call).tasks[-1].mapped
    assert mapped is not None
    return mapped.sources[0]


NUMBER: Any = 5


def double(n: int) -> int:
    return 2 * n


def test_a_function_changes_no_width():
    assert source_of(lambda: one.expand(x=listed().map(double))) == MapSource("x", 0, -1)


def test_lists_are_zipped_with_lists_of_the_file():
    assert source_of(lambda: one.expand(x=listed().zip([1, 2], ["ab"]))) == MapSource(
        "x", -1, -1, "zip", (MapSource("", 0, -1), MapSource("", -1, 2), MapSource("", -1, 1))
    )


def test_a_fillvalue_makes_a_zip_as_long_as_its_longest_list():
    source = source_of(lambda: one.expand(x=listed().zip([1], fillvalue=None)))

    assert source.join == "zip_longest"


def test_a_concat_of_a_concat_is_one():
    def call() -> None:
        one.expand(x=listed().concat([1]).concat(listed(), [2, 3]))

    parts = (MapSource("", 0, -1), MapSource("", -1, 1), MapSource("", 1, -1))
    assert source_of(call) == MapSource("x", -1, -1, "concat", (*parts, MapSource("", -1, 2)))


def test_the_task_that_makes_a_list_is_a_parent_of_its_consumers_and_has_their_limit():
    def call() -> None:
        one.override(map_limit=7).expand(x=listed().zip(listed().map(double)))

    spec = described(call)
    assert spec.tasks[2].parents == (0, 1)
    assert [task.feeds_limit for task in spec.tasks] == [7, 7, None]


def test_lists_of_the_file_that_are_too_many_together_are_known_to_be():
    assert "5 items" in refused(
        lambda: two.override(map_limit=4).expand_kwargs([{"x": n} for n in range(5)])
    )


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        pytest.param(lambda: listed().map(one), "that is .fn", id="map-a-task"),
        pytest.param(lambda: listed().map(NUMBER), "takes a function", id="map-a-number"),
        pytest.param(lambda: listed()["a"].map(double), "whole result", id="map-a-part"),
        pytest.param(lambda: listed().zip(NUMBER), "joins a int", id="zip-a-number"),
        pytest.param(lambda: one(listed().map(double)), "expand.. only", id="as-an-argument"),
        pytest.param(lambda: one.expand(x=listed().zip([one([1])])), "of references", id="refs"),
        pytest.param(lambda: two.expand_kwargs([{"z": 1}]), "'z', which is no", id="kwargs-name"),
        pytest.param(lambda: two.expand_kwargs([{}]), "not give 'x'", id="kwargs-missing"),
        pytest.param(lambda: two.expand_kwargs([NUMBER]), "is a int", id="kwargs-number"),
        pytest.param(
            lambda: two.partial(x=1).expand_kwargs([{"x": 2}]), "'x', which partial", id="both"
        ),
        pytest.param(lambda: two.expand_kwargs(NUMBER), "over a int", id="kwargs-of-a-number"),
    ],
)
def test_expanding_over_other_values_is_refused_where_it_is_written(call: Any, complaint: str):
    with DAG("made"), pytest.raises(DagError, match=complaint):
        call()


def test_an_async_function_cannot_be_mapped_with():
    async def later(n: int) -> int:
        return n

    with DAG("made"), pytest.raises(DagError, match="is async"):
        listed().map(later)


def test_a_stream_is_joined_with_nothing():
    @task
    async def pages() -> AsyncIterator[int]:
        yield 1

    assert "expands over the stream of 'pages'" in refused(
        lambda: one.expand(x=pages().concat([1]))
    )


def test_an_item_gives_parameters_by_their_names():
    with DAG("made") as made:
        two.partial(y=listed()).expand_kwargs([{"x": 1}])

    assert made.nodes[1].arguments == {
        "y": FromTask(0),
        "ds": FromContext("ds"),
        "**": Spread(0, ("x", "y", "ds"), ("x",), ("y",)),
    }


def test_an_item_may_give_any_name_where_the_task_takes_any():
    @task
    def loose(**rest: int) -> None: ...

    with DAG("made") as made:
        loose.expand_kwargs([{"a": 1}, {"b": 2}])

    assert made.nodes[0].arguments["**"] == Spread(0, None, (), ())


class Copy(Operator):
    def __init__(self, task_id: str, source: str, target: str, **options: Any) -> None:
        super().__init__(task_id, **options)
        self.source, self.target = source, target


def test_an_operator_takes_its_arguments_by_name_and_its_options_from_partial():
    with DAG("made") as made:
        Copy.partial(task_id="c", target="/b").expand_kwargs([{"source": "/a"}])
        with pytest.raises(DagError, match="'pool', which partial"):
            Copy.partial(task_id="d", target="/b").expand_kwargs([{"source": "", "pool": "p"}])

    assert made.nodes[0].arguments["target"] == LiteralValue("/b")
    assert made.nodes[0].sources[0].values == [{"source": "/a"}]


def test_a_fan_out_is_expanded_over_as_any_list_and_needs_to_return_none():
    def call() -> None:
        one.expand(x=one.override(map_limit=9).expand(x=listed()).map(double))

    spec = described(call)
    mapped = spec.tasks[2].mapped
    assert mapped is not None
    assert mapped.sources == (MapSource("x", 1, -1),)
    assert spec.tasks[2].parents == (1,)
    assert [task.feeds_limit for task in spec.tasks] == [9, None, None]


def test_the_result_type_of_a_mapped_task_is_checked_against_its_followers():
    @task
    def shout(word: str) -> str:
        return word

    @task
    def count(n: list[int]) -> int:
        return len(n)

    def call() -> None:
        shout.expand(word=shout.expand(word=["a"]))
        count.expand(n=shout.expand(word=["a"]))

    assert refused(call).count("'shout") == 1
