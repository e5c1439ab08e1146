"""Connections on the page: the form of each type, a test, and an edit that retains the password."""

from __future__ import annotations

import json
import socket

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.watched import BROWSER_TESTS, Watched, serious, watched

pytestmark = [*BROWSER_TESTS]


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def new_connection(page: Watched, name: str, kind: str) -> tuple[Locator, Locator]:
    """Open the settings and the form of a new connection. Return its panel and the dialog."""
    page.go("/settings")
    panel = page.panel("Connections")
    dialog = page.page.get_by_role("dialog")
    panel.get_by_role("button", name="Set", exact=True).click()
    dialog.get_by_label("Name").fill(name)
    dialog.get_by_label("Type").select_option(kind)
    return panel, dialog


def test_a_connection_is_set_by_its_fields_tested_edited_and_deleted(browser, daemon, port):
    with watched(browser, daemon) as page:
        panel, dialog = new_connection(page, "team/books", "PostgreSQL")
        expect(dialog.get_by_label("Database", exact=True)).to_be_visible()
        dialog.get_by_label("Type").select_option("Other server")
        dialog.get_by_label("Scheme").fill("mysql")
        dialog.get_by_label("Host").fill("127.0.0.1")
        dialog.get_by_label("Port").fill(str(port))
        dialog.get_by_label("Password").fill("hush-hush-1")
        assert serious(page.page) == []
        page.confirm("Set")
        page.heard("team/books is set")

        panel.get_by_role("button", name="Test team/books").click()
        page.see("Works: the port accepts connections")

        panel.get_by_role("button", name="Edit team/books").click()
        assert dialog.get_by_label("Host").input_value() == "127.0.0.1"
        assert dialog.get_by_label("Password").input_value() == ""
        dialog.get_by_label("User").fill("ada")
        page.confirm("Set")
        _, shown = daemon.get("/api/v1/connections/team/books")
        assert (shown["login"], shown["has_password"], shown["port"]) == ("ada", True, port)
        assert "hush" not in json.dumps(shown) + page.page.content()

        page.choose("Delete team/books", "More actions: team/books")
        page.confirm("Delete")
        expect(panel.get_by_text("team/books", exact=True)).to_have_count(0)
        page.clean()


@pytest.mark.nightly
def test_a_connection_is_set_as_a_uri_and_a_test_that_fails_says_why(browser, daemon):
    with watched(browser, daemon) as page:
        panel, dialog = new_connection(page, "closed", "As a URI")
        dialog.get_by_label("URI", exact=True).fill("mysql://ada:hush-hush-1@127.0.0.1:1/x")
        page.confirm("Set")

        panel.get_by_role("button", name="Test closed").click()
        page.see("Failed: ConnectionRefusedError")
        assert "hush" not in page.page.content()
        daemon.request("DELETE", "/api/v1/connections/closed")
        page.clean()
