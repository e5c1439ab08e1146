"""Messages of callbacks and alerts link to the page of what they are about."""

from __future__ import annotations

import json

import msgspec

from aioflow.author.callbacks import outbound
from aioflow.model.page_links import dag_page, run_page, task_page
from aioflow.protocol.commands import Notify
from aioflow.protocol.outbox import Alert
from aioflow.worker.callbacks import notify

BASE = "https://flows.example.org"


def test_pages_have_an_address_if_that_of_the_page_is_known():
    for made, expected in (
        (dag_page(BASE, "a/b c"), f"{BASE}/dags/a%2Fb%20c"),
        (run_page(BASE, "r?1"), f"{BASE}/runs/r%3F1"),
        (task_page(BASE, "r", ""), f"{BASE}/runs/r"),
        (task_page(BASE, "r", "g.load"), f"{BASE}/runs/r?task=g.load"),
        (task_page(BASE, "r", "load", 3), f"{BASE}/runs/r?task=load&map=3"),
        (task_page(BASE, "r", "load[3]"), f"{BASE}/runs/r?task=load&map=3"),
        (task_page(BASE, "r", "a&b"), f"{BASE}/runs/r?task=a%26b"),
        (task_page("", "r", "load"), ""),
        (dag_page("", "d"), ""),
    ):
        assert made == expected


def test_webhook_and_mail_of_an_alert_have_the_link():
    alert = Alert(reason="deadline", dag_id="d", run_id="r", task_id="t", message="late")
    sent = []
    token = outbound.set(sent.append)
    try:
        for url in (f"{BASE}/runs/r?task=t", ""):
            command = Notify(
                1,
                msgspec.msgpack.encode(alert),
                webhook="https://chat.example.org/x",
                email=("oncall@example.org",),
                connection="smtp",
                url=url,
            )
            assert notify(command).failure is None
    finally:
        outbound.reset(token)

    webhook, mail, plain_webhook, plain_mail = sent
    assert json.loads(webhook.body)["url"] == f"{BASE}/runs/r?task=t"
    assert f"url: {BASE}/runs/r?task=t" in mail.body.splitlines()
    assert json.loads(plain_webhook.body)["url"] is None
    assert "url" not in plain_mail.body
