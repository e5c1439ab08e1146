"""Decisions on the page: from a signed link, in the task's pane, and in the list of all."""

from __future__ import annotations

import re

import msgspec
import pytest
from playwright.sync_api import expect

from aioflow.api.decisions import link_token
from aioflow.clock import SystemClock
from aioflow.core.state.accounts import Accounts
from aioflow.crypto import Vault
from aioflow.model.decisions import DecisionRow
from benchmarks.daemon import eventually
from tests.browser.watched import BROWSER_TESTS, serious, stranger, violations, watched

pytestmark = [*BROWSER_TESTS]


def asked(daemon, dag, run_id):
    """Start a run. Return the decision that its task waits for."""
    daemon.trigger(dag, run_id=run_id)

    def found():
        _, page = daemon.request("GET", f"/api/v1/decisions?run={run_id}")
        return page["items"][0] if page["items"] else None

    return eventually(found, describe=lambda: f"{run_id} asks nothing")


def link(daemon, decision, assignee="finance"):
    """Return the signed link of a decision, as sent in a message."""
    row = DecisionRow(
        decision_no=decision["decision_id"],
        run_no=0,
        task_no=0,
        question=msgspec.msgpack.encode({"question": "?", "assignees": [assignee]}),
        asked_at=0,
    )
    vault = Vault.open(daemon.home / "key")
    return f"/decide#{link_token(row, assignee, Accounts(), vault, SystemClock().now())}"


@pytest.fixture(scope="module", autouse=True)
def known(daemon):
    daemon.knows("released")


def test_an_approval_takes_two_clicks_from_the_link_and_starts_no_session(browser, daemon):
    decision = asked(daemon, "released", "by-link")
    with stranger(browser, daemon) as page:
        page.page.goto(page.base + link(daemon, decision))  # the first click, in the message
        page.see("Release the payment?")
        assert daemon.get(f"/api/v1/decisions/{decision['decision_id']}")[1]["state"] == "open"
        page.page.get_by_role("button", name="Approve").click()
        page.see("The task continues")
        assert page.page.context.cookies() == []
        assert serious(page.page) == []
        page.clean()
    assert daemon.wait("by-link")["state"] == "success"
    _, shown = daemon.get(f"/api/v1/decisions/{decision['decision_id']}")
    assert [(vote["person"], vote["by_link"]) for vote in shown["votes"]] == [("finance", True)]
    with stranger(browser, daemon) as page:
        page.page.goto(page.base + link(daemon, decision))
        page.see("Decided")
        expect(page.page.get_by_role("button", name="Approve")).to_have_count(0)


@pytest.mark.nightly
def test_the_view_shows_what_is_asked_and_its_form_says_what_does_not_fit(browser, daemon):
    decision = asked(daemon, "filled", "by-form")
    with watched(browser, daemon, refusals=(422,)) as page:
        page.go("/decisions")
        card = page.page.get_by_role("group", name="Decision: Which payment?")
        expect(card.get_by_role("link")).to_have_text(["filled", "by-form", "fill_in"])
        card.get_by_label("amount").fill("ten")
        card.get_by_label("currency").select_option(label="CHF")
        card.get_by_role("button", name="Decide", exact=True).click()
        expect(card).to_contain_text("must be a decimal")
        card.get_by_label("amount").fill("10.50")
        card.get_by_role("button", name="Decide", exact=True).click()
        page.heard("The task continues")
        expect(card).to_have_count(0)

        page.page.locator(".decisions-ended").get_by_role("link", name="Which payment?").click()
        page.see('"amount": "10.50"', within=".detail")
        assert violations(page.page) == []
        page.clean()
    assert daemon.wait("by-form")["state"] == "success"
    _, shown = daemon.get(f"/api/v1/decisions/{decision['decision_id']}")
    assert shown["answer"] == {"amount": "10.50", "currency": "CHF"}


def test_home_shows_an_open_decision_with_its_answer_one_click_away(browser, daemon):
    decision = asked(daemon, "released", "by-home")
    with watched(browser, daemon) as page:
        page.go("/")
        status = page.page.locator(".home-status")
        expect(status).to_contain_text(re.compile(r"\d+ things? needs? you"))
        row = page.page.locator(".home-row", has_text="by-home").first
        row.get_by_role("link", name="Decide").click()
        page.page.wait_for_url(f"**/decisions?open={decision['decision_id']}")
        card = page.page.locator(".decision-cards .is-current")
        expect(card).to_contain_text("finance (you may decide as admin)")
        card.get_by_label("Comment").fill("amount differs")
        card.get_by_role("button", name="Reject").click()
        page.heard("The task continues")
        assert daemon.wait("by-home")["state"] == "success"
        page.go("/decisions")
        page.see("home: “amount differs”", within=".decisions-ended [title]")
        page.go("/runs/by-home")
        page.see("Rejected by home: “amount differs”", within=".run-decisions")
        page.clean()


@pytest.mark.nightly
def test_the_pane_of_the_task_asks_too(browser, daemon):
    asked(daemon, "released", "by-pane")
    with watched(browser, daemon) as page:
        page.go("/runs/by-pane?task=release")
        page.see("finance (you may decide as admin)")
        page.page.get_by_role("button", name="Reject").click()
        page.see("success", within=".drawer")
        page.clean()
    assert daemon.wait("by-pane")["state"] == "success"
