"""Trigger fields that are not declared public are in no response, whatever the route."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any, cast

import pytest
from fastapi.routing import APIRoute

from aioflow.api.trigger_details import CATALOGUE_FIELDS
from aioflow.author.codec import encode
from aioflow.author.trigger import class_path
from aioflow.model.dag import DagSpec, TaskSpec
from aioflow.model.triggers import DagTriggerSpec
from aioflow.web.app import create_app
from aioflow.web.permissions import each_route
from aioflow.web.tokens import Token
from tests.triggers.test_catalogue import triggers
from tests.web.node import ask, node

CANARY = "c4n4ry"
URL = f"https://me:{CANARY}@bank.example/accounts?token={CANARY}#{CANARY}"
TOKEN = Token("t" * 43)
HEADERS = {"authorization": f"Bearer {TOKEN.secret}"}
ENDLESS = {"stream", "follow_log"}

TASKS = tuple(f"t{n}" for n in range(len(CATALOGUE_FIELDS) + 1))
CHAIN = DagSpec(
    dag_id="chain", file="chain.py", tasks=tuple(TaskSpec(task_id=task) for task in TASKS)
)


def fields(cls: Any) -> dict[str, Any]:
    """Return fields with the canary in all places that must not be shown."""
    public = set(cls.public_fields)
    return {
        field.name: (URL if "url" in field.name else f"public {field.name}")
        if field.name in public
        else {"Authorization": f"Bearer {CANARY}", CANARY: [CANARY]}
        for field in dataclasses.fields(cls)
    }


def started_by(number: int, cls: Any) -> DagSpec:
    """Return a DAG whose runs are started by the events of a trigger."""
    kwargs = encode(fields(cls), "the fields")
    name, path = f"d{number}", class_path(cls)
    trigger = DagTriggerSpec(class_path=path, kwargs=kwargs, name=cls.__name__)
    return DagSpec(dag_id=name, file=f"{name}.py", tasks=CHAIN.tasks[:1], trigger=trigger)


def addresses(app: Any, dags: list[str], trigger_id: int) -> Iterator[str]:
    """Yield the addresses of each read route, for each task and DAG that it can name."""
    for route in cast("Iterator[APIRoute]", each_route(app._app.routes)):
        if "GET" not in (route.methods or ()) or route.name in ENDLESS:
            continue
        for task in TASKS if "{task_id}" in route.path else TASKS[:1]:
            for dag in dags if "{dag_id}" in route.path else dags[:1]:
                named = {"task_id": task, "dag_id": dag, "run_id": "r"}
                yield _filled(route.path, {**named, "trigger_id": str(trigger_id)})


def _filled(path: str, named: dict[str, str]) -> str:
    return re.sub(r"{(\w+)(:path)?}", lambda part: named.get(part[1], "1"), path)


def test_the_daemon_knows_what_each_class_of_the_catalogue_declares():
    declared = {class_path(cls): tuple(cls.public_fields) for cls in triggers()}

    assert dict(CATALOGUE_FIELDS) == declared
    for cls in cast("list[Any]", triggers()):
        assert {*cls.public_fields} <= {field.name for field in dataclasses.fields(cls)}


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_no_route_shows_a_field_that_is_not_public(tmp_path):
    async with node(tmp_path) as n:
        own = [started_by(number, cls) for number, cls in enumerate(triggers())]
        n.define(CHAIN, *own)
        await n.api.set_paused("chain", paused=False)
        await n.api.trigger("chain", run_id="r")
        for cls in triggers():
            await n.defer(class_path(cls), fields(cls))
        await n.defer("mine:OfTheFile", {"password": CANARY})
        await n.api.set_paused("chain", paused=False)  # answered once all are committed
        app = create_app(n.api, TOKEN)
        listed = await ask(app, "GET", "/api/v1/triggers?limit=100", headers=HEADERS)
        ids = [view["trigger_id"] for view in listed.items]
        asked = {address for number in ids for address in addresses(app, dags(own), number)}
        answers = {address: await ask(app, "GET", address, headers=HEADERS) for address in asked}

    assert len(ids) == len(TASKS) + len(own)
    assert sum(answer.status == 200 for answer in answers.values()) > 80
    leaks = [address for address, answer in answers.items() if CANARY.encode() in answer.body]
    assert not leaks, (leaks[0], answers[leaks[0]].body)
    details = [view["detail"] for view in listed.items]
    assert sum("(" in detail for detail in details) == 2 * len(CATALOGUE_FIELDS)
    assert details.count("mine:OfTheFile") == 1
    assert any("url='https://bank.example/accounts?token=***'" in detail for detail in details)


def dags(own: list[DagSpec]) -> list[str]:
    return ["chain", *(spec.dag_id for spec in own)]
