"""Operators with several events, and streams: valid declarations, and errors of invalid ones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from aioflow import DagError, Operator, Sensor, StartTriggerArgs, dag, sensor, task
from aioflow.author.dag import DAG, registered
from aioflow.author.dag_spec import describe
from aioflow.model.dag import Body, DagSpec, EventsSpec
from aioflow_triggers.temporal import TimeDeltaTrigger


class Batches(Operator):
    event_batch = 10
    event_delay = "20ms"
    event_window = 5

    def execute(self, context): ...

    def handle_trigger_events(self, events, context): ...


class Each(Operator):
    many_events = True

    def execute(self, context): ...

    def each(self, context, event=None): ...


@task
async def pages() -> AsyncIterator[int]:
    yield 1


@task
def load(page: int, other: int = 0) -> int:
    return page


@task
def total(pages: list[int]) -> int:
    return 1


def described(write) -> DagSpec:
    with DAG("d") as made:
        write()
    spec, failures = describe(made)
    assert not failures, failures
    assert spec is not None
    return spec


def test_a_class_with_a_handler_takes_events_in_batches():
    spec = described(lambda: Batches(task_id="b")).tasks[0]

    assert spec.events == EventsSpec(
        method="handle_trigger_events", batch=10, delay_us=20_000, window=5
    )
    assert not spec.streams


def test_a_class_that_says_so_takes_each_event_alone():
    assert described(lambda: Each(task_id="e")).tasks[0].events == EventsSpec(method="")


def test_any_other_class_resumes_from_the_first_event():
    class Plain(Operator):
        def execute(self, context): ...

    assert described(lambda: Plain(task_id="p")).tasks[0].events is None


def test_a_handler_without_execute_says_where_its_operator_runs():
    class Hosted(Operator):
        start_from_trigger = True
        start_trigger_args = StartTriggerArgs(trigger_cls="m:T")

        async def handle_trigger_events(self, events, context): ...

    assert described(lambda: Hosted(task_id="h")).tasks[0].body is Body.COROUTINE


def test_a_generator_that_is_expanded_over_streams():
    spec = described(lambda: load.expand(page=pages()))

    assert [task.streams for task in spec.tasks] == [True, False]
    assert spec.tasks[0].body is Body.COROUTINE
    assert spec.tasks[0].feeds_limit == 50_000


def test_an_operator_that_is_expanded_over_streams():
    spec = described(lambda: load.expand(page=Batches(task_id="b").output))

    assert spec.tasks[0].streams


def test_a_generator_without_a_consumer_returns_a_list():
    spec = described(lambda: total(pages()))

    assert not spec.tasks[0].streams


def test_a_stream_may_also_be_taken_as_a_whole():
    def write():
        made = pages()
        load.expand(page=made)
        total(made)

    assert [task.streams for task in described(write).tasks] == [True, False, False]


def test_a_stream_is_expanded_over_alone():
    with DAG("d") as made:
        load.expand(page=pages(), other=[1, 2])

    spec, [failure] = describe(made)

    assert spec is None
    assert "expands over the stream of 'pages'" in failure.message
    assert "partial()" in failure.message


class _Mixed(Operator):
    def execute(self, context): ...

    async def handle_trigger_events(self, events, context): ...


class _Generates(Operator):
    def execute(self, context): ...

    async def handle_trigger_events(self, events, context):
        yield 1


class _Wide(Operator):
    event_batch = 0

    def handle_trigger_events(self, events, context): ...


class _Slow(Operator):
    event_delay = "soon"

    def handle_trigger_events(self, events, context): ...


class _Odd(Operator):
    def handle_trigger_events(self, events): ...


class _NoMethod(Operator):
    handle_trigger_events = 3


class _Looks(Sensor):
    def poke(self, context): ...

    def handle_trigger_events(self, events, context): ...


class _Yields(Operator):
    async def execute(self, context):
        yield 1


class _Starts(Operator):
    many_events = True
    start_from_trigger = True
    start_trigger_args = StartTriggerArgs(trigger_cls="m:T")


@pytest.mark.parametrize(
    ("made", "complaint"),
    [
        pytest.param(_Mixed, "both `def` or both", id="mixed"),
        pytest.param(_Generates, "async generator", id="handler-generates"),
        pytest.param(_Wide, "event_batch must be a whole number from 1", id="batch"),
        pytest.param(_Slow, "event_delay", id="delay"),
        pytest.param(_Odd, r"\(events, context\)", id="signature"),
        pytest.param(_NoMethod, "must be a method", id="no-method"),
        pytest.param(_Looks, "only an operator takes many", id="sensor"),
        pytest.param(_Yields, "async generator", id="execute-generates"),
    ],
)
def test_nonsense_is_refused_where_it_is_written(made, complaint):
    with DAG("d"), pytest.raises((DagError, ValueError), match=complaint):
        made(task_id="x")


def test_one_that_starts_and_takes_each_event_says_where():
    with DAG("d") as made:
        _Starts(task_id="s")

    spec, (failure,) = describe(made)
    assert spec is None
    assert "'s'" in failure.message
    assert "next_method" in failure.message


def test_a_sensor_is_no_generator():
    with pytest.raises(DagError, match="async generator"):

        @sensor
        async def looks():
            yield True


@pytest.mark.parametrize("said", [{}, {"method_name": None}], ids=["left-out", "none"])
def test_a_deferral_of_one_that_takes_each_event_needs_a_method(said):
    with pytest.raises(DagError, match="method_name"):
        Each("e").defer(trigger=TimeDeltaTrigger("1h"), **said)


def test_a_decorated_dag_knows_its_streams():
    @dag
    def flow() -> None:
        load.expand(page=pages())

    [made] = registered()
    spec, failures = describe(made)
    assert (spec.tasks[0].streams, failures) == (True, [])


class _Chooses(Operator):
    def __init__(self, waits: bool, **options: Any) -> None:
        super().__init__(**options)
        self.start_from_trigger = waits
        self.start_trigger_args = StartTriggerArgs(trigger_cls="m:T", next_method="resume")

    def execute(self, context): ...

    def resume(self, context, event=None): ...


def test_an_instance_may_say_itself_whether_it_waits_from_its_start():
    with DAG("d") as made:
        _Chooses(task_id="waits", waits=True)
        _Chooses(task_id="runs", waits=False)

    spec, _ = describe(made)
    assert [task.start_trigger is not None for task in spec.tasks] == [True, False]
