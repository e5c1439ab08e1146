"""Validation of a run's conf against the parameters of its DAG version."""

from __future__ import annotations

import msgspec

from aioflow.errors import BadConf
from aioflow.model.dag import DagSpec

__all__ = ("require_fit",)


def require_fit(spec: DagSpec, conf: bytes | None) -> None:
    """Check a conf against the parameters of a DAG.

    Raises:
        BadConf: If the conf is not a mapping, lacks a required parameter, or has one that the DAG
            does not define.
    """
    try:
        given: object = {} if conf is None else msgspec.msgpack.decode(conf)
    except msgspec.DecodeError as exc:
        raise BadConf(f"the conf of {spec.dag_id!r} cannot be read: {exc}") from exc
    if not isinstance(given, dict):
        raise BadConf(f"the conf of {spec.dag_id!r} must be a JSON object of its parameters")
    allowed = ", ".join(spec.parameters) or "none"
    for name in given:
        if name not in spec.parameters:
            raise BadConf(f"DAG {spec.dag_id!r} has no parameter {name!r}; it has: {allowed}")
    missing = [name for name in spec.required if name not in given]
    if missing:
        raise BadConf(f"DAG {spec.dag_id!r} needs {', '.join(missing)}; give it with --conf")
