"""The sources of a task's arguments."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

import pytest

from aioflow import DAG, Retry, current, dag, task
from aioflow.author.context import INJECTED
from aioflow.author.node import (
    Binding,
    FromContext,
    FromParameter,
    FromSource,
    FromTask,
    LiteralValue,
    Nested,
    Node,
)


@task
def made_before() -> dict[str, Any]:
    return {}


def arguments(call: Any) -> dict[str, Binding]:
    """Return the arguments of the last task that ``call`` adds."""
    with DAG("made") as made:
        call()
    return made.nodes[-1].arguments


def test_values_results_and_their_parts():
    @task
    def load(plain: int, whole: Any, part: Any, untouched: int = 5) -> None: ...

    def call() -> None:
        result = made_before()
        load(1, result, part=result["rows"][0])

    assert arguments(call) == {
        "plain": LiteralValue(1),
        "whole": FromTask(0),
        "part": FromTask(0, ("rows", 0)),
    }


def test_references_inside_of_containers_keep_their_place():
    @task
    def load(value: Any) -> None: ...

    def call() -> None:
        result = made_before()
        load({"a": [1, (result, "x")], "b": {"c": current.ds}, "d": []})

    assert arguments(call) == {
        "value": Nested({"a": [1, (FromTask(0), "x")], "b": {"c": FromContext("ds")}, "d": []})
    }


def test_a_container_without_references_is_the_object_of_the_file():
    @task
    def load(value: Any) -> None: ...

    value = {"a": [1, {2}]}

    given = arguments(lambda: load(value))["value"]

    assert isinstance(given, LiteralValue)
    assert given.value is value


def test_missing_arguments_are_taken_from_the_run_by_name():
    @task
    def load(
        ds: str,
        run_id: str | None = None,
        logical_date: datetime | None = None,
        context: Any = None,
        map_index: int = 7,
        day: str = current.ts,
        note: str = "x",
    ) -> None: ...

    untyped: Any = load

    assert arguments(untyped) == {
        "ds": FromContext("ds"),
        "run_id": FromContext("run_id"),
        "logical_date": FromContext("logical_date"),
        "context": FromContext("context"),
        "day": FromContext("ts"),
    }


def test_arguments_of_the_call_are_not_replaced_by_the_run():
    @task
    def load(ds: str, run_id: str | None = None) -> None: ...

    assert arguments(lambda: load("2020-01-01", run_id=None)) == {
        "ds": LiteralValue("2020-01-01"),
        "run_id": LiteralValue(None),
    }


def test_open_keywords_take_the_whole_context():
    @task
    def load(ds: str = "mine", **context: Any) -> None: ...

    given = arguments(lambda: load(extra=1))

    assert given.pop("extra") == LiteralValue(1)
    assert given == {name: FromContext(name) for name in INJECTED - {"ds"}}


def test_parameters_of_the_dag_are_references_in_its_body():
    @task
    def load(day: date, part: Any) -> None: ...

    @dag
    def made(day: date, conf: dict[str, Any]) -> None:
        load(day, conf["a"])

    assert made.nodes[0].arguments == {
        "day": FromParameter("day"),
        "part": FromParameter("conf", ("a",)),
    }


def test_partial_fixes_and_expand_maps():
    @task
    def load(x: int, y: int, ds: str = current.ds) -> None: ...

    assert arguments(lambda: load.partial(y=2).expand(x=[1, 2])) == {
        "x": FromSource(0),
        "y": LiteralValue(2),
        "ds": FromContext("ds"),
    }


def test_a_mapping_is_expanded_item_by_item():
    @task
    def load(pair: tuple[str, int]) -> None: ...

    with DAG("made") as made:
        load.expand(pair={"a": 1, "b": 2})

    assert made.nodes[0].sources[0].values == [("a", 1), ("b", 2)]


def test_annotations_are_resolved_and_what_cannot_be_is_left_out():
    def load(day: date, other: Missing) -> list[int]:  # type: ignore[name-defined]  # noqa: F821
        return []

    with DAG("made") as made:
        task(load)(date(2026, 1, 1), None)

    assert made.nodes[0].annotations == {"day": date, "return": list[int]}


def test_the_bare_function_is_at_hand():
    @task
    def double(x: int) -> int:
        return 2 * x

    assert double.fn(4) == 8


@pytest.mark.parametrize("said", [{"retries": 0}, {"retry_delay": "1s"}])
def test_an_override_wins_whatever_words_it_uses(said):
    @task(retry=Retry(tries=9))
    def load() -> None: ...

    with DAG("made") as made:
        load.override(**said)()

    node: Node = made.nodes[0]
    assert node.retry is not None
    assert node.retry.tries != 9
