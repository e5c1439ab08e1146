from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioflow.core.state.graph import Graph
from aioflow.core.state.graph_validation import validate
from aioflow.errors import CycleError
from aioflow.model.dag import DagSpec, TaskSpec


def dag(tasks):
    return DagSpec(dag_id="etl", file="etl.py", tasks=tuple(tasks))


def named(**parents):
    """Make tasks from ``name=[names of parents]``."""
    names = list(parents)
    return [
        TaskSpec(task_id=name, parents=tuple(sorted(names.index(p) for p in of)))
        for name, of in parents.items()
    ]


# ── shape ───────────────────────────────────────────────────────────────────────────────


def test_a_graph_knows_both_ends_of_every_edge():
    graph = Graph(
        dag(named(extract=[], clean=["extract"], check=["extract"], load=["clean", "check"]))
    )

    assert graph.parents == ((), (0,), (0,), (1, 2))
    assert graph.children == ((1, 2), (3,), (3,), ())
    assert (graph.roots, graph.leaves) == ((0,), (3,))
    assert graph.index_of == {"extract": 0, "clean": 1, "check": 2, "load": 3}


def test_the_order_keeps_to_what_was_written_where_edges_leave_a_choice():
    graph = Graph(dag(named(load=["clean"], notify=[], clean=["extract"], extract=[], audit=[])))

    assert graph.order == (1, 3, 2, 0, 4)


def test_a_graph_cannot_be_made_of_a_circle():
    with pytest.raises(CycleError) as caught:
        Graph(dag(named(start=[], a=["start", "b"], b=["a"])))

    assert caught.value.path == ("a", "b", "a")


@st.composite
def acyclic(draw):
    """Return tasks whose edges follow a hidden order that differs from the order of the list."""
    size = draw(st.integers(1, 12))
    place = draw(st.permutations(range(size)))
    return [
        TaskSpec(
            task_id=f"t{task_index}",
            parents=tuple(
                parent
                for parent in range(size)
                if place[parent] < place[task_index] and draw(st.booleans())
            ),
        )
        for task_index in range(size)
    ]


@given(tasks=acyclic())
def test_every_parent_comes_before_its_children(tasks):
    graph = Graph(dag(tasks))

    assert sorted(graph.order) == list(range(len(tasks)))
    for child, task in enumerate(tasks):
        for parent in task.parents:
            assert graph.order.index(parent) < graph.order.index(child)
            assert child in graph.children[parent]
    assert sum(map(len, graph.children)) == sum(map(len, graph.parents))
    assert validate(tasks, "etl") == []


# ── size ────────────────────────────────────────────────────────────────────────────────

LONG = 10_000


@pytest.mark.parametrize("closed", [False, True], ids=["chain", "circle"])
def test_a_chain_may_be_as_long_as_its_author_likes(closed):
    tasks = [
        TaskSpec(task_id=f"t{i}", parents=(i - 1,) if i else (LONG - 1,) if closed else ())
        for i in range(LONG)
    ]

    findings = validate(tasks, "etl")

    if closed:
        [finding] = findings
        assert isinstance(finding, CycleError)
        assert len(finding.path) == LONG + 1
    else:
        assert findings == []
        assert Graph(dag(tasks)).order == tuple(range(LONG))


def test_a_wide_dag_is_read_in_a_moment():
    middle = tuple(range(1, LONG - 1))
    tasks = [
        TaskSpec(task_id="first"),
        *(TaskSpec(task_id=f"t{i}", parents=(0,)) for i in middle),
        TaskSpec(task_id="last", parents=middle),
    ]

    begin = time.process_time()
    findings = validate(tasks, "etl")
    graph = Graph(dag(tasks))
    took_seconds = time.process_time() - begin

    assert findings == []
    assert graph.leaves == (LONG - 1,)
    assert took_seconds < 2.0
