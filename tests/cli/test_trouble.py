"""Errors of commands: wrong arguments, broken output, no daemon. Each is one line, no traceback."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.daemon import eventually
from tests.cli.served import DAGS
from tests.commands import run, run_process

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

AIOFLOW = f"{sys.executable} -m aioflow"

# ── words ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "words",
    [
        ("dags", "trigger", "d", "--conf", '{"n": NaN}'),
        ("dags", "backfill", "d", "--from", "junk", "--to", "2026-01-01"),
        ("runs", "show", "r", "--offset", "-1"),
        ("runs", "why", "r", "t", "--map", "-2"),
        ("runs", "why", "r", "--map", "1"),
        ("runs", "clear", "r", "--map", "1"),
        ("runs", "mark", "r", "--map", "1", "--state", "success"),
        ("triggers", "show", "-1"),
        ("demo", "--after", "-1"),
        ("demo", "--after", "nan"),
        ("bench", "density", "--seconds", "0"),
        ("top", "--every", "0"),
        ("runs", "show", "\udcff"),
        ("db", "copy", "--to", "nonsense"),
        ("up", "--db", "postgresql://h:port/name"),
        ("runs", "list", "--url", "http://[::1"),
        ("runs", "list", "--url", "http://a b/"),
        ("runs", "list", "--url", "ftp://a"),
    ],
    ids=ascii,
)
def test_impossible_arguments_are_wrong_usage(tmp_path, words):
    done = run(*words, home=tmp_path / "home")

    assert (done.status, done.out) == (2, "")
    assert re.fullmatch(r"aioflow.*: .+ \[(usage|settings)\]\n", done.err)


@pytest.mark.nightly
def test_the_database_commands_take_its_url(tmp_path):
    url, copied = (f"sqlite:///{tmp_path / name}.db" for name in ("first", "second"))
    home = tmp_path / "home"

    nothing = run("db", "check", "--db", url, home=home)
    assert nothing.status == 1
    assert f"there is no database {url}; start it with" in nothing.err
    done = run_process("up", "--db", url, "--port", "0", "--until-idle", home=home)
    assert done.status == 0
    assert f"there is no database sqlite:///{home}/aioflow.db" in run("db", "check", home=home).err
    assert run("db", "check", "--db", url, home=home).status == 0
    assert f"of {url} were copied" in run("db", "copy", "--db", url, "--to", copied, home=home).err
    assert '"table": "node"' in run("db", "export", "--db", copied, home=home).out


@pytest.mark.parametrize("token", ["two\nlines", "snowman ☃", "no-such-token", ""], ids=ascii)
def test_a_token_that_opens_nothing_is_one_line_that_names_its_variable(daemon, token):
    url = daemon.facts["url"].partition("/?")[0]

    done = run("dags", "list", "--url", url, AIOFLOW_TOKEN=token)

    assert done.status in {1, 2}
    assert re.fullmatch(r"aioflow: .*AIOFLOW_TOKEN.* \[(web\.unauthorized|settings)\]\n", done.err)


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (("runs", "show", "a/b"), "/api/v1/runs/a/b"),
        (("dags", "show", ""), "/api/v1/dags/"),
        (("pools", "set", "a/b", "1"), "/api/v1/pools/a/b"),
    ],
    ids=["slash", "empty", "put"],
)
def test_an_invalid_name_is_reported_with_the_path_it_makes(daemon, words, path):
    done = daemon.run(*words)

    assert done.status == 1
    assert done.err == (
        f"aioflow: the daemon has no resource at {path!r}; a name is not empty, and has no / in it"
        " [web.no_such_path]\n"
    )


@pytest.mark.parametrize("run_id", [".", ".."])
def test_no_run_is_named_as_browsers_name_folders(daemon, run_id):
    done = daemon.run("dags", "trigger", "sums", "--run-id", run_id)

    assert (done.status, "cannot be used" in done.err) == (1, True)
    assert daemon.run("dags", "trigger", "sums", "--run-id", f".{run_id}x", "--wait").status == 0


def test_a_folder_and_a_missing_file_are_distinguished(tmp_path):
    folder = run("dags", "check", tmp_path)
    nothing = run("dags", "test", tmp_path / "nothing.py")

    assert (folder.status, "no DAG file can be found in it" in folder.out) == (1, True)
    assert nothing.err == (
        f"aioflow: {tmp_path}/nothing.py cannot be tested: there is no such file [dag]\n"
    )


# ── messages ────────────────────────────────────────────────────────────────────────────


def test_a_run_that_was_waited_for_has_ended_and_others_have_started(daemon):
    waited = daemon.run("dags", "trigger", "halves", "--run-id", "half", "--wait")
    again = daemon.run("dags", "trigger", "halves", "--run-id", "half")

    assert (waited.status, waited.out) == (3, "half has ended: partial\n")
    assert (again.status, again.out) == (0, "half exists already: partial\n")


def test_an_empty_log_is_explained_on_standard_error(daemon):
    run_id = daemon.run("dags", "trigger", "sums", "--wait", "--json").json["run_id"]

    mapped = daemon.run("runs", "logs", run_id, "square")
    whole = daemon.run("runs", "logs", run_id)
    child = daemon.run("runs", "logs", run_id, "square", "--map", "1", "--try", "9")

    assert (mapped.status, mapped.out, "--map N" in mapped.err) == (0, "", True)
    lines = [line.split("  ")[1:] for line in whole.out.splitlines()]
    assert lines[0] == ["numbers", "counting to 3"]
    assert sorted(lines[1:]) == [[f"square[{n}]", f"square of {n}"] for n in range(3)]
    assert child.err == "try 9 of it has printed nothing, or has not begun\n"


def test_a_result_that_is_cut_says_so(daemon):
    conf = '{"n": 100}'
    run_id = daemon.run("dags", "trigger", "sums", "--conf", conf, "--wait", "--json").json[
        "run_id"
    ]

    shown = daemon.run("runs", "show", run_id).out

    assert re.search(r"^numbers .* = \[0, 1, .*\.\.\.$", shown, re.MULTILINE)


def test_a_list_that_was_narrowed_does_not_say_that_there_is_nothing(daemon):
    daemon.run("dags", "trigger", "sums", "--wait")

    assert daemon.run("runs", "list", "--dag", "no").err == "no matching runs: aioflow runs list\n"
    assert "of that name" in daemon.run("events", "list", "--name", "no").err


def test_a_hosted_sensor_says_how_often_it_looks_and_for_how_long(daemon):
    daemon.run("dags", "trigger", "waits", "--run-id", "looking")

    def told() -> str:
        return daemon.run("runs", "why", "looking").out

    wanted = r"arrived is waiting for a condition.* \(since .*; until .*; a check every 0.2 s; "
    wanted += r"checked 0.. s ago: not met, next in 0.. s\)"
    said = eventually(lambda: found if re.search(wanted, found := told()) else None)
    daemon.run("runs", "cancel", "looking")

    assert "sensing" in said


def test_why_follows_failures_and_show_narrows_down_to_what_failed(daemon):
    daemon.run("dags", "trigger", "breaks", "--run-id", "broken", "--wait")

    why = daemon.run("runs", "why", "broken")
    assert why.out.startswith("failed: bad failed: ValueError: no money ")
    (cause,) = daemon.run("runs", "why", "broken", "--json").json["causes"]
    assert (cause["task_id"], cause["error"]["type"]) == ("bad", "ValueError")

    daemon.run("dags", "trigger", "halves", "--run-id", "half", "--wait")
    shown = daemon.run("runs", "show", "half", "--state", "failed", "--json").json
    assert [task["task_id"] for task in shown["tasks"]] == ["bad"]
    assert sum(shown["counts"].values()) == 2
    both = daemon.run("runs", "show", "half", "--task", "after", "--state", "failed")
    assert "no tasks here" in both.err
    wrong = daemon.run("runs", "show", "half", "--state", "broken")
    assert "there is no task state 'broken'" in wrong.err


def test_a_log_without_a_word_of_it_says_which_child_only_of_a_mapped_task(daemon):
    daemon.run("dags", "trigger", "sums", "--run-id", "silent", "--wait")

    assert "--map" in daemon.run("runs", "logs", "silent", "square").err
    alone = daemon.run("runs", "logs", "silent", "numbers", "--try", "2")
    assert alone.err == "try 2 of it has printed nothing, or has not begun\n"
    assert daemon.run("runs", "logs", "silent", "total").err == "nothing was printed\n"


@pytest.mark.nightly
def test_a_folder_of_dags_that_is_not_there_is_said_in_the_banner(tmp_path):
    words = ("--dags", tmp_path / "nowhere", "--port", "0", "--until-idle")
    done = run_process("up", *words, home=tmp_path / "home")

    assert done.status == 0
    assert f"  DAGs   {tmp_path}/nowhere (there is none yet)\n" in done.out
    assert re.search(r"http://127\.0\.0\.1:\d+/\n", done.out)


# ── output ──────────────────────────────────────────────────────────────────────────────


def in_a_shell(home: Path, command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command.replace("aioflow", AIOFLOW)],
        env=os.environ | {"AIOFLOW_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("command", ["runs list --json", "db export", "top --every 0.1", "--help"])
def test_a_reader_that_closes_the_pipe_is_no_error_of_the_command(daemon, command):
    daemon.run("dags", "trigger", "sums", "--wait")

    done = in_a_shell(daemon.home, f"aioflow {command} | head -c 1; exit ${{PIPESTATUS[0]}}")

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", ["dags list", "dags list --json", "db export"])
def test_output_that_finds_no_room_is_one_line(daemon, command):
    done = in_a_shell(daemon.home, f"aioflow {command} >/dev/full")

    assert done.returncode == 1
    assert done.stderr == (
        "aioflow: the output cannot be written: No space left on device [output]\n"
    )


def test_a_command_whose_output_is_closed_does_its_work(daemon):
    done = in_a_shell(daemon.home, "aioflow dags list --json >&-")

    assert (done.returncode, done.stderr) == (0, "")


# ── interrupted ─────────────────────────────────────────────────────────────────────────


def interrupted(home: Path, *words: str, after: str | None) -> tuple[int | None, str]:
    """Send Ctrl-C once a command has printed a text. Return its status and its standard error."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AIOFLOW_")}
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "aioflow", *words],
        env=clean | {"AIOFLOW_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    said = b""
    with process, contextlib.ExitStack() as ending:
        ending.callback(process.kill)
        assert process.stdout is not None
        while after is not None and after.encode() not in said:
            piece = os.read(process.stdout.fileno(), 65_536)
            assert piece, said
            said += piece
        process.send_signal(signal.SIGINT)
        said += process.stdout.read()
        process.wait(60)
    return process.returncode, said.decode()


@pytest.mark.parametrize(
    ("words", "after"),
    [
        (("runs", "watch", "long"), "running"),
        (("runs", "watch", "long", "--json"), "running"),
        (("top", "--every", "0.1"), "runs"),
        (("dags", "trigger", "waits", "--wait"), "waiting for run"),
        (("runs", "logs", "talking", "talk", "--follow"), "I wait"),
    ],
    ids=["watch", "watch-json", "top", "wait", "log"],
)
def test_ctrl_c_ends_what_follows_without_a_word(daemon, words, after):
    daemon.run("dags", "trigger", "waits", "--run-id", "long")
    daemon.run("dags", "trigger", "talks", "--run-id", "talking")

    status, said = interrupted(daemon.home, *words, after=after)

    assert status == 130
    assert "Traceback" not in said
    assert "aioflow:" not in said


def test_ctrl_c_before_there_is_anything_to_end_is_no_traceback(tmp_path):
    program = (
        "import runpy, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'aioflow.cli.runs':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder())\n"
        "sys.argv[1:] = ['runs', 'list']\n"
        "runpy.run_module('aioflow', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_ctrl_c_in_a_trial_ends_it_with_its_daemon(tmp_path):
    (tmp_path / "flows.py").write_text(DAGS)

    status, said = interrupted(
        *(tmp_path, "dags", "test", str(tmp_path / "flows.py"), "--dag", "waits"), after="running"
    )

    assert status == 130
    assert "Traceback" not in said
    assert "aioflow:" not in said
