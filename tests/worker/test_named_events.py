"""A subscription needs one query per name, even if listeners join, leave, are late or slow."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from aioflow.author.client import NamedEvent
from aioflow.author.codec import encode
from aioflow.errors import AioflowError, TaskError, Unserializable
from aioflow.protocol.commands import Reply
from aioflow.protocol.reports import CancelQuery, Query
from aioflow.worker.query.messages import EventItem, EventsPage, EventsWanted
from aioflow.worker.query.named_events import QUEUE_LIMIT, EventFollower, Subscriptions
from aioflow.worker.shared_host import ReportBuffer

PAGE = 50


class Daemon(ReportBuffer):
    """A fake link to a daemon that has events, and replies when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[EventItem] = []
        self.open: dict[int, tuple[int, EventsWanted]] = {}
        self.asked = 0

    def report(self, report: Any) -> None:
        match report:
            case Query():
                wanted = msgspec.msgpack.decode(report.body, type=EventsWanted)
                self.asked += 1
                self.open[report.question] = (report.run_no, wanted)
            case CancelQuery():
                del self.open[report.question]
            case _:
                raise AssertionError(report)

    def emit(self, number: int, key: str | None = None) -> None:
        self.events.append(EventItem(number, key, encode(number, "a number")))

    def first(self, key: str | None, after: int) -> int:
        return next(e.event_no for e in self.events if e.event_no > after and key in (None, e.key))

    def answer(self) -> int:
        """Answer the queries for which there is a reply. Return how many there were."""
        answered = 0
        for question, (_, wanted) in list(self.open.items()):
            until = wanted.until
            there = [e for e in self.events if e.event_no > wanted.after]
            items = [e for e in there if until is None or e.event_no <= until][:PAGE]
            if not items and until is None:
                continue
            last = items[-1].event_no if len(items) == PAGE or until is None else until
            del self.open[question]
            answered += 1
            body = msgspec.msgpack.encode(EventsPage(items, last))
            self.handle_reply(Reply(question, body))
        return answered

    def refuse(self) -> None:
        for question in list(self.open):
            del self.open[question]
            self.handle_reply(Reply(question, b"", "no"))


class World:
    """The subscriptions of a host, and their listeners."""

    def __init__(self) -> None:
        self.daemon = Daemon()
        self.subscriptions = Subscriptions(self.daemon)
        self.told: dict[str, list[int]] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.first: dict[Any, int | str] = {}
        self.follower = self.follow()

    def follow(self, run_no: int = 7) -> EventFollower:
        """Return a follower that gets the first matching event of each of many waits."""

        def tell(of: Any, event: NamedEvent | AioflowError) -> None:
            assert of not in self.first, "told twice"
            self.first[of] = event.id if isinstance(event, NamedEvent) else str(event)

        return EventFollower(self.subscriptions, "e", lambda: run_no, tell)

    async def listen(
        self,
        who: str,
        after: int = 0,
        key: str | None = None,
        *,
        count: int = 10**9,
        run_no: int = 7,
    ) -> None:
        """Let ``who`` listen until it has received ``count`` events."""
        self.told[who] = []
        events = self.subscriptions.events(run_no, "e", key, after)
        self.tasks[who] = asyncio.create_task(self._take(who, events, count))
        await self.settle(answering=False)

    async def _take(self, who: str, events: AsyncGenerator[NamedEvent, None], count: int) -> None:
        async with aclosing(events):
            async for event in events:
                assert event.data == event.id
                self.told[who].append(event.id)
                if len(self.told[who]) >= count:
                    return

    async def settle(self, *, answering: bool = True) -> None:
        """Wait until all pending events have arrived."""
        for _ in range(3):
            while answering and self.daemon.answer():
                await asyncio.sleep(0)
            for _ in range(5):
                await asyncio.sleep(0)

    async def leave(self, who: str) -> None:
        self.tasks[who].cancel()
        await asyncio.gather(self.tasks[who], return_exceptions=True)

    async def end(self) -> None:
        for who in self.tasks:
            await self.leave(who)
        assert (self.daemon.open, self.subscriptions._by_name) == ({}, {})


@pytest.fixture
async def world():
    world = World()
    yield world
    await world.end()


async def test_all_who_wait_for_a_name_are_one_question(world):
    for number in range(100):
        await world.listen(f"w{number}", after=number % 3, count=1)
    await world.settle()
    world.daemon.emit(9)

    await world.settle()

    assert all(told == [9] for told in world.told.values())
    assert world.daemon.asked < 10


async def test_events_come_in_their_order_each_once(world):
    await world.listen("a")
    for number in range(1, 300):
        world.daemon.emit(number)
        if number % 7 == 0:
            await world.settle()
    await world.settle()

    assert world.told == {"a": list(range(1, 300))}


async def test_a_listener_for_a_key_gets_only_its_events(world):
    await world.listen("all")
    await world.listen("k", key="k")
    await world.listen("other", key="o")
    for number, key in enumerate(("k", None, "o", "k", "x"), 1):
        world.daemon.emit(number, key)
    await world.settle()

    assert world.told == {"all": [1, 2, 3, 4, 5], "k": [1, 4], "other": [3]}


async def test_a_late_listener_reads_missed_events_and_then_receives_with_the_others(world):
    await world.listen("a", after=3)
    for number in range(1, 10):
        world.daemon.emit(number)
    await world.settle()
    await world.listen("late")
    await world.listen("key", key="k")
    world.daemon.emit(10, "k")
    await world.settle()
    world.daemon.emit(11)
    await world.settle()

    assert world.told["a"] == [4, 5, 6, 7, 8, 9, 10, 11]
    assert world.told["late"] == list(range(1, 12))
    assert world.told["key"] == [10]
    assert len(world.daemon.open) == 1


async def test_many_who_are_late_read_the_same_pages(world):
    for number in range(1, 4 * PAGE):
        world.daemon.emit(number)
    await world.listen("a", after=4 * PAGE)
    asked = world.daemon.asked
    for number in range(50):
        await world.listen(f"l{number}", after=number)
    await world.settle()

    assert all(world.told[f"l{n}"] == list(range(n + 1, 4 * PAGE)) for n in range(50))
    assert world.daemon.asked - asked < 30


async def test_one_that_joins_while_others_read_what_they_missed_misses_nothing(world):
    await world.listen("a", after=100)
    for number in range(1, 110):
        world.daemon.emit(number)
    await world.listen("half", after=50)
    await world.listen("all", after=0)
    await world.settle()

    assert world.told["half"] == list(range(51, 110))
    assert world.told["all"] == list(range(1, 110))


async def test_one_that_takes_nothing_keeps_no_more_than_its_share_and_loses_nothing(world):
    events = world.subscriptions.events(7, "e", None, 0)
    first = asyncio.create_task(anext(events))
    await world.settle()
    count = 5 * QUEUE_LIMIT
    for number in range(1, count + 1):
        world.daemon.emit(number)
    await world.settle()
    subscription = world.subscriptions._by_name["e"]
    assert len(list(subscription._present)) == 0

    taken = [(await first).id]
    while len(taken) < count:
        following = asyncio.create_task(anext(events))
        await world.settle()
        taken.append((await following).id)
    await events.aclose()

    assert taken == list(range(1, count + 1))


async def test_the_last_who_leaves_withdraws_the_question(world):
    await world.listen("a")
    await world.listen("b", key="k")
    await world.leave("a")
    assert len(world.daemon.open) == 1

    await world.leave("b")

    assert world.daemon.open == {}


async def test_a_listener_that_leaves_while_it_reads_missed_events_cancels_its_query(world):
    await world.listen("a", after=10)
    world.daemon.emit(11)
    await world.settle()
    await world.listen("late")
    assert len(world.daemon.open) == 2

    await world.leave("late")

    assert len(world.daemon.open) == 1


async def test_questions_are_asked_for_a_run_that_is_hosted(world):
    await world.listen("a", run_no=7)
    await world.listen("b", run_no=8)
    await world.leave("a")
    world.daemon.emit(1)
    await world.settle()

    ((run_no, _),) = world.daemon.open.values()
    assert run_no == 8


async def test_a_refusal_reaches_everyone_and_the_next_may_ask_again(world):
    await world.listen("a", after=5)
    await world.listen("late")
    world.daemon.refuse()
    for who in ("a", "late"):
        with pytest.raises(TaskError, match="no"):
            await world.tasks[who]

    await world.listen("b")
    world.daemon.emit(1)
    await world.settle()

    assert world.told["b"] == [1]


# ── the first event, for many ───────────────────────────────────────────────────────────


async def test_each_of_many_gets_the_first_event_after_its_own(world):
    await world.listen("a", after=5)
    for number, key in ((2, "k"), (4, None), (6, "k"), (8, "o")):
        world.daemon.emit(number, key)
    await world.settle()

    for of, key, after in (("any", None, 0), ("k", "k", 2), ("late", None, 6), ("none", "x", 0)):
        world.follower.ask(of, key=key, after=after)
    await world.settle()
    assert world.first == {"any": 2, "k": 6, "late": 8}

    world.daemon.emit(10, "x")
    await world.settle()
    assert world.first["none"] == 10
    assert world.told["a"] == [6, 8, 10]


async def test_thousands_who_want_the_next_event_are_one_question(world):
    for number in range(2_000):
        world.follower.ask(number, key=None if number % 2 else f"k{number}", after=number % 7)
    await world.settle()
    assert world.daemon.asked < 10

    world.daemon.emit(9, "k4")
    await world.settle()

    assert world.first == dict.fromkeys([4, *range(1, 2_000, 2)], 9)
    for number in range(0, 2_000, 2):
        world.follower.forget(number)
    assert world.daemon.open == {}


async def test_one_that_was_forgotten_is_not_told(world):
    world.follower.ask("a", key=None, after=0)
    world.follower.ask("b", key=None, after=0)
    world.follower.forget("a")
    world.follower.forget("never asked")
    world.daemon.emit(1)
    await world.settle()

    assert world.first == {"b": 1}


async def test_a_waiter_that_asks_again_before_the_reply_gets_one_reply(world):
    world.follower.ask("a", key="k", after=0)
    world.follower.ask("a", key=None, after=3)
    for number in (2, 4, 6):
        world.daemon.emit(number, "k")
    await world.settle()

    assert world.first == {"a": 4}


async def test_a_waiter_cancelled_by_the_reply_to_another_gets_no_reply(world):
    told = []

    def tell(of: Any, event: NamedEvent | AioflowError) -> None:
        told.append(of)
        follower.forget({"a": "b", "b": "a"}[of])

    follower = EventFollower(world.subscriptions, "e", lambda: 7, tell)
    follower.ask("a", key=None, after=0)
    follower.ask("b", key=None, after=0)
    world.daemon.emit(1)
    await world.settle()

    assert told == ["a"]


async def test_a_refusal_is_reported_to_each_waiter(world):
    await world.listen("present", after=4)
    world.daemon.emit(5)
    await world.settle()
    world.follower.ask("a", key=None, after=5)
    world.follower.ask("late", key="k", after=0)
    assert len(world.daemon.open) == 2
    world.daemon.refuse()
    assert world.first == {"a": "no", "late": "no"}

    world.follower.ask("b", key=None, after=0)
    await world.settle()

    assert world.first["b"] == 5


@pytest.mark.parametrize("claim", [10**6, 2**63 - 1])
@pytest.mark.parametrize("comes", ["first", "last", "between"])
async def test_a_wait_after_a_far_future_event_takes_none_from_the_others(world, claim, comes):
    """The number comes from a run parameter, and no other listener may be moved forward to it."""
    healthy: list[tuple[str, int]] = [("a", 3), ("b", 0), ("c", 7), ("d", 1)]
    at = {"first": 0, "last": len(healthy), "between": 2}[comes]
    healthy.insert(at, ("hostile", claim))
    for number in range(1, 5):
        world.daemon.emit(number)
    for of, after in healthy:
        world.follower.ask(of, key=None, after=after)
        await world.settle(answering=of != "a")
    for number in range(5, 9):
        world.daemon.emit(number)
    await world.settle()

    assert world.first == {"a": 4, "b": 1, "c": 8, "d": 2}
    world.follower.forget("hostile")


async def test_many_that_come_one_before_the_other_are_one_question(world):
    for after in range(1_000, 0, -1):
        world.follower.ask(after, key=None, after=after)
    await world.settle()
    assert (len(world.daemon.open), world.daemon.asked) == (1, 2)

    for number in range(1, 1_002):
        world.daemon.emit(number)
    await world.settle()
    assert world.first == {after: after + 1 for after in range(1, 1_001)}


@pytest.mark.parametrize(
    ("name", "after"),
    [
        ("e", 2**63),
        ("e", -(2**64)),
        ("e", 2**70),
        ("e", "5"),
        ("e", None),
        ("\0", 0),
        ("\ud800", 0),
    ],
)
async def test_a_question_no_database_could_be_asked_fails_who_asks_it_alone(world, name, after):
    world.follower.ask("a", key=None, after=0)
    with pytest.raises(Unserializable):
        EventFollower(world.subscriptions, name, lambda: 7, world.first.__setitem__).ask(
            "hostile", key=None, after=after
        )
    world.daemon.emit(1)
    await world.settle()

    assert world.first == {"a": 1}


@pytest.mark.parametrize("seed", range(20))
async def test_each_listener_gets_its_first_event_whatever_others_do(world, seed):
    rng = random.Random(seed)
    asked: dict[int, tuple[str | None, int]] = {}
    for number in range(1, 300):
        match rng.randrange(5):
            case 0:
                world.daemon.emit(number, rng.choice((None, "a", "b")))
            case 1 | 2:
                asked[number] = (rng.choice((None, "a", "b")), rng.randrange(number))
                world.follower.ask(number, key=asked[number][0], after=asked[number][1])
            case 3 if asked:
                of = rng.choice(list(asked))
                world.follower.forget(of)
                if of not in world.first:
                    del asked[of]
            case _:
                await world.settle()
    for number, key in enumerate((None, "a", "b"), 300):
        world.daemon.emit(number, key)
    await world.settle()

    assert world.first == {of: world.daemon.first(*wanted) for of, wanted in asked.items()}


async def test_a_late_reply_to_an_earlier_process_answers_no_query_of_this_one():
    numbers = []
    for _ in range(2):  # each process has a line of its own
        line = Daemon()
        wanted = encode(["e", 0, None], "")
        numbers += [line.query_then(7, "events", wanted, print, "") for _ in range(3)]

    assert len(set(numbers)) == 6
    assert sorted(numbers) == numbers
