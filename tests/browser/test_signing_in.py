"""Logins on the page: what each role can do, and what it never sees."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect

from tests.browser.watched import BROWSER_TESTS, stranger, watched

pytestmark = [*BROWSER_TESTS, pytest.mark.nightly]

PASSWORD = "a long enough password"
VIEWS = (
    "/", "/dags", "/dags/brief", "/runs", "/runs/signed-in", "/runs/signed-in?task=at_once",
    "/triggers", "/events", "/pools", "/backfills", "/nodes", "/settings",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def accounts(daemon):
    """Create one user of each role, a run that has ended, and a run that waits."""
    for role in ("viewer", "operator", "admin"):
        body = {"name": f"the-{role}", "password": PASSWORD, "role": role}
        daemon.request("POST", "/api/v1/users", body)
    daemon.trigger("brief", run_id="signed-in")
    daemon.trigger("patient", run_id="signed-out")
    daemon.wait("signed-in")


def sign_in(page, name, password=PASSWORD):
    page.page.get_by_label("Name").fill(name)
    page.page.get_by_label("Password").fill(password)
    page.page.get_by_role("button", name="Sign in").click()


def enter(page, name):
    """Log in, and wait until the login has succeeded."""
    sign_in(page, name)
    page.page.wait_for_selector(".rail")


def offered(page):
    """Return the visible controls that need a permission."""
    return page.page.locator("main [data-needs]:visible").all_inner_texts()


def test_a_viewer_is_offered_nothing_that_changes_anything(browser, daemon, pool):
    with stranger(browser, daemon) as page:
        page.page.goto(page.base)
        enter(page, "the-viewer")
        found = {view: offered(page.go(view)) for view in VIEWS}
        assert {view: what for view, what in found.items() if what} == {}
        for place in ("/audit", "/access"):
            expect(page.page.locator(f".rail a[href='{place}']")).to_be_hidden()
        page.see("the-viewer, viewer", within="main")
        page.clean()


def test_an_operator_is_offered_runs_and_not_what_is_an_admins(browser, daemon):
    with stranger(browser, daemon) as page:
        page.page.goto(page.base)
        enter(page, "the-operator")
        assert "Trigger" in offered(page.go("/dags/brief"))
        page.go("/runs/signed-in")
        page.press("More actions")
        expect(page.page.get_by_role("menuitem", name="Set run state")).to_be_visible()
        expect(page.page.get_by_role("menuitem", name="Delete")).to_have_count(0)
        assert offered(page.go("/nodes")) == []
        page.go("/settings")
        expect(page.page.get_by_role("heading", name="Secrets")).to_have_count(0)
        page.clean()


def test_a_logout_ends_every_window_and_a_login_returns_to_the_same_page(browser, daemon):
    with stranger(browser, daemon) as page:
        page.page.goto(f"{page.base}/settings")
        enter(page, "the-admin")
        page.settle()
        other = page.page.context.new_page()
        other.goto(f"{page.base}/runs/signed-out?task=rests")
        other.locator(".drawer").get_by_text("Waiting").first.wait_for()
        page.press("Sign out")
        page.see("Sign in")
        daemon.request("POST", "/api/v1/runs/signed-out/cancel")

        other.get_by_text("Your session has ended").wait_for()
        other.get_by_label("Name").fill("the-admin")
        other.get_by_label("Password").fill(PASSWORD)
        other.get_by_role("button", name="Sign in").click()
        other.locator(".drawer").get_by_text("cancelled").first.wait_for()
        assert other.url == f"{page.base}/runs/signed-out?task=rests"


@pytest.mark.parametrize(
    ("title", "name", "value", "again"),
    [
        pytest.param("Secrets", "bank/pin", "hush-hush-1", "hush-hush-2", id="secret"),
        pytest.param("Variables", "limits", '{"most": "hush-hush-1"}', "[1, 2]", id="variable"),
    ],
)
def test_a_value_is_written_and_replaced_and_never_read(browser, daemon, title, name, value, again):
    with watched(browser, daemon) as page:
        page.go("/settings")
        panel = page.panel(title)
        panel.get_by_role("button", name="Set", exact=True).click()
        page.page.get_by_role("dialog").get_by_label("Name").fill(name)
        page.page.get_by_role("dialog").get_by_label("Value").fill(value)
        page.confirm("Set")
        panel.get_by_text(name, exact=True).wait_for()
        page.heard(f"{name} is set")

        panel.get_by_role("button", name=f"Replace {name}").click()
        assert page.page.get_by_role("dialog").get_by_label("Value").input_value() == ""
        page.page.get_by_role("dialog").get_by_label("Value").fill(again)
        page.confirm("Set")
        assert "hush-hush" not in page.page.content()
        told = json.dumps(daemon.get(f"/api/v1/{title.lower()}")[1])
        assert name in told
        assert "hush-hush" not in told

        page.choose(f"Delete {name}", f"More actions: {name}")
        page.see("fail", within="dialog")
        page.confirm("Delete")
        expect(panel.get_by_text(name, exact=True)).to_have_count(0)
        page.clean()


def test_a_variable_that_is_no_json_says_so(browser, daemon):
    with watched(browser, daemon) as page:
        page.go("/settings")
        panel = page.panel("Variables")
        panel.get_by_role("button", name="Set", exact=True).click()
        page.page.get_by_role("dialog").get_by_label("Name").fill("broken")
        page.page.get_by_role("dialog").get_by_label("Value").fill('{"most": ')
        page.page.locator("dialog footer button[type=submit]").click()
        page.see("is not valid JSON", within="dialog .wrong")
        page.clean()
    assert daemon.items("/api/v1/variables") == []
