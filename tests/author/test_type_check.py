"""Edges are checked against annotations: certain misfits are reported, doubtful ones are not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, NewType, Protocol, TypedDict, TypeVar

import pytest

from aioflow import DAG, current, dag, sensor, task
from aioflow.author.dag_spec import describe
from aioflow.author.type_check import fits
from aioflow.testing import Sim


@dataclass
class Row:
    id: int


class Record(TypedDict):
    id: int


class Colour(Enum):
    RED = "red"


class Closable(Protocol):
    def close(self) -> None: ...


Amount = NewType("Amount", int)
T = TypeVar("T")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (int, int),
        (bool, int),
        (int, float),
        (int, Decimal),
        (str, Path),
        (str, date),
        (str, Colour),
        (datetime, date),
        (float, timedelta),
        (Any, int),
        (int, Any),
        (int, object),
        (int, T),
        (str, Closable),
        (Amount, int),
        (int, Amount),
        (Annotated[int, "x"], int),
        (int | None, int),
        (int, int | None),
        (None, int | None),
        (Literal["a"], str),
        (str, Literal["a", "b"]),
        (list[int], Sequence[int]),
        (list[int], tuple[int, ...]),
        (list[int], Iterable[float]),
        (list, list[int]),
        (list[Row], list[Record]),
        (dict[str, int], Mapping[str, float]),
        (dict[str, Any], Row),
        (Row, dict[str, Any]),
        (Row, Record),
        (int, Callable[[], int]),
        (Sequence[Sequence[int]], list[list[int]]),
    ],
)
def test_types_that_may_match_are_no_misfits(given: Any, wanted: Any):
    assert fits(given, wanted)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (str, int),
        (int, str),
        (None, int),
        (int, None),
        (int, list[int]),
        (list[int], int),
        (list[str], Sequence[int]),
        (str, list[str]),
        (dict[str, int], list[str]),
        (dict[str, str], dict[str, int]),
        (Row, int),
        (int, Row),
        (Decimal, Path),
        (str | bytes, int),
        (int, str | None),
        (Literal[1], str),
        (list[list[str]], list[list[int]]),
    ],
)
def test_types_that_never_match_are_misfits(given: Any, wanted: Any):
    assert not fits(given, wanted)


# ── in a DAG ────────────────────────────────────────────────────────────────────────────


@task
def number() -> int:
    return 1


@task
def numbers() -> list[int]:
    return [1]


@task
def text(value: str) -> str:
    return value


@task
def every(value: Any) -> None: ...


@task
def total(values: Sequence[str]) -> None: ...


@task
def generated() -> Iterator[int]:
    yield 1


@sensor
def there() -> bool:
    return True


def messages(made: DAG) -> list[tuple[str, str]]:
    _, failures = describe(made)
    return [(failure.reason, failure.message) for failure in failures]


def test_an_edge_that_cannot_fit_is_said_with_both_ends():
    with DAG("d") as made:
        text(number())

    ((reason, message),) = messages(made)
    assert reason == "dag.edge"
    assert "'text' takes value: str, but 'number' gives it int" in message


def test_the_items_of_a_fan_out_are_checked():
    with DAG("d") as made:
        text.expand(value=numbers())
        text.expand(value=generated())

    assert [reason for reason, _ in messages(made)] == ["dag.edge", "dag.edge"]


@pytest.mark.parametrize(
    "kind", [str, bytes, int, None, dict[str, int], Row, Record, str | None, dict[str, int] | int]
)
def test_expanding_over_a_type_that_is_never_a_list_is_refused(kind: Any):
    def whole(): ...

    whole.__annotations__["return"] = kind
    with DAG("d") as made:
        text.expand(value=task(whole)())

    ((reason, message),) = messages(made)
    assert reason == "dag.edge"
    assert "'text' takes value: list[str], but 'whole' gives it" in message


@pytest.mark.parametrize(
    "kind", [Any, list, tuple[str, ...], range, set[str], Iterator[str], list[str] | None, object]
)
def test_expanding_over_a_type_that_may_be_a_list_is_allowed(kind: Any):
    def whole(): ...

    whole.__annotations__["return"] = kind
    with DAG("d") as made:
        every.expand(value=task(whole)())

    assert messages(made) == []


def test_items_that_give_the_parameters_come_in_a_list():
    with DAG("d") as made:
        text.expand_kwargs(number())

    ((_, message),) = messages(made)
    assert "list[Mapping], but 'number' gives it int" in message


def test_the_results_of_a_fan_out_are_a_sequence():
    with DAG("d") as made:
        total(text.expand(value=["a"]))
        text(text.override(task_id="each").expand(value=["a"]))

    ((_, message),) = messages(made)
    assert "takes value: str, but 'each' gives it Sequence[str]" in message


def test_values_of_sensors_and_parts_of_results_are_not_checked():
    with DAG("d") as made:
        text(there())
        text(numbers()[0])

    assert messages(made) == []


def test_every_misfit_is_said_at_once_with_the_line_of_its_task():
    with DAG("d") as made:
        text(number())
        text(number())

    _, failures = describe(made)
    assert len({failure.line for failure in failures}) == 2


# ── parameters and values of the file ───────────────────────────────────────────────────


@task
def flag(value: bool) -> bool:
    return value


@task
def optional(value: str = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013 - as many do


def test_a_parameter_of_the_dag_that_cannot_fit_is_said_with_its_name():
    @dag
    def made(n: int, who: str = "x", anything=None) -> None:
        text(n)  # type: ignore[arg-type]
        text.override(task_id="fits")(who)
        text.override(task_id="open")(anything)

    ((reason, message),) = messages(made)
    assert reason == "dag.edge"
    assert "'text' takes value: str, but the parameter 'n' of the DAG gives it int" in message


@pytest.mark.parametrize("value", [5, True, None, ["a"], {"a": 1}, Decimal(1), date(2026, 1, 1)])
def test_a_value_of_the_file_that_cannot_fit_is_said(value: Any):
    with DAG("d") as made:
        text(value)

    ((reason, message),) = messages(made)
    assert reason == "dag.edge"
    assert "'text' takes value: str, but the DAG file gives it" in message
    assert f"of type {type(value).__name__}" in message


def test_a_value_of_the_file_that_may_fit_is_not_judged():
    class Word(str):
        __slots__ = ()

    with DAG("d") as made:
        for number, value in enumerate(("a", Word("b"), current.ds)):
            text.override(task_id=f"t{number}")(value)
        optional(None)  # type: ignore[arg-type]
        flag(True)
        every(object())

    assert messages(made) == []


def test_each_wrong_type_of_literal_items_is_reported_once():
    with DAG("d") as made:
        text.expand(value=["a", *range(1000), 2.0])

    said = [message.partition("gives it ")[2] for _, message in messages(made)]
    assert [part.partition(",")[0] for part in said] == ["0", "2.0"]


async def test_values_of_the_file_arrive_as_they_were_written(sim: Sim):
    @dag
    def made(on: bool = False) -> None:
        flag(True)
        flag.override(task_id="given")(on)
        flag.override(task_id="default")(False)

    run = await sim.start(made, on=True)
    await run.finished()

    assert [run[name].result for name in ("flag", "given", "default")] == [True, True, False]
