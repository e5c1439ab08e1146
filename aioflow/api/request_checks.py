"""Validation of request parameters: run ids, idempotency keys, confs and payloads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from aioflow.author.codec import encode
from aioflow.errors import BadConf, RequestError, Unserializable, ValueTooLarge

__all__ = ("checked_id", "checked_key", "packed_conf", "packed_payload")

_KEY_LENGTH = 250
_CONF_BYTES = 1024 * 1024
_PAYLOAD_BYTES = 64 * 1024
# Excludes ``.`` and ``..``, which browsers resolve in paths, and command-line flags.
_ID = re.compile(r"(?!-)(?!\.{1,2}\Z)[A-Za-z0-9_.:+@=-]{1,250}")


def checked_id(run_id: str | None) -> str | None:
    """Return a run id chosen by the caller, if it is valid.

    Raises:
        RequestError: If it is invalid.
    """
    if run_id is not None and not _ID.fullmatch(run_id):
        raise RequestError(
            f"the run id {run_id[:80]!r} cannot be used; take letters, digits and _ . : + @ = -, "
            "and begin with no -"
        )
    return run_id


def checked_key(key: str | None) -> str | None:
    """Return an idempotency key, if it is valid.

    Raises:
        RequestError: If it is invalid.
    """
    if key is not None and not (0 < len(key) <= _KEY_LENGTH and key.isprintable()):
        raise RequestError(f"an idempotency key is 1 to {_KEY_LENGTH} printable characters")
    return key


def packed_conf(conf: Mapping[str, Any] | None) -> bytes | None:
    """Encode a conf for the store, sorted by name so that equal confs have equal bytes.

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
    """Encode the payload of a manually given event for the store.

    Raises:
        RequestError: If it is too large, or contains a value that cannot be stored.
    """
    try:
        return encode(payload, "the payload", _PAYLOAD_BYTES)
    except Unserializable as exc:
        raise RequestError(str(exc)) from None
