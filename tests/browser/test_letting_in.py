"""An admin manages users, sessions and tokens on the page."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.watched import BROWSER_TESTS, serious, stranger, watched

pytestmark = [*BROWSER_TESTS, pytest.mark.nightly]

PASSWORD = "a long enough password"


def add(daemon, name, role="viewer"):
    daemon.request("POST", "/api/v1/users", {"name": name, "password": PASSWORD, "role": role})


def users(daemon):
    return {one["name"]: one for one in daemon.items("/api/v1/users")}


def panel(page, title):
    return page.page.locator("main").get_by_role("region", name=title, exact=True)


def opened(page, title, name):
    """Open a row by its name. Return the pane with its details."""
    panel(page, title).get_by_role("link", name=name).first.click()
    return page.page.locator(".detail")


def fill(page, **fields):
    for label, text in fields.items():
        page.page.get_by_role("dialog").get_by_label(label, exact=True).fill(text)


def test_a_user_is_added_and_signs_in(browser, daemon):
    with watched(browser, daemon) as page:
        page.go("/access")
        page.press("New user")
        fill(page, Name="ada", Password=PASSWORD)
        page.page.get_by_role("dialog").get_by_label("Role").select_option("operator")
        page.confirm("Add")
        page.heard("ada can sign in")
        page.see("ada", within="main .table")
        assert PASSWORD not in page.page.content()
        page.clean()
    with stranger(browser, daemon) as page:
        page.page.goto(f"{page.base}/settings")
        page.page.get_by_label("Name").fill("ada")
        page.page.get_by_label("Password").fill(PASSWORD)
        page.press("Sign in")
        page.see("ada, operator", within="main")
        expect(page.page.locator(".rail a[href='/access']")).to_be_hidden()


def test_a_user_that_cannot_be_is_refused_where_it_was_asked_for(browser, daemon):
    with watched(browser, daemon, refusals=(422,)) as page:
        page.go("/access")
        page.press("New user")
        fill(page, Name="bob", Password="short")
        page.page.locator("dialog footer button[type=submit]").click()
        page.see("A password has 10 to", within="dialog .wrong")
        page.clean()
    assert "bob" not in users(daemon)


def test_role_password_and_leave_to_sign_in_change_after_a_question(browser, daemon):
    add(daemon, "cid")
    with watched(browser, daemon) as page:
        page.go("/access")
        row = opened(page, "Users", "cid")
        row.get_by_role("button", name="Change role").click()
        page.page.get_by_role("dialog").get_by_label("Role").select_option("admin")
        page.see("keep no larger role", within="dialog")
        page.confirm("Change")
        page.heard("cid is admin")
        assert users(daemon)["cid"]["role"] == "admin"

        row.get_by_role("button", name="Disable").click()
        page.see("their sessions end", within="dialog")
        page.confirm("Disable")
        page.see("Disabled", within="main .table")
        assert users(daemon)["cid"]["disabled"]
        row.get_by_role("button", name="Enable").click()
        page.confirm("Enable")
        expect(panel(page, "Users").get_by_text("Disabled")).to_have_count(0)

        before = users(daemon)["cid"]["changed_at"]
        row.get_by_role("button", name="Set password").click()
        fill(page, Password="another long password")
        page.confirm("Set")
        page.heard("cid has a new password")
        assert users(daemon)["cid"]["changed_at"] > before

        page.choose("Delete", "More actions: cid")
        page.confirm("Delete")
        expect(panel(page, "Users").get_by_text("cid", exact=True)).to_have_count(0)
        page.clean()
    assert "cid" not in users(daemon)


def test_a_user_is_logged_out_by_another_client(browser, daemon):
    add(daemon, "dan")
    with stranger(browser, daemon) as other:
        other.page.goto(other.base)
        other.page.get_by_label("Name").fill("dan")
        other.page.get_by_label("Password").fill(PASSWORD)
        other.press("Sign in")
        other.page.wait_for_selector(".rail")
        with watched(browser, daemon) as page:
            page.go("/access")
            row = opened(page, "Users", "dan")
            page.see("1 session", within="main .table")
            row.get_by_role("button", name="of dan").click()
            page.confirm("End it")
            page.heard("A session of dan has ended")
            expect(panel(page, "Sessions").get_by_text("dan")).to_have_count(0)
            page.clean()
        other.page.goto(f"{other.base}/runs")
        other.see("Sign in")


def test_a_token_is_shown_once_is_good_and_is_revoked(browser, daemon):
    with watched(browser, daemon) as page:
        page.go("/access")
        page.press("New token")
        fill(page, Name="nightly", DAGs="brief, patient")
        page.page.get_by_role("dialog").get_by_label("Role").select_option("operator")
        page.confirm("Create")
        shown = page.page.locator(".once code")
        secret = shown.inner_text()
        (made,) = [one for one in daemon.items("/api/v1/tokens") if one["name"] == "nightly"]
        assert (made["role"], made["scopes"], made["state"]) == (
            "operator",
            ["brief", "patient"],
            "active",
        )
        assert made["expires_at"] is not None
        page.press("I have saved it")
        assert secret not in page.page.content()
        assert len(secret) > 40
        page.go("/access")
        assert secret not in page.page.content()

        row = opened(page, "Tokens", "nightly")
        page.see("the DAGs brief, patient", within="main")
        row.get_by_role("button", name="Revoke").click()
        page.confirm("Revoke")
        page.see("Revoked", within="main .table")
        page.clean()
    (made,) = [one for one in daemon.items("/api/v1/tokens") if one["name"] == "nightly"]
    assert made["state"] == "revoked"


def test_all_of_it_is_reached_by_keyboard(browser, daemon):
    add(daemon, "eve")
    with watched(browser, daemon) as page:
        page.go("/")

        def is_there():
            page.page.keyboard.type("gu")  # one soon after the other
            return page.page.evaluate("location.pathname") == "/access"

        page.eventually(is_there)
        page.see("eve", within="main .table")
        page.settle()
        page.page.keyboard.press("j")
        focused = "document.activeElement.matches('main a.row-link')"
        assert page.page.evaluate(focused)
        page.page.keyboard.press("Enter")
        page.see("Change role", within="main .detail")
        for _ in range(2):  # the first is the button that closes it
            page.page.keyboard.press("Tab")
        page.page.keyboard.press("Enter")
        page.see("Change the role of", within="dialog")
        page.page.keyboard.press("Escape")
        page.page.wait_for_selector("dialog", state="detached")
        page.clean()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", ["desk", "phone"])
def test_it_is_legible_open_and_closed(browser, daemon, theme, size):
    body = {"name": f"{theme}-{size}-" + "n" * 60, "role": "viewer", "scopes": ["s" * 200]}
    daemon.request("POST", "/api/v1/tokens", body)
    with watched(browser, daemon, theme=theme, size=size) as page:
        page.go("/access")
        assert serious(page.page) == []
        assert page.overflow() <= 0
        page.page.evaluate(
            "document.querySelectorAll('main details').forEach((one) => { one.open = true })"
        )
        page.press("New token")
        assert serious(page.page) == []
        fill(page, Name=f"of-{theme}-{size}")
        page.confirm("Create")
        page.page.wait_for_selector(".once")
        assert serious(page.page) == []
        assert page.overflow() <= 0
        page.clean()
