"""Packing a value uses little more memory than its limit, whatever the value is."""

from __future__ import annotations

import ast
import gc
import itertools
import math
import time
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import aioflow
from aioflow.author import codec
from aioflow.author.codec import Packing
from aioflow.author.msgpack_forms import packed_small, register_codec
from aioflow.author.params import json_text
from aioflow.errors import Unserializable, ValueTooLarge
from tests.sampling import sampled

LIMIT = 64 * 1024


class Endless(Sequence[Any]):
    """A sequence that claims to have ten items, and yields endlessly many."""

    def __init__(self, item: object = None) -> None:
        self.item = item

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: Any) -> Any:
        return self.item

    def __iter__(self) -> Iterator[Any]:
        return itertools.repeat(self.item)


class EndlessMap(Mapping[Any, Any]):
    def __init__(self, keys: Any) -> None:
        self.keys_of = keys

    def __len__(self) -> int:
        return 1

    def __getitem__(self, key: object) -> int:
        return 1

    def __iter__(self) -> Iterator[Any]:
        return self.keys_of()


class OneNameForever(Mapping[str, int]):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, key: object) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        return iter(["name"])

    def items(self) -> Any:
        return itertools.repeat(("name", 1))


class EndlessSet(AbstractSet[int]):
    def __len__(self) -> int:
        return 1

    def __contains__(self, item: object) -> bool:
        return True

    def __iter__(self) -> Iterator[int]:
        return itertools.count()


class LyingList(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        return itertools.repeat(1)


class LyingDict(dict[str, Any]):
    def items(self) -> Any:
        return ((f"{n}", n) for n in itertools.count())


@dataclass
class Holder:
    rows: Any


class Shared:
    """A class whose codec makes a list that never ends."""


class Again:
    """A class whose codec returns another instance of it, so that encoding never ends."""


class Tiny(Enum):
    ONE = 1


register_codec(Shared, encode=lambda _: Endless(), decode=lambda _: Shared())
register_codec(Again, encode=lambda _: [Again(), 1], decode=lambda _: Again())


def doubled(leaf: object, kind: Any = list) -> Any:
    value: Any = leaf
    for _ in range(60):
        value = kind([value, value])
    return value


def doubled_maps() -> Any:
    value: Any = "x" * 10
    for _ in range(60):
        value = {"a": value, "b": value}
    return value


TOO_LARGE = {
    "shared-lists": lambda: doubled("x" * 10),
    "shared-empty-lists": lambda: doubled([]),
    "shared-tuples": lambda: doubled(1, tuple),
    "shared-maps": doubled_maps,
    "shared-maps-of-numbers": lambda: doubled({1: 2}),
    "shared-dataclasses": lambda: doubled(Holder(None)),
    "shared-enums": lambda: doubled(Tiny.ONE),
    "shared-bytes": lambda: [b"x" * 4096] * 10_000_000,
    "shared-text": lambda: ["\u00e9" * 1000] * 10_000_000,
    "rows": lambda: [[[[1.5] * 100] * 100] * 100] * 100,
    "numbers": lambda: [[0] * 100_000] * 100_000,
    "decimals": lambda: [Decimal(1) / 3] * 10_000_000,
    "endless-sequence": lambda: Endless(),
    "endless-below-the-top": lambda: {"rows": Endless()},
    "endless-of-lists": lambda: Endless([]),
    "endless-of-tuples": lambda: Endless(()),
    "endless-of-endless": lambda: Endless(Endless()),
    "endless-text-keys": lambda: EndlessMap(lambda: map(str, itertools.count())),
    "endless-number-keys": lambda: EndlessMap(itertools.count),
    "one-key-forever": OneNameForever,
    "endless-set": EndlessSet,
    "lying-list": LyingList,
    "lying-dict": LyingDict,
    "in-a-dataclass": lambda: Holder(Endless()),
    "endless-codec": Shared,
    "wide-text": lambda: "\u20ac" * LIMIT,
    "huge-integer": lambda: 1 << (9 * LIMIT),
    "huge-decimal": lambda: Decimal((0, (1,) * (LIMIT + 1), 0)),
    "huge-bytes": lambda: bytearray(LIMIT + 1),
}  # fmt: skip
SAMPLE = {
    "shared-lists", "shared-dataclasses", "rows", "endless-sequence", "endless-text-keys",
    "lying-dict", "endless-codec", "wide-text", "huge-integer",
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_garbage_is_collected() -> Iterator[None]:
    """Disable garbage collection: after many tests it takes long, and must not count as packing."""
    gc.disable()
    yield
    gc.enable()


def steps_of(packing: Packing) -> tuple[Unserializable | None, float]:
    """Pack a value completely. Return its error, and the duration of the longest step."""
    longest, is_done = 0.0, False
    while not is_done:
        began = time.thread_time()
        try:
            is_done = packing.run()
        except Unserializable as exc:
            return exc, longest
        longest = max(longest, time.thread_time() - began)
    return None, longest


@pytest.mark.parametrize("kind", sampled(TOO_LARGE, SAMPLE))
def test_packing_too_large_a_value_stops_at_the_limit_and_no_step_takes_long(kind):
    make = TOO_LARGE[kind]
    packing = Packing(make(), "x", LIMIT)
    tracemalloc.start()
    try:
        problem, _ = steps_of(packing)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    longest = []  # tracing slows every allocation, and now and then the machine does
    while not longest or (longest[-1] >= 0.05 and len(longest) < 3):
        longest.append(steps_of(Packing(make(), "x", LIMIT))[1])

    assert isinstance(problem, ValueTooLarge)
    assert peak < 3 * LIMIT + 1024 * 1024
    assert min(longest) < 0.05, longest


WIDE = 4 * 1024 * 1024
PART = WIDE // 9
"""A ninth of the limit: nine parts fit. Thousands of references to a part take little memory."""


class Name(str):
    __slots__ = ()


BULKY = {
    "buffers": lambda: [bytearray(PART)] * 10_000,
    "views": lambda: (memoryview(bytes(PART)),) * 10_000,
    "paths": lambda: [Path("a" * PART)] * 10_000,
    "derived-text": lambda: [Name("a" * PART)] * 10_000,
    "wide-text": lambda: ["\u20ac" * (PART // 3)] * 10_000,
    "wide-text-alone": lambda: "\u20ac" * WIDE,
    "wide-keys": lambda: [{"\u20ac" * PART: 1}] * 10_000,
    "fields": lambda: [Holder(bytearray(PART))] * 10_000,
    "little-of-text": lambda: [[["\u20ac" * 1000] * 30] * 30] * 30,
    "little-of-paths": lambda: [[[Path("a" * PART)] * 30] * 30] * 30,
    "little-of-keys": lambda: [[[{"\u20ac" * 1000: 1}] * 30] * 30] * 30,
    "text-in-tuples": lambda: nested("x" * WIDE, tuple),
}  # fmt: skip


def nested(value: object, kind: Any) -> Any:
    for _ in range(50):
        value = kind([value])
    return value


def cost_of(value: object, limit: int) -> tuple[Unserializable | None, int, float]:
    """Pack a value as hosts do. Return its error, its memory, and its longest step."""
    longest, problem, is_done = 0.0, None, False
    tracemalloc.start()
    try:
        steps = codec.in_steps(value, "x", limit)
        while not is_done:
            began = time.thread_time()
            try:
                next(steps)
            except StopIteration:
                is_done = True
            except Unserializable as exc:
                problem, is_done = exc, True
            longest = max(longest, time.thread_time() - began)
        return problem, tracemalloc.get_traced_memory()[1], longest
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("make", BULKY.values(), ids=BULKY.keys())
def test_large_parts_that_stand_in_a_value_many_times_are_not_copied_beyond_the_limit(make):
    problem, peak, longest = cost_of(make(), WIDE)

    assert isinstance(problem, ValueTooLarge)
    assert peak < WIDE + 3 * 1024 * 1024
    assert longest < 0.1


def test_a_large_value_that_fits_is_copied_once_however_deep_it_stands():
    problem, peak, longest = cost_of(nested("x" * (WIDE - 1000), tuple), WIDE)

    assert problem is None
    assert peak < 3 * WIDE
    assert longest < 0.1


def test_long_text_comes_back_whole_whatever_its_characters_take():
    text = "a\u20ac\U0001f600" * 500_000

    for value in (text, {"k": [text]}, (text, 1)):
        assert codec.decode(codec.encode(value, "x", 64 * LIMIT * LIMIT)) == value


def test_a_lone_surrogate_in_long_text_is_named_with_its_place():
    with pytest.raises(Unserializable, match=r"x\['k'\].*a lone surrogate at 1500000"):
        codec.encode({"k": "\u20ac" * 1_500_000 + "\ud800"}, "x", 64 * LIMIT * LIMIT)


def test_a_codec_that_makes_two_more_of_its_class_does_not_come_to_an_end():
    with pytest.raises(Unserializable, match="does not come to an end"):
        codec.encode(Again(), "x", LIMIT)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        pytest.param({"rows": Endless(), "n": 1}, "x['rows'] is", id="key"),
        pytest.param([1, 2, 3, Holder(Endless())], "x[3].rows is", id="field"),
        pytest.param({"a": ["y" * 700, b"z" * 900]}, "x['a'][1] is", id="large-leaf"),
        pytest.param({"a": [b"z" * 900, 1], "b": "y" * 300}, "x['a'][0] is", id="large-before"),
        pytest.param({(1, 2): Endless()}, "x[a tuple] is", id="value-of-another-key"),
        pytest.param({Path("a" * 2000): 1}, "a key of x is", id="key-itself"),
        pytest.param(["y" * 100] * 100, "x is", id="none-of-many"),
        pytest.param({"k" * 400: Endless()}, f"x['{'k' * 59}…] is", id="long-key"),
    ],
)
def test_the_error_names_what_takes_most_of_the_room(value, place):
    with pytest.raises(ValueTooLarge, match="too large: 1 KiB are allowed") as caught:
        codec.encode(value, "x", 1024)

    assert str(caught.value).startswith(place)


def test_fields_share_one_limit_and_the_largest_is_named():
    with pytest.raises(ValueTooLarge, match=r"^T\.big is too large"):
        codec.encode_fields({"big": "x" * 600, "small": 1, "more": "y" * 500}, "T", 1024)


@pytest.mark.parametrize("size", [0, 15, 16, 31, 32, 33, 255, 256, 257, 65_535, 65_536, 70_000])
@pytest.mark.parametrize(
    "kind", [list, tuple, set, frozenset, dict.fromkeys], ids=lambda kind: kind.__name__
)
def test_containers_of_any_size_come_back_whole(kind, size):
    value = kind(f"{n}" for n in range(size))

    assert codec.decode(codec.encode(value, "x", 128 * LIMIT)) == value


def test_rows_come_back_whole():
    value = [{"id": n, "at": (n, [n] * (n % 40)), 1: {n: Decimal(n)}} for n in range(3000)]

    assert codec.decode(codec.encode(value, "x", 128 * LIMIT)) == value


def test_exactly_the_limit_is_allowed():
    body = codec.encode("x" * 900, "x", 1000)

    assert codec.encode("x" * 900, "x", len(body)) == body
    with pytest.raises(ValueTooLarge):
        codec.encode("x" * 900, "x", len(body) - 1)


LEAVES = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=4) | st.decimals()
    | st.floats() | st.binary(max_size=4) | st.dates() | st.datetimes() | st.timedeltas()
    | st.uuids() | st.sampled_from([Tiny.ONE, Path("/a"), object(), "\ud800", math.nan])
)  # fmt: skip
KEYS = st.text(max_size=3) | st.integers() | st.tuples(st.integers())
VALUES = st.recursive(
    LEAVES,
    lambda items: (
        st.lists(items, max_size=4)
        | st.dictionaries(KEYS, items, max_size=4)
        | st.lists(items, max_size=3).map(tuple)
        | st.builds(Holder, items)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_a_small_value_is_packed_as_any_other_is(value):
    small = packed_small(value)
    packing = Packing(value, "x", LIMIT)

    if small is not None:
        while not packing.run():
            pass
        assert packing.body == small


@pytest.mark.parametrize("value", [doubled("x"), {"a": Endless}, {"a": "x" * (1 << 20)}])
def test_a_default_of_a_parameter_is_no_larger_than_its_limit(value):
    with pytest.raises((ValueError, TypeError)):
        json_text(value)


def test_every_place_that_packs_a_value_says_its_limit():
    places = {"encode", "encode_fields", "in_steps", "fields_in_steps"}
    calls = [
        (path, call)
        for path in Path(aioflow.__file__).parent.rglob("*.py")
        if path.parent.name != "testing" and "aioflow.author" in (text := path.read_text())
        and "codec" in text
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name) and call.func.value.id == "codec"
        and call.func.attr in places
    ]  # fmt: skip

    assert len(calls) > 10
    assert [(str(path), call.lineno) for path, call in calls if len(call.args) < 3] == []
