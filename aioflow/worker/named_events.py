"""Named events in a host: one subscription per name, however many wait for it.

A subscription asks the daemon for what comes after the last event it has, and is answered once
there is something. Whoever joins it later and needs what was before catches up first, all such
with the same pages, and is then told with the others. No task stands behind any of this: an
answer is taken by a callback, and each listener is woken when there is something for it. Who
listens for the first event alone is no coroutine either, see ``EventFollower``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Hashable, Iterable, Iterator

import msgspec

from aioflow.author import codec
from aioflow.author.client import NamedEvent
from aioflow.errors import AioflowError, TaskError
from aioflow.model.ids import RunNo
from aioflow.protocol.commands import Reply
from aioflow.worker.queries import EventItem, EventsPage, EventsWanted, check_name, check_number
from aioflow.worker.shared_host import Line

__all__ = ("QUEUE_LIMIT", "EventFollower", "Listener", "Subscription", "Subscriptions")

QUEUE_LIMIT = 64
"""Events kept for a listener that does not take them; then it is left out until it has."""


class Subscriptions:
    """All that one host is subscribed to, by name."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._by_name: dict[str, Subscription] = {}

    async def events(
        self, run_no: RunNo, name: str, key: str | None, after: int
    ) -> AsyncGenerator[NamedEvent, None]:
        """Yield the events of a name behind ``after``, without end.

        Raises:
            TaskError: If the daemon does not tell of them.
        """
        listener = _Queue(lambda: run_no, key, after)
        subscription = self.enter(name, listener)
        try:
            while True:
                while listener.events:
                    yield _event(name, listener.events.popleft())
                if listener.is_left_out:
                    listener.is_left_out = False
                    subscription.join(listener)
                await listener.more()
        finally:
            self.leave(name, listener)

    def enter(self, name: str, listener: Listener) -> Subscription:
        """Have somebody told of the events of a name, until it leaves.

        Raises:
            Unserializable: If no such name or position can exist. The listener is not entered,
                and the others are not affected.
        """
        check_name("name", name)
        check_number("after", listener.position)
        subscription = self._by_name.get(name)
        if subscription is None:
            subscription = self._by_name[name] = Subscription(name, self._line)
        subscription.members += 1
        try:
            subscription.join(listener)
        except BaseException:
            self.leave(name, listener)
            raise
        return subscription

    def leave(self, name: str, listener: Listener) -> None:
        """Tell it nothing more. Once."""
        subscription = self._by_name[name]
        subscription.leave(listener)
        subscription.members -= 1
        if not subscription.members:
            del self._by_name[name]


class Listener:
    """Somebody who waits for events of a name.

    Attributes:
        run_no: Says in whose name it asks just now.
        key: Of the events it wants; ``None`` for all.
        position: It has been told of everything up to here.
    """

    __slots__ = ("key", "position", "run_no")

    def __init__(self, run_no: Callable[[], RunNo], key: str | None, position: int) -> None:
        self.run_no = run_no
        self.key = key
        self.position = position

    def hear(self, item: EventItem) -> bool:
        """Take an event; whether it takes more."""
        raise NotImplementedError

    def fail(self, error: str) -> None:
        """Learn that there will be none."""
        raise NotImplementedError


class _Queue(Listener):
    """One who takes them when it comes to that.

    Attributes:
        events: What it has not taken yet.
        is_left_out: It has had more than it takes, and joins again when it has taken that.
    """

    __slots__ = ("_woken", "error", "events", "is_left_out")

    def __init__(self, run_no: Callable[[], RunNo], key: str | None, position: int) -> None:
        super().__init__(run_no, key, position)
        self.events: deque[EventItem] = deque()
        self.is_left_out = False
        self.error = ""
        self._woken: asyncio.Future[None] | None = None

    def hear(self, item: EventItem) -> bool:
        self.events.append(item)
        self.is_left_out = len(self.events) >= QUEUE_LIMIT
        self._wake()
        return not self.is_left_out

    def fail(self, error: str) -> None:
        self.error = error
        self._wake()

    async def more(self) -> None:
        """Return when there is something to take.

        Raises:
            TaskError: If there never will be.
        """
        while not self.events:
            if self.error:
                raise TaskError(self.error)
            self._woken = asyncio.get_running_loop().create_future()
            await self._woken

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)


class EventFollower:
    """Asks for the first event each of many who wait for a name; what waits is data.

    Fulfils ``aioflow.author.client.EventFollower``.

    Args:
        run_no: Says in whose name one asks just now.
        tell: Told of each once, with what it was asked for.
    """

    def __init__(
        self,
        subscriptions: Subscriptions,
        name: str,
        run_no: Callable[[], RunNo],
        tell: Callable[[Hashable, NamedEvent | AioflowError], None],
    ) -> None:
        self._subscriptions = subscriptions
        self._name = name
        self._run_no = run_no
        self._tell = tell
        self._asking: dict[Hashable, _Once] = {}
        self._last: tuple[EventItem, NamedEvent] | None = None

    def ask(self, of: Hashable, *, key: str | None, after: int) -> None:
        self.forget(of)
        listener = _Once(self._run_no, key, after, self, of)
        self._subscriptions.enter(self._name, listener)
        self._asking[of] = listener

    def forget(self, of: Hashable) -> None:
        listener = self._asking.pop(of, None)
        if listener is not None:
            self._subscriptions.leave(self._name, listener)

    def found(self, of: Hashable, item: EventItem) -> None:
        """There is one. It is read once for all who are told of it one after another."""
        if of not in self._asking:
            return  # whoever was told before it has had it forgotten
        if self._last is None or self._last[0] is not item:
            try:
                self._last = (item, _event(self._name, item))
            except AioflowError as exc:  # the others, and what comes after it, are not to suffer
                self.failed(of, str(exc))
                return
        self.forget(of)
        self._tell(of, self._last[1])

    def failed(self, of: Hashable, error: str) -> None:
        """There will be none."""
        if of in self._asking:
            self.forget(of)
            self._tell(of, TaskError(error))


class _Once(Listener):
    """One who wants the first event alone."""

    __slots__ = ("_follower", "_of")

    def __init__(
        self,
        run_no: Callable[[], RunNo],
        key: str | None,
        position: int,
        follower: EventFollower,
        of: Hashable,
    ) -> None:
        super().__init__(run_no, key, position)
        self._follower = follower
        self._of = of

    def hear(self, item: EventItem) -> bool:
        self._follower.found(self._of, item)
        return False

    def fail(self, error: str) -> None:
        self._follower.failed(self._of, error)


class _Audience:
    """Listeners, found by the key they want. One alone stands for itself."""

    def __init__(self) -> None:
        self._by_key: dict[str | None, Listener | dict[Listener, None]] = {}

    def __iter__(self) -> Iterator[Listener]:
        return (listener for key in self._by_key for listener in self._of(key))

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def _of(self, key: str | None) -> Collection[Listener]:
        of_key = self._by_key.get(key, ())
        return (of_key,) if isinstance(of_key, Listener) else of_key

    def add(self, listener: Listener) -> None:
        of_key = self._by_key.get(listener.key)
        if of_key is None:
            self._by_key[listener.key] = listener
        elif isinstance(of_key, dict):
            of_key[listener] = None
        elif of_key is not listener:
            self._by_key[listener.key] = {of_key: None, listener: None}

    def discard(self, listener: Listener) -> None:
        of_key = self._by_key.get(listener.key)
        if isinstance(of_key, dict):
            of_key.pop(listener, None)
        if of_key is listener or of_key == {}:
            del self._by_key[listener.key]

    def tell(self, item: EventItem) -> None:
        """Give an event to whoever wants it and has not had it."""
        keys = (None,) if item.key is None else (None, item.key)
        for listener in [one for key in keys for one in self._of(key)]:
            if item.event_no <= listener.position:
                continue
            listener.position = item.event_no
            if not listener.hear(item):
                self.discard(listener)


class Subscription:
    """What a host is told of one name.

    Attributes:
        members: Who listens, those that are left out at the moment included.
    """

    def __init__(self, name: str, line: Line) -> None:
        self._name = name
        self._line = line
        self._present = _Audience()
        self._late = _Audience()
        self._latest: dict[Listener, None] = {}
        self._tip = 0
        self._known = 0
        self._is_due = False
        self.members = 0
        self._waiting: int | None = None
        self._reading: int | None = None

    def join(self, listener: Listener) -> None:
        """Tell a listener of everything behind its position."""
        if self._waiting is None and not (self._present or self._late or self._latest):
            self._tip = listener.position
        elif self._known < self._tip and listener.position < self._tip:
            # The tip is only what an earlier listener claimed: no event up to it is known, and
            # one may not exist for years. Start from the lower position.
            self._tip = max(listener.position, self._known)
            self._ask_again_soon()
        if listener.position >= self._tip:
            self._present.add(listener)
            self._wait_for_more()
        else:
            self._latest[listener] = None
            self._read_on()

    def leave(self, listener: Listener) -> None:
        """Tell it nothing more; the last one withdraws what was asked."""
        self._present.discard(listener)
        self._late.discard(listener)
        self._latest.pop(listener, None)
        if self._waiting is not None and not self._present and not self._late:
            self._line.withdraw(self._waiting)
            self._waiting = None
        if self._reading is not None and not self._late:
            self._line.withdraw(self._reading)
            self._reading = None
            self._read_on()

    # ── what comes ──────────────────────────────────────────────────────────────────────

    def _wait_for_more(self) -> None:
        """Ask for what comes next, for all who have had everything before."""
        if self._waiting is None and self._present and not self._is_due:
            wanted = EventsWanted(self._name, self._tip)
            self._waiting = self._ask(wanted, self._present, self._take_new)

    def _ask_again_soon(self) -> None:
        """Ask for what comes after the tip, which is lower than it was: once for all who join."""
        if self._waiting is not None:
            self._line.withdraw(self._waiting)  # its answer would be of what comes later
            self._waiting = None
        if not self._is_due:
            self._is_due = True
            self._line.gather(self._ask_again)

    def _ask_again(self) -> None:
        self._is_due = False
        self._wait_for_more()

    def _take_new(self, page: EventsPage) -> None:
        self._waiting = None
        self._known = max(self._known, page.last)
        for item in page.items:
            self._present.tell(item)
        self._tip = max(self._tip, page.last)
        self._wait_for_more()

    # ── what was ────────────────────────────────────────────────────────────────────────

    def _read_on(self) -> None:
        """Ask for what some have missed, from the first of them on."""
        if self._reading is not None:
            return
        for listener in self._latest:
            self._late.add(listener)
        self._latest.clear()
        if self._late:
            first = min(listener.position for listener in self._late)
            wanted = EventsWanted(self._name, first, self._tip)
            self._reading = self._ask(wanted, self._late, self._take_old)

    def _take_old(self, page: EventsPage) -> None:
        self._reading = None
        for item in page.items:
            self._late.tell(item)
        for listener in list(self._late):
            listener.position = max(listener.position, page.last)
            if listener.position >= self._tip:
                self._late.discard(listener)
                self._present.add(listener)
        self._wait_for_more()
        self._read_on()

    # ── how ─────────────────────────────────────────────────────────────────────────────

    def _ask(
        self, wanted: EventsWanted, audience: Iterable[Listener], take: Callable[[EventsPage], None]
    ) -> int:
        """Ask on behalf of the run of one of those who want to know."""
        run_no = next(iter(audience)).run_no()
        body = msgspec.msgpack.encode(wanted)
        return self._line.ask_then(run_no, "events", body, self._answered, take)

    def _answered(self, take: Callable[[EventsPage], None], answer: Reply) -> None:
        if answer.error:
            self._fail(answer.error)
        else:
            take(msgspec.msgpack.decode(answer.body, type=EventsPage))

    def _fail(self, error: str) -> None:
        self._waiting = self._reading = None
        for listener in (*self._present, *self._late, *self._latest):
            listener.fail(error)


def _event(name: str, item: EventItem) -> NamedEvent:
    return NamedEvent(item.event_no, name, item.key, codec.decode(item.data))
