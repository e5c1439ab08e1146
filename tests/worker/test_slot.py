from __future__ import annotations

import os
import signal
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from aioflow.author.codec import decode, encode
from aioflow.model.states import Failure, TaskState
from aioflow.protocol.commands import ForgetRun, Recall, Reply
from aioflow.protocol.reports import (
    Deferred,
    Failed,
    Query,
    Recalled,
    SensorNotReady,
    Skipped,
    Succeeded,
    TaskStarted,
)
from aioflow.results import RESULT_LIMIT, read_item, read_value, result_path
from aioflow.worker.query.messages import ResultsPage, ResultsWanted
from tests.worker.peer import MARK, Child, kinds, result_of, run_info, start, write_version

pytestmark = pytest.mark.process

HEAD = """
import os, sys, time
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from aioflow import *
"""


@pytest.fixture
def slot(home, spawn):
    """Return a function that starts a worker for a DAG file and announces a run to it."""

    def slot(source: str, *, started: bool = False, **info: Any) -> Child:
        write_version(home, flow=HEAD + source)
        child: Child = spawn("slot", started=started)
        child.send(run_info(**info))
        return child

    return slot


def one_task(body: str, options: str = "") -> str:
    """Return a DAG of one task, ``work``, with this body."""
    lines = "\n    ".join(body.strip().splitlines())
    return f"""
@task({options})
def work():
    {lines}

@dag
def pipeline():
    work()
"""


# ── a try ───────────────────────────────────────────────────────────────────────────────


def test_the_error_for_a_variable_that_is_withheld_says_how_to_let_it_through(home, spawn):
    body = "assert 'AIOFLOW_CHILD_WITHHELD' not in os.environ\nreturn os.environ['WAREHOUSE_URL']"
    write_version(home, flow=HEAD + one_task(body))
    child = spawn("slot", environment={"AIOFLOW_CHILD_WITHHELD": "AWS_KEY,WAREHOUSE_URL"})
    child.send(run_info(), start(0))
    failed = child.expect(Failed)

    assert failed.failure.type == "KeyError"
    assert 'env = ["WAREHOUSE_URL"] under [children]' in failed.failure.message


def test_the_error_for_another_key_of_that_name_is_what_it_was(home, spawn):
    write_version(home, flow=HEAD + one_task("return {}['WAREHOUSE_URL']"))
    child = spawn("slot", environment={"AIOFLOW_CHILD_WITHHELD": "WAREHOUSE_URL"})
    child.send(run_info(), start(0))

    assert child.expect(Failed).failure.message == "'WAREHOUSE_URL'"


def test_a_try_begins_runs_and_reports_its_result(slot):
    child = slot(one_task("return {'a': Decimal('1.50')}"))

    child.send(start(0, task_no=7, start_no=3))

    began = child.expect(TaskStarted)
    succeeded = child.expect(Succeeded)
    assert (began.task_no, began.start_no) == (succeeded.task_no, succeeded.start_no) == (7, 3)
    assert began.at <= succeeded.began_at <= succeeded.at
    assert result_of(succeeded) == {"a": Decimal("1.50")}
    assert succeeded.size == len(succeeded.body)


def test_none_travels_as_nothing(slot):
    child = slot(one_task("return None"))

    child.send(start(0))

    succeeded = child.expect(Succeeded)
    assert (succeeded.body, succeeded.size, succeeded.width) == (None, 0, None)


def test_the_end_of_one_and_the_begin_of_the_next_share_a_frame(slot):
    child = slot(one_task("return 1"))

    child.send(start(0, task_no=1), start(0, task_no=2), start(0, task_no=3))
    while sum(map(len, child.frames)) < 6:
        child.receive()

    assert [kinds(frame) for frame in child.frames] == [
        ["TaskStarted"],
        ["Succeeded", "TaskStarted"],
        ["Succeeded", "TaskStarted"],
        ["Succeeded"],
    ]


def test_a_claimed_try_is_given_back_while_another_runs(slot, home):
    gate = home / "gate"
    os.mkfifo(gate)
    child = slot(one_task(f"open({str(gate)!r}).read()"))
    child.send(start(0, task_no=1), start(0, task_no=2), start(0, task_no=3))
    child.expect(TaskStarted)

    child.send(Recall(((1, 1), (2, 1), (9, 1))))

    assert child.expect(Recalled).tries == ((2, 1),)
    gate.write_text("")
    assert child.expect(Succeeded).task_no == 1
    assert child.expect(TaskStarted).task_no == 3
    gate.write_text("")
    assert child.expect(Succeeded).task_no == 3


def test_a_recalled_try_never_starts_whatever_the_race(slot):
    child = slot(one_task("return 1"))
    count = 300

    begun: set[int] = set()
    back: set[int] = set()
    for task_no in range(1, count + 1):
        child.send(start(0, task_no=task_no))
        child.send(Recall(((task_no, 1),)))
        back |= {recalled_no for recalled_no, _ in child.expect(Recalled).tries}
        if task_no not in back:
            begun.add(child.expect(TaskStarted).task_no)
    child.close()

    assert begun | back == set(range(1, count + 1))
    assert not begun & back


# ── errors of user code ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("body", "options", "kind", "reason", "retryable"),
    [
        pytest.param("1 / 0", "", "ZeroDivisionError", "raised", True, id="raises"),
        pytest.param("sys.exit(4)", "", "SystemExit", "exit", True, id="exits"),
        pytest.param("sys.exit(0)", "", "SystemExit", "exit", True, id="exits-with-0"),
        pytest.param("raise KeyboardInterrupt", "", "KeyboardInterrupt", "raised", True, id="^C"),
        pytest.param("raise GeneratorExit", "", "GeneratorExit", "raised", True, id="closed"),
        pytest.param("raise Fail('no')", "", "Fail", "raised", False, id="fail"),
        pytest.param("return object()", "", "Unserializable", "unserializable", False, id="object"),
        pytest.param(
            "return lambda: 1", "", "Unserializable", "unserializable", False, id="lambda"
        ),
        pytest.param("raise NotReady()", "", "NotASensor", "not_ready", False, id="not-ready"),
        pytest.param(
            f"return b'x' * {RESULT_LIMIT}", "", "ResultTooLarge", "result_too_large", False,
            id="too-large",
        ),
        pytest.param(
            "raise ValueError", "retry=Retry(on=(OSError,))", "ValueError", "raised", False,
            id="not-worth-another-try",
        ),
        pytest.param(
            "raise FileNotFoundError", "retry=Retry(on=(OSError,))", "FileNotFoundError", "raised",
            True, id="worth-another-try",
        ),
        pytest.param(
            "raise OSError('full')", "retry=Retry(unless=lambda e: 'full' in str(e))", "OSError",
            "raised", False, id="unless",
        ),
        pytest.param(
            "raise OSError", "retry=Retry(unless=lambda e: e.nonsense)", "AttributeError", "raised",
            True, id="broken-unless",
        ),
        pytest.param(
            "async def later(): pass\nreturn later()", "", "TypeError", "raised", True,
            id="coroutine",
        ),
        pytest.param(
            "class Odd(Exception):\n  def __str__(self): sys.exit()\nraise Odd", "", "Odd",
            "raised", True, id="unspeakable",
        ),
    ],
)  # fmt: skip
def test_any_error_of_a_task_fails_only_its_try(slot, body, options, kind, reason, retryable):
    child = slot(
        one_task(f"if os.environ.get('done'): return 1\nos.environ['done'] = '1'\n{body}", options)
    )

    child.send(start(0, task_no=1), start(0, task_no=2))

    failed = child.expect(Failed)
    assert (failed.failure.type, failed.failure.reason) == (kind, reason)
    assert failed.retryable is retryable
    assert failed.began_at is not None
    assert "\n" not in failed.failure.message
    assert result_of(child.expect(Succeeded)) == 1  # the worker lives


def test_skip_and_retry_after_say_how_it_continues(slot):
    child = slot(
        one_task("if os.environ.setdefault('n', 'a') == 'a':\n"
                 "    os.environ['n'] = 'b'\n    raise Skip('nothing to do')\n"
                 "raise RetryAfter('30s')")
    )  # fmt: skip

    child.send(start(0, task_no=1), start(0, task_no=2))

    assert child.expect(Skipped).message == "nothing to do"
    failed = child.expect(Failed)
    assert (failed.retry_after_us, failed.retryable) == (30_000_000, True)


def test_a_message_is_one_line_of_valid_text(slot):
    child = slot(one_task(r"raise ValueError('a\nb\ud800' + 'x' * 10_000)"))

    child.send(start(0))

    message = child.expect(Failed).failure.message
    assert message.startswith("a b\\ud800xxx")
    assert len(message) <= 4096


def test_a_missing_snapshot_may_be_tried_again(slot):
    child = slot(one_task("return 1"), version="feedbeef")

    child.send(start(0))

    failed = child.expect(Failed)
    assert (failed.failure.reason, failed.retryable) == ("code_missing", True)


def test_a_file_that_does_not_import_here_fails_the_try(slot):
    child = slot("raise RuntimeError('only on this machine')")

    child.send(start(0))

    failed = child.expect(Failed)
    assert (failed.failure.reason, failed.failure.type) == ("import_error", "RuntimeError")


def test_a_forked_copy_of_the_worker_reports_nothing(slot):
    child = slot(one_task("return os.fork() == 0"))

    child.send(start(0, task_no=1))
    first = child.expect(Succeeded)
    child.send(start(0, task_no=2))

    assert result_of(first) is False
    assert result_of(child.expect(Succeeded)) is False


# ── the process ─────────────────────────────────────────────────────────────────────────


def parts_of(child) -> list[bytes]:
    """Split the output at the marks. Leave out the parts in which the worker was idle."""
    return [part for part in child.output().split(MARK) if part != b" 0 0\n"]


def test_a_worker_without_work_says_so_after_the_last_output_and_before_the_end(slot):
    child = slot(one_task("print('out', end='')"))

    child.send(start(0, task_no=5, start_no=2))
    child.expect(Succeeded)

    child.printed(lambda output: output == MARK + b" 5 2\nout" + MARK + b" 0 0\n")


def test_output_stands_after_the_mark_of_its_try(slot):
    child = slot(
        one_task("print('out', end='')\nprint('err', file=sys.stderr)\nos.write(1, b'raw')")
    )

    child.send(start(0, task_no=5, start_no=2), start(0, task_no=6, start_no=1))
    child.expect(Succeeded, lambda report: report.task_no == 6)
    assert child.close() == 0

    parts = parts_of(child)
    assert [part.partition(b"\n")[0] for part in parts] == [b"", b" 5 2", b" 6 1"]
    assert all(
        {b"out", b"err"} <= set(part.replace(b"raw", b"\n").split()[2:]) for part in parts[1:]
    )


def test_a_traceback_is_printed_from_the_authors_first_line_on(slot):
    child = slot(one_task("1 / 0"))

    child.send(start(0))
    child.expect(Failed)
    child.close()

    output = child.output().decode()
    assert "ZeroDivisionError" in output
    assert "flow.py" in output
    assert "aioflow/worker" not in output


def test_a_closed_stdout_does_no_harm(slot):
    child = slot(one_task("print('heard')\nsys.stdout.close()\nreturn 1"))

    child.send(start(0, task_no=1), start(0, task_no=2))

    assert child.expect(Succeeded).task_no == 1
    assert child.expect(Succeeded).task_no == 2
    child.close()
    assert child.output().count(b"heard") == 2


def test_a_redirected_stdout_is_put_back(slot):
    child = slot(one_task("import io\nprint('seen')\nsys.stdout = io.StringIO()\nreturn 1"))

    child.send(start(0, task_no=1), start(0, task_no=2))
    child.expect(Succeeded)
    child.expect(Succeeded)
    child.close()

    assert child.output().count(b"seen") == 2


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param("os.close(1)", id="closed"),
        pytest.param("os.close(1)\nos.close(2)", id="both-closed"),
        pytest.param("os.dup2(os.open('/dev/null', os.O_WRONLY), 1)", id="redirected"),
        pytest.param("os.closerange(0, 3)\nopen('/dev/null'); os.pipe()", id="taken-by-others"),
    ],
)
def test_changes_of_a_try_to_its_descriptors_end_with_it(slot, harm):
    child = slot(one_task(f"if os.environ.setdefault('n', 'a') == 'a':\n    os.environ['n'] = 'b'\n"
                          f"    {harm.replace(chr(10), chr(10) + '    ')}\n    return 1\n"
                          "os.system('echo heard')\nprint('seen')"))  # fmt: skip

    for task_no in (1, 2, 3):
        child.send(start(0, task_no=task_no))
        child.expect(Succeeded, lambda report, n=task_no: report.task_no == n)
    child.close()

    parts = parts_of(child)
    assert parts[2:] == [b" 2 1\nheard\nseen\n", b" 3 1\nheard\nseen\n"]


def test_a_print_into_a_closed_descriptor_is_heard_in_its_own_log(slot):
    child = slot(one_task("os.close(1)\nprint('mine', end='')"))

    child.send(start(0, task_no=1), start(0, task_no=2))
    child.expect(Succeeded, lambda report: report.task_no == 2)
    child.close()

    assert child.output().split(MARK)[1] == b" 1 1\nmine"


def test_an_idle_worker_ends_when_the_link_closes(slot):
    child = slot(one_task("return 1"))
    child.send(start(0))
    child.expect(Succeeded)

    assert child.close() == 0


def test_a_busy_worker_ends_when_the_link_closes(slot):
    child = slot(one_task("print('busy', flush=True)\nwhile True: time.sleep(60)"), started=True)
    child.send(start(0))
    child.expect(TaskStarted)

    assert child.close() == 0


def test_a_crash_is_a_death_by_signal(slot):
    child = slot(one_task("os.kill(os.getpid(), 11)"), started=True)
    child.send(start(0))

    assert child.process.wait(child.PATIENCE) == -signal.SIGSEGV
    assert b"in work" in child.output()  # the log shows where


def test_the_worker_knows_neither_its_link_nor_a_database(slot):
    child = slot(
        one_task(
            "return [sorted(k for k in os.environ if k.startswith('AIOFLOW')),"
            "sorted(m for m in sys.modules if m.split('.')[0] in"
            " ('sqlalchemy', 'fastapi', 'pydantic', 'alembic', 'cryptography'))]"
        ),
        started=True,
    )

    child.send(start(0))

    assert result_of(child.expect(Succeeded)) == [[], []]


def test_nothing_is_written_into_the_snapshot(slot, home):
    child = slot(one_task("import helper\nreturn helper.X"))
    folder = write_version(home, helper="X = 3")

    child.send(start(0))

    assert result_of(child.expect(Succeeded)) == 3
    assert {path.name for path in folder.iterdir()} == {"flow.py", "helper.py"}


# ── arguments ───────────────────────────────────────────────────────────────────────────

ADD = """
@task
def first() -> Decimal: ...

@task
def add(amount: Decimal, more: dict, day: date, ds: str, label="x"):
    return [amount, more, day, ds, label]

@dag(timezone="Asia/Kolkata")
def pipeline(day: date = current.logical_day):
    amount = first()
    add(amount, {"deep": [amount, 1]}, day)
"""


def test_arguments_come_from_parents_the_run_and_the_file(slot):
    child = slot(ADD)

    child.send(start(1, results={0: encode(Decimal("2.5"), "")}, at_hand=(0,)))

    amount, more, day, ds, label = result_of(child.expect(Succeeded))
    assert amount == Decimal("2.5")
    assert more == {"deep": [Decimal("2.5"), 1]}
    assert day.isoformat() == ds == "2026-01-01"
    assert label == "x"


def test_the_conf_of_the_run_overrides_a_default_and_is_restored_by_annotation(slot):
    child = slot(ADD, conf=encode({"day": "2025-12-31"}, ""))

    child.send(start(1, at_hand=(0,)))

    amount, _, day, ds, _ = result_of(child.expect(Succeeded))
    assert amount is None  # the parent is known to have no result
    assert day.isoformat() == "2025-12-31"
    assert ds == "2026-01-01"


def test_a_result_that_is_not_at_hand_is_asked_for(slot):
    child = slot(ADD)

    child.send(start(1))
    ask = child.expect(Query)
    assert (ask.run_no, ask.kind) == (1, "results")
    assert msgspec.msgpack.decode(ask.body, type=ResultsWanted) == ResultsWanted(0, -2)
    page = ResultsPage(-1, [(-1, 100, 1, encode(Decimal(9), ""))], [], -1, more=False)
    child.send(Reply(ask.question, msgspec.msgpack.encode(page)))

    # The result is used in two arguments, so it is queried twice.
    again = child.expect(Query)
    child.send(Reply(again.question, msgspec.msgpack.encode(page)))
    assert result_of(child.expect(Succeeded))[0] == Decimal(9)


def test_a_question_without_an_answer_fails_the_try(slot):
    child = slot(ADD)

    child.send(start(1))
    child.send(Reply(child.expect(Query).question, b"", "the database is away"))

    failed = child.expect(Failed)
    assert "the database is away" in failed.failure.message


def test_a_large_result_lies_in_a_file_and_is_read_from_there(slot, home):
    child = slot(
        """
@task
def make(): return "x" * 100_000

@task
def length(text: str): return len(text)

@dag
def pipeline():
    length(make())
"""
    )

    child.send(start(0, task_no=100, start_no=4))
    made = child.expect(Succeeded)
    assert (made.body, made.size > 100_000) == (None, True)
    assert decode(read_value(result_path(home / "results", 100, 4))) == "x" * 100_000

    child.send(start(1))
    page = ResultsPage(-1, [(-1, 100, 4, None)], [], -1, more=False)
    child.send(Reply(child.expect(Query).question, msgspec.msgpack.encode(page)))
    assert result_of(child.expect(Succeeded)) == 100_000


def test_a_run_forgotten_and_told_again_takes_its_new_conf(slot):
    source = """
@task
def echo(n: int): return n

@dag
def pipeline(n: int = 1):
    echo(n)
"""
    child = slot(source)
    child.send(start(0))
    assert result_of(child.expect(Succeeded)) == 1

    child.send(ForgetRun(1), run_info(conf=encode({"n": 5}, "")), start(0))

    assert result_of(child.expect(Succeeded)) == 5


# ── fan-out and fan-in ──────────────────────────────────────────────────────────────────

FAN = """
@task
def items():
    return {items}

@task(map_limit=5)
def child(letter: str, number: int): return letter * number

@task
def total(parts: Sequence[str]):
    return [list(parts), parts.indexes, [(f.index, f.state) for f in parts.failed], parts.width,
            parts[-1], len(parts)]

@dag
def pipeline():
    total(child.expand(letter=items(), number=[1, 2]))
"""


def fan(items: str) -> str:
    return FAN.replace("{items}", items)


def test_a_list_that_feeds_an_expand_is_an_indexed_file(slot, home):
    child = slot(fan("iter('abc')"))

    child.send(start(0, task_no=100, start_no=2))

    made = child.expect(Succeeded)
    assert (made.width, made.body) == (3, None)
    path = result_path(home / "results", 100, 2)
    assert [decode(read_item(path, n)) for n in range(3)] == ["a", "b", "c"]

    child.send(start(1, map_index=5, sources=((0, 100, 2),), widths=(3, 2)))
    assert result_of(child.expect(Succeeded)) == "cc"


def test_an_empty_list_has_width_0_and_no_file(slot, home):
    child = slot(fan("[]"))

    child.send(start(0))

    made = child.expect(Succeeded)
    assert (made.width, result_of(made)) == (0, [])
    assert not list((home / "results").iterdir())


UNKNOWN = "more than 5 items, without a known end"


@pytest.mark.parametrize(
    ("items", "said"),
    [
        pytest.param("[0] * 20", "has 20 items", id="list"),
        pytest.param("(n for n in iter(int, 1))", UNKNOWN, id="endless-generator"),
        pytest.param(
            "type('Liar', (), {'__len__': lambda s: 1, '__iter__': lambda s: iter(range(99))})()",
            UNKNOWN,
            id="a-length-that-lies",
        ),
    ],
)
def test_a_list_wider_than_the_cap_fails_before_anything_is_written(slot, home, items, said):
    child = slot(fan(items))

    child.send(start(0))

    failed = child.expect(Failed)
    assert (failed.failure.reason, failed.retryable) == ("fanout_cap", False)
    assert said in failed.failure.message
    assert not list((home / "results").iterdir())


@pytest.mark.parametrize("items", ["'text'", "{'a': 1}", "7", "None"])
def test_only_lists_can_be_expanded_over(slot, items):
    child = slot(fan(items))

    child.send(start(0))

    assert child.expect(Failed).failure.reason == "not_a_list"


def test_a_fan_in_is_fetched_page_by_page_in_map_order(slot):
    child = slot(fan("'abc'"))
    failure = Failure(type="ValueError", message="no", reason="raised")
    pages = {
        -2: ResultsPage(4, [(0, 10, 1, encode("a", "")), (1, 11, 0, None)], [], last=1, more=True),
        1: ResultsPage(
            4, [(3, 13, 1, encode("d", ""))], [(2, TaskState.FAILED, failure)], last=3, more=False
        ),
    }

    child.send(start(2))
    asked = []
    for _ in pages:
        ask = child.expect(Query)
        wanted = msgspec.msgpack.decode(ask.body, type=ResultsWanted)
        asked.append(wanted.after)
        child.send(Reply(ask.question, msgspec.msgpack.encode(pages[wanted.after])))

    assert asked == [-2, 1]
    assert result_of(child.expect(Succeeded)) == [
        ["a", None, "d"], (0, 1, 3), [(2, "failed")], 4, "d", 3,
    ]  # fmt: skip


# ── sensors and operators ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("body", "kind", "value"),
    [
        pytest.param("return False", SensorNotReady, None, id="false"),
        pytest.param("return None", SensorNotReady, None, id="none"),
        pytest.param("return PokeReturnValue(False, 1)", SensorNotReady, None, id="not-done"),
        pytest.param("raise NotReady(60)", SensorNotReady, 60_000_000, id="recheck"),
        pytest.param("return True", Succeeded, None, id="true"),
        pytest.param("return PokeReturnValue(True, 9)", Succeeded, 9, id="done"),
    ],
)
def test_a_sensor_says_whether_it_is_done(slot, body, kind, value):
    child = slot(one_task(body).replace("@task()", "@sensor"))

    child.send(start(0))

    report = child.expect(kind)
    assert (report.recheck_in_us if kind is SensorNotReady else result_of(report)) == value


WAITER = """
from dataclasses import dataclass

@dataclass
class Later(Trigger[int]):
    hours: float
    async def run(self): yield TriggerEvent(1)

class Waiter(Operator):
    def __init__(self, hours, **rest):
        super().__init__(**rest)
        self.hours = hours
    def execute(self, context):
        later = Later(self.hours)
        try:
            self.defer(trigger=later, method_name="resume", kwargs={"n": 2}, timeout="1h")
        except Exception:
            return "swallowed"
    def resume(self, context, event=None, n=0):
        return [context["run_id"], event, n, self.hours]

with DAG("pipeline"):
    Waiter(task_id="wait", hours=1.5)
    Waiter(task_id="odd", hours=lambda: 1)
"""


def test_an_operator_defers_and_resumes_as_a_new_instance(slot):
    child = slot(WAITER)

    child.send(start(0))

    deferred = child.expect(Deferred)
    assert deferred.class_path == "flow:Later"
    assert decode(deferred.kwargs) == {"hours": 1.5}
    assert (deferred.next_method, deferred.timeout_us) == ("resume", 3_600_000_000)

    event = encode({"seen": 1}, "")
    child.send(start(0, start_no=2, method="resume", kwargs=deferred.next_kwargs, event=event))
    assert result_of(child.expect(Succeeded)) == ["run-1", {"seen": 1}, 2, 1.5]


DEFERS = """
from dataclasses import dataclass

@dataclass
class Later(Trigger[int]):
    async def run(self): yield TriggerEvent(1)

class ByHand(Operator):
    def execute(self, context):
        raise TaskDeferred(trigger=Later(), method_name="after", kwargs={"n": 2}, timeout="1h")
    def after(self, context, event=None, n=0): ...

class Deep(Operator):
    def execute(self, context): sum(self.one() for _ in range(3))
    def one(self): return [self.two(item) for item in "ab"]
    def two(self, item):
        self.defer(trigger=Later(), method_name="after", kwargs={"n": 2}, timeout="1h")
    def after(self, context, event=None, n=0): ...

class Again(Operator):
    def execute(self, context, event=None):
        if event is None:
            self.seen = True
            self.defer(trigger=Later(), method_name="execute", on_timeout="too_late")
        return [event, hasattr(self, "seen"), context["run_id"]]
    def too_late(self, context, event=None): return ["too late", event]

class Ended(Operator):
    def execute(self, context): self.defer(trigger=Later(), method_name=None)

with DAG("pipeline"):
    ByHand(task_id="by_hand")
    Deep(task_id="deep")
    Again(task_id="again")
    Ended(task_id="ended")
"""


@pytest.mark.parametrize("task_index", [0, 1], ids=["raised-by-hand", "in-the-depth"])
def test_a_task_defers_however_it_is_said(slot, task_index):
    child = slot(DEFERS)

    child.send(start(task_index))

    deferred = child.expect(Deferred)
    assert (deferred.next_method, decode(deferred.next_kwargs)) == ("after", {"n": 2})
    assert (deferred.class_path, deferred.timeout_us) == ("flow:Later", 3_600_000_000)


def test_a_task_that_its_trigger_ends_resumes_in_no_method(slot):
    child = slot(DEFERS)

    child.send(start(3))

    deferred = child.expect(Deferred)
    assert (deferred.next_method, deferred.class_path) == ("", "flow:Later")


def test_a_task_may_resume_in_execute_and_nothing_of_the_instance_survives(slot):
    child = slot(DEFERS)
    child.send(start(2))
    deferred = child.expect(Deferred)
    assert (deferred.next_method, deferred.timeout_method) == ("execute", "too_late")

    child.send(start(2, start_no=2, method="execute", event=encode(7, "")))

    assert result_of(child.expect(Succeeded)) == [7, False, "run-1"]


def test_a_task_resumes_without_an_event_where_its_wait_was_too_long(slot):
    child = slot(DEFERS)

    child.send(start(2, start_no=2, method="too_late"))

    assert result_of(child.expect(Succeeded)) == ["too late", None]


def test_a_trigger_that_cannot_travel_is_refused_by_the_name_of_its_field(slot):
    child = slot(WAITER)

    child.send(start(1))

    failed = child.expect(Failed)
    assert (failed.failure.reason, failed.retryable) == ("unserializable", False)
    assert "Later.hours" in failed.failure.message


TOO_MUCH = """
from dataclasses import dataclass

@dataclass
class Later(Trigger[int]):
    hours: float
    blob: bytes = b""
    async def run(self): yield TriggerEvent(1)

class Waiter(Operator):
    def execute(self, context):
        self.defer(trigger=Later(1, b"x" * 2**20), method_name="resume")
    def resume(self, context, event=None, note=""): ...

class Laden(Waiter):
    def execute(self, context):
        self.defer(trigger=Later(1), method_name="resume", kwargs={"a": 1, "note": "n" * 2**20})

with DAG("pipeline"):
    Waiter(task_id="wait")
    Laden(task_id="laden")
"""


@pytest.mark.parametrize(
    ("task_index", "words"),
    [pytest.param(0, ["Later.blob"], id="trigger"),
     pytest.param(1, ["kwargs of resume.note"], id="method")],
)  # fmt: skip
def test_a_task_that_waits_with_too_much_fails_by_the_name_of_the_field(slot, task_index, words):
    child = slot(TOO_MUCH)

    child.send(start(task_index))

    failed = child.expect(Failed)
    assert (failed.failure.reason, failed.retryable) == ("payload_too_large", False)
    assert all(word in failed.failure.message for word in words)


def test_a_trigger_whose_class_path_is_no_text_fails_its_try_alone(slot):
    odd = 'def serialize(self): return "flow.\\ud800", {}'
    child = slot(
        WAITER.replace("hours: float\n", f"hours: float\n    {odd}\n").replace("@dataclass\n", "")
        .replace("Later(self.hours)", "Later()")
    )  # fmt: skip

    child.send(start(0))

    failed = child.expect(Failed)
    assert (failed.failure.reason, failed.retryable) == ("unserializable", False)


@pytest.mark.parametrize("method", ["'execute'", "None"])
def test_a_function_cannot_defer(slot, method):
    child = slot(
        WAITER.partition("class Waiter")[0]
        + one_task(f"raise TaskDeferred(trigger=Later(1), method_name={method})")
    )

    child.send(start(0))

    assert child.expect(Failed).failure.reason == "no_such_method"
