"""The interface of an executor backend: finds, starts and ends workers on one engine.

A **worker** is a process that runs ``python -P -m aioflow.worker`` and takes one try at a time. The
daemon decides which try runs in which worker, and talks to the worker through a channel of bytes.
A backend only provides workers: it decides nothing, stores nothing, and may be restarted at any
time. It is found through the entry-point group ``aioflow.executors``: the name of the entry point
is the ``kind`` of an executor in the settings, its value an ``ExecutorFactory``. A backend passes
the contract suite ``aioflow.testing.executors``.

How a backend starts the program of a worker:

* in a session of its own, with ``AIOFLOW_LINK_FD`` naming one end of a stream socket pair, and with
  ``AIOFLOW_LOG_NONCE`` set to 16 random hexadecimal digits, which ``WorkerInfo.log_nonce`` repeats;
* with stdin closed, and stdout and stderr on one pipe. What is read from the pipe goes to
  ``WorkerEvents.output``, no faster than that returns;
* what is read from the socket goes to ``WorkerEvents.frame``, and what the channel sends is written
  to the socket, unchanged in both directions. The daemon sends the first command.

When the socket closes, the program exits by itself, also in the middle of a try.

**Fencing.** A start is committed before it is sent, and a report counts only with the present start
number of its task, so a backend that repeats or delays frames cannot run a task twice in the eyes
of the daemon. A backend ensures the rest: a worker obeys one ``ExecutorLease`` only, and a worker
that has been out of contact for longer than ``patience_seconds`` has ended itself before.
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
"""The entry-point group in which backends are found."""


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a worker, known once it is up. They are shown to users, except the last three.

    Attributes:
        host: Name of the machine.
        pid: Process id of the program on that machine.
        address: Where the engine has it, for display: ``tcp://10.0.0.7:40331``; may be empty.
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
    """Bytes from the daemon to the program of a worker: in order, each once.

    Commands are small, so the daemon does not wait for a slow channel. Only large results are sent
    no faster than it carries them, if it has an attribute ``backlog``: the number of bytes that the
    other machine has not received; the attribute is optional. A channel may break, but it
    never loses the middle of a stream and continues: if it cannot resume exactly where it broke,
    the worker has to end.
    """

    def send(self, data: bytes) -> None:
        """Queue whole frames of the link. Never blocks; does nothing once the worker is dead."""

    def close(self) -> None:
        """Close the link after what waits, so that an idle program exits by itself. Idempotent."""


class WorkerEvents(Protocol):
    """The receiver of the reports of a backend. Implemented by the daemon.

    All methods are called in the thread of the event loop that runs ``ExecutorBackend.run``. For
    one worker ``worker_up`` is the first call and ``worker_gone`` the last, each once.
    """

    def next_worker_no(self) -> WorkerNo:
        """Return the number for a worker that is to be started. No other worker ever has it."""

    def worker_up(
        self, worker_no: WorkerNo, spec: WorkerSpec, channel: WorkerChannel, info: WorkerInfo
    ) -> None:
        """Report a worker that was started for a spec and accepts commands."""

    def frame(self, worker_no: WorkerNo, data: bytes) -> None:
        """Pass on bytes that the program wrote to its link, in order, cut anywhere."""

    async def output(self, worker_no: WorkerNo, data: bytes) -> None:
        """Pass on bytes that the program printed, in order. Read no more until this returns."""

    def worker_lost(self, worker_no: WorkerNo, why: str) -> None:
        """Report that nothing is known about a worker any more; empty ``why``: it is back.

        Its tries count as running until ``worker_gone``, at most for ``patience_seconds``. Then the
        daemon calls ``kill`` and starts them elsewhere. A worker may be back only if no byte of its
        channel was lost.
        """

    def worker_gone(self, worker_no: WorkerNo, failure: Failure) -> None:
        """Report that a worker is certainly dead, with everything that it started.

        Nothing of it comes after this call, and all its output came before. If the daemon did not
        end it, ``failure`` says how it ended and decides whether its try is charged:

        * ``reason`` ``exit``, ``crashed`` or ``oom``: the try that had begun has failed;
        * ``reason`` ``killed``: it was ended from outside (a signal, an eviction, a dead machine),
          so the try is interrupted and not charged.

        ``aioflow.processes.describe_exit`` makes it from an exit status.
        """

    def unavailable(self, spec: WorkerSpec, why: str) -> None:
        """Report that no such worker can be had now, in one sentence; empty ``why``: it can.

        Tasks that wait for such a worker show the sentence.
        """


class ExecutorLease(msgspec.Struct, frozen=True, kw_only=True):
    """For whom workers run. A worker obeys one lease only.

    A channel with a smaller epoch is refused. One with a larger epoch ends what runs for the
    smaller one.

    Attributes:
        home_id: Identifies the home, also across nodes.
        node_no: Number of the node.
        epoch: Grows with each start of the node's daemon.
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

    Its attribute ``url``, which is optional, is the address of a page about the engine.
    """

    @property
    def name(self) -> str:
        """Name of the executor in the settings."""

    @property
    def max_workers(self) -> int:
        """The most workers that it provides at a time."""

    @property
    def idle_seconds(self) -> float:
        """How long a worker without work keeps what it holds on the engine."""

    @property
    def patience_seconds(self) -> float:
        """How long a lost worker may be running. By then it has ended itself."""

    async def run(
        self,
        lease: ExecutorLease,
        events: WorkerEvents,
        *,
        task_status: TaskStatus[None],
    ) -> None:
        """Provide workers until cancelled; then end all of them.

        First end the workers of earlier daemons of this node: the same ``home_id`` and ``node_no``,
        a smaller ``epoch``. If the engine cannot be reached, do not raise: report ``unavailable``
        and try again. Signal ``task_status`` as soon as demand is accepted, without waiting for the
        engine.
        """

    def set_demand(self, demands: Sequence[WorkerDemand]) -> None:
        """Set the whole demand, which replaces the former one. A spec not listed has no work.

        The count includes the workers that are up, also those that are lost. Fewer workers than
        demanded are always right. More are not ended by the backend, since a try may be on its way
        to them: the daemon retires each one that was idle for ``idle_seconds``.
        """

    def kill(self, worker_no: WorkerNo) -> None:
        """End a worker and everything it has started, now; ``worker_gone`` confirms. Idempotent."""

    def retire(self, worker_no: WorkerNo) -> None:
        """End an idle worker and free what it holds; ``worker_gone`` confirms. Idempotent.

        The daemon calls it for a worker without tries: it was idle for ``idle_seconds``, or it has
        loaded other code than the tries that wait for its spec. The demand may ask for another
        worker in its place.
        """

    def check(self, task: TaskSpec) -> str:
        """Return why a task can never run here, in one sentence; empty if it can.

        Called for each task that names this executor, when a DAG file is parsed. Answers from the
        settings alone, without asking the engine: a resource that no worker may ever have, an
        option that does not exist. Tasks of an interpreter that is not in the attribute
        ``interpreters`` of the backend are refused without this call; the attribute is optional.
        """


ExecutorFactory: TypeAlias = Callable[[str, Mapping[str, object]], ExecutorBackend]
"""Creates a backend from its name and its table ``[executors.NAME]`` of the settings.

The table comes without ``kind``. Raises ``ValueError`` with one sentence if a value is wrong. It
neither connects nor starts anything, and heavy libraries are imported in ``run``.
"""
