"""A trigger that a host has: as a coroutine of its own, or as data in a watch."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from sys import intern
from typing import Any

from aioflow.author.trigger import Trigger, TriggerEvent, note_last
from aioflow.model.states import Failure
from aioflow.protocol.commands import StartTask, StartTrigger
from aioflow.worker.task_supervisor import Hosted

__all__ = ("Flow", "HostedTrigger", "Kind", "Kinds", "Wait")


class Kind:
    """What the hosted triggers of one class have in common, kept once for all of them.

    Attributes:
        count: How many are hosted.
        run_no: Of the one that came last: neighbours mostly are of one run.
        public: The fields that the class declares public, once one of them was made.
    """

    __slots__ = ("class_path", "count", "newest", "public", "run_no", "version")

    def __init__(self, class_path: str, version: str, newest: str) -> None:
        self.class_path = class_path
        self.version = version
        self.newest = newest
        self.count = 0
        self.run_no = 0
        self.public: tuple[str, ...] = ()


class Kinds:
    """The kinds of everything that is hosted."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], Kind] = {}

    def enter(self, order: StartTrigger) -> Kind:
        """Count one more, and return its kind."""
        key = (order.class_path, order.version, order.newest)
        kind = self._known.get(key)
        if kind is None:
            kind = self._known[key] = Kind(*key)
        kind.count += 1
        if kind.run_no != order.run_no:
            kind.run_no = order.run_no
        return kind

    def leave(self, kind: Kind) -> None:
        """Count one less."""
        kind.count -= 1
        if not kind.count:
            del self._known[kind.class_path, kind.version, kind.newest]

    def versions(self) -> set[str]:
        """Return the versions of what is hosted."""
        kinds = self._known.values()
        return {kind.version for kind in kinds} | {kind.newest for kind in kinds}


class Wait:
    """A hosted trigger that is data: what it wants of a watch.

    Attributes:
        wanted: What it waits for there.
        watch: Where; ``None`` as soon as that was found, or nobody looks for it any more.
        order: Kept if more is to be done at its end than to say so.
    """

    __slots__ = ("hosting", "kind", "number", "order", "run_no", "wanted", "watch")

    def __init__(self, order: StartTrigger, kind: Kind, wanted: Hashable, *, keep: bool) -> None:
        self.number = order.trigger_no
        self.hosting = order.hosting
        self.run_no = kind.run_no if kind.run_no == order.run_no else order.run_no
        self.kind = kind
        self.wanted = wanted
        self.watch: Any = None
        self.order = order if keep else None

    @property
    def key(self) -> tuple[int, int]:
        """Names its log."""
        return self.number, self.hosting


class Flow:
    """How far a stream is ahead of the store.

    Attributes:
        window: How many events it may be.
        sent: Events it has reported.
        taken: How many of them are stored, as the daemon said.
        unstored: Those that were reported and are not known to be stored.
    """

    __slots__ = ("_has_room", "sent", "taken", "unstored", "window")

    def __init__(self, window: int) -> None:
        self.window = window
        self.sent = 0
        self.taken = 0
        self.unstored: deque[TriggerEvent[Any]] = deque()
        self._has_room: asyncio.Future[None] | None = None

    def take(self, upto: int, trigger: Trigger[Any] | None) -> None:
        """Events are stored: it may go on, if it stood still for that."""
        for _ in range(upto - self.taken):
            if self.unstored and trigger is not None:
                note_last(trigger, self.unstored.popleft())
        self.taken = max(self.taken, upto)
        if self._has_room is not None and not self._has_room.done():
            self._has_room.set_result(None)

    async def room(self) -> None:
        """Return when it is less than its window ahead of the store."""
        while self.sent - self.taken >= self.window:
            self._has_room = asyncio.get_running_loop().create_future()
            try:
                await self._has_room
            finally:
                self._has_room = None


class HostedTrigger(Hosted):
    """A trigger in the nursery.

    Attributes:
        stage: The reason if user code raises right now.
        is_over: It has fired or failed and is letting go; no longer to be cancelled.
        failure: Why its hosting ends badly; ``None`` while or if it does not.
        flow: Of a stream.
        dag_id: Of the DAG of its task.
        place: The position and ``map_index`` of its task.
        start: Of a task whose result it may have to write.
        trigger: Itself, once it is made.
        is_data: It goes on as a ``Wait``; nothing is to be said of its end here.
    """

    __slots__ = (
        "_number",
        "dag_id",
        "failure",
        "flow",
        "hosting",
        "is_data",
        "is_over",
        "kind",
        "place",
        "run_no",
        "stage",
        "start",
        "trigger",
    )

    def __init__(self, order: StartTrigger, kind: Kind, stage: str) -> None:
        super().__init__()
        self._number = order.trigger_no
        self.hosting = order.hosting
        self.run_no = kind.run_no if kind.run_no == order.run_no else order.run_no
        self.dag_id = intern(order.dag_id)
        self.place = (order.position, order.map_index)
        self.kind = kind
        self.stage = stage
        self.is_over = False
        self.is_data = False
        self.failure: Failure | None = None
        self.flow = Flow(order.window) if order.window else None
        self.start: StartTask | None = order.start
        self.trigger: Trigger[Any] | None = None

    @property
    def number(self) -> int:
        """See ``Hosted``."""
        return self._number

    @property
    def key(self) -> tuple[int, int]:
        """See ``Hosted``."""
        return self._number, self.hosting

    def enter(self, stage: str) -> None:
        """A stage begins."""
        self.stage = stage

    def take(self, upto: int) -> None:
        """Events of it are stored."""
        if self.flow is not None:
            self.flow.take(upto, self.trigger)
