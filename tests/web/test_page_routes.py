"""The routes that the page uses, through the application: fields, paging, refusals."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager

import msgspec
import pytest
from msgspec.structs import replace

from aioflow.api.page import triggers as triggers_page
from aioflow.api.page.pool_usage import STEP_US, steps_of
from aioflow.daemon.api_server import PoolSampling
from aioflow.executors.host_inspection import HostLoad, WatchLoad
from aioflow.model.dag import DagSpec, MapSource, MapSpec, RetryPolicy, ScheduleSpec, TaskSpec
from aioflow.model.pool_usage import MINUTE_US, PoolUsageRow
from aioflow.model.triggers import ASSETS, AssetCondition, DagTriggerSpec, TriggerDescription
from aioflow.model.workers import WorkerLocation, WorkerSpec
from aioflow.protocol.inputs import WorkerUp
from aioflow.web.app import create_app
from aioflow.web.guard import Trusted
from aioflow.web.tokens import Token
from tests.web.node import CHAIN, FAN, ask, node

NOON = 1_893_499_200_000_000  # 2030-01-01
MINUTELY = DagSpec(
    dag_id="minutely",
    file="minutely.py",
    tasks=(TaskSpec(task_id="only", group="outer.inner", doc="what it does", line=7),),
    schedule=ScheduleSpec(every_us=60_000_000),
)
RETRIED = DagSpec(
    dag_id="retried",
    file="retried.py",
    tasks=(TaskSpec(task_id="shaky", retry=RetryPolicy(tries=2, delay_us=0, jitter=False)),),
)
WIDE = DagSpec(
    dag_id="wide",
    file="wide.py",
    tasks=(
        TaskSpec(
            task_id="each",
            retry=RetryPolicy(tries=1),
            mapped=MapSpec((MapSource("item", -1, 4),)),
        ),
    ),
)


@asynccontextmanager
async def app(tmp_path, *specs):
    async with node(tmp_path) as n:
        n.define(*(specs or (CHAIN,)))
        for spec in specs or (CHAIN,):
            await n.api.set_paused(spec.dag_id, paused=False)
        yield n, Trusted(create_app(n.api, Token("t" * 43)))


async def read(web, path, *, status=200):
    answer = await ask(web, "GET", f"/api/v1{path}")
    assert answer.status == status, answer.body
    return answer.json


async def items(web, path):
    return (await read(web, path))["items"]


async def test_the_overview_says_how_the_node_fares(tmp_path):
    async with app(tmp_path) as (n, web):
        await n.api.trigger("chain", run_id="r")
        await n.api.trigger("chain", run_id="s")
        await n.api.trigger("chain", run_id="t")
        await n.succeed("x")
        await n.fail()
        n.break_file("bad.py")
        await n.api.trigger("chain", run_id="u")
        shown = await read(web, "/overview")

    assert (shown["live_runs"], shown["import_errors"]) == (3, 1)
    assert [run["state"] for run in shown["failed_runs"]] == ["failed"]
    assert (shown["failed_24h"], shown["is_store_away"]) == (1, False)
    assert shown["slots"]["def"] == {"all": 2, "used": 2}
    assert shown["states"]["running"] == 2
    assert [wait["waiting_on"]["kind"] for wait in shown["waiting_longest"]] == ["slot"]


async def test_dags_come_in_pages_and_are_found_by_a_part_of_their_names(tmp_path):
    async with app(tmp_path, CHAIN, FAN, MINUTELY) as (n, web):
        n.break_file("bad.py")
        await n.api.set_paused("fan", paused=True)
        everything = await items(web, "/dags")
        first = await read(web, "/dags?limit=2")
        rest = await items(web, f"/dags?limit=2&cursor={first['next']}")
        found = await items(web, "/dags?search=MIN")
        paused = await items(web, "/dags?state=paused")
        broken = await items(web, "/dags?state=broken&limit=5")

    ids = [None, "chain", "fan", "minutely"]
    assert [dag["dag_id"] for dag in first["items"] + rest] == ids
    assert [dag["dag_id"] for dag in everything] == ids
    assert [dag["dag_id"] for dag in found] == ["minutely"]
    assert [dag["dag_id"] for dag in paused] == ["fan"]
    assert [dag["file"] for dag in broken] == ["bad.py"]


async def test_dags_are_filtered_by_tags_whose_dags_are_counted(tmp_path):
    tagged = (replace(CHAIN, tags=("money", "night")), replace(FAN, tags=("night",)), MINUTELY)
    async with app(tmp_path, *tagged) as (n, web):
        n.break_file("bad.py")
        tags = await items(web, "/dag-tags")
        money = await items(web, "/dags?tag=money")
        first = await read(web, "/dags?tag=money&tag=night&limit=1")
        rest = await items(web, f"/dags?tag=money&tag=night&cursor={first['next']}")
        nothing = await items(web, "/dags?tag=none")

    assert tags == [{"tag": "money", "dags": 1}, {"tag": "night", "dags": 2}]
    assert [(dag["dag_id"], dag["tags"]) for dag in money] == [("chain", ["money", "night"])]
    assert [dag["dag_id"] for dag in first["items"] + rest] == ["chain", "fan"]
    assert nothing == []


async def test_a_list_of_dags_follows_what_is_committed(tmp_path):
    async with app(tmp_path, CHAIN) as (n, web):
        before = await items(web, "/dags")
        n.define(FAN)
        await n.api.set_paused("fan", paused=True)
        after = await items(web, "/dags")

    assert [(dag["dag_id"], dag["paused"]) for dag in before] == [("chain", False)]
    assert [(dag["dag_id"], dag["paused"]) for dag in after] == [("chain", False), ("fan", True)]


async def test_recent_runs_come_as_bars_by_dag(tmp_path):
    async with app(tmp_path, CHAIN, FAN) as (n, web):
        for run_id in ("a", "b"):
            await n.api.trigger("chain", run_id=run_id)
        recent = await read(web, "/dags/recent?dag=chain&dag=fan&dag=nobody%00")
        unknown = await read(web, "/dags/recent", status=404)

    assert [run["run_id"] for run in recent["chain"]] == ["b", "a"]
    assert set(recent["chain"][0]) == {"run_id", "state", "is_waiting", "started_at", "ended_at"}
    assert recent["fan"] == []
    assert unknown["code"] == "request.unknown_dag"


async def test_every_list_says_which_runs_only_wait(tmp_path):
    async with app(tmp_path, CHAIN) as (n, web):
        await n.api.trigger("chain", run_id="waits")
        await n.defer("own.module:Own", {})
        await n.api.trigger("chain", run_id="runs")
        await n.api.list_pools()
        listed = await items(web, "/runs")
        recent = await read(web, "/dags/recent?dag=chain")
        grid = await read(web, "/dags/chain/grid")
        home = await read(web, "/home")
        graph = await read(web, "/runs/waits/graph")

    for runs in (listed, recent["chain"], grid["runs"], [one["run"] for one in home["in_flight"]]):
        assert {run["run_id"]: run["is_waiting"] for run in runs} == {"waits": True, "runs": False}
        assert {run["state"] for run in runs} == {"running"}, "the state itself remains"
    assert graph["run"]["is_waiting"]


async def test_a_graph_has_nodes_edges_and_groups(tmp_path):
    async with app(tmp_path, CHAIN, MINUTELY) as (_, web):
        chain = await read(web, "/dags/chain/graph")
        grouped = await read(web, "/dags/minutely/graph?version=v-minutely")
        unknown = await read(web, "/dags/chain/graph?version=v-fan", status=404)

    assert [node["task_id"] for node in chain["nodes"]] == ["first", "second", "third"]
    assert chain["edges"] == [
        {"from": "first", "to": "second", "rule": "all_success"},
        {"from": "second", "to": "third", "rule": "all_success"},
    ]
    assert grouped["groups"] == [
        {"group_id": "outer", "parent": None},
        {"group_id": "outer.inner", "parent": "outer"},
    ]
    assert grouped["nodes"][0]["kind"] == "task"
    assert unknown["code"] == "request.unknown_version"


async def test_code_and_versions_of_a_dag(tmp_path):
    async with app(tmp_path) as (n, web):
        await n.api.trigger("chain")
        code = await read(web, "/dags/chain/code")
        versions = await items(web, "/dags/chain/versions")

    assert code["files"] == [{"name": "chain.py", "text": "import aioflow"}]
    assert [(one["version"], one["runs"]) for one in versions] == [("v-chain", 1)]
    assert versions[0]["made_at"] == code["made_at"]


async def test_a_grid_has_tasks_by_runs(tmp_path):
    async with app(tmp_path, WIDE) as (n, web):
        await n.api.trigger("wide", run_id="old")
        for _ in range(3):
            await n.succeed()
        await n.fail()
        await n.api.trigger("wide", run_id="new")
        grid = await read(web, "/dags/wide/grid")
        newest = await read(web, "/dags/wide/grid?limit=1")
        again = await read(web, f"/dags/wide/grid?limit=1&cursor={newest['next']}")

    assert grid["tasks"] == ["each"]
    assert [run["run_id"] for run in grid["runs"]] == ["new", "old"]
    new, old = (run["cells"][0] for run in grid["runs"])
    assert new[:2] == [0, {"queued": 2, "running": 2}]
    assert (new[2] is not None, new[3]) == (True, None)
    assert old[:2] == [0, {"failed": 1, "success": 3}]
    assert old[2] <= old[3]
    assert (again["runs"], again["next"]) == ([grid["runs"][1]], None)


async def test_the_tasks_of_a_run_are_counted_by_state(tmp_path):
    async with app(tmp_path, WIDE) as (n, web):
        await n.api.trigger("wide", run_id="r")
        shown = await read(web, "/runs/r/graph")

    (task,) = shown["tasks"]
    assert task["counts"] == {"queued": 2, "running": 2}
    assert (task["width"], task["is_open"], shown["version"]) == (4, False, "v-wide")
    assert shown["run"]["run_id"] == "r"


async def test_children_that_wait_for_a_slot_alone_are_listed_as_queued(tmp_path):
    async with app(tmp_path, FAN) as (n, web):
        await n.api.trigger("fan", run_id="r")
        await n.succeed(width=1_500)
        await n.effects.next_start()
        queued = await items(web, "/runs/r/tasks?state=queued&limit=3")
        later = await items(web, "/runs/r/tasks?state=queued&offset=1496&limit=9")
        pending = await items(web, "/runs/r/tasks?state=pending")
        overview = await read(web, "/overview")

    assert [(task["map_index"], task["state"]) for task in queued] == [
        *((2, "queued"), (3, "queued"), (4, "queued")),
    ]
    assert [task["map_index"] for task in later] == [1_498, 1_499]
    assert [task["task_id"] for task in pending] == ["total"]
    assert overview["states"] == {"queued": 1_498, "running": 2}


async def test_tasks_are_listed_by_id_and_state(tmp_path):
    async with app(tmp_path, WIDE) as (n, web):
        await n.api.trigger("wide", run_id="r")
        await n.fail()
        await n.succeed()
        await n.api.list_pools()
        running = await items(web, "/runs/r/tasks?state=running")
        failed = await items(web, "/runs/r/tasks?state=failed&task=each")
        second = await items(web, "/runs/r/tasks?task=each&offset=1&limit=2")
        later = await items(web, "/runs/r/tasks?state=running&offset=1")
        both = await items(web, "/runs/r/tasks?state=running&state=failed&task=each")
        last = await items(web, "/runs/r/tasks?state=running&state=failed&task=each&offset=2")
        nonsense = await read(web, "/runs/r/tasks?state=asleep", status=400)
        unknown = await read(web, "/runs/r/tasks?task=nobody", status=404)

    assert [task["map_index"] for task in running] == [2, 3]
    assert [task["map_index"] for task in failed] == [0]
    assert [task["map_index"] for task in second] == [1, 2]
    assert [task["map_index"] for task in later] == [3]
    assert [task["map_index"] for task in both] == [0, 2, 3]
    assert [task["map_index"] for task in last] == [3]
    assert nonsense["code"] == "request"
    assert unknown["code"] == "request.unknown_task"


async def test_pending_children_without_rows_are_listed(tmp_path):
    window = msgspec.structs.replace(WIDE.tasks[0], window=2)
    async with app(tmp_path, msgspec.structs.replace(WIDE, tasks=(window,))) as (n, web):
        await n.api.trigger("wide", run_id="r")
        pending = await items(web, "/runs/r/tasks?state=pending&limit=1")
        rest = await items(web, "/runs/r/tasks?state=pending&limit=5&offset=1")

    assert [task["map_index"] for task in pending + rest] == [2, 3]
    assert {task["state"] for task in pending + rest} == {"pending"}


async def test_the_grid_and_the_run_list_parents_before_their_children(tmp_path):
    tasks = (
        TaskSpec(task_id="load", parents=(2,)),
        TaskSpec(task_id="report", parents=(0, 3)),
        TaskSpec(task_id="ready"),
        TaskSpec(task_id="rates"),
    )
    async with app(tmp_path, DagSpec(dag_id="late", file="late.py", tasks=tasks)) as (n, web):
        await n.api.trigger("late", run_id="r")
        grid = await read(web, "/dags/late/grid")
        graph = await read(web, "/runs/r/graph")

    order = ["ready", "load", "rates", "report"]
    assert grid["tasks"] == order
    assert [task["task_id"] for task in graph["tasks"]] == order
    assert [grid["tasks"][place] for place, *_ in grid["runs"][0]["cells"]] == [
        task.task_id for task in tasks
    ]


async def test_a_gantt_shows_where_the_time_went_also_of_waits_that_have_ended(tmp_path):
    async with app(tmp_path) as (n, web):
        await n.api.trigger("chain", run_id="r")
        await n.defer("aioflow_triggers.temporal:DateTimeTrigger", {"moment": "x"})
        await n.api.list_pools()
        waiting = (await items(web, "/runs/r/gantt"))[0]
        (deferred,) = await n.api.list_triggers()
        await n.api.fire(deferred.trigger_id)
        await n.succeed()
        await n.api.list_pools()
        over = (await items(web, "/runs/r/gantt"))[0]
        ended = (await items(web, "/runs/r/tasks"))[0]

    assert over["spans"][-1]["to"] == ended["ended_at"], "not when its end was committed"
    kinds = [span["kind"] for span in waiting["spans"]]
    assert kinds[-1] == "waiting"
    assert waiting["spans"][-1]["to"] is None
    assert "waiting" in [span["kind"] for span in over["spans"]]
    assert all(span["to"] is not None for span in over["spans"])
    assert over["task_id"] == "first"


async def test_a_gantt_shows_how_long_a_child_was_queued_before_it_ran(tmp_path):
    source, each, total = FAN.tasks
    tight = msgspec.structs.replace(each, pool="tight")
    async with app(tmp_path, msgspec.structs.replace(FAN, tasks=(source, tight, total))) as (
        n,
        web,
    ):
        await n.api.set_pool("tight", 1)
        await n.api.trigger("fan", run_id="r")
        await n.succeed(["a", "b", "c"], width=3)
        await n.succeed()
        await n.api.list_pools()
        parent, _, second, third, _ = await items(web, "/runs/r/gantt")

    assert [span["kind"] for span in second["spans"]] == ["queued", "running"]
    assert second["spans"][0]["from"] <= parent["spans"][-1]["to"]
    assert second["spans"][0]["to"] == second["spans"][1]["from"]
    assert third["spans"] == []


async def test_a_task_is_shown_with_inputs_tries_and_its_trigger(tmp_path):
    async with app(tmp_path, CHAIN, RETRIED) as (n, web):
        await n.api.trigger("retried", run_id="again")
        await n.fail("first time")
        await n.succeed({"a": 1})
        await n.api.trigger("chain", run_id="r")
        await n.defer("aioflow_triggers.temporal:DateTimeTrigger", {"moment": "x"})
        await n.api.list_pools()
        retried = await read(web, "/runs/again/tasks/shaky/show")
        waits = await read(web, "/runs/r/tasks/first/show")
        unknown = await read(web, "/runs/r/tasks/nobody/show", status=404)

    assert [(one["try_number"], one["state"]) for one in retried["tries"]] == [
        (1, "failed"),
        (2, "success"),
    ]
    assert retried["tries"][0]["error"] == "first time"
    assert (retried["result"], retried["records"]) == ({"a": 1}, [])
    assert waits["trigger"]["kind"] == "time"
    assert unknown["code"] == "request.unknown_task"


async def test_tries_of_a_task_say_in_which_remote_worker_they_ran(tmp_path):
    far = TaskSpec(task_id="far", executor="dask", retry=RetryPolicy(tries=2, delay_us=0))
    spec = DagSpec(dag_id="mixed", file="mixed.py", tasks=(far, TaskSpec(task_id="near")))
    first = WorkerLocation("node-7", "process 4711 at tcp://10.0.0.7:1")
    page = "http://scheduler:8787/status"
    async with app(tmp_path, spec) as (n, web):
        n.api.worker_pages = lambda: {("dask", first): page}
        await n.api.trigger("mixed", run_id="r")
        await n.succeed()  # near
        n.engine.report([WorkerUp(100, WorkerSpec("dask"), first)])
        await n.fail("first time")
        await n.effects.next_start()
        running = await read(web, "/runs/r/tasks/far/show")
        near = await read(web, "/runs/r/tasks/near/show")
        n.api.worker_pages = dict
        later = await read(web, "/runs/r/tasks/far/show")

    places = [
        [one[name] for name in ("state", "executor", "host", "worker", "worker_url")]
        for one in running["tries"]
    ]
    assert places == [
        ["failed", "dask", first.host, first.worker, page],
        ["running", "dask", first.host, first.worker, page],
    ]
    assert {one["worker_url"] for one in later["tries"]} == {None}
    assert near["tries"][0]["state"] == "success"
    assert [near["tries"][0][name] for name in ("executor", "host", "worker")] == [None] * 3


async def test_deferred_waits_are_narrowed_down_and_summed_up(tmp_path):
    async with app(tmp_path) as (n, web):
        for run_id, path in (
            ("r", "aioflow_triggers.temporal:DateTimeTrigger"),
            ("s", "own.module:Own"),
        ):
            await n.api.trigger("chain", run_id=run_id)
            await n.defer(path, {"moment": "x"})
        await n.api.list_pools()
        by_kind = await items(web, "/triggers?kind=time")
        by_own = await items(web, "/triggers?kind=Own&dag=chain&state=waiting")
        none = await items(web, "/triggers?kind=file")
        fired = await items(web, "/triggers?state=fired")
        elsewhere = await items(web, "/triggers?dag=nobody")
        summary = await read(web, "/triggers/summary")

    assert [one["run_id"] for one in by_kind] == ["r"]
    assert [one["run_id"] for one in by_own] == ["s"]
    assert (none, elsewhere, fired) == ([], [], [])
    assert {kind["kind"]: kind["count"] for kind in summary["kinds"]} == {"time": 1, "Own": 1}
    assert sum(age["count"] for age in summary["ages"]) == 2
    assert summary["ages"][-1]["upto_seconds"] is None


async def test_triggers_that_stand_so_come_in_full_pages_however_far_apart_they_are(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(triggers_page, "_NUMBERS", 3)
    goes = replace(CHAIN, max_active_runs=20)
    stops = replace(goes, dag_id="stops", file="stops.py", if_paused="stop")
    async with app(tmp_path, goes, stops) as (n, web):
        await n.api.set_paused("stops", paused=True)
        for number in range(20):
            dag_id = "chain" if number % 6 == 5 else "stops"
            await n.api.trigger(dag_id, run_id=f"{dag_id}-{number:02}")
            await n.defer("own.module:Own", {})
        await n.api.list_pools()  # answered once all of them are committed
        found = {}
        for state in ("waiting", "stopped", "fired", "ending", "trigger_capacity"):
            page = await read(web, f"/triggers?state={state}&limit=2")
            found[state] = [page["items"]]
            while page["next"]:
                page = await read(web, f"/triggers?state={state}&limit=2&cursor={page['next']}")
                found[state].append(page["items"])
        of_dag = await items(web, "/triggers?state=stopped&dag=chain")
        of_kind = await items(web, "/triggers?state=waiting&kind=Own")
        none = await read(web, "/triggers?state=nothing", status=400)

    def runs(state):
        return [one["run_id"] for page in found[state] for one in page]

    assert runs("waiting") == ["chain-05", "chain-11", "chain-17"]
    assert len(runs("stopped")) == 17
    assert {one["state"] for page in found["stopped"] for one in page} == {"stopped"}
    assert [len(page) for page in found["stopped"]] == [2] * 8 + [1]
    assert found["fired"] == found["ending"] == found["trigger_capacity"] == [[]]
    assert (of_dag, len(of_kind)) == ([], 3)
    assert "'nothing'" in none["detail"]
    assert "waiting" in none["detail"]


async def test_each_host_of_triggers_tells_how_late_it_is_and_what_it_has(tmp_path):
    late = {"async": 0.1, "triggers": 0.5}
    loads = [HostLoad(name=name, pid=os.getpid(), lag_seconds=s) for name, s in late.items()]
    watches = [
        WatchLoad("aioflow_triggers.temporal:DateTimeTrigger", 1, NOON + 5_000_000),
        WatchLoad("aioflow_triggers.temporal:TimeDeltaTrigger", 2, NOON),
        WatchLoad("aioflow_triggers.external:RunTrigger", 4, None),
    ]
    loads[1] = replace(loads[1], triggers=3, waiting=2, capacity=10, watches=watches)
    loads.append(HostLoad(name="quarantine", pid=None, lag_seconds=0.0, capacity=10))
    async with app(tmp_path) as (n, web):
        n.api.reads._hosts = lambda: loads
        for module, name in (("temporal", "DateTime"), ("external", "Run"), ("http", "Http")):
            await n.api.trigger("chain")
            await n.defer(f"aioflow_triggers.{module}:{name}Trigger", {})
        await n.api.list_pools()
        summary = await read(web, "/triggers/summary")

    host, quarantine = summary["hosts"]
    assert (host["name"], host["state"], host["triggers"]) == ("triggers", "up", 3)
    assert (quarantine["name"], quarantine["state"]) == ("quarantine", "down")
    assert host["loop_lag_seconds"] == 0.5
    assert host["rss_bytes"] > 1_000_000
    assert (summary["capacity"], summary["waiting_for_capacity"]) == (10, 2)
    shared = {k["kind"]: (k["shared_watches"], k["next_check_at"]) for k in summary["kinds"]}
    assert shared == {"time": (3, "2030-01-01T12:00:00Z"), "run": (4, None), "http": (0, None)}


async def test_a_deferred_wait_tells_what_it_shares_where_its_host_does(tmp_path):
    async def watched(numbers):
        return {numbers[0]: TriggerDescription(3, NOON)}

    async with app(tmp_path) as (n, web):
        for _ in range(2):
            await n.api.trigger("chain")
            await n.defer("aioflow_triggers.temporal:DateTimeTrigger", {})
        await n.api.list_pools()
        n.api.reads.trigger_reader._watched = watched
        listed = await items(web, "/triggers")
        shown = await read(web, f"/triggers/{listed[0]['trigger_id']}")

    told = [(one["shared_with"], one["next_check_at"]) for one in listed]
    assert told == [(3, "2030-01-01T12:00:00Z"), (None, None)]
    assert shown == listed[0]


async def test_an_event_tells_whom_it_woke(tmp_path):
    async with app(tmp_path) as (n, web):
        emitted = await n.api.emit("done", data=1)
        await n.api.trigger("chain", run_id="r")
        await n.defer("aioflow_triggers.events:EventTrigger", {"name": "done"})
        await n.api.list_pools()
        (deferred,) = await n.api.list_triggers()
        await n.api.fire(deferred.trigger_id, key=str(emitted.event_id))
        woken = await items(web, f"/events/{emitted.event_id}/woke")
        unknown = await read(web, "/events/999999/woke", status=404)

        summary = await read(web, "/overview")

    assert woken == [{"run_id": "r", "task_id": "first", "map_index": -1, "dag_id": "chain"}]
    assert summary["fires_per_second"] == round(1 / 60, 3)
    assert unknown["code"] == "request.unknown_event"


async def test_an_event_names_the_runs_that_it_started_when_an_asset_was_updated(tmp_path):
    condition = msgspec.msgpack.encode(AssetCondition(True, ("orders", "rates")))
    trigger = DagTriggerSpec(class_path=ASSETS, kwargs=condition, name="orders, rates")
    waiting = replace(CHAIN, dag_id="waiting", file="waiting.py", trigger=trigger)
    async with app(tmp_path, CHAIN, waiting) as (n, web):
        emitted = [await n.api.emit(f"asset:{name}") for name in ("orders", "rates")]
        await n.api.list_pools()
        (run,) = await n.api.list_runs(dag_id="waiting")
        woken = [await items(web, f"/events/{one.event_id}/woke") for one in emitted]

    expected = {"run_id": run.run_id, "task_id": None, "map_index": -1, "dag_id": "waiting"}
    assert woken == [[expected], [expected]]


async def test_a_pool_tells_who_has_it_and_how_many_wait(tmp_path):
    pooled = DagSpec(
        dag_id="pooled", file="pooled.py", tasks=(TaskSpec(task_id="a", pool="tight"),)
    )
    async with app(tmp_path, pooled) as (n, web):
        await n.api.set_pool("tight", 1)
        await n.api.trigger("pooled", run_id="has")
        await n.api.trigger("pooled", run_id="wants")
        (pool,) = await items(web, "/pools")
        (holder,) = await items(web, "/pools/tight/holders")

    assert (pool["used"], pool["queued"]) == (1, 1)
    assert (holder["run_id"], holder["task_id"], holder["weight"]) == ("has", "a", 1)


async def test_the_usage_of_a_pool_is_sampled_and_shown_by_steps_of_five_minutes(tmp_path):
    pooled = DagSpec(
        dag_id="pooled", file="pooled.py", tasks=(TaskSpec(task_id="a", pool="tight"),)
    )
    async with app(tmp_path, pooled) as (n, web):
        await n.api.set_pool("tight", 1)
        sampling = PoolSampling(n.api.list_pools, n.engine, n.store, n.api.clock)
        await sampling.sample()
        idle = await read(web, "/pools/tight/usage")
        for run_id in ("has", "wants", "wants-too"):
            await n.api.trigger("pooled", run_id=run_id)
        await sampling.sample()
        shown = await read(web, "/pools/tight/usage?hours=1")
        wrong = await read(web, "/pools/tight/usage?hours=25", status=422)

    assert (idle["items"], idle["step_seconds"]) == ([], 300)
    (step,) = shown["items"]
    assert (idle["full_seconds"], shown["full_seconds"]) == (0, 60)
    assert (step["slots"], step["used"], step["queued"]) == (1, 1, 2)
    assert shown["since"] < step["start"] <= shown["until"]
    assert wrong["code"] == "request.invalid"


def test_a_step_has_the_most_of_its_minutes():
    minutes = [
        PoolUsageRow("db", STEP_US * 2 + at * MINUTE_US, 4, used, queued)
        for at, used, queued in ((0, 4, 0), (1, 2, 9), (5, 1, 0))
    ]
    steps = [(step.used, step.queued) for step in steps_of(minutes)]
    assert steps == [(4, 9), (1, 0)]


async def test_schedules_of_all_dags_are_merged(tmp_path):
    async with app(tmp_path, CHAIN, MINUTELY) as (_, web):
        starts = await items(web, "/schedules?hours=0.05")
        wrong = await read(web, "/schedules?from=yesterday", status=400)

    assert len(starts) == 3
    assert {start["dag_id"] for start in starts} == {"minutely"}
    assert starts == sorted(starts, key=lambda start: start["at"])
    assert wrong["code"] == "request"


async def test_files_that_cannot_be_read_say_why(tmp_path):
    async with app(tmp_path) as (n, web):
        n.break_file("chain.py")
        await n.api.list_pools()
        (broken,) = await items(web, "/import-errors")
        home = await read(web, "/home")

    assert (broken["file"], broken["last_good_version"]) == ("chain.py", "v-chain")
    assert (broken["reason"], broken["message"]) == ("syntax_error", "line 3: what")
    assert home["import_errors"] == [broken]


async def test_a_drained_node_starts_nothing_until_it_takes_work_again(tmp_path):
    async with app(tmp_path) as (n, web):
        drained = await ask(web, "POST", "/api/v1/nodes/1/drain")
        (there,) = await items(web, "/nodes")
        await n.api.trigger("chain", run_id="r")
        why = await read(web, "/runs/r/tasks/first/why")
        before = len(n.effects.starts)
        await ask(web, "POST", "/api/v1/nodes/1/undrain")
        after = len(n.effects.starts)
        nobody = await ask(web, "POST", "/api/v1/nodes/7/drain")

    assert drained.json == {"node": 1, "drained": True, "changed": True}
    assert (there["state"], there["is_here"]) == ("drained", True), "nothing runs"
    assert why["causes"][0]["waiting_on"]["kind"] == "slot"
    assert "drained" in why["causes"][0]["waiting_on"]["detail"]
    assert (before, after) == (0, 1)
    assert (nobody.status, nobody.json["code"]) == (404, "request.unknown_node")


@pytest.mark.parametrize("path", ["/runs/none/graph", "/runs/none/gantt", "/runs/none/tasks"])
async def test_requests_about_an_unknown_run_are_not_found(tmp_path, path):
    async with app(tmp_path) as (_, web):
        assert (await read(web, path, status=404))["code"] == "request.unknown_run"
