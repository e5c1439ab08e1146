"""``python -m aioflow.worker``: the program of every child process.

The daemon passes the link's socket in ``AIOFLOW_LINK_FD`` and, to shared children, the crash
recorder in ``AIOFLOW_BLACKBOX_FD``. The first command assigns the role. Only then is the module of
that role imported, because importing all roles would cost every slot worker startup time and
memory.

The exit status is 0 if the daemon closes the link, and 70 if a shared child exits because too many
coroutines outlived their cancellation.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import socket
import sys

import aioflow.author.public
from aioflow.author.deferral import set_default_deferrable
from aioflow.author.options import set_default_executor, set_default_tries
from aioflow.errors import LinkClosed
from aioflow.protocol.commands import Command, Hello
from aioflow.worker.airflow import finder as airflow
from aioflow.worker.link import BlockingLink
from aioflow.worker.process import die_before_parent, die_with_parent, take_socket
from aioflow.worker.withheld_variables import take_names

__all__ = ("main",)

# Load all lazy names now. When user code imports one of them later, its module is already loaded,
# and changes to its state are detected.
dir(aioflow)


def main() -> int:
    """Run the role that the daemon assigns. Return the exit status."""
    die_with_parent()
    faulthandler.enable()  # a crash prints its traceback to the log of its task
    sys.dont_write_bytecode = True  # a version is immutable, and a DAG folder belongs to the user
    gc.freeze()  # all of this stays: the garbage collector need not traverse it
    take_names()
    link = BlockingLink(sock := take_socket("AIOFLOW_LINK_FD"))
    try:
        hello, *first = link.receive()
        if not isinstance(hello, Hello):
            raise LinkClosed(f"the first command must be Hello, not {type(hello).__name__}")
        return _run_role(hello, first, link, sock)
    except LinkClosed as exc:
        print(f"aioflow: {exc}", file=sys.stderr)  # noqa: T201 - no logger is configured
        return 0


def _run_role(hello: Hello, first: list[Command], link: BlockingLink, sock: socket.socket) -> int:
    die_before_parent(hello.role)
    airflow.install()
    set_default_deferrable(value=hello.default_deferrable)
    set_default_tries(hello.default_tries)
    set_default_executor(hello.default_executor)
    match hello.role:
        case "parser":
            from aioflow.worker.parser import Forking

            Forking(link, sock).run(first)
        case "slot":
            from aioflow.worker.slot import Slot

            Slot(link, hello, _log_nonce()).run(first)
        case "callbacks":
            from aioflow.worker.callbacks import CallbackHost

            CallbackHost(link, hello, _log_nonce()).run(first)
        case "async":
            from aioflow.worker.coroutines import CoroutineHost
            from aioflow.worker.shared_host import serve

            return serve(CoroutineHost, hello, first, sock)
        case "triggers" | "quarantine":
            from aioflow.worker.shared_host import serve
            from aioflow.worker.triggerer import TriggerHost

            return serve(TriggerHost, hello, first, sock)
        case _:
            raise LinkClosed(f"there is no role {hello.role!r}")
    return 0


def _log_nonce() -> bytes:
    """Remove the nonce from the environment and return it, so that user code cannot find it."""
    return os.environ.pop("AIOFLOW_LOG_NONCE", "").encode()


if __name__ == "__main__":
    sys.exit(main())
