"""Answers are checked on the event loop only if the check is quick; others have limits."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest

from aioflow.api.answer_check import answer_problems, is_quick
from aioflow.api.decisions import check_answer
from aioflow.author.person import PersonTrigger
from aioflow.errors import BadAnswer
from aioflow.model.decisions import DecisionQuestion


class Kind(Enum):
    A = "a"
    B = "b"


@dataclass
class Plain:
    amount: int
    kind: Kind = Kind.A
    note: str | None = None
    rows: tuple[int, ...] = ()


def schema(**field: Any) -> str:
    return json.dumps({"type": "object", "properties": {"x": field}})


def test_plain_form_with_a_short_answer_is_quick() -> None:
    text = PersonTrigger("Which?", form=Plain).schema
    assert is_quick(text, 100)
    assert not is_quick(text, 2_000)
    assert not is_quick(text + " " * 20_000, 100)


@pytest.mark.parametrize(
    "text",
    [
        schema(type="array", uniqueItems=True),
        schema(type="string", pattern="^(a+)+$"),
        schema(type="string", pattern="^(a+)+$").replace('"pattern"', '"p\\u0061ttern"'),
        json.dumps({"type": "object", "patternProperties": {"^(a+)+$": {}}}),
        schema(items={"anyOf": [{"type": "null"}, {"uniqueItems": True}]}),
        schema(additionalProperties={"pattern": "a"}),
        schema(anyOf=[{"$ref": "#/properties/x"}]),
        json.dumps({"type": "object", "unevaluatedProperties": {"type": "string"}}),
        "[1]",
        "{",
        "[" * 9_000,
    ],
)
def test_schema_that_may_take_long_is_not_quick(text: str) -> None:
    assert not is_quick(text, 10)


def test_check_stops_after_some_errors() -> None:
    fields = {f"f{at}": {"type": "integer"} for at in range(300)}
    text = json.dumps({"type": "object", "properties": fields})
    assert len(answer_problems(text, dict.fromkeys(fields, "x"))) == 100


async def test_check_that_takes_too_long_is_ended() -> None:
    slow = DecisionQuestion(question="?", schema=schema(type="string", pattern="^(a+)+$"))
    with pytest.raises(BadAnswer, match="could not be checked in time"):
        await check_answer(slow, {"x": "a" * 60 + "!"}, 70, seconds=0)


async def test_check_apart_finds_what_is_wrong() -> None:
    unique = DecisionQuestion(question="?", schema=schema(type="array", uniqueItems=True))
    with pytest.raises(BadAnswer, match="non-unique"):
        await check_answer(unique, {"x": [1, 1]}, 10)
    await check_answer(unique, {"x": [1, 2]}, 10)
