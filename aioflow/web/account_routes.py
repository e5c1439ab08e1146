"""Routes for the caller's own account, sessions, users and tokens, and for the audit."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from fastapi import Depends, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from aioflow.api import Api
from aioflow.api.access.audit import audit_filter
from aioflow.api.paging import number_after, page_of, page_of_all
from aioflow.api.queries import PAGE
from aioflow.errors import KeyNotTaken, LoginFailed, RequestError, WrongPassword
from aioflow.model.access import HOME, Role
from aioflow.web.auth_context import RequestContext
from aioflow.web.csrf import set_cookie
from aioflow.web.permissions import By, Sent, admin, anybody, viewer
from aioflow.web.routing import CookieName, Count, CursorText, Json, NodeApi, Urls, api_router

__all__ = ("LoginBody", "NewTokenBody", "NewUserBody", "PasswordBody", "UserBody", "router")

_NUMBER = Annotated[int, Path(ge=0, le=1 << 62)]
_Role: TypeAlias = Literal["viewer", "operator", "admin"]


class LoginBody(BaseModel):
    """The credentials of a login."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    name: Annotated[str, Field(max_length=250)]
    password: Annotated[str, Field(max_length=4_096)]


class PasswordBody(BaseModel):
    """A password change. By default, ``name`` is the user of the session."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    name: Annotated[str | None, Field(max_length=250)] = None
    old: Annotated[str, Field(max_length=4_096)]
    new: Annotated[str, Field(max_length=4_096)]


class NewUserBody(BaseModel):
    """A new user."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    name: str
    password: str
    role: _Role = "viewer"
    groups: list[str] = []


class UserBody(BaseModel):
    """The properties of a user to change."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    password: str | None = None
    role: _Role | None = None
    disabled: bool | None = None
    groups: list[str] | None = None


class NewTokenBody(BaseModel):
    """A new token. By default it is valid for all DAGs and does not expire."""

    model_config = ConfigDict(extra="forbid")

    name: str
    role: _Role = "viewer"
    scopes: list[str] | None = None
    expires_at: str | None = None


router = api_router()


@router.get("/me", dependencies=[viewer(is_own=True)])
async def show_me(sent: Sent, urls: Urls) -> Response:
    """Show the caller's name, role and scopes, and the URL of the page for use in links."""
    caller = sent.caller
    if caller is None:
        raise RuntimeError("the guard let a request without context through")
    return Json(
        {
            "name": caller.name,
            "role": caller.role.label,
            "kind": caller.kind,
            "scopes": caller.scopes,
            "page_url": urls.public or (None if sent.address else urls.local or None),
        }
    )


@router.put("/me/password", dependencies=[anybody()])
async def change_password(api: NodeApi, body: PasswordBody, sent: Sent) -> Response:
    """Change a user's password, given the current one. The user's other sessions end."""
    caller = sent.caller
    own = caller if caller is not None and caller.kind == "session" else None
    if own is not None and own.name == HOME:
        own = None
    name = body.name if own is None or body.name is not None else own.name
    if name is None:
        raise RequestError("say whose password; only a user's session need not")
    keeps = own.number if own is not None and own.name == name else None
    try:
        changed = await api.access.change_password(
            name, body.old, body.new, address=sent.address, keeps=keeps
        )
    except WrongPassword:
        _name_user_in_audit(sent, name, api)
        raise
    return Json(changed)


def _name_user_in_audit(sent: RequestContext, name: str, api: Api) -> None:
    """Name the user in the audit entry for a wrong password."""
    # If no user has this name, it may be a password that was typed into the wrong field.
    if api.access.auth_cache.account(name) is not None:
        sent.target = name


@router.post("/sessions", status_code=201, dependencies=[anybody()])
async def log_in(
    api: NodeApi, body: LoginBody, request: Request, sent: Sent, cookie_name: CookieName
) -> Response:
    """Start a session and set its cookie. The session of a previous cookie is ended."""
    try:
        secret, session = await api.access.log_in(
            body.name,
            body.password,
            address=sent.address,
            cookie=cookie_name,
            replaces=sent.cookie,
            agent=request.headers.get("user-agent", ""),
        )
    except LoginFailed:
        _name_user_in_audit(sent, body.name, api)
        raise
    answer = Json(session, status_code=201)
    set_cookie(answer, request.scope, cookie_name, secret)
    return answer


@router.delete("/sessions/current", dependencies=[viewer(is_own=True)])
async def log_out(api: NodeApi, sent: Sent, by: By, cookie_name: CookieName) -> Response:
    """End the session that the request's cookie belongs to."""
    if sent.caller is None or sent.caller.kind != "session":
        raise RequestError("this is not a session; a token is revoked by an admin")
    answer = Json(await api.access.end_session(by, sent.caller.number))
    answer.delete_cookie(cookie_name, path="/", httponly=True)
    return answer


@router.get("/sessions", dependencies=[viewer()])
async def list_sessions(
    api: NodeApi, by: By, sent: Sent, limit: Count = PAGE, cursor: CursorText = None
) -> Response:
    """List active sessions. An admin sees all of them, other users only their own."""
    found = await api.access.list_sessions(of=_own(by.name, by.role), current=_session_no(sent))
    return Json(page_of_all("sessions", found, limit, cursor, lambda one: (one.session_id,)))


@router.delete("/sessions", dependencies=[viewer(is_own=True)])
async def end_other_sessions(api: NodeApi, sent: Sent, by: By) -> Response:
    """End all sessions of the caller, except the session that the request belongs to."""
    return Json(await api.access.end_other_sessions(by, keeps=_session_no(sent)))


def _session_no(sent: RequestContext) -> int | None:
    """Return the number of the session that a request belongs to, if it belongs to one."""
    caller = sent.caller
    return caller.number if caller is not None and caller.kind == "session" else None


@router.delete("/sessions/{session_id}", dependencies=[viewer()])
async def end_session(api: NodeApi, session_id: _NUMBER, by: By) -> Response:
    """End a session. Only an admin may end the sessions of other users."""
    return Json(await api.access.end_session(by, session_id, of=_own(by.name, by.role)))


async def _no_key(request: Request) -> None:
    """Reject an idempotency key.

    The response cannot be repeated, because its secret is not stored, but only a digest of it.
    """
    if "idempotency-key" in request.headers:
        raise KeyNotTaken


def _own(name: str, role: Role) -> str | None:
    return None if role is Role.ADMIN else name


@router.get("/users", dependencies=[admin()])
async def list_users(api: NodeApi, limit: Count = PAGE, cursor: CursorText = None) -> Response:
    """List the users by name."""
    found = await api.access.list_users()
    return Json(page_of_all("users", found, limit, cursor, lambda one: (one.name,)))


@router.post("/users", status_code=201, dependencies=[admin(), Depends(_no_key)])
async def create_user(api: NodeApi, body: NewUserBody, by: By) -> Response:
    """Create a user."""
    made = await api.access.create_user(by, body.name, body.password, body.role, body.groups)
    return Json(made, status_code=201)


@router.put("/users/{name}", dependencies=[admin()])
async def set_user(api: NodeApi, name: str, body: UserBody, by: By) -> Response:
    """Change the given properties of a user, and end the user's sessions."""
    return Json(
        await api.access.set_user(
            by,
            name,
            password=body.password,
            role=body.role,
            disabled=body.disabled,
            groups=body.groups,
        )
    )


@router.delete("/users/{name}", dependencies=[admin()])
async def delete_user(api: NodeApi, name: str, by: By) -> Response:
    """Delete a user, end the user's sessions and revoke the user's tokens."""
    return Json(await api.access.delete_user(by, name))


@router.get("/tokens", dependencies=[admin()])
async def list_tokens(api: NodeApi, limit: Count = PAGE, cursor: CursorText = None) -> Response:
    """List the tokens, without their secrets."""
    found = await api.access.list_tokens()
    return Json(page_of_all("tokens", found, limit, cursor, lambda one: (one.token_id,)))


@router.post("/tokens", status_code=201, dependencies=[admin(), Depends(_no_key)])
async def create_token(api: NodeApi, body: NewTokenBody, by: By) -> Response:
    """Create a token. Only this response contains its secret."""
    made = await api.access.create_token(
        by, body.name, body.role, scopes=body.scopes, expires_at=body.expires_at
    )
    return Json(made, status_code=201)


@router.delete("/tokens/{token_id}", dependencies=[admin()])
async def revoke_token(api: NodeApi, token_id: _NUMBER, by: By) -> Response:
    """Revoke a token. It remains in the list of tokens."""
    return Json(await api.access.revoke_token(by, token_id))


_AuditText = Annotated[str, Query(max_length=250)]


@router.get("/audit", dependencies=[admin()])
async def list_audit(
    api: NodeApi,
    actor: _AuditText = "",
    action: _AuditText = "",
    target: _AuditText = "",
    outcome: Literal["done", "refused"] | None = None,
    first: Annotated[str | None, Query(alias="from")] = None,
    last: Annotated[str | None, Query(alias="to")] = None,
    limit: Count = 100,
    cursor: CursorText = None,
    before: Annotated[int | None, Query(ge=0, le=1 << 62)] = None,
) -> Response:
    """List changes and denied requests, the newest first; with ``before``, those with lower ids.

    ``actor`` and ``target`` are parts of names. ``action`` is an action, or the noun of actions,
    such as ``run``.
    """
    named = {"actor": actor, "action": action, "target": target, "outcome": outcome}
    wanted = audit_filter({**named, "from": first, "to": last})
    after = number_after("audit", cursor)
    below = before if after is None else after
    found = await api.access.list_audit(wanted, before=below, limit=limit + 1)
    return Json(page_of("audit", found, limit, lambda one: (one.audit_id,)))


@router.get("/audit/{audit_id}", dependencies=[admin()])
async def show_audit(api: NodeApi, audit_id: _NUMBER) -> Response:
    """Show an audit entry. For an action on many runs, it contains all of their ids."""
    return Json(await api.access.show_audit(audit_id))
