"""What went wrong in user code: it ends one try, not the daemon."""

from __future__ import annotations

from aioflow.errors.root import AioflowError

__all__ = (
    "CallCutShort",
    "CallMismatch",
    "DagRunFailed",
    "FanOutCapped",
    "NotificationFailed",
    "StepFailed",
    "TaskError",
    "TaskTimeout",
    "UnknownContextKey",
    "UnknownValue",
)


class TaskError(AioflowError):
    """User code went wrong. Ends one try, not the daemon."""

    code = "task"


class TaskTimeout(TaskError):
    """A try, a wait or a sensor took longer than it was allowed to."""

    code = "task.timeout"


class StepFailed(TaskError):
    """A recorded step had raised something that cannot be made again here.

    Attributes:
        type: The name of what it raised.
    """

    code = "task.step_failed"

    def __init__(self, type_name: str, message: str) -> None:
        super().__init__(f"the recorded step raised {type_name}: {message}")
        self.type = type_name


class CallCutShort(TaskError):
    """A task cancelled a durable call of its own, or ended while one was under way.

    Attributes:
        called: The call, with its place.
    """

    code = "task.call_cut_short"

    def __init__(self, called: str) -> None:
        super().__init__(
            f"{called} was cut short by the task itself; when the task runs again that would come "
            "out differently: give wait() a timeout=, and await the call in the task's own body"
        )
        self.called = called


class CallMismatch(TaskError):
    """A task that runs again makes another durable call than the one its record has.

    Attributes:
        recorded: What was called then, with its place.
        called: What is called now.
    """

    code = "task.call_mismatch"

    def __init__(self, ordinal: int, recorded: str, called: str) -> None:
        super().__init__(
            f"durable call {ordinal} was {recorded} and is {called} now; a task that waits must "
            "make the same calls in the same order each time: put what may differ into step()"
        )
        self.recorded = recorded
        self.called = called


class DagRunFailed(TaskError):
    """A run that ``run_dag`` started has failed or was cancelled.

    Attributes:
        dag_id: Of which DAG.
        run_id: Which run.
        state: ``failed`` or ``cancelled``.
    """

    code = "task.dag_run_failed"

    def __init__(self, dag_id: str, run_id: str, state: str) -> None:
        super().__init__(f"run {run_id!r} of DAG {dag_id!r} ended {state}")
        self.dag_id = dag_id
        self.run_id = run_id
        self.state = state


class UnknownValue(TaskError):
    """A secret, connection or variable is not there, not declared, or no key at hand opens it."""

    code = "task.value"


class NotificationFailed(TaskError):
    """A webhook or an e-mail was not taken.

    Attributes:
        may_pass: Whether it may be, later.
    """

    code = "task.notification"

    def __init__(self, message: str, *, may_pass: bool) -> None:
        super().__init__(message)
        self.may_pass = may_pass


class FanOutCapped(TaskError):
    """A list is wider than the task it feeds may be mapped.

    Attributes:
        count: Items in the list, where it says so; of what was counted item by item, such as a
            generator, the one item above the limit.
        limit: The ``map_limit`` of the mapped task.
        is_whole: Whether ``count`` is that of all items.
    """

    code = "task.fanout_cap"

    def __init__(self, count: int, limit: int, *, is_whole: bool = True) -> None:
        items = f"{count} items" if is_whole else f"more than {limit} items, without a known end"
        super().__init__(
            f"the result has {items}, but the task that expands over it is limited to "
            f"{limit}; raise its map_limit if that many are meant"
        )
        self.count = count
        self.limit = limit
        self.is_whole = is_whole


class UnknownContextKey(TaskError, KeyError):
    """A task asks its context for a key that it does not have.

    Attributes:
        key: Which.
    """

    code = "task.context"

    def __init__(self, key: object, hint: str) -> None:
        super().__init__(f"the context has no {key!r}{hint}")
        self.key = key

    def __str__(self) -> str:
        return str(self.args[0])
