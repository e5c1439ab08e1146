"""Codecs for classes that have no plain form of their own, registered by their authors."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path, PurePath
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

from aioflow.author.source_location import dag_error

__all__ = ("Codec", "codec_for", "codec_of", "register_codec")

T = TypeVar("T")

_BY_THEMSELVES = (date, datetime, time, timedelta, Decimal, UUID, Path, PurePath)
_NAME = "__aioflow_codec__"


class Codec(NamedTuple, Generic[T]):
    """Converts values of a class to plain data and back."""

    encode: Callable[[T], object]
    decode: Callable[[Any], T]


_foreign: dict[type, Codec[Any]] = {}
"""Codecs of classes that accept no new attributes. Other classes hold theirs as an attribute."""


def register_codec(
    cls: type[T], *, encode: Callable[[T], object], decode: Callable[[Any], T]
) -> None:
    """Register how values of a class are serialized in results, triggers, events and conf.

    Call it once, at the top level of a module that every task imports which uses such values. A
    value is restored where an annotation names the class; without one, the output of ``encode``
    is passed on.

    Args:
        cls: Any class except those that are serializable already. Applies to its subclasses too.
        encode: Returns serializable data; called in the process that has the value.
        decode: Recreates the value from that data.

    Raises:
        DagError: If ``cls`` is not a class, or is serializable already.
    """
    given: object = cls
    if not isinstance(given, type) or cls.__module__ == "builtins" or cls in _BY_THEMSELVES:
        raise dag_error(f"register_codec() takes a class of your own or of a library, not {cls!r}")
    codec = Codec(encode, decode)
    try:
        setattr(cls, _NAME, codec)
    except TypeError:
        _foreign[cls] = codec


def codec_of(cls: type) -> Codec[Any] | None:
    """Return the codec of a class, or that of its nearest base class with one."""
    for one in cls.__mro__:
        found = codec_for(one)
        if found is not None:
            return found
    return None


def codec_for(cls: type) -> Codec[Any] | None:
    """Return the codec of exactly this class."""
    found: Codec[Any] | None = cls.__dict__.get(_NAME)
    return _foreign.get(cls) if found is None and _foreign else found
