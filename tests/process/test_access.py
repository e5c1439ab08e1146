"""Tokens and users on a real daemon: what was acknowledged survives any kill of the daemon."""

from __future__ import annotations

import http.client
import re
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from aioflow.cli.client import Client, connect_home
from aioflow.errors import AioflowError
from benchmarks.daemon import DaemonProcess, eventually
from tests.commands import Done, run
from tests.daemons import SharedDaemon

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]


def url_of(daemon: DaemonProcess) -> str:
    """Return the page's URL with the token, once the last start of the daemon has printed it."""

    def banner() -> str | None:
        text = daemon.log.read_text(errors="replace")
        return text if f"kill {daemon.process.pid}\n" in text else None

    lines = eventually(banner).split()
    page = [word for word in lines if word.startswith("http://")][-1]
    return f"{page}?token={(daemon.home / 'token').read_text().strip()}"


def status_of(daemon: DaemonProcess, token: str, path: str = "/api/v1/me") -> int:
    place = urlsplit(url_of(daemon))
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
    connection.request("GET", path, headers={"authorization": f"Bearer {token}"})
    status = connection.getresponse().status
    connection.close()
    return status


def aioflow(daemon: DaemonProcess, *words: str, given: str = "") -> Done:
    return run(*words, home=daemon.home, given=given)


def test_a_token_that_was_shown_is_valid_after_kill_9_and_a_revoked_one_is_not(killed_daemon):
    daemon = killed_daemon
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

    last = told.pop()  # the last response to this one is unknown
    assert status_of(daemon, last["token"]) in {200, 401}
    for made in told:
        assert status_of(daemon, made["token"]) == (401 if made["state"] == "revoked" else 200)
    checked = aioflow(daemon, "db", "check", "--json")
    assert checked.json == {"ok": True, "problems": []}


def test_the_commands_let_people_in_and_tell_who_did_what(killed_daemon):
    daemon = killed_daemon
    made = aioflow(daemon, "users", "create", "anna", "--role", "operator", given="a long one\n")
    listed = aioflow(daemon, "users", "list", "--json")
    short = aioflow(daemon, "users", "create", "bob", given="short\n")
    changed = aioflow(daemon, "users", "set", "anna", "--disable", "--json")
    token = aioflow(daemon, "tokens", "create", "ci", "--role", "admin", "--days", "2")
    as_json = aioflow(daemon, "tokens", "create", "etl", "--dag", "sales", "--json")
    made_tokens = aioflow(daemon, "tokens", "list", "--json").json
    [number] = [one["token_id"] for one in made_tokens if one["name"] == "ci"]
    before = status_of(daemon, token.out.strip())
    revoked = aioflow(daemon, "tokens", "revoke", str(number))
    after = status_of(daemon, token.out.strip())
    aioflow(daemon, "users", "delete", "anna")
    daemon.kill(whole_tree=True)
    offline = aioflow(daemon, "audit", "list", "--json")
    table = aioflow(daemon, "audit", "list", "--limit", "2")
    tokens = aioflow(daemon, "tokens", "list")

    assert made.status == 0, made.err
    [anna] = [user for user in listed.json if user["name"] == "anna"]
    assert anna["role"] == "operator"
    assert (short.status, "[request.account]" in short.err) == (1, True)
    assert changed.json["disabled"] is True
    assert as_json.json["scopes"] == ["sales"]
    assert (before, revoked.status, after) == (200, 0, 401)
    done = [one["action"] for one in offline.json if one["outcome"] == "done"]
    assert done[:6] == [
        "user.delete",
        "token.revoke",
        "token.create",
        "token.create",
        "user.set",
        "user.create",
    ]
    assert "a long one" not in offline.out
    assert len(table.out.splitlines()) == 3
    assert re.search(r"\bci\b.*revoked", tokens.out)


def test_the_last_refusals_are_in_the_audit_and_a_truncated_end_is_noticed(tmp_path):
    # A separate daemon, because refusals in succession are counted together, even those of several
    # clients.
    daemon = SharedDaemon(tmp_path).lend()
    for _ in range(3):
        assert status_of(daemon, "aio_nothing", "/api/v1/runs") == 401
    assert daemon.stop() == 0
    listed = aioflow(daemon, "audit", "list", "--json").json
    whole = aioflow(daemon, "db", "check", "--json").json
    with closing(sqlite3.connect(daemon.home / "aioflow.db")) as database:
        database.execute("DELETE FROM audit WHERE audit_no = (SELECT max(audit_no) FROM audit)")
        database.commit()
    cut = aioflow(daemon, "db", "check", "--json").json

    assert listed[-1]["code"] == "web.unauthorized"
    assert [one["target"] for one in listed] == ["/api/v1/runs"] * len(listed)
    told = [int(one["after"].split()[0]) if one["after"] else 1 for one in listed]
    assert sum(told) == 3
    assert whole["ok"] is True
    assert any("entries were deleted or forged" in one for one in cut["problems"])


def test_a_user_changes_the_password_by_a_command(shared_daemon):
    daemon = shared_daemon
    aioflow(daemon, "users", "create", "anna", given="a long one\n")
    wrong = aioflow(daemon, "users", "password", "anna", given="not hers\nanother long one\n")
    right = aioflow(daemon, "users", "password", "anna", given="a long one\nanother long one\n")
    again = aioflow(daemon, "users", "password", "anna", given="a long one\na third long one\n")

    assert (wrong.status, "[request.password]" in wrong.err) == (1, True)
    assert (right.status, "anna has a new password" in right.err + right.out) == (0, True)
    assert again.status == 1


def test_a_daemon_leaves_no_core(shared_daemon):
    limits = Path(f"/proc/{shared_daemon.process.pid}/limits").read_text()

    (core,) = [line.split() for line in limits.splitlines() if line.startswith("Max core")]
    assert core[4] == "0"


@pytest.mark.parametrize(
    "what",
    [
        "dags",
        "release/linked.py",
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in ("home", "home/code", "home/aioflow.toml", "dags/a.py", "release")
        ),
    ],
)
def test_a_daemon_does_not_start_where_every_user_could_put_code(tmp_path, what):
    for folder in ("dags", "home/code", "release"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "home" / "aioflow.toml").write_text("[slots]\ncpu = 1\n")
    (tmp_path / "dags" / "a.py").write_text("")
    (tmp_path / "release" / "linked.py").write_text("")
    (tmp_path / "dags" / "b.py").symlink_to("../release/linked.py")
    (tmp_path / what).chmod(0o777)
    one = DaemonProcess(tmp_path / "home", tmp_path / "dags")

    with pytest.raises(AssertionError, match="ended with 2"):
        one.start()

    told = one.log.read_text(errors="replace")
    assert f"every user of this machine can write {tmp_path / what}, " in told
    assert f"run: chmod o-w {tmp_path / what};" in told
    assert "[settings]" in told
    assert not (tmp_path / "home" / "aioflow.db").exists()


PRINTS = """
from aioflow import dag, task


@task
def items() -> list[str]:
    return ["a"]


@task
def print_and_enlarge(item: str) -> str:
    print(item)
    return item * 100_000


@dag
def prints() -> None:
    print_and_enlarge.expand(item=items())
"""
FOLDERS = ("code", "logs", "results", "run")


def mode_of(path: Path) -> int:
    try:
        return path.stat().st_mode
    except FileNotFoundError:  # the record of a child that has just ended
        return 0


def test_secrets_are_private_for_any_umask_and_any_owner_of_the_folder(
    shared_daemon,
):
    home = shared_daemon.home  # made by others, with a mode that lets everybody in
    status = Path(f"/proc/{shared_daemon.process.pid}/status").read_text()
    secret = ("key", "token", "aioflow.db", "aioflow.db-wal", "run", "logs", "results")
    modes = {name: (home / name).stat().st_mode & 0o077 for name in secret}
    shared_daemon.add("prints.py", PRINTS)
    shared_daemon.wait(shared_daemon.trigger("prints"))
    found = [path for name in FOLDERS for path in (home / name).rglob("*")]

    assert "Umask:\t0000" in status
    assert modes == dict.fromkeys(secret, 0)
    assert {path.relative_to(home).parts[0] for path in found} == set(FOLDERS)
    assert [path for path in found if mode_of(path) & 0o077] == []
