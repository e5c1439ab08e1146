"""Schedules by events instead of times, as an author writes them."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest

from aioflow import Asset, DagError, Trigger, TriggerEvent, dag, task
from aioflow.author.assets import asset_condition
from aioflow.author.dag_spec import describe
from aioflow.model.triggers import ASSETS, AssetCondition

A, B, C = Asset("a"), Asset("b"), Asset("s3://bucket/c")


@dataclass
class Ticks(Trigger[int]):
    every: float = 1.0

    async def run(self):
        yield TriggerEvent(1)


class Returns(Trigger[int]):
    async def run(self):  # type: ignore[override]  # the mistake in question
        return TriggerEvent(1)


class Blocks(Trigger[int]):
    def run(self):
        yield TriggerEvent(1)


class Idle(Trigger[int]):
    """A trigger without a ``run``."""


class Passes(Trigger[int]):
    def run(self):
        return Ticks().run()


@task
def work(n: int) -> None: ...


def described(**options):
    @dag("events", **options)
    def made(n: int) -> None:
        work(n)

    spec, failures = describe(made)
    return spec, [failure.message for failure in failures]


def test_a_trigger_is_described_with_its_fields():
    spec, failures = described(schedule=Ticks(2.5), if_running="skip", debounce="10s")

    assert failures == []
    assert spec.schedule is None
    trigger = spec.trigger
    assert trigger.class_path.endswith(":Ticks")
    assert msgspec.msgpack.decode(trigger.kwargs) == {"every": 2.5}
    assert (trigger.if_running, trigger.debounce_us) == ("skip", 10_000_000)


def test_a_run_that_is_a_plain_function_may_return_who_yields():
    assert described(schedule=Passes())[1] == []


def test_its_runs_may_need_parameters():
    assert described(schedule=Ticks())[1] == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"schedule": Ticks(), "if_running": "stop"}, "if_running='stop' is none of 'queue'"),
        ({"schedule": "@daily", "if_running": "skip"}, "schedule=<a trigger>"),
        ({"debounce": "1s"}, "schedule=<a trigger>"),
        ({"schedule": Ticks(), "debounce": 0}, "longer than nothing"),
        ({"schedule": Ticks(), "debounce": "soon"}, "debounce"),
        ({"schedule": A, "debounce": "1s"}, "debounce goes with a trigger"),
        ({"schedule": [A, "b"]}, "is not an asset"),
        ({"schedule": Returns()}, "Returns.run must be `async def` with a yield"),
        ({"schedule": Blocks()}, "Blocks.run must be `async def` with a yield"),
        ({"schedule": Idle()}, "the schedule's Idle needs a method run()"),
    ],
)
def test_nonsense_is_reported(options, said):
    spec, failures = described(**options)

    assert spec is None
    assert any(said in failure for failure in failures), failures


@pytest.mark.parametrize(
    ("schedule", "condition"),
    [
        (A, AssetCondition(True, ("a",))),
        ([A, B], AssetCondition(True, ("a", "b"))),
        (A & B, AssetCondition(True, ("a", "b"))),
        (A | B, AssetCondition(False, ("a", "b"))),
        ((A | B) & C, AssetCondition(True, (AssetCondition(False, ("a", "b")), "s3://bucket/c"))),
        ([A | B, C], AssetCondition(True, (AssetCondition(False, ("a", "b")), "s3://bucket/c"))),
        ("@daily", None),
        (None, None),
        ([], None),
    ],
)
def test_assets_are_a_condition(schedule, condition):
    assert asset_condition(schedule) == condition


def test_assets_are_described():
    spec, failures = described(schedule=[A, B])

    assert failures == []
    assert spec.trigger.class_path == ASSETS
    condition = msgspec.msgpack.decode(spec.trigger.kwargs, type=AssetCondition)
    assert condition.names() == ["a", "b"]


def test_the_outlets_of_a_task_are_described():
    @task(outlets=[Asset("a", extra={"rows": 3}), B])
    def makes() -> None: ...

    @dag("maker")
    def maker() -> None:
        makes()

    spec, _ = describe(maker)

    named = {name: msgspec.msgpack.decode(extra) for name, extra in spec.tasks[0].outlets}
    assert named == {"a": {"rows": 3}, "b": None}


@pytest.mark.parametrize("name", ["", "x" * 245, "a\nb", 5])
def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(DagError, match="name of an asset"):
        Asset(name)


def test_and_and_or_of_python_are_refused():
    with pytest.raises(DagError, match="write & and |"):
        bool(A and B)


def test_outlets_that_are_none_are_refused():
    with pytest.raises(DagError, match="outlets must be a list of assets"):

        @dag("maker")
        def maker() -> None:
            task(outlets=["a"])(lambda: None)()  # type: ignore[list-item]
