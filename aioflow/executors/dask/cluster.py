"""A session with the scheduler of a Dask cluster. It lasts as long as its connection.

Dask is imported when a session is opened, which takes about a second.

The functions that Dask runs for aioflow are sent by value, because the scheduler's machine need not
have aioflow, and Dask workers without aioflow must be able to report that. Therefore each of them
is defined inside another function, and imports all it needs when it runs.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

import anyio
import msgspec

from aioflow._threads import in_thread
from aioflow.executors.dask.messages import PilotEnd
from aioflow.executors.dask.options import DaskOptions
from aioflow.executors.dask.stream import Comm
from aioflow.model.workers import WorkerSpec

__all__ = ("Cluster", "Pilot", "open_cluster", "worker_dial")

CONNECT_SECONDS = 5.0
SWEEP_SECONDS = 5.0
"""How long the first demand waits for workers of earlier daemons to end."""

CLOSE_SECONDS = 2.0
_LOGGED_BATCHES = 10

_NO_AIOFLOW = b"!"
"""First byte of the result of a pilot that found no aioflow. The rest is the reason."""

_logger = logging.getLogger(__name__)


def _pilot_function() -> Callable[[bytes], Awaitable[bytes]]:
    """Return the function of the Dask task that runs one worker."""

    async def aioflow_worker(order: bytes) -> bytes:
        from distributed import get_worker

        try:
            from aioflow.executors.dask.agent import serve_pilot
        except ImportError as exc:
            return b"!" + f"{get_worker().address} cannot import aioflow ({exc})".encode()
        return await serve_pilot(get_worker(), order)

    return aioflow_worker


def _sweep_function() -> Callable[..., Awaitable[int]]:
    """Return a function that ends everything a Dask worker runs for earlier daemons of a node."""

    async def aioflow_sweep(home_id: str, node_no: int, epoch: int, dask_worker: Any = None) -> int:
        plugin = dask_worker.plugins.get("aioflow")
        return 0 if plugin is None else await plugin.end_older(home_id, node_no, epoch)

    return aioflow_sweep


class Pilot:
    """A submitted pilot.

    Args:
        future: Its future in Dask.
    """

    def __init__(self, future: Any) -> None:
        self._future = future

    async def end(self) -> PilotEnd | str:
        """Wait for the pilot's end. Return a sentence if Dask could not run it; empty if cancelled.

        A pilot is cancelled by ``release``, and when the scheduler is lost.
        """
        distributed: Any = import_module("distributed")
        try:
            data = await self._future
        except distributed.client.FutureCancelledError as exc:
            # Dask's frames refer to the error, and the error to them. This garbage is found only by
            # a full collection. While a cluster is full, there are many such pilots.
            exc.__traceback__ = None
            return ""
        except distributed.scheduler.KilledWorker as exc:
            return f"the Dask worker at {exc.last_worker.address} died"
        except Exception as exc:
            _logger.warning("a pilot failed", exc_info=exc)
            return f"Dask cannot run aioflow's worker: {type(exc).__name__}: {exc}"[:300]
        if data.startswith(_NO_AIOFLOW):
            address, _, sentence = data[1:].decode().partition(" ")
            return PilotEnd(address=address, refused=f"{address} {sentence}")
        return msgspec.msgpack.decode(data, type=PilotEnd)

    def release(self) -> None:
        """Give the pilot up. If it has not begun, Dask forgets it."""
        self._future.release()


class Cluster:
    """One session.

    Args:
        client: The connected client of Dask.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._pilot = _pilot_function()

    @property
    def address(self) -> str:
        """Address of the scheduler."""
        return str(self._client.scheduler.address)

    @property
    def dashboard(self) -> str:
        """URL of Dask's dashboard."""
        return str(self._client.dashboard_link or "")

    def listen(self, topic: str, on_event: Callable[[object], None]) -> None:
        """Call ``on_event`` with each event of a topic."""
        self._client.subscribe_topic(topic, lambda event: on_event(event[1]))

    def submit(
        self, key: str, order: bytes, spec: WorkerSpec, priority: int, workers: Collection[str]
    ) -> Pilot:
        """Submit a pilot.

        Args:
            workers: Addresses of the Dask workers that may run the pilot; empty for all.
        """
        future = self._client.submit(
            self._pilot,
            order,
            key=key,
            pure=False,
            retries=0,
            priority=priority,
            fifo_timeout="0s",
            resources=dict(spec.resources) or None,
            workers=list(workers) or None,
        )
        return Pilot(future)

    async def sweep(self, home_id: str, node_no: int, epoch: int) -> None:
        """End all that runs for earlier daemons of a node, on each Dask worker that answers."""
        with anyio.move_on_after(SWEEP_SECONDS):
            found = await self._client.run(
                _sweep_function(), home_id, node_no, epoch, on_error="ignore"
            )
            if count := sum(found.values()):
                _logger.warning("ended %d Dask workers' processes of an earlier daemon", count)

    async def workers(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the facts of all Dask workers, by address."""
        identity = await self._client.scheduler.identity(n_workers=-1)
        found: dict[str, Mapping[str, Any]] = identity["workers"]
        return found

    async def lost(self) -> None:
        """Wait until the connection to the scheduler breaks.

        The client would reconnect by itself, but then it has forgotten its tasks and its topics.
        """
        connect: Any = import_module("distributed.comm").connect
        arguments = self._client.connection_args
        comm = await connect(self.address, timeout=CONNECT_SECONDS, **arguments)
        try:
            await comm.read()
        except OSError:
            return
        finally:
            comm.abort()

    async def shortage(self, spec: WorkerSpec) -> str:
        """Return why Dask has no capacity for another pilot, in one sentence."""
        workers = (await self.workers()).values()
        if not workers:
            return f"the Dask cluster at {self.address} has no workers"
        for name, amount in spec.resources:
            if not any(worker["resources"].get(name, 0) >= amount for worker in workers):
                return (
                    f"no Dask worker has {name} = {amount:g}; start one with "
                    f'dask worker {self.address} --resources "{name}={amount:g}"'
                )
        threads = sum(worker["nthreads"] for worker in workers)
        what = "the resources of" if spec.resources else f"all {threads} threads of"
        return f"{what} the {len(workers)} Dask workers are in use"


@asynccontextmanager
async def open_cluster(options: DaskOptions) -> AsyncIterator[Cluster]:
    """Connect to a scheduler.

    Raises:
        OSError: If the scheduler cannot be reached.
    """
    client = await in_thread(_new_client_type)
    opened = client(
        options.address,
        asynchronous=True,
        security=_security(options),
        timeout=CONNECT_SECONDS,
        set_as_default=False,
        name="aioflow",
    )
    try:
        await opened
        yield Cluster(opened)
    finally:
        with anyio.move_on_after(CLOSE_SECONDS, shield=True):
            await opened.close()


def _new_client_type() -> Any:
    """Import Dask and return the type of its client."""
    client = import_module("distributed").Client
    # Each batch of messages stays in a debugging log, and one batch may submit 100 pilots.
    import_module("dask").config.set({"distributed.admin.low-level-log-length": _LOGGED_BATCHES})
    # Remove the handlers that Dask adds to these loggers, because their records would bypass the
    # daemon's log.
    for name in ("distributed", "distributed.client", "distributed.core"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    return client


def _security(options: DaskOptions) -> Any:
    security: Any = import_module("distributed").Security
    if not options.tls_ca_file:
        return security()
    return security(
        tls_ca_file=options.tls_ca_file,
        tls_client_cert=options.tls_cert,
        tls_client_key=options.tls_key,
        require_encryption=True,
    )


async def worker_dial(options: DaskOptions, address: str, seconds: float) -> Comm:
    """Open a connection to a Dask worker.

    Raises:
        OSError: If no connection is opened within ``seconds``.
    """
    connect: Any = import_module("distributed.comm").connect
    arguments = _security(options).get_connection_args("client")
    comm: Comm = await connect(address, timeout=seconds, **arguments)
    return comm
