from __future__ import annotations

import asyncio
import gc
import sys
import tracemalloc
import weakref

import pytest

from aioflow.author.trigger import portable
from aioflow.worker.code.loader import CodeCache, OwnNamespace, module_name
from aioflow.worker.crash_recorder import CrashRecorder, Stepped
from aioflow.worker.failures import MESSAGE_LIMIT, failure_of, one_line, traceback_of
from aioflow.worker.stdio import PENDING_LIMIT, OutputBuffer
from aioflow.worker.task_supervisor import TaskSupervisor, UserCoroutine
from tests.worker.peer import Guest

# ── task supervisor ─────────────────────────────────────────────────────────────────────


class House:
    """A task supervisor, and what it reports.

    Args:
        limit: How many seconds a user coroutine has to end once it is cancelled.
    """

    def __init__(self, limit: float = 20.0) -> None:
        self.box = CrashRecorder()
        self.ended: asyncio.Queue[UserCoroutine] = asyncio.Queue()
        self.abandoned: asyncio.Queue[UserCoroutine] = asyncio.Queue()
        self.supervisor = TaskSupervisor(
            self.box, limit, self.ended.put_nowait, self.abandoned.put_nowait
        )

    def host(self, coroutine, number: int = 7) -> UserCoroutine:
        hosted = Guest(number)
        self.supervisor.start(hosted, coroutine)
        return hosted


async def test_a_coroutine_is_cancelled_once_and_reported_once():
    house = House()
    cancelled = []

    async def body():
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append(1)
            await asyncio.sleep(0)
            raise

    hosted = house.host(body())
    await asyncio.sleep(0)
    house.supervisor.cancel(hosted, "first")
    house.supervisor.cancel(hosted, "second")

    assert await house.ended.get() is hosted
    assert (hosted.ending, cancelled, hosted.task) == ("first", [1], None)
    assert house.ended.empty()
    assert house.abandoned.empty()


async def test_a_coroutine_cancelled_before_its_first_step_is_reported_too():
    house = House()
    hosted = house.host(asyncio.sleep(3600))

    house.supervisor.cancel(hosted, "early")

    assert await house.ended.get() is hosted


async def test_a_coroutine_that_swallows_its_cancellation_is_abandoned_and_counted():
    house = House(0.05)
    let_go = asyncio.Event()

    async def body():
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    hosted = house.host(body())
    await asyncio.sleep(0)
    task = hosted.task
    assert task is not None
    house.supervisor.cancel(hosted, "stop")

    assert await house.abandoned.get() is hosted
    assert (hosted.abandoned, house.supervisor.abandoned_count) == (True, 1)
    let_go.set()
    await task
    await asyncio.sleep(0)
    assert house.supervisor.abandoned_count == 0
    assert house.ended.empty()  # it had been abandoned already


async def test_a_coroutine_that_ends_leaves_nothing_behind():
    house = House()

    class Thing: ...

    thing = Thing()
    alive = weakref.ref(thing)

    async def body(it):
        await asyncio.sleep(0)

    house.host(body(thing))
    del thing
    await house.ended.get()
    gc.collect()

    assert alive() is None


async def test_the_crash_recorder_is_signed_while_a_coroutine_and_its_own_tasks_are_stepped():
    house = House()
    seen = []

    async def inner():
        seen.append(house.box.word[0])
        await asyncio.sleep(0)
        seen.append(house.box.word[0])

    async def body():
        seen.append(house.box.word[0])
        await asyncio.gather(inner())

    house.host(body(), 41)
    asyncio.get_running_loop().call_soon(lambda: seen.append(house.box.word[0]))
    await house.ended.get()

    assert sorted(seen) == [-1, 41, 41, 41]
    assert house.box.word[0] == -1


# ── black box ───────────────────────────────────────────────────────────────────────────


async def test_a_stepped_coroutine_is_like_the_one_inside():
    async def inner():
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            return "caught"

    coroutine = inner()
    task = asyncio.Task(Stepped(coroutine, Guest(5), CrashRecorder()))
    await asyncio.sleep(0)
    task.cancel()

    assert await task == "caught"
    assert "inner" in repr(task.get_coro().__qualname__)


def test_the_box_is_put_back_when_a_step_raises():
    box = CrashRecorder()

    async def inner():
        raise SystemExit

    with pytest.raises(SystemExit):
        Stepped(inner(), Guest(5), box).send(None)

    assert box.word[0] == -1


# ── loader ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def version(tmp_path):
    made = []

    def version(name: str, **files: str) -> OwnNamespace:
        folder = tmp_path / name
        for file, source in files.items():
            path = folder / f"{file.replace('__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)
        namespace = OwnNamespace(folder, name)
        made.append(namespace)
        return namespace

    yield version
    for namespace in made:
        namespace.forget()


SHAPES = """
import helper
import deep.er
from deep import er as aliased
from deep.er import VALUE

def late():
    import helper as again
    from deep.more import MORE
    return again.NAME, MORE

class Thing: ...
"""


def test_every_form_of_import_stays_in_the_version(version):
    def files(name: str) -> dict[str, str]:
        return {
            "flow": SHAPES,
            "helper": f"NAME = '{name}'",
            "deep__er": f"from . import more\nVALUE = '{name}' + more.MORE",
            "deep__more": f"import helper\nMORE = helper.NAME + '{name}'",
        }

    for name in ("one", "two"):
        module = version(name, **files(name)).load_file("flow.py")
        assert name == module.helper.NAME
        assert module.deep.er is module.aliased
        assert name * 3 == module.VALUE
        assert module.late() == (name, name * 2)
        assert portable(f"{module.Thing.__module__}:Thing") == "flow:Thing"


def test_a_local_module_hides_an_installed_one_from_its_version_only(version):
    module = version("one", flow="import json", json="LOCAL = 1").load_file("flow.py")

    import json

    assert module.json.LOCAL == 1
    assert not hasattr(json, "LOCAL")


def test_a_folder_without_init_yields_to_a_real_package(version):
    module = version("one", flow="import msgspec", msgspec__flow2="").load_file("flow.py")

    assert module.msgspec.Struct


def test_forgetting_a_version_lets_it_be_loaded_again(version, tmp_path):
    namespace = version("one", flow="X = 1")
    assert namespace.load_file("flow.py").X == 1

    namespace.forget()
    again = version("one", flow="X = 22")

    assert again.load_file("flow.py").X == 22


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("flow.py", "flow"),
        ("a/b/flow.py", "a.b.flow"),
        ("a/__init__.py", "a"),
        ("a.b/daily.v2.py", "a%2Eb.daily%2Ev2"),
        ("a%2E.py", "a%252E"),
    ],
)
def test_a_module_is_named_by_its_path(file, name):
    assert module_name(file) == name


@pytest.mark.parametrize("file", ["daily.v2", "team.a__flow", "a%2E", "a%252E.b"])
def test_a_file_is_loaded_and_found_again_whatever_its_name(version, file):
    namespace = version("one", **{file: "import helper\nclass Thing: ..."}, helper="")

    module = namespace.load_file(f"{file.replace('__', '/')}.py")

    name = portable(f"{module.Thing.__module__}:Thing").partition(":")[0]
    assert namespace.load_module(name) is module


def test_a_class_of_a_file_in_a_folder_named_like_an_installed_package_is_found(version):
    namespace = version("one", json__flow="class Thing: ...")
    module = namespace.load_file("json/flow.py")

    name = portable(f"{module.Thing.__module__}:Thing").partition(":")[0]
    assert namespace.load_module(name) is module


def test_unused_versions_are_removed_once_there_are_many(tmp_path):
    code_cache = CodeCache(tmp_path, exclusive=False)
    for n in range(20):
        (tmp_path / f"v{n}").mkdir()
        (tmp_path / f"v{n}" / "flow.py").write_text("class Thing: ...")
        code_cache.version(f"v{n}").find_class("flow:Thing")

    gone = code_cache.unload_unused(lambda: {"v0", "v19"})

    assert gone == ["v1", "v2", "v3", "v4"]
    loaded = {name for name in sys.modules if name.startswith("aioflow_v_v")}
    assert "aioflow_v_v0.flow" in loaded
    assert "aioflow_v_v1.flow" not in loaded
    assert code_cache.unload_unused(lambda: {"v0", "v19"}) == []


# ── failures and output ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("text", ["ä" * 5_000, "a\nb", "\ud800", "x" * 4096, ""])
def test_a_line_is_short_and_valid(text):
    line = one_line(text)

    assert len(line.encode()) <= MESSAGE_LIMIT
    assert "\n" not in line


def test_an_exit_is_distinguished_from_an_error():
    assert failure_of(SystemExit(3)).reason == "exit"
    assert failure_of(ValueError("x")).reason == "raised"
    assert failure_of(ValueError("x"), "argument").reason == "argument"


def test_output_wakes_once_and_comes_in_order():
    woken = []
    buffer = OutputBuffer(lambda: woken.append(1))

    buffer.add((1, 1), b"a")
    buffer.add((2, 1), b"b")
    buffer.add((1, 1), b"c")

    assert len(woken) == 1
    assert [(o.task_no, o.data) for o in buffer.take()] == [(1, b"ac"), (2, b"b")]
    assert buffer.take() == []


def test_output_of_both_streams_is_told_apart():
    buffer = OutputBuffer(lambda: None)
    buffer.add((1, 1), b"a")
    buffer.add((1, 1), b"b", is_stderr=True)
    buffer.add((1, 1), b"c", is_stderr=True)
    buffer.add((1, 1), b"d")

    found = [(one.data, one.is_stderr) for one in buffer.take((1, 1))]
    assert found == [(b"a", False), (b"bc", True), (b"d", False)]


def test_output_that_comes_too_fast_is_counted_instead_of_stored():
    buffer = OutputBuffer(lambda: None)
    buffer.add((1, 1), b"x" * PENDING_LIMIT)

    buffer.add((1, 1), b"y" * 10)
    buffer.add((2, 1), b"z" * 7)

    assert b"".join(o.data for o in buffer.take((2, 1))) == (
        b"\n[aioflow: 7 bytes of output dropped, it came too fast]\n"
    )
    mine = b"".join(o.data for o in buffer.take((1, 1)))
    assert mine.startswith(b"x" * PENDING_LIMIT)
    assert mine.endswith(b"[aioflow: 10 bytes of output dropped, it came too fast]\n")
    buffer.add((1, 1), b"fits again")
    assert [o.data for o in buffer.take()] == [b"fits again"]


def _doubled(leaf: object) -> object:
    for _ in range(60):
        leaf = [leaf, leaf]
    return leaf


@pytest.mark.parametrize(
    "problem",
    [
        pytest.param(ValueError("rows", _doubled(1)), id="args"),
        pytest.param(KeyError(_doubled(1)), id="key"),
        pytest.param(ValueError({"a": (_doubled(1),)}), id="inside"),
        pytest.param(SystemExit(_doubled(1)), id="exit"),
        pytest.param(ExceptionGroup("g", [ValueError(_doubled(1))]), id="group"),
    ],
)
def test_endless_texts_in_an_exception_cost_little(problem):
    cause = RuntimeError("sound")
    cause.__cause__ = problem

    tracemalloc.start()
    try:
        told = [failure_of(problem).message, traceback_of(problem), traceback_of(cause)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert all(told)
    assert "sound" in told[-1]
    assert peak < 16 * 1024 * 1024


def test_an_exception_with_many_items_is_reported_whole():
    problem = ValueError(list(range(1000)))

    assert failure_of(problem).message.startswith("[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10,")
    assert "998, 999]" in traceback_of(problem)
    assert problem.args == (list(range(1000)),)


class Counting(Exception):
    """An exception that counts how often it is converted to text, which may be slow."""

    made = 0

    def __str__(self) -> str:
        self.made += 1
        return f"made {self.made} times"


class Fixed(Counting):
    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)

    def __str__(self) -> str:
        return "as ever"


class Refusing(Exception):
    def __str__(self) -> str:
        raise KeyError("no")


@pytest.mark.parametrize("cause", [None, ValueError("a cause")])
def test_the_text_of_an_exception_is_made_once_for_its_traceback_and_its_message(cause):
    problem = Counting()
    problem.__cause__ = cause

    shown = traceback_of(problem)

    assert shown.endswith(": made 1 times\n")
    assert failure_of(problem).message == "made 1 times"
    assert problem.made == 1


def test_an_exception_on_which_nothing_can_be_set_has_its_text_too():
    problem = Fixed()

    assert traceback_of(problem).endswith(": as ever\n")
    assert failure_of(problem).message == "as ever"


def test_a_text_that_cannot_be_made_is_said_with_what_it_raised():
    problem = Refusing()

    assert "Refusing: <exception str() failed>" in traceback_of(problem)
    assert "__str__ raised KeyError" in failure_of(problem).message
