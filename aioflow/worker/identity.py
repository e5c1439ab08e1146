"""The version of aioflow in an interpreter, from which a daemon decides whether it can be used.

The daemon runs this module in each interpreter of the settings, before it starts children there. It
does not run in the children themselves, because it imports all roles and computes a digest of all
messages.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

import msgspec

__all__ = ("MEANING", "ROLES", "identity", "protocol_digest")

MEANING = 1
"""Version of the meaning of messages.

Raise it if messages change their meaning, not their structure.
"""

ROLES = (
    "aioflow.worker.__main__",
    "aioflow.worker.callbacks",
    "aioflow.worker.coroutines",
    "aioflow.worker.parser",
    "aioflow.worker.slot",
    "aioflow.worker.triggerer",
)
"""The modules that children import."""

_MESSAGES = (
    "aioflow.model.dag",
    "aioflow.model.states",
    "aioflow.model.triggers",
    "aioflow.protocol.commands",
    "aioflow.protocol.outbox",
    "aioflow.protocol.reports",
    "aioflow.worker.query.messages",
    "aioflow.worker.query.result_transfer",
)
_DISTRIBUTIONS = ("aioflow-worker", "aioflow-engine")


def identity() -> dict[str, str]:
    """Return the release of aioflow, its distribution, and the digest of its messages.

    Raises:
        ImportError: If a library that children need is missing.
    """
    for role in ROLES:
        import_module(role)
    return {"protocol": protocol_digest(), **_distribution()}


def _distribution() -> dict[str, str]:
    for name in _DISTRIBUTIONS:
        try:
            return {"distribution": name, "release": version(name)}
        except PackageNotFoundError:
            continue
    return {"distribution": "aioflow", "release": "unknown"}


def protocol_digest() -> str:
    """Return a digest of the structure of all messages between a daemon and its children.

    It is the same in every version of Python, because it covers the annotations as they are
    written.
    """
    digest = hashlib.sha256(str(MEANING).encode())
    for name in _MESSAGES:
        for line in _structures(import_module(name)):
            digest.update(f"{line}\n".encode())
    return digest.hexdigest()[:16]


def _structures(module: ModuleType) -> Iterator[str]:
    for name, found in sorted(vars(module).items()):
        if not isinstance(found, type) or found.__module__ != module.__name__:
            continue
        if issubclass(found, msgspec.Struct):
            yield f"{name} {_shape(found)}"
        elif issubclass(found, Enum):
            yield f"{name} {[(one.name, one.value) for one in found]}"


def _shape(struct: type[msgspec.Struct]) -> str:
    config = struct.__struct_config__
    annotations: dict[str, object] = {}
    for base in reversed(struct.__mro__[:-2]):
        annotations |= inspect.get_annotations(base)
    fields = [f"{name}: {annotations.get(name)}" for name in struct.__struct_encode_fields__]
    return f"{config.tag} {config.array_like} {fields}"
