"""A signed link is sent only to its assignee, because anyone who reads it can answer with it."""

from __future__ import annotations

from typing import Any

import pytest

from aioflow.author.callbacks import EmailNotifier, summary, with_link
from aioflow.errors import NotificationFailed


@pytest.mark.parametrize(
    ("link_for", "recipients", "assignees", "url"),
    [
        ("", 1, ["bob"], "signed for bob"),
        ("", 2, ["bob"], "the page"),
        ("", 1, ["bob", "finance"], "the page"),
        ("finance", None, ["bob", "finance"], "signed for finance"),
        ("finance", 2, ["bob", "finance"], "signed for finance"),
        ("carl", 1, ["bob"], "the page"),
    ],
)
def test_link_is_signed_only_for_a_named_assignee_or_the_one_of_a_mail_to_one_address(
    link_for: str, recipients: int | None, assignees: list[str], url: str
) -> None:
    links = {name: f"signed for {name}" for name in assignees}
    context: dict[str, Any] = {
        "decision": {"links": links, "assignees": assignees, "personal": ("bob",)}
    }
    said = with_link({"url": "the page"}, context, link_for, recipients=recipients)
    assert said["url"] == url


def test_link_of_a_user_is_not_sent_to_several_addresses() -> None:
    decision = {
        "question": "Release?",
        "assignees": ("bob",),
        "links": {"bob": "signed for bob"},
        "personal": ("bob",),
        "url": "the page",
    }
    context = {"decision": decision, "run_id": "r", "dag_id": "d", "task_id": "t"}
    notifier = EmailNotifier(["bob@example.org", "team@example.org"], link_for="bob")

    with pytest.raises(NotificationFailed, match="personal") as caught:
        notifier(context)

    assert "signed" not in str(caught.value).replace("signed link of bob", "")
    assert not caught.value.may_pass
    assert "personal" not in summary(context)["decision"]
