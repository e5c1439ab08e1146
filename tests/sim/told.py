"""What each coroutine was told, written down beside the database: the witness of its replays.

Within one try an answer once told never changes; the next try keeps what was told before the
first call that failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from aioflow.model.rows import RecordRow
from aioflow.model.states import Failure, RecordState
from tests.sim.broken import Broken
from tests.sim.script import SLEEP, Call

__all__ = ("Answer", "Told", "names_itself")


class Answer(msgspec.Struct, frozen=True):
    """What came of one call."""

    kind: str
    name: str
    body: bytes | None
    failure: Failure | None


class _Story:
    """What one task was told in its present try, by ordinal; and which events of its streams."""

    def __init__(self) -> None:
        self.method = ""
        self.try_number = 1
        self.answers: list[Answer] = []
        self.events: dict[tuple[int, ...], int] = {}
        self.edition = 0

    def forget(self, first: int) -> None:
        del self.answers[first:]


class Told:
    """The stories of all tasks.

    Attributes:
        calls: How many answers were told for the first time.
        replayed: How many once more.
        named: How often a named event was told.
    """

    def __init__(self) -> None:
        self.calls = self.replayed = self.named = 0
        self._stories: dict[int, _Story] = {}

    def _of(self, task_no: int) -> _Story:
        return self._stories.setdefault(task_no, _Story())

    def edition(self, task_no: int) -> int:
        """Return which edition of its code a task is of."""
        return self._of(task_no).edition

    def rewrite(self, task_no: int) -> None:
        """Its code has changed."""
        self._of(task_no).edition += 1

    def forget(self, task_no: int, first: int = 0) -> None:
        """It wants no call from ``first`` on to be remembered."""
        self._of(task_no).forget(first)

    def clear(self, task_no: int) -> None:
        """It begins anew, as if it never had."""
        self._stories.pop(task_no, None)

    def begin(self, task_no: int, method: str, try_number: int) -> None:
        """A coroutine begins at the top."""
        story = self._of(task_no)
        if story.method != method:
            story.method = method
            story.forget(0)
        if story.try_number != try_number:
            story.try_number = try_number
            failed = (at for at, told in enumerate(story.answers) if told.failure is not None)
            # A method begins anew, with another event.
            story.forget(0 if method else next(failed, len(story.answers)))

    def replays(self, task_no: int, count: int, records: Sequence[RecordRow]) -> None:
        """Check what a coroutine is to replay before it does.

        Raises:
            Broken: If that is not what it had been told, call by call, or more is missing.
        """
        story = self._of(task_no)
        if count != len(records) or count < len(story.answers):
            raise Broken(
                "E5 replay",
                f"task {task_no} was told {len(story.answers)} answers, starts with {count}, "
                f"stored are {len(records)}",
            )
        for ordinal, record in enumerate(records):
            if record.ordinal != ordinal or record.state is RecordState.OPEN:
                raise Broken("E5 replay", f"{record} is replayed as call {ordinal}")

    def hears(
        self,
        key: tuple[int, int],
        ordinal: int,
        call: Call,
        body: bytes | None,
        failure: Any,
        *,
        may_lack: bool = False,
    ) -> None:
        """A coroutine is told an answer, for the first time or once more.

        Args:
            may_lack: Whether an event that came before it may never have been taken.

        Raises:
            Broken: If it is not the answer of this call, or another one than before.
        """
        task_no, start_no = key
        story = self._of(task_no)
        answer = Answer(call.kind, call.name, body, failure)
        if ordinal < len(story.answers):
            self.replayed += 1
            if story.answers[ordinal] != answer:
                raise Broken(
                    "E5 replay",
                    f"call {ordinal} of task {task_no} was {story.answers[ordinal]}, is {answer}",
                )
            return
        if ordinal != len(story.answers):
            raise Broken("E5 replay", f"call {ordinal} of task {task_no} after {story.answers}")
        self.calls += 1
        story.answers.append(answer)
        if failure is None:
            _is_its_own(story, (task_no, start_no, ordinal), call, body, may_lack=may_lack)
        elif (
            failure.reason == "timeout"
            and story.edition == 0  # another one may have had another limit
            and (call.timeout_us is None or call.kind == SLEEP)
        ):
            raise Broken("E6 answers", f"{call} of task {task_no} timed out: {failure}")


def _is_its_own(
    story: _Story,
    where: tuple[int, int, int],
    call: Call,
    body: bytes | None,
    *,
    may_lack: bool,
) -> None:
    """E6: an answer names the task, the call and the branch it is an answer to."""
    task_no, start_no, ordinal = where
    value = None if body is None else msgspec.msgpack.decode(body)
    match call.kind, value:
        case ("sleep" | "stream" | "emit", None) | ("run_dag", dict()):
            return
        case ("step" | "now", [int() as task, int() as start, int() as at]):
            right = (task, at) == (task_no, ordinal) and start <= start_no
        case ("next", None):
            return
        case ("next", [str(), [int() as task, int(), int() as opened], *numbers]):
            event = (opened, *_flat(value))
            known = story.events.setdefault(event, ordinal)
            right = (task, opened) == (task_no, call.stream) and known == ordinal
            right = right and bool(numbers) and (may_lack or names_itself(body))
        case ("wait", event):
            right = _is_event(event, task_no, ordinal, 0)
        case ("any_of", [int() as branch, event]):
            right = _is_event(event, task_no, ordinal, branch)
        case ("all_of", [*events]):
            right = len(events) == call.width and all(
                _is_event(event, task_no, ordinal, branch) for branch, event in enumerate(events)
            )
        case _:
            right = False
    if not right:
        raise Broken("E6 answers", f"call {ordinal} of task {task_no}, {call}, got {value!r}")


def names_itself(payload: bytes | None) -> bool:
    """Whether a payload is that of an event that should have come: none is stale, or a second."""
    match None if payload is None else msgspec.msgpack.decode(payload):
        case [str() as what, *_]:
            return what.startswith("event")
        case _:
            return False


def _is_event(event: Any, *token: int) -> bool:
    match event:
        case [str() as what, [*found], *_]:
            return what.startswith("event") and tuple(found) == token
        case _:
            return False


def _flat(value: list[Any]) -> tuple[int, ...]:
    """An event of a stream, as something to look up: whose, and which."""
    return (*value[1], *value[2:])
