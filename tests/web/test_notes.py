"""Notes on runs and tasks over HTTP: written, shown with the run, and masked."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import pytest

from aioflow.model.access import HOME, Actor, Role
from aioflow.web.app import create_app
from aioflow.web.tokens import Token
from tests.web.node import CHAIN, ask, node

TOKEN = Token("t" * 43)
JSON = {"content-type": "application/json"}
HOME_BEARER = {"authorization": f"Bearer {TOKEN.secret}", **JSON}
BY = Actor(name=HOME, role=Role.ADMIN)
SECRET = "correct-horse-battery"

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])


@asynccontextmanager
async def app(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        await n.api.trigger("chain", run_id="r")
        yield n, create_app(n.api, TOKEN)


async def write(web, path, text, headers=HOME_BEARER):
    body = json.dumps({"text": text}).encode()
    return await ask(web, "PUT", f"/api/v1{path}", body=body, headers=headers)


async def get(web, path):
    return (await ask(web, "GET", f"/api/v1{path}", headers=HOME_BEARER)).json


async def test_notes_are_shown_with_their_run_and_task_until_they_are_removed(tmp_path):
    async with app(tmp_path) as (n, web):
        task = n.api.reads.one_task
        names = [one.task_id for one in (await n.api.show_dag("chain")).tasks]
        of_task = f"/runs/r/tasks/{names[1]}/note"
        made = await write(web, "/runs/r/note", " bank called\r\nat noon \n")
        await write(web, of_task, "file late")
        listed = await get(web, "/runs/r/notes")
        first = await get(web, "/runs/r/notes?limit=1")
        second = await get(web, f"/runs/r/notes?cursor={first['next']}")
        (run,) = (await get(web, "/runs?params=noon"))["items"]
        shown = await task.show("r", names[1], map_index=-1)
        removed = await ask(web, "DELETE", "/api/v1/runs/r/note", headers=HOME_BEARER)
        again = await ask(web, "DELETE", "/api/v1/runs/r/note", headers=HOME_BEARER)
        await ask(web, "DELETE", f"/api/v1{of_task}", headers=HOME_BEARER)
        after = await get(web, "/runs/r/notes")
        audit = [one for one in await n.api.access.list_audit() if "note" in one.action]

    note = made.json
    assert (note["text"], note["author"], note["task_id"]) == ("bank called\nat noon", "home", None)
    assert [one["text"] for one in listed["items"]] == ["bank called\nat noon", "file late"]
    assert (first["items"], second["items"]) == (listed["items"][:1], listed["items"][1:])
    assert run["note"] == note["text"]
    assert shown.note is not None
    assert shown.note.text == "file late"
    assert removed.json == again.json == {"run_id": "r", "task_id": None, "removed": True}
    assert after == {"items": [], "next": None}
    assert [(one.action, one.target) for one in reversed(audit)] == [
        ("note.set", "r"),
        ("note.set", f"r {names[1]}"),
        ("note.delete", "r"),
        ("note.delete", "r"),
        ("note.delete", f"r {names[1]}"),
    ]


async def test_secrets_in_a_note_are_masked_as_in_output(tmp_path):
    async with app(tmp_path) as (n, web):
        n.api.public_fields._masks.hide([SECRET])
        made = await write(web, "/runs/r/note", f"logged in with {SECRET}")
        (stored,) = await n.store.list_notes((await n.api.run("r")).run_no)
        audit = await n.api.access.list_audit()

    assert made.json["text"] == stored.text == "logged in with ***"
    assert SECRET not in repr(audit)


async def test_notes_that_cannot_be_written_are_refused(tmp_path):
    async with app(tmp_path) as (_, web):
        for path, text, status in (
            ("/runs/r/note", "  ", 400),
            ("/runs/r/note", "x" * 2049, 400),
            ("/runs/r/note", "\0", 400),
            ("/runs/r/note", "\ud800", 422),
            ("/runs/none/note", "late", 404),
            ("/runs/r/tasks/none/note", "late", 404),
            ("/runs/r/tasks/a/note?map=7", "late", 404),
        ):
            answer = await write(web, path, text)
            assert answer.status == status, (path, text[:9], answer.json)
        assert (await get(web, "/runs/r/notes"))["items"] == []


async def test_viewers_read_notes_and_operators_write_them(tmp_path):
    async with app(tmp_path) as (n, web):
        tokens = [
            await n.api.access.create_token(BY, role, role) for role in ("viewer", "operator")
        ]
        found = []
        for token in tokens:
            bearer = {"authorization": f"Bearer {token['token']}", **JSON}
            wrote = await write(web, "/runs/r/note", token["name"], bearer)
            read = await ask(web, "GET", "/api/v1/runs/r/notes", headers=bearer)
            found.append((wrote.status, [one["author"] for one in read.items]))

    assert found == [(403, []), (200, ["token:operator"])]


async def test_the_command_that_an_error_advises_is_apart_from_its_text(tmp_path):
    async with app(tmp_path) as (_, web):
        missing = await get(web, "/runs/none")
        wrong = await get(web, "/runs?from=yesterday")

    assert (missing["detail"], missing["advice"]) == (
        "there is no run 'none'",
        "see `aioflow runs list`",
    )
    assert "write it as 2026-01-31 or 2026-01-31T03:00:00Z" in wrong["detail"]
    assert "advice" not in wrong
