"""Completion of runs for all waits in a host: batched, reported once, cancelled if unused."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from anyio import wait_all_tasks_blocked

from aioflow.author.client import RunEnding
from aioflow.author.codec import encode
from aioflow.errors import TaskError, Unserializable
from aioflow.protocol.commands import Reply
from aioflow.protocol.reports import CancelQuery, Query
from aioflow.worker.query import messages
from aioflow.worker.query.client import RunCompletionQueries, SingleRunQueries
from aioflow.worker.query.messages import NAME_LIMIT, PAGE_ITEMS, RunEnded, RunsWanted
from aioflow.worker.shared_host import ReportBuffer
from tests.executors.processes import until

TARGET = (7, "d", None)


class Daemon(ReportBuffer):
    """A fake link that records the messages sent over it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[Query, RunsWanted]] = []
        self.withdrawn: list[CancelQuery] = []

    def report(self, report: Any) -> None:
        if isinstance(report, CancelQuery):
            self.withdrawn.append(report)
        else:
            self.asked.append((report, msgspec.msgpack.decode(report.body, type=RunsWanted)))

    @property
    def runs(self) -> dict[str, int]:
        """The ids of the queried runs, with their numbers."""
        return {run.run_id or "": run.number for _, wanted in self.asked for run in wanted.runs}

    def tell(self, *numbers: int, state: str = "success", result: bytes | None = None) -> None:
        """Answer the last query."""
        told = [RunEnded(no, messages.RunEnding(f"r{no}", state, result)) for no in numbers]
        self.handle_reply(Reply(self.asked[-1][0].question, msgspec.msgpack.encode(told)))


class World:
    """Queries for the completion of runs, and the replies."""

    def __init__(self) -> None:
        self.daemon = Daemon()
        self.told: list[tuple[Any, Any]] = []
        self.endings = RunCompletionQueries(self.daemon, self.hear)

    def hear(self, of: Any, ending: Any) -> None:
        self.told.append((of, getattr(ending, "state", ending)))
        if of == "odd":
            raise SystemExit(1)

    def ask(self, *names: str, target: tuple[int, str, str | None] = TARGET) -> None:
        for name in names:
            self.endings.request(name, target, f"id-{name}", None, 0, (0, -1))

    def number(self, name: str) -> int:
        return self.daemon.runs[f"id-{name}"]


@pytest.fixture
async def world():
    return World()


async def test_queries_made_together_are_sent_in_few_messages(world):
    names = [str(n) for n in range(2 * PAGE_ITEMS + 1)]
    world.ask(*names)
    world.ask("other", target=(8, "d", None))
    world.ask("task", target=(7, "d", "t"))
    assert not world.daemon.asked

    await wait_all_tasks_blocked()

    asked = [(a.run_no, w.task_id, len(w.runs)) for a, w in world.daemon.asked]
    whole = [(7, None, PAGE_ITEMS), (7, None, PAGE_ITEMS), (7, None, 1)]
    assert asked == [*whole, (8, None, 1), (7, "t", 1)]
    assert len({ask.question for ask, _ in world.daemon.asked}) == 1


async def test_each_is_reported_once_by_its_name(world):
    world.ask("a", "b")
    await wait_all_tasks_blocked()

    world.daemon.tell(world.number("b"), state="failed")
    world.daemon.tell(world.number("a"), world.number("b"))

    assert world.told == [("b", "failed"), ("a", "success")]


class Alike(str):
    """A text with the same hash as all other texts of its class."""

    __slots__ = ()

    def __hash__(self) -> int:
        return 7


async def test_two_that_share_a_digest_are_forgotten_and_told_apart(world):
    world.ask(Alike("a"), Alike("b"), Alike("c"))
    world.endings.forget(Alike("d"))
    world.endings.forget(Alike("b"))
    await wait_all_tasks_blocked()
    assert set(world.daemon.runs) == {"id-a", "id-c"}

    world.daemon.tell(world.number("a"))
    world.endings.forget(Alike("c"))
    await wait_all_tasks_blocked()

    assert world.told == [("a", "success")]
    assert [withdrawn.numbers for withdrawn in world.daemon.withdrawn] == [()]


async def test_a_query_sent_twice_gets_two_replies(world):
    world.ask("a", "a", "a")
    await wait_all_tasks_blocked()

    world.daemon.tell(0, 1)
    world.daemon.tell(2)

    assert [of for of, _ in world.told] == ["a", "a", "a"]


async def test_a_cancelled_wait_is_withdrawn_and_not_reported(world):
    world.ask("a", "b", "b")
    await wait_all_tasks_blocked()
    world.endings.forget("b")
    world.endings.forget("never asked")
    world.daemon.tell(1, 2)  # it had been on its way
    await wait_all_tasks_blocked()

    (ask, _), *_ = world.daemon.asked
    assert world.daemon.withdrawn == [CancelQuery(ask.question, (1, 2))]
    assert world.told == []


async def test_a_wait_cancelled_at_once_is_never_queried(world):
    world.ask("a", "b")
    world.endings.forget("a")
    await wait_all_tasks_blocked()

    assert list(world.daemon.runs) == ["id-b"]


@pytest.mark.parametrize("how", ["told", "given up"])
async def test_a_query_without_waits_ends_and_a_later_wait_starts_another(world, how):
    world.ask("a")
    await wait_all_tasks_blocked()
    (first, _), *_ = world.daemon.asked
    if how == "told":
        world.daemon.tell(0)
    else:
        world.endings.forget("a")
    await wait_all_tasks_blocked()
    assert world.daemon.withdrawn == [CancelQuery(first.question)]

    world.ask("b")
    await wait_all_tasks_blocked()
    second = world.daemon.asked[-1][0]
    world.daemon.tell(world.number("b"))

    assert second.question > first.question
    assert world.told[-1] == ("b", "success")


async def test_a_listener_that_raises_keeps_nothing_from_the_others(world):
    world.ask("odd", "a")
    await wait_all_tasks_blocked()

    world.daemon.tell(0, 1)

    assert [of for of, _ in world.told] == ["odd", "a"]


async def test_a_question_that_is_refused_is_refused_to_all(world):
    world.ask("a", "b")
    await wait_all_tasks_blocked()

    world.daemon.handle_reply(Reply(world.daemon.asked[-1][0].question, b"", "no"))

    assert [(of, str(problem)) for of, problem in world.told] == [("a", "no"), ("b", "no")]


async def test_a_result_that_is_damaged_fails_only_who_wanted_it(world):
    world.ask("a", "b")
    await wait_all_tasks_blocked()

    world.daemon.tell(0, result=b"\xc1")
    world.daemon.tell(1, result=encode(5, ""))

    (_, problem), (_, state) = world.told
    assert isinstance(problem, Unserializable)
    assert state == "success"


@pytest.mark.parametrize(
    "target",
    [
        (7, None, None),
        (7, 5, None),
        (7, "d" * (NAME_LIMIT + 1), None),
        (7, "d", "\ud800"),
        (7, "d", "\0"),
    ],
    ids=["none", "number", "long", "no-text", "a-nul"],
)
async def test_a_name_that_cannot_travel_is_refused_where_it_is_asked_for(world, target):
    world.ask("a")
    with pytest.raises(Unserializable):
        world.ask("b", target=target)
    await wait_all_tasks_blocked()

    assert list(world.daemon.runs) == ["id-a"]


# ── one by one ──────────────────────────────────────────────────────────────────────────


async def test_those_who_wait_for_single_runs_ask_together():
    daemon = Daemon()
    single = SingleRunQueries(daemon)
    waits = [
        asyncio.ensure_future(single.ended(TARGET, f"r{n}", None, 0, (0, n))) for n in range(3)
    ]
    await until(lambda: daemon.asked)
    ((ask, wanted),) = daemon.asked
    assert [run.map_index for run in wanted.runs] == [0, 1, 2]

    waits[1].cancel()
    daemon.tell(0)
    told = [RunEnded(2, "there is none")]
    daemon.handle_reply(Reply(ask.question, msgspec.msgpack.encode(told)))

    assert await waits[0] == RunEnding("r0", "success")
    with pytest.raises(TaskError, match="there is none"):
        await waits[2]
    await until(lambda: daemon.withdrawn)
    assert waits[1].cancelled()
    assert daemon.withdrawn[-1] == CancelQuery(ask.question)
