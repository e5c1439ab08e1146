"""Validation of a run's conf against the types and schemas of its DAG's parameters.

Schemas are checked in another process: matching a ``pattern`` may take forever and block the
event loop.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import anyio
from anyio import to_process

from aioflow.author.param import misfit
from aioflow.author.type_names import conf_misfit
from aioflow.core.state.memory import Memory
from aioflow.errors import BadConf
from aioflow.model.dag import DagSpec

__all__ = ("check_params", "params_view")

_CHECK_SECONDS = 5.0


async def check_params(memory: Memory, dag_id: str, conf: Mapping[str, Any] | None) -> None:
    """Reject a conf that does not fit. Free for DAGs whose parameters have no schema.

    Raises:
        BadConf: If a value does not fit its type or schema, or the check takes too long.
    """
    dag = memory.newest(dag_id)
    wrong = None if dag is None else conf_misfit(dag.types, conf or {})
    if wrong is not None:
        raise BadConf(wrong)
    schemas = {} if dag is None else {p.name: p.schema for p in dag.params}
    given = {name: value for name, value in (conf or {}).items() if name in schemas}
    if not given:
        return
    try:
        with anyio.fail_after(_CHECK_SECONDS):
            why = await to_process.run_sync(misfit, schemas, given, cancellable=True)
    except TimeoutError:
        raise BadConf(f"a parameter could not be checked within {_CHECK_SECONDS:g} s") from None
    if why is not None:
        raise BadConf(why)


def params_view(dag: DagSpec) -> dict[str, dict[str, Any]]:
    """Return the schema of each parameter that has one, with its default unless it is required."""
    return {
        param.name: {
            "schema": json.loads(param.schema),
            **({} if param.default is None else {"default": json.loads(param.default)}),
        }
        for param in dag.params
    }
