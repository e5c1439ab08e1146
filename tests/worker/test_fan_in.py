from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioflow.model.states import TaskState
from aioflow.worker.query.messages import ResultsPage
from aioflow.worker.task.items import Results


class Parent:
    """A parent that serves pages as the daemon does: children in map order, some of them failed."""

    def __init__(self, outcomes: list[bool], sizes: list[int]) -> None:
        self.outcomes = outcomes
        self.asked = 0
        self._cuts = [-2]
        for size in sizes:
            self._cuts.append(max(self._cuts[-1], -1) + size)

    def page(self, after: int) -> ResultsPage:
        self.asked += 1
        width = len(self.outcomes)
        place = self._cuts.index(after)
        last = self._cuts[place + 1] if place + 1 < len(self._cuts) else width - 1
        last = min(last, width - 1)
        children = range(max(after, -1) + 1, last + 1)
        return ResultsPage(
            width,
            [(n, n, 1, b"") for n in children if self.outcomes[n]],
            [(n, TaskState.FAILED, None) for n in children if not self.outcomes[n]],
            last,
            more=last < width - 1,
        )

    def results(self) -> Results:
        return Results(self.page, lambda task_no, start_no, body: task_no)


parents = st.builds(
    Parent,
    st.lists(st.booleans(), min_size=1, max_size=60),
    st.lists(st.integers(1, 9), max_size=30),
)


@given(parents)
def test_it_is_the_list_of_what_succeeded(parent):
    expected = [n for n, succeeded in enumerate(parent.outcomes) if succeeded]
    results = parent.results()

    assert list(results) == expected
    assert len(results) == len(expected)
    assert list(results.indexes) == expected
    assert [f.index for f in results.failed] == sorted(
        set(range(len(parent.outcomes))) - set(expected)
    )
    assert results.width == len(parent.outcomes)
    assert results[:] == expected
    assert list(reversed(results)) == expected[::-1]


@given(parents, st.data())
def test_any_index_in_any_order_gives_what_a_list_gives(parent, data):
    expected = [n for n, succeeded in enumerate(parent.outcomes) if succeeded]
    results = parent.results()

    for index in data.draw(st.lists(st.integers(-70, 70), max_size=10)):
        try:
            wanted = expected[index]
        except IndexError:
            with pytest.raises(IndexError):
                results[index]
        else:
            assert results[index] == wanted


def test_the_first_result_costs_one_page():
    parent = Parent([True] * 1_000, [10] * 99)

    assert next(iter(parent.results())) == 0
    assert parent.asked == 1


def test_a_walk_asks_for_every_page_once():
    parent = Parent([True] * 1_000, [10] * 99)

    assert sum(parent.results()) == sum(range(1_000))
    assert parent.asked == 100
