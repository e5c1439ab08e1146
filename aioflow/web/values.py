"""Routes for secrets, connections and variables. None of them returns a value."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Response
from pydantic import BaseModel, ConfigDict, Field

from aioflow.model.dag import ValueKind
from aioflow.web.permissions import Acting, admin
from aioflow.web.responses import Json
from aioflow.web.routing import NodeApi, api_router

__all__ = ("ValueBody", "router")

_NAME = Annotated[str, Path(max_length=250)]


class ValueBody(BaseModel):
    """A text for a secret, a URI or an object for a connection, any JSON for a variable."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    value: Annotated[Any, Field(...)]


router = api_router()


def _add_kind(kind: ValueKind) -> None:
    @router.get(
        f"/{kind}s",
        name=f"list_{kind}s",
        description=f"List the {kind}s, without values.",
        dependencies=[admin()],
    )
    async def list_values(api: NodeApi) -> Response:
        return Json(await api.values.list(kind))

    @router.put(
        f"/{kind}s/{{name:path}}",
        name=f"set_{kind}",
        description=f"Set a {kind}.",
        dependencies=[admin()],
    )
    async def set_value(name: _NAME, body: ValueBody, acting: Acting) -> Response:
        return Json(await acting.values.set(kind, name, body.value))

    @router.delete(
        f"/{kind}s/{{name:path}}",
        name=f"delete_{kind}",
        description=f"Delete a {kind}.",
        dependencies=[admin()],
    )
    async def delete_value(name: _NAME, acting: Acting) -> Response:
        return Json(await acting.values.delete(kind, name))


for _kind in ValueKind:
    _add_kind(_kind)


@router.post(
    "/secrets/rotate",
    name="rotate",
    description="Change the key of the home.",
    dependencies=[admin()],
)
async def rotate(acting: Acting) -> Response:
    return Json(await acting.rotate())
