"""The runs known to this process, each with its DAG once a try of it has started."""

from __future__ import annotations

from collections.abc import Collection

from aioflow.protocol.commands import RunInfo, StartTask
from aioflow.worker.arguments import KnownRun
from aioflow.worker.code import CodeCache

__all__ = ("RunUnknown", "Runs")


class RunUnknown(Exception):
    """A start command arrived for a run that this process does not know or has forgotten."""

    def __init__(self, run_no: int) -> None:
        super().__init__(f"this process was not told of run {run_no}")


class Runs:
    """Written by one thread with ``tell`` and ``forget``, read by another."""

    def __init__(self, code_cache: CodeCache) -> None:
        self._code_cache = code_cache
        self._infos: dict[int, RunInfo] = {}
        self._known: dict[int, KnownRun] = {}

    def add(self, info: RunInfo) -> None:
        """Add a run; its code is loaded with its first try."""
        self._infos[info.run_no] = info

    def forget(self, run_no: int) -> None:
        """Drop a run that has ended."""
        self._infos.pop(run_no, None)
        self._known.pop(run_no, None)

    def of(self, start: StartTask) -> KnownRun:
        """Return the run of a try. The first call imports the DAG file, which is user code.

        Raises:
            RunUnknown: If ``tell`` was not called for the run.
            CodeMissing: If its version is not on this machine.
        """
        return self.known(start.run_no)

    def known(self, run_no: int) -> KnownRun:
        """See ``of``."""
        known = self._known.get(run_no)
        if known is not None:
            return known
        info = self._infos.get(run_no)
        if info is None:
            raise RunUnknown(run_no)
        dag = self._code_cache.version(info.version).dag(info.file, info.dag_id)
        known = self._known[run_no] = KnownRun(info, dag)
        return known

    def info(self, run_no: int) -> RunInfo | None:
        """Return the data of a run, if it is known."""
        return self._infos.get(run_no)

    def versions(self) -> Collection[str]:
        """Return the versions of all known runs."""
        return {info.version for info in self._infos.values()}
