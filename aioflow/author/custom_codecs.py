"""How classes travel that have no plain form of their own: as their authors say."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path, PurePath
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

from aioflow.author.source_location import wrong

__all__ = ("Codec", "codec_for", "codec_of", "register_codec")

T = TypeVar("T")

_BY_THEMSELVES = (date, datetime, time, timedelta, Decimal, UUID, Path, PurePath)
_NAME = "__aioflow_codec__"


class Codec(NamedTuple, Generic[T]):
    """Turns values of a class into plain data and back."""

    encode: Callable[[T], object]
    decode: Callable[[Any], T]


_foreign: dict[type, Codec[Any]] = {}
"""Those of classes that take no attribute. The others keep their own, and go with their module."""


def register_codec(
    cls: type[T], *, encode: Callable[[T], object], decode: Callable[[Any], T]
) -> None:
    """Let values of a class travel: as results, in triggers, events and conf.

    Say it once at the top of the module that every task which takes such a value imports. A value
    comes back where an annotation asks for the class; without one it is what ``encode`` made.

    Args:
        cls: Any class but those that travel by themselves; its subclasses travel as it does.
        encode: Returns what may travel; called in the process that has the value.
        decode: Makes a value of that.

    Raises:
        DagError: If ``cls`` is none, or travels by itself.
    """
    given: object = cls
    if not isinstance(given, type) or cls.__module__ == "builtins" or cls in _BY_THEMSELVES:
        raise wrong(f"register_codec() takes a class of your own or of a library, not {cls!r}")
    codec = Codec(encode, decode)
    try:
        setattr(cls, _NAME, codec)
    except TypeError:
        _foreign[cls] = codec


def codec_of(cls: type) -> Codec[Any] | None:
    """Return how values of a class are encoded, by itself or by the nearest class above it."""
    for one in cls.__mro__:
        found = codec_for(one)
        if found is not None:
            return found
    return None


def codec_for(cls: type) -> Codec[Any] | None:
    """Return the codec of this very class."""
    found: Codec[Any] | None = cls.__dict__.get(_NAME)
    return _foreign.get(cls) if found is None and _foreign else found
