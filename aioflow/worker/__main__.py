"""``python -m aioflow.worker``: the program of every child.

The daemon hands over the link's socket in ``AIOFLOW_LINK_FD`` and, to shared hosts, the black
box in ``AIOFLOW_BLACKBOX_FD``. The first order says which role to play. A role is imported
when it is known: start-up time and memory are paid by every slot.

It ends with 0 when the daemon closes the link, with 70 when a host gives itself up because too
many coroutines outlived their cancellation.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import socket
import sys

import aioflow.author.public
from aioflow.author.deferrable import set_default_deferrable
from aioflow.author.retry import set_default_tries
from aioflow.errors import LinkClosed
from aioflow.protocol.commands import Hello, Order
from aioflow.worker.airflow import finder as airflow
from aioflow.worker.frames import BlockingLink
from aioflow.worker.process import die_before_parent, die_with_parent, take_socket
from aioflow.worker.withheld_variables import take_names

__all__ = ("main",)

# Has them loaded: what user code takes by name is there before it runs, and is looked after.
dir(aioflow)


def main() -> int:
    """Play the role that the daemon assigns; return the exit status."""
    die_with_parent()
    faulthandler.enable()  # a crash tells where, in the log of whoever caused it
    sys.dont_write_bytecode = True  # a snapshot is immutable, a DAG folder is not ours
    gc.freeze()  # all this stays: neither a collection nor the end need walk it
    take_names()
    link = BlockingLink(sock := take_socket("AIOFLOW_LINK_FD"))
    try:
        welcome, *first = link.receive()
        if not isinstance(welcome, Hello):
            raise LinkClosed(f"the first order must be Welcome, not {type(welcome).__name__}")
        return _play(welcome, first, link, sock)
    except LinkClosed as exc:
        print(f"aioflow: {exc}", file=sys.stderr)  # noqa: T201 - no logger stands here
        return 0


def _play(welcome: Hello, first: list[Order], link: BlockingLink, sock: socket.socket) -> int:
    die_before_parent(welcome.role)
    airflow.install()
    set_default_deferrable(value=welcome.default_deferrable)
    set_default_tries(welcome.default_tries)
    match welcome.role:
        case "parser":
            from aioflow.worker.parser import Forking

            Forking(link, sock).run(first)
        case "slot":
            from aioflow.worker.slot import Slot

            Slot(link, welcome, _log_nonce()).run(first)
        case "callbacks":
            from aioflow.worker.callbacks import CallbackHost

            CallbackHost(link, welcome, _log_nonce()).run(first)
        case "async":
            from aioflow.worker.coroutines import CoroutineHost
            from aioflow.worker.shared_host import serve

            return serve(CoroutineHost, welcome, first, sock)
        case "triggers" | "quarantine":
            from aioflow.worker.shared_host import serve
            from aioflow.worker.triggers import TriggerHost

            return serve(TriggerHost, welcome, first, sock)
        case _:
            raise LinkClosed(f"there is no role {welcome.role!r}")
    return 0


def _log_nonce() -> bytes:
    """Return it, and have user code not find it."""
    return os.environ.pop("AIOFLOW_LOG_NONCE", "").encode()


if __name__ == "__main__":
    sys.exit(main())
