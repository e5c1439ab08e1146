"""A program ``aioflow`` for shell scripts that does its imports once, not for each command.

A server imports the command line, and forks for each command. The program passes its arguments,
folder, environment and three streams to the server, and exits with the status of the command.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ("program",)

_LONGEST = 200_000

_PROGRAM = """#!{python} -IS
import json, os, socket, sys

server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect({place!r})
words = [os.getcwd(), dict(os.environ), sys.argv[1:]]
socket.send_fds(server, [json.dumps(words).encode()], [0, 1, 2])
sys.exit(int(server.recv(16) or 1))
"""


@contextmanager
def program(folder: Path) -> Iterator[None]:
    """Put the program into a folder, and serve it."""
    home = tempfile.mkdtemp(prefix="aioflow-")  # the path of a socket is short
    place = f"{home}/commands"
    file = folder / "aioflow"
    file.write_text(_PROGRAM.format(python=sys.executable, place=place))
    file.chmod(0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(place)
        server.listen()
        command = [sys.executable, "-m", __name__, str(server.fileno())]
        process = subprocess.Popen(command, pass_fds=[server.fileno()])
    try:
        yield
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(home)


def _serve(server: socket.socket) -> None:
    import aioflow.daemon.node  # noqa: F401 - what most commands need

    ended = 0
    begun = 0
    while True:
        connection, _ = server.accept()
        message, streams, _, _ = socket.recv_fds(connection, _LONGEST, 3)
        begun += 1
        if os.fork() == 0:
            server.close()
            status = 1
            try:
                status = _run(json.loads(message), streams)
            finally:
                connection.send(str(status).encode())
                os._exit(status)
        connection.close()
        for stream in streams:
            os.close(stream)
        while ended < begun and os.waitpid(-1, os.WNOHANG)[0]:
            ended += 1


def _run(message: tuple[str, dict[str, str], list[str]], streams: list[int]) -> int:
    from aioflow.__main__ import main

    folder, environment, words = message
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - for the life of this process
    # Line buffering retains the order of the output, even if both streams go to the same file.
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = ["aioflow", *words]
    try:
        status = main()
    except SystemExit as ended:
        status = int(ended.code or 0)
    sys.stdout.flush()
    sys.stderr.flush()
    return status


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
