"""Each effect has one handler, and subscribers see a batch before its effects are performed."""

from __future__ import annotations

from typing import Any

import pytest

from aioflow.clock import SystemClock
from aioflow.core.scheduling.slots import Slots
from aioflow.engine.loop import EffectDispatcher, Engine
from aioflow.protocol.effects import StartHost, Warn


def test_effects_are_dispatched_in_order_each_to_its_handler():
    seen: list[Any] = []
    dispatcher = EffectDispatcher()
    dispatcher.register({StartHost: seen.append, Warn: lambda warning: seen.append("warned")})

    dispatcher.dispatch([StartHost("a"), Warn("it is late", {}), StartHost("b")])

    assert seen == [StartHost("a"), "warned", StartHost("b")]


def test_an_effect_has_one_handler():
    dispatcher = EffectDispatcher()
    dispatcher.register({StartHost: print})

    with pytest.raises(ValueError, match="StartHost has a handler already"):
        dispatcher.register({StartHost: lambda _: None})


async def test_an_engine_does_not_run_while_an_effect_has_no_handler():
    store: Any = None
    engine = Engine(
        store, Slots(cpu_slots=1, async_slots=1), clock=SystemClock(), random=lambda: 0.0
    )
    engine.dispatcher.register(
        dict.fromkeys(engine.dispatcher.unhandled - {StartHost}, lambda _: None)
    )

    with pytest.raises(ValueError, match="no handler is registered for StartHost"):
        await engine.run()
