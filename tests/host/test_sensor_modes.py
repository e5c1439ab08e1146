"""What a check returns or raises means the same in a slot and on the shared loop."""

from __future__ import annotations

from typing import Any

import pytest

from aioflow.messages import Deferred, Failed, NotReadyYet, Skipped, Succeeded
from tests.host.peer import result_of, run_info, start, write_version

pytestmark = pytest.mark.process

HEAD = """
from pathlib import Path
from aioflow import *

def looks():
    file = Path(HOME, "looks")
    count = len(file.read_text()) + 1 if file.exists() else 1
    file.write_text("x" * count)
    return count
"""

FUNCTION = """
@sensor(interval="10ms"{options})
{mode}def look():
    {body}

@dag
def pipeline(): look()
"""

CLASS = """
class Look(Sensor):
    {mode}def poke(self, context):
        assert context["run_id"] == "run-1"
        {body}

with DAG("pipeline"):
    Look(task_id="look", interval="10ms"{options})
"""

IGNORES = ', on_error="ignore"'


def outcome(child: Any) -> tuple[Any, ...]:
    """Look until there is more to say than "not yet"."""
    for number in range(1, 20):
        child.send(start(0, start_no=number))
        while True:
            report = child.receive()[-1]
            if not isinstance(report, NotReadyYet | Succeeded | Failed | Skipped):
                continue
            break
        match report:
            case NotReadyYet():
                continue
            case Succeeded():
                return ("done", result_of(report))
            case Failed():
                return ("failed", report.failure.type, report.failure.reason, report.retryable)
            case Skipped():
                return ("skipped",)
    raise AssertionError("it never came to an end")


@pytest.mark.parametrize("form", [FUNCTION, CLASS], ids=["function", "class"])
@pytest.mark.parametrize("mode", ["", "async "], ids=["slot", "hosted"])
@pytest.mark.parametrize(
    ("body", "options", "expected", "count"),
    [
        pytest.param("return looks() > 2", "", ("done", None), 3, id="false-then-true"),
        pytest.param(
            "return PokeReturnValue(looks() > 2, 7)", "", ("done", 7), 3, id="value-when-done"
        ),
        pytest.param(
            "return True if looks() > 2 else notready()", "", ("done", None), 3, id="not-ready"
        ),
        pytest.param(
            "return 1 / 0 if looks() else 0",
            "",
            ("failed", "ZeroDivisionError", "raised", True),
            1,
            id="an-exception-costs-a-try",
        ),
        pytest.param(
            "raise Fail('never') if looks() else 0",
            "",
            ("failed", "Fail", "raised", False),
            1,
            id="it-fails-for-good",
        ),
        pytest.param("raise Skip('no') if looks() else 0", "", ("skipped",), 1, id="it-skips"),
        pytest.param(
            "return looks() > 2 or 1 / 0", IGNORES, ("done", None), 3, id="errors-are-ignored"
        ),
        pytest.param(
            "return looks() > 2 or 1 / 0",
            IGNORES + ", retry=Retry(on=(OSError,))",
            ("done", None),
            3,
            id="whatever-is-worth-another-try",
        ),
        pytest.param(
            "raise Fail('never') if looks() else 0",
            IGNORES,
            ("failed", "Fail", "raised", False),
            1,
            id="but-not-that-it-fails",
        ),
        pytest.param(
            "raise RetryAfter('1m') if looks() else 0",
            IGNORES,
            ("failed", "RetryAfter", "raised", True),
            1,
            id="nor-that-it-wants-another-try",
        ),
        pytest.param(
            "return PokeReturnValue(looks() > 0, object())",
            IGNORES,
            ("failed", "Unserializable", "unserializable", False),
            1,
            id="nor-a-result-that-cannot-be-stored",
        ),
    ],
)
def test_a_check_means_the_same(home, spawn, form, mode, body, options, expected, count):
    source = form.format(mode=mode, body=body, options=options)
    helper = "\ndef notready(): raise NotReady('10ms')\n"
    write_version(home, flow=f"HOME = {str(home)!r}\n{HEAD}{helper}{source}")
    child = spawn("async" if mode else "slot")
    child.send(run_info())

    assert outcome(child) == expected
    assert len((home / "looks").read_text()) == count


RESUMES = """
class Look(Sensor):
    def __init__(self, raises, **options):
        super().__init__(**options)
        self.raises = raises

    {mode}def poke(self, context):
        raise AssertionError("it resumes")

    {mode}def resumed(self, context, event):
        raise self.raises("said")

with DAG("pipeline"):
    Look(task_id="look", raises={raises}, on_error="ignore")
"""


@pytest.mark.parametrize("mode", ["", "async "], ids=["slot", "hosted"])
@pytest.mark.parametrize(
    ("raises", "kind"), [("OSError", NotReadyYet), ("Fail", Failed), ("SystemExit", Failed)]
)
def test_what_is_raised_behind_a_trigger_is_ignored_as_in_a_check(home, spawn, mode, raises, kind):
    write_version(home, flow="from aioflow import *\n" + RESUMES.format(mode=mode, raises=raises))
    child = spawn("async" if mode else "slot")
    child.send(run_info())

    child.send(start(0, method="resumed", event=b"\xc0"))

    assert isinstance(child.expect(kind), kind)


OWN = """
from dataclasses import dataclass

@dataclass
class Later(Trigger[int]):
    async def run(self): yield TriggerEvent(1)

class Look(Sensor):
    {mode}def poke(self, context):
        return PokeReturnValue(looks() > 2, 7)

    {mode}def execute(self, context):
        {body}

    def resumed(self, context, event): ...

with DAG("pipeline"):
    Look(task_id="look", interval="10ms")
"""


@pytest.mark.parametrize(("mode", "wait"), [("", ""), ("async ", "await ")], ids=["slot", "hosted"])
@pytest.mark.parametrize(
    ("body", "expected", "count"),
    [
        pytest.param("return looks()", ("done", 1), 1, id="what-it-returns-is-the-result"),
        pytest.param("looks()", ("done", None), 1, id="also-nothing"),
        pytest.param(
            "if looks() < 3: raise NotReady('10ms')", ("done", None), 3, id="it-may-look-again"
        ),
        pytest.param(
            "return {wait}super().execute(context)", ("done", 7), 3, id="it-may-look-by-poke"
        ),
    ],
)
def test_a_sensor_is_run_by_an_execute_of_its_own(home, spawn, mode, wait, body, expected, count):
    source = OWN.format(mode=mode, body=body.format(wait=wait))
    write_version(home, flow=f"HOME = {str(home)!r}\n{HEAD}{source}")
    child = spawn("async" if mode else "slot")
    child.send(run_info())

    assert outcome(child) == expected
    assert len((home / "looks").read_text()) == count


@pytest.mark.parametrize("mode", ["", "async "], ids=["slot", "hosted"])
def test_a_sensor_may_defer_in_an_execute_of_its_own(home, spawn, mode):
    body = "self.defer(trigger=Later(), method_name='resumed')"
    write_version(home, flow=f"HOME = {str(home)!r}\n{HEAD}{OWN.format(mode=mode, body=body)}")
    child = spawn("async" if mode else "slot")
    child.send(run_info(), start(0))

    assert child.expect(Deferred).next_method == "resumed"
