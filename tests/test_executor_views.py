"""Executors in the API: their workers, the tries in them, the demand, and missing workers."""

from __future__ import annotations

from typing import Any

import msgspec

from aioflow.api.executors import executor_views
from aioflow.model.workers import WorkerLocation, WorkerSpec
from aioflow.protocol.inputs import WorkerUnresponsive, WorkerUp
from tests.core.test_remote_workers import DASK, FIRST, GPU, SECOND, THERE, RemoteWorld, far
from tests.web.test_page_routes import app, read

PAGE = "http://gpu-scheduler:8787/status"


def shown(world: RemoteWorld) -> dict[str, dict[str, Any]]:
    pages = {("dask", THERE): PAGE, ("dask", WorkerLocation()): PAGE}
    views = executor_views(world.slots, pages)
    return {view.name: msgspec.to_builtins(view) for view in views}


def test_an_executor_without_work_is_listed_with_its_limit():
    local, dask = shown(RemoteWorld()).values()
    assert (local["name"], local["max_workers"], local["up"], local["wanted"]) == ("local", 2, 2, 0)
    assert [(one["state"], one["host"]) for one in local["workers"]] == [("idle", None)] * 2
    assert (dask["name"], dask["max_workers"], dask["up"], dask["workers"]) == ("dask", 4, 0, [])
    assert (local["url"], dask["url"], dask["demand"]) == (None, PAGE, [])


def test_workers_and_the_reason_why_there_are_no_more_are_told():
    world = RemoteWorld()
    world.turn(WorkerUp(FIRST, DASK, THERE), WorkerUp(SECOND, DASK))
    world.turn(WorkerUnresponsive(SECOND, 1, 2, "it does not answer"))
    world.slots.remote.unavailable[GPU] = "no Dask worker has GPU = 1"

    dask = shown(world)["dask"]

    assert (dask["up"], dask["busy"], dask["lost"]) == (2, 0, 1)
    assert dask["unavailable"] == ["no Dask worker has GPU = 1"]
    first, second = dask["workers"]
    assert first == {
        "worker_no": FIRST,
        "state": "idle",
        "host": "node-7",
        "worker": "process 4711 at tcp://10.0.0.7:40331",
        "worker_url": PAGE,
        "resources": {},
        "tries": 0,
        "running": None,
    }
    assert (second["state"], second["host"], second["worker_url"]) == ("lost", None, None)
    assert dask["hosts"] == 1


def test_the_try_in_a_worker_is_named_and_what_waits_is_demanded():
    gpu = far("train", resources=(("GPU", 1.0),))
    world = RemoteWorld()
    run = world.begin(far("a"), gpu)
    world.up()
    world.slots.remote.unavailable[GPU] = "no Dask worker has GPU = 1"

    dask = shown(world)["dask"]

    (worker,) = dask["workers"]
    assert (worker["state"], worker["tries"]) == ("busy", 1)
    running = worker["running"]
    row = world.memory.runs[run].row
    assert (running["dag_id"], running["run_id"]) == (row.dag_id, row.run_id)
    assert running["task_id"] == "a"
    assert (running["map_index"], running["try_number"]) == (-1, 1)
    assert running["started_at"] is not None
    assert (dask["busy"], dask["tries"], dask["wanted"]) == (1, 1, 2)
    by_resources = {tuple(one["resources"].items()): one for one in dask["demand"]}
    assert by_resources[()]["since"] is None
    assert by_resources[(("GPU", 1.0),)]["since"] is not None
    assert by_resources[(("GPU", 1.0),)]["unavailable"] == "no Dask worker has GPU = 1"


def test_an_executor_that_the_settings_lack_is_told_while_workers_of_it_are_up():
    world = RemoteWorld(limits={})
    world.turn(WorkerUp(FIRST, WorkerSpec("gone"), THERE))
    assert list(shown(world)) == ["local", "gone"]


async def test_the_route_lists_them(tmp_path):
    async with app(tmp_path) as (_, web):
        (local,) = (await read(web, "/executors"))["items"]
    assert (local["name"], local["unavailable"]) == ("local", [])
    assert [worker["worker"] for worker in local["workers"]] == [None] * local["max_workers"]
