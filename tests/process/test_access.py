"""Tokens and users on a real daemon: what was answered is kept, whatever kills the daemon."""

from __future__ import annotations

import http.client
import json
import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from aioflow.cli.client import Client, connect_home
from aioflow.errors import AioflowError
from benchmarks.daemon import DaemonProcess, eventually

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]


def url_of(daemon: DaemonProcess) -> str:
    """Return what its last start has printed last, once it has."""

    def banner() -> str | None:
        text = daemon.log.read_text(errors="replace")
        return text if f"kill {daemon.process.pid}\n" in text else None

    lines = eventually(banner).split()
    return [word for word in lines if word.startswith("http://") and "token=" in word][-1]


def status_of(daemon: DaemonProcess, token: str, path: str = "/api/v1/me") -> int:
    place = urlsplit(url_of(daemon))
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
    connection.request("GET", path, headers={"authorization": f"Bearer {token}"})
    status = connection.getresponse().status
    connection.close()
    return status


def aioflow(daemon: DaemonProcess, *words: str, given: str = "") -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "aioflow", *words, "--home", str(daemon.home)]
    environment = {**os.environ, "NO_COLOR": "1"}
    return subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=60, env=environment
    )


@pytest.fixture
def daemon(tmp_path: Path):
    (tmp_path / "dags").mkdir()
    one = DaemonProcess(tmp_path / "home", tmp_path / "dags").start()
    yield one
    if one.is_alive:
        one.kill(whole_tree=True)


def test_a_token_that_was_told_is_good_after_kill_9_and_a_revoked_one_is_not(daemon):
    told: list[dict] = []

    def make(client: Client) -> None:
        try:
            for number in range(10_000):
                told.append(client.post("tokens", body={"name": f"t{number}"}))
                if number % 3 == 0:
                    told[-1]["state"] = client.delete("tokens", str(told[-1]["token_id"]))["state"]
                if number == 10:
                    enough.set()
        except AioflowError:
            pass  # it was killed

    enough = threading.Event()
    maker = threading.Thread(target=make, args=(connect_home(daemon.home),))
    maker.start()
    assert enough.wait(60)
    daemon.kill(whole_tree=True)
    maker.join(60)
    daemon.start()

    last = told.pop()  # of this one nobody knows what was answered last
    assert status_of(daemon, last["token"]) in {200, 401}
    for made in told:
        assert status_of(daemon, made["token"]) == (401 if made["state"] == "revoked" else 200)
    checked = aioflow(daemon, "db", "check", "--json")
    assert json.loads(checked.stdout) == {"ok": True, "differences": []}


def test_the_commands_let_people_in_and_tell_who_did_what(daemon):
    made = aioflow(daemon, "users", "create", "anna", "--role", "operator", given="a long one\n")
    listed = aioflow(daemon, "users", "list", "--json")
    short = aioflow(daemon, "users", "create", "bob", given="short\n")
    changed = aioflow(daemon, "users", "set", "anna", "--disable", "--json")
    token = aioflow(daemon, "tokens", "create", "ci", "--role", "admin", "--days", "2")
    as_json = aioflow(daemon, "tokens", "create", "etl", "--dag", "sales", "--json")
    number = json.loads(aioflow(daemon, "tokens", "list", "--json").stdout)[0]["token_id"]
    before = status_of(daemon, token.stdout.strip())
    revoked = aioflow(daemon, "tokens", "revoke", str(number))
    after = status_of(daemon, token.stdout.strip())
    aioflow(daemon, "users", "delete", "anna")
    daemon.kill(whole_tree=True)
    offline = aioflow(daemon, "audit", "list", "--json")
    table = aioflow(daemon, "audit", "list", "--limit", "2")
    tokens = aioflow(daemon, "tokens", "list")

    assert made.returncode == 0, made.stderr
    assert json.loads(listed.stdout)[0].items() >= {"name": "anna", "role": "operator"}.items()
    assert (short.returncode, "[request.account]" in short.stderr) == (1, True)
    assert json.loads(changed.stdout)["disabled"] is True
    assert json.loads(as_json.stdout)["scopes"] == ["sales"]
    assert (before, revoked.returncode, after) == (200, 0, 401)
    done = [one["action"] for one in json.loads(offline.stdout) if one["outcome"] == "done"]
    assert done == [
        "user.delete",
        "token.revoke",
        "token.create",
        "token.create",
        "user.set",
        "user.create",
    ]
    assert "a long one" not in offline.stdout
    assert len(table.stdout.splitlines()) == 3
    assert "revoked" in tokens.stdout


def test_what_was_refused_last_is_in_the_audit_and_an_end_that_was_cut_off_shows(daemon):
    for _ in range(3):
        assert status_of(daemon, "aio_nothing", "/api/v1/runs") == 401
    assert daemon.stop() == 0
    listed = json.loads(aioflow(daemon, "audit", "list", "--json").stdout)
    whole = aioflow(daemon, "db", "check", "--json")
    with closing(sqlite3.connect(daemon.home / "aioflow.db")) as database:
        database.execute("DELETE FROM audit WHERE audit_no = (SELECT max(audit_no) FROM audit)")
        database.commit()
    cut = json.loads(aioflow(daemon, "db", "check", "--json").stdout)

    assert listed[-1]["code"] == "web.unauthorized"
    assert [one["target"] for one in listed] == ["/api/v1/runs"] * len(listed)
    told = [int(one["after"].split()[0]) if one["after"] else 1 for one in listed]
    assert sum(told) == 3
    assert json.loads(whole.stdout)["ok"] is True
    assert any("lines are gone" in one for one in cut["differences"])


def test_somebody_chooses_another_password_by_a_command(daemon):
    aioflow(daemon, "users", "create", "anna", given="a long one\n")
    wrong = aioflow(daemon, "users", "password", "anna", given="not hers\nanother long one\n")
    right = aioflow(daemon, "users", "password", "anna", given="a long one\nanother long one\n")
    again = aioflow(daemon, "users", "password", "anna", given="a long one\na third long one\n")

    assert (wrong.returncode, "[request.password]" in wrong.stderr) == (1, True)
    assert (right.returncode, "anna has another password" in right.stderr + right.stdout) == (
        0,
        True,
    )
    assert again.returncode == 1


def test_a_daemon_leaves_no_core(daemon):
    limits = Path(f"/proc/{daemon.process.pid}/limits").read_text()

    (core,) = [line.split() for line in limits.splitlines() if line.startswith("Max core")]
    assert core[4] == "0"


@pytest.mark.parametrize("what", ["dags", "home/aioflow.toml"])
def test_a_daemon_does_not_start_where_anybody_could_put_code(tmp_path, what):
    (tmp_path / "dags").mkdir()
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "aioflow.toml").write_text("[slots]\ncpu = 1\n")
    (tmp_path / what).chmod(0o777)
    one = DaemonProcess(tmp_path / "home", tmp_path / "dags")

    with pytest.raises(AssertionError, match="ended with 2"):
        one.start()

    told = one.log.read_text(errors="replace")
    assert f"anybody here can write {tmp_path / what}" in told
    assert "[settings]" in told
    assert not (tmp_path / "home" / "aioflow.db").exists()


def test_nothing_secret_is_for_others_whatever_the_umask_and_whoever_made_the_folder(tmp_path):
    home = tmp_path / "home"
    (tmp_path / "dags").mkdir()
    home.mkdir()
    home.chmod(0o755)
    before = os.umask(0)
    try:
        with DaemonProcess(home, tmp_path / "dags"):
            secret = ("key", "token", "aioflow.db", "aioflow.db-wal", "run", "logs", "results")
            modes = {name: (home / name).stat().st_mode & 0o077 for name in secret}
    finally:
        os.umask(before)

    assert modes == dict.fromkeys(secret, 0)
