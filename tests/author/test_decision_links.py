"""A signed link goes only to whom it is for: everyone who reads it can answer with it."""

from __future__ import annotations

from typing import Any

import pytest

from aioflow.author.callbacks import with_link


@pytest.mark.parametrize(
    ("link_for", "is_for_one", "assignees", "url"),
    [
        ("", True, ["bob"], "signed for bob"),
        ("", False, ["bob"], "the page"),
        ("", True, ["bob", "finance"], "the page"),
        ("finance", False, ["bob", "finance"], "signed for finance"),
        ("carl", True, ["bob"], "the page"),
    ],
)
def test_link_is_signed_only_for_a_named_assignee_or_the_one_of_a_mail_to_one_address(
    link_for: str, is_for_one: bool, assignees: list[str], url: str
) -> None:
    links = {name: f"signed for {name}" for name in assignees}
    context: dict[str, Any] = {"decision": {"links": links, "assignees": assignees}}
    said = with_link({"url": "the page"}, context, link_for, is_for_one=is_for_one)
    assert said["url"] == url
