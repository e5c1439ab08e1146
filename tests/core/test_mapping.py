from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioflow.core.mapping import WIDTH_LIMIT, check_cap, split, width
from aioflow.model import MapSource, MapSpec


def over(count):
    return MapSpec(tuple(MapSource(f"p{i}", i, -1) for i in range(count)))


@pytest.mark.parametrize(
    ("widths", "expected"),
    [
        pytest.param((7,), 7, id="one-source"),
        pytest.param((2, 3), 6, id="a-product"),
        pytest.param((5, 0, 10**9), 0, id="one-empty-source-empties-the-product"),
        pytest.param((2**40,) * 4, 2**160, id="a-product-never-wraps"),
    ],
)
def test_the_width_is_the_product(widths, expected):
    assert width(over(len(widths)), widths) == expected


@pytest.mark.parametrize("widths", [(), (3,), (3, 4, 5), (3, -1), (-1, -1)])
def test_a_width_that_is_missing_or_unknown_is_refused(widths):
    with pytest.raises(ValueError, match="width"):
        width(over(2), widths)


def test_the_last_source_varies_fastest():
    assert [split(i, (2, 3)) for i in range(6)] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


@pytest.mark.parametrize(
    ("index", "widths"),
    [(-1, (4,)), (4, (4,)), (-1, (2, 3)), (6, (2, 3)), (0, (0,)), (0, (0, 3)), (0, (3, 0))],
)
def test_there_is_no_child_outside_the_product(index, widths):
    with pytest.raises(IndexError, match="child"):
        split(index, widths)


@given(widths=st.lists(st.integers(0, 6), min_size=1, max_size=4))
def test_every_combination_of_items_is_exactly_one_child(widths):
    children = [split(i, widths) for i in range(width(over(len(widths)), widths))]

    assert children == list(itertools.product(*map(range, widths)))


@given(widths=st.lists(st.integers(1, 10**12), min_size=1, max_size=6), data=st.data())
def test_a_child_is_found_back_from_its_items_however_wide(widths, data):
    index = data.draw(st.integers(0, width(over(len(widths)), widths) - 1))

    back = 0
    for item, size in zip(split(index, widths), widths, strict=True):
        assert 0 <= item < size
        back = back * size + item
    assert back == index


@pytest.mark.parametrize(
    ("children", "limit", "is_refused"),
    [
        pytest.param(50_000, 50_000, False, id="exactly-the-limit"),
        pytest.param(50_001, 50_000, True, id="one-more"),
        pytest.param(0, 1, False, id="empty"),
        pytest.param(WIDTH_LIMIT, 10**30, False, id="as-wide-as-numbers-allow"),
        pytest.param(WIDTH_LIMIT + 1, 10**30, True, id="wider-than-numbers-allow"),
        pytest.param(2**64, 50_000, True, id="a-product-that-would-wrap-to-nothing"),
    ],
)
def test_a_fan_out_above_its_cap_is_refused(children, limit, is_refused):
    refusal = check_cap(children, limit)

    assert (refusal is not None) is is_refused
    if refusal is not None:
        assert refusal.count == children
        assert refusal.limit == min(limit, WIDTH_LIMIT)
