"""Functions that raise, at the second level: drawn, and reported by the real ``run_body``.

The workers are actors, so an exception that would end a process ends nothing here. The code that
turns the exception of a body into a report is the real one.
"""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from aioflow.model.dag import Body, TaskSpec
from aioflow.protocol.commands import Reply, StartTask
from aioflow.protocol.reports import Failed, Labelled, ResultWriteFailed
from aioflow.results import ResultFiles
from aioflow.worker.slot import run_body
from aioflow.worker.task import outcome
from tests.sim.broken import Broken
from tests.sim.misbehaving import RAISED

__all__ = ("as_run",)

_NOWHERE = ResultFiles(Path("/nonexistent"))
_KINDS = sorted(RAISED)


class _Runs:
    """The run of a task that raises, reduced to what a body without arguments needs."""

    def __init__(self, kind: str) -> None:
        def raises() -> None:
            raise RAISED[kind]("as drawn")

        spec = TaskSpec(task_id="raises", body=Body.FUNCTION)
        node = SimpleNamespace(
            fn=raises,
            spec=spec,
            task_id="raises",
            arguments={},
            sensor=None,
            retry=None,
            settings=SimpleNamespace(sensor=None, map_label=None),
        )
        self._run = SimpleNamespace(dag=SimpleNamespace(nodes=[node]))

    def of(self, start: StartTask) -> Any:
        """See ``worker.task.arguments``."""
        return self._run


def as_run(report: Failed, rng: random.Random) -> Failed:
    """Return the report with a failure made from a real exception of a body.

    Raises:
        Broken: If the exception ends more than its try, or ends the try in another way.
    """
    kind = rng.choice(_KINDS)
    runs: Any = _Runs(kind)
    start = StartTask(-1, report.task_no, report.start_no, 0, -1, 1)
    try:
        with patch.object(outcome, "print_traceback", _says_nothing):
            ended = run_body(start, runs, _asks_nothing, _tells_nothing, _NOWHERE)
    except BaseException as exc:
        raise Broken("fence", f"a body that raises ({kind}) ends its worker: {exc!r}") from exc
    if not isinstance(ended, Failed) or ended.interrupted or not ended.retryable:
        raise Broken("fence", f"a body that raises ({kind}) ends its try by {ended}")
    return Failed(
        *(report.task_no, report.start_no, report.began_at, report.at),
        *(ended.failure, report.retryable, report.retry_after_us),
    )


def _says_nothing(problem: BaseException) -> None:
    """Print no traceback."""


def _asks_nothing(run_no: int, kind: str, body: bytes) -> Reply:
    raise AssertionError(f"it asks for {kind}")


def _tells_nothing(report: Labelled | ResultWriteFailed) -> None:
    raise AssertionError(f"it reports {report}")
