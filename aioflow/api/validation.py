"""Validation of requests: run ids, idempotency keys, payloads, and confs against DAG parameters.

Schemas of parameters are checked in another process, because matching a ``pattern`` may take
forever and would block the event loop.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import anyio
from anyio import to_process

from aioflow.author.codec import encode
from aioflow.author.params import schema_misfit, type_misfit
from aioflow.core.state.memory import Memory
from aioflow.errors import BadConf, RequestError, Unserializable, ValueTooLarge
from aioflow.model.dag import DagSpec

__all__ = (
    "check_params",
    "checked_idempotency_key",
    "checked_run_id",
    "packed_conf",
    "packed_payload",
    "params_view",
)

_KEY_LENGTH = 250
_CONF_BYTES = 1024 * 1024
_PAYLOAD_BYTES = 64 * 1024
# Excludes ``.`` and ``..``, which browsers resolve in URL paths, and ids that look like options.
_RUN_ID = re.compile(r"(?!-)(?!\.{1,2}\Z)[A-Za-z0-9_.:+@=-]{1,250}")


def checked_run_id(run_id: str | None) -> str | None:
    """Return a run id chosen by the caller, if it is valid.

    Raises:
        RequestError: If it is invalid.
    """
    if run_id is not None and not _RUN_ID.fullmatch(run_id):
        raise RequestError(
            f"the run id {run_id[:80]!r} cannot be used; take letters, digits and _ . : + @ = -, "
            "and begin with no -"
        )
    return run_id


def checked_idempotency_key(key: str | None) -> str | None:
    """Return an idempotency key, if it is valid.

    Raises:
        RequestError: If it is invalid.
    """
    if key is not None and not (0 < len(key) <= _KEY_LENGTH and key.isprintable()):
        raise RequestError(f"an idempotency key is 1 to {_KEY_LENGTH} printable characters")
    return key


def packed_conf(conf: Mapping[str, Any] | None) -> bytes | None:
    """Encode a conf for the store. It is sorted by name, so that equal confs have equal bytes.

    Raises:
        BadConf: If it is too large, or contains a value that cannot be stored.
    """
    if not conf:
        return None
    try:
        return encode(dict(sorted(conf.items())), "the conf", _CONF_BYTES)
    except ValueTooLarge as exc:
        raise BadConf(str(exc)) from None


def packed_payload(payload: Any) -> bytes:
    """Encode the payload of a manually fired event for the store.

    Raises:
        RequestError: If it is too large, or contains a value that cannot be stored.
    """
    try:
        return encode(payload, "the payload", _PAYLOAD_BYTES)
    except Unserializable as exc:
        raise RequestError(str(exc)) from None


_SCHEMA_CHECK_SECONDS = 5.0


async def check_params(memory: Memory, dag_id: str, conf: Mapping[str, Any] | None) -> None:
    """Reject a conf that does not fit its DAG. This is cheap if no parameter has a schema.

    Raises:
        BadConf: If a value does not fit its type or schema, or the check takes too long.
    """
    dag = memory.newest(dag_id)
    wrong = None if dag is None else type_misfit(dag.types, conf or {})
    if wrong is not None:
        raise BadConf(wrong)
    schemas = {} if dag is None else {p.name: p.schema for p in dag.params}
    given = {name: value for name, value in (conf or {}).items() if name in schemas}
    if not given:
        return
    try:
        with anyio.fail_after(_SCHEMA_CHECK_SECONDS):
            why = await to_process.run_sync(schema_misfit, schemas, given, cancellable=True)
    except TimeoutError:
        raise BadConf(
            f"a parameter could not be checked within {_SCHEMA_CHECK_SECONDS:g} s"
        ) from None
    if why is not None:
        raise BadConf(why)


def params_view(dag: DagSpec) -> dict[str, dict[str, Any]]:
    """Return the schema of each parameter that has one, with its default unless it is required."""
    return {
        param.name: {
            "schema": json.loads(param.schema),
            **({} if param.default is None else {"default": json.loads(param.default)}),
        }
        for param in dag.params
    }
