"""The parameters of a DAG, whose values each run supplies."""

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
    """A parameter of a DAG.

    Attributes:
        annotation: A resolved type, ``Any`` if there is none.
        default: A literal or a value of the run; ``None`` for a required parameter.
        schema: A JSON Schema, as JSON; empty if there is none.
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
        """Whether each run must supply a value."""
        return self.default is None


class ParameterRef(Unknown):
    """A reference to a parameter inside the body of its DAG."""

    def __init__(self, dag: object, name: str, keys: tuple[str | int, ...] = ()) -> None:
        self._dag = dag
        self._name = name
        self._keys = keys

    @property
    def dag(self) -> object:
        """The DAG it belongs to; only compared for identity."""
        return self._dag

    def __getitem__(self, key: str | int) -> ParameterRef:
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise misused(self._label(), "a slice, or a key that is neither text nor a number")
        return ParameterRef(self._dag, self._name, (*self._keys, key))

    def _label(self) -> str:
        return self._name + "".join(f"[{key!r}]" for key in self._keys)

    @property
    def binding(self) -> Binding:
        """The binding that resolves to the value."""
        return FromParameter(self._name, self._keys)


def parameter_values(parameters: Mapping[str, Parameter], run: RunContext) -> dict[str, Any]:
    """Return the values of the parameters in one run, for ``RunContext.params``.

    A value in the conf is converted to its annotation. Keys of the conf that are not parameters
    are passed on unchanged.

    Raises:
        BadConf: If a required parameter is missing, or a value does not match.
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
