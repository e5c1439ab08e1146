"""Changing the key of a home: online, complete, and safe against interruptions."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aioflow.crypto import new_key, read_keys, write_keys
from aioflow.errors import NotAssigned, RequestError, SettingsError
from aioflow.model.dag import DagSpec, TaskSpec, ValueKind
from aioflow.model.decisions import PERSON
from aioflow.model.triggers import DagTriggerSpec
from aioflow.protocol.inputs import FileParsed, HostUp
from aioflow.protocol.reports import Deferred
from aioflow.protocol.requests import CreateRun, Reencrypt
from tests.journal_replay import compare_with_replay
from tests.turns import until
from tests.web.node import Node, node

SECRET = ValueKind.SECRET


async def defer(n: Node, count: int) -> None:
    """Let tasks defer, each to a trigger whose fields are encrypted."""
    tasks = tuple(TaskSpec(task_id=f"t{number}") for number in range(count))
    spec = DagSpec(dag_id="dag", file="dag.py", tasks=tasks)
    n.engine.report([FileParsed(file="dag.py", version="v1", dags=(spec,), sources={})])
    n.engine.report([HostUp("triggers")])
    await n.engine.ask(CreateRun(dag_id="dag"))
    for _ in range(count):
        start = (await n.effects.next_start()).start
        n.engine.report([_deferred(start, n.engine.timers._clock.read().now)])

    async def deferred() -> bool:
        return len(await n.store.list_triggers()) == count

    await until(n.engine, deferred)


def _deferred(start: Any, at: int) -> Deferred:
    kwargs = b"\x81\xa1a\xa6canary"
    given = b"\x81\xa1b\xa5given"
    return Deferred(start.task_no, start.start_no, at, at, "m:T", kwargs, "on_event", given)


async def ask_people(n: Node, count: int) -> None:
    """Let tasks ask for decisions, each for an approval."""
    tasks = tuple(TaskSpec(task_id=f"t{number}") for number in range(count))
    spec = DagSpec(dag_id="asks", file="asks.py", tasks=tasks)
    n.engine.report([FileParsed(file="asks.py", version="v1", dags=(spec,), sources={})])
    await n.engine.ask(CreateRun(dag_id="asks"))
    for _ in range(count):
        start = (await n.effects.next_start()).start
        at = n.engine.timers._clock.read().now
        kwargs = msgspec.msgpack.encode({"question": "canary?"})
        n.engine.report(
            [Deferred(start.task_no, start.start_no, at, at, PERSON, kwargs, "go", None)]
        )

    async def asked() -> bool:
        return await n.store.count_open_decisions() == count

    await until(n.engine, asked)


def stored_decisions(home: Path) -> list[bytes]:
    with sqlite3.connect(home / "aioflow.db") as raw:
        found = raw.execute("SELECT question, answer FROM decision").fetchall()
    return [cell for row in found for cell in row if cell is not None]


def encrypted(home: Path) -> list[bytes]:
    with sqlite3.connect(home / "aioflow.db") as raw:
        values = raw.execute("SELECT encrypted FROM named_value ORDER BY name").fetchall()
        triggers = raw.execute("SELECT kwargs, next_kwargs FROM task_trigger").fetchall()
    return [cell for row in (*values, *triggers) for cell in row if cell is not None]


def keys_of(home: Path) -> list[bytes]:
    return read_keys(home / "key")


async def opened(n: Node) -> list[bytes | None]:
    values = [row.value for row in await n.store.list_values(SECRET)]
    waits = await n.store.list_triggers()
    return values + [cell for row in waits for cell in (row.kwargs, row.next_kwargs)]


async def test_all_that_was_encrypted_is_encrypted_again_and_the_old_key_is_gone(tmp_path):
    async with node(tmp_path) as n:
        await n.api.values.set(SECRET, "TOKEN", "hidden-text")
        await defer(n, 3)
        before, old, was = encrypted(tmp_path), keys_of(tmp_path), await opened(n)

        view = await n.api.rotate()

        assert (view.reencrypted, view.unopened, view.resumed) == (4, 0, False)
        assert await opened(n) == was
        assert None not in was
        assert len(keys_of(tmp_path)) == 1
        assert keys_of(tmp_path) != old
        assert not {text[1:9] for text in before} & {text[1:9] for text in encrypted(tmp_path)}
        assert await compare_with_replay(n.store) == []
    async with node(tmp_path) as n:
        assert await opened(n) == was


async def test_rotation_is_refused_while_a_standby_has_the_key_in_a_file_of_its_own(tmp_path):
    async with node(tmp_path) as n:
        was = keys_of(tmp_path)
        with sqlite3.connect(tmp_path / "aioflow.db") as raw:
            columns = "node_no, epoch, commit_no, state, name"
            raw.execute(f"INSERT INTO node ({columns}) VALUES (2, 99, 0, 0, 'b')")

        with pytest.raises(RequestError, match="b could not decrypt anything"):
            await n.api.rotate()

    assert keys_of(tmp_path) == was


async def test_more_triggers_than_fit_into_a_turn_are_all_encrypted_again(tmp_path, monkeypatch):
    monkeypatch.setattr("aioflow.core.requests.KEY_ROTATION_PAGE", 2)
    monkeypatch.setattr("aioflow.engine.prefetch.KEY_ROTATION_PAGE", 2)
    async with node(tmp_path) as n:
        await defer(n, 5)
        before = encrypted(tmp_path)

        view = await n.api.rotate()

        assert view.reencrypted == 5
        assert not {text[1:9] for text in before} & {text[1:9] for text in encrypted(tmp_path)}


@pytest.mark.parametrize("pages", [0, 1, 2, 3])
async def test_cut_short_anywhere_everything_opens_and_the_next_call_ends_it(tmp_path, pages):
    async with node(tmp_path) as n:
        await n.api.values.set(SECRET, "TOKEN", "hidden-text")
        await defer(n, 2)
        was, engine = await opened(n), n.engine
        asked = 0
        real = engine.ask

        async def dies(request: Any, by: Any = None, *, fails_at_end: bool = False) -> Any:
            nonlocal asked
            if isinstance(request, Reencrypt):
                if asked == pages:
                    raise RequestError("the daemon dies here")
                asked += 1
            return await real(request)

        engine.ask = dies  # type: ignore[method-assign]
        if pages < 3:
            with pytest.raises(RequestError):
                await n.api.rotate()
            assert len(keys_of(tmp_path)) == 2
        else:
            await n.api.rotate()
    async with node(tmp_path) as n:
        assert await opened(n) == was
        view = await n.api.rotate()
        assert (view.resumed, view.unopened) == (pages < 3, 0)
        assert await opened(n) == was
        assert len(keys_of(tmp_path)) == 1


async def test_a_value_that_is_set_meanwhile_is_the_one_that_stays(tmp_path):
    async with node(tmp_path) as n:
        await n.api.values.set(SECRET, "TOKEN", "old-text")
        await n.api.rotate()
        await n.api.values.set(SECRET, "TOKEN", "new-text")
        await n.api.rotate()

        assert [row.value for row in await n.store.list_values(SECRET)] == [b"\xa8new-text"]


async def test_undecryptable_values_stay_unchanged_and_are_counted(tmp_path):
    async with node(tmp_path) as n:
        await n.api.values.set(SECRET, "TOKEN", "hidden-text")
    lost = encrypted(tmp_path)
    write_keys(tmp_path / "key", [new_key()])
    async with node(tmp_path) as n:
        view = await n.api.rotate()

        assert (view.reencrypted, view.unopened) == (0, 1)
        assert encrypted(tmp_path) == lost


async def test_a_key_file_that_was_exchanged_is_not_touched(tmp_path):
    async with node(tmp_path) as n:
        await n.api.values.set(SECRET, "TOKEN", "hidden-text")
        other = [b"x" * 32]
        write_keys(tmp_path / "key", other)

        with pytest.raises(RequestError, match="lacks a key"):
            await n.api.rotate()
        assert keys_of(tmp_path) == other
        assert None not in await opened(n)


def test_a_folder_that_is_not_there_is_said_and_nothing_is_left(tmp_path):
    with pytest.raises(SettingsError, match="cannot be written"):
        write_keys(tmp_path / "none" / "key", [b"x" * 32])
    assert list(tmp_path.iterdir()) == []


def test_written_keys_are_for_their_owner_alone(tmp_path):
    path = tmp_path / "key"
    write_keys(path, [b"x" * 32, b"y" * 32])

    assert read_keys(path) == [b"x" * 32, b"y" * 32]
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


async def test_the_trigger_of_a_dag_is_encrypted_again_and_continues(tmp_path):
    async with node(tmp_path) as n:
        trigger = DagTriggerSpec(class_path="m:T", kwargs=b"\x81\xa1a\xa6canary")
        spec = DagSpec(dag_id="dag", file="dag.py", tasks=(TaskSpec(task_id="t"),), trigger=trigger)
        n.engine.report([FileParsed(file="dag.py", version="v1", dags=(spec,), sources={})])
        await until(n.engine, n.store.list_dag_triggers)
        (before,) = await n.store.list_dag_triggers()

        view = await n.api.rotate()

        assert (view.reencrypted, view.unopened) == (1, 0)
        assert await n.store.list_dag_triggers() == [before]
        assert await compare_with_replay(n.store) == []


async def test_decisions_are_encrypted_again_page_by_page(tmp_path, monkeypatch):
    monkeypatch.setattr("aioflow.core.requests.KEY_ROTATION_PAGE", 2)
    monkeypatch.setattr("aioflow.engine.prefetch.KEY_ROTATION_PAGE", 2)
    async with node(tmp_path) as n:
        await ask_people(n, 3)
        first = (await n.store.list_decisions())[-1].decision_no
        await n.api.decisions.answer(first, True)
        was, before = await n.store.list_decisions(), stored_decisions(tmp_path)

        view = await n.api.rotate()

        assert (view.reencrypted, view.unopened) == (6, 0)  # each has a trigger
        assert await n.store.list_decisions() == was
        assert was[-1].answer == b"\xc3"
        assert len(before) == 4
        assert not {cell[1:9] for cell in before} & {
            cell[1:9] for cell in stored_decisions(tmp_path)
        }
        assert await compare_with_replay(n.store) == []


async def test_question_of_a_lost_key_is_shown_as_unreadable_and_no_one_answers_it(tmp_path):
    async with node(tmp_path) as n:
        await ask_people(n, 1)
    write_keys(tmp_path / "key", [new_key()])
    async with node(tmp_path) as n:
        (shown,) = (await n.api.decisions.page()).items
        with pytest.raises(NotAssigned, match="unreadable"):
            await n.api.decisions.answer(shown.decision_id, True)
        view = await n.api.rotate()

        assert shown.question == "unreadable: no key of this home decrypts it"
        assert not shown.may_answer
        assert (view.reencrypted, view.unopened) == (0, 2)
