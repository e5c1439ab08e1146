"""Triggers are stored as data, and reject unserializable fields when a task defers."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import IntEnum
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar

import pytest

from aioflow import (
    Operator,
    PersonTrigger,
    RunEndings,
    StartTriggerArgs,
    TaskDeferred,
    Trigger,
    TriggerEvent,
    UnknownValue,
    Unserializable,
    fetch_connection,
    fetch_secret,
    fetch_variable,
    run_ending,
    secret,
)
from aioflow.author.client import (
    NamedEvent,
    NamedEvents,
    RunEnding,
    named_events,
    own_dag_id,
    query_sender,
    run_start_id,
)
from aioflow.author.codec import encode_fields
from aioflow.author.deferral import start_spec
from aioflow.author.trigger import class_path, construct, prepare, serialize
from aioflow.errors import AioflowError, DagError, WrongField
from aioflow.model.dag import ValueKind

T = TypeVar("T")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Depth(Trigger[int]):
    below: Decimal
    until: datetime
    every: timedelta = timedelta(seconds=30)
    looks: int = field(init=False, default=0, compare=False)

    def __post_init__(self) -> None:
        if self.below < 0:
            raise ValueError("below must not be negative")

    async def run(self) -> AsyncIterator[TriggerEvent[int]]:
        yield TriggerEvent(3)


class Colour(IntEnum):
    RED = 1


class Shouted(str):
    __slots__ = ()


@dataclass
class Point:
    x: int
    y: int


class Sized(Protocol):
    def __len__(self) -> int: ...


@dataclass
class Holder(Trigger[Any]):
    value: Any


class Bare(Trigger[None]):
    pass


class Written(Trigger[None]):
    def __init__(self, moment: datetime) -> None:
        self.at = moment

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"somewhere.{type(self).__name__}", {"moment": self.at}


class Delegating(Trigger[None]):
    def __init__(self, moment: datetime) -> None:
        self.at = moment

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "a_package.triggers.Other", {"moment": self.at}


class Silent(Trigger[None]):
    def __init__(self, moment: datetime) -> None:
        self.at = moment


class Shrinking(Trigger[None]):
    def __init__(self, moment: datetime) -> None:
        self.at = moment

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "x.Shrinking", {"at": self.at}


class Outer:
    @dataclass
    class Inner(Trigger[int]):
        n: int = 1


@pytest.mark.parametrize(
    "trigger",
    [Depth(Decimal("1.5"), NOW), Holder({"a": (1, NOW)}), Outer.Inner(4)],
    ids=lambda trigger: type(trigger).__name__,
)
def test_fields_are_what_is_stored(trigger):
    path, data = serialize(trigger)

    assert path == f"{__name__}:{type(trigger).__qualname__}"
    assert construct(type(trigger), data) == trigger


def test_a_trigger_without_fields_needs_nothing():
    path, data = serialize(Bare())

    assert path == class_path(Bare)
    assert isinstance(construct(Bare, data), Bare)


@pytest.mark.parametrize(
    "trigger",
    [Depth(Decimal("1.5"), NOW), Outer.Inner(4), Bare(), Written(NOW)],
    ids=lambda trigger: type(trigger).__name__,
)
def test_every_trigger_says_what_is_stored_as_one_of_airflow_does(trigger):
    path, kwargs = trigger.serialize()

    assert path in {f"{__name__}.{type(trigger).__qualname__}", "somewhere.Written"}
    assert type(trigger)(**kwargs).__dict__ == trigger.__dict__


def test_a_class_with_an_init_of_its_own_has_to_say_what_is_stored():
    with pytest.raises(Unserializable, match=r"define serialize\(\)"):
        Silent(NOW).serialize()


def test_a_trigger_written_for_airflow_serializes_itself():
    path, data = serialize(Written(NOW))

    made = construct(Written, data)
    assert path == f"{__name__}:Written"
    assert isinstance(made, Written)
    assert made.at == NOW


def test_a_trigger_may_name_another_class():
    path, _ = serialize(Delegating(NOW))

    assert path == "a_package.triggers:Other"


@pytest.mark.parametrize(
    ("trigger", "complaint"),
    [
        pytest.param(Silent(NOW), "define serialize", id="no-way-to-serialize"),
        pytest.param(Shrinking(NOW), "Shrinking", id="no-way-back"),
    ],
)
def test_a_trigger_that_cannot_be_deferred_to_is_refused_at_once(trigger, complaint):
    with pytest.raises(Unserializable, match=complaint):
        serialize(trigger)


@pytest.mark.parametrize("make", [lambda: Holder(object()), lambda: Holder(value=object())])
def test_a_field_that_cannot_travel_is_refused_on_its_own_line(make):
    with pytest.raises(Unserializable, match=r"Holder\.value"):
        make()


@dataclass
class Choosy(Trigger[int], Generic[T]):
    """A trigger with a field of every supported kind, each with a default."""

    n: int = 1
    text: str = ""
    rate: float = 1.0
    price: Decimal = Decimal(1)
    at: datetime = NOW
    every: timedelta = timedelta(1)
    length: timedelta | float | str = 1.0
    mode: Literal["a", "b"] = "a"
    names: Sequence[str] = ()
    ports: list[int] = field(default_factory=list)
    limits: Mapping[str, int] = field(default_factory=dict)
    colour: Colour = Colour.RED
    inner: Point | None = None
    later: int = None  # type: ignore[assignment]  # as many write it
    what: Any = None
    item: T | None = None
    sized: Sized = ()
    unknown: Nowhere = None  # type: ignore[name-defined]  # noqa: F821
    by_word: int = field(default=1, kw_only=True)
    end: int = 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", "1"),
        ("n", 1.5),
        ("n", None),
        ("text", 5),
        ("text", Path("/a")),
        ("rate", "fast"),
        ("price", object),
        ("price", "cheap"),
        ("at", 5),
        ("at", "noon"),
        ("every", NOW),
        ("every", "soon"),
        ("length", NOW),
        ("mode", "c"),
        ("names", "abc"),
        ("names", [1]),
        ("ports", ["80"]),
        ("limits", {"a": "b"}),
        ("limits", [1]),
        ("colour", "blue"),
        ("inner", 5),
        ("inner", {"x": 1, "z": 2}),
        ("later", "x"),
        ("by_word", "x"),
        ("end", "x"),
    ],
)
def test_a_field_of_another_type_is_refused_on_its_own_line(name, value):
    with pytest.raises(Unserializable, match=rf"Choosy\.{name} ") as caught:
        Choosy(**{name: value})

    assert caught.value.where.startswith(f"Choosy.{name}")


@pytest.mark.parametrize(
    "given",
    [
        {"n": True},
        {"n": Colour.RED},
        {"text": Shouted("x")},
        {"rate": 5},
        {"price": 5},
        {"price": "1.5"},
        {"at": NOW.isoformat()},
        {"every": "5m"},
        {"length": "5m"},
        {"length": 5},
        {"names": ("a", "b")},
        {"ports": (80,)},
        {"colour": 1},
        {"inner": Point(1, 2)},
        {"inner": {"x": 1, "y": 2}},
        {"later": None},
        {"what": [NOW]},
        {"item": "anything"},
        {"sized": [1]},
        {"unknown": 5},
    ],
    ids=str,
)
def test_a_field_is_content_with_whatever_is_restored_to_its_type(given):
    trigger = Choosy(**given)

    path, data = serialize(trigger)
    construct(Choosy, data)
    assert path.endswith(":Choosy")


def test_positional_fields_are_distinguished_though_one_between_is_given_by_keyword():
    given: list[Any] = [1, "", 1.0, Decimal(1), NOW, timedelta(1), 1.0, "a", (), [], {}]
    given += [Colour.RED, None, None, None, None, (), None, "x"]

    with pytest.raises(WrongField, match=r"Choosy\.end must be int, not a str"):
        Choosy(*given)


@dataclass
class Converting(Choosy[int]):
    """A trigger whose own ``__init__`` has other arguments than its fields."""

    def __init__(self, n: str) -> None:
        super().__init__(n=int(n))


def test_an_init_of_its_own_may_take_anything_that_travels():
    assert Converting("5").n == 5
    with pytest.raises(Unserializable, match=r"Converting\.n"):
        Converting(object())  # type: ignore[arg-type]


def test_a_stored_trigger_is_hosted_though_its_class_now_requires_another_type():
    data = encode_fields({"n": "1"}, "Choosy")

    assert vars(construct(Choosy, data))["n"] == "1"


def test_a_field_set_later_is_refused_when_it_is_deferred():
    trigger = Holder(1)
    trigger.value = object()

    with pytest.raises(Unserializable, match=r"Holder\.value"):
        serialize(trigger)


def test_a_class_inside_a_function_cannot_be_found_again():
    @dataclass
    class Local(Trigger[int]):
        n: int = 1

    with pytest.raises(Unserializable, match="module level"):
        serialize(Local())


def test_fields_a_class_no_longer_takes_are_refused():
    _, data = serialize(Holder(1))

    with pytest.raises(Unserializable, match="Depth"):
        construct(Depth, data)


def test_since_and_last_are_known_only_while_it_is_hosted():
    trigger = Depth(Decimal(1), NOW)
    with pytest.raises(RuntimeError, match="hosted"):
        _ = trigger.since
    assert trigger.last is None

    prepare(trigger, since=NOW, last=TriggerEvent(2))

    assert trigger.since == NOW
    assert trigger.last == TriggerEvent(2)
    assert trigger == Depth(Decimal(1), NOW)


async def test_a_trigger_without_run_says_so():
    with pytest.raises(NotImplementedError, match="Bare"):
        Bare().run()


# ── deferring ───────────────────────────────────────────────────────────────────────────


class Waits(Operator):
    def execute(self, context: Any) -> None:
        self.defer(trigger=Bare(), method_name="resume", kwargs={"n": 1}, timeout="2h")

    def resume(self, context: Any, event: Any, n: int) -> None: ...


def test_deferring_says_what_where_and_how_long():
    with pytest.raises(TaskDeferred) as caught:
        Waits(task_id="waits").execute({})

    assert isinstance(caught.value.trigger, Bare)
    assert caught.value.method_name == "resume"
    assert caught.value.kwargs == {"n": 1}
    assert caught.value.timeout_us == 7_200_000_000
    assert not isinstance(caught.value, Exception)


def test_deferring_into_a_method_that_is_not_there_is_wrong():
    with pytest.raises(DagError, match="'nowhere'"):
        Waits(task_id="waits").defer(trigger=Bare(), method_name="nowhere")


def test_a_method_to_resume_in_is_not_forgotten():
    with pytest.raises(DagError, match="None if the trigger ends the task itself"):
        Waits(task_id="waits").defer(trigger=Bare())


def test_deferring_to_a_trigger_that_ends_the_task_needs_no_method():
    with pytest.raises(TaskDeferred) as caught:
        Waits(task_id="waits").defer(trigger=Bare(), method_name=None)

    assert caught.value.method_name is None


def test_only_a_trigger_can_be_waited_for():
    no_trigger: Any = 5

    with pytest.raises(TypeError, match="int"):
        TaskDeferred(trigger=no_trigger, method_name="execute")


# ── asking ──────────────────────────────────────────────────────────────────────────────


class Recorder:
    """Answers every query with its arguments, including queries about many runs at once."""

    async def value(self, kind: ValueKind, name: str) -> Any:
        return kind, name

    def follow_runs(self, tell: Callable[[Hashable, RunEnding | AioflowError], None]) -> Any:
        class Follower:
            def ask(self, of: Hashable, dag_id: str, **wanted: Any) -> None:
                tell(of, RunEnding("r1", "success", (dag_id, wanted)))

        return Follower()

    def follow_events(
        self, name: str, tell: Callable[[Hashable, NamedEvent | AioflowError], None]
    ) -> Any:
        class Follower:
            def ask(self, of: Hashable, **wanted: Any) -> None:
                tell(of, NamedEvent(7, name, data=wanted))

            def forget(self, of: Hashable) -> None:
                tell(of, AioflowError("forgotten"))

        return Follower()

    def run_start_id(self) -> int:
        return 5

    def own_dag_id(self) -> str:
        return "mine"

    async def run_ending(self, dag_id: str, **wanted: Any) -> RunEnding:
        return RunEnding("r1", "success", (dag_id, wanted))

    async def named_events(self, name: str, **wanted: Any) -> AsyncGenerator[NamedEvent, None]:
        yield NamedEvent(7, name, data=wanted)


async def test_a_question_reaches_the_host_as_it_was_asked():
    token = query_sender.set(Recorder())

    ending = await run_ending("d", task_id="t", since=NOW)

    query_sender.reset(token)
    assert ending.result == (
        "d",
        {"task_id": "t", "run_id": None, "logical_date": None, "since": NOW},
    )


async def test_a_query_about_many_runs_gets_each_by_its_name():
    told: list[tuple[str, Any]] = []
    token = query_sender.set(Recorder())

    endings = RunEndings(lambda of, ending: told.append((of, ending)))
    for run_id in ("a", "b"):
        endings.ask(f"run {run_id}", "d", run_id=run_id, since=NOW)

    query_sender.reset(token)
    assert [(of, ending.result[1]["run_id"]) for of, ending in told] == [
        ("run a", "a"),
        ("run b", "b"),
    ]


def test_many_runs_cannot_be_queried_outside_of_a_host():
    with pytest.raises(RuntimeError, match="hosted"):
        RunEndings(lambda of, ending: None)


async def test_named_events_come_from_the_host():
    token = query_sender.set(Recorder())

    events = [event async for event in named_events("n", key="k")]

    query_sender.reset(token)
    assert events == [NamedEvent(7, "n", data={"key": "k", "after": None})]


async def test_a_query_about_many_events_gets_each_by_its_name():
    told: list[tuple[str, NamedEvent | AioflowError]] = []
    token = query_sender.set(Recorder())

    events: NamedEvents[str] = NamedEvents("n", lambda of, event: told.append((of, event)))
    events.ask("mine", key="k", after=run_start_id())
    events.forget("mine")
    assert own_dag_id() == "mine"

    query_sender.reset(token)
    assert told[0] == ("mine", NamedEvent(7, "n", data={"key": "k", "after": 5}))
    assert str(told[1][1]) == "forgotten"


def test_events_cannot_be_queried_outside_of_a_host():
    with pytest.raises(RuntimeError, match="hosted"):
        NamedEvents("n", lambda of, event: None)
    with pytest.raises(RuntimeError, match="hosted"):
        run_start_id()
    with pytest.raises(RuntimeError, match="hosted"):
        own_dag_id()


async def test_run_ends_and_events_cannot_be_awaited_outside_of_a_host():
    with pytest.raises(RuntimeError, match="hosted"):
        await run_ending("d", since=NOW)
    with pytest.raises(RuntimeError, match="hosted"):
        named_events("n")


async def test_an_instant_without_a_zone_is_refused():
    with pytest.raises(ValueError, match="since"):
        await run_ending("d", since=NOW.replace(tzinfo=None))


async def test_a_trigger_requests_stored_values():
    token = query_sender.set(Recorder())
    try:
        asked = [await fetch_secret("A"), await fetch_connection("B"), await fetch_variable("C")]
        with pytest.raises(UnknownValue, match="await fetch_secret"):
            secret("A")
    finally:
        query_sender.reset(token)

    assert asked == [
        (ValueKind.SECRET, "A"),
        (ValueKind.CONNECTION, "B"),
        (ValueKind.VARIABLE, "C"),
    ]


class Starts(Operator):
    start_from_trigger = True
    start_trigger_args = StartTriggerArgs(trigger_cls=Bare, trigger_kwargs={"check": lambda: 1})


def test_a_function_among_the_arguments_of_a_start_trigger_is_refused_at_parse():
    with pytest.raises(Unserializable, match="'check' in trigger_kwargs of Starts"):
        start_spec(Starts)


class Speechless(Trigger[None]):
    """A trigger without a ``run``."""


class Single(Trigger[None]):
    async def run(self) -> TriggerEvent[None]:  # type: ignore[override]
        return TriggerEvent(None)


class StartsNever(Operator):
    start_from_trigger = True


@pytest.mark.parametrize(
    ("trigger_cls", "said"),
    [
        (Speechless, "trigger_cls of StartsNever: Speechless needs a method run()"),
        (Single, "Single.run must be `async def` with a yield"),
        (StartsNever, "trigger_cls of StartsNever is not a trigger class"),
        (7, "trigger_cls of StartsNever is not a trigger class, but 7"),
        (PersonTrigger, "StartsNever cannot start deferred to a PersonTrigger"),
        ("aioflow.author.person:PersonTrigger", "cannot start deferred to a PersonTrigger"),
        ("aioflow.author.person.PersonTrigger", "cannot start deferred to a PersonTrigger"),
    ],
)
def test_a_start_trigger_that_can_never_yield_is_refused_at_parse(trigger_cls, said, monkeypatch):
    args = StartTriggerArgs(trigger_cls=trigger_cls)
    monkeypatch.setattr(StartsNever, "start_trigger_args", args)

    with pytest.raises(DagError, match=re.escape(said)):
        start_spec(StartsNever)
