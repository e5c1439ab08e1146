"""The interface of an executor backend, which finds, starts and ends workers on one engine.

A **worker** is a process that runs ``python -P -m aioflow.worker`` and takes one try at a time. The
daemon decides which try runs in which worker, and talks to the worker through a channel of bytes.
A backend only provides workers: it decides nothing, stores nothing, and may be restarted at any
time. It is found through the entry-point group ``aioflow.executors``. The name of the entry point
is the ``kind`` of an executor in the settings, and its value is an ``ExecutorFactory``. A backend
must pass the contract suite ``aioflow.testing.executors``.

A backend starts the program of a worker as follows:

* in a separate session, with ``AIOFLOW_LINK_FD`` naming one end of a stream socket pair, and with
  ``AIOFLOW_LOG_NONCE`` set to 16 random hexadecimal digits, which ``WorkerInfo.log_nonce`` repeats;
* with stdin closed, and with stdout and stderr on one pipe. The backend passes what it reads from
  the pipe to ``WorkerEvents.output``, and reads on only after that call has returned;
* the backend passes what it reads from the socket to ``WorkerEvents.frame``, and writes what the
  channel sends to the socket, unchanged in both directions. The daemon sends the first command.

When the socket closes, the program exits by itself, even in the middle of a try.

**Fencing.** A start is committed before it is sent, and a report counts only with the current start
number of its task. So even if a backend repeats or delays frames, the daemon does not count a try
twice. The backend must ensure the rest: a worker obeys only one ``ExecutorLease``, and a worker
that is out of contact ends itself before ``patience_seconds`` are over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import msgspec
from anyio.abc import TaskStatus

from aioflow.model.dag import TaskSpec
from aioflow.model.states import Failure
from aioflow.model.timestamps import Timestamp
from aioflow.model.workers import LOCAL, WorkerDemand, WorkerNo, WorkerSpec

__all__ = (
    "ENTRY_POINTS",
    "LOCAL",
    "ExecutorBackend",
    "ExecutorFactory",
    "ExecutorLease",
    "WorkerChannel",
    "WorkerDemand",
    "WorkerEvents",
    "WorkerInfo",
    "WorkerNo",
    "WorkerSpec",
)

ENTRY_POINTS = "aioflow.executors"
"""The entry-point group through which backends are found."""


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a worker, known once it is up. They are shown to users, except the last three.

    Attributes:
        host: Name of the machine.
        pid: Process id of the program on that machine.
        address: Where the engine runs the worker, for display: ``tcp://10.0.0.7:40331``; may be
            empty.
        python: Version of the interpreter: ``3.13.1``.
        aioflow: Version of aioflow in that interpreter. It must be the daemon's, because both ends
            of a channel must have the same version; otherwise report ``unavailable`` instead.
        started_at: When the program was started.
        url: A page about the worker, such as the dashboard of its engine; empty for none.
        log_nonce: Value of ``AIOFLOW_LOG_NONCE`` of the program.
        code_folder: Absolute path of a folder on that machine for code of DAG versions, which the
            program fetches through its channel. Workers of a machine may share it. Empty if the
            machine has the daemon's home at the daemon's path.
        results_folder: The same for large results.
    """

    host: str
    pid: int
    address: str = ""
    python: str = ""
    aioflow: str = ""
    started_at: Timestamp | None = None
    url: str = ""
    log_nonce: str
    code_folder: str = ""
    results_folder: str = ""


class WorkerChannel(Protocol):
    """Bytes from the daemon to the program of a worker, delivered in order and exactly once.

    Commands are small, so the daemon does not wait for a slow channel. Only large results are sent
    no faster than the channel carries them. For this, the channel may have an attribute
    ``backlog``: the number of bytes that the other machine has not received. A channel may break,
    but it must not lose part of a stream and then continue. If it cannot resume exactly where it
    broke, the worker has to end.
    """

    def send(self, data: bytes) -> None:
        """Queue whole frames of the link. Never blocks. Does nothing once the worker is dead."""

    def close(self) -> None:
        """Close the link after sending what is queued, so that an idle program exits.

        Idempotent.
        """


class WorkerEvents(Protocol):
    """The receiver of a backend's reports. Implemented by the daemon.

    All methods are called in the thread of the event loop that runs ``ExecutorBackend.run``. For
    each worker, ``worker_up`` is the first call and ``worker_gone`` the last. Each is called once.
    """

    def next_worker_no(self) -> WorkerNo:
        """Return the number for a worker that is to be started. Numbers are never reused."""

    def worker_up(
        self, worker_no: WorkerNo, spec: WorkerSpec, channel: WorkerChannel, info: WorkerInfo
    ) -> None:
        """Report that a worker was started for a spec and accepts commands."""

    def frame(self, worker_no: WorkerNo, data: bytes) -> None:
        """Pass on bytes that the program wrote to its link, in order and in pieces of any size."""

    async def output(self, worker_no: WorkerNo, data: bytes) -> None:
        """Pass on bytes that the program printed, in order. Read no more until this returns."""

    def worker_lost(self, worker_no: WorkerNo, why: str) -> None:
        """Report that contact with a worker was lost, or with an empty ``why``, that it is back.

        The worker's tries count as running until ``worker_gone``, at most for ``patience_seconds``.
        Then the daemon calls ``kill`` and starts the tries elsewhere. A worker may be reported as
        back only if no byte of its channel was lost.
        """

    def worker_gone(self, worker_no: WorkerNo, failure: Failure) -> None:
        """Report that a worker is certainly dead, with everything that it started.

        No report about the worker follows this call, and all its output came before. If the daemon
        did not end the worker, ``failure`` states how it ended and decides whether its try is
        charged:

        * ``reason`` ``exit``, ``crashed`` or ``oom``: the try that had begun has failed;
        * ``reason`` ``killed``: the worker was ended from outside (a signal, an eviction, a dead
          machine), so the try is interrupted and not charged.

        ``aioflow.processes.describe_exit`` creates the failure from an exit status.
        """

    def unavailable(self, spec: WorkerSpec, why: str) -> None:
        """Report why no worker of a spec is available, in one sentence; empty if one is again.

        Tasks that wait for such a worker show the sentence.
        """


class ExecutorLease(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of workers. A worker obeys only one lease.

    A channel with a smaller epoch is refused. A channel with a larger epoch ends everything that
    runs for the smaller one.

    Attributes:
        home_id: Identifies the home, also across nodes.
        node_no: Number of the node.
        epoch: Increases with each start of the node's daemon.
        secret: A random secret of this epoch. A connection that presents it is the daemon's.
    """

    home_id: str
    node_no: int
    epoch: int
    secret: str


class ExecutorBackend(Protocol):
    """Finds, starts and ends workers on one engine.

    All methods except ``run`` are called in the thread of the event loop, return at once and do not
    raise. They may be called before ``run`` has started, and after it has ended.

    The optional attribute ``url`` is the address of a page about the engine.
    """

    @property
    def name(self) -> str:
        """Name of the executor in the settings."""

    @property
    def max_workers(self) -> int:
        """Maximum number of workers that the backend provides at the same time."""

    @property
    def idle_seconds(self) -> float:
        """How long a worker without work retains its resources on the engine."""

    @property
    def patience_seconds(self) -> float:
        """How long a lost worker may still be running. It must have ended itself by then."""

    async def run(
        self,
        lease: ExecutorLease,
        events: WorkerEvents,
        *,
        task_status: TaskStatus[None],
    ) -> None:
        """Provide workers until cancelled. Then end all of them.

        First end the workers of earlier daemons of this node, which have the same ``home_id`` and
        ``node_no`` but a smaller ``epoch``. If the engine cannot be reached, do not raise. Report
        ``unavailable`` and try again. Signal ``task_status`` as soon as demand is accepted, without
        waiting for the engine.
        """

    def set_demand(self, demands: Sequence[WorkerDemand]) -> None:
        """Replace the whole demand. A spec that is not listed has no work.

        The count of a spec includes workers that are already up, even if they are lost. It is
        always correct to provide fewer workers than demanded. The backend must not end surplus
        workers, since a try may be on its way to them. The daemon retires each worker that was idle
        for ``idle_seconds``.
        """

    def kill(self, worker_no: WorkerNo) -> None:
        """End a worker and everything it has started, now.

        Confirm by ``worker_gone``. Idempotent.
        """

    def retire(self, worker_no: WorkerNo) -> None:
        """End an idle worker and free its resources. Confirm by ``worker_gone``. Idempotent.

        The daemon calls this for a worker without tries if the worker was idle for
        ``idle_seconds``, or if it has loaded code other than what the tries waiting for its
        spec need. The demand may require another worker in its place.
        """

    def check(self, task: TaskSpec) -> str:
        """Return why a task can never run here, in one sentence; empty if it can.

        Called when a DAG file is parsed, for each task that names this executor. The answer must
        depend only on the settings, not on the engine. Examples are a resource that no worker may
        ever have, and an option that does not exist. The backend may have an attribute
        ``interpreters``. Tasks of an interpreter that it does not contain are refused without this
        call.
        """


ExecutorFactory: TypeAlias = Callable[[str, Mapping[str, object]], ExecutorBackend]
"""Creates a backend from its name and its table ``[executors.NAME]`` of the settings.

The table comes without ``kind``. The factory raises ``ValueError`` with one sentence if a value is
wrong. It neither connects nor starts anything. ``run`` imports heavy libraries.
"""
