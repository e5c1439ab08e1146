"""Sentences that explain waits, and what a person can do about them."""

from __future__ import annotations

import importlib
from typing import get_args

import pytest
from msgspec.structs import replace

from aioflow.api.schemas import ErrorView, PolledWait, ShareView, TargetView
from aioflow.api.trigger_details import (
    CATALOGUE_PAYLOADS,
    CATALOGUE_SENTENCES,
    CATALOGUE_TARGETS,
    PublicFields,
    fires_at,
)
from aioflow.api.waits.sentences import Waiter, actions, cause_sentence, chain_sentence
from aioflow.author.codec import encode
from aioflow.model.decisions import PERSON
from aioflow.model.states import TaskState, Wait, WaitKind
from aioflow.redaction import Masks

ONE = Waiter(name="score[0] anna", task_id="score")
MANY = Waiter(name="score[366]", task_id="score", count=1_634, width=2_000)
POOL = Wait(kind=WaitKind.SLOT, pool="scoring", detail="pool scoring: 200 of 200 slots are taken")
FILE = PolledWait(
    kind=WaitKind.TRIGGER,
    detail="for the file /in/bank.csv",
    checked_by=7,
    target=TargetView(type="file", name="/in/bank.csv"),
)
RUN = PolledWait(
    kind=WaitKind.TRIGGER,
    detail="for run nightly of DAG fraud",
    checked_by=8,
    target=TargetView(type="run", name="nightly", run_id="nightly", used=8, all=100),
)
SLEEP = PolledWait(
    kind=WaitKind.TRIGGER,
    detail="sleep",
    checked_by=9,
    target=TargetView(type="time", name="sleep"),
)
SENSOR = Wait(kind=WaitKind.INTERVAL, detail="a check every 1 s")
HELD = [
    ShareView(run_id=run_id, dag_id="fraud", slots=slots)
    for run_id, slots in (("live", 170), ("two", 20), ("three", 6), ("four", 3), ("five", 1))
]


@pytest.mark.parametrize(
    ("who", "wait", "shares", "said"),
    [
        pytest.param(
            MANY,
            POOL,
            HELD[:2],
            "1,634 of 2,000 children of score are waiting for pool scoring: "
            "200 of 200 slots are taken, held by live (170) and two (20)",
            id="a-pool-and-who-holds-it",
        ),
        pytest.param(
            ONE,
            POOL,
            HELD,
            "score[0] anna is waiting for pool scoring: 200 of 200 slots are taken, "
            "held by live (170), two (20), three (6) and 2 more runs",
            id="many-holders",
        ),
        pytest.param(
            ONE,
            replace(POOL, detail="pool scoring has 1 slots, and it needs 2"),
            HELD,
            "score[0] anna is waiting for pool scoring: pool scoring has 1 slots, and it needs 2",
            id="a-pool-that-is-too-narrow",
        ),
        pytest.param(
            ONE,
            Wait(kind=WaitKind.SLOT, detail="all 2 slots are taken"),
            [],
            "score[0] anna is waiting for a slot: all 2 slots are taken",
            id="no-pool",
        ),
        pytest.param(
            ONE, FILE, [], "score[0] anna is waiting for the file /in/bank.csv", id="a-file"
        ),
        pytest.param(
            ONE,
            replace(FILE, label="the bank's answer"),
            [],
            "score[0] anna is waiting for the bank's answer: the file /in/bank.csv",
            id="a-label-comes-first",
        ),
        pytest.param(
            ONE,
            RUN,
            [],
            "score[0] anna is waiting for run nightly of DAG fraud (8 % done)",
            id="run",
        ),
        pytest.param(ONE, SLEEP, [], "score[0] anna is waiting until its sleep ends", id="a-sleep"),
        pytest.param(
            ONE,
            replace(SLEEP, label="the cooling-off period"),
            [],
            "score[0] anna is waiting for the cooling-off period",
            id="a-sleep-with-a-label",
        ),
        pytest.param(
            ONE,
            replace(
                FILE,
                detail="for 40m to pass",
                label="the market's close",
                target=TargetView(type="time", name="40m"),
                fires_at=2_400_000_000,
            ),
            [],
            "score[0] anna is waiting for the market's close",
            id="a-labelled-time-has-no-length",
        ),
        pytest.param(
            ONE,
            SENSOR,
            [],
            "score[0] anna is waiting for a condition",
            id="a-sensor",
        ),
        pytest.param(
            replace(ONE, doc="Is the bank's file\n    there? It arrives by a rename."),
            SENSOR,
            [],
            'score[0] anna is waiting for a condition: "Is the bank\'s file there?"',
            id="a-sensor-with-a-docstring",
        ),
        pytest.param(
            replace(MANY, doc="Wait for v1.2 of the file."),
            SENSOR,
            [],
            "1,634 of 2,000 children of score are waiting for a condition: "
            '"Wait for v1.2 of the file"',
            id="sensors-with-a-docstring",
        ),
        pytest.param(
            replace(ONE, doc="x" * 500),
            SENSOR,
            [],
            f'score[0] anna is waiting for a condition: "{"x" * 120} ..."',
            id="a-sensor-with-a-long-docstring",
        ),
        pytest.param(
            ONE,
            Wait(kind=WaitKind.RETRY_AT, detail="no route to host"),
            [],
            "score[0] anna is waiting for the next try, after no route to host",
            id="a-retry",
        ),
    ],
)
def test_a_sentence_says_who_waits_for_what(who, wait, shares, said):
    assert cause_sentence(who, TaskState.QUEUED, wait, shares=shares) == said


@pytest.mark.parametrize("kind", list(WaitKind))
def test_every_kind_of_wait_has_a_sentence_with_and_without_a_detail(kind):
    for detail in ("", "of what"):
        said = cause_sentence(MANY, TaskState.PENDING, Wait(kind=kind, detail=detail))
        assert said.startswith("1,634 of 2,000 children of score are waiting ")
        assert detail in said or kind is WaitKind.INTERVAL  # its detail is how often it is checked
        assert not said.endswith((":", " "))


@pytest.mark.parametrize("state", list(TaskState))
def test_every_state_has_a_sentence_for_one_task_and_for_many(state):
    assert cause_sentence(ONE, state, None).startswith("score[0] anna ")
    many = cause_sentence(MANY, state, None).removeprefix("1,634 of 2,000 children of score ")
    assert not many.startswith(("is ", "was ", "has "))


def test_a_failure_names_its_error_and_cuts_a_long_one():
    error = ErrorView(type="ValueError", message="x" * 500, reason="raised")

    said = cause_sentence(ONE, TaskState.FAILED, None, error=error)

    assert said.startswith("score[0] anna failed: ValueError: xxx")
    assert said.endswith("x ...")
    assert len(said) < 300


def test_a_running_task_says_where_it_runs():
    said = cause_sentence(ONE, TaskState.RUNNING, None, place="on node 1")

    assert said == "score[0] anna is running on node 1"


@pytest.mark.parametrize(
    ("sentences", "more", "is_task", "said"),
    [
        ([], 0, False, "r is success; it is waiting for nothing"),
        (["a waits"], 0, False, "a waits"),
        (["a waits", "b waits"], 0, False, "a waits, and 1 more cause"),
        (["a waits", "b waits"], 1_200, False, "a waits, and 1,201 more causes"),
        (["a waits for b", "b waits for c", "c runs"], 0, True, "a waits for b. c runs"),
        (["a runs"], 0, True, "a runs"),
    ],
)
def test_the_answer_is_one_sentence(sentences, more, is_task, said):
    assert chain_sentence("r", "success", sentences, more=more, is_task=is_task) == said


@pytest.mark.parametrize(
    ("state", "wait", "possible"),
    [
        (TaskState.QUEUED, POOL, ["set_pool", "mark"]),
        (TaskState.DEFERRED, FILE, ["fire", "mark"]),
        (TaskState.RETRYING, Wait(kind=WaitKind.RETRY_AT), ["clear", "mark"]),
        (TaskState.PENDING, Wait(kind=WaitKind.PAUSED), ["resume"]),
        (TaskState.PENDING, Wait(kind=WaitKind.UPSTREAM), []),
        (TaskState.FAILED, None, ["clear", "mark"]),
        (TaskState.RUNNING, None, []),
        (TaskState.SUCCESS, None, []),
    ],
)
def test_a_person_may_do_what_helps(state, wait, possible):
    assert actions(state, wait) == possible


def test_every_class_of_the_catalogue_has_a_target():
    assert CATALOGUE_TARGETS.keys() == CATALOGUE_SENTENCES.keys()


@pytest.mark.parametrize("class_path", sorted(CATALOGUE_PAYLOADS))
def test_the_fields_of_an_event_are_those_that_the_catalogue_yields(class_path):
    module, _, name = class_path.partition(":")
    trigger = getattr(importlib.import_module(module), name)
    (base,) = trigger.__orig_bases__
    (payload,) = get_args(base)

    assert list(CATALOGUE_PAYLOADS[class_path]) == list(payload.__annotations__)


def test_a_trigger_that_asks_a_person_is_shown_by_its_question():
    kwargs = encode({"question": "Release the payment?", "details": "Invoice 4711"}, "f", 1_000)

    said = PublicFields(Masks()).sentence(PERSON, kwargs, None)

    assert said == "for a decision: Release the payment?"


def test_a_field_of_an_event_has_the_value_that_its_trigger_waits_for():
    kwargs = encode({"path": "/in/bank.csv"}, "f", 1_000)

    fields = PublicFields(Masks()).payload("aioflow_triggers.files:FileTrigger", kwargs)

    assert fields == {
        "path": {"type": "string", "default": "/in/bank.csv"},
        "size_bytes": {"type": "integer"},
    }
    assert PublicFields(Masks()).payload("mine:Own", kwargs) is None


@pytest.mark.parametrize(
    ("class_path", "fields", "fires"),
    [
        ("aioflow_triggers.temporal:TimeDeltaTrigger", {"delta": "40m"}, 2_405_000_000),
        ("aioflow_triggers.temporal:TimeDeltaTrigger", {"delta": 1.5}, 6_500_000),
        (
            "aioflow_triggers.temporal:DateTimeTrigger",
            {"moment": "1970-01-01T02:00:01+02:00"},
            1_000_000,
        ),
        ("sleep", {}, 9_000_000),
        ("aioflow_triggers.files:FileTrigger", {"path": "/in"}, None),
        ("aioflow_triggers.temporal:TimeDeltaTrigger", {"delta": "soon"}, None),
        ("aioflow_triggers.temporal:DateTimeTrigger", {}, None),
    ],
)
def test_a_wait_for_a_time_says_when_it_ends(class_path, fields, fires):
    kwargs = encode(fields, "f", 1_000)

    assert fires_at(class_path, kwargs, since=5_000_000, deadline=9_000_000) == fires


@pytest.mark.parametrize(
    ("class_path", "fields", "target"),
    [
        (
            "aioflow_triggers.files:FileTrigger",
            {"path": "/in/s3cr3t.csv"},
            TargetView(type="file", name="/in/***.csv"),
        ),
        (
            "aioflow_triggers.http:HttpTrigger",
            {"url": "https://anna:pw@bank.example/x?token=1"},
            TargetView(type="url", name="https://bank.example/x?token=***"),
        ),
        (
            "aioflow_triggers.events:EventTrigger",
            {"name": "paid", "key": "77"},
            TargetView(type="event", name="paid", key="77"),
        ),
        (
            "run",
            {"dag": "fraud", "run_id": "nightly"},
            TargetView(type="run", name="nightly", dag_id="fraud", run_id="nightly"),
        ),
        ("sleep", {}, TargetView(type="time", name="sleep")),
        ("mine:Own", {"token": "s3cr3t"}, TargetView(type="trigger", name="Own")),
        ("aioflow_triggers.files:FileTrigger", {}, TargetView(type="trigger", name="FileTrigger")),
    ],
)
def test_a_target_names_public_fields_and_masks_secrets(class_path, fields, target):
    masks = Masks()
    masks.hide(["s3cr3t"])

    assert PublicFields(masks).target(class_path, encode(fields, "f", 1_000)) == target
