"""Carries what hosted user code asks to the daemon."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from aioflow.author import codec
from aioflow.author.asking import RunEnding
from aioflow.host import questions
from aioflow.host.shared import Line
from aioflow.model import Instant

__all__ = ("LineAsker", "as_datetime", "as_instant")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def as_instant(moment: datetime) -> Instant:
    """Return an aware datetime as an instant."""
    return (moment - _EPOCH) // _MICROSECOND


def as_datetime(instant: Instant) -> datetime:
    """Return an instant in UTC."""
    return _EPOCH + instant * _MICROSECOND


class LineAsker:
    """Asks for one run: what the daemon tells a child is limited to what its run may know.

    Fulfils ``aioflow.author.asking.Asker``.
    """

    __slots__ = ("_line", "_run_no")

    def __init__(self, line: Line, run_no: int) -> None:
        self._line = line
        self._run_no = run_no

    async def run_ending(
        self,
        dag_id: str,
        *,
        task_id: str | None,
        run_id: str | None,
        logical_date: datetime | None,
        since: datetime,
    ) -> RunEnding:
        wanted = questions.RunWanted(
            dag_id,
            task_id,
            run_id,
            None if logical_date is None else as_instant(logical_date),
            as_instant(since),
        )
        body = await self._line.ask(self._run_no, "run", msgspec.msgpack.encode(wanted))
        ending = msgspec.msgpack.decode(body, type=questions.RunEnding)
        result = None if ending.result is None else codec.decode(ending.result)
        return RunEnding(ending.run_id, ending.state, result)
