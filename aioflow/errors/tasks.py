"""Errors in user code: they end one try, not the daemon."""

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
    """User code failed. Ends one try, not the daemon."""

    code = "task"


class TaskTimeout(TaskError):
    """A try, a wait or a sensor exceeded its timeout."""

    code = "task.timeout"


class StepFailed(TaskError):
    """A recorded step failed with an exception that cannot be recreated in this process.

    Attributes:
        type: The name of the original exception's class.
    """

    code = "task.step_failed"

    def __init__(self, type_name: str, message: str) -> None:
        super().__init__(f"the recorded step raised {type_name}: {message}")
        self.type = type_name


class CallCutShort(TaskError):
    """A task cancelled one of its own durable calls, or ended while one was in flight.

    Attributes:
        called: The call, with its place in the source.
    """

    code = "task.call_cut_short"

    def __init__(self, called: str) -> None:
        super().__init__(
            f"{called} was cut short by the task itself; when the task runs again that would come "
            "out differently: give wait() a timeout=, and await the call in the task's own body"
        )
        self.called = called


class CallMismatch(TaskError):
    """A re-run of a task made a different durable call than the one recorded at this position.

    Attributes:
        recorded: The recorded call, with its place in the source.
        called: The call that was made now.
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
    """A run started by ``run_dag`` has failed or was cancelled.

    Attributes:
        dag_id: The DAG of the run.
        run_id: The run.
        state: ``failed`` or ``cancelled``.
    """

    code = "task.dag_run_failed"

    def __init__(self, dag_id: str, run_id: str, state: str) -> None:
        super().__init__(f"run {run_id!r} of DAG {dag_id!r} ended {state}")
        self.dag_id = dag_id
        self.run_id = run_id
        self.state = state


class UnknownValue(TaskError):
    """A secret, connection or variable is missing, undeclared, or cannot be decrypted.

    Declare it on the task. Decryption fails if no available key matches.
    """

    code = "task.value"


class NotificationFailed(TaskError):
    """A webhook or an e-mail was not accepted.

    Attributes:
        may_pass: Whether a retry may succeed.
    """

    code = "task.notification"

    def __init__(self, message: str, *, may_pass: bool) -> None:
        super().__init__(message)
        self.may_pass = may_pass


class FanOutCapped(TaskError):
    """A list has more items than the task that expands over it allows.

    Attributes:
        count: The number of items in the list, if known. For a source that is counted item by
            item, such as a generator, the number of the first item above the limit.
        limit: The ``map_limit`` of the mapped task.
        is_whole: Whether ``count`` is the total number of items.
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
    """A task read a key that its context does not have.

    Attributes:
        key: The missing key.
    """

    code = "task.context"

    def __init__(self, key: object, hint: str) -> None:
        super().__init__(f"the context has no {key!r}{hint}")
        self.key = key

    def __str__(self) -> str:
        return str(self.args[0])
