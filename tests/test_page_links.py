"""Messages of callbacks and alerts link to the page of their subject."""

from __future__ import annotations

import json

import msgspec

from aioflow.author.callbacks import outbound
from aioflow.model.page_links import dag_page, run_page, task_page
from aioflow.notifications.delivery import Job, Preparing, Targets
from aioflow.protocol.commands import Notify
from aioflow.protocol.effects import DeliverOutbox
from aioflow.protocol.outbox import Alert, Callback
from aioflow.redaction import Masks
from aioflow.worker.callbacks import notify
from tests.web.node import CHAIN, node

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


async def test_a_delivery_has_the_page_of_the_run_the_task_or_the_dag(tmp_path):
    async def restore(row):
        return None

    async with node(tmp_path) as n:
        n.define(CHAIN)
        await n.api.trigger("chain", run_id="r")
        run_no = (await n.api.run("r")).run_no
        targets = Targets(webhook="https://chat.example.org/x")
        preparing = Preparing(
            n.store, Masks(), targets, restore, needs_values=False, public_url=BASE
        )

        async def called(**where):
            callback = Callback(event="success", run_no=run_no, state="success", at=0, **where)
            body = msgspec.msgpack.encode(callback)
            ready = await preparing.callback(Job(DeliverOutbox(1, "callback:chain", body)))
            return msgspec.msgpack.decode(ready.command.body, type=Callback).url

        async def alerted(**about):
            about = {"dag_id": "", "run_id": "", "task_id": "", **about}
            body = msgspec.msgpack.encode(Alert(reason="late", message="late", **about))
            return (await preparing.alert(Job(DeliverOutbox(1, "alert", body)))).command.url

        task = CHAIN.tasks[0].task_id
        found = [
            await called(task_index=-1),
            await called(task_index=0),
            await called(task_index=0, map_index=3),
            await alerted(dag_id="chain", run_id="r", task_id="load[3]"),
            await alerted(dag_id="chain"),
            await alerted(),
        ]

    assert found == [
        f"{BASE}/runs/r",
        f"{BASE}/runs/r?task={task}",
        f"{BASE}/runs/r?task={task}&map=3",
        f"{BASE}/runs/r?task=load&map=3",
        f"{BASE}/dags/chain",
        "",
    ]
