"""Conversion of decoded values to their annotated types: the inverse of encoding.

Also reads data written by hand: in the JSON conf of a run, dates, decimals and durations are text.
Annotations are hints, as everywhere in Python: a value that is not the plain form of its annotated
type (an int annotated as str, ``None`` from a parent without a result) is passed unchanged, unless
``strict`` is set.
"""

from __future__ import annotations

import base64
import dataclasses
import sys
import types
from collections import abc
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import lru_cache
from pathlib import Path, PurePath
from typing import (
    Annotated,
    Any,
    Literal,
    NewType,
    NotRequired,
    Protocol,
    Required,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)
from uuid import UUID

import msgspec

from aioflow.author.duration import microseconds
from aioflow.author.msgpack_forms import Codec, codec_for
from aioflow.errors import AioflowError, Unserializable

__all__ = (
    "is_plain",
    "is_protocol",
    "restore",
    "type_hints",
)


def type_hints(owner: Any) -> dict[str, Any]:
    """Return the resolved annotations of a function or class.

    A name that cannot be resolved (imported for type checkers only, or local to a function)
    leaves its parameter unannotated: its values are then passed as they were decoded.
    """
    try:
        return get_type_hints(owner)
    except (NameError, AttributeError, TypeError, SyntaxError):
        return _hints_one_by_one(owner)


def _hints_one_by_one(owner: Any) -> dict[str, Any]:
    classes = reversed(owner.__mro__) if isinstance(owner, type) else [owner]
    found: dict[str, Any] = {}
    for holder in classes:
        names = dict(vars(sys.modules.get(holder.__module__, sys)))
        names |= getattr(holder, "__globals__", {})
        for name, annotation in getattr(holder, "__annotations__", {}).items():
            resolved = _resolved_hint(annotation, names)
            if resolved is not None:
                found[name] = resolved
    return found


def _resolved_hint(annotation: Any, names: dict[str, Any]) -> Any:
    def probe() -> None: ...

    probe.__annotations__ = {"it": annotation}
    try:
        return get_type_hints(probe, globalns=names)["it"]
    except (NameError, AttributeError, TypeError, SyntaxError):
        return None


_PLAIN = (str, int, bool, bytes, object, type(None), Any)
_LISTS = (list, abc.Sequence, abc.Iterable, abc.Collection, abc.MutableSequence)
_SETS = (set, frozenset, abc.Set, abc.MutableSet)
_MAPS = (dict, abc.Mapping, abc.MutableMapping)


def restore(value: Any, annotation: Any, where: str, *, strict: bool = False) -> Any:
    """Return ``value`` converted to its annotation.

    Args:
        value: Decoded data.
        annotation: A resolved type; ``Any`` leaves the value unchanged.
        where: Names the value in the error.
        strict: Whether to raise for a value of another type, instead of returning it unchanged.

    Raises:
        Unserializable: If it has the plain form of the annotated type, but is invalid.
    """
    if not strict:
        if type(value) is annotation and annotation in _LEAVES:
            return value
        if annotation is Any or is_plain(annotation):
            return value
    return _Restorer(strict).restore(value, annotation, where)


def is_plain(annotation: Any) -> bool:
    """Return whether restoring never changes a value, since the annotation has only JSON types."""
    try:
        return _is_plain_cached(annotation)
    except TypeError:  # unhashable, such as Annotated[int, []]
        return False


@lru_cache(maxsize=4096)
def _is_plain_cached(annotation: Any) -> bool:
    if annotation in _PLAIN:
        return True
    origin = get_origin(annotation)
    if origin in {list, dict, Union, types.UnionType} or origin in _LISTS or origin in _MAPS:
        return all(is_plain(part) for part in get_args(annotation))
    return annotation in {list, dict}


def is_protocol(annotation: Any) -> bool:
    """Return whether the annotation is a protocol: a class that names ``Protocol`` as a base."""
    cls = get_origin(annotation) or annotation
    return cls is Protocol or Protocol in getattr(cls, "__bases__", ())


class _Misfit(Exception):
    """Raised for a value that is neither of the annotated type nor in its plain form."""


class _Restorer:
    def __init__(self, strict: bool) -> None:
        self._strict = strict

    def restore(self, value: Any, annotation: Any, where: str) -> Any:
        try:
            return self._restored(value, annotation, where)
        except _Misfit:
            if self._strict:
                wanted = getattr(annotation, "__name__", str(annotation))
                raise Unserializable(
                    where, type(value).__name__, f"{value!r} is not {wanted}"
                ) from None
            return value

    def _restored(self, value: Any, annotation: Any, where: str) -> Any:
        if annotation is Any or annotation is object or isinstance(annotation, TypeVar):
            return value
        if isinstance(annotation, NewType):
            return self._restored(value, annotation.__supertype__, where)
        if value is None:
            return self._none(annotation)
        origin = get_origin(annotation) or annotation
        if origin in {Annotated, Required, NotRequired}:
            return self._restored(value, get_args(annotation)[0], where)
        if origin in {Union, types.UnionType}:
            return self._one_of(value, get_args(annotation), where)
        if origin is Literal:
            return self._literal(value, get_args(annotation))
        if not isinstance(origin, type):
            return value
        return self._as_type(value, origin, annotation, where)

    def _none(self, annotation: Any) -> None:
        if annotation is None or annotation is type(None):
            return
        if get_origin(annotation) in {Union, types.UnionType} and type(None) in get_args(
            annotation
        ):
            return
        raise _Misfit

    def _as_type(self, value: Any, cls: type, annotation: Any, where: str) -> Any:
        leaf = _LEAVES.get(cls)
        if leaf is not None:
            return self._leaf(value, cls, leaf, where)
        codec = codec_for(cls)
        if codec is not None:
            return _registered(value, cls, codec, where)
        if issubclass(cls, Enum):
            return self._leaf(value, cls, lambda plain: _enum_member(cls, plain), where)
        if issubclass(cls, PurePath):
            return self._leaf(value, cls, _text_to(cls), where)
        if is_typeddict(cls):
            return self._typed_dict(value, cls, where)
        if cls in _MAPS:
            return self._map(value, get_args(annotation), where)
        if cls is tuple or hasattr(cls, "_fields"):
            return self._tuple(value, cls, annotation, where)
        if cls in _LISTS or cls in _SETS:
            return self._items(value, cls, get_args(annotation), where)
        if dataclasses.is_dataclass(cls) or issubclass(cls, msgspec.Struct):
            return self._object(value, cls, where)
        if is_protocol(cls):
            return value  # whatever the protocol requires, the value is plain data
        if isinstance(value, cls):
            return value
        raise _Misfit

    def _leaf(self, value: Any, cls: type, read: Callable[[Any], Any], where: str) -> Any:
        if type(value) is cls:
            return value
        try:
            return read(value)
        except (ValueError, ArithmeticError, AioflowError, KeyError) as exc:
            raise Unserializable(
                where, type(value).__name__, f"{value!r} is no {cls.__name__}"
            ) from exc

    def _literal(self, value: Any, options: tuple[Any, ...]) -> Any:
        for option in options:
            plain = option.value if isinstance(option, Enum) else option
            if value == plain and type(value) is type(plain):
                return option
        raise _Misfit

    def _one_of(self, value: Any, options: tuple[Any, ...], where: str) -> Any:
        """Return the value unchanged if one of the types allows it, else the first conversion."""
        if value is None and type(None) in options:
            return None
        for option in options:
            if isinstance(option, type) and type(value) is option:
                return _Restorer(strict=True).restore(value, option, where)
        for option in options:
            try:
                return _Restorer(strict=True).restore(value, option, where)
            except Unserializable:
                continue  # another option may match
        raise _Misfit

    def _map(self, value: Any, parts: tuple[Any, ...], where: str) -> Any:
        if isinstance(value, list) and all(
            type(pair) is tuple and len(pair) == 2 for pair in value
        ):
            pairs = value  # pairs, because the keys cannot be hashed until they are restored
        elif isinstance(value, dict):
            pairs = list(value.items())
        else:
            raise _Misfit
        if len(parts) != 2:
            return value
        return {
            self.restore(key, parts[0], f"a key of {where}"): self.restore(
                item, parts[1], f"{where}[{key!r}]"
            )
            for key, item in pairs
        }

    def _items(self, value: Any, cls: type, parts: tuple[Any, ...], where: str) -> Any:
        if not isinstance(value, list | tuple | set | frozenset):
            raise _Misfit
        part = parts[0] if parts else Any
        items: Any = value
        if not is_plain(part) or self._strict:
            items = [
                self.restore(item, part, f"{where}[{index}]") for index, item in enumerate(value)
            ]
        if cls in _SETS:
            wanted = frozenset if cls is frozenset else set
            return items if type(items) is wanted else wanted(items)
        # An abstract Sequence may stay a tuple; a list must be a list.
        is_content = type(value) is not set and cls is not list
        return items if is_content and items is value else list(items)

    def _tuple(self, value: Any, cls: type, annotation: Any, where: str) -> Any:
        if not isinstance(value, list | tuple):
            raise _Misfit
        if cls is not tuple:
            fields = type_hints(cls)
            names: tuple[str, ...] = cls._fields  # type: ignore[attr-defined]  # a NamedTuple
            parts = tuple(fields.get(name, Any) for name in names)
            items = self._each(value, parts, where)
            try:
                return cls(*items)
            except TypeError as exc:
                raise Unserializable(where, type(value).__name__, str(exc)) from exc
        parts = get_args(annotation)
        if len(parts) == 2 and parts[1] is Ellipsis:
            parts = (parts[0],) * len(value)
        return tuple(self._each(value, parts, where))

    def _each(self, value: Any, parts: tuple[Any, ...], where: str) -> list[Any]:
        if parts and len(parts) != len(value):
            raise _Misfit
        parts = parts or (Any,) * len(value)
        return [
            self.restore(item, part, f"{where}[{index}]")
            for index, (item, part) in enumerate(zip(value, parts, strict=True))
        ]

    def _typed_dict(self, value: Any, cls: type, where: str) -> Any:
        if not isinstance(value, dict):
            raise _Misfit
        fields = type_hints(cls)
        missing = [
            name
            for name in getattr(cls, "__required_keys__", ())
            if self._strict and name not in value
        ]
        if missing:
            raise Unserializable(where, "dict", f"{', '.join(sorted(missing))} is missing")
        return {
            name: self.restore(item, fields.get(name, Any), f"{where}[{name!r}]")
            for name, item in value.items()
        }

    def _object(self, value: Any, cls: type, where: str) -> Any:
        if isinstance(value, cls):
            return value
        if not isinstance(value, dict):
            raise _Misfit
        annotations, settable = type_hints(cls), _init_names(cls)
        unknown = [name for name in value if name not in annotations and name not in settable]
        if unknown:
            raise Unserializable(where, "dict", f"{cls.__name__} has no field {unknown[0]!r}")
        fields = {
            name: self.restore(item, annotations.get(name, Any), f"{where}.{name}")
            for name, item in value.items()
        }
        try:
            made = cls(**{name: item for name, item in fields.items() if name in settable})
        except (TypeError, ValueError) as exc:
            raise Unserializable(where, "dict", f"no {cls.__name__}: {exc}") from exc
        for name in fields.keys() - settable:  # set by __post_init__ in the original, copied here
            object.__setattr__(made, name, fields[name])
        return made


def _registered(value: Any, cls: type, codec: Codec[Any], where: str) -> Any:
    if isinstance(value, cls):
        return value
    try:
        return codec.decode(value)
    except Exception as exc:
        why = f"the codec of {cls.__name__} raised {type(exc).__name__}: {exc}"
        raise Unserializable(where, type(value).__name__, why) from exc


def _init_names(cls: Any) -> frozenset[str]:
    if dataclasses.is_dataclass(cls):
        return frozenset(field.name for field in dataclasses.fields(cls) if field.init)
    return frozenset(cls.__struct_fields__)


# ── plain forms of single values ────────────────────────────────────────────────────────


def _exactly(cls: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if isinstance(value, cls):
            return value
        raise _Misfit

    return read


def _text_to(make: Callable[[str], Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if isinstance(value, str | PurePath):
            return make(str(value))
        raise _Misfit

    return read


def _to_int(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise _Misfit


def _to_float(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise _Misfit


def _to_decimal(value: Any) -> Decimal:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            # Converted through text, so that 0.1 stays 0.1.
            made = Decimal(str(value))
        except InvalidOperation as exc:
            raise ValueError(str(value)) from exc
        if made.is_finite():
            return made
        raise ValueError(str(value))
    raise _Misfit


def _to_date(value: Any) -> date:
    if isinstance(value, str):
        return date.fromisoformat(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    raise _Misfit


def _to_timedelta(value: Any) -> timedelta:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return timedelta(microseconds=microseconds(value, "duration"))
    raise _Misfit


def _to_bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return base64.b64decode(value, validate=True)
    raise _Misfit


def _enum_member(cls: type[Enum], plain: Any) -> Enum:
    if isinstance(plain, cls):
        return plain
    for member in cls:
        # In Python ``True == 1``, so a bool matches only a member whose value is a bool.
        if member.value == plain and (type(member.value) is type(plain) or not _is_bool(plain)):
            return member
    raise ValueError(plain)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


_LEAVES: Mapping[type, Callable[[Any], Any]] = {
    str: _exactly(str),
    bool: _exactly(bool),
    int: _to_int,
    float: _to_float,
    bytes: _to_bytes,
    Decimal: _to_decimal,
    date: _to_date,
    datetime: _text_to(datetime.fromisoformat),
    time: _text_to(time.fromisoformat),
    timedelta: _to_timedelta,
    UUID: _text_to(UUID),
    Path: _text_to(Path),
    PurePath: _text_to(PurePath),
}
