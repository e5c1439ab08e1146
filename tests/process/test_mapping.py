"""Fan-outs over fan-outs on a real daemon that is killed during them: each child runs once."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.daemon import DaemonProcess, eventually

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]
nightly = pytest.mark.nightly

WIDTH = 40

DAGS = """
from collections.abc import Sequence
from pathlib import Path
from time import sleep
from typing import Any

from aioflow import Skip, dag, task, task_group

WIDTH = 40


def note(folder: str, name: str, what: object) -> None:
    with open(Path(folder, name), "a") as file:
        file.write(f"{what}\\n")


@task
def numbers() -> list[int]:
    return list(range(WIDTH))


@task(retries=5, retry_delay=0, map_label="number {n}")
def double(folder: str, n: int) -> int:
    while n >= WIDTH // 2 and not Path(folder, "go-on").exists():
        sleep(0.01)
    if n == 3:
        raise Skip("not this one")
    return 2 * n


@task(retries=5, retry_delay=0, map_label=lambda pair: f"{pair[0]}-{pair[1]}")
async def text(folder: str, pair: tuple[int, str]) -> str:
    note(folder, "texts", pair[0])
    return f"{pair[0]}{pair[1]}"


@task(trigger_rule="all_done", retries=5, retry_delay=0)
def total(folder: str, parts: Sequence[Any]) -> list[Any]:
    note(folder, "totals", len(parts))
    return [len(parts), parts.width, list(parts.indexes)[:4], parts[-1]]


@dag
def followed(folder: str) -> None:
    doubled = double.partial(folder=folder).expand(n=numbers())
    marked = doubled.map(lambda n: n + 1).zip(["a"], fillvalue="b")
    total(folder, text.partial(folder=folder).expand(pair=marked))


@task_group
def both(folder: str, n: int) -> Any:
    doubled = double(folder, n)
    return text(folder, (doubled, "g"))


@dag
def grouped(folder: str) -> None:
    total(folder, both.partial(folder=folder).expand(n=numbers()))
"""


def lines(file: Path) -> list[str]:
    return file.read_text().split() if file.exists() else []


def has_begun(out: Path) -> bool:
    return len(lines(out / "texts")) >= WIDTH // 4


def tasks_named(daemon: DaemonProcess, run_id: str, name: str) -> list[dict[str, Any]]:
    return [task for task in daemon.run(run_id)["tasks"] if task["task_id"] == name]


@pytest.mark.parametrize(
    ("dag", "is_killed", "database"),
    [
        pytest.param("followed", False, "sqlite"),
        pytest.param("followed", True, "sqlite", marks=nightly),
        pytest.param("grouped", False, "sqlite", marks=nightly),
        pytest.param("grouped", True, "sqlite"),
        pytest.param("grouped", True, "postgres", marks=[pytest.mark.postgres, nightly]),
    ],
)
def test_children_follow_each_other_index_by_index_to_one_fan_in(
    tmp_path, daemon_on, dag, is_killed, database
):
    out, daemon = tmp_path / "out", daemon_on(database)
    out.mkdir()
    daemon.add("mapping.py", DAGS)
    run_id = daemon.trigger(dag, {"folder": str(out)})
    eventually(partial(has_begun, out))  # half of the children that they follow have not ended
    if is_killed:
        daemon.kill(whole_tree=True)
        daemon.start()
    (out / "go-on").touch()
    ended = daemon.wait(run_id)
    texts = tasks_named(daemon, run_id, "text" if dag == "followed" else "both.text")
    [total] = tasks_named(daemon, run_id, "total")
    doubles = tasks_named(daemon, run_id, "double" if dag == "followed" else "both.double")

    states = {task["map_index"]: task["state"] for task in texts}
    assert states == {n: "skipped" if n == 3 else "success" for n in range(WIDTH)}
    assert [task["map_label"] for task in doubles] == [f"number {n}" for n in range(WIDTH)]
    end = "b" if dag == "followed" else "g"
    shift = 1 if dag == "followed" else 0
    assert {task["map_index"]: task["map_label"] for task in texts[2:6]} == {
        2: f"{4 + shift}-{end}",
        3: None,  # it never began
        4: f"{8 + shift}-{end}",
        5: f"{10 + shift}-{end}",
    }
    last = f"{2 * WIDTH - 1}b" if dag == "followed" else f"{2 * WIDTH - 2}g"
    assert total["result"] == [WIDTH - 1, WIDTH, [0, 1, 2, 4], last]
    assert ended["state"] == "success"
    assert set(lines(out / "totals")) == {str(WIDTH - 1)}
    assert set(lines(out / "texts")) == {str(2 * n + shift) for n in range(WIDTH) if n != 3}
    if not is_killed:
        assert len(lines(out / "texts")) == WIDTH - 1
