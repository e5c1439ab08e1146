"""The command line as used by scripts and by people, with a real daemon."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aioflow.cli import command_parser
from aioflow.model.states import RunState
from benchmarks.daemon import eventually
from tests.cli.served import DAGS, TALK, Daemon
from tests.commands import run, run_process

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

# ── a daemon's commands ─────────────────────────────────────────────────────────────────


def test_a_run_is_triggered_waited_for_and_shown(daemon):
    made = daemon.run("dags", "trigger", "sums", "--conf", '{"n": 4}', "--wait", "--json")
    shown = daemon.run("runs", "show", made.json["run_id"], "--json").json

    assert made.status == 0
    assert made.json.keys() == {"run_id", "dag_id", "state", "created"}
    assert (made.json["state"], made.json["created"]) == ("success", True)
    assert shown["counts"] == {"success": 6}
    assert [task["map_index"] for task in shown["tasks"]] == [-1, 0, 1, 2, 3, -1]
    assert shown["tasks"][0]["result"] == [0, 1, 2, 3]
    assert shown["tasks"][5]["result"] == 14


@pytest.mark.parametrize(
    ("dag", "state", "status"), [("breaks", "failed", 1), ("halves", "partial", 3)]
)
def test_the_exit_status_tells_a_script_how_a_run_ended(daemon, dag, state, status):
    made = daemon.run("dags", "trigger", dag, "--wait", "--json")

    assert (made.json["state"], made.status) == (state, status)


def test_the_same_id_is_the_same_run_and_another_conf_a_conflict(daemon):
    words = ("dags", "trigger", "sums", "--run-id", "mine", "--json")
    first = daemon.run(*words)
    again = daemon.run(*words)
    other = daemon.run(*words, "--conf", '{"n": 9}')

    assert (first.json["created"], again.json["created"]) == (True, False)
    assert other.status == 1
    assert other.out == ""
    assert other.err.startswith("aioflow: run 'mine' exists already")
    assert other.err.rstrip().endswith("[request.run_exists]")


def test_the_output_of_a_child_is_found_under_its_index(daemon):
    run_id = daemon.run("dags", "trigger", "sums", "--wait", "--json").json["run_id"]

    assert daemon.run("runs", "logs", run_id, "square", "--map", "2").out == "square of 2\n"
    assert daemon.run("runs", "logs", run_id, "numbers", "--follow").out == "counting to 3\n"
    as_json = daemon.run("runs", "logs", run_id, "numbers", "--json").json
    assert (as_json["task_id"], as_json["log"]) == ("numbers", "counting to 3\n")


def test_a_wait_is_explained_and_a_run_cancelled(daemon):
    run_id = daemon.run("dags", "trigger", "waits", "--json").json["run_id"]

    def explained() -> Any:
        # While a commit takes long, only the commit is reported as the cause.
        found = daemon.run("runs", "why", run_id, "total", "--json").json
        return found if len(found["causes"]) == 2 else None

    def told() -> str | None:
        text = daemon.run("runs", "why", run_id, "total").out
        return text if "total is waiting for arrived" in text else None

    chain = eventually(explained)
    eventually(told)
    cancelled = daemon.run("runs", "cancel", run_id, "--json").json
    after = daemon.run("runs", "show", run_id, "--json").json
    watched = daemon.run("runs", "watch", run_id)

    assert [cause["task_id"] for cause in chain["causes"]] == ["total", "arrived"]
    assert cancelled["state"] == "cancelled"
    assert after["counts"] == {"cancelled": 2}
    assert watched.status == 1
    assert "cancelled" in watched.out


def test_an_ended_run_is_cleared_and_ends_again(daemon):
    run_id = daemon.run("dags", "trigger", "sums", "--wait", "--json").json["run_id"]

    cleared = daemon.run("runs", "clear", run_id, "--task", "numbers", "--downstream", "--json")
    watched = daemon.run("runs", "watch", run_id)
    shown = daemon.run("runs", "show", run_id, "--json").json
    child = daemon.run("runs", "clear", run_id, "--task", "square", "--map", "1")
    again = daemon.run("runs", "watch", run_id)

    assert (cleared.json["cleared"], cleared.json["dag_id"]) == (5, "sums")
    assert (watched.status, again.status) == (0, 0)
    assert shown["counts"] == {"success": 5}  # removed instances do not count
    assert [task["result"] for task in shown["tasks"]] == [[0, 1, 2], 0, 1, 4, 5]
    assert child.out.startswith("1 task cleared; ")
    log = daemon.run("runs", "logs", run_id, "square", "--map", "1").out
    assert log.count("square of 1\n") == 3
    assert log.endswith("\n[aioflow: the task was cleared; try 2 follows]\nsquare of 1\n")


def test_tasks_of_an_ended_run_are_marked_and_it_ends_as_they_say(daemon):
    run_id = daemon.run("dags", "trigger", "sums", "--wait", "--json").json["run_id"]

    words = ("runs", "mark", run_id, "--task", "square", "--map", "1", "--state", "failed")
    marked = daemon.run(*words, "--json").json
    shown = daemon.run("runs", "show", run_id)
    back = daemon.run("runs", "mark", run_id, "--task", "square", "--state", "success")
    whole = daemon.run("runs", "mark", run_id, "--state", "failed")

    assert (marked["marked"], marked["state"]) == (1, "partial")
    assert "Marked: a person marked it failed" in shown.out
    assert back.out == f"1 task marked success; {run_id} is success\n"
    assert whole.out == f"{run_id} is failed\n"


def test_an_ended_run_is_deleted_with_what_it_printed_and_an_active_one_is_not(daemon):
    run_id = daemon.run("dags", "trigger", "sums", "--wait", "--json").json["run_id"]
    folders = daemon.home / "logs"
    number = run_id.rpartition(".")[2]
    assert list(folders.glob(f"*/{number}"))
    assert daemon.run("dags", "trigger", "waits", "--run-id", "stays").status == 0

    refused = daemon.run("runs", "delete", "stays")
    deleted = daemon.run("runs", "delete", run_id)
    shown = daemon.run("runs", "show", run_id)
    eventually(lambda: not list(folders.glob(f"*/{number}")), 20)
    assert daemon.run("runs", "cancel", "stays").status == 0

    assert (refused.status, deleted.out) == (1, f"{run_id} is deleted\n")
    assert "has not ended; cancel it first" in refused.err
    assert (shown.status, "request.unknown_run" in shown.err) == (1, True)


def test_a_wait_is_ended_manually(daemon):
    run_id = daemon.run("dags", "trigger", "approval", "--json").json["run_id"]

    def deferred():
        listed = daemon.run("triggers", "list", "--json").json
        return [row["trigger_id"] for row in listed if row["run_id"] == run_id]

    (number,) = eventually(deferred, 60)
    fired = daemon.run("triggers", "fire", number, "--payload", '"yes"', "--json")
    watched = daemon.run("runs", "watch", run_id)
    again = daemon.run("triggers", "fire", number)

    where = {"run_id": run_id, "task_id": "approved", "map_index": -1}
    assert fired.json == {"trigger_id": number} | where
    assert watched.status == 0
    (task,) = daemon.run("runs", "show", run_id, "--json").json["tasks"]
    assert task["result"] == "yes"
    assert (again.status, again.err.endswith("[request.unknown_trigger]\n")) == (1, True)


def test_runs_that_wait_for_each_other_are_reported(daemon):
    for name in ("hen", "egg"):
        assert daemon.run("dags", "trigger", name, "--run-id", f"{name}-1").status == 0
    said = eventually(lambda: re.search("a cycle: .*", daemon.run("runs", "why", "hen-1").out), 30)
    log = daemon.log.read_text()
    assert daemon.run("runs", "cancel", "egg-1").status == 0
    ended = daemon.run("runs", "watch", "hen-1")

    assert said.group().startswith("a cycle: hen-1 -> egg-1 -> hen-1")
    assert len(re.findall("runs wait for each other", log)) == 1
    assert "success" in ended.out


def test_dags_are_listed_with_their_schedule_and_what_is_wrong(daemon):
    dags = {dag["dag_id"]: dag for dag in daemon.run("dags", "list", "--json").json}
    upcoming = daemon.run(
        "dags", "next", "waits", "--from", "2026-01-31T00:00:00Z", "--count", "2", "--json"
    ).json

    assert dags["waits"]["schedule"] == "0 3 * * *"
    assert dags["waits"]["next_run_at"].endswith("T03:00:00Z")
    assert dags["sums"]["import_error"] is None
    assert "syntax_error" in dags[None]["import_error"]
    assert upcoming == ["2026-01-31T03:00:00Z", "2026-02-01T03:00:00Z"]


def test_a_range_of_days_is_filled_once_and_what_would_be_done_is_said_before(daemon):
    days = ("--from", "2026-01-01", "--to", "2026-01-03")
    words = ("dags", "backfill", "rolls", *days, "--json")
    wished = daemon.run(*words, "--dry-run").json
    made = daemon.run(*words, "--max-active", "2", "--conf", '{"n": 2}').json
    number = made["backfill_id"]

    def over():
        found = daemon.run("backfills", "show", number, "--json").json
        return found if found["state"] != "running" else None

    done = eventually(over, 60)
    again = daemon.run(*words, "--dry-run").json
    listed = daemon.run("backfills", "list", "--dag", "rolls")
    runs = daemon.run("runs", "list", "--dag", "rolls", "--json").json

    fire_times = [f"{day}T23:30:00Z" for day in ("2025-12-31", "2026-01-01", "2026-01-02")]
    assert [(one["logical_date"], one["action"]) for one in wished] == [
        (at, "run") for at in fire_times
    ]
    assert (made["state"], made["max_active"], made["conf"]) == ("running", 2, {"n": 2})
    assert (done["state"], done["made"], done["runs"]) == ("done", 3, {"success": 3})
    assert done["progress"] == 1
    assert {one["logical_date"]: one["run_id"] for one in runs} == {
        one["logical_date"]: one["run_id"] for one in again
    }
    assert {one["action"] for one in again} == {"skip"}
    assert "100%" in listed.out
    assert "3 success" in listed.out


def test_an_active_backfill_is_cancelled_with_its_runs(daemon):
    words = ("dags", "backfill", "waits", "--from", "2026-01-01", "--to", "2026-01-31", "--json")
    made = daemon.run(*words, "--max-active", "2").json
    again = daemon.run(*words, "--max-active", "2").json
    other = daemon.run(*words, "--reverse")
    gone = daemon.run("backfills", "cancel", made["backfill_id"], "--json").json
    counts = daemon.run("backfills", "show", made["backfill_id"]).out
    unknown = daemon.run("backfills", "show", "1")

    assert again["backfill_id"] == made["backfill_id"]
    assert (other.status, "[request.backfill]" in other.err) == (1, True)
    assert (gone["state"], gone["made"], gone["runs"]) == ("cancelled", 2, {"cancelled": 2})
    assert "2 cancelled" in counts
    assert (unknown.status, "[request.unknown_backfill]" in unknown.err) == (1, True)


def test_a_dag_is_paused_and_resumed(daemon):
    assert daemon.run("dags", "pause", "waits", "--json").json == {
        "dag_id": "waits",
        "paused": True,
    }
    paused = {dag["dag_id"]: dag["paused"] for dag in daemon.run("dags", "list", "--json").json}
    assert paused["waits"]
    assert daemon.run("dags", "resume", "waits", "--json").json["paused"] is False


def test_a_log_is_followed_over_retries_to_its_last_byte(daemon):
    run_id = daemon.run("dags", "trigger", "noise", "--json").json["run_id"]

    followed = daemon.run("runs", "logs", run_id, "noisy", "--follow")
    whole = daemon.run("runs", "logs", run_id, "noisy")

    assert (followed.status, followed.err) == (0, "")
    assert followed.out == whole.out
    assert re.findall(r"the end of (\d)", whole.out) == ["1", "2", "3"]
    assert len(re.findall(r"^line \d+ ", whole.out, re.MULTILINE)) == 600
    third = daemon.run("runs", "logs", run_id, "noisy", "--search", "in 3", "--json").json
    assert len(third["lines"]) == 200
    data = whole.out.encode()  # in which each \r has become \n
    found = [(one["offset"], one["line"].replace("\r", "\n").encode()) for one in third["lines"]]
    assert all(data[at:].startswith(line) for at, line in found)


def test_the_log_of_a_run_is_followed_until_it_has_ended(daemon):
    run_id = daemon.run("dags", "trigger", "noise", "--json").json["run_id"]

    followed = daemon.run("runs", "logs", run_id, "--follow", "--search", "the end of ")
    whole = daemon.run("runs", "logs", run_id, "--search", "the end of ", "--json").json

    lines = followed.out.splitlines()
    assert [f"the end of {number}" in line for number, line in enumerate(lines, 1)] == [True] * 3
    assert [one["task_id"] for one in whole["lines"]] == ["noisy"] * 3
    assert [one["text"] for one in whole["lines"]] == [line.split("  ", 2)[2] for line in lines]


def on_a_terminal(daemon, *words, with_hints=False):
    """Return the output of a command on a terminal."""
    leader, follower = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "aioflow", *words, "--home", str(daemon.home)],
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=follower if with_hints else subprocess.DEVNULL,
    ) as process:
        os.close(follower)
        shown = b""
        while True:
            try:
                piece = os.read(leader, 65_536)
            except OSError:  # the last one that had it open has closed it
                break
            if not piece:
                break
            shown += piece
        process.wait(60)
    os.close(leader)
    return shown.decode()


def test_on_a_terminal_a_log_cannot_steer_it_unless_it_is_to(daemon):
    run_id = daemon.run("dags", "trigger", "noise", "--wait", "--json").json["run_id"]

    shown = on_a_terminal(daemon, "runs", "logs", run_id, "noisy").replace("\r\n", "\n")
    found = on_a_terminal(daemon, "runs", "logs", run_id, "noisy", "--search", "line 7 ")
    raw = on_a_terminal(daemon, "runs", "logs", run_id, "noisy", "--raw")

    steering = set("\x1b\x07\x9b\r\u202e\u2066")
    assert not steering & set(shown)
    assert not steering & set(found.replace("\r\n", "\n"))
    assert "line 7 \\u202e\\x1b]0;owned\\x07\\x9b31m\\x0d\\u2066 in 1\n" in shown
    assert steering <= set(raw)


def test_a_run_is_found_by_the_beginning_of_its_id_if_no_other_begins_so(daemon):
    for name in ("prefix-one", "prefix-two"):
        assert daemon.run("dags", "trigger", "sums", "--run-id", name, "--wait").status == 0

    one = daemon.run("runs", "show", "prefix-o", "--json")
    both = daemon.run("runs", "show", "prefix-")
    short = daemon.run("runs", "show", "pr")
    deleted = daemon.run("runs", "delete", "prefix-o")

    assert (one.json["run_id"], one.err) == ("prefix-one", "run prefix-one\n")
    assert both.status == short.status == deleted.status == 1
    assert "several runs begin with 'prefix-': prefix-two, prefix-one; give more" in both.err
    assert "[request.unknown_run]" in short.err
    assert "[request.unknown_run]" in deleted.err


def test_top_shows_the_current_state_at_each_refresh(daemon):
    run_id = daemon.run("dags", "trigger", "waits", "--json").json["run_id"]
    line = daemon.run("top", "--count", "1")
    looks = daemon.run("top", "--count", "2", "--every", "0.1", "--json").out.splitlines()
    shown = on_a_terminal(daemon, "top", "--count", "1")
    assert daemon.run("runs", "cancel", run_id).status == 0

    assert re.match(r"\d+ runs, \d+ tasks, \d+ queued, slots ", line.out)
    assert "/s" not in line.out, "a rate takes two looks"
    first, second = map(json.loads, looks)
    rates = [(look["tasks_per_second"], look["events_per_second"]) for look in (first, second)]
    assert rates[0] == (None, None)
    assert all(isinstance(rate, float) for rate in rates[1])
    assert first.keys() == second.keys()
    assert run_id in {run["run_id"] for run in second["runs"]}
    assert second["loop_lag_seconds"].keys() == {"daemon", "async", "triggers", "quarantine"}
    assert run_id in shown


def test_colours_are_for_terminals_that_want_them(daemon):
    run_id = daemon.run("dags", "trigger", "sums", "--wait", "--json").json["run_id"]

    shown = on_a_terminal(daemon, "runs", "show", run_id)
    os.environ["NO_COLOR"] = "1"
    try:
        plain = on_a_terminal(daemon, "runs", "show", run_id)
    finally:
        del os.environ["NO_COLOR"]

    assert "\x1b[32msuccess" in shown
    assert "\x1b" not in plain


def test_an_event_is_emitted_and_listed(daemon):
    data = '{"by": "mia \\u001b[31m"}'
    made = daemon.run(
        "events", "emit", "orders/approved", "--key", "o-17", "--data", data, "--json"
    )
    plain = daemon.run("events", "emit", "bare")
    listed = daemon.run("events", "list", "--name", "orders/approved", "--json")
    table = daemon.run("events", "list", "--limit", "2")

    assert (made.status, made.json["created"], made.json["key"]) == (0, True, "o-17")
    assert re.fullmatch(r"bare emitted: event \d+\n", plain.out)
    assert [event["event_id"] for event in listed.json] == [made.json["event_id"]]
    assert listed.json[0]["data"] == {"by": "mia \x1b[31m"}
    assert "orders/approved" in table.out
    assert "\x1b" not in table.out


def test_a_pool_is_limited_and_lifted(daemon):
    daemon.run("pools", "set", "ledger", "4", "--include-deferred")
    listed = daemon.run("pools", "list")
    as_json = daemon.run("pools", "list", "--json").json
    daemon.run("pools", "delete", "ledger")

    assert re.search(r"ledger +4 +0 +counted", listed.out)
    ledger = {"name": "ledger", "slots": 4, "include_deferred": True, "used": 0, "queued": 0}
    assert as_json == [ledger]
    assert daemon.run("pools", "list", "--json").json == []


def test_a_node_is_drained_and_takes_work_again(daemon):
    drained = daemon.run("nodes", "drain", "1")
    listed = daemon.run("nodes", "list")
    undrained = daemon.run("nodes", "undrain", "1", "--json").json
    (node,) = daemon.run("nodes", "list", "--json").json

    assert drained.status == 0
    assert re.search(r"1 +\S+ +drained", listed.out)
    assert undrained == {"node": 1, "drained": False, "changed": True}
    assert (node["state"], node["is_here"], node["pid"]) == ("active", True, daemon.facts["pid"])
    assert daemon.run("nodes", "drain", "9").status == 1


def test_a_remote_daemon_is_reached_by_url_with_a_token(daemon):
    url = daemon.facts["url"]
    token = Path(daemon.facts["token_file"]).read_text().strip()

    with_token = run("dags", "list", "--json", "--url", url, AIOFLOW_TOKEN=token)
    without = run("dags", "list", "--json", "--url", url)

    assert with_token.json == daemon.run("dags", "list", "--json").json != []
    assert (without.status, without.out) == (1, "")
    assert "[web.unauthorized]" in without.err


def test_a_message_cannot_steer_the_terminal(daemon):
    run_id = daemon.run("dags", "trigger", "breaks", "--wait", "--json").json["run_id"]

    shown = daemon.run("runs", "show", run_id)

    assert "no money" in shown.out
    assert "\x1b" not in shown.out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("runs", "show", "nobody"), "request.unknown_run"),
        (("runs", "cancel", "nobody"), "request.unknown_run"),
        (("runs", "clear", "nobody"), "request.unknown_run"),
        (("runs", "mark", "nobody", "--state", "failed"), "request.unknown_run"),
        (("dags", "trigger", "nobody"), "request.unknown_dag"),
        (("dags", "trigger", "sums", "--conf", '{"x": 1}'), "request.conf"),
        (("dags", "trigger", "sums", "--conf", '{"n": "lots"}'), "request.conf"),
        (("triggers", "show", "7"), "request.unknown_trigger"),
        (("triggers", "unquarantine", "flows:Typo"), "request.unknown_class"),
    ],
)
def test_impossible_requests_print_one_line_with_a_code(daemon, words, code):
    done = daemon.run(*words)

    assert done.status == 1
    assert done.out == ""
    assert re.fullmatch(rf"aioflow: .+ \[{re.escape(code)}\]\n", done.err)


def test_the_database_is_what_its_journal_says(daemon):
    assert daemon.run("db", "check", "--json").json == {"ok": True, "problems": []}


@pytest.mark.nightly  # tests/process/test_home.py sees the same in `make test`
def test_a_second_daemon_on_one_home_is_refused(daemon):
    done = run_process("up", "--home", daemon.home, "--port", "0")

    assert done.status == 1
    assert "[home.busy]" in done.err
    assert "Traceback" not in done.err


# ── without a daemon ────────────────────────────────────────────────────────────────────


@pytest.mark.nightly  # tests/process/test_home.py sees the same line in `make test`
def test_a_taken_port_is_one_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_process("up", "--port", port, home=tmp_path / "home")

    assert done.status == 1
    assert done.err.splitlines()[-1].endswith("[web.port_in_use]")
    assert "Traceback" not in done.err


@dataclass(frozen=True)
class Left:
    """The home of a killed daemon, with runs, and the output of a command that followed them."""

    home: Path
    ended: str
    live: str
    said_of_live: str
    followers: list[subprocess.Popen[str]]


@pytest.fixture(scope="module")
def left(tmp_path_factory) -> Iterator[Left]:
    daemon = Daemon(tmp_path_factory.mktemp("left"), flows=DAGS, talk=TALK)
    ended = daemon.run("dags", "trigger", "sums", "--wait", "--json").json["run_id"]
    live = daemon.run("dags", "trigger", "waits", "--json").json["run_id"]
    daemon.run("pools", "set", "ledger", 4)
    daemon.run("variables", "set", "REGION", "eu")
    daemon.run("dags", "trigger", "talks", "--run-id", "talking")
    told = daemon.run("runs", "why", live).err
    followers = [
        subprocess.Popen(
            [sys.executable, "-u", "-m", "aioflow", *words],
            env=os.environ | {"AIOFLOW_HOME": str(daemon.home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for words in (
            ("runs", "watch", "talking"),
            ("runs", "logs", "talking", "talk", "--follow"),
            ("top", "--every", "0.1"),
        )
    ]
    for follower in followers:
        assert follower.stdout is not None
        assert follower.stdout.readline()
    eventually(lambda: daemon.run("triggers", "list", "--json").json)
    daemon.kill()
    yield Left(daemon.home, ended, live, told, followers)
    for follower in followers:
        with follower:
            follower.kill()


@pytest.mark.xdist_group("left")
def test_a_command_that_follows_a_stopped_daemon_says_so_and_fails(left):
    watch, _, top = left.followers
    for follower in (watch, top):
        _, err = follower.communicate(timeout=60)
        assert follower.returncode == 1
        assert re.fullmatch(r"aioflow: .+ \[daemon\.away\]\n", err)


@pytest.mark.xdist_group("left")
def test_following_a_log_waits_for_the_daemon_to_restart(left):
    _, logs, _ = left.followers

    assert logs.stderr.readline().endswith("waiting for it to come back\n")
    assert logs.poll() is None
    logs.send_signal(signal.SIGINT)
    logs.communicate(timeout=60)
    assert logs.returncode == 130


@pytest.mark.xdist_group("left")
def test_once_the_daemon_is_gone_its_database_is_read(left):
    def asked(*words: object) -> Any:
        return run(*words, "--json", home=left.home).json

    assert asked("runs", "show", left.ended)["counts"] == {"success": 5}
    assert {row["run_id"] for row in asked("runs", "list")} == {left.ended, left.live, "talking"}
    log = run("runs", "logs", left.ended, "numbers", home=left.home)
    assert log.out == "counting to 3\n"
    assert asked("runs", "why", left.ended)["causes"] == []
    assert len(asked("dags", "list")) == 10
    assert {row["run_id"] for row in asked("triggers", "list")} == {"talking"}
    assert asked("pools", "list") == [
        {
            "name": "ledger",
            "slots": 4,
            "include_deferred": False,
            "used": None,
            "queued": None,
        }
    ]
    assert asked("secrets", "list") == []
    [variable] = asked("variables", "list")
    assert (variable["name"], variable["opens"]) == ("REGION", True)
    for words in (
        ("runs", "cancel", left.ended),
        ("runs", "clear", left.ended),
        ("dags", "trigger", "sums"),
        ("dags", "pause", "sums"),
        ("triggers", "slow"),
    ):
        refused = run(*words, home=left.home)
        assert refused.status == 1
        assert refused.err.endswith("start it with `aioflow up` [daemon.away]\n")


@pytest.mark.nightly
@pytest.mark.xdist_group("left")
def test_without_a_daemon_the_command_says_that_waits_are_unknown(left):
    assert left.said_of_live == ""
    for words in (("runs", "why"), ("runs", "why", "--json"), ("runs", "show")):
        told = run(*words, left.live, home=left.home).err
        assert "it is needed to show waits" in told
        assert run(*words, left.ended, home=left.home).err == ""


@pytest.mark.nightly  # tests/cli/test_trouble.py sees the same in `make test`
def test_until_idle_it_ends_by_itself(tmp_path):
    (tmp_path / "dags").mkdir()

    done = run_process(
        "--home", tmp_path / "home", "--dags", tmp_path / "dags", "--port", 0, "--until-idle"
    )

    assert done.status == 0
    assert re.search(r"http://127\.0\.0\.1:\d+/\n", done.out)


def test_queries_on_an_empty_home_say_how_to_begin(tmp_path):
    done = run("dags", "list", home=tmp_path / "nowhere")

    assert done.status == 1
    assert "[daemon.away]" in done.err
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("nonsense",),
        ("dags",),
        ("dags", "trigger", "d", "--conf", "{"),
        ("dags", "trigger", "d", "--conf", "[1]"),
        ("dags", "trigger", "d", "--logical-date", "yesterday"),
        ("dags", "next", "d", "--from", "soon"),
        ("dags", "backfill", "d", "--from", "2026-01-01"),
        ("backfills", "show", "mine"),
        ("runs", "show"),
        ("runs", "list", "--limit", "0"),
        ("runs", "list", "--state", "done"),
        ("pools", "set", "ledger", "many"),
        ("up", "--port", "x"),
        ("up", "--host", "0.0.0.0"),
        ("--port", "99999"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_status_two_and_one_line(tmp_path, words):
    done = run(*words, home=tmp_path / "home")

    assert done.status == 2
    assert done.out == ""
    assert re.fullmatch(r"aioflow.*: .+ \[(usage|settings)\]\n", done.err)


def test_a_defect_is_one_line_and_shows_where_if_that_is_asked_for(tmp_path):
    (tmp_path / "aioflow.db").mkdir()  # not a file: no code of ours expects that

    words = ("runs", "list")
    done = run(*words, home=tmp_path)

    assert done.status == 1
    assert "Traceback" not in done.err
    assert len(done.err.splitlines()) == 1


def test_characters_that_the_output_cannot_encode_are_escaped(tmp_path):
    done = run_process("dags", "check", tmp_path / "näh.py", PYTHONIOENCODING="ascii")

    assert done.status == 1
    assert "n\\xe4h.py" in done.out
    assert "Traceback" not in done.err


def test_a_home_that_cannot_be_made_is_one_line():
    done = run_process("up", "--port", "0", home=Path("/proc/nobody-may-make-this"))

    assert done.status == 1
    assert re.fullmatch(r"aioflow: .+; choose another with --home \[home\.unusable\]\n", done.err)


def test_the_states_a_list_may_be_asked_for_are_those_there_are(tmp_path):
    done = run("runs", "list", "--state", "done", home=tmp_path)

    assert all(f"'{state.label}'" in done.err for state in RunState)


def test_check_names_file_line_and_code(tmp_path):
    good, wrong, empty = (tmp_path / name for name in ("good.py", "wrong.py", "empty.py"))
    good.write_text(DAGS)
    wrong.write_text("from aioflow import dag\n\n\ndef f(:\n")
    empty.write_text("import aioflow\n")

    done = run("dags", "check", good, wrong, empty)
    as_json = run("dags", "check", "--json", good)

    lines = done.out.splitlines()
    assert done.status == 1
    assert lines[0] == (
        f"{good}: hen, egg, approval, sums, breaks, noise, halves, rolls, waits: ok"
    )
    assert lines[1].startswith(f"{wrong}:4: syntax_error ")
    assert lines[2].startswith(f"{empty}:0: dag.none ")
    assert (len(lines), done.err) == (3, "")
    assert as_json.status == 0
    assert as_json.json == [
        {
            "file": str(good),
            "dags": [
                *("hen", "egg", "approval", "sums", "breaks", "noise", "halves", "rolls", "waits")
            ],
            "problems": [],
            "warnings": [],
            "isolated": {},
        }
    ]


NOTHING = """\
from aioflow import DAG, Operator, Trigger, TriggerEvent, dag, task

class Hourly(Trigger[int]):
    async def run(self):
        return TriggerEvent(1)

class Idle(Operator):
    pass

@task
def work() -> None: ...

@dag(schedule=Hourly())
def by_event() -> None:
    work()

with DAG("by_class"):
    Idle(task_id="idle")
"""


def test_check_finds_what_can_never_fire_and_what_can_never_run(tmp_path):
    file = tmp_path / "nothing.py"
    file.write_text(NOTHING)

    done = run("dags", "check", file)

    lines = NOTHING.splitlines()
    schedule = lines.index("@dag(schedule=Hourly())") + 1
    idle = lines.index('    Idle(task_id="idle")') + 1
    never = "the schedule's Hourly.run must be `async def` with a yield"
    assert done.status == 1
    assert done.out.splitlines() == [
        f"{file}:{schedule}: dag.schedule {never}",
        f"{file}:{idle}: dag task 'idle': Idle needs a method execute()",
    ]


def test_check_of_a_folder_reads_the_same_files_as_a_daemon(tmp_path):
    dags = tmp_path / "dags"
    (dags / "team").mkdir(parents=True)
    (dags / "team" / "good.py").write_text("from rates import RATE\n" + DAGS)
    (dags / "wrong.py").write_text("from aioflow import dag\n\n\ndef f(:\n")
    (dags / "rates.py").write_text("import aioflow\n\nRATE = 2\n")
    (dags / "draft.py").write_text("from aioflow import oh no")
    (dags / "plain.py").write_text("raise RuntimeError")
    (dags / ".aioflowignore").write_text("draft.py\n")

    done = run("dags", "check", dags, "--json")

    assert done.status == 1
    found = {
        checked["file"]: [said["code"] for said in checked["problems"]] for checked in done.json
    }
    assert found == {f"{dags}/team/good.py": [], f"{dags}/wrong.py": ["syntax_error"]}


SEES = "import os\nURL = os.environ['WAREHOUSE_URL']\n"


def test_check_sees_the_variables_that_the_daemon_lets_through(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "flows.py").write_text(SEES + DAGS)
    words = ("dags", "check", tmp_path / "flows.py")

    withheld = run(*words, home=home, WAREHOUSE_URL="x")
    unset = run(*words, home=home)
    (home / "aioflow.toml").write_text('[children]\nenv = ["WAREHOUSE_*"]\n')
    let_through = run(*words, home=home, WAREHOUSE_URL="x")
    by_variable = run(
        *words, home=tmp_path / "other", WAREHOUSE_URL="x", AIOFLOW_CHILDREN__ENV="X, WAREHOUSE_URL"
    )

    assert (withheld.status, unset.status) == (1, 1)
    assert 'set env = ["WAREHOUSE_URL"] under [children] in aioflow.toml' in withheld.out
    assert "aioflow.toml" not in unset.out
    assert (let_through.status, by_variable.status) == (0, 0)


@pytest.mark.nightly
def test_a_dag_that_is_tried_sees_the_variables_that_the_daemon_lets_through(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "aioflow.toml").write_text('[children]\nenv = ["WAREHOUSE_*"]\n')
    (tmp_path / "flows.py").write_text(SEES + DAGS)

    words = ("dags", "test", tmp_path / "flows.py", "--dag", "sums", "--conf", '{"n": 4}')
    done = run_process(*words, home=home, WAREHOUSE_URL="x")

    assert done.status == 0


def test_check_warns_of_files_that_no_task_will_find(tmp_path):
    (tmp_path / "query.sql").write_text("select 1")
    names = "import pathlib\nHERE = pathlib.Path(__file__).parent\n" + DAGS
    (tmp_path / "flows.py").write_text(names + "\nA = HERE / 'query.sql'\nB = HERE / 'no.sql'\n")

    done = run("dags", "check", tmp_path / "flows.py")

    line = len((tmp_path / "flows.py").read_text().splitlines())
    assert done.status == 0
    [said] = [text for text in done.err.splitlines() if "odd.file" in text]
    assert said.startswith(f"{tmp_path}/flows.py:{line}: odd.file no file is at no.sql")


def test_check_refuses_files_that_a_version_cannot_have(tmp_path):
    (tmp_path / "flows.py").write_text('# aioflow: files = ["*.bin"]\n' + DAGS)
    (tmp_path / "huge.bin").write_bytes(b"x" * 2_000_000)

    done = run("dags", "check", tmp_path / "flows.py")

    assert done.status == 1
    assert f"{tmp_path}/flows.py:0: files huge.bin, which files names, is larger" in done.out


def test_check_says_which_dags_run_in_hosts_of_their_own_and_why(tmp_path):
    (tmp_path / "flows.py").write_text("import os\nos.environ['AWS_PROFILE'] = 'dev'\n" + DAGS)
    words = ("dags", "check", tmp_path / "flows.py")
    why = "importing the file sets os.environ['AWS_PROFILE']"

    done = run(*words)
    (as_json,) = run(*words, "--json").json

    assert done.status == 0
    assert f"{tmp_path}/flows.py: sums runs in separate hosts: {why}\n" in done.err
    assert as_json["isolated"]["sums"] == [why]


FAR = """
from aioflow import dag, task

@task(resources={"GPU": 1})
def work() -> int:
    return 1

@dag(executor="near")
def far():
    work()
"""


def test_check_warns_of_an_executor_that_the_settings_lack(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "flows.py").write_text(FAR)
    (tmp_path / "default.py").write_text(FAR.replace('executor="near"', ""))
    words = ("dags", "check", tmp_path / "flows.py")

    lacking = run(*words, home=home)
    local = run("dags", "check", tmp_path / "default.py", home=home)
    (home / "aioflow.toml").write_text('executor = "near"\n[executors.near]\nkind = "absent"\n')
    with_table = run(*words, home=home)
    by_default = run("dags", "check", tmp_path / "default.py", home=home)

    assert (lacking.status, local.status) == (0, 1)
    assert f"{tmp_path}/flows.py:10: dag.executor a daemon without a table" in lacking.err
    assert "dag.executor task 'work': the executor 'local' offers no resources=" in local.out
    assert (with_table.status, by_default.status) == (0, 0)
    assert "[executors.near]" not in with_table.err


def test_check_sees_a_name_that_two_files_give(tmp_path):
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(DAGS)

    done = run("dags", "check", tmp_path / "a.py", tmp_path / "b.py")

    assert done.status == 1
    assert f"{tmp_path}/b.py:" in done.out
    assert "dag.duplicate_dag" in done.out


@pytest.mark.parametrize("command", ["check", pytest.param("test", marks=pytest.mark.nightly)])
def test_a_link_has_the_name_it_has_in_the_dag_folder_as_for_the_daemon(tmp_path, command):
    dags, elsewhere = tmp_path / "dags", tmp_path / "elsewhere"
    for folder in (dags / "lib", elsewhere / "team"):
        folder.mkdir(parents=True)
    (dags / "lib" / "amount.py").write_text("VALUE = 4")
    (elsewhere / "team" / "flow.py").write_text(
        "from aioflow import dag, task\nfrom lib.amount import VALUE\n\n"
        "@task\ndef give() -> int:\n    return VALUE\n\n@dag\ndef linked() -> None:\n    give()\n"
    )
    (dags / "team").symlink_to(elsewhere / "team")
    (tmp_path / "by-another-way").symlink_to(dags)

    run_it = run_process if command == "test" else run  # a test runs a daemon of its own
    done = [
        run_it("dags", command, path / "team" / "flow.py", "--dags", dags)
        for path in (dags, tmp_path / "by-another-way")
    ]

    assert [found.status for found in done] == [0, 0], done


@pytest.mark.nightly
def test_one_dag_of_a_file_runs_to_its_end_on_a_daemon_of_its_own(tmp_path):
    (tmp_path / "flows.py").write_text(DAGS)

    words = ("--dag", "sums", "--conf", '{"n": 4}')
    done = run_process("dags", "test", tmp_path / "flows.py", *words)
    which = run("dags", "test", tmp_path / "flows.py")

    assert done.status == 0
    assert "total = 14" in done.out
    assert which.status == 2
    assert "choose with --dag" in which.err
    assert [path.name for path in tmp_path.iterdir()] == ["flows.py"]


@pytest.mark.nightly
def test_a_dag_that_is_tried_finds_the_files_beside_it(tmp_path):
    (tmp_path / "query.sql").write_text("select 1")
    (tmp_path / "flows.py").write_text(
        "from pathlib import Path\nfrom aioflow import dag, task\n\n"
        "@task\ndef read() -> str:\n    return (Path(__file__).parent / 'query.sql').read_text()"
        "\n\n@dag\ndef reads() -> None:\n    read()\n"
    )

    done = run_process("dags", "test", tmp_path / "flows.py")

    assert done.status == 0
    assert "read = 'select 1'" in done.out


def test_a_dag_that_is_tried_and_fails_shows_the_log_of_its_last_try(tmp_path):
    (tmp_path / "flows.py").write_text(
        "from aioflow import Retry, dag, task\n\n"
        "@task(retry=Retry(tries=2, delay='0.1s'))\n"
        "def divide(n: int, try_number: int) -> float:\n"
        "    print('dividing', n, 'in try', try_number)\n    return 1 / n\n\n"
        "@dag\ndef divides() -> None:\n    divide.expand(n=[1, 0])\n"
    )

    done = run_process("dags", "test", tmp_path / "flows.py")

    assert done.status == 1
    said = done.err[done.err.index("divide[1] failed: ZeroDivisionError") :]
    assert "\nthe log of divide[1], try 2:\ndividing 0 in try 2\nTraceback (most rec" in said
    assert said.rstrip().endswith("ZeroDivisionError: division by zero")
    assert "in try 1" not in said


@pytest.mark.nightly
def test_one_dag_of_a_file_that_fails_is_status_one(tmp_path):
    (tmp_path / "flows.py").write_text(DAGS)

    failed = run_process("dags", "test", tmp_path / "flows.py", "--dag", "breaks", "--json")

    assert (failed.status, failed.json["state"]) == (1, "failed")
    assert [path.name for path in tmp_path.iterdir()] == ["flows.py"]


@pytest.mark.nightly
def test_the_tour_ends_with_the_total_its_generator_says():
    done = run_process("demo", "--exit", "--after", "0", "--json")

    assert done.status == 0
    assert done.json["matches"]
    assert done.json["total"] == done.json["expected"]


def test_settings_are_shown_with_their_source(tmp_path):
    found = run("config", "show", "--json", home=tmp_path, AIOFLOW_WEB__PORT="7").json

    port = next(entry for entry in found if entry["name"] == "web.port")
    assert port == {"name": "web.port", "value": 7, "source": "environment AIOFLOW_WEB__PORT"}


# ── retention ───────────────────────────────────────────────────────────────────────────


@pytest.mark.nightly
def test_old_data_can_be_deleted_manually_as_well(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "aioflow.toml").write_text("[retention]\nruns_days = 0.000001\n")
    daemon = Daemon(tmp_path, flows=DAGS)
    for name in ("one", "two"):
        daemon.run("dags", "trigger", "sums", "--run-id", name, "--wait")

    would = daemon.run("db", "clean", "--dry-run", "--json").json
    told = daemon.run("db", "clean")
    again = daemon.run("dags", "trigger", "sums", "--run-id", "one")

    none = {"audit": 0, "events": 0, "history": 0, "journal": 0, "logs": 0, "versions": 0}
    assert would == {"runs": 1, **none, "dry_run": True, "more": False}
    assert told.out.splitlines()[0] == "1 runs went"
    assert [run["run_id"] for run in daemon.run("runs", "list", "--json").json][-1] == "two"
    assert again.status == 0 or "[request.run_being_deleted]" in again.err
    assert daemon.run("db", "check").status == 0
    assert daemon.stop() == 0
    assert "[daemon.away]" in run("db", "clean", home=daemon.home).err


# ── help ────────────────────────────────────────────────────────────────────────────────


def leaves(parser: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, Any]]:
    verbs = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not verbs:
        yield name.strip(), parser
    for verb, below in (verbs[0].choices if verbs else {}).items():
        yield from leaves(below, f"{name} {verb}")


COMMANDS = dict(leaves(command_parser()))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example_and_speaks_json(command):
    text = COMMANDS[command].format_help()

    assert re.search(r"example:\n  .*aioflow ", text)
    assert "--json" in text or command == "completion"  # which prints a script
    assert len(COMMANDS) > 55


def test_help_is_printed_and_is_done(capsys):
    from aioflow.cli import main

    with pytest.raises(SystemExit) as ended:
        main(["runs", "logs", "--help"])

    assert ended.value.code == 0
    assert "--follow" in capsys.readouterr().out


def test_help_imports_nothing_heavy():
    heavy = ("anyio", "fastapi", "pydantic", "rich", "sqlalchemy", "structlog", "uvicorn")
    program = (
        "import sys\nfrom aioflow.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.stderr == "[]\n"


def test_a_reader_that_has_enough_is_no_error(tmp_path):
    script = f"{sys.executable} -m aioflow config show --json --home {tmp_path} | head -c 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", script], capture_output=True, text=True)

    assert done.stderr == ""


def test_check_points_out_a_task_that_stands_alone_but_lets_it_pass(tmp_path, capfd):
    from aioflow.cli import main

    file = tmp_path / "odd.py"
    file.write_text(
        "from aioflow import dag, task\n\n"
        "@task\ndef a() -> int:\n    return 1\n\n"
        "@task\ndef b(x: int) -> None: ...\n\n"
        "@task\ndef lone() -> None: ...\n\n"
        "@dag\ndef odd() -> None:\n    b(a())\n    lone()\n"
    )

    status = main(["dags", "check", str(file)])

    said = capfd.readouterr()
    assert (status, said.out) == (0, f"{file}: odd: ok\n")
    assert "'lone'" in said.err
    assert "'a'" not in said.err


def test_a_note_is_written_shown_and_removed(daemon):
    run_id = daemon.run("dags", "trigger", "sums", "--wait", "--json").json["run_id"]
    task = daemon.run("runs", "show", run_id, "--json").json["tasks"][0]["task_id"]
    wrote = daemon.run("runs", "note", run_id, "bank called,\x1b[31m\nfile late")
    assert (wrote.status, "control characters" in wrote.err) == (1, True)

    daemon.run("runs", "note", run_id, "bank called,\nfile late")
    made = daemon.run("runs", "note", run_id, task, "of the task", "--json").json
    listed = daemon.run("runs", "note", run_id, "--json").json
    shown = daemon.run("runs", "show", run_id).out
    found = daemon.run("runs", "list", "--params", "file late", "--json").json
    wrong = daemon.run("runs", "note", run_id, task, "two", "texts")
    daemon.run("runs", "note", run_id, "--remove")
    removed = daemon.run("runs", "note", run_id, task, "--remove", "--json").json

    assert made in listed
    assert [(one["task_id"], one["text"]) for one in listed] == [
        (None, "bank called,\nfile late"),
        (task, "of the task"),
    ]
    assert "note: bank called, file late (home, " in shown
    assert f"note on {task}: of the task (home, " in shown
    assert [one["run_id"] for one in found] == [run_id]
    assert (wrong.status, "put it in quotes" in wrong.err) == (2, True)
    assert removed == {"run_id": run_id, "task_id": task, "removed": True}
    assert "no notes" in daemon.run("runs", "note", run_id).err


def test_on_a_terminal_the_page_of_a_run_is_named_and_nowhere_else(daemon):
    run_id = daemon.run("dags", "trigger", "sums", "--wait", "--json").json["run_id"]
    link = re.compile(
        rf"on the page: http://127\.0\.0\.1:\d+/runs/{re.escape(run_id)}(\?task=t)?\r"
    )

    for words in (
        ("runs", "show", run_id),
        ("runs", "why", run_id),
        ("runs", "watch", run_id),
        ("dags", "trigger", "sums", "--run-id", run_id),
    ):
        assert link.search(on_a_terminal(daemon, *words, with_hints=True)), words
        plain = daemon.run(*words)
        assert "on the page" not in plain.out + plain.err, words
    as_json = on_a_terminal(daemon, "runs", "show", run_id, "--json", with_hints=True)
    assert "on the page" not in as_json


def test_the_audit_is_filtered(daemon):
    daemon.run("pools", "set", "audited", "3")
    daemon.run("pools", "delete", "audited")
    found = daemon.run("audit", "list", "--action", "pool", "--target", "audited", "--json").json
    none = daemon.run("audit", "list", "--actor", "no such one").err

    assert [(one["action"], one["actor"]) for one in found] == [
        ("pool.delete", "home"),
        ("pool.set", "home"),
    ]
    assert "no matching entries" in none
