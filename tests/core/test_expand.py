from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioflow.core.tasks.expand import WIDTH_LIMIT, check_cap, consumers, leaves, pick, split, width
from aioflow.model.dag import MapSource, MapSpec


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


def joined(join, *parts):
    return MapSource("", -1, -1, join, parts)


ONE = MapSource("", -1, 0)


@pytest.mark.parametrize(
    ("join", "widths", "expected"),
    [
        pytest.param("zip", (3, 2), 2, id="a-zip-ends-with-the-shortest"),
        pytest.param("zip_longest", (3, 2), 3, id="or-with-the-longest"),
        pytest.param("concat", (3, 2), 5, id="one-behind-the-other"),
        pytest.param("zip", (0, 9), 0, id="nothing-to-zip-with"),
    ],
)
def test_a_joined_source_has_the_width_of_its_parts(join, widths, expected):
    assert width(MapSpec((joined(join, ONE, ONE),)), widths) == expected


def test_a_child_takes_an_item_of_each_list_of_a_zip():
    spec = MapSpec((joined("zip_longest", ONE, ONE),))

    assert [pick(spec, i, (1, 3)) for i in range(3)] == [(0, 0), (-1, 1), (-1, 2)]


def test_a_child_takes_an_item_of_one_list_of_a_concat():
    spec = MapSpec((joined("concat", ONE, ONE, ONE),))

    assert [pick(spec, i, (2, 0, 1)) for i in range(3)] == [(0, -1, -1), (1, -1, -1), (-1, -1, 0)]


TREES = st.recursive(
    st.just(ONE),
    lambda inner: st.builds(
        lambda join, parts: joined(join, *parts),
        st.sampled_from(["zip", "zip_longest", "concat"]),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=6,
)


def items_of(source, lists):
    """Return the items, joined by Python itself. Each item is a list of ``(leaf, index)``."""
    if not source.join:
        return [[item] for item in next(lists)]
    parts = [items_of(part, lists) for part in source.parts]
    if source.join == "concat":
        return list(itertools.chain(*parts))
    if source.join == "zip":
        return [list(itertools.chain(*row)) for row in zip(*parts, strict=False)]
    return [list(itertools.chain(*row)) for row in itertools.zip_longest(*parts, fillvalue=[])]


@given(trees=st.lists(TREES, min_size=1, max_size=2), data=st.data())
def test_children_take_what_python_would_make_of_the_lists(trees, data):
    spec = MapSpec(tuple(trees))
    count = sum(1 for _ in leaves(trees))
    widths = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    lists = iter([[(leaf, i) for i in range(size)] for leaf, size in enumerate(widths)])
    expected = itertools.product(*[items_of(tree, lists) for tree in trees])

    taken = [
        {(leaf, i) for leaf, i in enumerate(pick(spec, child, widths)) if i >= 0}
        for child in range(width(spec, widths))
    ]

    assert taken == [set(itertools.chain(*parts)) for parts in expected]


@given(trees=st.lists(TREES, min_size=1, max_size=3), data=st.data())
def test_the_children_that_take_an_item_are_those_that_pick_it(trees, data):
    spec = MapSpec(tuple(trees))
    count = sum(1 for _ in leaves(trees))
    widths = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    picks = [pick(spec, child, widths) for child in range(width(spec, widths))]

    for leaf, size in enumerate(widths):
        for item in range(size):
            expected = [child for child, picked in enumerate(picks) if picked[leaf] == item]
            assert list(consumers(spec, leaf, item, widths)) == expected
