"""Dispatch of the effects of a turn, once it is durable, to their handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, get_args

from aioflow.core.transaction import Transaction
from aioflow.model.batch import Batch
from aioflow.protocol.effects import Effect

__all__ = ("EffectDispatcher", "EffectHandler", "Subscriber")

EffectHandler: TypeAlias = Callable[[Any], None]
"""Executes an effect of one type. It returns at once; the outcome arrives as an input."""

Subscriber: TypeAlias = Callable[[Batch, Transaction], None]
"""Processes a durable batch; the transaction is not settled yet."""


class EffectDispatcher:
    """The handler of each type of effect, and the subscribers of durable batches."""

    def __init__(self) -> None:
        self._handlers: dict[type[Any], EffectHandler] = {}
        self._subscribers: list[Subscriber] = []

    def register(self, handlers: Mapping[type[Any], EffectHandler]) -> None:
        """Set the handlers of types of effects.

        Raises:
            ValueError: If a type has a handler already.
        """
        for effect, handler in handlers.items():
            if self._handlers.setdefault(effect, handler) is not handler:
                raise ValueError(f"{effect.__name__} has a handler already")

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call this with each durable batch, before its effects are dispatched."""
        self._subscribers.append(subscriber)

    def require_all(self) -> None:
        """Check that each type of effect has a handler.

        Raises:
            ValueError: If one has none.
        """
        missing = [kind.__name__ for kind in get_args(Effect) if kind not in self._handlers]
        if missing:
            raise ValueError(f"no handler is registered for {', '.join(missing)}")

    def committed(self, batch: Batch, tx: Transaction) -> None:
        """Notify the subscribers of a batch that is durable."""
        for subscriber in self._subscribers:
            subscriber(batch, tx)

    def dispatch(self, effects: Iterable[Effect]) -> None:
        """Call the handler of each effect, in order."""
        handlers = self._handlers
        for effect in effects:
            handlers[type(effect)](effect)
