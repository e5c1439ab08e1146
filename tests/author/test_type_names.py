"""Readable names of types, without the code that defines the type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NewType, Optional, TypeVar, Union

import pytest

from aioflow import DAG, dag, task
from aioflow.author.dag_spec import describe
from aioflow.author.decode import restore
from aioflow.author.params import type_misfit, type_name
from aioflow.errors import Unserializable


class Colour(Enum):
    RED = "red"
    TWO = 2


class Point(Enum):
    ORIGIN = (0, 0)


@dataclass
class Row:
    id: int


@task
def work() -> None: ...


Amount = NewType("Amount", int)

NAMES: list[tuple[Any, str]] = [
    (int, "int"),
    (bool, "bool"),
    (None, "None"),
    (int | None, "int | None"),
    (Optional[date], "date | None"),  # noqa: UP045 - also written so
    (Union[int, str], "int | str"),  # noqa: UP007
    (Amount, "int"),
    (Annotated[Decimal, "euro"], "Decimal"),
    (list, "list"),
    (list[date], "list[date]"),
    (Sequence[int | None], "list[int | None]"),
    (Iterable[Row], "list[Any]"),
    (dict, "dict"),
    (Mapping[str, list[float]], "dict[str, list[float]]"),
    (Literal["a", -1, True], "Literal['a', -1, True]"),
    (Colour, "Literal['red', 2]"),
    (Point, "Any"),
    (Row, "Any"),
    (Row | None, "Any"),
    (tuple[int, str], "Any"),
    (Callable[[], int], "Any"),
    (TypeVar("T"), "Any"),
    (Any, "Any"),
    (object, "Any"),
    (Literal["x" * 5_000], "Any"),
]


@pytest.mark.parametrize(("annotation", "text"), NAMES)
def test_the_text_of_a_type(annotation: Any, text: str):
    assert type_name(annotation) == text


VALUES: list[Any] = [
    *("lots", "red", "a", "2026-01-01", "2026-01-01T03:00:00Z", "1.5", "5m", "", "true"),
    *(0, 1, 2, -1, 1.5, True, False, None, [], [1], ["2026-01-01"], [None], {}, {"a": [1]}),
    *({"id": 1}, {"a": ["x"]}, 2**70),
]


@pytest.mark.parametrize("annotation", [kind for kind, text in NAMES if text != "Any"])
def test_a_value_is_refused_if_the_task_would_refuse_it(annotation: Any):
    for value in VALUES:
        try:
            restore(value, annotation, "it", strict=True)
        except Unserializable:
            is_fit = False
        else:
            is_fit = True
        wrong = type_misfit({"n": type_name(annotation)}, {"n": value})
        assert (wrong is None) is is_fit or "Any" in type_name(annotation), (value, wrong)


def test_the_message_names_the_parameter_its_type_and_the_place():
    wrong = type_misfit({"days": "list[date]", "other": "int"}, {"days": ["2026-01-01", "soon"]})

    assert wrong is not None
    assert "'days' must be list[date], got ['2026-01-01', 'soon']" in wrong
    assert "conf['days'][1]" in wrong


def test_a_long_value_is_cut_short():
    wrong = type_misfit({"n": "int"}, {"n": "x" * 100_000})

    assert wrong is not None
    assert len(wrong) < 500


def test_a_dag_says_the_types_of_its_parameters():
    @dag
    def made(
        n: int, row: Row, since: datetime | None = None, gap: timedelta = timedelta(1), x=1
    ) -> None:
        work()

    spec, _ = describe(made)

    assert spec is not None
    assert spec.types == {"n": "int", "since": "datetime | None", "gap": "timedelta"}


def test_a_parameter_with_a_schema_has_no_type_besides():
    with DAG("d", params={"n": 3}) as made:
        work()

    spec, _ = describe(made)

    assert spec is not None
    assert spec.types == {}
