"""Classes for which an author has registered a codec. Errors of a codec name the location."""

from __future__ import annotations

import array
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from aioflow import DagError, Trigger, register_codec
from aioflow.author import codec
from aioflow.author.trigger import construct, serialize
from aioflow.author.type_check import fits
from aioflow.errors import Unserializable


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and other.cents == self.cents

    __hash__ = None  # type: ignore[assignment]


class Tip(Money):
    """A subclass without a codec of its own, which is serialized like its base class."""


class Purse:
    def __init__(self, coins: list[Money]) -> None:
        self.coins = coins


register_codec(Money, encode=lambda money: money.cents, decode=Money)
register_codec(Purse, encode=lambda purse: purse.coins, decode=lambda cents: Purse(cents))


@dataclass
class Bill:
    total: Money
    lines: list[Money]


@dataclass(frozen=True)
class Paid(Trigger[Money]):
    amount: Money


def travelled(value: object, annotation: Any = Any) -> Any:
    return codec.decode(codec.encode(value, "the value"), annotation)


def test_a_value_comes_back_by_its_annotation():
    assert travelled(Money(250), Money) == Money(250)
    assert travelled([Money(1), Money(2)], list[Money]) == [Money(1), Money(2)]
    assert travelled({"a": None}, dict[str, Money | None]) == {"a": None}
    assert travelled({"a": Money(3)}, dict[str, Money | None]) == {"a": Money(3)}
    assert travelled(Bill(Money(3), [Money(1)]), Bill) == Bill(Money(3), [Money(1)])


def test_without_an_annotation_it_is_what_it_was_made_into():
    assert travelled(Money(250)) == 250
    assert travelled(Purse([Money(1)])) == [1]


def test_a_subclass_travels_as_what_it_is_derived_from():
    assert travelled(Tip(5), Money) == Money(5)


def test_a_trigger_may_have_such_a_field():
    trigger = Paid(Money(7))

    assert construct(Paid, serialize(trigger)[1]) == trigger


def test_a_class_that_takes_no_attribute_may_have_a_codec_as_well():
    register_codec(
        array.array, encode=lambda given: list(given), decode=lambda items: array.array("d", items)
    )

    assert travelled(array.array("d", [1.0, 2.5]), array.array) == array.array("d", [1.0, 2.5])


@pytest.mark.parametrize("cls", [int, str, dict, Decimal, 5])
def test_types_that_are_serializable_anyway_have_no_codec(cls):
    with pytest.raises(DagError, match="a class of your own or of a library"):
        register_codec(cls, encode=str, decode=str)


def test_a_codec_that_raises_is_named_with_the_place():
    class Odd:
        pass

    register_codec(
        Odd,
        encode=lambda odd: odd.nothing,  # type: ignore[attr-defined]
        decode=lambda plain: plain["nothing"],
    )

    with pytest.raises(Unserializable, match=r"the value\['a'\] holds a .*Odd.*its codec raised"):
        codec.encode({"a": Odd()}, "the value")
    with pytest.raises(Unserializable, match="the codec of Odd raised TypeError"):
        codec.decode(codec.encode(5, ""), Odd)


def test_a_codec_without_end_is_refused():
    class Endless:
        pass

    register_codec(Endless, encode=lambda one: [one], decode=lambda plain: Endless())

    with pytest.raises(Unserializable, match="does not come to an end"):
        codec.encode(Endless(), "the value")


def test_without_a_codec_the_error_says_that_there_may_be_one():
    class Plain:
        pass

    with pytest.raises(Unserializable, match=r"register_codec\(\) can have"):
        codec.encode(Plain(), "the value")
    with pytest.raises(Unserializable, match="function") as caught:
        codec.encode(travelled, "the value")
    assert "register_codec" not in str(caught.value)


def test_an_edge_to_such_a_class_is_not_judged():
    assert fits(int, Money)
    assert fits(Tip, str)
