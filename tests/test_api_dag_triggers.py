"""Triggers that start runs, in the API."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aioflow.author.codec import encode
from aioflow.errors import RequestError
from aioflow.model.dag import DagSpec, TaskSpec
from aioflow.model.states import Failure
from aioflow.model.triggers import ASSETS, AssetCondition, DagTriggerSpec, TriggerDescription
from aioflow.protocol.inputs import FileDeleted
from aioflow.protocol.reports import TriggerEnded, TriggerFired
from tests.turns import until
from tests.web.node import Node, node


async def load(n: Node, dag_id: str = "dag", **trigger: Any) -> None:
    said = {"class_path": "m:Ticks", "kwargs": b"\x80", "name": "Ticks", **trigger}
    spec = DagSpec(
        dag_id=dag_id,
        file=f"{dag_id}.py",
        tasks=(TaskSpec(task_id="t"),),
        trigger=DagTriggerSpec(**said),
    )
    n.define(spec)
    await n.api.set_paused(dag_id, paused=False)  # answered once it is known


def report(n: Node, *reports: Any) -> None:
    n.engine.report(list(reports))


def hosted(n: Node, dag_id: str = "dag") -> tuple[int, int]:
    one = n.engine.memory.dag_triggers.of(dag_id)
    assert one is not None
    return one.row.trigger_no, one.assignment_id


async def test_a_dag_says_what_it_waits_for(tmp_path):
    async with node(tmp_path) as n:
        await load(n)
        number, assignment_id = hosted(n)
        report(n, TriggerFired(number, assignment_id, 0, 1, b"\xc0", "a"))
        await n.api.set_paused("dag", paused=False)

        shown = await n.api.show_dag("dag")
        (listed,) = [dag for dag in await n.api.list_dags() if dag.dag_id == "dag"]

        assert (shown.schedule, listed.schedule) == ("each Ticks", "each Ticks")
        assert shown.trigger is not None
        assert (shown.trigger.trigger_id, shown.trigger.events) == (number, 1)
        assert (shown.trigger.state, shown.trigger.detail) == ("waiting", "m:Ticks")


@pytest.mark.parametrize(
    ("class_path", "fields", "text"),
    [
        ("aioflow_triggers.files:NewFiles", {"pattern": "/in/*.csv"}, "NewFiles('/in/*.csv')"),
        (
            "aioflow_triggers.events:EventTrigger",
            {"after": 3, "key": "eu", "name": "ordered"},
            "EventTrigger('ordered', key='eu')",
        ),
        (
            "aioflow_triggers.objects:NewObjects",
            {"url": "https://me:pw@host/in/*?sig=s3cret", "existing": False, "auth": "s3cret"},
            "NewObjects('https://host/in/*?sig=***')",
        ),
        ("aioflow_triggers.files:NewFiles", {"pattern": None}, "NewFiles"),
        ("m:Ticks", {"folder": "/in"}, "Ticks"),
    ],
)
async def test_a_schedule_of_events_says_of_which(tmp_path, class_path, fields, text):
    async with node(tmp_path) as n:
        name = class_path.rpartition(":")[2]
        await load(n, class_path=class_path, kwargs=encode(fields, ""), name=name)

        shown = await n.api.show_dag("dag")
        (listed,) = [dag for dag in await n.api.list_dags() if dag.dag_id == "dag"]

        assert (shown.schedule, listed.schedule) == (f"each {text}", f"each {text}")


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        (AssetCondition(True, ("a", "b")), "a & b"),
        (AssetCondition(False, ("a", "b")), "a | b"),
        (AssetCondition(True, (AssetCondition(True, ("a", "b")), "c")), "a & b & c"),
        (AssetCondition(False, ("a", AssetCondition(True, ("b", "c")))), "a | (b & c)"),
        (AssetCondition(True, (AssetCondition(False, ("a", "b")),)), "a | b"),
        (None, "a, b"),
    ],
)
async def test_a_schedule_of_assets_says_whether_all_of_them_or_any(tmp_path, condition, text):
    async with node(tmp_path) as n:
        await load(n, class_path=ASSETS, kwargs=msgspec.msgpack.encode(condition), name="a, b")

        (listed,) = [dag for dag in await n.api.list_dags() if dag.dag_id == "dag"]

        assert listed.schedule == f"each {text}"


async def test_one_of_a_dag_file_is_shown_with_what_its_host_says(tmp_path):
    async def watched(numbers):
        return {
            number: TriggerDescription(0, None, 1_893_456_000_000_000, public=("folder",))
            for number in numbers
        }

    async with node(tmp_path) as n:
        await load(n, kwargs=encode({"folder": "/in", "token": "secret"}, ""))
        n.api.watched = watched

        (listed,) = await n.api.list_triggers()
        shown = (await n.api.show_dag("dag")).trigger

        assert listed.detail == "Ticks(folder='/in', token=***)"
        assert listed.last_check_at == "2030-01-01T00:00:00Z"
        assert shown == listed


async def test_one_that_has_failed_says_why_and_until_when(tmp_path):
    async with node(tmp_path) as n:
        await load(n)
        failure = Failure(type="OSError", message="no such folder", reason="trigger")
        report(n, TriggerEnded(*hosted(n), 1, failure))
        await n.api.set_paused("dag", paused=False)

        (view,) = await n.api.list_triggers()

        assert (view.state, view.node) == ("retry_at", None)
        assert view.detail == "m:Ticks: no such folder"
        assert view.deadline is not None


async def test_assets_are_shown_with_their_pending_events(tmp_path):
    async with node(tmp_path) as n:
        condition = msgspec.msgpack.encode(AssetCondition(True, ("a", "b")))
        await load(n, class_path=ASSETS, kwargs=condition, name="a, b")
        await n.api.emit("asset:a", key=None, data=None, request="r")

        (view,) = await n.api.list_triggers()

        assert view.state == "event"
        assert view.detail == "assets: all of a (1), b (0)"


async def test_a_timetable_is_called_what_its_author_called_it(tmp_path):
    async with node(tmp_path) as n:
        await load(n, name="WorkingHours", is_timetable=True)

        (view,) = await n.api.list_triggers()

        assert (view.kind, view.detail) == ("timetable", "WorkingHours")


async def test_they_are_listed_among_what_is_deferred_in_pages(tmp_path):
    async with node(tmp_path) as n:
        await load(n)
        await n.api.trigger("dag", conf=None)
        await n.defer("m:T", {})
        await until(n.engine, n.store.list_triggers)
        await load(n, "other")

        found = await n.api.list_triggers()
        pages = [await n.api.list_triggers(limit=1, after=-1)]
        while pages[-1]:
            pages.append(await n.api.list_triggers(limit=1, after=pages[-1][0].trigger_id))

        assert [(view.dag_id, view.task_id) for view in found] == [
            ("dag", None),
            ("dag", "t"),
            ("other", None),
        ]
        assert [view for page in pages for view in page] == found
        assert await n.api.show_trigger(found[2].trigger_id) == found[2]


async def test_those_of_dags_that_are_gone_make_no_page_shorter_and_are_not_counted(tmp_path):
    async with node(tmp_path) as n:
        names = ["a", "b", "c", "d"]
        for name in names:
            await load(n, name)
        numbers = [hosted(n, name)[0] for name in names]
        n.engine.report([FileDeleted(f"{name}.py") for name in ("a", "b")])
        await n.api.set_paused("c", paused=False)
        page = await n.api.list_triggers(limit=1)
        of_kind = await n.api.reads.waiting.list(
            kind="Ticks", state="waiting", dag_id=None, limit=1, after=numbers[2]
        )
        summary = await n.api.reads.waiting.summary()

    assert [view.dag_id for view in page] == ["c"]
    assert [view.dag_id for view in of_kind] == ["d"]
    assert [(kind.kind, kind.count) for kind in summary.kinds] == [("Ticks", 2)]


async def test_it_cannot_be_fired_manually_and_the_error_says_what_to_do(tmp_path):
    async with node(tmp_path) as n:
        await load(n)
        number, _ = hosted(n)

        with pytest.raises(RequestError, match="aioflow dags trigger dag"):
            await n.api.fire(number)
