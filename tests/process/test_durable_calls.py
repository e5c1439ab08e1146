"""A waiting task on a real daemon that is killed: every step runs once, unless a kill hit it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from benchmarks.daemon import DaemonProcess, eventually
from tests.daemons import SharedDaemon

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]
nightly = pytest.mark.nightly

ROUNDS = 3

DAGS = """
import time
from pathlib import Path

from aioflow import all_of, any_of, dag, now, step, task, uuid, wait, sleep
from aioflow_triggers.files import FileTrigger

ROUNDS = 3


def note(folder: str, number: int) -> int:
    with open(Path(folder, "steps"), "a") as file:
        file.write(f"{number}\\n")
    return number


def hang_once(folder: str, number: int) -> int:
    note(folder, number)
    begun = Path(folder, f"begun-{number}")
    if not begun.exists():
        begun.touch()
        time.sleep(600)
    return number


def gate(folder: str, number: int, side: str = "") -> FileTrigger:
    return FileTrigger(path=str(Path(folder, f"gate-{number}{side}")), poll_seconds=0.1, stable=0)


@task(retries=9, retry_delay=0)
async def gated(folder: str) -> dict[str, object]:
    began, name = await now(), await uuid()
    done = []
    for number in range(ROUNDS):
        done.append(await step(note, folder, number))
        match number % 3:
            case 0:
                await wait(gate(folder, number))
            case 1:
                await wait(any_of(gate(folder, number, "-never"), gate(folder, number)))
            case 2:
                await wait(all_of(gate(folder, number), gate(folder, number - 1)))
    return {"began": began.isoformat(), "name": str(name), "done": done}


@task(retries=0)
async def hanging(folder: str) -> list[int]:
    return [await step(hang_once, folder, number) for number in range(ROUNDS)]


@task(retries=0)
async def asleep(folder: str) -> int:
    for number in range(10):
        await step(note, folder, number)
        await sleep(0.02)
    return number


@dag
def gates(folder: str) -> None:
    gated(folder)


@dag
def hangs(folder: str) -> None:
    hanging(folder)


@dag
def sleeps(folder: str) -> None:
    asleep(folder)
"""


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def steps(folder: Path) -> Counter[int]:
    file = folder / "steps"
    return Counter(map(int, file.read_text().split())) if file.exists() else Counter()


def pid_of(daemon: DaemonProcess, role: str) -> int | None:
    for path in (daemon.home / "run" / "children").iterdir():
        with contextlib.suppress(FileNotFoundError):  # parsers start and end
            if json.loads(path.read_text() or "{}").get("role") == role:
                return int(path.name)
    return None


def strike(daemon: DaemonProcess, what: str) -> None:
    """Kill a process, and wait until it is running again."""
    if what in {"daemon", "everything"}:
        daemon.kill(whole_tree=what == "everything")
        daemon.start()
        return
    pid = pid_of(daemon, what)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: pid_of(daemon, what) not in {None, pid})


def state(daemon: DaemonProcess, run_id: str) -> str:
    tasks = daemon.run(run_id)["tasks"]
    return str(tasks[0]["state"]) if tasks else "pending"


def has_done(out: Path, number: int) -> bool:
    return steps(out)[number] > 0


def is_suspended_after(
    daemon: DaemonProcess, run_id: str, out: Path, number: int | None = None
) -> bool:
    done = out.exists() if number is None else has_done(out, number)
    return done and state(daemon, run_id) == "deferred"


IN_TURN = ("everything", "async", "triggers")
"""One kill of each kind in turn. Repeated kills of a single kind are left to the nightly run."""


@pytest.mark.parametrize(
    ("kills", "database"),
    [
        pytest.param(IN_TURN, "sqlite", id="in-turn-sqlite"),
        pytest.param(("daemon",) * 3, "sqlite", id="daemon-sqlite", marks=nightly),
        pytest.param(("everything",) * 3, "sqlite", id="everything-sqlite", marks=nightly),
        pytest.param(
            ("everything",) * 3,
            "postgres",
            id="everything-postgres",
            marks=[pytest.mark.postgres, nightly],
        ),
        pytest.param(("async",) * 3, "sqlite", id="async-sqlite", marks=nightly),
        pytest.param(("triggers",) * 3, "sqlite", id="triggers-sqlite", marks=nightly),
    ],
)
def test_a_kill_between_any_two_calls_repeats_no_step(daemon_on, out, kills, database):
    daemon = daemon_on(database)
    daemon.add("durable.py", DAGS)
    run_id = daemon.trigger("gates", {"folder": str(out)})
    for number, what in enumerate(kills):
        eventually(partial(is_suspended_after, daemon, run_id, out, number))
        strike(daemon, what)
        eventually(lambda: state(daemon, run_id) == "deferred")
        (out / f"gate-{number}").touch()
    ended = daemon.wait(run_id)
    [task] = daemon.run(run_id)["tasks"]

    assert ended["state"] == "success"
    assert steps(out) == Counter(range(ROUNDS))
    assert task["result"]["done"] == list(range(ROUNDS))
    assert task["interruptions"] == 0
    if "triggers" not in kills:  # a trigger whose code ran at that moment costs a try
        assert task["try_number"] == 1


@pytest.mark.nightly
@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(("async", "everything", "async"), id="in-turn"),
        pytest.param(("daemon",) * 3, id="daemon", marks=nightly),
        pytest.param(("everything",) * 3, id="everything", marks=nightly),
        pytest.param(("async",) * 3, id="async", marks=nightly),
    ],
)
def test_a_step_runs_again_for_each_kill_that_hits_it_and_no_other_does(killed_daemon, out, kills):
    daemon = killed_daemon
    daemon.add("durable.py", DAGS)
    run_id = daemon.trigger("hangs", {"folder": str(out)})
    for number, what in enumerate(kills):
        eventually((out / f"begun-{number}").exists)
        strike(daemon, what)
    daemon.wait(run_id)
    [task] = daemon.run(run_id)["tasks"]

    assert (task["state"], task["result"]) == ("success", list(range(ROUNDS)))
    assert steps(out) == Counter(dict.fromkeys(range(ROUNDS), 2))


@pytest.mark.nightly
@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=nightly)])
def test_kills_at_any_moment_cost_each_step_at_most_one_run_more(killed_daemon, out, kills):
    daemon = killed_daemon
    daemon.add("durable.py", DAGS)
    run_id = daemon.trigger("sleeps", {"folder": str(out)})
    for number in range(0, 2 * kills, 2):
        eventually(partial(has_done, out, number))
        strike(daemon, "everything")
    daemon.wait(run_id)
    [task] = daemon.run(run_id)["tasks"]

    done = steps(out)
    assert (task["state"], task["result"]) == ("success", 9)
    assert set(done) == set(range(10))
    assert sum(done.values()) <= 10 + kills


TWO_VERSIONS = """
from pathlib import Path
from aioflow import dag, step, task, wait
from aioflow_triggers.files import FileTrigger


def {name}(folder: str) -> str:
    with open(Path(folder, "{name}"), "a") as file:
        file.write("x")
    return "{name}"


@task(retries=0)
async def waits(folder: str) -> str:
    done = await step({name}, folder)
    await wait(FileTrigger(path=str(Path(folder, "gate")), poll_seconds=0.1, stable=0))
    return done


@dag
def versions(folder: str) -> None:
    waits(folder)
"""


def version_of(daemon: DaemonProcess) -> str | None:
    status, answer = daemon.get("/api/v1/dags/versions", status=None)
    return answer["version"] if status == 200 else None


def is_newer(daemon: DaemonProcess, was: str | None) -> bool:
    return version_of(daemon) not in {None, was}


@pytest.mark.nightly
def test_runs_of_two_versions_continue_with_the_calls_of_their_own(killed_daemon, out):
    daemon, runs = killed_daemon, []
    for name in ("older", "newer"):
        was = version_of(daemon)
        daemon.add("versions.py", TWO_VERSIONS.replace("{name}", name))
        eventually(partial(is_newer, daemon, was))
        runs.append(daemon.trigger("versions", {"folder": str(out)}))
        eventually(partial(is_suspended_after, daemon, runs[-1], out / name))
    strike(daemon, "everything")
    strike(daemon, "async")
    (out / "gate").touch()
    for run_id in runs:
        daemon.wait(run_id)
    results = [daemon.run(run_id)["tasks"][0]["result"] for run_id in runs]

    assert results == ["older", "newer"]
    assert [(out / name).read_text() for name in results] == ["x", "x"]


MISUSED = """
import asyncio
from aioflow import *
from aioflow_triggers.temporal import TimeDeltaTrigger

hour = TimeDeltaTrigger("1h")


@task(retries=0)
async def gathered():
    await asyncio.gather(wait(hour), wait(hour))

@task(retries=0)
async def cut_short():
    try:
        async with asyncio.timeout(0.05):
            await wait(hour)
    except TimeoutError:
        return 1

@task(retries=0)
async def left_behind():
    asyncio.get_running_loop().call_soon(asyncio.create_task(wait(hour)).get_name)
    await asyncio.sleep(0.05)

@task(retries=0)
async def in_a_step():
    async def inner():
        await wait(hour)
    await step(inner)

@task(retries=0, execution_timeout=0.3)
async def too_long():
    await wait(hour, timeout="2h")

@task(retries=0, execution_timeout=0.3)
async def stubborn():
    while True:
        try:
            await wait(hour)
        except asyncio.CancelledError:
            pass

@task(retries=0)
async def patient():
    try:
        await wait(hour, timeout=0.2)
    except TimeoutError:
        await sleep(0.1)
        return "in time"

@dag
def misused():
    gathered(); cut_short(); left_behind(); in_a_step(); too_long(); stubborn(); patient()
"""


def test_a_misused_wait_raises_and_no_wait_lasts_for_ever(shared_daemon):
    shared_daemon.add("misused.py", MISUSED)
    run_id = shared_daemon.trigger("misused", {})
    shared_daemon.wait(run_id, 60)
    tasks = {task["task_id"]: task for task in shared_daemon.run(run_id)["tasks"]}

    reasons = {name: (task["error"] or {}).get("reason") for name, task in tasks.items()}
    assert reasons == {
        "gathered": "raised",
        "cut_short": "call_cut_short",
        "left_behind": "call_cut_short",
        "in_a_step": "raised",
        "too_long": "timeout",
        "stubborn": "timeout",
        "patient": None,
    }
    assert tasks["patient"]["result"] == "in time"


@pytest.mark.nightly
def test_a_host_that_is_short_of_memory_finishes_what_it_had_released(tmp_path, out):
    daemon = SharedDaemon(
        tmp_path,
        flags=("--cpu-slots", "1"),
        environment={"AIOFLOW_HOSTS__MEMORY_LIMIT_BYTES": "1"},
    )
    daemon.add("durable.py", DAGS)
    with daemon:
        run_id = daemon.trigger("gates", {"folder": str(out)})
        for number in range(ROUNDS):
            eventually(partial(is_suspended_after, daemon, run_id, out, number))
            (out / f"gate-{number}").touch()
        daemon.wait(run_id)
        [task] = daemon.run(run_id)["tasks"]

    assert task["result"]["done"] == list(range(ROUNDS))
    assert (task["state"], task["try_number"], task["interruptions"]) == ("success", 1, 0)
    assert steps(out) == Counter(range(ROUNDS))


FICKLE = """
from pathlib import Path
from aioflow import dag, step, task, wait
from aioflow_triggers.files import FileTrigger


def note(folder: str, name: str) -> str:
    with open(Path(folder, "notes"), "a") as file:
        file.write(name + " ")
    return name


def first(folder: str) -> str: return note(folder, "first")
def old(folder: str) -> str: return note(folder, "old")
def new(folder: str) -> str: return note(folder, "new")


async def fickle(parent: str, policy: str) -> list[str]:
    folder = f"{parent}/{policy}"
    done = [await step(first, folder)]
    changed = Path(folder, "changed").exists()  # what ought to stand in a step
    done.append(await step(new if changed else old, folder))
    if not changed:
        await wait(FileTrigger(path=folder + "/never", poll_seconds=0.1, stable=0))
    return done


@dag
def changes(folder: str) -> None:
    for policy in ("fail", "restart", "keep"):
        task(on_code_change=policy, task_id=policy)(fickle)(folder, policy)
"""


def test_after_changed_calls_the_task_decides_how_to_continue(killed_daemon, out):
    daemon = killed_daemon
    daemon.add("changes.py", FICKLE)
    policies = ("fail", "restart", "keep")
    for policy in policies:
        (out / policy).mkdir()
    run_id = daemon.trigger("changes", {"folder": str(out)})
    eventually(lambda: daemon.run(run_id)["counts"].get("deferred") == 3)
    strike(daemon, "async")
    for policy in policies:
        (out / policy / "changed").touch()
        (out / policy / "never").touch()
    daemon.wait(run_id)
    tasks = {task["task_id"]: task for task in daemon.run(run_id)["tasks"]}

    assert tasks["fail"]["error"]["reason"] == "call_mismatch"
    assert tasks["fail"]["try_number"] == 1
    for policy in ("restart", "keep"):
        assert (tasks[policy]["state"], tasks[policy]["result"]) == ("success", ["first", "new"])
    notes = {name: (out / name / "notes").read_text().split() for name in policies}
    assert notes == {
        "fail": ["first", "old"],
        "restart": ["first", "old", "first", "new"],
        "keep": ["first", "old", "new"],
    }
