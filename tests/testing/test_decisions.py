"""Decisions in the simulator, from the question of a task to the restored answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import pytest

from aioflow import (
    Context,
    Operator,
    PersonTrigger,
    WebhookNotifier,
    any_of,
    ask_person,
    dag,
    task,
    wait,
)
from aioflow.errors import BadAnswer, DagError, NotAssigned
from aioflow.testing import Sim


class Currency(Enum):
    EURO = "EUR"
    FRANC = "CHF"


@dataclass
class Release:
    amount: Decimal
    on: date
    currency: Currency = Currency.EURO
    how: Literal["bank", "card"] = "bank"
    count: Annotated[int, msgspec.Meta(ge=1, le=9)] = 1
    note: str | None = None


@task
async def approve() -> str:
    is_fine = await ask_person("Release the payment?", timeout="1d", default=False)
    return "released" if is_fine else "kept back"


@dag
def approval() -> None:
    approve()


@task
async def fill_in() -> str:
    form = await ask_person("Which payment?", form=Release, assignees="finance")
    assert isinstance(form, Release)
    return f"{form.amount + 1} {form.on.year} {form.currency.name} {form.how} {form.count}"


@dag
def form() -> None:
    fill_in()


@task
async def four_eyes() -> bool:
    return await ask_person("Wipe the archive?", approvals=2, not_by="starter", timeout="1h")


@dag
def careful() -> None:
    four_eyes()


class Gate(Operator):
    def execute(self, context: Context) -> Any:
        self.defer(trigger=PersonTrigger("Open the gate?", form=Release), method_name="resume")

    def resume(self, context: Context, event: Any) -> str:
        return str(msgspec.convert(event, Release).amount)


@dag
def gated() -> None:
    Gate(task_id="gate")


@task
async def either() -> int:
    index, _ = await wait(any_of(PersonTrigger("Left?"), PersonTrigger("Right?")))
    return index


@dag
def two() -> None:
    either()


@task(on_ask=WebhookNotifier("https://chat.example/hook"))
async def ask_in_chat() -> bool:
    return await ask_person("Deploy?", details="Version 4.2", assignees=["ops"])


@dag
def chatting() -> None:
    ask_in_chat()


@pytest.fixture
def sim() -> Iterator[Sim]:
    with Sim() as made:
        yield made


async def test_task_continues_with_the_answer(sim: Sim) -> None:
    run = await sim.start(approval)
    wait_ = run["approve"].waiting_on
    assert wait_ is not None
    assert (wait_.kind, wait_.detail) == (
        "decision",
        'an operator: "Release the payment?"',
    )
    await sim.answer(run, True)
    await run.finished()
    assert run["approve"].result == "released"


async def test_default_answers_for_people_who_do_not(sim: Sim) -> None:
    run = await sim.start(approval)
    await run.finished()
    assert run["approve"].result == "kept back"


async def test_recorded_answer_outlives_a_crash(sim: Sim) -> None:
    run = await sim.start(approval)
    await sim.crash()
    await sim.answer(run, True)
    await sim.crash()
    await run.finished()
    assert run["approve"].result == "released"


async def test_form_is_restored_by_its_annotations(sim: Sim) -> None:
    run = await sim.start(form)
    answer = Release(Decimal("10.5"), date(2026, 2, 28), Currency.FRANC, "card", 3)
    await sim.answer(run, answer)
    await run.finished()
    assert run["fill_in"].result == "11.5 2026 FRANC card 3"


@pytest.mark.parametrize(
    ("answer", "fields"),
    [
        (True, {""}),
        ({}, {"amount", "on"}),
        ({"amount": "ten", "on": "2026-02-30"}, {"amount", "on"}),
        (
            {"amount": "1", "on": "2026-02-28", "currency": "USD", "how": "cash"},
            {"currency", "how"},
        ),
        ({"amount": "1", "on": "2026-02-28", "count": 10, "note": 1}, {"count", "note"}),
        ({"amount": 1.5, "on": "2026-02-28", "more": 1}, {"amount", ""}),
    ],
)
async def test_answer_that_does_not_fit_says_which_field(
    sim: Sim, answer: Any, fields: set[str]
) -> None:
    run = await sim.start(form)
    with pytest.raises(BadAnswer) as caught:
        await sim.answer(run, answer)
    assert set(caught.value.fields) == fields
    assert run["fill_in"].state == "deferred"


async def test_user_who_is_not_assigned_cannot_answer(sim: Sim) -> None:
    run = await sim.start(form)
    with pytest.raises(NotAssigned):
        await sim.answer(run, {"amount": "1", "on": "2026-02-28"}, by="mallory")


async def test_two_people_approve_and_time_runs_out_for_one(sim: Sim) -> None:
    run = await sim.start(careful)
    await sim.answer(run, by="bob")
    wait_ = run["four_eyes"].waiting_on
    assert wait_ is not None
    assert "an operator, but not the starter of the run (1 of 2)" in wait_.detail
    await sim.answer(run, by="carl")
    await run.finished()
    assert run["four_eyes"].result is True
    run = await sim.start(careful)
    await sim.answer(run, by="bob")
    await run.finished()
    error = run["four_eyes"].error
    assert error is not None
    assert error.type == "TimeoutError"


async def test_operator_resumes_with_the_form(sim: Sim) -> None:
    run = await sim.start(gated)
    await sim.answer(run, {"amount": "2.50", "on": "2026-02-28"})
    await run.finished()
    assert run["gate"].result == "2.50"


async def test_first_of_several_answers_and_the_other_is_withdrawn(sim: Sim) -> None:
    run = await sim.start(two)
    await sim.answer(run)
    await run.finished()
    assert run["either"].result == 0
    with pytest.raises(LookupError):
        await sim.answer(run)


async def test_clear_asks_again(sim: Sim) -> None:
    run = await sim.start(approval)
    before = sim.look(lambda api: api.decisions.newest(run_id=run.run_id))
    await sim.clear(run)
    after = sim.look(lambda api: api.decisions.newest(run_id=run.run_id))
    assert [one.decision_id for one in before] != [one.decision_id for one in after]
    assert len(after) == 1
    await sim.answer(run)
    await run.finished()
    assert run["approve"].result == "released"


async def test_people_are_notified_with_the_question(sim: Sim) -> None:
    run = await sim.start(chatting)
    (said,) = sim.notifications
    body = msgspec.json.decode(said.body)
    assert body["text"] == f"task ask_in_chat of run {run.run_id} of chatting asks: Deploy?"
    assert body["decision"]["details"] == "Version 4.2"
    assert body["url"] is None, "no page is known here"


@pytest.mark.parametrize(
    "odd",
    [{"schema": "{"}, {"schema": "[1]"}, {"schema": "1"}, {"schema": "{}", "default": object()}],
)
def test_trigger_with_an_invalid_schema_or_default_cannot_be_made(odd: Any) -> None:
    with pytest.raises(DagError):
        PersonTrigger("Which?", **odd)
