"""Named events in a child process: one subscription per name, shared by all its listeners.

A subscription queries the daemon for events after its last one. The reply arrives when there are
new events. The position of a listener is the number of the last event it has received. A listener
that joins with a lower position than the others catches up first, together with all other late
listeners. Then it receives events with the others. No asyncio task is needed: a callback processes
the reply and wakes each listener that gets an event. A listener that needs only its first event
needs no coroutine, see ``EventFollower``.
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
from aioflow.worker.query.messages import (
    EventItem,
    EventsPage,
    EventsWanted,
    check_name,
    check_number,
)
from aioflow.worker.shared_host import ReportBuffer

__all__ = ("QUEUE_LIMIT", "EventFollower", "Listener", "Subscription", "Subscriptions")

QUEUE_LIMIT = 64
"""Maximum events buffered for a slow listener.

At this limit, the listener gets no events until it has consumed the buffered ones.
"""


class Subscriptions:
    """All subscriptions of one child, by name."""

    def __init__(self, reports: ReportBuffer) -> None:
        self._reports = reports
        self._by_name: dict[str, Subscription] = {}

    async def events(
        self, run_no: RunNo, name: str, key: str | None, after: int
    ) -> AsyncGenerator[NamedEvent, None]:
        """Yield the events of a name after number ``after``, without end.

        Raises:
            TaskError: If the daemon refuses the query.
        """
        listener = _Queue(lambda: run_no, key, after)
        subscription = self.subscribe(name, listener)
        try:
            while True:
                while listener.events:
                    yield _event(name, listener.events.popleft())
                if listener.is_left_out:
                    listener.is_left_out = False
                    subscription.join(listener)
                await listener.more()
        finally:
            self.unsubscribe(name, listener)

    def subscribe(self, name: str, listener: Listener) -> Subscription:
        """Register a listener for the events of a name, until ``unsubscribe``.

        Raises:
            Unserializable: If the name or the position is invalid. The listener is not registered,
                and other listeners are not affected.
        """
        check_name("name", name)
        check_number("after", listener.position)
        subscription = self._by_name.get(name)
        if subscription is None:
            subscription = self._by_name[name] = Subscription(name, self._reports)
        subscription.members += 1
        try:
            subscription.join(listener)
        except BaseException:
            self.unsubscribe(name, listener)
            raise
        return subscription

    def unsubscribe(self, name: str, listener: Listener) -> None:
        """Remove a listener. Call it only once per listener."""
        subscription = self._by_name[name]
        subscription.leave(listener)
        subscription.members -= 1
        if not subscription.members:
            del self._by_name[name]


class Listener:
    """A consumer of the events of a name.

    Attributes:
        run_no: Returns the run on whose behalf to query at the moment.
        key: Key of the wanted events; ``None`` for all events.
        position: The number up to which the listener has received all events.
    """

    __slots__ = ("key", "position", "run_no")

    def __init__(self, run_no: Callable[[], RunNo], key: str | None, position: int) -> None:
        self.run_no = run_no
        self.key = key
        self.position = position

    def on_event(self, item: EventItem) -> bool:
        """Receive an event. Return whether the listener accepts more."""
        raise NotImplementedError

    def fail(self, error: str) -> None:
        """Receive the error that ends the subscription."""
        raise NotImplementedError


class _Queue(Listener):
    """A listener that buffers events until they are consumed.

    Attributes:
        events: Events not yet consumed.
        is_left_out: Whether the listener left because its buffer was full. It joins again when the
            buffer is empty.
    """

    __slots__ = ("_woken", "error", "events", "is_left_out")

    def __init__(self, run_no: Callable[[], RunNo], key: str | None, position: int) -> None:
        super().__init__(run_no, key, position)
        self.events: deque[EventItem] = deque()
        self.is_left_out = False
        self.error = ""
        self._woken: asyncio.Future[None] | None = None

    def on_event(self, item: EventItem) -> bool:
        self.events.append(item)
        self.is_left_out = len(self.events) >= QUEUE_LIMIT
        self._wake()
        return not self.is_left_out

    def fail(self, error: str) -> None:
        self.error = error
        self._wake()

    async def more(self) -> None:
        """Wait until there is an event to consume.

        Raises:
            TaskError: If no event will ever arrive.
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
    """Waits for the first event with a name, for many waiters that need no coroutines.

    Implements ``aioflow.author.client.EventFollower``.

    Args:
        run_no: Returns the run on whose behalf to query at the moment.
        tell: Called once per waiter, with the event or an error.
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
        self._notify = tell
        self._listeners: dict[Hashable, _Once] = {}
        self._last: tuple[EventItem, NamedEvent] | None = None

    def ask(self, of: Hashable, *, key: str | None, after: int) -> None:
        self.forget(of)
        listener = _Once(self._run_no, key, after, self, of)
        self._subscriptions.subscribe(self._name, listener)
        self._listeners[of] = listener

    def forget(self, of: Hashable) -> None:
        listener = self._listeners.pop(of, None)
        if listener is not None:
            self._subscriptions.unsubscribe(self._name, listener)

    def found(self, of: Hashable, item: EventItem) -> None:
        """Deliver an event to a waiter.

        If consecutive waiters get the same event, decode it only once.
        """
        if of not in self._listeners:
            return  # a callback for an earlier waiter removed this one
        if self._last is None or self._last[0] is not item:
            try:
                self._last = (item, _event(self._name, item))
            except AioflowError as exc:  # later waiters and events must not be affected
                self.failed(of, str(exc))
                return
        self.forget(of)
        self._notify(of, self._last[1])

    def failed(self, of: Hashable, error: str) -> None:
        """Deliver an error to a waiter."""
        if of in self._listeners:
            self.forget(of)
            self._notify(of, TaskError(error))


class _Once(Listener):
    """A listener for the first event only."""

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

    def on_event(self, item: EventItem) -> bool:
        self._follower.found(self._of, item)
        return False

    def fail(self, error: str) -> None:
        self._follower.failed(self._of, error)


class _Audience:
    """A set of listeners, stored by key.

    If a key has only one listener, no inner dict is created.
    """

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

    def deliver(self, item: EventItem) -> None:
        """Deliver an event to the listeners of its key that have not received it yet."""
        keys = (None,) if item.key is None else (None, item.key)
        for listener in [one for key in keys for one in self._of(key)]:
            if item.event_no <= listener.position:
                continue
            listener.position = item.event_no
            if not listener.on_event(item):
                self.discard(listener)


class Subscription:
    """The subscription of a child to one name.

    Attributes:
        members: Number of listeners, including those left out at the moment.
    """

    def __init__(self, name: str, reports: ReportBuffer) -> None:
        self._name = name
        self._reports = reports
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
        """Register a listener, and deliver to it all events after its position."""
        if self._waiting is None and not (self._present or self._late or self._latest):
            self._tip = listener.position
        elif self._known < self._tip and listener.position < self._tip:
            # The tip is the position of an earlier listener. No event with this number is known,
            # and there may be none for years. Start from the lower position.
            self._tip = max(listener.position, self._known)
            self._query_again_soon()
        if listener.position >= self._tip:
            self._present.add(listener)
            self._wait_for_more()
        else:
            self._latest[listener] = None
            self._read_missed()

    def leave(self, listener: Listener) -> None:
        """Remove a listener. If no listener is left, withdraw the query."""
        self._present.discard(listener)
        self._late.discard(listener)
        self._latest.pop(listener, None)
        if self._waiting is not None and not self._present and not self._late:
            self._reports.cancel_query(self._waiting)
            self._waiting = None
        if self._reading is not None and not self._late:
            self._reports.cancel_query(self._reading)
            self._reading = None
            self._read_missed()

    # ── new events ──────────────────────────────────────────────────────────────────────

    def _wait_for_more(self) -> None:
        """Query for the next events on behalf of all listeners that are up to date."""
        if self._waiting is None and self._present and not self._is_due:
            wanted = EventsWanted(self._name, self._tip)
            self._waiting = self._query(wanted, self._present, self._handle_new)

    def _query_again_soon(self) -> None:
        """Query from the lowered tip, once for all listeners that join in this loop iteration."""
        if self._waiting is not None:
            self._reports.cancel_query(self._waiting)  # its reply would skip the events in between
            self._waiting = None
        if not self._is_due:
            self._is_due = True
            self._reports.before_flush(self._query_again)

    def _query_again(self) -> None:
        self._is_due = False
        self._wait_for_more()

    def _handle_new(self, page: EventsPage) -> None:
        self._waiting = None
        self._known = max(self._known, page.last)
        for item in page.items:
            self._present.deliver(item)
        self._tip = max(self._tip, page.last)
        self._wait_for_more()

    # ── missed events ───────────────────────────────────────────────────────────────────

    def _read_missed(self) -> None:
        """Query for the events that late listeners missed, starting at their lowest position."""
        if self._reading is not None:
            return
        for listener in self._latest:
            self._late.add(listener)
        self._latest.clear()
        if self._late:
            first = min(listener.position for listener in self._late)
            wanted = EventsWanted(self._name, first, self._tip)
            self._reading = self._query(wanted, self._late, self._handle_missed)

    def _handle_missed(self, page: EventsPage) -> None:
        self._reading = None
        for item in page.items:
            self._late.deliver(item)
        for listener in list(self._late):
            listener.position = max(listener.position, page.last)
            if listener.position >= self._tip:
                self._late.discard(listener)
                self._present.add(listener)
        self._wait_for_more()
        self._read_missed()

    # ── queries ─────────────────────────────────────────────────────────────────────────

    def _query(
        self, wanted: EventsWanted, audience: Iterable[Listener], take: Callable[[EventsPage], None]
    ) -> int:
        """Send a query on behalf of one listener's run."""
        run_no = next(iter(audience)).run_no()
        body = msgspec.msgpack.encode(wanted)
        return self._reports.query_then(run_no, "events", body, self._handle_reply, take)

    def _handle_reply(self, take: Callable[[EventsPage], None], answer: Reply) -> None:
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
