"""Type checks of task arguments whose annotations are known.

Arguments are results of other tasks, parameters of the DAG, and literal values. An error is
reported only if it is certain: a value of the argument's type can never be used, or restored, as
the annotated type. If in doubt, an argument is accepted.
"""

from __future__ import annotations

import dataclasses
import inspect
import reprlib
import types
import typing
from collections import abc
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import (
    Annotated,
    Any,
    NewType,
    NotRequired,
    Required,
    TypeVar,
    Union,
    get_args,
    get_origin,
    is_typeddict,
)
from uuid import UUID

import msgspec

from aioflow.author.context import Parameter
from aioflow.author.decode import is_protocol
from aioflow.author.msgpack_forms import codec_of
from aioflow.author.node import (
    CHOOSING,
    FromParameter,
    FromSource,
    FromTask,
    LiteralValue,
    Node,
    Spread,
)
from aioflow.errors import EdgeMisfit

__all__ = ("fits", "misfits")

_LISTS = (
    *(list, tuple, set, frozenset, abc.Sequence, abc.MutableSequence, abc.Set, abc.MutableSet),
    *(abc.Collection, abc.Iterable, abc.Iterator),
)
_MAPS = (dict, abc.Mapping, abc.MutableMapping)
_FROM_TEXT = (str, bytes, date, datetime, time, timedelta, Decimal, UUID, PurePath, Enum)
_NUMBERS = (int, float, Decimal, timedelta, Enum)


def misfits(nodes: list[Node], parameters: Mapping[str, Parameter]) -> Iterator[EdgeMisfit]:
    """Yield an error for each argument whose value can never match the annotation."""
    for node in nodes:
        if node.fn is None:
            continue
        for name, binding in node.arguments.items():
            yield from _without_items(node, name, binding)
            if name not in node.annotations:
                continue
            wanted = node.annotations[name]
            for parent, given in _given(node, binding, nodes):
                if not fits(given, wanted):
                    source = repr(parent.task_id)
                    yield EdgeMisfit(node.task_id, name, _name(wanted), source, _name(given))
            yield from _unfit_parameter(node, name, binding, parameters)
            yield from _unfit_values(node, name, binding)


def _unfit_parameter(
    node: Node, name: str, binding: object, parameters: Mapping[str, Parameter]
) -> Iterator[EdgeMisfit]:
    if not isinstance(binding, FromParameter) or binding.keys or binding.name not in parameters:
        return
    given, wanted = parameters[binding.name].annotation, node.annotations[name]
    if not fits(given, wanted):
        source = f"the parameter {binding.name!r} of the DAG"
        yield EdgeMisfit(node.task_id, name, _name(wanted), source, _name(given))


def _unfit_values(node: Node, name: str, binding: object) -> Iterator[EdgeMisfit]:
    """Yield an error for each type of literal value that can never match the annotation."""
    wanted, seen = node.annotations[name], set[type]()
    for value in _values(node, binding):
        if type(value) not in seen and not _value_fits(value, wanted, node, name):
            shown = f"{reprlib.repr(value)}, of type {type(value).__name__},"
            yield EdgeMisfit(node.task_id, name, _name(wanted), "the DAG file", shown)
        seen.add(type(value))


def _values(node: Node, binding: object) -> Iterator[object]:
    """Yield the literal values of an argument: one, or one per child of a mapped task."""
    if isinstance(binding, LiteralValue):
        yield binding.value
    elif isinstance(binding, FromSource) and not binding.keys:
        source = node.sources[binding.source]
        if not source.functions and "zip" not in source.join:
            for leaf in source.leaves:
                yield from () if leaf.functions else leaf.values


def _value_fits(value: object, wanted: Any, node: Node, name: str) -> bool:
    """Return whether a literal matches a type. ``x: int = None`` accepts ``None`` as well."""
    if value is None and node.fn is not None:
        known = inspect.signature(node.fn).parameters.get(name)
        if known is not None and known.default is None:
            return True
    return fits(type(value), wanted)


def _without_items(node: Node, name: str, binding: object) -> Iterator[EdgeMisfit]:
    """Yield an error for each parent whose result is expanded over but can never be a list."""
    if not isinstance(binding, FromSource | Spread):
        return
    wanted = "Mapping" if isinstance(binding, Spread) else _name(node.annotations.get(name, Any))
    for leaf in node.sources[binding.source].leaves:
        parent = leaf.parent
        if parent is None or parent.is_mapped or not _is_known(parent):
            continue
        given = _returned(parent)
        if not _may_have_items(given):
            wanted_list = f"list[{wanted}]"
            yield EdgeMisfit(node.task_id, name, wanted_list, repr(parent.task_id), _name(given))


def _may_have_items(given: Any) -> bool:
    """Return whether a task can expand over a value of this type. A mapping is not accepted."""
    given = _bare(given)
    if _is_union(given):
        return any(_may_have_items(part) for part in get_args(given))
    origin = get_origin(given) or given
    if origin in {bytes, bytearray, str} or _is_map(origin):
        return False
    return fits(given, abc.Iterable)


def _given(node: Node, binding: object, nodes: list[Node]) -> Iterator[tuple[Node, Any]]:
    """Yield the parents of an argument whose result type is known, with that type."""
    if isinstance(binding, FromTask) and not binding.keys:
        parent = nodes[binding.task_index]
        if _is_known(parent):
            given = _returned(parent)
            is_one = binding.is_last or parent.task_index in node.along
            is_whole = parent.is_mapped and not is_one
            yield parent, (_sequence_of(given) if is_whole else given)
    elif isinstance(binding, FromSource) and not binding.keys:
        source = node.sources[binding.source]
        for leaf in () if source.functions or "zip" in source.join else source.leaves:
            if leaf.parent is None or leaf.functions or not _is_known(leaf.parent):
                continue
            given = _returned(leaf.parent)
            item = given if leaf.parent.is_mapped else _item(given)
            if item is not None:
                yield leaf.parent, item


def _returned(parent: Node) -> Any:
    """Return the type of a task's result; for a generator, a sequence of what it yields."""
    given = parent.annotations["return"]
    if inspect.isasyncgenfunction(parent.fn):
        items = get_args(given)
        return _sequence_of(items[0]) if items else list
    return given


def _sequence_of(given: Any) -> Any:
    return abc.Sequence[given]


def _is_known(parent: Node) -> bool:
    has_own_result = parent.sensor is None and parent.part not in CHOOSING
    return parent.fn is not None and has_own_result and "return" in parent.annotations


def _item(given: Any) -> Any:
    """Return the item type of a list type; ``None`` if it is not known."""
    origin, args = get_origin(given), get_args(given)
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return args[0]
    if isinstance(origin, type) and _is_list(origin) and len(args) == 1:
        return args[0]
    return None


def fits(given: Any, wanted: Any) -> bool:
    """Return whether a value of type ``given`` may be used as ``wanted``; ``True`` in doubt."""
    given, wanted = _bare(given), _bare(wanted)
    if _is_open(given) or _is_open(wanted):
        return True
    if _is_union(given):
        return any(fits(part, wanted) for part in get_args(given))
    if _is_union(wanted):
        return any(fits(given, part) for part in get_args(wanted))
    if get_origin(given) is typing.Literal:
        return any(fits(type(value), wanted) for value in get_args(given))
    if get_origin(wanted) is typing.Literal:
        return any(fits(given, type(value)) for value in get_args(wanted))
    return _classes_fit(given, wanted)


def _bare(annotation: Any) -> Any:
    if annotation is None:
        return type(None)
    while True:
        if isinstance(annotation, NewType):
            annotation = annotation.__supertype__
        elif get_origin(annotation) in {Annotated, Required, NotRequired}:
            annotation = get_args(annotation)[0]
        else:
            return annotation


def _is_open(annotation: Any) -> bool:
    if annotation is Any or annotation is object or isinstance(annotation, TypeVar):
        return True
    if _is_union(annotation) or get_origin(annotation) is typing.Literal:
        return False
    origin = get_origin(annotation) or annotation
    if not isinstance(origin, type) or codec_of(origin) is not None:
        return True
    if is_protocol(origin):
        return True
    is_known = _is_list(origin) or _is_map(origin)
    return origin.__module__ == "collections.abc" and not is_known


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in {Union, types.UnionType}


def _classes_fit(given: Any, wanted: Any) -> bool:
    one, other = get_origin(given) or given, get_origin(wanted) or wanted
    if _is_list(one) and _is_list(other):
        return _lists_fit(given, wanted)
    if _is_map(one) and _is_map(other):
        return _maps_fit(get_args(given), get_args(wanted))
    if _is_record(one) or _is_record(other):
        return (_is_record(one) or _is_map(one)) and (_is_record(other) or _is_map(other))
    if str in {one, other} and (_is_list(one) or _is_list(other)):
        return False  # str is a Sequence[str] in Python, but passing it as one is a mistake
    if issubclass(one, other) or issubclass(other, one):
        return True
    if one is str:
        return issubclass(other, _FROM_TEXT)
    if issubclass(one, int | float):
        return issubclass(other, _NUMBERS)
    if issubclass(one, _FROM_TEXT) and issubclass(other, date):
        return issubclass(one, date)
    return False


def _lists_fit(given: Any, wanted: Any) -> bool:
    mine, theirs = _item(given), _item(wanted)
    return mine is None or theirs is None or fits(mine, theirs)


def _maps_fit(given: tuple[Any, ...], wanted: tuple[Any, ...]) -> bool:
    if len(given) != 2 or len(wanted) != 2:
        return True
    return all(fits(one, other) for one, other in zip(given, wanted, strict=True))


def _is_list(cls: Any) -> bool:
    return isinstance(cls, type) and not issubclass(cls, str | bytes) and cls in _LISTS


def _is_map(cls: Any) -> bool:
    return isinstance(cls, type) and (cls in _MAPS or (issubclass(cls, dict) or is_typeddict(cls)))


def _is_record(cls: Any) -> bool:
    return isinstance(cls, type) and (
        dataclasses.is_dataclass(cls) or issubclass(cls, msgspec.Struct) or is_typeddict(cls)
    )


def _name(annotation: Any) -> str:
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return "None" if annotation is type(None) else annotation.__name__
    return str(annotation).replace("collections.abc.", "").replace("typing.", "")
