"""The OpenAPI document: every route with its parameters and response schemas.

Schemas are generated from the structs that are encoded. Responses are not validated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

import msgspec
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from aioflow.api import page_schemas, schemas, wait_views
from aioflow.api.accounts import SessionView, TokenView, UserView
from aioflow.api.audit import AuditView
from aioflow.api.backfills import BackfillView, SlotView
from aioflow.api.key_rotation import RotationView
from aioflow.api.values import ConnectionView, ValueView
from aioflow.model.dag import ValueKind

__all__ = ("ANSWERS", "Problem", "describe", "operation_id")

_REFERENCE = "#/components/schemas/{name}"
_METHODS = frozenset({"get", "put", "post", "delete"})


class Problem(msgspec.Struct):
    """An error; ``code`` is stable."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    instance: str = ""


class Paused(TypedDict):
    dag_id: str
    paused: bool


class PoolSet(TypedDict):
    name: str
    slots: int | None
    include_deferred: bool
    changed: bool


class Cancelled(TypedDict):
    run_id: str
    dag_id: str
    state: str


class Cleared(TypedDict):
    run_id: str
    dag_id: str
    state: str
    cleared: int
    version: str
    newest_version: str | None
    upstream_failed: list[str]


class Marked(TypedDict):
    run_id: str
    dag_id: str
    state: str
    marked: int


class RunDeleted(TypedDict):
    run_id: str
    dag_id: str
    deleted: bool


class DagDeleted(TypedDict):
    dag_id: str
    runs: int
    more: bool


class Fired(TypedDict):
    trigger_id: int
    run_id: str
    task_id: str
    map_index: int


Unquarantined = TypedDict("Unquarantined", {"class": str, "changed": bool})


class ValueSet(TypedDict):
    kind: str
    name: str
    hidden: bool


class ValueDeleted(TypedDict):
    kind: str
    name: str
    deleted: bool


class Drained(TypedDict):
    node: int
    drained: bool
    changed: bool


class Me(TypedDict):
    name: str
    role: str
    kind: str
    scopes: list[str] | None


class SessionEnded(TypedDict):
    session_id: int
    ended: bool


class UserDeleted(TypedDict):
    name: str
    deleted: bool


class NewToken(TypedDict):
    token_id: int
    name: str
    role: str
    scopes: list[str] | None
    state: str
    created_at: str
    created_by: str
    expires_at: str | None
    revoked_at: str | None
    last_used_at: str | None
    token: str


ANSWERS: Mapping[str, Any] = {
    "show_me": Me,
    "change_password": UserView,
    "log_in": SessionView,
    "log_out": SessionEnded,
    "list_sessions": list[SessionView],
    "end_session": SessionEnded,
    "list_users": list[UserView],
    "create_user": UserView,
    "set_user": UserView,
    "delete_user": UserDeleted,
    "list_tokens": list[TokenView],
    "create_token": NewToken,
    "revoke_token": TokenView,
    "list_audit": list[AuditView],
    "recent_runs": dict[str, list[page_schemas.RecentRunView]],
    "triggers_summary": page_schemas.TriggersView,
    "list_dags": list[schemas.DagView],
    "show_dag": schemas.DagDetailView,
    "next_slots": list[str],
    "trigger": schemas.Triggered,
    "delete_dag": DagDeleted,
    "pause": Paused,
    "resume": Paused,
    "list_runs": list[schemas.RunSummary],
    "show_run": schemas.RunView,
    "list_tasks": list[schemas.TaskView],
    "why_run": wait_views.ChainView,
    "cancel": Cancelled,
    "clear": Cleared,
    "delete_run": RunDeleted,
    "mark": Marked,
    "why_task": wait_views.ChainView,
    "list_triggers": list[schemas.TriggerView],
    "list_slow": list[schemas.SlowView],
    "unquarantine": Unquarantined,
    "show_trigger": schemas.TriggerView,
    "fire": Fired,
    "list_events": list[schemas.EventView],
    "emit": schemas.EmittedView,
    "list_pools": list[page_schemas.PoolView],
    "set_pool": PoolSet,
    "delete_pool": PoolSet,
    "clean": schemas.CleanedView,
    "start_backfill": BackfillView | list[SlotView],
    "list_backfills": list[BackfillView],
    "show_backfill": BackfillView,
    "cancel_backfill": BackfillView,
    "rotate": RotationView,
    "overview": page_schemas.OverviewView,
    "list_nodes": list[page_schemas.NodeView],
    "drain": Drained,
    "undrain": Drained,
    "import_errors": list[page_schemas.ImportErrorView],
    "schedules": list[page_schemas.StartView],
    "dag_graph": page_schemas.GraphView,
    "dag_grid": page_schemas.GridView,
    "dag_code": page_schemas.CodeView,
    "dag_versions": list[page_schemas.VersionView],
    "run_graph": page_schemas.RunGraphView,
    "run_gantt": list[page_schemas.SpannedView],
    "show_task": page_schemas.TaskShownView,
    "woken_by": list[page_schemas.WokenView],
    "pool_holders": list[page_schemas.HolderView],
    "logs": page_schemas.LogLinesView,
    **{f"list_{kind}s": list[ValueView] for kind in ValueKind},
    "list_connections": list[ConnectionView],
    **{f"set_{kind}": ValueSet for kind in ValueKind},
    **{f"delete_{kind}": ValueDeleted for kind in ValueKind},
}
"""Types of JSON responses by the names of routes."""

TEXTS: Mapping[str, str] = {
    "logs": "text/plain",
    "stream": "text/event-stream",
    "follow_log": "text/event-stream",
}
"""Content types of routes that respond with text, always or optionally."""


def operation_id(route: APIRoute) -> str:
    """Return the name of a route's function."""
    return route.name


def describe(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """Return the OpenAPI document of routes."""
    described = get_openapi(title="aioflow", version="1", routes=routes)
    _add_answers(described)
    return described


def _add_answers(described: dict[str, Any]) -> None:
    schemas, components = msgspec.json.schema_components(
        [*ANSWERS.values(), Problem], ref_template=_REFERENCE
    )
    known = dict(zip((*ANSWERS, "Problem"), schemas, strict=True))
    described.setdefault("components", {}).setdefault("schemas", {}).update(components)
    for operation in _operations(described):
        name = operation["operationId"]
        content: dict[str, Any] = {}
        if name in TEXTS:
            content[TEXTS[name]] = {"schema": {"type": "string"}}
        if name in known:
            content["application/json"] = {"schema": known[name]}
        answers = operation["responses"]
        answers.pop("422", None)
        for status in [status for status in answers if status.startswith("2")]:
            answers[status] = {"description": "Done.", "content": content}
        if "201" in answers:
            answers["200"] = {"description": "It was there already.", "content": content}
        problem = {"application/problem+json": {"schema": known["Problem"]}}
        answers["default"] = {"description": "It cannot be done.", "content": problem}


def _operations(described: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    for methods in described["paths"].values():
        yield from (operation for method, operation in methods.items() if method in _METHODS)
