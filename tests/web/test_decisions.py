"""Decisions over HTTP: who may answer, what is refused, and what a signed link permits."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import msgspec

from aioflow.api.decisions import LINK_DAYS, decision_text, link_token
from aioflow.api.paging import encode_cursor
from aioflow.author.person import PersonTrigger
from aioflow.clock import SystemClock
from aioflow.crypto import Vault
from aioflow.model.access import Actor, Role
from aioflow.model.decisions import PERSON
from aioflow.web.app import create_app
from aioflow.web.guard import Trusted
from aioflow.web.tokens import Token
from tests.web.node import CHAIN, ask, node

BY = Actor(name="home", role=Role.ADMIN)
JSON = {"content-type": "application/json", "host": "127.0.0.1"}
DAY_US = 24 * 3_600_000_000


class Release(msgspec.Struct):
    amount: int
    account: str = "operations"


class Asked:
    """A node whose run ``r`` asks a question, with its application.

    Attributes:
        number: The number of the decision.
    """

    def __init__(self, n: Any, guard: Any, number: int) -> None:
        self.n = n
        self.guard = guard
        self.number = number

    async def user(self, name: str, role: str, *groups: str) -> dict[str, str]:
        """Create a user. Return the headers with a token that the user has created."""
        await self.n.api.access.create_user(BY, name, "a long password", role, groups)
        actor = Actor(name=name, role=Role.ADMIN)
        wanted = "operator" if role == "viewer" else role
        made = await self.n.api.access.create_token(actor, f"of-{name}", wanted)
        return {"authorization": f"Bearer {made['token']}", **JSON}

    async def post(self, path: str, body: object, headers: dict[str, str] = JSON) -> Any:
        data = msgspec.json.encode(body)
        return await ask(self.guard, "POST", f"/api/v1{path}", body=data, headers=headers)

    async def answer(self, answer: object, headers: dict[str, str]) -> Any:
        return await self.post(f"/decisions/{self.number}/answer", {"answer": answer}, headers)

    async def link(self, assignee: str = "finance", *, past_us: int = 0) -> str:
        (row,) = await self.n.store.find_decisions([self.number])
        vault, now = Vault.open(self.n.home / "key"), SystemClock().now() - past_us
        token = link_token(row, assignee, self.n.engine.memory.accounts, vault, now)
        assert token is not None
        return token

    async def shown(self) -> Any:
        home = Trusted(create_app(self.n.api, Token("t" * 43)))
        return (await ask(home, "GET", f"/api/v1/decisions/{self.number}")).json


@asynccontextmanager
async def asking(tmp_path: Any, **fields: Any) -> Any:
    async with node(tmp_path) as n:
        n.define(CHAIN)
        await n.api.set_paused("chain", paused=False)
        await n.api.trigger("chain", run_id="r")
        _, kwargs = PersonTrigger("Release the payment?", **fields).serialize()
        await n.defer(PERSON, kwargs)
        with anyio.fail_after(10):
            while not (found := await n.store.list_decisions()):
                await anyio.lowlevel.checkpoint()
        yield Asked(n, create_app(n.api, Token("t" * 43)), found[0].decision_no)


async def test_assignee_answers_and_the_next_one_gets_the_answer(tmp_path: Any) -> None:
    async with asking(tmp_path, assignees="finance") as asked:
        anna = await asked.user("anna", "viewer", "finance")
        bert = await asked.user("bert", "viewer", "finance")
        other = await asked.user("carl", "admin")
        refused = await asked.answer(True, other)
        taken = await asked.answer(False, anna)
        late = await asked.answer(True, bert)
        shown = await asked.shown()
    assert (refused.status, refused.json["code"]) == (403, "request.not_assigned")
    assert (taken.status, taken.json["decided"]) == (200, True)
    assert (late.status, late.json["code"]) == (409, "request.decision_ended")
    assert (late.json["state"], late.json["answer"]) == ("answered", False)
    assert (shown["state"], shown["answer"]) == ("answered", False)
    assert [(vote["person"], vote["vote"]) for vote in shown["votes"]] == [("anna", "no")]


async def test_comment_is_one_line_and_shown_with_its_vote(tmp_path: Any) -> None:
    async with asking(tmp_path, assignees="finance", approvals=2) as asked:
        bert = await asked.user("bert", "viewer", "finance")
        carl = await asked.user("carl", "viewer", "finance")
        path = f"/decisions/{asked.number}/answer"
        long = await asked.post(path, {"answer": True, "comment": "x" * 501}, bert)
        said = {"answer": True, "comment": " amount\n checked\x00\u202e"}
        first = await asked.post(path, said, bert)
        await asked.post(path, {"answer": True}, carl)
        shown = await asked.shown()
    assert long.status == 422
    assert [one["field"] for one in long.json["errors"]] == ["comment"]
    assert first.status == 200
    assert [(vote["person"], vote["comment"]) for vote in shown["votes"]] == [
        ("bert", "amount checked"),
        ("carl", ""),
    ]


async def test_form_is_checked_field_by_field(tmp_path: Any) -> None:
    async with asking(tmp_path, form=Release) as asked:
        bert = await asked.user("bert", "operator")
        wrong = await asked.answer({"amount": "ten", "account": 3, "more": 1}, bert)
        missing = await asked.answer({}, bert)
        fits = await asked.answer({"amount": 10}, bert)
        shown = await asked.shown()
    assert wrong.status == 422
    assert {one["field"] for one in wrong.json["errors"]} == {"amount", "account", ""}
    assert missing.json["errors"] == [{"field": "amount", "detail": "is required"}]
    assert fits.status == 200
    assert shown["answer"] == {"amount": 10}


async def test_answer_of_someone_who_may_not_is_refused_before_it_is_checked(
    tmp_path: Any,
) -> None:
    async with asking(tmp_path, form=Release, assignees="finance") as asked:
        bert = await asked.user("bert", "operator")
        refused = await asked.answer({"amount": "ten"}, bert)
    assert (refused.status, refused.json["code"]) == (403, "request.not_assigned")


async def test_link_shows_the_question_and_only_a_post_of_an_answer_decides(tmp_path: Any) -> None:
    async with asking(tmp_path, assignees="finance", details="Invoice 4711") as asked:
        token = await asked.link()
        page = await ask(asked.guard, "GET", "/decide", headers=JSON)
        # A link scanner opens the links, perhaps running scripts, and perhaps more than once.
        await asked.post("/decisions/link", {"token": token})
        shown = await asked.post("/decisions/link", {"token": token})
        before = await asked.shown()
        said = {"token": token, "answer": True, "comment": "amount checked"}
        answered = await asked.post("/decisions/link/answer", said)
        again = await asked.post("/decisions/link/answer", {"token": token, "answer": False})
        after = await asked.shown()
        (line,) = [
            one.noted for one in await asked.n.store.list_audit() if "decision" in one.noted.action
        ]
    assert page.status == 200
    assert (shown.json["details"], shown.json["may_answer"]) == ("Invoice 4711", True)
    assert (before["state"], before["downstream"]) == ("open", ["second"])
    assert (before["as_admin"], shown.json["as_admin"]) == (True, False)
    assert answered.status == 200
    assert "set-cookie" not in answered.headers
    assert (again.status, again.json["answer"]) == (409, True)
    assert (after["votes"][0]["person"], after["votes"][0]["by_link"]) == ("finance", True)
    assert (line.actor, line.action) == ("link:finance", "decision.answer")
    assert (line.after or "").endswith("yes, by signed link for finance: amount checked")
    assert after["votes"][0]["comment"] == "amount checked"


async def test_damaged_decision_is_shown_as_unreadable_and_hides_no_other(tmp_path: Any) -> None:
    async with asking(tmp_path) as asked:
        (row,) = await asked.n.store.find_decisions([asked.number])
        odd = (b"", msgspec.msgpack.encode({"question": "?", "schema": "{"}))
        rows = [
            msgspec.structs.replace(row, decision_no=row.decision_no + at, question=question)
            for at, question in enumerate(odd, 1000)
        ]
        decisions = asked.n.api.decisions
        views = await decisions._views([*rows, row])
        texts = [decision_text(one) for one in rows]
    assert [view.question.partition(":")[0] for view in views] == [
        "unreadable",
        "unreadable",
        "Release the payment?",
    ]
    assert [view.may_answer for view in views] == [False, False, True]
    assert texts[0].startswith("unreadable: ")


async def test_link_ends_with_the_account_and_is_not_that_of_a_later_one(tmp_path: Any) -> None:
    async with asking(tmp_path, assignees=["bob", "finance"]) as asked:
        access = asked.n.api.access
        await access.create_user(BY, "bob", "a long password", "operator", ())
        of_bob, of_group = await asked.link("bob"), await asked.link("finance")
        before = await asked.post("/decisions/link", {"token": of_bob})
        await access.delete_user(BY, "bob")
        deleted = await asked.post("/decisions/link/answer", {"token": of_bob, "answer": True})
        await access.create_user(BY, "bob", "a long password", "operator", ())
        again = await asked.post("/decisions/link/answer", {"token": of_bob, "answer": True})
        await access.create_user(BY, "finance", "a long password", "operator", ())
        group = await asked.post("/decisions/link/answer", {"token": of_group, "answer": True})
    assert before.status == 200
    assert [answer.status for answer in (deleted, again, group)] == [403, 403, 403]


async def test_links_that_were_forged_altered_or_have_expired_show_nothing(tmp_path: Any) -> None:
    async with asking(tmp_path, assignees=["finance", "risk"]) as asked:
        token, other = await asked.link(), await asked.link("risk")
        body, _, signature = token.partition(".")
        old = await asked.link(past_us=(LINK_DAYS + 1) * DAY_US)
        swapped = f"{other.partition('.')[0]}.{signature}"
        bad = [
            "",
            "x",
            body,
            f"{body}.",
            f".{signature}",
            f"{body}A.{signature}",
            swapped,
            old,
            "é.é",
        ]
        answers = [
            await asked.post("/decisions/link/answer", {"token": one, "answer": True})
            for one in bad
        ]
        shown = await asked.shown()
    assert {answer.status for answer in answers} == {403}
    assert shown["state"] == "open"


async def test_link_answers_no_other_decision_and_opens_no_other_route(tmp_path: Any) -> None:
    async with asking(tmp_path, assignees="finance") as asked:
        token = await asked.link()
        bearer = {"authorization": f"Bearer {token}", **JSON}
        found = [
            (await ask(asked.guard, "GET", path, headers=bearer)).status
            for path in ("/api/v1/decisions", "/api/v1/runs", f"/api/v1/decisions/{asked.number}")
        ]
    assert set(found) == {401}


async def test_links_are_used_at_a_limited_rate(tmp_path: Any) -> None:
    async with asking(tmp_path, assignees="finance") as asked:
        found = [(await asked.post("/decisions/link", {"token": "x"})) for _ in range(40)]
    assert {answer.status for answer in found} == {403, 429}
    assert int(found[-1].headers["retry-after"]) >= 1


async def test_decisions_come_in_pages_and_a_token_of_another_dag_sees_none(tmp_path: Any) -> None:
    async with asking(tmp_path) as asked:
        home = Trusted(asked.guard)
        page = await ask(home, "GET", "/api/v1/decisions?limit=1")
        after = encode_cursor("decisions", (asked.number,))
        rest = await ask(home, "GET", f"/api/v1/decisions?cursor={after}")
        odd = await ask(home, "GET", f"/api/v1/decisions?cursor={asked.number}")
        others = await ask(home, "GET", "/api/v1/decisions?dag=fan")
        overview = await ask(home, "GET", "/api/v1/overview")
        shown = await ask(home, "GET", "/api/v1/home")
        made = await asked.n.api.access.create_token(BY, "fan", "admin", scopes=["fan"])
        headers = {"authorization": f"Bearer {made['token']}", **JSON}
        shut = await asked.answer(True, headers)
    assert [one["decision_id"] for one in page.json["items"]] == [asked.number]
    assert page.json["next"] is None, "there is no empty page at the end"
    assert odd.status == 400
    assert rest.json == {"items": [], "next": None}
    assert others.json["items"] == []
    assert overview.json["decisions"] == 1
    assert shown.json["decisions"] == page.json["items"]
    assert shut.status == 403


async def test_chain_of_causes_names_the_question_and_whom_it_waits_for(tmp_path: Any) -> None:
    async with asking(tmp_path, approvals=2, assignees="finance") as asked:
        home = Trusted(asked.guard)
        run = await ask(home, "GET", "/api/v1/runs/r/why")
        task = await ask(home, "GET", "/api/v1/runs/r/tasks/first/why")
    expected = 'finance (0 of 2): "Release the payment?"'
    for answer in (run, task):
        assert answer.status == 200, answer.body
        waits = [one["waiting_on"] for one in answer.json["causes"] if one["waiting_on"]]
        assert (waits[0]["kind"], waits[0]["detail"]) == ("decision", expected)
