"""The input of a mapped child: items of several lists, passed through the author's functions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path

import msgspec
import pytest

from aioflow.author.codec import encode
from aioflow.protocol.commands import Reply
from aioflow.protocol.reports import Failed, Query, Skipped, Succeeded
from aioflow.results import result_path, write_list, write_value
from aioflow.worker.query.messages import ResultsPage, ResultsWanted, asked_alone
from tests.worker.peer import Child, result_of, run_info, start, write_version

HEAD = """
from __future__ import annotations
from dataclasses import dataclass
from datetime import date
from typing import Any
from aioflow import Skip, current, dag, task, task_group

@task
def listed() -> list[Any]: ...

@task
def other() -> list[Any]: ...

@task
def child(x: Any, y: int = 5) -> Any: return repr((x, y))

@task
def dated(x: tuple[date, int]) -> Any: return repr(x)

@task
async def hosted(x: Any, y: int = 5) -> Any: return repr((x, y))

def double(n: int) -> int: return 2 * n
def odd(n):
    if n % 2 == 0: raise Skip("even")
    return n
def broken(n): raise ValueError("no such thing")

"""

pytestmark = pytest.mark.process

Spawn = Callable[[str, str], Child]


@pytest.fixture
def taking(spawn, home) -> Spawn:
    """Return a function that starts a child for a DAG whose body has the given line."""

    def begin(role: str, line: str) -> Child:
        body = f"@dag\ndef pipeline():\n    {line}\n" if "@dag" not in line else line
        write_version(home, flow=HEAD + body)
        made: Child = spawn(role)
        made.send(run_info())
        return made

    return begin


def write(home: Path, task_no: int, *items: object) -> None:
    write_list(result_path(home / "results", task_no, 1), [encode(item, "") for item in items])


FILES = ((0, 100, 1), (1, 101, 1))


@pytest.mark.parametrize("role", ["slot", "async"])
def test_an_item_is_passed_through_functions_in_order(taking, home, role):
    write(home, 100, 3, 4)
    name = "child" if role == "slot" else "hosted"
    process = taking(role, f"{name}.expand(x=listed().map(double).map(str))")

    process.send(start(1, map_index=1, sources=FILES[:1], widths=(2,)))

    assert result_of(process.expect(Succeeded)) == "('8', 5)"


def test_a_function_that_skips_skips_its_child_alone(taking, home):
    write(home, 100, 3, 4)
    process = taking("slot", "child.expand(x=listed().map(odd))")

    process.send(start(1, task_no=7, map_index=1, sources=FILES[:1], widths=(2,)))
    assert process.expect(Skipped).message == "even"
    process.send(start(1, task_no=6, map_index=0, sources=FILES[:1], widths=(2,)))

    assert result_of(process.expect(Succeeded)) == "(3, 5)"


def test_a_function_that_raises_fails_its_try_as_the_body_would(taking, home):
    write(home, 100, 3)
    process = taking("slot", "child.expand(x=listed().map(broken))")

    process.send(start(1, map_index=0, sources=FILES[:1], widths=(1,)))

    failed = process.expect(Failed)
    assert (failed.failure.type, failed.failure.message) == ("ValueError", "no such thing")
    assert failed.retryable


@pytest.mark.parametrize(
    ("line", "index", "expected"),
    [
        pytest.param("listed().zip(other(), 'ab'.split())", 0, (1, 8, "ab"), id="zip"),
        pytest.param("listed().zip(other().map(double))", 1, (2, 18), id="a-part-passed-through"),
        pytest.param("listed().zip(other(), fillvalue='-')", 2, (3, "-"), id="filled"),
        pytest.param("listed().concat(other(), [0])", 2, 3, id="the-first-of-a-concat"),
        pytest.param("listed().concat(other(), [0])", 4, 9, id="the-second"),
        pytest.param("listed().concat(other(), [0])", 5, 0, id="the-last"),
        pytest.param("listed().concat(other()).map(double)", 3, 16, id="passed-through-after"),
        pytest.param("listed().zip(other()).map(sum)", 1, 11, id="a-tuple-passed-through"),
    ],
)
def test_items_of_several_lists(taking, home, line, index, expected):
    write(home, 100, 1, 2, 3)
    write(home, 101, 8, 9)
    process = taking("slot", f"child.expand(x={line})")
    widths = (3, 2) if "ab" not in line and "[0]" not in line else (3, 2, 1)

    process.send(start(2, map_index=index, sources=FILES, widths=widths))

    assert result_of(process.expect(Succeeded)) == repr((expected, 5))


def test_parts_of_a_zip_are_restored_as_the_parameter_says(taking, home):
    write(home, 100, date(2030, 1, 2))
    process = taking("slot", "dated.expand(x=listed().zip([3]))")

    process.send(start(1, map_index=0, sources=FILES[:1], widths=(1, 1)))

    assert result_of(process.expect(Succeeded)) == "(datetime.date(2030, 1, 2), 3)"


def test_a_product_of_what_is_joined(taking, home):
    write(home, 100, 1, 2)
    process = taking("slot", "child.expand(x=listed().concat([7]), y=[10, 20])")

    process.send(start(1, map_index=5, sources=FILES[:1], widths=(2, 1, 2)))

    assert result_of(process.expect(Succeeded)) == "(7, 20)"


def test_an_item_gives_the_parameters_of_its_child(taking, home):
    write(home, 100, {"x": "a", "y": 1}, {"x": "b"}, {"y": 3}, {"x": 1, "z": 2}, 7)
    process = taking("slot", "child.expand_kwargs(listed())")

    said = []
    for index in range(5):
        process.send(start(1, task_no=index, map_index=index, sources=FILES[:1], widths=(5,)))
        report = process.expect(Succeeded if index < 2 else Failed)
        said.append(result_of(report) if index < 2 else report.failure.message)

    assert said[:2] == ["('a', 1)", "('b', 5)"]
    assert "does not give 'x'" in said[2]
    assert "'z', which is not a parameter" in said[3]
    assert "this item is a int" in said[4]


def only_asked(process: Child, expected: list[tuple[int, int]], answers: dict[int, object]) -> None:
    """Answer the queries of a child one at a time, each with a result by its task index."""
    for task_index, index in expected:
        ask = process.expect(Query)
        wanted = msgspec.msgpack.decode(ask.body, type=ResultsWanted)
        assert (wanted.task_index, asked_alone(wanted.after)) == (task_index, index)
        items: list[tuple[int, int, int, bytes | None]] = []
        if task_index in answers:
            items = [(index, 7, 1, encode(answers[task_index], ""))]
        page = ResultsPage(3, items, [], last=index, more=False)
        process.send(Reply(ask.question, msgspec.msgpack.encode(page)))


@pytest.mark.parametrize("role", ["slot", "async"])
def test_a_child_takes_the_result_of_the_child_it_follows(taking, role):
    name = "child" if role == "slot" else "hosted"
    process = taking(role, f"{name}.expand(x=child.expand(x=[1, 2, 3]).map(str))")

    process.send(start(1, map_index=2, widths=(3,)))
    only_asked(process, [(0, 2)], {0: 12})

    assert result_of(process.expect(Succeeded)) == "('12', 5)"


def test_a_child_takes_none_of_one_that_gave_nothing(taking):
    process = taking("slot", "child.expand(x=child.expand(x=[1, 2, 3]))")

    process.send(start(1, map_index=0, widths=(3,)))
    only_asked(process, [(0, 0)], {})

    assert result_of(process.expect(Succeeded)) == "(None, 5)"


def test_a_large_result_of_the_child_it_follows_is_read_from_its_file(taking, home):
    process = taking("slot", "child.expand(x=child.expand(x=[1]))")
    write_value(result_path(home / "results", 7, 3), encode("large", ""))

    process.send(start(1, map_index=0, widths=(1,)))
    ask = process.expect(Query)
    page = ResultsPage(1, [(0, 7, 3, None)], [], last=0, more=False)
    process.send(Reply(ask.question, msgspec.msgpack.encode(page)))

    assert result_of(process.expect(Succeeded)) == "('large', 5)"


GROUP = """
@task_group
def pair(x):
    first = child(x)
    return dated((first, x))

@dag
def pipeline():
    pair.expand(x=[1, 2, 3])
"""


@pytest.mark.parametrize("role", ["slot", "async"])
def test_a_task_of_a_mapped_group_takes_the_others_at_its_index(taking, role):
    lines = GROUP if role == "slot" else GROUP.replace("dated(", "hosted(")
    process = taking(role, lines)

    process.send(start(1, map_index=2, widths=(3,)))
    only_asked(process, [(0, 2)], {0: "it"})

    expected = "('it', 3)" if role == "slot" else "(('it', 3), 5)"
    assert result_of(process.expect(Succeeded)) == expected
