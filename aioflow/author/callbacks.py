"""Callbacks: user functions that are called on events of a task or a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from aioflow.author.named_values import declared
from aioflow.model.dag import CallbackSpec, ValueKind

__all__ = ("RUN_EVENTS", "TASK_EVENTS", "Callback", "Callbacks", "callback_spec", "callbacks_of")

Callback: TypeAlias = Callable[[dict[str, Any]], Any]
"""Takes the context; ``def`` or ``async def``. The return value is ignored."""

Callbacks: TypeAlias = Callback | Sequence[Callback] | None

TASK_EVENTS = ("success", "failure", "retry", "skip", "deadline")
RUN_EVENTS = ("success", "failure", "deadline")


def callbacks_of(said: Mapping[str, Any], events: Iterable[str]) -> dict[str, tuple[Callback, ...]]:
    """Return the callbacks from options like ``on_failure``, by event.

    Raises:
        ValueError: If an option contains something that cannot be called.
    """
    found = {}
    for event in events:
        given = said.get(f"on_{event}")
        if given is None:
            continue
        several = given if isinstance(given, Sequence) else (given,)
        for one in several:
            if not callable(one):
                raise ValueError(  # noqa: TRY004 - see settled()
                    f"on_{event} takes what can be called with a context, got {one!r}"
                )
        if several:
            found[event] = tuple(several)
    return found


def callback_spec(
    callbacks: Mapping[str, tuple[Callback, ...]],
    values: tuple[tuple[ValueKind, str], ...] = (),
) -> CallbackSpec | None:
    """Return the description of callbacks; ``None`` if there are none.

    Args:
        callbacks: By event.
        values: Secrets, connections and variables that the task declares, and that its callbacks
            may read too.
    """
    if not callbacks:
        return None
    wanted = dict.fromkeys(values)
    for one in (one for several in callbacks.values() for one in several):
        for kind in ValueKind:
            wanted |= dict.fromkeys(declared(kind, getattr(one, f"{kind}s", ())))
    return CallbackSpec(events=tuple(callbacks), values=tuple(wanted))
