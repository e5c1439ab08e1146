"""Two daemons with two homes on one PostgreSQL: one serves it, and neither fences the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from aioflow.cli import FENCED
from benchmarks.daemon import DaemonProcess, eventually

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.timeout(300)]


def daemon(folder: Path, name: str, url: str, *flags: str) -> DaemonProcess:
    (folder / "dags").mkdir(exist_ok=True)
    return DaemonProcess(folder / name, folder / "dags", db=url, flags=("--cpu-slots", "1", *flags))


def last_words(one: DaemonProcess) -> str:
    return one.log.read_text(errors="replace")[-3000:]


@pytest.mark.nightly
def test_a_second_home_is_refused_while_the_first_is_idle_and_people_may_take_over(
    postgres_url: str, tmp_path: Path
) -> None:
    first = daemon(tmp_path, "first", postgres_url).start()
    tree = first.tree()
    second = daemon(tmp_path, "second", postgres_url)
    second.launch()
    assert second.process.wait(60) == 1
    assert "[home.busy]" in last_words(second)
    assert first.is_alive

    third = daemon(tmp_path, "third", postgres_url, "--take-over")
    third.launch()
    eventually(lambda: "[store.fenced]" in last_words(first), 60.0, lambda: last_words(third))
    assert first.process.wait(60) == FENCED
    eventually(lambda: not any(process.is_running() for process in tree))
    eventually(third._is_ready, 60.0)
    assert third.stop() == 0


@pytest.mark.nightly
def test_a_home_whose_daemon_was_killed_is_taken_over_from_after_a_lease(
    postgres_url: str, tmp_path: Path
) -> None:
    first = daemon(tmp_path, "first", postgres_url).start()
    first.kill(whole_tree=True)
    again = daemon(tmp_path, "first", postgres_url).start()  # the database's own home need not wait
    assert "another daemon serves this database" not in again.log.read_text()
    again.kill(whole_tree=True)
    second = daemon(tmp_path, "second", postgres_url).start()

    assert "another daemon serves this database" in second.log.read_text()
    assert second.stop() == 0
    third = daemon(tmp_path, "third", postgres_url).start()
    assert "another daemon serves this database" not in third.log.read_text()
    assert third.stop() == 0
