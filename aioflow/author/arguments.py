"""Binding of call arguments in a DAG, and collection of the parents that they refer to."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from inspect import Parameter
from typing import Any

from aioflow.author.context import INJECTED, ParameterRef, context_hint
from aioflow.author.node import (
    Binding,
    FromContext,
    FromRound,
    FromSource,
    LiteralValue,
    Nested,
    Node,
    Placeholder,
    Source,
    Spread,
)
from aioflow.author.ref import GroupItem, Items, Linked, Previous, Ref, source_of
from aioflow.author.source_location import dag_error
from aioflow.errors import UnknownParent

__all__ = ("SPREAD", "CallArguments", "Mappable", "bind_call", "bind_expanded", "bind_spread")

Mappable = Items | Ref[Any] | Sequence[Any] | Mapping[Any, Any]

SPREAD = "**"
"""The binding name for all parameters that come from an item of ``expand_kwargs``."""


class CallArguments:
    """The bindings of one task's arguments.

    Attributes:
        bindings: The bindings by parameter name.
        sources: The sources that the task is mapped over.
        parents: Tasks whose results are used as arguments.
    """

    def __init__(self, dag: object, owner: str) -> None:
        self.bindings: dict[str, Binding] = {}
        self.sources: tuple[Source, ...] = ()
        self.parents: list[Node] = []
        self._dag = dag
        self._owner = owner

    def bind(self, value: object) -> Binding:
        """Return the binding for a value."""
        if isinstance(value, Placeholder):
            return self._from_unknown(value)
        if isinstance(value, Linked):
            raise dag_error(f"{self._owner} was given an operator; give it the operator's .output")
        nested = self._nested(value)
        return LiteralValue(value) if nested is value else Nested(nested)

    def _from_unknown(self, value: Placeholder) -> Binding:
        if isinstance(value, Ref):
            self._check_parent(value)
            self.parents.append(value.node)
        elif isinstance(value, GroupItem):
            value.check(self._dag, self._owner)
        elif isinstance(value, Previous):
            value.check(self._dag, self._owner)
            return FromRound(self.bind(value.first), value.keys_inside)
        elif isinstance(value, ParameterRef) and value.dag is not self._dag:
            raise dag_error(f"{self._owner} was given {value!r} of another DAG")
        return value.binding

    def _check_parent(self, value: Ref[Any]) -> None:
        if value.node.dag is not self._dag:
            raise UnknownParent(self._owner, value.node.task_id)

    def _nested(self, value: Any) -> Any:
        """Return ``value`` itself if it contains no references, else a copy with bindings."""
        if isinstance(value, Placeholder | Linked):
            return self.bind(value)
        if type(value) in {list, tuple}:
            items = [self._nested(item) for item in value]
            same = all(new is old for new, old in zip(items, value, strict=True))
            return value if same else type(value)(items)
        if type(value) is dict:
            items_of = {key: self._nested(item) for key, item in value.items()}
            same = all(items_of[key] is item for key, item in value.items())
            return value if same else items_of
        if _hides_unknown(value):
            raise dag_error(
                f"{self._owner} was given a {type(value).__name__} with a reference inside; "
                "references may stand in lists, tuples and dicts"
            )
        return value

    def source(self, parameter: str, value: object) -> Source:
        """Return the source for an argument of ``expand``."""
        source = source_of(value, f"{self._owner} expands {parameter!r} over")
        for leaf in source.leaves:
            self._check_leaf(leaf)
        return replace(source, parameter=parameter)

    def _check_leaf(self, leaf: Source) -> None:
        parent = leaf.parent
        if parent is None:
            if any(self._nested(item) is not item for item in leaf.values):
                raise dag_error(
                    f"{self._owner} cannot expand over a list of references; "
                    "let a task return the list"
                )
            return
        if parent.dag is not self._dag:
            raise UnknownParent(self._owner, parent.task_id)


def _hides_unknown(value: object) -> bool:
    if isinstance(value, set | frozenset):
        return any(isinstance(item, Placeholder) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return any(
            isinstance(getattr(value, field.name, None), Placeholder)
            for field in dataclasses.fields(value)
        )
    return False


def bind_call(
    fn: Callable[..., Any],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    *,
    dag: object,
    owner: str,
    injects: bool = True,
    partly: bool = False,
) -> CallArguments:
    """Bind the arguments of an ordinary call.

    Args:
        fn: The function that will be called with the arguments.
        args: Positional arguments.
        kwargs: Keyword arguments.
        dag: The DAG being defined.
        owner: Names the call in errors.
        injects: Whether missing arguments are filled from the context of the run, by name.
        partly: Whether more arguments follow, so that a missing argument is not an error.

    Raises:
        DagError: If the arguments do not match the function's signature.
    """
    signature = _signature(fn, owner)
    try:
        bound = signature.bind_partial(*args, **kwargs)
    except TypeError as exc:
        raise dag_error(f"{owner}: {exc}") from exc
    arguments = CallArguments(dag, owner)
    for name, value in _flat(signature, bound, owner).items():
        arguments.bindings[name] = arguments.bind(value)
    injected = INJECTED if injects else frozenset()
    for name in _bind_missing(signature, arguments, injected):
        if not partly:
            hint = context_hint(name) if injects else ""
            raise dag_error(f"{owner} needs the argument {name!r}{hint}")
    return arguments


def bind_expanded(
    fn: Callable[..., Any],
    fixed: Mapping[str, object],
    mapped: Mapping[str, object],
    *,
    dag: object,
    owner: str,
    injects: bool = True,
) -> CallArguments:
    """Bind the arguments of ``partial(**fixed).expand(**mapped)``; see ``bind_call``."""
    if not mapped:
        raise dag_error(f"{owner}: expand() needs at least one argument to map over")
    twice = fixed.keys() & mapped.keys()
    if twice:
        raise dag_error(f"{owner} got {twice.pop()!r} from partial() and from expand()")
    arguments = bind_call(
        fn, (), {**fixed, **dict.fromkeys(mapped)}, dag=dag, owner=owner, injects=injects
    )
    sources = []
    for number, (parameter, value) in enumerate(mapped.items()):
        sources.append(arguments.source(parameter, value))
        arguments.bindings[parameter] = FromSource(number)
    arguments.sources = tuple(sources)
    return arguments


def bind_spread(
    fn: Callable[..., Any],
    fixed: Mapping[str, object],
    items: object,
    *,
    dag: object,
    owner: str,
    injects: bool = True,
    refused: frozenset[str] = frozenset(),
) -> CallArguments:
    """Bind the arguments of ``partial(**fixed).expand_kwargs(items)``; see ``bind_call``.

    Args:
        refused: Names of task options, which an item must not contain.
    """
    signature = _signature(fn, owner)
    arguments = bind_call(fn, (), fixed, dag=dag, owner=owner, injects=injects, partly=True)
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    plain = [name for name, kind in kinds.items() if kind not in _VARIABLE]
    required = [
        name
        for name in plain
        if name not in arguments.bindings and signature.parameters[name].default is Parameter.empty
    ]
    takes_any = Parameter.VAR_KEYWORD in kinds.values()
    given = tuple(sorted({*fixed, *refused}))
    spread = Spread(0, None if takes_any else tuple(plain), tuple(required), given)
    source = arguments.source("items", items)
    for value in source.values:
        said = spread.refuse(value)
        if said is not None and not source.functions:
            raise dag_error(f"{owner}: {said}")
    arguments.sources = (source,)
    arguments.bindings[SPREAD] = spread
    return arguments


_VARIABLE = frozenset({Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD})


def _signature(fn: Callable[..., Any], owner: str) -> inspect.Signature:
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError) as exc:
        raise dag_error(f"{owner} has no signature to check a call by") from exc


def _flat(
    signature: inspect.Signature, bound: inspect.BoundArguments, owner: str
) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind in {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY}:
            raise dag_error(f"{owner}: parameter {name!r} cannot be given by name, so not at all")
        if kind is inspect.Parameter.VAR_KEYWORD:
            flat.update(value)
        else:
            flat[name] = value
    return flat


def _bind_missing(
    signature: inspect.Signature, arguments: CallArguments, injected: frozenset[str]
) -> Iterator[str]:
    """Bind missing arguments from the run's context, like Airflow, or from defaults.

    Yield the arguments that are still missing.
    """
    for name, parameter in signature.parameters.items():
        if name in arguments.bindings or parameter.kind is parameter.VAR_POSITIONAL:
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            declared = signature.parameters.keys() - {name}
            for known in sorted(injected - arguments.bindings.keys() - declared):
                arguments.bindings[known] = FromContext(known)
        elif name in injected and _is_open(parameter):
            arguments.bindings[name] = FromContext(name)
        elif parameter.default is parameter.empty:
            yield name
        else:
            binding = arguments.bind(parameter.default)
            if not isinstance(binding, LiteralValue):  # a plain default is left to the function
                arguments.bindings[name] = binding


def _is_open(parameter: inspect.Parameter) -> bool:
    return parameter.default is None or parameter.default is parameter.empty
