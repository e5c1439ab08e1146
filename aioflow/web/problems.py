"""Errors as the API tells them: problem+json with the stable code."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

import msgspec
from starlette.responses import Response

from aioflow.errors import (
    AioflowError,
    BackfillRefused,
    BadConf,
    BadEvent,
    BadValue,
    DaemonAway,
    DagBroken,
    DagPresent,
    DagRunning,
    NoSuchValue,
    RequestError,
    RunBeingDeleted,
    RunExists,
    StoreError,
    UnknownBackfill,
    UnknownDag,
    UnknownEvent,
    UnknownNode,
    UnknownRound,
    UnknownRun,
    UnknownTask,
    UnknownVersion,
    Unserializable,
)

__all__ = ("problem", "problem_of", "status_of")

_RETRY_SECONDS = 5

_STATUS: tuple[tuple[type[AioflowError], int], ...] = (
    (UnknownBackfill, 404),
    (UnknownDag, 404),
    (UnknownEvent, 404),
    (UnknownNode, 404),
    (UnknownVersion, 404),
    (UnknownRun, 404),
    (UnknownTask, 404),
    (UnknownRound, 404),
    (NoSuchValue, 404),
    (RunExists, 409),
    (RunBeingDeleted, 409),
    (BackfillRefused, 409),
    (DagBroken, 409),
    (DagPresent, 409),
    (DagRunning, 409),
    (BadConf, 422),
    (BadEvent, 422),
    (BadValue, 422),
    (Unserializable, 422),
    (RequestError, 400),
    (StoreError, 503),
    (DaemonAway, 503),
)


def status_of(error: AioflowError) -> int:
    """Return the HTTP status of an error of ours."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def problem_of(error: AioflowError) -> Response:
    """Return the answer to a request that ended in an error of ours."""
    status = status_of(error)
    headers = {"retry-after": str(_RETRY_SECONDS)} if status == 503 else {}
    return problem(status, error.code, str(error), headers)


def problem(
    status: int, code: str, detail: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a problem+json answer."""
    body = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
    }
    return Response(
        msgspec.json.encode(body),
        status_code=status,
        headers=dict(headers or {}),
        media_type="application/problem+json",
    )
