"""Ready-made operators."""

from __future__ import annotations

import codecs
import contextlib
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aioflow import DAG, Context, DagRunFailed, Operator, RunOutcome, Skip, run_dag, start_dag

__all__ = ("BashFailed", "BashOperator", "EmptyOperator", "TriggerDagRun")

_PIECE_BYTES = 65_536
_PIECES = 64
_LAST_LINE_LENGTH = 10_000
_OURS = "AIOFLOW_"


class EmptyOperator(Operator):
    """Does nothing. Use it to join dependencies."""

    def execute(self, context: Context) -> None:
        """Do nothing."""


class TriggerDagRun(Operator):
    """Starts a run of another DAG, and optionally waits for its end, without using a slot.

    Exactly one run is started, however often this task is interrupted. Another try of the task
    starts a new run unless the previous run ended as ``success`` or ``partial``. If this task is
    cancelled, the run continues.

    Args:
        dag: The DAG, or its id.
        conf: Its parameters, as with ``--conf``.
        wait: Whether to wait for the end of the run. If not, the task's result is the run's id.
        allowed: Final states of the run with which this task succeeds. The task's result is then
            the state and id of the run.

    Raises:
        DagRunFailed: If the run ends in another state; retries apply.
        UnknownDag: If there is no DAG with this id.
        BadConf: If the parameters do not match the DAG's.
    """

    template_fields: Sequence[str] = ("dag", "conf")

    def __init__(
        self,
        *,
        dag: DAG | str,
        conf: Mapping[str, Any] | None = None,
        wait: bool = True,
        allowed: Sequence[str] = ("success", "partial"),
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.dag_id = dag.dag_id if isinstance(dag, DAG) else dag
        self.conf = dict(conf or {})
        self.wait = wait
        self.allowed = (allowed,) if isinstance(allowed, str) else tuple(allowed)

    async def execute(self, context: Context) -> RunOutcome | str:
        """Start the run."""
        if not self.wait:
            return await start_dag(self.dag_id, **self.conf)
        try:
            outcome = await run_dag(self.dag_id, **self.conf)
        except DagRunFailed as exc:
            if exc.state not in self.allowed:
                raise
            return RunOutcome(state=exc.state, run_id=exc.run_id, result=None)
        if outcome["state"] not in self.allowed:
            raise DagRunFailed(self.dag_id, outcome["run_id"], outcome["state"])
        return outcome


class BashFailed(Exception):
    """A command failed.

    Attributes:
        exit_code: The exit code of bash; the negative signal number if a signal killed it.
    """

    def __init__(self, exit_code: int, last_line: str) -> None:
        how = f"was killed by signal {-exit_code}" if exit_code < 0 else f"ended with {exit_code}"
        super().__init__(f"bash {how}" + (f": {last_line[:500]}" if last_line else ""))
        self.exit_code = exit_code


class BashOperator(Operator):
    """Runs a command in bash. Its output goes to the log, and the last line of it is the result.

    The command has its own process group. When bash has ended, remaining processes of the group are
    killed. If the try reaches its ``execution_timeout`` or is cancelled, all processes that the
    command has started are killed at once, without a signal that allows a cleanup.

    Args:
        bash_command: The command, as with ``bash -c``. A template, like ``env`` and ``cwd``. The
            value of ``{{ params.name }}`` is interpreted by bash as part of the command. So pass
            untrusted values through ``env``: ``env={"NAME": "{{ params.name }}"}`` and ``"$NAME"``.
            ``AIRFLOW_CTX_DAG_ID``, ``_TASK_ID``, ``_DAG_RUN_ID``, ``_LOGICAL_DATE`` and
            ``_TRY_NUMBER`` are set as in Airflow. ``${#x}`` needs ``{% raw %}`` around it.
        env: The whole environment, including ``PATH``, instead of the worker's.
        append_env: Add ``env`` to the worker's environment instead of replacing it.
        cwd: The working directory; by default that of the worker.
        skip_on_exit_code: Exit codes that skip the task.
        output_encoding: The encoding of the output. Bytes that cannot be decoded become a
            replacement character.

    Raises:
        BashFailed: If the command ends with another exit code than 0; retries apply.
    """

    template_fields: Sequence[str] = ("bash_command", "env", "cwd")

    def __init__(
        self,
        *,
        bash_command: str,
        env: Mapping[str, str] | None = None,
        append_env: bool = False,
        cwd: str | Path | None = None,
        skip_on_exit_code: int | Sequence[int] | None = 99,
        output_encoding: str = "utf-8",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.bash_command = bash_command
        self.env = env
        self.append_env = append_env
        self.cwd = cwd
        self.skip_on_exit_code = skip_on_exit_code
        self.output_encoding = output_encoding

    def execute(self, context: Context) -> str:
        """Run the command and return the last line of its output."""
        said = _OutputForwarder(self.output_encoding)
        exit_code = _run(self.bash_command, self._environment(context), self.cwd, said)
        last_line = said.end()
        if exit_code in self._skips():
            raise Skip(f"bash ended with {exit_code}")
        if exit_code != 0:
            raise BashFailed(exit_code, last_line)
        return last_line

    def _skips(self) -> Sequence[int]:
        codes = self.skip_on_exit_code
        if codes is None:
            return ()
        return (codes,) if isinstance(codes, int) else codes

    def _environment(self, context: Context) -> dict[str, str]:
        mine = dict(os.environ)
        if self.env is not None and not self.append_env:
            # aioflow's own variables are not removed, because they identify leftover processes to
            # kill.
            mine = {name: value for name, value in mine.items() if name.startswith(_OURS)}
        return mine | _airflow_environment(context) | dict(self.env or {})


def _airflow_environment(context: Context) -> dict[str, str]:
    told = {
        "DAG_ID": context["dag_id"],
        "TASK_ID": context["task_id"],
        "DAG_RUN_ID": context["run_id"],
        "LOGICAL_DATE": context["logical_date"].isoformat(),
        "TRY_NUMBER": str(context["try_number"]),
    }
    return {f"AIRFLOW_CTX_{name}": value for name, value in told.items()}


class _OutputForwarder:
    """Forwards the output of a command, and stores its last line."""

    def __init__(self, encoding: str) -> None:
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._line = ""
        self._last = ""

    def take(self, data: bytes, *, final: bool = False) -> None:
        """Forward a piece of output."""
        text = self._decoder.decode(data, final)
        sys.stdout.write(text)
        *lines, rest = (self._line + text).split("\n")
        self._last = next((line for line in reversed(lines) if line), self._last)
        self._line = rest[-_LAST_LINE_LENGTH:]

    def end(self) -> str:
        """Return the last line that is not empty."""
        self.take(b"", final=True)
        if self._line:
            sys.stdout.write("\n")
        return (self._line or self._last).rstrip("\r")[-_LAST_LINE_LENGTH:]


def _run(
    command: str, environment: Mapping[str, str], cwd: str | Path | None, said: _OutputForwarder
) -> int:
    """Run a command and return its exit code. Afterwards no process of its group is left."""
    process = subprocess.Popen(
        ["bash", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        cwd=cwd,
        process_group=0,
    )
    with process:
        try:
            _listen(process, said)
        finally:
            # bash has not been reaped yet, so its group id cannot have been reused.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode


def _listen(process: subprocess.Popen[bytes], said: _OutputForwarder) -> None:
    """Forward output until bash has ended, even if other processes still hold the pipe."""
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    output = process.stdout.fileno()
    os.set_blocking(output, False)
    handle = os.pidfd_open(process.pid)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(handle, selectors.EVENT_READ)
            selector.register(output, selectors.EVENT_READ)
            while selector.get_map():
                ready = [key.fd for key, _ in selector.select()]
                if not _pass_on(output, said) and output in ready:
                    selector.unregister(output)
                if handle in ready:
                    return  # all earlier output has been forwarded
    finally:
        os.close(handle)


def _pass_on(output: int, said: _OutputForwarder) -> bool:
    """Forward the available output; return whether more may follow.

    Limited to more than a pipe can hold, in case the command writes faster than this reads.
    """
    for _ in range(_PIECES):
        try:
            data = os.read(output, _PIECE_BYTES)
        except BlockingIOError:
            return True
        if not data:
            return False
        said.take(data)
    return True
