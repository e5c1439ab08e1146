"""Runs that events start: one for each, whatever is repeated, refused, paused or killed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aioflow.core.repair import execution
from aioflow.core.triggers import event_runs
from aioflow.core.triggers.dag_triggers import FIRST_WAIT_US, LONGEST_WAIT_US, WINDOW
from aioflow.core.triggers.event_runs import LONGEST_HOLD, conf_of
from aioflow.core.why import explain_dag_trigger
from aioflow.model.dag import DagSpec, TaskSpec
from aioflow.model.states import CODE_MISSING, Failure, TaskState, WaitKind
from aioflow.model.triggers import DagTriggerSpec, EventOutcome
from aioflow.protocol.effects import AssignTrigger, ConfirmEvents, ReleaseTrigger, RestoreCode, Warn
from aioflow.protocol.inputs import (
    CodeRestored,
    FileDeleted,
    FileParsed,
    HostLost,
    HostUp,
    IsolateTriggerClass,
    LoopBlocked,
    RequestReceived,
    TimerFired,
)
from aioflow.protocol.reports import TriggerEnded, TriggerFired
from aioflow.protocol.requests import CancelRun, ClearTasks, DeleteDag, Mark, SetPaused
from tests.core.world import SECOND, World, instant

BROKEN = Failure(type="OSError", message="no such folder", reason="trigger")
KILLED = Failure(type="Killed", message="SIGKILL", reason="killed")
CRASHED = Failure(type="Killed", message="SIGSEGV", reason="crashed")


def packed(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


def said(*, path: str = "m:Ticks", kwargs: bytes | None = b"\x80", **fields: Any) -> DagTriggerSpec:
    return DagTriggerSpec(class_path=path, kwargs=kwargs, **fields)


def of(
    trigger: DagTriggerSpec | None = None,
    tasks: tuple[TaskSpec, ...] = (TaskSpec(task_id="t"),),
    **fields: Any,
) -> DagSpec:
    fields.setdefault("parameters", ("n",))
    return DagSpec(
        dag_id="dag",
        file="dag.py",
        tasks=tasks,
        trigger=said() if trigger is None else trigger,
        **fields,
    )


def waiting(trigger: DagTriggerSpec | None = None, **fields: Any) -> World:
    """Return a node whose DAG has a trigger, assigned to its host."""
    world = World()
    world.load(of(trigger, **fields))
    return world


def host(world: World) -> Any:
    found = [effect.host for effect in world.effects if isinstance(effect, AssignTrigger)]
    return found[-1] if found else None


def hostings(world: World) -> int:
    return sum(isinstance(effect, AssignTrigger) for effect in world.effects)


def told_to_end(world: World) -> list[str]:
    return [effect.end.reason for effect in world.effects if isinstance(effect, ReleaseTrigger)]


def one(world: World) -> Any:
    return world.memory.dag_triggers.of("dag")


def fired(world: World, payload: Any, key: str | None = None, ahead: int = 0) -> TriggerFired:
    had = one(world)
    at = (had.row.trigger_no, had.assignment_id, had.index + ahead, world.now)
    return TriggerFired(*at, packed(payload), key)


def fire(world: World, *payloads: Any, keys: bool = True) -> list[Any]:
    """Have the trigger yield these events. With ``keys``, the key of each event is its payload."""
    return world.turn(
        *(
            fired(world, payload, str(payload) if keys else None, ahead)
            for ahead, payload in enumerate(payloads)
        )
    )


def end(world: World, failure: Failure | None = None, reason: str = "") -> list[Any]:
    had = one(world)
    return world.turn(
        TriggerEnded(had.row.trigger_no, had.assignment_id, world.now, failure, reason)
    )


def confs(world: World) -> list[Any]:
    runs = sorted(world.rows.runs.values(), key=lambda run: run.run_no)
    return [None if run.conf is None else msgspec.msgpack.decode(run.conf) for run in runs]


def states(world: World) -> list[str]:
    return [run.state.label for _, run in sorted(world.rows.runs.items())]


def outcomes(world: World) -> list[EventOutcome]:
    rows = sorted(world.rows.dag_events.values(), key=lambda row: row.sequence)
    return [row.outcome for row in rows]


# ── assignment ──────────────────────────────────────────────────────────────────────────


def test_the_trigger_of_a_dag_is_hosted_once_its_host_is_there():
    world = World()
    world.turn(FileParsed(file="dag.py", version="v1", dags=(of(),), sources={}))
    assert host(world) is None

    world.turn(HostUp("triggers"))

    order = host(world)
    assert (order.class_path, order.version, order.window) == ("m:Ticks", "v1", WINDOW)
    assert order.run_no == order.trigger_no  # named events count from there on
    assert order.since == world.now


def test_its_fields_lie_nowhere_but_in_its_row():
    world = waiting(said(kwargs=packed({"token": "s3cret"})))

    (version,) = world.rows.versions.values()
    assert version.dags[0].trigger.kwargs is None
    (row,) = world.rows.dag_triggers.values()
    assert b"s3cret" in (row.kwargs or b"")


def test_a_restart_hosts_it_again_behind_its_last_event():
    world = waiting()
    before = host(world)
    fire(world, {"n": 1})
    world.pass_time(7)

    world.restart()

    order = host(world)
    assert (order.trigger_no, order.since) == (before.trigger_no, before.since)
    assert order.last == (packed({"n": 1}), "{'n': 1}")
    assert order.assignment_id > before.assignment_id


def test_events_after_a_refused_one_wait_for_the_next_assignment():
    world = waiting()
    fire(world, 1)
    behind = fired(world, 3, "3", ahead=1)  # 2 was refused, the others processed one by one

    world.turn(behind)
    assert [row.key for row in world.rows.dag_events.values()] == ["1"]
    end(world, Failure(type="Refused", message="no", reason="refused"))
    world.pass_time(FIRST_WAIT_US / SECOND)
    assert host(world).last == (packed(1), "1")
    fire(world, 2, 3)

    assert [row.key for row in world.rows.dag_events.values()] == ["1", "2", "3"]


def test_events_while_the_dag_has_no_trigger_are_not_skipped_when_it_has_one_again():
    world = waiting()
    fire(world, 1)
    plain = msgspec.structs.replace(of(), trigger=None)
    missed, behind = fired(world, 2, "2"), fired(world, 3, "3", ahead=1)

    world.load(plain, version="v2")
    world.turn(missed)
    world.load(of(), version="v3")
    world.turn(behind)
    end(world, reason="finished")

    assert host(world).last == (packed(1), "1")


def test_a_version_with_other_fields_has_the_old_one_leave_and_hosts_the_new_one_after_that():
    world = waiting()
    fire(world, {"n": 1})
    world.load(of(said(kwargs=packed({"path": "b"}))), version="v2")

    assert told_to_end(world) == ["reassigned"]
    assert hostings(world) == 1

    fire(world, {"n": 2})  # events until then count
    end(world, reason="reassigned")

    order = host(world)
    assert (order.kwargs, order.version) == (packed({"path": "b"}), "v2")
    assert order.last == (packed({"n": 2}), "{'n': 2}")
    assert confs(world) == [{"n": 1}, {"n": 2}]


def test_the_same_version_again_changes_nothing():
    world = waiting()
    world.load(of())
    world.load(of(), version="v2")

    assert told_to_end(world) == []
    assert hostings(world) == 1


def test_a_version_whose_class_has_other_code_assigns_it_again():
    world = World()
    parsed = FileParsed(
        file="dag.py", version="v1", dags=(of(),), sources={}, triggers={"m:Ticks": "a"}
    )
    world.turn(parsed, HostUp("triggers"), HostUp("async"))
    world.turn(msgspec.structs.replace(parsed, version="v2"))
    assert told_to_end(world) == []

    world.turn(msgspec.structs.replace(parsed, version="v3", triggers={"m:Ticks": "b"}))
    end(world, reason="reassigned")

    assert told_to_end(world) == ["reassigned"]
    assert host(world).version == "v3"


def test_another_class_starts_over_but_knows_the_earlier_keys():
    world = waiting()
    fire(world, {"n": 1})
    world.now += SECOND
    world.load(of(said(path="m:Others")), version="v2")
    end(world, reason="reassigned")

    assert host(world).last is None
    assert host(world).since == world.now
    fire(world, {"n": 1}, {"n": 2})
    assert confs(world) == [{"n": 1}, {"n": 2}]


def test_a_dag_that_is_gone_has_no_trigger_hosted_and_comes_back_with_what_it_knew():
    world = waiting()
    fire(world, {"n": 1})
    world.turn(FileDeleted("dag.py"))
    assert told_to_end(world) == ["finished"]
    fire(world, {"n": 2})  # not lost: the trigger continues after the previous event
    end(world, reason="finished")
    assert confs(world) == [{"n": 1}]

    world.load(of(), version="v2")

    assert host(world).last == (packed({"n": 1}), "{'n': 1}")
    fire(world, {"n": 1}, {"n": 2})
    assert confs(world) == [{"n": 1}, {"n": 2}]


def test_a_dag_that_was_deleted_has_left_nothing_to_the_next_of_its_name_but_the_keys():
    world = waiting()
    fire(world, {"n": 1})
    world.finish_all()
    world.turn(FileDeleted("dag.py"))
    end(world, reason="finished")
    world.ask(DeleteDag(dag_id="dag"))
    world.restart()
    world.now += SECOND

    world.load(of())

    assert (host(world).last, host(world).since) == (None, world.now)
    assert host(world).kwargs == b"\x80"


def test_a_dag_that_changes_to_a_clock_has_its_trigger_released():
    world = waiting()
    spec = msgspec.structs.replace(of(), trigger=None)
    world.load(spec, version="v2")
    end(world, reason="finished")

    assert told_to_end(world) == ["finished"]
    assert one(world).assignment_id == 0


# ── events ──────────────────────────────────────────────────────────────────────────────


def test_each_event_starts_one_run_with_its_mapping_as_conf():
    world = waiting()
    fire(world, {"n": 1, "m": 7}, {"n": 2})

    assert confs(world) == [{"n": 1}, {"n": 2}]
    assert {run.cause for run in world.rows.runs.values()} == {"event"}
    assert outcomes(world) == [EventOutcome.RUN, EventOutcome.RUN]
    runs = {row.run_no for row in world.rows.dag_events.values()}
    assert runs == set(world.rows.runs)


@pytest.mark.parametrize(
    ("payload", "parameters", "conf"),
    [
        ({"a": 1, "b": [2]}, ("a", "b"), {"a": 1, "b": [2]}),
        ({"a": 1, "b": 2}, ("b", "c"), {"b": 2}),
        ({"a": 1}, (), None),
        ({"x": 1}, ("a",), None),
        (5, ("a",), {"a": 5}),
        ([1, 2], ("a",), {"a": [1, 2]}),
        ("text", ("a", "b"), None),
        (None, ("a",), None),
    ],
)
def test_the_part_of_an_event_that_is_the_conf(payload, parameters, conf):
    made = conf_of(packed(payload), of(parameters=parameters))

    assert (None if made is None else msgspec.msgpack.decode(made)) == conf


def test_a_repeated_report_starts_nothing():
    world = waiting()
    report = fired(world, {"n": 1})
    world.turn(report, report)
    world.turn(report)

    assert confs(world) == [{"n": 1}]


def test_a_key_that_was_there_is_known_in_every_later_hosting():
    world = waiting()
    fire(world, {"n": 1}, {"n": 1})
    world.restart()
    fire(world, {"n": 1}, {"n": 2})

    assert confs(world) == [{"n": 1}, {"n": 2}]


def test_events_without_a_key_are_each_their_own():
    world = waiting()
    fire(world, {"n": 1}, {"n": 1}, keys=False)

    assert confs(world) == [{"n": 1}, {"n": 1}]


def test_a_report_of_an_earlier_hosting_is_late():
    world = waiting()
    late = fired(world, {"n": 1})
    world.restart()
    world.turn(late)

    assert confs(world) == []


def test_the_host_continues_when_its_events_are_stored():
    world = waiting()
    effects = fire(world, {"n": 1}, {"n": 2}, {"n": 3})

    assert [e.confirmed.upto for e in effects if isinstance(e, ConfirmEvents)] == [3]


def test_a_turn_that_is_refused_is_as_if_it_had_never_been():
    world = waiting()
    reports = [fired(world, {"n": n}, str(n), n) for n in range(3)]
    world.refuse(*reports)

    assert confs(world) == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert one(world).row == next(iter(world.rows.dag_triggers.values()))


def test_a_file_whose_turn_is_refused_makes_one_trigger():
    world = World()
    world.refuse(FileParsed(file="dag.py", version="v1", dags=(of(),), sources={}))
    world.turn(HostUp("triggers"))

    assert len(world.rows.dag_triggers) == len(world.memory.dag_triggers) == 1
    assert hostings(world) == 1


def test_an_event_that_can_start_no_run_is_stored_with_the_reason_and_reported():
    world = waiting(parameters=("n",), required=("n",))
    fire(world, {"m": 1}, {"n": 2})

    refused, _ = sorted(world.rows.dag_events.values(), key=lambda row: row.sequence)
    assert refused.outcome is EventOutcome.REFUSED
    assert "needs n" in str(refused.reason)
    assert len(world.alerts()) == 1
    assert confs(world) == [{"n": 2}]


def test_a_key_that_no_database_takes_costs_its_event_alone():
    world = waiting()
    world.turn(fired(world, {"n": 1}, "a\0b"))
    fire(world, {"n": 2})

    assert outcomes(world) == [EventOutcome.REFUSED, EventOutcome.RUN]


# ── while runs are active ───────────────────────────────────────────────────────────────


def test_an_unstorable_key_is_converted_in_the_row_of_its_trigger():
    world = waiting()

    world.turn(fired(world, {"n": 1}, "a\0b"), fired(world, {"n": 2}, "k" * 5_000, ahead=1))

    assert outcomes(world) == [EventOutcome.REFUSED, EventOutcome.REFUSED]
    row = world.rows.dag_triggers[one(world).row.trigger_no]
    keys = [row.event_key or "", *(event.key or "" for event in world.rows.dag_events.values())]
    assert not any("\0" in key or len(key) > 1_000 for key in keys)


def test_the_first_of_many_events_that_start_nothing_is_alerted():
    world = waiting(required=("day",), parameters=("day", "n"))

    fire(world, *({"n": n} for n in range(5)))

    assert len(world.alerts()) == 1
    fire(world, {"day": 1})
    fire(world, {"n": 9})
    assert len(world.alerts()) == 2


def test_runs_of_events_wait_for_their_turn():
    world = waiting(max_active_runs=1)
    fire(world, {"n": 1}, {"n": 2}, {"n": 3})
    assert states(world) == ["running", "queued", "queued"]

    world.finish_all()
    assert states(world) == ["success"] * 3


def test_skip_keeps_the_event_and_starts_no_run():
    world = waiting(said(if_running="skip"))
    fire(world, {"n": 1}, {"n": 2})
    assert outcomes(world) == [EventOutcome.RUN, EventOutcome.SKIPPED]

    world.finish_all()
    fire(world, {"n": 2}, {"n": 3})  # skipped events are known nevertheless

    assert confs(world) == [{"n": 1}, {"n": 3}]
    assert outcomes(world) == [EventOutcome.RUN, EventOutcome.SKIPPED, EventOutcome.RUN]


def test_cancel_old_leaves_the_newest_alone():
    world = waiting(said(if_running="cancel_old"), max_active_runs=1)
    by_hand = world.trigger()
    fire(world, {"n": 1}, {"n": 2})
    world.finish_all()

    ended = {run.run_no: run.state.label for run in world.rows.runs.values()}
    assert ended.pop(by_hand) == "success"
    assert list(ended.values()) == ["cancelled", "success"]


def test_cancel_old_cancels_what_runs_also_after_a_restart():
    world = waiting(said(if_running="cancel_old"))
    fire(world, {"n": 1})
    world.restart()
    fire(world, {"n": 2})

    assert states(world) == ["cancelled", "running"]


TASKS = tuple(TaskSpec(task_id=name) for name in "abcd")


def test_cancel_old_cancels_a_queued_run_that_is_being_marked(monkeypatch):
    """A mark in slices takes the run out of its queue until the last slice is executed."""
    monkeypatch.setattr(execution, "SLICE_TASKS", 1)
    world = World()
    world.load(of(max_active_runs=1, tasks=TASKS))
    world.trigger()
    fire(world, {"n": 1}, {"n": 2})
    spec = of(said(if_running="cancel_old"), max_active_runs=1, tasks=TASKS)
    world.load(spec, version="v2")
    _, earlier, _ = sorted(world.rows.runs.values(), key=lambda run: run.run_no)
    mark = Mark(run_id=earlier.run_id, state=TaskState.SUCCESS, tasks=("a", "b", "c"))
    world._turn([RequestReceived(1, mark)])
    assert earlier.run_no in world.memory.clearings

    world._turn([fired(world, {"n": 3}, "3")])

    assert states(world) == ["running", "cancelled", "cancelled", "queued"]


def test_a_run_that_is_being_cleared_counts_as_running(monkeypatch):
    monkeypatch.setattr(execution, "SLICE_TASKS", 1)
    world = World()
    world.load(of(said(if_running="skip"), tasks=TASKS))
    fire(world, {"n": 1})
    world.finish_all()
    (run,) = world.rows.runs.values()
    world._turn([RequestReceived(1, ClearTasks(run_id=run.run_id))])
    assert run.run_no in world.memory.clearings

    world._turn([fired(world, {"n": 2}, "2")])

    assert outcomes(world) == [EventOutcome.RUN, EventOutcome.SKIPPED]


def test_too_many_runs_that_wait_hold_the_trigger_back(monkeypatch):
    ahead = 20
    monkeypatch.setattr(event_runs, "RUNS_AHEAD", ahead)
    world = waiting(max_active_runs=1)
    fire(world, *({"n": n} for n in range(ahead)))
    assert one(world).confirmed == one(world).index == ahead

    effects = fire(world, {"n": ahead})
    assert not [e for e in effects if isinstance(e, ConfirmEvents)]
    assert len(world.rows.runs) == ahead + 1

    effects = world.succeed("t")
    effects += world.succeed("t")
    assert [e.confirmed.upto for e in effects if isinstance(e, ConfirmEvents)] == [ahead + 1]


def test_a_run_that_is_cancelled_while_it_waits_lets_the_trigger_continue(monkeypatch):
    monkeypatch.setattr(event_runs, "RUNS_AHEAD", 2)
    world = waiting(max_active_runs=1)
    fire(world, *({"n": n} for n in range(3)))
    assert one(world).confirmed < one(world).index

    last = max(world.rows.runs.values(), key=lambda run: run.run_no)
    world.ask(CancelRun(run_id=last.run_id))

    assert one(world).confirmed == one(world).index


# ── paused ──────────────────────────────────────────────────────────────────────────────


def test_events_of_a_paused_dag_are_taken_and_their_runs_wait():
    world = waiting()
    world.ask(SetPaused(dag_id="dag", paused=True))
    fire(world, {"n": 1}, {"n": 2})
    by_hand = world.trigger()

    assert states(world) == ["queued", "queued", "running"]
    world.restart()
    assert states(world) == ["queued", "queued", "running"]
    assert world.run_state(by_hand) == "running"

    world.ask(SetPaused(dag_id="dag", paused=False))
    assert states(world) == ["running"] * 3


def test_a_paused_dag_that_stops_has_its_trigger_released_and_continues_where_it_was():
    world = waiting(if_paused="stop")
    fire(world, {"n": 1})
    world.ask(SetPaused(dag_id="dag", paused=True))
    assert told_to_end(world) == ["paused"]
    end(world, reason="paused")
    world.restart()
    assert one(world).assignment_id == 0

    world.ask(SetPaused(dag_id="dag", paused=False))
    assert host(world).last == (packed({"n": 1}), "{'n': 1}")


def test_a_dag_resumed_before_its_host_has_released_the_trigger_is_assigned_afterwards():
    world = waiting(if_paused="stop")
    world.ask(SetPaused(dag_id="dag", paused=True))
    world.ask(SetPaused(dag_id="dag", paused=False))
    assert hostings(world) == 1

    end(world, reason="paused")
    assert hostings(world) == 2


# ── endings ─────────────────────────────────────────────────────────────────────────────


def test_a_trigger_that_fails_is_assigned_again_later_and_later_and_alerted_once():
    world = waiting()
    wait_us = FIRST_WAIT_US
    for _ in range(12):
        end(world, BROKEN)
        before = hostings(world)
        world.pass_time((wait_us - 1) / SECOND)
        assert hostings(world) == before
        world.pass_time(2 / SECOND)
        assert hostings(world) == before + 1
        wait_us = min(2 * wait_us, LONGEST_WAIT_US)

    assert len(world.alerts()) == 1
    fire(world, {"n": 1})
    end(world, BROKEN)
    assert one(world).failures == 1


@pytest.mark.parametrize("is_up", [True, False], ids=["host-there", "host-up-later"])
def test_a_clock_set_back_as_it_is_to_be_hosted_again_puts_nothing_off(is_up):
    world = waiting()
    end(world, BROKEN)
    if not is_up:
        world.turn(HostLost(role="triggers", culprit=-1, failure=KILLED, at=world.now))
    came = TimerFired(one(world).retry_at, trigger_no=one(world).row.trigger_no)

    world.now -= 7_200 * SECOND
    world.turn(came)
    if not is_up:
        assert explain_dag_trigger(one(world), world.memory).kind is WaitKind.HOST
        world.turn(HostUp("triggers"))

    assert hostings(world) == 2


def test_a_dag_trigger_whose_code_was_missing_is_assigned_again_without_an_alert():
    world = waiting()
    number = one(world).row.trigger_no
    effects = end(world, Failure(type="CodeMissing", message="not there", reason=CODE_MISSING))

    assert RestoreCode(("v1",), number) in effects
    assert explain_dag_trigger(one(world), world.memory).kind is WaitKind.CODE_MISSING
    world.turn(CodeRestored(number))
    assert hostings(world) == 2
    assert one(world).failures == 0
    assert world.alerts() == []
    world.turn(CodeRestored(number))  # said twice
    assert hostings(world) == 2


def test_a_dag_trigger_that_ends_is_assigned_again_without_an_alert():
    world = waiting()
    fire(world, {"n": 1})
    end(world)
    world.pass_time(1)

    assert hostings(world) == 2
    assert world.alerts() == []


def test_one_that_ends_without_an_event_has_failed():
    world = waiting()
    end(world)

    assert one(world).failure.reason == "trigger_ended"


def test_a_saved_file_does_not_wait_for_the_next_attempt():
    world = waiting()
    end(world, BROKEN)
    world.load(of(said(kwargs=packed({"path": "b"}))), version="v2")

    assert hostings(world) == 2


def test_a_host_that_dies_leaves_it_to_the_next_one():
    world = waiting()
    fire(world, {"n": 1})
    lost = HostLost(role="triggers", culprit=-1, failure=KILLED, at=world.now)
    world.turn(lost)
    world.turn(HostUp("triggers"))

    assert hostings(world) == 2
    assert host(world).last is not None
    fire(world, {"n": 1}, {"n": 2})
    assert confs(world) == [{"n": 1}, {"n": 2}]


def test_the_one_that_took_its_host_down_waits_before_it_is_hosted_again():
    world = waiting()
    number = one(world).row.trigger_no
    world.turn(HostLost(role="triggers", culprit=number, failure=CRASHED, at=world.now))
    world.turn(HostUp("triggers"))
    assert hostings(world) == 1
    assert one(world).failure == CRASHED

    world.pass_time(1)
    assert hostings(world) == 2


def test_a_class_in_quarantine_moves_with_its_events_in_order():
    world = waiting()
    world.turn(IsolateTriggerClass("m:Ticks", is_quarantined=True))
    assert told_to_end(world) == ["reassigned"]
    fire(world, {"n": 1})
    end(world, reason="reassigned")

    moved = [e.role for e in world.effects if isinstance(e, AssignTrigger)]
    assert moved == ["triggers", "quarantine"]
    world.turn(HostUp("quarantine"))
    assert host(world).last is not None


def test_one_whose_quarantine_host_may_be_up_already_is_asked_to_leave_it():
    world = waiting(if_paused="stop")
    world.turn(IsolateTriggerClass("m:Ticks", is_quarantined=True))
    end(world, reason="reassigned")
    assert "quarantine" not in world.memory.hosts_up

    world.ask(SetPaused(dag_id="dag", paused=True))

    assert told_to_end(world) == ["reassigned", "paused"]
    world.turn(HostUp("quarantine"))
    assert one(world).assignment_id == 0


def test_one_that_holds_up_its_loop_is_named_with_its_dag():
    world = waiting()
    number = one(world).row.trigger_no
    effects = world.turn(
        LoopBlocked(
            role="triggers",
            culprit=number,
            incident="i",
            milliseconds=900,
            source_location="f.py:3",
        )
    )

    (told,) = [effect for effect in effects if isinstance(effect, Warn)]
    assert (told.facts["trigger"], told.facts["dag_id"]) == ("m:Ticks", "dag")


# ── quiet ───────────────────────────────────────────────────────────────────────────────


def length(world: World) -> float:
    """Return the duration, in seconds from now, of the timer that is armed."""
    [wake] = world.armed
    return (instant(wake) - world.moment.steady) / SECOND


def pass_armed(world: World, seconds: float) -> None:
    """Fire the armed timer after this many seconds of monotonic time."""
    [wake] = world.armed
    world.armed.clear()
    world.now += round(seconds * SECOND)
    world.turn(wake.due)


def quiet() -> World:
    return waiting(said(debounce_us=10 * SECOND))


def test_the_last_event_before_it_is_quiet_starts_one_run():
    world = quiet()
    fire(world, {"n": 1})
    world.pass_time(9)
    fire(world, {"n": 2})
    world.pass_time(9)
    fire(world, {"n": 3})
    world.pass_time(9.9)
    assert confs(world) == []

    world.pass_time(0.1)
    assert confs(world) == [{"n": 3}]
    assert outcomes(world) == [EventOutcome.REPLACED, EventOutcome.REPLACED, EventOutcome.RUN]
    world.pass_time(100)
    assert len(confs(world)) == 1


def test_constant_events_start_a_run_despite_debouncing():
    world = quiet()
    for n in range(2 * LONGEST_HOLD):
        fire(world, {"n": n})
        world.pass_time(9)

    first = (LONGEST_HOLD * 10) // 9
    assert confs(world)[0] == {"n": first}


def test_a_clock_set_back_meanwhile_puts_nothing_off_that_waits_for_quiet():
    world = quiet()
    fire(world, {"n": 1})
    assert length(world) == 10
    world.pass_time(9)
    fire(world, {"n": 2})

    world.set_clock(-7_200)
    pass_armed(world, 1)
    assert length(world) == 9
    pass_armed(world, 9)
    assert confs(world) == [{"n": 2}]


@pytest.mark.parametrize("step", [-7_200, 7_200])
def test_a_run_starts_in_time_though_a_clock_is_set_while_events_continue(step):
    world = quiet()
    fire(world, {"n": 1})
    left = length(world)
    world.set_clock(step)
    waited = 0.0
    while not confs(world):
        fire(world, {"n": 2})
        waited += left
        pass_armed(world, left)
        left = length(world) if world.armed else 0.0

    assert waited <= LONGEST_HOLD * 10


def test_a_debounced_event_has_one_timer_at_a_time():
    world = quiet()
    for n in range(50):
        fire(world, {"n": n})
        world.pass_time(1)
        assert len(world.armed) == 1


def test_a_debounced_event_survives_a_restart():
    world = quiet()
    fire(world, {"n": 1})
    world.restart()
    world.now += 10 * SECOND
    world.restart()
    world.pass_time(0)

    assert confs(world) == [{"n": 1}]
    world.restart()
    world.pass_time(100)
    assert confs(world) == [{"n": 1}]


def test_a_debounced_event_of_a_deleted_dag_starts_nothing():
    world = quiet()
    fire(world, {"n": 1})
    world.turn(FileDeleted("dag.py"))
    world.pass_time(10)

    assert confs(world) == []
    assert outcomes(world) == [EventOutcome.REFUSED]


def test_a_timetables_fire_time_is_the_logical_date_of_its_run():
    world = waiting(said(is_timetable=True), parameters=())
    world.turn(fired(world, None, "1700000000000000"))

    (run,) = world.rows.runs.values()
    assert run.logical_date == 1_700_000_000_000_000


def test_a_cancelled_run_of_an_event_is_not_started_again():
    world = waiting()
    fire(world, {"n": 1})
    (run,) = world.rows.runs.values()
    world.ask(CancelRun(run_id=run.run_id))
    world.restart()
    fire(world, {"n": 1})

    assert states(world) == ["cancelled"]
