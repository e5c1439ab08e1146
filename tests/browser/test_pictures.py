"""The page looks as in the pictures of the docs, with the same data and without a daemon."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from tests.browser.pictures import FORMS, IMAGES, LARGEST, difference, replayed, taken
from tests.browser.scene import VIEWS
from tests.browser.watched import BROWSER_TESTS, violations

pytestmark = [*BROWSER_TESTS, pytest.mark.nightly]

MOST = 0.01
"""The share of a picture that may differ, since another Chromium may draw letters differently."""

SEEN = 2e-4
"""A share that a single changed word exceeds, to show that the comparison would notice it."""


@pytest.mark.parametrize("form", FORMS)
def test_each_view_looks_as_in_its_picture_and_is_accessible(browser, tmp_path, form):
    theme, width, height = FORMS[form]
    missing: set[str] = set()
    differs, found = {}, {}
    with replayed(browser, theme, width, height, missing) as page:
        for view, path in VIEWS.items():
            now = taken(page, path)
            share = difference(now, Image.open(IMAGES / f"{view}-{form}.png"))
            if share > MOST:
                now.save(tmp_path / f"{view}-{form}.png")
                differs[view] = f"{share:.2%}, now as in {tmp_path}"
            if problems := violations(page):
                found[view] = problems
    assert found == {}
    assert differs == {}, "if it is meant to: python -m tests.browser.pictures, and look at them"
    assert missing == set()


def test_a_changed_word_is_a_difference(browser):
    with replayed(browser, *FORMS["light"]) as page:
        before = taken(page, VIEWS["decisions"])
        page.locator("main h1").first.evaluate("(node) => { node.textContent = 'Settings' }")
        after = Image.open(io.BytesIO(page.screenshot()))
    assert difference(before, before) == 0
    assert difference(before, after) > SEEN


def test_the_pictures_are_small_and_of_views_that_exist():
    sizes = {path.name: path.stat().st_size for path in IMAGES.glob("*.png")}
    assert set(sizes) == {f"{view}-{form}.png" for view in VIEWS for form in FORMS}
    assert {name: size for name, size in sizes.items() if size > LARGEST} == {}
