"""Assets in the API: which tasks update them, which DAGs wait for them, and what is missing."""

from __future__ import annotations

from contextlib import asynccontextmanager

import msgspec

from aioflow.author.codec import encode
from aioflow.model.dag import DagSpec, TaskSpec
from aioflow.model.triggers import ASSETS, AssetCondition, DagTriggerSpec
from aioflow.protocol.inputs import FileParsed
from aioflow.web.app import create_app
from aioflow.web.guard import Trusted
from aioflow.web.tokens import Token
from tests.web.node import ask, node

NOTHING = encode(None, "")
MAKER = DagSpec(
    dag_id="maker",
    file="maker.py",
    tasks=(
        TaskSpec(task_id="orders", outlets=(("orders", NOTHING), ("s3://lake/stock", NOTHING))),
        TaskSpec(task_id="late", outlets=(("orders", NOTHING),), parents=(0,)),
    ),
)


def consumer(dag_id: str, condition: AssetCondition) -> DagSpec:
    packed = msgspec.msgpack.encode(condition)
    trigger = DagTriggerSpec(class_path=ASSETS, kwargs=packed, name="assets")
    return DagSpec(
        dag_id=dag_id, file=f"{dag_id}.py", tasks=(TaskSpec(task_id="use"),), trigger=trigger
    )


BOTH = consumer("both", AssetCondition(True, ("orders", "rates")))


@asynccontextmanager
async def app(tmp_path, *specs):
    async with node(tmp_path) as n:
        n.define(*specs)
        for spec in specs:
            await n.api.set_paused(spec.dag_id, paused=False)
        yield n, Trusted(create_app(n.api, Token("t" * 43)))


async def read(web, path):
    answer = await ask(web, "GET", f"/api/v1{path}")
    assert answer.status == 200, answer.body
    return answer.json


async def test_an_asset_shows_who_updates_it_and_what_those_who_wait_still_miss(tmp_path):
    async with app(tmp_path, MAKER, BOTH) as (n, web):
        before = (await read(web, "/assets"))["items"]
        await n.api.trigger("maker", run_id="r")
        await n.succeed(None)
        await n.api.set_paused("both", paused=False)  # answered after the report
        orders, rates, stock = (await read(web, "/assets"))["items"]
        await n.api.emit("asset:rates", data=1)
        (started,) = (await read(web, "/assets?name=rates"))["items"]

    assert [one["name"] for one in before] == ["orders", "rates", "s3://lake/stock"]
    assert [one["last_update"] for one in before] == [None, None, None]
    assert orders["producers"] == [
        {"dag_id": "maker", "task_id": "orders"},
        {"dag_id": "maker", "task_id": "late"},
    ]
    assert orders["last_update"]["run_id"] == stock["last_update"]["run_id"] == "r"
    (waits,) = orders["consumers"]
    assert (waits["dag_id"], waits["condition"]) == ("both", "orders & rates")
    assert (waits["received"], waits["missing"]) == ({"orders": 1}, ["rates"])
    assert (rates["producers"], rates["last_update"]) == ([], None)
    assert rates["consumers"] == orders["consumers"]
    assert stock["consumers"] == []
    (satisfied,) = started["consumers"]
    assert (satisfied["received"], satisfied["missing"]) == ({}, ["orders", "rates"])
    assert satisfied["run_id"] is not None
    assert started["last_update"]["run_id"] is None


async def test_assets_come_in_pages_and_are_found_by_a_part_of_their_names(tmp_path):
    async with app(tmp_path, MAKER, BOTH) as (_, web):
        first = await read(web, "/assets?limit=2")
        rest = await read(web, f"/assets?limit=2&cursor={first['next']}")
        found = await read(web, "/assets?search=LAKE")
        nothing = await read(web, "/assets?name=nobody")

    assert [one["name"] for one in first["items"]] == ["orders", "rates"]
    assert [one["name"] for one in rest["items"]] == ["s3://lake/stock"]
    assert [one["name"] for one in found["items"]] == ["s3://lake/stock"]
    assert rest["next"] is None
    assert nothing == {"items": [], "next": None}


async def test_a_dag_whose_schedule_has_changed_no_longer_waits_for_an_asset(tmp_path):
    async with app(tmp_path, MAKER, BOTH) as (n, web):
        changed = msgspec.structs.replace(BOTH, trigger=None)
        source = {BOTH.file: b"import aioflow"}
        n.engine.report(
            [FileParsed(file=BOTH.file, version="v-2", dags=(changed,), sources=source)]
        )
        await n.api.set_paused("both", paused=True)
        found = (await read(web, "/assets"))["items"]

    assert [one["name"] for one in found] == ["orders", "s3://lake/stock"]
    assert [one["consumers"] for one in found] == [[], []]


async def test_many_producers_are_counted_and_the_first_ones_shown(tmp_path):
    tasks = tuple(TaskSpec(task_id=f"t{n}", outlets=(("a", NOTHING),)) for n in range(150))
    async with app(tmp_path, DagSpec(dag_id="wide", file="wide.py", tasks=tasks)) as (_, web):
        (one,) = (await read(web, "/assets"))["items"]

    assert (len(one["producers"]), one["producer_count"]) == (100, 150)
