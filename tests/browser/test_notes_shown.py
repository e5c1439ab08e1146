"""Notes on runs and tasks on the page, and the audit that names their authors."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.watched import BROWSER_TESTS, violations, watched

pytestmark = [*BROWSER_TESTS]

TEXT = "bank called, see https://bank.example/a?b=1.\nfile comes at noon <b>"


def note(page, within="main"):
    return page.page.locator(within).get_by_role("complementary", name="Note on ")


def write(page, text, button="", within="main"):
    if button or within != "main":
        page.press(button or "Add note", within=within)
    else:
        page.choose("Add note")
    page.page.get_by_role("dialog").get_by_label("Text").fill(text)
    page.confirm("Save")


@pytest.mark.nightly
def test_a_note_is_written_shown_in_the_list_and_removed(browser, daemon):
    daemon.trigger("daily", {}, run_id="noted")
    with watched(browser, daemon) as page:
        page.go("/runs/noted")
        write(page, TEXT)
        page.heard("The note is saved")
        expect(note(page)).to_contain_text("file comes at noon <b>")
        link = note(page).get_by_role("link")
        expect(link).to_have_attribute("href", "https://bank.example/a?b=1")
        page.go("/runs?params=noon")
        mark = page.page.get_by_role("img", name="Note: bank called")
        expect(mark).to_have_count(1)

        page.go("/runs/noted")
        write(page, "", "Edit the note")
        page.heard("The note is removed")
        expect(note(page)).to_have_count(0)
        page.clean()
    assert daemon.items("/api/v1/runs/noted/notes") == []


@pytest.mark.nightly
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_notes_of_tasks_and_the_audit_are_accessible(browser, daemon, theme):
    run = f"noted-{theme}"
    daemon.trigger("daily", {}, run_id=run)
    task = daemon.items(f"/api/v1/runs/{run}/tasks")[0]["task_id"]
    with watched(browser, daemon, theme=theme) as page:
        page.go(f"/runs/{run}?task={task}")
        write(page, "late again", within=".drawer")
        expect(note(page, ".drawer")).to_contain_text("late again")
        assert violations(page.page) == []

        page.go(f"/audit?action=note&target={run}")
        page.see("Wrote a note")
        page.page.get_by_role("link", name="Wrote a note").first.click()
        detail = page.page.locator(".detail")
        expect(detail.get_by_role("link", name=run, exact=True)).to_have_attribute(
            "href", f"/runs/{run}"
        )
        expect(detail).to_contain_text("late again")
        assert violations(page.page) == []
        page.clean()
