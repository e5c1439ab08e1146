"""Records of the answers that coroutines received, independent of the database.

Within a try, an answer never changes. The next try keeps the answers before the first failed call.
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
    """The answer to one call."""

    kind: str
    name: str
    body: bytes | None
    failure: Failure | None


class _Story:
    """The answers of one task in its current try by ordinal, and the events of its streams."""

    def __init__(self) -> None:
        self.method = ""
        self.try_number = 1
        self.answers: list[Answer] = []
        self.events: dict[tuple[int, ...], int] = {}
        self.edition = 0

    def forget(self, first: int) -> None:
        del self.answers[first:]


class Told:
    """The answers that all tasks received.

    Attributes:
        calls: Number of answers received for the first time.
        replayed: Number of answers received again.
        named: How often a named event was received.
    """

    def __init__(self) -> None:
        self.calls = self.replayed = self.named = 0
        self._stories: dict[int, _Story] = {}

    def _of(self, task_no: int) -> _Story:
        return self._stories.setdefault(task_no, _Story())

    def edition(self, task_no: int) -> int:
        """Return the edition of a task's code."""
        return self._of(task_no).edition

    def rewrite(self, task_no: int) -> None:
        """Record that the code of a task has changed."""
        self._of(task_no).edition += 1

    def forget(self, task_no: int, first: int = 0) -> None:
        """Forget the answers of a task from call ``first`` on."""
        self._of(task_no).forget(first)

    def clear(self, task_no: int) -> None:
        """Forget everything about a task, because it was cleared."""
        self._stories.pop(task_no, None)

    def begin(self, task_no: int, method: str, try_number: int) -> None:
        """Record that a coroutine begins at the top."""
        story = self._of(task_no)
        if story.method != method:
            story.method = method
            story.forget(0)
        if story.try_number != try_number:
            story.try_number = try_number
            failed = (at for at, told in enumerate(story.answers) if told.failure is not None)
            # A method starts over, because it is called with another event.
            story.forget(0 if method else next(failed, len(story.answers)))

    def replays(self, task_no: int, count: int, records: Sequence[RecordRow]) -> None:
        """Check the records that a coroutine will replay.

        Raises:
            Broken: If an answer that the task had received is missing, or the records have a gap.
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
        """Record an answer that a coroutine receives, for the first time or again.

        Args:
            may_lack: Whether an earlier event may have been lost.

        Raises:
            Broken: If it is not the answer to this call, or differs from the answer received
                earlier.
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
            and story.edition == 0  # another edition may have had another limit
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
    """E6: check that an answer names its task, call and branch."""
    task_no, start_no, ordinal = where
    value = None if body is None else msgspec.msgpack.decode(body)
    match call.kind, value:
        case ("sleep" | "stream" | "emit", None) | ("run_dag", dict()) | ("ask_person", _):
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
    """Return whether the payload belongs to an expected event, not to a stale or repeated one."""
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
    """Return a stream event as a key: its owner and its number."""
    return (*value[1], *value[2:])
