"""Return values and exceptions of a poke mean the same in a slot and on the shared loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from aioflow.protocol.reports import Deferred, Failed, SensorNotReady, Skipped, Succeeded
from tests.differing import differing
from tests.worker.peer import result_of, run_info, start, write_version

pytestmark = pytest.mark.process

HEAD = """
from pathlib import Path
from aioflow import *

def looks(row):
    file = Path(HOME, f"looks{row}")
    count = len(file.read_text()) + 1 if file.exists() else 1
    file.write_text("x" * count)
    return count
"""

FUNCTION = """
@sensor(interval="10ms"{options})
{mode}def look{row}():
    {body}
"""

CLASS = """
class Look{row}(Sensor):
    {mode}def poke(self, context):
        assert context["run_id"] == "run-1"
        {body}
"""


def pipeline(form: str, mode: str, rows: Sequence[tuple[str, str]]) -> str:
    """Return a DAG with a task for each body with its options."""
    checks, calls = "", ""
    for row, (body, options) in enumerate(rows):
        numbered = body.replace("looks()", f"looks({row})")
        checks += form.format(mode=mode, body=numbered, options=options, row=row)
        given = f'task_id="look{row}", interval="10ms"{options}' if form is CLASS else ""
        calls += f"\n    {'Look' if form is CLASS else 'look'}{row}({given})"
    head = 'with DAG("pipeline"):' if form is CLASS else "@dag\ndef pipeline():"
    return f"{checks}\n{head}{calls}\n"


IGNORES = ', on_error="ignore"'


def outcome(child: Any, task_index: int = 0) -> tuple[Any, ...]:
    """Poke until the outcome is something other than "not yet", and return it."""
    for number in range(1, 20):
        child.send(start(task_index, start_no=number))
        while True:
            report = child.receive()[-1]
            if not isinstance(report, SensorNotReady | Succeeded | Failed | Skipped):
                continue
            break
        match report:
            case SensorNotReady():
                continue
            case Succeeded():
                return ("done", result_of(report))
            case Failed():
                return ("failed", report.failure.type, report.failure.reason, report.retryable)
            case Skipped():
                return ("skipped",)
    raise AssertionError("it never came to an end")


CHECKS: dict[str, tuple[str, str, tuple[Any, ...], int]] = {
    "false-then-true": ("return looks() > 2", "", ("done", None), 3),
    "value-when-done": ("return PokeReturnValue(looks() > 2, 7)", "", ("done", 7), 3),
    "not-ready": ("return True if looks() > 2 else notready()", "", ("done", None), 3),
    "an-exception-costs-a-try": (
        "return 1 / 0 if looks() else 0",
        "",
        ("failed", "ZeroDivisionError", "raised", True),
        1,
    ),
    "it-fails-for-good": (
        "raise Fail('never') if looks() else 0",
        "",
        ("failed", "Fail", "raised", False),
        1,
    ),
    "it-skips": ("raise Skip('no') if looks() else 0", "", ("skipped",), 1),
    "errors-are-ignored": ("return looks() > 2 or 1 / 0", IGNORES, ("done", None), 3),
    "whatever-is-worth-another-try": (
        "return looks() > 2 or 1 / 0",
        IGNORES + ", retry=Retry(on=(OSError,))",
        ("done", None),
        3,
    ),
    "but-not-that-it-fails": (
        "raise Fail('never') if looks() else 0",
        IGNORES,
        ("failed", "Fail", "raised", False),
        1,
    ),
    "nor-that-it-wants-another-try": (
        "raise RetryAfter('1m') if looks() else 0",
        IGNORES,
        ("failed", "RetryAfter", "raised", True),
        1,
    ),
    "nor-a-result-that-cannot-be-stored": (
        "return PokeReturnValue(looks() > 0, object())",
        IGNORES,
        ("failed", "Unserializable", "unserializable", False),
        1,
    ),
}
"""The body of a poke, options of the sensor, its outcome, and the number of pokes until then."""


@pytest.mark.parametrize("form", [FUNCTION, CLASS], ids=["function", "class"])
@pytest.mark.parametrize("mode", ["", "async "], ids=["slot", "hosted"])
def test_a_check_means_the_same(home, spawn, form, mode):
    source = pipeline(form, mode, [(body, options) for body, options, *_ in CHECKS.values()])
    helper = "\ndef notready(): raise NotReady('10ms')\n"
    write_version(home, flow=f"HOME = {str(home)!r}\n{HEAD}{helper}{source}")
    child = spawn("async" if mode else "slot")
    child.send(run_info())

    found = {
        name: (outcome(child, row), len((home / f"looks{row}").read_text()))
        for row, name in enumerate(CHECKS)
    }

    assert not (rows := differing(found, {name: check[2:] for name, check in CHECKS.items()})), rows


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
    ("raises", "kind"), [("OSError", SensorNotReady), ("Fail", Failed), ("SystemExit", Failed)]
)
def test_errors_after_a_trigger_are_ignored_as_in_a_poke(home, spawn, mode, raises, kind):
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
        return PokeReturnValue(looks(0) > 2, 7)

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
        pytest.param("return looks(0)", ("done", 1), 1, id="what-it-returns-is-the-result"),
        pytest.param("looks(0)", ("done", None), 1, id="also-nothing"),
        pytest.param(
            "if looks(0) < 3: raise NotReady('10ms')", ("done", None), 3, id="it-may-look-again"
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
    assert len((home / "looks0").read_text()) == count


@pytest.mark.parametrize("mode", ["", "async "], ids=["slot", "hosted"])
def test_a_sensor_may_defer_in_an_execute_of_its_own(home, spawn, mode):
    body = "self.defer(trigger=Later(), method_name='resumed')"
    write_version(home, flow=f"HOME = {str(home)!r}\n{HEAD}{OWN.format(mode=mode, body=body)}")
    child = spawn("async" if mode else "slot")
    child.send(run_info(), start(0))

    assert child.expect(Deferred).next_method == "resumed"
