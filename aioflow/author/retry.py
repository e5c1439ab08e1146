"""When a failed try may run again, as authors say it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from aioflow.author.duration import Duration, microseconds
from aioflow.model.dag import RetryPolicy

__all__ = ("Retry", "set_default_tries")

_default_tries = 3


def set_default_tries(tries: int) -> None:
    """Tell this process what its daemon is set to; see the setting ``default_tries``."""
    global _default_tries  # noqa: PLW0603 - one setting of a process, set once before any user code
    _default_tries = tries


def _tries() -> int:
    return _default_tries


@dataclass(frozen=True, kw_only=True)
class Retry:
    """How often and when a task is tried again.

    The delay before try n + 1 is ``delay * factor ** (n - 1)``, at most ``max_delay``. By default
    jitter takes a random share of up to a half of it away, so ``delay="10s"`` waits 5 to 10 s.

    Attributes:
        tries: All of them, the first one too; 3, unless the daemon is set otherwise.
        jitter: Whether a random share of the delay is taken away, so that tasks which fail
            together do not all come back together. Without it a delay is exactly as long as said.
        on: Only these errors are worth another try; empty for all.
        unless: Errors for which it returns true are not.

    Raises:
        ValueError: If a figure makes no sense.
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
        """Return the part that the engine decides by."""
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
        """Return whether another try may help. Runs ``unless``: user code, which may raise."""
        if self.on and not isinstance(error, self.on):
            return False
        return self.unless is None or not self.unless(error)
