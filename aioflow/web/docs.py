"""The API documentation page, rendered from the OpenAPI document. No scripts, no external files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

__all__ = ("STYLE", "STYLE_PATH", "render")

STYLE_PATH = "/docs/style.css"

STYLE = """:root { color-scheme: light dark; --line: #8884; --soft: #777; }
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

_DEEPEST = 6


def render(described: Mapping[str, Any]) -> str:
    """Return the page as HTML."""
    found = list(_operations(described))
    links = "".join(
        f'<li><a href="#{escape(name)}"><code>{method} {escape(path)}</code></a></li>'
        for method, path, name, _ in found
    )
    schemas = described.get("components", {}).get("schemas", {})
    parts = "".join(_operation(*one, schemas) for one in found)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>aioflow API</title>'
        f'<link rel="stylesheet" href="{STYLE_PATH}"></head><body><h1>aioflow API</h1>'
        "<p>Errors are <code>application/problem+json</code> with a stable <code>code</code>. "
        'The same as data: <a href="/api/v1/openapi.json">openapi.json</a>.</p>'
        f"<nav><ul>{links}</ul></nav>{parts}</body></html>"
    )


def _operations(described: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Mapping[str, Any]]]:
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation["operationId"], operation


def _operation(
    method: str, path: str, name: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]
) -> str:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    takes = "" if body is None else f"<p>Takes</p>{_shape(body['schema'], schemas)}"
    return (
        f'<section><h2 id="{escape(name)}"><code>{method} {escape(path)}</code></h2>'
        f"<p>{escape(operation.get('description', ''))}</p>"
        f"{_parameters(operation.get('parameters', ()))}{takes}{_answer(operation, schemas)}"
        "</section>"
    )


def _parameters(parameters: Any) -> str:
    if not parameters:
        return ""
    rows = "".join(
        f"<tr><td><code>{escape(one['name'])}</code></td><td>{escape(one['in'])}</td>"
        f"<td><code>{escape(_typed(one['schema'], {}, _DEEPEST))}</code></td></tr>"
        for one in parameters
    )
    return f"<table><tr><th>Parameter</th><th>In</th><th></th></tr>{rows}</table>"


def _answer(operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    parts = []
    for status, answer in operation["responses"].items():
        if not status.startswith("2"):
            continue
        for kind, content in answer.get("content", {}).items():
            shape = _shape(content["schema"], schemas) if kind == "application/json" else ""
            parts.append(f'<p class="soft">{escape(status)} {escape(kind)}</p>{shape}')
    return "".join(parts)


def _shape(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    return f"<pre>{escape(_typed(schema, schemas, 0))}</pre>"


def _typed(schema: Any, schemas: Mapping[str, Any], depth: int) -> str:
    """Return a schema in a compact notation; deeply nested ones by name."""
    if not isinstance(schema, Mapping):
        return "any"
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        target = schemas.get(name)
        return name if target is None or depth >= _DEEPEST else _typed(target, schemas, depth)
    if "anyOf" in schema:
        return " | ".join(_typed(one, schemas, depth) for one in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(repr(one) for one in schema["enum"])
    kind = schema.get("type", "any")
    if kind == "array":
        inner = schema.get("items")
        return f"[{_typed(inner, schemas, depth)}, ...]" if inner else "[...]"
    if kind == "object":
        return _object(schema, schemas, depth)
    return str(kind)


def _object(schema: Mapping[str, Any], schemas: Mapping[str, Any], depth: int) -> str:
    fields = schema.get("properties")
    if fields is None:
        values = schema.get("additionalProperties")
        return f"{{name: {_typed(values, schemas, depth)}}}" if values else "{...}"
    indent = "  " * (depth + 1)
    lines = [f"{indent}{name}: {_typed(one, schemas, depth + 1)}" for name, one in fields.items()]
    return "{\n" + "\n".join(lines) + "\n" + "  " * depth + "}"
