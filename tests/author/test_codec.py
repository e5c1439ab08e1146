"""Values are decoded as they were encoded, or rejected where they are written."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, Protocol, SupportsAbs, SupportsInt, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioflow.author import codec
from aioflow.author.decode import is_protocol, restore
from aioflow.errors import Unserializable


class Colour(Enum):
    RED = "red"
    DEEP = ("deep", 2)


class Size(IntEnum):
    SMALL = 1


class Kind(StrEnum):
    OLD = "old"


@dataclass(frozen=True)
class Item:
    sku: str
    price: Decimal


@dataclass
class Order:
    number: int
    placed: datetime
    items: list[Item]
    colour: Colour = Colour.RED
    total: Decimal = field(init=False, default=Decimal(0))


class Shape(msgspec.Struct):
    corners: tuple[int, ...]
    parent: Shape | None = None


class Point(NamedTuple):
    x: Decimal
    y: Decimal


class Row(TypedDict):
    day: date
    note: NotRequired[str]


KOLKATA = ZoneInfo("Asia/Kolkata")
ORDER = Order(7, datetime(2026, 1, 1, 3, tzinfo=KOLKATA), [Item("a", Decimal("1.10"))], Colour.DEEP)
ORDER.total = Decimal("1.10")


def travelled(value: Any, annotation: Any = Any) -> Any:
    return codec.decode(codec.encode(value, "x"), annotation)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -(2**63),
        2**64 - 1,
        2**64,
        -(2**200),
        1.5,
        "text",
        "ünï",
        b"\x00\xff",
        [1, [2, []]],
        {"a": {"b": None}},
        {1: "one", (1, 2): "pair", date(2026, 1, 1): "day"},
        (1, ("a", 2)),
        {1, 2},
        frozenset({"a"}),
        date(2026, 1, 1),
        datetime(2026, 1, 1, 3),  # noqa: DTZ001 - that it has no zone is the point
        datetime(2026, 1, 1, 3, tzinfo=UTC),
        datetime(2026, 1, 1, 3, 0, 0, 7, tzinfo=timezone(timedelta(hours=5, minutes=30))),
        time(3, 4),
        timedelta(days=-1, microseconds=3),
        Decimal("1.10"),
        UUID(int=5),
        Path("/a/b"),
    ],
    ids=repr,
)
def test_it_comes_back_as_what_it_was_without_any_annotation(value):
    back = travelled(value)

    assert back == value
    assert type(back) is type(value)


def test_a_zone_keeps_its_name_and_which_of_two_hours_it_was():
    second = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)

    back = travelled(second)

    assert back.tzinfo.key == "Europe/Berlin"
    assert back.utcoffset() == timedelta(hours=1)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        pytest.param(Colour.RED, "red", id="enum"),
        pytest.param(Size.SMALL, 1, id="int-enum"),
        pytest.param(Kind.OLD, "old", id="str-enum"),
        pytest.param(Item("a", Decimal(1)), {"sku": "a", "price": Decimal(1)}, id="dataclass"),
        pytest.param(Shape((1,)), {"corners": (1,), "parent": None}, id="struct"),
        pytest.param(Point(Decimal(1), Decimal(2)), (Decimal(1), Decimal(2)), id="named-tuple"),
        pytest.param(OrderedDict(a=1), {"a": 1}, id="ordered-dict"),
        pytest.param(deque([1, 2]), [1, 2], id="deque"),
        pytest.param(range(3), [0, 1, 2], id="range"),
        pytest.param(bytearray(b"x"), b"x", id="bytearray"),
    ],
)
def test_objects_are_plain_data_without_an_annotation(value, plain):
    assert travelled(value) == plain
    assert type(travelled(value)) is type(plain)


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        pytest.param(Colour.DEEP, Colour, id="enum"),
        pytest.param(Size.SMALL, Size, id="int-enum"),
        pytest.param(ORDER, Order, id="nested-dataclass"),
        pytest.param(Shape((1,), Shape(())), Shape, id="nested-struct"),
        pytest.param(Point(Decimal(1), Decimal(2)), Point, id="named-tuple"),
        pytest.param([Item("a", Decimal(1))], list[Item], id="list"),
        pytest.param({"k": Item("a", Decimal(1))}, dict[str, Item], id="dict"),
        pytest.param({Item("a", Decimal(1))}, set[Item], id="set-of-dataclasses"),
        pytest.param({Item("a", Decimal(1)): 2}, dict[Item, int], id="keys-of-dataclasses"),
        pytest.param((Item("a", Decimal(1)), 2), tuple[Item, int], id="tuple"),
        pytest.param(Item("a", Decimal(1)), Item | None, id="optional"),
        pytest.param(None, Item | None, id="none-of-optional"),
        pytest.param(Item("a", Decimal(1)), Order | Item | str, id="union-by-fields"),
        pytest.param("a", Item | str, id="union-plain"),
        pytest.param({"day": date(2026, 1, 1)}, Row, id="typed-dict"),
        pytest.param([Colour.RED], Sequence[Colour], id="abstract-sequence"),
    ],
)
def test_an_annotation_brings_objects_back(value, annotation):
    back = travelled(value, annotation)

    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        pytest.param(None, Decimal, id="a-parent-that-gave-nothing"),
        pytest.param(5, str, id="an-int-for-a-str"),
        pytest.param(["a"], Item, id="a-list-for-a-dataclass"),
        pytest.param({"a": 1}, list[int], id="a-dict-for-a-list"),
    ],
)
def test_values_of_another_type_than_the_annotation_are_passed_unchanged(value, annotation):
    assert travelled(value, annotation) == value


@pytest.mark.parametrize(
    ("value", "annotation", "complaint"),
    [
        pytest.param({"sku": "a"}, Item, "price", id="missing-field"),
        pytest.param({"sku": "a", "price": 1, "x": 2}, Item, "'x'", id="unknown-field"),
        pytest.param("nonsense", Decimal, "nonsense", id="no-decimal"),
        pytest.param("blue", Colour, "blue", id="no-member"),
        pytest.param([{"sku": "a", "price": "?"}], list[Item], r"\[0\].price", id="deep-inside"),
    ],
)
def test_values_in_the_plain_form_of_the_annotation_that_are_invalid_are_refused(
    value, annotation, complaint
):
    with pytest.raises(Unserializable, match=complaint):
        travelled(value, annotation)


def recursive() -> list[Any]:
    loop: list[Any] = []
    loop.append({"again": loop})
    return loop


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        pytest.param(object(), "x holds a object", id="object"),
        pytest.param({"a": [1, object()]}, r"x\['a'\]\[1\]", id="object-inside"),
        pytest.param(Item("a", Decimal("NaN")), r"x\.price.*NaN", id="decimal-nan"),
        pytest.param(math.nan, "nan", id="nan"),
        pytest.param(math.inf, "inf", id="infinity"),
        pytest.param("\ud800", "lone surrogate", id="surrogate"),
        pytest.param({"\udfff": 1}, "lone surrogate", id="surrogate-in-a-key"),
        pytest.param(recursive(), "contains itself", id="cycle"),
        pytest.param(deep(codec.DEPTH_LIMIT), "nested deeper", id="depth"),
        pytest.param(len, "builtin_function", id="function"),
        pytest.param(Item, "type", id="class"),
        pytest.param((n for n in range(3)), "generator", id="generator"),
        pytest.param(time(3, tzinfo=KOLKATA), "depends on the day", id="time-with-a-zone"),
    ],
)
def test_unserializable_values_are_refused_with_their_location(value, complaint):
    with pytest.raises(Unserializable, match=complaint):
        codec.encode(value, "x")


def test_the_deepest_that_may_travel_does():
    value = deep(codec.DEPTH_LIMIT - 1)

    assert travelled(value) == value


def test_the_same_object_twice_is_no_cycle():
    shared = [1]

    assert travelled([shared, shared]) == [[1], [1]]


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", b"\x92\x01", msgspec.msgpack.encode(msgspec.msgpack.Ext(99, b""))],
    ids=["nothing", "no-msgpack", "cut-off", "unknown-extension"],
)
def test_damaged_data_is_named(data):
    with pytest.raises(Unserializable, match="the result"):
        codec.decode(data, where="the result")


def test_fields_are_named_in_errors():
    with pytest.raises(Unserializable, match=r"FileTrigger\.path"):
        codec.encode_fields({"path": object()}, "FileTrigger")


# Comparing with ``==`` is not enough: nan differs from itself, and 0 == False.
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
    | st.dates()
    | st.datetimes(timezones=st.none() | st.timezones() | st.just(UTC))
    | st.timedeltas()
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.uuids()
)
keys = st.text(st.characters(exclude_categories=["Cs"])) | st.integers() | st.dates()
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys, inner) | st.sets(keys)
    ),
)


def comes_back(value: object) -> None:
    back = travelled(value)

    assert back == value
    assert type(back) is type(value)


@given(values)
@settings(max_examples=30)
def test_compositions_of_these_are_restored_equal_and_of_the_same_type(value):
    comes_back(value)


@pytest.mark.nightly
@given(values)
@settings(max_examples=300)
def test_much_that_is_made_of_these_comes_back_equal_and_of_its_type(value):
    comes_back(value)


@given(st.binary())
def test_noise_is_refused_or_read_but_never_breaks_anything_else(data):
    with suppress(Unserializable):
        codec.decode(data)


# ── texts written by users ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("value", "annotation", "restored"),
    [
        ("2026-01-01", date, date(2026, 1, 1)),
        ("2026-01-01T03:00:00Z", datetime, datetime(2026, 1, 1, 3, tzinfo=UTC)),
        ("5m", timedelta, timedelta(minutes=5)),
        (90, timedelta, timedelta(seconds=90)),
        (10.1, Decimal, Decimal("10.1")),
        (3, float, 3.0),
        ("/drop", Path, Path("/drop")),
        ("aGk=", bytes, b"hi"),
        ("red", Colour, Colour.RED),
        (["1", "2"], tuple[Decimal, ...], (Decimal(1), Decimal(2))),
        ({"sku": "a", "price": 2}, Item, Item("a", Decimal(2))),
        (None, int | None, None),
        ("2026-01-01", date | None, date(2026, 1, 1)),
    ],
    ids=str,
)
def test_json_becomes_what_a_parameter_asks_for(value, annotation, restored):
    back = restore(value, annotation, "conf", strict=True)

    assert back == restored
    assert type(back) is type(restored)


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        ("abc", int),
        (True, int),
        (1, bool),
        (1.5, int),
        (None, date),
        ("2026-13-01", date),
        (["a"], list[int]),
        ({"note": "no day"}, Row),
        ("1", int | None),
        ("!", bytes),
    ],
    ids=str,
)
def test_json_of_another_type_is_refused_where_that_matters(value, annotation):
    with pytest.raises(Unserializable, match="conf"):
        restore(value, annotation, "conf", strict=True)


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        pytest.param(Protocol, True, id="protocol"),
        pytest.param(SupportsInt, True, id="of-typing"),
        pytest.param(SupportsAbs[int], True, id="with-arguments"),
        pytest.param(type("Named", (SupportsInt,), {}), False, id="a-class-below"),
        pytest.param(list[int], False, id="list"),
        pytest.param(int | None, False, id="union"),
        pytest.param(None, False, id="none"),
    ],
)
def test_a_protocol_is_distinguished_from_a_class(annotation, expected):
    assert is_protocol(annotation) is expected
