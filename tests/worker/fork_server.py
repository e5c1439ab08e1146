"""A process that has imported the program of children, and forks one child per order.

``python -m tests.worker.fork_server FD`` saves each child of a test 0.14 s of CPU time: the time to
start the interpreter and to import ``aioflow.worker.__main__``. A forked child then executes that
module as its ``__main__``, so from there on it behaves like a started child. The modules of the
roles are imported in the child, as in the product.

The server has no threads, no signal handlers and no descriptors of its children. It ends when the
socket closes. Its children are then killed, because ``die_with_parent`` sees the server as their
parent.
"""

from __future__ import annotations

import builtins
import os
import socket
import sys
from importlib.util import find_spec
from types import CodeType, ModuleType

import msgspec

__all__ = ("PROGRAM", "Fork", "Order", "Reap", "main")

PROGRAM = "aioflow.worker"

_SIZE = 1 << 18
_PASSED = ("AIOFLOW_LINK_FD", "AIOFLOW_BLACKBOX_FD")


class Fork(msgspec.Struct, frozen=True, tag=True):
    """Fork a child. The reply is its process id.

    The descriptors are sent along: for its output, for its link, and for a crash recorder if the
    environment names one. The server replaces their numbers in the environment.
    """

    environment: dict[str, str]
    folder: str


class Reap(msgspec.Struct, frozen=True, tag=True):
    """Wait for a child. The reply is its exit status, negative for a signal.

    Until then, an ended child remains a zombie, so that its process id is not reused.
    """

    pid: int


Order = Fork | Reap


def main() -> None:
    """Execute orders until the socket closes. In a forked child, become a child of a daemon."""
    # Variables that an interpreter adds to its environment when it starts, such as LC_CTYPE in the
    # C locale.
    added = {name: os.environ[name] for name in os.environ.keys() - {"PATH", "PYTHONPATH"}}
    code, names = _import_program()
    found = _serve(socket.socket(fileno=int(sys.argv[1])))
    if found is None:
        return
    order, descriptors = found
    _become(order, descriptors, added)
    sys.argv[:] = [str(names["__file__"])]
    module = sys.modules["__main__"] = ModuleType("__main__")
    vars(module).update(names)
    exec(code, vars(module))


def _import_program() -> tuple[CodeType, dict[str, object]]:
    """Import the program. Return its code, and the names that ``python -m`` puts into it.

    Afterwards, the loaded modules are exactly those that a started child has loaded.
    """
    spec = find_spec(f"{PROGRAM}.__main__")
    assert spec is not None
    assert spec.loader is not None
    __import__(spec.name)
    del sys.modules[spec.name]
    del vars(sys.modules[PROGRAM])["__main__"]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    names = {
        "__name__": "__main__",
        "__annotations__": {},
        "__builtins__": builtins,
        "__file__": spec.origin,
        "__cached__": spec.cached,
        "__loader__": spec.loader,
        "__package__": spec.parent,
        "__spec__": spec,
    }
    return spec.loader.get_code(spec.name), names  # type: ignore[attr-defined]


def _serve(connection: socket.socket) -> tuple[Fork, list[int]] | None:
    """Execute orders. Return the order in a forked child, and ``None`` in the server at its end."""
    decoder = msgspec.msgpack.Decoder(Order)
    _answer(connection, 0)
    while True:
        data, descriptors, _, _ = socket.recv_fds(connection, _SIZE, 1 + len(_PASSED))
        if not data:
            return None
        order = decoder.decode(data)
        if isinstance(order, Reap):
            _, status = os.waitpid(order.pid, 0)
            _answer(connection, os.waitstatus_to_exitcode(status))
            continue
        pid = os.fork()
        if not pid:
            connection.close()
            return order, descriptors
        for descriptor in descriptors:
            os.close(descriptor)
        _answer(connection, pid)


def _answer(connection: socket.socket, number: int) -> None:
    connection.send(msgspec.msgpack.encode(number))


def _become(order: Fork, descriptors: list[int], added: dict[str, str]) -> None:
    """Set up everything that a started child gets from ``exec``."""
    os.setsid()
    output, *passed = descriptors
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    os.environ.clear()
    os.environ.update(order.environment | added)
    for name, number in zip(_PASSED, passed, strict=False):
        os.set_inheritable(number, True)
        os.environ[name] = str(number)
    os.chdir(order.folder)
    sys.path[0] = order.folder
    sys.orig_argv[1:] = ["-m", PROGRAM]


if __name__ == "__main__":
    main()
