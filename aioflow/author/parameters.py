"""The parameters of a DAG: what a run is started with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from aioflow.author.binding import Binding, FromContext, FromParameter, Literal
from aioflow.author.context import RunContext, resolve
from aioflow.author.decode import restore
from aioflow.author.param import Param, misfit
from aioflow.author.placeholder import Unknown
from aioflow.author.source_location import misused
from aioflow.errors import BadConf, Unserializable

__all__ = ("Parameter", "ParameterRef", "parameter_values")


@dataclass(frozen=True)
class Parameter:
    """One parameter.

    Attributes:
        annotation: A resolved type, ``Any`` if there is none.
        default: A value of the file or of the run; ``None`` for a required one.
        schema: JSON Schema, as JSON; empty for none.
    """

    name: str
    annotation: Any = Any
    default: Literal | FromContext | None = None
    schema: str = ""

    @classmethod
    def of(cls, name: str, annotation: Any, param: Param) -> Parameter:
        """Return the parameter that a ``Param`` describes."""
        default = None if param.required else Literal(param.default)
        return cls(name, annotation, default, param.schema)

    @property
    def required(self) -> bool:
        """Whether a run must give it."""
        return self.default is None


class ParameterRef(Unknown):
    """A parameter inside the body of its DAG."""

    def __init__(self, dag: object, name: str, keys: tuple[str | int, ...] = ()) -> None:
        self._dag = dag
        self._name = name
        self._keys = keys

    @property
    def dag(self) -> object:
        """The DAG it belongs to; only ever compared."""
        return self._dag

    def __getitem__(self, key: str | int) -> ParameterRef:
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise misused(self._label(), "a slice, or a key that is neither text nor a number")
        return ParameterRef(self._dag, self._name, (*self._keys, key))

    def _label(self) -> str:
        return self._name + "".join(f"[{key!r}]" for key in self._keys)

    @property
    def binding(self) -> Binding:
        """Where the value will come from."""
        return FromParameter(self._name, self._keys)


def parameter_values(parameters: Mapping[str, Parameter], run: RunContext) -> dict[str, Any]:
    """Return what the parameters are in one run; ``RunContext.params`` is made of it.

    A value of the conf is restored by its annotation, and must fit it. What the conf holds
    besides is handed on as it is.

    Raises:
        BadConf: If a required one is missing, or a value does not fit.
    """
    values = dict(run.conf)
    why = misfit({name: p.schema for name, p in parameters.items() if p.schema}, values)
    if why is not None:
        raise BadConf(why)
    for name, parameter in parameters.items():
        if name in values:
            values[name] = _restored(parameter, values[name])
        elif parameter.default is None:
            raise BadConf(f"DAG {run.dag_id!r} needs the parameter {name!r}; give it in the conf")
        elif isinstance(parameter.default, FromContext):
            values[name] = resolve(parameter.default.name, replace(run, params=values))
        else:
            values[name] = parameter.default.value
    return values


def _restored(parameter: Parameter, value: object) -> Any:
    try:
        return restore(value, parameter.annotation, f"conf[{parameter.name!r}]", strict=True)
    except Unserializable as exc:
        kind = getattr(parameter.annotation, "__name__", str(parameter.annotation))
        raise BadConf(f"the parameter {parameter.name!r} must be {kind}, got {value!r}") from exc
