"""Runs of other DAGs that a task starts and awaits."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypedDict

from aioflow.author import codec
from aioflow.author.dag import DAG
from aioflow.author.source_location import here
from aioflow.author.steps import Steps
from aioflow.author.waiting import Call, current_calls
from aioflow.errors import BadConf, ValueTooLarge

__all__ = ("CONF_LIMIT", "RunOutcome", "run_dag", "start_dag")

CONF_LIMIT = 1024 * 1024
"""Bytes of msgpack the parameters may have."""


class RunOutcome(TypedDict):
    """How a run ended, as ``RunTrigger`` tells it.

    ``state`` is ``success`` or ``partial``; ``result`` is always ``None``, as of any whole run.
    """

    state: str
    run_id: str
    result: object


def run_dag(dag: DAG | str, /, **params: object) -> Coroutine[Any, Any, RunOutcome]:
    """Start a run of another DAG and wait for its end. Holds no slot meanwhile.

    A durable call: the run is made together with the record of the call, so it is one run,
    however often this task is cut short and runs again from the top. A further *try* of the task
    starts a new run where this call had failed or not been answered. The run belongs to nobody:
    it goes on if this task fails, times out or is cancelled.

    Args:
        dag: The DAG, or its name.
        params: Its parameters, as they would be given with ``--conf``.

    Raises:
        DagRunFailed: If the run failed or was cancelled.
        UnknownDag: If there is no DAG of that name.
        DagBroken: If its file no longer defines it.
        BadConf: If the parameters do not fit it.
        RuntimeError: Outside an ``async def`` task, or while another durable call is under way.
    """
    dag_id = _named(dag, "run_dag()")
    return _run_dag(Call("run_dag", dag_id, here()), dag_id, params, waits=True)


def start_dag(dag: DAG | str, /, **params: object) -> Coroutine[Any, Any, str]:
    """Start a run of another DAG and return its id, without waiting for its end.

    A durable call, as ``run_dag``: it is one run, however often this task runs again from the top.

    Args:
        dag: The DAG, or its name.
        params: Its parameters, as they would be given with ``--conf``.

    Raises:
        UnknownDag: If there is no DAG of that name.
        DagBroken: If its file no longer defines it.
        BadConf: If the parameters do not fit it.
        RuntimeError: Outside an ``async def`` task, or while another durable call is under way.
    """
    dag_id = _named(dag, "start_dag()")
    return _run_dag(Call("start_dag", dag_id, here()), dag_id, params, waits=False)


async def _run_dag(call: Call, dag_id: str, params: dict[str, object], *, waits: bool) -> Any:
    made = current_calls(call.kind)
    conf = await made.packed(_conf(params)) if params else None
    return await made.run_dag(call, dag_id, conf, waits=waits)


def _named(dag: object, caller: str) -> str:
    dag_id = dag.dag_id if isinstance(dag, DAG) else dag
    if not isinstance(dag_id, str):
        raise TypeError(f"{caller} takes a DAG or its name, not a {type(dag).__name__}")
    return dag_id


def _conf(params: dict[str, object]) -> Steps[bytes]:
    try:
        named = dict(sorted(params.items()))
        return (yield from codec.in_steps(named, "the parameters of the run", CONF_LIMIT))
    except ValueTooLarge as exc:
        raise BadConf(str(exc)) from None
