"""Notes on runs and tasks can be written, replaced and removed, each with an audit entry."""

from __future__ import annotations

import pytest

from aioflow.errors import RequestError, UnknownRun
from aioflow.model.access import Actor, Role
from aioflow.model.dag import DagSpec, TaskSpec
from aioflow.model.notes import NOTE_BYTES, note_misfit
from aioflow.protocol.inputs import RequestReceived
from aioflow.protocol.requests import CancelRun, DeleteRun, SetNote
from tests.core.world import World

ANNA = Actor(name="anna", role=Role.OPERATOR, address="::1")
BOB = Actor(name="bob", role=Role.OPERATOR, address="::1")


@pytest.fixture
def world():
    world = World()
    world.load(DagSpec(dag_id="dag", file="dag.py", tasks=(TaskSpec(task_id="a"),)))
    world.trigger(run_id="r")
    return world


def turn(world, *received):
    """Decide and apply one turn; return its batch."""
    world.turn(*received)
    return world.batches[-1]


def test_a_note_is_written_replaced_and_removed(world):
    world.ask(SetNote(run_id="r", text="late"))
    ((key, _),) = world.rows.notes.items()
    world.ask(SetNote(run_id="r", text="bank called"))
    assert [row.text for row in world.rows.notes.values()] == ["bank called"]
    assert key[1:] == (-1, -1)

    world.ask(SetNote(run_id="r", text=None))
    world.ask(SetNote(run_id="r", text=None))
    assert world.rows.notes == {}


def test_run_and_tasks_have_a_note_each(world):
    world.ask(SetNote(run_id="r", text="run"))
    world.ask(SetNote(run_id="r", text="task", task="a", task_index=0))
    world.ask(SetNote(run_id="r", text="child", task="a[3]", task_index=0, map_index=3))

    found = {key[1:]: row.text for key, row in world.rows.notes.items()}
    assert found == {(-1, -1): "run", (0, -1): "task", (0, 3): "child"}


def test_an_ended_run_gets_notes_and_a_deleted_one_does_not(world):
    world.ask(CancelRun(run_id="r"))
    world.ask(SetNote(run_id="r", text="ended"))
    assert [row.text for row in world.rows.notes.values()] == ["ended"]

    world.ask(DeleteRun(run_id="r"))
    for missing in ("r", "none"):
        with pytest.raises(UnknownRun):
            world.ask(SetNote(run_id=missing, text="gone"))


def test_the_last_note_of_a_turn_counts_and_each_is_audited(world):
    batch = turn(
        world,
        RequestReceived(1, SetNote(run_id="r", text="one\ntwo"), ANNA),
        RequestReceived(2, SetNote(run_id="r", text="three"), BOB),
        RequestReceived(3, SetNote(run_id="r", text="four", task="a", task_index=0), BOB),
    )

    assert [(row.text, row.author) for row in batch.notes] == [("three", "bob"), ("four", "bob")]
    said = [row.noted for row in batch.audit]
    assert [(one.actor, one.action, one.target, one.before, one.after) for one in said] == [
        ("anna", "note.set", "r", None, "one two"),
        ("bob", "note.set", "r", "one two", "three"),
        ("bob", "note.set", "r a", None, "four"),
    ]


def test_a_removal_is_audited_with_the_text_that_was_there(world):
    world.ask(SetNote(run_id="r", text="late"))
    batch = turn(world, RequestReceived(1, SetNote(run_id="r", text=None), BOB))

    (entry,) = (row.noted for row in batch.audit)
    assert (entry.actor, entry.action, entry.before) == ("bob", "note.delete", "late")
    assert entry.after is None


def test_the_same_text_again_keeps_its_author(world):
    world.ask(SetNote(run_id="r", text="late"))
    (before,) = world.rows.notes.values()
    world.pass_time(60)
    world.ask(SetNote(run_id="r", text="late"))

    assert list(world.rows.notes.values()) == [before]


def test_texts_that_cannot_be_notes_are_refused(world):
    wrong = {
        "": "empty",
        " \n": "empty",
        "a" * (NOTE_BYTES + 1): "at most 2,048 bytes",
        "ä" * 1025: "at most 2,048 bytes",
        "\0": "control characters",
        "\x1b[31mred": "control characters",
        "\u202egpj": "control characters",
        "\ud800": "UTF-8",
    }
    for text, reason in wrong.items():
        with pytest.raises(RequestError, match=reason):
            world.ask(SetNote(run_id="r", text=text))
    assert world.rows.notes == {}
    for text in ("a" * NOTE_BYTES, "two\n\tlines", "☎ späť"):
        assert note_misfit(text) is None, text
