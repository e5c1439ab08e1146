"""The OpenAPI document of all routes with their parameters and responses, and its HTML page.

Response schemas are generated from the structs that are encoded. Responses are not validated. The
page is rendered from the document, and uses neither scripts nor external files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, Literal, TypedDict, get_args

import msgspec
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from aioflow.api import children, connections, past_fire_times, schemas
from aioflow.api.access.accounts import SessionView, TokenView, UserView
from aioflow.api.access.audit import AuditView
from aioflow.api.assets import AssetView
from aioflow.api.backfills import BackfillView, FireTimeView
from aioflow.api.bulk import BulkAction, BulkView
from aioflow.api.decisions import AnsweredView, DecisionView
from aioflow.api.declarations import TagView
from aioflow.api.executors import ExecutorView
from aioflow.api.notes import NoteRemoved
from aioflow.api.page import history, home
from aioflow.api.page import schemas as page_schemas
from aioflow.api.page.pool_usage import PoolUsageView
from aioflow.api.paging import Page
from aioflow.api.run_filters import FacetsView
from aioflow.api.values import ConnectionView, RotationView, ValueView
from aioflow.model.dag import ValueKind

__all__ = (
    "ANSWERS",
    "DOCS_STYLE",
    "DOCS_STYLE_PATH",
    "Problem",
    "describe",
    "operation_id",
    "render_docs",
)

_REFERENCE = "#/components/schemas/{name}"
_METHODS = frozenset({"get", "put", "post", "delete"})


class Problem(msgspec.Struct):
    """An error. Its ``code`` is stable."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    instance: str = ""
    advice: str = ""


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


class Touched(TypedDict):
    task_id: str
    is_marked: bool
    states: dict[str, int]


class ClearPreview(TypedDict):
    run_id: str
    dag_id: str
    state: str
    cleared: int
    dry_run: Literal[True]
    tasks: list[Touched]
    more: int
    upstream_failed: list[str]


class Marked(TypedDict):
    run_id: str
    dag_id: str
    state: str
    marked: int


class MarkPreview(TypedDict):
    run_id: str
    dag_id: str
    state: str
    marked: int
    dry_run: Literal[True]
    tasks: list[Touched]
    more: int
    upstream_failed: list[str]


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


class Forgotten(TypedDict):
    node: int
    forgotten: bool


class Me(TypedDict):
    name: str
    role: str
    kind: str
    scopes: list[str] | None
    page_url: str | None


class SessionEnded(TypedDict):
    session_id: int
    ended: bool


class SessionsEnded(TypedDict):
    ended: int


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
    "list_sessions": Page[SessionView],
    "end_session": SessionEnded,
    "list_users": Page[UserView],
    "create_user": UserView,
    "set_user": UserView,
    "delete_user": UserDeleted,
    "list_tokens": Page[TokenView],
    "create_token": NewToken,
    "revoke_token": TokenView,
    "list_audit": Page[AuditView],
    "show_audit": AuditView,
    "end_other_sessions": SessionsEnded,
    "list_notes": Page[schemas.NoteView],
    "set_run_note": schemas.NoteView,
    "set_task_note": schemas.NoteView,
    "remove_run_note": NoteRemoved,
    "remove_task_note": NoteRemoved,
    "list_decisions": Page[DecisionView],
    "show_decision": DecisionView,
    "answer_decision": AnsweredView,
    "show_link": DecisionView,
    "answer_link": AnsweredView,
    "recent_runs": dict[str, list[page_schemas.RecentRunView]],
    "triggers_summary": page_schemas.TriggersView,
    "list_dag_tags": Page[TagView],
    "list_dags": Page[schemas.DagView],
    "show_dag": schemas.DagDetailView,
    "next_fire_times": Page[str],
    "trigger": schemas.Triggered,
    "delete_dag": DagDeleted,
    "pause": Paused,
    "resume": Paused,
    "list_runs": Page[schemas.RunSummary],
    "count_facets": FacetsView,
    **{f"{action}_runs": BulkView for action in get_args(BulkAction)},
    "show_run": schemas.RunView,
    "list_tasks": Page[schemas.TaskView],
    "why_run": schemas.ChainView,
    "cancel": Cancelled,
    "clear": (Cleared, ClearPreview),
    "delete_run": RunDeleted,
    "mark": (Marked, MarkPreview),
    "why_task": schemas.ChainView,
    "list_triggers": Page[schemas.TriggerView],
    "list_slow": Page[schemas.SlowView],
    "unquarantine": Unquarantined,
    "show_trigger": schemas.TriggerView,
    "fire": Fired,
    "list_events": Page[schemas.EventView],
    "emit": schemas.EmittedView,
    "list_pools": Page[page_schemas.PoolView],
    "set_pool": PoolSet,
    "delete_pool": PoolSet,
    "clean": schemas.CleanedView,
    "start_backfill": (BackfillView, Page[FireTimeView]),
    "list_backfills": Page[BackfillView],
    "show_backfill": BackfillView,
    "cancel_backfill": BackfillView,
    "rotate": RotationView,
    "overview": page_schemas.OverviewView,
    "list_nodes": Page[page_schemas.NodeView],
    "show_node": page_schemas.NodeView,
    "list_assets": Page[AssetView],
    "list_executors": Page[ExecutorView],
    "drain": Drained,
    "forget_node": Forgotten,
    "undrain": Drained,
    "import_errors": Page[page_schemas.ImportErrorView],
    "schedules": Page[page_schemas.StartView],
    "dag_graph": page_schemas.GraphView,
    "dag_grid": page_schemas.GridView,
    "dag_code": page_schemas.CodeView,
    "dag_versions": Page[page_schemas.VersionView],
    "run_graph": page_schemas.RunGraphView,
    "run_gantt": Page[page_schemas.SpannedView],
    "show_task": page_schemas.TaskShownView,
    "woken_by": Page[page_schemas.WokenView],
    "pool_holders": Page[page_schemas.HolderView],
    "pool_waiters": page_schemas.WaitersView,
    "show_pool_usage": PoolUsageView,
    "show_home": home.HomeView,
    "show_children": children.ChildrenView,
    "show_cells": children.CellsView,
    "group_errors": children.ErrorGroupsView,
    "history_of_runs": history.RunEndsView,
    "history_of_dags": history.DagsStatsView,
    "history_of_dag": history.DagHistoryView,
    "history_of_tasks": history.TaskHistoryView,
    "history_of_schedule": past_fire_times.FireDaysView,
    "usual_durations": history.UsualsView,
    "history_of_schedules": past_fire_times.FireTimesView,
    "history_of_failures": history.RunSpansView,
    "history_timeline": history.RunSpansView,
    "logs": page_schemas.LogLinesView,
    "run_logs": page_schemas.RunLogView,
    **{f"list_{kind}s": Page[ValueView] for kind in ValueKind},
    "list_connections": Page[ConnectionView],
    "list_connection_types": connections.ConnectionTypesView,
    "show_connection": connections.ConnectionDetail,
    "test_connection": connections.ConnectionOutcomeView,
    **{f"set_{kind}": ValueSet for kind in ValueKind},
    **{f"delete_{kind}": ValueDeleted for kind in ValueKind},
}
"""Types of JSON responses by the name of the route. Several alternatives are a tuple."""

TEXTS: Mapping[str, str] = {
    "logs": "text/plain",
    "run_logs": "text/plain",
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


def _alternatives(answer: Any) -> tuple[Any, ...]:
    return answer if isinstance(answer, tuple) else (answer,)


def _schema(alternatives: Sequence[Any]) -> Any:
    return alternatives[0] if len(alternatives) == 1 else {"anyOf": list(alternatives)}


def _add_answers(described: dict[str, Any]) -> None:
    types = [one for answer in (*ANSWERS.values(), Problem) for one in _alternatives(answer)]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    each = iter(schemas)
    known = {
        name: _schema([next(each) for _ in _alternatives(answer)])
        for name, answer in (*ANSWERS.items(), ("Problem", Problem))
    }
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
            answers["200"] = {"description": "It existed already.", "content": content}
        problem = {"application/problem+json": {"schema": known["Problem"]}}
        answers["default"] = {"description": "The request was refused.", "content": problem}


def _operations(described: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    for methods in described["paths"].values():
        yield from (operation for method, operation in methods.items() if method in _METHODS)


DOCS_STYLE_PATH = "/docs/style.css"

DOCS_STYLE = """:root { color-scheme: light dark; --line: #8884; --soft: #777; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 64rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1rem; margin: 2rem 0 .3rem; }
code, pre { font: 13px/1.45 ui-monospace, monospace; overflow-wrap: anywhere; }
pre { border-left: 3px solid var(--line); margin: .4rem 0; padding: .2rem .8rem;
  white-space: pre-wrap; }
table { border-collapse: collapse; } td, th { border-bottom: 1px solid var(--line);
  padding: .2rem .9rem .2rem 0; text-align: left; vertical-align: top; }
th, .soft { color: var(--soft); font-weight: 500; }
nav li { list-style: none; } nav ul { columns: 2; padding: 0; }
"""

_SCHEMA_DEPTH = 6


def render_docs(described: Mapping[str, Any]) -> str:
    """Return an OpenAPI document as an HTML page."""
    found = list(_described_operations(described))
    links = "".join(
        f'<li><a href="#{escape(name)}"><code>{method} {escape(path)}</code></a></li>'
        for method, path, name, _ in found
    )
    schemas = described.get("components", {}).get("schemas", {})
    parts = "".join(_operation_html(*one, schemas) for one in found)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>aioflow API</title>'
        f'<link rel="stylesheet" href="{DOCS_STYLE_PATH}"></head><body><h1>aioflow API</h1>'
        "<p>Errors are <code>application/problem+json</code> with a stable <code>code</code>. "
        'The same as data: <a href="/api/v1/openapi.json">openapi.json</a>.</p>'
        f"<nav><ul>{links}</ul></nav>{parts}</body></html>"
    )


def _described_operations(
    described: Mapping[str, Any],
) -> Iterator[tuple[str, str, str, Mapping[str, Any]]]:
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation["operationId"], operation


def _operation_html(
    method: str, path: str, name: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]
) -> str:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    takes = "" if body is None else f"<p>Takes</p>{_schema_html(body['schema'], schemas)}"
    return (
        f'<section><h2 id="{escape(name)}"><code>{method} {escape(path)}</code></h2>'
        f"<p>{escape(operation.get('description', ''))}</p>"
        f"{_parameters_html(operation.get('parameters', ()))}{takes}"
        f"{_answer_html(operation, schemas)}</section>"
    )


def _parameters_html(parameters: Any) -> str:
    if not parameters:
        return ""
    rows = "".join(
        f"<tr><td><code>{escape(one['name'])}</code></td><td>{escape(one['in'])}</td>"
        f"<td><code>{escape(_schema_text(one['schema'], {}, _SCHEMA_DEPTH))}</code></td></tr>"
        for one in parameters
    )
    return f"<table><tr><th>Parameter</th><th>In</th><th></th></tr>{rows}</table>"


def _answer_html(operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    parts = []
    for status, answer in operation["responses"].items():
        if not status.startswith("2"):
            continue
        for kind, content in answer.get("content", {}).items():
            shape = _schema_html(content["schema"], schemas) if kind == "application/json" else ""
            parts.append(f'<p class="soft">{escape(status)} {escape(kind)}</p>{shape}')
    return "".join(parts)


def _schema_html(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    return f"<pre>{escape(_schema_text(schema, schemas, 0))}</pre>"


def _schema_text(schema: Any, schemas: Mapping[str, Any], depth: int) -> str:
    """Return a schema in a compact notation. Deeply nested schemas are shown by name."""
    if not isinstance(schema, Mapping):
        return "any"
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        target = schemas.get(name)
        return (
            name
            if target is None or depth >= _SCHEMA_DEPTH
            else _schema_text(target, schemas, depth)
        )
    if "anyOf" in schema:
        return " | ".join(_schema_text(one, schemas, depth) for one in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(repr(one) for one in schema["enum"])
    kind = schema.get("type", "any")
    if kind == "array":
        inner = schema.get("items")
        return f"[{_schema_text(inner, schemas, depth)}, ...]" if inner else "[...]"
    if kind == "object":
        return _object_text(schema, schemas, depth)
    return str(kind)


def _object_text(schema: Mapping[str, Any], schemas: Mapping[str, Any], depth: int) -> str:
    fields = schema.get("properties")
    if fields is None:
        values = schema.get("additionalProperties")
        return f"{{name: {_schema_text(values, schemas, depth)}}}" if values else "{...}"
    indent = "  " * (depth + 1)
    lines = [
        f"{indent}{name}: {_schema_text(one, schemas, depth + 1)}" for name, one in fields.items()
    ]
    return "{\n" + "\n".join(lines) + "\n" + "  " * depth + "}"
