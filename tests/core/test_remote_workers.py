"""Workers of other executors, which come and go: what runs in them, and how many are demanded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aioflow.core.requests import pool_holders
from aioflow.core.scheduling.remote_workers import RemoteWorkers
from aioflow.core.scheduling.slots import Slots
from aioflow.core.why import explain_task
from aioflow.model.dag import DagSpec, MapSource, MapSpec, RetryPolicy, TaskSpec
from aioflow.model.rows import TryWorkerRow
from aioflow.model.states import Failure, Wait, WaitKind
from aioflow.model.workers import WorkerDemand, WorkerLocation, WorkerSpec
from aioflow.protocol.effects import Effect, RecallTries, RetireWorker, SetWorkerDemand, StartTry
from aioflow.protocol.inputs import (
    ExecutorUnavailable,
    WorkerGone,
    WorkerIdle,
    WorkerUnresponsive,
    WorkerUp,
)
from aioflow.protocol.reports import (
    Deferred,
    Failed,
    Recalled,
    Succeeded,
    TaskStarted,
    TriggerFired,
)
from aioflow.protocol.requests import CancelRun, DrainNode, SetPool
from tests.core.world import World

DASK = WorkerSpec("dask")
GPU = WorkerSpec("dask", resources=(("GPU", 1.0),))
FIRST, SECOND = 100, 101
THERE = WorkerLocation("node-7", "process 4711 at tcp://10.0.0.7:40331")


class RemoteWorld(World):
    """A node with two local workers, and an executor ``dask`` of at most four workers."""

    def __init__(self, limits: Mapping[str, int] | None = None, **options: Any) -> None:
        self.limits = {"dask": 4} if limits is None else limits
        super().__init__(**options)

    def start_up(self) -> None:
        super().start_up()
        self.slots.remote = RemoteWorkers(self.limits)

    @property
    def demand(self) -> dict[WorkerSpec, WorkerDemand]:
        """The worker demand that was last sent."""
        last = [one for one in self.effects if isinstance(one, SetWorkerDemand)][-1]
        return {one.spec: one for one in last.demands}

    def count(self, spec: WorkerSpec = DASK) -> int:
        return self.demand[spec].count if spec in self.demand else 0

    def up(
        self, number: int = FIRST, spec: WorkerSpec = DASK, location: WorkerLocation = THERE
    ) -> list[Effect]:
        return self.turn(WorkerUp(number, spec, location))

    @property
    def ran_on(self) -> list[TryWorkerRow]:
        """The stored worker of each start, in the order of the starts."""
        return [self.rows.try_workers[key] for key in sorted(self.rows.try_workers)]

    def why(self, run_no: int, position: int = 0) -> Wait | None:
        return explain_task(self.memory.runs[run_no], position, -1, self.memory, self.slots)

    def key(self, name: str) -> tuple[int, int]:
        effect = self.started(name)
        assert effect is not None
        return effect.start.task_no, effect.start.start_no


def far(name: str, **options: Any) -> TaskSpec:
    return TaskSpec(task_id=name, executor="dask", **options)


def wide(count: int, **options: Any) -> TaskSpec:
    mapped = MapSpec((MapSource("x", -1, count),))
    return far("wide", mapped=mapped, **options)


def demands(effects: list[Effect]) -> list[SetWorkerDemand]:
    return [one for one in effects if isinstance(one, SetWorkerDemand)]


def retired(effects: list[Effect]) -> list[int]:
    return [one.worker for one in effects if isinstance(one, RetireWorker)]


# ── demand ──────────────────────────────────────────────────────────────────────────────


def test_a_task_of_another_executor_waits_for_a_worker_of_it():
    world = RemoteWorld()
    run = world.begin(far("a", priority=7), TaskSpec(task_id="near"))

    assert world.started("near") is not None
    assert world.started("a") is None
    demand = world.demand[DASK]
    assert (demand.count, demand.priority, demand.oldest_since) == (1, 7, world.now)
    wait = world.why(run)
    assert wait is not None
    assert wait.kind is WaitKind.EXECUTOR
    assert wait.detail == "dask has been asked for a worker"


def test_nothing_is_demanded_for_local_tasks():
    world = RemoteWorld()
    world.begin(TaskSpec(task_id="a"), TaskSpec(task_id="b"), TaskSpec(task_id="c"))
    world.finish_all()

    assert not demands(world.effects)


def test_it_starts_in_a_worker_that_comes_up_and_the_demand_ends_with_it():
    world = RemoteWorld()
    run = world.begin(far("a"))

    effects = world.up()

    (start,) = [one for one in effects if isinstance(one, StartTry)]
    assert start.worker == FIRST
    assert not demands(effects)  # one waited, and now one is at work
    world.succeed("a")
    assert world.count() == 0
    assert world.run_state(run) == "success"


def test_demand_is_told_only_when_it_changes():
    world = RemoteWorld()
    world.begin(far("a"), far("b"), TaskSpec(task_id="near"))

    assert world.count() == 2
    assert not demands(world.succeed("near"))
    assert not demands(world.turn())


def test_the_demand_is_counted_only_if_it_may_have_changed(monkeypatch):
    world = RemoteWorld()
    counted: list[int] = []
    count = Slots._waiting

    def counting(*arguments):
        counted.append(1)
        return count(*arguments)

    monkeypatch.setattr(Slots, "_waiting", counting)
    world.begin(far("a"))
    world.load(DagSpec(dag_id="local", file="l.py", tasks=(TaskSpec(task_id="near"),)), file="l.py")
    world.turn()
    counted.clear()

    local = world.trigger("local")
    world.succeed("near")
    assert world.run_state(local) == "success"
    assert counted == []

    for cause in (
        WorkerUp(FIRST, GPU),
        WorkerUnresponsive(FIRST, 1, 2, "no answer"),
        WorkerGone(FIRST),
    ):
        world.turn(cause)
        assert counted, cause
        counted.clear()
    world.ask(SetPool(name="p", slots=1))
    assert counted
    world.ask(DrainNode(node_no=world.memory.node_no, is_drained=True))
    assert world.count() == 0


def test_no_more_is_demanded_than_the_executor_has():
    world = RemoteWorld()
    world.begin(wide(1_000))

    assert world.count() == 4


def test_what_the_limits_do_not_admit_is_not_demanded():
    world = RemoteWorld({"dask": 50})
    world.ask(SetPool(name="small", slots=6))
    world.begin(
        wide(100, pool="small", slots=2),
        far("a", max_active_tis_per_dagrun=1),
        far("b"),
        max_active_tasks=40,
    )

    assert world.count() == 3 + 1 + 1


def test_a_run_demands_no_more_than_it_may_run_at_once():
    world = RemoteWorld({"dask": 50})
    world.begin(*(far(f"t{n}") for n in range(9)), max_active_tasks=2)
    assert world.count() == 2

    world.up()
    assert world.count() == 2
    world.up(SECOND)
    assert world.count() == 2


def test_a_window_limits_the_demand():
    world = RemoteWorld({"dask": 50})
    world.begin(wide(100, window=3))

    assert world.count() == 3


def test_each_spec_is_demanded_and_served_by_itself():
    world = RemoteWorld()
    run = world.begin(far("gpu", resources=GPU.resources), far("plain"))
    assert (world.count(GPU), world.count(DASK)) == (1, 1)

    world.up(FIRST, GPU)

    assert world.started("gpu") is not None
    assert world.started("plain") is None
    wait = world.why(run, 1)
    assert wait is not None
    world.up(SECOND, DASK)
    assert world.started("plain").worker == SECOND


def test_a_drained_node_demands_only_what_runs():
    world = RemoteWorld()
    world.begin(far("a"), far("b"))
    world.up()
    assert world.count() == 2

    world.ask(DrainNode(node_no=world.memory.node_no, is_drained=True))
    assert world.count() == 1
    world.ask(DrainNode(node_no=world.memory.node_no, is_drained=False))
    assert world.count() == 2


def test_a_restarted_node_demands_again():
    world = RemoteWorld()
    run = world.begin(far("a"))
    world.up()

    world.restart()

    assert world.count() == 1
    world.up(SECOND)
    world.finish_all()
    assert world.run_state(run) == "success"


def test_a_demand_whose_turn_was_taken_back_is_made_again():
    world = RemoteWorld()
    run = world.begin(TaskSpec(task_id="a"), far("b", parents=(0,)))
    start = world.starts.pop(next(iter(world.starts))).start
    done = Succeeded(start.task_no, start.start_no, world.now, world.now + 50)
    world.refuse(done)

    assert world.count() == 1
    assert world.run_state(run) == "running"


# ── what the executor says ──────────────────────────────────────────────────────────────


def test_why_repeats_what_the_executor_says_until_it_takes_it_back():
    world = RemoteWorld()
    run = world.begin(far("gpu", resources=GPU.resources))
    sentence = "no worker of the cluster has GPU"

    world.turn(ExecutorUnavailable(GPU, sentence))
    wait = world.why(run)
    assert wait is not None
    assert (wait.kind, wait.detail) == (WaitKind.EXECUTOR, sentence)

    world.turn(ExecutorUnavailable(GPU, ""))
    wait = world.why(run)
    assert wait is not None
    assert wait.detail == "dask has been asked for a worker with GPU=1"


def test_a_worker_that_comes_up_takes_the_sentence_back():
    world = RemoteWorld()
    run = world.begin(far("a"), far("b"))
    world.turn(ExecutorUnavailable(DASK, "the scheduler cannot be reached"))

    world.up()

    waits = [wait for at in (0, 1) if (wait := world.why(run, at)) is not None]
    assert [wait.detail for wait in waits] == ["all 1 workers of dask are taken"]


def test_an_executor_that_the_settings_lack_is_still_asked():
    world = RemoteWorld({})
    world.begin(far("a"), far("b"))

    assert world.count() == 1


def test_a_lost_worker_is_told_of_what_runs_there():
    world = RemoteWorld()
    run = world.begin(far("a"))
    world.up()

    world.turn(WorkerUnresponsive(FIRST, 1_000, 9_000, "dask-worker-3 does not answer"))
    wait = world.why(run)
    assert wait is not None
    assert (wait.kind, wait.detail) == (WaitKind.EXECUTOR, "dask-worker-3 does not answer")

    world.turn(WorkerUnresponsive(FIRST))
    assert world.why(run) is None
    world.turn(WorkerUnresponsive(999, 1_000, 9_000, "who?"))  # it has gone


# ── workers that go ─────────────────────────────────────────────────────────────────────


def test_a_worker_that_has_ended_gets_nothing():
    world = RemoteWorld()
    world.begin(far("a"))
    world.up()
    world.succeed("a")

    world.turn(WorkerGone(FIRST))
    world.trigger()

    assert world.started("a") is None
    assert world.count() == 1


def test_a_try_that_reached_no_process_runs_elsewhere_uncharged():
    """The worker ended after the try was assigned to it and before the try was sent."""
    world = RemoteWorld()
    run = world.begin(far("a", retry=RetryPolicy(tries=1)))
    world.up()
    key = world.key("a")

    world.turn(WorkerGone(FIRST))
    assert world.state(run, "a") == "running"
    assert not world.slots.remote.of_spec(DASK)
    world.starts.clear()
    world.turn(Recalled((key,)))
    assert world.slots.remote.find(FIRST) is None
    assert world.state(run, "a") == "queued"

    world.up(SECOND)
    assert world.started("a").worker == SECOND
    world.finish_all()
    assert world.run_state(run) == "success"


def test_a_try_that_died_with_its_worker_is_interrupted_once_and_runs_elsewhere():
    world = RemoteWorld()
    run = world.begin(far("a", retry=RetryPolicy(tries=1)))
    world.up()
    task_no, start_no = world.key("a")
    world.starts.clear()
    failure = Failure(type="Killed", message="the worker was killed", reason="killed")

    world.turn(
        Failed(task_no, start_no, world.now, world.now, failure, interrupted=True),
        WorkerGone(FIRST),
    )
    world.turn(WorkerGone(FIRST))  # twice is once

    assert world.state(run, "a") == "queued"
    world.up(SECOND)
    world.finish_all()
    assert world.run_state(run) == "success"


def test_claims_follow_in_a_remote_worker_and_come_back_from_a_drained_node():
    world = RemoteWorld()
    run = world.begin(wide(5))
    world.up()
    for _ in range(2):  # now it is known how long one takes
        world.succeed("wide", next(e.start.map_index for e in world.starts.values()))

    (worker,) = world.slots.remote
    assert worker.claims
    effects = world.turn()
    world.ask(DrainNode(node_no=world.memory.node_no, is_drained=True))
    recalls = [one for one in world.effects if isinstance(one, RecallTries)]
    assert [one.worker for one in recalls] == [FIRST]
    assert not demands(effects)
    world.turn(Recalled(recalls[0].tries))
    assert not worker.claims
    assert world.run_state(run) == "running"


def test_an_idle_worker_is_retired_and_a_busy_one_is_not():
    world = RemoteWorld()
    run = world.begin(far("a"))
    world.up()

    assert not retired(world.turn(WorkerIdle(FIRST)))  # it got a try in the meantime
    world.succeed("a")
    assert retired(world.turn(WorkerIdle(FIRST))) == [FIRST]
    assert world.slots.remote.find(FIRST) is None
    assert retired(world.turn(WorkerIdle(FIRST))) == [FIRST]  # repeated: the first was lost
    assert world.run_state(run) == "success"


def test_as_many_idle_workers_give_way_to_another_version_at_once_as_tries_wait():
    world = RemoteWorld()
    world.begin(far("a"), far("b"))
    world.up()
    world.up(SECOND)
    world.finish_all()

    tasks = (far("a"), far("b"))
    world.load(DagSpec(dag_id="dag", file="dag.py", tasks=tasks), version="v2")
    since = len(world.effects)
    began = world.now
    world.trigger()

    assert retired(world.effects[since:]) == [FIRST, SECOND]
    assert world.count() == 2
    assert not retired(world.turn())
    world.turn(WorkerGone(FIRST))
    assert [one.worker for one in world.up(102) if isinstance(one, StartTry)] == [102]
    world.turn(WorkerGone(SECOND))
    assert [one.worker for one in world.up(103) if isinstance(one, StartTry)] == [103]
    assert world.count() == 2
    assert world.now == began  # no worker had to become old


def test_no_worker_gives_way_for_tries_whose_code_another_has():
    world = RemoteWorld()
    tasks = (far("a"), far("b"), far("c"))
    world.begin(*tasks)
    for number in (FIRST, SECOND, 102):
        world.up(number)
    other = DagSpec(dag_id="other", file="other.py", tasks=(far("x"),))
    world.load(other, version="v2", file="other.py")
    world.finish_all()
    world.ask(DrainNode(node_no=world.memory.node_no, is_drained=True))
    world.trigger("other")
    world.trigger()
    since = len(world.effects)

    world.ask(DrainNode(node_no=world.memory.node_no, is_drained=False))

    assert len(retired(world.effects[since:])) == 1


def test_an_idle_worker_starts_a_task_of_another_pool_while_one_is_replaced():
    world = RemoteWorld()
    world.ask(SetPool(name="urgent", slots=9))
    world.begin(far("a"), far("b"))
    world.up()
    world.up(SECOND)
    world.finish_all()
    first = far("x", pool="urgent", priority=5)
    other = DagSpec(dag_id="other", file="other.py", tasks=(first,))
    world.load(other, version="v2", file="other.py")
    world.ask(DrainNode(node_no=world.memory.node_no, is_drained=True))
    world.trigger("other")
    world.trigger()
    since = len(world.effects)

    world.ask(DrainNode(node_no=world.memory.node_no, is_drained=False))

    assert retired(world.effects[since:]) == [FIRST]
    assert {one.worker for one in world.starts.values()} == {SECOND}
    world.turn(WorkerGone(FIRST))
    world.up(102)
    started = world.started("x")
    assert started is not None
    assert started.worker == 102


def test_a_lost_worker_does_not_hide_the_demand_for_a_replacement():
    world = RemoteWorld()
    world.begin(far("a"), far("b"), far("c"))
    for number in (FIRST, SECOND, 102):
        world.up(number)
    world.succeed("b")
    world.succeed("c")
    world.turn(WorkerUnresponsive(FIRST, 1_000, 9_000, "no answer"))

    world.load(DagSpec(dag_id="dag", file="dag.py", tasks=(far("a"),)), version="v2")
    since = len(world.effects)
    world.trigger()

    assert retired(world.effects[since:]) == [SECOND]
    assert world.count() == 3  # the lost one and the idle one are up, and of no use


def test_one_idle_worker_gives_way_to_another_version_at_a_time():
    world = RemoteWorld()
    world.begin(far("a"), far("b"))
    world.up()
    world.up(SECOND)
    world.finish_all()

    tasks = (far("a"), far("b"))
    world.load(DagSpec(dag_id="dag", file="dag.py", tasks=tasks, max_active_tasks=1), version="v2")
    since = len(world.effects)
    world.trigger()

    assert retired(world.effects[since:]) == [FIRST]
    assert world.started("a") is None
    assert not retired(world.turn())  # it waits for the replacement
    world.turn(WorkerGone(FIRST))
    assert world.count() == 2
    third = world.up(102)
    assert [one.worker for one in third if isinstance(one, StartTry)] == [102]
    assert not retired(third)


def test_a_replacement_is_demanded_beside_idle_workers_with_other_code():
    world = RemoteWorld()
    world.begin(far("a"), far("b"))
    world.up()
    world.up(SECOND)
    world.finish_all()

    world.load(DagSpec(dag_id="dag", file="dag.py", tasks=(far("a"),)), version="v2")
    since = len(world.effects)
    world.trigger()

    assert retired(world.effects[since:]) == [FIRST]
    assert world.count() == 2  # the other idle worker, and one for what waits
    world.up(102)
    assert world.started("a").worker == 102
    assert world.count() == 1


def test_a_worker_without_code_is_taken_before_one_is_replaced():
    world = RemoteWorld()
    world.begin(far("a"))
    world.up()
    world.finish_all()
    world.up(SECOND)

    world.load(DagSpec(dag_id="dag", file="dag.py", tasks=(far("a"),)), version="v2")
    since = len(world.effects)
    world.trigger()

    assert world.started("a").worker == SECOND
    assert not retired(world.effects[since:])


def test_the_same_worker_is_up_once():
    world = RemoteWorld()
    world.begin(far("a"))
    world.up()

    assert not [one for one in world.up() if isinstance(one, StartTry)]
    assert len(list(world.slots.remote)) == 1


def test_a_turn_that_is_taken_back_leaves_the_tries_in_their_workers():
    world = RemoteWorld()
    run = world.begin(far("a"), far("b"))
    world.up()
    world.up(SECOND)

    world.refuse(WorkerGone(SECOND), WorkerUp(102, DASK))

    assert {worker.number for worker in world.slots.remote} == {FIRST, SECOND, 102}
    world.finish_all()
    assert {worker.number for worker in world.slots.remote} == {FIRST, 102}
    assert world.run_state(run) == "success"


def test_pool_slots_are_held_by_remote_workers_and_named():
    world = RemoteWorld()
    world.ask(SetPool(name="small", slots=1))
    world.begin(far("a", pool="small"), far("b", pool="small"))
    world.up()
    world.up(SECOND)

    assert len(pool_holders("small", world.memory, world.slots, limit=9)) == 1
    assert world.slots.used("small") == 1
    world.finish_all()
    assert world.slots.used("small") == 0


def test_a_task_that_keeps_its_slots_in_a_full_pool_demands_a_worker():
    world = RemoteWorld()
    world.ask(SetPool(name="small", slots=1, include_deferred=True))
    run = world.begin(far("a", pool="small"))
    world.up()
    start = world.started("a").start
    world.starts.clear()
    world.turn(
        Deferred(start.task_no, start.start_no, world.now, world.now, "m:T", b"\x80", "resume")
    )
    assert world.count() == 0
    world.turn(WorkerGone(FIRST))
    assert world.slots.used("small") == 1

    (trigger_no,) = world.memory.waits
    wait = world.memory.waits[trigger_no]
    world.turn(TriggerFired(trigger_no, wait.assignment_id, 0, world.now, b"\x01"))

    assert world.state(run, "a") == "queued"
    assert world.count() == 1


def lost_with_a_cancelled_try() -> tuple[RemoteWorld, int]:
    world = RemoteWorld()
    world.ask(SetPool(name="small", slots=1))
    world.load(DagSpec(dag_id="dag", file="dag.py", tasks=(far("a", pool="small"),)))
    first, second = world.trigger(), world.trigger()
    world.up()
    world.turn(WorkerUnresponsive(FIRST, 1_000, 9_000, "no answer"))
    world.ask(CancelRun(run_id=world.rows.runs[first].run_id))
    assert world.run_state(first) == "cancelled"
    return world, second


def test_a_try_that_is_cancelled_on_a_lost_worker_holds_its_pool_slots_until_that_has_gone():
    world, second = lost_with_a_cancelled_try()

    world.up(SECOND)
    assert world.started("a") is None  # the body of the first may still run
    assert world.slots.used("small") == 1
    wait = world.why(second)
    assert wait is not None
    assert "1 of them by workers that are lost with an ended try" in wait.detail
    world.turn(WorkerGone(FIRST))

    assert world.slots.remote.find(FIRST) is None
    assert world.started("a").worker == SECOND
    world.finish_all()
    assert world.run_state(second) == "success"
    assert world.slots.used("small") == 0


def test_a_worker_that_is_back_holds_nothing():
    """By the time it is back, the worker has received the command that ends the body."""
    world, _ = lost_with_a_cancelled_try()

    assert not retired(world.turn(WorkerIdle(FIRST)))
    assert world.slots.used("small") == 1
    world.turn(WorkerUnresponsive(FIRST))
    assert world.started("a").worker == FIRST
    world.finish_all()
    assert world.slots.used("small") == 0
    assert retired(world.turn(WorkerIdle(FIRST))) == [FIRST]


def test_a_turn_that_is_taken_back_keeps_what_a_lost_worker_holds():
    world, _ = lost_with_a_cancelled_try()

    world.refuse(WorkerUp(SECOND, DASK))

    assert world.slots.used("small") == 1
    assert world.started("a") is None
    world.refuse(WorkerGone(FIRST))
    assert world.slots.used("small") == 1
    assert world.started("a").worker == SECOND


def test_a_lost_worker_gets_no_further_try():
    world = RemoteWorld()
    world.begin(far("a"))
    world.up()
    world.finish_all()
    world.turn(WorkerUnresponsive(FIRST, 1_000, 9_000, "no answer"))

    world.trigger()
    assert world.started("a") is None
    assert world.count() == 2  # it counts as up until it has gone

    world.turn(WorkerUnresponsive(FIRST))
    assert world.started("a").worker == FIRST


# ── where a start ran ───────────────────────────────────────────────────────────────────


def test_a_start_is_stored_with_its_worker_before_it_is_sent():
    world = RemoteWorld()
    run = world.begin(far("a"), TaskSpec(task_id="near"))
    assert not world.ran_on

    world.up()

    task_no, start_no = world.key("a")
    row = TryWorkerRow(
        task_no=task_no,
        start_no=start_no,
        run_no=run,
        executor="dask",
        host=THERE.host,
        worker=THERE.worker,
    )
    assert world.ran_on == [row]
    world.finish_all()
    assert world.ran_on == [row]  # a local start has none


def test_a_claim_is_stored_with_its_worker_once_it_begins():
    world = RemoteWorld()
    world.begin(wide(4))
    world.up()
    for count in (1, 2):  # now it is known how long one takes
        assert len(world.ran_on) == count
        world.succeed("wide", next(e.start.map_index for e in world.starts.values()))
    (worker,) = world.slots.remote
    claim = worker.claims[0]
    key = claim.task_no, claim.start_no
    assert key not in world.rows.try_workers

    world.turn(TaskStarted(*key, world.now))

    assert world.rows.try_workers[key].host == "node-7"
    world.finish_all()
    assert len(world.ran_on) == 4


def test_each_start_of_a_try_has_the_worker_of_its_own():
    world = RemoteWorld()
    run = world.begin(far("a"))
    world.up()
    failure = Failure(type="WorkerLost", message="the machine is gone", reason="killed")
    world.turn(
        WorkerGone(FIRST), Failed(*world.key("a"), None, world.now, failure, interrupted=True)
    )
    world.up(SECOND, location=WorkerLocation("node-8", "process 5"))
    world.finish_all()

    assert world.run_state(run) == "success"
    assert [(row.start_no, row.host) for row in world.ran_on] == [(1, "node-7"), (2, "node-8")]


def test_a_worker_that_reports_no_location_is_stored_with_its_executor():
    world = RemoteWorld()
    world.begin(far("a"))
    world.turn(WorkerUp(FIRST, DASK))

    assert [(row.executor, row.host, row.worker) for row in world.ran_on] == [("dask", "", "")]


def test_a_turn_that_is_taken_back_stores_each_start_once():
    world = RemoteWorld()
    run = world.begin(far("a"), far("b", parents=(0,)))
    world.refuse(WorkerUp(FIRST, DASK, THERE))
    world.up(SECOND)
    world.finish_all()

    assert world.run_state(run) == "success"
    assert len(world.ran_on) == 2
