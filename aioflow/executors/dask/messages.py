"""Messages between the daemon and the agent in a Dask worker.

Both ends must have the same version of aioflow, which the pilot checks before anything else is
exchanged.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import msgspec

__all__ = (
    "LINK_OP",
    "OUTPUT_WINDOW_BYTES",
    "PLUGIN_NAME",
    "Batch",
    "Kind",
    "LinkHello",
    "LinkWelcome",
    "Message",
    "PilotEnd",
    "PilotOrder",
    "PilotUp",
    "WorkerStarted",
    "topic_of",
)

LINK_OP = "aioflow_link"
"""Operation of a Dask worker by which the daemon opens its link."""

PLUGIN_NAME = "aioflow"

OUTPUT_WINDOW_BYTES = 1024 * 1024
"""Maximum bytes of a worker's output that are in transit to its logs."""


class Kind(IntEnum):
    """The type of a message. The content of its data is in brackets."""

    FRAME = 0
    """Bytes of a worker's link, in both directions [the bytes]."""
    OUTPUT = 1
    """Output of a worker [the bytes]."""
    CONSUMED = 2
    """Bytes of output that are in the logs [decimal number]."""
    STARTED = 3
    """A worker was started [``WorkerStarted``]."""
    GONE = 4
    """A worker is dead [``Failure``]."""
    CLOSE = 5
    """Close the link of a worker, so that it exits by itself."""
    KILL = 6
    """Kill a worker."""
    END = 7
    """The daemon ends. Kill all workers. Do not start workers whose pilots begin now."""


Message: TypeAlias = tuple[int, int, bytes]
"""``(Kind, worker number, data)``."""


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """The messages that one end sends at once.

    Attributes:
        first: Number of the first message. Messages are numbered from 0 in each direction.
        received: Number of messages received from the other end.
        beat: A number that the other end repeats in ``echo``, as proof that it runs; 0 for none.
    """

    first: int
    received: int
    beat: int
    echo: int
    messages: tuple[Message, ...]


class PilotOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The argument of a pilot.

    Attributes:
        executor: Name of the executor. One daemon may have several executors on the same cluster.
        topic: Topic of Dask's events on which the pilot announces itself.
        python: Major and minor version of the daemon's interpreter.
        environment: Names and patterns of variables that the program inherits from the Dask worker.
        scheduler: Address of the scheduler for the program's environment; empty for none.
        contact_seconds: A worker ends itself after this time without a sign of life of the daemon.
        shared_home: Whether the daemon's home is at the same path on the Dask worker.
    """

    home_id: str
    node_no: int
    epoch: int
    executor: str
    secret: str
    topic: str
    worker_no: int
    aioflow: str
    python: tuple[int, int]
    environment: tuple[str, ...] = ()
    scheduler: str = ""
    contact_seconds: float = 60.0
    shared_home: bool = False


class PilotUp(msgspec.Struct, frozen=True, kw_only=True):
    """The announcement of a pilot, which waits for the daemon's link at this address."""

    worker_no: int
    address: str
    agent_id: str


class PilotEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a pilot, the only data that stays in Dask's memory.

    Attributes:
        address: Address of the Dask worker.
        refused: Why the Dask worker cannot run such workers; empty if it can.
        has_run: Whether a program was started. Its end is reported over the link.
        is_cut_off: Whether another link has replaced the link over which its end would be reported.
    """

    address: str
    refused: str = ""
    has_run: bool = False
    is_cut_off: bool = False


class LinkHello(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon's first message on a connection. It opens a link, or continues one.

    Attributes:
        agent_id: The agent whose pilot announced itself. Another agent refuses the link.
        link_no: Number of the link. It is larger than the numbers of all earlier links of this
            daemon, whose streams are lost with all messages in them.
        received: Number of messages that the daemon has received from this agent.
    """

    home_id: str
    node_no: int
    epoch: int
    executor: str
    secret: str
    agent_id: str
    link_no: int
    received: int


class LinkWelcome(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's answer.

    Attributes:
        refused: Why the link is refused; empty if it is open. If it is refused, nothing runs for
            the daemon.
        received: Number of messages that the agent has received from the daemon.
    """

    refused: str = ""
    received: int = 0


class WorkerStarted(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a worker, see ``WorkerInfo``."""

    host: str
    pid: int
    address: str
    python: str
    aioflow: str
    started_at: int
    log_nonce: str
    code_folder: str
    results_folder: str


def topic_of(home_id: str, node_no: int, executor: str) -> str:
    """Return the topic of Dask's events on which the pilots of an executor announce themselves."""
    return f"aioflow-{home_id}-{node_no}-{executor}"
