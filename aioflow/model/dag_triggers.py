"""What starts the runs of a DAG besides the clock: as its file says it, as rows, as changes.

Numbers and instants are those of ``model``, which stands on this.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Literal, TypeAlias

import msgspec

__all__ = (
    "ASSET",
    "ASSETS",
    "BY_EVENT",
    "AssetCondition",
    "DagEventRow",
    "DagTriggerChanges",
    "DagTriggerRow",
    "DagTriggerSpec",
    "Fate",
    "FateChange",
    "Held",
    "IfRunning",
)

BY_EVENT = "event"
"""The cause of a run that an event has started."""

ASSET = "asset:"
"""What the name of an event begins with that tells of an asset."""

ASSETS = "assets"
"""The class path of a trigger that is a condition over assets, and that no host ever has."""

IfRunning: TypeAlias = Literal["queue", "skip", "cancel_old"]
"""What becomes of an event while a run of the DAG has not ended: its run waits for its turn; there
is none; or it takes the place of the runs that earlier events have started."""


class AssetCondition(msgspec.Struct, frozen=True, array_like=True):
    """Which assets have to be made anew before a run starts: all of the parts, or any of them.

    Attributes:
        parts: Names of assets, and conditions.
    """

    is_all: bool
    parts: tuple[str | AssetCondition, ...]

    def names(self) -> list[str]:
        """Return the assets it names, each once, in their order."""
        return list(dict.fromkeys(self._names()))

    def _names(self) -> Iterator[str]:
        for part in self.parts:
            if isinstance(part, str):
                yield part
            else:
                yield from part.names()


class DagTriggerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A trigger each of whose events starts a run.

    Attributes:
        kwargs: msgpack of its fields, on their way from the parser; they lie sealed in the row of
            the trigger and nowhere else.
        name: For people: its class, or the assets it is a condition over.
        debounce_us: How long it has to be quiet before the last event starts a run.
        is_timetable: It is an author's own timetable, whose events are slots.
    """

    class_path: str
    kwargs: bytes | None = None
    name: str = ""
    if_running: IfRunning = "queue"
    debounce_us: int | None = None
    is_timetable: bool = False


class Fate(IntEnum):
    """What became of an event."""

    RUN = 0
    HELD = 1
    """It starts a run once it has been quiet for long enough."""
    REPLACED = 2
    """A later one came before it had been quiet for so long."""
    SKIPPED = 3
    """A run was going on."""
    REFUSED = 4
    """No run can be made of it."""

    @property
    def label(self) -> str:
        """The name in JSON and logs."""
        return self.name.lower()


class Held(msgspec.Struct, frozen=True, array_like=True):
    """An event that waits until it has been quiet for long enough.

    Attributes:
        since: When the first of those came that wait for quiet.
        due_at: When it starts a run, unless another comes.
    """

    sequence: int
    event_no: int
    key: str | None
    payload: bytes
    since: int
    due_at: int


class DagTriggerRow(msgspec.Struct, frozen=True, kw_only=True):
    """The trigger of a DAG. There is one as long as the DAG is known, whatever its file says.

    Attributes:
        trigger_no: Of the series of runs and named events, so that an event is later than the
            trigger if its number is.
        kwargs: msgpack of its fields, sealed at rest; ``None`` where no key opens them.
        since: From when on its events count.
        sequence: The number of its next event.
        event: msgpack of the payload of its last one.
        run_no: The run it has started last.
    """

    trigger_no: int
    dag_id: str
    class_path: str
    kwargs: bytes | None
    since: int
    sequence: int = 0
    event: bytes | None = None
    event_key: str | None = None
    held: Held | None = None
    run_no: int | None = None


class DagEventRow(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a DAG's trigger, and what became of it.

    Attributes:
        sequence: Counts the events of a trigger from 0, without gaps.
        key: Unique in its trigger; ``None`` for an event that says of itself nothing.
        reason: Why it has started none.
        asset: Which asset it tells of; ``None`` for what a trigger yields.
        data: msgpack of what a run is told of that.
    """

    event_no: int
    trigger_no: int
    sequence: int
    key: str | None
    at: int
    fate: Fate
    run_no: int | None = None
    reason: str | None = None
    asset: str | None = None
    data: bytes | None = None


class FateChange(msgspec.Struct, frozen=True, array_like=True):
    """An event that was held is not any more."""

    event_no: int
    fate: Fate
    run_no: int | None = None
    reason: str | None = None


class DagTriggerChanges(msgspec.Struct, kw_only=True):
    """What a batch changes of all this.

    Attributes:
        triggers: Whole rows, inserted or replaced.
        moved: Rows whose fields are as they were.
    """

    triggers: list[DagTriggerRow] = msgspec.field(default_factory=list)
    moved: list[DagTriggerRow] = msgspec.field(default_factory=list)
    events: list[DagEventRow] = msgspec.field(default_factory=list)
    fates: list[FateChange] = msgspec.field(default_factory=list)

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__struct_fields__)
