"""Triggers that start runs of a DAG instead of a schedule, and descriptions of hosted triggers.

For the triggers of DAGs, there are declarations, rows and changes. Descriptions come from the
hosts, for display.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Literal, TypeAlias

import msgspec

from aioflow.model.ids import RunNo, TaskNo, TriggerNo
from aioflow.model.timestamps import Timestamp

__all__ = (
    "ASSET",
    "ASSETS",
    "BY_EVENT",
    "AssetCondition",
    "DagEventRow",
    "DagTriggerChanges",
    "DagTriggerRow",
    "DagTriggerSpec",
    "DescribeSensors",
    "DescribeTriggers",
    "EventOutcome",
    "HeldEvent",
    "IfRunning",
    "OutcomeChange",
    "TriggerDescription",
    "describe_no_sensors",
    "describe_no_triggers",
)

BY_EVENT = "event"
"""The cause of a run that was started by an event."""

ASSET = "asset:"
"""The prefix of the names of asset events."""

ASSETS = "assets"
"""The class path of a trigger that is a condition on assets. No host runs it."""

IfRunning: TypeAlias = Literal["queue", "skip", "cancel_old"]
"""What happens to an event while another run of the DAG is active.

``queue``: its run is queued. ``skip``: it starts no run. ``cancel_old``: its run replaces the runs
that earlier events have started.
"""


class AssetCondition(msgspec.Struct, frozen=True, array_like=True):
    """The assets that must be updated before a run starts: all of the parts, or any of them.

    Attributes:
        parts: Names of assets, and nested conditions.
    """

    is_all: bool
    parts: tuple[str | AssetCondition, ...]

    def names(self) -> list[str]:
        """Return the assets that the condition names, each once, in order."""
        return list(dict.fromkeys(self._names()))

    def _names(self) -> Iterator[str]:
        for part in self.parts:
            if isinstance(part, str):
                yield part
            else:
                yield from part.names()


class DagTriggerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The declaration of a DAG's trigger. Each event of the trigger starts a run.

    Attributes:
        kwargs: msgpack of its fields, as received from the parser. They are stored only in the row
            of the trigger, encrypted.
        name: For display: its class, or the assets of its condition.
        debounce_us: How long the trigger must be quiet before its last event starts a run.
        is_timetable: Whether it is a custom timetable, whose events are fire times.
    """

    class_path: str
    kwargs: bytes | None = None
    name: str = ""
    if_running: IfRunning = "queue"
    debounce_us: int | None = None
    is_timetable: bool = False


class EventOutcome(IntEnum):
    """The outcome of an event."""

    RUN = 0
    HELD = 1
    """The event waits until its trigger has been quiet long enough, or its asset condition is met.
    """
    REPLACED = 2
    """The event starts no run, because a later event replaced it or it was dropped while it waited.
    """
    SKIPPED = 3
    """The event started no run, because another run was live."""
    REFUSED = 4
    """No run can be created from the event."""

    @property
    def label(self) -> str:
        """The name in JSON and logs."""
        return self.name.lower()


class HeldEvent(msgspec.Struct, frozen=True, array_like=True):
    """An event that starts a run once the trigger has been quiet for long enough.

    Attributes:
        since: When the first event of the current burst arrived.
        due_at: When the event starts a run, unless another event arrives first.
    """

    sequence: int
    event_no: int
    key: str | None
    payload: bytes
    since: int
    due_at: int


class DagTriggerRow(msgspec.Struct, frozen=True, kw_only=True):
    """The trigger of a DAG. It exists as long as the DAG is known, whatever its file declares.

    Attributes:
        trigger_no: Runs, named events and triggers of DAGs share one sequence of numbers. So an
            event is later than the trigger if its number is higher.
        kwargs: msgpack of its fields, encrypted at rest; ``None`` if no available key decrypts
            them.
        since: When the trigger got its current class. Only later events count.
        sequence: The number of its next event.
        event: msgpack of the payload of its last event.
        run_no: The last run that it started.
    """

    trigger_no: int
    dag_id: str
    class_path: str
    kwargs: bytes | None
    since: int
    sequence: int = 0
    event: bytes | None = None
    event_key: str | None = None
    held: HeldEvent | None = None
    run_no: int | None = None


class DagEventRow(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a DAG's trigger, with its outcome.

    Attributes:
        sequence: Counts the events of a trigger from 0, without gaps.
        key: Unique in its trigger; ``None`` for an event without a key.
        reason: Why the event has started no run.
        asset: The asset of an asset event; ``None`` for an event that a trigger yields.
        data: For an asset event: msgpack of the data that a run receives.
    """

    event_no: int
    trigger_no: int
    sequence: int
    key: str | None
    at: int
    outcome: EventOutcome
    run_no: int | None = None
    reason: str | None = None
    asset: str | None = None
    data: bytes | None = None


class OutcomeChange(msgspec.Struct, frozen=True, array_like=True):
    """The new outcome of an event whose outcome was ``HELD``."""

    event_no: int
    outcome: EventOutcome
    run_no: int | None = None
    reason: str | None = None


class DagTriggerChanges(msgspec.Struct, kw_only=True):
    """The changes of a batch to triggers of DAGs.

    Attributes:
        triggers: Whole rows, inserted or replaced.
        moved: Rows whose position changes while the class and its fields are unchanged.
    """

    triggers: list[DagTriggerRow] = msgspec.field(default_factory=list)
    moved: list[DagTriggerRow] = msgspec.field(default_factory=list)
    events: list[DagEventRow] = msgspec.field(default_factory=list)
    outcomes: list[OutcomeChange] = msgspec.field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.triggers or self.moved or self.events or self.outcomes)


class TriggerDescription(msgspec.Struct, frozen=True, array_like=True):
    """The description of a trigger that runs in a host, for display.

    Attributes:
        shared_with: Number of other triggers that are served by the same watch.
        next_check_at: When it checks next, if known.
        last_check_at: When it last checked, if reported.
        text: What it waits for, as described by its class; empty if the class gives no description.
        note: The result of its last check; empty if not reported.
        public: The fields that its class declares public.
    """

    shared_with: int
    next_check_at: Timestamp | None
    last_check_at: Timestamp | None = None
    text: str = ""
    note: str = ""
    public: tuple[str, ...] = ()


DescribeTriggers: TypeAlias = Callable[
    [Sequence[TriggerNo]], Awaitable[Mapping[TriggerNo, TriggerDescription]]
]
"""Function that returns the available descriptions of triggers from their hosts."""

DescribeSensors: TypeAlias = Callable[
    [RunNo, Sequence[TaskNo]], Awaitable[Mapping[TaskNo, TriggerDescription]]
]
"""Function that returns what the async host reports about sensors, given a run and its tasks."""


async def describe_no_triggers(_: Sequence[TriggerNo]) -> Mapping[TriggerNo, TriggerDescription]:
    """Return no descriptions of triggers, because there are no hosts."""
    return {}


async def describe_no_sensors(
    _: RunNo, __: Sequence[TaskNo]
) -> Mapping[TaskNo, TriggerDescription]:
    """Return no descriptions of sensors, because there are no hosts."""
    return {}
