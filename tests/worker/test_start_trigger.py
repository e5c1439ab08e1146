"""Triggers of tasks that start deferred, created in their host."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aioflow.author.codec import decode, encode
from aioflow.protocol.commands import Reply, StartTrigger
from aioflow.protocol.reports import Query, TriggerEnded, TriggerFired
from aioflow.results import result_path, write_list
from aioflow.worker.query.messages import ResultsPage, SpoolWanted
from tests.worker.peer import VERSION, run_info, start, write_version

pytestmark = pytest.mark.process

NEWER = "4567cdef"
SINCE = 1_767_225_600_000_000

HEAD = """
import asyncio, sys
from dataclasses import dataclass
from typing import Any
from aioflow import *

@task
def parent(): ...

@dataclass
class Echo(Trigger):
    value: Any = None
    more: Any = None
    async def run(self): yield TriggerEvent([self.value, self.more])

@dataclass
class Ends(Trigger):
    how: str
    value: Any = None
    async def run(self):
        match self.how:
            case "success": yield TaskSuccessEvent(self.value)
            case "failed": yield TaskFailedEvent(self.value)
            case "skipped": yield TaskSkippedEvent(self.value)
        yield TriggerEvent("never seen")

class Waits(Operator):
    start_from_trigger = True
    def execute(self, context): ...
    def after(self, context, event=None): ...
"""


@pytest.fixture
def host(home, spawn):
    """Return a function that starts a trigger host for a DAG ``pipeline`` with this source."""

    def host(source: str, newer: str | None = None, **options: Any):
        write_version(home, flow=HEAD + source)
        if newer is not None:
            write_version(home, NEWER, flow=HEAD + newer)
        child = spawn("triggers", **options)
        child.send(run_info())
        return child

    return host


def hosting(task_index: int = 0, trigger_no: int = 1, **changes: Any) -> StartTrigger:
    """Return the command that assigns the trigger of the task with this index."""
    newest = str(changes.pop("newest", ""))
    begin = start(task_index, **changes)
    path, empty = "flow:Echo", b"\x80"
    return StartTrigger(
        trigger_no, 1, 1, begin.task_no, VERSION, path, empty, SINCE, None, start=begin,
        newest=newest, is_made_there=True,
    )  # fmt: skip


def fired(child, task_index: int = 0, **changes: Any) -> object:
    child.send(hosting(task_index, **changes))
    return decode(child.expect(TriggerFired).payload)


def failure(child, task_index: int = 0, **changes: Any):
    child.send(hosting(task_index, **changes))
    return child.expect(TriggerEnded).failure


def test_the_class_says_what_it_waits_for(host):
    child = host(
        """
class Mine(Waits):
    start_trigger_args = StartTriggerArgs(
        trigger_cls=Echo, trigger_kwargs={"value": 1}, next_method="after")

@dag
def pipeline(): Mine(task_id="a")
"""
    )

    assert fired(child) == [1, None]


@pytest.mark.parametrize("path", ["flow:Echo", "flow.Echo"])
def test_the_class_of_the_trigger_may_be_a_path(host, path):
    child = host(
        f"""
class Mine(Waits):
    start_trigger_args = StartTriggerArgs(
        trigger_cls={path!r}, trigger_kwargs={{"value": 1}}, next_method="after")

@dag
def pipeline(): Mine(task_id="a")
"""
    )

    assert fired(child) == [1, None]


OF_INIT = """
class Mine(Waits):
    def __init__(self, value, **options):
        super().__init__(**options)
        self.start_trigger_args = StartTriggerArgs(
            trigger_cls=Echo, trigger_kwargs={"value": value}, next_method="after")

@dag
def pipeline():
    p = parent()
    Mine(task_id="a", value=VALUE)
"""


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param("5", 5, id="literal"),
        pytest.param("p", {"k": 7}, id="result"),
        pytest.param('p["k"]', 7, id="part-of-a-result"),
        pytest.param("[1, p]", [1, {"k": 7}], id="inside-a-list"),
        pytest.param("current.ds", "2026-01-01", id="of-the-run"),
    ],
)
def test_an_instance_is_made_with_its_arguments_resolved(host, value, expected):
    child = host(OF_INIT.replace("VALUE", value))

    known = {"results": {0: encode({"k": 7}, "")}, "at_hand": (0,)}
    assert fired(child, 1, **known) == [expected, None]


def test_a_result_the_engine_has_not_at_hand_is_asked_for(host):
    child = host(OF_INIT.replace("VALUE", "p"))

    child.send(hosting(1))
    ask = child.expect(Query)
    assert (ask.run_no, ask.kind) == (1, "results")
    item = (-1, 100, 1, encode([1], ""))
    page = ResultsPage(width=-1, items=[item], failed=[], last=-1, more=False)
    child.send(Reply(ask.question, msgspec.msgpack.encode(page)))

    assert decode(child.expect(TriggerFired).payload) == [[1], None]


MAPPED = """
class Mine(Waits):
    def __init__(self, **options): sys.exit("init must be skipped")
    start_trigger_args = StartTriggerArgs(
        trigger_cls=Echo, trigger_kwargs={"value": "of the class", "more": "of the class"},
        next_method="after")

@dag
def pipeline():
    Mine.partial(task_id="a").expand(trigger_kwargs=[{"value": n} for n in range(100)])
"""


def test_a_class_that_was_loaded_before_its_dag_does_not_hide_it(host):
    child = host(MAPPED)
    plain = msgspec.structs.replace(hosting(), start=None, is_made_there=False)
    child.send(plain)
    child.expect(TriggerFired)

    child.send(hosting(0, 2, map_index=0, widths=(100,), task_no=200))

    assert decode(child.expect(TriggerFired).payload) == [0, "of the class"]


def test_a_mapped_task_takes_its_item_and_the_rest_from_the_class(host):
    child = host(MAPPED)

    child.send(
        *(hosting(0, 1 + index, map_index=index, widths=(100,), task_no=200 + index)
          for index in range(100))
    )  # fmt: skip

    events = {
        f.trigger_no: decode(f.payload) for f in (child.expect(TriggerFired) for _ in range(100))
    }
    assert events == {1 + index: [index, "of the class"] for index in range(100)}


TEMPLATES = """
class Mine(Waits):
    template_fields = ("value",)
    start_trigger_args = StartTriggerArgs(
        trigger_cls=Echo, trigger_kwargs={"value": "of {{ ds }}", "more": "{{ ds }}"},
        next_method="after")

class Given(Waits):
    template_fields = ("value",)
    def __init__(self, value, more, **options):
        super().__init__(**options)
        self.start_trigger_args = StartTriggerArgs(
            trigger_cls=Echo, trigger_kwargs={"value": value, "more": more}, next_method="after")

@dag
def pipeline():
    p = parent()
    Mine(task_id="a")
    Mine.partial(task_id="b").expand(trigger_kwargs=[{"value": ["{{ map_index }}"]}, {"value": 5}])
    Mine.partial(task_id="c").expand(trigger_kwargs=p)
    Given(task_id="d", value="{{ ds }}", more=p)
    Mine.partial(task_id="e").expand(trigger_kwargs=[{"value": "{{ nobody }}"}])
"""


@pytest.mark.parametrize(
    ("task_index", "child", "expected"),
    [
        pytest.param(1, {}, ["of 2026-01-01", "{{ ds }}"], id="of-the-class"),
        pytest.param(2, {"map_index": 0, "widths": (2,)}, [["0"], "{{ ds }}"], id="of-an-item"),
        pytest.param(2, {"map_index": 1, "widths": (2,)}, [5, "{{ ds }}"], id="no-text"),
        pytest.param(
            3,
            {"map_index": 0, "widths": (1,), "sources": ((0, 100, 1),)},
            ["{{ ds }}", "{{ ds }}"],
            id="of-a-parent-and-no-template",
        ),
        pytest.param(
            4,
            {"results": {0: encode("{{ ds }}", "")}, "at_hand": (0,)},
            ["2026-01-01", "{{ ds }}"],
            id="given-to-init",
        ),
    ],
)
def test_fields_that_are_templates_are_rendered_where_they_stand_in_the_file(
    host, task_index, child, expected
):
    process = host(TEMPLATES)
    item = encode({"value": "{{ ds }}"}, "")
    write_list(result_path(process.home / "results", 100, 1), [item])

    assert fired(process, task_index, **child) == expected


def test_a_field_whose_template_cannot_be_rendered_fails_the_wait(host):
    found = failure(host(TEMPLATES), 5, map_index=0, widths=(1,))

    assert (found.reason, "'nobody' is undefined" in found.message) == ("trigger_construct", True)


def test_partial_may_say_that_children_wait_straight_from_their_start(host):
    child = host(
        """
class Mine(Operator):
    start_trigger_args = StartTriggerArgs(
        trigger_cls="flow.Echo", trigger_kwargs={"value": 0, "more": 1}, next_method="after")

    def __init__(self, *, trigger_kwargs, start_from_trigger, **options):
        raise AssertionError("it is skipped")

    def after(self, context, event=None): ...

with DAG("pipeline"):
    Mine.partial(task_id="a", start_from_trigger=True).expand(
        trigger_kwargs=[{"value": 7}, {"value": 8}])
"""
    )

    child.send(hosting(0, 2, map_index=1, widths=(2,), task_no=201))

    assert decode(child.expect(TriggerFired).payload) == [8, 1]


def test_an_item_whose_function_skips_skips_its_child(host):
    child = host(
        """
def odd(row):
    if row["value"] % 2 == 0: raise Skip("even")
    return row

class Mine(Waits):
    start_trigger_args = StartTriggerArgs(trigger_cls=Echo, next_method="after")

@task
def rows(): ...

@dag
def pipeline():
    some = rows().zip([{"value": 1}, {"value": 2}]).map(lambda pair: odd(pair[1]))
    Mine.partial(task_id="a").expand(trigger_kwargs=some)
"""
    )
    write_list(result_path(child.home / "results", 100, 1), [b"\xc0", b"\xc0"])
    told = {"sources": ((0, 100, 1),), "widths": (2, 2)}

    child.send(hosting(1, 1, map_index=0, task_no=200, **told))
    assert decode(child.expect(TriggerFired).payload) == [1, None]
    child.send(hosting(1, 2, map_index=1, task_no=201, **told))

    event = child.expect(TriggerFired)
    assert (event.ends, decode(event.payload)) == ("skipped", "even")


@pytest.mark.parametrize(
    ("how", "value", "payload"),
    [
        pytest.param("success", 42, 42, id="success"),
        pytest.param("skipped", None, None, id="skipped"),
        pytest.param("failed", "disk\nfull", "disk full", id="failed"),
    ],
)
def test_a_trigger_ends_its_task(host, how, value, payload):
    child = host(
        f"""
class Mine(Waits):
    start_trigger_args = StartTriggerArgs(
        trigger_cls=Ends, trigger_kwargs={{"how": {how!r}, "value": {value!r}}})

@dag
def pipeline(): Mine(task_id="a")
"""
    )

    child.send(hosting())

    event = child.expect(TriggerFired)
    assert (event.ends, decode(event.payload)) == (how, payload)
    assert child.expect(TriggerEnded).failure is None


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("TaskSuccessEvent(7)", 7),
        ("TaskSuccessEvent(xcoms={'return_value': 42, 'more': 1})", 42),
        ("TaskSuccessEvent(xcoms={'more': 1})", {"more": 1}),
        ("TaskFailedEvent(xcoms={'return_value': 'disk full'})", "disk full"),
        ("TaskFailedEvent()", "Says gave no reason"),
    ],
)
def test_outcomes_of_events_are_declared_by_payload_or_in_airflows_terms(host, said, expected):
    child = host(
        f"""
class Says(Trigger):
    async def run(self): yield {said}

class Mine(Waits):
    start_trigger_args = StartTriggerArgs(trigger_cls=Says)

@dag
def pipeline(): Mine(task_id="a")
"""
    )

    assert fired(child) == expected


def test_an_end_with_nothing_to_say_has_no_result(host):
    child = host(
        """
class Mine(Waits):
    start_trigger_args = StartTriggerArgs(trigger_cls=Ends, trigger_kwargs={"how": "success"})

@dag
def pipeline(): Mine(task_id="a")
"""
    )

    child.send(hosting())

    event = child.expect(TriggerFired)
    assert (event.ends, event.payload, event.size) == ("success", b"", 0)


def test_a_large_result_and_a_list_to_expand_over_are_files(host, home):
    child = host(
        """
class Mine(Waits):
    start_trigger_args = StartTriggerArgs(
        trigger_cls=Ends, trigger_kwargs={"how": "success", "value": ["x" * 50_000] * 3})

@task
def each(x): ...

@dag
def pipeline(): each.expand(x=Mine(task_id="a").output)
"""
    )

    child.send(hosting())

    event = child.expect(TriggerFired)
    assert (event.ends, event.payload, event.width) == ("success", b"", 3)
    assert event.size > 150_000
    assert [path for path in (home / "results").rglob("*") if path.is_file()]


def test_a_large_result_that_is_stored_elsewhere_is_written_once_it_may_be(host, home):
    child = host(
        """
class Mine(Waits):
    start_trigger_args = StartTriggerArgs(
        trigger_cls=Ends, trigger_kwargs={"how": "success", "value": "x" * 100_000})

@dag
def pipeline(): Mine(task_id="a")
""",
        copies=str(home / "copies"),
    )
    child.send(hosting())

    asked = child.expect(Query, lambda query: query.kind == "spool")
    wanted = msgspec.msgpack.decode(asked.body, type=SpoolWanted)
    assert (wanted.task_no, wanted.start_no, wanted.size > 100_000) == (100, 1, True)
    assert not [path for path in (home / "results").rglob("*") if path.is_file()]
    child.send(Reply(asked.question, b""))
    event = child.expect(TriggerFired)
    assert event.size == wanted.size
    assert result_path(home / "results", 100, 1).stat().st_size == wanted.size


DEFERS = """
class Mine(Operator):
    def execute(self, context): ...

@task
def each(x): ...

@dag
def pipeline(): each.expand(x=Mine(task_id="a").output)
"""


def test_an_event_that_ends_a_deferred_task_may_give_a_list_to_expand_over(host, home):
    child = host(DEFERS)
    fields = encode({"how": "success", "value": [1, 2]}, "")

    child.send(
        msgspec.structs.replace(
            hosting(), is_made_there=False, class_path="flow:Ends", kwargs=fields
        )
    )

    event = child.expect(TriggerFired)
    assert (event.ends, event.payload, event.width) == ("success", b"", 2)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(None, ("success", b"", None), id="nothing"),
        pytest.param("x" * 70_000, None, id="more-than-a-row-takes"),
    ],
)
def test_an_event_that_ends_a_deferred_task_carries_its_result(host, value, expected):
    child = host(DEFERS)
    fields = encode({"how": "success", "value": value}, "")

    order = msgspec.structs.replace(hosting(), class_path="flow:Ends", kwargs=fields, start=None)
    child.send(order)

    if expected is None:
        assert child.expect(TriggerEnded).failure.reason == "payload_too_large"
    else:
        event = child.expect(TriggerFired)
        assert (event.ends, event.payload, event.width) == expected


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        pytest.param("start_trigger_args = None", "trigger_load", id="says-nothing"),
        pytest.param(
            "start_trigger_args = StartTriggerArgs(trigger_cls='os.system', next_method='after')",
            "trigger_load", id="no-trigger",
        ),
        pytest.param(
            "start_trigger_args = StartTriggerArgs(trigger_cls='absent.T', next_method='after')",
            "trigger_load", id="no-module",
        ),
        pytest.param(
            "start_trigger_args = StartTriggerArgs(trigger_cls=Echo, trigger_kwargs={'no': 1})",
            "trigger_construct", id="other-fields",
        ),
        pytest.param(
            "def __init__(self, **options):\n"
            "        super().__init__(**options)\n"
            "        if current_dag_is_over(): sys.exit('in init')",
            "trigger_construct", id="init-raises",
        ),
    ],
)  # fmt: skip
def test_a_failed_construction_names_its_stage(host, source, reason):
    # The instance created when the file is imported is not the one that provides the trigger.
    child = host(
        f"""
import threading
made = threading.Event()
def current_dag_is_over():
    was, _ = made.is_set(), made.set()
    return was

class Mine(Waits):
    start_trigger_args = StartTriggerArgs(trigger_cls=Echo, next_method="after")
    {source}

@dag
def pipeline(): Mine(task_id="a")
"""
    )

    assert failure(child).reason == reason


def test_newer_code_hosts_what_the_run_made(host):
    source = """
class Mine(Waits):
    start_trigger_args = StartTriggerArgs(
        trigger_cls=Echo, trigger_kwargs={"value": 1}, next_method="after")

@dag
def pipeline(): Mine(task_id="a")
"""
    newer = """
@dataclass
class Echo(Trigger):
    value: Any = None
    async def run(self): yield TriggerEvent(["newer", self.value])
"""
    child = host(source, newer)

    assert fired(child, newest=NEWER) == ["newer", 1]


def test_a_hung_question_ends_with_the_hosting(host):
    child = host(OF_INIT.replace("VALUE", "p"))
    child.send(hosting(1))
    child.expect(Query)

    child.send(msgspec.structs.replace(hosting(1), assignment_id=2))

    assert child.expect(TriggerEnded).assignment_id == 1
