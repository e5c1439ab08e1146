"""Functions that start runs of other DAGs from a task, and wait for their ends."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypedDict

from aioflow.author import codec
from aioflow.author.codec import Steps
from aioflow.author.dag import DAG
from aioflow.author.durable_calls import Call, current_calls
from aioflow.author.source_location import here
from aioflow.errors import BadConf, ValueTooLarge

__all__ = ("CONF_LIMIT", "RunOutcome", "run_dag", "start_dag")

CONF_LIMIT = 1024 * 1024
"""Maximum size of the parameters, in bytes of msgpack."""


class RunOutcome(TypedDict):
    """The outcome of a run, as ``RunTrigger`` returns it.

    ``state`` is ``success`` or ``partial``. ``result`` is always ``None``, as a whole run has no
    result.
    """

    state: str
    run_id: str
    result: object


def run_dag(dag: DAG | str, /, **params: object) -> Coroutine[Any, Any, RunOutcome]:
    """Start a run of another DAG and wait for its end, without using a slot.

    A durable call: the run is created in the same transaction as the record of the call. So there
    is exactly one run, however often this task is interrupted and runs again from the top. Another
    *try* of the task starts a new run if the call in the previous try failed or did not return. The
    run is independent of this task: it continues if this task fails, times out or is cancelled.

    Args:
        dag: The DAG, or its id.
        params: Its parameters, as with ``--conf``.

    Raises:
        DagRunFailed: If the run failed or was cancelled.
        UnknownDag: If there is no DAG with this id.
        DagBroken: If its file no longer defines it.
        BadConf: If the parameters do not match the DAG's.
        RuntimeError: Outside an ``async def`` task, or while another durable call is in flight.
    """
    dag_id = _named(dag, "run_dag()")
    return _run_dag(Call("run_dag", dag_id, here()), dag_id, params, waits=True)


def start_dag(dag: DAG | str, /, **params: object) -> Coroutine[Any, Any, str]:
    """Start a run of another DAG and return its id, without waiting for its end.

    A durable call, like ``run_dag``: there is exactly one run, however often this task runs again
    from the top.

    Args:
        dag: The DAG, or its id.
        params: Its parameters, as with ``--conf``.

    Raises:
        UnknownDag: If there is no DAG with this id.
        DagBroken: If its file no longer defines it.
        BadConf: If the parameters do not match the DAG's.
        RuntimeError: Outside an ``async def`` task, or while another durable call is in flight.
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
