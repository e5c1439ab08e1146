"""Clients of the node at the second level: their requests, and checks of the responses."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

from aioflow.errors import AioflowError, RequestError
from aioflow.model.access import Actor
from aioflow.protocol.requests import (
    CancelRun,
    CreateRun,
    DeleteRun,
    EmitEvent,
    Request,
    SetPaused,
    SetPool,
)
from tests.sim.broken import Broken
from tests.sim.evented import Sender
from tests.sim.filling import Filler
from tests.sim.operating import Operator, says
from tests.sim.past import draw_date
from tests.sim.workload import COUNTING, POOLS

__all__ = ("Crowd",)


class Crowd:
    """Many concurrent clients, none of which waits for the response to another client."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self._operator = Operator(node.seed, node.tables)
        self._sender = Sender(node.seed, node.dags)
        self._filler = Filler(node.seed, node.dags, node.tables)
        self._dated = random.Random(f"dates {node.seed}")
        self._keys = itertools.cycle((None, "key1", None, "key2"))

    def requests(self) -> Iterator[Request]:
        """Yield the next requests. Like a fault, each request can be left out."""
        faults, operator = self._node.faults, self._operator
        request = self._request()
        if faults.is_asked():
            yield request
        others = (self._sender.event(), self._filler.wish(self._node.wall()))
        for wish in (operator.clear(), operator.mark(), operator.delete(), *others):
            if wish is not None and faults.is_asked():
                self._note(wish)
                yield wish

    def _request(self) -> Request:
        node, rng = self._node, self._node.rng
        dag_id = rng.choice(node.dags).dag_id
        runs = [self._node.tables.runs[no].run_id for no in self._node.tables.unfinished()]
        match rng.choice(("run", "run", "cancel", "pool", "pause", "resume", "emit", "emit")):
            case "emit":
                key = next(self._keys)
                if self._has_emitted("t0", key):
                    key = None  # the API answers with the existing event
                return EmitEvent(name="t0", key=None, data=b"\xc0", request=key)
            case "cancel" if runs and node.faults.happens("operator"):
                return CancelRun(run_id=rng.choice(runs))
            case "pool":
                name = rng.choice(POOLS[1:])
                return SetPool(
                    name=name,
                    slots=rng.choice((None, 1, 2, 3)),
                    include_deferred=name == COUNTING and rng.random() < 0.5,
                )
            case "pause" | "resume" as verb:
                return SetPaused(dag_id=dag_id, paused=verb == "pause")
            case _:
                key = next(self._keys)
                if self._has_key(dag_id, key):
                    key = None  # the API answers with the existing run
                return CreateRun(dag_id=dag_id, key=key, logical_date=draw_date(self._dated))

    def _note(self, request: Request) -> None:
        if said := says(request):
            run_id, state = said
            self._node.tables.said[run_id].add(state)

    def _has_emitted(self, name: str, request: str | None) -> bool:
        rows = self._node.tables.named_events.values()
        return request is not None and any((r.name, r.request) == (name, request) for r in rows)

    def _has_key(self, dag_id: str, key: str | None) -> bool:
        runs = self._node.tables.runs.values()
        return key is not None and any((row.dag_id, row.key) == (dag_id, key) for row in runs)

    async def ask(self, request: Request, by: Actor | None = None) -> None:
        """Send a request and check its response."""
        try:
            answer = await self._node.engine.ask(request, by)
        except RequestError:
            return
        except AioflowError as exc:
            # Another request with the same key came first; the API answers with the result of that
            # request.
            match request:
                case CreateRun():
                    is_there = self._has_key(request.dag_id, request.key)
                case EmitEvent():
                    is_there = self._has_emitted(request.name, request.request)
                case _:
                    is_there = False
            if not is_there:
                self._node.found(Broken("request", f"{request}: {exc!r}"))
            return
        if isinstance(request, EmitEvent) and isinstance(answer, tuple):
            if answer[0] not in self._node.tables.named_events:
                self._node.found(Broken("I12 acknowledged", f"event {answer[0]} is not stored"))
            return
        if isinstance(request, CreateRun) and isinstance(answer, tuple):
            self._is_there(answer[0])
        if isinstance(request, DeleteRun) and self._node.tables.find(request.run_id) is not None:
            self._node.found(Broken("I12 acknowledged", f"run {request.run_id} is still seen"))

    def _is_there(self, run_id: str) -> None:
        if run_id not in self._node.tables.run_ids.values():
            self._node.found(Broken("I12 acknowledged", f"run {run_id} is not stored"))
