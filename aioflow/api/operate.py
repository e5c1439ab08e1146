"""Actions that change something: on runs, pools, triggers and nodes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, cast

import anyio

from aioflow.api.queries import RunReader
from aioflow.api.validation import checked_idempotency_key, packed_payload
from aioflow.errors import AioflowError, RequestError, UnknownNode, UnknownRun
from aioflow.model.access import Actor, audit_entry
from aioflow.model.ids import TriggerNo
from aioflow.model.rows import NodeRow
from aioflow.model.states import NodeState, RunState, TaskState
from aioflow.protocol.requests import (
    CancelRun,
    ClearTasks,
    DeleteDag,
    DeleteRun,
    DrainNode,
    EraseHistory,
    FireTrigger,
    Mark,
    Note,
    Preview,
    Request,
    SetPool,
    Unquarantine,
)

__all__ = ("CLEAR_SECONDS", "REQUEST_SECONDS", "Actions")

REQUEST_SECONDS = 5.0
CLEAR_SECONDS = 50.0
"""Timeout for clearing or marking tasks. Long, because an ended run must be read completely."""

RUNS_AT_ONCE = 500
_CONCURRENT_REQUESTS = 50
_HISTORY_ROWS = 2_000
_PREVIEWED_TASKS = 500
"""Maximum number of tasks that a preview names. Children are counted, not named."""


class Actions(RunReader):
    """The methods of ``Api`` that make changes."""

    actor: Actor | None

    @abstractmethod
    async def _send(self, request: Request, seconds: float = REQUEST_SECONDS) -> object:
        """Send a request to the engine and return its response."""

    @abstractmethod
    def _left_failed(self, run_id: str, tasks: Sequence[str]) -> list[str]:
        """Return the tasks downstream of the given ones that remain ``upstream_failed``."""

    async def cancel(self, run_id: str) -> dict[str, Any]:
        """Cancel a run immediately. A run that has ended is left unchanged."""
        run = await self.run(run_id)
        if run.state.is_live:
            try:
                state = cast(RunState, await self._send(CancelRun(run_id=run_id)))
            except UnknownRun:  # the run ended meanwhile
                state = (await self.run(run_id)).state
        else:
            state = run.state
        return {"run_id": run_id, "dag_id": run.dag_id, "state": state.label}

    async def clear(
        self,
        run_id: str,
        tasks: Sequence[str] = (),
        *,
        map_index: int = -1,
        map_indexes: Sequence[int] = (),
        downstream: bool = False,
        failed: bool = False,
        latest: bool = False,
        dry_run: bool = False,
        key: str | None = None,
    ) -> dict[str, Any]:
        """Clear tasks of a run, by default all, so that they run again; see ``ClearTasks``.

        ``key`` is the idempotency key. A dry run changes nothing and returns the tasks.

        Raises:
            UnknownTask: If the run has no such task, or the task no such child.
            VersionDiffers: If the newest version is requested and differs too much.
            RequestError: If the run has a final state but has not ended yet, or if several children
                are given, but not exactly one task.
        """
        if map_indexes and (len(tasks) != 1 or map_index >= 0):
            raise RequestError("map_indexes need exactly one task, and no map_index")
        request = ClearTasks(
            run_id=run_id,
            tasks=tuple(tasks),
            map_index=map_index,
            map_indexes=tuple(map_indexes),
            downstream=downstream,
            failed=failed,
            latest=latest,
            dry_run=dry_run,
            key=None if dry_run else checked_idempotency_key(key),
        )
        run = await self.run(run_id)
        if dry_run:
            return await self._preview(request, run.dag_id, "cleared")
        answer = await self._send(request, CLEAR_SECONDS)
        cleared, state = cast("tuple[int, RunState]", answer)
        return {
            "run_id": run_id,
            "dag_id": run.dag_id,
            "state": state.label,
            "cleared": cleared,
            **await self._versions(run_id),
            "upstream_failed": [] if downstream else self._left_failed(run_id, tasks),
        }

    async def _preview(
        self, request: ClearTasks | Mark, dag_id: str, verb: Literal["cleared", "marked"]
    ) -> dict[str, Any]:
        """Return the result of a dry run: the number of tasks, and the first ones by name."""
        found = cast(Preview, await self._send(request, CLEAR_SECONDS))
        counted = (task for task in found.tasks if task.is_marked == (verb == "marked"))
        return {
            "run_id": request.run_id,
            "dag_id": dag_id,
            "state": found.state.label,
            verb: sum(sum(task.states.values()) for task in counted),
            "dry_run": True,
            "tasks": [
                {
                    "task_id": task.task_id,
                    "is_marked": task.is_marked,
                    "states": {state.label: count for state, count in task.states.items()},
                }
                for task in found.tasks[:_PREVIEWED_TASKS]
            ],
            "more": max(0, len(found.tasks) - _PREVIEWED_TASKS),
            "upstream_failed": found.upstream_failed,
        }

    async def _versions(self, run_id: str) -> dict[str, str | None]:
        """Return the version that the run uses, and the newest one that a file defines."""
        run = await self.run(run_id)
        dag = (await self.catalogue.known()).dags.get(run.dag_id)
        newest = None if dag is None or dag.gone else dag.version
        return {"version": run.version, "newest_version": newest}

    async def delete_run(self, run_id: str) -> dict[str, Any]:
        """Delete an ended run. It is hidden immediately; its rows and files are deleted afterwards.

        Raises:
            RequestError: If the run has not ended.
        """
        run = await self.run(run_id)
        await self._send(DeleteRun(run_id=run_id))
        return {"run_id": run_id, "dag_id": run.dag_id, "deleted": True}

    async def delete_dag(self, dag_id: str) -> dict[str, Any]:
        """Delete up to 500 ended runs of a DAG whose file was deleted, and finally the DAG.

        If ``more`` is true in the result, call this method again.

        Raises:
            DagPresent: If a file defines the DAG.
            DagRunning: If a run of the DAG has not ended.
        """
        await self._send(DeleteDag(dag_id=dag_id, only_asks=True))
        found = await self.store.list_runs(dag_id=dag_id, limit=RUNS_AT_ONCE + 1)
        limiter = anyio.Semaphore(_CONCURRENT_REQUESTS)

        problems: list[AioflowError] = []

        async def delete(run_id: str) -> None:
            async with limiter:
                try:
                    await self._send(DeleteRun(run_id=run_id))
                except UnknownRun:
                    pass  # another request has deleted the run
                except AioflowError as exc:
                    problems.append(exc)

        async with anyio.create_task_group() as group:
            for run in found[:RUNS_AT_ONCE]:
                group.start_soon(delete, run.run_id)
        if problems:
            raise problems[0]
        more = len(found) > RUNS_AT_ONCE
        if not more:
            history = await self.store.list_history_of_dag(dag_id, limit=_HISTORY_ROWS)
            if history:
                await self._send(EraseHistory(rows=history))
            more = len(history) == _HISTORY_ROWS
        if not more:
            await self._send(DeleteDag(dag_id=dag_id))
        return {"dag_id": dag_id, "runs": min(len(found), RUNS_AT_ONCE), "more": more}

    async def mark(
        self,
        run_id: str,
        state: str,
        tasks: Sequence[str] = (),
        *,
        map_index: int = -1,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Set the final state of tasks of a run or, without tasks, of the run itself. See ``Mark``.

        Args:
            state: ``success`` or ``failed``.
            dry_run: Whether to change nothing and only return the tasks.

        Raises:
            UnknownTask: If the run has no such task, or the task no such child.
            RequestError: If the run has a final state but has not ended yet, or a map index is
                given without a task.
        """
        if map_index >= 0 and not tasks:
            raise RequestError("a map index needs a task: name the task as well")
        request = Mark(
            run_id=run_id,
            state=TaskState.SUCCESS if state == "success" else TaskState.FAILED,
            tasks=tuple(tasks),
            map_index=map_index,
            dry_run=dry_run,
        )
        run = await self.run(run_id)
        if dry_run:
            return await self._preview(request, run.dag_id, "marked")
        seconds = CLEAR_SECONDS if request.tasks else REQUEST_SECONDS
        marked, stands = cast("tuple[int, RunState]", await self._send(request, seconds))
        return {"run_id": run_id, "dag_id": run.dag_id, "state": stands.label, "marked": marked}

    async def set_pool(
        self, name: str, slots: int | None, *, include_deferred: bool = False
    ) -> dict[str, Any]:
        """Set the limit of a pool; ``None`` removes it."""
        request = SetPool(name=name, slots=slots, include_deferred=include_deferred)
        changed = await self._send(request)
        return {
            "name": name,
            "slots": slots,
            "include_deferred": include_deferred,
            "changed": changed,
        }

    async def fire(
        self, trigger_no: TriggerNo, *, payload: Any = None, key: str | None = None
    ) -> dict[str, Any]:
        """Deliver an event to the task that waits for a trigger, instead of the trigger's event.

        Raises:
            UnknownTrigger: If no task waits for such a trigger.
            RequestError: If the trigger's event cannot be supplied manually.
        """
        request = FireTrigger(
            trigger_no=trigger_no, payload=packed_payload(payload), key=checked_idempotency_key(key)
        )
        told = cast("tuple[str, str, int]", await self._send(request))
        run_id, task_id, map_index = told
        return {
            "trigger_id": trigger_no,
            "run_id": run_id,
            "task_id": task_id,
            "map_index": map_index,
        }

    async def unquarantine(self, class_path: str) -> dict[str, Any]:
        """Run a class's triggers in the shared hosts again, until they next block an event loop.

        Raises:
            UnknownClass: If the class has never blocked an event loop.
        """
        changed = await self._send(Unquarantine(class_path=class_path))
        return {"class": class_path, "changed": changed}

    async def drain(self, node_no: int, *, is_drained: bool) -> dict[str, Any]:
        """Stop or resume assigning work to a node.

        An active node that is drained hands over to a standby, if there is one.

        Raises:
            UnknownNode: If there is no such node.
        """
        await self._node(node_no)
        changed = await self._send(DrainNode(node_no=node_no, is_drained=is_drained))
        return {"node": node_no, "drained": is_drained, "changed": changed}

    async def forget_node(self, node_no: int) -> dict[str, Any]:
        """Remove a node from the list. Its number is reused for the next new node.

        Raises:
            UnknownNode: If there is no such node.
            RequestError: If it has neither left nor been declared dead.
        """
        row = await self._node(node_no)
        if row.state not in {NodeState.LEFT, NodeState.DEAD} or self.store.membership is None:
            raise RequestError(
                f"node {node_no} is {row.state.label}; only one that has left or is dead can be "
                "forgotten"
            )
        if self.actor is not None:
            entry = audit_entry(self.actor, "node.forget", str(node_no))
            await self._send(Note(lines=(entry,)))
        await self.store.membership.forget(node_no)
        return {"node": node_no, "forgotten": True}

    async def _node(self, node_no: int) -> NodeRow:
        for row in await self.store.list_nodes():
            if row.node_no == node_no:
                return row
        raise UnknownNode(node_no)
