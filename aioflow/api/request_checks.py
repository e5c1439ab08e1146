"""What people may give along with a request: ids, idempotency keys and confs."""

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
# No path that browsers shorten, and no flag of a command.
_ID = re.compile(r"(?!-)(?!\.{1,2}\Z)[A-Za-z0-9_.:+@=-]{1,250}")


def checked_id(run_id: str | None) -> str | None:
    """Return the id somebody chose for a run.

    Raises:
        RequestError: If it cannot be used.
    """
    if run_id is not None and not _ID.fullmatch(run_id):
        raise RequestError(
            f"the run id {run_id[:80]!r} cannot be used; take letters, digits and _ . : + @ = -, "
            "and begin with no -"
        )
    return run_id


def checked_key(key: str | None) -> str | None:
    """Return an idempotency key.

    Raises:
        RequestError: If it cannot be used.
    """
    if key is not None and not (0 < len(key) <= _KEY_LENGTH and key.isprintable()):
        raise RequestError(f"an idempotency key is 1 to {_KEY_LENGTH} printable characters")
    return key


def packed_conf(conf: Mapping[str, Any] | None) -> bytes | None:
    """Return a conf as it is stored; the order of its names does not tell two apart.

    Raises:
        BadConf: If it is too large, or holds what cannot be stored.
    """
    if not conf:
        return None
    try:
        return encode(dict(sorted(conf.items())), "the conf", _CONF_BYTES)
    except ValueTooLarge as exc:
        raise BadConf(str(exc)) from None


def packed_payload(payload: Any) -> bytes:
    """Return an event that a person gives by hand as it is stored.

    Raises:
        RequestError: If it is too large, or holds what cannot be stored.
    """
    try:
        return encode(payload, "the payload", _PAYLOAD_BYTES)
    except Unserializable as exc:
        raise RequestError(str(exc)) from None
