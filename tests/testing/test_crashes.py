"""A crash at any point changes nothing, unless the DAG depends on something forbidden."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from aioflow import dag, sleep, step, task, task_group
from aioflow.testing import Sim


@task
def letters() -> list[str]:
    return ["a", "b", "c"]


@task
def doubled(letter: str) -> str:
    return 2 * letter


@task
async def joined(parts: list[str]) -> str:
    found = [await step(str.upper, part) for part in parts]
    await sleep("3h")
    return "".join(found)


@dag
def words() -> None:
    joined(doubled.expand(letter=letters()))


async def test_the_same_comes_of_it_wherever_the_node_crashes():
    commits = await Sim.crash_everywhere(words)

    assert commits > 8


_numbers = itertools.count()


@task
async def number() -> int:
    taken = next(_numbers)
    await sleep("1h")
    return taken


@dag
def forgetful() -> None:
    number()


async def test_code_that_counts_its_runs_is_detected():
    with pytest.raises(AssertionError, match=r"with a crash just \w+ commit \d+ of \d+:\nnumber: "):
        await Sim.crash_everywhere(forgetful)


async def test_a_crash_in_the_middle_of_a_wait_is_not_noticed(sim: Sim):
    run = await sim.start(words)
    await sim.advance("1h")

    await sim.crash()

    assert run["joined"].state == "deferred"
    await sim.advance("2h")
    assert run["joined"].result == "AABBCC"
    assert run["joined"].tries == 1


@task
def numbers(width: int) -> list[int]:
    return list(range(width))


@task
async def deferred_twice(number: int) -> int:
    return 2 * number


@task
def twice(number: int) -> int:
    return 2 * number


@task
def counted(doubled: Sequence[int]) -> list[int]:
    return [len(doubled), doubled.width, sum(doubled)]  # type: ignore[attr-defined]


@dag
def wide(width: int) -> None:
    counted(deferred_twice.expand(number=numbers(width)))


@dag
def wide_in_workers(width: int) -> None:
    counted(twice.expand(number=numbers(width)))


@pytest.mark.timeout(240)
@pytest.mark.asyncio(loop_factories=["uvloop"])
@pytest.mark.parametrize(
    ("fan", "width"),
    [
        (wide, 50),
        pytest.param(wide, 200, marks=pytest.mark.nightly),
        pytest.param(wide, 2_000, marks=pytest.mark.nightly),
        (wide_in_workers, 24),
    ],
)
async def test_a_fan_out_that_is_killed_at_any_commit_has_each_child_and_one_aggregate(fan, width):
    begun = itertools.count()

    def count_them(doubled: Sequence[int]) -> list[int]:
        next(begun)
        return counted.fn(doubled)

    with Sim() as sim:
        run = await sim.start(fan, width=width)
        await run.finished()
        assert len(run[fan.nodes[1].task_id].children) == width
        assert run["counted"].result == [width, width, width * (width - 1)]

    commits = await Sim.crash_everywhere(
        fan, lambda sim: sim.replace(counted, count_them), width=width
    )

    plays = 1 + 2 * commits
    # The task begins again only if the node crashes before the commit of its end.
    assert next(begun) == plays + 1


@task
def pages_of(book: int) -> list[tuple[int, int]]:
    return [(book, page) for page in range(book)]


@task
def lines_of(page: tuple[int, int]) -> list[str]:
    book, number = page
    return [f"{book}.{number}.{line}" for line in range(number)]


@task
async def together(lists: Sequence[list[Any]]) -> list[Any]:
    return [item for items in lists for item in items]


@task
async def loud(line: str) -> str:
    return f"{line}!"


@task
def told(lines: Sequence[str]) -> list[str]:
    return list(lines)


@dag
def library() -> None:
    pages = together(pages_of.expand(book=[1, 2, 3]))
    lines = together(lines_of.expand(page=pages))
    told(loud.expand(line=lines))


async def test_lists_that_children_return_are_expanded_again_wherever_the_node_crashes(sim: Sim):
    run = await (await sim.start(library)).finished()
    assert run["told"].result == ["2.1.0!", "3.1.0!", "3.2.0!", "3.2.1!"]

    assert await Sim.crash_everywhere(library) > 8


async def test_lists_that_are_too_wide_together_fail_where_they_are_put_together(sim: Sim):
    sim.replace(pages_of, lambda book: [(book, page) for page in range(20_000)])

    run = await (await sim.start(library)).finished()

    assert run["together"].error is not None
    assert run["together"].error.reason == "fanout_cap"
    assert [run[name].state for name in ("lines_of", "told")] == ["upstream_failed"] * 2


@task.branch
async def by_parity(number: int) -> str:
    return "each.even" if number % 2 == 0 else "each.odd"


@task
def even(number: int) -> str:
    return f"{number} is even"


@task
def odd(number: int) -> str:
    return f"{number} is odd"


@task(trigger_rule="none_failed_min_one_success")
def either(one: str | None, other: str | None) -> str | None:
    return one or other


@task_group
def each(number: int) -> Any:
    chosen = by_parity(number)
    return either(even(number).after(chosen), odd(number).after(chosen))


@dag
def parities() -> None:
    told(each.expand(number=numbers(4)))


async def test_tasks_skipped_by_a_branch_in_a_mapped_group_are_skipped_wherever_the_node_crashes(
    sim: Sim,
):
    run = await (await sim.start(parities)).finished()
    assert run["told"].result == ["0 is even", "1 is odd", "2 is even", "3 is odd"]
    assert [child.state for child in run["each.even"].children] == ["success", "skipped"] * 2

    # Five stages wait for each other, and the run for its request. On a slow machine, the reports
    # of a stage's children arrive together and share a commit.
    assert await Sim.crash_everywhere(parities) > 5


@task
async def slow() -> None:
    await sleep("5h")


@task(max_wait="2h")
def late(before: object) -> None: ...


@task(trigger_rule="all_done")
def report() -> str:
    return "reported"


@dag
def too_late() -> None:
    report().after(late(slow()))


async def test_a_task_that_waits_too_long_to_begin_fails_in_time_over_a_crash(sim: Sim):
    run = await sim.start(too_late)
    await sim.advance("1h")
    await sim.crash()

    await sim.advance("59m")
    assert run["late"].state == "pending"
    await sim.advance("1m")

    assert (run["late"].state, run["late"].error.reason) == ("failed", "max_wait")
    assert run["report"].result == "reported"
    assert run["slow"].state == "deferred"


async def test_it_fails_once_wherever_the_node_crashes():
    assert await Sim.crash_everywhere(too_late) > 5
