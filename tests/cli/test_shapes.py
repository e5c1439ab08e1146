"""The JSON output of each command has exactly the fields that the reference lists."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.daemon import eventually
from tests.cli.served import Daemon
from tests.commands import Done

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
HEAD = re.compile(r"((?:(?:Their |their )?`[a-z -]+ --json`(?:, | and )?)+): ")


def statements() -> Iterator[tuple[str, list[str]]]:
    """Yield each command whose fields the page lists, with these fields."""
    for line in PAGE.read_text().splitlines():
        heads = list(HEAD.finditer(line))
        ends = [head.start() for head in heads[1:]] + [len(line)]
        for head, end in zip(heads, ends, strict=False):
            body = line[head.end() : end]
            plain = re.sub(r"\([^()]*\)", "", body)
            first = re.split(r"; |\. (?=[A-Z`])|\.$", plain, maxsplit=1)[0]
            fields = re.findall(r"`([a-z_]+)`", first)
            for command in re.findall(r"`([a-z -]+) --json`", head.group(1)):
                for noun in nouns(line) if "heir" in head.group(1) else [""]:
                    yield f"{noun}{command}", fields


def nouns(line: str) -> list[str]:
    """Return the nouns that ``their`` refers to: those of the ``list`` commands in the line."""
    return [f"{noun} " for noun in re.findall(r"`([a-z]+) list --json`", line)]


TOLD = dict(statements())
TOKEN = TOLD["tokens list"]
ALIKE = {
    "triggers show": TOLD["triggers list"],
    "tokens create": [*TOKEN, "token"],
    "tokens revoke": TOKEN,
}
"""Commands that print the same fields as another command, according to the page."""


def keys_of(done: Done) -> set[str]:
    """Return the fields of the output: one document, a list of documents, or one per line."""
    assert done.status in {0, 3}, done.err
    try:
        found: Any = done.json
    except json.JSONDecodeError:
        found = [json.loads(line) for line in done.out.splitlines()]
    one = found[0] if isinstance(found, list) else found
    return set(one)


def check(daemon: Daemon, said: str, *words: object) -> Any:
    done = daemon.run(*words, "--json")
    assert keys_of(done) == set(ALIKE.get(said) or TOLD[said]), said
    return done


def test_shapes_of_dags_and_their_past(daemon):
    days = ("--from", "2026-01-01", "--to", "2026-01-02")
    check(daemon, "dags list", "dags", "list")
    check(daemon, "dags show", "dags", "show", "sums")
    check(daemon, "dags check", "dags", "check", daemon.dags / "flows.py")
    check(daemon, "dags pause", "dags", "pause", "filled")
    check(daemon, "dags resume", "dags", "resume", "filled")
    check(daemon, "dags backfill --dry-run", "dags", "backfill", "filled", *days, "--dry-run")
    made = check(daemon, "dags backfill", "dags", "backfill", "filled", *days).json
    check(daemon, "backfills list", "backfills", "list")
    check(daemon, "backfills show", "backfills", "show", made["backfill_id"])


def test_shapes_of_runs(daemon):
    made = check(daemon, "dags trigger", "dags", "trigger", "sums", "--wait").json
    run_id = made["run_id"]
    check(daemon, "runs list", "runs", "list")
    check(daemon, "runs why", "runs", "why", run_id)
    check(daemon, "runs logs", "runs", "logs", run_id, "numbers")
    check(daemon, "runs clear", "runs", "clear", run_id, "--task", "total")
    watched = keys_of(daemon.run("runs", "watch", run_id, "--json"))
    shown = keys_of(daemon.run("runs", "show", run_id, "--json"))
    check(daemon, "runs mark", "runs", "mark", run_id, "--state", "failed")
    check(daemon, "runs note", "runs", "note", run_id, "late")
    check(daemon, "runs cancel", "runs", "cancel", run_id)
    check(daemon, "runs delete", "runs", "delete", run_id)

    assert watched == shown - {"tasks"}


def test_a_run_and_its_tasks_have_the_fields_of_the_table(daemon):
    run_id = daemon.run("dags", "trigger", "waits", "--json").json["run_id"]
    shown = daemon.run("runs", "show", run_id, "--json").json
    daemon.run("runs", "cancel", run_id)
    failed = daemon.run("dags", "trigger", "breaks", "--wait", "--json").json["run_id"]
    bad = daemon.run("runs", "show", failed, "--json").json

    def fields(row: str) -> set[str]:
        (line,) = re.findall(rf"^\| {row} \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
        return set(re.findall(r'["`]([a-z_]+)["`]', re.sub(r"\([^()]*\)", "", line)))

    table = PAGE.read_text().partition("`runs show --json`:")[2].partition("\n\n`")[0]
    names = re.findall(r"^\| (`[^|]+`) \|", table, re.MULTILINE)
    whole = {name for names in names for name in re.findall(r"`([a-z_]+)(?:\[\])?`", names)}
    assert set(shown) == whole
    assert set(shown["tasks"][0]) == fields(r"`tasks\[\]`") - {"null"}
    assert set(shown["tasks"][0]["waiting_on"]) == fields(r"`tasks\[\].waiting_on`") - {"null"}
    assert set(bad["tasks"][0]["error"]) == fields(r"`tasks\[\].error`") - {"null"}


def test_shapes_of_triggers_and_events(daemon):
    run_id = daemon.run("dags", "trigger", "approval", "--json").json["run_id"]

    def deferred() -> Any:
        listed = daemon.run("triggers", "list", "--json").json
        return [row["trigger_id"] for row in listed if row["run_id"] == run_id]

    (number,) = eventually(deferred, 60)
    check(daemon, "triggers list", "triggers", "list")
    check(daemon, "triggers show", "triggers", "show", number)
    check(daemon, "triggers fire", "triggers", "fire", number)
    check(daemon, "triggers kinds", "triggers", "kinds")
    check(daemon, "events emit", "events", "emit", "bare")
    check(daemon, "events list", "events", "list")


def test_shapes_of_limits_nodes_and_the_database(daemon):
    check(daemon, "pools set", "pools", "set", "ledger", 4)
    check(daemon, "pools list", "pools", "list")
    check(daemon, "pools delete", "pools", "delete", "ledger")
    check(daemon, "assets list", "assets", "list")
    check(daemon, "executors list", "executors", "list")
    check(daemon, "nodes list", "nodes", "list")
    check(daemon, "nodes drain", "nodes", "drain", 1)
    check(daemon, "nodes undrain", "nodes", "undrain", 1)
    check(daemon, "top", "top", "--count", 1)
    check(daemon, "config show", "config", "show")
    check(daemon, "db check", "db", "check")
    check(daemon, "db clean", "db", "clean", "--dry-run")
    assert set(daemon.facts) == set(TOLD["up"])


def test_shapes_of_values(daemon):
    for noun, value in (
        ("secrets", "hunter22"),
        ("connections", "ftp://a:bcde@h"),
        ("variables", 1),
    ):
        check(daemon, f"{noun} set", noun, "set", "X", value)
        check(daemon, f"{noun} list", noun, "list")
        check(daemon, f"{noun} delete", noun, "delete", "X")
    check(daemon, "secrets rotate", "secrets", "rotate")


def test_shapes_of_connections_and_what_they_tell_people(daemon):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        fields = ("--type", "mysql", "--host", "127.0.0.1", "--port", port, "--extra", "a=b")
        made = daemon.run("connections", "set", "X", *fields, "--login", "ada", given="hunter22\n")
        shown = check(daemon, "connections show", "connections", "show", "X").json
        check(daemon, "connections types", "connections", "types")
        check(daemon, "connections test", "connections", "test", "X")
        kept = daemon.run("connections", "set", "X", *fields, "--keep-password")
        moved = daemon.run("connections", "set", "X", *fields[:4], "--keep-password")
        after = daemon.run("connections", "show", "X")
    failed = daemon.run("connections", "test", "X")
    daemon.run("connections", "delete", "X")

    assert made.status == kept.status == 0, (made.err, kept.err)
    assert (shown["conn_type"], shown["has_password"], shown["extra"]) == (
        "mysql",
        True,
        {"a": "b"},
    )
    assert (moved.status, "same server" in moved.err) == (1, True)
    assert "has_password: true" in after.out
    assert "hunter22" not in after.out
    assert (failed.status, failed.out.startswith("failed: ConnectionRefused")) == (1, True)
    wrong = daemon.run("connections", "set", "X", "--host", "h")
    assert (wrong.status, "--type" in wrong.err) == (2, True)


def test_shapes_of_users_and_tokens(daemon):
    made = check(daemon, "tokens create", "tokens", "create", "ci").json
    check(daemon, "tokens list", "tokens", "list")
    check(daemon, "tokens revoke", "tokens", "revoke", made["token_id"])
    check(daemon, "audit list", "audit", "list")
