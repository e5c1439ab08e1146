"""Error responses: ``application/problem+json`` with a stable code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from aioflow.errors import (
    AccountExists,
    AccountRefused,
    AioflowError,
    AlreadyVoted,
    BackfillRefused,
    BadAnswer,
    BadConf,
    BadEvent,
    BadLink,
    BadValue,
    DaemonAway,
    DaemonStopping,
    DagBroken,
    DagPresent,
    DagRunning,
    DecisionEnded,
    Forbidden,
    LoginFailed,
    NoActiveNode,
    NodeBehind,
    NoSuchValue,
    NotAssigned,
    OutOfScope,
    RequestError,
    RunBeingDeleted,
    RunExists,
    RunQuarantined,
    StoreError,
    TimetableAway,
    TimetableFailed,
    TimetableSilent,
    TokenExists,
    TooManyAnswers,
    TooManyLogins,
    UnknownAccount,
    UnknownAsset,
    UnknownAuditEntry,
    UnknownBackfill,
    UnknownClass,
    UnknownDag,
    UnknownDecision,
    UnknownEvent,
    UnknownNode,
    UnknownRound,
    UnknownRun,
    UnknownSession,
    UnknownTask,
    UnknownToken,
    UnknownTrigger,
    UnknownVersion,
    Unserializable,
    VersionDiffers,
    WrongPassword,
)
from aioflow.web.auth_context import request_context

__all__ = ("problem", "problem_of", "status_of")

_RETRY_SECONDS = 5
_TAKEOVER_SECONDS = 1
_ADVICE = re.compile(r"; (see `aioflow [^`]*`)\Z")

_STATUS: tuple[tuple[type[AioflowError], int], ...] = (
    (LoginFailed, 401),
    (Forbidden, 403),
    (OutOfScope, 403),
    (WrongPassword, 403),
    (TooManyLogins, 429),
    (TooManyAnswers, 429),
    (BadLink, 403),
    (NotAssigned, 403),
    (UnknownDecision, 404),
    (DecisionEnded, 409),
    (AlreadyVoted, 409),
    (BadAnswer, 422),
    (UnknownAccount, 404),
    (UnknownAsset, 404),
    (UnknownToken, 404),
    (UnknownSession, 404),
    (UnknownAuditEntry, 404),
    (AccountExists, 409),
    (TokenExists, 409),
    (AccountRefused, 422),
    (UnknownBackfill, 404),
    (UnknownTrigger, 404),
    (UnknownClass, 404),
    (UnknownDag, 404),
    (UnknownEvent, 404),
    (UnknownNode, 404),
    (UnknownVersion, 404),
    (VersionDiffers, 409),
    (UnknownRun, 404),
    (UnknownTask, 404),
    (UnknownRound, 404),
    (NoSuchValue, 404),
    (RunExists, 409),
    (RunQuarantined, 409),
    (RunBeingDeleted, 409),
    (BackfillRefused, 409),
    (DagBroken, 409),
    (DagPresent, 409),
    (DagRunning, 409),
    (TimetableFailed, 409),
    (TimetableAway, 503),
    (TimetableSilent, 504),
    (BadConf, 422),
    (BadEvent, 422),
    (BadValue, 422),
    (Unserializable, 422),
    (RequestError, 400),
    (StoreError, 503),
    (DaemonAway, 503),
    (DaemonStopping, 503),
    (NoActiveNode, 503),
    (NodeBehind, 503),
)


def status_of(error: AioflowError) -> int:
    """Return the HTTP status for an aioflow error."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def problem_of(error: AioflowError) -> Response:
    """Return the error response for an aioflow error."""
    status = status_of(error)
    headers = {"retry-after": str(_RETRY_SECONDS)} if status == 503 else {}
    if isinstance(error, NoActiveNode | NodeBehind):
        headers["retry-after"] = str(_TAKEOVER_SECONDS)
    if isinstance(error, TooManyLogins | TooManyAnswers):
        headers["retry-after"] = str(error.again_seconds)
    detail, advice = _without_advice(str(error))
    members = _members(error) | ({"advice": advice} if advice else {})
    return _Problem(status, error.code, detail, headers, members)


def _without_advice(message: str) -> tuple[str, str]:
    """Return a message without the advice at its end to run a command, and that advice."""
    found = _ADVICE.search(message)
    return (message, "") if found is None else (message[: found.start()], found[1])


def _members(error: AioflowError) -> dict[str, Any]:
    """Return the members that only error responses of this kind have."""
    match error:
        case BadAnswer():
            return {
                "errors": [{"field": name, "detail": why} for name, why in error.fields.items()]
            }
        case DecisionEnded():
            answer = None if error.answer is None else msgspec.msgpack.decode(error.answer)
            return {"state": error.outcome, "answer": answer}
        case _:
            return {}


def problem(
    status: int, code: str, detail: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an error response with the id of the request, which is also in the daemon's log."""
    return _Problem(status, code, detail, headers or {}, {})


class _Problem(Response):
    media_type = "application/problem+json"

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        headers: Mapping[str, str],
        members: Mapping[str, Any],
    ) -> None:
        self._code = code
        self._said = {
            "type": "about:blank",
            "title": HTTPStatus(status).phrase,
            "status": status,
            "detail": detail,
            "code": code,
            **members,
        }
        super().__init__(msgspec.json.encode(self._said), status, dict(headers))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response. Add the id of the request."""
        context = request_context(scope)
        if context is not None:
            context.code = self._code
            said = {**self._said, "instance": f"urn:aioflow:request:{context.request_id}"}
            self.body = msgspec.json.encode(said)
            self.headers["content-length"] = str(len(self.body))
        await super().__call__(scope, receive, send)
