"""The retry policy of a task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from aioflow.author.duration import Duration, microseconds
from aioflow.model.dag import RetryPolicy

__all__ = ("Retry", "set_default_tries")

_default_tries = 3


def set_default_tries(tries: int) -> None:
    """Set the daemon's setting ``default_tries`` in this process."""
    global _default_tries  # noqa: PLW0603 - one setting of a process, set once before any user code
    _default_tries = tries


def _tries() -> int:
    return _default_tries


@dataclass(frozen=True, kw_only=True)
class Retry:
    """How often and when a failed task is retried.

    The delay before try n + 1 is ``delay * factor ** (n - 1)``, at most ``max_delay``. By default
    jitter subtracts a random share of up to one half, so ``delay="10s"`` waits 5 to 10 s.

    Attributes:
        tries: The maximum number of tries, including the first; 3, unless the daemon's setting
            differs.
        jitter: Whether a random share of the delay is subtracted, so that tasks that fail together
            are not retried at the same moment. Without it, delays are exact.
        on: Retry only these errors; empty for all.
        unless: Do not retry errors for which it returns true.

    Raises:
        ValueError: If a number is out of range.
        BadSchedule: If a delay is no duration.
    """

    tries: int = field(default_factory=_tries)
    delay: Duration = 2.0
    factor: float = 2.0
    max_delay: Duration | None = None
    jitter: bool = True
    on: tuple[type[BaseException], ...] = ()
    unless: Callable[[BaseException], bool] | None = None

    def __post_init__(self) -> None:
        if type(self.tries) is not int or self.tries < 1:
            raise ValueError(f"tries counts the first one, so at least 1, got {self.tries!r}")
        if not 1.0 <= self.factor <= 1_000:
            raise ValueError(f"factor must be from 1 to 1000, got {self.factor!r}")
        if not isinstance(self.on, tuple):
            raise ValueError(f"on must be a tuple of exception classes, got {self.on!r}")  # noqa: TRY004
        self.policy()

    def policy(self) -> RetryPolicy:
        """Return the part of the policy that the engine evaluates."""
        return RetryPolicy(
            tries=self.tries,
            delay_us=microseconds(self.delay, "delay"),
            factor=float(self.factor),
            max_delay_us=(
                None if self.max_delay is None else microseconds(self.max_delay, "max_delay")
            ),
            jitter=bool(self.jitter),
        )

    def is_worth(self, error: BaseException) -> bool:
        """Return whether the error may be retried. Calls ``unless``: user code, which may raise."""
        if self.on and not isinstance(error, self.on):
            return False
        return self.unless is None or not self.unless(error)
