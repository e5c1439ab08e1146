"""No trigger with odd arguments affects the other triggers in its shared poller.

Every catalogue class with shared pollers takes part. Beside healthy triggers, there are triggers
with arguments that should not be written, but that may come from the parameters of a run: each
field in turn has a value that no file, calendar or database has.
"""

from __future__ import annotations

import dataclasses
import os
import random
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aioflow import Trigger
from aioflow.author.codec import encode
from aioflow.author.trigger import class_path, shares
from aioflow.errors import Unserializable
from aioflow.protocol.commands import Reply, StartTrigger
from aioflow.protocol.reports import Query, TriggerEnded, TriggerFired
from aioflow.worker.query.messages import (
    EventItem,
    EventsPage,
    EventsWanted,
    RunEnded,
    RunEnding,
    RunsWanted,
)
from aioflow_triggers.files import FilesTrigger, NewFiles
from tests.triggers.test_catalogue import triggers
from tests.worker.peer import VERSION, Child, write_version

pytestmark = pytest.mark.process

SINCE = 1_767_225_600_000_000  # 2026-01-01
HEALTHY = 6
FIRST_EVENT = 100

TEXTS = (
    *("", "\0", "a\0b", "\udcff", ".", "..", "/", "//", "~", "*", "[", "[!", "[z-a]", "**/x"),
    *("loop", "file/below", "locked/a", "dangling", "folder", "é" * 200),
    *("n" * 256, "n" * 5_000, "d/" * 3_000 + "x", "\n", "-1d", "1e9", "nan"),
)
VALUES = (
    *(None, True, -1, 0, 1, 0.1, 1e308, 2**53, 2**63 - 1, -(2**63), 2**64 - 1, b"\xff", [], {}),
    *([1] * 100, {"a": None}, Path("/"), timedelta.max, timedelta.min, timedelta(days=-1)),
    *("0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00", "2026-02-30", "2026-01-01"),
    *(datetime(year, 1, 1, tzinfo=zone) for year in (1, 9999) for zone in (None, UTC)),
)


@dataclasses.dataclass
class Kind:
    """How to test a class of the catalogue.

    Attributes:
        healthy: Returns the fields of a waiting trigger, by its number.
        come: Causes the events that the healthy triggers wait for.
        near: Converts a text into a value that is close to a healthy field in the same poller.
    """

    healthy: Callable[[int], dict[str, Any]]
    come: Callable[[], object] = lambda: None
    near: Callable[[str], str] = str


def kinds(folder: Path) -> dict[str, Kind]:
    def touch() -> None:
        for n in range(HEALTHY):
            (folder / f"f{n}").touch()

    def remove() -> None:
        for n in range(HEALTHY):
            (folder / f"f{n}").unlink()

    soon = datetime.now(UTC) + timedelta(seconds=1)
    wait = soon - datetime.fromtimestamp(SINCE / 1_000_000, UTC)
    quick = {"poll_seconds": 0.1, "stable": 0}

    def near(text: str) -> str:
        return f"{folder}/{text}"

    def path_of(n: int) -> str:
        return f"{folder}/f{n}"

    return {
        "FileTrigger": Kind(lambda n: {"path": path_of(n), **quick}, touch, near),
        "FilesTrigger": Kind(lambda n: {"pattern": f"{path_of(n)}*", **quick}, touch, near),
        "NewFiles": Kind(lambda n: {"pattern": f"{path_of(n)}*", **quick}, touch, near),
        "FileGoneTrigger": Kind(lambda n: {"path": path_of(n), "poll_seconds": 0.1}, remove, near),
        "DateTimeTrigger": Kind(lambda n: {"moment": soon + timedelta(milliseconds=n)}),
        "TimeDeltaTrigger": Kind(lambda n: {"delta": wait + timedelta(milliseconds=n)}),
        "EventTrigger": Kind(lambda n: {"name": "e", "key": f"k{n}", "after": n}),
        "RunTrigger": Kind(lambda n: {"dag": "d", "run_id": f"r{n}"}),
    }


def catalogue() -> list[type[Trigger[Any]]]:
    return [cls for cls in triggers() if shares(cls) or cls in {NewFiles, FilesTrigger}]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "file").touch()
    (folder / "folder").mkdir()
    (folder / "locked").mkdir(mode=0)
    os.utime(folder / "file", ns=(0, 2**55))
    yield folder
    (folder / "locked").chmod(0o700)


def hostile(kind: Kind, cls: Any) -> Iterator[bytes]:
    """Yield fields that are healthy except for one, as far as they can be stored."""
    rng = random.Random(cls.__name__)
    drawn = ["".join(map(chr, rng.choices(range(0xD7FF), k=rng.randrange(300)))) for _ in range(20)]
    values = [*VALUES, *TEXTS, *map(kind.near, TEXTS), *drawn, *map(kind.near, drawn)]
    for field in dataclasses.fields(cls):
        for value in values:
            try:
                yield encode({**kind.healthy(0), field.name: value}, "")
            except Unserializable:
                continue


def hosting(cls: type[Trigger[Any]], number: int, fields: bytes) -> StartTrigger:
    window = 64 if cls is NewFiles else 0
    order = StartTrigger(
        number, 1, 1, 100, VERSION, class_path(cls), fields, SINCE, None, window=window
    )
    waited_us = time.time_ns() // 1_000 - SINCE
    return msgspec.structs.replace(order, waits_since=time.monotonic_ns() // 1_000 - waited_us)


def answer(host: Child, ask: Query) -> None:
    """Answer like a daemon that has an event and a run for each of the healthy triggers."""
    if ask.kind == "runs":
        runs = msgspec.msgpack.decode(ask.body, type=RunsWanted).runs
        known = {f"r{n}" for n in range(HEALTHY)}
        ended = [
            RunEnded(run.number, RunEnding(run.run_id, "success", None))
            for run in runs
            if run.run_id in known
        ]
        host.send(Reply(ask.question, msgspec.msgpack.encode(ended)))
        return
    wanted = msgspec.msgpack.decode(ask.body, type=EventsWanted)
    events = [EventItem(FIRST_EVENT + n, f"k{n}", encode(n, "")) for n in range(HEALTHY)]
    last = wanted.until if wanted.until is not None else 2**63
    items = [event for event in events if wanted.after < event.event_no <= last]
    if items or wanted.until is not None:
        page = EventsPage(items, last if wanted.until is not None else items[-1].event_no)
        host.send(Reply(ask.question, msgspec.msgpack.encode(page)))


def test_every_class_that_shares_takes_part(folder):
    assert {cls.__name__ for cls in catalogue()} == set(kinds(folder))


@pytest.mark.parametrize("cls", catalogue(), ids=lambda cls: cls.__name__)
def test_the_others_get_their_events_whatever_one_asks_for(cls, folder, home, spawn):
    kind = kinds(folder)[cls.__name__]
    write_version(home)
    if cls.__name__ == "FileGoneTrigger":
        for n in range(HEALTHY):
            (folder / f"f{n}").touch()
    host = spawn("triggers")
    healthy = [hosting(cls, n, encode(kind.healthy(n), "")) for n in range(HEALTHY)]
    bad = [hosting(cls, HEALTHY + n, fields) for n, fields in enumerate(hostile(kind, cls))]
    assert len(bad) > 40

    host.send(*healthy[: HEALTHY // 2])
    for at in range(0, len(bad), 50):
        host.send(*bad[at : at + 50])
    host.send(*healthy[HEALTHY // 2 :])
    kind.come()

    fired: set[int] = set()
    while fired != set(range(HEALTHY)):
        report = host.expect((Query, TriggerFired, TriggerEnded))
        if isinstance(report, Query):
            answer(host, report)
        elif report.trigger_no < HEALTHY:
            assert isinstance(report, TriggerFired), report
            fired.add(report.trigger_no)
